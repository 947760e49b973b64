/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libstateroom: how an engine rank talks to the node beside it.
 *
 *     struct stateroom *s;
 *     struct stateroom_pool_options pool = {...};
 *     stateroom_connect(&(struct stateroom_options){.path = "/run/stateroom/p/engines", .rank = 0,
 *                                                   .pool = &pool}, &s, why, sizeof why);
 *     stateroom_open(s, STATEROOM_DECODE, room,
 *                    &(struct stateroom_open_options){.runs = ..., .aux_slot = STATEROOM_NO_SLOT},
 *                    &request);
 *     while (stateroom_next(s, &event, 1000) == STATEROOM_OK) { ... }
 *
 * Model: one handle is one engine rank. Commands are sent and return at once; what becomes of them
 * comes as events: a REFUSAL names the command that was turned away; each room that was opened gets
 * exactly one RESULT; its pages are the engine's again when RESULT says pages_free, or when
 * PAGES_FREE comes. Until then they must not be given to anybody else. A room is over for the node
 * when it was released.
 *
 * Restarts: when the node goes away, the handle connects again by itself, registers its pool again,
 * and is told the results of its rooms; a result is given once, however often the node says it.
 * NODE_LOST and NODE_BACK say so. Commands that had no answer when the node went, and those given
 * before it is attached to again, end as a REFUSAL with 503; only a release is given again by
 * itself. An open that ended so is over: should it have happened all the same, its room is let go
 * in silence.
 *
 * Reading: an engine that gives commands must call stateroom_next. What it does not read waits at
 * the node, up to 128 MiB; then the node takes it for lost (cause: "does not read").
 *
 * Ownership: everything in an event is valid until the next call on the handle. The pool's memory
 * belongs to the handle and is unmapped by stateroom_close; it survives restarts of the node.
 *
 * Threads: a handle belongs to one thread. No signals are touched, nothing is printed, the process
 * never ends here. One hidden I/O thread of libzmq.
 *
 * Fork: close handles before a fork, or use them only in the parent.
 *
 * Errors: every function returns enum stateroom_error; stateroom_error_text has the details of the
 * last failure of a handle.
 */
#ifndef STATEROOM_STATEROOM_H
#define STATEROOM_STATEROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STATEROOM_VERSION "0.1.0"
#define STATEROOM_NO_SLOT UINT32_MAX

enum stateroom_error {
    STATEROOM_OK = 0,
    STATEROOM_TIMEOUT = -1,     /* nothing in time; try again */
    STATEROOM_INVALID = -2,     /* the arguments make no sense */
    STATEROOM_UNREACHABLE = -3, /* no node answers at the path */
    STATEROOM_REFUSED = -4,     /* the node refuses this engine; the text says why */
    STATEROOM_NO_MEMORY = -5,
    STATEROOM_FULL = -6, /* too many commands without an answer */
    STATEROOM_SYSTEM = -7,
};

enum stateroom_side { STATEROOM_PREFILL = 1, STATEROOM_DECODE = 2 };
enum stateroom_outcome { STATEROOM_SUCCEEDED = 1, STATEROOM_FAILED = 2 };
enum stateroom_by { STATEROOM_BY_ENGINE = 1, STATEROOM_BY_CLIENT = 2, STATEROOM_BY_OPERATOR = 3 };

/* Counts are of the whole model, so that both sides agree at different TP sizes. */
struct stateroom_geometry {
    uint32_t page_tokens;
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t item_bytes; /* bytes of one head of one token in one plane: head size x element size */
    uint32_t planes;     /* 2: keys and values; 1: one latent plane */
    uint32_t dtype;      /* your code for the element type; compared, never interpreted */
    /* The part of the model that this rank's pool holds; all 0: the whole of it. */
    uint32_t layer_first;
    uint32_t layer_count; /* 0: all from layer_first on */
    uint32_t stages; /* pipeline stages of this engine, 0: one; rank = TP rank x stages + stage */
};

struct stateroom_pool_options {
    struct stateroom_geometry geometry;
    uint32_t ranks; /* of this engine: TP size x pipeline stages */
    uint32_t pages;
    uint32_t aux_slots; /* metadata slots */
    uint32_t aux_bytes; /* bytes of one */
    /*
     * NULL: the library makes the pool in shared memory. Else the pool lies here, in
     * stateroom_pool_bytes_needed bytes aligned to 64: only for a node inside this process that was
     * started with this memory (stateroom/stateroom_node.h). It stays yours.
     */
    void *memory;
};

struct stateroom_options {
    const char *path; /* the node's engine socket */
    uint32_t rank;
    const char *engine;                        /* your name and version, for the node's log */
    const struct stateroom_pool_options *pool; /* NULL: no pool */
    uint32_t timeout_ms;                       /* for the first attach; 0: 10 s */
};

struct stateroom;

/*
 * Connects, makes the pool in shared memory and attaches. On failure *out_handle is NULL and `text`
 * (may be NULL) holds why.
 */
enum stateroom_error stateroom_connect(const struct stateroom_options *options,
                                       struct stateroom **out_handle, char *text, size_t text_size);
/* Detaches (the node ends this rank's live rooms) and frees everything. */
void stateroom_close(struct stateroom *handle);
/* Details of the handle's last failure; "" without one. */
const char *stateroom_error_text(const struct stateroom *handle);

