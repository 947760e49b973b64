/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device side of a handoff: KV pages gathered, scattered, resliced between TP sizes, summed and
 * poisoned where they lie, in host or in device memory.
 *
 * Layer: statuses only. Holds no room state, reads no clock, never logs.
 *
 * Model: a cache is an affine map. The cell (region, token, head) has cell_bytes bytes and lies at
 *
 *     regions[region] + slot x slot_stride + (t % page_tokens) x token_stride
 *                     + (head_first + head) x head_stride
 *     with t = token_first + token x token_step and slot = pages[t / page_tokens]
 *
 * (without pages the slot is t / page_tokens itself: a dense view). A region is one tensor: K or V
 * or a latent of one layer. Layer-first and page-first pools, token-major and head-major pages, MLA
 * rows, scales, the dense form for the wire: all are such maps. A job moves a slice of logical
 * coordinates from one view to another: from pages to a dense view it gathers, the other way round
 * it scatters, and with fewer heads in the slice than in a view it reslices.
 *
 * Backends: "cpu" (cpu-avx2 where the processor has it, or else cpu-scalar) is always there; "cuda"
 * when it was built in and a driver and a device are found at run time. They give the same bytes
 * and sums.
 *
 * Queues: jobs of a queue are done in order, those of two queues in any. A job is accepted at once
 * and has an event; it is done when device_poll says so, and only then may its results be read,
 * its memory be changed or let go, or a gathered chunk be posted to a network.
 *
 * Ownership: regions, pages and the job itself are read within the call. Memories must outlive the
 * jobs that name them (device_memory_close checks it); out_sum must stay until the event is done.
 *
 * Threads: one owner thread for a device, its memories and its queues. The CPU backend has threads
 * of its own for what is large.
 *
 * Limits: DEVICE_QUEUE_OPS_MAX jobs not yet done and table_bytes of their page lists a queue; over
 * it STATUS_AGAIN. No allocation after open: the tables travel through a ring.
 *
 * Failure: INVALID: a job makes no sense or would leave its memory; the text names which, nothing
 * is touched. TOO_LARGE: its lists never fit the ring. AGAIN: wait for an event first. GPU_DEVICE:
 * the device or its driver failed; what was queued has undefined results, the queue (or, where the
 * driver says so, the whole device) stays failed and is good for close only.
 */
#ifndef GPU_DEVICE_H
#define GPU_DEVICE_H

#include "schemas/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICE_THREADS_MAX 16u
#define DEVICE_QUEUE_OPS_MAX 1024u
/* Of a job: heads x cell bytes in 16-byte units, and tokens. */
#define DEVICE_ROW_UNITS_MAX 0xffffffu
#define DEVICE_TOKENS_MAX 0x3fffffffu
#define DEVICE_MEMORY_BYTES_MAX ((size_t)1u << 46)

struct device;
struct device_memory;
struct device_queue;

/* ---- open
 * ------------------------------------------------------------------------------------------ */

struct device_options {
    const char *backend; /* NULL, "auto": cuda, or else cpu; or a backend's name */
    uint32_t ordinal;    /* which CUDA device */
    uint32_t threads;    /* CPU: 0: as many as this process may use; 1: jobs are done in the call */
    const char *driver;  /* the CUDA driver's library; NULL: libcuda.so.1 */
};

struct device_facts {
    char backend[16];
    char name[64];                     /* of the device, for people */
    char skipped[STATUS_DETAIL_BYTES]; /* why "auto" did not take cuda; "": it did */
    uint32_t threads;                  /* that share a large job; 0: the device's own */
    uint32_t capability;               /* CUDA compute capability x 10 */
    uint32_t multiprocessors;
    bool dmabuf; /* memory can be exported for registration by a network device */
};

/* NOT_FOUND: no such backend, or it cannot work here; the text says why. */
enum status device_open(const struct device_options *options, struct device **out_device,
                        struct status_detail *out_detail);
/* Queues and memories must be closed before. */
void device_close(struct device *device);
const struct device_facts *device_facts(const struct device *device);
/* One line for the owner's log: what is used, and why not something better. */
void device_describe(const struct device *device, char *out_text, size_t text_bytes);

/* ---- memory
 * ---------------------------------------------------------------------------------------- */

enum device_memory_kind {
    DEVICE_MEMORY_HOST, /* page-locked where the backend can: staging that a network device reads */
    DEVICE_MEMORY_LOCAL /* the device's own; the CPU backend's is host memory too */
};

enum status device_memory_open(struct device *device, enum device_memory_kind kind, size_t bytes,
                               struct device_memory **out_memory, struct status_detail *out_detail);
/*
 * Memory that somebody else owns, and that stays until it is closed here: host memory (pinned if
 * the backend can) or an address of the device in this process.
 */
enum status device_memory_register(struct device *device, enum device_memory_kind kind,
                                   uint64_t address, size_t bytes,
                                   struct device_memory **out_memory,
                                   struct status_detail *out_detail);
/* AGAIN: a job that may name it is not done. */
enum status device_memory_close(struct device_memory *memory);
/* Where the CPU reads it; NULL: it cannot. */
void *device_memory_host(const struct device_memory *memory);
/* As kernels and network devices see it. */
uint64_t device_memory_address(const struct device_memory *memory);
size_t device_memory_bytes(const struct device_memory *memory);
/*
 * A descriptor for registration with a network device (FI_MR_DMABUF); the caller closes it.
 * UNSUPPORTED: not this memory, or not on this machine.
 */
