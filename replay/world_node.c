/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's nodes: steps, entries, process lives, and their engines. */
#include "world_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_JOURNAL_NS UINT64_C(1000000000)

/* ---- steps
 * ---------------------------------------------------------------------------------------------- */

static void keep_entry(struct world *world, struct node *node, const unsigned char *bytes,
                       size_t size, uint64_t room)
{
    if (node->entry_count == node->entry_capacity) {
        const uint64_t capacity = node->entry_capacity == 0 ? 256u : node->entry_capacity * 2u;
        struct kept_entry *grown = realloc(node->entries, capacity * sizeof *node->entries);
        if (grown == NULL) {
            abort();
        }
        node->entries = grown;
        node->entry_capacity = capacity;
    }
    struct kept_entry *entry = &node->entries[node->entry_count++];
    entry->bytes = chunks_take(&world->memory, size);
    memcpy(entry->bytes, bytes, size);
    entry->size = size;
    entry->room = room;
}

/* Forgets all entries but the first `keep`. */
static void forget(struct node *node, uint64_t keep)
{
    node->entry_count = node->entry_count < keep ? node->entry_count : keep;
}

static void check(struct world *world, uint32_t index)
{
    struct sm_violation violation;
    const struct node *node = &world->nodes[index];
    if (!sm_check_step(node->machine.sm, node->machine.output, &violation) ||
        !sm_check(node->machine.sm, &violation)) {
        world_fall(world, "invariant %s fell at %s, room %" PRIu64 ": %s",
                   sm_invariant_name(violation.invariant), node->options.name, violation.room,
                   violation.detail);
    }
}

static void carry_out(struct world *world, uint32_t index, const struct sm_effect *effect,
                      uint64_t entry)
{
    struct node *node = &world->nodes[index];
    switch (effect->kind) {
    case SM_FX_WRITE:
        flight_post(world, index, effect);
        break;
    case SM_FX_TELL:
        engine_told(world, index, effect);
        break;
    case SM_FX_REPLY:
        engine_replied(world, index, effect);
        break;
    case SM_FX_PAGES_FREE:
        break; /* engines look at nothing but results; pages are asked of the machine */
    case SM_FX_FENCE:
        net_fence(world, index, effect);
        break;
    case SM_FX_STOPPED:
        node->state = NODE_STOPPED;
        net_silence(world, index);
        break;
    default:
        net_send(world, index, effect, entry);
        break;
    }
}

static void release_effects(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    uint64_t entry = 0;
    const struct sm_effect *effect = gate_pop(node->gate, node->durable, &entry);
    while (effect != NULL && node->state == NODE_RUNS) {
        carry_out(world, index, effect, entry);
        effect = gate_pop(node->gate, node->durable, &entry);
    }
}

/* The machine takes an input; its entry is kept behind the others. */
static void machine_step(struct world *world, uint32_t index, struct sm_input *input)
{
    struct node *node = &world->nodes[index];
    struct journal_machine *machine = &node->machine;
    struct codec_entry entry;
    size_t size = 0;
    input->time_ns = WORLD_MACHINE_BASE + world->now_ns;
    sm_step(machine->sm, input, machine->output);
    world->steps++;
    check(world, index);
    memset(&entry, 0, sizeof entry);
    entry.input = *input;
    entry.wall_ns = WORLD_WALL_BASE + world->now_ns;
    entry.digest = machine->output->digest;
    entry.effects = codec_effects_digest(machine->output);
    entry.transitions = machine->output->transitions;
    entry.transition_count = machine->output->transition_count;
    if (input->kind == SM_IN_NODE_STARTED) {
        entry.bounds = machine->bounds;
        entry.machine_version = SM_MACHINE_VERSION;
        entry.program = world_text("stateroom scenario");
    }
    if (codec_entry_pack(&entry, &machine->scratch, world->entry, ENTRY_BYTES_MAX, &size) !=
        STATUS_OK) {
        world_fall(world, "an entry of %s does not fit %zu bytes", node->options.name,
                   ENTRY_BYTES_MAX);
        return;
    }
    keep_entry(world, node, world->entry, size, input->room);
    gate_push(node->gate, node->entry_count, machine->output);
}

static bool replay_entries(struct world *world, struct node *node);
static void stop_waiting(struct world *world, uint32_t index, uint32_t rank, uint64_t room);
static void unanswered(struct world *world, uint32_t index, const struct sm_input *input);
static void repeat_releases(struct world *world, uint32_t index, uint32_t rank);

