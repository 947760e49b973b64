/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the small world: what an action does, and what follows from it. */
#include "world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
#define LOCALS_MAX 48u
#define PREFILL_ID 100u /* node ids: this + node */

static const struct sm_bounds bounds = {6, 12, 8, 64, 16, 8, 16, 1, 64, 1};
static const char *const names[2] = {"P", "D"};
static const uint32_t sides[2] = {SM_PREFILL, SM_DECODE};

/* Inputs that follow at once at the same node: confirmations, ends of fenced writes. */
struct local {
    struct sm_input input;
    uint32_t node;
};

/* Working memory of one action; nothing in it outlives it. */
static struct sm_output output;
static struct local locals[LOCALS_MAX];
static uint32_t local_count;

static struct sm *machine(const struct world *world, uint32_t node)
{
    return (struct sm *)(void *)(uintptr_t)world->memory[node];
}

static struct sm_text text(const char *bytes)
{
    const struct sm_text result = {bytes, (uint32_t)strlen(bytes)};
    return result;
}

__attribute__((format(printf, 2, 3))) static void fell(struct fault *fault, const char *format, ...)
{
    va_list arguments;
    if (fault->text[0] == '\0') {
        va_start(arguments, format);
        (void)vsnprintf(fault->text, sizeof fault->text, format, arguments);
        va_end(arguments);
    }
}

static uint32_t ranks_of(const struct world *world, uint32_t node)
{
    return node == AT_P ? 1u : world->options->decode_ranks;
}

/* Rooms are numbered from 1; each life has pages of its own. */
static uint32_t first_page(uint32_t room_index, uint32_t life_index)
{
    return (room_index * LIVES_MAX + life_index) * 4u;
}

static void push_local(struct fault *fault, uint32_t node, const struct sm_input *input)
{
    if (local_count == LOCALS_MAX) {
        fell(fault, "the world is too small: inputs of one action");
        return;
    }
    locals[local_count].input = *input;
    locals[local_count].node = node;
    local_count++;
}

/* ---- channels
 * ------------------------------------------------------------------------------------------ */

static struct parcel *push_parcel(struct world *world, uint32_t to, uint32_t kind,
                                  struct fault *fault)
{
    if (world->s.count[to] == PARCELS_MAX) {
        fell(fault, "the world is too small: messages on their way");
        world->s.count[to]--;
    }
    struct parcel *parcel = &world->s.channel[to][world->s.count[to]++];
    memset(parcel, 0, sizeof *parcel);
    parcel->kind = kind;
    parcel->link = world->s.link;
    return parcel;
}

static struct parcel take_parcel(struct world *world, uint32_t to)
{
    struct world_state *s = &world->s;
    const struct parcel first = s->channel[to][0];
    s->count[to]--;
    memmove(&s->channel[to][0], &s->channel[to][1], s->count[to] * sizeof first);
    memset(&s->channel[to][s->count[to]], 0, sizeof first);
    return first;
}

static void clear_channels(struct world *world)
{
    memset(world->s.channel, 0, sizeof world->s.channel);
    memset(world->s.count, 0, sizeof world->s.count);
    memset(&world->s.held, 0, sizeof world->s.held);
    world->s.has_held = false;
}

/* The connection ends and another one begins; `lost` (or both, 2) hears nothing of the end. */
static void reconnect(struct world *world, uint32_t lost, struct fault *fault)
{
    clear_channels(world);
    for (uint32_t node = 0; node < 2; node++) {
        if (node != lost) {
            (void)push_parcel(world, node, SM_IN_PEER_DOWN, fault);
        }
    }
    world->s.link++;
    for (uint32_t node = 0; node < 2; node++) {
        struct parcel *up = push_parcel(world, node, SM_IN_PEER_UP, fault);
        up->epoch = world->s.epoch[1u - node];
    }
}

/* ---- results
 * ------------------------------------------------------------------------------------------- */

