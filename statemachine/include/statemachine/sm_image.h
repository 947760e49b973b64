/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's whole state as a sequence of plain items, so that journal/ can keep it as protobuf.
 *
 * Layer: freestanding.
 *
 * sm_pack_next yields items in an order that sm_restore_item accepts. A machine restored from all
 * items has the same sm_digest and behaves the same. Runs and texts in an item are borrowed until
 * the next call. Restoring is total: an item that makes no sense is refused (false) and the machine
 * is unusable.
 */
#ifndef STATEMACHINE_SM_IMAGE_H
#define STATEMACHINE_SM_IMAGE_H

#include "statemachine/sm.h"

enum sm_item_kind {
    SM_ITEM_NONE = 0,
    SM_ITEM_NODE = 1,
    SM_ITEM_PEER = 2,
    SM_ITEM_ENGINE = 3,
    SM_ITEM_HALF = 4,        /* followed by its ranks and destinations */
    SM_ITEM_RANK = 5,        /* of the half before it */
    SM_ITEM_DESTINATION = 6, /* of the half before it */
    SM_ITEM_WRITE = 7,
    SM_ITEM_TOMBSTONE = 8, /* oldest first */
    SM_ITEM_QUARANTINE = 9,
    SM_ITEM_COUNT
};

/* Generic: numbers by position, meanings private to sm_image.c and stable per SM_MACHINE_VERSION.
 */
#define SM_ITEM_NUMBERS_MAX 96u
#define SM_ITEM_TEXTS_MAX 2u
#define SM_ITEM_RUNS_MAX 2u

struct sm_item {
    uint32_t kind; /* enum sm_item_kind */
    uint32_t number_count;
    uint32_t text_count;
    uint32_t runs_count;
    uint64_t numbers[SM_ITEM_NUMBERS_MAX];
    struct sm_text texts[SM_ITEM_TEXTS_MAX];
    struct sm_runs runs[SM_ITEM_RUNS_MAX];
};

struct sm_pack {
    uint32_t stage;
    uint32_t index;
    uint32_t inner;
};

/*
 * Start with a zeroed cursor. `scratch` holds one item's runs: as many as one rank or destination
 * can have (policy pages_per_room_max is always enough). False at the end.
 */
bool sm_pack_next(const struct sm *sm, struct sm_pack *cursor, struct sm_item *out_item,
                  struct sm_run *scratch, uint32_t scratch_count);

/*
 * Which items a machine without other rooms is made of: start zeroed but for `rooms`, ask for each
 * item in order. False: the item is about another room and must be left out. A machine restored
 * from the rest knows node, peers and engines as before, these rooms, and no other.
 */
#define SM_KEEP_HALVES_MAX 2048u
struct sm_keep {
    const uint64_t *rooms; /* at most SM_KEEP_HALVES_MAX / 2 */
    uint32_t room_count;
    uint32_t half_count;
    uint32_t halves[SM_KEEP_HALVES_MAX]; /* kept */
    bool keeping;                        /* the half that ranks and destinations follow */
};
bool sm_keep_item(struct sm_keep *keep, const struct sm_item *item);

/* Into a machine fresh from sm_init. False: the item is refused and the machine must be thrown
 * away. */
bool sm_restore_item(struct sm *sm, const struct sm_item *item);

/* After the last item: rebuilds what is derived. False: the state breaks an invariant. */
bool sm_restore_done(struct sm *sm, struct sm_violation *out_violation);

#endif
