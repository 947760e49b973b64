/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settling a half: everything that is due for it, decided from the state alone. Handlers only note
 * facts and then settle; a lost peer, a restart or a stop marks halves as work, and each is settled
 * when an output has room. So there is one place for every rule, whatever the order of the inputs.
 *
 * Bound: without writes, a half with 64 ranks and 64 destinations needs at the most, in one call,
 *   transitions  64 x (prepare or abort, drained, freed, told, released) + 64 x (notice, gone) + 16
 *   effects      64 x (prepare or abort, tell, pages_free) + 64 x (status, drained) + fences
 * which SM_HALF_TRANSITIONS and SM_HALF_EFFECTS cover; writes are posted only in what is left.
 */
#include "sm_state.h"

uint64_t sm_backoff(const struct sm *sm, uint32_t tries)
{
    uint64_t wait = sm->policy.retry_first_ns;
    for (uint32_t i = 1; i < tries && wait < sm->policy.retry_max_ns; i++) {
        wait *= 2u;
    }
    return wait < sm->policy.retry_max_ns ? wait : sm->policy.retry_max_ns;
}

bool sm_grace_over(const struct sm *sm, const struct sm_half *half)
{
    return half->grace_until_ns <= sm->now_ns;
}

void sm_want_wake(uint64_t *wake_ns, uint64_t at_ns)
{
    if (at_ns < *wake_ns) {
        *wake_ns = at_ns;
    }
}

/* before, this node's name, after: the other side is told it too, and has to know whose it is. */
static void fail_here(struct sm *sm, struct sm_output *out, struct sm_half *half, uint16_t http,
                      const char *before, const char *after)
{
    char bytes[SM_REASON_BYTES_MAX + 1u];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, before);
    sm_put(&text, half->side == SM_PREFILL ? "prefill node " : "decode node ");
    sm_put_text(&text, sm_node_name(sm));
    sm_put(&text, after);
    sm_half_fail_text(sm, out, half, http, SM_ORIGIN_NODE, sm_writer_text(&text));
}

/* ---- reasons to end a live half that have nothing to do with its side
 * ----------------------------- */

static bool anything_sent(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        if (rank->last_sent || rank->pages.pages > 0) {
            return true;
        }
    }
    return false;
}

static void fail_for_stop(struct sm *sm, struct sm_output *out, struct sm_half *half,
                          uint64_t *wake)
{
    /* A decode half cannot know whether its writes have begun: it gets the whole grace. */
    const bool moving = half->side == SM_DECODE || anything_sent(sm, half);
    if (!moving || sm->now_ns >= sm->stop_deadline_ns) {
        fail_here(sm, out, half, 503, "", " is stopping");
    } else {
        sm_want_wake(wake, sm->stop_deadline_ns);
    }
}

static void fail_for_engine(struct sm *sm, struct sm_output *out, struct sm_half *half)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        if (rank->opened && rank->engine_life != sm->engines[rank->rank].life) {
            char bytes[SM_REASON_BYTES_MAX + 1u];
            struct sm_writer text = {bytes, sizeof bytes, 0};
            sm_put(&text, "the engine of rank ");
            sm_put_number(&text, rank->rank);
            sm_put(&text, half->side == SM_PREFILL ? " at prefill node " : " at decode node ");
            sm_put_text(&text, sm_node_name(sm));
            const uint32_t lost = sm->engines[rank->rank].lost;
            sm_put(&text, lost == SM_LOST_UNSAID ? " is gone" : " is gone: ");
            sm_put(&text, sm_lost_text(lost));
            sm_half_fail_text(sm, out, half, 500, SM_ORIGIN_ENGINE, sm_writer_text(&text));
            return;
        }
    }
}

