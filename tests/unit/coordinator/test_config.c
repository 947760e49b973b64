/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: every key from every origin, which one wins, what is said about what is wrong,
 * and YAML that means harm.
 */
#include "coordinator/config.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;
static struct config_faults faults;

static void fresh(void)
{
    config_default(&config);
    memset(&faults, 0, sizeof faults);
}

TestSuite(config, .init = fresh, .timeout = 240);

static enum status read_text(const char *text)
{
    return config_read_text(&config, "x.yaml", text, strlen(text), &faults);
}

static bool said(const char *part)
{
    for (uint32_t i = 0; i < faults.count; i++) {
        if (strstr(faults.at[i].text, part) != NULL) {
            return true;
        }
    }
    return false;
}

/* A value that is not the default and fits the key. */
static const char *other_value(const char *name, const char *preset)
{
    static const char *const special[][2] = {
        {"journal.mode", "process"},    {"log.format", "json"},
        {"log.level", "debug"},         {"insecure", "true"},
        {"verify_pages", "true"},       {"ranks", "3"},
        {"journal.map_max", "2097152"}, {"journal.segment_bytes", "3145728"}};
    static char value[64];
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        if (strcmp(special[i][0], name) == 0) {
            return special[i][1];
        }
    }
    const size_t length = strlen(preset);
    if (length > 1u && isdigit((unsigned char)preset[0]) && preset[length - 1u] == 's') {
        return "7s";
    }
    if (isdigit((unsigned char)preset[0])) {
        return strcmp(name, "destinations_max") == 0   ? "63"
               : strcmp(name, "reason_bytes_max") == 0 ? "500"
               : strcmp(name, "fabric.address") == 0   ? "10.1.1.1"
                                                       : "4095";
    }
    (void)snprintf(value, sizeof value, "other %.50s", name);
    return value;
}

struct expectation {
    const char *name;
    const char *value;
    enum config_origin origin;
    uint32_t seen;
};

static void compare(void *context, const char *name, const char *value, enum config_origin origin,
                    const char *help)
{
    struct expectation *e = context;
    cr_assert_gt(strlen(help), 10u, "%s has no help", name);
    if (strcmp(name, e->name) == 0) {
        cr_assert_str_eq(value, e->value, "%s", name);
        cr_assert_eq(origin, e->origin, "%s", name);
        e->seen++;
    }
}

static void expect_key(const char *name, const char *value, enum config_origin origin)
{
    struct expectation e = {name, value, origin, 0};
    config_each_key(&config, false, compare, &e);
    cr_assert_eq(e.seen, 1u, "%s", name);
}

struct names {
    char name[CONFIG_KEYS_MAX][64];
    char preset[CONFIG_KEYS_MAX][64];
    uint32_t count;
};

static void collect(void *context, const char *name, const char *value, enum config_origin origin,
                    const char *help)
{
    struct names *names = context;
    (void)origin;
    (void)help;
    (void)snprintf(names->name[names->count], 64, "%s", name);
    (void)snprintf(names->preset[names->count], 64, "%s", value);
    names->count++;
}

Test(config, every_key_comes_from_file_environment_and_flag_and_the_later_wins)
{
    static struct names names;
    struct status_detail detail;
    config_each_key(&config, false, collect, &names);
    cr_assert_gt(names.count, 30u);
    for (uint32_t i = 0; i < names.count; i++) {
        const char *name = names.name[i];
        const char *preset = names.preset[i];
        const char *other = other_value(name, preset);
        char text[256];
        char variable[96] = "STATEROOM_";
        fresh();
        expect_key(name, preset, CONFIG_DEFAULT);
        (void)snprintf(text, sizeof text, "%s: \"%s\"\n", name, other);
        cr_assert_eq(read_text(text), STATUS_OK, "%s: %s", text, faults.at[0].text);
        expect_key(name, other, CONFIG_FILE);
        size_t used = strlen(variable);
        for (const char *c = name; *c != '\0'; c++) {
            variable[used++] = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
        }
        variable[used] = '\0';
        (void)setenv(variable, strcmp(preset, "-") == 0 ? "third" : preset, 1);
        cr_assert_eq(config_read_environment(&config, &faults), STATUS_OK, "%s", name);
        expect_key(name, strcmp(preset, "-") == 0 ? "third" : preset, CONFIG_ENVIRONMENT);
        (void)unsetenv(variable);
        cr_assert_eq(config_set(&config, name, other, CONFIG_FLAG, &detail), STATUS_OK);
        expect_key(name, other, CONFIG_FLAG);
    }
}

