/* SPDX-License-Identifier: Apache-2.0 */
/* What engines ask for: open, admit, reject, send, abort, release; and engines that come and go. */
#include "sm_state.h"

static struct sm_half *half_of(const struct sm_call *call)
{
    return call->half == SM_NONE ? NULL : sm_half_at(call->sm, call->half);
}

static uint64_t bit_of(const struct sm_call *call)
{
    return UINT64_C(1) << call->input->u.command.rank;
}

static void refuse_page(const struct sm_call *call, const char *what, uint32_t number,
                        uint32_t entry)
{
    char bytes[160];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, what);
    sm_put_number(&text, number);
    if (entry == SM_PAGE_QUARANTINED) {
        sm_put(&text, " is quarantined: a write may still reach it");
    } else if ((entry & SM_PAGE_SHARED) != 0) {
        sm_put(&text, " is being sent for another room");
    } else {
        sm_put(&text, " is held by room ");
        sm_put_number(&text, sm_half_at(call->sm, entry - 1u)->room);
    }
    sm_refuse(call->sm, call->out, call->input, SM_REFUSAL_PAGES_HELD, sm_writer_text(&text));
}

/* ---- open: checks
 * ---------------------------------------------------------------------------------- */

static bool node_takes_rooms(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    if (sm->journal_failed) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_JOURNAL,
                  sm_text_of("the coordinator cannot write its journal"));
        return false;
    }
    if (sm->stopping) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_STOPPING,
                  sm_text_of("the node is stopping"));
        return false;
    }
    if (call->input->room == 0) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_ROOM_ZERO,
                  sm_text_of("0 is not a room number"));
        return false;
    }
    if (sm->engines[command->rank].state != ENGINE_IS_ATTACHED) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_NO_POOL,
                  sm_text_of("the rank is not attached"));
        return false;
    }
    return true;
}

/* The prefill node that a decode open names; SM_NONE when refused. */
static uint32_t open_peer(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_text name = call->input->u.command.peer;
    uint32_t found = SM_NONE;
    uint32_t configured = 0;
    char bytes[SM_REASON_BYTES_MAX];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, name.size == 0 ? "the open names no prefill node and there is not just one"
                                 : "no peer is named ");
    sm_put_text(&text, name);
    sm_put(&text, "; peers:");
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        if (sm_peer_at(sm, i)->configured != 0) {
            const struct sm_text its = sm_peer_name(sm, i);
            found = name.size == 0 || sm_text_same(its, name) ? i : found;
            configured++;
            sm_put(&text, " ");
            sm_put_text(&text, its);
        }
    }
    if (found == SM_NONE || (name.size == 0 && configured != 1u)) {
        sm_put(&text, configured == 0 ? " none" : "");
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_PEER, sm_writer_text(&text));
        return SM_NONE;
    }
    return found;
}

static bool pages_usable(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    const struct sm_engine *engine = &sm->engines[command->rank];
    uint32_t pages = 0;
    if (!sm_runs_valid(&command->pages, engine->pages, &pages) ||
        pages > sm->policy.pages_per_room_max || command->pages.count > SM_OUTPUT_RUNS_MAX) {
        char bytes[160];
        struct sm_writer text = {bytes, sizeof bytes, 0};
        if (engine->pages == 0) {
            sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_PAGES,
                      sm_text_of("the rank has attached without a pool: no page is its"));
            return false;
        }
        sm_put(&text, "the pages do not fit: the pool of rank ");
        sm_put_number(&text, command->rank);
        sm_put(&text, " has ");
        sm_put_number(&text, engine->pages);
        sm_put(&text, ", a room may have ");
        sm_put_number(&text, sm->policy.pages_per_room_max);
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_PAGES, sm_writer_text(&text));
        return false;
    }
    const bool writing = call->input->kind == SM_IN_OPEN;
    const uint32_t held = sm_pages_blocked(sm, command->rank, &command->pages, writing);
    if (held != SM_NONE) {
        refuse_page(call, "page ", held, *sm_page_entry(sm, command->rank, held));
        return false;
    }
    if (command->aux_slot == SM_AUX_NONE) {
        return true;
    }
    if (command->aux_slot >= engine->aux_slots) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_PAGES,
                  sm_text_of("the metadata slot lies outside of the pool"));
        return false;
    }
    const uint32_t slot_entry = *sm_aux_entry(sm, command->rank, command->aux_slot);
    if (writing && slot_entry != 0) {
        refuse_page(call, "metadata slot ", command->aux_slot, slot_entry);
        return false;
    }
    return true;
}

