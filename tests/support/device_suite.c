/* SPDX-License-Identifier: Apache-2.0 */
/* The suite: what each backend must do, and what it must catch. */
#include "device_suite.h"

#include "statemachine/sm_geometry.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OF(list) (sizeof(list) / sizeof((list)[0]))

static const struct device_key key = {0x0123456789abcdefu, 0x00000000deadbeefu};

/* ---- random shapes
 * ------------------------------------------------------------------------------------- */

struct world {
    struct suite_side from;
    struct suite_side to;
    struct device_job job;
    unsigned char *want; /* of `to` */
};

static void world_open(struct suite *suite, const struct suite_shape *from,
                       const struct suite_shape *to, struct world *w)
{
    memset(w, 0, sizeof *w);
    suite_side_open(suite, from, &w->from);
    suite_side_open(suite, to, &w->to);
    w->want = malloc(w->to.size);
    cr_assert_not_null(w->want);
}

static void world_close(struct world *w)
{
    suite_side_close(&w->from);
    suite_side_close(&w->to);
    free(w->want);
}

/* After the views were changed: the job follows them. */
static void world_views(struct world *w)
{
    w->job.from = w->from.view;
    w->job.to = w->to.view;
    w->job.key = key;
}

/* What `to` must be: nothing but the slice changes. */
static void world_want(struct world *w)
{
    memcpy(w->want, w->to.bytes, w->to.size);
    for (uint32_t r = 0; r < w->job.slice.regions; r++) {
        for (uint32_t n = 0; n < w->job.slice.tokens; n++) {
            for (uint32_t h = 0; h < w->job.slice.heads; h++) {
                memcpy(w->want + suite_cell(&w->to, r, n, h),
                       w->from.bytes + suite_cell(&w->from, r, n, h), w->job.slice.cell_bytes);
            }
        }
    }
}

static void world_copy(struct suite *suite, struct world *w, uint64_t *out_sum)
{
    uint64_t event;
    w->job.out_sum = out_sum;
    cr_assert_eq(device_copy(suite->queue, &w->job, &event), STATUS_OK, "%s: %s", suite->backend,
                 device_queue_detail(suite->queue)->text);
    suite_wait(suite, event);
    suite_down(suite, &w->to);
}

static void random_world(struct suite *suite, struct world *w)
{
    static const uint32_t cells[] = {1, 2, 4, 8, 16, 20, 36, 64, 132, 256, 576, 656, 1152, 2048};
    static const uint32_t pages[] = {1, 3, 4, 5, 16, 32, 64};
    const bool wide = suite_below(suite, 8) == 0; /* more units in a row than a block has threads */
    const uint32_t heads = wide ? 33u : 1u + suite_below(suite, 6);
    const uint32_t cell =
        wide ? 128u + 16u * suite_below(suite, 2) : cells[suite_below(suite, OF(cells))];
    const uint32_t tokens = 1u + suite_below(suite, wide ? 20 : 90);
    const uint32_t regions = 1u + suite_below(suite, 4);
    const uint32_t slice_heads = 1u + suite_below(suite, heads);
    const uint32_t to_heads = slice_heads + suite_below(suite, 3);
    const uint32_t step = suite_below(suite, 4) == 0 ? 1u + suite_below(suite, 3) : 1u;
    const uint32_t from_first = suite_below(suite, 3) ? 0 : suite_below(suite, 9);
    const uint32_t to_first = suite_below(suite, 3) ? 0 : suite_below(suite, 9);
    const uint32_t shift = suite_below(suite, 3) ? 0 : suite_below(suite, 2) ? 4u : 1u;
    const struct suite_shape from = {(enum suite_layout)suite_below(suite, 5),
                                     regions,
                                     heads,
                                     cell,
                                     pages[suite_below(suite, OF(pages))],
                                     from_first + tokens * step + suite_below(suite, 4),
                                     suite_below(suite, 4) ? 0 : 1u + suite_below(suite, 3),
                                     shift};
    const struct suite_shape to = {(enum suite_layout)suite_below(suite, 5),
                                   regions,
                                   to_heads,
                                   cell,
                                   pages[suite_below(suite, OF(pages))],
                                   to_first + tokens + suite_below(suite, 4),
                                   suite_below(suite, 4) ? 0 : 1u + suite_below(suite, 3),
                                   suite_below(suite, 3) ? 0 : shift};
    world_open(suite, &from, &to, w);
    w->from.view.token_first = from_first;
    w->from.view.token_step = step;
    w->from.view.head_first = suite_below(suite, heads - slice_heads + 1u);
    w->to.view.token_first = to_first;
    w->to.view.head_first = suite_below(suite, to_heads - slice_heads + 1u);
    w->job.slice = (struct device_slice){regions, tokens, slice_heads, cell, 7, 1000, step, 3};
    w->job.blocks_max = suite_below(suite, 3) ? 0 : 1u + suite_below(suite, 5);
    world_views(w);
}

