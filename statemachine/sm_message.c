/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What peers say. Each message names the life that it is about, so a late, doubled or overtaken one
 * finds that life or what is remembered of it, and never another.
 */
#include "sm_state.h"

static struct sm_half *half_of(const struct sm_call *call)
{
    return call->half == SM_NONE ? NULL : sm_half_at(call->sm, call->half);
}

static const struct sm_message *message_of(const struct sm_call *call)
{
    return &call->input->u.message.message;
}

static bool life_older(const struct sm_life *a, const struct sm_life *b)
{
    return a->epoch < b->epoch || (a->epoch == b->epoch && a->generation < b->generation);
}

void sm_answer(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t peer,
               uint32_t kind, uint32_t outcome, const struct sm_cause *cause)
{
    const struct sm_message *about = &input->u.message.message;
    struct sm_effect *effect = sm_order(sm, out, kind, NULL);
    effect->peer = peer;
    effect->link = sm_peer_at(sm, peer)->link;
    effect->room = input->room;
    effect->without_journal =
        effect->without_journal || (sm->journal_failed && kind == SM_FX_SEND_STATUS &&
                                    cause != NULL && cause->origin == SM_ORIGIN_NODE);
    effect->u.message.life = about->life;
    effect->u.message.decode_rank = about->decode_rank;
    effect->u.message.sources = about->sources;
    effect->u.message.aux_slot = SM_AUX_NONE;
    effect->u.message.outcome = outcome;
    effect->u.message.drained = true;
    if (cause != NULL) {
        effect->u.message.cause = *cause;
        effect->u.message.cause.reason =
            sm_output_text(out, sm_text_cut(cause->reason, SM_REASON_BYTES_MAX));
    }
}

static void answer_refused(const struct sm_call *call, uint32_t peer, uint32_t refusal,
                           const char *text)
{
    struct sm_cause cause;
    sm_zero(&cause, sizeof cause);
    cause.http = (uint16_t)sm_refusal_http(refusal);
    cause.origin = SM_ORIGIN_NODE;
    cause.typed = true;
    cause.reason = sm_text_of(text);
    sm_refuse(call->sm, call->out, call->input, refusal, cause.reason);
    sm_answer(call->sm, call->out, call->input, peer, SM_FX_SEND_STATUS, SM_OUTCOME_FAILED, &cause);
}

static void answer_tombstone(const struct sm_call *call, uint32_t peer, uint64_t position)
{
    const struct sm_tombstone *tombstone = sm_tombstone_at(call->sm, position - 1u);
    const struct sm_cause cause = sm_cause_view(call->sm, &tombstone->cause);
    if (tombstone->outcome == SM_OUTCOME_SUCCEEDED &&
        (tombstone->destinations >> message_of(call)->decode_rank & 1u) == 0) {
        /* Nothing was written to this rank: the room's success is not its. */
        answer_refused(call, peer, SM_REFUSAL_ROOM_OVER,
                       "the room was completed without this decode rank");
        return;
    }
    sm_answer(call->sm, call->out, call->input, peer, SM_FX_SEND_STATUS, tombstone->outcome,
              tombstone->outcome == SM_OUTCOME_FAILED ? &cause : NULL);
    struct sm_transition *transition = sm_emit(call->sm, call->out, SM_TR_TOMBSTONE_ANSWERED, NULL);
    transition->room = call->input->room;
    transition->side = SM_PREFILL;
    transition->generation = tombstone->generation;
    transition->a = message_of(call)->life.generation;
}

/* ---- prefill: which life a message of decode is about
 * ------------------------------------------------ */

enum about {
    ABOUT_HALF,      /* the half, bound to this life */
    ABOUT_TOMBSTONE, /* what is remembered of it */
    ABOUT_STALE,     /* a life that was followed by a newer one */
    ABOUT_NEWEST,    /* the newest half is bound to nobody of that node yet: it is this life's */
    ABOUT_ENDED,     /* not bound to that node, but ended while more destinations were expected */
    ABOUT_NOTHING    /* a life that this side has not heard of */
};

struct found {
    enum about about;
    struct sm_half *half;
    uint64_t tombstone;
    struct sm_half *superseded; /* ABOUT_NOTHING: live, and bound to an older life of that node */
};

