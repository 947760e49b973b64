/* SPDX-License-Identifier: Apache-2.0 */
/* Queues: what is accepted, in which order, and when it is done. */
#include "device_private.h"

#include <stdlib.h>
#include <string.h>

#define OPS_DEFAULT 64u
#define TABLE_BYTES_DEFAULT ((size_t)4u << 20)

enum status device_queue_open(struct device *device, const struct device_queue_options *options,
                              struct device_queue **out_queue, struct status_detail *out_detail)
{
    const uint32_t ops_max = options->ops_max == 0 ? OPS_DEFAULT : options->ops_max;
    const size_t table_bytes =
        options->table_bytes == 0 ? TABLE_BYTES_DEFAULT : (options->table_bytes + 15u) / 16u * 16u;
    if (ops_max > DEVICE_QUEUE_OPS_MAX) {
        return status_fail(STATUS_TOO_LARGE, out_detail, 0, "%u jobs a queue; at most %u", ops_max,
                           DEVICE_QUEUE_OPS_MAX);
    }
    struct device_queue *queue = calloc(1, sizeof *queue);
    struct device_op *ops = calloc(ops_max, sizeof *ops);
    if (queue == NULL || ops == NULL) {
        free(queue);
        free(ops);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a queue");
    }
    queue->device = device;
    queue->ops = ops;
    queue->ops_max = ops_max;
    queue->table_bytes = table_bytes;
    const enum status status = device->backend->queue_open(queue, out_detail);
    if (status != STATUS_OK) {
        free(queue);
        free(ops);
        return status;
    }
    queue->next = device->queues;
    device->queues = queue;
    *out_queue = queue;
    return STATUS_OK;
}

void device_queue_close(struct device_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    struct device_queue **link = &queue->device->queues;
    while (*link != queue) {
        link = &(*link)->next;
    }
    *link = queue->next;
    queue->device->backend->queue_close(queue);
    free(queue->ops);
    free(queue);
}

const struct status_detail *device_queue_detail(const struct device_queue *queue)
{
    return &queue->detail;
}

/* ---- events
 * ---------------------------------------------------------------------------------------- */

static enum status queue_fail(struct device_queue *queue, enum status status)
{
    if (status == STATUS_GPU_DEVICE) {
        queue->failed = status;
    }
    return status;
}

static void finish(struct device_queue *queue, uint64_t event)
{
    struct device_op *op = device_op_of(queue, event);
    if (op->out_sum != NULL) {
        *op->out_sum = 0;
        if (op->table_bytes > 0) {
            memcpy(op->out_sum, queue->tables + op->table, sizeof *op->out_sum);
        }
    }
    device_job_drop(queue, op);
    queue->done = event;
}

enum status device_poll(struct device_queue *queue, uint64_t event)
{
    if (event > queue->last) {
        return status_fail(STATUS_INVALID, &queue->detail, 0,
                           "event %llu is not there yet; the last one is %llu",
                           (unsigned long long)event, (unsigned long long)queue->last);
    }
    while (queue->done < event) {
        if (queue->failed != STATUS_OK) {
            return queue->failed;
        }
        const enum status status = queue->device->backend->query(queue, queue->done + 1u);
        if (status != STATUS_OK) {
            return queue_fail(queue, status);
        }
        finish(queue, queue->done + 1u);
    }
    return STATUS_OK;
}

enum status device_wait(struct device_queue *queue, uint64_t event)
{
    enum status status = device_poll(queue, event);
    while (status == STATUS_AGAIN) {
        queue->device->backend->wait(queue, queue->done + 1u);
        status = device_poll(queue, event);
    }
    return status;
}

/* ---- jobs
 * ------------------------------------------------------------------------------------------ */

