/* SPDX-License-Identifier: Apache-2.0 */
/* The peer link. */
#include "fabric/peer.h"

#include "peer_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* ---- opening
 * ----------------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    (void)zmq_setsockopt(socket, option, &value, sizeof value);
}

static void set_limits(void *socket)
{
    const int64_t frame = PEER_FRAME_BYTES_MAX;
    set_int(socket, ZMQ_LINGER, 0);
    set_int(socket, ZMQ_SNDHWM, PEER_OUTBOX_MAX);
    set_int(socket, ZMQ_RCVHWM, PEER_OUTBOX_MAX);
    set_int(socket, ZMQ_HANDSHAKE_IVL, 5000);
    set_int(socket, ZMQ_RECONNECT_IVL, 50);
    set_int(socket, ZMQ_RECONNECT_IVL_MAX, 1000);
    set_int(socket, ZMQ_TCP_KEEPALIVE, 1);
    (void)zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame, sizeof frame);
}

static enum status open_router(struct peer_links *links, struct status_detail *out_detail)
{
    const struct peer_options *options = &links->options;
    TRY(peer_address_check(options->listen, true, options->insecure, out_detail));
    links->router = zmq_socket(links->context, ZMQ_ROUTER);
    if (links->router == NULL) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "peer link: %s", zmq_strerror(errno));
    }
    set_limits(links->router);
    return router_bind(links->router, options->listen, "peer link", "listen", &links->lock,
                       out_detail);
}

static enum status open_peer(struct peer_links *links, uint32_t index,
                             struct status_detail *out_detail)
{
    struct peer_state *peer = &links->peers[index];
    const struct peer_address *address = &links->options.peers[index];
    (void)snprintf(peer->name, sizeof peer->name, "%s", address->name);
    peer->dealer = zmq_socket(links->context, ZMQ_DEALER);
    if (peer->dealer == NULL) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "peer link: %s", zmq_strerror(errno));
    }
    set_limits(peer->dealer);
    /* Messages for a peer that is not there are dropped at once, not kept for a later process. */
    set_int(peer->dealer, ZMQ_IMMEDIATE, 1);
    if (zmq_connect(peer->dealer, address->address) != 0) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, errno,
                           "peer %s: address %s: %s; write tcp://HOST:PORT or ipc://PATH",
                           address->name, address->address, zmq_strerror(errno));
    }
    return STATUS_OK;
}

enum status peer_open(const struct peer_options *options, void *zmq_context, uint64_t now_ns,
                      struct peer_links **out_links, struct status_detail *out_detail)
{
    struct peer_links *links = calloc(1, sizeof *links);
    if (links == NULL || options->peer_count > PEER_PEERS_MAX) {
        free(links);
        return status_fail(STATUS_TOO_LARGE, out_detail, 0, "more than %u peers", PEER_PEERS_MAX);
    }
    links->options = *options;
    links->lock.fd = -1;
    links->context = zmq_context;
    links->arena_memory = malloc(PEER_ARENA_BYTES);
    links->frame = malloc(PEER_FRAME_BYTES_MAX);
    if (links->arena_memory == NULL || links->frame == NULL) {
        peer_close(links);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the peer link");
    }
    codec_arena_init(&links->arena, links->arena_memory, PEER_ARENA_BYTES);
    enum status status = open_router(links, out_detail);
    for (uint32_t i = 0; i < options->peer_count && status == STATUS_OK; i++) {
        status = open_peer(links, i, out_detail);
        links->peers[i].link = options->first_link;
        links->peers[i].last_heard_ns = now_ns;
        links->peers[i].state = STATE_BEGIN;
    }
    if (status != STATUS_OK) {
        peer_close(links);
        return status;
    }
    links->next_link = options->first_link;
    *out_links = links;
    return STATUS_OK;
}

void peer_close(struct peer_links *links)
{
    if (links == NULL) {
        return;
    }
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        if (links->peers[i].dealer != NULL) {
            (void)zmq_close(links->peers[i].dealer);
        }
    }
    router_close(links->router, links->options.listen, &links->lock);
    free(links->arena_memory);
    free(links->frame);
    free(links);
}

void *peer_socket(const struct peer_links *links)
{
    return links->router;
}

void peer_counters(const struct peer_links *links, struct peer_counters *out_counters)
{
    *out_counters = links->counters;
}

/* ---- sending
 * ------------------------------------------------------------------------------------------- */

static enum status send_packet(struct peer_links *links, struct peer_state *peer,
                               const Stateroom__Peer__Packet *packet)
{
    size_t size = stateroom__peer__packet__get_packed_size(packet);
    if (size > PEER_FRAME_BYTES_MAX) {
        return STATUS_TOO_LARGE;
    }
    size = stateroom__peer__packet__pack(packet, links->frame);
    if (zmq_send(peer->dealer, links->frame, size, ZMQ_DONTWAIT) < 0) {
        links->counters.dropped_full++;
        return STATUS_AGAIN;
    }
    links->counters.sent++;
    return STATUS_OK;
}

