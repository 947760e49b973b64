/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's time: what happens next. */
#include "world_private.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far beyond every honest run of one world. */
#define WORLD_EVENTS_MAX 1000000u
/* A machine that wants this many timers in a row within a millisecond spins. */
#define WORLD_TIMERS_MAX 20000u

/* ---- events
 * --------------------------------------------------------------------------------------------- */

static uint64_t chance(struct world *world)
{
    world->random = world->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return world->random >> 24;
}

/* A time up to a tenth longer, when there is a seed. */
uint64_t world_jittered(struct world *world, uint64_t ns)
{
    return world->options.seed == 0 || ns < 10u ? ns : ns + chance(world) % (ns / 10u);
}

struct event *event_new(struct world *world, uint64_t time_ns, enum event_class class,
                        enum event_kind kind)
{
    struct event *event = world->events_free;
    if (event != NULL) {
        world->events_free = event->next;
    } else {
        event = chunks_take(&world->memory, sizeof *event);
        event->bytes = NULL;
        event->capacity = 0;
    }
    unsigned char *bytes = event->bytes;
    const size_t capacity = event->capacity;
    /* Its input is written by who needs one: it is most of the event. */
    memset(event, 0, offsetof(struct event, input));
    event->bytes = bytes;
    event->capacity = capacity;
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
    world->heap =
        array_grow(world->heap, &world->heap_capacity, world->heap_count, sizeof(struct event *));
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

void event_free(struct world *world, struct event *event)
{
    event->next = world->events_free;
    world->events_free = event;
}

unsigned char *event_bytes(struct world *world, struct event *event, size_t size)
{
    if (event->capacity < size || event->bytes == NULL) {
        event->capacity = size < 128u ? 128u : size * 2u;
        event->bytes = chunks_take(&world->memory, event->capacity);
    }
    event->size = size;
    return event->bytes;
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
    } else if (sm_input_is_message(input->kind)) {
        struct sm_in_message *m = &input->u.message;
        used += keep_runs(&m->message.pages, to);
        used += keep_text(&m->peer, to == NULL ? NULL : to + used);
        used += keep_text(&m->message.cause.reason, to == NULL ? NULL : to + used);
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
    (void)keep_parts(&event->input, event_bytes(world, event, keep_parts(&event->input, NULL)));
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
        net_check_silence(world, event);
        break;
    case EVENT_LOST:
        if (*net_session(world, event->from, event->to) == event->session) {
            net_lose(world, event->to, event->from);
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
    event_free(world, event);
}

static void take_timer(struct world *world, uint32_t node, uint64_t time_ns)
{
    struct sm_input tick = {.kind = SM_IN_TICK};
    world->now_ns = time_ns > world->now_ns ? time_ns : world->now_ns;
    if (world->now_ns - world->timers_ns > 1000000u) {
        world->timers_ns = world->now_ns;
        world->timers = 0;
    }
    if (++world->timers > WORLD_TIMERS_MAX) {
        world_fall(world, "%s spins: %u timers in the millisecond from %" PRIu64 " ms on",
                   world->nodes[node].options.name, WORLD_TIMERS_MAX, world->timers_ns / 1000000u);
        return;
    }
    node_step(world, node, &tick);
}

void world_run(struct world *world, uint64_t until_ns, world_watch_fn watch, void *context)
{
    uint64_t left = WORLD_EVENTS_MAX;
    while (world->fault[0] == '\0') {
        if (left-- == 0) {
            world_fall(world, "it does not come to an end: %u events at %" PRIu64 " ms",
                       WORLD_EVENTS_MAX, world->now_ns / 1000000u);
            break;
        }
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
            take_timer(world, node, timer);
        }
        if (watch != NULL) {
            watch(world, context);
        }
    }
}
