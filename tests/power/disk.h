/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk under the real journal and the real LMDB: this program's definitions of write, pwrite,
 * writev, fdatasync, fsync, open, rename, unlink, mkdir and ftruncate stand before libc's, carry
 * each call out, log it, and can make any of them fail. From the log come the directories that a
 * power loss could leave.
 *
 * Model of a loss: what a completed fdatasync or O_DSYNC write covered is there. Of every other
 * 4 KiB page (or 512 B sector) there is any version: old, newest, or one in between; a file is
 * longer or not. Names since the directory's last fsync: a prefix of them (what a journalling file
 * system keeps), or any subset. After an fdatasync that failed, what it should have covered may be
 * lost for ever, also when a later one succeeds (as Linux does it). The lock files hold anything.
 *
 * Threads: calls may come from any; recording and images belong to one.
 */
#ifndef TESTS_POWER_DISK_H
#define TESTS_POWER_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Calls under `directory` are logged and may fail; the journal is `directory`/j. */
void disk_watch(const char *directory);
/* Forgets the log; what is in the journal's directory now is on disk. */
void disk_begin(void);
/* Removes what is in `directory`/j, and that. */
void disk_clear(const char *directory);
/* On: from here on the log is of what the journal does; points begin here. */
void disk_record(bool on);
/* The system's boot from now on. */
void disk_boot(uint32_t number);

/* What was promised at this point of the log; at an image's point the greatest value counts. */
enum disk_mark {
    DISK_ACKNOWLEDGED,
    DISK_TRIMMED_TO,
    DISK_COMMITTED, /* survives the process; if power takes it, that must be told */
    DISK_EPOCH,
    DISK_MARKS
};
void disk_mark(enum disk_mark mark, uint64_t value);
/* Points of the log: from disk_first to disk_length, both included. */
uint32_t disk_first(void);
uint32_t disk_length(void);
/* The log, with a mark at this point. */
void disk_print(FILE *out, uint32_t at);
uint64_t disk_promised(enum disk_mark mark, uint32_t at);

/* Deterministic: the same log, point and seed give the same image. Made as `directory`/j. */
void disk_image(uint32_t at, uint64_t seed, const char *directory);

/* Every n-th fdatasync does nothing and says that it did; 0: none. For the proof that tests bite.
 */
void disk_lie(uint32_t every);

enum disk_call {
    DISK_WRITE,
    DISK_FDATASYNC,
    DISK_FSYNC,
    DISK_OPEN,
    DISK_FTRUNCATE,
    DISK_RENAME,
    DISK_MKDIR,
    DISK_UNLINK,
    DISK_MMAP,
    DISK_ALLOCATE,
    DISK_CALLS
};
/* The calls of this kind from the nth on (0: the next) fail, `times` of them. error 0: a write does
 * half of what it was given, and says so. */
void disk_fail(enum disk_call call, uint32_t nth, int error, uint32_t times);
uint32_t disk_failed(void);
const char *disk_call_name(enum disk_call call);

uint64_t disk_random(uint64_t *state);

#endif