Test(config, mappings_and_dotted_names_are_the_same)
{
    cr_assert_eq(read_text("journal: {path: /a, mode: process}\nfabric.window: 9\n"), STATUS_OK);
    expect_key("journal.path", "/a", CONFIG_FILE);
    expect_key("journal.mode", "process", CONFIG_FILE);
    expect_key("fabric.window", "9", CONFIG_FILE);
    cr_assert_eq(read_text("journal.path: /b\n"), STATUS_OK);
    cr_assert_eq(read_text("journal: {path: /c}\njournal.path: /d\n"), STATUS_CONFIG);
    cr_assert(said("x.yaml:2:1: journal.path stands twice"));
}

Test(config, all_faults_are_said_with_their_place)
{
    cr_assert_eq(read_text("name: P\n"
                           "nmae: x\n"
                           "ranks: 900\n"
                           "room_deadline: 5\n"
                           "journal: {mode: never, path: [1, 2]}\n"
                           "insecure: yes\n"
                           "peers: [{name: D, address: a, port: 3}, 7]\n"
                           "heartbeat_bound: 1h1\n"
                           "listen: ok\n"),
                 STATUS_CONFIG);
    cr_assert_eq(faults.count, 9u);
    cr_assert(said("x.yaml:8:1: heartbeat_bound: '1h1' is not a duration"));
    cr_assert(said("x.yaml:2:1: no key is named nmae; did you mean name?"));
    cr_assert(said("x.yaml:3:1: ranks: '900' is not a number between 1 and 64"));
    cr_assert(said("x.yaml:4:1: room_deadline: '5' is not a duration (like 250ms, 30s, 10min)"));
    cr_assert(said("x.yaml:5:11: journal.mode: 'never' is not one of sync|process"));
    cr_assert(said("x.yaml:5:30: expected a value for journal.path here"));
    cr_assert(said("x.yaml:6:1: insecure: 'yes' is neither true nor false"));
    cr_assert(said("x.yaml:7:31: a peer has `name` and `address`, and no 'port'"));
    cr_assert(said("x.yaml:7:41: expected a peer with name and address"));
    expect_key("listen", "ok", CONFIG_FILE); /* what is well is read all the same */
}

Test(config, what_must_fit_together)
{
    cr_assert_eq(config_check(&config, &faults), STATUS_CONFIG);
    cr_assert(said("name: every node needs a name"));
    fresh();
    cr_assert_eq(
        read_text("name: P\nheartbeat_interval: 3s\nheartbeat_bound: 5s\n"
                  "retry_first: 9s\nretry_max: 8s\n"
                  "peers: [{name: D, address: 'tcp://a:1'}, {name: D, address: 'tcp://b:2'}, "
                  "{name: P, address: 'ipc:///c'}, {name: E}]\n"),
        STATUS_OK);
    cr_assert_eq(config_check(&config, &faults), STATUS_CONFIG);
    cr_assert_eq(faults.count, 5u);
    cr_assert(said("heartbeat_bound must be at least twice"));
    cr_assert(said("retry_max must not be under retry_first"));
    cr_assert(said("numbers 1 and 2 are both named D"));
    cr_assert(said("number 3 has this node's own name"));
    cr_assert(said("number 4 needs a name and an address"));
    fresh();
    cr_assert_eq(read_text("name: P\nranks: 4\npeers: [{name: D, address: 'tcp://d:1'}]\n"),
                 STATUS_OK);
    cr_assert_eq(config_check(&config, &faults), STATUS_OK);
    cr_assert_eq(config.settings.policy.ranks, 4u);
}