/* ---- open: into which life
 * --------------------------------------------------------------------------- */

/* A rank that comes after the end of the life that the others were in: it only hears the verdict.
 */
static struct sm_half *join_remembered(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_tombstone tombstone = *sm_tombstone_at(sm, call->tombstone - 1u);
    struct sm_half *half =
        sm_half_create(sm, call->out, call->input->room, call->side, tombstone.generation);
    if (half == NULL) {
        return NULL;
    }
    half->late = 1;
    half->epoch = tombstone.life.node == sm->node_id ? tombstone.life.epoch : sm->epoch;
    half->opened = tombstone.opened;
    half->released = tombstone.opened;
    half->delivered = tombstone.opened;
    half->outcome = tombstone.outcome;
    half->owner_engine = call->side == SM_DECODE;
    half->verdict_ns = sm->now_ns;
    sm_cause_copy(sm, &half->cause, &tombstone.cause);
    if (call->side == SM_PREFILL && tombstone.life.node != 0) {
        const uint32_t peer = sm_peer_find_node(sm, tombstone.life.node);
        if (peer != SM_NONE) {
            (void)sm_half_bind(sm, half, &tombstone.life, peer);
        }
    }
    const uint32_t failed = half->owner_engine ? SM_PHASE_FAILED : SM_PHASE_PRE_QUEUE_TERMINAL;
    sm_half_phase(sm, call->out, half,
                  half->outcome == SM_OUTCOME_SUCCEEDED ? SM_PHASE_SUCCEEDED : failed);
    return half;
}

/*
 * The life that this open goes into. A rank's first open joins the life that the others are in,
 * even when it is over; a rank that was in it already opens the next one, if that life is over.
 * NULL: refused. *out_fresh: the life is new.
 */
static struct sm_half *life_to_open(const struct sm_call *call, bool *out_fresh)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    *out_fresh = false;
    if (half != NULL && (half->opened & bit_of(call)) == 0) {
        return half;
    }
    if (half != NULL && !sm_half_terminal(half)) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_ROOM_LIVE, sm_text_of("the room is live"));
        return NULL;
    }
    if (half == NULL && call->tombstone != 0 &&
        (sm_tombstone_at(sm, call->tombstone - 1u)->opened & bit_of(call)) == 0) {
        half = join_remembered(call);
    } else {
        *out_fresh = true;
        half = sm_half_create(sm, call->out, call->input->room, call->side,
                              sm_next_generation(sm, call->input->room, call->side));
        sm->counters.rooms_opened += half != NULL ? 1u : 0u;
    }
    if (half == NULL) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_TABLE_FULL,
                  sm_text_of("the table of rooms is full (rooms_max)"));
    }
    return half;
}

static void undo_fresh(const struct sm_call *call, struct sm_half *half, bool fresh)
{
    if (fresh) {
        /* Nothing of it has left: the number of the life is used up, the half is not. */
        call->out->transition_count--;
        call->sm->counters.transitions--;
        call->sm->counters.rooms_opened--;
        sm_half_give(call->sm, sm_half_index(call->sm, half));
    }
}

static bool room_for_rank(const struct sm_call *call)
{
    const struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    const uint32_t blocks = sm->blocks.size - sm->blocks.live;
    const uint32_t wanted = (command->pages.count + SM_BLOCK_RUNS - 1u) / SM_BLOCK_RUNS;
    return sm->ranks.live < sm->ranks.size && wanted <= blocks;
}

