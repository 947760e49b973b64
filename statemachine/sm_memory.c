/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything stands in the machine's one block, and the three ways in which records are
 * handed out: pools (order does not matter), bit sets (lowest free index, so that a restored
 * machine goes on exactly like the one that was packed), and rings.
 */
#include "sm_state.h"

struct plan {
    size_t bytes;
    bool fits;
};

/* Reserves an array and returns its offset in units of 16 bytes. */
static uint32_t plan_take(struct plan *plan, uint64_t count, uint64_t record_bytes)
{
    const uint64_t offset = plan->bytes / 16u;
    plan->bytes += (count * record_bytes + 15u) / 16u * 16u;
    if (offset > UINT32_MAX) {
        plan->fits = false;
    }
    return (uint32_t)offset;
}

static uint32_t buckets_for(uint32_t records)
{
    uint32_t buckets = 8u;
    while (buckets < records && buckets < (1u << 30)) {
        buckets *= 2u;
    }
    return buckets;
}

static void plan_bits(struct plan *plan, struct sm_bits *bits, uint32_t size)
{
    bits->size = size;
    bits->words = (size + 63u) / 64u;
    bits->count = 0;
    bits->offset = plan_take(plan, bits->words, 8) * 2u;
}

static void plan_pool(struct plan *plan, struct sm_pool *pool, uint32_t size, size_t record_bytes)
{
    pool->size = size;
    pool->used = 0;
    pool->live = 0;
    pool->free = SM_NONE;
    pool->offset = plan_take(plan, size, record_bytes);
}

static bool bound_ok(uint32_t value, uint32_t most)
{
    return value >= 1u && value <= most;
}

static bool bounds_ok(const struct sm_bounds *b)
{
    /* The limits keep every offset (16-byte units) and every index below 2^31. */
    return bound_ok(b->halves_max, 1u << 24) && bound_ok(b->ranks_max, 1u << 28) &&
           bound_ok(b->destinations_max, 1u << 28) && bound_ok(b->runs_max, 1u << 30) &&
           bound_ok(b->writes_max, 1u << 24) && bound_ok(b->tombstones_max, 1u << 28) &&
           bound_ok(b->reasons_max, 1u << 24) && bound_ok(b->peers_max, 4096u) &&
           bound_ok(b->pages_max, 1u << 30) && bound_ok(b->aux_slots_max, 1u << 28);
}

static void lay_out(struct sm *sm, struct plan *plan, const struct sm_bounds *b)
{
    plan->bytes = (sizeof(struct sm) + 15u) / 16u * 16u;
    plan->fits = true;
    sm->half_buckets = buckets_for(b->halves_max);
    sm->tombstone_buckets = buckets_for(b->tombstones_max);
    sm->reason_buckets = buckets_for(b->reasons_max);
    sm->halves_at = plan_take(plan, b->halves_max, sizeof(struct sm_half));
    sm->heap_at = plan_take(plan, b->halves_max, sizeof(uint32_t));
    sm->half_heads_at = plan_take(plan, sm->half_buckets, sizeof(uint32_t));
    sm->writes_at = plan_take(plan, b->writes_max, sizeof(struct sm_write));
    sm->tombstones_at = plan_take(plan, b->tombstones_max, sizeof(struct sm_tombstone));
    sm->tombstone_heads_at = plan_take(plan, sm->tombstone_buckets, sizeof(uint32_t));
    sm->reason_heads_at = plan_take(plan, sm->reason_buckets, sizeof(uint32_t));
    sm->peers_at = plan_take(plan, b->peers_max, sizeof(struct sm_peer));
    sm->pages_at = plan_take(plan, b->pages_max, sizeof(uint32_t));
    sm->aux_at = plan_take(plan, b->aux_slots_max, sizeof(uint32_t));
    plan_bits(plan, &sm->halves_used, b->halves_max);
    plan_bits(plan, &sm->work, b->halves_max);
    plan_bits(plan, &sm->blocked, b->halves_max);
    plan_bits(plan, &sm->writes_used, b->writes_max);
    plan_pool(plan, &sm->ranks, b->ranks_max, sizeof(struct sm_rank));
    plan_pool(plan, &sm->destinations, b->destinations_max, sizeof(struct sm_destination));
    plan_pool(plan, &sm->blocks, (b->runs_max + SM_BLOCK_RUNS - 1u) / SM_BLOCK_RUNS,
              sizeof(struct sm_block));
    plan_pool(plan, &sm->reasons, b->reasons_max, sizeof(struct sm_reason));
}