/* ---- the pool
 * ---------------------------------------------------------------------------------------- */

/*
 * The bytes that a pool needs; 0 when its options make no sense, and `text` (may be NULL) says why.
 */
uint64_t stateroom_pool_bytes_needed(const struct stateroom_pool_options *options, char *text,
                                     size_t text_size);
/* The pool's memory; NULL without one. */
void *stateroom_pool(const struct stateroom *handle);
uint64_t stateroom_pool_bytes(const struct stateroom *handle);
/* Layers x planes. */
uint32_t stateroom_regions(const struct stateroom *handle);
/* Where a page of a region begins, and how long it is; NULL out of range. */
void *stateroom_page(const struct stateroom *handle, uint32_t region, uint32_t page);
uint64_t stateroom_page_bytes(const struct stateroom *handle);
/* Where a metadata slot begins; NULL out of range. */
void *stateroom_aux(const struct stateroom *handle, uint32_t slot);

/* ---- commands
 * ------------------------------------------------------------------------------------------ */

/* Pages first .. first+count-1, in prompt order. */
struct stateroom_run {
    uint32_t first;
    uint32_t count;
};

struct stateroom_open_options {
    const char *from;                 /* decode: the prefill node; NULL: the only one */
    const struct stateroom_run *runs; /* decode: pages to be filled */
    uint32_t run_count;
    uint32_t prefix_pages; /* decode: pages of the prompt that it has already */
    uint32_t aux_slot;     /* decode: for the metadata; STATEROOM_NO_SLOT: none (0 is a slot!) */
    uint32_t destinations; /* prefill: how many for this rank; 0: the node finds out */
    uint64_t deadline_ms;  /* from now; 0: the node's default */
};

/* Each returns the command's number in *out_request (may be NULL): REFUSAL and ACCEPTED name it. */
enum stateroom_error stateroom_open(struct stateroom *handle, enum stateroom_side side,
                                    uint64_t room, const struct stateroom_open_options *options,
                                    uint64_t *out_request);
/* Prefill: the room is in your queue; from now on only your release lets it go. */
enum stateroom_error stateroom_admit(struct stateroom *handle, uint64_t room,
                                     uint64_t *out_request);
/*
 * Refused before any queue, also without an open: the other side is told http (400 to 599; 0: the
 * default, 500) and reason (cut at 512 bytes; what is not printable UTF-8 becomes '?').
 */
enum stateroom_error stateroom_reject(struct stateroom *handle, enum stateroom_side side,
                                      uint64_t room, uint16_t http, const char *reason,
                                      uint64_t *out_request);
/* Prefill: the next chunk's pages, in prompt order; `last` ends the prompt. */
enum stateroom_error stateroom_send(struct stateroom *handle, uint64_t room,
                                    const struct stateroom_run *runs, uint32_t run_count, bool last,
                                    uint32_t aux_slot, uint64_t *out_request);
enum stateroom_error stateroom_abort(struct stateroom *handle, enum stateroom_side side,
                                     uint64_t room, enum stateroom_by by, uint16_t http,
                                     const char *reason, uint64_t *out_request);
/* You are through with this life of the room (generation of the RESULT; 0: the newest). */
enum stateroom_error stateroom_release(struct stateroom *handle, enum stateroom_side side,
                                       uint64_t room, uint64_t generation, uint64_t *out_request);

/* ---- events
 * ---------------------------------------------------------------------------------------------- */

enum stateroom_event_kind {
    STATEROOM_RESULT = 1,     /* room, generation, side, outcome; failed: http, reason */
    STATEROOM_PAGES_FREE = 2, /* room, generation, side */
    STATEROOM_ACCEPTED = 3,   /* request, command, room */
    STATEROOM_REFUSAL = 4,    /* request, command, room, http, reason */
    STATEROOM_NODE_LOST = 5,  /* reason */
    STATEROOM_NODE_BACK = 6,  /* epoch */
};

/* What a request was. */
enum stateroom_command {
    STATEROOM_DO_OPEN = 12,
    STATEROOM_DO_ADMIT = 13,
    STATEROOM_DO_REJECT = 14,
    STATEROOM_DO_SEND = 15,
    STATEROOM_DO_ABORT = 16,
    STATEROOM_DO_RELEASE = 17,
};

struct stateroom_event {
    enum stateroom_event_kind kind;
    uint64_t room;
    uint64_t generation;
    uint64_t request;
    uint64_t epoch;
    enum stateroom_side side;
    enum stateroom_outcome outcome;
    enum stateroom_command command;
    uint32_t http;      /* 0: none given */
    const char *reason; /* UTF-8, zero-terminated, "" without one */
    bool pages_free;    /* RESULT: the pages are yours again */
};

/*
 * The next event, waiting at most timeout_ms (0: not at all; UINT32_MAX: for ever). Drives the
 * connection: call it at least once a second, or poll stateroom_fd for reading and call it then.
 */
enum stateroom_error stateroom_next(struct stateroom *handle, struct stateroom_event *out_event,
                                    uint32_t timeout_ms);
int stateroom_fd(const struct stateroom *handle);

#ifdef __cplusplus
}
#endif

#endif
