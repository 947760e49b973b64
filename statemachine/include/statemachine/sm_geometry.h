/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers and heads of the model a rank's pool holds, and which of them a prefill rank writes
 * into a decode rank's pool: the one rule for the machine that admits a room, the layout of a pool
 * and the planner.
 *
 * Layer: pure arithmetic, inline so that schemas/ needs no more of the machine than its types.
 * Total: a geometry may come from a peer.
 *
 * Ranks: an engine has ranks = TP size x stages of them, numbered so that the stages of one TP rank
 * follow each other: rank = TP rank x stages + stage. Heads are shared by the TP ranks; with more
 * TP ranks than heads, neighbours hold the same head. A pool holds layer_count layers from
 * layer_first on.
 */
#ifndef STATEMACHINE_SM_GEOMETRY_H
#define STATEMACHINE_SM_GEOMETRY_H

#include "statemachine/sm_types.h"

#include <stdbool.h>
#include <stdint.h>

/* Part of a model; nothing when layers or heads is 0. */
struct sm_share {
    uint32_t layer_first;
    uint32_t layers;
    uint32_t head_first;
    uint32_t heads;
};

static inline uint32_t sm_geometry_stages(const struct sm_geometry *g)
{
    return g->stages == 0 ? 1u : g->stages;
}

/* How many TP ranks hold the same head. */
static inline uint32_t sm_geometry_copies(const struct sm_geometry *g, uint32_t tp_ranks)
{
    return tp_ranks > g->kv_heads ? tp_ranks / g->kv_heads : 1u;
}

/* What the pool of a rank holds; false: no rank of so many can have such a pool. */
static inline bool sm_geometry_share(const struct sm_geometry *g, uint32_t ranks, uint32_t rank,
                                     struct sm_share *out)
{
    const uint32_t stages = sm_geometry_stages(g);
    if (ranks == 0 || rank >= ranks || ranks % stages != 0 || g->kv_heads == 0 ||
        g->layer_first >= g->layers || g->layer_count > g->layers - g->layer_first) {
        return false;
    }
    const uint32_t tp_ranks = ranks / stages;
    if (g->kv_heads % tp_ranks != 0 && tp_ranks % g->kv_heads != 0) {
        return false;
    }
    out->layer_first = g->layer_first;
    out->layers = g->layer_count == 0 ? g->layers - g->layer_first : g->layer_count;
    out->heads = g->kv_heads > tp_ranks ? g->kv_heads / tp_ranks : 1u;
    out->head_first = rank / stages / sm_geometry_copies(g, tp_ranks) * out->heads;
    return true;
}

/* Whether both are of one model, kept in the same way: everything but the layers they hold. */
static inline bool sm_geometry_alike(const struct sm_geometry *a, const struct sm_geometry *b)
{
    return a->page_tokens == b->page_tokens && a->layers == b->layers &&
           a->kv_heads == b->kv_heads && a->item_bytes == b->item_bytes && a->planes == b->planes &&
           a->dtype == b->dtype;
}

struct sm_geometry_rank {
    const struct sm_geometry *geometry;
    uint32_t ranks;
    uint32_t rank;
};

/* Of the sources of one destination that hold the same heads, the lowest TP rank writes them. */
static inline bool sm_geometry_writes(const struct sm_geometry_rank *from,
                                      const struct sm_geometry_rank *to)
{
    const uint32_t from_ranks = from->ranks / sm_geometry_stages(from->geometry);
    const uint32_t to_ranks = to->ranks / sm_geometry_stages(to->geometry);
    const uint32_t copies = sm_geometry_copies(from->geometry, from_ranks);
    const uint32_t rank = from->rank / sm_geometry_stages(from->geometry);
    if (from_ranks <= to_ranks) {
        return true; /* one TP rank is the source */
    }
    const uint32_t first = to->rank / sm_geometry_stages(to->geometry) * (from_ranks / to_ranks);
    return rank <= first || rank / copies != (rank - 1u) / copies;
}

static inline uint32_t sm_geometry_overlap(uint32_t a_first, uint32_t a_count, uint32_t b_first,
                                           uint32_t b_count, uint32_t *out_first)
{
    const uint32_t first = a_first > b_first ? a_first : b_first;
    const uint32_t a_end = a_first + a_count;
    const uint32_t b_end = b_first + b_count;
    const uint32_t end = a_end < b_end ? a_end : b_end;
    *out_first = first;
    return end > first ? end - first : 0u;
}

/*
 * What `from` writes into `to`: what both hold, except the heads that a lower TP rank of the
 * destination's sources holds as well. Each byte of a destination has one writer. False: one of the
 * two makes no sense, or they are not alike.
 */
static inline bool sm_geometry_written(const struct sm_geometry_rank *from,
                                       const struct sm_geometry_rank *to, struct sm_share *out)
{
    struct sm_share a;
    struct sm_share b;
    if (!sm_geometry_alike(from->geometry, to->geometry) ||
        !sm_geometry_share(from->geometry, from->ranks, from->rank, &a) ||
        !sm_geometry_share(to->geometry, to->ranks, to->rank, &b)) {
        return false;
    }
    out->layers =
        sm_geometry_overlap(a.layer_first, a.layers, b.layer_first, b.layers, &out->layer_first);
    out->heads =
        sm_geometry_overlap(a.head_first, a.heads, b.head_first, b.heads, &out->head_first);
    if (!sm_geometry_writes(from, to)) {
        out->heads = 0;
    }
    return true;
}

#endif
