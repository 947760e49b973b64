/* SPDX-License-Identifier: Apache-2.0 */
/* The planner. */
#include "fabric/plan.h"

#include <assert.h>
#include <string.h>

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

static uint32_t copies_of_a_head(const struct pool_layout *layout)
{
    const uint32_t heads = layout->geometry.kv_heads;
    return layout->ranks > heads ? layout->ranks / heads : 1u;
}

/* The heads that both ranks hold, and whether this source is the one that writes them. */
static void share_heads(struct plan *plan)
{
    const struct pool_layout *from = plan->from.layout;
    const struct pool_layout *to = plan->to.layout;
    const uint32_t copies = copies_of_a_head(from);
    const uint32_t from_first = plan->from.rank / copies * from->heads;
    const uint32_t to_first = plan->to.rank / copies_of_a_head(to) * to->heads;
    const uint32_t first = from_first > to_first ? from_first : to_first;
    const uint32_t from_end = from_first + from->heads;
    const uint32_t to_end = to_first + to->heads;
    const uint32_t end = from_end < to_end ? from_end : to_end;
    plan->heads = end > first ? end - first : 0u;
    plan->head_from = first - from_first;
    plan->head_to = first - to_first;
    /* Of the sources of this destination that hold the same heads, the first one writes. */
    if (from->ranks > to->ranks) {
        const uint32_t sources_first = plan->to.rank * (from->ranks / to->ranks);
        if (plan->from.rank > sources_first &&
            plan->from.rank / copies == (plan->from.rank - 1u) / copies) {
            plan->heads = 0;
        }
    }
    plan->whole = plan->heads == from->heads && plan->heads == to->heads;
}

enum status plan_begin(struct plan *plan, const struct plan_side *from, const struct plan_side *to,
                       uint64_t piece_bytes_max, struct status_detail *out_detail)
{
    uint64_t from_pages = 0;
    uint64_t to_pages = 0;
    memset(plan, 0, sizeof *plan);
    plan->from = *from;
    plan->to = *to;
    plan->piece_bytes_max = piece_bytes_max;
    assert(piece_bytes_max > 0);
    if (memcmp(&from->layout->geometry, &to->layout->geometry, sizeof from->layout->geometry) !=
        0) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "the pools' geometries differ: %u and %u page_tokens, %u and %u layers",
                           from->layout->geometry.page_tokens, to->layout->geometry.page_tokens,
                           from->layout->geometry.layers, to->layout->geometry.layers);
    }
    TRY(check_runs("source", from, &from_pages, out_detail));
    TRY(check_runs("destination", to, &to_pages, out_detail));
    if (from_pages != to_pages || from->rank >= from->layout->ranks ||
        to->rank >= to->layout->ranks) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "%llu source pages for %llu destination pages",
                           (unsigned long long)from_pages, (unsigned long long)to_pages);
    }
    share_heads(plan);
    if (plan->heads == 0) {
        plan->region = from->layout->regions; /* nothing to do */
    }
    return STATUS_OK;
}

/* The next pages that follow each other on both sides, in the current region; false at its end. */
static bool next_span(struct plan *plan, uint32_t *out_from, uint32_t *out_to, uint32_t *out_pages)
{
    uint32_t pages = 0;
    while (plan->from_run < plan->from.runs.count && plan->to_run < plan->to.runs.count) {
        const struct sm_run *from = &plan->from.runs.at[plan->from_run];
        const struct sm_run *to = &plan->to.runs.at[plan->to_run];
        const uint32_t from_page = from->first + plan->from_skip;
        const uint32_t to_page = to->first + plan->to_skip;
        if (pages == 0) {
            *out_from = from_page;
            *out_to = to_page;
        } else if (from_page != *out_from + pages || to_page != *out_to + pages) {
            break;
        }
        const uint32_t from_left = from->count - plan->from_skip;
        const uint32_t to_left = to->count - plan->to_skip;
        const uint32_t part = from_left < to_left ? from_left : to_left;
        pages += part;
        plan->from_skip += part;
        plan->to_skip += part;
        if (plan->from_skip == from->count) {
            plan->from_skip = 0;
            plan->from_run++;
        }
        if (plan->to_skip == to->count) {
            plan->to_skip = 0;
            plan->to_run++;
        }
    }
    *out_pages = pages;
    return pages > 0;
}

static bool begin_span(struct plan *plan)
{
    const struct pool_layout *from = plan->from.layout;
    const struct pool_layout *to = plan->to.layout;
    uint32_t from_page = 0;
    uint32_t to_page = 0;
    uint32_t pages = 0;
    while (plan->region < from->regions) {
        if (next_span(plan, &from_page, &to_page, &pages)) {
            plan->span_from = plan->region * from->region_bytes + from_page * from->page_bytes;
            plan->span_to = plan->region * to->region_bytes + to_page * to->page_bytes;
            plan->span_left = plan->whole ? pages * from->page_bytes
                                          : (uint64_t)pages * from->geometry.page_tokens;
            return true;
        }
        plan->region++;
        plan->from_run = plan->from_skip = plan->to_run = plan->to_skip = 0;
    }
    return false;
}

bool plan_next(struct plan *plan, struct plan_piece *out_piece)
{
    if (plan->span_left == 0 && !begin_span(plan)) {
        return false;
    }
    if (plan->whole) {
        const uint64_t bytes =
            plan->span_left < plan->piece_bytes_max ? plan->span_left : plan->piece_bytes_max;
        *out_piece = (struct plan_piece){plan->span_from, plan->span_to, bytes};
        plan->span_from += bytes;
        plan->span_to += bytes;
        plan->span_left -= bytes;
        return true;
    }
    const uint64_t item = plan->from.layout->geometry.item_bytes;
    *out_piece = (struct plan_piece){plan->span_from + plan->head_from * item,
                                     plan->span_to + plan->head_to * item, plan->heads * item};
    plan->span_from += plan->from.layout->token_bytes;
    plan->span_to += plan->to.layout->token_bytes;
    plan->span_left--;
    return true;
}
