/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One conformance suite for every backend of gpu/device.h, against an oracle that knows only the
 * definitions in device.h and device_sum.h. Its checks are Criterion's.
 */
#ifndef TESTS_DEVICE_SUITE_H
#define TESTS_DEVICE_SUITE_H

#include "gpu/device.h"

struct suite {
    struct device *device;
    struct device_queue *queue;
    const char *backend;
    uint64_t seed;
};

/* False: not on this machine (said on stderr); a cpu backend is missing only for its processor. */
bool suite_open(struct suite *suite, const struct device_options *options);
void suite_close(struct suite *suite);
void suite_wait(struct suite *suite, uint64_t event);

/* One side of a job: pages in local memory, and the same bytes where the test can see them. */
#define SUITE_REGIONS_MAX 6u
#define SUITE_PAGES_MAX 4096u
struct suite_side {
    struct device_view view;
    struct device_region regions[SUITE_REGIONS_MAX];
    struct device_memory *local;
    struct device_memory *stage;
    unsigned char *bytes; /* of the stage */
    size_t size;
    uint32_t pages[SUITE_PAGES_MAX];
};

enum suite_layout { SUITE_NHD, SUITE_HND, SUITE_NHD_PAGE_FIRST, SUITE_HND_PAGE_FIRST, SUITE_DENSE };
struct suite_shape {
    enum suite_layout layout;
    uint32_t regions;
    uint32_t heads;
    uint32_t cell_bytes;
    uint32_t page_tokens;
    uint32_t tokens;  /* that must find room */
    uint32_t padding; /* bytes behind each token's row; of the token-major layouts */
    uint32_t shift;   /* bytes before the first region */
};

uint32_t suite_below(struct suite *suite, uint32_t n);
void suite_side_open(struct suite *suite, const struct suite_shape *shape, struct suite_side *side);
void suite_side_close(struct suite_side *side);
/* Between the stage and the local memory; waits. */
void suite_up(struct suite *suite, struct suite_side *side);
void suite_down(struct suite *suite, struct suite_side *side);
/* Where a cell lies from the start of the memory, by the definition. */
size_t suite_cell(const struct suite_side *side, uint32_t region, uint32_t token, uint32_t head);
/* The sum of what the stage holds, by the definition. */
uint64_t suite_sum(const struct device_job *job, const struct suite_side *side);
uint64_t suite_checksum(struct suite *suite, const struct device_job *job);

/* The parts of the suite. */
void suite_random(struct suite *suite, uint32_t cases);
void suite_large(struct suite *suite);
void suite_empty(struct suite *suite);
void suite_faults(struct suite *suite);
void suite_tp_reslice(struct suite *suite);
void suite_order(struct suite *suite);
void suite_bounds(struct suite *suite);
void suite_limits(struct suite *suite);
void suite_memory(struct suite *suite);

#endif