static struct result *find_result(struct world *world, uint32_t side, uint32_t rank, uint64_t room,
                                  uint64_t generation)
{
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        struct result *r = &world->s.results[i];
        if (r->used && r->side == side && r->rank == rank && r->room == room &&
            r->generation == generation) {
            return r;
        }
    }
    return NULL;
}

/* Decode's pages go to somebody else: nothing may reach them any more. */
static void give_back(struct world *world, struct result *result, struct fault *fault)
{
    const uint32_t node = result->side == SM_PREFILL ? AT_P : AT_D;
    struct script *script = &world->s.scripts[node][result->rank][result->room - 1u];
    if (result->free) {
        return;
    }
    result->free = true;
    if (node != AT_D || script->told_at != result->generation) {
        return;
    }
    const uint32_t life = script->life - 1u;
    const uint32_t first = first_page((uint32_t)result->room - 1u, life);
    world->s.given_back[result->room - 1u][life][result->rank] = true;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        const struct flying *w = &world->s.writes[i];
        if (w->used && !w->dead && w->decode_rank == result->rank && w->first >= first &&
            w->first < first + 4u) {
            fell(fault,
                 "drained_before_free: room %" PRIu64 ": pages of D.%u are given back while a "
                 "write to them is in flight",
                 result->room, result->rank);
        }
    }
}

static bool all_arrived(const struct world *world, uint32_t room_index, uint32_t life,
                        uint32_t rank)
{
    const uint32_t all = (1u << world->options->chunks) - 1u;
    return world->s.written[room_index][life][rank] == all;
}

/* A status that no event of this world stands for was made up. */
static void check_status(const struct world *world, const struct result *result,
                         struct fault *fault)
{
    const struct world_state *s = &world->s;
    const bool restarted = s->crashes > 0 || s->cuts > 0;
    const bool known =
        (result->http == 400u && s->aborts > 0) || (result->http == 499u && s->aborts > 0) ||
        (result->http == 503u && restarted) || (result->http == 500u && s->fails > 0) ||
        (result->http == 500u && restarted) ||
        (result->http == 504u && (s->slow > 0 || restarted || world->options->lives > 1u));
    if (result->outcome == SM_OUTCOME_FAILED && !known) {
        fell(fault, "room %" PRIu64 ": %s.%u is told %u, which nothing that happened stands for",
             result->room, result->side == SM_PREFILL ? "P" : "D", result->rank, result->http);
    }
}

static void check_told(struct world *world, const struct result *result, struct fault *fault)
{
    const uint32_t node = result->side == SM_PREFILL ? AT_P : AT_D;
    const struct script *script = &world->s.scripts[node][result->rank][result->room - 1u];
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        const struct result *other = &world->s.results[i];
        if (other->used && other->side == result->side && other->room == result->room &&
            other->generation == result->generation &&
            (other->outcome != result->outcome || other->http != result->http)) {
            fell(fault, "same_cause: room %" PRIu64 ": rank %u is told %u/%u and rank %u %u/%u",
                 result->room, other->rank, other->outcome, other->http, result->rank,
                 result->outcome, result->http);
        }
    }
    check_status(world, result, fault);
    if (result->outcome != SM_OUTCOME_SUCCEEDED || script->life == 0) {
        return;
    }
    for (uint32_t rank = 0; rank < world->options->decode_ranks; rank++) {
        bool well = node == AT_D && rank != result->rank;
        for (uint32_t life = 0; life < LIVES_MAX; life++) {
            /* The sides count lives on their own: prefill's second may be decode's first. */
            const bool its = node == AT_P || life == script->life - 1u;
            well = well || (its && all_arrived(world, (uint32_t)result->room - 1u, life, rank));
        }
        if (!well) {
            fell(fault,
                 "success_is_complete: room %" PRIu64 ": %s.%u is told success and not all bytes "
                 "are at D.%u",
                 result->room, names[node], result->rank, rank);
        }
    }
}

