/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the device side share. device.c checks and queues, a backend does.
 *
 * A backend's functions are called by the device's owner only. Those that return a status leave the
 * text to `detail`; GPU_DEVICE from a submit or a query makes the queue failed for good.
 */
#ifndef GPU_DEVICE_PRIVATE_H
#define GPU_DEVICE_PRIVATE_H

#include "gpu/device.h"

#include "kernel_body.h"

enum device_work {
    DEVICE_WORK_NONE,
    DEVICE_WORK_COPY,
    DEVICE_WORK_COPY_SUM,
    DEVICE_WORK_SUM,
    DEVICE_WORK_POISON,
    DEVICE_WORK_CANARY,
    DEVICE_WORK_COUNT,
    DEVICE_WORK_MOVE = DEVICE_WORK_COUNT
};

/* Of each kind of work but the move: KERNEL_* bits. */
static inline uint32_t device_work_bits(enum device_work work)
{
    static const uint32_t bits[DEVICE_WORK_COUNT] = {
        0, KERNEL_COPY, KERNEL_COPY | KERNEL_SUM, KERNEL_SUM, KERNEL_POISON, KERNEL_CANARY};
    return work < DEVICE_WORK_COUNT ? bits[work] : 0;
}

struct device_memory {
    struct device *device;
    uint64_t address;
    void *host;
    size_t bytes;
    enum device_memory_kind kind;
    bool registered; /* somebody else's */
    bool pinned;     /* registered with the driver */
    uint64_t named;  /* serial of the last job that names it */
};

/* One job that is accepted. Its tables, in the ring at `table`: the sum, bases, slots. */
struct device_op {
    enum device_work work;
    uint32_t width; /* what every address is a multiple of: 16, 4 or 1 */
    bool plain;     /* kernel_body.h */
    uint32_t blocks_max;
    struct kernel_job kernel;
    uint64_t from; /* of a move */
    uint64_t to;
    size_t bytes; /* that move */
    size_t table; /* position in the ring, and how much of it */
    size_t table_bytes;
    size_t ring_end; /* the ring is free up to here when this one is done */
    uint64_t serial;
    uint64_t *out_sum;
};

struct device_queue {
    struct device *device;
    struct device_queue *next;
    void *backend;          /* the backend's part */
    struct device_op *ops;  /* by event modulo ops_max */
    unsigned char *tables;  /* the ring, as the host sees it */
    uint64_t tables_device; /* and as the device does */
    size_t table_bytes;
    size_t ring_head; /* the next table begins here */
    size_t ring_tail; /* the oldest one that is in use begins here */
    bool ring_full;   /* head == tail: all, or nothing */
    uint32_t ops_max;
    uint64_t last; /* event accepted last */
    uint64_t done; /* all up to here are done */
    enum status failed;
    struct status_detail detail;
};

struct device {
    const struct device_backend *backend;
    void *state; /* the backend's */
    struct device_facts facts;
    struct device_queue *queues;
    uint32_t memories;
    uint64_t serial;
};

struct device_backend {
    const char *name;
    /* Fills facts and state. NOT_FOUND: not here, with the reason. */
    enum status (*open)(struct device *device, const struct device_options *options,
                        struct status_detail *detail);
    void (*close)(struct device *device);
    /* memory: kind, bytes and, if registered, the address are set; sets the rest. */
    enum status (*memory_open)(struct device_memory *memory, struct status_detail *detail);
    void (*memory_close)(struct device_memory *memory);
    enum status (*memory_export)(const struct device_memory *memory, int *out_fd,
                                 uint64_t *out_offset, struct status_detail *detail);
    enum status (*flush)(struct device *device);
    /* Sets backend, tables and tables_device. */
    enum status (*queue_open)(struct device_queue *queue, struct status_detail *detail);
    void (*queue_close)(struct device_queue *queue); /* waits */
    enum status (*submit)(struct device_queue *queue, uint64_t event);
    /* OK: done. AGAIN: not yet. Asked in the order of events. */
    enum status (*query)(struct device_queue *queue, uint64_t event);
    void (*wait)(struct device_queue *queue, uint64_t event);
};

extern const struct device_backend device_cpu_scalar;
extern const struct device_backend device_cpu_avx2;
extern const struct device_backend device_cuda;

static inline struct device_op *device_op_of(struct device_queue *queue, uint64_t event)
{
    return &queue->ops[event % queue->ops_max];
}

/* device_job.c: checks a job and writes it and its tables, `sum` first, into op and ring. */
enum status device_job_take(struct device_queue *queue, const struct device_job *job,
                            enum device_work work, struct device_op *op);
/* Frees the ring up to the end of this one. */
void device_job_drop(struct device_queue *queue, const struct device_op *op);

#endif
