/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's network: connections and messages. */
#include "world_private.h"

#include "stateroom_peer.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- connections
 * -------------------------------------------------------------------------------------- */

uint64_t *net_session(struct world *world, uint32_t a, uint32_t b)
{
    return a < b ? &world->sessions[a][b] : &world->sessions[b][a];
}

uint32_t net_peer(const struct world *world, uint32_t node, uint32_t peer)
{
    const struct sm_text name = sm_peer_name(world->nodes[node].machine.sm, peer);
    for (uint32_t i = 0; i < world->node_count; i++) {
        const struct node *candidate = &world->nodes[i];
        if (candidate->name_size == name.size &&
            memcmp(candidate->options.name, name.bytes, name.size) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static bool can_talk(const struct world *world, uint32_t a, uint32_t b)
{
    return world_alive(world, a) && world_alive(world, b) && !world->connections[a][b].cut &&
           !world->connections[b][a].cut;
}

static void plan_connect(struct world *world, uint32_t a, uint32_t b)
{
    struct event *event = event_new(world,
                                    world->now_ns + world->connections[a][b].latency_ns +
                                        world->connections[b][a].latency_ns,
                                    CLASS_MESSAGE, EVENT_CONNECT);
    event->from = a;
    event->to = b;
    event_add(world, event);
}

void net_connect_later(struct world *world, uint32_t node)
{
    for (uint32_t other = 0; other < world->node_count; other++) {
        if (other != node && world->nodes[other].options.side != world->nodes[node].options.side) {
            plan_connect(world, node, other);
        }
    }
}

static void peer_down(struct world *world, uint32_t node, uint32_t other)
{
    struct connection *c = &world->connections[node][other];
    struct sm_input down = {.kind = SM_IN_PEER_DOWN};
    if (!c->up) {
        return;
    }
    c->up = false;
    down.u.peer.name = world_text(world->nodes[other].options.name);
    down.u.peer.link = c->link;
    node_step(world, node, &down);
}

static void peer_up(struct world *world, uint32_t node, uint32_t other)
{
    struct connection *c = &world->connections[node][other];
    const struct node *its = &world->nodes[other];
    struct sm_input up = {.kind = SM_IN_PEER_UP};
    c->link = ++world->nodes[node].link_last;
    c->up = true;
    c->peer_id = its->node_id;
    c->peer_epoch = its->epoch;
    up.u.peer_up.name = world_text(its->options.name);
    up.u.peer_up.node_id = its->node_id;
    up.u.peer_up.epoch = its->epoch;
    up.u.peer_up.link = c->link;
    up.u.peer_up.ranks = its->options.ranks;
    if (sglang_between(world, node, other)) {
        sglang_up(world, node, other);
    }
    node_step(world, node, &up);
}

/*
 * A new session of the same process ends the old one; of a new process it follows without an end,
 * as the peer link does it: the new one repeats its verdicts.
 */
static void end_old(struct world *world, uint32_t node, uint32_t other)
{
    const struct connection *c = &world->connections[node][other];
    const struct node *its = &world->nodes[other];
    if (c->peer_id == its->node_id && c->peer_epoch == its->epoch) {
        peer_down(world, node, other);
    }
}

/* The handshake is through: both have seen each other's process and session. */
void net_connect(struct world *world, uint32_t a, uint32_t b)
{
    if (world->nodes[a].options.side == world->nodes[b].options.side || !can_talk(world, a, b) ||
        (world->connections[a][b].up && world->connections[b][a].up)) {
        return;
    }
    end_old(world, a, b);
    end_old(world, b, a);
    ++*net_session(world, a, b);
    /* Links are numbered before either side speaks: what it says at once must find the other up. */
    world->connections[a][b].last_arrival = 0;
    world->connections[b][a].last_arrival = 0;
    peer_up(world, a, b);
    peer_up(world, b, a);
}

/* The connection as node sees it is over; the other side learns it from the next hello. */
void net_lose(struct world *world, uint32_t node, uint32_t other)
{
    const uint64_t was = *net_session(world, node, other);
    peer_down(world, node, other);
    if (world->connections[other][node].up && !world->connections[node][other].cut) {
        struct event *event =
            event_new(world, world->now_ns + world->connections[node][other].latency_ns,
                      CLASS_MESSAGE, EVENT_LOST);
        event->from = node;
        event->to = other;
        event->session = was;
        event_add(world, event);
    }
    plan_connect(world, node, other);
}

static void plan_silence(struct world *world, uint32_t from, uint32_t to)
{
    struct event *event =
        event_new(world, world->now_ns + world->nodes[to].options.settings.heartbeat_bound_ns,
                  CLASS_TIMER, EVENT_SILENCE);
    event->from = from;
    event->to = to;
    event->session = *net_session(world, from, to);
    event->number = world->connections[from][to].cut_count;
    event_add(world, event);
}

void net_silence(struct world *world, uint32_t node)
{
    for (uint32_t other = 0; other < world->node_count; other++) {
        if (other != node && world->connections[other][node].up) {
            plan_silence(world, node, other);
        }
    }
}

/* The bound is over: was nothing heard all the while? */
void net_check_silence(struct world *world, const struct event *event)
{
    const struct connection *c = &world->connections[event->from][event->to];
    const bool still =
        (c->cut && c->cut_count == event->number) || !world_alive(world, event->from);
    if (still && *net_session(world, event->from, event->to) == event->session &&
        world->connections[event->to][event->from].up) {
        net_lose(world, event->to, event->from);
    }
}

void world_link(struct world *world, uint32_t from, uint32_t to, bool up)
{
    struct connection *c = &world->connections[from][to];
    c->cut = !up;
    c->cut_count++;
    if (!up) {
        if (world->connections[to][from].up) {
            plan_silence(world, from, to);
        }
        return;
    }
    /* What one side has given up meanwhile the other one hears of now. */
    for (uint32_t way = 0; way < 2; way++) {
        const uint32_t a = way == 0 ? from : to;
        const uint32_t b = way == 0 ? to : from;
        if (!world->connections[a][b].up && world->connections[b][a].up) {
            struct event *event =
                event_new(world, world->now_ns + world->connections[a][b].latency_ns, CLASS_MESSAGE,
                          EVENT_LOST);
            event->from = a;
            event->to = b;
            event->session = *net_session(world, a, b);
            event_add(world, event);
        }
    }
    plan_connect(world, from, to);
}

void world_latency(struct world *world, uint32_t from, uint32_t to, uint64_t ns)
{
    world->connections[from][to].latency_ns = ns;
}

void world_freeze(struct world *world, uint32_t index, bool frozen)
{
    struct node *node = &world->nodes[index];
    if (node->frozen == frozen || node->state != NODE_RUNS) {
        return;
    }
    node->frozen = frozen;
    if (frozen) {
        net_silence(world, index);
        return;
    }
    /* What has come meanwhile lies in its queues, in order. */
    while (node->inbox != NULL) {
        struct event *event = node->inbox;
        node->inbox = event->next;
        event->next = NULL;
        event->time_ns = world->now_ns;
        event->order = world->order_next++;
        event_add(world, event);
    }
    node->inbox_end = &node->inbox;
    for (uint32_t other = 0; other < world->node_count; other++) {
        if (world->connections[index][other].up && !world->connections[other][index].up) {
            struct event *event =
                event_new(world, world->now_ns + world->connections[other][index].latency_ns,
                          CLASS_MESSAGE, EVENT_LOST);
            event->from = other;
            event->to = index;
            event->session = *net_session(world, other, index);
            event_add(world, event);
        }
    }
    net_connect_later(world, index);
}

/* ---- messages
 * ------------------------------------------------------------------------------------------- */

static const uint32_t input_kinds[] = {
    [SM_FX_SEND_PREPARE] = SM_IN_PREPARE,         [SM_FX_SEND_PREPARED] = SM_IN_PREPARED,
    [SM_FX_SEND_STATUS] = SM_IN_STATUS,           [SM_FX_SEND_ACK] = SM_IN_ACK,
    [SM_FX_SEND_ABORT] = SM_IN_PEER_ABORT,        [SM_FX_SEND_DRAINED] = SM_IN_DRAINED,
    [SM_FX_SEND_RECOVERED] = SM_IN_PEER_RECOVERED};

static enum world_message message_of(uint32_t effect_kind)
{
    switch (effect_kind) {
    case SM_FX_SEND_PREPARE:
        return WORLD_PREPARE;
    case SM_FX_SEND_STATUS:
        return WORLD_STATUS;
    case SM_FX_SEND_ACK:
    case SM_FX_SEND_PREPARED:
        return WORLD_ACK;
    case SM_FX_SEND_ABORT:
        return WORLD_ABORT;
    case SM_FX_SEND_DRAINED:
        return WORLD_DRAINED;
    default:
        return WORLD_HELLO;
    }
}

void world_rule(struct world *world, enum world_rule_kind kind, const struct world_path *path,
                enum world_message message, uint64_t room, uint32_t count, uint64_t delay_ns)
{
    const uint32_t from = path->from;
    const uint32_t to = path->to;
    const bool to_decode = world->nodes[to].options.side == SM_DECODE;
    const uint32_t rank = to_decode ? path->to_rank : path->from_rank;
    world->rules =
        array_grow(world->rules, &world->rule_capacity, world->rule_count, sizeof *world->rules);
    world->rules[world->rule_count++] =
        (struct rule){kind, from, to, rank, message, room, count, delay_ns};
    if (message == WORLD_HEARTBEAT && kind != WORLD_DOUBLE) {
        /* Heartbeats are no messages here: the silence that their loss makes is. */
        const struct node_settings *s = &world->nodes[to].options.settings;
        const uint64_t silent = kind == WORLD_DROP ? count * s->heartbeat_interval_ns : delay_ns;
        if (silent >= s->heartbeat_bound_ns && world->connections[to][from].up) {
            struct event *event =
                event_new(world, world->now_ns + s->heartbeat_bound_ns, CLASS_TIMER, EVENT_LOST);
            event->from = from;
            event->to = to;
            event->session = *net_session(world, from, to);
            event_add(world, event);
        }
    }
}

/* `ack` rules are about statuses' answers. */
const struct rule *net_rule(struct world *world, uint32_t from, uint32_t to,
                            const struct sm_effect *effect)
{
    const enum world_message message = message_of(effect->kind);
    for (uint32_t i = 0; i < world->rule_count; i++) {
        struct rule *rule = &world->rules[i];
        const bool fits = rule->message == WORLD_ANY ||
                          (rule->message == message && effect->kind != SM_FX_SEND_PREPARED);
        if (rule->left > 0 && rule->from == from && rule->to == to && fits &&
            (rule->rank == SM_NONE || rule->rank == effect->u.message.decode_rank) &&
            (rule->room == WORLD_NO_ROOM || rule->room == effect->room)) {
            rule->left--;
            return rule;
        }
    }
    return NULL;
}

struct event *net_put(struct world *world, uint32_t from, uint32_t to, const unsigned char *bytes,
                      size_t size, uint64_t delay_ns)
{
    struct connection *c = &world->connections[from][to];
    uint64_t arrival = world->now_ns + world_jittered(world, c->latency_ns);
    if (delay_ns > 0) {
        arrival += delay_ns; /* later ones may overtake it */
    } else {
        arrival = arrival > c->last_arrival ? arrival : c->last_arrival;
        c->last_arrival = arrival;
    }
    struct event *event = event_new(world, arrival, CLASS_MESSAGE, EVENT_MESSAGE);
    event->order &= (UINT64_C(1) << 48) - 1u; /* a connection keeps its order */
    event->from = from;
    event->to = to;
    event->session = *net_session(world, from, to);
    memcpy(event_bytes(world, event, size), bytes, size);
    event_add(world, event);
    return event;
}

void net_send(struct world *world, uint32_t node, const struct sm_effect *effect, uint64_t entry)
{
    const uint32_t to = net_peer(world, node, effect->peer);
    Stateroom__Peer__Packet packet;
    if (to == UINT32_MAX || !world->connections[node][to].up ||
        world->connections[node][to].link != effect->link) {
        return; /* of a connection that is gone: the machine repeats what is not answered */
    }
    if (sglang_between(world, node, to)) {
        sglang_send(world, node, to, effect);
        return;
    }
    const struct rule *rule = net_rule(world, node, to, effect);
    if (world->connections[node][to].cut || (rule != NULL && rule->kind == WORLD_DROP)) {
        return;
    }
    codec_arena_reset(&world->arena);
    stateroom__peer__packet__init(&packet);
    packet.node_id = world->nodes[node].node_id;
    packet.epoch = world->nodes[node].epoch;
    packet.entry = entry;
    packet.room = effect->room;
    packet.kind = input_kinds[effect->kind];
    packet.body_case = STATEROOM__PEER__PACKET__BODY_MESSAGE;
    if (codec_message_fill(&effect->u.message, &world->arena, &packet.message) != STATUS_OK ||
        stateroom__peer__packet__get_packed_size(&packet) > ENTRY_BYTES_MAX) {
        world_fall(world, "a message of %s is too large", world->nodes[node].options.name);
        return;
    }
    const size_t size = stateroom__peer__packet__pack(&packet, world->entry);
    (void)net_put(world, node, to, world->entry, size,
                  rule != NULL && rule->kind == WORLD_DELAY ? rule->delay_ns : 0);
    if (rule != NULL && rule->kind == WORLD_DOUBLE) {
        (void)net_put(world, node, to, world->entry, size, 0);
    }
}

/* Terminal statuses, each once, as an observer at the receiver sees them. */
void net_note(struct world *world, uint32_t from, uint32_t to, const struct sm_input *input)
{
    const struct sm_message *m = &input->u.message.message;
    struct seat *seat = world_seat(world, to, m->decode_rank, input->room);
    for (const struct noticed *n = seat->noticed; n != NULL; n = n->next) {
        if (n->from == from && n->outcome == m->outcome && n->generation == m->life.generation) {
            return;
        }
    }
    struct noticed *noticed = chunks_take(&world->memory, sizeof *noticed);
    *noticed = (struct noticed){m->life.generation, from, m->outcome, seat->noticed};
    seat->noticed = noticed;
    struct world_log *log = log_add(world, WORLD_NOTICE);
    log->room = input->room;
    log->from = from;
    log->node = to;
    log->rank = m->decode_rank;
    log->outcome = m->outcome;
    log->http = m->cause.http;
    log->life = (uint32_t)m->life.generation;
    log_reason(world, m->cause.reason);
}

/* Parses one packet; false: it is none. What it points to lives in the world's arena. */
static bool parse(struct world *world, const unsigned char *bytes, size_t size, uint32_t from,
                  struct sm_input *out_input)
{
    codec_arena_reset(&world->arena);
    const struct codec_allocator allocator = codec_arena_allocator(&world->arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Peer__Packet *packet =
        stateroom__peer__packet__unpack(&functions, size, bytes);
    memset(out_input, 0, sizeof *out_input);
    if (packet == NULL || packet->body_case != STATEROOM__PEER__PACKET__BODY_MESSAGE ||
        !sm_input_is_message(packet->kind) ||
        codec_message_read(packet->message, &world->arena, &out_input->u.message.message) !=
            STATUS_OK) {
        return false;
    }
    out_input->kind = packet->kind;
    out_input->room = packet->room;
    out_input->u.message.epoch = packet->epoch;
    out_input->u.message.entry = packet->entry;
    if (from < world->node_count) {
        out_input->u.message.peer = world_text(world->nodes[from].options.name);
    }
    return true;
}

void net_arrive(struct world *world, struct event *event)
{
    struct sm_input input;
    if (event->from == UINT32_MAX) {
        sglang_arrive(world, event); /* nobody's: it has no session */
        return;
    }
    const struct connection *c = &world->connections[event->to][event->from];
    if (!c->up || *net_session(world, event->from, event->to) != event->session ||
        world->connections[event->from][event->to].cut) {
        return; /* of a session that is over, or lost on its way */
    }
    if (event->frames) {
        sglang_arrive(world, event);
        return;
    }
    if (!parse(world, event->bytes, event->size, event->from, &input)) {
        world_fall(world, "a message of %s cannot be read", world->nodes[event->from].options.name);
        return;
    }
    if (input.kind == SM_IN_STATUS) {
        net_note(world, event->from, event->to, &input);
    }
    node_step(world, event->to, &input);
}

/* Nobody's: it has no session, so even a sound packet is dropped, as the peer link does. */
void world_bytes(struct world *world, uint32_t node, const unsigned char *bytes, size_t size)
{
    struct sm_input input;
    (void)node;
    (void)parse(world, bytes, size, UINT32_MAX, &input);
}

void net_fence(struct world *world, uint32_t node, const struct sm_effect *effect)
{
    const uint32_t peer = net_peer(world, node, effect->peer);
    struct sm_input fenced = {.kind = SM_IN_PEER_FENCED};
    if (peer == UINT32_MAX) {
        return;
    }
    struct connection *c = &world->connections[node][peer];
    c->fenced = effect->link > c->fenced ? effect->link : c->fenced;
    flight_fence(world, node, peer, effect->link);
    fenced.u.peer.name = world_text(world->nodes[peer].options.name);
    fenced.u.peer.link = effect->link;
    event_input(world, world->now_ns, CLASS_COMPLETION, node, &fenced);
    if (c->up && c->link == effect->link) {
        struct event *event = event_new(world, world->now_ns, CLASS_MESSAGE, EVENT_LOST);
        event->from = peer;
        event->to = node;
        event->session = *net_session(world, node, peer);
        event_add(world, event);
    }
}
