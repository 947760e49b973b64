/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane when something is taken away in the middle of a write: a fenced peer, a killed
 * peer beside one that lives, a pool that goes and comes again; and source ranks that a destination
 * does not expect.
 */
#include "data_world.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* ---- fencing over shared memory
 * ---------------------------------------------------------------------------------- */

/*
 * What fencing rests on with shm: a write with delivery completion is copied by the target while it
 * drives its endpoint, never by the writer. A target that stands still gets no byte.
 */
Test(data_faults, over_shm_only_the_target_copies, .timeout = 240)
{
    struct data_world w;
    world_set_up_simple(&w, "shm", 1);
    memset(w.peers[0].memory[0], WORLD_POISON, w.peers[0].layout.bytes);
    (void)world_ask(&w, 0, ERRAND_HOLD);
    world_give_many(&w, 0, 1, 8);
    world_look_for(&w, 500);
    cr_assert_eq(w.reported, 0u, "a write is reported that nobody can have taken");
    world_check_untouched(&w, w.peers[0].memory[0], w.peers[0].layout.bytes,
                          "by the writer itself");
    (void)world_ask(&w, 0, ERRAND_NONE);
    world_look_until(&w, 8);
    cr_assert_eq(w.well, 8u);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_tear_down(&w);
}

static void fence_in_mid_write(const char *provider)
{
    struct data_world w;
    world_set_up_simple(&w, provider, 2);
    unsigned char *memory = w.peers[0].memory[0];
    world_give_many(&w, 0, 1, 64);
    world_give_many(&w, 1, 1, 8);
    world_look_until_moved(&w, 16 * w.layout.bytes);
    (void)world_ask(&w, 0, ERRAND_FENCE);
    /* From here on the memory is another room's. */
    memset(memory, WORLD_POISON, w.peers[0].layout.bytes);
    const uint32_t first_late = w.ordered;
    world_give_many(&w, 0, 1, 8); /* the writer has not heard of it and goes on */
    world_look_for(&w, 1500);
    world_check_untouched(&w, memory, w.peers[0].layout.bytes, "after the fence");
    data_link_fence(w.data, 0, 1);
    world_look_until(&w, w.ordered);
    for (uint32_t id = first_late; id < w.ordered; id++) {
        cr_assert_lt(w.results[id].code, 0, "%s: a write after the fence was delivered", provider);
    }
    for (uint32_t id = 64; id < 72; id++) {
        cr_assert_eq(w.results[id].code, 0, "%s: another peer was hit by the fence: %s", provider,
                     w.results[id].text);
    }
    /* A fenced peer comes back with a new connection, and only with that. */
    world_link_up(&w, 0, 2);
    world_check_arrives(&w, 0, 2, memory);
    world_tear_down(&w);
}

Test(data_faults, a_fenced_peer_writes_no_more_over_shm, .timeout = 240)
{
    fence_in_mid_write("shm");
}

Test(data_faults, a_fenced_peer_writes_no_more_over_tcp, .timeout = 240)
{
    fence_in_mid_write("tcp");
}

/* A peer that kept the keys of a connection that was closed has nothing in its hands. */
static void old_keys_open_nothing(const char *provider)
{
    struct data_world w;
    struct status_detail detail;
    world_set_up_simple(&w, provider, 1);
    struct data_endpoint *theirs = malloc(sizeof *theirs);
    cr_assert_not_null(theirs);
    *theirs = w.peers[0].desk->local;
    (void)world_ask(&w, 0, ERRAND_FENCE);
    data_link_fence(w.data, 0, 1);
    world_link_up(&w, 0, 2);
    cr_assert_eq(data_link_connect(w.data, 0, 2, 1, theirs, &detail), STATUS_OK, "%s", detail.text);
    memset(w.peers[0].memory[0], WORLD_POISON, w.peers[0].layout.bytes);
    world_give_many(&w, 0, 2, 4);
    world_look_for(&w, 1000);
    world_check_untouched(&w, w.peers[0].memory[0], w.peers[0].layout.bytes, "with a closed key");
    data_link_fence(w.data, 0, 2);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.well, 0u);
    free(theirs);
    world_tear_down(&w);
}

Test(data_faults, old_keys_open_nothing_over_tcp, .timeout = 240)
{
    old_keys_open_nothing("tcp");
}

Test(data_faults, old_keys_open_nothing_over_shm, .timeout = 240)
{
    old_keys_open_nothing("shm");
}

