/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a backend, its memories, and the tag of a sum. */
#include "device_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The best first. */
static const struct device_backend *const backends[] = {&device_cuda, &device_cpu_avx2,
                                                        &device_cpu_scalar};
#define BACKENDS (sizeof backends / sizeof backends[0])

static enum status open_one(struct device *device, const struct device_backend *backend,
                            const struct device_options *options, struct status_detail *detail)
{
    memset(&device->facts, 0, sizeof device->facts);
    (void)snprintf(device->facts.backend, sizeof device->facts.backend, "%s", backend->name);
    device->backend = backend;
    return backend->open(device, options, detail);
}

static enum status open_named(struct device *device, const struct device_options *options,
                              struct status_detail *detail)
{
    const char *name = options->backend;
    for (size_t i = 0; i < BACKENDS; i++) {
        if (strcmp(name, backends[i]->name) == 0) {
            return open_one(device, backends[i], options, detail);
        }
    }
    return status_fail(STATUS_NOT_FOUND, detail, 0,
                       "no device backend is named '%s'; there are auto, cuda, cpu, "
                       "cpu-avx2 and cpu-scalar",
                       name);
}

/* The best that works; for "auto" with why cuda does not. */
static enum status open_best(struct device *device, const struct device_options *options,
                             bool with_cuda, struct status_detail *detail)
{
    struct status_detail skipped = {"", 0};
    enum status status = STATUS_NOT_FOUND;
    for (size_t i = with_cuda ? 0 : 1; i < BACKENDS && status != STATUS_OK; i++) {
        status = open_one(device, backends[i], options, detail);
        if (status != STATUS_OK && backends[i] == &device_cuda) {
            skipped = *detail;
        }
    }
    (void)snprintf(device->facts.skipped, sizeof device->facts.skipped, "%s", skipped.text);
    return status;
}

enum status device_open(const struct device_options *options, struct device **out_device,
                        struct status_detail *out_detail)
{
    const char *name = options->backend == NULL ? "auto" : options->backend;
    struct status_detail detail = {"", 0};
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a device");
    }
    const bool automatic = strcmp(name, "auto") == 0;
    const enum status status = automatic || strcmp(name, "cpu") == 0
                                   ? open_best(device, options, automatic, &detail)
                                   : open_named(device, options, &detail);
    if (status != STATUS_OK) {
        free(device);
        *out_detail = detail;
        return status;
    }
    *out_device = device;
    return STATUS_OK;
}

void device_close(struct device *device)
{
    if (device != NULL) {
        device->backend->close(device);
        free(device);
    }
}

const struct device_facts *device_facts(const struct device *device)
{
    return &device->facts;
}

void device_describe(const struct device *device, char *out_text, size_t text_bytes)
{
    const struct device_facts *facts = &device->facts;
    char how[64] = "";
    if (facts->threads > 0) {
        (void)snprintf(how, sizeof how, ", %u thread%s", facts->threads,
                       facts->threads == 1 ? "" : "s");
    } else {
        (void)snprintf(how, sizeof how, ", compute capability %u.%u, %u multiprocessors",
                       facts->capability / 10u, facts->capability % 10u, facts->multiprocessors);
    }
    (void)snprintf(out_text, text_bytes, "device backend %s: %s%s%s%s", facts->backend, facts->name,
                   how, facts->skipped[0] == '\0' ? "" : "; not cuda: ", facts->skipped);
}

/* ---- memory
 * ---------------------------------------------------------------------------------------- */

static enum status memory_make(const struct device_memory *wanted,
                               struct device_memory **out_memory, struct status_detail *out_detail)
{
    if (wanted->bytes == 0 || wanted->address > UINT64_MAX - wanted->bytes) {
        return status_fail(STATUS_INVALID, out_detail, 0, "device memory of %zu bytes at 0x%llx",
                           wanted->bytes, (unsigned long long)wanted->address);
    }
    if (wanted->bytes > DEVICE_MEMORY_BYTES_MAX) {
        return status_fail(STATUS_TOO_LARGE, out_detail, 0, "device memory of %zu bytes",
                           wanted->bytes);
    }
    struct device_memory *memory = malloc(sizeof *memory);
    if (memory == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a memory");
    }
    *memory = *wanted;
    const enum status status = memory->device->backend->memory_open(memory, out_detail);
    if (status != STATUS_OK) {
        free(memory);
        return status;
    }
    memory->device->memories++;
    *out_memory = memory;
    return STATUS_OK;
}

enum status device_memory_open(struct device *device, enum device_memory_kind kind, size_t bytes,
                               struct device_memory **out_memory, struct status_detail *out_detail)
{
    const struct device_memory wanted = {.device = device, .kind = kind, .bytes = bytes};
    return memory_make(&wanted, out_memory, out_detail);
}

enum status device_memory_register(struct device *device, enum device_memory_kind kind,
                                   uint64_t address, size_t bytes,
                                   struct device_memory **out_memory,
                                   struct status_detail *out_detail)
{
    const struct device_memory wanted = {
        .device = device, .kind = kind, .bytes = bytes, .address = address, .registered = true};
    if (address == 0) {
        return status_fail(STATUS_INVALID, out_detail, 0, "memory at address 0");
    }
    return memory_make(&wanted, out_memory, out_detail);
}

/* Whether a job that is not done has been accepted before, or with, the last one that names it. */
static bool memory_in_use(const struct device_memory *memory)
{
    for (struct device_queue *q = memory->device->queues; q != NULL; q = q->next) {
        if (q->done < q->last && q->failed == STATUS_OK) {
            (void)device_poll(q, q->last);
        }
        if (q->done < q->last && device_op_of(q, q->done + 1u)->serial <= memory->named) {
            return true;
        }
    }
    return false;
}

enum status device_memory_close(struct device_memory *memory)
{
    if (memory == NULL) {
        return STATUS_OK;
    }
    if (memory_in_use(memory)) {
        return STATUS_AGAIN;
    }
    memory->device->backend->memory_close(memory);
    memory->device->memories--;
    free(memory);
    return STATUS_OK;
}

void *device_memory_host(const struct device_memory *memory)
{
    return memory->host;
}

uint64_t device_memory_address(const struct device_memory *memory)
{
    return memory->address;
}

size_t device_memory_bytes(const struct device_memory *memory)
{
    return memory->bytes;
}

enum status device_memory_export(const struct device_memory *memory, int *out_fd,
                                 uint64_t *out_offset, struct status_detail *out_detail)
{
    return memory->device->backend->memory_export(memory, out_fd, out_offset, out_detail);
}

enum status device_flush(struct device *device)
{
    return device->backend->flush(device);
}

/* ---- tag
 * ------------------------------------------------------------------------------------------- */

uint64_t device_tag(uint64_t sum, const struct device_binding *binding)
{
    uint64_t tag = sum_fold(sum ^ SUM_HEAD, binding->room);
    tag = sum_fold(tag + binding->node * SUM_REGION, binding->epoch);
    tag = sum_fold(tag + binding->generation * SUM_TOKEN, binding->cells * SUM_HEAD + 1u);
    return sum_fold(tag ^ sum, binding->generation ^ SUM_TURN);
}
