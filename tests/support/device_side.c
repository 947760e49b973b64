/* SPDX-License-Identifier: Apache-2.0 */
/* Sides of a job in random layouts, and what the definitions say about them. */
#include "device_suite.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool suite_open(struct suite *suite, const struct device_options *options)
{
    struct status_detail detail = {"", 0};
    memset(suite, 0, sizeof *suite);
    suite->seed = 88172645463325252u;
    suite->backend = options->backend;
    const enum status status = device_open(options, &suite->device, &detail);
    if (status != STATUS_OK) {
        cr_assert_eq(status, STATUS_NOT_FOUND, "%s: %s", options->backend, detail.text);
        cr_assert_neq(detail.text[0], '\0', "%s is missing without a reason", options->backend);
        fprintf(stderr, "skipped %s: %s\n", options->backend, detail.text);
        return false;
    }
    const struct device_queue_options queue = {0, 0};
    cr_assert_eq(device_queue_open(suite->device, &queue, &suite->queue, &detail), STATUS_OK, "%s",
                 detail.text);
    return true;
}

void suite_close(struct suite *suite)
{
    device_queue_close(suite->queue);
    device_close(suite->device);
}

void suite_wait(struct suite *suite, uint64_t event)
{
    const enum status status = device_wait(suite->queue, event);
    cr_assert_eq(status, STATUS_OK, "%s: event %llu: %s", suite->backend, (unsigned long long)event,
                 status_name(status));
}

uint32_t suite_below(struct suite *suite, uint32_t n)
{
    suite->seed ^= suite->seed << 13;
    suite->seed ^= suite->seed >> 7;
    suite->seed ^= suite->seed << 17;
    return (uint32_t)(suite->seed >> 32) % n;
}

static void pages_shuffle(struct suite *suite, uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t other = suite_below(suite, i);
        const uint32_t page = pages[i - 1];
        pages[i - 1] = pages[other];
        pages[other] = page;
    }
}

static void memory_open(struct suite *suite, enum device_memory_kind kind, size_t bytes,
                        struct device_memory **out)
{
    struct status_detail detail;
    cr_assert_eq(device_memory_open(suite->device, kind, bytes, out, &detail), STATUS_OK, "%s",
                 detail.text);
}

void suite_side_open(struct suite *suite, const struct suite_shape *shape, struct suite_side *side)
{
    const bool dense = shape->layout == SUITE_DENSE;
    const bool head_major = shape->layout == SUITE_HND || shape->layout == SUITE_HND_PAGE_FIRST;
    const bool page_first =
        shape->layout == SUITE_NHD_PAGE_FIRST || shape->layout == SUITE_HND_PAGE_FIRST;
    const uint32_t page_tokens = dense ? shape->tokens : shape->page_tokens;
    const uint32_t pages = (shape->tokens + page_tokens - 1u) / page_tokens;
    const uint32_t slots = dense ? 1u : pages + suite_below(suite, 5);
    const uint64_t row =
        (uint64_t)shape->heads * shape->cell_bytes + (head_major ? 0 : shape->padding);
    const uint64_t page = row * page_tokens;
    memset(side, 0, sizeof *side);
    cr_assert(slots <= SUITE_PAGES_MAX && shape->regions <= SUITE_REGIONS_MAX);
    pages_shuffle(suite, side->pages, slots);
    side->size = (size_t)(shape->shift + page * shape->regions * slots);
    memory_open(suite, DEVICE_MEMORY_LOCAL, side->size, &side->local);
    memory_open(suite, DEVICE_MEMORY_HOST, side->size, &side->stage);
    side->bytes = device_memory_host(side->stage);
    for (uint32_t r = 0; r < shape->regions; r++) {
        side->regions[r].memory = side->local;
        side->regions[r].offset = shape->shift + (page_first ? r * page : r * page * slots);
    }
    side->view.regions = side->regions;
    side->view.pages = dense ? NULL : side->pages;
    side->view.page_count = pages;
    side->view.slot_stride = page_first ? page * shape->regions : page;
    side->view.token_stride = head_major ? shape->cell_bytes : row;
    side->view.head_stride =
        head_major ? (uint64_t)shape->cell_bytes * page_tokens : shape->cell_bytes;
    side->view.page_tokens = page_tokens;
    side->view.token_step = 1;
    for (size_t i = 0; i < side->size; i++) {
        side->bytes[i] = (unsigned char)suite_below(suite, 256);
    }
    suite_up(suite, side);
}

