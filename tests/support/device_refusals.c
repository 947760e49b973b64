/* SPDX-License-Identifier: Apache-2.0 */
/* The suite's other half: what no backend may be given, limits, and the life of memories. */
#include "device_suite.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct suite_shape shape = {SUITE_NHD, 2, 2, 64, 4, 16, 0, 0};

struct refused {
    struct suite_side from;
    struct suite_side to;
    struct device_job job;
};

static void refused_open(struct suite *suite, struct refused *r)
{
    memset(r, 0, sizeof *r);
    suite_side_open(suite, &shape, &r->from);
    suite_side_open(suite, &shape, &r->to);
    r->job.slice = (struct device_slice){2, 16, 2, 64, 0, 0, 1, 0};
    r->job.from = r->from.view;
    r->job.to = r->to.view;
}

static void refused_close(struct refused *r)
{
    suite_side_close(&r->from);
    suite_side_close(&r->to);
}

/* Each of these would read or write outside of what it names. */
static void job_spoil(struct refused *r, uint32_t way)
{
    struct device_view *v = way % 2u == 0 ? &r->job.from : &r->job.to;
    struct suite_side *side = way % 2u == 0 ? &r->from : &r->to;
    switch (way / 2u) {
    case 0:
        side->pages[1] = 1000000;
        break;
    case 1:
        v->page_count = 3;
        break;
    case 2:
        v->token_first = 1;
        break;
    case 3:
        v->token_step = 2;
        break;
    case 4:
        v->head_first = 4000;
        break;
    case 5:
        side->regions[1].offset = side->size - 8u;
        break;
    case 6:
        side->regions[0].offset = UINT64_MAX - 8u;
        break;
    case 7:
        v->slot_stride = UINT64_MAX / 2u;
        break;
    case 8:
        v->page_tokens = 0;
        break;
    case 9:
        v->token_step = 0;
        break;
    case 10:
        v->regions = NULL;
        break;
    case 11:
        side->regions[1].memory = NULL;
        break;
    case 12:
        v->head_first = UINT32_MAX;
        break;
    case 13:
        v->token_first = UINT32_MAX - 3u;
        break;
    case 14:
        v->pages = NULL; /* dense: as many slots as there are pages, but the stride is wrong */
        v->slot_stride = side->size / 2u;
        break;
    default:
        cr_assert_fail("no way %u", way);
    }
}

void suite_bounds(struct suite *suite)
{
    for (uint32_t way = 0; way < 30; way++) {
        struct refused r;
        uint64_t event = 99;
        uint64_t sum = 98;
        refused_open(suite, &r);
        job_spoil(&r, way);
        r.job.out_sum = &sum;
        unsigned char *before = malloc(r.to.size);
        cr_assert_not_null(before);
        memcpy(before, r.to.bytes, r.to.size);
        cr_assert_eq(device_copy(suite->queue, &r.job, &event), STATUS_INVALID, "%s: way %u",
                     suite->backend, way);
        cr_assert_not_null(strstr(device_queue_detail(suite->queue)->text,
                                  way % 2u == 0 ? "source" : "destination"));
        cr_assert(event == 99 && sum == 98);
        suite_down(suite, &r.to); /* and the queue goes on */
        cr_assert_eq(memcmp(r.to.bytes, before, r.to.size), 0);
        free(before);
        refused_close(&r);
    }
    struct refused r;
    uint64_t event;
    refused_open(suite, &r);
    cr_assert_eq(device_checksum(suite->queue, &r.job, &event), STATUS_INVALID);
    cr_assert_eq(device_canary(suite->queue, &r.job, &event), STATUS_INVALID);
    r.job.slice.heads = 0x1000000;
    cr_assert_eq(device_copy(suite->queue, &r.job, &event), STATUS_TOO_LARGE);
    struct device_region a = {r.from.local, 1};
    struct device_region b = {r.to.local, 0};
    cr_assert_eq(device_move(suite->queue, &a, &b, r.from.size, &event), STATUS_INVALID);
    cr_assert_eq(device_move(suite->queue, &b, &a, r.from.size, &event), STATUS_INVALID);
    cr_assert_eq(device_poll(suite->queue, UINT64_MAX), STATUS_INVALID);
    refused_close(&r);
}