/* A free place for a job. */
static enum status place(struct device_queue *queue, struct device_op **out_op)
{
    if (queue->failed == STATUS_OK && queue->last - queue->done >= queue->ops_max) {
        (void)device_poll(queue, queue->last);
    }
    if (queue->failed != STATUS_OK) {
        return queue->failed;
    }
    if (queue->last - queue->done >= queue->ops_max) {
        return status_fail(STATUS_AGAIN, &queue->detail, 0, "%u jobs are in flight already",
                           queue->ops_max);
    }
    struct device_op *op = device_op_of(queue, queue->last + 1u);
    memset(op, 0, sizeof *op);
    op->serial = queue->device->serial + 1u;
    *out_op = op;
    return STATUS_OK;
}

static enum status submit(struct device_queue *queue, uint64_t *out_event)
{
    const enum status status = queue->device->backend->submit(queue, queue->last + 1u);
    if (status != STATUS_OK) {
        /* Part of it may be queued; only closing the queue is certain to be behind it. */
        queue->failed = STATUS_GPU_DEVICE;
        return STATUS_GPU_DEVICE;
    }
    queue->device->serial++;
    queue->last++;
    *out_event = queue->last;
    return STATUS_OK;
}

static enum status accept(struct device_queue *queue, const struct device_job *job,
                          enum device_work work, uint64_t *out_event)
{
    struct device_op *op;
    TRY(place(queue, &op));
    enum status status = device_job_take(queue, job, work, op);
    if (status == STATUS_AGAIN && device_poll(queue, queue->last) != STATUS_GPU_DEVICE) {
        status = device_job_take(queue, job, work, op); /* what is done has left the ring */
    }
    return status == STATUS_OK ? submit(queue, out_event) : status;
}

enum status device_copy(struct device_queue *queue, const struct device_job *job,
                        uint64_t *out_event)
{
    return accept(queue, job, job->out_sum == NULL ? DEVICE_WORK_COPY : DEVICE_WORK_COPY_SUM,
                  out_event);
}

static enum status must_count(struct device_queue *queue, const struct device_job *job,
                              enum device_work work, uint64_t *out_event)
{
    if (job->out_sum == NULL) {
        return status_fail(STATUS_INVALID, &queue->detail, 0, "there is no place for the result");
    }
    return accept(queue, job, work, out_event);
}

enum status device_checksum(struct device_queue *queue, const struct device_job *job,
                            uint64_t *out_event)
{
    return must_count(queue, job, DEVICE_WORK_SUM, out_event);
}

enum status device_canary(struct device_queue *queue, const struct device_job *job,
                          uint64_t *out_event)
{
    return must_count(queue, job, DEVICE_WORK_CANARY, out_event);
}

enum status device_poison(struct device_queue *queue, const struct device_job *job,
                          uint64_t *out_event)
{
    struct device_job poison = *job;
    poison.out_sum = NULL;
    return accept(queue, &poison, DEVICE_WORK_POISON, out_event);
}

enum status device_move(struct device_queue *queue, const struct device_region *from,
                        const struct device_region *to, size_t bytes, uint64_t *out_event)
{
    const struct device_region *regions[2] = {from, to};
    struct device_op *op;
    TRY(place(queue, &op));
    for (uint32_t i = 0; i < 2; i++) {
        const struct device_memory *memory = regions[i]->memory;
        if (memory == NULL || memory->device != queue->device ||
            regions[i]->offset > memory->bytes || bytes > memory->bytes - regions[i]->offset) {
            return status_fail(
                STATUS_INVALID, &queue->detail, 0, "the %s of a move: %zu bytes at %llu of %zu",
                i == 0 ? "source" : "destination", bytes, (unsigned long long)regions[i]->offset,
                memory == NULL ? 0 : memory->bytes);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        /* Its bookkeeping, not its bytes. */
        ((struct device_memory *)(uintptr_t)regions[i]->memory)->named = op->serial;
    }
    op->work = bytes == 0 ? DEVICE_WORK_NONE : DEVICE_WORK_MOVE;
    op->from = from->memory->address + from->offset;
    op->to = to->memory->address + to->offset;
    op->bytes = bytes;
    return submit(queue, out_event);
}
