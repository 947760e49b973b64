/* SPDX-License-Identifier: Apache-2.0 */
/* One half: its records, its verdict, its end. What is due for it is decided in sm_settle.c. */
#include "sm_state.h"

bool sm_protected(const struct sm *sm, uint32_t protection)
{
    return (sm->policy.protections_off >> protection & 1u) == 0;
}

bool sm_half_terminal(const struct sm_half *half)
{
    return half->phase >= SM_PHASE_SUCCEEDED;
}

struct sm_rank *sm_half_rank(const struct sm *sm, const struct sm_half *half, uint32_t rank)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        if (sm_rank_at(sm, at)->rank == rank) {
            return sm_rank_at(sm, at);
        }
    }
    return NULL;
}

struct sm_rank *sm_half_rank_add(struct sm *sm, struct sm_half *half, uint32_t rank)
{
    SM_ASSERT(rank < SM_RANKS_MAX && sm_half_rank(sm, half, rank) == NULL);
    const uint32_t index = sm_pool_take(sm, &sm->ranks, sizeof(struct sm_rank));
    if (index == SM_NONE) {
        return NULL;
    }
    struct sm_rank *record = sm_rank_at(sm, index);
    record->rank = rank;
    record->peer = SM_NONE;
    record->aux_slot = SM_AUX_NONE;
    record->own_cause.reason = SM_NONE;
    record->posted_at.block = SM_NONE;
    record->engine_life = sm->engines[rank].life;
    /* By rank, so that everything that walks the list does so in an order that state alone decides.
     */
    uint32_t *link = &half->ranks;
    while (*link != SM_NONE && sm_rank_at(sm, *link)->rank < rank) {
        link = &sm_rank_at(sm, *link)->next;
    }
    record->next = *link;
    *link = index;
    return record;
}

struct sm_destination *sm_half_destination(const struct sm *sm, const struct sm_half *half,
                                           uint32_t life, uint32_t decode_rank)
{
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        struct sm_destination *destination = sm_destination_at(sm, at);
        if (destination->life == life && destination->decode_rank == decode_rank) {
            return destination;
        }
    }
    return NULL;
}

uint32_t sm_half_life(const struct sm_half *half, const struct sm_life *life)
{
    for (uint32_t i = 0; i < half->life_count; i++) {
        const struct sm_life *its = &half->lives[i].life;
        if (its->node == life->node && its->epoch == life->epoch &&
            its->generation == life->generation) {
            return i;
        }
    }
    return SM_NONE;
}

uint32_t sm_half_life_of_node(const struct sm_half *half, uint64_t node)
{
    for (uint32_t i = 0; i < half->life_count; i++) {
        if (half->lives[i].life.node == node) {
            return i;
        }
    }
    return SM_NONE;
}

void sm_half_phase(struct sm *sm, struct sm_output *out, struct sm_half *half, uint32_t phase)
{
    SM_ASSERT(sm_phase_may_follow(half->side, half->phase, phase));
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PHASE, half);
    transition->a = half->phase;
    transition->b = phase;
    half->phase = (uint8_t)phase;
}

uint64_t sm_next_generation(const struct sm *sm, uint64_t room, uint32_t side)
{
    uint64_t generation = sm->generation_floor;
    const uint32_t half = sm_half_newest(sm, room, side);
    const uint64_t tombstone = sm_tombstone_newest(sm, room, side);
    if (half != SM_NONE && sm_half_at(sm, half)->generation > generation) {
        generation = sm_half_at(sm, half)->generation;
    }
    if (tombstone != 0 && sm_tombstone_at(sm, tombstone - 1u)->generation > generation) {
        generation = sm_tombstone_at(sm, tombstone - 1u)->generation;
    }
    return generation + 1u;
}

struct sm_half *sm_half_create(struct sm *sm, struct sm_output *out, uint64_t room, uint32_t side,
                               uint64_t generation)
{
    const uint32_t index = sm_half_take(sm, room, side, generation);
    if (index == SM_NONE) {
        return NULL;
    }
    struct sm_half *half = sm_half_at(sm, index);
    half->epoch = sm->epoch;
    half->writes_epoch = sm->epoch;
    half->opened_ns = sm->now_ns;
    half->deadline_ns = sm->now_ns + sm->policy.room_deadline_ns;
    SM_ASSERT(sm_phase_may_follow(side, half->phase, SM_PHASE_ALLOCATED));
    half->phase = SM_PHASE_ALLOCATED;
    (void)sm_emit(sm, out, SM_TR_HALF_CREATED, half);
    return half;
}

bool sm_half_bind(struct sm *sm, struct sm_half *half, const struct sm_life *life, uint32_t peer)
{
    if (half->life_count == SM_LIVES_MAX) {
        return false;
    }
    half->lives[half->life_count].life = *life;
    half->lives[half->life_count].peer = peer;
    half->life_count++;
    sm_peer_at(sm, peer)->rooms++;
    return true;
}

