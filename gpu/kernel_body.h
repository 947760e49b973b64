/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of a kernel does, shared word for word by nvcc and by the host compiler.
 *
 * Layer: pure arithmetic and memory accesses. On a host it is run thread by thread by the fake
 * driver of the tests, which says where an address lies (KERNEL_POINTER) and traps accesses that a
 * device would not survive (KERNEL_CHECK).
 *
 * Mapping: a token's row (heads x cell) is cut into 16-byte units. A thread keeps one unit of the
 * row for its life, so what depends on the head and the place in the cell is computed once; it
 * walks groups of KERNEL_GROUP consecutive tokens and issues all loads of a group before its first
 * store. `plain`: no group crosses a page on either side, so one page lookup serves the group.
 */
#ifndef GPU_KERNEL_BODY_H
#define GPU_KERNEL_BODY_H

#include "device_sum.h"

#define KERNEL_THREADS 256u
#define KERNEL_GROUP 4u
#define KERNEL_ROW_PARTS_MAX 65535u /* grid.y */

enum kernel_work { KERNEL_COPY = 1, KERNEL_SUM = 2, KERNEL_POISON = 4, KERNEL_CANARY = 8 };
#define KERNEL_READS (KERNEL_COPY | KERNEL_SUM | KERNEL_CANARY)
#define KERNEL_WRITES (KERNEL_COPY | KERNEL_POISON)
#define KERNEL_COUNTS (KERNEL_SUM | KERNEL_CANARY)

/* Exact n / value for 32-bit numbers without a division. */
struct kernel_divisor {
    uint64_t magic;
    uint32_t value;
    uint32_t shift; /* of a power of two, else 32 */
};

struct kernel_view {
    uint64_t bases; /* address of uint64_t[regions] */
    uint64_t slots; /* address of uint32_t[pages]; 0: dense */
    uint64_t slot_stride;
    uint64_t token_stride;
    uint64_t head_stride;
    struct kernel_divisor page_tokens;
    uint32_t token_first;
    uint32_t token_step;
    uint32_t head_first;
    uint32_t unused;
};

/* By value: the argument of a kernel. */
struct kernel_job {
    struct kernel_view from;
    struct kernel_view to;
    uint64_t k0;
    uint64_t k1;
    uint64_t sum; /* address of a uint64_t that is added to */
    uint32_t regions;
    uint32_t tokens;
    uint32_t heads;
    uint32_t cell_bytes;
    uint32_t region_at;
    uint32_t token_at;
    uint32_t token_at_step;
    uint32_t head_at;
    struct kernel_divisor cell_units; /* 16-byte units of a cell */
    struct kernel_divisor row_lanes;  /* lanes of a block that a row, or a part of it, takes */
    struct kernel_divisor region_tiles;
    uint32_t row_units;
    uint32_t rows; /* of a block at once */
    uint32_t tile_tokens;
    uint32_t tiles; /* of all regions */
    uint32_t parts; /* of a row that is wider than a block */
    uint32_t unused;
};

struct kernel_unit {
    uint64_t low;
    uint64_t high;
};

#if defined(__CUDA_ARCH__)
#define KERNEL_UNROLL _Pragma("unroll")
#define KERNEL_LOAD(type, address) __ldg((const type *)(uintptr_t)(address))
#define KERNEL_STORE(type, address, value) (*(type *)(uintptr_t)(address) = (type)(value))
#else
#define KERNEL_UNROLL
#ifndef KERNEL_CHECK
#define KERNEL_CHECK(address, bytes) ((void)0)
#endif
#ifndef KERNEL_POINTER
#define KERNEL_POINTER(type, address) ((type *)(uintptr_t)(address))
#endif
#define KERNEL_LOAD(type, address) \
    (*(KERNEL_CHECK(address, sizeof(type)), KERNEL_POINTER(const type, address)))
#define KERNEL_STORE(type, address, value) \
    (KERNEL_CHECK(address, sizeof(type)), *KERNEL_POINTER(type, address) = (type)(value))
#endif

DEVICE_INLINE uint32_t kernel_quotient(uint32_t n, const struct kernel_divisor *d)
{
    return d->shift < 32u ? n >> d->shift : (uint32_t)sum_product_high(d->magic, n);
}

