/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native peer link: what nodes say to each other (schemas/stateroom_peer.proto), over ZMQ.
 *
 * Layer: libzmq, codec. Holds connections, no room state. Reads no clock: every call that needs the
 * time is given it.
 *
 * Model: one ROUTER for what comes in, one DEALER for each peer. A connection to a peer has a
 * number
 * (`link`) that counts up for ever; it is also our session with that peer. It is up when both sides
 * have seen each other's newest hello; it is down after heartbeat_bound of silence, or as soon as
 * the peer shows another epoch or session. Then a new one is begun, with an endpoint of its own
 * (PEER_WANT_ENDPOINT).
 *
 * Two processes with one name: who is up stays it as long as it is heard, and the other is told of
 * (PEER_IS_DOUBLE, each minute) and not heard. A node that comes back with a new journal, and so
 * with a new id, is heard after half of heartbeat_bound of silence.
 *
 * Ownership: an event's contents are borrowed until the next call.
 *
 * Threads: one owner thread; libzmq has its own inside.
 *
 * Limits: a message is one frame of at most PEER_FRAME_BYTES_MAX; outboxes hold PEER_OUTBOX_MAX
 * messages. What does not fit is dropped and counted: the machine repeats.
 *
 * Failure: FABRIC_BIND names the address and the way out. What comes in and makes no sense is
 * dropped and counted, and harms nothing else.
 */
#ifndef FABRIC_PEER_H
#define FABRIC_PEER_H

#include "fabric/data.h"
#include "schemas/codec.h"
#include "schemas/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PEER_FRAME_BYTES_MAX (4u << 20)
#define PEER_OUTBOX_MAX 20000
#define PEER_PEERS_MAX 256u

struct peer_address {
    const char *name;
    const char *address; /* "tcp://host:port" or "ipc://path" */
};

struct peer_options {
    const char *name; /* ours */
    uint64_t node_id;
    uint64_t epoch;
    uint32_t ranks;
    const char *listen;   /* "tcp://127.0.0.1:7600" */
    const char *provider; /* of the data plane */
    bool insecure;        /* tcp off loopback without keys */
    uint64_t heartbeat_interval_ns;
    uint64_t heartbeat_bound_ns;
    uint32_t first_link; /* greater than every link of earlier process lives */
    const struct peer_address *peers;
    uint32_t peer_count;
};

/*
 * Whether an address is one that peers can be reached at, and, of one that we listen on, whether it
 * may be: off loopback only when `insecure` is written down. No name is looked up, nothing is
 * opened.
 */
enum status peer_address_check(const char *address, bool listening, bool insecure,
                               struct status_detail *out_detail);

struct peer_links;

enum peer_event_kind {
    PEER_WANT_ENDPOINT = 1, /* open a data endpoint for (peer, link), then peer_set_local */
    PEER_IS_CONNECTED,      /* up: epoch, node_id, ranks, endpoint */
    PEER_IS_GONE,           /* down: link (0: it never came up), why */
    PEER_HAS_REGIONS,       /* up, and its pools have changed: endpoint */
    PEER_IS_DOUBLE,         /* other_id says that it is this peer too; it is not heard */
    PEER_SAYS               /* kind, room, entry, epoch, message */
};

struct peer_event {
    enum peer_event_kind event;
    uint32_t peer; /* index in the options */
    uint32_t link;
    const char *name;
    uint64_t node_id;
    uint64_t other_id;
    uint64_t epoch;
    uint32_t ranks;
    const char *why;
    const struct data_endpoint *endpoint;
    uint32_t kind; /* enum sm_input_kind */
    uint64_t room;
    uint64_t entry;
    struct sm_message message;
};

enum status peer_open(const struct peer_options *options, void *zmq_context, uint64_t now_ns,
                      struct peer_links **out_links, struct status_detail *out_detail);
void peer_close(struct peer_links *links);

/* The socket to poll for reading. */
void *peer_socket(const struct peer_links *links);

/* The next thing that happened; false when there is nothing more now. */
bool peer_next(struct peer_links *links, uint64_t now_ns, struct peer_event *out_event);
/* When peer_next wants to be called again at the latest. */
uint64_t peer_deadline(const struct peer_links *links);

/* Our side of a connection: answers PEER_WANT_ENDPOINT, and again when our pools have changed. */
void peer_set_local(struct peer_links *links, uint32_t peer, uint32_t link,
                    const struct data_endpoint *endpoint, uint64_t now_ns);

/*
 * Sends a room message: `kind` is what it is to the receiver. STATUS_CLOSED: that connection is not
 * up any more; STATUS_AGAIN: the outbox is full.
 */
enum status peer_send(struct peer_links *links, uint32_t peer, uint32_t link, uint32_t kind,
                      uint64_t room, uint64_t entry, const struct sm_message *message);

/*
 * Ends the connection from our side (its data plane was fenced, or does not come up); PEER_IS_GONE
 * follows with `why`, which must outlive that.
 */
void peer_drop(struct peer_links *links, uint32_t peer, uint32_t link, const char *why);

struct peer_counters {
    uint64_t received;
    uint64_t sent;
    uint64_t dropped_full;
    uint64_t dropped_closed;
    uint64_t dropped_malformed;
    uint64_t dropped_stranger;
    uint64_t dropped_double; /* of a second node with a peer's name */
    uint64_t connects;
    uint64_t losses;
};
void peer_counters(const struct peer_links *links, struct peer_counters *out_counters);

/* Parses one frame as peer_next does, for fuzzing: true when it is a packet. */
bool peer_frame_parses(const unsigned char *bytes, size_t size, struct codec_arena *arena);

#endif
