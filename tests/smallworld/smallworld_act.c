/* SPDX-License-Identifier: Apache-2.0 */
/* What can be done in the small world, and how it is said. */
#include "smallworld_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- actions
 * -------------------------------------------------------------------------------------------- */

static struct sm_input command(const struct world *world, uint32_t kind, uint32_t node,
                               uint32_t rank, uint32_t room_index)
{
    const struct script *script = &world->s.scripts[node][rank][room_index];
    struct sm_input input = {.kind = kind, .room = room_index + 1u};
    input.u.command.request = (uint64_t)kind << 24 | (uint64_t)script->life << 16 |
                              (uint64_t)rank << 8 | (room_index + 1u);
    input.u.command.side = world_sides[node];
    input.u.command.rank = rank;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = world_text("");
    input.u.command.cause.reason = world_text("");
    return input;
}

static bool script_may_go_on(const struct world *world, uint32_t node, uint32_t rank, uint32_t room)
{
    const struct script *script = &world->s.scripts[node][rank][room];
    if (script->told_at != 0) {
        struct result *r = world_result((struct world *)(uintptr_t)world, world_sides[node], rank,
                                        room + 1u, script->told_at);
        return r != NULL && r->released && r->free && script->life < world->options->lives;
    }
    const uint32_t lines = node == AT_P ? 2u + world->options->chunks : 1u;
    return !script->over && script->step < lines;
}

static void act_script(struct world *world, uint32_t node, uint32_t rank, uint32_t room, bool after,
                       struct fault *fault)
{
    struct script *script = &world->s.scripts[node][rank][room];
    struct sm_run run = {world_first_page(room, 0), 1};
    if (script->told_at != 0 || script->life == 0) {
        const uint8_t life = script->life;
        memset(script, 0, sizeof *script);
        script->life = (uint8_t)(life + 1u);
    }
    const uint32_t line = script->step++;
    struct sm_input input = command(world,
                                    line == 0   ? SM_IN_OPEN
                                    : line == 1 ? SM_IN_ADMIT
                                                : SM_IN_SEND,
                                    node, rank, room);
    run.first = world_first_page(room, script->life - 1u);
    if (node == AT_D) {
        run.count = world->options->chunks;
        input.u.command.pages = (struct sm_runs){&run, 1};
    } else if (line >= 2u) {
        run.first += line - 2u;
        input.u.command.pages = (struct sm_runs){&run, 1};
        input.u.command.last = line - 1u == world->options->chunks;
    }
    world_feed(world, node, &input, after, fault);
}

static void act_command(struct world *world, uint32_t kind, uint32_t node, uint32_t rank,
                        uint32_t room, bool after, struct fault *fault)
{
    struct sm_input input = command(world, kind, node, rank, room);
    struct script *script = &world->s.scripts[node][rank][room];
    input.u.command.cause.typed = true;
    if (kind == SM_IN_REJECT) {
        script->life = script->life == 0 ? 1u : script->life;
        script->over = true;
        input.u.command.cause.origin = SM_ORIGIN_ENGINE;
        input.u.command.cause.http = 400;
    } else {
        /* Each rank has words of its own for it. */
        input.u.command.cause.origin = SM_ORIGIN_CLIENT;
        input.u.command.cause.http = (uint16_t)(rank == 0 ? 499u : 400u);
    }
    world->s.aborts++;
    world_feed(world, node, &input, after, fault);
}

static void act_release(struct world *world, uint32_t index, bool after, struct fault *fault)
{
    struct result *r = &world->s.results[index];
    const uint32_t node = r->side == SM_PREFILL ? AT_P : AT_D;
    struct sm_input input = command(world, SM_IN_RELEASE, node, r->rank, (uint32_t)r->room - 1u);
    input.u.command.generation = r->generation;
    r->released = true;
    world_feed(world, node, &input, after, fault);
}

