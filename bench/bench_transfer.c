/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_transfer [DIRECTORY]: pages from one process into another through the data plane,
 * beside a raw libfabric client and memcpy in the same rounds; and hand-offs through whole nodes,
 * whose journals are made in DIRECTORY (default /tmp).
 */
#include "bench.h"
#include "bench_raw.h"
#include "fabric/data.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES (UINT64_C(64) << 20)
#define REGIONS 16u
#define WINDOW 64u
#define ROOMS_MAX 8u
#define RAW_CUTS 3u
#define TURNS 3u /* in a round */

static const uint64_t raw_cuts[RAW_CUTS] = {64u << 10, 256u << 10, 1u << 20};

/* What the target does. */
enum { TARGET_WAITS, TARGET_IS_RAW, TARGET_IS_PLANE, TARGET_ENDS };

/* Shared by both processes. */
struct desk {
    _Atomic int asked;
    _Atomic int ready; /* of the target: 1 its addresses stand here; of the writer: 2 */
    struct raw_address raw_target;
    struct raw_address raw_writer;
    struct data_endpoint plane_target;
    struct data_endpoint plane_writer;
};

struct transfer {
    const char *provider;
    struct pool_layout layout;
    unsigned char *source;
    unsigned char *target;
    struct desk *desk;
    struct data *data;
    struct raw *raw;
    pid_t child;
    struct sm_run *from; /* runs of pages, in order */
    struct sm_run *to;
    uint32_t runs;
    bool verify;
    uint64_t raw_cut; /* the best of raw_cuts */
};

static void must(enum status status, const struct status_detail *detail)
{
    if (status != STATUS_OK) {
        bench_fail("transfer", detail->text);
    }
}

static void *shared(size_t bytes)
{
    void *p =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) {
        bench_fail("transfer", "no memory");
    }
    return p;
}

static const char *raw_name(const char *provider)
{
    return strcmp(provider, "tcp") == 0 ? "tcp;ofi_rxm" : provider;
}

static struct data *open_plane(struct transfer *t, void *pool, struct data_endpoint *out_here)
{
    const struct data_options options = {t->provider, "127.0.0.1", WINDOW, 0, 0, t->verify};
    struct status_detail detail;
    struct data *data = NULL;
    must(data_open(&options, &data, &detail), &detail);
    must(data_pool_add(data, 0, pool, &t->layout, &detail), &detail);
    must(data_link_open(data, 0, 1, out_here, &detail), &detail);
    return data;
}

static void await(const _Atomic int *flag, int value)
{
    const struct timespec pause = {0, 1000000};
    while (atomic_load(flag) < value) {
        (void)nanosleep(&pause, NULL);
    }
}

/* Drives the plane as a node's thread does, the raw endpoint without a pause. */
static void target_process(struct transfer *t)
{
    struct status_detail detail;
    struct data_result result;
    const struct timespec pause = {0, 1000000};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct data *data = open_plane(t, t->target, &t->desk->plane_target);
    struct raw *raw =
        raw_open(raw_name(t->provider), t->target, t->layout.bytes, &t->desk->raw_target);
    atomic_store(&t->desk->ready, 1);
    await(&t->desk->ready, 2);
    must(data_link_connect(data, 0, 1, 1, &t->desk->plane_writer, &detail), &detail);
    raw_connect(raw, &t->desk->raw_writer);
    for (int asked = 0; asked != TARGET_ENDS; asked = atomic_load(&t->desk->asked)) {
        if (asked == TARGET_IS_RAW) {
            raw_look(raw);
        } else if (asked == TARGET_IS_PLANE) {
            if (data_poll(data, &result, 1) == 0) {
                data_wait(data, -1, 1);
            }
        } else {
            (void)nanosleep(&pause, NULL);
        }
    }
    data_close(data);
    raw_close(raw);
    _exit(0);
}