static void begin_packet(const struct peer_links *links, const struct peer_state *peer,
                         Stateroom__Peer__Packet *packet)
{
    stateroom__peer__packet__init(packet);
    packet->node_id = links->options.node_id;
    packet->epoch = links->options.epoch;
    packet->session = peer->link;
}

static enum status fill_regions(struct peer_links *links, const struct data_endpoint *endpoint,
                                Stateroom__Peer__Hello *hello)
{
    Stateroom__Peer__Region **list =
        codec_arena_take(&links->arena, (endpoint->region_count + 1u) * sizeof *list);
    Stateroom__Peer__Region *regions =
        codec_arena_take(&links->arena, (endpoint->region_count + 1u) * sizeof *regions);
    if (list == NULL || regions == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (uint32_t i = 0; i < endpoint->region_count; i++) {
        const struct data_region *from = &endpoint->regions[i];
        stateroom__peer__region__init(&regions[i]);
        regions[i].rank = from->rank;
        regions[i].address = from->address;
        regions[i].bytes = from->bytes;
        regions[i].key = from->key;
        regions[i].kind = 1;
        regions[i].slot_bytes = from->aux_stride;
        regions[i].count = from->pages;
        regions[i].aux_slots = from->aux_slots;
        TRY(codec_geometry_fill(&from->geometry, &links->arena, &regions[i].geometry));
        list[i] = &regions[i];
    }
    hello->regions = list;
    hello->n_regions = endpoint->region_count;
    return STATUS_OK;
}

void peer_send_hello(struct peer_links *links, struct peer_state *peer, uint64_t now_ns)
{
    Stateroom__Peer__Packet packet;
    Stateroom__Peer__Hello hello;
    codec_arena_reset(&links->arena);
    begin_packet(links, peer, &packet);
    stateroom__peer__hello__init(&hello);
    hello.protocol = 1;
    hello.name = (char *)(uintptr_t)links->options.name;
    hello.node_id = links->options.node_id;
    hello.epoch = links->options.epoch;
    hello.session = peer->link;
    hello.seen_epoch = peer->remote_epoch;
    hello.seen_session = peer->remote_session;
    hello.ranks = links->options.ranks;
    hello.features = peer->local.verify ? PEER_WANTS_VERIFIED : 0u;
    hello.provider = (char *)(uintptr_t)links->options.provider;
    hello.endpoint.data = peer->local.bytes;
    hello.endpoint.len = peer->local.size;
    hello.heartbeat_bound_ns = links->options.heartbeat_bound_ns;
    packet.body_case = STATEROOM__PEER__PACKET__BODY_HELLO;
    packet.hello = &hello;
    peer->next_beat_ns = now_ns + links->options.heartbeat_interval_ns;
    if (fill_regions(links, &peer->local, &hello) == STATUS_OK) {
        (void)send_packet(links, peer, &packet);
    }
}

void peer_send_heartbeat(struct peer_links *links, struct peer_state *peer, uint64_t now_ns)
{
    Stateroom__Peer__Packet packet;
    Stateroom__Peer__Heartbeat heartbeat;
    begin_packet(links, peer, &packet);
    stateroom__peer__heartbeat__init(&heartbeat);
    heartbeat.session = peer->link;
    heartbeat.seen_epoch = peer->remote_epoch;
    heartbeat.seen_session = peer->remote_session;
    packet.body_case = STATEROOM__PEER__PACKET__BODY_HEARTBEAT;
    packet.heartbeat = &heartbeat;
    peer->next_beat_ns = now_ns + links->options.heartbeat_interval_ns;
    (void)send_packet(links, peer, &packet);
}

void peer_set_local(struct peer_links *links, uint32_t index, uint32_t link,
                    const struct data_endpoint *endpoint, uint64_t now_ns)
{
    if (index >= links->options.peer_count || links->peers[index].link != link) {
        return; /* an answer for a connection that is over already */
    }
    struct peer_state *peer = &links->peers[index];
    peer->local = *endpoint;
    peer->state = peer->state == STATE_WAIT_ENDPOINT ? STATE_HELLO : peer->state;
    peer_send_hello(links, peer, now_ns);
}

enum status peer_send(struct peer_links *links, uint32_t index, uint32_t link, uint32_t kind,
                      uint64_t room, uint64_t entry, const struct sm_message *message)
{
    Stateroom__Peer__Packet packet;
    if (index >= links->options.peer_count || links->peers[index].link != link ||
        links->peers[index].state != STATE_UP) {
        links->counters.dropped_closed++;
        return STATUS_CLOSED;
    }
    struct peer_state *peer = &links->peers[index];
    peer->spoken = true;
    codec_arena_reset(&links->arena);
    begin_packet(links, peer, &packet);
    packet.room = room;
    packet.entry = entry;
    packet.kind = kind;
    packet.body_case = STATEROOM__PEER__PACKET__BODY_MESSAGE;
    TRY(codec_message_fill(message, &links->arena, &packet.message));
    return send_packet(links, peer, &packet);
}
