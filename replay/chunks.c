/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks, filled one after the other. */
#include "chunks.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)256 << 10)
#define ALIGNED 16u

struct chunk {
    struct chunk *next;
    size_t capacity;
    size_t used;
    unsigned char *bytes;
};

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNED - 1u) / ALIGNED * ALIGNED;
}

static void *or_die(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "stateroom: no memory for a simulated cluster\n");
        abort();
    }
    return memory;
}

static struct chunk *chunk_new(size_t bytes)
{
    const size_t head = rounded(sizeof(struct chunk));
    const size_t capacity = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    struct chunk *chunk = or_die(malloc(head + capacity));
    *chunk = (struct chunk){NULL, capacity, 0, (unsigned char *)chunk + head};
    return chunk;
}

/* The next one with so much room; a thing larger than all that follow gets one of its own. */
static struct chunk *chunk_after(struct chunk *chunk, size_t bytes)
{
    struct chunk *next = chunk->next;
    if (next == NULL || next->capacity < bytes) {
        next = chunk_new(bytes);
        next->next = chunk->next;
        chunk->next = next;
    }
    next->used = 0;
    return next;
}

void *chunks_take(struct chunks *chunks, size_t bytes)
{
    const size_t need = rounded(bytes == 0 ? 1u : bytes);
    if (chunks->now == NULL) {
        chunks->first = chunk_new(need);
        chunks->now = chunks->first;
    } else if (chunks->now->capacity - chunks->now->used < need) {
        chunks->now = chunk_after(chunks->now, need);
    }
    void *memory = chunks->now->bytes + chunks->now->used;
    chunks->now->used += need;
    return memory;
}

void *chunks_take_zeroed(struct chunks *chunks, size_t bytes)
{
    void *memory = chunks_take(chunks, bytes);
    memset(memory, 0, bytes);
    return memory;
}

char *chunks_text(struct chunks *chunks, const char *text, size_t size)
{
    char *copy = chunks_take(chunks, size + 1u);
    if (size > 0) {
        memcpy(copy, text, size);
    }
    copy[size] = '\0';
    return copy;
}

void chunks_trim(struct chunks *chunks, void *memory, size_t bytes)
{
    const size_t at = (size_t)((unsigned char *)memory - chunks->now->bytes);
    assert(at + rounded(bytes == 0 ? 1u : bytes) <= chunks->now->used);
    chunks->now->used = at + rounded(bytes == 0 ? 1u : bytes);
}

void chunks_reset(struct chunks *chunks)
{
    chunks->now = chunks->first;
    if (chunks->now != NULL) {
        chunks->now->used = 0;
    }
}

void chunks_free(struct chunks *chunks)
{
    while (chunks->first != NULL) {
        struct chunk *next = chunks->first->next;
        free(chunks->first);
        chunks->first = next;
    }
    chunks->now = NULL;
}

void *array_grow(void *array, uint32_t *io_capacity, uint32_t count, size_t element)
{
    if (count < *io_capacity) {
        return array;
    }
    *io_capacity = *io_capacity == 0 ? 64u : *io_capacity * 2u;
    return or_die(realloc(array, *io_capacity * element));
}
