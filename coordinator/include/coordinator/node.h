/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node: journal, machine, data plane, control plane, wired together. stateroomd is a thin main
 * over it; an engine may run one in its own process.
 *
 * Model: four threads that share nothing but bounded queues.
 *
 *     engines, peers -> control --inputs--> machine --entries--> journal
 *                          ^                  |  ^                  |
 *                          +----- effects ----+  +--- durable ------+
 *                                             |  ^
 *                            writes, fences   v  |  completions
 *                                            fabric
 *
 * Effects leave when the entry that caused them is durable.
 *
 * Threads: create, start, stop and destroy from one thread; nothing else is public.
 *
 * Failure: node_start reports with the thing, the cause and the way out. After that a broken
 * journal is survived (503 to everybody, and on again when it works); everything else that cannot
 * be survived stops the node: node_wait says so.
 */
#ifndef COORDINATOR_NODE_H
#define COORDINATOR_NODE_H

#include "coordinator/config.h"
#include "fabric/engine.h"
#include "schemas/status.h"

struct node;

/*
 * Opens everything and starts the threads. The configuration is copied. memory: SM_RANKS_MAX rows
 * that live as long as the node, when it runs inside an engine's process; else NULL.
 */
enum status node_start(const struct config *config, const struct engine_memory *memory,
                       struct node **out_node, struct status_detail *out_detail);
/* Begins the graceful end: no new rooms, what is in transfer may end within stop_grace. */
void node_stop(struct node *node);
/* True when the node has ended, by itself or after node_stop; waits at most timeout_ms. */
bool node_wait(struct node *node, uint32_t timeout_ms);
/* Ends at once if it has not ended, and frees everything. */
void node_destroy(struct node *node);
/* Writes gauges, counters and queue depths to the log. */
void node_log_summary(struct node *node);

#endif