static void note_tell(struct world *world, uint32_t node, const struct sm_effect *effect,
                      struct fault *fault)
{
    struct world_state *s = &world->s;
    struct result *r =
        find_result(world, effect->side, effect->rank, effect->room, effect->generation);
    if (r != NULL) {
        if (r->node_epoch == s->epoch[node]) {
            fell(fault, "told_once: room %" PRIu64 ": %s.%u is told twice", effect->room,
                 names[node], effect->rank);
        }
        if (r->outcome != effect->u.tell.outcome || r->http != effect->u.tell.cause.http) {
            fell(fault, "one_verdict: room %" PRIu64 ": %s.%u is told %u/%u and later %u/%u",
                 effect->room, names[node], effect->rank, r->outcome, r->http,
                 effect->u.tell.outcome, effect->u.tell.cause.http);
        }
        r->node_epoch = s->epoch[node];
    }
    for (uint32_t i = 0; i < RESULTS_MAX && r == NULL; i++) {
        if (!s->results[i].used) {
            r = &s->results[i];
            *r = (struct result){effect->room,
                                 effect->generation,
                                 s->epoch[node],
                                 effect->side,
                                 effect->rank,
                                 effect->u.tell.outcome,
                                 effect->u.tell.cause.http,
                                 false,
                                 false,
                                 true};
            s->scripts[node][effect->rank][effect->room - 1u].told_at = effect->generation;
            check_told(world, r, fault);
        }
    }
    if (r == NULL) {
        fell(fault, "the world is too small: results");
        return;
    }
    if (effect->u.tell.pages_free) {
        give_back(world, r, fault);
    }
    struct sm_input delivered = {.kind = SM_IN_DELIVERED, .room = effect->room};
    delivered.u.command.side = effect->side;
    delivered.u.command.rank = effect->rank;
    delivered.u.command.generation = effect->generation;
    delivered.u.command.aux_slot = SM_AUX_NONE;
    push_local(fault, node, &delivered);
}

/* ---- effects
 * ------------------------------------------------------------------------------------------- */

static void note_verdict(struct world *world, const struct sm_effect *effect, struct fault *fault)
{
    const struct sm_message *m = &effect->u.message;
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        struct verdict *v = &world->s.verdicts[i];
        const bool same = v->used && v->room == effect->room && v->rank == m->decode_rank &&
                          memcmp(&v->life, &m->life, sizeof v->life) == 0;
        if (v->used && !same) {
            continue;
        }
        v->used = true;
        v->room = effect->room;
        v->life = m->life;
        v->rank = m->decode_rank;
        v->outcomes |= 1u << m->outcome;
        if (v->outcomes == (1u << SM_OUTCOME_SUCCEEDED | 1u << SM_OUTCOME_FAILED)) {
            fell(fault, "told_once: room %" PRIu64 ": D.%u gets a success and a failure",
                 effect->room, m->decode_rank);
        }
        return;
    }
    fell(fault, "the world is too small: verdicts");
}

static void send(struct world *world, uint32_t node, const struct sm_effect *effect,
                 struct fault *fault)
{
    static const uint32_t kinds[] = {
        [SM_FX_SEND_PREPARE] = SM_IN_PREPARE,         [SM_FX_SEND_PREPARED] = SM_IN_PREPARED,
        [SM_FX_SEND_STATUS] = SM_IN_STATUS,           [SM_FX_SEND_ACK] = SM_IN_ACK,
        [SM_FX_SEND_ABORT] = SM_IN_PEER_ABORT,        [SM_FX_SEND_DRAINED] = SM_IN_DRAINED,
        [SM_FX_SEND_RECOVERED] = SM_IN_PEER_RECOVERED};
    const struct sm_message *m = &effect->u.message;
    if (effect->link != world->s.link) {
        return; /* meant for a connection that is gone */
    }
    if (effect->kind == SM_FX_SEND_STATUS) {
        note_verdict(world, effect, fault);
    }
    struct parcel *parcel = push_parcel(world, 1u - node, kinds[effect->kind], fault);
    parcel->room = effect->room;
    parcel->epoch = world->s.epoch[node];
    parcel->body = *m;
    if (m->pages.count > 4u || m->cause.reason.size > sizeof parcel->reason) {
        fell(fault, "the world is too small: a message");
        return;
    }
    memcpy(parcel->runs, m->pages.at, m->pages.count * sizeof(struct sm_run));
    memcpy(parcel->reason, m->cause.reason.bytes, m->cause.reason.size);
    /* Addresses are no part of a state. */
    parcel->body.pages.at = NULL;
    parcel->body.cause.reason.bytes = NULL;
}

