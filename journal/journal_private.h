/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the journal: the handle, and the frame around an entry. */
#ifndef JOURNAL_JOURNAL_PRIVATE_H
#define JOURNAL_JOURNAL_PRIVATE_H

#include "journal/journal.h"
#include "schemas/lock_file.h"

#include <lmdb.h>
#include <sys/types.h>
#include <time.h>

/*
 * One LMDB environment: a range of entries with what is needed to find and replay them. Only the
 * newest is ever written; one that is not the newest any more never changes again.
 */
struct segment {
    uint64_t first; /* number of its first entry, which names its file */
    MDB_env *env;   /* NULL: not open */
    MDB_dbi entries;
    MDB_dbi heads;
    MDB_dbi meta;
    MDB_dbi snapshots;
    MDB_dbi also;  /* (room, entry), big-endian, no value */
    MDB_txn *read; /* reset when not active */
    bool read_active;
    bool write;     /* opened for writing */
    uint32_t reads; /* since the read transaction began */
    uint64_t used;  /* when it was last read; who was not read for long is closed */
};

struct segment_meta {
    uint64_t node_id;
    uint64_t epoch;
    uint64_t first;
    uint64_t last;      /* first - 1: it has no entry yet */
    uint64_t chain[2];  /* up to last */
    uint64_t before[2]; /* up to first - 1 */
    uint64_t began_ns;  /* wall time; the segment before it was written until then */
};

struct bundle;

/* What LMDB writes of a head stands in the first sector of its page. */
#define LMDB_HEAD_BYTES 512u

struct journal {
    struct journal_options options;
    struct bundle *bundle; /* read from one file; NULL: from a directory */
    uint64_t adopted;      /* a copy that begins later than entry 1: its first; else 0 */
    char path[4096];
    struct segment *segments; /* by first; the last is the newest */
    uint32_t segment_count;
    uint32_t segment_capacity;
    struct timespec scanned; /* the directory's mtime when it was read last */
    uint64_t tick;
    struct segment next; /* begun and not yet part of the journal */
    MDB_txn *write;      /* in the newest segment, or in next */
    struct lock_file lock;
    struct segment_meta meta;    /* of the newest, committed */
    struct segment_meta pending; /* with the open batch */
    uint64_t durable;            /* entry up to which it is, as the mode says */
    bool unflushed;              /* the last commit waits for a flush, or for the next commit */
    bool uncertain;              /* something failed: see journal_head.c */
    bool names_unsynced;         /* files were made or named, and the directory is not synced */
    unsigned char heads[2][LMDB_HEAD_BYTES]; /* of the newest segment, after the last commit */
    off_t heads_apart;
    bool heads_kept;
    bool power_lost;
    bool running; /* opened for writing in mode PROCESS, as RUNNING says */
    enum status fault;
    uint32_t fault_after;
    struct status_detail detail;
};

/* Begins a batch in the newest segment if none is open. */
enum status journal_begin_batch(struct journal *journal);
/* Where the open batch goes. */
struct segment *journal_written(struct journal *journal);

/* Remembers the heads of the newest segment, as a commit has left them. */
void journal_keep_heads(struct journal *journal);
/* The newest segment as it was after the last commit that returned, on disk and open; must succeed
 * before anything is written or flushed. */
enum status journal_mend(struct journal *journal);

/* See journal_power.c: when a journal is opened for writing; when everything is flushed. */
enum status journal_running_begin(struct journal *journal);
void journal_running_end(struct journal *journal);

/* Translates LMDB's and the system's codes; the only place that knows them. */
enum status journal_lmdb_status(struct journal *journal, int code, const char *what);

/* Zeroed pages of a large arena: only what is used takes memory. NULL: none. */
void *journal_take_pages(size_t bytes);
void journal_give_pages(void *pages, size_t bytes);

/* ---- segments (journal_segment.c)
 * ---------------------------------------------------------------------- */

struct segment *journal_newest(struct journal *journal);
/* The segment that holds the entry, or would; NULL: all begin after it. */
struct segment *journal_segment_of(struct journal *journal, uint64_t number);
uint32_t journal_segment_index(const struct journal *journal, const struct segment *segment);
/* Reads the directory again if it has changed, or in any case. New and trimmed segments show. */
enum status journal_scan(struct journal *journal, bool in_any_case);
enum status journal_add_segment(struct journal *journal, uint64_t first);
/* A journal of format 1 says so. */
enum status journal_refuse_older(struct journal *journal);
enum status journal_sync_names(struct journal *journal);
/* What journal_flush does in mode SYNC, also in mode PROCESS. */
enum status journal_flush_fully(struct journal *journal);
enum status journal_remove_oldest(struct journal *journal);
/* Makes the first segment of a new journal: whole, or it never was. */
enum status journal_first_segment(struct journal *journal, uint64_t node_id);
/* Removes a segment that was begun. */
void journal_drop_next(struct journal *journal);
/* Opens it if it is not open; `create`: for writing, and makes it if it is missing. */
enum status segment_open(struct journal *journal, struct segment *segment, bool create);
void segment_close(struct segment *segment);
/* LMDB could not write a head and refuses everything until it is opened again. */
bool segment_is_stuck(const struct segment *segment);
enum status segment_get_meta(struct journal *journal, struct segment *segment, MDB_txn *txn,
                             struct segment_meta *out_meta);
enum status segment_put_meta(struct journal *journal, struct segment *segment, MDB_txn *txn,
                             const struct segment_meta *meta);
/* A read transaction of the caller's own; takes over the writer's grown map. */
enum status segment_begin_reading(struct journal *journal, struct segment *segment,
                                  MDB_txn **out_txn);
/* Bytes that its pages take; it must be open. */
uint64_t segment_bytes(const struct segment *segment);
void segment_path(const struct journal *journal, const struct segment *segment, char *out_path,
                  size_t size);
#define SEGMENT_PATH_BYTES 4200u

static inline MDB_val journal_val(const void *data, size_t size)
{
    const MDB_val val = {size, (void *)(uintptr_t)data};
    return val;
}

/* 16 bytes that sort by room, then by entry. */
void journal_also_key(unsigned char *key, uint64_t room, uint64_t number);

/* ---- the frame (FORMAT.md): 56 bytes before each payload, little-endian
 * -------------------------------- */

#define JOURNAL_HEAD_BYTES 56u

struct journal_head {
    uint16_t version;
    uint16_t flags;
    uint32_t payload_size;
    uint64_t check; /* XXH3-64 over the head with this field 0, then the payload */
    uint64_t number;
    uint64_t room;
    uint64_t room_before;
    uint64_t chain[2]; /* XXH3-128 over (chain before, XXH3-128 of the payload) */
};

void journal_head_write(const struct journal_head *head, unsigned char *bytes);
void journal_head_read(const unsigned char *bytes, struct journal_head *out_head);
uint64_t journal_head_check(const unsigned char *head_bytes, const unsigned char *payload,
                            size_t payload_size);
void journal_chain_next(const uint64_t before[2], const unsigned char *payload, size_t payload_size,
                        uint64_t out_chain[2]);
/* STATUS_JOURNAL_DAMAGED with the broken property's name. */
enum status journal_frame_check(const unsigned char *bytes, size_t size, uint64_t number,
                                struct journal_head *out_head, const char **out_broken);

#endif
