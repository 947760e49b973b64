/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decode half: its pages are announced to prefill until prefill has confirmed them, it succeeds
 * when every source of every rank said so, and after a failure its pages stay out of everybody's
 * hands until prefill has said, or a fence has made sure, that no write can touch them.
 */
#include "sm_state.h"

/* ---- who writes to whom
 * --------------------------------------------------------------------------- */

/* Prefill ranks that fill a decode rank, by the two TP sizes; 0: the sizes do not divide. */
static uint64_t sources_of(const struct sm *sm, uint32_t rank, uint32_t prefill_ranks)
{
    const uint32_t decode_ranks = sm->policy.ranks;
    if (sm->policy.sources_by_hand[rank] != 0) {
        return sm->policy.sources_by_hand[rank];
    }
    if (decode_ranks >= prefill_ranks) {
        const uint32_t each = decode_ranks / prefill_ranks;
        return decode_ranks % prefill_ranks == 0 ? UINT64_C(1) << (rank / each) : 0;
    }
    const uint32_t each = prefill_ranks / decode_ranks;
    if (prefill_ranks % decode_ranks != 0) {
        return 0;
    }
    const uint64_t mask = each >= 64u ? UINT64_MAX : (UINT64_C(1) << each) - 1u;
    return mask << (rank * each);
}

/* How many destinations each prefill rank must hear from. */
static void required_of(const struct sm *sm, uint32_t prefill_ranks, uint8_t *out_required)
{
    for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
        const uint64_t sources = sources_of(sm, rank, prefill_ranks);
        for (uint32_t source = 0; source < prefill_ranks; source++) {
            out_required[source] = (uint8_t)(out_required[source] + (sources >> source & 1u));
        }
    }
}

/* ---- announcing
 * ----------------------------------------------------------------------------------- */

static struct sm_effect *order_message(struct sm *sm, struct sm_output *out,
                                       const struct sm_half *half, const struct sm_rank *rank,
                                       uint32_t kind)
{
    struct sm_effect *effect = sm_order(sm, out, kind, half);
    effect->peer = rank->peer;
    effect->link = sm_peer_at(sm, rank->peer)->link;
    effect->u.message.life.node = sm->node_id;
    effect->u.message.life.epoch = half->epoch;
    effect->u.message.life.generation = half->generation;
    effect->u.message.decode_rank = rank->rank;
    effect->u.message.aux_slot = SM_AUX_NONE;
    return effect;
}

static void send_prepare(struct sm *sm, struct sm_output *out, struct sm_half *half,
                         struct sm_rank *rank)
{
    const struct sm_peer *peer = sm_peer_at(sm, rank->peer);
    struct sm_page_cursor cursor = sm_list_start(&rank->pages);
    struct sm_run *runs = out->runs + out->runs_used;
    const uint32_t count =
        sm_list_read(sm, &cursor, rank->pages.pages, runs, SM_OUTPUT_RUNS_MAX - out->runs_used);
    if (count == SM_NONE) {
        sm_bits_add(sm, &sm->work, sm_half_index(sm, half));
        return;
    }
    out->runs_used += count;
    struct sm_effect *effect = order_message(sm, out, half, rank, SM_FX_SEND_PREPARE);
    struct sm_message *message = &effect->u.message;
    message->sources = rank->sources_required;
    required_of(sm, peer->ranks, message->required);
    message->pages.at = runs;
    message->pages.count = count;
    message->prefix_pages = rank->prefix_pages;
    message->aux_slot = rank->aux_slot;
    message->decode_ranks = sm->policy.ranks;
    message->deadline_left_ns = half->deadline_ns - sm->now_ns;
    message->geometry = sm->engines[rank->rank].geometry;
    if (rank->prepare_tries < UINT16_MAX) {
        rank->prepare_tries++;
    }
    rank->prepare_next_ns = sm->now_ns + sm_backoff(sm, rank->prepare_tries);
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PREPARE_SENT, half);
    transition->rank = rank->rank;
    transition->a = rank->prepare_tries;
    if (rank->reach_link != peer->link) {
        rank->reach_link_old = rank->reach_link;
        rank->reach_link = peer->link;
    }
}

static void fail_for_peer(struct sm *sm, struct sm_output *out, struct sm_half *half, uint32_t peer,
                          uint16_t http, const char *what)
{
    char bytes[192];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, "prefill node ");
    sm_put_text(&text, sm_peer_name(sm, peer));
    sm_put(&text, what);
    sm_half_fail_text(sm, out, half, http, SM_ORIGIN_NODE, sm_writer_text(&text));
}

/* Announces one rank's pages; the half may fail on the way. */
static void settle_announcement(struct sm *sm, struct sm_output *out, struct sm_half *half,
                                struct sm_rank *rank, uint64_t *wake)
{
    const struct sm_peer *peer = sm_peer_at(sm, rank->peer);
    if (rank->prepared_link != 0) {
        if (sm_peer_lost(sm, rank->peer, rank->prepared_link, wake)) {
            fail_for_peer(sm, out, half, rank->peer, 503, " was lost");
        }
        return;
    }
    if (peer->state == PEER_IS_DOWN) {
        fail_for_peer(sm, out, half, rank->peer, 503, " is down");
        return;
    }
    if (peer->state != PEER_IS_UP) {
        return;
    }
    rank->sources_required = sources_of(sm, rank->rank, peer->ranks);
    if (rank->sources_required == 0) {
        fail_for_peer(sm, out, half, rank->peer, 409, " has a TP size that does not divide ours");
        return;
    }
    if (rank->reach_link != peer->link) {
        rank->prepare_tries = 0;
        rank->prepare_next_ns = 0;
    }
    if (sm->now_ns >= rank->prepare_next_ns) {
        send_prepare(sm, out, half, rank);
    }
    sm_want_wake(wake, rank->prepare_next_ns);
}

