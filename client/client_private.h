/* SPDX-License-Identifier: Apache-2.0 */
/* Private to libstateroom. */
#ifndef CLIENT_CLIENT_PRIVATE_H
#define CLIENT_CLIENT_PRIVATE_H

#include "schemas/codec.h"
#include "schemas/pool_layout.h"
#include "stateroom/stateroom.h"

#include "stateroom_engine.pb-c.h"

#define CLIENT_ARENA_BYTES ((size_t)64 << 20)
#define CLIENT_FRAME_BYTES_MAX (4u << 20)
/* Commands without an answer, and results remembered so that each is given once. */
#define CLIENT_PENDING_MAX 65536u
#define CLIENT_TOLD_MAX 131072u
#define CLIENT_SHM_BYTES 128u

enum pending_state {
    PENDING_FREE,
    PENDING_WAITS, /* has no answer yet */
    /* An open (or a reject, which opens) that the engine was told is refused since its node went,
     * which may have happened all the same: a result of it is nobody's. */
    PENDING_SWEPT,
};

struct pending {
    enum pending_state state;
    uint64_t request;
    uint64_t room;
    uint64_t generation;
    uint32_t command;
    uint32_t side;
};

/* A life that was told, and whether its pages are still out. */
struct told {
    uint64_t room; /* 0: free */
    uint64_t generation;
    uint8_t side;
    uint8_t pages_out;
};

struct stateroom {
    void *context;
    void *dealer;
    char path[128];
    char shm_name[CLIENT_SHM_BYTES];
    char engine[64];
    uint32_t rank;
    bool has_pool;
    bool attached;
    bool lost_told;
    uint32_t aux_bytes;
    struct pool_layout layout;
    unsigned char *pool;
    uint64_t node_id;
    uint64_t epoch;
    uint64_t next_request;
    uint64_t last_heard_ns;
    uint64_t next_ping_ns;
    uint64_t next_attach_ns;
    struct pending *pending; /* by request modulo the size */
    uint32_t pending_count;
    struct told *told; /* a ring: the oldest is forgotten */
    uint64_t told_next;
    /* After a restart: sweeps that yield one event a call. */
    uint64_t sweep_below; /* smaller requests than this have not come to this attachment */
    uint32_t sweep_pending;
    uint64_t sweep_told;
    bool sweeping;
    bool sweep_pages; /* the fabric that could reach them died with the process */
    bool other_node;  /* after the sweep what was told is forgotten: another node counts anew */
    bool back_due;
    struct codec_arena arena;
    void *arena_memory;
    unsigned char *frame;
    char reason[SM_REASON_BYTES_MAX * 8u + 1u];
    char error[320];
};

uint64_t client_now_ns(void);
enum stateroom_error client_fail(struct stateroom *s, enum stateroom_error error,
                                 const char *format, ...) __attribute__((format(printf, 3, 4)));
enum stateroom_error client_open_socket(struct stateroom *s);
void client_attach(struct stateroom *s);
enum stateroom_error client_send(struct stateroom *s, const Stateroom__Engine__ToNode *message);
/* One frame taken in; true: *out_event is set. *out_received: there was a frame. */
bool client_receive(struct stateroom *s, struct stateroom_event *out_event, bool *out_received);
bool client_sweep(struct stateroom *s, struct stateroom_event *out_event);
/* Sends a release once more under its old number; false: it cannot be sent now. */
bool client_release_again(struct stateroom *s, const struct pending *pending);
void client_confirm(struct stateroom *s, uint64_t room, uint64_t generation, uint32_t side);
/* A release that is neither remembered nor answered. */
void client_release_unasked(struct stateroom *s, uint64_t room, uint64_t generation, uint32_t side);

#endif