/* The sum of the whole is that of its parts, whichever way it is cut. */
static void check_parts(struct suite *suite, const struct world *w, uint64_t whole, uint32_t at)
{
    const struct device_slice *s = &w->job.slice;
    if (s->heads > 1) {
        struct device_job a = w->job;
        struct device_job b = w->job;
        a.slice.heads = 1;
        b.slice.heads--;
        b.slice.head_at++;
        b.from.head_first++;
        cr_assert_eq(suite_checksum(suite, &a) + suite_checksum(suite, &b), whole, "case %u", at);
    }
    if (s->tokens > 1) {
        struct device_job a = w->job;
        struct device_job b = w->job;
        a.slice.tokens = s->tokens / 2u;
        b.slice.tokens = s->tokens - a.slice.tokens;
        b.slice.token_at += a.slice.tokens * s->token_at_step;
        b.from.token_first += a.slice.tokens * b.from.token_step;
        cr_assert_eq(suite_checksum(suite, &a) + suite_checksum(suite, &b), whole, "case %u", at);
    }
}

static uint64_t canary(struct suite *suite, const struct device_job *job)
{
    struct device_job look = *job;
    uint64_t gone = 77;
    uint64_t event;
    look.from = job->to;
    look.out_sum = &gone;
    cr_assert_eq(device_canary(suite->queue, &look, &event), STATUS_OK);
    suite_wait(suite, event);
    return gone;
}

static void check_poison(struct suite *suite, struct world *w, uint32_t at)
{
    const struct device_slice *s = &w->job.slice;
    uint64_t event;
    for (uint32_t r = 0; r < s->regions; r++) {
        for (uint32_t n = 0; n < s->tokens; n++) {
            for (uint32_t h = 0; h < s->heads; h++) {
                memset(w->want + suite_cell(&w->to, r, n, h), 0xff, s->cell_bytes);
            }
        }
    }
    cr_assert_eq(device_poison(suite->queue, &w->job, &event), STATUS_OK);
    suite_wait(suite, event);
    cr_assert_eq(canary(suite, &w->job), 0, "%s case %u", suite->backend, at);
    suite_down(suite, &w->to);
    cr_assert_eq(memcmp(w->to.bytes, w->want, w->to.size), 0, "%s case %u: poison went elsewhere",
                 suite->backend, at);
    w->to.bytes[suite_cell(&w->to, s->regions - 1u, s->tokens - 1u, s->heads - 1u) + s->cell_bytes -
                1u] = 0xfe;
    suite_up(suite, &w->to);
    cr_assert_eq(canary(suite, &w->job), 1, "%s case %u: a stray byte", suite->backend, at);
}

void suite_random(struct suite *suite, uint32_t cases)
{
    for (uint32_t i = 0; i < cases; i++) {
        struct world w;
        uint64_t sum = 0;
        random_world(suite, &w);
        world_want(&w);
        const uint64_t want = suite_sum(&w.job, &w.from);
        const bool with_sum = suite_below(suite, 2) == 0;
        world_copy(suite, &w, with_sum ? &sum : NULL);
        cr_assert_eq(memcmp(w.to.bytes, w.want, w.to.size), 0, "%s case %u: bytes", suite->backend,
                     i);
        cr_assert(!with_sum || sum == want, "%s case %u: the sum on the way", suite->backend, i);
        cr_assert_eq(suite_checksum(suite, &w.job), want, "%s case %u: source", suite->backend, i);
        struct device_job there = w.job;
        there.from = w.to.view;
        cr_assert_eq(suite_checksum(suite, &there), want, "%s case %u: destination", suite->backend,
                     i);
        check_parts(suite, &w, want, i);
        check_poison(suite, &w, i);
        world_close(&w);
    }
}

