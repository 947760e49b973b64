/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that moves pages with libfabric: a list of pieces, a window of writes with delivery
 * completion, a loop over the completion queue. What the data plane is compared with.
 */
#ifndef BENCH_BENCH_RAW_H
#define BENCH_BENCH_RAW_H

#include "fabric/plan.h"

#include <stddef.h>

#define RAW_NAME_BYTES 256u

struct raw;

/* What the other side has to know. */
struct raw_address {
    unsigned char name[RAW_NAME_BYTES];
    size_t size;
    uint64_t base;
    uint64_t key;
};

/* Ends the program when it cannot. provider: libfabric's name. */
struct raw *raw_open(const char *provider, void *pool, size_t bytes, struct raw_address *out_here);
void raw_connect(struct raw *raw, const struct raw_address *there);
/* The target's part: drives the endpoint once. */
void raw_look(struct raw *raw);
/*
 * The writer's part: all pieces, up to `together` of them and `bytes_max` bytes an operation,
 * `window` operations in flight; returns when all have been delivered.
 */
void raw_write(struct raw *raw, const struct plan_piece *pieces, size_t count, uint32_t together,
               uint64_t bytes_max, uint32_t window);
uint32_t raw_pieces_max(const struct raw *raw);
void raw_close(struct raw *raw);

#endif
