/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: the machine run again over a journal's inputs, each step compared with what the journal
 * says. The node recovers with it, and the stateroom command replays with it.
 *
 * Layer: journal, statemachine, codec. No clock, no logging.
 *
 * Ownership: journal_machine owns the machine's memory; close it when done.
 *
 * Failure: STATUS_JOURNAL_DIVERGED with the first difference filled in; STATUS_JOURNAL_DAMAGED;
 * STATUS_JOURNAL_VERSION when the machine's version differs from the one that wrote the entries.
 *
 * Versions: the entries of a segment are all of one machine version. A new version takes over a
 * journal at its end, from the snapshot that a graceful stop leaves there, and begins a segment;
 * replay leaves out the segments of other versions, and says so.
 */
#ifndef JOURNAL_JOURNAL_RECOVER_H
#define JOURNAL_JOURNAL_RECOVER_H

#include "journal/journal.h"
#include "schemas/codec.h"
#include "statemachine/sm.h"

/* A machine with its memory, its output and its working memory. */
struct journal_machine {
    struct sm *sm;
    size_t bytes;
    void *spare; /* the block of a machine before, for the next one; NULL: none */
    size_t spare_bytes;
    struct sm_bounds bounds;
    struct sm_output *output;
    struct codec_arena arena;   /* unpacking; reset for each entry */
    struct codec_arena scratch; /* packing */
    struct sm_run *runs;        /* SM_OUTPUT_RUNS_MAX, for packing */
};

/* Working memory without a machine yet. */
enum status journal_machine_open(struct journal_machine *out_machine,
                                 struct status_detail *out_detail);
void journal_machine_close(struct journal_machine *machine);
/* As just opened; the memory of its machine is kept for the next one. For who makes thousands. */
void journal_machine_renew(struct journal_machine *machine);

/*
 * Lays the machine out with these bounds. One that has state already is packed and restored into
 * the new memory (STATUS_TOO_LARGE when it does not fit there, and nothing has changed).
 */
enum status journal_machine_lay_out(struct journal_machine *machine, const struct sm_bounds *bounds,
                                    struct status_detail *out_detail);

struct journal_divergence {
    uint64_t number; /* entry; 0: none */
    char field[64];
    char recorded[512];
    char replayed[512];
};

/* Called after each step. False stops the replay (STATUS_OK). */
typedef bool (*journal_observer_fn)(void *context, uint64_t number, const struct codec_entry *entry,
                                    const struct journal_machine *machine);

struct journal_replay {
    uint64_t until;           /* last entry to run; 0: all */
    bool from_snapshot;       /* start at the newest usable snapshot not after `until` */
    bool upgrade;             /* one at the last entry may be of an older machine version */
    bool no_compare;          /* with a protection switched off nothing is compared */
    bool check;               /* invariants after each step */
    uint32_t protections_off; /* added to the recorded policy */
    journal_observer_fn observer;
    void *context;
};

struct journal_replayed {
    uint64_t entries;    /* run */
    uint64_t started_at; /* entry of the snapshot that it started from; 0 */
    uint32_t version;    /* of the machine that wrote that snapshot; 0: none */
    uint32_t skipped;    /* machine version of the entries up to started_at that were left out,
                            since this program's machine is another; 0: none were */
    uint64_t last;       /* last entry run */
    uint64_t last_time_ns;
    struct journal_divergence divergence;
    struct sm_violation violation; /* with `check`: the first invariant that fell, at `last` */
};

enum status journal_replay(struct journal *journal, struct journal_machine *machine,
                           const struct journal_replay *options,
                           struct journal_replayed *out_replayed, struct status_detail *out_detail);

/*
 * One entry more, for who walks a journal by hand: the machine must be where the entry before it
 * has left it (empty for the journal's first). Of the options only no_compare, check, the observer
 * and protections_off count.
 */
enum status journal_replay_one(struct journal *journal, struct journal_machine *machine,
                               const struct journal_replay *options, uint64_t number,
                               struct journal_replayed *out_replayed,
                               struct status_detail *out_detail);

/*
 * Whether the snapshot at an entry restores to the state whose digest it holds; one of another
 * machine version only whether its head parses. The machine is empty afterwards.
 */
enum status journal_snapshot_check(struct journal *journal, struct journal_machine *machine,
                                   uint64_t entry);

/* The machine's state becomes the snapshot that a new segment begins with. No batch may be open. */
enum status journal_machine_begin_segment(struct journal *journal, struct journal_machine *machine,
                                          uint64_t now_ns, struct status_detail *out_detail);

/* The machine's state becomes a snapshot at the last entry; committed. */
enum status journal_machine_snapshot(struct journal *journal, struct journal_machine *machine,
                                     struct status_detail *out_detail);

/* Gives the machine's state back, not the working memory. */
void journal_machine_forget(struct journal_machine *machine);

/*
 * The rooms besides `own` that transitions are about, for journal_record.also; each once in a row.
 * out_rooms has room for `count`. Returns how many.
 */
uint32_t journal_other_rooms(const struct sm_transition *transitions, uint32_t count, uint64_t own,
                             uint64_t *out_rooms);

/*
 * The machine's state as snapshot items, one call each: `put` gets each item's bytes with its
 * index, false stops. Item 0 is the head.
 */
typedef bool (*journal_item_fn)(void *context, uint32_t index, const unsigned char *bytes,
                                size_t size);
enum status journal_machine_pack(struct journal_machine *machine, uint64_t entry,
                                 journal_item_fn put, void *context,
                                 struct status_detail *out_detail);

#endif
