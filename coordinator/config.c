/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, files, environment, flags. */
#include "coordinator/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum type { TEXT, NUMBER, SIZE, FLAG, CHOICE };

struct key {
    const char *name;
    enum type type;
    size_t offset;
    const char *preset;
    uint64_t least;
    uint64_t most;
    const char *choices; /* "a|b" */
    const char *help;
};

static const struct key keys[] = {
    {"name", TEXT, offsetof(struct config, name), "", 0, 0, NULL,
     "this node's name, known to its peers"},
    {"ranks", NUMBER, offsetof(struct config, ranks), "1", 1, SM_RANKS_MAX, NULL,
     "engine ranks of the instance (its TP size)"},
    {"listen", TEXT, offsetof(struct config, listen), "tcp://127.0.0.1:7600", 0, 0, NULL,
     "where peers reach this node"},
    {"engines", TEXT, offsetof(struct config, engines), "/run/stateroom/engines", 0, 0, NULL,
     "socket for the engines, in a directory that only this user can enter"},
    {"journal.path", TEXT, offsetof(struct config, journal_path), "/var/lib/stateroom/journal", 0,
     0, NULL, "directory of the journal"},
    {"journal.mode", CHOICE, offsetof(struct config, journal_mode), "sync", 0, 0, "sync|process",
     "sync: survives power loss; process: a power loss may take the last batch"},
    {"journal.snapshot_every", NUMBER, offsetof(struct config, snapshot_every), "100000", 100,
     UINT64_C(1) << 40, NULL, "entries between two snapshots"},
    {"journal.map_max", SIZE, offsetof(struct config, map_max), "64GiB", 1u << 20,
     UINT64_C(1) << 46, NULL, "how large the journal may grow (address space, not memory)"},
    {"fabric.provider", TEXT, offsetof(struct config, provider), "auto", 0, 0, NULL,
     "auto, tcp, shm, or a libfabric provider; both sides must use the same"},
    {"fabric.address", TEXT, offsetof(struct config, fabric_address), "127.0.0.1", 0, 0, NULL,
     "this host's address for the data plane"},
    {"fabric.window", NUMBER, offsetof(struct config, window), "64", 1, 4096, NULL,
     "operations in flight to one peer"},
    {"log.format", CHOICE, offsetof(struct config, log_format), "text", 0, 0, "text|json",
     "one event a line, as text or JSON"},
    {"log.level", CHOICE, offsetof(struct config, log_level), "info", 0, 0,
     "error|warning|info|debug", "what is logged"},
    {"insecure", FLAG, offsetof(struct config, insecure), "false", 0, 0, NULL,
     "allow `listen` off loopback although nothing there is encrypted or authenticated"},
};

#define KEY_COUNT (sizeof keys / sizeof keys[0])

static size_t policy_count(void)
{
    size_t count = 0;
    while (policy_keys()[count].name != NULL) {
        count++;
    }
    return count;
}

/* ---- one key
 * --------------------------------------------------------------------------------------------- */

static enum status set_text(char *field, const struct key *key, const char *value,
                            struct status_detail *out_detail)
{
    if (strlen(value) >= CONFIG_TEXT_BYTES) {
        return status_fail(STATUS_CONFIG, out_detail, 0, "%s: longer than %u bytes", key->name,
                           CONFIG_TEXT_BYTES - 1u);
    }
    (void)snprintf(field, CONFIG_TEXT_BYTES, "%s", value);
    return STATUS_OK;
}

