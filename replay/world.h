/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated cluster: real machines, real gates, real codecs; the clock, the network, the fabric
 * and the engines are simulated. Scenarios, and what looks for faults at random, run on it.
 *
 * Layer: journal, statemachine, schemas, policy. No sleeping, no randomness but the seed's.
 *
 * Model: events in the order of (time, class, cause): statements, fabric completions, messages,
 * timers. Each event steps one machine; its entry is packed and kept, and its effects leave through
 * the gate when the entry is durable. A node that crashes comes back from its packed entries.
 *
 * The same calls give the same entries, byte for byte.
 *
 * Ownership: the world owns everything until world_renew or world_destroy; texts given to it are
 * copied.
 *
 * Limits: WORLD_NODES_MAX nodes, WORLD_RANKS_MAX ranks each, WORLD_POOL_PAGES_MAX pages a rank.
 *
 * Failure: world_fault: an invariant fell, or the world's own bounds were too small.
 */
#ifndef REPLAY_WORLD_H
#define REPLAY_WORLD_H

#include "coordinator/policy.h"
#include "journal/journal_gate.h"
#include "journal/journal_recover.h"
#include "schemas/sglang_rooms.h"

#define WORLD_NODES_MAX 8u
#define WORLD_RANKS_MAX 16u
#define WORLD_POOL_PAGES_MAX 65536u
#define WORLD_NO_ROOM 0u

struct world;

enum world_rule_kind { WORLD_DROP = 1, WORLD_DOUBLE, WORLD_DELAY };
/* Messages that rules are about; WORLD_ANY fits all. */
enum world_message {
    WORLD_ANY = 0,
    WORLD_HELLO,
    WORLD_PREPARE,
    WORLD_STATUS,
    WORLD_ACK,
    WORLD_ABORT,
    WORLD_DRAINED,
    WORLD_HEARTBEAT
};
enum world_disk { WORLD_DISK_OK = 0, WORLD_DISK_FULL, WORLD_DISK_FAIL };

/* ---- building
 * ------------------------------------------------------------------------------------------- */

struct world_node_options {
    char name[SM_NAME_BYTES_MAX + 1u];
    uint32_t side; /* enum sm_side */
    uint32_t ranks;
    uint32_t pool_pages;
    bool sglang;       /* spoken to, and speaking, in SGLang's frames */
    bool auto_release; /* engines answer a result with a release */
    struct node_settings settings;
    struct sm_geometry geometry;
    uint64_t
        sources_by_hand[SM_RANKS_MAX]; /* decode: mask of prefill ranks for each rank; 0: by TP */
};

void world_node_defaults(struct world_node_options *out_options);

struct world_options {
    uint64_t seed;            /* 0: no jitter */
    uint32_t protections_off; /* bit set of enum sm_protection */
};

struct world *world_create(const struct world_options *options, struct status_detail *out_detail);
void world_destroy(struct world *world);
/* As just made; the memory of the run before is kept for this one. For who runs thousands. */
void world_renew(struct world *world, const struct world_options *options);
/* Before the first event. Returns its index. */
uint32_t world_add_node(struct world *world, const struct world_node_options *options);
/* Starts all nodes and joins them; then time is 0. */
enum status world_start(struct world *world, struct status_detail *out_detail);

uint32_t world_node_count(const struct world *world);
const struct world_node_options *world_node(const struct world *world, uint32_t node);

/* ---- what happens
 * --------------------------------------------------------------------------------------- */

/*
 * One thing that happens at its time: it is called with the context; statements of one time run in
 * the order in which they were added.
 */
typedef void (*world_statement_fn)(struct world *world, void *context);
void world_at(struct world *world, uint64_t time_ns, world_statement_fn statement, void *context);
/* The same after everything else of that time. */
void world_after(struct world *world, uint64_t time_ns, world_statement_fn statement,
                 void *context);

/* An engine's command; pages and texts are used before the call returns. */
void world_command(struct world *world, uint32_t node, struct sm_input *input);
/* The engine hands pages of its rank to somebody else, whatever the node holds. */
void world_reuse(struct world *world, uint32_t node, uint32_t rank, const struct sm_runs *pages);
void world_mute(struct world *world, uint32_t node, uint32_t rank, bool muted);

