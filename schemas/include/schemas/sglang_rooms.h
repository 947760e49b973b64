/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the state machine's messages and SGLang's frames: what the wire leaves out is kept here.
 *
 * Layer: sglang.h and the machine's types. No I/O, no clock, no randomness; one call, one answer.
 *
 * Model: a room has at most one life at a time on a connection, since frames carry no generation.
 *
 *   The machine says        on the wire                          and what comes back as an input
 *   prepare                 registration (once), metadata        `prepared`: nobody answers
 * metadata status succeeded        a status from each source            `ack` at once: it is never
 * repeated, a later life could take it for its status failed           a status of three frames
 * `ack` with decode's abort, or after SGLANG_STATUS_TRIES abort                   ABORT with a
 * generation, repeated    `drained` when every target said so drained                 ABORT_ACK to
 * whom one is owed prepared, ack,          nothing recovered
 *
 * A status without a cause becomes an untyped one, and proves nothing about writes in flight: what
 * failed drains by abort and ack. At decode the next life of a room is not announced before the one
 * before has drained. At prefill each new announcement of a rank that had its answer, or has
 * announced other pages, is the room's next life there; lives are numbered by time, so that a
 * restart does not use a number again.
 *
 * What can only end a room (ABORT, a failed status) is obeyed whoever sent it. What could make
 * somebody write, or believe in bytes (registration, metadata, success), is taken only from the
 * peer whose connection it came by.
 *
 * Ownership: sends and inputs are borrowed until the next call of order or take.
 *
 * Threads: one owner.
 *
 * Limits: rooms_max rooms; over it decode's rooms are refused (503) and prefill answers metadata
 * with a failed status. Nothing is allocated by a number from the wire but page lists, which have
 * the frame's own size.
 *
 * Failure: none after create. What makes no sense is dropped and counted.
 */
#ifndef SCHEMAS_SGLANG_ROOMS_H
#define SCHEMAS_SGLANG_ROOMS_H

#include "schemas/sglang.h"
#include "statemachine/sm_input.h"
#include "statemachine/sm_output.h"

/* How often a failed status is sent to a decode that does not answer with an abort: 3 s in all. */
#define SGLANG_STATUS_TRIES 5u

struct sglang_rooms;

struct sglang_rooms_options {
    uint32_t ranks; /* ours */
    uint32_t rooms_max;
    uint32_t peers_max;
    uint64_t epoch;              /* of this process life */
    struct sm_geometry geometry; /* of our pools */
    const char *ip;              /* where our ranks are reached: printable, without blanks */
    uint16_t port;               /* of rank 0; rank r has port + r */
};

/* A connection that has come up. */
struct sglang_rooms_peer {
    uint32_t peer; /* the machine's index, below peers_max */
    const char *name;
    uint64_t node_id;
    uint64_t epoch;
    uint32_t ranks;
    uint32_t page_tokens; /* as its bootstrap server says */
    uint32_t dtype;
};

/* One multipart message to send: from our rank's port to a rank of the peer. */
struct sglang_send {
    uint32_t peer;
    uint32_t peer_rank;
    uint32_t rank;
    struct sm_life
        life; /* that it is about; decode's own at decode. For tracing: not on the wire */
    const struct sglang_message *message;
};

struct sglang_arrival {
    uint32_t peer; /* whose connection it came by; SM_NONE: a stranger's */
    uint32_t rank; /* whose port it came to */
    uint32_t side; /* enum sm_side: what that rank is */
};

struct sglang_rooms_counters {
    uint64_t received;
    uint64_t sent;
    uint64_t malformed;
    uint64_t unknown;  /* tags and dialects that are not spoken */
    uint64_t stranger; /* could make us write or believe, and came from nobody's connection */
    uint64_t stale;    /* about a room, life or rank that nobody here waits for */
    uint64_t unused;   /* staging and metadata over TCP: known, not offered */
    uint64_t held;     /* announcements that wait for the life before */
    uint64_t refused;  /* rooms that this wire cannot carry */
};

enum status sglang_rooms_create(const struct sglang_rooms_options *options,
                                struct sglang_rooms **out_rooms, struct status_detail *out_detail);
void sglang_rooms_destroy(struct sglang_rooms *rooms);

void sglang_rooms_peer_up(struct sglang_rooms *rooms, const struct sglang_rooms_peer *peer);

/* Carries out one send_* effect to a peer that is up. `side` is that of our half. */
void sglang_rooms_order(struct sglang_rooms *rooms, const struct sm_effect *effect,
                        uint64_t now_ns);

/* One multipart message that has come in. */
void sglang_rooms_take(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                       const struct sglang_frame *frames, size_t count, uint64_t now_ns);

/* What follows from the last order or take, one by one: first all sends, then all inputs. */
bool sglang_rooms_next_send(struct sglang_rooms *rooms, struct sglang_send *out_send);
bool sglang_rooms_next_input(struct sglang_rooms *rooms, struct sm_input *out_input);

void sglang_rooms_counters(const struct sglang_rooms *rooms,
                           struct sglang_rooms_counters *out_counters);

#endif