void suite_side_close(struct suite_side *side)
{
    cr_assert_eq(device_memory_close(side->local), STATUS_OK);
    cr_assert_eq(device_memory_close(side->stage), STATUS_OK);
}

static void whole_move(struct suite *suite, const struct device_memory *from,
                       const struct device_memory *to, size_t bytes)
{
    const struct device_region a = {from, 0};
    const struct device_region b = {to, 0};
    uint64_t event;
    cr_assert_eq(device_move(suite->queue, &a, &b, bytes, &event), STATUS_OK, "%s",
                 device_queue_detail(suite->queue)->text);
    suite_wait(suite, event);
}

void suite_up(struct suite *suite, struct suite_side *side)
{
    whole_move(suite, side->stage, side->local, side->size);
}

void suite_down(struct suite *suite, struct suite_side *side)
{
    whole_move(suite, side->local, side->stage, side->size);
}

/* ---- the oracle
 * ---------------------------------------------------------------------------------------- */

size_t suite_cell(const struct suite_side *side, uint32_t region, uint32_t token, uint32_t head)
{
    const struct device_view *v = &side->view;
    const uint32_t t = v->token_first + token * v->token_step;
    const uint32_t page = t / v->page_tokens;
    const uint32_t slot = v->pages == NULL ? page : v->pages[page];
    return (size_t)(v->regions[region].offset + slot * v->slot_stride +
                    (t % v->page_tokens) * v->token_stride +
                    (v->head_first + head) * v->head_stride);
}

/* The high half of a product, from four small ones. */
static uint64_t product_high(uint64_t a, uint64_t b)
{
    const uint64_t al = (uint32_t)a;
    const uint64_t ah = a >> 32;
    const uint64_t bl = (uint32_t)b;
    const uint64_t bh = b >> 32;
    const uint64_t middle = ah * bl + (al * bl >> 32);
    const uint64_t other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

static uint64_t cell_sum(const struct device_job *job, uint32_t r, uint32_t n, uint32_t h,
                         const unsigned char *cell)
{
    const struct device_slice *s = &job->slice;
    const uint64_t token = s->token_at + n * (s->token_at_step == 0 ? 1u : s->token_at_step);
    const uint64_t lin = job->key.k0 + (uint64_t)(s->region_at + r) * 0xC2B2AE3D27D4EB4Fu +
                         (uint32_t)token * 0x9E3779B97F4A7C15u +
                         (uint64_t)(s->head_at + h) * 0xD6E8FEB86659FD93u;
    const uint64_t x = lin ^ job->key.k1;
    const uint64_t y = (lin << 32 | lin >> 32) ^ 0xA0761D6478BD642Fu;
    const uint64_t key = x * y ^ product_high(x, y);
    uint64_t sum = 0;
    for (uint32_t i = 0; i * 8u < s->cell_bytes; i++) {
        uint64_t word = 0;
        for (uint32_t b = 0; b < 8 && i * 8u + b < s->cell_bytes; b++) {
            word |= (uint64_t)cell[i * 8u + b] << (8u * b);
        }
        const uint32_t low = (uint32_t)word + (uint32_t)key + i * 0x2545F491u;
        const uint32_t high = (uint32_t)(word >> 32) + (uint32_t)(key >> 32) + i * 0x9E3779B1u;
        sum += (uint64_t)low * high + word;
    }
    return sum;
}

uint64_t suite_sum(const struct device_job *job, const struct suite_side *side)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < job->slice.regions; r++) {
        for (uint32_t n = 0; n < job->slice.tokens; n++) {
            for (uint32_t h = 0; h < job->slice.heads; h++) {
                sum += cell_sum(job, r, n, h, side->bytes + suite_cell(side, r, n, h));
            }
        }
    }
    return sum;
}

uint64_t suite_checksum(struct suite *suite, const struct device_job *job)
{
    struct device_job checksum = *job;
    uint64_t sum = 1;
    uint64_t event;
    checksum.out_sum = &sum;
    cr_assert_eq(device_checksum(suite->queue, &checksum, &event), STATUS_OK, "%s: %s",
                 suite->backend, device_queue_detail(suite->queue)->text);
    suite_wait(suite, event);
    return sum;
}