static void fail_for_deadline(struct sm *sm, struct sm_output *out, struct sm_half *half,
                              uint64_t *wake)
{
    if (sm->now_ns < half->deadline_ns) {
        sm_want_wake(wake, half->deadline_ns);
        return;
    }
    if (half->opened == 0) {
        fail_here(sm, out, half, 504, "no engine of ", " opened the room before its deadline");
    } else if (half->phase == SM_PHASE_ALLOCATED) {
        fail_here(sm, out, half, 504, "the room's other side did not come to ",
                  " before the deadline");
    } else {
        fail_here(sm, out, half, 504, "the room was not complete at ", " before its deadline");
    }
}

static void settle_live(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    if (half->epoch != sm->epoch) {
        fail_here(sm, out, half, 503, "the coordinator restarted: ", "");
    } else if (sm->journal_failed) {
        fail_here(sm, out, half, 503, "the coordinator cannot write its journal: ", "");
        half->by_journal = 1;
    } else {
        fail_for_engine(sm, out, half);
    }
    if (!sm_half_terminal(half)) {
        fail_for_deadline(sm, out, half, wake);
    }
    if (!sm_half_terminal(half) && sm->stopping) {
        fail_for_stop(sm, out, half, wake);
    }
    if (!sm_half_terminal(half) && half->side == SM_PREFILL) {
        sm_prefill_live(sm, out, half, wake);
    } else if (!sm_half_terminal(half)) {
        sm_decode_live(sm, out, half, wake);
    }
}

/* ---- what a terminal half owes to its own engine
 * --------------------------------------------------- */

static bool rank_drained(const struct sm *sm, const struct sm_half *half,
                         const struct sm_rank *rank)
{
    if (!sm_protected(sm, SM_PROTECT_DRAIN)) {
        return true;
    }
    return half->side == SM_PREFILL ? sm_prefill_rank_drained(sm, half, rank)
                                    : sm_decode_rank_drained(sm, half, rank);
}

static void order_pages_free(struct sm *sm, struct sm_output *out, const struct sm_half *half,
                             const struct sm_rank *rank)
{
    struct sm_effect *effect = sm_order(sm, out, SM_FX_PAGES_FREE, half);
    effect->rank = rank->rank;
    struct sm_page_cursor cursor = sm_list_start(&rank->pages);
    struct sm_run *runs = out->runs + out->runs_used;
    const uint32_t count =
        sm_list_read(sm, &cursor, rank->pages.pages, runs, SM_OUTPUT_RUNS_MAX - out->runs_used);
    SM_ASSERT(count != SM_NONE);
    effect->u.pages.at = runs;
    effect->u.pages.count = count;
    out->runs_used += count;
}

static void free_rank(struct sm *sm, struct sm_output *out, struct sm_half *half,
                      struct sm_rank *rank)
{
    rank->freed = 1;
    sm_pages_drop(sm, rank->rank, &rank->pages, half->side == SM_DECODE);
    if (half->side == SM_DECODE && rank->aux_slot != SM_AUX_NONE) {
        *sm_aux_entry(sm, rank->rank, rank->aux_slot) = 0;
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PAGES_FREED, half);
    transition->rank = rank->rank;
    transition->a = rank->pages.pages;
    const bool told = (half->told >> rank->rank & 1u) != 0;
    if (told && sm->engines[rank->rank].state == ENGINE_IS_ATTACHED) {
        order_pages_free(sm, out, half, rank);
    }
}

/* Nobody could show in time that the pages are out of reach: they are kept from everybody for good.
 */
static void quarantine_rank(struct sm *sm, struct sm_output *out, struct sm_half *half,
                            struct sm_rank *rank)
{
    rank->freed = 1;
    if (half->side == SM_PREFILL) {
        /* Reading does no harm to others: the pages go back, counted. */
        sm_pages_drop(sm, rank->rank, &rank->pages, false);
    } else {
        sm_pages_quarantine(sm, rank->rank, &rank->pages);
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_QUARANTINED, half);
    transition->rank = rank->rank;
    transition->a = rank->pages.pages;
}

/*
 * When nobody will say any more that a rank's pages are out of reach: drain_timeout after the fence
 * was ordered. Not before it was, and not while the order cannot be written down: a node that was
 * frozen, or had no disk, has not given the fabric a chance yet.
 */
