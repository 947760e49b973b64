/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for many small things that are given back all at once: what one scenario or one run of a
 * cluster is made of. What is given back is kept for the next one.
 *
 * Ownership: the chunks own everything that was taken from them, until reset or free.
 *
 * Threads: one owner.
 *
 * Failure: none; without memory the process ends.
 */
#ifndef REPLAY_CHUNKS_H
#define REPLAY_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

struct chunk;

/* Zeroed: empty. */
struct chunks {
    struct chunk *first;
    struct chunk *now; /* things are taken from this one; those before it are full */
};

/* 16-aligned, not zeroed. */
void *chunks_take(struct chunks *chunks, size_t bytes);
void *chunks_take_zeroed(struct chunks *chunks, size_t bytes);
/* A zero-terminated copy. */
char *chunks_text(struct chunks *chunks, const char *text, size_t size);
/* Of the memory that was taken last only so many bytes are needed. */
void chunks_trim(struct chunks *chunks, void *memory, size_t bytes);
/* All that was taken is over; its memory is used again. */
void chunks_reset(struct chunks *chunks);
void chunks_free(struct chunks *chunks);

/* Not of chunks: an array (NULL at first; free it) with room for one more than `count` elements. */
void *array_grow(void *array, uint32_t *io_capacity, uint32_t count, size_t element);

#endif
