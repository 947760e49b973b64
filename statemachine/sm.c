/* SPDX-License-Identifier: Apache-2.0 */
/* Queries and names: what a reader may ask the machine. Nothing here changes anything. */
#include "sm_state.h"

__attribute__((weak)) _Noreturn void sm_assert_fail(const char *condition, const char *file,
                                                    int line)
{
    (void)condition;
    (void)file;
    (void)line;
    __builtin_trap();
}

/* ---- names
 * --------------------------------------------------------------------------------------------- */

const char *sm_input_name(uint32_t kind)
{
    static const char *const names[] = {[SM_IN_NONE] = "none",
#define SM_X(name, number, text, scope) [SM_IN_##name] = (text),
                                        SM_INPUT_LIST(SM_X)
#undef SM_X
    };
    return kind < SM_IN_COUNT ? names[kind] : "none";
}

const char *sm_lost_text(uint32_t lost)
{
    static const char *const texts[] = {
#define SM_X(name, number, text) [SM_LOST_##name] = (text),
        SM_LOST_LIST(SM_X)
#undef SM_X
    };
    return lost < SM_LOST_COUNT ? texts[lost] : "";
}

const char *sm_transition_name(uint32_t kind)
{
    static const char *const names[] = {[SM_TR_NONE] = "none",
#define SM_X(name, number, text) [SM_TR_##name] = (text),
                                        SM_TRANSITION_LIST(SM_X)
#undef SM_X
    };
    return kind < SM_TR_COUNT ? names[kind] : "none";
}

const char *sm_effect_name(uint32_t kind)
{
    static const char *const names[] = {[SM_FX_NONE] = "none",
#define SM_X(name, number, text) [SM_FX_##name] = (text),
                                        SM_EFFECT_LIST(SM_X)
#undef SM_X
    };
    return kind < SM_FX_COUNT ? names[kind] : "none";
}

const char *sm_ignored_name(uint32_t reason)
{
    static const char *const names[] = {[SM_IGNORED_NONE] = "none",
#define SM_X(name, number, text) [SM_IGNORED_##name] = (text),
                                        SM_IGNORED_LIST(SM_X)
#undef SM_X
    };
    return reason < SM_IGNORED_COUNT && names[reason] != NULL ? names[reason] : "none";
}

const char *sm_refusal_name(uint32_t refusal)
{
    static const char *const names[] = {[SM_REFUSAL_NONE] = "none",
#define SM_X(name, number, text, http) [SM_REFUSAL_##name] = (text),
                                        SM_REFUSAL_LIST(SM_X)
#undef SM_X
    };
    return refusal < SM_REFUSAL_COUNT && names[refusal] != NULL ? names[refusal] : "none";
}

const char *sm_invariant_name(uint32_t invariant)
{
    static const char *const names[] = {[SM_INVARIANT_NONE] = "none",
#define SM_X(name, number, text) [SM_INVARIANT_##name] = (text),
                                        SM_INVARIANT_LIST(SM_X)
#undef SM_X
    };
    return invariant < SM_INVARIANT_COUNT ? names[invariant] : "none";
}

struct sm_text sm_node_name(const struct sm *sm)
{
    const struct sm_text name = {sm->name, sm->name_size};
    return name;
}

const char *sm_phase_name(uint32_t phase)
{
    static const char *const names[SM_PHASE_COUNT] = {
        "absent", "allocated",          "ready",    "transferring", "succeeded",
        "failed", "pre_queue_terminal", "notified", "cleared",
    };
    return phase < SM_PHASE_COUNT ? names[phase] : "none";
}

const char *sm_side_name(uint32_t side)
{
    static const char *const names[SM_SIDE_COUNT] = {"none", "prefill", "decode"};
    return side < SM_SIDE_COUNT ? names[side] : "none";
}

const char *sm_outcome_name(uint32_t outcome)
{
    static const char *const names[SM_OUTCOME_COUNT] = {"none", "succeeded", "failed"};
    return outcome < SM_OUTCOME_COUNT ? names[outcome] : "none";
}

const char *sm_origin_name(uint32_t origin)
{
    static const char *const names[SM_ORIGIN_COUNT] = {
        "none", "engine", "client", "operator", "peer", "fabric", "node",
    };
    return origin < SM_ORIGIN_COUNT ? names[origin] : "none";
}

const char *sm_protection_name(uint32_t protection)
{
    static const char *const names[SM_PROTECT_COUNT] = {
        "tombstones", "drain",         "ownership",     "gather", "generations",
        "retry",      "single_notice", "journal_first", "fence",
    };
    return protection < SM_PROTECT_COUNT ? names[protection] : NULL;
}

/* ---- queries
 * -------------------------------------------------------------------------------------------- */

static uint32_t view_required(const struct sm *sm, const struct sm_half *half)
{
    if (half->side == SM_DECODE) {
        return sm->policy.ranks;
    }
    /* Distinct destinations: at equal or greater decode TP each is some source's own. */
    uint32_t required = 0;
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        required += half->required[rank];
    }
    return required;
}

