/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_device. The device side by piece size: what lies side by side of one region in one
 * page. Pages are scattered over a pool of twice the payload; the dense side is one buffer. The
 * baseline moves the same number of bytes as one: memcpy, or the driver's copy within a GPU.
 *
 * On the CPU a figure is that of one thread in its own CPU time, so that neighbours on the machine
 * count for less; the last line is wall time with as many threads as there are.
 */
#include "bench.h"
#include "gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_BYTES ((size_t)64 << 20)
#define REGIONS 4u
#define CELL_BYTES 256u
#define REPEATS 4u /* of a GPU's jobs in one measurement */

struct stand {
    struct device *device;
    struct device_queue *queue;
    struct device_memory *pool;
    struct device_memory *dense;
    struct device_region pool_regions[REGIONS];
    struct device_region dense_regions[REGIONS];
    uint32_t *pages;
    bool host;    /* the baseline is memcpy */
    bool threads; /* wall time, not that of this thread */
};

static void must(enum status status, const struct status_detail *detail)
{
    if (status != STATUS_OK) {
        bench_fail("device", detail->text);
    }
}

static void stand_open(const struct device_options *options, struct stand *s)
{
    const struct device_queue_options defaults = {0, 0};
    struct status_detail detail;
    must(device_open(options, &s->device, &detail), &detail);
    must(device_queue_open(s->device, &defaults, &s->queue, &detail), &detail);
    must(device_memory_open(s->device, DEVICE_MEMORY_LOCAL, PAYLOAD_BYTES * 2u, &s->pool, &detail),
         &detail);
    must(device_memory_open(s->device, DEVICE_MEMORY_LOCAL, PAYLOAD_BYTES, &s->dense, &detail),
         &detail);
    s->host = device_memory_host(s->pool) != NULL;
    s->threads = device_facts(s->device)->threads != 1;
    s->pages = malloc(PAYLOAD_BYTES * 2u / REGIONS / CELL_BYTES * sizeof *s->pages);
    if (s->pages == NULL) {
        bench_fail("device", "no memory for the list of pages");
    }
    for (uint32_t r = 0; r < REGIONS; r++) {
        s->pool_regions[r] = (struct device_region){s->pool, PAYLOAD_BYTES * 2u / REGIONS * r};
        s->dense_regions[r] = (struct device_region){s->dense, PAYLOAD_BYTES / REGIONS * r};
    }
    if (s->host) {
        memset(device_memory_host(s->pool), 3, PAYLOAD_BYTES * 2u);
        memset(device_memory_host(s->dense), 4, PAYLOAD_BYTES);
    }
}

static void stand_close(struct stand *s)
{
    free(s->pages);
    device_queue_close(s->queue);
    (void)device_memory_close(s->pool);
    (void)device_memory_close(s->dense);
    device_close(s->device);
}

static uint64_t now(const struct stand *s)
{
    return s->threads ? bench_now_ns() : bench_thread_ns();
}

/* In the order of a linear congruence over the pool's slots: each once, none beside the one before.
 */
static struct device_job job_of(struct stand *s, uint32_t piece)
{
    const uint32_t heads = piece < 2u * CELL_BYTES ? 1u : 2u;
    const uint32_t page_tokens = piece / (heads * CELL_BYTES);
    const uint32_t pages = (uint32_t)(PAYLOAD_BYTES / REGIONS / piece);
    const uint32_t tokens = pages * page_tokens;
    struct device_job job = {.slice = {REGIONS, tokens, heads, CELL_BYTES, 0, 0, 1, 0}};
    uint32_t at = 1;
    for (uint32_t i = 0; i < pages; i++) {
        s->pages[i] = at;
        at = (at * 1664525u + 1013904223u) % (pages * 2u);
    }
    job.from = device_view_pages(s->pool_regions, s->pages, pages, page_tokens, heads, CELL_BYTES);
    job.to = device_view_dense(s->dense_regions, tokens, heads, CELL_BYTES);
    return job;
}

enum work { GATHER, SCATTER, GATHER_SUM, CHECKSUM, WORKS };

static double rate(struct stand *s, const struct device_job *gather, enum work work)
{
    struct device_job job = *gather;
    uint64_t sum;
    uint64_t event = 0;
    enum status status = STATUS_OK;
    if (work == SCATTER) {
        job.from = gather->to;
        job.to = gather->from;
    }
    job.out_sum = work == GATHER_SUM || work == CHECKSUM ? &sum : NULL;
    const uint32_t repeats = s->host ? 1u : REPEATS;
    const uint64_t start = now(s);
    for (uint32_t i = 0; i < repeats && status == STATUS_OK; i++) {
        status = work == CHECKSUM ? device_checksum(s->queue, &job, &event)
                                  : device_copy(s->queue, &job, &event);
    }
    if (status != STATUS_OK || device_wait(s->queue, event) != STATUS_OK) {
        bench_fail("device", device_queue_detail(s->queue)->text);
    }
    return (double)PAYLOAD_BYTES * repeats / (double)(now(s) - start);
}

static double baseline(struct stand *s)
{
    const struct device_region from = {s->pool, 0};
    const struct device_region to = {s->dense, 0};
    const uint64_t start = now(s);
    if (s->host) {
        memcpy(device_memory_host(s->dense), device_memory_host(s->pool), PAYLOAD_BYTES);
        return (double)PAYLOAD_BYTES / (double)(now(s) - start);
    }
    uint64_t event = 0;
    for (uint32_t i = 0; i < REPEATS; i++) {
        if (device_move(s->queue, &from, &to, PAYLOAD_BYTES, &event) != STATUS_OK) {
            bench_fail("device", device_queue_detail(s->queue)->text);
        }
    }
    if (device_wait(s->queue, event) != STATUS_OK) {
        bench_fail("device", device_queue_detail(s->queue)->text);
    }
    return (double)PAYLOAD_BYTES * REPEATS / (double)(now(s) - start);
}

static void bench_piece(struct stand *s, uint32_t piece)
{
    const struct device_job job = job_of(s, piece);
    double bare[BENCH_ROUNDS];
    double ratio[WORKS][BENCH_ROUNDS];
    double sums[BENCH_ROUNDS];
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        bare[round] = baseline(s);
        for (uint32_t w = 0; w < WORKS; w++) {
            const double got = rate(s, &job, (enum work)w);
            ratio[w][round] = got / bare[round];
            if (w == CHECKSUM) {
                sums[round] = got;
            }
        }
    }
    printf("device   pieces of %7u B: gather %.2f, scatter %.2f, gather and sum %.2f of %s "
           "(%.1f GB/s); checksum %.2f, %.1f GB/s\n",
           piece, bench_median(ratio[GATHER]), bench_median(ratio[SCATTER]),
           bench_median(ratio[GATHER_SUM]), s->host ? "memcpy" : "one copy", bench_median(bare),
           bench_median(ratio[CHECKSUM]), bench_median(sums));
}

static void bench_backend(const struct device_options *options, uint32_t smallest)
{
    struct stand s = {0};
    char line[512];
    stand_open(options, &s);
    device_describe(s.device, line, sizeof line);
    printf("device   %s\n", line);
    for (uint32_t piece = smallest; piece <= 256u << 10; piece *= 4u) {
        bench_piece(&s, piece);
    }
    stand_close(&s);
}

int main(void)
{
    const struct device_options one = {"cpu", 0, 1, NULL};
    const struct device_options best = {"auto", 0, 0, NULL};
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("median of %u rounds; a ratio is against the baseline in the same round\n",
           BENCH_ROUNDS);
    bench_backend(&one, 256);
    bench_backend(&best, 4096);
    return 0;
}
