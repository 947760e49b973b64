/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine under any sequence of inputs: bytes choose them; after each step all invariants are
 * checked, and at the end the state is packed, restored and compared.
 */
#include "statemachine/sm.h"
#include "statemachine/sm_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sm_bounds bounds = {8, 16, 16, 64, 64, 8, 8, 3, 256, 16};

struct bytes {
    const uint8_t *at;
    size_t left;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t take(struct bytes *bytes)
{
    if (bytes->left == 0) {
        return 0;
    }
    bytes->left--;
    return *bytes->at++;
}

static struct sm_text text(const char *t)
{
    const struct sm_text result = {t, (uint32_t)strlen(t)};
    return result;
}

static void fill_command(struct bytes *b, struct sm_input *input, struct sm_run *run)
{
    struct sm_in_command *c = &input->u.command;
    const uint32_t bits = take(b);
    c->request = take(b);
    c->rank = bits & 3u;
    c->side = 1u + (bits >> 2 & 1u);
    c->peer = text((bits & 8u) != 0 ? "A" : "B");
    c->last = (bits & 16u) != 0;
    c->pages = (struct sm_runs){run, bits >> 5 & 1u};
    c->aux_slot = (bits & 64u) != 0 ? take(b) % 12u : SM_AUX_NONE;
    c->deadline_ns = (uint64_t)take(b) * 1000000u;
    c->cause.http = (uint16_t)(take(b) * 3u);
    c->cause.origin = (uint8_t)(take(b) % 4u);
    c->cause.reason = text((bits & 128u) != 0 ? "why" : "");
    c->generation = take(b) % 3u;
}

static void fill_message(struct bytes *b, struct sm_input *input, struct sm_run *run)
{
    struct sm_message *m = &input->u.message.message;
    const uint32_t bits = take(b);
    input->u.message.peer = text((bits & 1u) != 0 ? "A" : "B");
    input->u.message.epoch = 1u + (bits >> 1 & 1u);
    m->life = (struct sm_life){(bits & 4u) != 0 ? 7u : 20u + (bits >> 3 & 1u),
                               1u + (bits >> 4 & 1u), 1u + take(b) % 4u};
    m->decode_rank = bits >> 5 & 3u;
    m->sources = take(b) % 4u;
    m->required[0] = (uint8_t)(take(b) % 3u);
    m->required[1] = (uint8_t)(take(b) % 3u);
    m->pages = (struct sm_runs){run, bits >> 7};
    m->decode_ranks = 1u + take(b) % 3u;
    m->deadline_left_ns = (uint64_t)take(b) * 10000000u;
    m->outcome = take(b) % 3u;
    m->aux_slot = SM_AUX_NONE;
    m->cause.http = (uint16_t)(take(b) * 3u);
    m->cause.typed = (bits & 2u) != 0;
    m->cause.reason = text("");
    m->drained = (bits & 8u) != 0;
}

static void fill(struct bytes *b, struct sm_input *input, struct sm_run *run, uint64_t *epoch)
{
    static const struct sm_text peers[2] = {{"A", 1}, {"B", 1}};
    input->kind = take(b) % (SM_IN_COUNT + 1u);
    input->room = take(b) % 5u;
    *run = (struct sm_run){take(b) % 70u, take(b) % 9u};
    if (input->kind == SM_IN_NODE_STARTED) {
        struct sm_in_node_started *in = &input->u.node_started;
        in->node_id = 7;
        in->epoch = ++*epoch;
        in->name = text("N");
        in->peer_names = peers;
        in->peer_count = 2;
        sm_policy_default(&in->policy);
        in->policy.ranks = 1u + take(b) % 3u;
        in->policy.rooms_per_peer_max = 4;
    } else if (input->kind == SM_IN_PEER_UP) {
        input->u.peer_up =
            (struct sm_in_peer_up){text(take(b) % 2u != 0 ? "A" : "B"), 20u + take(b) % 2u,
                                   1u + take(b) % 2u, take(b) % 12u, 1u + take(b) % 4u};
    } else if (input->kind == SM_IN_PEER_DOWN || input->kind == SM_IN_PEER_FENCED) {
        input->u.peer = (struct sm_in_peer){text(take(b) % 2u != 0 ? "A" : "B"), take(b) % 12u};
    } else if (input->kind == SM_IN_ENGINE_ATTACHED || input->kind == SM_IN_ENGINE_LOST) {
        input->u.engine.rank = take(b) % 4u;
        input->u.engine.pages = take(b) % 86u;
        input->u.engine.aux_slots = take(b) % 6u;
    } else if (input->kind == SM_IN_WRITE_DONE) {
        input->u.write_done.write = (uint64_t)take(b) << 24 | take(b) % 8u;
        input->u.write_done.code = take(b) % 2u == 0 ? 0 : -5;
        input->u.write_done.text = text("x");
    } else if (input->kind >= SM_IN_OPEN && input->kind <= SM_IN_DELIVERED) {
        fill_command(b, input, run);
    } else if (input->kind >= SM_IN_PEER_RECOVERED) {
        fill_message(b, input, run);
    }
}

static void must(bool holds, const char *what, uint64_t number)
{
    if (!holds) {
        fprintf(stderr, "%s (%llu)\n", what, (unsigned long long)number);
        abort();
    }
}

static void must_hold(bool holds, const struct sm_violation *violation)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", sm_invariant_name(violation->invariant), violation->detail);
        abort();
    }
}

static void pack_and_restore(const struct sm *sm, void *memory, size_t bytes)
{
    static struct sm_run runs[512];
    struct sm_pack cursor = {0, 0, 0};
    struct sm_item item;
    struct sm_violation violation = {0};
    memset(memory, 0, bytes);
    struct sm *copy = sm_init(memory, &bounds);
    while (sm_pack_next(sm, &cursor, &item, runs, 512)) {
        must(sm_restore_item(copy, &item), "a packed item is refused: kind", item.kind);
    }
    must_hold(sm_restore_done(copy, &violation), &violation);
    must(sm_digest(copy) == sm_digest(sm), "the digest changed: items", item.kind);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sm_output *output;
    static void *memory[2];
    const size_t bytes = (sm_memory_bytes(&bounds) + 15u) / 16u * 16u;
    struct bytes b = {data, size};
    struct sm_violation violation;
    uint64_t now = 1;
    uint64_t epoch = 0;
    output = output != NULL ? output : calloc(1, sizeof *output);
    for (size_t i = 0; i < 2; i++) {
        memory[i] = memory[i] != NULL ? memory[i] : aligned_alloc(16, bytes);
    }
    memset(memory[0], 0, bytes);
    struct sm *sm = sm_init(memory[0], &bounds);
    while (b.left > 0) {
        struct sm_input input;
        struct sm_run run;
        memset(&input, 0, sizeof input);
        fill(&b, &input, &run, &epoch);
        now += (uint64_t)take(&b) * take(&b) * 1000000u;
        input.time_ns = now;
        sm_step(sm, &input, output);
        must_hold(sm_check_step(sm, output, &violation), &violation);
        must_hold(sm_check(sm, &violation), &violation);
    }
    pack_and_restore(sm, memory[1], bytes);
    return 0;
}
