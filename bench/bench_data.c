/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends are driven by this one thread, so a figure holds the work of both. */
#include "bench.h"
#include "fabric/data.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 512u
#define ROUND_PAGES 256u
#define WRITES 8u /* a round; each ROUND_PAGES / WRITES pages */

static const struct sm_geometry geometry = {16, 8, 8, 256, 2, 1, 0, 0, 0};

struct ends {
    struct data *data[2];
    unsigned char *pool[2];
    struct pool_layout layout;
};

static void must(enum status status, const struct status_detail *detail)
{
    if (status != STATUS_OK) {
        bench_fail("data", detail->text);
    }
}

static void open_ends(struct ends *ends, const char *provider)
{
    struct status_detail detail;
    struct data_endpoint endpoint[2];
    const struct data_options options = {provider, "127.0.0.1", 0, 0, 0, false};
    must(pool_layout_make(&geometry, 1, PAGES, 4, 64, &ends->layout, &detail), &detail);
    for (uint32_t i = 0; i < 2; i++) {
        ends->pool[i] = mmap(NULL, ends->layout.bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (ends->pool[i] == MAP_FAILED) {
            bench_fail("data", "no memory for the pools");
        }
        must(data_open(&options, &ends->data[i], &detail), &detail);
        must(data_pool_add(ends->data[i], 0, ends->pool[i], &ends->layout, &detail), &detail);
        must(data_link_open(ends->data[i], 0, 1, &endpoint[i], &detail), &detail);
    }
    for (uint32_t i = 0; i < 2; i++) {
        must(data_link_connect(ends->data[i], 0, 1, 1, &endpoint[1u - i], &detail), &detail);
    }
}

/* Scattered single pages on the sending side, as a paged allocator gives them. */
static double transfer(struct ends *ends)
{
    struct sm_run from[ROUND_PAGES];
    struct data_result results[16];
    const uint32_t each = ROUND_PAGES / WRITES;
    uint32_t done = 0;
    for (uint32_t i = 0; i < ROUND_PAGES; i++) {
        from[i] = (struct sm_run){(i * 37u) % PAGES, 1};
    }
    const uint64_t start = bench_now_ns();
    for (uint32_t w = 0; w < WRITES; w++) {
        const struct sm_run to = {w * each, each};
        const struct data_write write = {
            w + 1u,   7,           0,          1, 0, 0, {from + (size_t)w * each, each},
            {&to, 1}, SM_AUX_NONE, SM_AUX_NONE};
        if (data_write(ends->data[0], &write) != STATUS_OK) {
            bench_fail("data", "a write is refused");
        }
    }
    while (done < WRITES) {
        const uint32_t got = data_poll(ends->data[0], results, 16);
        for (uint32_t i = 0; i < got; i++) {
            if (results[i].code != 0) {
                bench_fail("data", results[i].text);
            }
        }
        done += got;
        (void)data_poll(ends->data[1], results, 16);
        if (bench_now_ns() - start > UINT64_C(60000000000)) {
            bench_fail("data", "writes do not end within a minute");
        }
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

static double copy(const struct ends *ends, size_t page_bytes)
{
    const uint64_t start = bench_now_ns();
    for (uint32_t i = 0; i < ROUND_PAGES; i++) {
        memcpy(ends->pool[1] + i * page_bytes,
               ends->pool[0] + (size_t)((i * 37u) % PAGES) * page_bytes, page_bytes);
    }
    return (double)(bench_now_ns() - start) / 1e9;
}

void bench_data(const char *provider)
{
    struct ends ends;
    double rate[BENCH_ROUNDS];
    double ratio[BENCH_ROUNDS];
    const size_t page_bytes = (size_t)geometry.page_tokens * geometry.layers * geometry.kv_heads *
                              geometry.item_bytes * geometry.planes;
    open_ends(&ends, provider);
    (void)transfer(&ends); /* connects */
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        const double bare = copy(&ends, page_bytes);
        const double seconds = transfer(&ends);
        rate[round] = (double)(ROUND_PAGES * page_bytes) / seconds / (double)(1u << 30);
        ratio[round] = bare / seconds;
    }
    printf("data     %10.2f GiB/s by %s, both ends on one thread, %.2f of memcpy\n",
           bench_median(rate), provider, bench_median(ratio));
    for (uint32_t i = 0; i < 2; i++) {
        data_close(ends.data[i]);
        (void)munmap(ends.pool[i], ends.layout.bytes);
    }
}