static bool newer_life_known(const struct sm_call *call)
{
    const struct sm_life *life = &message_of(call)->life;
    const struct sm *sm = call->sm;
    const uint64_t room = call->input->room;
    for (uint32_t at = sm_half_chain(sm, room, SM_PREFILL, SM_NONE); at != SM_NONE;
         at = sm_half_chain(sm, room, SM_PREFILL, at)) {
        const struct sm_half *half = sm_half_at(sm, at);
        for (uint32_t i = 0; i < half->life_count; i++) {
            if (half->lives[i].life.node == life->node && life_older(life, &half->lives[i].life)) {
                return true;
            }
        }
    }
    for (uint64_t at = sm_tombstone_chain(sm, room, SM_PREFILL, 0); at != 0;
         at = sm_tombstone_chain(sm, room, SM_PREFILL, at)) {
        const struct sm_tombstone *tombstone = sm_tombstone_at(sm, at - 1u);
        if (tombstone->life.node == life->node && life_older(life, &tombstone->life)) {
            return true;
        }
    }
    return false;
}

static struct found find_unknown_life(const struct sm_call *call)
{
    const uint64_t node = message_of(call)->life.node;
    struct found found = {ABOUT_NOTHING, NULL, 0, NULL};
    const uint32_t newest = sm_half_newest(call->sm, call->input->room, SM_PREFILL);
    if (newest != SM_NONE) {
        struct sm_half *half = sm_half_at(call->sm, newest);
        const bool bound = sm_half_life_of_node(half, node) != SM_NONE;
        if (!bound && !sm_half_terminal(half)) {
            found.about = ABOUT_NEWEST;
            found.half = half;
        } else if (!bound && half->outcome == SM_OUTCOME_FAILED) {
            found.about = ABOUT_ENDED;
            found.half = half;
        } else if (!sm_half_terminal(half)) {
            found.superseded = half;
        }
        return found;
    }
    const uint64_t position = sm_tombstone_newest(call->sm, call->input->room, SM_PREFILL);
    if (position != 0) {
        const struct sm_tombstone *tombstone = sm_tombstone_at(call->sm, position - 1u);
        if (tombstone->expecting && tombstone->life.node != node) {
            found.about = ABOUT_ENDED;
            found.tombstone = position;
        }
    }
    return found;
}

static struct found find_life(const struct sm_call *call)
{
    const struct sm_life *life = &message_of(call)->life;
    struct found found = {ABOUT_NOTHING, NULL, 0, NULL};
    for (uint32_t at = sm_half_chain(call->sm, call->input->room, SM_PREFILL, SM_NONE);
         at != SM_NONE; at = sm_half_chain(call->sm, call->input->room, SM_PREFILL, at)) {
        if (sm_half_life(sm_half_at(call->sm, at), life) != SM_NONE) {
            found.about = ABOUT_HALF;
            found.half = sm_half_at(call->sm, at);
            return found;
        }
    }
    found.tombstone = sm_tombstone_of_life(call->sm, call->input->room, life);
    if (found.tombstone != 0) {
        found.about = ABOUT_TOMBSTONE;
        return found;
    }
    if (newer_life_known(call)) {
        found.about = ABOUT_STALE;
        return found;
    }
    return find_unknown_life(call);
}

/* With `generations` off whatever arrives is taken for the newest half: the fault it prevents. */
static struct found find_without_generations(const struct sm_call *call)
{
    struct found found = find_life(call);
    const uint32_t newest = sm_half_newest(call->sm, call->input->room, SM_PREFILL);
    if (newest != SM_NONE && !sm_half_terminal(sm_half_at(call->sm, newest))) {
        found.about = ABOUT_NEWEST;
        found.half = sm_half_at(call->sm, newest);
        found.superseded = NULL;
        if (sm_half_life(found.half, &message_of(call)->life) != SM_NONE) {
            found.about = ABOUT_HALF;
        }
    }
    return found;
}

static struct found find(const struct sm_call *call)
{
    return sm_protected(call->sm, SM_PROTECT_GENERATIONS) ? find_life(call)
                                                          : find_without_generations(call);
}

static uint32_t sender(const struct sm_call *call)
{
    const uint32_t peer = sm_peer_find(call->sm, call->input->u.message.peer);
    if (peer == SM_NONE || sm_peer_at(call->sm, peer)->state != PEER_IS_UP) {
        sm_ignore(call->sm, call->out, call->input, SM_IGNORED_UNKNOWN_PEER);
        return SM_NONE;
    }
    return peer;
}

