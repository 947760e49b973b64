/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that must not leave the house, made unreadable so that the machine does the same: a name
 * becomes another of the same length, the same each time; in a reason each letter becomes x and
 * each digit 9. Numbers (ids, rooms, pages, times, statuses) stay.
 *
 * Ownership: redacted texts live until the next call of redact_entry or redact_item.
 */
#ifndef REPLAY_REDACT_H
#define REPLAY_REDACT_H

#include "schemas/codec.h"
#include "statemachine/sm_image.h"

struct redact;

/* NULL: no memory. */
struct redact *redact_open(void);
void redact_close(struct redact *redact);

/* Every text of the entry's input, and the program's name. False: more than it can hold. */
bool redact_entry(struct redact *redact, struct codec_entry *entry);
bool redact_item(struct redact *redact, struct sm_item *item);
/* The name that stands for this one; `out` has room for SM_NAME_BYTES_MAX + 1. */
void redact_name(struct redact *redact, struct sm_text name, char *out);

#endif
