/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec: every input kind with random contents comes back as it was; bytes that are cut,
 * flipped or made up never crash it and never yield an entry out of bounds.
 */
#include "schemas/codec.h"
#include "statemachine/sm_image.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)32 << 20)
#define BUFFER_BYTES ((size_t)4 << 20)

static uint64_t seed = 42;

static uint64_t next(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return seed >> 11;
}

struct work {
    struct codec_arena scratch;
    struct codec_arena arena;
    unsigned char *buffer;
    struct sm_run runs[300];
    struct sm_text peers[3];
    struct sm_transition transitions[8];
};

static struct work *work_new(void)
{
    struct work *w = calloc(1, sizeof *w);
    codec_arena_init(&w->scratch, malloc(ARENA_BYTES), ARENA_BYTES);
    codec_arena_init(&w->arena, malloc(ARENA_BYTES), ARENA_BYTES);
    w->buffer = malloc(BUFFER_BYTES);
    for (uint32_t i = 0; i < 300u; i++) {
        w->runs[i] = (struct sm_run){(uint32_t)next(), 1u + (uint32_t)next() % 99u};
    }
    return w;
}

static struct sm_text some_text(void)
{
    static const char bytes[] = "a reason with \"quotes\", \xc3\xa9 and \x01 in it";
    const struct sm_text text = {bytes, (uint32_t)(next() % sizeof bytes)};
    return text;
}

static struct sm_text some_name(void)
{
    static const char *const names[] = {"P", "decode-7", "node with blanks", ""};
    const char *name = names[next() % 4u];
    const struct sm_text text = {name, (uint32_t)strlen(name)};
    return text;
}

static struct sm_cause some_cause(void)
{
    const struct sm_cause cause = {(uint16_t)(next() % 600u), (uint8_t)(next() % SM_ORIGIN_COUNT),
                                   next() % 2u != 0, some_text()};
    return cause;
}

static struct sm_geometry some_geometry(void)
{
    const struct sm_geometry g = {1u + (uint32_t)next() % 64u,
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next(),
                                  (uint32_t)next()};
    return g;
}

static void fill_command(struct work *w, struct sm_in_command *c)
{
    c->request = next();
    c->rank = (uint32_t)next() % 64u;
    c->side = 1u + (uint32_t)next() % 2u;
    c->peer = some_name();
    c->pages = (struct sm_runs){w->runs, (uint32_t)next() % 300u};
    c->prefix_pages = (uint32_t)next();
    c->aux_slot = next() % 2u == 0 ? SM_AUX_NONE : (uint32_t)next() % 1000u;
    c->destinations = (uint32_t)next() % 65u;
    c->deadline_ns = next();
    c->last = next() % 2u != 0;
    c->cause = some_cause();
    c->generation = next();
}

static void fill_message(struct work *w, struct sm_in_message *in)
{
    struct sm_message *m = &in->message;
    in->peer = some_name();
    in->epoch = next();
    in->entry = next();
    m->life = (struct sm_life){next(), next(), next()};
    m->decode_rank = (uint32_t)next() % 64u;
    m->sources = next();
    for (uint32_t i = 0; i < SM_RANKS_MAX; i++) {
        m->required[i] = (uint8_t)(next() % 3u);
    }
    m->pages = (struct sm_runs){w->runs, (uint32_t)next() % 300u};
    m->prefix_pages = (uint32_t)next();
    m->aux_slot = next() % 2u == 0 ? SM_AUX_NONE : (uint32_t)next() % 1000u;
    m->decode_ranks = (uint32_t)next() % 65u;
    m->deadline_left_ns = next();
    m->geometry = some_geometry();
    m->outcome = (uint32_t)next() % SM_OUTCOME_COUNT;
    m->cause = some_cause();
    m->drained = next() % 2u != 0;
}

