/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the small world: what an action does, and what follows from it. */
#include "smallworld_private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
#define LOCALS_MAX 48u

static const struct sm_bounds bounds = {6, 12, 8, 64, 16, 8, 8, 1, 64, 1};
const char *const world_names[2] = {"P", "D"};
const uint32_t world_sides[2] = {SM_PREFILL, SM_DECODE};

/* Inputs that follow at once at the same node: confirmations, ends of fenced writes. */
struct local {
    struct sm_input input;
    uint32_t node;
};

/* Working memory of one action; nothing in it outlives it. */
static struct sm_output output;
static struct local locals[LOCALS_MAX];
static uint32_t local_count;

struct sm *world_machine(const struct world *world, uint32_t node)
{
    return (struct sm *)(void *)(uintptr_t)world->memory[node];
}

struct sm_text world_text(const char *bytes)
{
    const struct sm_text result = {bytes, (uint32_t)strlen(bytes)};
    return result;
}

void world_fell(struct fault *fault, const char *format, ...)
{
    va_list arguments;
    if (fault->text[0] == '\0') {
        va_start(arguments, format);
        (void)vsnprintf(fault->text, sizeof fault->text, format, arguments);
        va_end(arguments);
    }
}

uint32_t world_ranks(const struct world *world, uint32_t node)
{
    return node == AT_P ? 1u : world->options->decode_ranks;
}

/* Rooms are numbered from 1; each life has pages of its own. */
uint32_t world_first_page(uint32_t room_index, uint32_t life_index)
{
    return (room_index * LIVES_MAX + life_index) * 4u;
}

static void push_local(struct fault *fault, uint32_t node, const struct sm_input *input)
{
    if (local_count == LOCALS_MAX) {
        world_fell(fault, "the world is too small: inputs of one action");
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
        world_fell(fault, "the world is too small: messages on their way");
        world->s.count[to]--;
    }
    struct parcel *parcel = &world->s.channel[to][world->s.count[to]++];
    memset(parcel, 0, sizeof *parcel);
    parcel->kind = kind;
    parcel->link = world->s.link;
    return parcel;
}

bool world_is_barrier(const struct parcel *parcel)
{
    return parcel->room == 0;
}

bool world_before(const struct world *world, const struct parcel *first, const struct parcel *then)
{
    return world->options->ordered || world_is_barrier(first) || world_is_barrier(then) ||
           (first->room == then->room && first->body.decode_rank == then->body.decode_rank);
}

struct parcel world_take(struct world *world, uint32_t to, uint32_t index)
{
    struct world_state *s = &world->s;
    struct parcel *at = &s->channel[to][index];
    const struct parcel taken = *at;
    s->count[to]--;
    memmove(at, at + 1, (s->count[to] - index) * sizeof taken);
    memset(&s->channel[to][s->count[to]], 0, sizeof taken);
    return taken;
}

static void clear_channels(struct world *world)
{
    memset(world->s.channel, 0, sizeof world->s.channel);
    memset(world->s.count, 0, sizeof world->s.count);
    memset(&world->s.held, 0, sizeof world->s.held);
    world->s.has_held = false;
}

/* The connection ends and another one begins; `lost` (or both, 2) hears nothing of the end. */
void world_reconnect(struct world *world, uint32_t lost, struct fault *fault)
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

