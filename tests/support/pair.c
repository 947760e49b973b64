/* SPDX-License-Identifier: Apache-2.0 */
/* Two machines and what is between them. */
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sm_bounds small = {64, 256, 128, 4096, 64, 256, 64, 8, 8192, 256};
static const char *const names[2] = {"P", "D"};

static struct sm_text text(const char *bytes)
{
    const struct sm_text result = {bytes, (uint32_t)strlen(bytes)};
    return result;
}

static void fatal(const char *what, const char *detail)
{
    fprintf(stderr, "pair: %s: %s\n", what, detail);
    abort();
}

static void check(const struct pair *pair, uint32_t node)
{
    struct sm_violation violation;
    if (pair->unchecked) {
        return;
    }
    if (!sm_check_step(pair->sm[node], pair->output, &violation) ||
        !sm_check(pair->sm[node], &violation)) {
        fatal(sm_invariant_name(violation.invariant), violation.detail);
    }
}

/* What is still to be stepped: inputs with copies of what they point to. */
struct queued {
    struct sm_input input;
    uint32_t node;
    struct sm_run runs[64];
    char reason[600];
    struct queued *next;
};

static struct queued *queue_input(struct queued ***tail, uint32_t node, uint32_t kind,
                                  uint64_t room)
{
    struct queued *queued = calloc(1, sizeof *queued);
    queued->node = node;
    queued->input.kind = kind;
    queued->input.room = room;
    **tail = queued;
    *tail = &queued->next;
    return queued;
}

static void queue_message(struct pair *pair, struct queued ***tail, uint32_t from,
                          const struct sm_effect *effect)
{
    static const uint32_t kinds[] = {
        [SM_FX_SEND_PREPARE] = SM_IN_PREPARE,
        [SM_FX_SEND_PREPARED] = SM_IN_PREPARED,
        [SM_FX_SEND_STATUS] = SM_IN_STATUS,
        [SM_FX_SEND_ACK] = SM_IN_ACK,
        [SM_FX_SEND_ABORT] = SM_IN_PEER_ABORT,
        [SM_FX_SEND_DRAINED] = SM_IN_DRAINED,
        [SM_FX_SEND_RECOVERED] = SM_IN_PEER_RECOVERED,
    };
    if (effect->kind == SM_FX_SEND_STATUS && pair->lose_status) {
        return;
    }
    struct queued *queued = queue_input(tail, 1u - from, kinds[effect->kind], effect->room);
    queued->input.u.message.peer = text(names[from]);
    queued->input.u.message.epoch = sm_epoch(pair->sm[from]);
    queued->input.u.message.message = effect->u.message;
    struct sm_message *message = &queued->input.u.message.message;
    if (message->pages.count > 64u) {
        fatal("too many runs", "in a test");
    }
    if (message->pages.count > 0) {
        memcpy(queued->runs, message->pages.at, message->pages.count * sizeof(struct sm_run));
    }
    message->pages.at = queued->runs;
    if (message->cause.reason.size > 0) {
        memcpy(queued->reason, message->cause.reason.bytes, message->cause.reason.size);
    }
    message->cause.reason.bytes = queued->reason;
}

static void note_told(struct pair *pair, struct queued ***tail, uint32_t node,
                      const struct sm_effect *effect)
{
    pair->told_count = pair->unchecked ? 0 : pair->told_count;
    if (pair->told_count == PAIR_TOLD_MAX) {
        fatal("too many results", "in a test");
    }
    struct pair_told *told = &pair->told[pair->told_count++];
    memset(told, 0, sizeof *told);
    told->node = node;
    told->rank = effect->rank;
    told->room = effect->room;
    told->generation = effect->generation;
    told->outcome = effect->u.tell.outcome;
    told->http = effect->u.tell.cause.http;
    told->pages_free = effect->u.tell.pages_free;
    const uint32_t size = effect->u.tell.cause.reason.size;
    memcpy(told->reason, effect->u.tell.cause.reason.bytes,
           size < sizeof told->reason - 1u ? size : sizeof told->reason - 1u);
    if (pair->auto_release) {
        struct queued *queued = queue_input(tail, node, SM_IN_RELEASE, effect->room);
        queued->input.u.command.rank = effect->rank;
        queued->input.u.command.side = effect->side;
        queued->input.u.command.generation = effect->generation;
        queued->input.u.command.aux_slot = SM_AUX_NONE;
    }
}