Test(config, addresses_and_names_that_cannot_work)
{
    static const char *const wrong[] = {"listen: foo",
                                        "listen: tcp://host",
                                        "listen: tcp://:7",
                                        "listen: tcp://a:0",
                                        "listen: tcp://a:65536",
                                        "listen: tcp://a:1x",
                                        "listen: 'tcp://::1:7'",
                                        "listen: 'ipc://'",
                                        "listen: tcp://0.0.0.0:7600",
                                        "listen: tcp://10.1.1.1:7600",
                                        "listen: 'tcp://127.evil.example:7'",
                                        "listen: 'tcp://[::]:7'",
                                        "engines: relative/path",
                                        "name: a b",
                                        "name: a/b",
                                        "peers: [{name: D, address: tcp://hostD:99999}]",
                                        "peers: [{name: 'D E', address: 'tcp://d:1'}]"};
    static const char *const well[] = {"listen: tcp://127.0.0.1:7600",
                                       "listen: tcp://127.9.9.9:1",
                                       "listen: tcp://localhost:65535",
                                       "listen: 'tcp://[::1]:7600'",
                                       "listen: ipc:///run/x",
                                       "listen: tcp://0.0.0.0:7600\ninsecure: true",
                                       "peers: [{name: D.1-x_y, address: 'tcp://some.host:7600'}]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fresh();
        cr_assert_eq(read_text(strncmp(wrong[i], "name", 4) == 0 ? wrong[i] : "name: P\n"),
                     STATUS_OK);
        cr_assert_eq(read_text(wrong[i]), STATUS_OK, "%s", wrong[i]);
        cr_assert_eq(config_check(&config, &faults), STATUS_CONFIG, "'%s' was taken", wrong[i]);
        cr_assert_eq(faults.count, 1u, "%s: %s", wrong[i], faults.at[0].text);
    }
    for (size_t i = 0; i < sizeof well / sizeof well[0]; i++) {
        fresh();
        cr_assert_eq(read_text("name: P\n"), STATUS_OK);
        cr_assert_eq(read_text(well[i]), STATUS_OK, "%s", well[i]);
        cr_assert_eq(config_check(&config, &faults), STATUS_OK, "%s: %s", well[i],
                     faults.at[0].text);
    }
}

Test(config, environment_faults_name_the_variable)
{
    (void)setenv("STATEROOM_RANKS", "x", 1);
    (void)setenv("STATEROOM_ROOM_DEADLINE", "-1s", 1);
    cr_assert_eq(config_read_environment(&config, &faults), STATUS_CONFIG);
    cr_assert(said("environment STATEROOM_RANKS: ranks: 'x'"));
    cr_assert(said("environment STATEROOM_ROOM_DEADLINE: room_deadline: '-1s'"));
    (void)unsetenv("STATEROOM_RANKS");
    (void)unsetenv("STATEROOM_ROOM_DEADLINE");
}

Test(config, peers_can_only_stand_in_the_file)
{
    struct status_detail detail;
    cr_assert_eq(config_set(&config, "peers", "x", CONFIG_FLAG, &detail), STATUS_CONFIG);
    cr_assert_not_null(strstr(detail.text, "only the file can hold"), "%s", detail.text);
}

static size_t print(char *text, size_t size, enum config_print how)
{
    FILE *out = fmemopen(text, size, "w");
    config_print(&config, out, how);
    (void)fclose(out);
    return strlen(text);
}