struct result *world_result(struct world *world, uint32_t side, uint32_t rank, uint64_t room,
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
    const uint32_t first = world_first_page((uint32_t)result->room - 1u, life);
    world->s.given_back[result->room - 1u][life][result->rank] = true;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        const struct flying *w = &world->s.writes[i];
        if (w->used && !w->dead && w->decode_rank == result->rank && w->first >= first &&
            w->first < first + 4u) {
            world_fell(fault,
                       "drained_before_free: room %" PRIu64
                       ": pages of D.%u are given back while a "
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
        world_fell(
            fault, "room %" PRIu64 ": %s.%u is told %u, which nothing that happened stands for",
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
            world_fell(fault,
                       "same_cause: room %" PRIu64 ": rank %u is told %u/%u and rank %u %u/%u",
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
            world_fell(fault,
                       "success_is_complete: room %" PRIu64
                       ": %s.%u is told success and not all bytes "
                       "are at D.%u",
                       result->room, world_names[node], result->rank, rank);
        }
    }
}

static void note_tell(struct world *world, uint32_t node, const struct sm_effect *effect,
                      struct fault *fault)
{
    struct world_state *s = &world->s;
    struct result *r =
        world_result(world, effect->side, effect->rank, effect->room, effect->generation);
    if (r != NULL) {
        if (r->node_epoch == s->epoch[node]) {
            world_fell(fault, "told_once: room %" PRIu64 ": %s.%u is told twice", effect->room,
                       world_names[node], effect->rank);
        }
        if (r->outcome != effect->u.tell.outcome || r->http != effect->u.tell.cause.http) {
            world_fell(fault, "one_verdict: room %" PRIu64 ": %s.%u is told %u/%u and later %u/%u",
                       effect->room, world_names[node], effect->rank, r->outcome, r->http,
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
        world_fell(fault, "the world is too small: results");
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
            world_fell(fault, "told_once: room %" PRIu64 ": D.%u gets a success and a failure",
                       effect->room, m->decode_rank);
        }
        return;
    }
    world_fell(fault, "the world is too small: verdicts");
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
        world_fell(fault, "the world is too small: a message");
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
    world_fell(fault, "the world is too small: writes in flight");
}

struct sm_input world_write_done(const struct flying *w, int32_t code)
{
    struct sm_input done = {.kind = SM_IN_WRITE_DONE, .room = w->room};
    done.u.write_done.write = w->id;
    done.u.write_done.code = code;
    done.u.write_done.text = world_text(code == 0 ? "" : "the fabric failed");
    return done;
}

static void fence(struct world *world, uint32_t node, const struct sm_effect *effect,
                  struct fault *fault)
{
    struct sm_input fenced = {.kind = SM_IN_PEER_FENCED};
    fenced.u.peer.name = world_text(world_names[1u - node]);
    fenced.u.peer.link = effect->link;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        struct flying *w = &world->s.writes[i];
        if (!w->used || w->link > effect->link) {
            continue;
        }
        w->dead = w->dead || world->options->fence_works;
        if (node == AT_P && world->options->fence_works) {
            /* Our own endpoint: what was in it ends before the fence is told. */
            const struct sm_input done = world_write_done(w, -1);
            push_local(fault, AT_P, &done);
            memset(w, 0, sizeof *w);
        }
    }
    if (effect->link == world->s.link) {
        world_reconnect(world, 2u, fault);
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
        for (uint32_t rank = 0; t->kind == SM_TR_CLEARED && rank < world_ranks(world, node);
             rank++) {
            const struct script *script = &world->s.scripts[node][rank][t->room - 1u];
            const struct result *r =
                world_result(world, world_sides[node], rank, t->room, t->generation);
            if (r != NULL && !r->released && script->owned && script->told_at == t->generation) {
                world_fell(fault,
                           "owner_clears: room %" PRIu64 " is cleared at %s before rank %u has "
                           "released it",
                           t->room, world_names[node], rank);
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
                world_result(world, effect->side, effect->rank, effect->room, effect->generation);
            if (result == NULL) {
                world_fell(fault,
                           "room %" PRIu64 ": pages are given back that nobody was told about",
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
    const struct sm *sm = world_machine(world, node);
    if (!sm_check_step(sm, &output, &violation) || !sm_check(sm, &violation)) {
        world_fell(fault, "%s: room %" PRIu64 " at %s: %s", sm_invariant_name(violation.invariant),
                   violation.room, world_names[node], violation.detail);
    }
}

static void step(struct world *world, uint32_t node, struct sm_input *input, struct fault *fault)
{
    input->time_ns = world->s.now_ns;
    sm_step(world_machine(world, node), input, &output);
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
    const struct sm_text peers[1] = {world_text(world_names[1u - node])};
    struct sm_in_node_started *in = &input.u.node_started;
    world->s.epoch[node]++;
    in->node_id = PREFILL_ID + node;
    in->epoch = world->s.epoch[node];
    in->name = world_text(world_names[node]);
    in->peer_names = peers;
    in->peer_count = 1;
    sm_policy_default(&in->policy);
    in->policy.ranks = world_ranks(world, node);
    in->policy.room_deadline_ns = 60u * SECOND;
    in->policy.unclaimed_deadline_ns = 40u * SECOND;
    in->policy.drain_timeout_ns = 10u * SECOND;
    in->policy.tombstone_ttl_ns = TOMBSTONE_TTL_NS;
    in->policy.protections_off = world->options->protections_off;
    step(world, node, &input, fault);
    for (uint32_t rank = 0; rank < in->policy.ranks; rank++) {
        struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
        attach.u.engine.rank = rank;
        attach.u.engine.pages = 4u * ROOMS_MAX * LIVES_MAX;
        attach.u.engine.geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
        step(world, node, &attach, fault);
    }
    run_locals(world, fault);
}

/* The process dies and comes back from its journal; what it had registered is gone. */
void world_crash(struct world *world, uint32_t node, struct fault *fault)
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
        if (r->used && r->side == world_sides[node]) {
            give_back(world, r, fault); /* as libstateroom says when another process answers */
        }
    }
    start(world, node, fault);
    world_reconnect(world, node, fault);
}

void world_begin_action(void)
{
    local_count = 0;
}

/* One input of an action; `after`: the process dies when the entry is durable, and says nothing. */
void world_feed(struct world *world, uint32_t node, struct sm_input *input, bool after,
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
        sm_step(world_machine(world, node), input, &output);
        check(world, node, fault);
    }
    world_crash(world, node, fault);
}

/* ---- begin and end
 * ---------------------------------------------------------------------------------------- */

void world_end(const struct world *world, struct fault *fault)
{
    for (uint32_t node = 0; node < 2; node++) {
        if (!sm_quiescent(world_machine(world, node))) {
            world_fell(fault,
                       "nothing can happen any more and %s still has something: a room, a page, a "
                       "notice",
                       world_names[node]);
        }
        for (uint32_t rank = 0; rank < world_ranks(world, node); rank++) {
            for (uint32_t room = 0; room < world->options->rooms; room++) {
                const struct script *script = &world->s.scripts[node][rank][room];
                if (script->opened && script->told_at == 0) {
                    world_fell(fault, "no_lost_verdict: room %u: %s.%u waits for ever", room + 1u,
                               world_names[node], rank);
                }
            }
        }
    }
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        if (world->s.results[i].used && !world->s.results[i].free) {
            world_fell(fault, "room %" PRIu64 ": rank %u never gets its pages back",
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
        world_fell(fault, "the world is too small: a machine needs %zu bytes",
                   sm_memory_bytes(&bounds));
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
        struct parcel parcel = world_take(world, node, 0);
        world_deliver(world, node, &parcel, false, fault);
    }
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

uint64_t world_digest(const struct world *world)
{
    uint64_t hash = mix(sm_digest(world_machine(world, AT_P)), 1);
    hash = mix(hash, sm_digest(world_machine(world, AT_D)));
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