static void rank_opened(const struct sm_call *call, struct sm_half *half, struct sm_rank *rank)
{
    const uint64_t bit = bit_of(call);
    rank->opened = 1;
    rank->request = call->input->u.command.request;
    half->opened |= bit;
    half->told &= ~bit;
    half->released &= ~bit;
    half->delivered &= ~bit;
    struct sm_transition *transition = sm_emit(call->sm, call->out, SM_TR_RANK_OPENED, half);
    transition->rank = rank->rank;
    transition->a = rank->pages.pages;
}

/* The half's deadline is its first open's; later ranks may only bring it nearer. */
static void take_deadline(const struct sm_call *call, struct sm_half *half)
{
    const struct sm *sm = call->sm;
    const uint64_t given = call->input->u.command.deadline_ns;
    const uint64_t wait = given != 0 ? given : sm->policy.room_deadline_ns;
    const uint64_t until = wait > SM_NEVER - 1u - sm->now_ns ? SM_NEVER - 1u : sm->now_ns + wait;
    if (half->opened == 0 || until < half->deadline_ns) {
        half->deadline_ns = until;
    }
}

static void open_decode(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    const uint32_t peer = open_peer(call);
    bool fresh = false;
    if (peer == SM_NONE) {
        return;
    }
    if (sm_peer_bound_reached(sm, peer)) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_PEER_BOUND,
                  sm_text_of("too many rooms with this peer (rooms_per_peer_max)"));
        return;
    }
    if (!pages_usable(call)) {
        return;
    }
    if (!room_for_rank(call)) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_TABLE_FULL,
                  sm_text_of("the tables of ranks and page runs are full"));
        return;
    }
    struct sm_half *half = life_to_open(call, &fresh);
    if (half == NULL) {
        return;
    }
    const uint32_t index = sm_half_index(sm, half);
    if (!sm_pages_hold(sm, command->rank, &command->pages, index)) {
        undo_fresh(call, half, fresh);
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_PAGES,
                  sm_text_of("a page stands twice in the list"));
        return;
    }
    struct sm_rank *rank = sm_half_rank_add(sm, half, command->rank);
    SM_ASSERT(rank != NULL);
    const bool kept = sm_list_append(sm, &rank->pages, &command->pages);
    SM_ASSERT(kept);
    rank->peer = peer;
    sm_peer_at(sm, peer)->rooms++;
    rank->prefix_pages = command->prefix_pages;
    rank->aux_slot = command->aux_slot;
    if (rank->aux_slot != SM_AUX_NONE) {
        *sm_aux_entry(sm, rank->rank, rank->aux_slot) = index + 1u;
    }
    take_deadline(call, half);
    half->owner_engine = 1; /* a decode rank's open is its admit */
    rank_opened(call, half, rank);
    sm_accept(sm, call->out, call->input);
    sm_settle(sm, call->out, index);
}

/* The rank's record on the prefill side, made by whatever its engine does first. */
static struct sm_rank *prefill_rank(const struct sm_call *call, struct sm_half *half)
{
    struct sm_rank *rank = sm_half_rank(call->sm, half, call->input->u.command.rank);
    return rank != NULL ? rank : sm_half_rank_add(call->sm, half, call->input->u.command.rank);
}

/* Opens the rank into a prefill half; NULL: refused. */
static struct sm_half *open_prefill(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    bool fresh = false;
    if (command->destinations > sm->policy.destinations_per_room_max) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_REQUEST,
                  sm_text_of("more destinations than destinations_max"));
        return NULL;
    }
    struct sm_half *half = life_to_open(call, &fresh);
    if (half == NULL) {
        return NULL;
    }
    struct sm_rank *rank = prefill_rank(call, half);
    if (rank == NULL) {
        undo_fresh(call, half, fresh);
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_TABLE_FULL,
                  sm_text_of("the table of ranks is full"));
        return NULL;
    }
    if (command->destinations != 0) {
        half->required[rank->rank] = (uint8_t)command->destinations;
        half->required_known |= bit_of(call);
    }
    take_deadline(call, half);
    rank_opened(call, half, rank);
    return half;
}

