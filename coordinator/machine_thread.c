/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single writer: takes inputs from the queues, steps the machine, hands entries to the journal
 * and, when they are durable, effects to the planes.
 */
#include "node_private.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Inputs taken from one queue before the next one has its turn. */
#define TURN_INPUTS_MAX 256u
#define FULL_SEGMENT_ENTRIES UINT64_C(1000)
#define RETRY_JOURNAL_NS UINT64_C(1000000000)
#define WATCH_RANKS_NS UINT64_C(10000000)
/* Entries kept while the journal cannot be written; over it inputs wait. */
#define BACKLOG_ENTRIES_MAX 65536u
#define BACKLOG_BYTES_MAX ((size_t)256 << 20)
/* Inputs kept until their entries are durable: half of the ring, so that the largest always fits.
 */
#define PENDING_BYTES ((size_t)64 << 20)

struct turn {
    struct node *node;
    unsigned char *entry; /* one packed entry */
    /* While the journal is down: entries that wait, in order. */
    bool journal_down;
    bool unread; /* not even its durable entries could be read: the machine is not to be stepped */
    uint64_t retry_at_ns;
    unsigned char *backlog;
    size_t backlog_used;
    uint32_t backlog_entries;
    uint64_t backlog_first;
    uint64_t caught_up; /* entries that waited and are durable now */
    bool stop_stepped;
    uint64_t segments_begun; /* as they were logged last */
    uint64_t segment_failures;
    /* Ranks whose engine is lost and whose pages are watched; then until that is durable. */
    uint64_t watched_ranks;
    uint64_t quiet_ranks;
    uint64_t quiet_entry;
    uint64_t next_watch_ns;
    uint32_t rank_pages[SM_RANKS_MAX]; /* of the engine that attached last */
    uint32_t rank_slots[SM_RANKS_MAX];
    struct ring pending; /* inputs whose entries are not durable, in order */
    uint64_t pending_first;
    uint64_t pending_count;
    bool again; /* those in `pending` come before all others */
    /* Other rooms that the entry is about. */
    uint64_t also[SM_TRANSITIONS_MAX];
    uint32_t also_count;
};

struct backlog_head {
    uint64_t room;
    uint64_t size;
    uint64_t also;
};

/* ---- effects out
 * ---------------------------------------------------------------------------------------- */

