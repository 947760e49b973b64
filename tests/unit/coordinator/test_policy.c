/* SPDX-License-Identifier: Apache-2.0 */
/* Values as people write them: units, bounds, near names. */
#include "coordinator/policy.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

Test(policy, durations)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } well[] = {{"0", 0},
                {"1ns", 1},
                {"5us", 5000},
                {"250ms", 250000000},
                {"30s", UINT64_C(30000000000)},
                {"10min", UINT64_C(600000000000)},
                {"2h", UINT64_C(7200000000000)},
                {"1d", UINT64_C(86400000000000)}};
    static const char *const wrong[] = {"",       "5",   "s",    "-1s",  "+1s",
                                        " 1s",    "1 s", "1.5s", "1S",   "1sec",
                                        "1s ",    "1ss", "0x1s", "1e3s", "99999999999999999999s",
                                        "300000d"};
    uint64_t ns = 0;
    for (size_t i = 0; i < sizeof well / sizeof well[0]; i++) {
        char again[32];
        cr_assert(duration_parse(well[i].text, &ns), "%s", well[i].text);
        cr_assert_eq(ns, well[i].ns, "%s", well[i].text);
        duration_print(ns, again, sizeof again);
        cr_assert(duration_parse(again, &ns) && ns == well[i].ns, "%s -> %s", well[i].text, again);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert(!duration_parse(wrong[i], &ns), "'%s' was taken", wrong[i]);
    }
}

Test(policy, sizes)
{
    static const char *const wrong[] = {
        "", "k", "1k", "1KB", "1 KiB", "-1", "18446744073709551616", "99999999999TiB"};
    uint64_t bytes = 0;
    cr_assert(size_parse("4096", &bytes) && bytes == 4096u);
    cr_assert(size_parse("4096B", &bytes) && bytes == 4096u);
    cr_assert(size_parse("64KiB", &bytes) && bytes == 65536u);
    cr_assert(size_parse("3GiB", &bytes) && bytes == UINT64_C(3) << 30);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert(!size_parse(wrong[i], &bytes), "'%s' was taken", wrong[i]);
    }
}

/* Each key takes its bounds, refuses one beyond, and gives back what was set. */
Test(policy, every_key_keeps_its_bounds)
{
    struct node_settings settings;
    struct status_detail detail;
    for (const struct policy_key *key = policy_keys(); key->name != NULL; key++) {
        char text[64];
        char back[64];
        const uint64_t edges[] = {key->least, key->most};
        for (size_t i = 0; i < 2; i++) {
            const char *unit = key->type == POLICY_DURATION ? "ns" : "";
            node_settings_default(&settings);
            (void)snprintf(text, sizeof text, "%" PRIu64 "%s", edges[i], unit);
            cr_assert_eq(policy_set(&settings, key->name, text, &detail), STATUS_OK, "%s=%s",
                         key->name, text);
            policy_get(&settings, key, back, sizeof back);
            struct node_settings again;
            node_settings_default(&again);
            cr_assert_eq(policy_set(&again, key->name, back, &detail), STATUS_OK);
            cr_assert_eq(memcmp(&again, &settings, sizeof again), 0, "%s: %s -> %s", key->name,
                         text, back);
        }
        (void)snprintf(text, sizeof text, "%" PRIu64 "%s", key->most + 1u,
                       key->type == POLICY_DURATION ? "ns" : "");
        cr_assert_eq(policy_set(&settings, key->name, text, &detail), STATUS_CONFIG);
        cr_assert_not_null(strstr(detail.text, key->name));
        cr_assert_gt(strlen(key->help), 10u);
    }
}

Test(policy, near_names)
{
    static const char *const names[] = {"room_deadline", "retry_first", "retry_max"};
    struct node_settings settings;
    struct status_detail detail;
    cr_assert_str_eq(nearest_name("room_dedline", names, 3), "room_deadline");
    cr_assert_str_eq(nearest_name("retry_mx", names, 3), "retry_max");
    cr_assert_null(nearest_name("something_else_altogether", names, 3));
    node_settings_default(&settings);
    cr_assert_eq(policy_set(&settings, "rooms_mx", "1", &detail), STATUS_NOT_FOUND);
    cr_assert_not_null(strstr(detail.text, "did you mean rooms_max?"), "%s", detail.text);
}

Test(policy, defaults_are_the_designs)
{
    static const char *const expected[][2] = {
        {"room_deadline", "300s"},    {"unclaimed_deadline", "120s"},
        {"heartbeat_interval", "1s"}, {"heartbeat_bound", "5s"},
        {"retry_first", "100ms"},     {"retry_max", "5s"},
        {"cause_grace", "200ms"},     {"recovery_grace", "2s"},
        {"drain_timeout", "30s"},     {"stop_grace", "30s"},
        {"tombstone_ttl", "600s"},    {"tombstones_max", "1000000"},
        {"rooms_max", "65536"},       {"rooms_per_peer_max", "16384"},
        {"destinations_max", "64"},   {"pages_per_room_max", "262144"},
        {"reason_bytes_max", "512"}};
    struct node_settings settings;
    node_settings_default(&settings);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        char value[32];
        const struct policy_key *key = policy_key_find(expected[i][0]);
        cr_assert_not_null(key, "%s", expected[i][0]);
        policy_get(&settings, key, value, sizeof value);
        cr_assert_str_eq(value, expected[i][1], "%s", expected[i][0]);
    }
}
