/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every backend that opens on this machine, alone and with threads, against the oracle of
 * device_suite.h; and what is said of those that do not open.
 */
#include "device_suite.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct device_options all[] = {
    {"cpu-scalar", 0, 1, NULL}, {"cpu-scalar", 0, 3, NULL}, {"cpu-avx2", 0, 1, NULL},
    {"cpu-avx2", 0, 4, NULL},   {"cuda", 0, 0, NULL},
};

#define EACH_BACKEND(part)                                    \
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) { \
        struct suite suite;                                   \
        if (suite_open(&suite, &all[i])) {                    \
            part;                                             \
            suite_close(&suite);                              \
        }                                                     \
    }

Test(device,
     moves_and_sums_what_it_should_and_nothing_else){EACH_BACKEND(suite_random(&suite, 150))}

Test(device, shares_what_is_large){EACH_BACKEND(suite_large(&suite))}

Test(device, does_nothing_when_there_is_nothing){EACH_BACKEND(suite_empty(&suite))}

Test(device, sees_wrong_bytes){EACH_BACKEND(suite_faults(&suite))}

Test(device, reslices_heads_between_tp_sizes){EACH_BACKEND(suite_tp_reslice(&suite))}

Test(device, keeps_the_order_of_a_queue){EACH_BACKEND(suite_order(&suite))}

Test(device, refuses_what_leaves_its_memory){EACH_BACKEND(suite_bounds(&suite))}

Test(device, keeps_its_limits){EACH_BACKEND(suite_limits(&suite))}

Test(device, knows_whose_memory_it_is){EACH_BACKEND(suite_memory(&suite))}

/* Memory of a job under way: many large copies are queued, then their source is given back. */
Test(device, keeps_memory_that_is_in_use)
{
    const struct device_options options = {"cpu", 0, 2, NULL};
    struct suite suite;
    struct suite_side side[2];
    const struct suite_shape shape = {SUITE_DENSE, 4, 8, 256, 1, 600, 0, 0};
    uint64_t event = 0;
    cr_assert(suite_open(&suite, &options));
    suite_side_open(&suite, &shape, &side[0]);
    suite_side_open(&suite, &shape, &side[1]);
    struct device_job job = {.slice = {4, 600, 8, 256, 0, 0, 1, 0}};
    job.from = side[0].view;
    job.to = side[1].view;
    for (uint32_t i = 0; i < 40; i++) {
        cr_assert_eq(device_copy(suite.queue, &job, &event), STATUS_OK);
    }
    uint32_t kept = 0;
    while (device_memory_close(side[0].local) == STATUS_AGAIN) {
        kept++;
        cr_assert_eq(device_wait(suite.queue, event), STATUS_OK);
    }
    cr_assert(kept <= 1);
    cr_assert_eq(device_poll(suite.queue, event), STATUS_OK);
    cr_assert_eq(device_memory_close(side[0].stage), STATUS_OK);
    suite_side_close(&side[1]);
    suite_close(&suite);
}

/* A queue that is closed early is through with what it was given; the other one goes on. */
Test(device, serves_queues_side_by_side)
{
    const struct device_options options = {"cpu", 0, 3, NULL};
    const struct device_queue_options defaults = {0, 0};
    const struct suite_shape shape = {SUITE_NHD, 2, 8, 256, 16, 1000, 0, 0};
    struct suite suite;
    struct suite_side side[3];
    struct device_queue *other;
    struct status_detail detail;
    uint64_t events[2] = {0, 0};
    uint64_t sums[2] = {0, 0};
    cr_assert(suite_open(&suite, &options));
    cr_assert_eq(device_queue_open(suite.device, &defaults, &other, &detail), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        suite_side_open(&suite, &shape, &side[i]);
    }
    struct device_job job = {.slice = {2, 1000, 8, 256, 0, 0, 1, 0}};
    job.from = side[0].view;
    for (uint32_t i = 0; i < 20; i++) {
        job.to = side[1].view;
        job.out_sum = &sums[0];
        cr_assert_eq(device_copy(suite.queue, &job, &events[0]), STATUS_OK);
        job.to = side[2].view;
        job.out_sum = &sums[1];
        cr_assert_eq(device_copy(other, &job, &events[1]), STATUS_OK);
    }
    cr_assert_eq(device_wait(suite.queue, events[0]), STATUS_OK);
    cr_assert_eq(sums[0], suite_sum(&job, &side[0]));
    device_queue_close(other);
    suite_down(&suite, &side[2]);
    job.from = side[2].view;
    cr_assert_eq(suite_sum(&job, &side[2]), sums[0]);
    for (uint32_t i = 0; i < 3; i++) {
        suite_side_close(&side[i]);
    }
    suite_close(&suite);
}

Test(device, binds_a_sum_to_room_and_life)
{
    const struct device_binding binding = {7, 8, 9, 10, 11};
    const uint64_t tag = device_tag(12345, &binding);
    struct device_binding changed[5] = {binding, binding, binding, binding, binding};
    changed[0].room++;
    changed[1].node++;
    changed[2].epoch++;
    changed[3].generation++;
    changed[4].cells++;
    for (uint32_t i = 0; i < 5; i++) {
        cr_assert_neq(device_tag(12345, &changed[i]), tag, "field %u", i);
    }
    cr_assert_neq(device_tag(12346, &binding), tag);
    cr_assert_eq(device_tag(12345, &binding), tag);
}

Test(device, says_what_it_uses_and_why)
{
    const struct device_options automatic = {NULL, 0, 2, "libcuda-not-here.so.1"};
    const struct device_options unknown = {"rocm", 0, 0, NULL};
    const struct device_options cuda = {"cuda", 0, 0, "libcuda-not-here.so.1"};
    struct device *device;
    struct status_detail detail;
    char line[512];
    cr_assert_eq(device_open(&automatic, &device, &detail), STATUS_OK);
    device_describe(device, line, sizeof line);
    cr_assert(strncmp(line, "device backend cpu-", 19) == 0 && strchr(line, '\n') == NULL, "%s",
              line);
    cr_assert_not_null(strstr(line, "2 threads; not cuda: "), "%s", line);
    cr_assert_eq(device_facts(device)->threads, 2);
    device_close(device);
    cr_assert_eq(device_open(&unknown, &device, &detail), STATUS_NOT_FOUND);
    cr_assert_not_null(strstr(detail.text, "'rocm'"), "%s", detail.text);
    cr_assert_eq(device_open(&cuda, &device, &detail), STATUS_NOT_FOUND);
    cr_assert_neq(detail.text[0], '\0');
}
