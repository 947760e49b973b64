/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libstateroom-node: the node inside an engine's own process, for memory that cannot be shared with
 * another process. stateroomd is the same node in a process of its own.
 *
 *     struct stateroom_pool_options pool = {...};            (stateroom/stateroom.h)
 *     pool.memory = allocate(stateroom_pool_bytes_needed(&pool, why, sizeof why));
 *     struct stateroom_node_memory memory = {.rank = 0, .at = pool.memory, .bytes = ...};
 *     stateroom_node_start(&(struct stateroom_node_options){.config = "node.yaml", .memory =
 * &memory, .memory_count = 1}, &node, why, ...); stateroom_connect(&(struct
 * stateroom_options){.path = ..., .pool = &pool}, &s, ...);
 *
 * Model: the node's threads run beside the engine's. The engine talks to it through libstateroom
 * and its socket as to any node; only the pool stays where the engine has put it, and the node's
 * data plane reads and writes it there. Other ranks may attach from other processes, with shared
 * memory.
 *
 * Ownership: the registered memory is the engine's and must stay valid until stateroom_node_close
 * has returned.
 *
 * Threads: start, stop and close from one thread. No signals are touched. Lines of the log go to
 * stderr (keys log.format, log.level).
 *
 * Fork: start the node after any fork; a child must not touch it.
 *
 * Limits: one node a process (the log has one name); SM_RANKS_MAX (64) ranks.
 *
 * Errors: start says the thing, the cause and the way out in `text`. A node that ends by itself
 * (stateroom_node_wait is true without a stop) has said why in the log.
 */
#ifndef STATEROOM_STATEROOM_NODE_H
#define STATEROOM_STATEROOM_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stateroom_node;

/* Memory of this process that an engine rank in it will bring as its pool. */
struct stateroom_node_memory {
    uint32_t rank;
    void *at; /* aligned to 64 bytes */
    uint64_t bytes;
};

struct stateroom_node_options {
    const char *config;          /* a file as stateroomd reads it; NULL: none */
    const char *const *settings; /* "journal.path=/var/lib/p": win over file and environment */
    size_t setting_count;
    const struct stateroom_node_memory *memory;
    size_t memory_count;
};

/* False: nothing runs, *out_node is NULL and `text` (may be NULL) says why. */
bool stateroom_node_start(const struct stateroom_node_options *options,
                          struct stateroom_node **out_node, char *text, size_t text_size);
/* Begins the graceful end: no new rooms, what is in transfer may end within stop_grace. */
void stateroom_node_stop(struct stateroom_node *node);
/* True once the node has ended, by itself or after a stop; waits at most timeout_ms. */
bool stateroom_node_wait(struct stateroom_node *node, uint32_t timeout_ms);
/* Ends it at once if it has not ended, and frees everything. NULL is nothing. */
void stateroom_node_close(struct stateroom_node *node);

#ifdef __cplusplus
}
#endif

#endif
