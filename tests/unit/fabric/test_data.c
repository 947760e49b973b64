/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane over real providers: a writer in this process, a target in a child that only
 * drives its own side. Tries to break: bytes, fencing under a running writer, a target that dies,
 * bad orders.
 */
#include "fabric/data.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 64u

/* Shared by both processes. */
struct shared {
    struct data_endpoint writer;
    struct data_endpoint target;
    _Atomic int stage; /* 1 target is open, 2 writer is open, 3 fence, 4 fenced, 5 stop */
};

static const struct sm_geometry geometry = {16, 4, 8, 256, 2, 1, 0, 0, 0};

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(p, MAP_FAILED);
    return p;
}

static struct data *open_plane(const char *provider)
{
    const struct data_options options = {provider, "127.0.0.1", 16, 65536, 0, false};
    struct status_detail detail;
    struct data *data = NULL;
    if (data_open(&options, &data, &detail) != STATUS_OK) {
        fprintf(stderr, "%s\n", detail.text);
        abort();
    }
    return data;
}

static void await(struct data *data, struct shared *shared, int stage)
{
    struct data_result result;
    while (atomic_load(&shared->stage) < stage) {
        (void)data_poll(data, &result, 1);
    }
}

static void target_process(struct shared *shared, const char *provider, void *pool,
                           const struct pool_layout *layout)
{
    struct status_detail detail;
    struct data *data = open_plane(provider);
    struct data_result result;
    if (data_pool_add(data, 0, pool, layout, &detail) != STATUS_OK ||
        data_link_open(data, 0, 1, &shared->target, &detail) != STATUS_OK) {
        fprintf(stderr, "%s\n", detail.text);
        abort();
    }
    atomic_store(&shared->stage, 1);
    await(data, shared, 2);
    if (data_link_connect(data, 0, 1, 1, &shared->writer, &detail) != STATUS_OK) {
        fprintf(stderr, "%s\n", detail.text);
        abort();
    }
    await(data, shared, 3);
    if (atomic_load(&shared->stage) == 3) {
        data_link_fence(data, 0, 1);
        atomic_store(&shared->stage, 4);
        await(data, shared, 5);
    }
    (void)data_poll(data, &result, 1);
    data_close(data);
    _exit(0);
}

struct setup {
    struct shared *shared;
    struct pool_layout layout;
    unsigned char *source;
    unsigned char *target;
    struct data *data;
    pid_t child;
};

