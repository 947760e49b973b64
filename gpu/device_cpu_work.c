/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of a job on the CPU: pages are walked, and what lies side by side on both sides is done at
 * once. Runs that follow each other on both sides are copied as one.
 */
#include "device_cpu.h"

#include <string.h>

#define PART_BYTES (256u << 10)
/* From here on a destination would only push other data out of the caches. */
#define STREAM_JOB_BYTES ((uint64_t)4u << 20)
#define STREAM_RUN_BYTES 256u
/* No processor foresees where the next page lies: how far ahead is asked for it, and how much. */
#define AHEAD_BYTES 2048u
#define AHEAD_PAGE_BYTES 512u
#define LINE_BYTES 64u

struct cpu_split cpu_split_of(const struct device_op *op)
{
    const struct kernel_job *job = &op->kernel;
    struct cpu_split split = {0};
    if (op->work == DEVICE_WORK_NONE) {
        return split;
    }
    if (op->work == DEVICE_WORK_MOVE) {
        const uint64_t parts = (op->bytes + PART_BYTES * 4u - 1u) / (PART_BYTES * 4u);
        split.parts = parts > UINT32_MAX ? UINT32_MAX : (uint32_t)parts;
        return split;
    }
    const uint64_t row = (uint64_t)job->heads * job->cell_bytes;
    const uint64_t tokens = row >= PART_BYTES ? 1u : PART_BYTES / row;
    split.chunk_tokens = tokens < job->tokens ? (uint32_t)tokens : job->tokens;
    split.region_chunks = (job->tokens + split.chunk_tokens - 1u) / split.chunk_tokens;
    split.chunks = (uint64_t)split.region_chunks * job->regions;
    const uint64_t each = PART_BYTES / (row * split.chunk_tokens);
    uint64_t part = each == 0 ? 1u : each;
    while (split.chunks / part > UINT32_MAX / 2u) {
        part *= 2u;
    }
    split.part_chunks = (uint32_t)part;
    split.parts = (uint32_t)((split.chunks + part - 1u) / part);
    split.stream = row * job->tokens * job->regions >= STREAM_JOB_BYTES;
    return split;
}

/* ---- places
 * ---------------------------------------------------------------------------------------- */

struct place {
    unsigned char *at; /* head 0 of the slice */
    uint32_t tokens;   /* that follow in its page */
};

static struct place place_of(const struct kernel_view *view, uint32_t region, uint32_t token)
{
    const uint64_t *bases = (const uint64_t *)(uintptr_t)view->bases;
    const uint32_t *slots = (const uint32_t *)(uintptr_t)view->slots;
    const uint32_t t = view->token_first + token * view->token_step;
    const uint32_t page = kernel_quotient(t, &view->page_tokens);
    const uint32_t in = t - page * view->page_tokens.value;
    const uint64_t slot = slots == NULL ? page : slots[page];
    const uint64_t address = bases[region] + slot * view->slot_stride + in * view->token_stride +
                             view->head_first * view->head_stride;
    const struct place place = {(unsigned char *)(uintptr_t)address,
                                view->token_step == 1 ? view->page_tokens.value - in : 1u};
    return place;
}

/* ---- copies
 * ---------------------------------------------------------------------------------------- */

struct copier {
    unsigned char *to; /* the run that is not copied yet */
    const unsigned char *from;
    size_t bytes;
    bool stream;
    const struct cpu_vector *vector;
};

static void copier_flush(struct copier *copier)
{
    if (copier->stream && copier->bytes >= STREAM_RUN_BYTES) {
        copier->vector->stream(copier->to, copier->from, copier->bytes);
    } else if (copier->bytes > 0) {
        memcpy(copier->to, copier->from, copier->bytes);
    }
    copier->bytes = 0;
}

static inline void copier_run(struct copier *copier, unsigned char *to, const unsigned char *from,
                              size_t bytes)
{
    if (copier->bytes > 0) {
        if (from == copier->from + copier->bytes && to == copier->to + copier->bytes) {
            copier->bytes += bytes;
            return;
        }
        copier_flush(copier);
    }
    copier->to = to;
    copier->from = from;
    copier->bytes = bytes;
}

/* Cells of one page on each side. */
static void cells_copy(struct copier *copier, const struct cpu_cells *c)
{
    const uint64_t row = (uint64_t)c->heads * c->cell_bytes;
    const bool rows =
        c->heads == 1 || (c->from_head == c->cell_bytes && c->to_head == c->cell_bytes);
    if (rows && (c->tokens == 1 || (c->from_token == row && c->to_token == row))) {
        copier_run(copier, c->to, c->from, row * c->tokens);
        return;
    }
    const bool columns = c->from_token == c->cell_bytes && c->to_token == c->cell_bytes;
    const uint32_t outer = columns ? c->heads : c->tokens;
    const uint32_t inner = columns || rows ? 1u : c->heads;
    const uint64_t bytes = columns ? (uint64_t)c->tokens * c->cell_bytes
                           : rows  ? row
                                   : c->cell_bytes;
    for (uint32_t a = 0; a < outer; a++) {
        unsigned char *to = c->to + a * (columns ? c->to_head : c->to_token);
        const unsigned char *from = c->from + a * (columns ? c->from_head : c->from_token);
        for (uint32_t b = 0; b < inner; b++) {
            copier_run(copier, to + b * c->to_head, from + b * c->from_head, bytes);
        }
    }
}

/* ---- the other works
 * ------------------------------------------------------------------------------------ */