/* What was stepped after the last durable entry never happened. */
static void rebuild(struct world *world, struct node *node)
{
    gate_drop_after(node->gate, node->durable);
    forget(node, node->durable);
    if (!replay_entries(world, node)) {
        world_fall(world, "the entries of %s do not replay", node->options.name);
    }
}

static void journal_fails(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    struct sm_input failed = {.kind = SM_IN_JOURNAL_FAILED};
    node->journal_down = true;
    machine_step(world, index, &failed);
    release_effects(world, index);
}

void node_retry(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    if (node->state != NODE_RUNS || !node->journal_down || node->disk != WORLD_DISK_OK) {
        return;
    }
    struct sm_input works = {.kind = SM_IN_JOURNAL_OK};
    node->journal_down = false;
    node->durable = node->entry_count;
    release_effects(world, index);
    node_step(world, index, &works);
}

void node_step(struct world *world, uint32_t index, struct sm_input *input)
{
    struct node *node = &world->nodes[index];
    const bool early = (world->options.protections_off >> SM_PROTECT_JOURNAL_FIRST & 1u) != 0;
    if (node->state != NODE_RUNS || world->fault[0] != '\0') {
        return;
    }
    if (node->disk != WORLD_DISK_OK && !node->journal_down) {
        if (early) {
            /* Without the protection what was stepped is told before it is known to be lost. */
            machine_step(world, index, input);
            release_effects(world, index);
            rebuild(world, node);
            journal_fails(world, index);
            return;
        }
        journal_fails(world, index);
    }
    machine_step(world, index, input);
    if (!node->journal_down) {
        node->durable = node->entry_count;
    }
    if (node->crash_after_commit && !node->journal_down) {
        node->crash_after_commit = false;
        if (early) {
            release_effects(world, index);
        }
        node_die(world, index);
        return;
    }
    release_effects(world, index);
}

/* ---- process lives
 * -------------------------------------------------------------------------------------- */

/* The machine anew, from packed entries; each must come out as it was recorded. */
static bool replay_entries(struct world *world, struct node *node)
{
    struct status_detail detail;
    journal_machine_renew(&node->machine);
    if (node->machine.output == NULL &&
        journal_machine_open(&node->machine, &detail) != STATUS_OK) {
        world_fall(world, "%s", detail.text);
        return false;
    }
    for (uint64_t i = 0; i < node->entry_count; i++) {
        struct codec_entry entry;
        codec_arena_reset(&world->arena);
        if (codec_entry_unpack(node->entries[i].bytes, node->entries[i].size, &world->arena,
                               &entry) != STATUS_OK ||
            (entry.input.kind == SM_IN_NODE_STARTED &&
             journal_machine_lay_out(&node->machine, &entry.bounds, &detail) != STATUS_OK)) {
            return false;
        }
        sm_step(node->machine.sm, &entry.input, node->machine.output);
        if (node->machine.output->digest != entry.digest) {
            world_fall(world, "entry %" PRIu64 " of %s replays to another state", i + 1u,
                       node->options.name);
            return false;
        }
    }
    return true;
}

static void attach_engines(struct world *world, uint32_t index)
{
    const struct world_node_options *o = &world->nodes[index].options;
    for (uint32_t rank = 0; rank < o->ranks; rank++) {
        struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
        attach.u.engine.rank = rank;
        attach.u.engine.pages = o->pool_pages;
        attach.u.engine.aux_slots = 1024;
        attach.u.engine.geometry = o->geometry;
        node_step(world, index, &attach);
        repeat_releases(world, index, rank);
    }
}

static uint64_t id_of(const struct node *node)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) + node->wipes;
    for (const char *c = node->options.name; *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    }
    return hash == 0 ? 1 : hash;
}

void node_start(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    struct status_detail detail;
    struct sm_input input = {.kind = SM_IN_NODE_STARTED};
    struct sm_in_node_started *in = &input.u.node_started;
    struct sm_text peers[WORLD_NODES_MAX];
    node->node_id = id_of(node);
    node->epoch++;
    node->state = NODE_RUNS;
    node->frozen = false;
    node->journal_down = false;
    if (!replay_entries(world, node) ||
        journal_machine_lay_out(&node->machine, &node->options.settings.bounds, &detail) !=
            STATUS_OK) {
        world_fall(world, "%s does not come up from its entries", node->options.name);
        return;
    }
    node->link_last = sm_link_last(node->machine.sm);
    sglang_start(world, index);
    in->node_id = node->node_id;
    in->epoch = node->epoch;
    in->name = world_text(node->options.name);
    in->policy = node->options.settings.policy;
    in->policy.ranks = node->options.ranks;
    in->policy.protections_off = world->options.protections_off;
    memcpy(in->policy.sources_by_hand, node->options.sources_by_hand,
           sizeof in->policy.sources_by_hand);
    for (uint32_t i = 0; i < world->node_count; i++) {
        if (world->nodes[i].options.side != node->options.side) {
            peers[in->peer_count++] = world_text(world->nodes[i].options.name);
        }
    }
    in->peer_names = peers;
    node_step(world, index, &input);
    attach_engines(world, index);
}