Test(config, what_is_printed_reads_back_as_the_same)
{
    static char first[32768];
    static char second[32768];
    cr_assert_eq(read_text("name: 'a \"b\" \\\\c'\nlog.level: debug\nroom_deadline: 1500ms\n"
                           "peers: [{name: \"x # y\", address: 'ipc:///tmp/a b'}]\n"),
                 STATUS_OK);
    const size_t size = print(first, sizeof first, CONFIG_PRINT_VALUES);
    cr_assert_not_null(strstr(first, "log.level: \"debug\""), "%s", first);
    struct config before = config;
    fresh();
    cr_assert_eq(config_read_text(&config, "p", first, size, &faults), STATUS_OK, "%s",
                 faults.at[0].text);
    cr_assert_eq(memcmp(&before.settings, &config.settings, sizeof config.settings), 0);
    cr_assert_str_eq(before.name, config.name);
    cr_assert_str_eq(before.peers[0].name, config.peers[0].name);
    (void)print(second, sizeof second, CONFIG_PRINT_EXAMPLE);
    fresh();
    cr_assert_eq(read_text(second), STATUS_OK, "an example that only comments");
}

Test(config, hostile_yaml_is_refused_and_bounded)
{
    static char deep[200001];
    static const char *const texts[] = {"- a\n",
                                        "a\n",
                                        "*x\n",
                                        "? {a: b}\n: c\n",
                                        "name: &a [*a, *a]\n",
                                        "name: \"a\\0b\"\n",
                                        "name: \"a\\x07\"\n",
                                        "name: [\n",
                                        "\x01",
                                        "{{{{",
                                        "journal: {a: {b: {c: d}}}\n",
                                        "peers: {}\n",
                                        "peers: 3\n",
                                        "peers: [[[]]]\n",
                                        "peers: [{name: [], address: {}}]\n",
                                        "peers: [{[]: x}]\n",
                                        "name: \xff\xfe\n",
                                        "name: !!binary abc\n--- \nname: [x]\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fresh();
        cr_assert_eq(read_text(texts[i]), STATUS_CONFIG, "%zu: %s", i, texts[i]);
        cr_assert_eq(strncmp(faults.at[0].text, "x.yaml:", 7), 0, "%s", faults.at[0].text);
    }
    fresh();
    memset(deep, '[', sizeof deep - 1u);
    cr_assert_eq(read_text(deep), STATUS_CONFIG);
    fresh();
    (void)snprintf(deep, sizeof deep, "name: %0150000d\n", 7);
    cr_assert_eq(read_text(deep), STATUS_CONFIG);
    cr_assert(said("longer than 255 bytes"));
    fresh();
    size_t used = 0;
    for (uint32_t i = 0; i < 500; i++) {
        used += (size_t)snprintf(deep + used, sizeof deep - used, "key%u: 1\n", i);
    }
    cr_assert_eq(read_text(deep), STATUS_CONFIG);
    cr_assert_eq(faults.count, CONFIG_FAULTS_MAX);
    cr_assert_eq(faults.count + faults.more, 500u);
    fresh();
    used = (size_t)snprintf(deep, sizeof deep, "peers:\n");
    for (uint32_t i = 0; i < 300; i++) {
        used +=
            (size_t)snprintf(deep + used, sizeof deep - used, "  - {name: n%u, address: a}\n", i);
    }
    cr_assert_eq(read_text(deep), STATUS_CONFIG);
    cr_assert_eq(config.peer_count, CONFIG_PEERS_MAX);
    cr_assert(said("at most 256"));
}

Test(config, files_that_cannot_be_read)
{
    cr_assert_eq(config_read_file(&config, "/does/not/exist", &faults), STATUS_CONFIG);
    cr_assert(said("/does/not/exist: No such file"));
    fresh();
    cr_assert_eq(config_read_file(&config, "/tmp", &faults), STATUS_CONFIG);
    cr_assert(said("/tmp: Is a directory"));
    fresh();
    cr_assert_eq(config_read_file(&config, "/dev/zero", &faults), STATUS_CONFIG);
    cr_assert(said("larger than 1 MiB"));
}