enum status device_memory_export(const struct device_memory *memory, int *out_fd,
                                 uint64_t *out_offset, struct status_detail *out_detail);
/*
 * Makes what a network device has written into local memory visible to later jobs. UNSUPPORTED:
 * the platform cannot; read one byte back through the same network device instead.
 */
enum status device_flush(struct device *device);

/* ---- queues
 * ---------------------------------------------------------------------------------------- */

struct device_queue_options {
    uint32_t ops_max;   /* jobs not yet done; 0: 64 */
    size_t table_bytes; /* for their lists; 0: 4 MiB, that is a million pages */
};

enum status device_queue_open(struct device *device, const struct device_queue_options *options,
                              struct device_queue **out_queue, struct status_detail *out_detail);
/* Waits until the device is through with what was accepted; unpolled results are dropped. */
void device_queue_close(struct device_queue *queue);
/* Never blocks. OK: that job and all before it are done. AGAIN: not yet. */
enum status device_poll(struct device_queue *queue, uint64_t event);
/* Blocks until device_poll would not say AGAIN. */
enum status device_wait(struct device_queue *queue, uint64_t event);
/* Why the last call on this queue did not succeed. */
const struct status_detail *device_queue_detail(const struct device_queue *queue);

/* ---- jobs
 * ------------------------------------------------------------------------------------------ */

struct device_region {
    const struct device_memory *memory;
    uint64_t offset; /* bytes */
};

struct device_view {
    const struct device_region *regions; /* as many as the slice has */
    const uint32_t *pages;               /* NULL: dense */
    uint32_t page_count;
    uint64_t slot_stride; /* bytes */
    uint64_t token_stride;
    uint64_t head_stride;
    uint32_t page_tokens;
    uint32_t token_first;
    uint32_t token_step; /* 1, or the number of ranks among which tokens go round */
    uint32_t head_first;
};

/* How much moves; and its global coordinates, which a sum is bound to. */
struct device_slice {
    uint32_t regions;
    uint32_t tokens;
    uint32_t heads;
    uint32_t cell_bytes;
    uint32_t region_at;
    uint32_t token_at;
    uint32_t token_at_step; /* between neighbours in the slice; 0: 1 */
    uint32_t head_at;
};

/* What two sides must share for their sums to be comparable. */
struct device_key {
    uint64_t k0;
    uint64_t k1;
};

struct device_job {
    struct device_slice slice;
    struct device_view from;
    struct device_view to;
    struct device_key key;
    /*
     * Written when the event is done: the sum of the cells (copy, checksum), the count of 16-byte
     * units that are no canary any more (canary). NULL: a copy without a sum.
     */
    uint64_t *out_sum;
    uint32_t blocks_max; /* how much of a GPU the job may take; 0: 32 thread blocks */
};

/*
 * from -> to, and the sum of what was read on the way. The two views must not overlap. A slice of
 * no regions, tokens, heads or bytes is done at once, and its sum is 0.
 */
enum status device_copy(struct device_queue *queue, const struct device_job *job,
                        uint64_t *out_event);
/* The sum of `from`. */
enum status device_checksum(struct device_queue *queue, const struct device_job *job,
                            uint64_t *out_event);
/* Every byte of `to` becomes 0xff: not a number in each float format in use. */
enum status device_poison(struct device_queue *queue, const struct device_job *job,
                          uint64_t *out_event);
/* Counts what of `from` is no poison any more, in units of 16 bytes of a cell. */
enum status device_canary(struct device_queue *queue, const struct device_job *job,
                          uint64_t *out_event);
/* Bytes as they are, of any kinds of memory: between device and staging. They must not overlap. */
enum status device_move(struct device_queue *queue, const struct device_region *from,
                        const struct device_region *to, size_t bytes, uint64_t *out_event);

/* Token-major pages of `heads` heads, whole: what schemas/pool_layout.h describes. */
static inline struct device_view device_view_pages(const struct device_region *regions,
                                                   const uint32_t *pages, uint32_t page_count,
                                                   uint32_t page_tokens, uint32_t heads,
                                                   uint32_t cell_bytes)
{
    const uint64_t token = (uint64_t)heads * cell_bytes;
    const struct device_view view = {.regions = regions,
                                     .pages = pages,
                                     .page_count = page_count,
                                     .slot_stride = token * page_tokens,
                                     .token_stride = token,
                                     .head_stride = cell_bytes,
                                     .page_tokens = page_tokens,
                                     .token_step = 1};
    return view;
}

/* The form for the wire: token after token, each with its heads; `regions` says where each begins.
 */
static inline struct device_view device_view_dense(const struct device_region *regions,
                                                   uint32_t tokens, uint32_t heads,
                                                   uint32_t cell_bytes)
{
    return device_view_pages(regions, NULL, 0, tokens, heads, cell_bytes);
}

/* ---- sums
 * ------------------------------------------------------------------------------------------ */

/*
 * The sum is a keyed NH form, added up modulo 2^64 over all 8-byte words of all cells, each bound
 * to its region, token and head (device_sum.h). So sums of any partition add up to the sum of the
 * whole: chunks, pages, head slices and ranks may be summed anywhere, in any order. It finds
 * accidents; it is no signature.
 *
 * What is compared and written down is its tag, which binds it to one handoff: a late write of
 * another room, or of an earlier life of this one, has another tag.
 */
struct device_binding {
    uint64_t room;
    uint64_t node; /* of the decode half's life */
    uint64_t epoch;
    uint64_t generation;
    uint64_t cells; /* how many were summed */
};

uint64_t device_tag(uint64_t sum, const struct device_binding *binding);

#endif