static uint64_t hopeless_at(const struct sm *sm, const struct sm_half *half,
                            const struct sm_rank *rank)
{
    const uint64_t overdue_ns = half->verdict_ns + sm->policy.drain_timeout_ns;
    if (half->side != SM_DECODE || rank->peer == SM_NONE) {
        return overdue_ns + sm->policy.drain_timeout_ns;
    }
    const struct sm_peer *peer = sm_peer_at(sm, rank->peer);
    if (sm->journal_failed || peer->fence_asked < rank->reach_link) {
        return SM_NEVER;
    }
    const uint64_t asked_ns = peer->fence_asked_ns;
    return (asked_ns > overdue_ns ? asked_ns : overdue_ns) + sm->policy.drain_timeout_ns;
}

static void settle_pages(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    const uint64_t overdue_ns = half->verdict_ns + sm->policy.drain_timeout_ns;
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        struct sm_rank *rank = sm_rank_at(sm, at);
        const uint64_t hopeless_ns = hopeless_at(sm, half, rank);
        if (rank->freed) {
            continue;
        }
        if (SM_OUTPUT_RUNS_MAX - out->runs_used < rank->pages.runs) {
            sm_bits_add(sm, &sm->work, sm_half_index(sm, half));
        } else if (rank_drained(sm, half, rank)) {
            free_rank(sm, out, half, rank);
        } else if (sm->now_ns >= hopeless_ns && half->side == SM_DECODE) {
            quarantine_rank(sm, out, half, rank);
        } else {
            /* Past hope a half only looks again: a held source page does no harm, and a fence that
             * cannot be ordered yet is asked for anew. */
            const uint64_t later_ns = hopeless_ns == SM_NEVER || hopeless_ns <= sm->now_ns
                                          ? sm->now_ns + sm->policy.drain_timeout_ns
                                          : hopeless_ns;
            sm_want_wake(wake, sm->now_ns >= overdue_ns ? later_ns : overdue_ns);
        }
    }
}

static bool has_own_cause(const struct sm *sm, const struct sm_half *half,
                          const struct sm_rank *rank)
{
    return !sm_protected(sm, SM_PROTECT_GATHER) && half->outcome == SM_OUTCOME_FAILED &&
           rank->own_outcome == SM_OUTCOME_FAILED;
}

bool sm_waits_for_own_cause(const struct sm *sm, const struct sm_half *half,
                            const struct sm_rank *rank)
{
    return !sm_protected(sm, SM_PROTECT_GATHER) && half->outcome == SM_OUTCOME_FAILED &&
           rank->own_outcome == SM_OUTCOME_NONE && sm->now_ns < half->deadline_ns;
}

static void tell_rank(struct sm *sm, struct sm_output *out, struct sm_half *half,
                      const struct sm_rank *rank)
{
    const uint64_t bit = UINT64_C(1) << rank->rank;
    half->told |= bit;
    half->told_ever |= bit;
    sm_emit(sm, out, SM_TR_TOLD, half)->rank = rank->rank;
    struct sm_effect *effect = sm_order(sm, out, SM_FX_TELL, half);
    effect->rank = rank->rank;
    effect->u.tell.outcome = half->outcome;
    effect->u.tell.cause =
        sm_cause_view(sm, has_own_cause(sm, half, rank) ? &rank->own_cause : &half->cause);
    effect->u.tell.pages_free = rank->freed != 0;
    effect->u.tell.request = rank->request;
}

