/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner against a naive oracle that knows, byte by byte, which head of which token of which
 * page of which layer stands where. Random geometries, rank counts, stages and page lists, seeded.
 */
#include "fabric/plan.h"

#include "statemachine/sm_geometry.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 24u

static uint64_t seed;

static uint32_t below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % n;
}

/* ---- the oracle: its own arithmetic, from the definition
 * ------------------------------------------------------------------ */

struct side {
    struct pool_layout layout;
    uint32_t rank;
    uint32_t stages;
    unsigned char *pool;
    uint32_t pages[PAGES];
    struct sm_run runs[PAGES];
};

static uint32_t tp(const struct side *s)
{
    return s->layout.ranks / s->stages;
}

/* Whether the rank holds this head, and as which of its own. */
static bool holds_head(const struct side *s, uint32_t head, uint32_t *out_own)
{
    const uint32_t heads = s->layout.geometry.kv_heads;
    const uint32_t rank = s->rank / s->stages;
    if (heads >= tp(s)) {
        *out_own = head % (heads / tp(s));
        return head / (heads / tp(s)) == rank;
    }
    *out_own = 0;
    return rank / (tp(s) / heads) == head;
}

static bool holds_layer(const struct side *s, uint32_t layer)
{
    const struct sm_geometry *g = &s->layout.geometry;
    return layer >= g->layer_first &&
           (g->layer_count == 0 || layer < g->layer_first + g->layer_count);
}

static unsigned char stamp(const uint32_t at[6])
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < 6; i++) {
        h = (h ^ at[i]) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 29;
    }
    return (unsigned char)(1u + h % 255u);
}

typedef void (*byte_fn)(unsigned char *byte, const uint32_t at[6], const struct side *s,
                        void *context);

/* at: layer, plane, page of the request, token, head, byte. */
static void each_byte(const struct side *s, uint32_t count, byte_fn then, void *context)
{
    const struct sm_geometry *g = &s->layout.geometry;
    uint64_t heads = 0;
    uint32_t own = 0;
    uint32_t at[6];
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        heads += holds_head(s, head, &own) ? 1u : 0u;
    }
    for (at[0] = 0; at[0] < g->layers; at[0]++) {
        for (at[4] = 0; at[4] < g->kv_heads && holds_layer(s, at[0]); at[4]++) {
            if (!holds_head(s, at[4], &own)) {
                continue;
            }
            for (at[1] = 0; at[1] < g->planes; at[1]++) {
                for (at[2] = 0; at[2] < count; at[2]++) {
                    for (at[3] = 0; at[3] < g->page_tokens; at[3]++) {
                        const uint64_t region = (at[0] - g->layer_first) * g->planes + at[1];
                        const uint64_t page = region * s->layout.pages + s->pages[at[2]];
                        const uint64_t token = page * g->page_tokens + at[3];
                        for (at[5] = 0; at[5] < g->item_bytes; at[5]++) {
                            then(s->pool + (token * heads + own) * g->item_bytes + at[5], at, s,
                                 context);
                        }
                    }
                }
            }
        }
    }
}

static void fill(unsigned char *byte, const uint32_t at[6], const struct side *s, void *context)
{
    (void)s;
    (void)context;
    *byte = stamp(at);
}

/* How many bytes are still poison; every other one must be the right one. */
static void check(unsigned char *byte, const uint32_t at[6], const struct side *s, void *context)
{
    uint64_t *missing = context;
    *missing += *byte == 0 ? 1u : 0u;
    cr_assert(*byte == 0 || *byte == stamp(at),
              "rank %u layer %u plane %u page %u token %u head %u", s->rank, at[0], at[1], at[2],
              at[3], at[4]);
}

