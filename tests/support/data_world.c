/* SPDX-License-Identifier: Apache-2.0 */
/* Peers as processes, and a writer that counts what is reported. */
#include "data_world.h"

#include <criterion/criterion.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const struct sm_geometry world_geometry = {16, 2, 8, 256, 2, 1, 0, 0, 0};

static const struct sm_run all_pages = {0, WORLD_PAGES};

/* ---- a peer: a process that drives its own side
 * ------------------------------------------------------------- */

uint64_t world_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

void *world_map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(p, MAP_FAILED);
    return p;
}

static struct data *open_plane(const char *provider, uint32_t piece_bytes, bool verify)
{
    const struct data_options options = {provider,    "127.0.0.1",       16,
                                         piece_bytes, WORLD_WAITING_MAX, verify};
    struct status_detail detail;
    struct data *data = NULL;
    if (data_open(&options, &data, &detail) != STATUS_OK) {
        fprintf(stderr, "%s\n", detail.text);
        abort();
    }
    return data;
}

static void pause_briefly(void)
{
    const struct timespec pause = {0, 1000000};
    (void)nanosleep(&pause, NULL);
}

static enum status run_errand(struct data *data, const struct world_peer *peer,
                              struct world_desk *desk, struct status_detail *out_detail)
{
    switch (desk->errand) {
    case ERRAND_OPEN:
        return data_link_open(data, 0, desk->link, &desk->local, out_detail);
    case ERRAND_CONNECT:
        return data_link_connect(data, 0, desk->link, desk->ranks, &desk->remote, out_detail);
    case ERRAND_FENCE:
        data_link_fence(data, 0, desk->link);
        return STATUS_OK;
    case ERRAND_POOL_RETIRE:
        data_pool_retire(data, desk->rank);
        /* What is announced now; a connection that is closed announces nothing. */
        (void)data_link_local(data, 0, desk->link, &desk->local, out_detail);
        return STATUS_OK;
    case ERRAND_POOL_QUIET:
        data_pool_quiet(data, desk->rank);
        return STATUS_OK;
    case ERRAND_POOL_ADD:
        TRY(data_pool_add(data, desk->rank, peer->memory[desk->memory], &peer->layout, out_detail));
        return data_link_local(data, 0, desk->link, &desk->local, out_detail);
    case ERRAND_NONE:
    case ERRAND_HOLD:
    case ERRAND_QUIT:
        break;
    }
    return STATUS_OK;
}

static void peer_process(const struct world_peer *peer, const char *provider)
{
    struct world_desk *desk = peer->desk;
    struct status_detail detail = {"", 0};
    struct data_result results[16];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    struct data *data = open_plane(provider, WORLD_PIECE_BYTES, false);
    for (uint32_t rank = 0; rank < peer->pools; rank++) {
        if (data_pool_add(data, rank, peer->memory[rank], &peer->layout, &detail) != STATUS_OK) {
            fprintf(stderr, "%s\n", detail.text);
            abort();
        }
    }
    bool holds = false;
    for (;;) {
        const uint32_t asked = atomic_load(&desk->asked);
        if (asked != atomic_load(&desk->answered)) {
            detail.text[0] = '\0';
            desk->status = run_errand(data, peer, desk, &detail);
            (void)snprintf(desk->text, sizeof desk->text, "%s", detail.text);
            holds = desk->errand == ERRAND_HOLD;
            const bool quits = desk->errand == ERRAND_QUIT;
            if (quits) {
                data_close(data);
            }
            atomic_store(&desk->answered, asked);
            if (quits) {
                _exit(0);
            }
        }
        if (!holds) {
            atomic_fetch_or(&desk->gone, data_pools_gone(data));
        }
        if (holds) {
            pause_briefly();
        } else if (data_poll(data, results, 16) == 0) {
            data_wait(data, -1, 1);
        }
    }
}

/* ---- the writer
 * --------------------------------------------------------------------------------------------- */

