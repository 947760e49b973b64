/* SPDX-License-Identifier: Apache-2.0 */
/* The planner. */
#include "fabric/plan.h"

#include "statemachine/sm_geometry.h"

#include <assert.h>
#include <string.h>

/* ---- what is asked for
 * ------------------------------------------------------------------------------------- */

static enum status check_runs(const char *side, const struct plan_side *s, uint64_t *out_pages,
                              struct status_detail *out_detail)
{
    *out_pages = 0;
    for (uint32_t i = 0; i < s->runs.count; i++) {
        const struct sm_run *run = &s->runs.at[i];
        if (run->count == 0 || run->first >= s->layout->pages ||
            run->count > s->layout->pages - run->first) {
            return status_fail(STATUS_INVALID, out_detail, 0,
                               "%s pages %u to %llu lie outside of a pool of %u pages", side,
                               run->first, (unsigned long long)run->first + run->count - 1u,
                               s->layout->pages);
        }
        *out_pages += run->count;
    }
    return STATUS_OK;
}

/* A field that has to be the same on both sides. */
static enum status check_same(const char *field, uint32_t from, uint32_t to,
                              struct status_detail *out_detail)
{
    return from == to ? STATUS_OK
                      : status_fail(STATUS_INVALID, out_detail, 0,
                                    "the pools' geometries differ: %s is %u at the source, %u at "
                                    "the destination",
                                    field, from, to);
}

static enum status check_geometry(const struct sm_geometry *a, const struct sm_geometry *b,
                                  struct status_detail *out_detail)
{
    TRY(check_same("page_tokens", a->page_tokens, b->page_tokens, out_detail));
    TRY(check_same("layers", a->layers, b->layers, out_detail));
    TRY(check_same("kv_heads", a->kv_heads, b->kv_heads, out_detail));
    TRY(check_same("item_bytes", a->item_bytes, b->item_bytes, out_detail));
    TRY(check_same("planes", a->planes, b->planes, out_detail));
    return check_same("dtype", a->dtype, b->dtype, out_detail);
}

/* The regions and heads that this source writes into this destination. */
static enum status plan_share(struct plan *plan, const struct plan_side *from,
                              const struct plan_side *to, struct status_detail *out_detail)
{
    const struct sm_geometry *g = &from->layout->geometry;
    const struct sm_geometry_rank a = {g, from->layout->ranks, from->rank};
    const struct sm_geometry_rank b = {&to->layout->geometry, to->layout->ranks, to->rank};
    struct sm_share from_holds;
    struct sm_share to_holds;
    struct sm_share written;
    if (!sm_geometry_share(a.geometry, a.ranks, a.rank, &from_holds) ||
        !sm_geometry_share(b.geometry, b.ranks, b.rank, &to_holds) ||
        !sm_geometry_written(&a, &b, &written)) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "source rank %u of %u, destination rank %u of %u: there are none such",
                           from->rank, from->layout->ranks, to->rank, to->layout->ranks);
    }
    if (written.heads == 0 || written.layers == 0) {
        return STATUS_OK; /* nothing: others write it */
    }
    plan->regions = written.layers * g->planes;
    plan->region_from = (uint64_t)(written.layer_first - from_holds.layer_first) * g->planes *
                        plan->from->region_bytes;
    plan->region_to =
        (uint64_t)(written.layer_first - to_holds.layer_first) * g->planes * plan->to->region_bytes;
    plan->head_from = (uint64_t)(written.head_first - from_holds.head_first) * g->item_bytes;
    plan->head_to = (uint64_t)(written.head_first - to_holds.head_first) * g->item_bytes;
    plan->head_bytes = (uint64_t)written.heads * g->item_bytes;
    plan->whole = written.heads == from_holds.heads && written.heads == to_holds.heads;
    return STATUS_OK;
}

static enum status plan_slot(struct plan *plan, const struct plan_side *from,
                             const struct plan_side *to, struct status_detail *out_detail)
{
    if (from->slot == SM_AUX_NONE || to->slot == SM_AUX_NONE) {
        return STATUS_OK;
    }
    if (from->slot >= from->layout->aux_slots || to->slot >= to->layout->aux_slots) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "a metadata slot lies outside of its pool: source slot %u of %u, "
                           "destination slot %u of %u",
                           from->slot, from->layout->aux_slots, to->slot, to->layout->aux_slots);
    }
    if (from->layout->aux_stride != to->layout->aux_stride) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "metadata slots have %llu bytes at the source, %llu at the destination",
                           (unsigned long long)from->layout->aux_stride,
                           (unsigned long long)to->layout->aux_stride);
    }
    plan->slot.from = from->layout->aux_offset + from->layout->aux_stride * from->slot;
    plan->slot.to = to->layout->aux_offset + to->layout->aux_stride * to->slot;
    plan->slot.bytes = from->layout->aux_stride;
    return STATUS_OK;
}

