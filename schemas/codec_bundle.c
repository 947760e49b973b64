/* SPDX-License-Identifier: Apache-2.0 */
/* What a bundle says of itself. */
#include "codec_private.h"

/* Features that this program knows; a bundle that requires another is refused by that one's name.
 */
static const char *const features[] = {NULL};

static bool known(const char *name)
{
    for (size_t i = 0; features[i] != NULL; i++) {
        if (strcmp(features[i], name) == 0) {
            return true;
        }
    }
    return false;
}

enum status codec_bundle_pack(const struct codec_bundle *bundle, struct codec_arena *scratch,
                              unsigned char *buffer, size_t buffer_size, size_t *out_size)
{
    Stateroom__Journal__Bundle wire;
    codec_arena_reset(scratch);
    stateroom__journal__bundle__init(&wire);
    wire.kind = bundle->kind;
    wire.node_id = bundle->node_id;
    wire.epoch = bundle->epoch;
    wire.first = bundle->first;
    wire.chain_low = bundle->chain[0];
    wire.chain_high = bundle->chain[1];
    wire.machine_version = bundle->machine_version;
    wire.journal_format = bundle->journal_format;
    wire.source_first = bundle->source_first;
    wire.source_last = bundle->source_last;
    wire.node = codec_string(scratch, bundle->node);
    wire.program = codec_string(scratch, bundle->program);
    wire.started = codec_bytes_of_text(bundle->started);
    wire.n_rooms = bundle->room_count;
    wire.rooms = (uint64_t *)(uintptr_t)bundle->rooms;
    if (wire.node == NULL || wire.program == NULL) {
        return STATUS_TOO_LARGE;
    }
    return codec_pack(&wire.base, buffer, buffer_size, out_size);
}

enum status codec_bundle_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                                struct codec_bundle *out)
{
    struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Journal__Bundle *wire =
        stateroom__journal__bundle__unpack(&functions, size, bytes);
    if (wire == NULL) {
        return arena->exhausted ? STATUS_TOO_LARGE : STATUS_MALFORMED;
    }
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < wire->n_required && out->unknown == NULL; i++) {
        out->unknown = known(wire->required[i]) ? NULL : wire->required[i];
    }
    if (wire->first == 0 || wire->n_rooms > CODEC_BUNDLE_ROOMS_MAX) {
        return STATUS_MALFORMED;
    }
    out->kind = wire->kind;
    out->node_id = wire->node_id;
    out->epoch = wire->epoch;
    out->first = wire->first;
    out->chain[0] = wire->chain_low;
    out->chain[1] = wire->chain_high;
    out->machine_version = wire->machine_version;
    out->journal_format = wire->journal_format;
    out->source_first = wire->source_first;
    out->source_last = wire->source_last;
    out->node = codec_text_of_string(wire->node);
    out->program = codec_text_of_string(wire->program);
    out->started = codec_text_of_bytes(wire->started);
    out->room_count = (uint32_t)wire->n_rooms;
    out->rooms = wire->rooms;
    return STATUS_OK;
}
