/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two pools as peers may announce them, and runs of pages: whatever the planner gives lies inside
 * of both pools, in the pages that were named, and there are no more pieces than there can be.
 */
#include "fabric/plan.h"

#include <stdlib.h>
#include <string.h>

#define RUNS_MAX 16u
#define PIECES_MAX 20000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct reader {
    const uint8_t *at;
    size_t left;
};

static uint32_t number(struct reader *r)
{
    uint32_t value = 0;
    const size_t take = r->left < sizeof value ? r->left : sizeof value;
    memcpy(&value, r->at, take);
    r->at += take;
    r->left -= take;
    /* Small ones are where things happen; the top bits ask for the whole range. */
    return (value & 0xc0000000u) == 0xc0000000u ? value : value & 0xfu;
}

static struct sm_geometry some_geometry(struct reader *r)
{
    struct sm_geometry g;
    uint32_t *const fields[] = {&g.page_tokens, &g.layers,      &g.kv_heads,
                                &g.item_bytes,  &g.planes,      &g.dtype,
                                &g.layer_first, &g.layer_count, &g.stages};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        *fields[i] = number(r);
    }
    return g;
}

static void some_side(struct reader *r, struct plan_side *side, struct sm_run *runs)
{
    side->rank = number(r);
    side->slot = number(r);
    side->runs.at = runs;
    side->runs.count = number(r) % RUNS_MAX;
    for (uint32_t i = 0; i < side->runs.count; i++) {
        runs[i].first = number(r);
        runs[i].count = number(r);
    }
}

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

/* Inside of one named page run of a region, or of the named slot. */
static int is_named(const struct plan_side *s, uint64_t at, uint64_t bytes)
{
    const struct pool_layout *l = s->layout;
    const uint64_t slot = l->aux_offset + l->aux_stride * s->slot;
    if (bytes > l->bytes || at > l->bytes - bytes) {
        return 0;
    }
    if (at >= l->aux_offset) {
        return at >= slot && at + bytes <= slot + l->aux_stride;
    }
    for (uint64_t i = at, end = at + bytes; i < end;) {
        const uint64_t page = i % l->region_bytes / l->page_bytes;
        uint32_t named = 0;
        for (uint32_t k = 0; k < s->runs.count; k++) {
            named |=
                page >= s->runs.at[k].first && page - s->runs.at[k].first < s->runs.at[k].count;
        }
        if (!named) {
            return 0;
        }
        i += l->page_bytes - i % l->page_bytes;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = {data, size};
    struct sm_run runs[2][RUNS_MAX];
    struct plan_span spans[2u * RUNS_MAX];
    struct pool_layout layout[2];
    struct plan_side side[2] = {{&layout[0], 0, {NULL, 0}, 0}, {&layout[1], 0, {NULL, 0}, 0}};
    struct status_detail detail;
    struct plan plan;
    struct plan_piece piece;
    const struct sm_geometry same = some_geometry(&r);
    for (uint32_t i = 0; i < 2; i++) {
        struct sm_geometry g = number(&r) % 8u == 0 ? some_geometry(&r) : same;
        g.layer_first = number(&r);
        g.layer_count = number(&r);
        g.stages = number(&r);
        const uint32_t ranks = number(&r);
        const uint32_t pages = number(&r);
        const uint32_t slots = number(&r) & 0xffffffu;
        if (pool_layout_make(&g, ranks, pages, slots, number(&r) & 0xffffffu, &layout[i],
                             &detail) != STATUS_OK) {
            return 0;
        }
        some_side(&r, &side[i], runs[i]);
    }
    const uint64_t most = 1u + (uint64_t)number(&r) * 64u;
    if (plan_begin(&plan, &side[0], &side[1], most, spans, &detail) != STATUS_OK) {
        must(detail.text[0] != '\0');
        return 0;
    }
    for (uint32_t i = 0; i < PIECES_MAX && plan_next(&plan, &piece); i++) {
        must(piece.bytes > 0 && piece.bytes <= most);
        must(is_named(&side[0], piece.from, piece.bytes) &&
             is_named(&side[1], piece.to, piece.bytes));
    }
    return 0;
}