/* Decode has gone on to another life: what is left of the one before cannot be completed. */
static void end_superseded(const struct sm_call *call, const struct found *found)
{
    if (found->superseded != NULL) {
        char bytes[SM_REASON_BYTES_MAX + 1u];
        struct sm_writer text = {bytes, sizeof bytes, 0};
        sm_put(&text, "decode node ");
        sm_put_text(&text, call->input->u.message.peer);
        sm_put(&text, " has opened the room anew");
        sm_half_fail_text(call->sm, call->out, found->superseded, 503, SM_ORIGIN_PEER,
                          sm_writer_text(&text));
        sm_settle(call->sm, call->out, sm_half_index(call->sm, found->superseded));
    }
}

/* ---- prepare
 * ------------------------------------------------------------------------------------------ */

static bool prepare_sound(const struct sm_call *call)
{
    const struct sm_message *m = message_of(call);
    const struct sm *sm = call->sm;
    const uint64_t mine =
        sm->policy.ranks >= 64u ? UINT64_MAX : (UINT64_C(1) << sm->policy.ranks) - 1u;
    uint32_t pages = 0;
    return call->input->room != 0 && m->life.node != 0 && m->decode_rank < SM_RANKS_MAX &&
           m->decode_ranks >= 1u && m->decode_ranks <= SM_RANKS_MAX && m->sources != 0 &&
           (m->sources & ~mine) == 0 && m->pages.count <= SM_OUTPUT_RUNS_MAX &&
           sm_runs_valid(&m->pages, UINT32_MAX, &pages) && pages <= sm->policy.pages_per_room_max;
}

static void learn_required(const struct sm_call *call, struct sm_half *half)
{
    for (uint32_t rank = 0; rank < call->sm->policy.ranks; rank++) {
        const uint64_t bit = UINT64_C(1) << rank;
        if ((half->required_known & bit) == 0) {
            half->required[rank] = message_of(call)->required[rank];
            half->required_known |= bit;
        }
    }
}

/* The destination's record; NULL when a table is full (the peer has been answered). */
static struct sm_destination *destination_add(const struct sm_call *call, struct sm_half *half,
                                              uint32_t peer)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    uint32_t life = sm_half_life(half, &m->life);
    const uint32_t blocks = (m->pages.count + SM_BLOCK_RUNS - 1u) / SM_BLOCK_RUNS;
    uint32_t index = SM_NONE;
    if (half->destination_count < sm->policy.destinations_per_room_max &&
        blocks <= sm->blocks.size - sm->blocks.live &&
        (life != SM_NONE || sm_half_bind(sm, half, &m->life, peer))) {
        index = sm_pool_take(sm, &sm->destinations, sizeof(struct sm_destination));
    }
    if (index == SM_NONE) {
        answer_refused(call, peer, SM_REFUSAL_TABLE_FULL,
                       "prefill has no room for another destination");
        return NULL;
    }
    life = sm_half_life(half, &m->life);
    struct sm_destination *destination = sm_destination_at(sm, index);
    const bool kept = sm_list_append(sm, &destination->pages, &m->pages);
    SM_ASSERT(kept && life != SM_NONE);
    destination->sources = m->sources;
    destination->geometry = m->geometry;
    destination->next = SM_NONE;
    destination->index = half->destination_count;
    destination->life = life;
    destination->decode_rank = m->decode_rank;
    destination->decode_ranks = m->decode_ranks;
    destination->prefix_pages = m->prefix_pages;
    destination->aux_slot = m->aux_slot;
    destination->link = sm_peer_at(sm, peer)->link;
    destination->notice = NOTICE_OWED;
    uint32_t *link = &half->destinations;
    while (*link != SM_NONE) {
        link = &sm_destination_at(sm, *link)->next;
    }
    *link = index;
    half->destination_count++;
    learn_required(call, half);
    struct sm_transition *transition = sm_emit(sm, call->out, SM_TR_DESTINATION_ADDED, half);
    transition->index = destination->index;
    transition->rank = m->decode_rank;
    transition->a = destination->pages.pages;
    return destination;
}

