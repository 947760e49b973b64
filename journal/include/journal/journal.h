/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal: an append-only sequence of entries in a row of segments, each an LMDB environment
 * with an index by room and snapshots of the machine. The bytes are specified in journal/FORMAT.md.
 *
 * Layer: LMDB, xxHash, files; knows entries as framed bytes. Never steps the machine
 * (journal_recover.h does), never logs.
 *
 * Model: entry k+1 exists only if entry k does; numbers start at 1. A batch is appended and
 * committed as a whole. Each entry carries a check of its bytes, the number of the room's entry
 * before it, and a chain over all entries before it. A segment that does not hold entry 1 begins
 * with a snapshot of the machine, so each replays by itself, and the oldest can be removed.
 *
 * Ownership: a record's bytes are borrowed from the map until the next call on the same handle.
 *
 * Threads: a handle opened for writing belongs to one thread for appends; reads need a handle of
 * their own (journal_open with read_only), also in the same process. Never use a handle after fork.
 *
 * Limits: payload at most JOURNAL_PAYLOAD_MAX. A segment's map grows by itself up to map_bytes_max.
 *
 * Durability: after journal_commit, in mode SYNC the batch survives power loss; in mode PROCESS it
 * survives the process, and a power loss takes at most the batch committed last.
 * journal_commit_ahead saves a flush a batch (see there). In every mode a crash at any byte leaves
 * a journal that opens and ends at an entry boundary (LMDB never overwrites a live page).
 *
 * Failure: JOURNAL_FULL and JOURNAL_IO leave the handle readable and the batch unwritten: the same
 * batch may be appended again. JOURNAL_LOCKED names the process that has it. The detail text names
 * the file.
 */
#ifndef JOURNAL_JOURNAL_H
#define JOURNAL_JOURNAL_H

#include "schemas/status.h"
#include "statemachine/sm_policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_FORMAT_VERSION 2u
#define JOURNAL_PAYLOAD_MAX (16u << 20)

enum journal_mode { JOURNAL_SYNC, JOURNAL_PROCESS, JOURNAL_NO_SYNC /* tests and scenarios only */ };

struct journal_options {
    /* A directory; made when it is missing, unless read_only. To read, also a bundle's file. */
    const char *path;
    enum journal_mode mode;
    bool read_only;
    bool salvage;        /* a bundle that is damaged ends where the damage begins */
    uint64_t leave_from; /* reading: segments from this entry on are not looked at; 0: all are */
    uint64_t map_bytes_first; /* of a segment's map; it doubles as it fills; 0: 4 GiB */
    uint64_t map_bytes_max;   /* of a segment; 0: 64 GiB; address space, not memory */
    uint64_t segment_bytes;   /* a segment over this is full: see journal_segment_full; 0: never */
};

struct journal;

enum status journal_open(const struct journal_options *options, struct journal **out_journal,
                         struct status_detail *out_detail);
void journal_close(struct journal *journal);

/*
 * Opened for writing: whether the last process wrote in mode PROCESS and the system went down
 * before it came to its end, so that the batch that it committed last may be missing. True once.
 */
bool journal_power_lost(struct journal *journal);

/* Detail of the last failure of this handle. */
const struct status_detail *journal_detail(const struct journal *journal);

/* ---- identity
 * -------------------------------------------------------------------------------------- */

struct journal_identity {
    uint64_t node_id;  /* random, made with the journal */
    uint64_t epoch;    /* of the newest start; 0: never started */
    uint64_t last;     /* number of the last entry; 0: empty */
    uint64_t first;    /* number of the first entry still there; 0: empty */
    uint64_t chain[2]; /* over everything up to `last` */
};

enum status journal_identity(struct journal *journal, struct journal_identity *out_identity);

/* ---- writing
 * ---------------------------------------------------------------------------------------- */

struct journal_record {
    uint64_t number;      /* reading: the entry's; appending: must be the next one */
    uint64_t room;        /* 0: not about a room */
    uint64_t room_before; /* reading: the room's entry before in this segment, 0 none */
    const unsigned char *payload;
    size_t payload_size;
    /* Appending: other rooms that the entry is about (a lost peer ends many), for their histories.
     */
    const uint64_t *also;
    uint32_t also_count;
};

/* Adds one record to the batch, beginning one if there is none. Failure aborts the whole batch. */
enum status journal_append(struct journal *journal, const struct journal_record *record);
/* Remembers the epoch of a start with the batch, which survives power loss in mode PROCESS, too:
 * an epoch is never given twice. */
enum status journal_note_epoch(struct journal *journal, uint64_t epoch);
/* Makes the batch durable as the mode says. On failure nothing of the batch is in the journal,
 * unless journal_identity says that it is: then it is there but may not survive power loss yet, and
 * journal_flush must succeed before anybody is told of it. */