void sm_do_open(const struct sm_call *call)
{
    const struct sm_half *half = half_of(call);
    const struct sm_in_command *command = &call->input->u.command;
    if (!node_takes_rooms(call)) {
        return;
    }
    if (half != NULL && (half->opened & bit_of(call)) != 0 && command->request != 0) {
        const struct sm_rank *rank = sm_half_rank(call->sm, half, command->rank);
        if (rank != NULL && rank->request == command->request) {
            sm_accept(call->sm, call->out, call->input); /* its answer got lost: say it again */
            sm_ignore(call->sm, call->out, call->input, SM_IGNORED_DUPLICATE);
            return;
        }
    }
    if (call->side == SM_DECODE) {
        open_decode(call);
        return;
    }
    struct sm_half *opened = open_prefill(call);
    if (opened != NULL) {
        sm_accept(call->sm, call->out, call->input);
        sm_settle(call->sm, call->out, sm_half_index(call->sm, opened));
    }
}

/* ---- what may follow an open
 * ------------------------------------------------------------------------- */

/* The half if this rank is in it and it lives; NULL: refused. */
static struct sm_half *live_half(const struct sm_call *call)
{
    struct sm_half *half = half_of(call);
    if (half == NULL || (half->opened & bit_of(call)) == 0) {
        sm_refuse(call->sm, call->out, call->input, SM_REFUSAL_NOT_OPEN,
                  sm_text_of("the rank has not opened the room"));
        return NULL;
    }
    if (sm_half_terminal(half)) {
        sm_refuse(call->sm, call->out, call->input, SM_REFUSAL_ROOM_OVER,
                  sm_text_of("the room is over"));
        return NULL;
    }
    return half;
}

static void own(const struct sm_call *call, struct sm_half *half)
{
    half->owner_engine = 1;
    if ((half->admitted & bit_of(call)) == 0) {
        half->admitted |= bit_of(call);
        sm_emit(call->sm, call->out, SM_TR_RANK_ADMITTED, half)->rank = call->input->u.command.rank;
    }
}

void sm_do_admit(const struct sm_call *call)
{
    struct sm_half *half = live_half(call);
    if (half == NULL) {
        return;
    }
    own(call, half);
    sm_accept(call->sm, call->out, call->input);
    sm_settle(call->sm, call->out, call->half);
}

void sm_do_send(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_in_command *command = &call->input->u.command;
    struct sm_half *half = live_half(call);
    if (half == NULL) {
        return;
    }
    struct sm_rank *rank = sm_half_rank(sm, half, command->rank);
    SM_ASSERT(rank != NULL);
    if (rank->last_sent) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_BAD_REQUEST,
                  sm_text_of("the last chunk was sent already"));
        return;
    }
    if (!pages_usable(call)) {
        return;
    }
    uint32_t pages = 0;
    (void)sm_runs_valid(&command->pages, sm->engines[command->rank].pages, &pages);
    if (pages > sm->policy.pages_per_room_max - rank->pages.pages || !room_for_rank(call)) {
        sm_refuse(
            sm, call->out, call->input, SM_REFUSAL_TABLE_FULL,
            sm_text_of("the room's pages are over pages_per_room_max, or no page run is free"));
        return;
    }
    const bool kept = sm_list_append(sm, &rank->pages, &command->pages);
    SM_ASSERT(kept);
    sm_pages_share(sm, command->rank, &command->pages);
    rank->last_sent = command->last;
    if (command->last) {
        rank->aux_slot = command->aux_slot;
    }
    own(call, half);
    struct sm_transition *transition = sm_emit(sm, call->out, SM_TR_CHUNK_ACCEPTED, half);
    transition->rank = rank->rank;
    transition->a = rank->pages.pages;
    transition->b = command->last;
    sm_accept(sm, call->out, call->input);
    sm_settle(sm, call->out, call->half);
}

