/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the codec: shared helpers. */
#ifndef SCHEMAS_CODEC_PRIVATE_H
#define SCHEMAS_CODEC_PRIVATE_H

#include "schemas/codec.h"

#include "stateroom_journal.pb-c.h"

#include <string.h>

/* An initialised message in the arena, or a return of STATUS_TOO_LARGE from the caller. */
#define CODEC_NEW(arena, type, init, pointer)                \
    do {                                                     \
        (pointer) = codec_arena_take((arena), sizeof(type)); \
        if ((pointer) == NULL) {                             \
            return STATUS_TOO_LARGE;                         \
        }                                                    \
        init(pointer);                                       \
    } while (0)

struct sm_text codec_text_of_bytes(ProtobufCBinaryData bytes);
ProtobufCBinaryData codec_bytes_of_text(struct sm_text text);
/* A zero-terminated copy for proto strings. */
char *codec_string(struct codec_arena *arena, struct sm_text text);
struct sm_text codec_text_of_string(const char *text);

enum status codec_input_fill(const struct codec_entry *entry, struct codec_arena *arena,
                             Stateroom__Journal__Input **out_wire);
enum status codec_input_read(const Stateroom__Journal__Input *wire, struct codec_arena *arena,
                             struct codec_entry *out_entry);
enum status codec_bounds_fill(const struct sm_bounds *bounds, struct codec_arena *arena,
                              Stateroom__Journal__Bounds **out_wire);
struct sm_bounds codec_bounds_read(const Stateroom__Journal__Bounds *wire);

/* Packs any message with a length check. */
enum status codec_pack(const ProtobufCMessage *message, unsigned char *buffer, size_t buffer_size,
                       size_t *out_size);

#endif