static bool all_prepared(const struct sm *sm, const struct sm_half *half)
{
    uint32_t prepared = 0;
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        prepared += sm_rank_at(sm, at)->prepared_link != 0 ? 1u : 0u;
    }
    return prepared == sm->policy.ranks;
}

static bool all_sources_done(const struct sm *sm, const struct sm_half *half)
{
    uint32_t done = 0;
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        if (rank->opened && rank->sources_required != 0 &&
            (rank->sources_done & rank->sources_required) == rank->sources_required) {
            done++;
        }
    }
    return done == sm->policy.ranks;
}

void sm_decode_live(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    for (uint32_t at = half->ranks; at != SM_NONE && !sm_half_terminal(half);
         at = sm_rank_at(sm, at)->next) {
        settle_announcement(sm, out, half, sm_rank_at(sm, at), wake);
    }
    if (sm_half_terminal(half)) {
        return;
    }
    if (half->phase == SM_PHASE_ALLOCATED && all_prepared(sm, half)) {
        sm_half_phase(sm, out, half, SM_PHASE_READY);
    }
    if (all_sources_done(sm, half)) {
        sm_half_succeed(sm, out, half);
    }
}

/* ---- after the end
 * --------------------------------------------------------------------------------- */

static void settle_abort(struct sm *sm, struct sm_output *out, struct sm_half *half,
                         struct sm_rank *rank, uint64_t *wake)
{
    const struct sm_peer *peer = sm_peer_at(sm, rank->peer);
    if (peer->state == PEER_IS_DOWN && rank->reach_link != 0) {
        rank->abort_answered = 1; /* it ends its half itself; the fence answers for its writes */
        return;
    }
    if (peer->state != PEER_IS_UP) {
        /* It may be up for its engine, which waits for us until the deadline at the longest. */
        rank->abort_answered = sm->stopping || sm->now_ns >= half->deadline_ns;
        sm_want_wake(wake, rank->abort_answered ? SM_NEVER : half->deadline_ns);
        return;
    }
    if (rank->abort_link != peer->link) {
        rank->abort_tries = 0;
        rank->abort_next_ns = 0;
    }
    if (sm->now_ns >= rank->abort_next_ns) {
        struct sm_effect *effect = order_message(sm, out, half, rank, SM_FX_SEND_ABORT);
        effect->u.message.cause = sm_cause_view(sm, &half->cause);
        if (rank->abort_tries < UINT16_MAX) {
            rank->abort_tries++;
        }
        rank->abort_link = peer->link;
        rank->abort_next_ns = sm->now_ns + sm_backoff(sm, rank->abort_tries);
        struct sm_transition *transition = sm_emit(sm, out, SM_TR_ABORT_SENT, half);
        transition->rank = rank->rank;
        transition->a = rank->abort_tries;
    }
    sm_want_wake(wake, rank->abort_next_ns);
}

static void settle_fence(struct sm *sm, struct sm_output *out, struct sm_half *half,
                         const struct sm_rank *rank, uint64_t *wake)
{
    const uint64_t overdue_ns = half->verdict_ns + sm->policy.drain_timeout_ns;
    if (sm_decode_rank_drained(sm, half, rank)) {
        return;
    }
    if (sm->now_ns >= overdue_ns) {
        sm_peer_fence(sm, out, rank->peer, rank->reach_link);
    } else {
        sm_want_wake(wake, overdue_ns);
    }
}

/*
 * Also when nothing was announced yet: prefill's engine may have opened the room already, and would
 * wait for us until its deadline.
 */
bool sm_decode_owes_abort(const struct sm_half *half, const struct sm_rank *rank)
{
    return half->side == SM_DECODE && half->outcome == SM_OUTCOME_FAILED && rank->peer != SM_NONE &&
           !rank->abort_answered;
}

void sm_decode_over(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    bool owed = false;
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        struct sm_rank *rank = sm_rank_at(sm, at);
        if (sm_decode_owes_abort(half, rank) && !sm_waits_for_own_cause(sm, half, rank)) {
            settle_abort(sm, out, half, rank, wake);
        }
        if (half->outcome == SM_OUTCOME_FAILED && rank->reach_link != 0) {
            settle_fence(sm, out, half, rank, wake);
        }
        owed = owed || sm_decode_owes_abort(half, rank);
    }
    if (!owed && half->phase < SM_PHASE_NOTIFIED && sm_grace_over(sm, half)) {
        sm_half_phase(sm, out, half, SM_PHASE_NOTIFIED);
    }
}

bool sm_decode_rank_drained(const struct sm *sm, const struct sm_half *half,
                            const struct sm_rank *rank)
{
    if (half->outcome == SM_OUTCOME_SUCCEEDED || rank->reach_link == 0) {
        return true; /* its sources are through, or have never heard of its pages */
    }
    const struct sm_peer *peer = sm_peer_at(sm, rank->peer);
    if (peer->fenced_link >= rank->reach_link) {
        return true;
    }
    return rank->drained_said && peer->fenced_link >= rank->reach_link_old;
}
