/* SPDX-License-Identifier: Apache-2.0 */
/* What comes in: the handshake, heartbeats, messages; and what does not come in any more. */
#include "peer_private.h"
#include "router.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

/* How often the log hears of a second node with a peer's name. */
#define DOUBLE_TOLD_EVERY_NS UINT64_C(60000000000)

/* ---- parsing
 * ------------------------------------------------------------------------------------------- */

static Stateroom__Peer__Packet *parse(const unsigned char *bytes, size_t size,
                                      struct codec_arena *arena)
{
    const struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    Stateroom__Peer__Packet *packet = stateroom__peer__packet__unpack(&functions, size, bytes);
    if (packet == NULL || packet->node_id == 0) {
        return NULL;
    }
    return packet;
}

/* A hello whose parts all make sense; fills in the peer's data endpoint. */
static bool hello_sound(const Stateroom__Peer__Hello *hello, struct data_endpoint *out)
{
    if (hello->protocol != 1u || hello->ranks < 1u || hello->ranks > SM_RANKS_MAX ||
        hello->endpoint.len > DATA_ENDPOINT_BYTES_MAX || hello->n_regions > DATA_REGIONS_MAX ||
        hello->session == 0) {
        return false;
    }
    memset(out, 0, sizeof *out);
    out->size = hello->endpoint.len;
    out->verify = (hello->features & PEER_WANTS_VERIFIED) != 0;
    if (hello->endpoint.len > 0) {
        memcpy(out->bytes, hello->endpoint.data, hello->endpoint.len);
    }
    for (size_t i = 0; i < hello->n_regions; i++) {
        const Stateroom__Peer__Region *from = hello->regions[i];
        struct data_region *to = &out->regions[out->region_count++];
        if (from->rank >= hello->ranks) {
            return false;
        }
        to->rank = from->rank;
        to->address = from->address;
        to->bytes = from->bytes;
        to->key = from->key;
        to->pages = from->count;
        to->aux_slots = from->aux_slots;
        to->aux_stride = from->slot_bytes;
        to->geometry = codec_geometry_read(from->geometry);
    }
    return true;
}

bool peer_frame_parses(const unsigned char *bytes, size_t size, struct codec_arena *arena)
{
    struct data_endpoint endpoint;
    struct sm_message message;
    codec_arena_reset(arena);
    const Stateroom__Peer__Packet *packet = parse(bytes, size, arena);
    if (packet == NULL) {
        return false;
    }
    switch (packet->body_case) {
    case STATEROOM__PEER__PACKET__BODY_HELLO:
        return hello_sound(packet->hello, &endpoint);
    case STATEROOM__PEER__PACKET__BODY_MESSAGE:
        return codec_message_read(packet->message, arena, &message) == STATUS_OK;
    case STATEROOM__PEER__PACKET__BODY_HEARTBEAT:
        return true;
    case STATEROOM__PEER__PACKET__BODY__NOT_SET:
    case _STATEROOM__PEER__PACKET__BODY__CASE_IS_INT_SIZE:
        return false;
    }
    return false;
}

/* ---- connections
 * ---------------------------------------------------------------------------------------- */

/* The connection is over: the next one gets a new number, and a new endpoint. */
/* The end is told at `when_ns`, unless the peer has come up again before that. */
static void end_connection(struct peer_links *links, struct peer_state *peer, const char *why,
                           uint64_t when_ns)
{
    if (peer->state == STATE_UP) {
        const bool known = peer->superseded == 0 || peer->spoken;
        peer->gone_because = why;
        peer->gone_link = known ? peer->link : peer->superseded;
        peer->gone_at_ns = when_ns;
        links->counters.losses++;
    }
    peer->state = STATE_BEGIN;
}

void peer_drop(struct peer_links *links, uint32_t peer, uint32_t link, const char *why)
{
    if (peer < links->options.peer_count && links->peers[peer].link == link) {
        end_connection(links, &links->peers[peer], why, 0);
    }
}

