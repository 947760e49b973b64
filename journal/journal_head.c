/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LMDB's two heads, written again after a failure.
 *
 * A commit flushes its pages, then writes one of the two heads, which makes them the journal. When
 * a flush fails, the system may have dropped what it could not write and think it clean: a head
 * that was committed ahead is then perhaps nowhere but in memory, a later flush succeeds over
 * nothing, and the next batch but one overwrites the pages of the only head that is on disk. When
 * the write of a head fails, LMDB refuses everything from then on, and the head may have arrived
 * nevertheless. So both heads are kept as they were after the last commit that returned, and
 * after any failure they are written again and flushed before anything else is done: what they lead
 * to was flushed before they were first written.
 */
#include "journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Where the second head begins: the system's page size, as LMDB takes it. */
static off_t second_head(const struct segment *segment)
{
    MDB_stat stat;
    (void)mdb_env_stat(segment->env, &stat);
    return (off_t)stat.ms_psize;
}

static enum status read_heads(struct journal *journal)
{
    mdb_filehandle_t fd = -1;
    (void)mdb_env_get_fd(journal_newest(journal)->env, &fd);
    journal->heads_apart = second_head(journal_newest(journal));
    for (int i = 0; i < 2; i++) {
        const ssize_t got =
            pread(fd, journal->heads[i], LMDB_HEAD_BYTES, i == 0 ? 0 : journal->heads_apart);
        if (got != (ssize_t)LMDB_HEAD_BYTES) {
            return journal_lmdb_status(journal, got < 0 ? errno : EIO, "its head cannot be read");
        }
    }
    return STATUS_OK;
}

void journal_keep_heads(struct journal *journal)
{
    /* What cannot be read back at once is read when it is needed. */
    journal->heads_kept =
        journal->options.mode == JOURNAL_NO_SYNC || read_heads(journal) == STATUS_OK;
}

static int write_heads(const struct journal *journal, int fd)
{
    for (int i = 0; i < 2; i++) {
        const ssize_t done =
            pwrite(fd, journal->heads[i], LMDB_HEAD_BYTES, i == 0 ? 0 : journal->heads_apart);
        if (done != (ssize_t)LMDB_HEAD_BYTES) {
            return done < 0 ? errno : ENOSPC;
        }
    }
    return fdatasync(fd) != 0 ? errno : 0;
}

enum status journal_mend(struct journal *journal)
{
    char path[SEGMENT_PATH_BYTES];
    struct segment *newest = journal_newest(journal);
    if (!journal->uncertain) {
        return segment_open(journal, newest, true);
    }
    if (!journal->heads_kept) {
        TRY(segment_open(journal, newest, true));
        TRY(read_heads(journal));
        journal->heads_kept = true;
    }
    segment_path(journal, newest, path, sizeof path);
    /* A descriptor of our own: LMDB's may be gone. */
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const int code = fd < 0 ? errno : write_heads(journal, fd);
    if (fd >= 0) {
        (void)close(fd);
    }
    TRY(journal_lmdb_status(journal, code, "its head cannot be written"));
    if (newest->env != NULL && segment_is_stuck(newest)) {
        segment_close(newest);
    }
    TRY(segment_open(journal, newest, true));
    journal->uncertain = false;
    journal->unflushed = false;
    journal->durable = journal->names_unsynced ? journal->durable : journal->meta.last;
    return STATUS_OK;
}
