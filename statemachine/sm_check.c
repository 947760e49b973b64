/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants of design.md section 3, seen on the machine itself. sm_check looks at everything;
 * sm_check_step looks at what one step ordered, where a promise can be broken by an effect although
 * the state looks well.
 */
#include "sm_state.h"

static bool fell(struct sm_violation *out, uint32_t invariant, const struct sm_half *half,
                 const char *detail, uint64_t number)
{
    sm_zero(out, sizeof *out);
    out->invariant = invariant;
    if (half != NULL) {
        out->room = half->room;
        out->side = half->side;
        out->generation = half->generation;
    }
    struct sm_writer text = {out->detail, sizeof out->detail, 0};
    sm_put(&text, detail);
    sm_put(&text, " (");
    sm_put_number(&text, number);
    sm_put(&text, ")");
    return false;
}

/* ---- one half
 * ------------------------------------------------------------------------------------ */

static bool check_verdict(const struct sm_half *half, struct sm_violation *out)
{
    const bool over = sm_half_terminal(half);
    if (over != (half->outcome != SM_OUTCOME_NONE)) {
        return fell(out, SM_INVARIANT_ONE_VERDICT, half, "phase and outcome disagree", half->phase);
    }
    if (half->phase == SM_PHASE_SUCCEEDED && half->outcome != SM_OUTCOME_SUCCEEDED) {
        return fell(out, SM_INVARIANT_ONE_VERDICT, half, "succeeded without success",
                    half->outcome);
    }
    if ((half->told & ~half->opened) != 0) {
        return fell(out, SM_INVARIANT_TOLD_ONCE, half, "told a rank that did not open", half->told);
    }
    if (half->told_ever != 0 && !over) {
        return fell(out, SM_INVARIANT_TOLD_ONCE, half, "told before the verdict", half->told_ever);
    }
    return true;
}

static bool check_success(const struct sm *sm, const struct sm_half *half, struct sm_violation *out)
{
    if (half->outcome != SM_OUTCOME_SUCCEEDED || half->late || half->epoch != sm->epoch) {
        return true;
    }
    if (half->in_flight != 0) {
        return fell(out, SM_INVARIANT_SUCCESS_IS_COMPLETE, half, "success with writes in flight",
                    half->in_flight);
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        for (uint32_t r = half->ranks; r != SM_NONE; r = sm_rank_at(sm, r)->next) {
            const struct sm_rank *rank = sm_rank_at(sm, r);
            if ((destination->sources >> rank->rank & 1u) != 0 &&
                (!rank->last_posted || rank->posted_pages != destination->pages.pages)) {
                return fell(out, SM_INVARIANT_SUCCESS_IS_COMPLETE, half,
                            "success with pages unwritten", rank->posted_pages);
            }
        }
    }
    return true;
}

/*
 * Without a protection its race is bound to break these: who runs on to see what comes of it does
 * not want to be told at once, who looks for the place does.
 */
static bool expected(const struct sm *sm, uint32_t protection, bool strict)
{
    return strict || sm_protected(sm, protection);
}

static bool check_counts(const struct sm *sm, const struct sm_half *half, bool strict,
                         struct sm_violation *out)
{
    uint64_t by_rank = 0;
    uint64_t by_destination = 0;
    if (half->writes_epoch != sm->epoch) {
        return true;
    }
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        by_rank += rank->in_flight;
        if (rank->freed && rank->in_flight > 0 && expected(sm, SM_PROTECT_DRAIN, strict)) {
            return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, half,
                        "source pages freed under a write", rank->rank);
        }
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        by_destination += sm_destination_at(sm, at)->in_flight;
    }
    if (by_rank != half->in_flight || by_destination != half->in_flight) {
        return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, half, "writes in flight do not add up",
                    half->in_flight);
    }
    return true;
}

static bool check_freed(const struct sm *sm, const struct sm_half *half, struct sm_violation *out)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        if (!rank->freed) {
            continue;
        }
        if (!sm_half_terminal(half)) {
            return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, half,
                        "pages freed before the verdict", rank->rank);
        }
        const bool overdue = sm->now_ns >= half->verdict_ns + 2u * sm->policy.drain_timeout_ns;
        if (half->side == SM_DECODE && !overdue && !sm_decode_rank_drained(sm, half, rank)) {
            return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, half,
                        "destination pages freed within a writer's reach", rank->rank);
        }
        if (half->side == SM_PREFILL && !sm_prefill_rank_drained(sm, half, rank)) {
            return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, half,
                        "source pages freed under a write", rank->rank);
        }
    }
    return true;
}

