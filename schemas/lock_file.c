/* SPDX-License-Identifier: Apache-2.0 */
#include "schemas/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void read_holder(struct lock_file *lock)
{
    const ssize_t size = pread(lock->fd, lock->holder, sizeof lock->holder - 1u, 0);
    lock->holder[size > 0 ? (size_t)size : 0] = '\0';
    lock->holder[strspn(lock->holder, "0123456789")] = '\0';
    if (lock->holder[0] == '\0') {
        (void)snprintf(lock->holder, sizeof lock->holder, "(unknown)");
    }
}

enum status lock_file_take(const char *path, struct lock_file *out)
{
    char text[LOCK_FILE_HOLDER_BYTES];
    enum status status = STATUS_OK;
    memset(out, 0, sizeof *out);
    out->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (out->fd < 0) {
        out->error = errno;
        return STATUS_SYSTEM;
    }
    const int size = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (flock(out->fd, LOCK_EX | LOCK_NB) != 0) {
        out->error = errno;
        status = errno == EWOULDBLOCK ? STATUS_AGAIN : STATUS_SYSTEM;
        if (status == STATUS_AGAIN) {
            read_holder(out);
        }
    } else if (ftruncate(out->fd, 0) != 0 || pwrite(out->fd, text, (size_t)size, 0) != size) {
        out->error = errno;
        status = STATUS_SYSTEM;
    }
    if (status != STATUS_OK) {
        lock_file_give(out);
    }
    return status;
}

void lock_file_give(struct lock_file *lock)
{
    if (lock->fd >= 0) {
        (void)close(lock->fd);
        lock->fd = -1;
    }
}
