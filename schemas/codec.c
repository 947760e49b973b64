/* SPDX-License-Identifier: Apache-2.0 */
/* Entries: an input, what it caused, and digests. */
#include "codec_private.h"

/* The state on the stack: its size is only known with this. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* ---- packing
 * ------------------------------------------------------------------------------------------ */

static enum status transitions_fill(const struct codec_entry *entry, struct codec_arena *arena,
                                    Stateroom__Journal__Entry *wire)
{
    const uint32_t count = entry->transition_count;
    wire->n_transitions = count;
    if (count == 0) {
        return STATUS_OK;
    }
    wire->transitions = codec_arena_take(arena, count * sizeof *wire->transitions);
    Stateroom__Journal__Transition *records = codec_arena_take(arena, count * sizeof *records);
    if (wire->transitions == NULL || records == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct sm_transition *t = &entry->transitions[i];
        stateroom__journal__transition__init(&records[i]);
        records[i].kind = t->kind;
        records[i].side = t->side;
        records[i].generation = t->generation;
        records[i].rank_plus_1 = t->rank == SM_NONE ? 0 : t->rank + 1u;
        records[i].index_plus_1 = t->index == SM_NONE ? 0 : t->index + 1u;
        records[i].a = t->a;
        records[i].b = t->b;
        records[i].text = codec_bytes_of_text(t->text);
        /* Most transitions are about the input's room: that one is left out. */
        records[i].room = t->room == entry->input.room ? 0 : t->room;
        records[i].no_room = t->room == 0 && entry->input.room != 0;
        wire->transitions[i] = &records[i];
    }
    return STATUS_OK;
}

enum status codec_entry_pack(const struct codec_entry *entry, struct codec_arena *scratch,
                             unsigned char *buffer, size_t buffer_size, size_t *out_size)
{
    Stateroom__Journal__Entry wire;
    codec_arena_reset(scratch);
    stateroom__journal__entry__init(&wire);
    wire.time_ns = entry->input.time_ns;
    wire.wall_ns = entry->wall_ns;
    wire.digest = entry->digest;
    wire.effects = entry->effects;
    wire.origin = entry->origin;
    TRY(codec_input_fill(entry, scratch, &wire.input));
    TRY(transitions_fill(entry, scratch, &wire));
    return codec_pack(&wire.base, buffer, buffer_size, out_size);
}

enum status codec_entry_repack(const unsigned char *from, size_t from_size,
                               const struct codec_entry *entry, uint64_t write,
                               struct codec_arena *scratch, unsigned char *buffer,
                               size_t buffer_size, size_t *out_size)
{
    codec_arena_reset(scratch);
    struct codec_allocator allocator = codec_arena_allocator(scratch);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    /* Unknown fields of the entry, of its input and of all below stay where protobuf-c put them. */
    Stateroom__Journal__Entry *wire =
        stateroom__journal__entry__unpack(&functions, from_size, from);
    if (wire == NULL) {
        return scratch->exhausted ? STATUS_TOO_LARGE : STATUS_MALFORMED;
    }
    if (wire->input == NULL) {
        return STATUS_MALFORMED;
    }
    wire->transitions = NULL;
    wire->digest = entry->digest;
    wire->effects = entry->effects;
    wire->origin = entry->origin;
    if (write != 0 && wire->input->body_case == STATEROOM__JOURNAL__INPUT__BODY_WRITE_DONE) {
        wire->input->write_done->write = write;
    }
    TRY(transitions_fill(entry, scratch, wire));
    return codec_pack(&wire->base, buffer, buffer_size, out_size);
}

/* ---- unpacking
 * ---------------------------------------------------------------------------------------- */

static enum status transitions_read(const Stateroom__Journal__Entry *wire,
                                    struct codec_arena *arena, struct codec_entry *out)
{
    out->transitions = NULL;
    out->transition_count = 0;
    if (wire->n_transitions == 0) {
        return STATUS_OK;
    }
    if (wire->n_transitions > SM_TRANSITIONS_MAX) {
        return STATUS_MALFORMED;
    }
    struct sm_transition *list = codec_arena_take(arena, wire->n_transitions * sizeof *list);
    if (list == NULL) {
        return STATUS_TOO_LARGE;
    }
    for (size_t i = 0; i < wire->n_transitions; i++) {
        const Stateroom__Journal__Transition *t = wire->transitions[i];
        memset(&list[i], 0, sizeof list[i]);
        list[i].kind = t->kind;
        list[i].side = t->side;
        list[i].generation = t->generation;
        list[i].rank = t->rank_plus_1 == 0 ? SM_NONE : t->rank_plus_1 - 1u;
        list[i].index = t->index_plus_1 == 0 ? SM_NONE : t->index_plus_1 - 1u;
        list[i].a = t->a;
        list[i].b = t->b;
        list[i].text = codec_text_of_bytes(t->text);
        list[i].room = t->no_room ? 0 : t->room == 0 ? out->input.room : t->room;
    }
    out->transitions = list;
    out->transition_count = (uint32_t)wire->n_transitions;
    return STATUS_OK;
}

