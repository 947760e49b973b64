/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: which bytes of one rank's pool go where in another rank's pool, as the fewest runs.
 *
 * Layer: pure arithmetic over schemas/pool_layout.h and the machine's rule for heads and layers.
 *
 * Rules: pages that follow each other on both sides are one span; spans are found once and used in
 * each region (layer and plane) that both sides hold. At different TP sizes the ranks hold
 * different heads: the heads that both hold are copied, token by token, and where source ranks hold
 * the same heads only one of them writes (sm_geometry_written). Pipeline stages: the layers that
 * both hold. The metadata slot comes after the pages.
 *
 * Ownership: begin reads the runs and does not keep them; the spans are the caller's memory and are
 * borrowed, with both layouts, until the plan is done. Copying a plan copies its position.
 *
 * Limits: no allocation. plan_spans_max of both sides' runs are enough spans. Pieces are cut at
 * piece_bytes_max. The layouts must be pool_layout_make's, which bounds all arithmetic here;
 * ranks, runs and slots may be anything.
 */
#ifndef FABRIC_PLAN_H
#define FABRIC_PLAN_H

#include "schemas/pool_layout.h"

#include <stdbool.h>
#include <stdint.h>

struct plan_side {
    const struct pool_layout *layout;
    uint32_t rank;
    struct sm_runs runs;
    uint32_t slot; /* of metadata; SM_AUX_NONE on either side: none is copied */
};

/* Pages that follow each other on both sides. */
struct plan_span {
    uint32_t from;
    uint32_t to;
    uint32_t pages;
};

/* Byte offsets from the start of each pool. */
struct plan_piece {
    uint64_t from;
    uint64_t to;
    uint64_t bytes;
    uint32_t span; /* which one it belongs to; the plan's span_count: to the slot */
};

struct plan {
    const struct pool_layout *from;
    const struct pool_layout *to;
    const struct plan_span *spans;
    uint64_t piece_bytes_max;
    uint64_t head_from; /* bytes before the heads to be copied, within a token */
    uint64_t head_to;
    uint64_t head_bytes;  /* of the heads that are copied of each token */
    uint64_t region_from; /* offset of the current region */
    uint64_t region_to;
    struct plan_piece slot; /* bytes 0: none, or done */
    uint32_t span_count;
    uint32_t regions; /* still to do, the current one included */
    bool whole;       /* both sides hold the same heads: pages are copied whole */
    /* Position: in the current span. */
    uint32_t span;
    struct plan_piece at;    /* what is left of it; .bytes counts tokens when not whole */
    struct plan_piece token; /* what is left of the heads of one token, when not whole */
};

/* How many spans a plan of so many runs can need. */
static inline uint64_t plan_spans_max(uint32_t from_runs, uint32_t to_runs)
{
    return (uint64_t)from_runs + to_runs;
}

/*
 * `spans` has room for plan_spans_max. STATUS_INVALID with a text that names both values: the
 * geometries differ, a run or a slot lies outside of its pool, the page counts or the sizes of the
 * slots differ.
 */
enum status plan_begin(struct plan *plan, const struct plan_side *from, const struct plan_side *to,
                       uint64_t piece_bytes_max, struct plan_span *spans,
                       struct status_detail *out_detail);

/* The next piece; false when there is none. */
bool plan_next(struct plan *plan, struct plan_piece *out_piece);

#endif