static bool seen_each_other(const struct peer_links *links, const struct peer_state *peer)
{
    return peer->known && peer->state == STATE_HELLO &&
           peer->remote_seen_epoch == links->options.epoch &&
           peer->remote_seen_session == peer->link;
}

static struct peer_state *by_name(struct peer_links *links, const char *name)
{
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        if (strcmp(links->peers[i].name, name) == 0) {
            return &links->peers[i];
        }
    }
    return NULL;
}

static struct peer_state *by_node(struct peer_links *links, uint64_t node_id)
{
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        if (links->peers[i].known && links->peers[i].remote_node == node_id) {
            return &links->peers[i];
        }
    }
    return NULL;
}

static struct peer_event event_of(const struct peer_links *links, const struct peer_state *peer,
                                  enum peer_event_kind kind)
{
    struct peer_event event;
    memset(&event, 0, sizeof event);
    event.event = kind;
    event.peer = (uint32_t)(peer - links->peers);
    event.link = peer->link;
    event.name = peer->name;
    event.node_id = peer->remote_node;
    event.epoch = peer->remote_epoch;
    event.ranks = peer->remote_ranks;
    event.endpoint = &peer->remote;
    return event;
}

static bool go_up(struct peer_links *links, struct peer_state *peer, uint64_t now_ns,
                  struct peer_event *out_event)
{
    peer->state = STATE_UP;
    peer->spoken = false;
    peer->superseded = peer->gone_because != NULL ? peer->gone_link : 0;
    peer->gone_because = NULL;
    links->counters.connects++;
    *out_event = event_of(links, peer, PEER_IS_CONNECTED);
    /* The peer learns from this that we have seen its newest hello. */
    peer_send_hello(links, peer, now_ns);
    return true;
}

/* Of an earlier life or session of the peer, overtaken by a newer one on another connection. */
static bool is_late(const struct peer_state *peer, const Stateroom__Peer__Packet *packet,
                    const Stateroom__Peer__Hello *hello)
{
    return peer->known && peer->remote_node == packet->node_id &&
           (packet->epoch < peer->remote_epoch ||
            (packet->epoch == peer->remote_epoch && hello->session < peer->remote_session));
}

/*
 * A second node with the peer's name, while the first one is up and heard. To take it for the first
 * would end the rooms of the first, and the other way round a moment later, for ever.
 */
static bool is_double(const struct peer_links *links, const struct peer_state *peer,
                      uint64_t node_id, uint64_t now_ns)
{
    return peer->state == STATE_UP && peer->remote_node != node_id &&
           now_ns - peer->last_heard_ns <= links->options.heartbeat_bound_ns / 2u;
}

static bool tell_double(struct peer_links *links, struct peer_state *peer, uint64_t node_id,
                        uint64_t now_ns, struct peer_event *out_event)
{
    links->counters.dropped_double++;
    if (peer->double_node == node_id && now_ns - peer->double_told_ns < DOUBLE_TOLD_EVERY_NS) {
        return false;
    }
    peer->double_node = node_id;
    peer->double_told_ns = now_ns;
    *out_event = event_of(links, peer, PEER_IS_DOUBLE);
    out_event->other_id = node_id;
    return true;
}

