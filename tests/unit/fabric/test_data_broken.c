/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that break, and peers that take nothing: what the provider reports half-way, what the
 * owner hears of it and when, and that other connections go on.
 */
#include "data_world.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FDS_MAX 1024

/* Connected TCP sockets of this process. */
static uint32_t find_sockets(bool *out_is)
{
    uint32_t count = 0;
    for (int fd = 0; fd < FDS_MAX; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        out_is[fd] = getpeername(fd, (struct sockaddr *)&address, &size) == 0 &&
                     (address.ss_family == AF_INET || address.ss_family == AF_INET6);
        count += out_is[fd] ? 1u : 0u;
    }
    return count;
}

/* One write to the peer, and the sockets that came with it are reset. */
static void make_and_reset(struct data_world *w, uint32_t peer, uint32_t in_flight)
{
    bool before[FDS_MAX];
    bool after[FDS_MAX];
    uint32_t reset = 0;
    (void)find_sockets(before);
    world_check_arrives(w, peer, 1, w->peers[peer].memory[0]);
    (void)find_sockets(after);
    world_give_many(w, peer, 1, in_flight);
    world_look_until_moved(w, 4 * w->layout.bytes);
    /* A connection with nothing on its way would be made anew in silence. */
    (void)world_ask(w, peer, ERRAND_HOLD);
    world_look_for(w, 200);
    cr_assert_lt(w->reported, w->ordered, "all was through before the reset");
    for (int fd = 0; fd < FDS_MAX; fd++) {
        if (after[fd] && !before[fd]) {
            cr_assert_eq(shutdown(fd, SHUT_RDWR), 0);
            reset++;
        }
    }
    cr_assert_gt(reset, 0u, "no socket was made for the peer");
    (void)world_ask(w, peer, ERRAND_NONE);
}

static void wait_broken(struct data_world *w, uint32_t want_peer, uint32_t want_link)
{
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    uint32_t peer = UINT32_MAX;
    uint32_t link = 0;
    char why[DATA_TEXT_BYTES] = "";
    while (!data_broken(w->data, &peer, &link, why)) {
        world_look(w);
        cr_assert_lt(world_now_ms(), until, "the connection is not said to be broken");
    }
    cr_assert_eq(peer, want_peer);
    cr_assert_eq(link, want_link);
    cr_assert_gt(strlen(why), 3u);
    cr_assert_not(data_broken(w->data, &peer, &link, why), "it is said twice");
}

Test(data_broken, a_connection_that_is_reset_half_way_ends_alone, .timeout = 240)
{
    struct data_world w;
    struct data_endpoint endpoint;
    struct status_detail detail;
    world_set_up_simple(&w, "tcp", 2);
    make_and_reset(&w, 0, 64);
    const uint32_t others = w.ordered;
    wait_broken(&w, 0, 1);
    world_give_many(&w, 1, 1, 16);
    const uint32_t late = w.ordered;
    world_give_many(&w, 0, 1, 4); /* the owner has not heard of it yet */
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    for (uint32_t id = others; id < late; id++) {
        while (w.times[id] == 0 && world_now_ms() < until) {
            world_look(&w);
        }
        cr_assert_eq(w.times[id], 1u, "a write to another peer is not reported");
        cr_assert_eq(w.results[id].code, 0, "%s", w.results[id].text);
    }
    cr_assert_lt(w.reported, w.ordered - 4u, "all was through before the reset");
    for (uint32_t id = 0; id < w.ordered; id++) {
        cr_assert(w.times[id] == 0 || w.results[id].code == 0,
                  "a failure is reported before the fence: %s", w.results[id].text);
    }
    cr_assert_eq(data_link_local(w.data, 0, 1, &endpoint, &detail), STATUS_NOT_FOUND);
    data_link_fence(w.data, 0, 1);
    world_look_until(&w, w.ordered);
    for (uint32_t id = late; id < w.ordered; id++) {
        cr_assert_lt(w.results[id].code, 0);
        cr_assert_gt(strlen(w.results[id].text), 3u);
    }
    world_link_up(&w, 0, 2);
    world_check_arrives(&w, 0, 2, w.peers[0].memory[0]);
    world_tear_down(&w);
}

Test(data_broken, a_killed_peer_is_heard_of_before_its_writes, .timeout = 240)
{
    struct data_world w;
    world_set_up_simple(&w, "tcp", 2);
    world_give_many(&w, 0, 1, 64);
    world_look_until_moved(&w, 8 * w.layout.bytes);
    world_bury(&w, 0);
    wait_broken(&w, 0, 1);
    const uint32_t before = w.reported;
    cr_assert_eq(w.well, before, "a failure is reported before the fence");
    world_check_arrives(&w, 1, 1, w.peers[1].memory[0]);
    data_link_fence(w.data, 0, 1);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.well, before + 1u);
    world_tear_down(&w);
}

/* A peer that has begun anew: the connection before is closed, and its end is told with the fence.
 */
static void begun_anew(const char *provider)
{
    struct data_world w;
    uint32_t peer = 0;
    uint32_t link = 0;
    char why[DATA_TEXT_BYTES];
    world_set_up_simple(&w, provider, 1);
    world_give_many(&w, 0, 1, 64);
    world_look_until_moved(&w, 8 * w.layout.bytes);
    world_link_up(&w, 0, 2);
    const uint32_t before = w.reported;
    memset(w.peers[0].memory[0], WORLD_POISON, w.peers[0].layout.bytes);
    world_look_for(&w, 500);
    world_check_untouched(&w, w.peers[0].memory[0], w.peers[0].layout.bytes,
                          "over the connection before");
    cr_assert_eq(w.reported, before);
    cr_assert_not(data_broken(w.data, &peer, &link, why), "nothing broke");
    data_link_fence(w.data, 0, 1);
    world_look_until(&w, w.ordered);
    cr_assert_lt(w.well, w.ordered);
    world_check_arrives(&w, 0, 2, w.peers[0].memory[0]);
    world_tear_down(&w);
}

Test(data_broken, a_peer_that_begins_anew_has_no_old_connection_over_tcp, .timeout = 240)
{
    begun_anew("tcp");
}

Test(data_broken, a_peer_that_begins_anew_has_no_old_connection_over_shm, .timeout = 240)
{
    begun_anew("shm");
}

/* A peer that takes nothing fills its own queue, and nobody else's. */
static void full_queue(const char *provider)
{
    struct data_world w;
    world_set_up_simple(&w, provider, 2);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    (void)world_ask(&w, 0, ERRAND_HOLD);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < WORLD_WAITING_MAX + 8u; i++) {
        const struct data_write write = world_order(&w, 0, 1);
        const enum status status = data_write(w.data, &write);
        cr_assert(status == STATUS_OK || status == STATUS_AGAIN);
        w.ordered += status == STATUS_OK ? 1u : 0u;
        refused += status == STATUS_AGAIN ? 1u : 0u;
    }
    cr_assert_eq(refused, 8u, "%s: %u writes are refused", provider, refused);
    for (uint32_t i = 0; i < 8; i++) {
        world_check_arrives(&w, 1, 1, w.peers[1].memory[0]);
    }
    (void)world_ask(&w, 0, ERRAND_NONE);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.well, w.ordered, "%s: what was taken did not arrive", provider);
    world_tear_down(&w);
}

Test(data_broken, a_peer_that_takes_nothing_holds_up_nobody_over_tcp, .timeout = 240)
{
    full_queue("tcp");
}

Test(data_broken, a_peer_that_takes_nothing_holds_up_nobody_over_shm, .timeout = 240)
{
    full_queue("shm");
}
