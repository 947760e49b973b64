/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys, and values as people write them. */
#include "coordinator/policy.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define DAY (UINT64_C(86400) * S)

#define DURATION(name, field, least, most, help)                                        \
    {                                                                                   \
        name, POLICY_DURATION, offsetof(struct node_settings, field), least, most, help \
    }
#define COUNT(name, field, least, most, help)                                        \
    {                                                                                \
        name, POLICY_COUNT, offsetof(struct node_settings, field), least, most, help \
    }

static const struct policy_key keys[] = {
    DURATION("room_deadline", policy.room_deadline_ns, MS, DAY,
             "how long a room may take when its open names no deadline"),
    DURATION("unclaimed_deadline", policy.unclaimed_deadline_ns, MS, DAY,
             "how long pages announced by decode wait for an engine to open the room"),
    DURATION("heartbeat_interval", heartbeat_interval_ns, MS, 60u * S, "between two signs of life"),
    DURATION("heartbeat_bound", heartbeat_bound_ns, 2u * MS, 600u * S,
             "silence after which a peer is lost"),
    DURATION("retry_first", policy.retry_first_ns, MS, 60u * S,
             "first repeat of an unanswered message; doubles"),
    DURATION("retry_max", policy.retry_max_ns, MS, 600u * S, "where the doubling stops"),
    DURATION("cause_grace", policy.cause_grace_ns, 0, 60u * S,
             "how long a cause without a status waits for a better one"),
    DURATION("recovery_grace", policy.recovery_grace_ns, 0, 600u * S,
             "how long a restarted peer may take to repeat its verdicts"),
    DURATION("drain_timeout", policy.drain_timeout_ns, MS, DAY,
             "how long a write may hang after its room's end before its peer is fenced"),
    DURATION("stop_grace", policy.stop_grace_ns, 0, DAY,
             "how long rooms in transfer may go on while the node stops"),
    DURATION("tombstone_ttl", policy.tombstone_ttl_ns, MS, 30u * DAY,
             "how long a room that is over is remembered"),
    COUNT("tombstones_max", bounds.tombstones_max, 1, 1u << 28, "rooms remembered at the most"),
    COUNT("rooms_max", bounds.halves_max, 1, 1u << 24, "rooms at the same time"),
    COUNT("rooms_per_peer_max", policy.rooms_per_peer_max, 1, 1u << 24,
          "rooms at the same time with one peer"),
    COUNT("destinations_max", policy.destinations_per_room_max, 1, SM_DESTINATIONS_MAX,
          "decode ranks that one room may have"),
    COUNT("pages_per_room_max", policy.pages_per_room_max, 1, 262144,
          "pages of one rank in a room"),
    COUNT("reason_bytes_max", policy.reason_bytes_max, 16, SM_REASON_BYTES_MAX,
          "bytes of a reason text"),
    COUNT("writes_max", bounds.writes_max, 64, 1u << 24, "writes posted and not completed"),
    COUNT("page_runs_max", bounds.runs_max, 64, 1u << 30, "page runs that all rooms hold together"),
    COUNT("pages_max", bounds.pages_max, 64, 1u << 30, "pages of all pools of the node"),
    COUNT("aux_slots_max", bounds.aux_slots_max, 1, 1u << 28, "metadata slots of all pools"),
    {NULL, POLICY_COUNT, 0, 0, 0, NULL},
};

const struct policy_key *policy_keys(void)
{
    return keys;
}

const struct policy_key *policy_key_find(const char *name)
{
    for (const struct policy_key *key = keys; key->name != NULL; key++) {
        if (strcmp(key->name, name) == 0) {
            return key;
        }
    }
    return NULL;
}

void node_settings_default(struct node_settings *out)
{
    memset(out, 0, sizeof *out);
    sm_policy_default(&out->policy);
    sm_bounds_default(&out->bounds);
    out->heartbeat_interval_ns = S;
    out->heartbeat_bound_ns = 5u * S;
}

/* ---- values
 * ------------------------------------------------------------------------------------------ */

struct unit {
    const char *name;
    uint64_t factor;
};

static bool parse_with_units(const char *text, const struct unit *units, size_t count,
                             uint64_t *out_value)
{
    char *end = NULL;
    errno = 0;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    const unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0) {
            if (number > UINT64_MAX / units[i].factor) {
                return false;
            }
            *out_value = number * units[i].factor;
            return true;
        }
    }
    return false;
}

bool duration_parse(const char *text, uint64_t *out_ns)
{
    static const struct unit units[] = {{"ns", 1},        {"us", 1000},     {"ms", MS}, {"s", S},
                                        {"min", 60u * S}, {"h", 3600u * S}, {"d", DAY}};
    if (strcmp(text, "0") == 0) {
        *out_ns = 0;
        return true;
    }
    return parse_with_units(text, units, sizeof units / sizeof units[0], out_ns);
}

