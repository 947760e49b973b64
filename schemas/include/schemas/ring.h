/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded queue of byte messages from one thread to one other thread, with a wake-up that a poll
 * can wait for. It is all that threads of a node share.
 *
 * Layer: C11 atomics, mmap, eventfd.
 *
 * Ownership: a message is written in place (begin, fill, end) and read in place (front, pop): the
 * bytes belong to the ring.
 *
 * Threads: exactly one producer and one consumer.
 *
 * Limits: capacity is fixed when the ring is made; a message needs its size rounded up to 16 and a
 * head of 16 bytes, in one piece. A full ring refuses (NULL): the producer waits or drops, as its
 * owner decides.
 */
#ifndef SCHEMAS_RING_H
#define SCHEMAS_RING_H

#include "schemas/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
    unsigned char *bytes;
    size_t capacity;                    /* a power of two */
    int wake_fd;                        /* eventfd: readable when the consumer should look */
    _Alignas(64) _Atomic uint64_t head; /* written by the consumer */
    _Alignas(64) _Atomic uint64_t tail; /* written by the producer */
    _Alignas(64) _Atomic bool asleep;   /* the consumer waits on wake_fd */
    uint64_t begun;                     /* producer's: where the message being written starts */
};

/* capacity_bytes is rounded up to a power of two of at least a page. STATUS_SYSTEM: mmap or
 * eventfd. */
enum status ring_open(struct ring *ring, size_t capacity_bytes, struct status_detail *out_detail);
void ring_close(struct ring *ring);

/* Room for a message of `size` bytes, to be filled and ended; NULL when the ring is full. */
void *ring_begin(struct ring *ring, size_t size);
/* Publishes the message begun last, and wakes the consumer if it sleeps. */
void ring_end(struct ring *ring);

/* The oldest message, or NULL; valid until ring_pop. */
const void *ring_front(struct ring *ring, size_t *out_size);
/* Takes the oldest message away, looked at or not; the ring must not be empty. */
void ring_pop(struct ring *ring);

/*
 * Before the consumer waits on wake_fd: true when it may (the ring is empty and the producer will
 * wake it); false when there is something to do first. After the wait: ring_woken.
 */
bool ring_may_sleep(struct ring *ring);
void ring_woken(struct ring *ring);
/* Wakes the consumer although nothing was sent. */
void ring_wake(struct ring *ring);

/* Bytes in the ring, for metrics. */
size_t ring_used(const struct ring *ring);

#endif
