/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a pool. */
#include "schemas/pool_layout.h"

#include "statemachine/sm_geometry.h"

/* Far above every real pool, far below overflow of any product below. */
#define POOL_BYTES_MAX (UINT64_C(1) << 46)

static enum status check_field(const char *name, uint64_t value, uint64_t most,
                               struct status_detail *out_detail)
{
    if (value < 1u || value > most) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "geometry: %s is %llu, must be between 1 and %llu", name,
                           (unsigned long long)value, (unsigned long long)most);
    }
    return STATUS_OK;
}

enum status pool_layout_make(const struct sm_geometry *g, uint32_t ranks, uint32_t pages,
                             uint32_t aux_slots, uint32_t aux_bytes, struct pool_layout *out,
                             struct status_detail *out_detail)
{
    struct sm_share share;
    TRY(check_field("page_tokens", g->page_tokens, 1u << 16, out_detail));
    TRY(check_field("layers", g->layers, 1u << 12, out_detail));
    TRY(check_field("kv_heads", g->kv_heads, 1u << 12, out_detail));
    TRY(check_field("item_bytes", g->item_bytes, 1u << 20, out_detail));
    TRY(check_field("planes", g->planes, 2u, out_detail));
    TRY(check_field("ranks", ranks, SM_RANKS_MAX, out_detail));
    const uint32_t stages = g->stages == 0 ? 1u : g->stages;
    if (ranks % stages != 0) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "geometry: %u ranks are not a multiple of %u stages", ranks, stages);
    }
    if (g->layer_first >= g->layers || g->layer_count > g->layers - g->layer_first) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "geometry: layer_count %u from layer_first %u on, of %u layers",
                           g->layer_count, g->layer_first, g->layers);
    }
    if (!sm_geometry_share(g, ranks, 0, &share)) {
        return status_fail(STATUS_INVALID, out_detail, 0,
                           "geometry: %u kv_heads cannot be shared by %u ranks", g->kv_heads,
                           ranks / stages);
    }
    out->geometry = *g;
    out->ranks = ranks;
    out->pages = pages;
    out->aux_slots = aux_slots;
    out->regions = share.layers * g->planes;
    out->heads = share.heads;
    out->token_bytes = (uint64_t)out->heads * g->item_bytes;
    out->page_bytes = out->token_bytes * g->page_tokens;
    if (pages > POOL_BYTES_MAX / out->page_bytes ||
        (uint64_t)pages * out->page_bytes > POOL_BYTES_MAX / out->regions) {
        return status_fail(STATUS_INVALID, out_detail, 0, "geometry: %u pages are too large a pool",
                           pages);
    }
    out->region_bytes = (uint64_t)pages * out->page_bytes;
    out->aux_offset = (out->region_bytes * out->regions + 63u) / 64u * 64u;
    out->aux_stride = ((uint64_t)aux_bytes + 63u) / 64u * 64u;
    out->bytes = out->aux_offset + out->aux_stride * aux_slots;
    return STATUS_OK;
}