static void view_half(const struct sm *sm, const struct sm_half *half, struct sm_half_view *out)
{
    sm_zero(out, sizeof *out);
    out->room = half->room;
    out->generation = half->generation;
    out->deadline_ns = sm_half_terminal(half) ? 0 : half->deadline_ns;
    out->opened_ns = half->opened_ns;
    out->side = half->side;
    out->phase = half->phase;
    out->outcome = half->outcome;
    out->owned_by_engine = half->owner_engine != 0;
    out->required = view_required(sm, half);
    out->writes_in_flight = half->writes_epoch == sm->epoch ? half->in_flight : 0;
    out->cause = sm_cause_view(sm, &half->cause);
    if (half->side == SM_PREFILL) {
        out->destinations = half->destination_count;
    } else {
        for (uint64_t mask = half->opened; mask != 0; mask &= mask - 1u) {
            out->destinations++;
        }
    }
}

bool sm_half_find(const struct sm *sm, uint64_t room, uint32_t side, struct sm_half_view *out)
{
    const uint32_t half = sm_half_newest(sm, room, side);
    const uint64_t position = sm_tombstone_newest(sm, room, side);
    if (half != SM_NONE && (position == 0 || sm_half_at(sm, half)->generation >=
                                                 sm_tombstone_at(sm, position - 1u)->generation)) {
        view_half(sm, sm_half_at(sm, half), out);
        return true;
    }
    if (position == 0) {
        return false;
    }
    const struct sm_tombstone *tombstone = sm_tombstone_at(sm, position - 1u);
    sm_zero(out, sizeof *out);
    out->room = room;
    out->generation = tombstone->generation;
    out->side = side;
    out->phase = SM_PHASE_CLEARED;
    out->outcome = tombstone->outcome;
    out->owned_by_engine = tombstone->owner_engine != 0;
    out->remembered = true;
    out->cause = sm_cause_view(sm, &tombstone->cause);
    return true;
}

bool sm_half_next(const struct sm *sm, uint32_t *cursor, struct sm_half_view *out)
{
    const uint32_t at = sm_bits_next(sm, &sm->halves_used, *cursor);
    if (at == SM_NONE) {
        return false;
    }
    *cursor = at + 1u;
    view_half(sm, sm_half_at(sm, at), out);
    return true;
}

bool sm_pages_held(const struct sm *sm, uint32_t rank, uint32_t first, uint32_t count)
{
    if (rank >= sm->policy.ranks) {
        return false;
    }
    const uint32_t quota = sm_pages_quota(sm);
    for (uint32_t i = 0; i < count && first < quota && i < quota - first; i++) {
        if (*sm_page_entry(sm, rank, first + i) != SM_PAGE_FREE) {
            return true;
        }
    }
    return false;
}

bool sm_slots_held(const struct sm *sm, uint32_t rank, uint32_t first, uint32_t count)
{
    if (rank >= sm->policy.ranks) {
        return false;
    }
    const uint32_t quota = sm_aux_quota(sm);
    for (uint32_t i = 0; i < count && first < quota && i < quota - first; i++) {
        if (*sm_aux_entry(sm, rank, first + i) != 0) {
            return true;
        }
    }
    return false;
}

void sm_counters(const struct sm *sm, struct sm_counters *out)
{
    *out = sm->counters;
}

static uint64_t unsent_notices(const struct sm *sm)
{
    uint64_t count = 0;
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        const struct sm_half *half = sm_half_at(sm, at);
        for (uint32_t d = half->destinations; d != SM_NONE; d = sm_destination_at(sm, d)->next) {
            count += sm_half_terminal(half) && sm_destination_at(sm, d)->notice == NOTICE_OWED;
        }
    }
    return count;
}

void sm_gauges(const struct sm *sm, struct sm_gauges *out)
{
    sm_zero(out, sizeof *out);
    out->halves = sm->halves_used.count;
    out->tombstones = sm->tombstone_end - sm->tombstone_first;
    out->destinations = sm->destinations.live;
    out->writes_in_flight = sm->writes_used.count;
    out->pages_held = sm->pages_held;
    out->runs_held = (uint64_t)sm->blocks.live * SM_BLOCK_RUNS;
    out->reasons_held = sm->reasons.live;
    out->unsent_notices = unsent_notices(sm);
}

bool sm_quiescent(const struct sm *sm)
{
    return sm->halves_used.count == 0 && sm->writes_used.count == 0 && sm->pages_held == 0 &&
           sm->work.count == 0;
}

uint64_t sm_now(const struct sm *sm)
{
    return sm->now_ns;
}

uint64_t sm_node_id(const struct sm *sm)
{
    return sm->node_id;
}

uint64_t sm_epoch(const struct sm *sm)
{
    return sm->epoch;
}

uint32_t sm_link_last(const struct sm *sm)
{
    return sm->link_last;
}

uint32_t sm_peer_count(const struct sm *sm)
{
    return sm->peer_count;
}

bool sm_stopping(const struct sm *sm)
{
    return sm->stopping != 0;
}

bool sm_journal_failed(const struct sm *sm)
{
    return sm->journal_failed != 0;
}