/* A verdict that a reachable counterpart has not got must be on its way or have a retry armed. */
static bool check_notices(const struct sm *sm, const struct sm_half *half, uint32_t index,
                          bool strict, struct sm_violation *out)
{
    if (!sm_half_terminal(half) || sm_bits_has(sm, &sm->work, index)) {
        return true;
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        const struct sm_peer *peer = sm_peer_at(sm, half->lives[destination->life].peer);
        if (destination->notice == NOTICE_OWED && peer->state == PEER_IS_UP &&
            half->wake_ns == SM_NEVER && expected(sm, SM_PROTECT_RETRY, strict)) {
            return fell(out, SM_INVARIANT_NO_LOST_VERDICT, half,
                        "a notice is owed and no retry armed", destination->index);
        }
    }
    return true;
}

static bool owes_something(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        const uint64_t bit = UINT64_C(1) << rank->rank;
        if (rank->opened && ((half->released | half->delivered) & bit) == 0) {
            return true; /* its engine has to answer */
        }
        if (rank->opened && half->owner_engine && (half->released & bit) == 0) {
            return true;
        }
        if (rank->opened && half->owner_engine && (half->told_ever & bit) == 0 &&
            rank->engine_life == sm->engines[rank->rank].life) {
            return true; /* released, and still to be told when it attaches or is given up */
        }
        if (sm_decode_owes_abort(half, rank)) {
            return true; /* peer_up or peer_down will come */
        }
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        if (sm_destination_at(sm, at)->notice == NOTICE_OWED) {
            return true;
        }
    }
    return half->in_flight > 0;
}

static bool check_half(const struct sm *sm, uint32_t index, bool strict, struct sm_violation *out)
{
    const struct sm_half *half = sm_half_at(sm, index);
    const bool working = sm_bits_has(sm, &sm->work, index) || sm_bits_has(sm, &sm->blocked, index);
    if (!check_verdict(half, out) || !check_success(sm, half, out) ||
        !check_counts(sm, half, strict, out) || !check_notices(sm, half, index, strict, out)) {
        return false;
    }
    if (expected(sm, SM_PROTECT_DRAIN, strict) && !working && !check_freed(sm, half, out)) {
        return false;
    }
    if (!working && half->wake_ns == SM_NEVER &&
        (!sm_half_terminal(half) || !owes_something(sm, half))) {
        return fell(out, SM_INVARIANT_DEADLINE, half, "no deadline and nothing owed", half->phase);
    }
    if (!sm_half_terminal(half) && half->late) {
        return fell(out, SM_INVARIANT_NO_RESURRECTION, half, "a late open made a live half",
                    half->phase);
    }
    return true;
}

/* ---- tables
 * ---------------------------------------------------------------------------------------- */

/* Every held destination page names the half that has it in its list, and no other has it too. */
static bool check_pages_of(const struct sm *sm, uint32_t index, struct sm_violation *out)
{
    const struct sm_half *half = sm_half_at(sm, index);
    for (uint32_t r = half->ranks; r != SM_NONE; r = sm_rank_at(sm, r)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, r);
        uint32_t at = rank->freed || rank->pages.runs == 0 ? SM_NONE : rank->pages.head;
        for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
            const struct sm_block *block = sm_block_at(sm, at);
            for (uint32_t i = 0; i < block->count; i++) {
                const uint32_t page = block->runs[i].first;
                const uint32_t entry = *sm_page_entry(sm, rank->rank, page);
                const bool right =
                    half->side == SM_DECODE ? entry == index + 1u : (entry & SM_PAGE_SHARED) != 0;
                if (!right) {
                    return fell(out, SM_INVARIANT_ONE_OWNER_OF_A_PAGE, half,
                                "a page of the half is somebody else's", page);
                }
            }
        }
    }
    return true;
}

static bool check_bounds(const struct sm *sm, struct sm_violation *out)
{
    if (sm->halves_used.count > sm->bounds.halves_max ||
        sm->writes_used.count > sm->bounds.writes_max || sm->heap_count > sm->halves_used.count ||
        sm->tombstone_end - sm->tombstone_first > sm->bounds.tombstones_max) {
        return fell(out, SM_INVARIANT_BOUNDED, NULL, "a table is over its bound",
                    sm->halves_used.count);
    }
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        if (sm_peer_at(sm, i)->fenced_link > sm_peer_at(sm, i)->link) {
            return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, NULL,
                        "fenced a connection that never was", i);
        }
    }
    return true;
}

