/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer in this process and peers that are processes of their own, over a real provider: for
 * tests that take something away in the middle of a write. A peer drives its own side and does one
 * errand after the other.
 *
 * Ownership: world_set_up maps all memory, shared with the peers; the process of a test ends with
 * it.
 *
 * Failure: what does not hold fails the test that runs.
 */
#ifndef TESTS_SUPPORT_DATA_WORLD_H
#define TESTS_SUPPORT_DATA_WORLD_H

#include "fabric/data.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_PAGES 64u
#define WORLD_PEERS_MAX 2u
#define WORLD_RANKS_MAX 4u
#define WORLD_WRITES_MAX 512u
#define WORLD_WAITING_MAX 200u /* writes that a connection lets wait */
#define WORLD_PIECE_BYTES 65536u
#define WORLD_POISON 0xeeu
#define WORLD_WAIT_MS 60000u

extern const struct sm_geometry world_geometry;

enum world_errand {
    ERRAND_NONE,
    ERRAND_OPEN,        /* link; answers with local */
    ERRAND_CONNECT,     /* link, ranks, remote */
    ERRAND_FENCE,       /* link */
    ERRAND_POOL_RETIRE, /* rank */
    ERRAND_POOL_QUIET,  /* rank */
    ERRAND_POOL_ADD,    /* rank, memory; answers with local of link */
    ERRAND_HOLD,        /* stands still until the next errand */
    ERRAND_QUIT
};

/* Shared by both processes; the number of the errand is stored last. */
struct world_desk {
    _Atomic uint32_t asked;
    _Atomic uint32_t answered;
    enum world_errand errand;
    uint32_t link;
    uint32_t ranks;
    uint32_t rank;
    uint32_t memory;
    struct data_endpoint remote;
    struct data_endpoint local;
    _Atomic uint64_t gone; /* ranks whose pools the peer has let go of */
    enum status status;
    char text[STATUS_DETAIL_BYTES];
};

struct world_peer {
    struct world_desk *desk;
    pid_t pid;
    struct pool_layout layout;
    uint32_t pools;                              /* how many ranks have one */
    unsigned char *memory[WORLD_RANKS_MAX + 1u]; /* one for each rank; one more to come back with */
};

struct data_world {
    const char *provider;
    struct data *data;
    struct pool_layout layout; /* of the writer's ranks */
    uint32_t pools;
    bool stands_still; /* the writer does not drive its endpoints */
    unsigned char *source[WORLD_RANKS_MAX];
    uint32_t peer_count;
    struct world_peer peers[WORLD_PEERS_MAX];
    /* What has been reported, by the write's id. */
    uint32_t ordered;
    uint32_t reported;
    uint32_t well;
    uint8_t times[WORLD_WRITES_MAX];
    struct data_result results[WORLD_WRITES_MAX];
};

struct world_shape {
    const char *provider;
    uint32_t peers;
    uint32_t from_ranks;
    uint32_t to_ranks;
    struct sm_geometry geometry;
    uint32_t piece_bytes; /* 0: WORLD_PIECE_BYTES */
    bool verify;          /* at the writer */
};

/* Opens planes, pools and connection 1 to every peer. */
void world_set_up(struct data_world *w, const struct world_shape *shape);
/* One rank on both sides, world_geometry. */
void world_set_up_simple(struct data_world *w, const char *provider, uint32_t peers);
void world_tear_down(struct data_world *w);

void *world_map(size_t bytes);
uint64_t world_now_ms(void);

/* ---- peers
 * -----------------------------------------------------------------------------------------------
 */

/*
 * The errand's arguments stand in the desk that is returned (and before in peers[number].desk). The
 * writer goes on meanwhile: it must be safe at every point of its work.
 */
struct world_desk *world_ask(struct data_world *w, uint32_t number, enum world_errand errand);
void world_start_peer(struct data_world *w, uint32_t number);
/* SIGKILL, and away with what its provider leaves behind. */
void world_bury(struct data_world *w, uint32_t number);
/* Both ends of a connection; what the peer has announced stands in its desk's `local`. */
void world_link_up(struct data_world *w, uint32_t number, uint32_t link);

/* ---- the writer
 * ------------------------------------------------------------------------------------------ */

/* One look for results, each of which may come once; nothing while the writer stands still. */
void world_look(struct data_world *w);
void world_look_for(struct data_world *w, uint32_t ms);
/* Until so many writes in all are reported. */
void world_look_until(struct data_world *w, uint32_t reported);
/* Until so many bytes of what was ordered have arrived: the rest is under way. */
void world_look_until_moved(struct data_world *w, uint64_t bytes);

/* A write of the whole pool of rank 0 to rank 0, to be changed and given. */
struct data_write world_order(const struct data_world *w, uint32_t peer, uint32_t link);
/* Returns its number. */
uint32_t world_give(struct data_world *w, const struct data_write *write);
/* The whole pool, `count` times. */
void world_give_many(struct data_world *w, uint32_t peer, uint32_t link, uint32_t count);

/* All of it is still WORLD_POISON. */
void world_check_untouched(const struct data_world *w, const unsigned char *memory, uint64_t bytes,
                           const char *when);
/* One more write of everything arrives, byte for byte. */
void world_check_arrives(struct data_world *w, uint32_t peer, uint32_t link,
                         const unsigned char *memory);

#endif