static void post_write(struct world *world, const struct sm_effect *effect, struct fault *fault)
{
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        struct flying *w = &world->s.writes[i];
        if (!w->used) {
            memset(w, 0, sizeof *w);
            w->used = true;
            w->id = effect->u.write.id;
            w->room = effect->room;
            w->life = effect->u.write.life;
            w->link = effect->link;
            w->decode_rank = effect->u.write.decode_rank;
            w->first = effect->u.write.to.count > 0 ? effect->u.write.to.at[0].first : 0;
            for (uint32_t run = 0; run < effect->u.write.to.count; run++) {
                w->count += effect->u.write.to.at[run].count;
            }
            w->dead = effect->link != world->s.link;
            return;
        }
    }
    fell(fault, "the world is too small: writes in flight");
}

static struct sm_input write_done(const struct flying *w, int32_t code)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = w->room};
    done.u.write_done.write = w->id;
    done.u.write_done.code = code;
    done.u.write_done.text = text(code == 0 ? "" : "the fabric failed");
    return done;
}

static void fence(struct world *world, uint32_t node, const struct sm_effect *effect,
                  struct fault *fault)
{
    struct sm_input fenced = {.kind = SM_IN_PEER_FENCED};
    fenced.u.peer.name = text(names[1u - node]);
    fenced.u.peer.link = effect->link;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        struct flying *w = &world->s.writes[i];
        if (!w->used || w->link > effect->link) {
            continue;
        }
        w->dead = w->dead || world->options->fence_works;
        if (node == AT_P && world->options->fence_works) {
            /* Our own endpoint: what was in it ends before the fence is told. */
            const struct sm_input done = write_done(w, -1);
            push_local(fault, AT_P, &done);
            memset(w, 0, sizeof *w);
        }
    }
    if (effect->link == world->s.link) {
        reconnect(world, 2u, fault);
    }
    push_local(fault, node, &fenced);
}

static void note_reply(struct world *world, uint32_t node, const struct sm_effect *effect)
{
    const uint64_t request = effect->u.reply.request;
    struct script *script = &world->s.scripts[node][request >> 8 & 0xffu][(request & 0xffu) - 1u];
    const uint32_t kind = (uint32_t)(request >> 24);
    const bool accepted = effect->u.reply.refusal == 0;
    if ((request >> 16 & 0xffu) != script->life) {
        return;
    }
    if (kind == SM_IN_OPEN) {
        script->opened = accepted;
        script->over = script->over || !accepted;
    }
    /* A decode rank's open is its admit. */
    script->owned =
        script->owned || (accepted && kind == (node == AT_P ? (uint32_t)SM_IN_ADMIT : SM_IN_OPEN));
}

/* owner_clears: what an engine's scheduler owns goes only when that has let go of it. */
static void check_cleared(struct world *world, uint32_t node, struct fault *fault)
{
    for (uint32_t i = 0; i < output.transition_count; i++) {
        const struct sm_transition *t = &output.transitions[i];
        for (uint32_t rank = 0; t->kind == SM_TR_CLEARED && rank < ranks_of(world, node); rank++) {
            const struct script *script = &world->s.scripts[node][rank][t->room - 1u];
            const struct result *r = find_result(world, sides[node], rank, t->room, t->generation);
            if (r != NULL && !r->released && script->owned && script->told_at == t->generation) {
                fell(fault,
                     "owner_clears: room %" PRIu64 " is cleared at %s before rank %u has "
                     "released it",
                     t->room, names[node], rank);
            }
        }
    }
}

