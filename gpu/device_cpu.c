/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU backend. What is small, or comes when there is one thread, is done in the call; the parts
 * of what is large are shared among threads. A queue has one job under way at a time, so its order
 * holds; threads look after all queues in turn.
 */
#include "device_cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define IN_CALL_BYTES_MAX ((uint64_t)1u << 20)
#define PAGE_BYTES 4096u
#define HUGE_PAGE_BYTES ((size_t)2u << 20)

struct cpu_queue {
    struct device_queue *queue;
    struct cpu_queue *next;
    uint64_t accepted; /* events */
    uint64_t finished;
    struct cpu_split split; /* of event finished + 1, when there is one */
    uint32_t next_part;
    uint32_t parts_done;
    uint64_t sum;
};

struct cpu {
    const struct cpu_vector *vector;
    uint32_t threads; /* that were started */
    pthread_t thread[DEVICE_THREADS_MAX];
    pthread_mutex_t lock; /* all below, and the queues */
    pthread_cond_t work;
    pthread_cond_t done;
    bool stop;
    struct cpu_queue *queues;
};

/* ---- the work, under the lock
 * ------------------------------------------------------------------------ */

static void sum_write(struct cpu_queue *cq, const struct device_op *op)
{
    if (op->table_bytes > 0) {
        memcpy(cq->queue->tables + op->table, &cq->sum, sizeof cq->sum);
    }
}

/* Makes the next job current; those without parts are over at once. */
static void begin_next(struct cpu_queue *cq)
{
    cq->next_part = cq->parts_done = 0;
    cq->sum = 0;
    memset(&cq->split, 0, sizeof cq->split);
    while (cq->finished < cq->accepted) {
        cq->split = cpu_split_of(device_op_of(cq->queue, cq->finished + 1u));
        if (cq->split.parts > 0) {
            return;
        }
        cq->finished++;
    }
}

static struct cpu_queue *with_work(struct cpu *cpu)
{
    for (struct cpu_queue *cq = cpu->queues; cq != NULL; cq = cq->next) {
        if (cq->next_part < cq->split.parts) {
            return cq;
        }
    }
    return NULL;
}

/* The queue goes behind the others, so that none waits for another's long job. */
static void to_the_end(struct cpu *cpu, struct cpu_queue *cq)
{
    struct cpu_queue **link = &cpu->queues;
    while (*link != cq) {
        link = &(*link)->next;
    }
    *link = cq->next;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = cq;
    cq->next = NULL;
}

static void part_do(struct cpu *cpu, struct cpu_queue *cq)
{
    const struct device_op *op = device_op_of(cq->queue, cq->finished + 1u);
    const struct cpu_split split = cq->split;
    const uint32_t part = cq->next_part++;
    to_the_end(cpu, cq);
    (void)pthread_mutex_unlock(&cpu->lock);
    const uint64_t sum = cpu_part_do(op, &split, part, cpu->vector);
    (void)pthread_mutex_lock(&cpu->lock);
    cq->sum += sum;
    if (++cq->parts_done == split.parts) {
        sum_write(cq, op);
        cq->finished++;
        begin_next(cq);
        (void)pthread_cond_broadcast(&cpu->done);
        if (cq->split.parts > 0) {
            (void)pthread_cond_broadcast(&cpu->work);
        }
    }
}

static void *worker(void *argument)
{
    struct cpu *cpu = argument;
    (void)pthread_mutex_lock(&cpu->lock);
    while (!cpu->stop) {
        struct cpu_queue *cq = with_work(cpu);
        if (cq != NULL) {
            part_do(cpu, cq);
        } else {
            (void)pthread_cond_wait(&cpu->work, &cpu->lock);
        }
    }
    (void)pthread_mutex_unlock(&cpu->lock);
    return NULL;
}

/* ---- open
 * ------------------------------------------------------------------------------------------ */

static uint32_t threads_wanted(const struct device_options *options)
{
    cpu_set_t mine;
    uint32_t threads = options->threads;
    if (threads == 0) {
        threads = sched_getaffinity(0, sizeof mine, &mine) == 0 ? (uint32_t)CPU_COUNT(&mine) : 1u;
    }
    return threads > DEVICE_THREADS_MAX ? DEVICE_THREADS_MAX : threads;
}

