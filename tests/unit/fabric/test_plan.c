/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner against a naive oracle that knows, byte by byte, which head of which token of which
 * page of which region stands where. Random geometries, rank counts and page lists, seeded.
 */
#include "fabric/plan.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed;

static uint32_t below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % n;
}

/* A distinct value for each (region, page position, token, head); the same on both sides. */
static uint32_t stamp(const struct pool_layout *l, uint32_t region, uint32_t position,
                      uint32_t token, uint32_t head)
{
    return 1u + ((region * 64u + position) * l->geometry.page_tokens + token) * 64u + head;
}

static uint32_t first_head(const struct pool_layout *l, uint32_t rank)
{
    const uint32_t copies = l->ranks > l->geometry.kv_heads ? l->ranks / l->geometry.kv_heads : 1u;
    return rank / copies * l->heads;
}

static uint32_t *cell(const struct pool_layout *l, uint32_t *pool, uint32_t region, uint32_t page,
                      uint32_t token, uint32_t head)
{
    const uint64_t at = region * l->region_bytes + page * l->page_bytes + token * l->token_bytes +
                        (uint64_t)head * l->geometry.item_bytes;
    return pool + at / sizeof *pool;
}

static void fill(const struct pool_layout *l, uint32_t *pool, uint32_t rank, const uint32_t *pages,
                 uint32_t count)
{
    for (uint32_t region = 0; region < l->regions; region++) {
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t token = 0; token < l->geometry.page_tokens; token++) {
                for (uint32_t head = 0; head < l->heads; head++) {
                    *cell(l, pool, region, pages[i], token, head) =
                        stamp(l, region, i, token, first_head(l, rank) + head);
                }
            }
        }
    }
}

static void check_filled(const struct pool_layout *l, uint32_t *pool, uint32_t rank,
                         const uint32_t *pages, uint32_t count)
{
    for (uint32_t region = 0; region < l->regions; region++) {
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t token = 0; token < l->geometry.page_tokens; token++) {
                for (uint32_t head = 0; head < l->heads; head++) {
                    cr_assert_eq(*cell(l, pool, region, pages[i], token, head),
                                 stamp(l, region, i, token, first_head(l, rank) + head),
                                 "rank %u region %u page %u token %u head %u", rank, region, i,
                                 token, head);
                }
            }
        }
    }
}

static void random_pages(uint32_t *pages, uint32_t count, uint32_t pool)
{
    uint32_t at = below(pool);
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = at % pool;
        at += below(3) == 0 ? 1u + below(3) : 1u;
    }
}

static uint32_t as_runs(const uint32_t *pages, uint32_t count, struct sm_run *runs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (n > 0 && runs[n - 1u].first + runs[n - 1u].count == pages[i] && below(4) != 0) {
            runs[n - 1u].count++;
        } else {
            runs[n++] = (struct sm_run){pages[i], 1};
        }
    }
    return n;
}

/* All sources of one destination write into it; every cell must be written once and right. */
static void transfer(const struct pool_layout *from, const struct pool_layout *to, uint32_t to_rank,
                     uint32_t count)
{
    uint32_t from_pages[64];
    uint32_t to_pages[64];
    struct sm_run from_runs[64];
    struct sm_run to_runs[64];
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    random_pages(from_pages, count, from->pages);
    random_pages(to_pages, count, to->pages);
    uint32_t *source = calloc(1, from->bytes);
    uint32_t *target = calloc(1, to->bytes);
    unsigned char *written = calloc(1, to->bytes);
    const uint32_t each = from->ranks > to->ranks ? from->ranks / to->ranks : 1u;
    const uint32_t first =
        from->ranks > to->ranks ? to_rank * each : to_rank / (to->ranks / from->ranks);
    for (uint32_t rank = first; rank < first + each; rank++) {
        memset(source, 0, from->bytes);
        fill(from, source, rank, from_pages, count);
        const struct plan_side a = {from, rank, {from_runs, as_runs(from_pages, count, from_runs)}};
        const struct plan_side b = {to, to_rank, {to_runs, as_runs(to_pages, count, to_runs)}};
        cr_assert_eq(plan_begin(&plan, &a, &b, 64u + below(100000), &detail), STATUS_OK, "%s",
                     detail.text);
        while (plan_next(&plan, &piece)) {
            cr_assert_leq(piece.from + piece.bytes, from->bytes);
            cr_assert_leq(piece.to + piece.bytes, to->bytes);
            memcpy((char *)target + piece.to, (char *)source + piece.from, piece.bytes);
            for (uint64_t i = 0; i < piece.bytes; i++) {
                cr_assert_eq(written[piece.to + i], 0, "byte %llu is written twice",
                             (unsigned long long)(piece.to + i));
                written[piece.to + i] = 1;
            }
        }
    }
    check_filled(to, target, to_rank, to_pages, count);
    free(source);
    free(target);
    free(written);
}

Test(plan, every_byte_of_the_destination_is_written_once_and_right)
{
    static const uint32_t heads[] = {1, 2, 4, 8};
    static const uint32_t ranks[] = {1, 2, 4, 8};
    struct status_detail detail;
    seed = 7;
    for (uint32_t round = 0; round < 400; round++) {
        struct sm_geometry g = {1u + below(4),        1u + below(3), heads[below(4)],
                                4u * (1u + below(3)), 1u + below(2), 1};
        struct pool_layout from;
        struct pool_layout to;
        cr_assert_eq(pool_layout_make(&g, ranks[below(4)], 64, 0, 0, &from, &detail), STATUS_OK);
        cr_assert_eq(pool_layout_make(&g, ranks[below(4)], 64, 0, 0, &to, &detail), STATUS_OK);
        transfer(&from, &to, below(to.ranks), 1u + below(20));
    }
}

Test(plan, neighbours_on_both_sides_are_one_piece_a_region)
{
    struct sm_geometry g = {16, 32, 8, 256, 2, 1};
    struct pool_layout l;
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    uint32_t pieces = 0;
    const struct sm_run from[] = {{10, 5}, {15, 3}};
    const struct sm_run to[] = {{100, 8}};
    cr_assert_eq(pool_layout_make(&g, 1, 128, 0, 0, &l, &detail), STATUS_OK);
    const struct plan_side a = {&l, 0, {from, 2}};
    const struct plan_side b = {&l, 0, {to, 1}};
    cr_assert_eq(plan_begin(&plan, &a, &b, UINT64_MAX, &detail), STATUS_OK);
    while (plan_next(&plan, &piece)) {
        cr_assert_eq(piece.bytes, 8u * l.page_bytes);
        pieces++;
    }
    cr_assert_eq(pieces, 64u);
}

Test(plan, pages_outside_of_a_pool_and_unequal_counts_are_refused)
{
    struct sm_geometry g = {16, 2, 8, 256, 2, 1};
    struct pool_layout l;
    struct status_detail detail;
    struct plan plan;
    const struct sm_run good = {0, 4};
    const struct sm_run outside = {60, 5};
    const struct sm_run wrap = {4, UINT32_MAX};
    const struct sm_run fewer = {0, 3};
    cr_assert_eq(pool_layout_make(&g, 1, 64, 0, 0, &l, &detail), STATUS_OK);
    const struct plan_side a = {&l, 0, {&good, 1}};
    const struct sm_run *bad[] = {&outside, &wrap, &fewer};
    for (size_t i = 0; i < 3; i++) {
        const struct plan_side b = {&l, 0, {bad[i], 1}};
        cr_assert_eq(plan_begin(&plan, &a, &b, 4096, &detail), STATUS_INVALID);
        cr_assert_gt(strlen(detail.text), 10u);
    }
}