enum status journal_commit(struct journal *journal);
/*
 * The same without the second flush of mode SYNC: the batch survives power loss when the next
 * commit, or journal_flush, has returned without failure. What was committed ahead before is
 * durable when this returns.
 */
enum status journal_commit_ahead(struct journal *journal);
/* The last entry that is as durable as the mode promises. */
uint64_t journal_durable(const struct journal *journal);
/* Makes what was committed durable as the mode says; no batch may be open. */
enum status journal_flush(struct journal *journal);
/* Forgets the batch. */
void journal_abort(struct journal *journal);

/*
 * Makes appends and commits fail with `status` (JOURNAL_FULL, JOURNAL_IO) from the `after`-th call
 * on (0: the next), until called with STATUS_OK. For tests and scenarios: a disk that is full or
 * broken.
 */
void journal_fault(struct journal *journal, enum status status, uint32_t after);

/* ---- reading
 * ---------------------------------------------------------------------------------------- */

/* STATUS_NOT_FOUND: no such entry; JOURNAL_DAMAGED: its frame does not check. */
enum status journal_read(struct journal *journal, uint64_t number,
                         struct journal_record *out_record);
/* Number of the room's newest entry; STATUS_NOT_FOUND. */
enum status journal_room_last(struct journal *journal, uint64_t room, uint64_t *out_number);
/* The room's entry before this one, in whatever segment; STATUS_END. */
enum status journal_room_before(struct journal *journal, const struct journal_record *record,
                                uint64_t *out_number);
/*
 * The room with the smallest id that is greater than `after`, with its newest entry; STATUS_END.
 * For walks over all rooms: start with 0 (room 0 stands for no room and is never given).
 */
enum status journal_room_next(struct journal *journal, uint64_t after, uint64_t *out_room,
                              uint64_t *out_number);
/*
 * The first entry at or after `from` that is about the room although its own room is another;
 * STATUS_END. With journal_room_last and journal_room_before it makes the whole history of a room.
 */
enum status journal_room_also(struct journal *journal, uint64_t room, uint64_t from,
                              uint64_t *out_number);
/* Lets go of what reading holds in the map; call it when pausing (a reader keeps old pages alive).
 */
void journal_read_pause(struct journal *journal);

/* ---- snapshots
 * ---------------------------------------------------------------------------------------- */

/* Items are opaque byte strings here. Put them all in one batch, then commit. */
enum status journal_snapshot_put(struct journal *journal, uint64_t entry, uint32_t index,
                                 const unsigned char *bytes, size_t size);
/* Drops all snapshots of the newest segment but the newest `keep` and the one that it begins with.
 * In the batch. */
enum status journal_snapshot_prune(struct journal *journal, uint32_t keep);
/* Entry of the newest snapshot not after `entry`; STATUS_NOT_FOUND. */
enum status journal_snapshot_newest(struct journal *journal, uint64_t entry, uint64_t *out_entry);
/* STATUS_END after the last item. */
enum status journal_snapshot_get(struct journal *journal, uint64_t entry, uint32_t index,
                                 const unsigned char **out_bytes, size_t *out_size);

/* ---- segments
 * ---------------------------------------------------------------------------------------- */

/* The newest segment has reached segment_bytes: it is time for a snapshot that begins another. */
bool journal_segment_full(const struct journal *journal);
/*
 * Begins a segment after the last entry; no batch may be open. What follows must be the items of a
 * snapshot at that entry, then journal_segment_end; journal_abort gives it up, and the journal goes
 * on as before. now_ns: wall time, kept with it for retention by age.
 */
enum status journal_segment_begin(struct journal *journal, uint64_t now_ns);
/*
 * Makes it the newest, durable in every mode. On failure either it never was, and the journal goes
 * on as before, or only its name may not survive power loss yet: then the next flush or commit
 * tries that again before it says that anything is durable.
 */
enum status journal_segment_end(struct journal *journal);

struct journal_segment {
    uint64_t first;
    uint64_t last; /* first - 1: no entry yet */
    uint64_t bytes;
    uint64_t began_ns; /* wall time; 0: with the journal */
    bool newest;
};
uint32_t journal_segment_count(struct journal *journal);
/* The first entry, by its name: a damaged segment is not opened for this. 0 past the last. */
uint64_t journal_segment_first(const struct journal *journal, uint32_t index);
/* STATUS_NOT_FOUND past the last. Index 0 is the oldest. */
enum status journal_segment_at(struct journal *journal, uint32_t index,
                               struct journal_segment *out_segment);

struct journal_retention {
    uint64_t keep_bytes; /* 0: no bound. More than this is removed from the old end */
    uint64_t keep_ns;    /* 0: no bound. Segments whose last entry is older are removed */
};
/*
 * Removes whole segments from the old end as the bounds say; never the newest. Their space comes
 * back at once, except what a reader still has open. *out_removed: how many.
 */
enum status journal_trim(struct journal *journal, const struct journal_retention *retention,
                         uint64_t now_ns, uint32_t *out_removed);

#endif