/* ---- a killed peer beside one that lives
 * ------------------------------------------------------------------------- */

static void one_of_two_is_killed(const char *provider)
{
    struct data_world w;
    world_set_up_simple(&w, provider, 2);
    for (uint32_t i = 0; i < 32; i++) {
        world_give_many(&w, 0, 1, 1);
        world_give_many(&w, 1, 1, 1);
    }
    world_look_until_moved(&w, 16 * w.layout.bytes);
    world_bury(&w, 0);
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    uint32_t alive = 0;
    while (alive < 32u && world_now_ms() < until) {
        world_look(&w);
        alive = 0;
        for (uint32_t id = 1; id < 64; id += 2) {
            alive += w.times[id];
        }
    }
    for (uint32_t id = 1; id < 64; id += 2) {
        cr_assert_eq(w.times[id], 1u, "%s: a write to the living peer is not reported", provider);
        cr_assert_eq(w.results[id].code, 0, "%s: a write to the living peer failed: %s", provider,
                     w.results[id].text);
    }
    world_check_arrives(&w, 1, 1, w.peers[1].memory[0]);
    data_link_fence(w.data, 0, 1); /* what the provider has not noticed, the fence ends */
    world_look_until(&w, w.ordered);
    cr_assert_lt(w.results[62].code, 0, "%s: the last write was delivered to a dead process",
                 provider);
    /* The dead one's successor. */
    world_start_peer(&w, 0);
    memset(w.peers[0].memory[0], 0, w.peers[0].layout.bytes);
    world_link_up(&w, 0, 2);
    world_check_arrives(&w, 0, 2, w.peers[0].memory[0]);
    world_check_arrives(&w, 1, 1, w.peers[1].memory[0]);
    world_tear_down(&w);
}

Test(data_faults, one_of_two_peers_is_killed_over_tcp, .timeout = 240)
{
    one_of_two_is_killed("tcp");
}

Test(data_faults, one_of_two_peers_is_killed_over_shm, .timeout = 240)
{
    one_of_two_is_killed("shm");
}

/* ---- source ranks that a destination does not expect
 * ------------------------------------------------------------- */

static uint32_t first_head(const struct pool_layout *l, uint32_t rank)
{
    const uint32_t copies = l->ranks > l->geometry.kv_heads ? l->ranks / l->geometry.kv_heads : 1u;
    return rank / copies * l->heads;
}

/* The byte that stands for a head of the model at a place that both sides have. */
static unsigned char stamp(uint32_t region, uint32_t page, uint32_t token, uint32_t head)
{
    return (unsigned char)(1u + (region * 31u + page * 17u + token * 7u + head * 3u) % 200u);
}

static unsigned char *cell(const struct pool_layout *l, unsigned char *pool, const uint32_t at[3],
                           uint32_t head)
{
    return pool + at[0] * l->region_bytes + at[1] * l->page_bytes + at[2] * l->token_bytes +
           (uint64_t)head * l->geometry.item_bytes;
}

typedef void (*head_fn)(unsigned char *at, unsigned char want, uint32_t head, void *context);

static void each_head(const struct pool_layout *l, unsigned char *pool, uint32_t rank, head_fn then,
                      void *context)
{
    for (uint32_t region = 0; region < l->regions; region++) {
        for (uint32_t page = 0; page < l->pages; page++) {
            for (uint32_t token = 0; token < l->geometry.page_tokens; token++) {
                for (uint32_t head = 0; head < l->heads; head++) {
                    const uint32_t at[3] = {region, page, token};
                    const uint32_t global = first_head(l, rank) + head;
                    then(cell(l, pool, at, head), stamp(region, page, token, global), global,
                         context);
                }
            }
        }
    }
}

struct heads_check {
    const struct pool_layout *from;
    uint32_t from_rank;
    uint64_t touched; /* heads */
};

static void fill_head(unsigned char *at, unsigned char want, uint32_t head, void *context)
{
    const struct sm_geometry *g = context;
    (void)head;
    memset(at, want, g->item_bytes);
}