static bool is_choice(const char *choices, const char *value)
{
    const size_t length = strlen(value);
    for (const char *at = choices; at != NULL && length > 0; at = strchr(at, '|')) {
        at += *at == '|' ? 1 : 0;
        if (strncmp(at, value, length) == 0 && (at[length] == '|' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static enum status set_number(struct config *config, const struct key *key, const char *value,
                              struct status_detail *out_detail)
{
    uint64_t number = 0;
    if (!size_parse(value, &number) || number < key->least || number > key->most) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "%s: '%s' is not a %s between %" PRIu64 " and %" PRIu64, key->name,
                           value, key->type == SIZE ? "size (like 64MiB)" : "number", key->least,
                           key->most);
    }
    memcpy((char *)config + key->offset, &number, sizeof number);
    return STATUS_OK;
}

static enum status set_key(struct config *config, const struct key *key, const char *value,
                           struct status_detail *out_detail)
{
    char *field = (char *)config + key->offset;
    switch (key->type) {
    case TEXT:
        return set_text(field, key, value, out_detail);
    case CHOICE:
        return is_choice(key->choices, value)
                   ? set_text(field, key, value, out_detail)
                   : status_fail(STATUS_CONFIG, out_detail, 0, "%s: '%s' is not one of %s",
                                 key->name, value, key->choices);
    case NUMBER:
    case SIZE:
        return set_number(config, key, value, out_detail);
    case FLAG:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
            return status_fail(STATUS_CONFIG, out_detail, 0, "%s: '%s' is neither true nor false",
                               key->name, value);
        }
        config->insecure = value[0] == 't';
        return STATUS_OK;
    }
    return STATUS_CONFIG;
}

static enum status no_such_key(const char *name, struct status_detail *out_detail)
{
    const char *names[KEY_COUNT + CONFIG_KEYS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        names[count++] = keys[i].name;
    }
    for (size_t i = 0; i < policy_count(); i++) {
        names[count++] = policy_keys()[i].name;
    }
    names[count++] = "peers";
    const char *near = nearest_name(name, names, count);
    return status_fail(STATUS_CONFIG, out_detail, 0, "no key is named %s%s%s%s", name,
                       near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                       near != NULL ? "?" : "");
}

enum status config_set(struct config *config, const char *name, const char *value,
                       enum config_origin origin, struct status_detail *out_detail)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            TRY(set_key(config, &keys[i], value, out_detail));
            config->origins[i] = (uint8_t)origin;
            return STATUS_OK;
        }
    }
    const struct policy_key *key = policy_key_find(name);
    if (key == NULL) {
        return no_such_key(name, out_detail);
    }
    TRY(policy_set(&config->settings, name, value, out_detail));
    config->origins[KEY_COUNT + (size_t)(key - policy_keys())] = (uint8_t)origin;
    return STATUS_OK;
}

void config_default(struct config *out)
{
    struct status_detail detail;
    memset(out, 0, sizeof *out);
    node_settings_default(&out->settings);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        (void)set_key(out, &keys[i], keys[i].preset, &detail);
    }
}

/* ---- the file
 * -----------------------------------------------------------------------------------------------
 */

struct reader {
    struct config *config;
    const char *path;
    yaml_parser_t parser;
    struct status_detail *detail;
    char seen[CONFIG_KEYS_MAX][64];
    size_t seen_count;
};

static enum status at(struct reader *reader, yaml_mark_t mark, enum status status)
{
    char text[STATUS_DETAIL_BYTES];
    if (status == STATUS_OK) {
        return STATUS_OK;
    }
    (void)snprintf(text, sizeof text, "%s", reader->detail->text);
    return status_fail(STATUS_CONFIG, reader->detail, 0, "%.120s:%zu:%zu: %.180s", reader->path,
                       mark.line + 1u, mark.column + 1u, text);
}

static enum status next_event(struct reader *reader, yaml_event_t *out_event)
{
    if (!yaml_parser_parse(&reader->parser, out_event)) {
        const yaml_mark_t mark = reader->parser.problem_mark;
        return status_fail(STATUS_CONFIG, reader->detail, 0, "%.120s:%zu:%zu: not YAML: %.120s",
                           reader->path, mark.line + 1u, mark.column + 1u,
                           reader->parser.problem != NULL ? reader->parser.problem : "");
    }
    return STATUS_OK;
}

static enum status once(struct reader *reader, const char *name)
{
    for (size_t i = 0; i < reader->seen_count; i++) {
        if (strcmp(reader->seen[i], name) == 0) {
            return status_fail(STATUS_CONFIG, reader->detail, 0, "%s stands twice", name);
        }
    }
    if (reader->seen_count < CONFIG_KEYS_MAX) {
        (void)snprintf(reader->seen[reader->seen_count++], sizeof reader->seen[0], "%s", name);
    }
    return STATUS_OK;
}

static enum status unexpected(struct reader *reader, const yaml_event_t *event,
                              const char *expected)
{
    (void)status_fail(STATUS_CONFIG, reader->detail, 0, "expected %s here", expected);
    return at(reader, event->start_mark, STATUS_CONFIG);
}

static enum status peer_value(struct reader *reader, struct config_peer *peer, const char *key,
                              const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    if (strcmp(key, "name") == 0 && strlen(value) <= SM_NAME_BYTES_MAX) {
        (void)snprintf(peer->name, sizeof peer->name, "%s", value);
    } else if (strcmp(key, "address") == 0 && strlen(value) < CONFIG_TEXT_BYTES) {
        (void)snprintf(peer->address, sizeof peer->address, "%s", value);
    } else {
        (void)status_fail(STATUS_CONFIG, reader->detail, 0,
                          "a peer has `name` and `address`; '%s' is neither, or too long", key);
        return at(reader, event->start_mark, STATUS_CONFIG);
    }
    return STATUS_OK;
}

