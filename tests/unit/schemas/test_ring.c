/* SPDX-License-Identifier: Apache-2.0 */
/* The queue between two threads: order, wrap, full, sleep, under a real second thread. */
#include "schemas/ring.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#define MESSAGES 200000u

static void *produce(void *context)
{
    struct ring *ring = context;
    for (uint64_t i = 0; i < MESSAGES; i++) {
        const size_t size = 8u + i % 200u;
        unsigned char *at = NULL;
        while ((at = ring_begin(ring, size)) == NULL) {
            (void)poll(NULL, 0, 0);
        }
        memset(at, (int)(i & 0xffu), size);
        memcpy(at, &i, sizeof i);
        ring_end(ring);
    }
    return NULL;
}

Test(ring, every_message_arrives_once_in_order_and_whole, .timeout = 60)
{
    struct ring ring;
    struct status_detail detail;
    pthread_t thread;
    cr_assert_eq(ring_open(&ring, 8192, &detail), STATUS_OK);
    cr_assert_eq(pthread_create(&thread, NULL, produce, &ring), 0);
    for (uint64_t expected = 0; expected < MESSAGES;) {
        size_t size = 0;
        const unsigned char *at = ring_front(&ring, &size);
        if (at == NULL) {
            struct pollfd fd = {ring.wake_fd, POLLIN, 0};
            if (ring_may_sleep(&ring)) {
                cr_assert_gt(poll(&fd, 1, 10000), 0, "nobody woke the consumer");
            }
            ring_woken(&ring);
            continue;
        }
        uint64_t number = 0;
        memcpy(&number, at, sizeof number);
        cr_assert_eq(number, expected);
        cr_assert_eq(size, 8u + expected % 200u);
        cr_assert_eq(at[size - 1u], size > 8u ? (unsigned char)expected : at[size - 1u]);
        ring_pop(&ring);
        expected++;
    }
    (void)pthread_join(thread, NULL);
    cr_assert_eq(ring_used(&ring), 0u);
    ring_close(&ring);
}

Test(ring, a_full_ring_refuses_and_takes_again)
{
    struct ring ring;
    struct status_detail detail;
    size_t size = 0;
    uint32_t count = 0;
    cr_assert_eq(ring_open(&ring, 4096, &detail), STATUS_OK);
    while (ring_begin(&ring, 100) != NULL) {
        ring_end(&ring);
        count++;
    }
    cr_assert_gt(count, 30u);
    cr_assert_null(ring_begin(&ring, 5000));
    cr_assert_not_null(ring_front(&ring, &size));
    ring_pop(&ring);
    ring_pop(&ring);
    cr_assert_not_null(ring_begin(&ring, 90));
    ring_close(&ring);
}

/* A consumer may take away what it has looked at before, one after the other, over the end. */
Test(ring, pops_in_a_row_step_over_the_end)
{
    struct ring ring;
    struct status_detail detail;
    cr_assert_eq(ring_open(&ring, 4096, &detail), STATUS_OK);
    for (uint32_t round = 0; round < 50u; round++) {
        uint32_t sent = 0;
        while (ring_begin(&ring, 700u + 16u * (round % 7u)) != NULL) {
            ring_end(&ring);
            sent++;
        }
        cr_assert_gt(sent, 1u);
        for (uint32_t i = 0; i < sent; i++) {
            ring_pop(&ring);
        }
        size_t size = 0;
        cr_assert_null(ring_front(&ring, &size));
    }
    ring_close(&ring);
}
