/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a rank's pool lie: one rule for the engine that allocates it, the node that
 * maps it and the planner that writes between two of them.
 *
 * Layer: pure arithmetic.
 *
 * Layout: region after region (layer 0 plane 0, layer 0 plane 1, layer 1 plane 0, ..., from the
 * pool's first layer on), each an array of `pages` pages; a page of a region holds page_tokens
 * tokens, a token heads_of_rank heads, a head item_bytes bytes. Metadata slots follow, each
 * aux_bytes rounded up to 64.
 *
 * Limits: everything is checked to fit 2^46 bytes, far from overflow.
 */
#ifndef SCHEMAS_POOL_LAYOUT_H
#define SCHEMAS_POOL_LAYOUT_H

#include "schemas/status.h"
#include "statemachine/sm_types.h"

struct pool_layout {
    struct sm_geometry geometry;
    uint32_t ranks; /* of the engine: TP size x stages */
    uint32_t pages;
    uint32_t aux_slots;
    uint32_t regions;      /* layers of this pool x planes */
    uint32_t heads;        /* of one rank: at least 1, replicated when the TP size is larger */
    uint64_t token_bytes;  /* of one rank in one region */
    uint64_t page_bytes;   /* in one region */
    uint64_t region_bytes; /* pages x page_bytes */
    uint64_t aux_offset;   /* of slot 0 from the start of the pool */
    uint64_t aux_stride;
    uint64_t bytes; /* the whole pool */
};

/*
 * Computes the layout. STATUS_INVALID, with a text that names the field: a field is 0 or out of
 * range, or kv_heads and ranks do not divide each other.
 */
enum status pool_layout_make(const struct sm_geometry *geometry, uint32_t ranks, uint32_t pages,
                             uint32_t aux_slots, uint32_t aux_bytes, struct pool_layout *out_layout,
                             struct status_detail *out_detail);

#endif
