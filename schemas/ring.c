/* SPDX-License-Identifier: Apache-2.0 */
/* The queue between two threads. A message never wraps: the rest of the ring is skipped instead. */
#include "schemas/ring.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

struct head {
    uint64_t size; /* of the message; SKIP: nothing more until the ring starts again */
    uint64_t step; /* bytes to the next head */
};

#define SKIP UINT64_MAX

enum status ring_open(struct ring *ring, size_t capacity_bytes, struct status_detail *out_detail)
{
    memset(ring, 0, sizeof *ring);
    ring->wake_fd = -1;
    ring->capacity = 4096u;
    while (ring->capacity < capacity_bytes) {
        ring->capacity *= 2u;
    }
    ring->bytes =
        mmap(NULL, ring->capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring->bytes == MAP_FAILED) {
        ring->bytes = NULL;
        return status_fail(STATUS_NO_MEMORY, out_detail, errno,
                           "no memory for a queue of %zu bytes", ring->capacity);
    }
    ring->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ring->wake_fd < 0) {
        const int error = errno;
        ring_close(ring);
        return status_fail(STATUS_SYSTEM, out_detail, error, "eventfd: %s", strerror(error));
    }
    return STATUS_OK;
}

void ring_close(struct ring *ring)
{
    if (ring->bytes != NULL) {
        (void)munmap(ring->bytes, ring->capacity);
        ring->bytes = NULL;
    }
    if (ring->wake_fd >= 0) {
        (void)close(ring->wake_fd);
        ring->wake_fd = -1;
    }
}

static struct head *head_at(const struct ring *ring, uint64_t position)
{
    return (struct head *)(void *)(ring->bytes + (position & (ring->capacity - 1u)));
}

void *ring_begin(struct ring *ring, size_t size)
{
    const uint64_t need = sizeof(struct head) + (size + 15u) / 16u * 16u;
    const uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    const uint64_t used = tail - atomic_load_explicit(&ring->head, memory_order_acquire);
    const uint64_t to_end = ring->capacity - (tail & (ring->capacity - 1u));
    const uint64_t skip = need > to_end ? to_end : 0;
    if (need > ring->capacity || used + skip + need > ring->capacity) {
        return NULL;
    }
    if (skip > 0) {
        head_at(ring, tail)->size = SKIP;
        head_at(ring, tail)->step = skip;
    }
    ring->begun = tail + skip;
    struct head *head = head_at(ring, ring->begun);
    head->size = size;
    head->step = need;
    return head + 1;
}

void ring_end(struct ring *ring)
{
    const struct head *head = head_at(ring, ring->begun);
    atomic_store_explicit(&ring->tail, ring->begun + head->step, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->asleep, memory_order_seq_cst)) {
        ring_wake(ring);
    }
}

const void *ring_front(struct ring *ring, size_t *out_size)
{
    uint64_t position = atomic_load_explicit(&ring->head, memory_order_relaxed);
    const uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    if (position == tail) {
        return NULL;
    }
    const struct head *head = head_at(ring, position);
    if (head->size == SKIP) {
        position += head->step;
        atomic_store_explicit(&ring->head, position, memory_order_release);
        head = head_at(ring, position);
    }
    *out_size = (size_t)head->size;
    return head + 1;
}

void ring_pop(struct ring *ring)
{
    uint64_t position = atomic_load_explicit(&ring->head, memory_order_relaxed);
    assert(position != atomic_load_explicit(&ring->tail, memory_order_acquire));
    const struct head *head = head_at(ring, position);
    if (head->size == SKIP) { /* nobody has looked at the front since the last pop */
        position += head->step;
        head = head_at(ring, position);
    }
    atomic_store_explicit(&ring->head, position + head->step, memory_order_release);
}

bool ring_may_sleep(struct ring *ring)
{
    atomic_store_explicit(&ring->asleep, true, memory_order_seq_cst);
    /* What was sent before the flag was seen has woken nobody: look once more. */
    const uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_seq_cst);
    if (tail != atomic_load_explicit(&ring->head, memory_order_relaxed)) {
        atomic_store_explicit(&ring->asleep, false, memory_order_relaxed);
        return false;
    }
    return true;
}

void ring_woken(struct ring *ring)
{
    uint64_t count = 0;
    atomic_store_explicit(&ring->asleep, false, memory_order_relaxed);
    while (read(ring->wake_fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

void ring_wake(struct ring *ring)
{
    const uint64_t one = 1;
    while (write(ring->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

size_t ring_used(const struct ring *ring)
{
    return (size_t)(atomic_load_explicit(&ring->tail, memory_order_relaxed) -
                    atomic_load_explicit(&ring->head, memory_order_relaxed));
}
