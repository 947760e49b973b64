/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of the journal's benchmark. */
#ifndef BENCH_BENCH_STORE_H
#define BENCH_BENCH_STORE_H

#include "bench.h"

/* Durable entries a second, by batch size: the journal, LMDB, SQLite and a bare file take turns. */
void bench_store_write(const char *directory);
/* A journal of real entries: its size, and everything that is read from it. */
void bench_store_read(const char *directory, uint64_t entries);

#endif