/* Distinct pages of the pool, often neighbours. */
static void random_pages(uint32_t *pages, uint32_t count)
{
    uint32_t at = below(PAGES);
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = at % PAGES;
        at++;
    }
    for (uint32_t i = 0; i < below(6) && count > 1; i++) {
        const uint32_t a = below(count);
        const uint32_t b = below(count);
        const uint32_t kept = pages[a];
        pages[a] = pages[b];
        pages[b] = kept;
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

static uint32_t fewest_spans(const struct side *from, const struct side *to, uint32_t count)
{
    uint32_t spans = count > 0 ? 1u : 0u;
    for (uint32_t i = 1; i < count; i++) {
        spans +=
            from->pages[i] != from->pages[i - 1u] + 1u || to->pages[i] != to->pages[i - 1u] + 1u;
    }
    return spans;
}

/* ---- one source to one destination
 * --------------------------------------------------------------------------------------- */

/* Copies what the plan says; every byte of the destination may be written once. */
static void run_plan(struct side *from, struct side *to, uint32_t count, unsigned char *written)
{
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    struct plan_span spans[2u * PAGES];
    const uint64_t most = below(3) == 0 ? 1u + below(64) : 1u << 20;
    uint64_t pieces = 0;
    const struct plan_side a = {&from->layout,
                                from->rank,
                                {from->runs, as_runs(from->pages, count, from->runs)},
                                SM_AUX_NONE};
    const struct plan_side b = {
        &to->layout, to->rank, {to->runs, as_runs(to->pages, count, to->runs)}, SM_AUX_NONE};
    cr_assert_eq(plan_begin(&plan, &a, &b, most, spans, &detail), STATUS_OK, "%s", detail.text);
    const uint64_t at_most = (uint64_t)plan.regions * fewest_spans(from, to, count);
    const bool whole = plan.whole;
    while (plan_next(&plan, &piece)) {
        pieces++;
        cr_assert(piece.bytes > 0 && piece.bytes <= most);
        cr_assert_leq(piece.from + piece.bytes, from->layout.bytes);
        cr_assert_leq(piece.to + piece.bytes, to->layout.bytes);
        memcpy(to->pool + piece.to, from->pool + piece.from, piece.bytes);
        for (uint64_t i = 0; i < piece.bytes; i++) {
            cr_assert_eq(written[piece.to + i]++, 0, "byte %llu is written twice",
                         (unsigned long long)(piece.to + i));
        }
    }
    cr_assert(most < (1u << 20) || !whole || pieces == at_most, "%llu pieces, %llu are enough",
              (unsigned long long)pieces, (unsigned long long)at_most);
}

static bool make_side(struct side *s, struct sm_geometry g, uint32_t ranks, uint32_t count)
{
    struct status_detail detail;
    s->stages = g.stages == 0 ? 1u : g.stages;
    random_pages(s->pages, count);
    return pool_layout_make(&g, ranks, PAGES, 0, 0, &s->layout, &detail) == STATUS_OK;
}

/* The sources that the two sizes give, all of them in turn. */
static uint64_t transfer(struct side *from, struct side *to, uint32_t count)
{
    const uint32_t each =
        from->layout.ranks > to->layout.ranks ? from->layout.ranks / to->layout.ranks : 1u;
    const uint32_t first = from->layout.ranks > to->layout.ranks
                               ? to->rank * each
                               : to->rank / (to->layout.ranks / from->layout.ranks);
    const uint32_t stage_layers = from->layout.geometry.layers / from->stages;
    uint64_t missing = 0;
    to->pool = calloc(1, to->layout.bytes);
    unsigned char *written = calloc(1, to->layout.bytes);
    for (from->rank = first; from->rank < first + each; from->rank++) {
        if (from->stages > 1) {
            from->layout.geometry.layer_first = from->rank % from->stages * stage_layers;
        }
        from->pool = calloc(1, from->layout.bytes);
        each_byte(from, count, fill, NULL);
        run_plan(from, to, count, written);
        free(from->pool);
    }
    each_byte(to, count, check, &missing);
    free(to->pool);
    free(written);
    return missing;
}

static struct sm_geometry random_geometry(void)
{
    static const uint32_t heads[] = {1, 2, 4, 8};
    return (struct sm_geometry){.page_tokens = 1u + below(4),
                                .layers = 4,
                                .kv_heads = heads[below(4)],
                                .item_bytes = 1u + below(9),
                                .planes = 1u + below(2),
                                .dtype = 1};
}

Test(plan, every_byte_of_the_destination_is_written_once_and_right)
{
    static const uint32_t ranks[] = {1, 2, 4, 8};
    seed = 7;
    for (uint32_t round = 0; round < 4000; round++) {
        struct side from;
        struct side to;
        const struct sm_geometry g = random_geometry();
        const uint32_t count = below(PAGES);
        cr_assert(make_side(&from, g, ranks[below(4)], count));
        cr_assert(make_side(&to, g, ranks[below(4)], count));
        to.rank = below(to.layout.ranks);
        cr_assert_eq(transfer(&from, &to, count), 0u, "round %u: bytes are missing", round);
    }
}

Test(plan, the_stages_of_a_pipeline_write_their_layers)
{
    static const uint32_t sizes[] = {1, 2, 4};
    seed = 11;
    for (uint32_t round = 0; round < 2000; round++) {
        struct side from;
        struct side to;
        struct sm_geometry g = random_geometry();
        const uint32_t count = below(PAGES);
        const uint32_t to_ranks = sizes[below(3)];
        const uint32_t k = sizes[below(2)];
        cr_assert(make_side(&to, g, to_ranks, count));
        g.stages = sizes[1 + below(2)];
        g.layer_count = g.layers / g.stages;
        cr_assert(make_side(&from, g, to_ranks * k * g.stages, count));
        to.rank = below(to_ranks);
        cr_assert_eq(transfer(&from, &to, count), 0u, "round %u: bytes are missing", round);
    }
}

Test(plan, layers_that_only_one_side_holds_are_left_alone)
{
    seed = 13;
    for (uint32_t round = 0; round < 1000; round++) {
        struct side from;
        struct side to;
        struct sm_geometry g = random_geometry();
        const uint32_t count = 1u + below(PAGES - 1u);
        uint32_t shared = 0;
        cr_assert(make_side(&to, g, 1, count));
        g.layer_first = below(4);
        g.layer_count = below(5u - g.layer_first);
        cr_assert(make_side(&from, g, 1, count));
        to.rank = 0;
        for (uint32_t layer = 0; layer < 4; layer++) {
            shared += holds_layer(&from, layer) ? 1u : 0u;
        }
        cr_assert_eq(transfer(&from, &to, count),
                     (uint64_t)(4u - shared) * g.planes * count * to.layout.page_bytes);
    }
}

Test(plan, neighbours_on_both_sides_are_one_piece_a_region)
{
    struct sm_geometry g = {16, 32, 8, 256, 2, 1, 0, 0, 0};
    struct pool_layout l;
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    uint32_t pieces = 0;
    const struct sm_run from[] = {{10, 5}, {15, 3}};
    const struct sm_run to[] = {{100, 8}};
    cr_assert_eq(pool_layout_make(&g, 1, 128, 0, 0, &l, &detail), STATUS_OK);
    struct plan_span spans[3];
    const struct plan_side a = {&l, 0, {from, 2}, SM_AUX_NONE};
    const struct plan_side b = {&l, 0, {to, 1}, SM_AUX_NONE};
    cr_assert_eq(plan_begin(&plan, &a, &b, UINT64_MAX, spans, &detail), STATUS_OK);
    while (plan_next(&plan, &piece)) {
        cr_assert_eq(piece.bytes, 8u * l.page_bytes);
        pieces++;
    }
    cr_assert_eq(pieces, 64u);
}

Test(plan, pages_outside_of_a_pool_and_unequal_counts_are_refused)
{
    struct sm_geometry g = {16, 2, 8, 256, 2, 1, 0, 0, 0};
    struct pool_layout l;
    struct status_detail detail;
    struct plan plan;
    const struct sm_run good = {0, 4};
    const struct sm_run outside = {60, 5};
    const struct sm_run wrap = {4, UINT32_MAX};
    const struct sm_run fewer = {0, 3};
    cr_assert_eq(pool_layout_make(&g, 1, 64, 0, 0, &l, &detail), STATUS_OK);
    struct plan_span spans[2];
    const struct plan_side a = {&l, 0, {&good, 1}, SM_AUX_NONE};
    const struct sm_run *bad[] = {&outside, &wrap, &fewer};
    for (size_t i = 0; i < 3; i++) {
        const struct plan_side b = {&l, 0, {bad[i], 1}, SM_AUX_NONE};
        cr_assert_eq(plan_begin(&plan, &a, &b, 4096, spans, &detail), STATUS_INVALID);
        cr_assert_gt(strlen(detail.text), 10u);
    }
}

Test(plan, the_slot_comes_last_and_must_be_of_one_size)
{
    struct sm_geometry g = {16, 2, 8, 256, 2, 1, 0, 0, 0};
    struct pool_layout l;
    struct pool_layout other;
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece = {0, 0, 0, 0};
    struct plan_span spans[2];
    const struct sm_run run = {0, 4};
    uint64_t slot_bytes = 0;
    cr_assert_eq(pool_layout_make(&g, 1, 64, 4, 1000, &l, &detail), STATUS_OK);
    cr_assert_eq(pool_layout_make(&g, 1, 64, 4, 2000, &other, &detail), STATUS_OK);
    const struct plan_side a = {&l, 0, {&run, 1}, 3};
    struct plan_side b = {&l, 0, {&run, 1}, 1};
    cr_assert_eq(plan_begin(&plan, &a, &b, 300, spans, &detail), STATUS_OK);
    while (plan_next(&plan, &piece)) {
        cr_assert(slot_bytes == 0 || piece.from == l.aux_offset + 3u * l.aux_stride + slot_bytes);
        slot_bytes += piece.from >= l.aux_offset ? piece.bytes : 0u;
    }
    cr_assert_eq(slot_bytes, l.aux_stride);
    b.slot = 4;
    cr_assert_eq(plan_begin(&plan, &a, &b, 300, spans, &detail), STATUS_INVALID);
    cr_assert_not_null(strstr(detail.text, "slot 4 of 4"), "%s", detail.text);
    b.slot = 1;
    b.layout = &other;
    cr_assert_eq(plan_begin(&plan, &a, &b, 300, spans, &detail), STATUS_INVALID);
    cr_assert_not_null(strstr(detail.text, "1024 bytes at the source, 2048"), "%s", detail.text);
}

Test(plan, models_that_differ_are_refused_with_both_values)
{
    static const char *const names[] = {"page_tokens", "layers", "kv_heads",
                                        "item_bytes",  "planes", "dtype"};
    for (uint32_t i = 0; i < 6; i++) {
        const struct sm_geometry g = {16, 2, 8, 256, 1, 1, 0, 0, 0};
        struct sm_geometry h = g;
        uint32_t *const fields[] = {&h.page_tokens, &h.layers, &h.kv_heads,
                                    &h.item_bytes,  &h.planes, &h.dtype};
        char both[64];
        struct pool_layout l;
        struct pool_layout m;
        struct status_detail detail;
        struct plan plan;
        const uint32_t before = *fields[i];
        *fields[i] *= 2u;
        (void)snprintf(both, sizeof both, "%s is %u at the source, %u at", names[i], before,
                       *fields[i]);
        cr_assert_eq(pool_layout_make(&g, 1, 64, 0, 0, &l, &detail), STATUS_OK);
        cr_assert_eq(pool_layout_make(&h, 1, 64, 0, 0, &m, &detail), STATUS_OK);
        const struct plan_side a = {&l, 0, {NULL, 0}, SM_AUX_NONE};
        const struct plan_side b = {&m, 0, {NULL, 0}, SM_AUX_NONE};
        cr_assert_eq(plan_begin(&plan, &a, &b, 300, NULL, &detail), STATUS_INVALID);
        cr_assert_not_null(strstr(detail.text, both), "%s", detail.text);
    }
}