static uint32_t peer_index(const struct node *node, const struct sm_effect *effect)
{
    const struct sm_text name = sm_peer_name(node->machine.sm, effect->peer);
    for (uint32_t i = 0; i < node->config.peer_count; i++) {
        const char *candidate = node->config.peers[i].name;
        if (strlen(candidate) == name.size && memcmp(candidate, name.bytes, name.size) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static void forward(struct ring *ring, const struct node *node, const struct sm_effect *effect,
                    uint64_t entry)
{
    const struct timespec pause = {0, 200000};
    const size_t size = sizeof(struct effect_message) + effect_copy_bytes(effect);
    struct effect_message *message = ring_begin(ring, size);
    while (message == NULL && !atomic_load(&node->quit)) {
        (void)nanosleep(&pause, NULL); /* the plane is behind: it drains without us */
        message = ring_begin(ring, size);
    }
    if (message != NULL) {
        message->entry = entry;
        message->quiet_rank = UINT32_MAX;
        message->peer = effect->peer == SM_NONE ? UINT32_MAX : peer_index(node, effect);
        (void)effect_copy(effect, message + 1);
        ring_end(ring);
    }
}

static void dispatch_one(struct turn *turn, const struct sm_effect *effect, uint64_t entry)
{
    struct node *node = turn->node;
    atomic_fetch_add(&node->counters.effects, 1u);
    switch (effect->kind) {
    case SM_FX_WRITE:
        forward(&node->to_fabric_from_machine, node, effect, entry);
        break;
    case SM_FX_FENCE:
        forward(&node->to_fabric_from_machine, node, effect, entry);
        forward(&node->to_control_from_machine, node, effect, entry);
        break;
    case SM_FX_STOPPED:
        atomic_store(&node->stopped, true);
        break;
    default:
        forward(&node->to_control_from_machine, node, effect, entry);
        break;
    }
}

static void forget_durable(struct turn *turn, uint64_t durable)
{
    /* Inputs that are to be stepped again have no number yet. */
    while (!turn->again && turn->pending_count > 0 && turn->pending_first <= durable) {
        ring_pop(&turn->pending);
        turn->pending_first++;
        turn->pending_count--;
    }
}

static void dispatch(struct turn *turn)
{
    const uint64_t durable = writer_durable(turn->node->writer);
    uint64_t entry = 0;
    forget_durable(turn, durable);
    const struct sm_effect *effect = gate_pop(turn->node->gate, durable, &entry);
    while (effect != NULL) {
        dispatch_one(turn, effect, entry);
        effect = gate_pop(turn->node->gate, durable, &entry);
    }
}

/* ---- pools of lost engines
 * ----------------------------------------------------------------------------------------------
 */

static bool say_quiet(struct node *node, uint32_t rank)
{
    struct effect_message *message = ring_begin(&node->to_fabric_from_machine, sizeof *message);
    if (message != NULL) {
        memset(message, 0, sizeof *message);
        message->peer = UINT32_MAX;
        message->quiet_rank = rank;
        ring_end(&node->to_fabric_from_machine);
    }
    return message != NULL;
}

static void watch_engine(struct turn *turn, const struct sm_input *input)
{
    const struct sm_in_engine *engine = &input->u.engine;
    if (input->kind == SM_IN_ENGINE_ATTACHED && engine->rank < SM_RANKS_MAX) {
        turn->rank_pages[engine->rank] = engine->pages;
        turn->rank_slots[engine->rank] = engine->aux_slots;
    } else if (input->kind == SM_IN_ENGINE_LOST && engine->rank < SM_RANKS_MAX) {
        turn->watched_ranks |= UINT64_C(1) << engine->rank;
    }
}

static bool rank_held(const struct turn *turn, uint32_t rank)
{
    const struct sm *sm = turn->node->machine.sm;
    return sm_pages_held(sm, rank, 0, turn->rank_pages[rank]) ||
           sm_slots_held(sm, rank, 0, turn->rank_slots[rank]);
}

/*
 * The pool of a lost engine stays mapped while a peer could still write into it. When the machine
 * holds none of the rank's pages any more, all peers have said that they are through, or have been
 * fenced: the data plane is told, once that is durable.
 */
static void watch_ranks(struct turn *turn)
{
    struct node *node = turn->node;
    if (turn->quiet_ranks != 0 && writer_durable(node->writer) >= turn->quiet_entry) {
        for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
            const uint64_t bit = UINT64_C(1) << rank;
            if ((turn->quiet_ranks & bit) != 0 && say_quiet(node, rank)) {
                turn->quiet_ranks &= ~bit;
            }
        }
    }
    if (turn->watched_ranks == 0 || monotonic_ns() < turn->next_watch_ns) {
        return;
    }
    turn->next_watch_ns = monotonic_ns() + WATCH_RANKS_NS;
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        const uint64_t bit = UINT64_C(1) << rank;
        if ((turn->watched_ranks & bit) != 0 && !rank_held(turn, rank)) {
            turn->watched_ranks &= ~bit;
            turn->quiet_ranks |= bit;
            turn->quiet_entry = node->next_entry - 1u;
        }
    }
}

/* ---- entries
 * ---------------------------------------------------------------------------------------------- */

static void submit(struct turn *turn, uint64_t number, uint64_t room, size_t size)
{
    struct node *node = turn->node;
    const struct timespec pause = {0, 200000};
    unsigned char *slot =
        writer_begin(node->writer, number, room, turn->also, turn->also_count, size);
    struct status_detail detail;
    while (slot == NULL && writer_failure(node->writer, &detail) == STATUS_OK) {
        (void)nanosleep(&pause, NULL);
        slot = writer_begin(node->writer, number, room, turn->also, turn->also_count, size);
    }
    if (slot != NULL) {
        memcpy(slot, turn->entry, size);
        writer_submit(node->writer);
    }
}

static void keep_in_backlog(struct turn *turn, uint64_t number, uint64_t room, size_t size)
{
    const struct backlog_head head = {room, size, turn->also_count};
    const size_t also_bytes = turn->also_count * sizeof turn->also[0];
    if (turn->backlog_entries == 0) {
        turn->backlog_first = number;
    }
    memcpy(turn->backlog + turn->backlog_used, &head, sizeof head);
    memcpy(turn->backlog + turn->backlog_used + sizeof head, turn->also, also_bytes);
    memcpy(turn->backlog + turn->backlog_used + sizeof head + also_bytes, turn->entry, size);
    /* Rounded, so that the rooms of the next one are aligned. */
    turn->backlog_used += (sizeof head + also_bytes + size + 15u) / 16u * 16u;
    turn->backlog_entries++;
}

static bool backlog_full(const struct turn *turn)
{
    return turn->journal_down && (turn->backlog_entries >= BACKLOG_ENTRIES_MAX ||
                                  turn->backlog_used + NODE_ENTRY_BYTES_MAX > BACKLOG_BYTES_MAX);
}

static bool ready_to_step(const struct turn *turn)
{
    return gate_has_room(turn->node->gate) && !backlog_full(turn) && !turn->unread;
}

/*
 * Keeps an input for the case that its entry is lost. While the journal is down entries wait in the
 * backlog, where they cannot be.
 */
static void remember(struct turn *turn, const struct sm_input *input, uint64_t number)
{
    if (turn->journal_down) {
        return;
    }
    if (!input_send(&turn->pending, input)) {
        log_event(LOG_ERROR_LEVEL, "machine.pending_full", "entry=%" PRIu64, number);
        abort(); /* ready_for_input leaves room for the largest input: a bug of ours */
    }
    if (turn->pending_count == 0) {
        turn->pending_first = number;
    }
    turn->pending_count++;
}

/* One step: machine, entry, gate. */
static void step(struct turn *turn, struct sm_input *input)
{
    struct node *node = turn->node;
    struct journal_machine *machine = &node->machine;
    const uint64_t now = node_clock(node);
    size_t size = 0;
    input->time_ns = now > sm_now(machine->sm) ? now : sm_now(machine->sm);
    sm_step(machine->sm, input, machine->output);
    const uint64_t number = node->next_entry++;
    struct codec_entry entry;
    memset(&entry, 0, sizeof entry);
    entry.input = *input;
    entry.wall_ns = node_wall_ns();
    entry.digest = machine->output->digest;
    entry.effects = codec_effects_digest(machine->output);
    entry.transitions = machine->output->transitions;
    entry.transition_count = machine->output->transition_count;
    const enum status status =
        codec_entry_pack(&entry, &machine->scratch, turn->entry, NODE_ENTRY_BYTES_MAX, &size);
    if (status != STATUS_OK) {
        /* Bounds of inputs and outputs keep every entry far below the buffer: a bug of ours. */
        log_event(LOG_ERROR_LEVEL, "machine.entry_too_large", "entry=%" PRIu64, number);
        abort();
    }
    remember(turn, input, number);
    watch_engine(turn, input);
    gate_push(node->gate, number, machine->output);
    turn->also_count = journal_other_rooms(
        machine->output->transitions, machine->output->transition_count, input->room, turn->also);
    if (turn->journal_down) {
        keep_in_backlog(turn, number, input->room, size);
    } else {
        submit(turn, number, input->room, size);
    }
    atomic_fetch_add(&node->counters.inputs, 1u);
}

static void step_simple(struct turn *turn, uint32_t kind)
{
    struct sm_input input;
    memset(&input, 0, sizeof input);
    input.kind = kind;
    step(turn, &input);
}

/* ---- snapshots
 * -----------------------------------------------------------------------------------------------
 */

struct snapshot_context {
    struct turn *turn;
    uint64_t entry;
    uint64_t wall_ns;
};

static bool put_item(void *context, uint32_t index, const unsigned char *bytes, size_t size)
{
    const struct snapshot_context *c = context;
    const struct timespec pause = {0, 1000000};
    struct status_detail detail;
    while (!writer_snapshot_item(c->turn->node->writer, c->entry, index, c->wall_ns, bytes, size)) {
        if (writer_failure(c->turn->node->writer, &detail) != STATUS_OK ||
            atomic_load(&c->turn->node->quit)) {
            return false;
        }
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

/* What the journal thread may not log itself. */
static void log_segments(struct turn *turn)
{
    struct writer_counters now;
    writer_counters(turn->node->writer, &now);
    if (now.segments_begun != turn->segments_begun) {
        log_event(LOG_INFO_LEVEL, "journal.segment", "begun=%" PRIu64 " removed=%" PRIu64,
                  now.segments_begun, now.segments_removed);
        turn->segments_begun = now.segments_begun;
    }
    if (now.segment_failures != turn->segment_failures) {
        log_event(LOG_WARNING_LEVEL, "journal.segment_failed",
                  "count=%" PRIu64
                  "; the journal goes on in the segment that it has and tries again "
                  "at the next snapshot; is its disk full?",
                  now.segment_failures);
        turn->segment_failures = now.segment_failures;
    }
}

static void maybe_snapshot(struct turn *turn)
{
    struct node *node = turn->node;
    struct status_detail detail;
    const uint64_t entry = node->next_entry - 1u;
    const uint64_t every = node->config.snapshot_every;
    log_segments(turn);
    /* A full segment is to end soon; if it could not, the next try is not at the next entry. */
    const uint64_t full = every < FULL_SEGMENT_ENTRIES ? every : FULL_SEGMENT_ENTRIES;
    const uint64_t wait = writer_wants_snapshot(node->writer) ? full : every;
    if (turn->journal_down || turn->unread || entry < node->last_snapshot + wait) {
        return;
    }
    node->last_snapshot = entry;
    struct snapshot_context context = {turn, entry, node_wall_ns()};
    if (journal_machine_pack(&node->machine, entry, put_item, &context, &detail) != STATUS_OK) {
        log_event(LOG_WARNING_LEVEL, "journal.snapshot_failed", "entry=%" PRIu64 " reason=\"%s\"",
                  entry, detail.text);
        return;
    }
    while (!writer_snapshot_end(node->writer, entry) && !atomic_load(&node->quit) &&
           writer_failure(node->writer, &detail) == STATUS_OK) {
        (void)nanosleep(&(const struct timespec){0, 1000000}, NULL);
    }
    log_event(LOG_DEBUG_LEVEL, "journal.snapshot", "entry=%" PRIu64, entry);
}

/* ---- a journal that fails
 * ------------------------------------------------------------------------------------- */

/*
 * What was stepped after the last entry of the journal never happened: the machine is run again up
 * to that entry. Then it learns that the journal has failed, and its 503s leave without one, and
 * the lost inputs come once more (step_again).
 */
static enum status rebuild(struct turn *turn)
{
    struct node *node = turn->node;
    const uint64_t written = writer_written(node->writer);
    struct journal_replay options;
    struct journal_replayed replayed;
    struct status_detail detail;
    struct journal_machine fresh;
    memset(&options, 0, sizeof options);
    options.until = written;
    options.from_snapshot = true;
    gate_drop_after(node->gate, written);
    forget_durable(turn, written);
    enum status status = journal_machine_open(&fresh, &detail);
    if (status == STATUS_OK) {
        status = journal_replay(node->journal, &fresh, &options, &replayed, &detail);
        if (status != STATUS_OK) {
            journal_machine_close(&fresh);
        }
    }
    if (status != STATUS_OK) {
        const bool later = status_class(status) == STATUS_CLASS_STORE;
        log_event(LOG_ERROR_LEVEL, "journal.unreadable", "reason=\"%s\"; %s", detail.text,
                  later ? "tried again every second" : "the node ends");
        return status;
    }
    /* Pages that were given back only in entries that are lost are held again. */
    turn->watched_ranks |= turn->quiet_ranks;
    turn->quiet_ranks = 0;
    journal_machine_close(&node->machine);
    node->machine = fresh;
    node->next_entry = written + 1u;
    return STATUS_OK;
}

/*
 * The inputs whose entries were lost did happen: engines are attached, peers are up, writes are
 * done, commands want an answer, and nobody says any of it twice. So they are stepped once more.
 */
static uint32_t step_again(struct turn *turn)
{
    uint32_t taken = 0;
    size_t size = 0;
    while (turn->pending_count > 0 && taken < TURN_INPUTS_MAX && ready_to_step(turn)) {
        struct sm_input input;
        memcpy(&input, ring_front(&turn->pending, &size), sizeof input);
        /* Time comes by itself, and of the journal the machine knows more than these. */
        if (input.kind != SM_IN_TICK && input.kind != SM_IN_JOURNAL_OK) {
            step(turn, &input);
        }
        ring_pop(&turn->pending);
        turn->pending_count--;
        taken++;
    }
    turn->again = turn->pending_count > 0;
    return taken;
}

static void journal_failed(struct turn *turn, const struct status_detail *detail)
{
    struct node *node = turn->node;
    atomic_fetch_add(&node->counters.journal_failures, 1u);
    if (!turn->journal_down) {
        if (!turn->unread) {
            log_event(LOG_ERROR_LEVEL, "journal.failed",
                      "reason=\"%s\"; rooms end with 503 and new ones are refused until it can be "
                      "written",
                      detail->text);
        }
        const enum status status = rebuild(turn);
        turn->unread = status != STATUS_OK;
        if (turn->unread) {
            /* A disk that fails may be well again; what is damaged stays so. */
            if (status_class(status) != STATUS_CLASS_STORE) {
                atomic_store(&node->stopped, true);
            }
            turn->retry_at_ns = monotonic_ns() + RETRY_JOURNAL_NS;
            return;
        }
        turn->journal_down = true;
        turn->backlog_used = 0;
        turn->backlog_entries = 0;
        turn->caught_up = 0;
        step_simple(turn, SM_IN_JOURNAL_FAILED);
        turn->again = turn->pending_count > 0;
    }
    turn->retry_at_ns = monotonic_ns() + RETRY_JOURNAL_NS;
}

/* One entry that waits, once the queue has room; false: the journal has failed again. */
static bool submit_waiting(struct turn *turn, uint64_t number, const struct backlog_head *head,
                           const unsigned char *bytes)
{
    struct node *node = turn->node;
    const struct timespec pause = {0, 1000000};
    struct status_detail detail;
    for (;;) {
        if (writer_failure(node->writer, &detail) != STATUS_OK || atomic_load(&node->quit)) {
            return false;
        }
        unsigned char *slot =
            writer_begin(node->writer, number, head->room, (const uint64_t *)(const void *)bytes,
                         (uint32_t)head->also, (size_t)head->size);
        if (slot != NULL) {
            memcpy(slot, bytes + head->also * sizeof turn->also[0], (size_t)head->size);
            writer_submit(node->writer);
            return true;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Submits all that wait and are not written: an earlier try may have got to the first of them. */
static bool submit_backlog(struct turn *turn)
{
    const uint64_t written = writer_written(turn->node->writer);
    size_t at = 0;
    for (uint32_t i = 0; i < turn->backlog_entries; i++) {
        const uint64_t number = turn->backlog_first + i;
        struct backlog_head head;
        memcpy(&head, turn->backlog + at, sizeof head);
        if (number > written &&
            !submit_waiting(turn, number, &head, turn->backlog + at + sizeof head)) {
            return false;
        }
        const size_t also_bytes = (size_t)head.also * sizeof turn->also[0];
        at += (sizeof head + also_bytes + (size_t)head.size + 15u) / 16u * 16u;
    }
    return true;
}

/* Tries the entries that wait; the journal works again when none is left. */
static void retry_journal(struct turn *turn)
{
    struct node *node = turn->node;
    struct status_detail detail;
    const struct timespec pause = {0, 1000000};
    if (!turn->journal_down || monotonic_ns() < turn->retry_at_ns) {
        return;
    }
    if (writer_failure(node->writer, &detail) != STATUS_OK) {
        writer_retry(node->writer);
    }
    const uint64_t last = turn->backlog_first + turn->backlog_entries - 1u;
    bool well = submit_backlog(turn);
    while (well && writer_durable(node->writer) < last) {
        well = writer_failure(node->writer, &detail) == STATUS_OK && !atomic_load(&node->quit);
        (void)nanosleep(&pause, NULL);
    }
    if (!well) {
        turn->retry_at_ns = monotonic_ns() + RETRY_JOURNAL_NS;
        return;
    }
    turn->caught_up += turn->backlog_entries;
    turn->backlog_first = last + 1u;
    turn->backlog_entries = 0;
    turn->backlog_used = 0;
    if (turn->again) {
        return; /* the backlog was too small for all lost inputs: on with the next of them */
    }
    turn->journal_down = false;
    log_event(LOG_WARNING_LEVEL, "journal.works_again", "entries_caught_up=%" PRIu64,
              turn->caught_up);
    step_simple(turn, SM_IN_JOURNAL_OK);
}

static void watch_journal(struct turn *turn)
{
    struct status_detail detail;
    if (!turn->journal_down && (!turn->unread || monotonic_ns() >= turn->retry_at_ns) &&
        writer_failure(turn->node->writer, &detail) != STATUS_OK) {
        journal_failed(turn, &detail);
    }
    retry_journal(turn);
}

/* ---- the loop
 * ----------------------------------------------------------------------------------------------------
 */

static bool ready_for_input(const struct turn *turn)
{
    return ready_to_step(turn) && ring_used(&turn->pending) < PENDING_BYTES / 2u;
}

static uint32_t take_inputs(struct turn *turn, struct ring *ring)
{
    uint32_t taken = 0;
    size_t size = 0;
    while (taken < TURN_INPUTS_MAX && ready_for_input(turn)) {
        const void *front = ring_front(ring, &size);
        if (front == NULL) {
            break;
        }
        struct sm_input input;
        memcpy(&input, front, sizeof input); /* what it points to stays in the ring until the pop */
        step(turn, &input);
        ring_pop(ring);
        taken++;
    }
    return taken;
}

static void wait_for_work(struct turn *turn)
{
    struct node *node = turn->node;
    struct pollfd fds[3] = {{node->to_machine_from_control.wake_fd, POLLIN, 0},
                            {node->to_machine_from_fabric.wake_fd, POLLIN, 0},
                            {node->machine_wake, POLLIN, 0}};
    const uint64_t deadline = sm_deadline(node->machine.sm);
    const uint64_t now = node_clock(node);
    uint64_t wait = deadline <= now ? 0 : deadline - now;
    const bool watching = (turn->watched_ranks | turn->quiet_ranks) != 0;
    const uint64_t longest = watching             ? WATCH_RANKS_NS
                             : turn->journal_down ? UINT64_C(100000000)
                                                  : UINT64_C(500000000);
    wait = turn->unread ? UINT64_C(100000000) : wait > longest ? longest : wait;
    const bool first = ring_may_sleep(&node->to_machine_from_control);
    const bool second = ring_may_sleep(&node->to_machine_from_fabric);
    if (first && second && wait > 0) {
        const struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        (void)ppoll(fds, 3, &timeout, NULL);
    }
    ring_woken(&node->to_machine_from_control);
    ring_woken(&node->to_machine_from_fabric);
    log_catch_up();
    uint64_t count = 0;
    while (read(node->machine_wake, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

static void log_summary(struct node *node)
{
    struct sm_gauges g;
    struct sm_counters c;
    struct writer_counters w;
    sm_gauges(node->machine.sm, &g);
    sm_counters(node->machine.sm, &c);
    writer_counters(node->writer, &w);
    log_event(LOG_INFO_LEVEL, "node.summary",
              "rooms=%" PRIu64 " remembered=%" PRIu64 " writes_in_flight=%" PRIu64
              " pages_held=%" PRIu64 " unsent_notices=%" PRIu64 " opened=%" PRIu64
              " succeeded=%" PRIu64 " failed=%" PRIu64 " entries=%" PRIu64 " durable=%" PRIu64
              " batches=%" PRIu64 " gate=%" PRIu64 " queue_journal=%zu queue_control=%zu "
              "queue_fabric=%zu",
              g.halves, g.tombstones, g.writes_in_flight, g.pages_held, g.unsent_notices,
              c.rooms_opened, c.rooms_succeeded, c.rooms_failed, node->next_entry - 1u,
              writer_durable(node->writer), w.batches, gate_waiting(node->gate), w.queue_bytes,
              ring_used(&node->to_control_from_machine), ring_used(&node->to_fabric_from_machine));
}

static void one_turn(struct turn *turn)
{
    struct node *node = turn->node;
    if (atomic_load(&node->stop_asked) && !turn->stop_stepped && !turn->unread) {
        turn->stop_stepped = true;
        step_simple(turn, SM_IN_NODE_STOP);
    }
    uint32_t taken = 0;
    if (turn->again) {
        taken = step_again(turn);
    } else {
        taken = take_inputs(turn, &node->to_machine_from_control);
        taken += take_inputs(turn, &node->to_machine_from_fabric);
    }
    if (sm_deadline(node->machine.sm) <= node_clock(node) && ready_for_input(turn)) {
        step_simple(turn, SM_IN_TICK);
        taken++;
    }
    watch_journal(turn);
    dispatch(turn);
    if (!turn->unread) {
        watch_ranks(turn);
    }
    maybe_snapshot(turn);
    if (atomic_exchange(&node->summary_asked, false)) {
        log_summary(node);
    }
    if (taken == 0) {
        wait_for_work(turn);
    }
}

void *machine_main(void *context)
{
    struct turn turn;
    struct status_detail detail;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    memset(&turn, 0, sizeof turn);
    turn.node = context;
    turn.entry = malloc(NODE_ENTRY_BYTES_MAX);
    turn.backlog = malloc(BACKLOG_BYTES_MAX);
    const bool opened = ring_open(&turn.pending, PENDING_BYTES, &detail) == STATUS_OK;
    if (turn.entry == NULL || turn.backlog == NULL || !opened) {
        log_event(LOG_ERROR_LEVEL, "node.no_memory", "thread=machine");
        atomic_store(&turn.node->stopped, true);
    } else {
        while (!atomic_load(&turn.node->quit)) {
            one_turn(&turn);
        }
        log_summary(turn.node);
    }
    if (opened) {
        ring_close(&turn.pending);
    }
    free(turn.entry);
    free(turn.backlog);
    return NULL;
}
