/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a job in the caller's terms to one that a kernel can be given: checked against the memory
 * that it names, with its lists in the queue's ring. Nothing after this can leave that memory.
 */
#include "device_private.h"

#include <string.h>

#define TABLE_ALIGN 16u
#define BLOCKS_DEFAULT 32u

__extension__ typedef unsigned __int128 wide;

/* What of a view a job uses. */
struct span {
    uint32_t page_first; /* of the view */
    uint32_t pages;
    uint32_t token_first; /* in page_first */
    uint32_t token_last;  /* in the last page */
    uint64_t base_shift;  /* a dense view's first page is its page_first */
    uint64_t end;         /* bytes behind a region's offset that the job may touch */
    uint32_t width;
};

static uint32_t width_of(uint64_t bits)
{
    return bits % 16u == 0 ? 16u : bits % 4u == 0 ? 4u : 1u;
}

static uint32_t slot_max(const uint32_t *pages, uint32_t count)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < count; i++) {
        max = pages[i] > max ? pages[i] : max;
    }
    return max;
}

/* Pages but the last one count as whole: a pool consists of whole pages. */
static bool span_end(const struct device_slice *slice, const struct device_view *view,
                     struct span *span)
{
    const uint32_t *pages = view->pages == NULL ? NULL : view->pages + span->page_first;
    const uint32_t before = span->pages - 1u;
    const wide row = (wide)(view->head_first + (uint64_t)slice->heads - 1u) * view->head_stride +
                     slice->cell_bytes;
    const uint64_t last = pages == NULL ? span->page_first + (uint64_t)before : pages[before];
    wide end = (wide)last * view->slot_stride + (wide)span->token_last * view->token_stride + row;
    if (before > 0) {
        const uint64_t max = pages == NULL ? last - 1u : slot_max(pages, before);
        const wide whole =
            (wide)max * view->slot_stride + (wide)(view->page_tokens - 1u) * view->token_stride;
        end = whole + row > end ? whole + row : end;
    }
    if (end > UINT64_MAX) {
        return false;
    }
    span->end = (uint64_t)end;
    return true;
}

static enum status view_check(struct device_queue *queue, const struct device_slice *slice,
                              const struct device_view *view, const char *side, struct span *span)
{
    struct status_detail *detail = &queue->detail;
    const uint64_t last =
        view->token_first + (uint64_t)(slice->tokens - 1u) * (uint64_t)view->token_step;
    if (view->page_tokens == 0 || view->token_step == 0 || view->regions == NULL ||
        last > UINT32_MAX || slice->heads > UINT32_MAX - view->head_first) {
        return status_fail(STATUS_INVALID, detail, 0,
                           "the %s view: page_tokens, token_step or regions is 0, or its tokens or "
                           "heads go beyond 32 bits",
                           side);
    }
    span->page_first = view->token_first / view->page_tokens;
    span->pages = (uint32_t)(last / view->page_tokens) - span->page_first + 1u;
    span->token_first = view->token_first % view->page_tokens;
    span->token_last = (uint32_t)(last % view->page_tokens);
    if (view->pages != NULL && span->page_first + (uint64_t)span->pages > view->page_count) {
        return status_fail(STATUS_INVALID, detail, 0,
                           "the %s view: token %llu is in page %llu, and the list has %u", side,
                           (unsigned long long)last, (unsigned long long)(last / view->page_tokens),
                           view->page_count);
    }
    span->base_shift = view->pages == NULL ? span->page_first * view->slot_stride : 0;
    span->width = width_of(view->slot_stride | view->token_stride | view->head_stride);
    if (!span_end(slice, view, span)) {
        return status_fail(STATUS_INVALID, detail, 0, "the %s view: strides beyond 64 bits", side);
    }
    for (uint32_t r = 0; r < slice->regions; r++) {
        const struct device_region *region = &view->regions[r];
        if (region->memory == NULL || region->memory->device != queue->device ||
            region->offset > region->memory->bytes ||
            span->end > region->memory->bytes - region->offset) {
            return status_fail(STATUS_INVALID, detail, 0,
                               "the %s view: region %u ends %llu bytes behind offset %llu, and its "
                               "memory has %zu bytes",
                               side, r, (unsigned long long)span->end,
                               (unsigned long long)region->offset,
                               region->memory == NULL ? 0 : region->memory->bytes);
        }
        const uint32_t width = width_of(region->memory->address + region->offset);
        span->width = width < span->width ? width : span->width;
    }
    return STATUS_OK;
}

