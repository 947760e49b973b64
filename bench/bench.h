/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share: the clock, and rounds in which the product and its baseline take
 * turns, so that both meet the same machine. A figure is the median of the rounds.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdint.h>

#define BENCH_ROUNDS 5u

uint64_t bench_now_ns(void);
/* CPU time of the calling thread. */
uint64_t bench_thread_ns(void);
/* Median of BENCH_ROUNDS values; sorts them. */
double bench_median(double *values);
/* Ends the program: a benchmark that cannot run prints no figure. */
_Noreturn void bench_fail(const char *what, const char *why);

/* Durable entries a second against bare LMDB; reading in order against a bare cursor. */
void bench_journal(const char *directory);
/* From the last send until the decode engine is told, through two nodes with journals in `where`.
 */
void bench_handoff(const char *provider, const char *where);

#endif