void sm_half_refresh(struct sm *sm, struct sm_half *half)
{
    if (half->writes_epoch == sm->epoch) {
        return;
    }
    half->writes_epoch = sm->epoch;
    half->in_flight = 0;
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        sm_rank_at(sm, at)->in_flight = 0;
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        sm_destination_at(sm, at)->in_flight = 0;
    }
}

/* ---- verdicts ----------------------------------------------------------------------------------
 */

/* Default statuses of design.md section 3, where the source gave none. */
static uint16_t default_http(const struct sm_cause *cause)
{
    switch ((enum sm_origin)cause->origin) {
    case SM_ORIGIN_CLIENT:
        return 499;
    case SM_ORIGIN_OPERATOR:
    case SM_ORIGIN_NODE:
        return 503;
    case SM_ORIGIN_NONE:
    case SM_ORIGIN_ENGINE:
    case SM_ORIGIN_PEER:
    case SM_ORIGIN_FABRIC:
    case SM_ORIGIN_COUNT:
        return 500;
    }
    return 500;
}

/* With `gather` off each rank keeps the first cause that reached it: the fault that gather
 * prevents. */
static void keep_own_cause(struct sm *sm, struct sm_half *half, const struct sm_cause *cause,
                           uint32_t rank)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        struct sm_rank *record = sm_rank_at(sm, at);
        if (record->own_outcome == SM_OUTCOME_NONE && (rank == SM_NONE || record->rank == rank)) {
            record->own_outcome = SM_OUTCOME_FAILED;
            sm_cause_keep(sm, &record->own_cause, cause);
        }
    }
}

static bool nobody_told(const struct sm *sm, const struct sm_half *half)
{
    if (half->told_ever != 0) {
        return false;
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        if (sm_destination_at(sm, at)->notice_tries > 0) {
            return false;
        }
    }
    return true;
}

static void set_verdict(struct sm *sm, struct sm_output *out, struct sm_half *half,
                        const struct sm_cause *cause)
{
    sm_cause_keep(sm, &half->cause, cause);
    half->outcome = SM_OUTCOME_FAILED;
    half->verdict_ns = sm->now_ns;
    sm->counters.rooms_failed++;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_VERDICT, half);
    transition->a = SM_OUTCOME_FAILED;
    transition->b = cause->http;
    transition->text = sm_reason_text(sm, half->cause.reason);
    sm_half_phase(sm, out, half,
                  half->owner_engine ? SM_PHASE_FAILED : SM_PHASE_PRE_QUEUE_TERMINAL);
    if (!cause->typed && sm->policy.cause_grace_ns > 0) {
        half->grace_until_ns = sm->now_ns + sm->policy.cause_grace_ns;
        sm_emit(sm, out, SM_TR_GRACE_STARTED, half)->a = half->grace_until_ns;
    }
}

/* One without a status, or with one that says no failure, gets what its origin stands for. */
static struct sm_cause with_status(const struct sm_cause *given)
{
    struct sm_cause cause = *given;
    if (cause.http < 400u || cause.http > 599u) {
        cause.http = default_http(given);
    }
    return cause;
}

void sm_half_fail(struct sm *sm, struct sm_output *out, struct sm_half *half,
                  const struct sm_cause *given, uint32_t rank)
{
    const struct sm_cause cause = with_status(given);
    if (!sm_half_terminal(half)) {
        set_verdict(sm, out, half, &cause);
    } else if (half->outcome == SM_OUTCOME_FAILED && !half->cause.typed && cause.typed &&
               !sm_grace_over(sm, half) && nobody_told(sm, half)) {
        sm_cause_drop(sm, &half->cause);
        sm_cause_keep(sm, &half->cause, &cause);
        half->grace_until_ns = 0;
        struct sm_transition *transition = sm_emit(sm, out, SM_TR_CAUSE_REPLACED, half);
        transition->b = cause.http;
        transition->text = sm_reason_text(sm, half->cause.reason);
    }
    if (!sm_protected(sm, SM_PROTECT_GATHER)) {
        keep_own_cause(sm, half, &cause, rank);
    }
}

void sm_half_fail_text(struct sm *sm, struct sm_output *out, struct sm_half *half, uint16_t http,
                       uint32_t origin, struct sm_text text)
{
    struct sm_cause cause;
    sm_zero(&cause, sizeof cause);
    cause.http = http;
    cause.origin = (uint8_t)origin;
    cause.typed = true;
    cause.reason = text;
    sm_half_fail(sm, out, half, &cause, SM_NONE);
}

void sm_half_succeed(struct sm *sm, struct sm_output *out, struct sm_half *half)
{
    SM_ASSERT(!sm_half_terminal(half));
    half->outcome = SM_OUTCOME_SUCCEEDED;
    half->verdict_ns = sm->now_ns;
    sm->counters.rooms_succeeded++;
    sm_emit(sm, out, SM_TR_VERDICT, half)->a = SM_OUTCOME_SUCCEEDED;
    sm_half_phase(sm, out, half, SM_PHASE_SUCCEEDED);
}