void world_deliver(struct world *world, uint32_t to, struct parcel *parcel, bool after,
                   struct fault *fault)
{
    struct sm_input input = {.kind = parcel->kind, .room = parcel->room};
    if (parcel->kind == SM_IN_PEER_UP) {
        input.u.peer_up.name = world_text(world_names[1u - to]);
        input.u.peer_up.node_id = PREFILL_ID + (1u - to);
        input.u.peer_up.epoch = parcel->epoch;
        input.u.peer_up.link = parcel->link;
        input.u.peer_up.ranks = world_ranks(world, 1u - to);
    } else if (parcel->kind == SM_IN_PEER_DOWN) {
        input.u.peer.name = world_text(world_names[1u - to]);
        input.u.peer.link = parcel->link;
    } else {
        input.u.message.peer = world_text(world_names[1u - to]);
        input.u.message.epoch = parcel->epoch;
        input.u.message.message = parcel->body;
        input.u.message.message.pages.at = parcel->runs;
        input.u.message.message.cause.reason.bytes = parcel->reason;
    }
    world_feed(world, to, &input, after, fault);
}

static void act_complete(struct world *world, uint32_t index, bool well, bool after,
                         struct fault *fault)
{
    const struct flying w = world->s.writes[index];
    memset(&world->s.writes[index], 0, sizeof w);
    if (well) {
        const uint32_t room = (uint32_t)w.room - 1u;
        const uint32_t life = w.first / 4u % LIVES_MAX;
        if (world->s.given_back[room][life][w.decode_rank]) {
            world_fell(fault,
                       "drained_before_free: room %" PRIu64 ": a write lands in pages of D.%u that "
                       "were given back",
                       w.room, w.decode_rank);
        }
        for (uint32_t i = 0; i < w.count; i++) {
            world->s.written[room][life][w.decode_rank] |=
                1u << (w.first + i - world_first_page(room, life));
        }
    }
    struct sm_input input = world_write_done(&w, well ? 0 : -1);
    world_feed(world, AT_P, &input, after, fault);
}

static uint64_t next_deadline(const struct world *world)
{
    const uint64_t p = sm_deadline(world_machine(world, AT_P));
    const uint64_t d = sm_deadline(world_machine(world, AT_D));
    return p < d ? p : d;
}

static void act_tick(struct world *world, struct fault *fault)
{
    const uint64_t next = next_deadline(world);
    world->s.now_ns = next > world->s.now_ns ? next : world->s.now_ns;
    if (world->s.now_ns >= TOMBSTONE_TTL_NS && world->options->slow == 0) {
        world_fell(fault, "the world is too small: what is remembered expires");
    }
    for (uint32_t node = 0; node < 2; node++) {
        if (sm_deadline(world_machine(world, node)) <= world->s.now_ns) {
            struct sm_input tick = {.kind = SM_IN_TICK};
            world_feed(world, node, &tick, false, fault);
        }
    }
}

static void act_on_channel(struct world *world, uint32_t kind, uint32_t to, uint32_t index,
                           bool after, struct fault *fault)
{
    struct parcel parcel;
    if (kind == ACT_DELIVER) {
        parcel = world_take(world, to, index);
        world_deliver(world, to, &parcel, after, fault);
        return;
    }
    world->s.losses++;
    if (kind == ACT_DOUBLE) {
        parcel = world->s.channel[to][index];
        world_deliver(world, to, &parcel, after, fault);
    } else if (kind == ACT_HOLD) {
        world->s.held = world_take(world, to, index);
        world->s.held_to = (uint8_t)to;
        world->s.has_held = true;
    } else {
        (void)world_take(world, to, index);
    }
}

void world_act(struct world *world, uint32_t action, struct fault *fault)
{
    const uint32_t kind = action & 0xffu;
    const uint32_t a = action >> 8 & 0xffu;
    const uint32_t b = action >> 16 & 0xfu;
    const uint32_t c = action >> 20 & 0xfu;
    const bool after = (action & CRASH_AFTER) != 0;
    struct parcel parcel;
    world_begin_action();
    switch (kind) {
    case ACT_SCRIPT:
        act_script(world, a, b, c, after, fault);
        break;
    case ACT_RELEASE:
        act_release(world, a, after, fault);
        break;
    case ACT_ABORT:
        act_command(world, SM_IN_ABORT, a, b, c, after, fault);
        break;
    case ACT_REJECT:
        act_command(world, SM_IN_REJECT, AT_P, 0, c, after, fault);
        break;
    case ACT_COMPLETE:
        act_complete(world, a, true, after, fault);
        break;
    case ACT_FAIL:
        world->s.fails = (uint8_t)(world->s.fails + (world->s.writes[a].dead ? 0u : 1u));
        act_complete(world, a, false, after, fault);
        break;
    case ACT_UNHOLD:
        parcel = world->s.held;
        memset(&world->s.held, 0, sizeof parcel);
        world->s.has_held = false;
        world_deliver(world, world->s.held_to, &parcel, after, fault);
        break;
    case ACT_CUT:
        world->s.cuts++;
        world_reconnect(world, 2u, fault);
        break;
    case ACT_CRASH:
        world_crash(world, a, fault);
        break;
    case ACT_TICK:
        world->s.slow = (uint8_t)(world->s.slow + a);
        act_tick(world, fault);
        break;
    default:
        act_on_channel(world, kind, a, b, after, fault);
        break;
    }
}