/* More than is done in one call or by one thread, with and without a sum. */
void suite_large(struct suite *suite)
{
    static const enum suite_layout layouts[] = {SUITE_NHD, SUITE_HND, SUITE_NHD_PAGE_FIRST};
    for (uint32_t i = 0; i < 2u * OF(layouts); i++) {
        const struct suite_shape from = {layouts[i / 2u], 3, 4, 256, 16, 3001, 0, 0};
        const struct suite_shape to = {SUITE_DENSE, 3, 4, 256, 1, 3001, 0, 0};
        struct world w;
        uint64_t sum = 0;
        world_open(suite, &from, &to, &w);
        w.job.slice = (struct device_slice){3, 3001, 4, 256, 0, 0, 1, 0};
        world_views(&w);
        world_want(&w);
        world_copy(suite, &w, i % 2u == 0 ? NULL : &sum);
        cr_assert_eq(memcmp(w.to.bytes, w.want, w.to.size), 0, "%s large %u", suite->backend, i);
        cr_assert(i % 2u == 0 || sum == suite_sum(&w.job, &w.from), "%s large %u", suite->backend,
                  i);
        check_poison(suite, &w, i);
        world_close(&w);
    }
}

/* ---- what must be caught
 * -------------------------------------------------------------------------------- */

/* Nothing to do is done, in its order, and sums to 0. */
void suite_empty(struct suite *suite)
{
    const struct suite_shape shape = {SUITE_NHD, 2, 2, 64, 4, 16, 0, 0};
    struct world w;
    world_open(suite, &shape, &shape, &w);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t sum = 5;
        w.job.slice = (struct device_slice){
            i == 0 ? 0 : 2u, i == 1 ? 0 : 16u, i == 2 ? 0 : 2u, i == 3 ? 0 : 64u, 0, 0, 1, 0};
        world_views(&w);
        world_want(&w);
        world_copy(suite, &w, &sum);
        cr_assert_eq(sum, 0);
        cr_assert_eq(memcmp(w.to.bytes, w.want, w.to.size), 0);
        cr_assert_eq(suite_checksum(suite, &w.job), 0);
    }
    uint64_t event;
    const struct device_region none = {w.from.local, w.from.size};
    cr_assert_eq(device_move(suite->queue, &none, &none, 0, &event), STATUS_OK);
    suite_wait(suite, event);
    world_close(&w);
}

enum fault { FAULT_BYTE, FAULT_SWAPPED, FAULT_STALE, FAULT_SHORT, FAULT_SHIFTED, FAULT_COUNT };

static void fault_make(struct suite *suite, struct world *w, enum fault fault,
                       const unsigned char *before)
{
    const uint32_t region = suite_below(suite, 3);
    const uint32_t page = suite_below(suite, 4);
    const uint32_t other = (page + 1u + suite_below(suite, 3)) % 4u;
    const size_t page_bytes = (size_t)16 * 2 * 64;
    unsigned char *a = w->to.bytes + suite_cell(&w->to, region, page * 16u, 0);
    unsigned char *b = w->to.bytes + suite_cell(&w->to, region, other * 16u, 0);
    unsigned char kept[16 * 2 * 64];
    memcpy(kept, a, page_bytes);
    switch (fault) {
    case FAULT_BYTE: /* one bit of one byte */
        a[suite_below(suite, (uint32_t)page_bytes)] ^= (unsigned char)(1u << suite_below(suite, 8));
        break;
    case FAULT_SWAPPED: /* two pages in each other's places */
        memcpy(a, b, page_bytes);
        memcpy(b, kept, page_bytes);
        break;
    case FAULT_STALE: /* a page that still holds what was there before */
        memcpy(a, before + (a - w->to.bytes), page_bytes);
        break;
    case FAULT_SHORT: /* the end of the transfer never came */
        for (size_t i = page_bytes - 1u - suite_below(suite, 200); i < page_bytes; i++) {
            a[i] = before[(size_t)(a - w->to.bytes) + i];
        }
        break;
    case FAULT_SHIFTED: /* a token late */
        memcpy(a + 128, kept, page_bytes - 128u);
        break;
    case FAULT_COUNT:
        break;
    }
}