static void open_both(struct transfer *t, const char *provider, uint32_t page_bytes, bool verify)
{
    struct status_detail detail;
    const struct sm_geometry geometry = {1, REGIONS / 2u, 1, page_bytes, 2, 1, 0, 0, 0};
    memset(t, 0, sizeof *t);
    t->provider = provider;
    t->verify = verify;
    must(pool_layout_make(&geometry, 1, (uint32_t)(POOL_BYTES / REGIONS / page_bytes), 0, 0,
                          &t->layout, &detail),
         &detail);
    t->source = shared(t->layout.bytes);
    t->target = shared(t->layout.bytes);
    t->desk = shared(sizeof *t->desk);
    for (uint64_t i = 0; i < t->layout.bytes; i++) {
        t->source[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    t->child = fork();
    if (t->child == 0) {
        target_process(t);
    }
    t->data = open_plane(t, t->source, &t->desk->plane_writer);
    t->raw = raw_open(raw_name(provider), t->source, t->layout.bytes, &t->desk->raw_writer);
    await(&t->desk->ready, 1);
    must(data_link_connect(t->data, 0, 1, 1, &t->desk->plane_target, &detail), &detail);
    raw_connect(t->raw, &t->desk->raw_target);
    atomic_store(&t->desk->ready, 2);
}

static void close_both(struct transfer *t)
{
    atomic_store(&t->desk->asked, TARGET_ENDS);
    (void)waitpid(t->child, NULL, 0);
    data_close(t->data);
    raw_close(t->raw);
    (void)munmap(t->source, t->layout.bytes);
    (void)munmap(t->target, t->layout.bytes);
    (void)munmap(t->desk, sizeof *t->desk);
    free(t->from);
    free(t->to);
}

/* All pages of the pool, each once: in one run, or one by one in two random orders. */
static void make_runs(struct transfer *t, bool paged)
{
    const uint32_t pages = t->layout.pages;
    uint64_t seed = 88172645463325252u;
    t->runs = paged ? pages : ROOMS_MAX;
    t->from = calloc(t->runs, sizeof *t->from);
    t->to = calloc(t->runs, sizeof *t->to);
    if (t->from == NULL || t->to == NULL) {
        bench_fail("transfer", "no memory");
    }
    for (uint32_t i = 0; i < t->runs; i++) {
        const uint32_t each = pages / t->runs;
        t->from[i] = t->to[i] = (struct sm_run){i * each, each};
    }
    for (uint32_t i = paged ? 2u * pages : 0u; i-- > 0;) {
        struct sm_run *list = i < pages ? t->from : t->to;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        const uint32_t other = (uint32_t)(seed % (i % pages + 1u));
        const struct sm_run run = list[i % pages];
        list[i % pages] = list[other];
        list[other] = run;
    }
}

static void check_target(const struct transfer *t, const char *what)
{
    for (uint32_t region = 0; region < t->layout.regions; region++) {
        for (uint32_t i = 0; i < t->runs; i++) {
            const uint64_t base = region * t->layout.region_bytes;
            if (memcmp(t->target + base + t->to[i].first * t->layout.page_bytes,
                       t->source + base + t->from[i].first * t->layout.page_bytes,
                       t->from[i].count * t->layout.page_bytes) != 0) {
                bench_fail(what, "bytes are not what was sent");
            }
        }
    }
    memset(t->target, 0, t->layout.bytes);
}

/* The same bytes as a list of pieces, each at most `cut`. */
static struct plan_piece *list_pieces(const struct transfer *t, uint64_t cut, size_t *out_count)
{
    const struct plan_side from = {&t->layout, 0, {t->from, t->runs}, SM_AUX_NONE};
    const struct plan_side to = {&t->layout, 0, {t->to, t->runs}, SM_AUX_NONE};
    struct plan_span *spans = calloc(2u * (size_t)t->runs, sizeof *spans);
    struct plan_piece *pieces = NULL;
    struct plan_piece piece;
    struct plan plan;
    struct status_detail detail;
    for (int pass = 0; pass < 2; pass++) {
        *out_count = 0;
        must(plan_begin(&plan, &from, &to, cut, spans, &detail), &detail);
        while (plan_next(&plan, &piece)) {
            if (pieces != NULL) {
                pieces[*out_count] = piece;
            }
            (*out_count)++;
        }
        pieces = pieces != NULL ? pieces : calloc(*out_count, sizeof *pieces);
        if (pieces == NULL) {
            bench_fail("transfer", "no memory");
        }
    }
    free(spans);
    return pieces;
}

static double seconds_since(uint64_t start)
{
    return (double)(bench_now_ns() - start) / 1e9;
}

/* The target has nothing to do for long enough to fall asleep, if it does. */
static void turn_target(struct transfer *t, int into)
{
    const struct timespec pause = {0, 3000000};
    atomic_store(&t->desk->asked, into);
    (void)nanosleep(&pause, NULL);
}

static double run_raw(struct transfer *t, uint64_t cut)
{
    size_t count = 0;
    struct plan_piece *pieces = list_pieces(t, cut, &count);
    turn_target(t, TARGET_IS_RAW);
    const uint64_t start = bench_now_ns();
    raw_write(t->raw, pieces, count, raw_pieces_max(t->raw), cut, WINDOW);
    const double seconds = seconds_since(start);
    check_target(t, "raw");
    free(pieces);
    return seconds;
}

static double run_plane(struct transfer *t, uint32_t rooms)
{
    struct data_result results[ROOMS_MAX];
    const uint32_t each = t->runs / rooms;
    uint32_t done = 0;
    turn_target(t, TARGET_IS_PLANE);
    const uint64_t start = bench_now_ns();
    for (uint32_t room = 0; room < rooms; room++) {
        const size_t first = (size_t)room * each;
        const struct data_write write = {
            room,        room,       0, 1, 0, 0, {t->from + first, each}, {t->to + first, each},
            SM_AUX_NONE, SM_AUX_NONE};
        if (data_write(t->data, &write) != STATUS_OK) {
            bench_fail("transfer", "a write is refused");
        }
    }
    while (done < rooms) {
        const uint32_t got = data_poll(t->data, results, ROOMS_MAX);
        for (uint32_t i = 0; i < got; i++) {
            if (results[i].code != 0) {
                bench_fail("transfer", results[i].text);
            }
        }
        done += got;
        if (got == 0) {
            data_wait(t->data, -1, 1);
        }
    }
    const double seconds = seconds_since(start);
    check_target(t, "plane");
    return seconds;
}

/* Connects, and finds the best way of cutting. */
static void warm_up(struct transfer *t)
{
    double best = 1e9;
    for (uint32_t i = 0; i < 2u * RAW_CUTS; i++) {
        const double seconds = run_raw(t, raw_cuts[i % RAW_CUTS]);
        if (i >= RAW_CUTS && seconds < best) {
            best = seconds;
            t->raw_cut = raw_cuts[i % RAW_CUTS];
        }
    }
    (void)run_plane(t, 1);
}

static double run_copy(const struct transfer *t)
{
    size_t count = 0;
    struct plan_piece *pieces = list_pieces(t, 1u << 20, &count);
    const uint64_t start = bench_now_ns();
    for (size_t i = 0; i < count; i++) {
        memcpy(t->target + pieces[i].to, t->source + pieces[i].from, pieces[i].bytes);
    }
    const double seconds = seconds_since(start);
    free(pieces);
    return seconds;
}

struct work {
    const char *name;
    uint32_t page_bytes;
    bool paged;
    bool verify;
};

/* One round over fresh connections, which differ more than what is compared. */
static void one_round(const char *provider, const struct work *work, double seconds[4])
{
    struct transfer t;
    open_both(&t, provider, work->page_bytes, work->verify);
    make_runs(&t, work->paged);
    warm_up(&t);
    memset(seconds, 0, 4u * sizeof *seconds);
    for (uint32_t i = 0; i < TURNS; i++) {
        seconds[0] += run_copy(&t);
        seconds[1] += run_raw(&t, t.raw_cut);
        seconds[2] += run_plane(&t, 1);
        seconds[3] += run_plane(&t, ROOMS_MAX);
        seconds[1] += run_raw(&t, t.raw_cut);
    }
    seconds[1] /= 2.0;
    close_both(&t);
}

static void compare(const char *provider, const struct work *work)
{
    double rate[2][BENCH_ROUNDS];
    double of_raw[2][BENCH_ROUNDS];
    double of_copy[2][BENCH_ROUNDS];
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        double seconds[4];
        one_round(provider, work, seconds);
        for (uint32_t i = 0; i < 2; i++) {
            rate[i][round] = (double)(POOL_BYTES * TURNS) / seconds[2u + i] / 1e9;
            of_raw[i][round] = seconds[1] / seconds[2u + i];
            of_copy[i][round] = seconds[0] / seconds[2u + i];
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        printf("transfer %s %-15s %u %-5s %6.2f GB/s, %.2f of raw libfabric, %.2f of memcpy\n",
               provider, work->name, i == 0 ? 1u : ROOMS_MAX, i == 0 ? "room" : "rooms",
               bench_median(rate[i]), bench_median(of_raw[i]), bench_median(of_copy[i]));
    }
}

static void all_works(const char *provider)
{
    static const struct work works[] = {{"bulk", 64u << 10, false, false},
                                        {"pages of 4 KiB", 4u << 10, true, false},
                                        {"pages of 16 KiB", 16u << 10, true, false},
                                        {"pages of 64 KiB", 64u << 10, true, false},
                                        {"  verified", 64u << 10, true, true}};
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        compare(provider, &works[i]);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("median of %u rounds; a ratio is against the baseline in the same round\n",
           BENCH_ROUNDS);
    bench_handoff("tcp", argc > 1 ? argv[1] : "/tmp");
    bench_handoff("shm", argc > 1 ? argv[1] : "/tmp");
    all_works("tcp");
    all_works("shm");
    return 0;
}