/* `bytes` of a unit that are there, the rest is 0; width: what the addresses are a multiple of. */
DEVICE_INLINE struct kernel_unit kernel_load(uint64_t a, uint32_t bytes, uint32_t width)
{
    struct kernel_unit unit;
    unit.low = unit.high = 0;
    if (width == 16u) {
#if defined(__CUDA_ARCH__)
        asm volatile("ld.global.cs.v2.u64 {%0,%1}, [%2];"
                     : "=l"(unit.low), "=l"(unit.high)
                     : "l"(a));
#else
        KERNEL_CHECK(a, 16u);
        unit.low = KERNEL_LOAD(uint64_t, a);
        unit.high = KERNEL_LOAD(uint64_t, a + 8u);
#endif
        return unit;
    }
    for (uint32_t i = 0; i < bytes; i += width) {
        const uint64_t part = width == 4u ? (uint64_t)KERNEL_LOAD(uint32_t, a + i)
                                          : (uint64_t)KERNEL_LOAD(uint8_t, a + i);
        if (i < 8u) {
            unit.low |= part << (8u * i);
        } else {
            unit.high |= part << (8u * (i - 8u));
        }
    }
    return unit;
}

DEVICE_INLINE void kernel_store(uint64_t a, struct kernel_unit unit, uint32_t bytes, uint32_t width)
{
    if (width == 16u) {
#if defined(__CUDA_ARCH__)
        asm volatile("st.global.v2.u64 [%0], {%1,%2};" ::"l"(a), "l"(unit.low), "l"(unit.high)
                     : "memory");
#else
        KERNEL_CHECK(a, 16u);
        KERNEL_STORE(uint64_t, a, unit.low);
        KERNEL_STORE(uint64_t, a + 8u, unit.high);
#endif
        return;
    }
    for (uint32_t i = 0; i < bytes; i += width) {
        const uint64_t part = i < 8u ? unit.low >> (8u * i) : unit.high >> (8u * (i - 8u));
        if (width == 4u) {
            KERNEL_STORE(uint32_t, a + i, part);
        } else {
            KERNEL_STORE(uint8_t, a + i, part);
        }
    }
}

/* Where token `token` of the slice begins; `base` has the head and the place in the cell in it. */
DEVICE_INLINE uint64_t kernel_at(const struct kernel_view *view, uint64_t base, uint32_t token)
{
    const uint32_t t = view->token_first + token * view->token_step;
    const uint32_t page = kernel_quotient(t, &view->page_tokens);
    const uint64_t slot =
        view->slots == 0 ? page : KERNEL_LOAD(uint32_t, view->slots + (uint64_t)page * 4u);
    return base + slot * view->slot_stride +
           (uint64_t)(t - page * view->page_tokens.value) * view->token_stride;
}

/* What a thread keeps for its life. */
struct kernel_lane {
    uint32_t bytes;   /* of its unit that are there */
    uint32_t key_low; /* position of its first word in the cell */
    uint32_t key_high;
    uint32_t head;
    uint64_t from; /* offset of its unit from the row's base */
    uint64_t to;
    uint64_t full_low; /* a unit that is all poison */
    uint64_t full_high;
};

DEVICE_INLINE struct kernel_lane kernel_lane_of(const struct kernel_job *job, uint32_t unit)
{
    struct kernel_lane lane;
    lane.head = kernel_quotient(unit, &job->cell_units);
    const uint32_t at = unit - lane.head * job->cell_units.value;
    const uint32_t left = job->cell_bytes - at * 16u;
    lane.bytes = left < 16u ? left : 16u;
    lane.key_low = 2u * at * SUM_LOW;
    lane.key_high = 2u * at * SUM_HIGH;
    lane.from = (uint64_t)(job->from.head_first + lane.head) * job->from.head_stride + at * 16u;
    lane.to = (uint64_t)(job->to.head_first + lane.head) * job->to.head_stride + at * 16u;
    lane.full_low = lane.bytes < 8u ? (1ull << (8u * lane.bytes)) - 1u : ~0ull;
    lane.full_high = lane.bytes >= 16u ? ~0ull
                     : lane.bytes > 8u ? (1ull << (8u * (lane.bytes - 8u))) - 1u
                                       : 0;
    return lane;
}

