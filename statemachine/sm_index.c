/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding things: halves and tombstones by room, halves by the time at which they want to be woken.
 * No answer depends on the order inside a bucket.
 */
#include "sm_state.h"

/* ---- halves -----------------------------------------------------------------------------------
 */

static uint32_t *half_head(const struct sm *sm, uint64_t room, uint32_t side)
{
    uint32_t *heads = sm_at(sm, sm->half_heads_at);
    return &heads[sm_mix(room, side) & (sm->half_buckets - 1u)];
}

/* Heads hold index + 1, so that fresh zeroed memory is an empty table. */
uint32_t sm_half_chain(const struct sm *sm, uint64_t room, uint32_t side, uint32_t after)
{
    uint32_t at = after == SM_NONE ? *half_head(sm, room, side) : sm_half_at(sm, after)->hash_next;
    while (at != 0) {
        const struct sm_half *half = sm_half_at(sm, at - 1u);
        if (half->room == room && half->side == side) {
            return at - 1u;
        }
        at = half->hash_next;
    }
    return SM_NONE;
}

uint32_t sm_half_newest(const struct sm *sm, uint64_t room, uint32_t side)
{
    uint32_t best = SM_NONE;
    for (uint32_t at = sm_half_chain(sm, room, side, SM_NONE); at != SM_NONE;
         at = sm_half_chain(sm, room, side, at)) {
        if (best == SM_NONE || sm_half_at(sm, at)->generation > sm_half_at(sm, best)->generation) {
            best = at;
        }
    }
    return best;
}

uint32_t sm_half_exact(const struct sm *sm, uint64_t room, uint32_t side, uint64_t generation)
{
    for (uint32_t at = sm_half_chain(sm, room, side, SM_NONE); at != SM_NONE;
         at = sm_half_chain(sm, room, side, at)) {
        if (sm_half_at(sm, at)->generation == generation) {
            return at;
        }
    }
    return SM_NONE;
}

void sm_half_place(struct sm *sm, uint32_t index)
{
    struct sm_half *half = sm_half_at(sm, index);
    uint32_t *head = half_head(sm, half->room, half->side);
    half->hash_next = *head;
    *head = index + 1u;
    sm_bits_add(sm, &sm->halves_used, index);
}

uint32_t sm_half_take(struct sm *sm, uint64_t room, uint32_t side, uint64_t generation)
{
    const uint32_t index = sm_bits_lowest_free(sm, &sm->halves_used);
    if (index == SM_NONE) {
        return SM_NONE;
    }
    struct sm_half *half = sm_half_at(sm, index);
    sm_zero(half, sizeof *half);
    half->room = room;
    half->side = (uint8_t)side;
    half->generation = generation;
    half->ranks = SM_NONE;
    half->destinations = SM_NONE;
    half->heap_at = SM_NONE;
    half->wake_ns = SM_NEVER;
    half->cause.reason = SM_NONE;
    half->used = 1;
    sm_half_place(sm, index);
    return index;
}

void sm_half_give(struct sm *sm, uint32_t index)
{
    struct sm_half *half = sm_half_at(sm, index);
    SM_ASSERT(half->used != 0 && half->heap_at == SM_NONE);
    uint32_t *link = half_head(sm, half->room, half->side);
    while (*link != index + 1u) {
        SM_ASSERT(*link != 0);
        link = &sm_half_at(sm, *link - 1u)->hash_next;
    }
    *link = half->hash_next;
    half->used = 0;
    sm_bits_remove(sm, &sm->halves_used, index);
    sm_bits_remove(sm, &sm->work, index);
    sm_bits_remove(sm, &sm->blocked, index);
}

/* ---- tombstones: a ring by age, and a hash ------------------------------------------------------
 */

static uint32_t *tombstone_head(const struct sm *sm, uint64_t room, uint32_t side)
{
    uint32_t *heads = sm_at(sm, sm->tombstone_heads_at);
    return &heads[sm_mix(room, side + 16u) & (sm->tombstone_buckets - 1u)];
}

/* Position of a ring slot: the one position in [first, end) that falls on it. */
static uint64_t position_of_slot(const struct sm *sm, uint32_t slot)
{
    const uint64_t size = sm->bounds.tombstones_max;
    const uint64_t base = sm->tombstone_first - sm->tombstone_first % size + slot;
    return base >= sm->tombstone_first ? base : base + size;
}

static struct sm_tombstone *tombstone_slot(const struct sm *sm, uint32_t slot)
{
    return (struct sm_tombstone *)sm_at(sm, sm->tombstones_at) + slot;
}

uint64_t sm_tombstone_chain(const struct sm *sm, uint64_t room, uint32_t side, uint64_t after)
{
    uint32_t at =
        after == 0 ? *tombstone_head(sm, room, side) : sm_tombstone_at(sm, after - 1u)->hash_next;
    while (at != 0) {
        const struct sm_tombstone *tombstone = tombstone_slot(sm, at - 1u);
        if (tombstone->room == room && tombstone->side == side) {
            return position_of_slot(sm, at - 1u) + 1u;
        }
        at = tombstone->hash_next;
    }
    return 0;
}

uint64_t sm_tombstone_newest(const struct sm *sm, uint64_t room, uint32_t side)
{
    uint64_t best = 0;
    for (uint64_t at = sm_tombstone_chain(sm, room, side, 0); at != 0;
         at = sm_tombstone_chain(sm, room, side, at)) {
        /* Aliases of one half share its generation; the one noted last stands for it. */
        const uint64_t generation = sm_tombstone_at(sm, at - 1u)->generation;
        if (best == 0 || generation > sm_tombstone_at(sm, best - 1u)->generation ||
            (generation == sm_tombstone_at(sm, best - 1u)->generation && at > best)) {
            best = at;
        }
    }
    return best;
}