void node_die(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    if (node->state != NODE_RUNS) {
        return;
    }
    node->state = NODE_DOWN;
    node->frozen = false;
    node->crash_after_commit = false;
    gate_drop_after(node->gate, 0);
    sglang_end(node);
    forget(node, node->durable);
    while (node->inbox != NULL) {
        struct event *next = node->inbox->next;
        if (node->inbox->kind == EVENT_INPUT && sm_input_is_command(node->inbox->input.kind) &&
            node->inbox->input.u.command.request != 0) {
            unanswered(world, index, &node->inbox->input);
        }
        event_free(world, node->inbox);
        node->inbox = next;
    }
    node->inbox_end = &node->inbox;
    for (uint32_t other = 0; other < world->node_count; other++) {
        world->connections[index][other].up = false;
    }
    net_silence(world, index);
}

void world_crash(struct world *world, uint32_t node, bool after_commit)
{
    if (after_commit) {
        world->nodes[node].crash_after_commit = true;
    } else {
        node_die(world, node);
    }
}

void world_restart(struct world *world, uint32_t index, bool wipe)
{
    struct node *node = &world->nodes[index];
    if (node->state == NODE_RUNS) {
        node_die(world, index);
    }
    if (wipe) {
        forget(node, 0);
        node->durable = 0;
        node->wipes++;
        node->wiped_ns = world->now_ns;
        node->epoch = 0;
    }
    node->wants_start = node->disk != WORLD_DISK_OK;
    if (!node->wants_start) {
        node_start(world, index);
        net_connect_later(world, index);
    }
}

void world_stop(struct world *world, uint32_t node)
{
    struct sm_input stop = {.kind = SM_IN_NODE_STOP};
    if (world->nodes[node].frozen) {
        event_input(world, world->now_ns, CLASS_STATEMENT, node, &stop);
    } else {
        node_step(world, node, &stop);
    }
}

void world_disk(struct world *world, uint32_t node, enum world_disk disk)
{
    world->nodes[node].disk = disk;
    if (disk == WORLD_DISK_OK && world->nodes[node].wants_start) {
        world_restart(world, node, false);
    }
    if (disk == WORLD_DISK_OK && world->nodes[node].journal_down) {
        /* The node tries once a second. */
        struct event *retry =
            event_new(world, world->now_ns + RETRY_JOURNAL_NS, CLASS_TIMER, EVENT_RETRY);
        retry->to = node;
        event_add(world, retry);
    }
}

/* ---- engines
 * -------------------------------------------------------------------------------------------- */

struct world_log *log_add(struct world *world, enum world_log_kind kind)
{
    world->logs =
        array_grow(world->logs, &world->log_capacity, world->log_count, sizeof *world->logs);
    struct world_log *log = &world->logs[world->log_count++];
    memset(log, 0, sizeof *log);
    log->kind = kind;
    log->time_ns = world->now_ns;
    log->reason = "";
    return log;
}

void log_reason(struct world *world, struct sm_text reason)
{
    if (reason.size > 0) {
        world->logs[world->log_count - 1u].reason =
            chunks_text(&world->memory, reason.bytes, reason.size);
    }
}

/* libstateroom says this by itself when no node answers. */
static void unanswered(struct world *world, uint32_t index, const struct sm_input *input)
{
    struct world_log *log = log_add(world, WORLD_REFUSED);
    log->room = input->room;
    log->node = index;
    log->rank = input->u.command.rank;
    log->command = input->kind;
    log->http = 503;
    log->reason = "the node does not run";
}

static void keep_release(struct world *world, struct node *node, const struct sm_input *input)
{
    const struct sm_in_command *c = &input->u.command;
    struct release *release = chunks_take(&world->memory, sizeof *release);
    *release =
        (struct release){c->request, input->room, c->generation, c->side, c->rank, node->releases};
    node->releases = release;
}

