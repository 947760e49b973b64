/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's messages in SGLang's frames: real codec, real bookkeeping, simulated sockets. */
#include "world_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_FIRST 49152u
#define PORTS_A_LIFE 64u
#define PORT_LIVES 200u

bool sglang_between(const struct world *world, uint32_t a, uint32_t b)
{
    return world->nodes[a].options.sglang || world->nodes[b].options.sglang;
}

/* A new process has new ports, and so its ranks have new sessions. */
void sglang_start(struct world *world, uint32_t index)
{
    struct node *node = &world->nodes[index];
    const struct world_node_options *o = &node->options;
    struct status_detail detail;
    char ip[32];
    bool frames = false;
    for (uint32_t i = 0; i < world->node_count; i++) {
        frames =
            frames || (world->nodes[i].options.side != o->side && sglang_between(world, index, i));
    }
    sglang_end(node);
    if (!frames) {
        return;
    }
    (void)snprintf(ip, sizeof ip, "10.0.0.%u", index + 1u);
    const uint64_t life = (node->epoch + node->wipes * 7u) % PORT_LIVES;
    const struct sglang_rooms_options options = {o->ranks,
                                                 o->settings.bounds.ranks_max,
                                                 o->settings.bounds.peers_max,
                                                 node->epoch,
                                                 o->geometry,
                                                 ip,
                                                 (uint16_t)(PORT_FIRST + life * PORTS_A_LIFE)};
    if (sglang_rooms_create(&options, &node->sglang, &detail) != STATUS_OK) {
        world_fall(world, "%s: %s", o->name, detail.text);
    }
}

void sglang_end(struct node *node)
{
    sglang_rooms_destroy(node->sglang);
    node->sglang = NULL;
}

/* The machine's index of a node; SM_NONE: it does not know it. */
static uint32_t index_of(const struct world *world, uint32_t node, uint32_t other)
{
    const struct sm *sm = world->nodes[node].machine.sm;
    for (uint32_t i = 0; i < sm_peer_count(sm); i++) {
        if (net_peer(world, node, i) == other) {
            return i;
        }
    }
    return SM_NONE;
}

void sglang_up(struct world *world, uint32_t node, uint32_t other)
{
    const struct node *its = &world->nodes[other];
    const struct sglang_rooms_peer up = {index_of(world, node, other),
                                         its->options.name,
                                         its->node_id,
                                         its->epoch,
                                         its->options.ranks,
                                         its->options.geometry.page_tokens,
                                         its->options.geometry.dtype};
    sglang_rooms_peer_up(world->nodes[node].sglang, &up);
}

/* ---- on the way
 * ----------------------------------------------------------------------------------------- */

/* Frames as one event has them: their number, then each with its size before it. */
static size_t pack(unsigned char *out, size_t size, const struct sglang_frame *frames,
                   uint32_t count)
{
    size_t used = sizeof count;
    memcpy(out, &count, sizeof count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t bytes = (uint32_t)frames[i].size;
        if (bytes > size - used || size - used - bytes < sizeof bytes) {
            return 0;
        }
        memcpy(out + used, &bytes, sizeof bytes);
        used += sizeof bytes;
        if (bytes > 0) {
            memcpy(out + used, frames[i].bytes, bytes);
        }
        used += bytes;
    }
    return used;
}

static uint32_t unpack(const unsigned char *bytes, struct sglang_frame *out_frames)
{
    uint32_t count = 0;
    memcpy(&count, bytes, sizeof count);
    const unsigned char *at = bytes + sizeof count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = 0;
        memcpy(&size, at, sizeof size);
        out_frames[i] = (struct sglang_frame){at + sizeof size, size};
        at += sizeof size + size;
    }
    return count;
}

static void put(struct world *world, uint32_t node, uint32_t to, const struct sglang_send *send,
                const struct rule *rule)
{
    static unsigned char buffer[SGLANG_MESSAGE_BYTES_MAX];
    struct sglang_frame frames[SGLANG_FRAMES_MAX];
    struct sglang_error error;
    size_t count = 0;
    if (sglang_encode(send->message, buffer, sizeof buffer, frames, &count, &error) != STATUS_OK) {
        world_fall(world, "a %s of %s cannot be sent: frame %u: %s", sglang_kind_name(error.kind),
                   world->nodes[node].options.name, error.frame, sglang_fault_text(error.fault));
        return;
    }
    const size_t size = pack(world->entry, ENTRY_BYTES_MAX, frames, (uint32_t)count);
    const uint32_t times = rule != NULL && rule->kind == WORLD_DOUBLE ? 2u : 1u;
    for (uint32_t i = 0; i < times; i++) {
        struct event *event =
            net_put(world, node, to, world->entry, size,
                    rule != NULL && rule->kind == WORLD_DELAY ? rule->delay_ns : 0);
        event->frames = true;
        event->to_rank = send->peer_rank;
        event->life = send->life;
    }
}