void world_look(struct data_world *w)
{
    struct data_result results[32];
    if (w->stands_still) {
        pause_briefly();
        return;
    }
    const uint32_t count = data_poll(w->data, results, 32);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_lt(results[i].id, w->ordered);
        cr_assert_eq(++w->times[results[i].id], 1u, "write %u is reported twice",
                     (unsigned)results[i].id);
        w->results[results[i].id] = results[i];
        w->reported++;
        w->well += results[i].code == 0 ? 1u : 0u;
    }
    if (count == 0) {
        data_wait(w->data, -1, 1);
    }
}

void world_look_for(struct data_world *w, uint32_t ms)
{
    const uint64_t until = world_now_ms() + ms;
    while (world_now_ms() < until) {
        world_look(w);
    }
}

void world_look_until(struct data_world *w, uint32_t reported)
{
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    while (w->reported < reported && world_now_ms() < until) {
        world_look(w);
    }
    cr_assert_geq(w->reported, reported, "%s: %u of %u writes are reported", w->provider,
                  w->reported, reported);
}

void world_look_until_moved(struct data_world *w, uint64_t bytes)
{
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    struct data_counters counters;
    do {
        world_look(w);
        data_counters(w->data, &counters);
    } while (counters.bytes < bytes && world_now_ms() < until);
    cr_assert_geq(counters.bytes, bytes, "%s: nothing moves", w->provider);
    cr_assert_lt(w->reported, w->ordered, "%s: all is over already", w->provider);
}

struct world_desk *world_ask(struct data_world *w, uint32_t number, enum world_errand errand)
{
    struct world_peer *peer = &w->peers[number];
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    peer->desk->errand = errand;
    const uint32_t asked = atomic_fetch_add(&peer->desk->asked, 1u) + 1u;
    while (atomic_load(&peer->desk->answered) != asked) {
        world_look(w);
        cr_assert_lt(world_now_ms(), until, "%s: peer %u does not answer", w->provider, number);
    }
    cr_assert_eq(peer->desk->status, STATUS_OK, "%s: %s", w->provider, peer->desk->text);
    return peer->desk;
}

void world_start_peer(struct data_world *w, uint32_t number)
{
    struct world_peer *peer = &w->peers[number];
    memset(peer->desk, 0, sizeof *peer->desk);
    peer->pid = fork();
    cr_assert_geq(peer->pid, 0);
    if (peer->pid == 0) {
        peer_process(peer, w->provider);
    }
}

void world_link_up(struct data_world *w, uint32_t number, uint32_t link)
{
    struct status_detail detail;
    struct world_desk *desk = w->peers[number].desk;
    desk->link = link;
    (void)world_ask(w, number, ERRAND_OPEN);
    cr_assert_eq(data_link_open(w->data, number, link, &desk->remote, &detail), STATUS_OK, "%s",
                 detail.text);
    cr_assert_eq(data_link_connect(w->data, number, link, w->peers[number].layout.ranks,
                                   &desk->local, &detail),
                 STATUS_OK, "%s", detail.text);
    desk->ranks = w->layout.ranks;
    (void)world_ask(w, number, ERRAND_CONNECT);
}