uint64_t sm_tombstone_of_life(const struct sm *sm, uint64_t room, const struct sm_life *life)
{
    uint64_t best = 0;
    for (uint64_t at = sm_tombstone_chain(sm, room, SM_PREFILL, 0); at != 0;
         at = sm_tombstone_chain(sm, room, SM_PREFILL, at)) {
        const struct sm_life *its = &sm_tombstone_at(sm, at - 1u)->life;
        if (its->node == life->node && its->epoch == life->epoch &&
            its->generation == life->generation && at > best) {
            best = at;
        }
    }
    return best;
}

void sm_tombstone_drop_oldest(struct sm *sm)
{
    SM_ASSERT(sm->tombstone_first < sm->tombstone_end);
    struct sm_tombstone *oldest = sm_tombstone_at(sm, sm->tombstone_first);
    const uint32_t slot = (uint32_t)(sm->tombstone_first % sm->bounds.tombstones_max);
    uint32_t *link = tombstone_head(sm, oldest->room, oldest->side);
    while (*link != slot + 1u) {
        SM_ASSERT(*link != 0);
        link = &tombstone_slot(sm, *link - 1u)->hash_next;
    }
    *link = oldest->hash_next;
    if (oldest->generation > sm->generation_floor) {
        sm->generation_floor = oldest->generation;
    }
    sm_cause_drop(sm, &oldest->cause);
    sm->tombstone_first++;
}

struct sm_tombstone *sm_tombstone_add(struct sm *sm, uint64_t room, uint32_t side)
{
    if (sm->tombstone_end - sm->tombstone_first >= sm->bounds.tombstones_max) {
        sm_tombstone_drop_oldest(sm);
        sm->counters.tombstones_dropped++;
    }
    const uint32_t slot = (uint32_t)(sm->tombstone_end % sm->bounds.tombstones_max);
    struct sm_tombstone *tombstone = tombstone_slot(sm, slot);
    sm_zero(tombstone, sizeof *tombstone);
    tombstone->room = room;
    tombstone->side = (uint8_t)side;
    tombstone->cause.reason = SM_NONE;
    uint32_t *head = tombstone_head(sm, room, side);
    tombstone->hash_next = *head;
    *head = slot + 1u;
    sm->tombstone_end++;
    return tombstone;
}

/* ---- timers: a binary heap of halves by (time, index) -------------------------------------------
 */

static uint32_t *heap_slot(const struct sm *sm, uint32_t at)
{
    return (uint32_t *)sm_at(sm, sm->heap_at) + at;
}

static bool heap_before(const struct sm *sm, uint32_t a, uint32_t b)
{
    const uint64_t wake_a = sm_half_at(sm, a)->wake_ns;
    const uint64_t wake_b = sm_half_at(sm, b)->wake_ns;
    return wake_a < wake_b || (wake_a == wake_b && a < b);
}

static void heap_put(struct sm *sm, uint32_t at, uint32_t half)
{
    *heap_slot(sm, at) = half;
    sm_half_at(sm, half)->heap_at = at;
}

static void heap_up(struct sm *sm, uint32_t at)
{
    const uint32_t half = *heap_slot(sm, at);
    while (at > 0 && heap_before(sm, half, *heap_slot(sm, (at - 1u) / 2u))) {
        heap_put(sm, at, *heap_slot(sm, (at - 1u) / 2u));
        at = (at - 1u) / 2u;
    }
    heap_put(sm, at, half);
}

static void heap_down(struct sm *sm, uint32_t at)
{
    const uint32_t half = *heap_slot(sm, at);
    for (;;) {
        uint32_t child = at * 2u + 1u;
        if (child >= sm->heap_count) {
            break;
        }
        if (child + 1u < sm->heap_count &&
            heap_before(sm, *heap_slot(sm, child + 1u), *heap_slot(sm, child))) {
            child++;
        }
        if (!heap_before(sm, *heap_slot(sm, child), half)) {
            break;
        }
        heap_put(sm, at, *heap_slot(sm, child));
        at = child;
    }
    heap_put(sm, at, half);
}

static void heap_remove(struct sm *sm, uint32_t at)
{
    SM_ASSERT(at < sm->heap_count);
    sm_half_at(sm, *heap_slot(sm, at))->heap_at = SM_NONE;
    sm->heap_count--;
    if (at < sm->heap_count) {
        heap_put(sm, at, *heap_slot(sm, sm->heap_count));
        heap_up(sm, at);
        heap_down(sm, sm_half_at(sm, *heap_slot(sm, at))->heap_at);
    }
}

void sm_timer_set(struct sm *sm, uint32_t half, uint64_t wake_ns)
{
    struct sm_half *record = sm_half_at(sm, half);
    if (record->heap_at != SM_NONE) {
        heap_remove(sm, record->heap_at);
    }
    record->wake_ns = wake_ns;
    if (wake_ns != SM_NEVER) {
        const uint32_t at = sm->heap_count;
        sm->heap_count++;
        heap_put(sm, at, half);
        heap_up(sm, at);
    }
}

uint32_t sm_timer_due(const struct sm *sm)
{
    if (sm->heap_count == 0) {
        return SM_NONE;
    }
    const uint32_t first = *heap_slot(sm, 0);
    return sm_half_at(sm, first)->wake_ns <= sm->now_ns ? first : SM_NONE;
}