static void carry_out(struct world *world, uint32_t node, struct fault *fault)
{
    for (uint32_t i = 0; i < output.effect_count; i++) {
        const struct sm_effect *effect = &output.effects[i];
        struct result *result = NULL;
        switch (effect->kind) {
        case SM_FX_WRITE:
            post_write(world, effect, fault);
            break;
        case SM_FX_TELL:
            note_tell(world, node, effect, fault);
            break;
        case SM_FX_REPLY:
            note_reply(world, node, effect);
            break;
        case SM_FX_PAGES_FREE:
            result =
                find_result(world, effect->side, effect->rank, effect->room, effect->generation);
            if (result == NULL) {
                fell(fault, "room %" PRIu64 ": pages are given back that nobody was told about",
                     effect->room);
            } else {
                give_back(world, result, fault);
            }
            break;
        case SM_FX_FENCE:
            fence(world, node, effect, fault);
            break;
        case SM_FX_STOPPED:
            break;
        default:
            send(world, node, effect, fault);
            break;
        }
    }
}

/* ---- steps, and a process that dies
 * ------------------------------------------------------------------------- */

static void check(const struct world *world, uint32_t node, struct fault *fault)
{
    struct sm_violation violation;
    const struct sm *sm = machine(world, node);
    if (!sm_check_step(sm, &output, &violation) || !sm_check(sm, &violation)) {
        fell(fault, "%s: room %" PRIu64 " at %s: %s", sm_invariant_name(violation.invariant),
             violation.room, names[node], violation.detail);
    }
}

static void step(struct world *world, uint32_t node, struct sm_input *input, struct fault *fault)
{
    input->time_ns = world->s.now_ns;
    sm_step(machine(world, node), input, &output);
    check(world, node, fault);
    carry_out(world, node, fault);
    check_cleared(world, node, fault);
}

static void run_locals(struct world *world, struct fault *fault)
{
    for (uint32_t i = 0; i < local_count && fault->text[0] == '\0'; i++) {
        struct sm_input input = locals[i].input;
        step(world, locals[i].node, &input, fault);
    }
    local_count = 0;
}

static void start(struct world *world, uint32_t node, struct fault *fault)
{
    struct sm_input input = {.kind = SM_IN_NODE_STARTED};
    const struct sm_text peers[1] = {text(names[1u - node])};
    struct sm_in_node_started *in = &input.u.node_started;
    world->s.epoch[node]++;
    in->node_id = PREFILL_ID + node;
    in->epoch = world->s.epoch[node];
    in->name = text(names[node]);
    in->peer_names = peers;
    in->peer_count = 1;
    sm_policy_default(&in->policy);
    in->policy.ranks = ranks_of(world, node);
    in->policy.room_deadline_ns = 60u * SECOND;
    in->policy.unclaimed_deadline_ns = 40u * SECOND;
    in->policy.drain_timeout_ns = 10u * SECOND;
    in->policy.tombstone_ttl_ns = 3600u * SECOND;
    in->policy.protections_off = world->options->protections_off;
    step(world, node, &input, fault);
    for (uint32_t rank = 0; rank < in->policy.ranks; rank++) {
        struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
        attach.u.engine.rank = rank;
        attach.u.engine.pages = 4u * ROOMS_MAX * LIVES_MAX;
        attach.u.engine.geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1};
        step(world, node, &attach, fault);
    }
    run_locals(world, fault);
}