enum status codec_entry_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                               struct codec_entry *out_entry)
{
    struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Journal__Entry *wire =
        stateroom__journal__entry__unpack(&functions, size, bytes);
    if (wire == NULL) {
        return arena->exhausted ? STATUS_TOO_LARGE : STATUS_MALFORMED;
    }
    if (wire->input == NULL) {
        return STATUS_MALFORMED;
    }
    memset(out_entry, 0, sizeof *out_entry);
    out_entry->program.bytes = "";
    TRY(codec_input_read(wire->input, arena, out_entry));
    out_entry->input.time_ns = wire->time_ns;
    out_entry->wall_ns = wire->wall_ns;
    out_entry->digest = wire->digest;
    out_entry->effects = wire->effects;
    out_entry->origin = wire->origin;
    return transitions_read(wire, arena, out_entry);
}

/* ---- effects
 * --------------------------------------------------------------------------------------------- */

struct hashing {
    XXH3_state_t *state;
};

static void hash64(struct hashing *hashing, uint64_t number)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(number >> (8u * i));
    }
    (void)XXH3_64bits_update(hashing->state, bytes, sizeof bytes);
}

static void hash_text(struct hashing *hashing, struct sm_text text)
{
    hash64(hashing, text.size);
    if (text.size > 0) {
        (void)XXH3_64bits_update(hashing->state, text.bytes, text.size);
    }
}

static void hash_runs(struct hashing *hashing, const struct sm_runs *runs)
{
    hash64(hashing, runs->count);
    for (uint32_t i = 0; i < runs->count; i++) {
        hash64(hashing, (uint64_t)runs->at[i].first << 32 | runs->at[i].count);
    }
}

static void hash_cause(struct hashing *hashing, const struct sm_cause *cause)
{
    hash64(hashing, (uint64_t)cause->http << 16 | (uint64_t)cause->origin << 8 | cause->typed);
    hash_text(hashing, cause->reason);
}

static void hash_message(struct hashing *hashing, const struct sm_message *m)
{
    hash64(hashing, m->life.node);
    hash64(hashing, m->life.epoch);
    hash64(hashing, m->life.generation);
    hash64(hashing, (uint64_t)m->decode_rank << 32 | m->decode_ranks);
    hash64(hashing, m->sources);
    (void)XXH3_64bits_update(hashing->state, m->required, sizeof m->required);
    hash_runs(hashing, &m->pages);
    hash64(hashing, (uint64_t)m->prefix_pages << 32 | m->aux_slot);
    hash64(hashing, m->deadline_left_ns);
    hash64(hashing, (uint64_t)m->outcome << 1 | m->drained);
    hash_cause(hashing, &m->cause);
}

static void hash_effect(struct hashing *hashing, const struct sm_effect *e)
{
    hash64(hashing, (uint64_t)e->kind << 32 | e->peer);
    hash64(hashing, (uint64_t)e->link << 32 | e->rank);
    hash64(hashing, (uint64_t)e->side << 1 | e->without_journal);
    hash64(hashing, e->room);
    hash64(hashing, e->generation);
    switch (e->kind) {
    case SM_FX_WRITE:
        hash64(hashing, e->u.write.id);
        hash64(hashing, (uint64_t)e->u.write.decode_rank << 32 | e->u.write.decode_ranks);
        hash64(hashing, e->u.write.first_page);
        hash_runs(hashing, &e->u.write.from);
        hash_runs(hashing, &e->u.write.to);
        hash64(hashing, (uint64_t)e->u.write.aux_from << 32 | e->u.write.aux_to);
        break;
    case SM_FX_TELL:
        hash64(hashing, (uint64_t)e->u.tell.outcome << 1 | e->u.tell.pages_free);
        hash64(hashing, e->u.tell.request);
        hash_cause(hashing, &e->u.tell.cause);
        break;
    case SM_FX_REPLY:
        hash64(hashing, e->u.reply.request);
        hash64(hashing, (uint64_t)e->u.reply.refusal << 32 | e->u.reply.http);
        hash_text(hashing, e->u.reply.reason);
        break;
    case SM_FX_PAGES_FREE:
        hash_runs(hashing, &e->u.pages);
        break;
    case SM_FX_FENCE:
    case SM_FX_STOPPED:
        break;
    default:
        hash_message(hashing, &e->u.message);
        break;
    }
}

uint64_t codec_effects_digest(const struct sm_output *output)
{
    if (output->effect_count == 0) {
        return 0;
    }
    /* On the stack: XXH3 wants its state aligned, and nothing here may allocate. */
    XXH3_state_t state;
    struct hashing hashing = {&state};
    (void)XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < output->effect_count; i++) {
        hash_effect(&hashing, &output->effects[i]);
    }
    return XXH3_64bits_digest(&state);
}
