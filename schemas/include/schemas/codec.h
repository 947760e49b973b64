/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the machine's plain structs and protobuf bytes, both ways.
 *
 * Layer: schemas; knows the machine's types, never calls the machine. No I/O, no clock.
 *
 * Ownership: what an unpack yields (texts, runs, lists) lives in the arena that the caller gave,
 * until the arena is reset. Packing borrows everything for the call.
 *
 * Threads: an arena has one owner; nothing else is shared.
 *
 * Limits: an arena never grows: what does not fit is STATUS_TOO_LARGE, so that a small hostile
 * message cannot become a large one in memory.
 *
 * Failure: STATUS_MALFORMED for bytes that do not parse or that name ranks, sides or counts which
 * do not exist; the caller drops that one message.
 */
#ifndef SCHEMAS_CODEC_H
#define SCHEMAS_CODEC_H

#include "schemas/status.h"
#include "statemachine/sm_input.h"
#include "statemachine/sm_output.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ProtobufCAllocator;
struct Stateroom__Journal__RoomMessage;
struct Stateroom__Journal__Command;
struct Stateroom__Journal__Geometry;
struct Stateroom__Journal__Cause;
struct Stateroom__Journal__Run;
struct sm_item;

/* ---- memory -------------------------------------------------------------------------------------
 */

/* A bump allocator over memory of the caller. */
struct codec_arena {
    unsigned char *memory;
    size_t size;
    size_t used;
    bool exhausted; /* something did not fit since the last reset */
};

void codec_arena_init(struct codec_arena *arena, void *memory, size_t size);
void codec_arena_reset(struct codec_arena *arena);
/* 16-aligned; NULL when it does not fit. */
void *codec_arena_take(struct codec_arena *arena, size_t bytes);
/* The arena as protobuf-c wants it; freeing does nothing. Valid as long as the arena. */
struct codec_allocator {
    void *functions[3]; /* laid out as ProtobufCAllocator; asserted in codec_arena.c */
};
struct codec_allocator codec_arena_allocator(struct codec_arena *arena);

/* ---- entries
 * -------------------------------------------------------------------------------------- */

/* What a journal keeps of one step, besides the input. */
struct codec_entry {
    struct sm_input input;
    uint64_t wall_ns;
    uint64_t digest;
    uint64_t effects; /* digest of the effects */
    uint64_t origin;  /* in a slice: number of the entry that it was made from; else 0 */
    const struct sm_transition *transitions;
    uint32_t transition_count;
    /* node_started only: */
    struct sm_bounds bounds;
    uint32_t machine_version;
    struct sm_text program;
};

/*
 * Packs one entry into `buffer`; *out_size is its length. `scratch` is working memory, reset by the
 * call. STATUS_TOO_LARGE: it does not fit the buffer or the scratch.
 */
enum status codec_entry_pack(const struct codec_entry *entry, struct codec_arena *scratch,
                             unsigned char *buffer, size_t buffer_size, size_t *out_size);

/*
 * The same for an entry that is made from another (`from`, as packed): input, times and whatever a
 * newer program has written are kept; transitions, digests and origin are the new ones. A
 * write_done names write `write` unless that is 0.
 */
enum status codec_entry_repack(const unsigned char *from, size_t from_size,
                               const struct codec_entry *entry, uint64_t write,
                               struct codec_arena *scratch, unsigned char *buffer,
                               size_t buffer_size, size_t *out_size);

/* Everything in *out_entry lives in the arena. */
enum status codec_entry_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                               struct codec_entry *out_entry);

/* Digest of what a step ordered, field by field. */
uint64_t codec_effects_digest(const struct sm_output *output);

/* ---- parts that the links use
 * ------------------------------------------------------------------------ */

enum status codec_message_fill(const struct sm_message *message, struct codec_arena *arena,
                               struct Stateroom__Journal__RoomMessage **out_wire);
enum status codec_message_read(const struct Stateroom__Journal__RoomMessage *wire,
                               struct codec_arena *arena, struct sm_message *out_message);
enum status codec_command_fill(const struct sm_in_command *command, struct codec_arena *arena,
                               struct Stateroom__Journal__Command **out_wire);
enum status codec_command_read(const struct Stateroom__Journal__Command *wire,
                               struct codec_arena *arena, struct sm_in_command *out_command);
enum status codec_geometry_fill(const struct sm_geometry *geometry, struct codec_arena *arena,
                                struct Stateroom__Journal__Geometry **out_wire);
struct sm_geometry codec_geometry_read(const struct Stateroom__Journal__Geometry *wire);
enum status codec_cause_fill(const struct sm_cause *cause, struct codec_arena *arena,
                             struct Stateroom__Journal__Cause **out_wire);
struct sm_cause codec_cause_read(const struct Stateroom__Journal__Cause *wire);
enum status codec_runs_fill(const struct sm_runs *runs, struct codec_arena *arena,
                            struct Stateroom__Journal__Run ***out_wire);
enum status codec_runs_read(struct Stateroom__Journal__Run **wire, size_t count,
                            struct codec_arena *arena, struct sm_runs *out_runs);

/* ---- snapshots
 * ---------------------------------------------------------------------------------------- */

/* One item as bytes; a snapshot is a sequence of them, each with its own length
 * (journal/FORMAT.md). */
enum status codec_item_pack(const struct sm_item *item, struct codec_arena *scratch,
                            unsigned char *buffer, size_t buffer_size, size_t *out_size);
enum status codec_item_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                              struct sm_item *out_item);

/* What stands before the items. */
struct codec_snapshot {
    uint64_t entry; /* the last entry that it includes */
    uint64_t time_ns;
    uint64_t digest; /* sm_digest of the whole */
    uint32_t machine_version;
    struct sm_bounds bounds;
};

enum status codec_snapshot_pack(const struct codec_snapshot *snapshot, struct codec_arena *scratch,
                                unsigned char *buffer, size_t buffer_size, size_t *out_size);
enum status codec_snapshot_unpack(const unsigned char *bytes, size_t size,
                                  struct codec_arena *arena, struct codec_snapshot *out_snapshot);

/* ---- bundles
 * ------------------------------------------------------------------------------------------ */

enum codec_bundle_kind { CODEC_BUNDLE_RANGE = 1, CODEC_BUNDLE_SLICE = 2 };

#define CODEC_BUNDLE_ROOMS_MAX 1024u

/* What a bundle says of itself; the fields are those of message Bundle. */
struct codec_bundle {
    uint32_t kind;
    uint32_t machine_version;
    uint32_t journal_format;
    uint32_t room_count;
    uint64_t node_id;
    uint64_t epoch;
    uint64_t first;
    uint64_t chain[2];
    uint64_t source_first;
    uint64_t source_last;
    struct sm_text node;
    struct sm_text program;
    struct sm_text started;
    const uint64_t *rooms;
    const char *unknown; /* unpacking: a required feature that this program does not know; NULL */
};

enum status codec_bundle_pack(const struct codec_bundle *bundle, struct codec_arena *scratch,
                              unsigned char *buffer, size_t buffer_size, size_t *out_size);
enum status codec_bundle_unpack(const unsigned char *bytes, size_t size, struct codec_arena *arena,
                                struct codec_bundle *out_bundle);

#endif