/* ---- refusals and aborts
 * ------------------------------------------------------------------------------ */

static bool cause_typed(const struct sm_cause *cause)
{
    return cause->http != 0 || cause->reason.size > 0 || cause->origin == SM_ORIGIN_CLIENT ||
           cause->origin == SM_ORIGIN_OPERATOR;
}

void sm_do_reject(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    struct sm_cause cause = call->input->u.command.cause;
    cause.typed = true;
    cause.origin = SM_ORIGIN_ENGINE;
    if (cause.http == 0) {
        cause.http = 400;
    }
    const bool in_it = half != NULL && (half->opened & bit_of(call)) != 0;
    if (!in_it && call->side == SM_PREFILL) {
        /* Refused before a sender was made: open and reject in one, so that decode is answered. */
        if (!node_takes_rooms(call)) {
            return;
        }
        half = open_prefill(call);
        if (half == NULL) {
            return;
        }
    } else {
        half = live_half(call);
        if (half == NULL) {
            return;
        }
    }
    sm_half_fail(sm, call->out, half, &cause, call->input->u.command.rank);
    sm_accept(sm, call->out, call->input);
    sm_settle(sm, call->out, sm_half_index(sm, half));
}

void sm_do_abort(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    struct sm_cause cause = call->input->u.command.cause;
    cause.typed = cause_typed(&cause);
    if (cause.origin == SM_ORIGIN_NONE) {
        cause.origin = SM_ORIGIN_ENGINE;
    }
    if (call->input->room == 0) {
        sm_refuse(sm, call->out, call->input, SM_REFUSAL_ROOM_ZERO,
                  sm_text_of("0 is not a room number"));
        return;
    }
    if (half != NULL && sm_half_terminal(half)) {
        /* Within the grace of an untyped cause a typed one is still welcome. */
        sm_half_fail(sm, call->out, half, &cause, call->input->u.command.rank);
        sm_accept(sm, call->out, call->input);
        if (call->out->transition_count == 0) {
            sm_ignore(sm, call->out, call->input, SM_IGNORED_ALREADY_TERMINAL);
        }
        sm_settle(sm, call->out, call->half);
        return;
    }
    if (half != NULL) {
        sm_half_fail(sm, call->out, half, &cause, call->input->u.command.rank);
        sm_accept(sm, call->out, call->input);
        sm_settle(sm, call->out, call->half);
        return;
    }
    if (call->tombstone != 0 &&
        (sm_tombstone_at(sm, call->tombstone - 1u)->opened & bit_of(call)) == 0) {
        sm_accept(sm, call->out, call->input);
        sm_ignore(sm, call->out, call->input, SM_IGNORED_TOMBSTONE);
        return;
    }
    /* Before its open, or long after its end: the next open, if one comes, is told the cause. */
    const struct sm_life none = {0, 0, 0};
    if (call->tombstone == 0) {
        sm_remember(sm, call->out, call->input->room, call->side, &none, &cause);
    } else {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_ALREADY_TERMINAL);
    }
    sm_accept(sm, call->out, call->input);
}

void sm_do_release(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    const uint64_t bit = bit_of(call);
    sm_accept(sm, call->out, call->input);
    if (half == NULL || (half->opened & bit) == 0) {
        sm_ignore(sm, call->out, call->input,
                  call->tombstone != 0 ? SM_IGNORED_TOMBSTONE : SM_IGNORED_UNKNOWN_ROOM);
        return;
    }
    if ((half->released & bit) != 0) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_DUPLICATE);
        return;
    }
    half->released |= bit;
    sm_emit(sm, call->out, SM_TR_RANK_RELEASED, half)->rank = call->input->u.command.rank;
    if (!sm_half_terminal(half)) {
        sm_half_fail_text(sm, call->out, half, 500, SM_ORIGIN_ENGINE,
                          sm_text_of("released before the end"));
    }
    sm_settle(sm, call->out, call->half);
}