/* ---- what is possible
 * ---------------------------------------------------------------------------------- */

struct list {
    uint32_t *at;
    uint32_t count;
    bool crash; /* each may be followed by a crash of its node */
};

static void add(struct list *list, uint32_t kind, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t action = kind | a << 8 | b << 16 | c << 20;
    if (list->count + 2u > ACTIONS_MAX) {
        abort();
    }
    list->at[list->count++] = action;
    if (list->crash && kind != ACT_CUT && kind != ACT_CRASH && kind != ACT_TICK &&
        kind != ACT_LOSE && kind != ACT_HOLD) {
        list->at[list->count++] = action | CRASH_AFTER;
    }
}

/* What engines may do; returns whether any of it must still happen. */
static bool add_engines(const struct world *world, struct list *list)
{
    const struct world_options *o = world->options;
    bool due = false;
    for (uint32_t node = 0; node < 2; node++) {
        for (uint32_t rank = 0; rank < world_ranks(world, node); rank++) {
            for (uint32_t room = 0; room < o->rooms; room++) {
                const struct script *script = &world->s.scripts[node][rank][room];
                if (script_may_go_on(world, node, rank, room)) {
                    add(list, ACT_SCRIPT, node, rank, room);
                    due = true;
                }
                if (world->s.aborts < o->aborts && script->opened && script->told_at == 0) {
                    add(list, ACT_ABORT, node, rank, room);
                }
                if (world->s.aborts < o->aborts && node == AT_P && script->step < 2u &&
                    script->told_at == 0 && !script->over) {
                    add(list, ACT_REJECT, node, rank, room);
                }
            }
        }
    }
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        if (world->s.results[i].used && !world->s.results[i].released) {
            add(list, ACT_RELEASE, i, 0, 0);
            due = true;
        }
    }
    return due;
}

static bool may_be_next(const struct world *world, uint32_t to, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (world_before(world, &world->s.channel[to][i], &world->s.channel[to][index])) {
            return false;
        }
    }
    return true;
}

static void add_parcel(const struct world *world, struct list *list, uint32_t to, uint32_t index)
{
    const struct parcel *parcel = &world->s.channel[to][index];
    add(list, ACT_DELIVER, to, index, 0);
    if (world->s.losses < world->options->losses && parcel->kind != SM_IN_PEER_UP &&
        parcel->kind != SM_IN_PEER_DOWN) {
        add(list, ACT_LOSE, to, index, 0);
        add(list, ACT_DOUBLE, to, index, 0);
        if (!world->s.has_held) {
            add(list, ACT_HOLD, to, index, 0);
        }
    }
}

/* Messages on their way; returns whether there is any. */
static bool add_channels(const struct world *world, struct list *list)
{
    bool due = world->s.has_held;
    if (world->s.has_held) {
        add(list, ACT_UNHOLD, 0, 0, 0);
    }
    for (uint32_t to = 0; to < 2; to++) {
        for (uint32_t i = 0; i < world->s.count[to]; i++) {
            due = true;
            if (may_be_next(world, to, i)) {
                add_parcel(world, list, to, i);
            }
        }
    }
    return due;
}

