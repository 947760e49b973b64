/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of invariant journal_first: effects wait here until their entry is durable.
 *
 * Layer: memory only; no threads, no clock. The node, the scenario runner and the simulator use
 * this one.
 *
 * Ownership: push copies an effect deeply; pop lends the copy until the next call.
 *
 * Limits: capacity is fixed. When gate_has_room says no, the machine must not be stepped.
 */
#ifndef JOURNAL_JOURNAL_GATE_H
#define JOURNAL_JOURNAL_GATE_H

#include "schemas/status.h"
#include "statemachine/sm_output.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gate;

enum status gate_create(size_t capacity_bytes, struct gate **out_gate,
                        struct status_detail *out_detail);
void gate_destroy(struct gate *gate);

/* Whether one more step's effects certainly fit. */
bool gate_has_room(const struct gate *gate);

/* All effects of the step that entry `number` holds, in their order. Needs gate_has_room. */
void gate_push(struct gate *gate, uint64_t number, const struct sm_output *output);

/*
 * The next effect that may leave: its entry is not after `durable`, or it is one that may leave
 * without the journal. NULL: none. *out_number: its entry.
 */
const struct sm_effect *gate_pop(struct gate *gate, uint64_t durable, uint64_t *out_number);

/* Forgets the effects of all entries after `number`: their entries will never be. */
void gate_drop_after(struct gate *gate, uint64_t number);

/* The protection journal_first switched off: everything leaves at once. Scenarios and replay only.
 */
void gate_open_for_all(struct gate *gate, bool open);

/*
 * A deep copy of one effect: effect_copy_bytes says how much memory it needs (16-aligned),
 * effect_copy writes it there. The copy is valid as long as the memory.
 */
size_t effect_copy_bytes(const struct sm_effect *effect);
struct sm_effect *effect_copy(const struct sm_effect *effect, void *memory);

uint64_t gate_waiting(const struct gate *gate);

#endif
