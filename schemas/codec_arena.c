/* SPDX-License-Identifier: Apache-2.0 */
/* The bump allocator, and small helpers over it. */
#include "codec_private.h"

#include <assert.h>

static_assert(sizeof(struct codec_allocator) == sizeof(ProtobufCAllocator),
              "codec_allocator is laid out as ProtobufCAllocator");

void codec_arena_init(struct codec_arena *arena, void *memory, size_t size)
{
    arena->memory = memory;
    arena->size = size;
    codec_arena_reset(arena);
}

void codec_arena_reset(struct codec_arena *arena)
{
    arena->used = 0;
    arena->exhausted = false;
}

void *codec_arena_take(struct codec_arena *arena, size_t bytes)
{
    const size_t base = (size_t)((uintptr_t)arena->memory % 16u);
    const size_t start = (arena->used + base + 15u) / 16u * 16u - base;
    if (start > arena->size || bytes > arena->size - start) {
        arena->exhausted = true;
        return NULL;
    }
    arena->used = start + bytes;
    return arena->memory + start;
}

static void *allocator_take(void *data, size_t bytes)
{
    return codec_arena_take(data, bytes);
}

static void allocator_give(void *data, void *pointer)
{
    (void)data;
    (void)pointer; /* everything goes at once, with the arena */
}

struct codec_allocator codec_arena_allocator(struct codec_arena *arena)
{
    const ProtobufCAllocator allocator = {allocator_take, allocator_give, arena};
    struct codec_allocator opaque;
    memcpy(&opaque, &allocator, sizeof opaque);
    return opaque;
}

struct sm_text codec_text_of_bytes(ProtobufCBinaryData bytes)
{
    const struct sm_text text = {bytes.data == NULL ? "" : (const char *)bytes.data,
                                 (uint32_t)bytes.len};
    return text;
}

ProtobufCBinaryData codec_bytes_of_text(struct sm_text text)
{
    /* protobuf-c only reads through this pointer when packing. */
    const ProtobufCBinaryData bytes = {text.size, (uint8_t *)(uintptr_t)text.bytes};
    return bytes;
}

char *codec_string(struct codec_arena *arena, struct sm_text text)
{
    char *copy = codec_arena_take(arena, (size_t)text.size + 1u);
    if (copy != NULL) {
        if (text.size > 0) {
            memcpy(copy, text.bytes, text.size);
        }
        copy[text.size] = '\0';
    }
    return copy;
}

struct sm_text codec_text_of_string(const char *text)
{
    const struct sm_text result = {text == NULL ? "" : text,
                                   text == NULL ? 0 : (uint32_t)strlen(text)};
    return result;
}

enum status codec_pack(const ProtobufCMessage *message, unsigned char *buffer, size_t buffer_size,
                       size_t *out_size)
{
    const size_t size = protobuf_c_message_get_packed_size(message);
    if (size > buffer_size) {
        return STATUS_TOO_LARGE;
    }
    const size_t written = protobuf_c_message_pack(message, buffer);
    assert(written == size);
    *out_size = written;
    return STATUS_OK;
}