static void answer_release(struct node *node, uint64_t request)
{
    for (struct release **at = &node->releases; *at != NULL; at = &(*at)->next) {
        if ((*at)->request == request) {
            *at = (*at)->next;
            return;
        }
    }
}

/* What an engine must say and does not know to be heard it says again, as libstateroom does. */
static void repeat_releases(struct world *world, uint32_t index, uint32_t rank)
{
    for (const struct release *r = world->nodes[index].releases; r != NULL; r = r->next) {
        if (r->rank == rank) {
            struct sm_input input = {.kind = SM_IN_RELEASE, .room = r->room};
            input.u.command.request = r->request;
            input.u.command.side = r->side;
            input.u.command.rank = rank;
            input.u.command.generation = r->generation;
            input.u.command.aux_slot = SM_AUX_NONE;
            input.u.command.peer = world_text("");
            input.u.command.cause.reason = world_text("");
            event_input(world, world->now_ns, CLASS_MESSAGE, index, &input);
        }
    }
}

static void keep_destination(struct world *world, uint32_t index, const struct sm_input *input)
{
    const struct sm_in_command *c = &input->u.command;
    struct seat *seat = world_seat(world, index, c->rank, input->room);
    struct destination *destination = chunks_take_zeroed(&world->memory, sizeof *destination);
    destination->request = c->request;
    destination->from = UINT32_MAX;
    destination->pages = world_page_list(world, &c->pages, &destination->page_count);
    for (uint32_t i = 0; i < world->node_count; i++) {
        const struct node *other = &world->nodes[i];
        const bool named = c->peer.size == other->name_size &&
                           memcmp(c->peer.bytes, other->options.name, c->peer.size) == 0;
        if (other->options.side == SM_PREFILL && (named || c->peer.size == 0)) {
            destination->from = i;
        }
    }
    destination->next = seat->destinations;
    seat->destinations = destination;
}

void world_command(struct world *world, uint32_t index, struct sm_input *input)
{
    struct node *node = &world->nodes[index];
    input->u.command.request = ++node->request_next << 8 | input->kind;
    if (node->state != NODE_RUNS) {
        unanswered(world, index, input);
        return;
    }
    if (input->kind == SM_IN_OPEN && input->u.command.side == SM_DECODE) {
        keep_destination(world, index, input);
    }
    if (input->kind == SM_IN_RELEASE) {
        keep_release(world, node, input);
        stop_waiting(world, index, input->u.command.rank, input->room);
    }
    if (node->frozen) {
        event_input(world, world->now_ns, CLASS_STATEMENT, index, input);
    } else {
        node_step(world, index, input);
    }
}

/* An engine that has let go of a room does not wait for its result any more. */
static void stop_waiting(struct world *world, uint32_t index, uint32_t rank, uint64_t room)
{
    world_seat(world, index, rank, room)->let_go = world->log_count;
}

/* What the node has said to an open: the destination has its life, or never was. */
static void settle_destination(struct world *world, uint32_t index, const struct sm_effect *effect)
{
    struct node *node = &world->nodes[index];
    struct seat *seat = world_seat(world, index, effect->rank, effect->room);
    struct sm_half_view view;
    for (struct destination **at = &seat->destinations; *at != NULL; at = &(*at)->next) {
        struct destination *d = *at;
        if (d->request != effect->u.reply.request) {
            continue;
        }
        if (effect->u.reply.refusal != 0) {
            *at = d->next;
        } else if (sm_half_find(node->machine.sm, effect->room, SM_DECODE, &view)) {
            d->generation = view.generation;
            d->epoch = node->epoch;
        }
        return;
    }
}

void engine_replied(struct world *world, uint32_t index, const struct sm_effect *effect)
{
    const uint32_t kind = (uint32_t)(effect->u.reply.request & 0xffu);
    if (effect->u.reply.refusal != 0) {
        struct world_log *log = log_add(world, WORLD_REFUSED);
        log->room = effect->room;
        log->node = index;
        log->rank = effect->rank;
        log->command = kind;
        log->http = effect->u.reply.http;
        log_reason(world, effect->u.reply.reason);
    }
    if (kind == SM_IN_OPEN && effect->u.reply.refusal == 0) {
        struct world_log *log = log_add(world, WORLD_OPENED);
        log->room = effect->room;
        log->node = index;
        log->rank = effect->rank;
    }
    if (kind == SM_IN_RELEASE) {
        answer_release(&world->nodes[index], effect->u.reply.request);
        stop_waiting(world, index, effect->rank, effect->room);
    }
    if (kind == SM_IN_OPEN && effect->side == SM_DECODE) {
        settle_destination(world, index, effect);
    }
}