/* { name: D, address: tcp://... } after its mapping has begun. */
static enum status read_peer(struct reader *reader)
{
    char key[64] = "";
    yaml_event_t event;
    enum status status = STATUS_OK;
    struct config_peer *peer = &reader->config->peers[reader->config->peer_count];
    memset(peer, 0, sizeof *peer);
    for (;;) {
        TRY(next_event(reader, &event));
        const yaml_mark_t mark = event.start_mark;
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        if (event.type != YAML_SCALAR_EVENT) {
            status = unexpected(reader, &event, "`name: TEXT` or `address: TEXT`");
        } else if (key[0] == '\0') {
            (void)snprintf(key, sizeof key, "%s", (const char *)event.data.scalar.value);
        } else {
            status = peer_value(reader, peer, key, &event);
            key[0] = '\0';
        }
        yaml_event_delete(&event);
        TRY(at(reader, mark, STATUS_OK));
        TRY(status);
    }
    reader->config->peer_count++;
    return STATUS_OK;
}

static enum status read_peers(struct reader *reader)
{
    yaml_event_t event;
    reader->config->peer_count = 0;
    TRY(next_event(reader, &event));
    if (event.type != YAML_SEQUENCE_START_EVENT) {
        const enum status status =
            unexpected(reader, &event, "a list of peers, each with name and address");
        yaml_event_delete(&event);
        return status;
    }
    yaml_event_delete(&event);
    for (;;) {
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        enum status status = STATUS_OK;
        if (type != YAML_SEQUENCE_END_EVENT &&
            (type != YAML_MAPPING_START_EVENT || reader->config->peer_count == CONFIG_PEERS_MAX)) {
            status = unexpected(reader, &event, "a peer with name and address (at most 256)");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_SEQUENCE_END_EVENT) {
            return STATUS_OK;
        }
        TRY(read_peer(reader));
    }
}

static enum status read_mapping(struct reader *reader, const char *prefix);

/* The value after `key`: a scalar sets it, a mapping goes one level down. */
static enum status read_value(struct reader *reader, const char *prefix, const char *key,
                              yaml_mark_t mark)
{
    char name[160];
    yaml_event_t event;
    enum status status = STATUS_OK;
    (void)snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", key);
    if (strcmp(name, "peers") == 0) {
        TRY(at(reader, mark, once(reader, name)));
        return read_peers(reader);
    }
    TRY(next_event(reader, &event));
    if (event.type == YAML_SCALAR_EVENT) {
        status = once(reader, name);
        if (status == STATUS_OK) {
            status = config_set(reader->config, name, (const char *)event.data.scalar.value,
                                CONFIG_FILE, reader->detail);
        }
        status = at(reader, mark, status);
    } else if (event.type == YAML_MAPPING_START_EVENT && prefix[0] == '\0') {
        status = read_mapping(reader, key);
    } else {
        status = unexpected(reader, &event, "a value");
    }
    yaml_event_delete(&event);
    return status;
}

static enum status read_mapping(struct reader *reader, const char *prefix)
{
    char key[64];
    yaml_event_t event;
    for (;;) {
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        const yaml_mark_t mark = event.start_mark;
        enum status status = STATUS_OK;
        if (type == YAML_SCALAR_EVENT) {
            (void)snprintf(key, sizeof key, "%s", (const char *)event.data.scalar.value);
        } else if (type != YAML_MAPPING_END_EVENT) {
            status = unexpected(reader, &event, "`key: value`");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_MAPPING_END_EVENT) {
            return STATUS_OK;
        }
        TRY(read_value(reader, prefix, key, mark));
    }
}

static enum status read_document(struct reader *reader)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        enum status status = STATUS_OK;
        if (type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT) {
            status = unexpected(reader, &event, "`key: value` lines");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_MAPPING_START_EVENT) {
            TRY(read_mapping(reader, ""));
        }
        if (type == YAML_STREAM_END_EVENT || type == YAML_NO_EVENT) {
            return STATUS_OK;
        }
    }
}