static bool check_all(const struct sm *sm, bool strict, struct sm_violation *out)
{
    if (!check_bounds(sm, out)) {
        return false;
    }
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        if (!check_half(sm, at, strict, out) || !check_pages_of(sm, at, out)) {
            return false;
        }
    }
    sm_zero(out, sizeof *out);
    return true;
}

bool sm_check(const struct sm *sm, struct sm_violation *out)
{
    return check_all(sm, false, out);
}

bool sm_check_strictly(const struct sm *sm, struct sm_violation *out)
{
    return check_all(sm, true, out);
}

/* ---- one step
 * ---------------------------------------------------------------------------------------- */

static bool same_cause(const struct sm_cause *a, const struct sm_cause *b)
{
    return a->http == b->http && sm_text_same(a->reason, b->reason);
}

static bool check_tell(const struct sm *sm, const struct sm_effect *effect,
                       struct sm_violation *out)
{
    const uint32_t index = sm_half_exact(sm, effect->room, effect->side, effect->generation);
    if (index == SM_NONE) {
        return true; /* cleared in the same step: nothing more to compare with */
    }
    const struct sm_half *half = sm_half_at(sm, index);
    const struct sm_cause cause = sm_cause_view(sm, &half->cause);
    if (effect->u.tell.outcome != half->outcome) {
        return fell(out, SM_INVARIANT_TOLD_ONCE, half, "told another outcome than the half's",
                    effect->rank);
    }
    if (half->outcome == SM_OUTCOME_FAILED && !same_cause(&effect->u.tell.cause, &cause)) {
        return fell(out, SM_INVARIANT_SAME_CAUSE, half, "told another cause than the half's",
                    effect->rank);
    }
    return true;
}

static bool check_status(const struct sm *sm, const struct sm_effect *effect,
                         struct sm_violation *out)
{
    if (effect->generation == 0) {
        return true; /* an answer for a life that is only remembered */
    }
    const uint32_t index = sm_half_exact(sm, effect->room, effect->side, effect->generation);
    if (index != SM_NONE && sm_half_at(sm, index)->outcome != effect->u.message.outcome) {
        return fell(out, SM_INVARIANT_TOLD_ONCE, sm_half_at(sm, index),
                    "a counterpart is sent the other verdict too", effect->u.message.decode_rank);
    }
    return true;
}

static bool check_write(const struct sm *sm, const struct sm_effect *effect,
                        struct sm_violation *out)
{
    const uint32_t index = sm_half_exact(sm, effect->room, effect->side, effect->generation);
    if (index != SM_NONE && sm_half_at(sm, index)->outcome == SM_OUTCOME_FAILED &&
        sm_half_at(sm, index)->verdict_ns < sm->now_ns) {
        return fell(out, SM_INVARIANT_DRAINED_BEFORE_FREE, sm_half_at(sm, index),
                    "a write is posted after the verdict", effect->rank);
    }
    return true;
}

bool sm_check_step(const struct sm *sm, const struct sm_output *output, struct sm_violation *out)
{
    uint32_t told = 0;
    for (uint32_t i = 0; i < output->effect_count; i++) {
        const struct sm_effect *effect = &output->effects[i];
        bool well = true;
        if (effect->kind == SM_FX_TELL) {
            told++;
            well = check_tell(sm, effect, out);
        } else if (effect->kind == SM_FX_SEND_STATUS) {
            well = check_status(sm, effect, out);
        } else if (effect->kind == SM_FX_WRITE) {
            well = check_write(sm, effect, out);
        }
        if (!well) {
            return false;
        }
    }
    for (uint32_t i = 0; i < output->transition_count; i++) {
        const struct sm_transition *transition = &output->transitions[i];
        if (transition->kind == SM_TR_PHASE && transition->b <= transition->a) {
            return fell(out, SM_INVARIANT_ONE_VERDICT, NULL, "a half moved back", transition->room);
        }
        told -= transition->kind == SM_TR_TOLD ? 1u : 0u;
    }
    if (told != 0) {
        return fell(out, SM_INVARIANT_TOLD_ONCE, NULL, "results and their records differ", told);
    }
    sm_zero(out, sizeof *out);
    return true;
}