/* The process dies and comes back from its journal; what it had registered is gone. */
static void crash(struct world *world, uint32_t node, struct fault *fault)
{
    local_count = 0;
    world->s.crashes++;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        struct flying *w = &world->s.writes[i];
        if (w->used && node == AT_P) {
            memset(w, 0, sizeof *w); /* the writer is gone */
        } else if (w->used) {
            w->dead = true;
        }
    }
    clear_channels(world);
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        struct result *r = &world->s.results[i];
        if (r->used && r->side == sides[node]) {
            give_back(world, r, fault); /* as libstateroom says when another process answers */
        }
    }
    start(world, node, fault);
    reconnect(world, node, fault);
}

/* One input of an action; `after`: the process dies when the entry is durable, and says nothing. */
static void feed(struct world *world, uint32_t node, struct sm_input *input, bool after,
                 struct fault *fault)
{
    static unsigned char before[MACHINE_BYTES_MAX];
    if (!after) {
        step(world, node, input, fault);
        run_locals(world, fault);
        return;
    }
    if (!world->options->journal_first) {
        /* Effects leave, and the entry that caused them is lost. */
        memcpy(before, world->memory[node], sizeof before);
        step(world, node, input, fault);
        memcpy(world->memory[node], before, sizeof before);
    } else {
        input->time_ns = world->s.now_ns;
        sm_step(machine(world, node), input, &output);
        check(world, node, fault);
    }
    crash(world, node, fault);
}

/* ---- actions
 * -------------------------------------------------------------------------------------------- */

static struct sm_input command(const struct world *world, uint32_t kind, uint32_t node,
                               uint32_t rank, uint32_t room_index)
{
    const struct script *script = &world->s.scripts[node][rank][room_index];
    struct sm_input input = {.kind = kind, .room = room_index + 1u};
    input.u.command.request = (uint64_t)kind << 24 | (uint64_t)script->life << 16 |
                              (uint64_t)rank << 8 | (room_index + 1u);
    input.u.command.side = sides[node];
    input.u.command.rank = rank;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = text("");
    input.u.command.cause.reason = text("");
    return input;
}

static bool script_may_go_on(const struct world *world, uint32_t node, uint32_t rank, uint32_t room)
{
    const struct script *script = &world->s.scripts[node][rank][room];
    if (script->told_at != 0) {
        struct result *r = find_result((struct world *)(uintptr_t)world, sides[node], rank,
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
    struct sm_run run = {first_page(room, 0), 1};
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
    run.first = first_page(room, script->life - 1u);
    if (node == AT_D) {
        run.count = world->options->chunks;
        input.u.command.pages = (struct sm_runs){&run, 1};
    } else if (line >= 2u) {
        run.first += line - 2u;
        input.u.command.pages = (struct sm_runs){&run, 1};
        input.u.command.last = line - 1u == world->options->chunks;
    }
    feed(world, node, &input, after, fault);
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
    feed(world, node, &input, after, fault);
}

static void act_release(struct world *world, uint32_t index, bool after, struct fault *fault)
{
    struct result *r = &world->s.results[index];
    const uint32_t node = r->side == SM_PREFILL ? AT_P : AT_D;
    struct sm_input input = command(world, SM_IN_RELEASE, node, r->rank, (uint32_t)r->room - 1u);
    input.u.command.generation = r->generation;
    r->released = true;
    feed(world, node, &input, after, fault);
}

static void act_deliver(struct world *world, uint32_t to, struct parcel *parcel, bool after,
                        struct fault *fault)
{
    struct sm_input input = {.kind = parcel->kind, .room = parcel->room};
    if (parcel->kind == SM_IN_PEER_UP) {
        input.u.peer_up.name = text(names[1u - to]);
        input.u.peer_up.node_id = PREFILL_ID + (1u - to);
        input.u.peer_up.epoch = parcel->epoch;
        input.u.peer_up.link = parcel->link;
        input.u.peer_up.ranks = ranks_of(world, 1u - to);
    } else if (parcel->kind == SM_IN_PEER_DOWN) {
        input.u.peer.name = text(names[1u - to]);
        input.u.peer.link = parcel->link;
    } else {
        input.u.message.peer = text(names[1u - to]);
        input.u.message.epoch = parcel->epoch;
        input.u.message.message = parcel->body;
        input.u.message.message.pages.at = parcel->runs;
        input.u.message.message.cause.reason.bytes = parcel->reason;
    }
    feed(world, to, &input, after, fault);
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
            fell(fault,
                 "drained_before_free: room %" PRIu64 ": a write lands in pages of D.%u that "
                 "were given back",
                 w.room, w.decode_rank);
        }
        for (uint32_t i = 0; i < w.count; i++) {
            world->s.written[room][life][w.decode_rank] |=
                1u << (w.first + i - first_page(room, life));
        }
    }
    struct sm_input input = write_done(&w, well ? 0 : -1);
    feed(world, AT_P, &input, after, fault);
}