static void carry_out(struct pair *pair, struct queued ***tail, uint32_t node)
{
    for (uint32_t i = 0; i < pair->output->effect_count; i++) {
        const struct sm_effect *effect = &pair->output->effects[i];
        switch (effect->kind) {
        case SM_FX_WRITE:
            if (pair->write_count == PAIR_WRITES_MAX) {
                fatal("too many writes", "in a test");
            }
            pair->writes[pair->write_count].id = effect->u.write.id;
            pair->writes[pair->write_count].room = effect->room;
            pair->write_count++;
            break;
        case SM_FX_TELL:
            note_told(pair, tail, node, effect);
            break;
        case SM_FX_REPLY:
            pair->last_refusal = effect->u.reply.refusal;
            pair->last_http = effect->u.reply.http;
            break;
        case SM_FX_PAGES_FREE:
            pair->freed_count++;
            break;
        case SM_FX_FENCE: {
            struct queued *queued = queue_input(tail, node, SM_IN_PEER_FENCED, 0);
            queued->input.u.peer.name = text(names[1u - node]);
            queued->input.u.peer.link = effect->link;
            break;
        }
        case SM_FX_STOPPED:
            break;
        default:
            queue_message(pair, tail, node, effect);
            break;
        }
    }
}

static void queue_completions(struct pair *pair, struct queued ***tail, int32_t code)
{
    for (uint32_t i = 0; i < pair->write_count; i++) {
        struct queued *queued = queue_input(tail, PAIR_P, SM_IN_WRITE_DONE, pair->writes[i].room);
        queued->input.u.write_done.write = pair->writes[i].id;
        queued->input.u.write_done.code = code;
        queued->input.u.write_done.text = text(code == 0 ? "" : "injected");
    }
    pair->write_count = 0;
}

static void run_queue(struct pair *pair, struct queued *first, struct queued **end)
{
    struct queued **tail = end;
    while (first != NULL) {
        first->input.time_ns = pair->now_ns;
        sm_step(pair->sm[first->node], &first->input, pair->output);
        if (pair->watch != NULL) {
            pair->watch(pair->watch_context, first->node, &first->input, pair->output);
        }
        pair->steps++;
        check(pair, first->node);
        if (first->next == NULL) {
            tail = &first->next;
        }
        carry_out(pair, &tail, first->node);
        if (!pair->hold_writes) {
            queue_completions(pair, &tail, 0);
        }
        struct queued *done = first;
        first = first->next;
        free(done);
    }
}

void pair_step(struct pair *pair, uint32_t node, struct sm_input *input)
{
    struct queued *first = NULL;
    struct queued **tail = &first;
    struct queued *queued = queue_input(&tail, node, input->kind, input->room);
    queued->input = *input;
    if (input->kind >= SM_IN_OPEN && input->kind <= SM_IN_DELIVERED) {
        queued->input.u.command.request = ++pair->requests;
    }
    run_queue(pair, first, &queued->next);
}

void pair_complete(struct pair *pair, int32_t code)
{
    struct queued *first = NULL;
    struct queued **tail = &first;
    queue_completions(pair, &tail, code);
    if (first != NULL) {
        run_queue(pair, first, tail);
    }
}

void pair_pass(struct pair *pair, uint64_t ns)
{
    const uint64_t until = pair->now_ns + ns;
    for (uint32_t steps = 0;; steps++) {
        uint64_t next = UINT64_MAX;
        uint32_t node = 0;
        for (uint32_t i = 0; i < 2; i++) {
            if (sm_deadline(pair->sm[i]) < next) {
                next = sm_deadline(pair->sm[i]);
                node = i;
            }
        }
        if (next > until) {
            break;
        }
        if (steps > 100000u) {
            fatal("time does not pass", "a machine wants ticks without end");
        }
        pair->now_ns = next > pair->now_ns ? next : pair->now_ns;
        struct sm_input tick = {.kind = SM_IN_TICK};
        pair_step(pair, node, &tick);
    }
    pair->now_ns = until;
}

