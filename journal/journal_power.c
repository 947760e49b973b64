/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a power loss may have taken something: in mode PROCESS the journal's directory holds the
 * file RUNNING from the start to the end that flushes everything, with the name that the system
 * gave to its boot. Who finds that file with the name of another boot knows that the last process
 * did not come to its end before the system went down.
 */
#include "journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BOOT_BYTES 64u

static void running_path(const struct journal *journal, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/RUNNING", journal->path);
}

/* The first line of a small file; "" when it cannot be read. */
static bool read_line(const char *path, char *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd >= 0 ? read(fd, out, BOOT_BYTES - 1u) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    out[size > 0 ? (size_t)size : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return fd >= 0;
}

/* Over what is there: the first line counts, and is in one sector. */
static int write_line(const char *path, const char *line)
{
    char text[BOOT_BYTES + 1u];
    const int size = snprintf(text, sizeof text, "%s\n", line);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640);
    int code = fd < 0 ? errno : 0;
    if (fd >= 0) {
        const ssize_t done = pwrite(fd, text, (size_t)size, 0);
        code = done != (ssize_t)size ? (done < 0 ? errno : ENOSPC) : fsync(fd) != 0 ? errno : 0;
        (void)close(fd);
    }
    return code;
}

enum status journal_running_begin(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    char boot[BOOT_BYTES];
    char before[BOOT_BYTES];
    running_path(journal, path, sizeof path);
    (void)read_line("/proc/sys/kernel/random/boot_id", boot);
    /* Empty: the power went while it was made. */
    journal->power_lost = read_line(path, before) && strcmp(boot, before) != 0;
    if (journal->options.mode != JOURNAL_PROCESS) {
        return STATUS_OK;
    }
    journal->names_unsynced = true;
    return journal_lmdb_status(journal, write_line(path, boot), "RUNNING cannot be written");
}

void journal_running_end(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    running_path(journal, path, sizeof path);
    if (unlink(path) == 0) {
        (void)journal_sync_names(journal); /* if it comes back somebody is warned for nothing */
    }
}

bool journal_power_lost(struct journal *journal)
{
    const bool lost = journal->power_lost;
    if (lost && journal->options.mode != JOURNAL_PROCESS) {
        journal_running_end(journal); /* told, and nothing from now on is at risk */
    }
    journal->power_lost = false;
    return lost;
}