static uint64_t next_deadline(const struct world *world)
{
    const uint64_t p = sm_deadline(machine(world, AT_P));
    const uint64_t d = sm_deadline(machine(world, AT_D));
    return p < d ? p : d;
}

static void act_tick(struct world *world, struct fault *fault)
{
    const uint64_t next = next_deadline(world);
    world->s.now_ns = next > world->s.now_ns ? next : world->s.now_ns;
    for (uint32_t node = 0; node < 2; node++) {
        if (sm_deadline(machine(world, node)) <= world->s.now_ns) {
            struct sm_input tick = {.kind = SM_IN_TICK};
            feed(world, node, &tick, false, fault);
        }
    }
}

static void act_on_channel(struct world *world, uint32_t kind, uint32_t to, bool after,
                           struct fault *fault)
{
    struct parcel parcel;
    if (kind == ACT_DELIVER) {
        parcel = take_parcel(world, to);
        act_deliver(world, to, &parcel, after, fault);
        return;
    }
    world->s.losses++;
    if (kind == ACT_DOUBLE) {
        parcel = world->s.channel[to][0];
        act_deliver(world, to, &parcel, after, fault);
    } else if (kind == ACT_HOLD) {
        world->s.held = take_parcel(world, to);
        world->s.held_to = (uint8_t)to;
        world->s.has_held = true;
    } else {
        (void)take_parcel(world, to);
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
    local_count = 0;
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
        act_deliver(world, world->s.held_to, &parcel, after, fault);
        break;
    case ACT_CUT:
        world->s.cuts++;
        reconnect(world, 2u, fault);
        break;
    case ACT_CRASH:
        crash(world, a, fault);
        break;
    case ACT_TICK:
        world->s.slow = (uint8_t)(world->s.slow + a);
        act_tick(world, fault);
        break;
    default:
        act_on_channel(world, kind, a, after, fault);
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
        for (uint32_t rank = 0; rank < ranks_of(world, node); rank++) {
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

/* Messages on their way; returns whether there is any. */
static bool add_channels(const struct world *world, struct list *list)
{
    bool due = world->s.has_held;
    if (world->s.has_held) {
        add(list, ACT_UNHOLD, 0, 0, 0);
    }
    for (uint32_t to = 0; to < 2; to++) {
        if (world->s.count[to] == 0) {
            continue;
        }
        const uint32_t kind = world->s.channel[to][0].kind;
        due = true;
        add(list, ACT_DELIVER, to, 0, 0);
        if (world->s.losses < world->options->losses && kind != SM_IN_PEER_UP &&
            kind != SM_IN_PEER_DOWN) {
            add(list, ACT_LOSE, to, 0, 0);
            add(list, ACT_DOUBLE, to, 0, 0);
            if (!world->s.has_held) {
                add(list, ACT_HOLD, to, 0, 0);
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
    const bool over = sm_quiescent(machine(world, AT_P)) && sm_quiescent(machine(world, AT_D));
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

void world_end(const struct world *world, struct fault *fault)
{
    for (uint32_t node = 0; node < 2; node++) {
        if (!sm_quiescent(machine(world, node))) {
            fell(fault,
                 "nothing can happen any more and %s still has something: a room, a page, a "
                 "notice",
                 names[node]);
        }
        for (uint32_t rank = 0; rank < ranks_of(world, node); rank++) {
            for (uint32_t room = 0; room < world->options->rooms; room++) {
                const struct script *script = &world->s.scripts[node][rank][room];
                if (script->opened && script->told_at == 0) {
                    fell(fault, "no_lost_verdict: room %u: %s.%u waits for ever", room + 1u,
                         names[node], rank);
                }
            }
        }
    }
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        if (world->s.results[i].used && !world->s.results[i].free) {
            fell(fault, "room %" PRIu64 ": rank %u never gets its pages back",
                 world->s.results[i].room, world->s.results[i].rank);
        }
    }
}

void world_init(struct world *world, const struct world_options *options, struct fault *fault)
{
    memset(world, 0, sizeof *world);
    world->options = options;
    world->s.now_ns = SECOND;
    if (sm_memory_bytes(&bounds) > MACHINE_BYTES_MAX) {
        fell(fault, "the world is too small: a machine needs %zu bytes", sm_memory_bytes(&bounds));
        return;
    }
    for (uint32_t node = 0; node < 2; node++) {
        (void)sm_init(world->memory[node], &bounds);
        start(world, node, fault);
    }
    world->s.link = 1;
    for (uint32_t node = 0; node < 2; node++) {
        struct parcel *up = push_parcel(world, node, SM_IN_PEER_UP, fault);
        up->epoch = world->s.epoch[1u - node];
        struct parcel parcel = take_parcel(world, node);
        act_deliver(world, node, &parcel, false, fault);
    }
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

uint64_t world_digest(const struct world *world)
{
    uint64_t hash = mix(sm_digest(machine(world, AT_P)), 1);
    hash = mix(hash, sm_digest(machine(world, AT_D)));
    const unsigned char *bytes = (const unsigned char *)&world->s;
    for (size_t i = 0; i + 8u <= sizeof world->s; i += 8u) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, sizeof word);
        if (word != 0) {
            hash = mix(hash ^ i, word);
        }
    }
    return hash == 0 ? 1 : hash;
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
        (void)snprintf(out, size, "%s.%u %s room %u%s", names[a], b,
                       lines[a][line < 4u ? line : 3u], c + 1u, end);
    } else if (kind == ACT_ABORT || kind == ACT_REJECT) {
        (void)snprintf(out, size, "%s.%u %s room %u%s", names[kind == ACT_ABORT ? a : AT_P], b,
                       kinds[kind], c + 1u, end);
    } else if (kind == ACT_RELEASE) {
        const struct result *r = &world->s.results[a];
        (void)snprintf(out, size, "%s.%u release room %" PRIu64 " generation %" PRIu64 "%s",
                       r->side == SM_PREFILL ? "P" : "D", r->rank, r->room, r->generation, end);
    } else if (kind >= ACT_DELIVER && kind <= ACT_UNHOLD) {
        const struct parcel *parcel = kind == ACT_UNHOLD ? &world->s.held : &world->s.channel[a][0];
        (void)snprintf(out, size, "%s: %s room %" PRIu64 " rank %u to %s%s", kinds[kind],
                       sm_input_name(parcel->kind), parcel->room, parcel->body.decode_rank,
                       names[kind == ACT_UNHOLD ? world->s.held_to : a], end);
    } else if (kind == ACT_COMPLETE || kind == ACT_FAIL) {
        const struct flying *w = &world->s.writes[a];
        (void)snprintf(out, size, "write room %" PRIu64 " to D.%u pages %u+%u: %s%s", w->room,
                       w->decode_rank, w->first, w->count, kinds[kind], end);
    } else if (kind == ACT_CRASH) {
        (void)snprintf(out, size, "%s crashes and restarts", names[a]);
    } else {
        (void)snprintf(out, size, "%s%s", kinds[kind], end);
    }
}