/* Either nobody has written here, or it is the head that belongs here and the source holds it. */
static void check_head(unsigned char *at, unsigned char want, uint32_t head, void *context)
{
    struct heads_check *check = context;
    const uint32_t first = first_head(check->from, check->from_rank);
    if (*at != WORLD_POISON) {
        cr_assert(*at == want && memcmp(at, at + 1, check->from->geometry.item_bytes - 1u) == 0,
                  "head %u is overwritten by source %u", head, check->from_rank);
        cr_assert(head >= first && head < first + check->from->heads,
                  "source %u does not hold head %u", check->from_rank, head);
        check->touched++;
    }
}

/* What the two sizes say: one source for several destinations, or several for one. */
static bool expected(uint32_t from_ranks, uint32_t from, uint32_t to_ranks, uint32_t to)
{
    return from_ranks >= to_ranks ? from / (from_ranks / to_ranks) == to
                                  : to / (to_ranks / from_ranks) == from;
}

/* Each source to each destination, whether that expects it or not. */
static void every_pair(uint32_t from_ranks, uint32_t to_ranks, uint32_t kv_heads)
{
    struct data_world w;
    const struct world_shape shape = {
        "tcp", 1, from_ranks, to_ranks, {4, 1, kv_heads, 16, 2, 1, 0, 0, 0}, 0, false};
    world_set_up(&w, &shape);
    struct pool_layout *l = &w.peers[0].layout;
    for (uint32_t from = 0; from < from_ranks; from++) {
        each_head(&w.layout, w.source[from], from, fill_head, &w.layout.geometry);
    }
    for (uint32_t to = 0; to < to_ranks; to++) {
        uint64_t filled = 0;
        for (uint32_t from = 0; from < from_ranks; from++) {
            memset(w.peers[0].memory[to], WORLD_POISON, l->bytes);
            struct data_write write = world_order(&w, 0, 1);
            write.from_rank = from;
            write.to_rank = to;
            const uint32_t id = world_give(&w, &write);
            world_look_until(&w, w.ordered);
            struct heads_check check = {&w.layout, from, 0};
            each_head(l, w.peers[0].memory[to], to, check_head, &check);
            const uint64_t bytes = check.touched * l->geometry.item_bytes;
            cr_assert_eq(w.results[id].code, 0, "%s", w.results[id].text);
            cr_assert_eq(w.results[id].bytes, bytes,
                         "%u to %u of %u to %u ranks: %llu bytes reported, %llu written", from, to,
                         from_ranks, to_ranks, (unsigned long long)w.results[id].bytes,
                         (unsigned long long)bytes);
            filled += expected(from_ranks, from, to_ranks, to) ? bytes : 0;
        }
        cr_assert_eq(filled, l->region_bytes * l->regions,
                     "the expected sources of rank %u fill it once", to);
    }
    world_tear_down(&w);
}

Test(data_faults, a_source_rank_outside_of_the_pairing_harms_nothing, .timeout = 120)
{
    every_pair(4, 2, 4);
    every_pair(2, 4, 4);
    every_pair(4, 4, 2); /* heads are held twice on both sides */
    every_pair(4, 2, 1);
}

Test(data_faults, a_rank_that_one_side_does_not_have_is_refused, .timeout = 240)
{
    struct data_world w;
    world_set_up_simple(&w, "tcp", 1);
    memset(w.peers[0].memory[0], WORLD_POISON, w.peers[0].layout.bytes);
    const uint32_t ranks[][2] = {{1, 0}, {0, 1}, {SM_RANKS_MAX, 0}, {0, SM_RANKS_MAX}, {63, 63}};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        struct data_write write = world_order(&w, 0, 1);
        write.from_rank = ranks[i][0];
        write.to_rank = ranks[i][1];
        const uint32_t id = world_give(&w, &write);
        world_look_until(&w, w.ordered);
        cr_assert_lt(w.results[id].code, 0);
        cr_assert_gt(strlen(w.results[id].text), 10u);
        cr_assert_eq(w.results[id].bytes, 0u);
    }
    world_check_untouched(&w, w.peers[0].memory[0], w.peers[0].layout.bytes,
                          "by a rank that is not");
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_tear_down(&w);
}

/* ---- a pool that goes and comes again
 * ---------------------------------------------------------------------------- */

static void wait_gone(struct data_world *w, uint32_t number, uint32_t rank)
{
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    while ((atomic_load(&w->peers[number].desk->gone) >> rank & 1u) == 0) {
        world_look(w);
        cr_assert_lt(world_now_ms(), until, "%s: the pool is not let go", w->provider);
    }
}

