/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the peer link. */
#ifndef FABRIC_PEER_PRIVATE_H
#define FABRIC_PEER_PRIVATE_H

#include "fabric/peer.h"

#include "router.h"
#include "stateroom_peer.pb-c.h"

/* Unpacking one frame, with all its page runs, fits. */
#define PEER_ARENA_BYTES ((size_t)64 << 20)

/* Of a hello's features. */
#define PEER_WANTS_VERIFIED UINT64_C(1)

enum { STATE_BEGIN, STATE_WAIT_ENDPOINT, STATE_HELLO, STATE_UP };

struct peer_state {
    char name[SM_NAME_BYTES_MAX + 1u];
    void *dealer;
    int state;
    uint32_t link; /* our number for the connection, and our session */
    bool never_came_told;
    struct data_endpoint local;
    /* What the newest hello of the peer said. */
    bool known;
    uint64_t remote_node;
    uint64_t remote_epoch;
    uint32_t remote_session;
    uint64_t remote_seen_epoch;
    uint32_t remote_seen_session;
    uint32_t remote_ranks;
    struct data_endpoint remote;
    uint64_t last_heard_ns;
    uint64_t double_node; /* another node that said last that it is this peer; 0 none */
    uint64_t double_told_ns;
    uint64_t next_beat_ns;
    const char *gone_because; /* an event to be given; NULL none */
    uint32_t gone_link;
    uint64_t gone_at_ns; /* a peer that has restarted has until then to come up again */
    uint32_t superseded; /* the connection that this one follows without an end; 0 none */
    bool spoken;         /* something was sent over this one: the node knows it */
};

struct peer_links {
    struct peer_options options;
    void *context;
    void *router;
    struct lock_file lock;
    struct peer_state peers[PEER_PEERS_MAX];
    uint32_t next_link;
    struct codec_arena arena;
    void *arena_memory;
    unsigned char *frame;
    struct peer_counters counters;
};

void peer_send_hello(struct peer_links *links, struct peer_state *peer, uint64_t now_ns);
void peer_send_heartbeat(struct peer_links *links, struct peer_state *peer, uint64_t now_ns);

#endif