void sm_do_delivered(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    const uint64_t bit = bit_of(call);
    if (half == NULL || (half->opened & bit) == 0) {
        sm_ignore(sm, call->out, call->input,
                  call->tombstone != 0 ? SM_IGNORED_TOMBSTONE : SM_IGNORED_UNKNOWN_ROOM);
        return;
    }
    if ((half->delivered & bit) != 0 || (half->told_ever & bit) == 0) {
        sm_ignore(sm, call->out, call->input,
                  (half->delivered & bit) != 0 ? SM_IGNORED_DUPLICATE : SM_IGNORED_NOT_TERMINAL);
        return;
    }
    half->delivered |= bit;
    sm_emit(sm, call->out, SM_TR_DELIVERED, half)->rank = call->input->u.command.rank;
    sm_settle(sm, call->out, call->half);
}

/* ---- engines
 * ------------------------------------------------------------------------------------------ */

/* What the engine may have missed is told again; it knows what it has by (room, generation). */
static void tell_again(struct sm *sm, uint32_t rank)
{
    const uint64_t bit = UINT64_C(1) << rank;
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        struct sm_half *half = sm_half_at(sm, at);
        if ((half->opened & bit) != 0 && (half->delivered & bit) == 0) {
            half->told &= ~bit;
            sm_bits_add(sm, &sm->work, at);
        }
    }
}

static void on_attached(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const struct sm_in_engine *in = &input->u.engine;
    if (in->pages > sm_pages_quota(sm) || in->aux_slots > sm_aux_quota(sm)) {
        char bytes[160];
        struct sm_writer text = {bytes, sizeof bytes, 0};
        sm_put(&text, "the pool has more pages or slots than this node can map: ");
        sm_put_number(&text, sm_pages_quota(sm));
        sm_put(&text, " pages, ");
        sm_put_number(&text, sm_aux_quota(sm));
        sm_put(&text, " slots a rank (pages_max, aux_slots_max)");
        sm_refuse(sm, out, input, SM_REFUSAL_BAD_PAGES, sm_writer_text(&text));
        return;
    }
    struct sm_engine *engine = &sm->engines[in->rank];
    engine->geometry = in->geometry;
    engine->pages = in->pages;
    engine->aux_slots = in->aux_slots;
    engine->state = ENGINE_IS_ATTACHED;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_ENGINE_ATTACHED, NULL);
    transition->rank = in->rank;
    transition->a = in->pages;
    tell_again(sm, in->rank);
}

void sm_engine_lost(struct sm *sm, struct sm_output *out, uint32_t rank, uint32_t lost)
{
    struct sm_engine *engine = &sm->engines[rank];
    engine->state = ENGINE_IS_LOST;
    engine->lost = lost < SM_LOST_COUNT ? (uint8_t)lost : SM_LOST_UNSAID;
    engine->life++;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_ENGINE_LOST, NULL);
    transition->rank = rank;
    transition->text = sm_text_of(sm_lost_text(engine->lost));
    sm_settle_all(sm);
}

void sm_on_engine(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const uint32_t rank = input->u.engine.rank;
    if (rank >= sm->policy.ranks) {
        sm_ignore(sm, out, input, SM_IGNORED_UNKNOWN_RANK);
    } else if (input->kind == SM_IN_ENGINE_ATTACHED) {
        on_attached(sm, input, out);
    } else if (sm->engines[rank].state == ENGINE_IS_ATTACHED ||
               sm->engines[rank].state == ENGINE_AWAITED) {
        sm_engine_lost(sm, out, rank, input->u.engine.lost);
    } else {
        sm_ignore(sm, out, input, SM_IGNORED_DUPLICATE);
    }
}