/* ---- spans
 * -------------------------------------------------------------------------------------------- */

/* Walks both lists at once: they have as many pages. Each step ends a run, so there are enough. */
static uint32_t find_spans(const struct sm_runs *from, const struct sm_runs *to,
                           struct plan_span *spans)
{
    uint32_t count = 0;
    uint32_t from_skip = 0;
    uint32_t to_skip = 0;
    for (uint32_t f = 0, t = 0; f < from->count && t < to->count;) {
        const uint32_t from_page = from->at[f].first + from_skip;
        const uint32_t to_page = to->at[t].first + to_skip;
        const uint32_t from_left = from->at[f].count - from_skip;
        const uint32_t to_left = to->at[t].count - to_skip;
        const uint32_t pages = from_left < to_left ? from_left : to_left;
        struct plan_span *last = count > 0 ? &spans[count - 1u] : NULL;
        if (last != NULL && from_page == last->from + last->pages &&
            to_page == last->to + last->pages) {
            last->pages += pages;
        } else {
            spans[count++] = (struct plan_span){from_page, to_page, pages};
        }
        from_skip += pages;
        to_skip += pages;
        if (from_skip == from->at[f].count) {
            from_skip = 0;
            f++;
        }
        if (to_skip == to->at[t].count) {
            to_skip = 0;
            t++;
        }
    }
    return count;
}

enum status plan_begin(struct plan *plan, const struct plan_side *from, const struct plan_side *to,
                       uint64_t piece_bytes_max, struct plan_span *spans,
                       struct status_detail *out_detail)
{
    uint64_t from_pages = 0;
    uint64_t to_pages = 0;
    assert(piece_bytes_max > 0);
    memset(plan, 0, sizeof *plan);
    plan->from = from->layout;
    plan->to = to->layout;
    plan->piece_bytes_max = piece_bytes_max;
    TRY(check_geometry(&from->layout->geometry, &to->layout->geometry, out_detail));
    TRY(check_runs("source", from, &from_pages, out_detail));
    TRY(check_runs("destination", to, &to_pages, out_detail));
    if (from_pages != to_pages) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "%llu source pages for %llu destination pages",
                           (unsigned long long)from_pages, (unsigned long long)to_pages);
    }
    TRY(plan_share(plan, from, to, out_detail));
    TRY(plan_slot(plan, from, to, out_detail));
    plan->spans = spans;
    plan->span_count = plan->regions > 0 ? find_spans(&from->runs, &to->runs, spans) : 0u;
    plan->slot.span = plan->span_count;
    return STATUS_OK;
}

/* ---- pieces
 * ------------------------------------------------------------------------------------------- */

/* The next span, of the next region when all of this one are done; false: no more. */
static bool begin_span(struct plan *plan)
{
    if (plan->span == plan->span_count && plan->regions > 0) {
        plan->span = 0;
        plan->regions--;
        plan->region_from += plan->from->region_bytes;
        plan->region_to += plan->to->region_bytes;
    }
    if (plan->regions == 0 || plan->span_count == 0) {
        return false;
    }
    const struct plan_span *span = &plan->spans[plan->span];
    plan->at.span = plan->span++;
    plan->at.from = plan->region_from + span->from * plan->from->page_bytes;
    plan->at.to = plan->region_to + span->to * plan->to->page_bytes;
    plan->at.bytes = plan->whole ? span->pages * plan->from->page_bytes
                                 : (uint64_t)span->pages * plan->from->geometry.page_tokens;
    return true;
}

static void cut(struct plan_piece *at, uint64_t most, struct plan_piece *out_piece)
{
    const uint64_t bytes = at->bytes < most ? at->bytes : most;
    *out_piece = (struct plan_piece){at->from, at->to, bytes, at->span};
    at->from += bytes;
    at->to += bytes;
    at->bytes -= bytes;
}

bool plan_next(struct plan *plan, struct plan_piece *out_piece)
{
    if (plan->token.bytes == 0 && plan->at.bytes == 0 && !begin_span(plan)) {
        cut(&plan->slot, plan->piece_bytes_max, out_piece);
        return out_piece->bytes > 0;
    }
    if (plan->whole) {
        cut(&plan->at, plan->piece_bytes_max, out_piece);
        return true;
    }
    if (plan->token.bytes == 0) {
        plan->token =
            (struct plan_piece){plan->at.from + plan->head_from, plan->at.to + plan->head_to,
                                plan->head_bytes, plan->at.span};
        plan->at.from += plan->from->token_bytes;
        plan->at.to += plan->to->token_bytes;
        plan->at.bytes--;
    }
    cut(&plan->token, plan->piece_bytes_max, out_piece);
    return true;
}