void duration_print(uint64_t ns, char *buffer, size_t size)
{
    if (ns % S == 0) {
        (void)snprintf(buffer, size, "%" PRIu64 "s", ns / S);
    } else if (ns % MS == 0) {
        (void)snprintf(buffer, size, "%" PRIu64 "ms", ns / MS);
    } else if (ns % 1000u == 0) {
        (void)snprintf(buffer, size, "%" PRIu64 "us", ns / 1000u);
    } else {
        (void)snprintf(buffer, size, "%" PRIu64 "ns", ns);
    }
}

bool size_parse(const char *text, uint64_t *out_bytes)
{
    static const struct unit units[] = {{"", 1},
                                        {"B", 1},
                                        {"KiB", UINT64_C(1) << 10},
                                        {"MiB", UINT64_C(1) << 20},
                                        {"GiB", UINT64_C(1) << 30},
                                        {"TiB", UINT64_C(1) << 40}};
    return parse_with_units(text, units, sizeof units / sizeof units[0], out_bytes);
}

/* ---- near names
 * ------------------------------------------------------------------------------------------ */

#define NAME_MAX_LENGTH 63u

static size_t least_of(size_t a, size_t b, size_t c)
{
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Number of letters to change, add or drop. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LENGTH + 2u];
    const size_t width = strlen(b);
    if (strlen(a) > NAME_MAX_LENGTH || width > NAME_MAX_LENGTH) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= width; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1u] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            const size_t above = row[j];
            row[j] = least_of(row[j] + 1u, row[j - 1u] + 1u,
                              diagonal + (a[i - 1u] == b[j - 1u] ? 0u : 1u));
            diagonal = above;
        }
    }
    return row[width];
}

const char *nearest_name(const char *wrong, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_distance = strlen(wrong) / 3u + 2u;
    for (size_t i = 0; i < count; i++) {
        const size_t d = distance(wrong, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

/* ---- setting and getting
 * ------------------------------------------------------------------------------------ */

static enum status no_such_key(const char *key, struct status_detail *out_detail)
{
    const char *names[sizeof keys / sizeof keys[0]];
    size_t count = 0;
    for (const struct policy_key *k = keys; k->name != NULL; k++) {
        names[count++] = k->name;
    }
    const char *near = nearest_name(key, names, count);
    return status_fail(STATUS_NOT_FOUND, out_detail, 0, "no key is named %s%s%s%s", key,
                       near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                       near != NULL ? "?" : "");
}

static void print_value(enum policy_type type, uint64_t value, char *buffer, size_t size)
{
    if (type == POLICY_DURATION) {
        duration_print(value, buffer, size);
    } else {
        (void)snprintf(buffer, size, "%" PRIu64, value);
    }
}

enum status policy_set(struct node_settings *settings, const char *name, const char *value,
                       struct status_detail *out_detail)
{
    const struct policy_key *key = policy_key_find(name);
    uint64_t number = 0;
    char least[32];
    char most[32];
    if (key == NULL) {
        return no_such_key(name, out_detail);
    }
    const bool well =
        key->type == POLICY_DURATION ? duration_parse(value, &number) : size_parse(value, &number);
    print_value(key->type, key->least, least, sizeof least);
    print_value(key->type, key->most, most, sizeof most);
    if (!well || number < key->least || number > key->most) {
        return status_fail(
            STATUS_CONFIG, out_detail, 0, "%s: '%s' is not %s between %s and %s", name, value,
            key->type == POLICY_DURATION ? "a duration (like 250ms, 30s, 10min)" : "a number",
            least, most);
    }
    char *field = (char *)settings + key->offset;
    if (key->type == POLICY_DURATION) {
        memcpy(field, &number, sizeof number);
    } else {
        const uint32_t narrow = (uint32_t)number;
        memcpy(field, &narrow, sizeof narrow);
    }
    if (strcmp(name, "rooms_max") == 0) {
        /* Tables that follow the number of rooms. */
        settings->bounds.ranks_max = settings->bounds.halves_max * 8u;
        settings->bounds.destinations_max = settings->bounds.halves_max * 4u;
    }
    return STATUS_OK;
}

void policy_get(const struct node_settings *settings, const struct policy_key *key, char *buffer,
                size_t size)
{
    const char *field = (const char *)settings + key->offset;
    uint64_t value = 0;
    if (key->type == POLICY_DURATION) {
        memcpy(&value, field, sizeof value);
    } else {
        uint32_t narrow = 0;
        memcpy(&narrow, field, sizeof narrow);
        value = narrow;
    }
    print_value(key->type, value, buffer, size);
}