/* One unit's share of the sum or of the count. */
DEVICE_INLINE uint64_t kernel_count(const struct kernel_lane *lane, const struct kernel_unit *unit,
                                    uint64_t cell_key, uint32_t work, uint32_t width)
{
    uint64_t sum = 0;
    if (work & KERNEL_SUM) {
        const uint32_t low = (uint32_t)cell_key + lane->key_low;
        const uint32_t high = (uint32_t)(cell_key >> 32) + lane->key_high;
        sum += (uint64_t)((uint32_t)unit->low + low) * ((uint32_t)(unit->low >> 32) + high) +
               unit->low;
        if (width == 16u || lane->bytes > 8u) {
            sum += (uint64_t)((uint32_t)unit->high + low + SUM_LOW) *
                       ((uint32_t)(unit->high >> 32) + high + SUM_HIGH) +
                   unit->high;
        }
    }
    if (work & KERNEL_CANARY) {
        sum += (unit->low != lane->full_low || unit->high != lane->full_high) ? 1u : 0u;
    }
    return sum;
}

/* Up to KERNEL_GROUP tokens from `first` on, of one region. */
DEVICE_INLINE uint64_t kernel_group(const struct kernel_job *job, const struct kernel_lane *lane,
                                    uint32_t region, uint32_t first, uint32_t work, uint32_t width,
                                    uint32_t plain)
{
    const uint32_t left = job->tokens - first;
    const uint32_t count = left < KERNEL_GROUP ? left : KERNEL_GROUP;
    struct kernel_unit unit[KERNEL_GROUP];
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t sum = 0;
    if (work & KERNEL_READS) {
        from = KERNEL_LOAD(uint64_t, job->from.bases + (uint64_t)region * 8u) + lane->from;
        from = plain ? kernel_at(&job->from, from, first) : from;
    }
    if (work & KERNEL_WRITES) {
        to = KERNEL_LOAD(uint64_t, job->to.bases + (uint64_t)region * 8u) + lane->to;
        to = plain ? kernel_at(&job->to, to, first) : to;
    }
    KERNEL_UNROLL
    for (uint32_t u = 0; u < KERNEL_GROUP; u++) {
        unit[u].low = unit[u].high = ~0ull;
        if ((work & KERNEL_READS) && u < count) {
            unit[u] = kernel_load(plain ? from + u * job->from.token_stride
                                        : kernel_at(&job->from, from, first + u),
                                  lane->bytes, width);
        }
    }
    const uint64_t step = (uint64_t)job->token_at_step * SUM_TOKEN;
    const uint64_t lin =
        sum_lin(job->k0, job->region_at + region, job->token_at, job->head_at + lane->head) +
        first * step;
    KERNEL_UNROLL
    for (uint32_t u = 0; u < KERNEL_GROUP; u++) {
        if (u >= count) {
            break;
        }
        if (work & KERNEL_WRITES) {
            kernel_store(plain ? to + u * job->to.token_stride : kernel_at(&job->to, to, first + u),
                         unit[u], lane->bytes, width);
        }
        if (work & KERNEL_COUNTS) {
            const uint64_t key = (work & KERNEL_SUM) ? sum_fold(lin + u * step, job->k1) : 0;
            sum += kernel_count(lane, &unit[u], key, work, width);
        }
    }
    return sum;
}

/* A thread's whole share: of block `block` of `blocks`, of part `part` of each row. */
DEVICE_INLINE uint64_t kernel_thread(const struct kernel_job *job, uint32_t block, uint32_t blocks,
                                     uint32_t part, uint32_t thread, uint32_t work, uint32_t width,
                                     uint32_t plain)
{
    const uint32_t row = kernel_quotient(thread, &job->row_lanes);
    const uint32_t unit = thread - row * job->row_lanes.value + part * job->row_lanes.value;
    uint64_t sum = 0;
    if (row >= job->rows || unit >= job->row_units) {
        return 0;
    }
    const struct kernel_lane lane = kernel_lane_of(job, unit);
    for (uint32_t tile = block; tile < job->tiles; tile += blocks) {
        const uint32_t region = kernel_quotient(tile, &job->region_tiles);
        const uint32_t first =
            (tile - region * job->region_tiles.value) * job->tile_tokens + row * KERNEL_GROUP;
        if (first < job->tokens) {
            sum += kernel_group(job, &lane, region, first, work, width, plain);
        }
    }
    return sum;
}

#endif