void pair_start(struct pair *pair, uint32_t node, uint64_t epoch)
{
    struct sm_input input = {.kind = SM_IN_NODE_STARTED};
    const struct sm_text peers[1] = {text(names[1u - node])};
    input.u.node_started.node_id = 100u + node;
    input.u.node_started.epoch = epoch;
    input.u.node_started.name = text(names[node]);
    input.u.node_started.peer_names = peers;
    input.u.node_started.peer_count = 1;
    sm_policy_default(&input.u.node_started.policy);
    input.u.node_started.policy.ranks = pair->ranks[node];
    pair_step(pair, node, &input);
    for (uint32_t rank = 0; rank < pair->ranks[node]; rank++) {
        struct sm_input attach = {.kind = SM_IN_ENGINE_ATTACHED};
        attach.u.engine.rank = rank;
        attach.u.engine.pages = 1024;
        attach.u.engine.aux_slots = 16;
        attach.u.engine.geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
        pair_step(pair, node, &attach);
    }
}

void pair_connect(struct pair *pair)
{
    pair->link++;
    for (uint32_t node = 0; node < 2; node++) {
        struct sm_input up = {.kind = SM_IN_PEER_UP};
        up.u.peer_up.name = text(names[1u - node]);
        up.u.peer_up.node_id = 100u + (1u - node);
        up.u.peer_up.epoch = sm_epoch(pair->sm[1u - node]);
        up.u.peer_up.link = pair->link;
        up.u.peer_up.ranks = pair->ranks[1u - node];
        pair_step(pair, node, &up);
    }
}

void pair_open(struct pair *pair, uint32_t prefill_ranks, uint32_t decode_ranks)
{
    pair_open_watched(pair, prefill_ranks, decode_ranks, NULL, NULL);
}

void pair_open_watched(struct pair *pair, uint32_t prefill_ranks, uint32_t decode_ranks,
                       pair_watch_fn watch, void *context)
{
    memset(pair, 0, sizeof *pair);
    pair->watch = watch;
    pair->watch_context = context;
    pair->ranks[PAIR_P] = prefill_ranks;
    pair->ranks[PAIR_D] = decode_ranks;
    pair->auto_release = true;
    pair->now_ns = 1000;
    pair->output = calloc(1, sizeof *pair->output);
    for (uint32_t node = 0; node < 2; node++) {
        pair->bytes[node] = sm_memory_bytes(&small);
        pair->memory[node] = aligned_alloc(16, (pair->bytes[node] + 15u) / 16u * 16u);
        memset(pair->memory[node], 0, pair->bytes[node]);
        pair->sm[node] = sm_init(pair->memory[node], &small);
    }
    pair_start(pair, PAIR_P, 1);
    pair_start(pair, PAIR_D, 1);
    pair_connect(pair);
}

struct sm_bounds pair_bounds(void)
{
    return small;
}

void pair_close(struct pair *pair)
{
    free(pair->memory[0]);
    free(pair->memory[1]);
    free(pair->output);
}

struct sm_input pair_command(uint32_t kind, uint32_t side, uint32_t rank, uint64_t room)
{
    struct sm_input input = {.kind = kind, .room = room};
    input.u.command.side = side;
    input.u.command.rank = rank;
    input.u.command.aux_slot = SM_AUX_NONE;
    input.u.command.peer = text("");
    input.u.command.cause.reason = text("");
    return input;
}

uint32_t pair_told_count(const struct pair *pair, uint32_t node, uint32_t rank, uint64_t room,
                         uint32_t outcome)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pair->told_count; i++) {
        const struct pair_told *told = &pair->told[i];
        count += told->node == node && told->rank == rank && told->room == room &&
                 told->outcome == outcome;
    }
    return count;
}

uint32_t pair_phase(const struct pair *pair, uint32_t node, uint64_t room)
{
    struct sm_half_view view;
    return sm_half_find(pair->sm[node], room, node == PAIR_P ? SM_PREFILL : SM_DECODE, &view)
               ? view.phase
               : SM_PHASE_ABSENT;
}