/*
 * The engine at the target is gone in mid-write, and another one brings other memory. The pool of
 * the first stays until the writer is through with it; nothing of it reaches the second, and the
 * connection, which other ranks use, stays.
 */
static void target_pool_again(const char *provider)
{
    struct data_world w;
    struct status_detail detail;
    world_set_up_simple(&w, provider, 1);
    struct world_peer *peer = &w.peers[0];
    world_give_many(&w, 0, 1, 64);
    world_look_until_moved(&w, 16 * w.layout.bytes);
    peer->desk->rank = 0;
    (void)world_ask(&w, 0, ERRAND_POOL_RETIRE);
    cr_assert_eq(peer->desk->local.region_count, 0u, "it is still announced");
    memset(peer->memory[1], WORLD_POISON, peer->layout.bytes);
    cr_assert_eq(data_link_connect(w.data, 0, 1, peer->layout.ranks, &peer->desk->local, &detail),
                 STATUS_OK, "%s", detail.text);
    world_look_until(&w, w.ordered); /* what was posted lands, what was not has failed */
    cr_assert_lt(w.well, w.ordered, "%s: nothing was left to be cut off", provider);
    cr_assert_eq(atomic_load(&peer->desk->gone), 0u, "it went while a writer could still write");
    peer->desk->memory = 1;
    (void)world_ask(&w, 0, ERRAND_POOL_QUIET); /* the writer has said that it is through */
    wait_gone(&w, 0, 0);
    memset(peer->memory[0], WORLD_POISON, peer->layout.bytes);
    (void)world_ask(&w, 0, ERRAND_POOL_ADD);
    cr_assert_eq(data_link_connect(w.data, 0, 1, peer->layout.ranks, &peer->desk->local, &detail),
                 STATUS_OK, "%s", detail.text);
    world_check_untouched(&w, peer->memory[1], peer->layout.bytes,
                          "before anything was sent to it");
    world_check_arrives(&w, 0, 1, peer->memory[1]);
    world_check_untouched(&w, peer->memory[0], peer->layout.bytes, "after its pool was let go");
    world_tear_down(&w);
}

Test(data_faults, a_target_pool_goes_and_comes_again_over_tcp, .timeout = 240)
{
    target_pool_again("tcp");
}

Test(data_faults, a_target_pool_goes_and_comes_again_over_shm, .timeout = 240)
{
    target_pool_again("shm");
}

/*
 * The writer freezes in the middle of a message. Its bytes would land wherever the pool's addresses
 * lead, whenever it wakes: so the pool must stay until its connection is closed, and then nothing
 * lands any more.
 */
static void frozen_writer(const char *provider)
{
    struct data_world w;
    const struct world_shape shape = {provider, 2,    1, 1, {64, 4, 16, 256, 2, 1, 0, 0, 0},
                                      1u << 20, false};
    world_set_up(&w, &shape);
    struct world_peer *peer = &w.peers[0];
    world_give_many(&w, 0, 1, 16);
    world_look_until_moved(&w, w.layout.bytes / 2u);
    (void)world_ask(&w, 0, ERRAND_HOLD); /* the sockets fill up */
    world_look_for(&w, 300);
    w.stands_still = true;
    (void)world_ask(&w, 0, ERRAND_NONE); /* and run empty, in the middle of something */
    world_look_for(&w, 300);
    peer->desk->rank = 0;
    (void)world_ask(&w, 0, ERRAND_POOL_RETIRE);
    world_look_for(&w, 300);
    cr_assert_eq(atomic_load(&peer->desk->gone), 0u,
                 "%s: the pool goes while the frozen writer could still write into it", provider);
    (void)world_ask(&w, 0, ERRAND_FENCE);
    wait_gone(&w, 0, 0);
    /* From here on the memory is another engine's. */
    memset(peer->memory[0], WORLD_POISON, peer->layout.bytes);
    w.stands_still = false;
    world_look_for(&w, 1000);
    world_check_untouched(&w, peer->memory[0], peer->layout.bytes, "by a writer that woke up");
    data_link_fence(w.data, 0, 1);
    world_look_until(&w, w.ordered);
    world_check_arrives(&w, 1, 1, w.peers[1].memory[0]); /* another peer goes on */
    world_tear_down(&w);
}

Test(data_faults, a_frozen_writer_does_not_reach_the_next_engine_over_tcp, .timeout = 240)
{
    frozen_writer("tcp");
}

