/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_of(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t bench_now_ns(void)
{
    return now_of(CLOCK_MONOTONIC);
}

uint64_t bench_thread_ns(void)
{
    return now_of(CLOCK_THREAD_CPUTIME_ID);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values)
{
    qsort(values, BENCH_ROUNDS, sizeof *values, by_value);
    return values[BENCH_ROUNDS / 2u];
}

void bench_fail(const char *what, const char *why)
{
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}