static void confirm(const struct sm_call *call, uint32_t peer)
{
    sm_answer(call->sm, call->out, call->input, peer, SM_FX_SEND_PREPARED, SM_OUTCOME_NONE, NULL);
}

static void prepare_known(const struct sm_call *call, struct sm_half *half, uint32_t peer)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    const uint32_t life = sm_half_life(half, &m->life);
    struct sm_destination *destination =
        life == SM_NONE ? NULL : sm_half_destination(sm, half, life, m->decode_rank);
    if (destination == NULL) {
        const bool complete = half->outcome == SM_OUTCOME_SUCCEEDED ||
                              (!sm_half_terminal(half) && half->phase >= SM_PHASE_READY);
        if (complete) {
            /* Its engine will never be written to here, and must not hear the others' success. */
            answer_refused(call, peer, SM_REFUSAL_ROOM_OVER,
                           "the room has all of its destinations without this decode rank");
            return;
        }
        if (destination_add(call, half, peer) == NULL) {
            return;
        }
        if (!sm_half_terminal(half)) {
            confirm(call, peer);
        }
        sm_settle(sm, call->out, sm_half_index(sm, half));
        return;
    }
    if (!sm_list_equals(sm, &destination->pages, &m->pages) || destination->sources != m->sources) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_CONFLICT);
        return;
    }
    sm_ignore(sm, call->out, call->input, SM_IGNORED_DUPLICATE);
    if (sm_half_terminal(half)) {
        destination->notice_next_ns = sm->now_ns; /* it has not heard: say it now */
        sm_settle(sm, call->out, sm_half_index(sm, half));
    } else {
        confirm(call, peer);
    }
}

/* Decode was first: a half that waits for an engine to open it. */
static void prepare_unclaimed(const struct sm_call *call, uint32_t peer)
{
    struct sm *sm = call->sm;
    const uint64_t left = message_of(call)->deadline_left_ns;
    if (sm->journal_failed || sm->stopping) {
        answer_refused(call, peer, sm->stopping ? SM_REFUSAL_STOPPING : SM_REFUSAL_JOURNAL,
                       sm->stopping ? "the prefill node is stopping"
                                    : "the prefill node cannot write its journal");
        return;
    }
    if (sm_peer_bound_reached(sm, peer)) {
        answer_refused(call, peer, SM_REFUSAL_PEER_BOUND,
                       "prefill has too many rooms with this peer (rooms_per_peer_max)");
        return;
    }
    struct sm_half *half = sm_half_create(sm, call->out, call->input->room, SM_PREFILL,
                                          sm_next_generation(sm, call->input->room, SM_PREFILL));
    if (half == NULL) {
        answer_refused(call, peer, SM_REFUSAL_TABLE_FULL,
                       "prefill's table of rooms is full (rooms_max)");
        return;
    }
    const uint64_t wait =
        left < sm->policy.unclaimed_deadline_ns ? left : sm->policy.unclaimed_deadline_ns;
    half->deadline_ns = sm->now_ns + wait;
    if (destination_add(call, half, peer) == NULL) {
        sm_half_fail_text(sm, call->out, half, 503, SM_ORIGIN_NODE,
                          sm_text_of("no room for another destination"));
    } else {
        confirm(call, peer);
    }
    sm_settle(sm, call->out, sm_half_index(sm, half));
}

void sm_do_prepare(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const uint32_t peer = sender(call);
    if (peer == SM_NONE) {
        return;
    }
    if (!prepare_sound(call)) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_MALFORMED);
        answer_refused(call, peer, SM_REFUSAL_BAD_REQUEST, "the prepare makes no sense to prefill");
        return;
    }
    const struct found found = find(call);
    switch (found.about) {
    case ABOUT_HALF:
    case ABOUT_NEWEST:
        prepare_known(call, found.half, peer);
        break;
    case ABOUT_TOMBSTONE:
        answer_tombstone(call, peer, found.tombstone);
        break;
    case ABOUT_STALE:
        sm_ignore(sm, call->out, call->input, SM_IGNORED_STALE_GENERATION);
        break;
    case ABOUT_ENDED:
        if (found.half != NULL) {
            prepare_known(call, found.half, peer);
            break;
        }
        /* From now on this life is remembered under this verdict. */
        if (sm_tombstone_at(sm, found.tombstone - 1u)->life.node == 0) {
            sm_tombstone_at(sm, found.tombstone - 1u)->life = message_of(call)->life;
        }
        answer_tombstone(call, peer, found.tombstone);
        break;
    case ABOUT_NOTHING:
        end_superseded(call, &found);
        prepare_unclaimed(call, peer);
        break;
    }
}

