/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the small world share. */
#ifndef SMALLWORLD_SMALLWORLD_PRIVATE_H
#define SMALLWORLD_SMALLWORLD_PRIVATE_H

#include "smallworld.h"

#define PREFILL_ID 100u                          /* node ids: this + node */
#define TOMBSTONE_TTL_NS UINT64_C(3600000000000) /* no world lives so long */

extern const char *const world_names[2];
extern const uint32_t world_sides[2];

struct sm *world_machine(const struct world *world, uint32_t node);
struct sm_text world_text(const char *bytes);
/* Keeps the first promise that fell. */
void world_fell(struct fault *fault, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t world_ranks(const struct world *world, uint32_t node);
/* Rooms are numbered from 1; each life has pages of its own. */
uint32_t world_first_page(uint32_t room_index, uint32_t life_index);
struct result *world_result(struct world *world, uint32_t side, uint32_t rank, uint64_t room,
                            uint64_t generation);
struct parcel world_take(struct world *world, uint32_t to, uint32_t index);
/* News of the connection, or the marker: nothing passes it. */
bool world_is_barrier(const struct parcel *parcel);
/* Whether `first`, which was sent earlier, must be delivered before `then`. */
bool world_before(const struct world *world, const struct parcel *first, const struct parcel *then);
/* The connection ends and another one begins; node `lost` (2: none) hears nothing of the end. */
void world_reconnect(struct world *world, uint32_t lost, struct fault *fault);
struct sm_input world_write_done(const struct flying *w, int32_t code);
void world_begin_action(void);
/* One input; after: the process dies when its entry is durable, and says nothing. */
void world_feed(struct world *world, uint32_t node, struct sm_input *input, bool after,
                struct fault *fault);
/* The process dies and comes back from its journal; what it had registered is gone. */
void world_crash(struct world *world, uint32_t node, struct fault *fault);
void world_deliver(struct world *world, uint32_t to, struct parcel *parcel, bool after,
                   struct fault *fault);

#endif