static bool told_before(struct world *world, struct seat *seat, uint64_t generation,
                        uint32_t *out_life)
{
    const uint32_t wipes = world->nodes[seat->node].wipes;
    if (seat->told_wipes != wipes) {
        seat->told = NULL; /* another node, whose lives are counted anew */
        seat->told_wipes = wipes;
    }
    *out_life = 1;
    for (const struct told *t = seat->told; t != NULL; t = t->next) {
        if (t->generation == generation) {
            return true;
        }
        (*out_life)++;
    }
    struct told *told = chunks_take(&world->memory, sizeof *told);
    *told = (struct told){generation, seat->told};
    seat->told = told;
    seat->told_ns = world->now_ns;
    seat->told_ever = true;
    return false;
}

static void confirm(struct world *world, uint32_t index, const struct sm_effect *effect,
                    uint32_t kind)
{
    struct sm_input input = {.kind = kind, .room = effect->room};
    input.u.command.side = effect->side;
    input.u.command.rank = effect->rank;
    input.u.command.generation = effect->generation;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = world_text("");
    input.u.command.cause.reason = world_text("");
    if (kind == SM_IN_RELEASE) {
        input.u.command.request = ++world->nodes[index].request_next << 8 | kind;
        keep_release(world, &world->nodes[index], &input);
    }
    event_input(world, world->now_ns, CLASS_MESSAGE, index, &input);
}

void engine_told(struct world *world, uint32_t index, const struct sm_effect *effect)
{
    struct node *node = &world->nodes[index];
    uint32_t life = 0;
    if (node->muted[effect->rank]) {
        return; /* it is told again when it reads again */
    }
    struct seat *seat = world_seat(world, index, effect->rank, effect->room);
    if (!told_before(world, seat, effect->generation, &life)) {
        struct world_log *log = log_add(world, WORLD_TOLD);
        log->room = effect->room;
        log->node = index;
        log->rank = effect->rank;
        log->outcome = effect->u.tell.outcome;
        log->http = effect->u.tell.cause.http;
        log->life = life;
        log->generation = effect->generation;
        log_reason(world, effect->u.tell.cause.reason);
        if (effect->side == SM_DECODE && effect->u.tell.outcome == SM_OUTCOME_SUCCEEDED &&
            !node->reused && seat->destinations != NULL &&
            seat->destinations->generation == effect->generation && /* older pages may be others' */
            (world_data(world, index, effect->rank, effect->room) & WORLD_DATA_INTACT) == 0) {
            world_fall(world,
                       "success_is_complete: room %" PRIu64 ": %s.%u is told success and its pages "
                       "do not hold the room's bytes",
                       effect->room, node->options.name, effect->rank);
        }
    }
    confirm(world, index, effect, SM_IN_DELIVERED);
    if (node->options.auto_release) {
        confirm(world, index, effect, SM_IN_RELEASE);
    }
}

/* An engine that stops reading loses its attachment's results and is told them when it is back. */
void world_mute(struct world *world, uint32_t index, uint32_t rank, bool muted)
{
    struct node *node = &world->nodes[index];
    if (node->muted[rank] == muted) {
        return;
    }
    node->muted[rank] = muted;
    if (!muted) {
        struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
        attach.u.engine.rank = rank;
        attach.u.engine.pages = node->options.pool_pages;
        attach.u.engine.aux_slots = 1024;
        attach.u.engine.geometry = node->options.geometry;
        event_input(world, world->now_ns, CLASS_MESSAGE, index, &attach);
        repeat_releases(world, index, rank);
    }
}

void world_reuse(struct world *world, uint32_t index, uint32_t rank, const struct sm_runs *pages)
{
    struct node *node = &world->nodes[index];
    node->reused = true;
    for (uint32_t i = 0; i < pages->count; i++) {
        for (uint32_t k = 0; k < pages->at[i].count; k++) {
            const uint32_t page = pages->at[i].first + k;
            for (uint32_t s = 0; s < WORLD_STAMPS && page < node->options.pool_pages; s++) {
                node->stamps[rank][page * WORLD_STAMPS + s] = (struct stamp){UINT64_MAX, 0, 0};
            }
        }
    }
}