static bool on_hello(struct peer_links *links, const Stateroom__Peer__Packet *packet,
                     uint64_t now_ns, struct peer_event *out_event)
{
    const Stateroom__Peer__Hello *hello = packet->hello;
    struct data_endpoint endpoint;
    struct peer_state *peer = by_name(links, hello->name);
    if (peer == NULL) {
        links->counters.dropped_stranger++;
        return false;
    }
    if (!hello_sound(hello, &endpoint) || hello->node_id != packet->node_id ||
        packet->node_id == links->options.node_id) {
        links->counters.dropped_malformed++;
        return false;
    }
    if (is_late(peer, packet, hello)) {
        links->counters.dropped_closed++;
        return false;
    }
    if (is_double(links, peer, packet->node_id, now_ns)) {
        return tell_double(links, peer, packet->node_id, now_ns, out_event);
    }
    const bool same = peer->known && peer->remote_node == packet->node_id &&
                      peer->remote_epoch == packet->epoch && peer->remote_session == hello->session;
    if (!same && peer->state == STATE_UP) {
        /*
         * Who has restarted repeats its verdicts over the next connection: that one follows this
         * one without an end, or the rooms would fail before they are heard. Who has begun a new
         * session has given up its rooms with us.
         */
        const bool restarted =
            peer->remote_epoch != packet->epoch || peer->remote_node != packet->node_id;
        end_connection(links, peer,
                       restarted ? "the peer has restarted and has not come up"
                                 : "the peer has begun a new session",
                       restarted ? now_ns + links->options.heartbeat_bound_ns : 0);
    }
    const bool regions =
        same && peer->state == STATE_UP && memcmp(&endpoint, &peer->remote, sizeof endpoint) != 0;
    const bool answer = !same && peer->state == STATE_HELLO;
    peer->known = true;
    peer->remote_node = packet->node_id;
    peer->remote_epoch = packet->epoch;
    peer->remote_session = hello->session;
    peer->remote_seen_epoch = hello->seen_epoch;
    peer->remote_seen_session = hello->seen_session;
    peer->remote_ranks = hello->ranks;
    peer->remote = endpoint;
    peer->last_heard_ns = now_ns;
    if (seen_each_other(links, peer)) {
        return go_up(links, peer, now_ns, out_event);
    }
    if (answer) {
        peer_send_hello(links, peer, now_ns);
    }
    if (regions) {
        *out_event = event_of(links, peer, PEER_HAS_REGIONS);
    }
    return regions;
}

static bool on_message(struct peer_links *links, const Stateroom__Peer__Packet *packet,
                       uint64_t now_ns, struct peer_event *out_event)
{
    struct peer_state *peer = by_node(links, packet->node_id);
    struct sm_message message;
    if (peer == NULL || peer->remote_epoch != packet->epoch ||
        peer->remote_session != packet->session) {
        links->counters.dropped_stranger++;
        return false;
    }
    if (!sm_input_is_message(packet->kind) ||
        codec_message_read(packet->message, &links->arena, &message) != STATUS_OK) {
        links->counters.dropped_malformed++;
        return false;
    }
    peer->last_heard_ns = now_ns;
    if (peer->state != STATE_UP) {
        links->counters.dropped_closed++; /* the sender repeats it */
        return false;
    }
    *out_event = event_of(links, peer, PEER_SAYS);
    out_event->kind = packet->kind;
    out_event->room = packet->room;
    out_event->entry = packet->entry;
    out_event->message = message;
    return true;
}

static bool on_heartbeat(struct peer_links *links, const Stateroom__Peer__Packet *packet,
                         uint64_t now_ns, struct peer_event *out_event)
{
    struct peer_state *peer = by_node(links, packet->node_id);
    if (peer == NULL || peer->remote_epoch != packet->epoch) {
        links->counters.dropped_stranger++;
        return false;
    }
    if (peer->remote_session != packet->session) {
        return false; /* its hello is on the way */
    }
    peer->last_heard_ns = now_ns;
    peer->remote_seen_epoch = packet->heartbeat->seen_epoch;
    peer->remote_seen_session = packet->heartbeat->seen_session;
    /* The hello that said so may have been lost. */
    return seen_each_other(links, peer) && go_up(links, peer, now_ns, out_event);
}