static struct kernel_divisor divisor_of(uint32_t value)
{
    struct kernel_divisor d = {UINT64_MAX / value + 1u, value, 32};
    if ((value & (value - 1u)) == 0) {
        d.shift = (uint32_t)__builtin_ctz(value);
    }
    return d;
}

/* No group of tokens crosses a page: groups are aligned to pages, or there is one page. */
static bool view_plain(const struct device_view *view, const struct span *span)
{
    return view->token_step == 1 && (span->pages == 1 || (view->page_tokens % KERNEL_GROUP == 0 &&
                                                          span->token_first % KERNEL_GROUP == 0));
}

static enum status slice_take(struct device_queue *queue, const struct device_job *job,
                              struct kernel_job *kernel)
{
    const struct device_slice *slice = &job->slice;
    const uint64_t units = ((uint64_t)slice->cell_bytes + 15u) / 16u;
    if (units > DEVICE_ROW_UNITS_MAX || units * slice->heads > DEVICE_ROW_UNITS_MAX ||
        slice->tokens > DEVICE_TOKENS_MAX) {
        return status_fail(STATUS_TOO_LARGE, &queue->detail, 0,
                           "a slice of %u tokens of %u heads of %u bytes", slice->tokens,
                           slice->heads, slice->cell_bytes);
    }
    kernel->k0 = job->key.k0;
    kernel->k1 = job->key.k1;
    kernel->regions = slice->regions;
    kernel->tokens = slice->tokens;
    kernel->heads = slice->heads;
    kernel->cell_bytes = slice->cell_bytes;
    kernel->region_at = slice->region_at;
    kernel->token_at = slice->token_at;
    kernel->token_at_step = slice->token_at_step == 0 ? 1u : slice->token_at_step;
    kernel->head_at = slice->head_at;
    kernel->row_units = (uint32_t)units * slice->heads;
    const uint32_t lanes = kernel->row_units < KERNEL_THREADS ? kernel->row_units : KERNEL_THREADS;
    kernel->rows = KERNEL_THREADS / lanes;
    kernel->tile_tokens = kernel->rows * KERNEL_GROUP;
    kernel->parts = (kernel->row_units + lanes - 1u) / lanes;
    const uint32_t tiles = (slice->tokens + kernel->tile_tokens - 1u) / kernel->tile_tokens;
    /* A thread steps over the tiles by up to as many blocks as there are tiles. */
    if (kernel->parts > KERNEL_ROW_PARTS_MAX || (uint64_t)tiles * slice->regions > INT32_MAX) {
        return status_fail(STATUS_TOO_LARGE, &queue->detail, 0,
                           "a slice of %u tokens in %u regions of %u heads of %u bytes",
                           slice->tokens, slice->regions, slice->heads, slice->cell_bytes);
    }
    kernel->tiles = tiles * slice->regions;
    kernel->cell_units = divisor_of((uint32_t)units);
    kernel->row_lanes = divisor_of(lanes);
    kernel->region_tiles = divisor_of(tiles);
    return STATUS_OK;
}

/* ---- the ring
 * ------------------------------------------------------------------------------------------ */

static enum status ring_take(struct device_queue *queue, struct device_op *op, size_t bytes)
{
    if (bytes > queue->table_bytes) {
        return status_fail(STATUS_TOO_LARGE, &queue->detail, 0,
                           "the lists of a job take %zu bytes, and the queue was opened with %zu",
                           bytes, queue->table_bytes);
    }
    if (queue->done == queue->last) {
        queue->ring_head = queue->ring_tail = 0;
        queue->ring_full = false;
    }
    size_t at = queue->ring_head;
    size_t room = queue->ring_tail - at;
    if (queue->ring_full) {
        room = 0;
    } else if (at >= queue->ring_tail) {
        room = queue->table_bytes - at;
        if (room < bytes) {
            at = 0;
            room = queue->ring_tail;
        }
    }
    if (room < bytes) {
        return status_fail(STATUS_AGAIN, &queue->detail, 0,
                           "%zu bytes of lists do not fit beside those of jobs in flight", bytes);
    }
    queue->ring_head = at + bytes == queue->table_bytes ? 0 : at + bytes;
    queue->ring_full = queue->ring_head == queue->ring_tail;
    op->table = at;
    op->table_bytes = bytes;
    op->ring_end = queue->ring_head;
    return STATUS_OK;
}