size_t sm_memory_bytes(const struct sm_bounds *bounds)
{
    if (!bounds_ok(bounds)) {
        return 0;
    }
    struct sm sm;
    struct plan plan;
    sm_zero(&sm, sizeof sm);
    lay_out(&sm, &plan, bounds);
    return plan.fits ? plan.bytes : 0;
}

struct sm *sm_init(void *memory, const struct sm_bounds *bounds)
{
    SM_ASSERT(memory != NULL && (uintptr_t)memory % 16u == 0);
    SM_ASSERT(bounds_ok(bounds));
    struct sm *sm = memory;
    struct plan plan;
    sm_zero(sm, sizeof *sm);
    sm->bounds = *bounds;
    sm->restoring_half = SM_NONE;
    lay_out(sm, &plan, bounds);
    SM_ASSERT(plan.fits);
    return sm;
}

struct sm *sm_renew(void *memory, const struct sm_bounds *bounds)
{
    struct sm *sm = sm_init(memory, bounds);
    const struct sm_bits *bits[] = {&sm->halves_used, &sm->work, &sm->blocked, &sm->writes_used};
    /* Everything else is written before it is read. */
    sm_zero(sm_at(sm, sm->half_heads_at), (size_t)sm->half_buckets * sizeof(uint32_t));
    sm_zero(sm_at(sm, sm->tombstone_heads_at), (size_t)sm->tombstone_buckets * sizeof(uint32_t));
    sm_zero(sm_at(sm, sm->reason_heads_at), (size_t)sm->reason_buckets * sizeof(uint32_t));
    sm_zero(sm_at(sm, sm->pages_at), (size_t)bounds->pages_max * sizeof(uint32_t));
    sm_zero(sm_at(sm, sm->aux_at), (size_t)bounds->aux_slots_max * sizeof(uint32_t));
    for (uint32_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        sm_zero((uint64_t *)sm_at(sm, 0) + bits[i]->offset,
                (size_t)bits[i]->words * sizeof(uint64_t));
    }
    return sm;
}

void *sm_at(const struct sm *sm, uint32_t offset16)
{
    /* The block is writable; const here only says that this function does not write. */
    const uintptr_t base = (uintptr_t)sm;
    return (void *)(base + (uintptr_t)offset16 * 16u);
}

struct sm_half *sm_half_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->bounds.halves_max);
    return (struct sm_half *)sm_at(sm, sm->halves_at) + index;
}

uint32_t sm_half_index(const struct sm *sm, const struct sm_half *half)
{
    const struct sm_half *first = sm_at(sm, sm->halves_at);
    SM_ASSERT(half >= first && half < first + sm->bounds.halves_max);
    return (uint32_t)(half - first);
}

struct sm_rank *sm_rank_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->ranks.size);
    return (struct sm_rank *)sm_at(sm, sm->ranks.offset) + index;
}

struct sm_destination *sm_destination_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->destinations.size);
    return (struct sm_destination *)sm_at(sm, sm->destinations.offset) + index;
}

struct sm_block *sm_block_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->blocks.size);
    return (struct sm_block *)sm_at(sm, sm->blocks.offset) + index;
}

struct sm_reason *sm_reason_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->reasons.size);
    return (struct sm_reason *)sm_at(sm, sm->reasons.offset) + index;
}

struct sm_write *sm_write_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->bounds.writes_max);
    return (struct sm_write *)sm_at(sm, sm->writes_at) + index;
}

struct sm_peer *sm_peer_at(const struct sm *sm, uint32_t index)
{
    SM_ASSERT(index < sm->peer_count);
    return (struct sm_peer *)sm_at(sm, sm->peers_at) + index;
}

struct sm_tombstone *sm_tombstone_at(const struct sm *sm, uint64_t position)
{
    SM_ASSERT(position < sm->tombstone_end && position >= sm->tombstone_first);
    return (struct sm_tombstone *)sm_at(sm, sm->tombstones_at) +
           position % sm->bounds.tombstones_max;
}

/* ---- pools ------------------------------------------------------------------------------------
 */