void world_set_up(struct data_world *w, const struct world_shape *shape)
{
    struct status_detail detail;
    memset(w, 0, sizeof *w);
    w->provider = shape->provider;
    w->peer_count = shape->peers;
    w->pools = shape->from_ranks;
    cr_assert_eq(pool_layout_make(&shape->geometry, shape->from_ranks, WORLD_PAGES, 4, 100,
                                  &w->layout, &detail),
                 STATUS_OK, "%s", detail.text);
    for (uint32_t i = 0; i < w->peer_count; i++) {
        struct world_peer *peer = &w->peers[i];
        cr_assert_eq(pool_layout_make(&shape->geometry, shape->to_ranks, WORLD_PAGES, 4, 100,
                                      &peer->layout, &detail),
                     STATUS_OK, "%s", detail.text);
        peer->pools = shape->to_ranks;
        peer->desk = world_map(sizeof *peer->desk);
        for (uint32_t rank = 0; rank <= peer->pools; rank++) {
            peer->memory[rank] = world_map(peer->layout.bytes);
        }
        world_start_peer(w, i);
    }
    w->data =
        open_plane(w->provider, shape->piece_bytes == 0 ? WORLD_PIECE_BYTES : shape->piece_bytes,
                   shape->verify);
    for (uint32_t rank = 0; rank < w->pools; rank++) {
        w->source[rank] = world_map(w->layout.bytes);
        for (uint64_t i = 0; i < w->layout.bytes; i++) {
            w->source[rank][i] = (unsigned char)((i + rank) * 2654435761u >> 13);
        }
        cr_assert_eq(data_pool_add(w->data, rank, w->source[rank], &w->layout, &detail), STATUS_OK,
                     "%s", detail.text);
    }
    for (uint32_t i = 0; i < w->peer_count; i++) {
        world_link_up(w, i, 1);
    }
}

void world_set_up_simple(struct data_world *w, const char *provider, uint32_t peers)
{
    const struct world_shape shape = {provider, peers, 1, 1, world_geometry, 0, false};
    world_set_up(w, &shape);
}

void world_bury(struct data_world *w, uint32_t number)
{
    struct world_peer *peer = &w->peers[number];
    char pattern[64];
    glob_t found;
    (void)kill(peer->pid, SIGKILL);
    (void)waitpid(peer->pid, NULL, 0);
    (void)snprintf(pattern, sizeof pattern, "/dev/shm/%ld:*", (long)peer->pid);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            (void)unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
    peer->pid = 0;
}

void world_tear_down(struct data_world *w)
{
    for (uint32_t i = 0; i < w->peer_count; i++) {
        if (w->peers[i].pid != 0) {
            (void)world_ask(w, i, ERRAND_QUIT);
            (void)waitpid(w->peers[i].pid, NULL, 0);
        }
    }
    data_close(w->data);
}

struct data_write world_order(const struct data_world *w, uint32_t peer, uint32_t link)
{
    const struct data_write write = {
        w->ordered,      7,           peer,       link, 0, 0, {&all_pages, 1},
        {&all_pages, 1}, SM_AUX_NONE, SM_AUX_NONE};
    return write;
}

uint32_t world_give(struct data_world *w, const struct data_write *write)
{
    cr_assert_lt(w->ordered, WORLD_WRITES_MAX);
    cr_assert_eq(data_write(w->data, write), STATUS_OK);
    return w->ordered++;
}

void world_give_many(struct data_world *w, uint32_t peer, uint32_t link, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct data_write write = world_order(w, peer, link);
        (void)world_give(w, &write);
    }
}

void world_check_untouched(const struct data_world *w, const unsigned char *memory, uint64_t bytes,
                           const char *when)
{
    uint64_t at = 0;
    while (at < bytes && memory[at] == WORLD_POISON) {
        at++;
    }
    cr_assert_eq(at, bytes, "%s: byte %llu was written %s", w->provider, (unsigned long long)at,
                 when);
}

void world_check_arrives(struct data_world *w, uint32_t peer, uint32_t link,
                         const unsigned char *memory)
{
    const struct data_write write = world_order(w, peer, link);
    const uint32_t id = world_give(w, &write);
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    while (w->times[id] == 0 && world_now_ms() < until) {
        world_look(w);
    }
    cr_assert_eq(w->times[id], 1u, "%s: no result", w->provider);
    cr_assert_eq(w->results[id].code, 0, "%s: %s", w->provider, w->results[id].text);
    cr_assert_eq(memcmp(memory, w->source[0], w->layout.aux_offset), 0, "%s: bytes differ",
                 w->provider);
}