/* ---- the end ------------------------------------------------------------------------------------
 */

static void stamp_tombstone(struct sm *sm, struct sm_tombstone *tombstone,
                            const struct sm_half *half, const struct sm_life *life)
{
    tombstone->generation = half->generation;
    tombstone->expires_ns = sm->now_ns + sm->policy.tombstone_ttl_ns;
    tombstone->opened = half->opened;
    tombstone->life = *life;
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        const struct sm_life *its = &half->lives[destination->life].life;
        if (its->node == life->node && its->epoch == life->epoch &&
            its->generation == life->generation) {
            tombstone->destinations |= UINT64_C(1) << destination->decode_rank;
        }
    }
    tombstone->outcome = half->outcome;
    tombstone->owner_engine = half->owner_engine;
    sm_cause_copy(sm, &tombstone->cause, &half->cause);
    if (half->side == SM_PREFILL && half->outcome == SM_OUTCOME_FAILED) {
        /* Late destinations belong to it as long as not all that were required have come. */
        uint32_t required = 0;
        for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
            required += half->required[rank];
        }
        tombstone->expecting = required == 0 || half->destination_count < required;
    }
}

static void leave_tombstones(struct sm *sm, const struct sm_half *half)
{
    if (half->side == SM_DECODE) {
        const struct sm_life life = {sm->node_id, half->epoch, half->generation};
        stamp_tombstone(sm, sm_tombstone_add(sm, half->room, half->side), half, &life);
        return;
    }
    const struct sm_life none = {0, 0, 0};
    /* One for each life that the half was bound to, so that each late message finds its verdict. */
    for (uint32_t i = 0; i < half->life_count; i++) {
        stamp_tombstone(sm, sm_tombstone_add(sm, half->room, half->side), half,
                        &half->lives[i].life);
    }
    if (half->life_count == 0) {
        stamp_tombstone(sm, sm_tombstone_add(sm, half->room, half->side), half, &none);
    }
}

static void give_records(struct sm *sm, struct sm_half *half)
{
    while (half->ranks != SM_NONE) {
        const uint32_t at = half->ranks;
        struct sm_rank *rank = sm_rank_at(sm, at);
        SM_ASSERT(rank->in_flight == 0);
        half->ranks = rank->next;
        if (rank->peer != SM_NONE) {
            sm_peer_at(sm, rank->peer)->rooms--;
        }
        sm_list_clear(sm, &rank->pages);
        sm_cause_drop(sm, &rank->own_cause);
        sm_pool_give(sm, &sm->ranks, sizeof *rank, at);
    }
    while (half->destinations != SM_NONE) {
        const uint32_t at = half->destinations;
        struct sm_destination *destination = sm_destination_at(sm, at);
        SM_ASSERT(destination->in_flight == 0);
        half->destinations = destination->next;
        sm_list_clear(sm, &destination->pages);
        sm_pool_give(sm, &sm->destinations, sizeof *destination, at);
    }
    for (uint32_t i = 0; i < half->life_count; i++) {
        sm_peer_at(sm, half->lives[i].peer)->rooms--;
    }
}

void sm_half_clear(struct sm *sm, struct sm_output *out, struct sm_half *half)
{
    SM_ASSERT(sm_half_terminal(half) && half->in_flight == 0);
    sm_half_phase(sm, out, half, SM_PHASE_CLEARED);
    (void)sm_emit(sm, out, SM_TR_CLEARED, half);
    if (sm_protected(sm, SM_PROTECT_TOMBSTONES)) {
        leave_tombstones(sm, half);
    } else if (half->generation > sm->generation_floor) {
        sm->generation_floor = half->generation;
    }
    const uint32_t index = sm_half_index(sm, half);
    out->digest = sm_mix(out->digest, sm_half_digest_at(sm, half));
    sm_timer_set(sm, index, SM_NEVER);
    give_records(sm, half);
    sm_cause_drop(sm, &half->cause);
    sm_half_give(sm, index);
}

void sm_remember(struct sm *sm, struct sm_output *out, uint64_t room, uint32_t side,
                 const struct sm_life *life, const struct sm_cause *given)
{
    const struct sm_cause cause = with_status(given);
    const uint64_t generation = sm_next_generation(sm, room, side);
    if (sm_protected(sm, SM_PROTECT_TOMBSTONES)) {
        struct sm_tombstone *tombstone = sm_tombstone_add(sm, room, side);
        tombstone->generation = generation;
        tombstone->expires_ns = sm->now_ns + sm->policy.tombstone_ttl_ns;
        tombstone->life = *life;
        tombstone->outcome = SM_OUTCOME_FAILED;
        tombstone->expecting = 1;
        sm_cause_keep(sm, &tombstone->cause, &cause);
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_VERDICT, NULL);
    transition->room = room;
    transition->side = side;
    transition->generation = generation;
    transition->a = SM_OUTCOME_FAILED;
    transition->b = cause.http;
    transition->text = sm_output_text(out, sm_text_cut(cause.reason, SM_REASON_BYTES_MAX));
}