enum status config_read_file(struct config *config, const char *path,
                             struct status_detail *out_detail)
{
    struct reader reader = {.config = config, .path = path, .detail = out_detail};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return status_fail(STATUS_CONFIG, out_detail, errno,
                           "configuration %s: %s; name a file with --config", path,
                           strerror(errno));
    }
    if (!yaml_parser_initialize(&reader.parser)) {
        (void)fclose(file);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to read %s", path);
    }
    yaml_parser_set_input_file(&reader.parser, file);
    const enum status status = read_document(&reader);
    yaml_parser_delete(&reader.parser);
    (void)fclose(file);
    return status;
}

/* ---- environment, checks, printing
 * ----------------------------------------------------------------------------- */

/* journal.path is STATEROOM_JOURNAL_PATH. */
static const char *from_environment(const char *name, char *variable, size_t size)
{
    size_t used = (size_t)snprintf(variable, size, "STATEROOM_");
    for (const char *c = name; *c != '\0' && used + 1u < size; c++) {
        variable[used++] = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
    }
    variable[used] = '\0';
    return getenv(variable);
}

static enum status key_from_environment(struct config *config, const char *name,
                                        struct status_detail *out_detail)
{
    char variable[96];
    const char *value = from_environment(name, variable, sizeof variable);
    if (value == NULL) {
        return STATUS_OK;
    }
    const enum status status = config_set(config, name, value, CONFIG_ENVIRONMENT, out_detail);
    if (status != STATUS_OK) {
        const struct status_detail inner = *out_detail;
        return status_fail(STATUS_CONFIG, out_detail, 0, "environment %s: %.200s", variable,
                           inner.text);
    }
    return STATUS_OK;
}

enum status config_read_environment(struct config *config, struct status_detail *out_detail)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        TRY(key_from_environment(config, keys[i].name, out_detail));
    }
    for (const struct policy_key *key = policy_keys(); key->name != NULL; key++) {
        TRY(key_from_environment(config, key->name, out_detail));
    }
    return STATUS_OK;
}

enum status config_check(struct config *config, struct status_detail *out_detail)
{
    if (config->name[0] == '\0' || strlen(config->name) > SM_NAME_BYTES_MAX) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "name: every node needs a name of 1 to %u bytes; add `name: ...`",
                           SM_NAME_BYTES_MAX);
    }
    if (config->settings.heartbeat_bound_ns < 2u * config->settings.heartbeat_interval_ns) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "heartbeat_bound must be at least twice heartbeat_interval");
    }
    if (config->settings.policy.retry_max_ns < config->settings.policy.retry_first_ns) {
        return status_fail(STATUS_CONFIG, out_detail, 0, "retry_max must not be under retry_first");
    }
    for (uint32_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];
        if (peer->name[0] == '\0' || peer->address[0] == '\0' ||
            strcmp(peer->name, config->name) == 0) {
            return status_fail(STATUS_CONFIG, out_detail, 0,
                               "peers: number %u needs an address and a name unlike this node's",
                               i + 1u);
        }
    }
    config->settings.policy.ranks = (uint32_t)config->ranks;
    return STATUS_OK;
}

static void print_row(FILE *out, const char *name, const char *value, uint8_t origin,
                      const char *help)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    if (help != NULL) {
        fprintf(out, "  %-24s %-26s %s\n", name, value[0] != '\0' ? value : "-", help);
    } else {
        fprintf(out, "%-24s %-32s # %s\n", name, value[0] != '\0' ? value : "\"\"",
                origins[origin]);
    }
}

void config_print(const struct config *config, FILE *out, bool help)
{
    char value[CONFIG_TEXT_BYTES];
    for (size_t i = 0; i < KEY_COUNT; i++) {
        const char *field = (const char *)config + keys[i].offset;
        if (keys[i].type == NUMBER || keys[i].type == SIZE) {
            uint64_t number = 0;
            memcpy(&number, field, sizeof number);
            (void)snprintf(value, sizeof value, "%" PRIu64, number);
        } else if (keys[i].type == FLAG) {
            (void)snprintf(value, sizeof value, "%s", config->insecure ? "true" : "false");
        } else {
            (void)snprintf(value, sizeof value, "%s", field);
        }
        print_row(out, keys[i].name, value, config->origins[i], help ? keys[i].help : NULL);
    }
    for (size_t i = 0; policy_keys()[i].name != NULL; i++) {
        policy_get(&config->settings, &policy_keys()[i], value, sizeof value);
        print_row(out, policy_keys()[i].name, value, config->origins[KEY_COUNT + i],
                  help ? policy_keys()[i].help : NULL);
    }
    for (uint32_t i = 0; i < config->peer_count && !help; i++) {
        fprintf(out, "peers[%u]                 %s at %s\n", i, config->peers[i].name,
                config->peers[i].address);
    }
}