/* One message of the router; false: none. *out_event set when *out_given. */
static bool receive_one(struct peer_links *links, uint64_t now_ns, struct peer_event *out_event,
                        bool *out_given)
{
    struct router_identity from;
    zmq_msg_t frame;
    *out_given = false;
    codec_arena_reset(&links->arena);
    const enum router_got got = router_receive(links->router, &from, &frame);
    if (got == ROUTER_EMPTY) {
        return false;
    }
    links->counters.received++;
    const Stateroom__Peer__Packet *packet = NULL;
    if (got == ROUTER_FRAME) {
        packet = parse(zmq_msg_data(&frame), zmq_msg_size(&frame), &links->arena);
        (void)zmq_msg_close(&frame);
    }
    if (packet == NULL) {
        links->counters.dropped_malformed++;
        return true;
    }
    if (packet->body_case == STATEROOM__PEER__PACKET__BODY_HELLO) {
        *out_given = on_hello(links, packet, now_ns, out_event);
    } else if (packet->body_case == STATEROOM__PEER__PACKET__BODY_MESSAGE) {
        *out_given = on_message(links, packet, now_ns, out_event);
    } else if (packet->body_case == STATEROOM__PEER__PACKET__BODY_HEARTBEAT) {
        *out_given = on_heartbeat(links, packet, now_ns, out_event);
    } else {
        links->counters.dropped_malformed++;
    }
    return true;
}

/* ---- time
 * -------------------------------------------------------------------------------------------------
 */

static bool watch_peer(struct peer_links *links, struct peer_state *peer, uint64_t now_ns,
                       struct peer_event *out_event)
{
    if (peer->gone_because != NULL && now_ns >= peer->gone_at_ns) {
        *out_event = event_of(links, peer, PEER_IS_GONE);
        out_event->link = peer->gone_link;
        out_event->why = peer->gone_because;
        peer->gone_because = NULL;
        return true;
    }
    if (now_ns - peer->last_heard_ns > links->options.heartbeat_bound_ns) {
        if (peer->state == STATE_UP) {
            end_connection(links, peer, "nothing was heard for heartbeat_bound", 0);
            return watch_peer(links, peer, now_ns, out_event);
        }
        if (!peer->known && !peer->never_came_told) {
            peer->never_came_told = true;
            *out_event = event_of(links, peer, PEER_IS_GONE);
            out_event->link = 0;
            out_event->why = "it has not come up";
            return true;
        }
    }
    if (peer->state == STATE_BEGIN) {
        peer->link = ++links->next_link;
        peer->state = STATE_WAIT_ENDPOINT;
        *out_event = event_of(links, peer, PEER_WANT_ENDPOINT);
        return true;
    }
    if (now_ns >= peer->next_beat_ns && peer->state == STATE_HELLO) {
        peer_send_hello(links, peer, now_ns);
    } else if (now_ns >= peer->next_beat_ns && peer->state == STATE_UP) {
        peer_send_heartbeat(links, peer, now_ns);
    }
    return false;
}

bool peer_next(struct peer_links *links, uint64_t now_ns, struct peer_event *out_event)
{
    bool given = false;
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        if (links->peers[i].gone_because != NULL && now_ns >= links->peers[i].gone_at_ns &&
            watch_peer(links, &links->peers[i], now_ns, out_event)) {
            return true;
        }
    }
    while (receive_one(links, now_ns, out_event, &given)) {
        if (given) {
            return true;
        }
        for (uint32_t i = 0; i < links->options.peer_count; i++) {
            if (links->peers[i].gone_because != NULL) {
                return watch_peer(links, &links->peers[i], now_ns, out_event);
            }
        }
    }
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        if (watch_peer(links, &links->peers[i], now_ns, out_event)) {
            return true;
        }
    }
    return false;
}

uint64_t peer_deadline(const struct peer_links *links)
{
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; i < links->options.peer_count; i++) {
        const struct peer_state *peer = &links->peers[i];
        const uint64_t silence = peer->last_heard_ns + links->options.heartbeat_bound_ns + 1u;
        const uint64_t beat = peer->state >= STATE_HELLO ? peer->next_beat_ns : UINT64_MAX;
        const bool watched = peer->state == STATE_UP || (!peer->known && !peer->never_came_told);
        deadline = beat < deadline ? beat : deadline;
        deadline = watched && silence < deadline ? silence : deadline;
        deadline =
            peer->gone_because != NULL && peer->gone_at_ns < deadline ? peer->gone_at_ns : deadline;
        deadline = peer->state == STATE_BEGIN ? 0 : deadline;
    }
    return deadline;
}