/* What one order or arrival has led to: sends leave, inputs come to the machine at this moment. */
static void follow(struct world *world, uint32_t node, const struct sm_effect *about)
{
    struct sglang_rooms *rooms = world->nodes[node].sglang;
    struct sglang_send send;
    const struct rule *rule = NULL;
    bool asked = false;
    while (sglang_rooms_next_send(rooms, &send)) {
        const uint32_t to = net_peer(world, node, send.peer);
        if (to == UINT32_MAX || !world->connections[node][to].up) {
            continue;
        }
        rule = asked ? rule : net_rule(world, node, to, about);
        asked = true; /* one rule for all frames of one message */
        if (!world->connections[node][to].cut && (rule == NULL || rule->kind != WORLD_DROP)) {
            put(world, node, to, &send, rule);
        }
    }
    struct sm_input input;
    while (sglang_rooms_next_input(rooms, &input)) {
        event_input(world, world->now_ns, CLASS_MESSAGE, node, &input);
    }
}

void sglang_send(struct world *world, uint32_t node, uint32_t to, const struct sm_effect *effect)
{
    (void)to;
    sglang_rooms_order(world->nodes[node].sglang, effect, WORLD_MACHINE_BASE + world->now_ns);
    follow(world, node, effect);
}

/* ---- at the port
 * ---------------------------------------------------------------------------------------- */

static void note_inputs(struct world *world, const struct event *event)
{
    struct sglang_rooms *rooms = world->nodes[event->to].sglang;
    struct sm_input input;
    struct sm_effect about = {.kind = SM_FX_SEND_DRAINED};
    struct sglang_send send;
    /* What goes back at once is an ack, or the refusal of metadata. */
    while (sglang_rooms_next_send(rooms, &send)) {
        const uint32_t to = net_peer(world, event->to, send.peer);
        about.kind = send.message->kind == SGLANG_STATUS ? SM_FX_SEND_STATUS : SM_FX_SEND_DRAINED;
        about.room = send.message->room;
        about.u.message.decode_rank = send.peer_rank;
        const struct rule *rule = net_rule(world, event->to, to, &about);
        if (world->connections[event->to][to].up && !world->connections[event->to][to].cut &&
            (rule == NULL || rule->kind != WORLD_DROP)) {
            put(world, event->to, to, &send, rule);
        }
    }
    while (sglang_rooms_next_input(rooms, &input)) {
        if (input.kind == SM_IN_PREPARE) {
            world->aliases = array_grow(world->aliases, &world->alias_capacity, world->alias_count,
                                        sizeof *world->aliases);
            world->aliases[world->alias_count++] =
                (struct alias){event->to, input.u.message.message.life, event->life};
        } else if (input.kind == SM_IN_STATUS) {
            for (uint32_t i = 0; i < world->node_count; i++) {
                if (strlen(world->nodes[i].options.name) == input.u.message.peer.size &&
                    memcmp(world->nodes[i].options.name, input.u.message.peer.bytes,
                           input.u.message.peer.size) == 0) {
                    net_note(world, i, event->to, &input);
                }
            }
        }
        event_input(world, world->now_ns, CLASS_MESSAGE, event->to, &input);
    }
}

void sglang_arrive(struct world *world, const struct event *event)
{
    struct node *node = &world->nodes[event->to];
    struct sglang_frame frames[64];
    if (node->state != NODE_RUNS || node->sglang == NULL) {
        return;
    }
    const uint32_t count = unpack(event->bytes, frames);
    const struct sglang_arrival arrival = {
        event->from == UINT32_MAX ? SM_NONE : index_of(world, event->to, event->from),
        event->to_rank, node->options.side};
    sglang_rooms_take(node->sglang, &arrival, frames, count, WORLD_MACHINE_BASE + world->now_ns);
    note_inputs(world, event);
}

void world_frames(struct world *world, uint32_t node, uint32_t rank,
                  const struct sglang_frame *frames, uint32_t count)
{
    const size_t size = pack(world->entry, ENTRY_BYTES_MAX, frames, count);
    struct event *event = event_new(world, world->now_ns, CLASS_STATEMENT, EVENT_MESSAGE);
    event->frames = true;
    event->from = UINT32_MAX;
    event->to = node;
    event->to_rank = rank;
    memcpy(event_bytes(world, event, size), world->entry, size);
    event_add(world, event);
}

/* Data is compared with decode's own name of a life: prefill's is made up from frames. */
struct sm_life sglang_life(const struct world *world, uint32_t node, const struct sm_life *life)
{
    for (uint32_t i = world->alias_count; i > 0; i--) {
        const struct alias *alias = &world->aliases[i - 1u];
        if (alias->node == node && alias->known_as.node == life->node &&
            alias->known_as.epoch == life->epoch &&
            alias->known_as.generation == life->generation) {
            return alias->life;
        }
    }
    return *life;
}

bool world_sglang_counter(const struct world *world, uint32_t node, const char *name,
                          uint64_t *out_value)
{
    struct sglang_rooms_counters n;
    if (world->nodes[node].sglang == NULL) {
        return false;
    }
    sglang_rooms_counters(world->nodes[node].sglang, &n);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"received", n.received}, {"sent", n.sent},         {"malformed", n.malformed},
                {"unknown", n.unknown},   {"stranger", n.stranger}, {"stale", n.stale},
                {"unused", n.unused},     {"held", n.held},         {"refused", n.refused}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *out_value = rows[i].value;
            return true;
        }
    }
    return false;
}