static void fill_started(struct work *w, struct codec_entry *entry)
{
    struct sm_in_node_started *in = &entry->input.u.node_started;
    in->node_id = next();
    in->epoch = next();
    in->name = some_name();
    sm_policy_default(&in->policy);
    in->policy.ranks = 1u + (uint32_t)next() % 64u;
    in->policy.sources_by_hand[next() % 64u] = next();
    in->policy.protections_off = (uint32_t)next() % 512u;
    for (uint32_t i = 0; i < 3u; i++) {
        w->peers[i] = some_name();
    }
    in->peer_names = w->peers;
    in->peer_count = (uint32_t)next() % 4u;
    sm_bounds_default(&entry->bounds);
    entry->bounds.halves_max = (uint32_t)next();
    entry->machine_version = (uint32_t)next();
    entry->program = some_name();
}

static void fill_entry(struct work *w, uint32_t kind, struct codec_entry *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->program = (struct sm_text){"", 0};
    entry->input.kind = kind;
    entry->input.time_ns = next();
    /* 2^64-1 is a room like any other. */
    entry->input.room = next() % 4u == 0 ? 0 : next() % 4u == 0 ? UINT64_MAX : next();
    entry->wall_ns = next();
    entry->digest = next();
    entry->effects = next();
    if (kind == SM_IN_NODE_STARTED) {
        fill_started(w, entry);
    } else if (kind == SM_IN_PEER_UP) {
        entry->input.u.peer_up =
            (struct sm_in_peer_up){some_name(), next(), next(), (uint32_t)next(), (uint32_t)next()};
    } else if (kind == SM_IN_PEER_DOWN || kind == SM_IN_PEER_FENCED) {
        entry->input.u.peer = (struct sm_in_peer){some_name(), (uint32_t)next()};
    } else if (kind == SM_IN_ENGINE_ATTACHED || kind == SM_IN_ENGINE_LOST) {
        entry->input.u.engine =
            (struct sm_in_engine){(uint32_t)next() % 64u, (uint32_t)next(), (uint32_t)next(),
                                  some_geometry(), (uint32_t)next() % SM_LOST_COUNT};
    } else if (kind == SM_IN_WRITE_DONE) {
        entry->input.u.write_done =
            (struct sm_in_write_done){next(), -(int32_t)(next() % 200u), some_text()};
    } else if (kind >= SM_IN_OPEN && kind <= SM_IN_DELIVERED) {
        fill_command(w, &entry->input.u.command);
    } else if (kind >= SM_IN_PEER_RECOVERED) {
        fill_message(w, &entry->input.u.message);
    }
    entry->transitions = w->transitions;
    entry->transition_count = (uint32_t)next() % 8u;
    for (uint32_t i = 0; i < entry->transition_count; i++) {
        w->transitions[i] =
            (struct sm_transition){next() % 3u == 0   ? 0
                                   : next() % 4u == 0 ? UINT64_MAX
                                   : next() % 2u == 0 ? entry->input.room
                                                      : next(),
                                   next(),
                                   next(),
                                   next(),
                                   1u + (uint32_t)next() % (SM_TR_COUNT - 1u),
                                   (uint32_t)next() % 3u,
                                   next() % 2u == 0 ? SM_NONE : (uint32_t)next() % 64u,
                                   next() % 2u == 0 ? SM_NONE : (uint32_t)next() % 64u,
                                   some_text()};
    }
}

/* Two packings of the same meaning are the same bytes: so equality of bytes is equality of entries.
 */
Test(codec, every_input_comes_back_as_it_was)
{
    struct work *w = work_new();
    unsigned char *again = malloc(BUFFER_BYTES);
    for (uint32_t round = 0; round < 4000u; round++) {
        struct codec_entry entry;
        struct codec_entry back;
        size_t size = 0;
        size_t size_again = 0;
        const uint32_t kind = 1u + round % (SM_IN_COUNT - 1u);
        fill_entry(w, kind, &entry);
        cr_assert_eq(codec_entry_pack(&entry, &w->scratch, w->buffer, BUFFER_BYTES, &size),
                     STATUS_OK, "%s", sm_input_name(kind));
        codec_arena_reset(&w->arena);
        cr_assert_eq(codec_entry_unpack(w->buffer, size, &w->arena, &back), STATUS_OK, "%s",
                     sm_input_name(kind));
        cr_assert_eq(back.input.kind, kind);
        cr_assert_eq(back.input.room, entry.input.room);
        if (kind == SM_IN_ENGINE_LOST) {
            cr_assert_eq(back.input.u.engine.rank, entry.input.u.engine.rank);
            cr_assert_eq(back.input.u.engine.lost, entry.input.u.engine.lost);
        }
        cr_assert_eq(back.transition_count, entry.transition_count);
        for (uint32_t i = 0; i < back.transition_count; i++) {
            cr_assert_eq(back.transitions[i].room, entry.transitions[i].room);
            cr_assert_eq(back.transitions[i].rank, entry.transitions[i].rank);
            cr_assert_eq(back.transitions[i].a, entry.transitions[i].a);
        }
        cr_assert_eq(codec_entry_pack(&back, &w->scratch, again, BUFFER_BYTES, &size_again),
                     STATUS_OK);
        cr_assert_eq(size, size_again);
        cr_assert_eq(memcmp(w->buffer, again, size), 0, "%s changed on the way",
                     sm_input_name(kind));
    }
}