uint32_t world_actions(const struct world *world, uint32_t *out_actions)
{
    const struct world_options *o = world->options;
    struct list list = {out_actions, 0, world->s.crashes < o->crashes};
    const bool engines_due = add_engines(world, &list);
    const bool messages_due = add_channels(world, &list);
    bool writes_due = false;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        const struct flying *w = &world->s.writes[i];
        if (!w->used) {
            continue;
        }
        writes_due = true;
        if (!w->dead) {
            add(&list, ACT_COMPLETE, i, 0, 0);
        }
        if (w->dead || world->s.fails < o->fails) {
            add(&list, ACT_FAIL, i, 0, 0);
        }
    }
    const bool over =
        sm_quiescent(world_machine(world, AT_P)) && sm_quiescent(world_machine(world, AT_D));
    const bool idle = !engines_due && !messages_due && !writes_due;
    if (next_deadline(world) != SM_NEVER && (idle ? !over : false)) {
        add(&list, ACT_TICK, 0, 0, 0);
    } else if (next_deadline(world) != SM_NEVER && !messages_due && world->s.slow < o->slow) {
        add(&list, ACT_TICK, 1, 0, 0);
    }
    if (list.count == 0) {
        return 0;
    }
    if (world->s.cuts < o->cuts) {
        add(&list, ACT_CUT, 0, 0, 0);
    }
    for (uint32_t node = 0; node < 2 && world->s.crashes < o->crashes; node++) {
        add(&list, ACT_CRASH, node, 0, 0);
    }
    return list.count;
}

void world_describe(const struct world *world, uint32_t action, char *out, size_t size)
{
    static const char *const kinds[] = {"",
                                        "script",
                                        "release",
                                        "abort",
                                        "reject",
                                        "deliver",
                                        "lose",
                                        "double",
                                        "hold back",
                                        "deliver what was held back",
                                        "complete",
                                        "fail",
                                        "cut the connection",
                                        "crash",
                                        "tick"};
    static const char *const lines[2][4] = {{"open", "admit", "send", "send"},
                                            {"open", "", "", ""}};
    const uint32_t kind = action & 0xffu;
    const uint32_t a = action >> 8 & 0xffu;
    const uint32_t b = action >> 16 & 0xfu;
    const uint32_t c = action >> 20 & 0xfu;
    const char *end = (action & CRASH_AFTER) != 0 ? ", and crashes before it says anything" : "";
    if (kind == ACT_SCRIPT) {
        const struct script *script = &world->s.scripts[a][b][c];
        const uint32_t line = script->told_at != 0 ? 0 : script->step;
        (void)snprintf(out, size, "%s.%u %s room %u%s", world_names[a], b,
                       lines[a][line < 4u ? line : 3u], c + 1u, end);
    } else if (kind == ACT_ABORT || kind == ACT_REJECT) {
        (void)snprintf(out, size, "%s.%u %s room %u%s", world_names[kind == ACT_ABORT ? a : AT_P],
                       b, kinds[kind], c + 1u, end);
    } else if (kind == ACT_RELEASE) {
        const struct result *r = &world->s.results[a];
        (void)snprintf(out, size, "%s.%u release room %" PRIu64 " generation %" PRIu64 "%s",
                       r->side == SM_PREFILL ? "P" : "D", r->rank, r->room, r->generation, end);
    } else if (kind >= ACT_DELIVER && kind <= ACT_UNHOLD) {
        const struct parcel *parcel = kind == ACT_UNHOLD ? &world->s.held : &world->s.channel[a][b];
        (void)snprintf(out, size, "%s: %s room %" PRIu64 " rank %u to %s%s", kinds[kind],
                       sm_input_name(parcel->kind), parcel->room, parcel->body.decode_rank,
                       world_names[kind == ACT_UNHOLD ? world->s.held_to : a], end);
    } else if (kind == ACT_COMPLETE || kind == ACT_FAIL) {
        const struct flying *w = &world->s.writes[a];
        (void)snprintf(out, size, "write room %" PRIu64 " to D.%u pages %u+%u: %s%s", w->room,
                       w->decode_rank, w->first, w->count, kinds[kind], end);
    } else if (kind == ACT_CRASH) {
        (void)snprintf(out, size, "%s crashes and restarts", world_names[a]);
    } else {
        (void)snprintf(out, size, "%s%s", kinds[kind], end);
    }
}
