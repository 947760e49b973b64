/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's time, network and fabric. */
#include "world_private.h"

#include "stateroom_peer.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events
 * --------------------------------------------------------------------------------------------- */

static uint64_t chance(struct world *world)
{
    world->random = world->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return world->random >> 24;
}

/* A time up to a tenth longer, when there is a seed. */
static uint64_t jittered(struct world *world, uint64_t ns)
{
    return world->options.seed == 0 || ns < 10u ? ns : ns + chance(world) % (ns / 10u);
}

struct event *event_new(struct world *world, uint64_t time_ns, enum event_class class,
                        enum event_kind kind)
{
    struct event *event = world_take(sizeof *event);
    event->time_ns = time_ns;
    event->class = class;
    event->kind = kind;
    event->order = world->order_next++;
    if (world->options.seed != 0 && class != CLASS_STATEMENT && class != CLASS_AFTER) {
        /* Ties are broken by the seed; what one cause orders in a row keeps its order by time. */
        event->order |= (chance(world) & 0xffu) << 48;
    }
    return event;
}

static bool before(const struct event *a, const struct event *b)
{
    if (a->time_ns != b->time_ns) {
        return a->time_ns < b->time_ns;
    }
    return a->class != b->class ? a->class < b->class : a->order < b->order;
}

void event_add(struct world *world, struct event *event)
{
    if (world->heap_count == world->heap_capacity) {
        world->heap_capacity = world->heap_capacity == 0 ? 256u : world->heap_capacity * 2u;
        struct event **grown = realloc(world->heap, world->heap_capacity * sizeof(struct event *));
        if (grown == NULL) {
            abort();
        }
        world->heap = grown;
    }
    uint32_t at = world->heap_count++;
    while (at > 0 && before(event, world->heap[(at - 1u) / 2u])) {
        world->heap[at] = world->heap[(at - 1u) / 2u];
        at = (at - 1u) / 2u;
    }
    world->heap[at] = event;
}

struct event *event_first(const struct world *world)
{
    return world->heap_count > 0 ? world->heap[0] : NULL;
}

struct event *event_pop(struct world *world)
{
    struct event *first = world->heap[0];
    struct event *last = world->heap[--world->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2u * at + 1u;
        if (child >= world->heap_count) {
            break;
        }
        if (child + 1u < world->heap_count && before(world->heap[child + 1u], world->heap[child])) {
            child++;
        }
        if (!before(world->heap[child], last)) {
            break;
        }
        world->heap[at] = world->heap[child];
        at = child;
    }
    if (world->heap_count > 0) {
        world->heap[at] = last;
    }
    return first;
}

void event_free(struct event *event)
{
    free(event->bytes);
    free(event);
}

/* Copies what an input points to behind each other, and points there. */
static size_t keep_runs(struct sm_runs *runs, unsigned char *to)
{
    const size_t size = runs->count * sizeof(struct sm_run);
    if (to != NULL && size > 0) {
        memcpy(to, runs->at, size);
        runs->at = (const struct sm_run *)(const void *)to;
    }
    return size;
}

static size_t keep_text(struct sm_text *text, unsigned char *to)
{
    if (to != NULL && text->size > 0) {
        memcpy(to, text->bytes, text->size);
        text->bytes = (const char *)to;
    } else if (to != NULL) {
        text->bytes = "";
    }
    return text->size;
}

static size_t keep_parts(struct sm_input *input, unsigned char *to)
{
    size_t used = 0;
    if (sm_input_is_command(input->kind)) {
        struct sm_in_command *c = &input->u.command;
        used += keep_runs(&c->pages, to);
        used += keep_text(&c->peer, to == NULL ? NULL : to + used);
        used += keep_text(&c->cause.reason, to == NULL ? NULL : to + used);
    } else if (input->kind == SM_IN_WRITE_DONE) {
        used += keep_text(&input->u.write_done.text, to);
    } else if (input->kind == SM_IN_PEER_DOWN || input->kind == SM_IN_PEER_FENCED) {
        used += keep_text(&input->u.peer.name, to);
    }
    return used;
}

void event_input(struct world *world, uint64_t time_ns, enum event_class class, uint32_t node,
                 const struct sm_input *input)
{
    struct event *event = event_new(world, time_ns, class, EVENT_INPUT);
    event->to = node;
    event->input = *input;
    event->size = keep_parts(&event->input, NULL);
    event->bytes = world_take(event->size);
    (void)keep_parts(&event->input, event->bytes);
    event_add(world, event);
}

