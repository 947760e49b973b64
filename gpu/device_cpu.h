/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the CPU backend: device_cpu.c shares a job among threads, device_cpu_work.c walks a part
 * of it, device_cpu_vector.c does what lies side by side with the widest instructions.
 */
#ifndef GPU_DEVICE_CPU_H
#define GPU_DEVICE_CPU_H

#include "device_private.h"

/* Cells of one page on each side, so their places are linear in token and head. */
struct cpu_cells {
    const unsigned char *from;
    unsigned char *to; /* NULL: the sum alone */
    uint64_t from_token;
    uint64_t from_head;
    uint64_t to_token;
    uint64_t to_head;
    uint64_t lin; /* of the first cell */
    uint64_t lin_token;
    uint64_t k1;
    uint32_t tokens;
    uint32_t heads;
    uint32_t cell_bytes;
    bool stream; /* past the caches: the job is larger than they are */
};

struct cpu_vector {
    const char *name;
    /* The sum of the cells, which are copied on the way when there is a `to`. */
    uint64_t (*sum)(const struct cpu_cells *cells);
    /* memcpy past the caches. */
    void (*stream)(unsigned char *to, const unsigned char *from, size_t bytes);
};

/* Whether the processor has it. */
bool cpu_vector_fits(const struct cpu_vector *vector);
extern const struct cpu_vector cpu_vector_scalar;
extern const struct cpu_vector cpu_vector_avx2;

/* A job, cut into `parts` that any thread may do in any order. */
struct cpu_split {
    uint32_t chunk_tokens;  /* of one region, the last of a region may have fewer */
    uint32_t region_chunks; /* chunks in a region */
    uint64_t chunks;
    uint32_t part_chunks;
    uint32_t parts;
    bool stream;
};

struct cpu_split cpu_split_of(const struct device_op *op);
/* Returns what the part adds to the job's sum. */
uint64_t cpu_part_do(const struct device_op *op, const struct cpu_split *split, uint32_t part,
                     const struct cpu_vector *vector);

#endif
