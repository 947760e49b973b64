/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer link over real ZMQ, with a clock that the test turns: the handshake, silence, a new
 * life, a late hello, and frames that make no sense. What nobody should believe must change
 * nothing.
 */
#include "fabric/peer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define MS UINT64_C(1000000)
#define ROUNDS 400u /* of 2 ms: how long real sockets get */

struct side {
    struct peer_links *links;
    struct peer_event last; /* of the kind that was waited for */
    struct data_endpoint endpoint;
    uint32_t up;
    uint32_t gone;
    uint32_t said;
    uint32_t doubles;
    uint32_t link;
    char why[128];
};

static void *context;
static char directory[64];
static uint64_t now = 1000 * MS;
static uint64_t bound = 1000 * MS; /* heartbeat_bound */

static void set_up(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/stateroom-peer-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    context = zmq_ctx_new();
}

static void tear_down(void)
{
    char command[96];
    (void)zmq_ctx_term(context);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

TestSuite(peer, .init = set_up, .fini = tear_down, .timeout = 240);

static void address(char *out, size_t size, const char *name)
{
    (void)snprintf(out, size, "ipc://%s/%s", directory, name);
}

static void open_side(struct side *side, const char *name, uint64_t node, uint64_t epoch,
                      uint32_t first_link)
{
    char ours[128];
    char theirs[128];
    const char *other = strcmp(name, "P") == 0 ? "D" : "P";
    struct status_detail detail = {"", 0};
    address(ours, sizeof ours, name);
    address(theirs, sizeof theirs, other);
    const struct peer_address peer = {other, theirs};
    const struct peer_options options = {.name = name,
                                         .node_id = node,
                                         .epoch = epoch,
                                         .ranks = 1,
                                         .listen = ours,
                                         .provider = "tcp",
                                         .heartbeat_interval_ns = 100 * MS,
                                         .heartbeat_bound_ns = bound,
                                         .first_link = first_link,
                                         .peers = &peer,
                                         .peer_count = 1};
    memset(side, 0, sizeof *side);
    side->endpoint.size = 16;
    cr_assert_eq(peer_open(&options, context, now, &side->links, &detail), STATUS_OK, "%s",
                 detail.text);
}

static void pump(struct side *side)
{
    struct peer_event event;
    while (side->links != NULL && peer_next(side->links, now, &event)) {
        if (event.event == PEER_WANT_ENDPOINT) {
            peer_set_local(side->links, event.peer, event.link, &side->endpoint, now);
        } else if (event.event == PEER_IS_CONNECTED) {
            side->up++;
            side->link = event.link;
            side->last = event;
        } else if (event.event == PEER_IS_GONE) {
            side->gone++;
            (void)snprintf(side->why, sizeof side->why, "%s", event.why);
        } else if (event.event == PEER_IS_DOUBLE) {
            side->doubles++;
            side->last = event;
        } else if (event.event == PEER_SAYS) {
            side->said++;
            side->last = event;
        }
    }
}

/* Lets both sides work for real time, turning the clock by `ms` each round. */
static void run(struct side *a, struct side *b, uint32_t rounds, uint64_t ms)
{
    for (uint32_t i = 0; i < rounds; i++) {
        now += ms * MS;
        pump(a);
        pump(b);
        (void)usleep(2000);
    }
}

static void connect_both(struct side *p, struct side *d)
{
    const uint32_t before_p = p->up;
    const uint32_t before_d = d->up;
    for (uint32_t i = 0; i < ROUNDS && (p->up == before_p || d->up == before_d); i++) {
        run(p, d, 1, 10);
    }
    cr_assert_gt(p->up, before_p, "prefill does not see decode");
    cr_assert_gt(d->up, before_d, "decode does not see prefill");
}

static enum status say(struct side *from, uint64_t room)
{
    struct sm_message message;
    memset(&message, 0, sizeof message);
    message.life = (struct sm_life){7, 1, 1};
    message.aux_slot = SM_AUX_NONE;
    message.cause.reason = (struct sm_text){"", 0};
    return peer_send(from->links, 0, from->link, SM_IN_ACK, room, 5, &message);
}

Test(peer, both_sides_come_up_and_what_one_says_the_other_hears_once)
{
    struct side p;
    struct side d;
    open_side(&p, "P", 70, 3, 10);
    open_side(&d, "D", 71, 4, 20);
    connect_both(&p, &d);
    cr_assert_eq(p.last.epoch, 4u);
    cr_assert_eq(d.last.node_id, 70u);
    cr_assert_gt(d.link, 20u, "a connection number of an earlier life was taken again");
    for (uint64_t room = 1; room <= 50; room++) {
        cr_assert_eq(say(&p, room), STATUS_OK);
    }
    run(&p, &d, 50, 1);
    cr_assert_eq(d.said, 50u);
    cr_assert_eq(d.last.room, 50u);
    cr_assert_eq(d.last.kind, (uint32_t)SM_IN_ACK);
    cr_assert_eq(d.last.epoch, 3u);
    cr_assert_eq(peer_send(p.links, 0, p.link - 1u, SM_IN_ACK, 1, 1, &d.last.message),
                 STATUS_CLOSED, "a message left by a connection that is not up");
    run(&p, &d, 300, 10);
    cr_assert_eq(p.gone + d.gone, 0u, "heartbeats do not hold the connection");
    peer_close(p.links);
    peer_close(d.links);
}

Test(peer, silence_ends_the_connection_and_a_new_life_begins_another)
{
    struct side p;
    struct side d;
    struct side none = {.links = NULL};
    open_side(&p, "P", 70, 3, 10);
    open_side(&d, "D", 71, 4, 20);
    connect_both(&p, &d);
    const uint32_t link = p.link;
    peer_close(d.links);
    run(&p, &none, 20, 20);
    cr_assert_eq(p.gone, 0u, "lost before heartbeat_bound");
    run(&p, &none, 10, 100);
    cr_assert_eq(p.gone, 1u);
    cr_assert_not_null(strstr(p.why, "heartbeat_bound"), "%s", p.why);
    open_side(&d, "D", 71, 5, 40);
    connect_both(&p, &d);
    cr_assert_gt(p.link, link);
    cr_assert_eq(p.last.epoch, 5u);
    peer_close(d.links); /* back before the silence is noticed: the epoch tells */
    open_side(&d, "D", 71, 6, 60);
    connect_both(&p, &d);
    cr_assert_eq(p.gone, 1u, "its rooms would fail before it can repeat their verdicts");
    cr_assert_eq(p.last.epoch, 6u);
    peer_close(d.links); /* back, and away again before both have seen each other */
    open_side(&d, "D", 71, 7, 80);
    for (uint32_t i = 0; i < ROUNDS && say(&p, 1) != STATUS_CLOSED; i++) {
        now += MS;
        pump(&p);
        struct peer_event event;
        if (peer_next(d.links, now, &event) && event.event == PEER_WANT_ENDPOINT) {
            peer_set_local(d.links, event.peer, event.link, &d.endpoint, now);
        }
        (void)usleep(2000);
    }
    peer_close(d.links);
    const uint32_t ups = p.up;
    run(&p, &none, 30, 100);
    cr_assert_eq(p.up, ups);
    cr_assert_eq(p.gone, 2u);
    cr_assert_not_null(strstr(p.why, "has not come up"), "%s", p.why);
    peer_close(p.links);
}

/* Frames of D as they are on the wire, caught by a socket in P's place. */
static size_t catch_hello(unsigned char *bytes, size_t size, uint64_t node, uint64_t epoch)
{
    char ours[128];
    struct side d;
    struct side none = {.links = NULL};
    void *router = zmq_socket(context, ZMQ_ROUTER);
    int got = -1;
    address(ours, sizeof ours, "P");
    cr_assert_eq(zmq_bind(router, ours), 0);
    open_side(&d, "D", node, epoch, 20);
    for (uint32_t i = 0; i < ROUNDS && got < 0; i++) {
        unsigned char identity[64];
        run(&d, &none, 1, 50);
        if (zmq_recv(router, identity, sizeof identity, ZMQ_DONTWAIT) >= 0) {
            got = zmq_recv(router, bytes, size, ZMQ_DONTWAIT);
        }
    }
    cr_assert_gt(got, 0, "no hello comes");
    peer_close(d.links);
    (void)zmq_close(router);
    return (size_t)got;
}

static void send_raw(void *socket, const void *bytes, size_t size)
{
    cr_assert_geq(zmq_send(socket, bytes, size, 0), 0);
}

static void *stranger(void)
{
    char theirs[128];
    const int linger = 0;
    void *socket = zmq_socket(context, ZMQ_DEALER);
    address(theirs, sizeof theirs, "P");
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    cr_assert_eq(zmq_connect(socket, theirs), 0);
    return socket;
}

Test(peer, a_late_hello_of_an_earlier_life_changes_nothing)
{
    unsigned char hello[4096];
    const size_t size = catch_hello(hello, sizeof hello, 71, 4);
    struct side p;
    struct side d;
    struct peer_counters counters;
    open_side(&p, "P", 70, 3, 10);
    open_side(&d, "D", 71, 5, 40);
    connect_both(&p, &d);
    void *socket = stranger();
    send_raw(socket, hello, size);
    run(&p, &d, 50, 1);
    peer_counters(p.links, &counters);
    cr_assert_eq(p.gone, 0u, "%s", p.why);
    cr_assert_eq(counters.dropped_closed, 1u);
    cr_assert_eq(say(&p, 9), STATUS_OK);
    run(&p, &d, 20, 1);
    cr_assert_eq(d.said, 1u);
    (void)zmq_close(socket);
    peer_close(p.links);
    peer_close(d.links);
}

/* Until P has refused that many hellos of a second node. */
static void await_doubles(struct side *p, struct side *d, uint64_t count)
{
    struct peer_counters counters = {0};
    for (uint32_t i = 0; i < ROUNDS && counters.dropped_double < count; i++) {
        run(p, d, 1, 1);
        peer_counters(p->links, &counters);
    }
    cr_assert_eq(counters.dropped_double, count);
    cr_assert_eq(p->gone, 0u, "%s", p->why);
}

Test(peer, a_second_node_with_the_name_of_a_peer_is_told_of_and_does_not_take_its_place)
{
    unsigned char hello[4096];
    bound = 1000 * 1000 * MS; /* so that no delay of a real socket is a silence */
    const size_t size = catch_hello(hello, sizeof hello, 72, 9);
    struct side p;
    struct side d;
    struct side none = {.links = NULL};
    open_side(&p, "P", 70, 3, 10);
    open_side(&d, "D", 71, 5, 40);
    connect_both(&p, &d);
    void *socket = stranger();
    for (uint32_t i = 0; i < 20; i++) {
        send_raw(socket, hello, size);
    }
    await_doubles(&p, &d, 20);
    cr_assert_eq(p.doubles, 1u, "the log hears of it %u times in a moment", p.doubles);
    cr_assert_eq(p.last.node_id, 71u);
    cr_assert_eq(p.last.other_id, 72u);
    cr_assert_eq(say(&p, 9), STATUS_OK);
    for (uint32_t i = 0; i < ROUNDS && d.said == 0; i++) {
        run(&p, &d, 1, 1);
    }
    cr_assert_eq(d.said, 1u, "the first node is cut off by the second");
    now += 61 * 1000 * MS;
    send_raw(socket, hello, size);
    await_doubles(&p, &d, 21);
    cr_assert_eq(p.doubles, 2u, "a minute later it is still so");
    /* The first one dies: the name is the other's, before the silence has lasted heartbeat_bound.
     */
    peer_close(d.links);
    run(&p, &none, 20, 1);
    now += bound / 2u;
    send_raw(socket, hello, size);
    for (uint32_t i = 0; i < ROUNDS && say(&p, 9) != STATUS_CLOSED; i++) {
        run(&p, &none, 1, 1);
    }
    cr_assert_eq(say(&p, 9), STATUS_CLOSED, "a node with a new journal is not heard");
    (void)zmq_close(socket);
    peer_close(p.links);
}

Test(peer, frames_that_make_no_sense_are_dropped_and_harm_nobody)
{
    unsigned char hello[4096];
    const size_t size = catch_hello(hello, sizeof hello, 71, 4);
    struct side p;
    struct side d;
    struct peer_counters counters;
    uint64_t random = 9;
    open_side(&p, "P", 70, 3, 10);
    open_side(&d, "D", 71, 5, 40);
    connect_both(&p, &d);
    void *socket = stranger();
    for (size_t cut = 0; cut < size; cut++) {
        send_raw(socket, hello, cut);
    }
    for (uint32_t i = 0; i < 500; i++) {
        unsigned char junk[64];
        for (size_t k = 0; k < sizeof junk; k++) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            junk[k] = (unsigned char)(random >> 40);
        }
        send_raw(socket, junk, 1u + i % sizeof junk);
    }
    (void)zmq_send(socket, "one", 3, ZMQ_SNDMORE);
    send_raw(socket, "two", 3);
    run(&p, &d, 100, 1);
    peer_counters(p.links, &counters);
    cr_assert_eq(p.gone, 0u, "%s", p.why);
    cr_assert_geq(counters.dropped_malformed + counters.dropped_stranger + counters.dropped_closed,
                  size + 500u);
    cr_assert_eq(say(&d, 9), STATUS_OK);
    run(&p, &d, 20, 1);
    cr_assert_eq(p.said, 1u);
    (void)zmq_close(socket);
    peer_close(p.links);
    peer_close(d.links);
}