static void add_statement(struct world *world, uint64_t time_ns, enum event_class class,
                          world_statement_fn statement, void *context)
{
    struct event *event = event_new(world, time_ns, class, EVENT_STATEMENT);
    event->statement = statement;
    event->context = context;
    event_add(world, event);
}

void world_at(struct world *world, uint64_t time_ns, world_statement_fn statement, void *context)
{
    add_statement(world, time_ns, CLASS_STATEMENT, statement, context);
}

void world_after(struct world *world, uint64_t time_ns, world_statement_fn statement, void *context)
{
    add_statement(world, time_ns, CLASS_AFTER, statement, context);
}

/* ---- connections
 * -------------------------------------------------------------------------------------- */

static uint64_t *session(struct world *world, uint32_t a, uint32_t b)
{
    return a < b ? &world->sessions[a][b] : &world->sessions[b][a];
}

uint32_t net_peer(const struct world *world, uint32_t node, uint32_t peer)
{
    const struct sm_text name = sm_peer_name(world->nodes[node].machine.sm, peer);
    for (uint32_t i = 0; i < world->node_count; i++) {
        const char *candidate = world->nodes[i].options.name;
        if (strlen(candidate) == name.size && memcmp(candidate, name.bytes, name.size) == 0) {
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
    ++*session(world, a, b);
    /* Links are numbered before either side speaks: what it says at once must find the other up. */
    world->connections[a][b].last_arrival = 0;
    world->connections[b][a].last_arrival = 0;
    peer_up(world, a, b);
    peer_up(world, b, a);
}

/* The connection as node sees it is over; the other side learns it from the next hello. */
static void lose(struct world *world, uint32_t node, uint32_t other)
{
    const uint64_t was = *session(world, node, other);
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
    event->session = *session(world, from, to);
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
static void on_silence(struct world *world, const struct event *event)
{
    const struct connection *c = &world->connections[event->from][event->to];
    const bool still =
        (c->cut && c->cut_count == event->number) || !world_alive(world, event->from);
    if (still && *session(world, event->from, event->to) == event->session &&
        world->connections[event->to][event->from].up) {
        lose(world, event->to, event->from);
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
            event->session = *session(world, a, b);
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
            event->session = *session(world, other, index);
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
    struct rule *grown = realloc(world->rules, (world->rule_count + 1u) * sizeof *grown);
    if (grown == NULL) {
        abort();
    }
    world->rules = grown;
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
            event->session = *session(world, from, to);
            event_add(world, event);
        }
    }
}

/* The first rule that fits, used up by one; NULL: none. `ack` rules are about statuses' answers. */
static const struct rule *rule_for(struct world *world, uint32_t from, uint32_t to,
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

static void put_on_way(struct world *world, uint32_t from, uint32_t to, const unsigned char *bytes,
                       size_t size, uint64_t delay_ns)
{
    struct connection *c = &world->connections[from][to];
    uint64_t arrival = world->now_ns + jittered(world, c->latency_ns);
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
    event->session = *session(world, from, to);
    event->bytes = world_take(size);
    event->size = size;
    memcpy(event->bytes, bytes, size);
    event_add(world, event);
}

void net_send(struct world *world, uint32_t node, const struct sm_effect *effect, uint64_t entry)
{
    const uint32_t to = net_peer(world, node, effect->peer);
    Stateroom__Peer__Packet packet;
    if (to == UINT32_MAX || !world->connections[node][to].up ||
        world->connections[node][to].link != effect->link) {
        return; /* of a connection that is gone: the machine repeats what is not answered */
    }
    const struct rule *rule = rule_for(world, node, to, effect);
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
    put_on_way(world, node, to, world->entry, size,
               rule != NULL && rule->kind == WORLD_DELAY ? rule->delay_ns : 0);
    if (rule != NULL && rule->kind == WORLD_DOUBLE) {
        put_on_way(world, node, to, world->entry, size, 0);
    }
}

/* Terminal statuses, each once, as an observer at the receiver sees them. */
static void note_notice(struct world *world, uint32_t from, uint32_t to,
                        const struct sm_input *input)
{
    const struct sm_message *m = &input->u.message.message;
    for (uint32_t i = 0; i < world->log_count; i++) {
        const struct world_log *log = &world->logs[i];
        if (log->kind == WORLD_NOTICE && log->room == input->room && log->from == from &&
            log->node == to && log->rank == m->decode_rank && log->outcome == m->outcome &&
            log->life == (uint32_t)m->life.generation) {
            return;
        }
    }
    struct world_log *log = log_add(world, WORLD_NOTICE);
    log->room = input->room;
    log->from = from;
    log->node = to;
    log->rank = m->decode_rank;
    log->outcome = m->outcome;
    log->http = m->cause.http;
    log->life = (uint32_t)m->life.generation;
    (void)snprintf(log->reason, sizeof log->reason, "%.*s", (int)m->cause.reason.size,
                   m->cause.reason.bytes);
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
    const struct connection *c = &world->connections[event->to][event->from];
    if (!c->up || *session(world, event->from, event->to) != event->session ||
        world->connections[event->from][event->to].cut) {
        return; /* of a session that is over, or lost on its way */
    }
    if (!parse(world, event->bytes, event->size, event->from, &input)) {
        world_fall(world, "a message of %s cannot be read", world->nodes[event->from].options.name);
        return;
    }
    if (input.kind == SM_IN_STATUS) {
        note_notice(world, event->from, event->to, &input);
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
        event->session = *session(world, node, peer);
        event_add(world, event);
    }
}

/* ---- the fabric
 * ----------------------------------------------------------------------------------------- */

static bool on_path(const struct world_path *path, const struct flight *f)
{
    return path->from == f->from && path->to == f->to &&
           (path->from_rank == SM_NONE || path->from_rank == f->from_rank) &&
           (path->to_rank == SM_NONE || path->to_rank == f->to_rank);
}

static struct path_rule *path_add(struct world *world, enum path_rule_kind kind,
                                  const struct world_path *path)
{
    struct path_rule *grown = realloc(world->paths, (world->path_count + 1u) * sizeof *grown);
    if (grown == NULL) {
        abort();
    }
    world->paths = grown;
    struct path_rule *rule = &world->paths[world->path_count++];
    memset(rule, 0, sizeof *rule);
    rule->kind = kind;
    rule->path = *path;
    return rule;
}

void world_fabric_time(struct world *world, const struct world_path *path, uint64_t ns)
{
    path_add(world, PATH_TIME, path)->ns = ns;
}

void world_fabric_fail(struct world *world, const struct world_path *path, uint64_t room,
                       uint32_t count, const char *text, bool when_posted)
{
    struct path_rule *rule = path_add(world, PATH_FAIL, path);
    rule->room = room;
    rule->left = count;
    rule->when_posted = when_posted;
    (void)snprintf(rule->text, sizeof rule->text, "%s", text);
}

static void plan_completion(struct world *world, uint32_t index, uint64_t time_ns)
{
    struct event *event = event_new(world, time_ns, CLASS_COMPLETION, EVENT_COMPLETION);
    event->number = index;
    event_add(world, event);
}

void world_fabric_hold(struct world *world, const struct world_path *path, uint64_t room, bool hold)
{
    if (hold) {
        struct path_rule *rule = path_add(world, PATH_HOLD, path);
        rule->room = room;
        rule->left = 1;
        return;
    }
    for (uint32_t i = 0; i < world->path_count; i++) {
        struct path_rule *rule = &world->paths[i];
        if (rule->kind == PATH_HOLD && rule->path.from == path->from && rule->path.to == path->to &&
            (room == WORLD_NO_ROOM || rule->room == room)) {
            rule->left = 0;
        }
    }
    for (uint32_t i = 0; i < world->flight_count; i++) {
        struct flight *f = &world->flights[i];
        if (!f->over && f->held && on_path(path, f)) {
            f->held = false;
            plan_completion(world, i, world->now_ns);
        }
    }
}

static bool held(const struct world *world, const struct flight *f)
{
    for (uint32_t i = 0; i < world->path_count; i++) {
        const struct path_rule *rule = &world->paths[i];
        if (rule->kind == PATH_HOLD && rule->left > 0 && on_path(&rule->path, f) &&
            (rule->room == WORLD_NO_ROOM || rule->room == f->room)) {
            return true;
        }
    }
    return false;
}

static uint64_t flight_time(struct world *world, struct flight *f)
{
    uint64_t ns = 200000;
    for (uint32_t i = 0; i < world->path_count; i++) {
        struct path_rule *rule = &world->paths[i];
        if (!on_path(&rule->path, f)) {
            continue;
        }
        if (rule->kind == PATH_TIME) {
            ns = rule->ns; /* the newest holds */
        } else if (rule->kind == PATH_FAIL && rule->left > 0 && !f->fails &&
                   (rule->room == WORLD_NO_ROOM || rule->room == f->room)) {
            rule->left--;
            f->fails = true;
            (void)snprintf(f->text, sizeof f->text, "%s", rule->text);
            if (rule->when_posted) {
                return 0;
            }
        }
    }
    return jittered(world, ns);
}

static void end_flight(struct world *world, struct flight *f, const char *failure)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = f->room};
    f->over = true;
    world->flights_open--;
    done.u.write_done.write = f->id;
    done.u.write_done.code = failure == NULL ? 0 : -5;
    done.u.write_done.text = world_text(failure == NULL ? "" : failure);
    if (world->nodes[f->from].state == NODE_RUNS && world->nodes[f->from].epoch == f->from_epoch) {
        event_input(world, world->now_ns, CLASS_COMPLETION, f->from, &done);
    }
}

void flight_post(struct world *world, uint32_t node, const struct sm_effect *effect)
{
    const uint32_t to = net_peer(world, node, effect->peer);
    struct node *sender = &world->nodes[node];
    if (to == UINT32_MAX) {
        return;
    }
    world->flights = world_grow(world->flights, &world->flight_capacity, world->flight_count,
                                sizeof *world->flights);
    const uint32_t index = world->flight_count++;
    struct flight *f = &world->flights[index];
    const struct connection *c = &world->connections[node][to];
    memset(f, 0, sizeof *f);
    world->flights_open++;
    f->id = effect->u.write.id;
    f->room = effect->room;
    f->life = effect->u.write.life;
    f->from = node;
    f->from_rank = effect->rank;
    f->to = to;
    f->to_rank = effect->u.write.decode_rank;
    f->from_link = effect->link;
    f->to_link = world->connections[to][node].link;
    f->from_epoch = sender->epoch;
    f->to_epoch = world->nodes[to].epoch;
    for (uint32_t i = 0; i < effect->u.write.to.count; i++) {
        f->page_count += effect->u.write.to.at[i].count;
    }
    f->pages = world_take(f->page_count * sizeof *f->pages);
    uint32_t used = 0;
    for (uint32_t i = 0; i < effect->u.write.to.count; i++) {
        for (uint32_t k = 0; k < effect->u.write.to.at[i].count; k++) {
            f->pages[used++] = effect->u.write.to.at[i].first + k;
        }
    }
    struct world_log *log = log_add(world, WORLD_WRITE);
    log->room = effect->room;
    log->from = node;
    log->node = to;
    log->rank = f->to_rank;
    if (effect->link <= c->fenced || effect->link != c->link) {
        end_flight(world, f, "the connection is closed");
        return;
    }
    plan_completion(world, index, world->now_ns + flight_time(world, f));
}

static void land(struct world *world, const struct flight *f)
{
    struct node *to = &world->nodes[f->to];
    for (uint32_t i = 0; i < f->page_count; i++) {
        if (f->pages[i] < to->options.pool_pages && f->to_rank < to->options.ranks) {
            to->stamps[f->to_rank][f->pages[i] * WORLD_STAMPS + f->from_rank % WORLD_STAMPS] =
                (struct stamp){f->room, f->life.generation, f->life.epoch};
        }
    }
}

void flight_complete(struct world *world, uint32_t index)
{
    struct flight *f = &world->flights[index];
    const struct node *to = &world->nodes[f->to];
    const bool fence = (world->options.protections_off >> SM_PROTECT_FENCE & 1u) == 0;
    if (f->over) {
        return;
    }
    if (world->nodes[f->from].state == NODE_DOWN || world->nodes[f->from].epoch != f->from_epoch) {
        f->over = true; /* the writer is gone */
        world->flights_open--;
        return;
    }
    if (held(world, f)) {
        f->held = true;
        return;
    }
    const bool gone = to->state == NODE_DOWN || to->epoch != f->to_epoch;
    const bool fenced = fence && world->connections[f->to][f->from].fenced >= f->to_link;
    if (f->fails || gone || fenced) {
        end_flight(world, f, f->fails ? f->text : "the peer's memory cannot be reached");
        return;
    }
    land(world, f);
    end_flight(world, f, NULL);
}

/* Our end of a connection is closed: what is in it ends before the fence is told. */
void flight_fence(struct world *world, uint32_t node, uint32_t peer, uint32_t link)
{
    if ((world->options.protections_off >> SM_PROTECT_FENCE & 1u) != 0) {
        return;
    }
    for (uint32_t i = 0; i < world->flight_count; i++) {
        struct flight *f = &world->flights[i];
        if (!f->over && f->from == node && f->to == peer && f->from_link <= link) {
            end_flight(world, f, "the connection is closed");
        }
    }
}

/* ---- running
 * -------------------------------------------------------------------------------------------- */

void net_event(struct world *world, struct event *event)
{
    switch (event->kind) {
    case EVENT_STATEMENT:
        event->statement(world, event->context);
        break;
    case EVENT_COMPLETION:
        flight_complete(world, (uint32_t)event->number);
        break;
    case EVENT_MESSAGE:
        net_arrive(world, event);
        break;
    case EVENT_INPUT:
        node_step(world, event->to, &event->input);
        break;
    case EVENT_SILENCE:
        on_silence(world, event);
        break;
    case EVENT_LOST:
        if (*session(world, event->from, event->to) == event->session) {
            lose(world, event->to, event->from);
        }
        break;
    case EVENT_CONNECT:
        net_connect(world, event->from, event->to);
        break;
    case EVENT_RETRY:
        node_retry(world, event->to);
        break;
    }
}

/* What a frozen process would have to take itself. */
static bool waits_for_thaw(const struct world *world, const struct event *event)
{
    const bool its = event->kind == EVENT_MESSAGE || event->kind == EVENT_INPUT ||
                     event->kind == EVENT_LOST || event->kind == EVENT_SILENCE ||
                     event->kind == EVENT_RETRY;
    return its && world->nodes[event->to].frozen;
}

/* The node whose machine wants a tick first, before or at *io_time; UINT32_MAX: none. */
static uint32_t next_timer(const struct world *world, uint64_t *out_time)
{
    uint32_t best = UINT32_MAX;
    *out_time = UINT64_MAX;
    for (uint32_t i = 0; i < world->node_count; i++) {
        const struct node *node = &world->nodes[i];
        if (node->state != NODE_RUNS || node->frozen) {
            continue;
        }
        const uint64_t deadline = sm_deadline(node->machine.sm);
        const uint64_t at = deadline == SM_NEVER            ? UINT64_MAX
                            : deadline < WORLD_MACHINE_BASE ? 0
                                                            : deadline - WORLD_MACHINE_BASE;
        if (at < *out_time) {
            *out_time = at;
            best = i;
        }
    }
    return best;
}

static void take_event(struct world *world)
{
    struct event *event = event_pop(world);
    world->now_ns = event->time_ns > world->now_ns ? event->time_ns : world->now_ns;
    if (waits_for_thaw(world, event)) {
        struct node *node = &world->nodes[event->to];
        *node->inbox_end = event;
        node->inbox_end = &event->next;
        return;
    }
    net_event(world, event);
    event_free(event);
}

void world_run(struct world *world, uint64_t until_ns, world_watch_fn watch, void *context)
{
    uint64_t limit = UINT64_C(100000000); /* far beyond every honest run */
    while (world->fault[0] == '\0' && limit-- > 0) {
        uint64_t timer = 0;
        const uint32_t node = next_timer(world, &timer);
        const struct event *first = event_first(world);
        const bool is_event =
            first != NULL && (node == UINT32_MAX || first->time_ns < timer ||
                              (first->time_ns == timer && first->class < CLASS_TIMER));
        const uint64_t next = is_event ? first->time_ns : timer;
        if ((first == NULL && (node == UINT32_MAX || world_quiescent(world))) ||
            (until_ns != 0 && next > until_ns)) {
            break;
        }
        if (is_event) {
            take_event(world);
        } else {
            struct sm_input tick = {.kind = SM_IN_TICK};
            world->now_ns = timer > world->now_ns ? timer : world->now_ns;
            node_step(world, node, &tick);
        }
        if (watch != NULL) {
            watch(world, context);
        }
    }
}