Test(data_faults, a_frozen_writer_does_not_reach_the_next_engine_over_shm, .timeout = 240)
{
    frozen_writer("shm");
}

/*
 * The engine at the writer is gone in mid-write with its memory, and comes again with other. The
 * memory goes when what was posted has ended, and the connection stays.
 */
static void source_pool_again(const char *provider)
{
    /* Pieces that do not fit one operation: the last, small one is planned and waits for the next.
     */
    static const struct sm_run from[] = {{0, 10}, {11, 10}, {22, 11}, {34, 2}};
    static const struct sm_run to[] = {{0, 10}, {20, 10}, {40, 11}, {60, 2}};
    struct data_world w;
    struct status_detail detail;
    const struct world_shape shape = {provider, 1, 1, 1, {16, 32, 8, 16, 2, 1, 0, 0, 0}, 0, false};
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    uint64_t gone = 0;
    world_set_up(&w, &shape);
    for (uint32_t i = 0; i < 128; i++) {
        struct data_write write = world_order(&w, 0, 1);
        write.from = (struct sm_runs){from, 4};
        write.to = (struct sm_runs){to, 4};
        (void)world_give(&w, &write);
    }
    world_look_until_moved(&w, 16 * w.layout.bytes);
    data_pool_retire(w.data, 0);
    data_pool_quiet(w.data, 0); /* nobody writes into it */
    while (gone == 0 && world_now_ms() < until) {
        world_look(&w);
        gone = data_pools_gone(w.data);
    }
    cr_assert_eq(gone, 1u, "%s: the pool is not let go", provider);
    /* From here on nothing touches it: whoever does, dies. */
    cr_assert_eq(mprotect(w.source[0], w.layout.bytes, PROT_NONE), 0);
    world_look_until(&w, w.ordered);
    for (uint32_t id = 0; id < w.ordered; id++) {
        cr_assert(w.results[id].code == 0 || strlen(w.results[id].text) > 10u);
    }
    cr_assert_lt(w.well, w.ordered, "%s: nothing was left to be cut off", provider);
    w.source[0] = world_map(w.layout.bytes);
    memset(w.source[0], 0x5a, w.layout.bytes);
    cr_assert_eq(data_pool_add(w.data, 0, w.source[0], &w.layout, &detail), STATUS_OK, "%s",
                 detail.text);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_tear_down(&w);
}

/* Attaching again with the same pool must not disturb what is under way; with another one it is
 * refused. */
Test(data_faults, the_same_pool_again_changes_nothing, .timeout = 240)
{
    struct data_world w;
    struct status_detail detail;
    world_set_up_simple(&w, "tcp", 1);
    world_give_many(&w, 0, 1, 64);
    world_look_until_moved(&w, 8 * w.layout.bytes);
    cr_assert_eq(data_pool_add(w.data, 0, w.source[0], &w.layout, &detail), STATUS_OK, "%s",
                 detail.text);
    unsigned char *other = world_map(w.layout.bytes);
    cr_assert_eq(data_pool_add(w.data, 0, other, &w.layout, &detail), STATUS_FABRIC_POOL);
    cr_assert_not_null(strstr(detail.text, "not been let go"), "%s", detail.text);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.well, w.ordered, "%s", w.results[63].text);
    world_tear_down(&w);
}

Test(data_faults, a_source_pool_goes_and_comes_again_over_tcp, .timeout = 240)
{
    source_pool_again("tcp");
}

Test(data_faults, a_source_pool_goes_and_comes_again_over_shm, .timeout = 240)
{
    source_pool_again("shm");
}

/* ---- connections that never stand
 * -------------------------------------------------------------------------------------------- */

/* A peer that begins and never gets through must not use up what other peers need. */
static void never_connected(const char *provider)
{
    struct data_world w;
    struct data_endpoint endpoint;
    struct status_detail detail;
    world_set_up_simple(&w, provider, 1);
    for (uint32_t link = 10; link < 10u + DATA_LINKS_MAX + 44u; link++) {
        cr_assert_eq(data_link_open(w.data, 1, link, &endpoint, &detail), STATUS_OK, "link %u: %s",
                     link, detail.text);
    }
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_tear_down(&w);
}

Test(data_faults, connections_that_never_stand_are_given_back_over_tcp, .timeout = 240)
{
    never_connected("tcp");
}

Test(data_faults, connections_that_never_stand_are_given_back_over_shm, .timeout = 240)
{
    never_connected("shm");
}
