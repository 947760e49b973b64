/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a node's configuration that the machine understands: durations, bounds. One table,
 * used by stateroomd's file and flags and by the `set` statement of scenarios.
 *
 * Layer: statemachine's types; no I/O.
 */
#ifndef COORDINATOR_POLICY_H
#define COORDINATOR_POLICY_H

#include "schemas/status.h"
#include "statemachine/sm_policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct node_settings {
    struct sm_policy policy;
    struct sm_bounds bounds;
    uint64_t heartbeat_interval_ns; /* 1 s */
    uint64_t heartbeat_bound_ns;    /* 5 s */
};

enum policy_type { POLICY_DURATION, POLICY_COUNT };

struct policy_key {
    const char *name;
    enum policy_type type;
    size_t offset;  /* in struct node_settings */
    uint64_t least; /* durations in ns */
    uint64_t most;
    const char *help;
};

/* The table; ends with a row whose name is NULL. */
const struct policy_key *policy_keys(void);
const struct policy_key *policy_key_find(const char *name);

void node_settings_default(struct node_settings *out_settings);

/*
 * Sets one key from text. STATUS_NOT_FOUND: no such key (detail may name a similar one);
 * STATUS_CONFIG: the value does not fit, with what was expected.
 */
enum status policy_set(struct node_settings *settings, const char *key, const char *value,
                       struct status_detail *out_detail);
/* The value of a key as text that policy_set accepts. */
void policy_get(const struct node_settings *settings, const struct policy_key *key, char *buffer,
                size_t size);

/* "300s", "5ms", "10min", "0"; false when it is not a duration. */
bool duration_parse(const char *text, uint64_t *out_ns);
void duration_print(uint64_t ns, char *buffer, size_t size);
/* "4096", "64KiB", "1GiB". */
bool size_parse(const char *text, uint64_t *out_bytes);

/* The name nearest to `wrong` among `count` names, or NULL when none is near: "did you mean". */
const char *nearest_name(const char *wrong, const char *const *names, size_t count);

#endif