Test(peer, an_address_that_is_taken_or_open_to_the_network_is_refused_in_words)
{
    struct side p;
    char ours[64];
    char last[128];
    size_t size = sizeof last;
    struct status_detail detail = {"", 0};
    struct peer_links *links = NULL;
    open_side(&p, "P", 70, 3, 10);
    void *taken = zmq_socket(context, ZMQ_ROUTER);
    cr_assert_eq(zmq_bind(taken, "tcp://127.0.0.1:*"), 0);
    (void)zmq_getsockopt(taken, ZMQ_LAST_ENDPOINT, last, &size);
    struct peer_options options = {.name = "X", .listen = last, .provider = "tcp"};
    cr_assert_eq(peer_open(&options, context, now, &links, &detail), STATUS_FABRIC_BIND);
    (void)snprintf(ours, sizeof ours, "%.60s", last);
    cr_assert_not_null(strstr(detail.text, ours), "%s", detail.text);
    cr_assert_not_null(strstr(detail.text, "another process has it"), "%s", detail.text);
    options.listen = "tcp://0.0.0.0:7600";
    cr_assert_eq(peer_open(&options, context, now, &links, &detail), STATUS_FABRIC_BIND);
    cr_assert_not_null(strstr(detail.text, "insecure: true"), "%s", detail.text);
    (void)zmq_close(taken);
    peer_close(p.links);
}