void device_job_drop(struct device_queue *queue, const struct device_op *op)
{
    if (op->table_bytes > 0) {
        queue->ring_tail = op->ring_end;
        queue->ring_full = false;
    }
}

static size_t lists_bytes(const struct device_slice *slice, const struct device_view *view,
                          const struct span *span)
{
    const size_t bytes = (size_t)slice->regions * sizeof(uint64_t) +
                         (view->pages == NULL ? 0 : (size_t)span->pages * sizeof(uint32_t));
    return (bytes + TABLE_ALIGN - 1u) / TABLE_ALIGN * TABLE_ALIGN;
}

/* Writes the lists of a view at `at` in the ring, and the view that finds them there. */
static void view_take(struct device_queue *queue, const struct device_slice *slice,
                      const struct device_view *view, const struct span *span, size_t at,
                      struct kernel_view *out)
{
    const size_t bases_bytes = (size_t)slice->regions * sizeof(uint64_t);
    for (uint32_t r = 0; r < slice->regions; r++) {
        const uint64_t base =
            view->regions[r].memory->address + view->regions[r].offset + span->base_shift;
        memcpy(queue->tables + at + r * sizeof base, &base, sizeof base);
    }
    out->bases = queue->tables_device + at;
    out->slots = 0;
    if (view->pages != NULL) {
        memcpy(queue->tables + at + bases_bytes, view->pages + span->page_first,
               (size_t)span->pages * sizeof(uint32_t));
        out->slots = out->bases + bases_bytes;
    }
    out->slot_stride = view->slot_stride;
    out->token_stride = view->token_stride;
    out->head_stride = view->head_stride;
    out->page_tokens = divisor_of(view->page_tokens);
    out->token_first = span->token_first;
    out->token_step = view->token_step;
    out->head_first = view->head_first;
}

static void view_name(const struct device_slice *slice, const struct device_view *view,
                      uint64_t serial)
{
    for (uint32_t r = 0; r < slice->regions; r++) {
        /* Of its bookkeeping, not of its bytes, which is what const is about. */
        struct device_memory *memory = (struct device_memory *)(uintptr_t)view->regions[r].memory;
        memory->named = serial;
    }
}

enum status device_job_take(struct device_queue *queue, const struct device_job *job,
                            enum device_work work, struct device_op *op)
{
    const struct device_slice *slice = &job->slice;
    const uint32_t bits = device_work_bits(work);
    struct span from = {0};
    struct span to = {0};
    size_t from_bytes = 0;
    size_t to_bytes = 0;
    op->work = work;
    op->out_sum = job->out_sum;
    op->table_bytes = 0;
    if (slice->regions == 0 || slice->tokens == 0 || slice->heads == 0 || slice->cell_bytes == 0) {
        op->work = DEVICE_WORK_NONE;
        return STATUS_OK;
    }
    memset(&op->kernel, 0, sizeof op->kernel);
    TRY(slice_take(queue, job, &op->kernel));
    op->width = width_of(slice->cell_bytes);
    op->plain = true;
    if (bits & KERNEL_READS) {
        TRY(view_check(queue, slice, &job->from, "source", &from));
        op->width = from.width < op->width ? from.width : op->width;
        op->plain = view_plain(&job->from, &from);
        from_bytes = lists_bytes(slice, &job->from, &from);
    }
    if (bits & KERNEL_WRITES) {
        TRY(view_check(queue, slice, &job->to, "destination", &to));
        op->width = to.width < op->width ? to.width : op->width;
        op->plain = op->plain && view_plain(&job->to, &to);
        to_bytes = lists_bytes(slice, &job->to, &to);
    }
    TRY(ring_take(queue, op, TABLE_ALIGN + from_bytes + to_bytes));
    memset(queue->tables + op->table, 0, TABLE_ALIGN);
    op->kernel.sum = queue->tables_device + op->table;
    op->kernel.from.page_tokens = op->kernel.to.page_tokens = divisor_of(1);
    if (bits & KERNEL_READS) {
        view_take(queue, slice, &job->from, &from, op->table + TABLE_ALIGN, &op->kernel.from);
        view_name(slice, &job->from, op->serial);
    }
    if (bits & KERNEL_WRITES) {
        view_take(queue, slice, &job->to, &to, op->table + TABLE_ALIGN + from_bytes,
                  &op->kernel.to);
        view_name(slice, &job->to, op->serial);
    }
    op->blocks_max = job->blocks_max == 0 ? BLOCKS_DEFAULT : job->blocks_max;
    return STATUS_OK;
}