static void cpu_close(struct device *device)
{
    struct cpu *cpu = device->state;
    (void)pthread_mutex_lock(&cpu->lock);
    cpu->stop = true;
    (void)pthread_cond_broadcast(&cpu->work);
    (void)pthread_mutex_unlock(&cpu->lock);
    for (uint32_t i = 0; i < cpu->threads; i++) {
        (void)pthread_join(cpu->thread[i], NULL);
    }
    (void)pthread_cond_destroy(&cpu->work);
    (void)pthread_cond_destroy(&cpu->done);
    (void)pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

static enum status cpu_open(struct device *device, const struct cpu_vector *vector,
                            const struct device_options *options, struct status_detail *detail)
{
    const uint32_t threads = threads_wanted(options);
    if (!cpu_vector_fits(vector)) {
        return status_fail(STATUS_NOT_FOUND, detail, 0,
                           "this processor does not have the instructions of %s", vector->name);
    }
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL) {
        return status_fail(STATUS_NO_MEMORY, detail, 0, "no memory for a device");
    }
    cpu->vector = vector;
    (void)pthread_mutex_init(&cpu->lock, NULL);
    (void)pthread_cond_init(&cpu->work, NULL);
    (void)pthread_cond_init(&cpu->done, NULL);
    device->state = cpu;
    for (uint32_t i = 0; threads > 1 && i < threads; i++) {
        const int failed = pthread_create(&cpu->thread[i], NULL, worker, cpu);
        if (failed != 0) {
            cpu_close(device);
            return status_fail(STATUS_SYSTEM, detail, failed, "thread %u of %u cannot be started",
                               i + 1u, threads);
        }
        cpu->threads++;
    }
    (void)snprintf(device->facts.name, sizeof device->facts.name, "this processor");
    device->facts.threads = threads;
    return STATUS_OK;
}

/* ---- memory
 * ---------------------------------------------------------------------------------------- */

static enum status cpu_memory_open(struct device_memory *memory, struct status_detail *detail)
{
    if (memory->registered) {
        memory->host = (void *)(uintptr_t)memory->address;
        return STATUS_OK;
    }
    const size_t align = memory->bytes < HUGE_PAGE_BYTES ? PAGE_BYTES : HUGE_PAGE_BYTES;
    if (memory->bytes <= SIZE_MAX - align) {
        memory->host = aligned_alloc(align, (memory->bytes + align - 1u) / align * align);
    }
    if (memory->host == NULL) {
        return status_fail(STATUS_NO_MEMORY, detail, 0, "no %zu bytes of memory", memory->bytes);
    }
    if (align == HUGE_PAGE_BYTES) {
        /* Scattered pages miss the TLB otherwise; that it may be refused is no harm. */
        (void)madvise(memory->host, memory->bytes, MADV_HUGEPAGE);
    }
    memory->address = (uint64_t)(uintptr_t)memory->host;
    return STATUS_OK;
}

static void cpu_memory_close(struct device_memory *memory)
{
    if (!memory->registered) {
        free(memory->host);
    }
}

static enum status cpu_memory_export(const struct device_memory *memory, int *out_fd,
                                     uint64_t *out_offset, struct status_detail *detail)
{
    (void)memory;
    (void)out_fd;
    (void)out_offset;
    return status_fail(STATUS_UNSUPPORTED, detail, 0,
                       "host memory is registered by its address, not exported");
}

static enum status cpu_flush(struct device *device)
{
    (void)device; /* what a network device writes into host memory is visible to every thread */
    return STATUS_OK;
}

/* ---- queues
 * ---------------------------------------------------------------------------------------- */

static enum status cpu_queue_open(struct device_queue *queue, struct status_detail *detail)
{
    struct cpu *cpu = queue->device->state;
    struct cpu_queue *cq = calloc(1, sizeof *cq);
    queue->tables = aligned_alloc(64, (queue->table_bytes + 63u) / 64u * 64u);
    if (cq == NULL || queue->tables == NULL) {
        free(cq);
        free(queue->tables);
        return status_fail(STATUS_NO_MEMORY, detail, 0, "no memory for a queue of %zu bytes",
                           queue->table_bytes);
    }
    queue->tables_device = (uint64_t)(uintptr_t)queue->tables;
    queue->backend = cq;
    cq->queue = queue;
    (void)pthread_mutex_lock(&cpu->lock);
    cq->next = cpu->queues;
    cpu->queues = cq;
    (void)pthread_mutex_unlock(&cpu->lock);
    return STATUS_OK;
}