void world_crash(struct world *world, uint32_t node, bool after_commit);
void world_restart(struct world *world, uint32_t node, bool wipe);
void world_stop(struct world *world, uint32_t node);
void world_freeze(struct world *world, uint32_t node, bool frozen);
void world_disk(struct world *world, uint32_t node, enum world_disk disk);
/* A raw message to the node's port for peers: parsed as one, and dropped if it is none. */
void world_bytes(struct world *world, uint32_t node, const unsigned char *bytes, size_t size);

/* One raw multipart message of nobody's to the port of SGLang of one rank. */
void world_frames(struct world *world, uint32_t node, uint32_t rank,
                  const struct sglang_frame *frames, uint32_t count);

void world_link(struct world *world, uint32_t from, uint32_t to, bool up);
void world_latency(struct world *world, uint32_t from, uint32_t to, uint64_t ns);
/* From one rank (or all, SM_NONE) of a node to one rank (or all) of another. */
struct world_path {
    uint32_t from, from_rank, to, to_rank;
};
/*
 * room WORLD_NO_ROOM: any. One rule applies to one message: the first that fits. A message is about
 * one decode rank; of a path's ranks that of the decode node counts.
 */
void world_rule(struct world *world, enum world_rule_kind kind, const struct world_path *path,
                enum world_message message, uint64_t room, uint32_t count, uint64_t delay_ns);
void world_fabric_time(struct world *world, const struct world_path *path, uint64_t ns);
void world_fabric_hold(struct world *world, const struct world_path *path, uint64_t room,
                       bool hold);
void world_fabric_fail(struct world *world, const struct world_path *path, uint64_t room,
                       uint32_t count, const char *text, bool when_posted);

/* ---- running
 * -------------------------------------------------------------------------------------------- */

/* Called after every event, with the world in a state that can be looked at. */
typedef void (*world_watch_fn)(struct world *world, void *context);
/* Until nothing is left to happen, or after `until_ns` (0: no bound), or a fault. */
void world_run(struct world *world, uint64_t until_ns, world_watch_fn watch, void *context);

uint64_t world_now(const struct world *world); /* ns since world_start */
uint64_t world_steps(const struct world *world);
/* NULL: none. */
const char *world_fault(const struct world *world);

/* ---- looking
 * -------------------------------------------------------------------------------------------- */

const struct sm *world_machine(const struct world *world,
                               uint32_t node); /* NULL: it does not run */
bool world_alive(const struct world *world, uint32_t node);
bool world_quiescent(const struct world *world);
/* A counter of what the node got and sent in SGLang's frames ("malformed", ...); false: no such. */
bool world_sglang_counter(const struct world *world, uint32_t node, const char *name,
                          uint64_t *out_value);
bool world_journal_failed(const struct world *world, uint32_t node);

enum world_log_kind { WORLD_TOLD = 1, WORLD_NOTICE, WORLD_REFUSED, WORLD_WRITE, WORLD_OPENED };
/* Something that was seen once; they are kept in order. */
struct world_log {
    enum world_log_kind kind;
    uint64_t time_ns;
    uint64_t room;
    uint32_t node; /* told, refused, opened: where; notice, write: to whom */
    uint32_t rank;
    uint32_t from;    /* notice, write: the node */
    uint32_t command; /* refused: enum sm_input_kind */
    uint32_t outcome;
    uint32_t http;
    uint64_t generation; /* told */
    uint32_t life;       /* told: 1 for the first life that was told there */
    const char *reason;  /* "": none */
};
uint32_t world_log_count(const struct world *world);
const struct world_log *world_log_at(const struct world *world, uint32_t index);

enum world_data {
    WORLD_DATA_NONE = 0,
    WORLD_DATA_INTACT = 1,
    WORLD_DATA_PARTIAL = 2,
    WORLD_DATA_FOREIGN = 4
};
/* What the destination pages of the room's newest life on that rank hold; bit set. */
uint32_t world_data(const struct world *world, uint32_t node, uint32_t rank, uint64_t room);

/*
 * When nothing is left to happen: whether everybody has what is owed. NULL, or what is missing: an
 * engine that waits for ever, or a verdict that a restarted node does not know any more.
 */
const char *world_owed(struct world *world);

/* Over the durable entries of all nodes, byte for byte: the same seed gives the same. */
uint64_t world_journal_digest(const struct world *world);

/* Writes a node's entries as a journal into a new directory. */
enum status world_save_journal(const struct world *world, uint32_t node, const char *path,
                               struct status_detail *out_detail);

#endif
