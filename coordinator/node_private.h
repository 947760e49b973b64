/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the node: its parts, and what its threads say to each other.
 *
 * No circle of full queues can stop the node. The machine waits for room towards control, fabric
 * and journal. The journal waits for nobody. Fabric never waits for the machine: it keeps outcomes
 * until their queue has room. Control takes from sockets only while its queue to the machine is
 * less than half full, so that what it must say has room; orders and answers between control and
 * fabric are few (one for a connection or a pool) against queues of thousands.
 */
#ifndef COORDINATOR_NODE_PRIVATE_H
#define COORDINATOR_NODE_PRIVATE_H

#include "coordinator/log.h"
#include "coordinator/node.h"
#include "fabric/data.h"
#include "fabric/engine.h"
#include "fabric/peer.h"
#include "journal/journal.h"
#include "journal/journal_gate.h"
#include "journal/journal_recover.h"
#include "journal/journal_writer.h"
#include "schemas/ring.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- control <-> fabric
 * ------------------------------------------------------------------------------- */

enum fabric_order_kind {
    ORDER_LINK_OPEN = 1, /* peer, link */
    ORDER_LINK_CONNECT,  /* peer, link, ranks, endpoint; then the machine may hear peer_up */
    ORDER_LINK_REGIONS,  /* the same without an answer */
    ORDER_POOL_ADD,      /* rank, pool, layout */
    ORDER_POOL_RETIRE,   /* rank; ANSWER_POOL_GONE when nothing can touch it any more */
    ORDER_WRITE,         /* effect (from the machine) */
    ORDER_FENCE          /* peer, link (from the machine) */
};

struct fabric_order {
    uint32_t kind;
    uint32_t peer;
    uint32_t link;
    uint32_t rank;
    uint32_t ranks;
    void *pool;
    struct pool_layout layout;
    struct data_endpoint endpoint;
};

enum fabric_answer_kind {
    ANSWER_LOCAL = 1,  /* peer, link, endpoint: for peer_set_local */
    ANSWER_CONNECTED,  /* peer, link */
    ANSWER_POOL_ADDED, /* rank; after the ANSWER_LOCALs that announce it */
    ANSWER_POOL_GONE,  /* rank */
    ANSWER_LINK_GONE   /* peer, link: the provider has broken it */
};

struct fabric_answer {
    uint32_t kind;
    uint32_t peer;
    uint32_t link;
    uint32_t rank;
    bool well;
    struct status_detail detail; /* when it is not */
    struct data_endpoint endpoint;
};

/* ---- machine -> control, machine -> fabric: effects
 * --------------------------------------------------------- */

struct effect_message {
    uint64_t entry;
    uint32_t peer;       /* index in the configuration; UINT32_MAX none */
    uint32_t quiet_rank; /* UINT32_MAX; else no effect: nobody holds pages of that lost engine's */
    uint64_t padding;    /* keeps what follows 16-aligned */
    /* struct sm_effect and its parts follow */
};

struct counters {
    _Atomic uint64_t inputs;
    _Atomic uint64_t entries;
    _Atomic uint64_t effects;
    _Atomic uint64_t inputs_refused; /* a queue was full */
    _Atomic uint64_t journal_failures;
};

/* One packed entry: 2,048 transitions with their reasons, and the largest input. */
#define NODE_ENTRY_BYTES_MAX ((size_t)16 << 20)

/* Besides the journal's, which the writer has. */
#define NODE_THREADS 3u

struct node {
    struct config config;
    const struct engine_memory *memory;
    struct journal *journal; /* before the writer has it, and after */
    struct journal_writer *writer;
    struct journal_machine machine;
    struct gate *gate;
    struct data *data;
    void *zmq_context;
    struct peer_links *peers;
    struct engine_links *engines;
    struct peer_address addresses[CONFIG_PEERS_MAX];
    struct ring to_machine_from_control; /* struct sm_input with its parts */
    struct ring to_machine_from_fabric;
    struct ring to_control_from_machine; /* struct effect_message */
    struct ring to_control_from_fabric;  /* struct fabric_answer */
    struct ring to_fabric_from_control;  /* struct fabric_order */
    struct ring to_fabric_from_machine;  /* struct effect_message */
    int machine_wake;                    /* eventfd: the journal thread moved */
    pthread_t threads[NODE_THREADS];     /* machine, fabric, control: those that have started */
    uint32_t threads_started;
    uint64_t node_id;
    uint64_t epoch;
    uint64_t clock_base_ns;  /* machine time at clock_start */
    uint64_t clock_start_ns; /* CLOCK_MONOTONIC */
    uint64_t next_entry;
    uint64_t last_snapshot;
    struct counters counters;
    _Atomic bool stop_asked;
    _Atomic bool summary_asked;
    _Atomic bool stopped; /* the machine has said so */
    _Atomic bool quit;    /* threads end */
};

uint64_t node_clock(const struct node *node);
uint64_t node_wall_ns(void);
uint64_t monotonic_ns(void);

/* An input with everything that it points to, copied into a ring; false: the ring is full. */
bool input_send(struct ring *ring, const struct sm_input *input);

void *machine_main(void *context);
void *control_main(void *context);
void *fabric_main(void *context);

#endif