/* ---- abort and ack, at prefill
 * -------------------------------------------------------------------------- */

static void abort_half(const struct sm_call *call, struct sm_half *half, uint32_t peer)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    uint32_t life = sm_half_life(half, &m->life);
    if (life == SM_NONE && sm_half_bind(sm, half, &m->life, peer)) {
        life = sm_half_life(half, &m->life);
    }
    struct sm_cause cause = m->cause;
    if (cause.origin == SM_ORIGIN_NONE) {
        cause.origin = SM_ORIGIN_PEER;
    }
    const bool was_over = sm_half_terminal(half);
    sm_half_fail(sm, call->out, half, &cause, SM_NONE);
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        struct sm_destination *destination = sm_destination_at(sm, at);
        if (destination->life != life) {
            continue;
        }
        if (!was_over && cause.typed) {
            destination->notice = NOTICE_ACKED; /* the verdict came from there */
        }
        if (destination->decode_rank == m->decode_rank) {
            destination->drain_asked = 1;
            destination->notice_next_ns = sm->now_ns;
        }
    }
    if (life == SM_NONE || sm_half_destination(sm, half, life, m->decode_rank) == NULL) {
        /* Its pages have never been heard of here, so nothing writes to them, and nothing will. */
        sm_answer(sm, call->out, call->input, peer, SM_FX_SEND_DRAINED, SM_OUTCOME_NONE, NULL);
    }
    if (was_over) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_ALREADY_TERMINAL);
    }
    sm_settle(sm, call->out, sm_half_index(sm, half));
}

void sm_do_peer_abort(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    const uint32_t peer = sender(call);
    if (peer == SM_NONE) {
        return;
    }
    if (call->input->room == 0 || m->life.node == 0 || m->decode_rank >= SM_RANKS_MAX) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_MALFORMED);
        return;
    }
    const struct found found = find(call);
    switch (found.about) {
    case ABOUT_HALF:
    case ABOUT_NEWEST:
        abort_half(call, found.half, peer);
        break;
    case ABOUT_TOMBSTONE:
    case ABOUT_ENDED:
        if (found.half != NULL) {
            abort_half(call, found.half, peer);
            break;
        }
        answer_tombstone(call, peer, found.tombstone);
        sm_answer(sm, call->out, call->input, peer, SM_FX_SEND_DRAINED, SM_OUTCOME_NONE, NULL);
        break;
    case ABOUT_STALE:
        sm_ignore(sm, call->out, call->input, SM_IGNORED_STALE_GENERATION);
        sm_answer(sm, call->out, call->input, peer, SM_FX_SEND_DRAINED, SM_OUTCOME_NONE, NULL);
        break;
    case ABOUT_NOTHING:
        /* Before its prepare and before any open: the open that it is meant for never lives. */
        end_superseded(call, &found);
        sm_remember(sm, call->out, call->input->room, SM_PREFILL, &m->life, &m->cause);
        sm_answer(sm, call->out, call->input, peer, SM_FX_SEND_DRAINED, SM_OUTCOME_NONE, NULL);
        break;
    }
}

void sm_do_ack(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    const struct found found = find_life(call);
    if (sender(call) == SM_NONE) {
        return;
    }
    struct sm_destination *destination = NULL;
    if (found.about == ABOUT_HALF) {
        destination =
            sm_half_destination(sm, found.half, sm_half_life(found.half, &m->life), m->decode_rank);
    }
    if (destination == NULL) {
        sm_ignore(sm, call->out, call->input,
                  found.about == ABOUT_TOMBSTONE ? SM_IGNORED_TOMBSTONE
                                                 : SM_IGNORED_UNKNOWN_DESTINATION);
        return;
    }
    if (destination->notice != NOTICE_OWED || !sm_half_terminal(found.half)) {
        sm_ignore(sm, call->out, call->input,
                  sm_half_terminal(found.half) ? SM_IGNORED_DUPLICATE : SM_IGNORED_NOT_TERMINAL);
        return;
    }
    destination->notice = NOTICE_ACKED;
    sm_emit(sm, call->out, SM_TR_NOTICE_ACKED, found.half)->index = destination->index;
    sm_settle(sm, call->out, sm_half_index(sm, found.half));
}

