/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: a head and a sequence of items. */
#include "codec_private.h"

#include "statemachine/sm_image.h"

enum status codec_item_pack(const struct sm_item *item, struct codec_arena *scratch,
                            unsigned char *buffer, size_t buffer_size, size_t *out_size)
{
    Stateroom__Journal__SnapshotItem wire;
    Stateroom__Journal__SnapshotItem__Runs runs[SM_ITEM_RUNS_MAX];
    Stateroom__Journal__SnapshotItem__Runs *run_list[SM_ITEM_RUNS_MAX];
    ProtobufCBinaryData texts[SM_ITEM_TEXTS_MAX];
    codec_arena_reset(scratch);
    stateroom__journal__snapshot_item__init(&wire);
    wire.kind = item->kind;
    wire.n_numbers = item->number_count;
    wire.numbers = (uint64_t *)(uintptr_t)item->numbers;
    wire.n_texts = item->text_count;
    wire.texts = texts;
    for (uint32_t i = 0; i < item->text_count; i++) {
        texts[i] = codec_bytes_of_text(item->texts[i]);
    }
    wire.n_runs = item->runs_count;
    wire.runs = run_list;
    for (uint32_t i = 0; i < item->runs_count; i++) {
        stateroom__journal__snapshot_item__runs__init(&runs[i]);
        TRY(codec_runs_fill(&item->runs[i], scratch, &runs[i].runs));
        runs[i].n_runs = item->runs[i].count;
        run_list[i] = &runs[i];
    }
    return codec_pack(&wire.base, buffer, buffer_size, out_size);
}

enum status codec_item_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                              struct sm_item *out)
{
    struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Journal__SnapshotItem *wire =
        stateroom__journal__snapshot_item__unpack(&functions, size, bytes);
    if (wire == NULL) {
        return arena->exhausted ? STATUS_TOO_LARGE : STATUS_MALFORMED;
    }
    if (wire->n_numbers > SM_ITEM_NUMBERS_MAX || wire->n_texts > SM_ITEM_TEXTS_MAX ||
        wire->n_runs > SM_ITEM_RUNS_MAX) {
        return STATUS_MALFORMED;
    }
    memset(out, 0, sizeof *out);
    out->kind = wire->kind;
    out->number_count = (uint32_t)wire->n_numbers;
    out->text_count = (uint32_t)wire->n_texts;
    out->runs_count = (uint32_t)wire->n_runs;
    for (size_t i = 0; i < wire->n_numbers; i++) {
        out->numbers[i] = wire->numbers[i];
    }
    for (size_t i = 0; i < wire->n_texts; i++) {
        out->texts[i] = codec_text_of_bytes(wire->texts[i]);
    }
    for (size_t i = 0; i < wire->n_runs; i++) {
        TRY(codec_runs_read(wire->runs[i]->runs, wire->runs[i]->n_runs, arena, &out->runs[i]));
    }
    return STATUS_OK;
}

enum status codec_snapshot_pack(const struct codec_snapshot *snapshot, struct codec_arena *scratch,
                                unsigned char *buffer, size_t buffer_size, size_t *out_size)
{
    Stateroom__Journal__Snapshot wire;
    codec_arena_reset(scratch);
    stateroom__journal__snapshot__init(&wire);
    wire.entry = snapshot->entry;
    wire.time_ns = snapshot->time_ns;
    wire.machine_version = snapshot->machine_version;
    wire.digest = snapshot->digest;
    TRY(codec_bounds_fill(&snapshot->bounds, scratch, &wire.bounds));
    return codec_pack(&wire.base, buffer, buffer_size, out_size);
}

enum status codec_snapshot_unpack(const unsigned char *bytes, size_t size,
                                  struct codec_arena *arena, struct codec_snapshot *out)
{
    struct codec_allocator allocator = codec_arena_allocator(arena);
    ProtobufCAllocator functions;
    memcpy(&functions, &allocator, sizeof functions);
    const Stateroom__Journal__Snapshot *wire =
        stateroom__journal__snapshot__unpack(&functions, size, bytes);
    if (wire == NULL || wire->bounds == NULL) {
        return arena->exhausted ? STATUS_TOO_LARGE : STATUS_MALFORMED;
    }
    out->entry = wire->entry;
    out->time_ns = wire->time_ns;
    out->machine_version = wire->machine_version;
    out->digest = wire->digest;
    out->bounds = codec_bounds_read(wire->bounds);
    return STATUS_OK;
}