static void settle_telling(struct sm *sm, struct sm_output *out, struct sm_half *half,
                           uint64_t *wake)
{
    if (!sm_grace_over(sm, half)) {
        sm_want_wake(wake, half->grace_until_ns);
        return;
    }
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        struct sm_rank *rank = sm_rank_at(sm, at);
        const uint64_t bit = UINT64_C(1) << rank->rank;
        if (!rank->opened) {
            continue;
        }
        if (rank->engine_life != sm->engines[rank->rank].life) {
            if ((half->released & bit) == 0) {
                half->released |= bit; /* a dead engine can neither be told nor release */
                sm_emit(sm, out, SM_TR_RANK_RELEASED, half)->rank = rank->rank;
            }
        } else if (sm_waits_for_own_cause(sm, half, rank)) {
            sm_want_wake(wake, half->deadline_ns);
        } else if ((half->told & bit) == 0 && (half->released & bit) == 0 &&
                   sm->engines[rank->rank].state == ENGINE_IS_ATTACHED) {
            tell_rank(sm, out, half, rank);
        } else if ((half->told & bit) == 0 && (half->told_ever & bit) == 0 &&
                   (half->released & bit) != 0 &&
                   sm->engines[rank->rank].state == ENGINE_IS_ATTACHED) {
            tell_rank(sm, out, half, rank); /* released before the end: still told once */
        }
    }
}

static bool all_freed(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        if (!sm_rank_at(sm, at)->freed) {
            return false;
        }
    }
    return true;
}

/* Whether every engine rank has what it is due and has let go. */
static bool engines_through(const struct sm *sm, const struct sm_half *half)
{
    const bool needs_release = half->owner_engine && sm_protected(sm, SM_PROTECT_OWNERSHIP);
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        const uint64_t bit = UINT64_C(1) << rank->rank;
        if (!rank->opened || rank->engine_life != sm->engines[rank->rank].life) {
            continue;
        }
        if (needs_release ? (half->released & bit) == 0 || (half->told_ever & bit) == 0
                          : ((half->delivered | half->released) & bit) == 0) {
            return false;
        }
    }
    return true;
}

static void settle_terminal(struct sm *sm, struct sm_output *out, struct sm_half *half,
                            uint64_t *wake)
{
    const uint32_t index = sm_half_index(sm, half);
    settle_pages(sm, out, half, wake);
    if (half->side == SM_PREFILL) {
        sm_prefill_over(sm, out, half, wake);
    } else {
        sm_decode_over(sm, out, half, wake);
    }
    settle_telling(sm, out, half, wake);
    if (half->phase == SM_PHASE_NOTIFIED && half->in_flight == 0 && all_freed(sm, half) &&
        sm_grace_over(sm, half) && engines_through(sm, half)) {
        sm_half_clear(sm, out, half);
        return;
    }
    SM_ASSERT(sm_bits_has(sm, &sm->halves_used, index));
}

void sm_settle(struct sm *sm, struct sm_output *out, uint32_t index)
{
    struct sm_half *half = sm_half_at(sm, index);
    SM_ASSERT(half->used != 0);
    if (!sm_output_has_room(out)) {
        sm_bits_add(sm, &sm->work, index);
        return;
    }
    sm_bits_remove(sm, &sm->work, index);
    sm_half_refresh(sm, half);
    uint64_t wake = SM_NEVER;
    if (!sm_half_terminal(half)) {
        settle_live(sm, out, half, &wake);
    }
    if (sm_half_terminal(half)) {
        wake = SM_NEVER;
        settle_terminal(sm, out, half, &wake);
    }
    if (half->used == 0) {
        return;
    }
    /* What was due has been done or stands in the work set; a wake in the past would spin. */
    if (wake <= sm->now_ns) {
        wake = sm->now_ns + sm->policy.retry_first_ns;
    }
    sm_timer_set(sm, index, wake);
    out->digest = sm_mix(out->digest, sm_half_digest_at(sm, half));
}

void sm_settle_all(struct sm *sm)
{
    sm_bits_add_all(sm, &sm->work, &sm->halves_used);
}

void sm_settle_work(struct sm *sm, struct sm_output *out)
{
    uint32_t at = sm_bits_next(sm, &sm->work, 0);
    while (at != SM_NONE && sm_output_has_room(out)) {
        sm_settle(sm, out, at);
        /* A half that marked itself again wants the next output, not this one. */
        at = sm_bits_next(sm, &sm->work, at + 1u);
    }
}