static void cells_poison(const struct cpu_cells *c)
{
    for (uint32_t t = 0; t < c->tokens; t++) {
        for (uint32_t h = 0; h < c->heads; h++) {
            memset(c->to + t * c->to_token + h * c->to_head, 0xff, c->cell_bytes);
        }
    }
}

static uint64_t cells_canary(const struct cpu_cells *c)
{
    static const unsigned char poison[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                             0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    uint64_t gone = 0;
    for (uint32_t t = 0; t < c->tokens; t++) {
        for (uint32_t h = 0; h < c->heads; h++) {
            const unsigned char *cell = c->from + t * c->from_token + h * c->from_head;
            for (uint32_t at = 0; at < c->cell_bytes; at += 16u) {
                const uint32_t left = c->cell_bytes - at;
                gone += memcmp(cell + at, poison, left < 16u ? left : 16u) != 0 ? 1u : 0u;
            }
        }
    }
    return gone;
}

static uint64_t cells_do(const struct device_op *op, struct copier *copier,
                         const struct cpu_cells *cells)
{
    switch (op->work) {
    case DEVICE_WORK_COPY:
        cells_copy(copier, cells);
        return 0;
    case DEVICE_WORK_COPY_SUM:
    case DEVICE_WORK_SUM:
        return copier->vector->sum(cells);
    case DEVICE_WORK_POISON:
        cells_poison(cells);
        return 0;
    case DEVICE_WORK_CANARY:
        return cells_canary(cells);
    case DEVICE_WORK_NONE:
    case DEVICE_WORK_MOVE:
        break;
    }
    return 0;
}

/* Asks for the beginnings of the pages from token `at` on, up to `until`. Returns where it stopped.
 */
static uint32_t ask_ahead(const struct kernel_job *job, uint32_t region, uint32_t at,
                          uint32_t until)
{
    const uint64_t row = (uint64_t)job->heads * job->cell_bytes;
    while (at < until) {
        const struct place place = place_of(&job->from, region, at);
        const uint64_t bytes = row * place.tokens;
        for (uint32_t b = 0; b < AHEAD_PAGE_BYTES && b < bytes; b += LINE_BYTES) {
            __builtin_prefetch(place.at + b);
        }
        at += place.tokens < until - at ? place.tokens : until - at;
    }
    return at;
}

static uint64_t chunk_do(const struct device_op *op, struct copier *copier, uint32_t region,
                         uint32_t first, uint32_t end)
{
    const struct kernel_job *job = &op->kernel;
    const uint32_t bits = device_work_bits(op->work);
    struct cpu_cells cells = {.from_token = job->from.token_stride * job->from.token_step,
                              .from_head = job->from.head_stride,
                              .to_token = job->to.token_stride * job->to.token_step,
                              .to_head = job->to.head_stride,
                              .lin_token = job->token_at_step * SUM_TOKEN,
                              .k1 = job->k1,
                              .heads = job->heads,
                              .cell_bytes = job->cell_bytes,
                              .stream = copier->stream};
    const uint64_t row = (uint64_t)job->heads * job->cell_bytes;
    const uint32_t far = row >= AHEAD_BYTES ? 1u : (uint32_t)(AHEAD_BYTES / row);
    uint32_t asked = first;
    uint64_t sum = 0;
    for (uint32_t n = first; n < end; n += cells.tokens) {
        cells.tokens = end - n;
        if (bits & KERNEL_READS) {
            const struct place from = place_of(&job->from, region, n);
            cells.from = from.at;
            cells.tokens = from.tokens < cells.tokens ? from.tokens : cells.tokens;
            const uint32_t next = n + cells.tokens;
            asked = asked < next ? next : asked;
            asked = ask_ahead(job, region, asked, end - next < far ? end : next + far);
        }
        if (bits & KERNEL_WRITES) {
            const struct place to = place_of(&job->to, region, n);
            cells.to = to.at;
            cells.tokens = to.tokens < cells.tokens ? to.tokens : cells.tokens;
        }
        cells.lin = sum_lin(job->k0, job->region_at + region, job->token_at, job->head_at) +
                    n * cells.lin_token;
        sum += cells_do(op, copier, &cells);
    }
    return sum;
}

/* Streamed stores become visible to whoever is told that the part is done. */
static void stores_settle(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

uint64_t cpu_part_do(const struct device_op *op, const struct cpu_split *split, uint32_t part,
                     const struct cpu_vector *vector)
{
    struct copier copier = {.stream = split->stream, .vector = vector};
    uint64_t sum = 0;
    if (op->work == DEVICE_WORK_MOVE) {
        const size_t each = (op->bytes + split->parts - 1u) / split->parts;
        const size_t at = (size_t)part * each;
        const size_t bytes = at >= op->bytes ? 0 : op->bytes - at;
        if (bytes > 0) {
            memcpy((void *)(uintptr_t)(op->to + at), (const void *)(uintptr_t)(op->from + at),
                   bytes < each ? bytes : each);
        }
        return 0;
    }
    const uint64_t first = (uint64_t)part * split->part_chunks;
    for (uint64_t c = first; c < first + split->part_chunks && c < split->chunks; c++) {
        const uint32_t region = (uint32_t)(c / split->region_chunks);
        const uint32_t token = (uint32_t)(c % split->region_chunks) * split->chunk_tokens;
        const uint32_t left = op->kernel.tokens - token;
        sum += chunk_do(op, &copier, region, token,
                        token + (left < split->chunk_tokens ? left : split->chunk_tokens));
    }
    copier_flush(&copier);
    stores_settle();
    return sum;
}