/* A small queue refuses, and takes more once it is waited for; nothing is lost or comes twice. */
void suite_limits(struct suite *suite)
{
    const struct device_queue_options options = {.ops_max = 3, .table_bytes = 200};
    struct device_queue *big = suite->queue;
    struct status_detail detail;
    struct refused r;
    refused_open(suite, &r);
    const uint64_t want = suite_sum(&r.job, &r.from);
    uint64_t sums[64] = {0};
    uint64_t event = 0;
    struct device_queue *small;
    cr_assert_eq(device_queue_open(suite->device, &options, &small, &detail), STATUS_OK);
    suite->queue = small;
    for (uint32_t i = 0; i < 64; i++) {
        enum status status;
        r.job.out_sum = &sums[i];
        while ((status = device_copy(small, &r.job, &event)) == STATUS_AGAIN) {
            cr_assert_eq(device_wait(small, event), STATUS_OK);
        }
        cr_assert_eq(status, STATUS_OK, "%s", device_queue_detail(small)->text);
    }
    suite_wait(suite, event);
    cr_assert_eq(event, 64);
    for (uint32_t i = 0; i < 64; i++) {
        cr_assert_eq(sums[i], want, "%s: job %u", suite->backend, i);
    }
    static uint32_t many[64];
    r.job.from.pages = many;
    r.job.from.page_count = 64;
    r.job.slice.tokens = 256;
    cr_assert_eq(device_checksum(small, &r.job, &event), STATUS_TOO_LARGE);
    device_queue_close(small);
    suite->queue = big;
    refused_close(&r);
}

/* Memory of somebody else is used and left alone; memory in use is not given back. */
void suite_memory(struct suite *suite)
{
    static unsigned char mine[8192];
    struct status_detail detail;
    struct device_memory *registered;
    struct device_memory *other;
    uint64_t event;
    memset(mine, 7, sizeof mine);
    cr_assert_eq(device_memory_register(suite->device, DEVICE_MEMORY_HOST, (uintptr_t)mine,
                                        sizeof mine, &registered, &detail),
                 STATUS_OK, "%s", detail.text);
    cr_assert_eq(
        device_memory_open(suite->device, DEVICE_MEMORY_LOCAL, sizeof mine, &other, &detail),
        STATUS_OK);
    cr_assert(device_memory_host(registered) == mine &&
              device_memory_bytes(registered) == sizeof mine);
    const struct device_region a = {registered, 0};
    const struct device_region b = {other, 4096};
    cr_assert_eq(device_move(suite->queue, &a, &b, 4096, &event), STATUS_OK);
    const struct device_region back = {registered, 4096};
    mine[0] = mine[0];
    cr_assert_eq(device_move(suite->queue, &b, &back, 4096, &event), STATUS_OK);
    enum status status = device_memory_close(other);
    cr_assert(status == STATUS_OK || status == STATUS_AGAIN);
    suite_wait(suite, event);
    cr_assert_eq(memcmp(mine, mine + 4096, 4096), 0);
    cr_assert(status == STATUS_OK || device_memory_close(other) == STATUS_OK);
    cr_assert_eq(device_memory_close(registered), STATUS_OK);
    cr_assert_eq(device_memory_open(suite->device, DEVICE_MEMORY_HOST, 0, &other, &detail),
                 STATUS_INVALID);
    cr_assert_eq(
        device_memory_open(suite->device, DEVICE_MEMORY_LOCAL, SIZE_MAX / 2u, &other, &detail),
        STATUS_TOO_LARGE);
    cr_assert_eq(device_memory_register(suite->device, DEVICE_MEMORY_HOST, 0, 64, &other, &detail),
                 STATUS_INVALID);
    cr_assert_eq(device_memory_register(suite->device, DEVICE_MEMORY_HOST, UINT64_MAX - 4u, 64,
                                        &other, &detail),
                 STATUS_INVALID);
    cr_assert_eq(device_flush(suite->device), STATUS_OK);
}
