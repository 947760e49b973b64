/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine link: what a node and the engine ranks beside it say to each other
 * (schemas/stateroom_engine.proto), over ZMQ ipc.
 *
 * Layer: libzmq, codec, POSIX shared memory. Knows ranks and pools, no rooms. Reads no clock.
 *
 * Model: one ROUTER on an ipc path in a directory that only our user can enter; whoever reaches it
 * is trusted as an engine of this node. One attachment a rank; an engine is lost when it detaches,
 * when its process ends, or when it has been silent for ENGINE_SILENCE_NS.
 *
 * Ownership: a pool stays mapped until its loss has been given as an event and engine_forget_pool
 * is called (the data plane must let go of it first).
 *
 * Threads: one owner thread.
 *
 * Limits: one frame of at most ENGINE_FRAME_BYTES_MAX; outboxes of ENGINE_OUTBOX_MAX messages, and
 * behind them ENGINE_BACKLOG_BYTES_MAX a rank, which engine_flush sends as the engine reads. An
 * engine that lets more than that lie is lost (SM_LOST_DEAF).
 *
 * Failure: a wrong attach is answered with a goodbye that names both values; malformed frames are
 * dropped and counted.
 */
#ifndef FABRIC_ENGINE_H
#define FABRIC_ENGINE_H

#include "schemas/codec.h"
#include "schemas/pool_layout.h"
#include "schemas/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_FRAME_BYTES_MAX (4u << 20)
#define ENGINE_OUTBOX_MAX 20000
/*
 * A libstateroom has at most 65,536 commands without an answer and a node at most as many rooms by
 * default; a reply and a result with the longest reason are some 600 bytes each. Who lets more than
 * that lie does not count its commands.
 */
#define ENGINE_BACKLOG_BYTES_MAX ((size_t)128 << 20)
#define ENGINE_SILENCE_NS (UINT64_C(10) * 1000000000u)

/* Memory of the node's own process that an engine rank in it may bring as its pool. */
struct engine_memory {
    void *at; /* NULL: none */
    uint64_t bytes;
};

struct engine_options {
    const char *path; /* of the socket, without ipc://; at most 100 bytes */
    const char *node_name;
    uint64_t node_id;
    uint64_t epoch;
    uint32_t ranks;
    /* SM_RANKS_MAX rows, when the node runs inside an engine's process; else NULL. */
    const struct engine_memory *memory;
};

struct engine_links;

enum engine_event_kind { ENGINE_HAS_ATTACHED = 1, ENGINE_IS_GONE, ENGINE_COMMANDS };

struct engine_event {
    enum engine_event_kind event;
    uint32_t rank;
    /* attached: */
    void *pool; /* NULL: none */
    const struct pool_layout *layout;
    uint64_t pid;
    const char *engine; /* name and version, hostile text */
    /* gone: */
    uint32_t lost; /* enum sm_lost */
    /* commands: */
    uint32_t kind; /* enum sm_input_kind */
    uint64_t room;
    struct sm_in_command command;
};

enum status engine_open(const struct engine_options *options, void *zmq_context,
                        struct engine_links **out_links, struct status_detail *out_detail);
void engine_close(struct engine_links *links);
void *engine_socket(const struct engine_links *links);

bool engine_next(struct engine_links *links, uint64_t now_ns, struct engine_event *out_event);
uint64_t engine_deadline(const struct engine_links *links);
/*
 * An attachment that was given as an event waits for one of these: the engine hears that it may
 * give commands, or why it may not (ENGINE_IS_GONE follows then, and engine_forget_pool as ever).
 */
void engine_accept(struct engine_links *links, uint32_t rank);
void engine_refuse(struct engine_links *links, uint32_t rank, uint32_t http, const char *reason);
/* Unmaps the pool of a rank that is gone; the data plane has let go of it. */
void engine_forget_pool(struct engine_links *links, uint32_t rank);

/*
 * Sends of the backlogs what the engines have room for; true: something is still left, so call it
 * again soon (libzmq tells nobody that a ROUTER's outbox has room).
 */
bool engine_flush(struct engine_links *links);

/*
 * To a rank's engine, after everything that was given for it before; STATUS_CLOSED: it is not
 * attached; STATUS_AGAIN: it let too much lie, and is given up.
 */
enum status engine_send_reply(struct engine_links *links, uint32_t rank, uint64_t request,
                              uint32_t refusal, uint32_t http, struct sm_text reason);
enum status engine_send_result(struct engine_links *links, const struct sm_effect *tell);
enum status engine_send_pages_free(struct engine_links *links, const struct sm_effect *pages_free);
/* To every engine: the node is going away. */
void engine_send_goodbye(struct engine_links *links, uint32_t http, const char *reason);

struct engine_counters {
    uint64_t received;
    uint64_t sent;
    uint64_t kept;         /* frames that went into a backlog */
    uint64_t dropped_full; /* frames that nobody took */
    uint64_t dropped_malformed;
    uint64_t refused_attaches;
};
void engine_counters(const struct engine_links *links, struct engine_counters *out_counters);

/* Parses one frame from an engine, for fuzzing: true when it is a message. */
bool engine_frame_parses(const unsigned char *bytes, size_t size, struct codec_arena *arena);

#endif