static void cpu_queue_close(struct device_queue *queue)
{
    struct cpu *cpu = queue->device->state;
    struct cpu_queue *cq = queue->backend;
    (void)pthread_mutex_lock(&cpu->lock);
    while (cq->finished < cq->accepted) {
        (void)pthread_cond_wait(&cpu->done, &cpu->lock);
    }
    to_the_end(cpu, cq);
    struct cpu_queue **link = &cpu->queues;
    while (*link != cq) {
        link = &(*link)->next;
    }
    *link = NULL;
    (void)pthread_mutex_unlock(&cpu->lock);
    free(queue->tables);
    free(cq);
}

static uint64_t op_bytes(const struct device_op *op)
{
    const struct kernel_job *job = &op->kernel;
    if (op->work == DEVICE_WORK_NONE || op->work == DEVICE_WORK_MOVE) {
        return op->bytes;
    }
    return (uint64_t)job->heads * job->cell_bytes * job->tokens * job->regions;
}

/* Nobody else has work of this queue: it is empty. */
static void do_in_call(struct cpu *cpu, struct cpu_queue *cq, const struct device_op *op)
{
    const struct cpu_split split = cpu_split_of(op);
    cq->sum = 0;
    for (uint32_t part = 0; part < split.parts; part++) {
        cq->sum += cpu_part_do(op, &split, part, cpu->vector);
    }
    sum_write(cq, op);
}

static enum status cpu_submit(struct device_queue *queue, uint64_t event)
{
    struct cpu *cpu = queue->device->state;
    struct cpu_queue *cq = queue->backend;
    const struct device_op *op = device_op_of(queue, event);
    (void)pthread_mutex_lock(&cpu->lock);
    if (cq->finished == cq->accepted && (cpu->threads == 0 || op_bytes(op) <= IN_CALL_BYTES_MAX)) {
        (void)pthread_mutex_unlock(&cpu->lock);
        do_in_call(cpu, cq, op);
        (void)pthread_mutex_lock(&cpu->lock);
        cq->accepted = cq->finished = event;
    } else {
        const bool idle = cq->finished == cq->accepted;
        cq->accepted = event;
        if (idle) {
            begin_next(cq);
        }
        (void)pthread_cond_broadcast(&cpu->work);
    }
    (void)pthread_mutex_unlock(&cpu->lock);
    return STATUS_OK;
}

static enum status cpu_query(struct device_queue *queue, uint64_t event)
{
    struct cpu *cpu = queue->device->state;
    const struct cpu_queue *cq = queue->backend;
    (void)pthread_mutex_lock(&cpu->lock);
    const bool finished = cq->finished >= event;
    (void)pthread_mutex_unlock(&cpu->lock);
    return finished ? STATUS_OK : STATUS_AGAIN;
}

static void cpu_wait(struct device_queue *queue, uint64_t event)
{
    struct cpu *cpu = queue->device->state;
    const struct cpu_queue *cq = queue->backend;
    (void)pthread_mutex_lock(&cpu->lock);
    while (cq->finished < event) {
        (void)pthread_cond_wait(&cpu->done, &cpu->lock);
    }
    (void)pthread_mutex_unlock(&cpu->lock);
}

/* ---- the two
 * ------------------------------------------------------------------------------------ */

#define BACKEND(width)                                                                           \
    static enum status open_##width(struct device *device, const struct device_options *options, \
                                    struct status_detail *detail)                                \
    {                                                                                            \
        return cpu_open(device, &cpu_vector_##width, options, detail);                           \
    }                                                                                            \
    const struct device_backend device_cpu_##width = {.name = "cpu-" #width,                     \
                                                      .open = open_##width,                      \
                                                      .close = cpu_close,                        \
                                                      .memory_open = cpu_memory_open,            \
                                                      .memory_close = cpu_memory_close,          \
                                                      .memory_export = cpu_memory_export,        \
                                                      .flush = cpu_flush,                        \
                                                      .queue_open = cpu_queue_open,              \
                                                      .queue_close = cpu_queue_close,            \
                                                      .submit = cpu_submit,                      \
                                                      .query = cpu_query,                        \
                                                      .wait = cpu_wait}

BACKEND(scalar);
BACKEND(avx2);
