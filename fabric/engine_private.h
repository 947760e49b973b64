/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the engine link: who is attached, and what its two files share. */
#ifndef FABRIC_ENGINE_PRIVATE_H
#define FABRIC_ENGINE_PRIVATE_H

#include "fabric/engine.h"

#include "router.h"
#include "stateroom_engine.pb-c.h"

#define ENGINE_NAME_BYTES 64u

/* What an engine has not taken yet, beyond libzmq's outbox: [length, 4 bytes][frame] one after
 * another.
 */
struct backlog {
    unsigned char *bytes; /* NULL: none */
    size_t capacity;
    size_t from;
    size_t to;
};

struct attachment {
    bool attached;
    bool accepted; /* the engine has been told */
    bool mapped;
    unsigned char identity[ROUTER_IDENTITY_BYTES_MAX];
    size_t identity_size;
    uint64_t pid;
    int pid_fd; /* readable when the process has ended */
    uint64_t last_heard_ns;
    void *pool;
    uint64_t pool_bytes;
    struct pool_layout layout;
    char engine[ENGINE_NAME_BYTES];
    char shm_name[128];
    uint32_t gone; /* enum sm_lost, while the event is to be given; 0 not gone */
    uint64_t next_request;
    struct backlog backlog;
};

struct engine_links {
    struct engine_options options;
    char path[108];
    void *router;
    struct lock_file lock;
    struct attachment ranks[SM_RANKS_MAX];
    uint64_t next_check_ns;
    struct codec_arena arena;
    void *arena_memory;
    unsigned char *frame;
    struct engine_counters counters;
};

enum status engine_send_to(struct engine_links *links, const unsigned char *identity,
                           size_t identity_size, const Stateroom__Engine__ToEngine *message);
/* STATUS_CLOSED: nobody is attached as this rank. What does not fit into its outbox is kept, in
 * order; STATUS_AGAIN: more than may be kept, and the rank is given up. */
enum status engine_send_rank(struct engine_links *links, uint32_t rank,
                             const Stateroom__Engine__ToEngine *message);
void engine_say_goodbye(struct engine_links *links, const unsigned char *identity,
                        size_t identity_size, uint32_t http, const char *reason);

/* True: *out_event is the attachment; engine_accept or engine_refuse must follow. */
bool engine_on_attach(struct engine_links *links, const unsigned char *identity,
                      size_t identity_size, const Stateroom__Engine__Attach *attach,
                      uint64_t now_ns, struct engine_event *out_event);
void engine_forget_backlog(struct attachment *a);
/* Whether the process of an attachment has ended, although nobody has looked since. */
bool engine_process_ended(const struct attachment *a);

#endif