/* ---- at decode
 * ------------------------------------------------------------------------------------------ */

/* The rank that a message of prefill is about; NULL: ignored. */
static struct sm_rank *decode_rank(const struct sm_call *call, uint32_t peer)
{
    struct sm *sm = call->sm;
    struct sm_half *half = half_of(call);
    if (half == NULL) {
        sm_ignore(sm, call->out, call->input,
                  call->tombstone != 0 ? SM_IGNORED_TOMBSTONE : SM_IGNORED_UNKNOWN_ROOM);
        return NULL;
    }
    struct sm_rank *rank = sm_half_rank(sm, half, message_of(call)->decode_rank);
    if (rank == NULL || rank->peer != peer) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_UNKNOWN_DESTINATION);
        return NULL;
    }
    return rank;
}

void sm_do_prepared(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const uint32_t peer = sender(call);
    struct sm_rank *rank = peer == SM_NONE ? NULL : decode_rank(call, peer);
    if (rank == NULL) {
        return;
    }
    struct sm_half *half = half_of(call);
    if (rank->prepared_link != 0 || sm_half_terminal(half) || rank->reach_link == 0) {
        sm_ignore(sm, call->out, call->input,
                  sm_half_terminal(half) ? SM_IGNORED_ALREADY_TERMINAL : SM_IGNORED_DUPLICATE);
        return;
    }
    rank->prepared_link = sm_peer_at(sm, peer)->link;
    sm_emit(sm, call->out, SM_TR_PREPARED, half)->rank = rank->rank;
    sm_settle(sm, call->out, call->half);
}

static void status_succeeded(const struct sm_call *call, struct sm_half *half, struct sm_rank *rank)
{
    const struct sm_message *m = message_of(call);
    rank->sources_done |= m->sources;
    struct sm_transition *transition = sm_emit(call->sm, call->out, SM_TR_SOURCES_DONE, half);
    transition->rank = rank->rank;
    transition->a = rank->sources_done;
}

void sm_do_status(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const struct sm_message *m = message_of(call);
    const uint32_t peer = sender(call);
    if (peer == SM_NONE) {
        return;
    }
    if (m->outcome != SM_OUTCOME_SUCCEEDED && m->outcome != SM_OUTCOME_FAILED) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_MALFORMED);
        return;
    }
    /* Whatever becomes of it: it has arrived, and need not be repeated. */
    sm_answer(sm, call->out, call->input, peer, SM_FX_SEND_ACK, SM_OUTCOME_NONE, NULL);
    struct sm_rank *rank = decode_rank(call, peer);
    if (rank == NULL) {
        return;
    }
    struct sm_half *half = half_of(call);
    const bool news = m->drained && !rank->drained_said;
    if (m->drained) {
        rank->drained_said = 1;
        rank->abort_answered = 1;
    }
    if (m->outcome == SM_OUTCOME_FAILED) {
        struct sm_cause cause = m->cause;
        if (cause.origin == SM_ORIGIN_NONE) {
            cause.origin = SM_ORIGIN_PEER;
        }
        sm_half_fail(sm, call->out, half, &cause, rank->rank);
    } else if (!sm_half_terminal(half)) {
        status_succeeded(call, half, rank);
    }
    if (news && call->out->transition_count == 0) {
        sm_emit(sm, call->out, SM_TR_DRAINED, half)->rank = rank->rank;
    } else if (call->out->transition_count == 0) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_ALREADY_TERMINAL);
    }
    sm_settle(sm, call->out, call->half);
}

void sm_do_drained(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const uint32_t peer = sender(call);
    struct sm_rank *rank = peer == SM_NONE ? NULL : decode_rank(call, peer);
    if (rank == NULL) {
        return;
    }
    struct sm_half *half = half_of(call);
    if (!sm_half_terminal(half) || (rank->drained_said && rank->abort_answered)) {
        sm_ignore(sm, call->out, call->input,
                  sm_half_terminal(half) ? SM_IGNORED_DUPLICATE : SM_IGNORED_NOT_TERMINAL);
        return;
    }
    rank->drained_said = 1;
    rank->abort_answered = 1;
    sm_emit(sm, call->out, SM_TR_DRAINED, half)->rank = rank->rank;
    sm_settle(sm, call->out, call->half);
}