void suite_faults(struct suite *suite)
{
    const struct suite_shape from = {SUITE_HND, 3, 2, 64, 16, 64, 0, 0};
    const struct suite_shape to = {SUITE_NHD, 3, 2, 64, 16, 64, 0, 0};
    for (uint32_t i = 0; i < 40u * FAULT_COUNT; i++) {
        struct world w;
        uint64_t sent = 0;
        world_open(suite, &from, &to, &w);
        unsigned char *before = malloc(w.to.size);
        cr_assert_not_null(before);
        memcpy(before, w.to.bytes, w.to.size);
        w.job.slice = (struct device_slice){3, 64, 2, 64, 0, 0, 1, 0};
        world_views(&w);
        world_copy(suite, &w, &sent);
        struct device_job there = w.job;
        there.from = w.to.view;
        cr_assert_eq(suite_checksum(suite, &there), sent);
        fault_make(suite, &w, (enum fault)(i % FAULT_COUNT), before);
        suite_up(suite, &w.to);
        cr_assert_neq(suite_checksum(suite, &there), sent, "%s: fault %u is not seen (try %u)",
                      suite->backend, i % FAULT_COUNT, i);
        free(before);
        world_close(&w);
    }
}

/* Prefill's TP size to decode's: each decode rank gets its heads, whoever held them. */
void suite_tp_reslice(struct suite *suite)
{
    const struct sm_geometry g = {
        .page_tokens = 4, .layers = 1, .kv_heads = 8, .item_bytes = 64, .planes = 2};
    for (uint32_t p = 1; p <= 16; p *= 2) {
        for (uint32_t d = 1; d <= 16; d *= 4) {
            uint64_t sum = 0;
            for (uint32_t pair = 0; pair < p * d; pair++) {
                const struct sm_geometry_rank from = {&g, p, pair / d};
                const struct sm_geometry_rank to = {&g, d, pair % d};
                struct sm_share a;
                struct sm_share b;
                struct sm_share both;
                cr_assert(sm_geometry_share(&g, p, from.rank, &a) &&
                          sm_geometry_share(&g, d, to.rank, &b) &&
                          sm_geometry_written(&from, &to, &both));
                const struct suite_shape from_shape = {SUITE_NHD, 2, a.heads, 64, 4, 13, 0, 0};
                const struct suite_shape to_shape = {SUITE_HND, 2, b.heads, 64, 4, 13, 0, 0};
                struct world w;
                world_open(suite, &from_shape, &to_shape, &w);
                w.from.view.head_first = both.head_first - a.head_first;
                w.to.view.head_first = both.head_first - b.head_first;
                w.job.slice =
                    (struct device_slice){2, 13, both.heads, 64, 0, 0, 1, both.head_first};
                world_views(&w);
                if (both.heads > 0) {
                    world_want(&w);
                    world_copy(suite, &w, &sum);
                    cr_assert_eq(memcmp(w.to.bytes, w.want, w.to.size), 0,
                                 "%s TP%u rank %u to "
                                 "TP%u rank %u",
                                 suite->backend, p, from.rank, d, to.rank);
                    cr_assert_eq(sum, suite_sum(&w.job, &w.from));
                }
                world_close(&w);
            }
        }
    }
}

/* ---- queues
 * ------------------------------------------------------------------------------------------- */

/* A chain of jobs of which each needs the one before; nobody waits in between. */
void suite_order(struct suite *suite)
{
    const struct suite_shape paged = {SUITE_NHD, 2, 4, 256, 16, 1600, 0, 0};
    const struct suite_shape dense = {SUITE_DENSE, 2, 4, 256, 16, 1600, 0, 0};
    struct world out;
    struct world in;
    uint64_t sums[3] = {1, 2, 3};
    uint64_t event;
    world_open(suite, &paged, &dense, &out);
    world_open(suite, &dense, &paged, &in);
    out.job.slice = in.job.slice = (struct device_slice){2, 1600, 4, 256, 0, 0, 1, 0};
    world_views(&out);
    world_views(&in);
    in.job.from = out.to.view; /* scatter what was gathered */
    const uint64_t want = suite_sum(&out.job, &out.from);
    out.job.out_sum = &sums[0];
    in.job.out_sum = &sums[1];
    cr_assert_eq(device_poison(suite->queue, &in.job, &event), STATUS_OK);
    cr_assert_eq(device_copy(suite->queue, &out.job, &event), STATUS_OK);
    cr_assert_eq(device_copy(suite->queue, &in.job, &event), STATUS_OK);
    struct device_job there = in.job;
    there.from = in.to.view;
    there.out_sum = &sums[2];
    cr_assert_eq(device_checksum(suite->queue, &there, &event), STATUS_OK);
    cr_assert_eq(device_poison(suite->queue, &out.job, &event), STATUS_OK);
    suite_wait(suite, event);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(sums[i], want, "%s: sum %u", suite->backend, i);
    }
    cr_assert_eq(canary(suite, &out.job), 0);
    world_close(&out);
    world_close(&in);
}
