/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: one list of fields for each kind of record, used both ways: what is packed is what is
 * restored. A row is either written into an item or read from one.
 */
#ifndef STATEMACHINE_SM_ROWS_H
#define STATEMACHINE_SM_ROWS_H

#include "sm_state.h"
#include "statemachine/sm_image.h"

struct row {
    struct sm_item *write;      /* packing */
    const struct sm_item *read; /* restoring */
    uint32_t at;
    bool well; /* restoring: every number was there and fits */
};

void sm_row64(struct row *row, uint64_t *value);
void sm_row32(struct row *row, uint32_t *value);
void sm_row_node(struct sm *sm, struct row *row);
void sm_row_peer(struct sm_peer *peer, struct row *row);
void sm_row_engine(struct sm_engine *engine, struct row *row);
void sm_row_half(struct sm *sm, struct sm_half *half, struct row *row);
void sm_row_rank(struct sm *sm, struct sm_rank *rank, struct row *row);
void sm_row_destination(struct sm_destination *destination, struct row *row);
void sm_row_tombstone(struct sm *sm, struct sm_tombstone *tombstone, struct row *row);

#endif