/* ---- the fabric
 * ------------------------------------------------------------------------------------------ */

static uint32_t write_slot(const struct sm *sm, uint64_t id)
{
    const uint32_t slot = (uint32_t)(id & 0xffffffu);
    if (slot >= sm->bounds.writes_max || !sm_bits_has(sm, &sm->writes_used, slot) ||
        sm_write_at(sm, slot)->id != id) {
        return SM_NONE;
    }
    return slot;
}

uint32_t sm_write_half(const struct sm *sm, uint64_t id)
{
    const uint32_t slot = write_slot(sm, id);
    return slot == SM_NONE ? SM_NONE : sm_write_at(sm, slot)->half;
}

static void fail_for_write(const struct sm_call *call, struct sm_half *half,
                           const struct sm_destination *destination)
{
    const struct sm_in_write_done *done = &call->input->u.write_done;
    char bytes[SM_REASON_BYTES_MAX + 1u];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, "a write of node ");
    sm_put_text(&text, sm_node_name(call->sm));
    sm_put(&text, " to rank ");
    sm_put_number(&text, destination->decode_rank);
    sm_put(&text, " of node ");
    sm_put_text(&text, sm_peer_name(call->sm, half->lives[destination->life].peer));
    sm_put(&text, " failed: ");
    if (done->text.size > 0) {
        sm_put_text(&text, done->text);
    } else {
        sm_put(&text, "code ");
        sm_put_number(&text, (uint64_t)(done->code < 0 ? -(int64_t)done->code : done->code));
    }
    call->sm->counters.writes_failed++;
    sm_half_fail_text(call->sm, call->out, half, 500, SM_ORIGIN_FABRIC, sm_writer_text(&text));
}

/* With `single_notice` off a completion that comes after a failure is told as a success too. */
static void second_verdict(const struct sm_call *call, struct sm_half *half)
{
    struct sm *sm = call->sm;
    if (sm_protected(sm, SM_PROTECT_SINGLE_NOTICE) || half->in_flight > 0 ||
        half->outcome != SM_OUTCOME_FAILED) {
        return;
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        struct sm_effect *effect = sm_order(sm, call->out, SM_FX_SEND_STATUS, half);
        effect->peer = half->lives[destination->life].peer;
        effect->link = sm_peer_at(sm, effect->peer)->link;
        effect->u.message.life = half->lives[destination->life].life;
        effect->u.message.decode_rank = destination->decode_rank;
        effect->u.message.sources = destination->sources;
        effect->u.message.aux_slot = SM_AUX_NONE;
        effect->u.message.outcome = SM_OUTCOME_SUCCEEDED;
        effect->u.message.drained = true;
    }
}

void sm_do_write_done(const struct sm_call *call)
{
    struct sm *sm = call->sm;
    const uint32_t slot = write_slot(sm, call->input->u.write_done.write);
    if (slot == SM_NONE) {
        sm_ignore(sm, call->out, call->input, SM_IGNORED_UNKNOWN_WRITE);
        return;
    }
    const struct sm_write write = *sm_write_at(sm, slot);
    struct sm_half *half = sm_half_at(sm, write.half);
    struct sm_destination *destination = sm_destination_at(sm, write.destination);
    struct sm_rank *rank = sm_half_rank(sm, half, write.rank);
    SM_ASSERT(rank != NULL && half->in_flight > 0 && rank->in_flight > 0);
    SM_ASSERT(destination->in_flight > 0);
    half->in_flight--;
    rank->in_flight--;
    destination->in_flight--;
    sm_bits_remove(sm, &sm->writes_used, slot);
    const bool ok = call->input->u.write_done.code == 0;
    struct sm_transition *transition = sm_emit(sm, call->out, SM_TR_WRITE_COMPLETED, half);
    transition->rank = write.rank;
    transition->index = destination->index;
    transition->a = write.id;
    transition->b = ok;
    if (!ok) {
        fail_for_write(call, half, destination);
    }
    second_verdict(call, half);
    sm_settle(sm, call->out, write.half);
    sm_bits_add_all(sm, &sm->work, &sm->blocked); /* a write record is free again */
    sm_bits_clear(sm, &sm->blocked);
}