Test(codec, cut_and_flipped_bytes_are_malformed_or_harmless)
{
    struct work *w = work_new();
    for (uint32_t round = 0; round < 600u; round++) {
        struct codec_entry entry;
        struct codec_entry back;
        size_t size = 0;
        fill_entry(w, 1u + round % (SM_IN_COUNT - 1u), &entry);
        cr_assert_eq(codec_entry_pack(&entry, &w->scratch, w->buffer, BUFFER_BYTES, &size),
                     STATUS_OK);
        for (uint32_t i = 0; i < 40u; i++) {
            const size_t cut = next() % size;
            unsigned char *copy = malloc(cut + 1u); /* exact size: a read beyond is seen by ASan */
            memcpy(copy, w->buffer, cut);
            if (cut > 0 && i % 2u == 0) {
                copy[next() % cut] ^= (unsigned char)(1u << next() % 8u);
            }
            codec_arena_reset(&w->arena);
            if (codec_entry_unpack(copy, cut, &w->arena, &back) == STATUS_OK) {
                cr_assert_leq(back.transition_count, SM_TRANSITIONS_MAX);
                cr_assert_lt(back.input.kind, SM_IN_COUNT);
            }
            free(copy);
        }
    }
}

Test(codec, an_arena_that_is_too_small_is_said_and_never_overrun)
{
    struct work *w = work_new();
    struct codec_entry entry;
    struct codec_entry back;
    size_t size = 0;
    uint32_t refused = 0;
    fill_entry(w, SM_IN_PREPARE, &entry);
    entry.input.u.message.message.pages.count = 300;
    cr_assert_eq(codec_entry_pack(&entry, &w->scratch, w->buffer, BUFFER_BYTES, &size), STATUS_OK);
    for (size_t bytes = 0; bytes < 40000u; bytes += 97u) {
        struct codec_arena tiny;
        void *memory = malloc(bytes + 1u);
        codec_arena_init(&tiny, memory, bytes);
        const enum status status = codec_entry_unpack(w->buffer, size, &tiny, &back);
        cr_assert(status == STATUS_OK || status == STATUS_TOO_LARGE, "%s", status_name(status));
        refused += status == STATUS_TOO_LARGE ? 1u : 0u;
        free(memory);
    }
    cr_assert_gt(refused, 10u);
    cr_assert_eq(codec_entry_pack(&entry, &w->scratch, w->buffer, size - 1u, &size),
                 STATUS_TOO_LARGE);
}

Test(codec, the_digest_of_effects_sees_every_field)
{
    struct sm_output *out = calloc(1, sizeof *out);
    out->effect_count = 1;
    out->effects[0].kind = SM_FX_SEND_STATUS;
    out->effects[0].u.message.cause.reason = (struct sm_text){"x", 1};
    const uint64_t before = codec_effects_digest(out);
    out->effects[0].u.message.cause.http = 400;
    const uint64_t http = codec_effects_digest(out);
    out->effects[0].u.message.cause.reason.bytes = "y";
    const uint64_t reason = codec_effects_digest(out);
    out->effects[0].u.message.drained = true;
    const uint64_t drained = codec_effects_digest(out);
    out->effects[0].link = 9;
    cr_assert_neq(before, http);
    cr_assert_neq(http, reason);
    cr_assert_neq(reason, drained);
    cr_assert_neq(drained, codec_effects_digest(out));
    free(out);
}
