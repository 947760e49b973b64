/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that one process at a time holds, with its pid inside: who else wants it can say who has
 * it. The lock ends with the process, however it ends; the file stays.
 *
 * Layer: flock. Threads: any.
 */
#ifndef SCHEMAS_LOCK_FILE_H
#define SCHEMAS_LOCK_FILE_H

#include "schemas/status.h"

#define LOCK_FILE_HOLDER_BYTES 24u

struct lock_file {
    int fd;                              /* -1: not held */
    int error;                           /* errno of STATUS_SYSTEM */
    char holder[LOCK_FILE_HOLDER_BYTES]; /* STATUS_AGAIN: pid of who has it, or "(unknown)" */
};

/* Makes the file if it is missing. STATUS_AGAIN: another process has it; STATUS_SYSTEM. */
enum status lock_file_take(const char *path, struct lock_file *out_lock);
void lock_file_give(struct lock_file *lock);

#endif
