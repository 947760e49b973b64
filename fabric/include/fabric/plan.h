/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: which bytes of one rank's pool go where in another rank's pool, as the fewest runs.
 *
 * Layer: pure arithmetic over schemas/pool_layout.h.
 *
 * Rules: pages that follow each other on both sides are one run in each region. At different TP
 * sizes the ranks hold different heads: the heads that both hold are copied, token by token, and
 * where source ranks hold the same heads (more ranks than heads) only the first of them writes:
 * each byte of the destination is written by exactly one source rank.
 *
 * Ownership: the plan borrows the runs until it is done. Copying a plan copies its position.
 *
 * Limits: an iterator; no memory. Pieces are cut at piece_bytes_max.
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
};

/* Byte offsets from the start of each pool. */
struct plan_piece {
    uint64_t from;
    uint64_t to;
    uint64_t bytes;
};

struct plan {
    struct plan_side from;
    struct plan_side to;
    uint64_t piece_bytes_max;
    uint32_t head_from; /* first head to be copied, within a token of the source */
    uint32_t head_to;
    uint32_t heads;  /* how many; 0: another source rank writes them */
    bool whole;      /* both sides hold the same heads: pages are copied whole */
    uint32_t region; /* position */
    uint32_t from_run;
    uint32_t from_skip;
    uint32_t to_run;
    uint32_t to_skip;
    uint64_t span_from; /* the span of pages being cut */
    uint64_t span_to;
    uint64_t span_left; /* bytes (whole) or tokens (heads) */
};

/*
 * STATUS_INVALID with a text that names both values: the geometries differ, a run lies outside of
 * its pool, or the page counts differ.
 */
enum status plan_begin(struct plan *plan, const struct plan_side *from, const struct plan_side *to,
                       uint64_t piece_bytes_max, struct status_detail *out_detail);

/* The next piece; false when there is none. */
bool plan_next(struct plan *plan, struct plan_piece *out_piece);

#endif