uint32_t sm_pool_take(struct sm *sm, struct sm_pool *pool, size_t record_bytes)
{
    uint32_t index = pool->free;
    char *base = sm_at(sm, pool->offset);
    if (index != SM_NONE) {
        sm_copy(&pool->free, base + (size_t)index * record_bytes, sizeof pool->free);
    } else if (pool->used < pool->size) {
        index = pool->used;
        pool->used++;
    } else {
        return SM_NONE;
    }
    sm_zero(base + (size_t)index * record_bytes, record_bytes);
    pool->live++;
    return index;
}

void sm_pool_give(struct sm *sm, struct sm_pool *pool, size_t record_bytes, uint32_t index)
{
    SM_ASSERT(index < pool->used && pool->live > 0);
    char *base = sm_at(sm, pool->offset);
    sm_copy(base + (size_t)index * record_bytes, &pool->free, sizeof pool->free);
    pool->free = index;
    pool->live--;
}

/* ---- bit sets ---------------------------------------------------------------------------------
 */

static uint64_t *bits_words(const struct sm *sm, const struct sm_bits *bits)
{
    return (uint64_t *)sm_at(sm, 0) + bits->offset;
}

void sm_bits_add(struct sm *sm, struct sm_bits *bits, uint32_t member)
{
    SM_ASSERT(member < bits->size);
    uint64_t *word = bits_words(sm, bits) + member / 64u;
    const uint64_t bit = UINT64_C(1) << (member % 64u);
    if ((*word & bit) == 0) {
        *word |= bit;
        bits->count++;
    }
}

void sm_bits_remove(struct sm *sm, struct sm_bits *bits, uint32_t member)
{
    SM_ASSERT(member < bits->size);
    uint64_t *word = bits_words(sm, bits) + member / 64u;
    const uint64_t bit = UINT64_C(1) << (member % 64u);
    if ((*word & bit) != 0) {
        *word &= ~bit;
        bits->count--;
    }
}

bool sm_bits_has(const struct sm *sm, const struct sm_bits *bits, uint32_t member)
{
    SM_ASSERT(member < bits->size);
    return (bits_words(sm, bits)[member / 64u] >> (member % 64u) & 1u) != 0;
}

static uint32_t lowest_bit(uint64_t word)
{
    return (uint32_t)__builtin_ctzll(word);
}

uint32_t sm_bits_next(const struct sm *sm, const struct sm_bits *bits, uint32_t from)
{
    if (from >= bits->size || bits->count == 0) {
        return SM_NONE;
    }
    const uint64_t *words = bits_words(sm, bits);
    uint32_t at = from / 64u;
    uint64_t word = words[at] & (UINT64_MAX << (from % 64u));
    while (word == 0) {
        at++;
        if (at >= bits->words) {
            return SM_NONE;
        }
        word = words[at];
    }
    return at * 64u + lowest_bit(word);
}

uint32_t sm_bits_lowest_free(const struct sm *sm, const struct sm_bits *bits)
{
    if (bits->count >= bits->size) {
        return SM_NONE;
    }
    const uint64_t *words = bits_words(sm, bits);
    for (uint32_t at = 0; at < bits->words; at++) {
        if (words[at] != UINT64_MAX) {
            const uint32_t member = at * 64u + lowest_bit(~words[at]);
            return member < bits->size ? member : SM_NONE;
        }
    }
    return SM_NONE;
}

void sm_bits_clear(struct sm *sm, struct sm_bits *bits)
{
    if (bits->count > 0) {
        sm_zero(bits_words(sm, bits), (size_t)bits->words * sizeof(uint64_t));
    }
    bits->count = 0;
}

static uint32_t bit_count(uint64_t word)
{
    uint32_t count = 0;
    for (; word != 0; word &= word - 1u) {
        count++;
    }
    return count;
}

void sm_bits_add_all(struct sm *sm, struct sm_bits *bits, const struct sm_bits *others)
{
    SM_ASSERT(bits->size == others->size);
    uint64_t *to = bits_words(sm, bits);
    const uint64_t *from = bits_words(sm, others);
    for (uint32_t at = 0; at < bits->words; at++) {
        const uint64_t added = from[at] & ~to[at];
        to[at] |= added;
        bits->count += bit_count(added);
    }
}