static void set_up(struct setup *s, const char *provider)
{
    struct status_detail detail;
    cr_assert_eq(pool_layout_make(&geometry, 1, PAGES, 4, 100, &s->layout, &detail), STATUS_OK);
    s->shared = map(sizeof *s->shared);
    s->source = map(s->layout.bytes);
    s->target = map(s->layout.bytes);
    for (uint64_t i = 0; i < s->layout.bytes; i++) {
        s->source[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    s->child = fork();
    if (s->child == 0) {
        target_process(s->shared, provider, s->target, &s->layout);
    }
    s->data = open_plane(provider);
    cr_assert_eq(data_pool_add(s->data, 0, s->source, &s->layout, &detail), STATUS_OK, "%s",
                 detail.text);
    await(s->data, s->shared, 1);
    cr_assert_eq(data_link_open(s->data, 0, 1, &s->shared->writer, &detail), STATUS_OK, "%s",
                 detail.text);
    cr_assert_eq(data_link_connect(s->data, 0, 1, 1, &s->shared->target, &detail), STATUS_OK, "%s",
                 detail.text);
    atomic_store(&s->shared->stage, 2);
}

static void tear_down(struct setup *s)
{
    int status = 0;
    atomic_store(&s->shared->stage, 5);
    (void)waitpid(s->child, &status, 0);
    data_close(s->data);
}

static struct data_write order(uint64_t id, const struct sm_run *from, const struct sm_run *to,
                               uint32_t runs)
{
    const struct data_write write = {id,           7,          0,           1,          0, 0,
                                     {from, runs}, {to, runs}, SM_AUX_NONE, SM_AUX_NONE};
    return write;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Drives until `count` results are there; fails the test after 20 s. */
static uint32_t drive(struct setup *s, struct data_result *results, uint32_t count)
{
    const uint64_t until = now_ms() + 20000u;
    uint32_t got = 0;
    while (got < count && now_ms() < until) {
        got += data_poll(s->data, results + got, count - got);
    }
    return got;
}

static void bytes_arrive(const char *provider)
{
    struct setup s;
    struct data_result results[2];
    set_up(&s, provider);
    const struct sm_run from[] = {{3, 4}, {20, 1}, {40, 3}};
    const struct sm_run to[] = {{50, 4}, {7, 1}, {0, 3}};
    struct data_write write = order(11, from, to, 3);
    write.aux_from = 2;
    write.aux_to = 1;
    cr_assert_eq(data_write(s.data, &write), STATUS_OK);
    const struct data_write nothing = order(12, NULL, NULL, 0);
    cr_assert_eq(data_write(s.data, &nothing), STATUS_OK);
    cr_assert_eq(drive(&s, results, 2), 2u, "%s: no result in time", provider);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(results[i].code, 0, "%s: %s", provider, results[i].text);
    }
    for (uint32_t region = 0; region < s.layout.regions; region++) {
        for (uint32_t r = 0; r < 3; r++) {
            const uint64_t base = region * s.layout.region_bytes;
            cr_assert_eq(memcmp(s.target + base + to[r].first * s.layout.page_bytes,
                                s.source + base + from[r].first * s.layout.page_bytes,
                                from[r].count * s.layout.page_bytes),
                         0, "%s: region %u run %u differs", provider, region, r);
        }
    }
    cr_assert_eq(memcmp(s.target + s.layout.aux_offset + s.layout.aux_stride,
                        s.source + s.layout.aux_offset + 2u * s.layout.aux_stride,
                        s.layout.aux_stride),
                 0);
    tear_down(&s);
}

Test(data, bytes_arrive_over_tcp, .timeout = 240)
{
    bytes_arrive("tcp");
}

Test(data, bytes_arrive_over_shm, .timeout = 240)
{
    bytes_arrive("shm");
}

Test(data, orders_that_make_no_sense_fail_alone, .timeout = 240)
{
    struct setup s;
    struct data_result result;
    set_up(&s, "tcp");
    const struct sm_run good = {0, 4};
    const struct sm_run outside = {62, 4};
    const struct sm_run empty = {1, 0};
    const struct sm_run *bad[] = {&outside, &empty};
    for (size_t i = 0; i < 2; i++) {
        struct data_write write = order(i, &good, bad[i], 1);
        cr_assert_eq(data_write(s.data, &write), STATUS_OK);
        cr_assert_eq(drive(&s, &result, 1), 1u);
        cr_assert_lt(result.code, 0);
        cr_assert_gt(strlen(result.text), 5u);
    }
    struct data_write stranger = order(9, &good, &good, 1);
    stranger.to_rank = 5;
    cr_assert_eq(data_write(s.data, &stranger), STATUS_OK);
    cr_assert_eq(drive(&s, &result, 1), 1u);
    cr_assert_lt(result.code, 0);
    struct data_write write = order(10, &good, &good, 1);
    cr_assert_eq(data_write(s.data, &write), STATUS_OK);
    cr_assert_eq(drive(&s, &result, 1), 1u);
    cr_assert_eq(result.code, 0, "%s", result.text);
    tear_down(&s);
}

Test(data, an_address_of_another_host_is_refused_at_the_start_in_words)
{
    /* 192.0.2.0/24 is for documents: no host has it. */
    const struct data_options options = {"tcp", "192.0.2.1", 16, 65536, 0, false};
    struct status_detail detail = {"", 0};
    struct data *data = NULL;
    cr_assert_neq(data_open(&options, &data, &detail), STATUS_OK);
    cr_assert_null(data);
    cr_assert_not_null(strstr(detail.text, "fabric.address '192.0.2.1' is not of this host"), "%s",
                       detail.text);
    data = open_plane("tcp"); /* and what was tried first does not stay */
    struct data_counters counters;
    data_counters(data, &counters);
    cr_assert_eq(counters.links, 0u);
    data_close(data);
}

Test(data, a_fenced_writer_cannot_write_any_more, .timeout = 240)
{
    struct setup s;
    struct data_result results[256];
    set_up(&s, "tcp");
    const struct sm_run all = {0, PAGES};
    uint64_t id = 0;
    uint32_t outstanding = 0;
    for (; outstanding < 64u; outstanding++) {
        struct data_write write = order(++id, &all, &all, 1);
        cr_assert_eq(data_write(s.data, &write), STATUS_OK);
    }
    outstanding -= drive(&s, results, 1);
    atomic_store(&s.shared->stage, 3);
    const uint64_t until = now_ms() + 10000u;
    while (atomic_load(&s.shared->stage) < 4 && now_ms() < until) {
        outstanding -= data_poll(s.data, results, 256);
    }
    cr_assert_eq(atomic_load(&s.shared->stage), 4, "the target was not fenced");
    /* From here on the target's memory is another room's. */
    memset(s.target, 0xee, s.layout.bytes);
    const uint64_t pause = now_ms() + 1500u;
    while (now_ms() < pause) {
        outstanding -= data_poll(s.data, results, 256);
    }
    for (uint64_t i = 0; i < s.layout.bytes; i++) {
        cr_assert_eq(s.target[i], 0xee, "byte %llu was written after the fence",
                     (unsigned long long)i);
    }
    data_link_fence(s.data, 0, 1);
    outstanding -= drive(&s, results, outstanding);
    cr_assert_eq(outstanding, 0u, "a write was never reported");
    tear_down(&s);
}

Test(data, writes_to_a_dead_peer_are_reported, .timeout = 240)
{
    struct setup s;
    struct data_result results[64];
    set_up(&s, "tcp");
    const struct sm_run all = {0, PAGES};
    for (uint64_t id = 0; id < 64u; id++) {
        struct data_write write = order(id, &all, &all, 1);
        cr_assert_eq(data_write(s.data, &write), STATUS_OK);
    }
    cr_assert_eq(drive(&s, results, 1), 1u);
    (void)kill(s.child, SIGKILL);
    (void)waitpid(s.child, NULL, 0);
    uint32_t got = 1;
    const uint64_t until = now_ms() + 3000u;
    while (now_ms() < until) {
        got += data_poll(s.data, results, 64);
    }
    data_link_fence(s.data, 0, 1); /* what the provider has not noticed, the fence ends */
    while (got < 64u) {
        const uint32_t more = data_poll(s.data, results, 64);
        cr_assert_gt(more, 0u, "a write was never reported");
        got += more;
    }
    data_close(s.data);
}
