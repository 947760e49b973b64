/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, environment, flags, and what must fit together. */
#include "coordinator/config.h"

#include "fabric/peer.h"
#include "schemas/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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
     UINT64_C(1) << 46, NULL, "how large a segment may grow (address space, not memory)"},
    {"journal.segment_bytes", SIZE, offsetof(struct config, segment_bytes), "1GiB", 1u << 20,
     UINT64_C(1) << 46, NULL, "a segment over this is followed by another at the next snapshot"},
    {"journal.keep_bytes", SIZE, offsetof(struct config, keep_bytes), "64GiB", 0, UINT64_C(1) << 60,
     NULL, "while the journal is larger, its oldest segments are removed; 0: they never are"},
    {"journal.keep_hours", NUMBER, offsetof(struct config, keep_hours), "0", 0, 1000000, NULL,
     "segments whose last entry is older are removed; 0: they never are"},
    {"fabric.provider", TEXT, offsetof(struct config, provider), "auto", 0, 0, NULL,
     "auto, tcp, shm, or a libfabric provider; both sides must use the same"},
    {"fabric.address", TEXT, offsetof(struct config, fabric_address), "127.0.0.1", 0, 0, NULL,
     "this host's address for the data plane"},
    {"fabric.window", NUMBER, offsetof(struct config, window), "64", 1, 4096, NULL,
     "operations in flight to one peer"},
    {"verify_pages", FLAG, offsetof(struct config, verify_pages), "false", 0, 0, NULL,
     "read back what was written into a pool and compare it with what was sent, before a room "
     "succeeds; either side may ask for it"},
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

bool config_text_sound(const char *text)
{
    const size_t size = strlen(text);
    for (size_t at = 0; at < size;) {
        const size_t bytes = text_character(text + at, size - at);
        if (bytes == 0 || !text_printable(text + at, bytes)) {
            return false;
        }
        at += bytes;
    }
    return true;
}

static enum status set_text(char *field, const struct key *key, const char *value,
                            struct status_detail *out_detail)
{
    if (strlen(value) >= CONFIG_TEXT_BYTES) {
        return status_fail(STATUS_CONFIG, out_detail, 0, "%s: longer than %u bytes", key->name,
                           CONFIG_TEXT_BYTES - 1u);
    }
    if (!config_text_sound(value)) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "%s: the value has a control character or is not UTF-8", key->name);
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
        *(bool *)(void *)field = value[0] == 't';
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
    if (strcmp(name, "peers") == 0) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "peers: a list, which only the file can hold: peers: [{name: NAME, "
                           "address: ADDRESS}]");
    }
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
                                        struct config_faults *faults)
{
    char variable[96];
    struct status_detail detail;
    const char *value = from_environment(name, variable, sizeof variable);
    if (value == NULL ||
        config_set(config, name, value, CONFIG_ENVIRONMENT, &detail) == STATUS_OK) {
        return STATUS_OK;
    }
    return config_fault(faults, "environment %s: %.220s", variable, detail.text);
}

enum status config_read_environment(struct config *config, struct config_faults *faults)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        const enum status one = key_from_environment(config, keys[i].name, faults);
        status = one != STATUS_OK ? one : status;
    }
    for (const struct policy_key *key = policy_keys(); key->name != NULL; key++) {
        const enum status one = key_from_environment(config, key->name, faults);
        status = one != STATUS_OK ? one : status;
    }
    return status;
}

enum status config_fault(struct config_faults *faults, const char *format, ...)
{
    va_list arguments;
    if (faults->count == CONFIG_FAULTS_MAX) {
        faults->more++;
        return STATUS_CONFIG;
    }
    va_start(arguments, format);
    (void)vsnprintf(faults->at[faults->count].text, STATUS_DETAIL_BYTES, format, arguments);
    va_end(arguments);
    faults->count++;
    return STATUS_CONFIG;
}

/* Names stand in file names, logs and commands: nothing there may need quotes. */
static bool name_sound(const char *name)
{
    for (const char *c = name; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && strchr("._-", *c) == NULL) {
            return false;
        }
    }
    return name[0] != '\0' && strlen(name) <= SM_NAME_BYTES_MAX;
}

static void check_addresses(const struct config *config, struct config_faults *faults)
{
    struct status_detail detail;
    if (peer_address_check(config->listen, true, config->insecure, &detail) != STATUS_OK) {
        (void)config_fault(faults, "listen: %.280s", detail.text);
    }
    for (uint32_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];
        if (peer->address[0] != '\0' &&
            peer_address_check(peer->address, false, true, &detail) != STATUS_OK) {
            (void)config_fault(faults, "peers: %s: %.280s", peer->name, detail.text);
        }
    }
    if (config->engines[0] != '/') {
        (void)config_fault(faults, "engines: '%s' is not an absolute path", config->engines);
    }
}

static void check_peers(const struct config *config, struct config_faults *faults)
{
    for (uint32_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];
        if (peer->name[0] != '\0' && !name_sound(peer->name)) {
            (void)config_fault(faults, "peers: the name '%s' may have letters, digits, . _ -",
                               peer->name);
        }
        if (peer->name[0] == '\0' || peer->address[0] == '\0') {
            (void)config_fault(faults, "peers: number %u needs a name and an address", i + 1u);
        } else if (strcmp(peer->name, config->name) == 0) {
            (void)config_fault(faults, "peers: number %u has this node's own name, %s", i + 1u,
                               peer->name);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (peer->name[0] != '\0' && strcmp(peer->name, config->peers[j].name) == 0) {
                (void)config_fault(faults,
                                   "peers: numbers %u and %u are both named %s; a name is how "
                                   "engines and journals tell peers apart",
                                   j + 1u, i + 1u, peer->name);
                break;
            }
        }
    }
}

enum status config_check(struct config *config, struct config_faults *faults)
{
    const uint32_t before = faults->count + faults->more;
    if (!name_sound(config->name)) {
        (void)config_fault(faults,
                           "name: every node needs a name of 1 to %u letters, digits, . _ -, and "
                           "'%s' is none; add `name: ...`",
                           SM_NAME_BYTES_MAX, config->name);
    }
    if (config->settings.heartbeat_bound_ns < 2u * config->settings.heartbeat_interval_ns) {
        (void)config_fault(faults, "heartbeat_bound must be at least twice heartbeat_interval");
    }
    if (config->settings.policy.retry_max_ns < config->settings.policy.retry_first_ns) {
        (void)config_fault(faults, "retry_max must not be under retry_first");
    }
    check_peers(config, faults);
    check_addresses(config, faults);
    config->settings.policy.ranks = (uint32_t)config->ranks;
    return faults->count + faults->more == before ? STATUS_OK : STATUS_CONFIG;
}

/* ---- printing
 * ------------------------------------------------------------------------------------------- */

static void quote(char *out, size_t size, const char *text)
{
    size_t used = 0;
    out[used++] = '"';
    for (const char *c = text; *c != '\0' && used + 4u < size; c++) {
        if (*c == '"' || *c == '\\') {
            out[used++] = '\\';
        }
        out[used++] = *c;
    }
    out[used++] = '"';
    out[used] = '\0';
}

static void get_key(const struct config *config, const struct key *key, bool yaml, char *buffer,
                    size_t size)
{
    const char *field = (const char *)config + key->offset;
    uint64_t number = 0;
    if (key->type == NUMBER || key->type == SIZE) {
        memcpy(&number, field, sizeof number);
        (void)snprintf(buffer, size, "%" PRIu64, number);
    } else if (key->type == FLAG) {
        (void)snprintf(buffer, size, "%s", *(const bool *)(const void *)field ? "true" : "false");
    } else if (yaml) {
        quote(buffer, size, field);
    } else {
        (void)snprintf(buffer, size, "%s", field[0] != '\0' ? field : "-");
    }
}

void config_each_key(const struct config *config, bool yaml, config_key_visit visit, void *context)
{
    char value[2u * CONFIG_TEXT_BYTES + 4u];
    for (size_t i = 0; i < KEY_COUNT; i++) {
        get_key(config, &keys[i], yaml, value, sizeof value);
        visit(context, keys[i].name, value, (enum config_origin)config->origins[i], keys[i].help);
    }
    for (size_t i = 0; policy_keys()[i].name != NULL; i++) {
        policy_get(&config->settings, &policy_keys()[i], value, sizeof value);
        visit(context, policy_keys()[i].name, value,
              (enum config_origin)config->origins[KEY_COUNT + i], policy_keys()[i].help);
    }
}

static void print_help(void *context, const char *name, const char *value,
                       enum config_origin origin, const char *help)
{
    (void)origin;
    fprintf(context, "  %-24s %-26s %s\n", name, value, help);
}

static void print_value(void *context, const char *name, const char *value,
                        enum config_origin origin, const char *help)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    (void)help;
    fprintf(context, "%s: %-*s # %s\n", name, (int)(40u - strlen(name)), value, origins[origin]);
}

static void print_example(void *context, const char *name, const char *value,
                          enum config_origin origin, const char *help)
{
    (void)origin;
    fprintf(context, "# %s\n#%s: %s\n", help, name, value);
}

static const char example_head[] =
    "# A node's configuration, made by stateroomd --print-example: every key with its default.\n"
    "# Remove the # in front of what you change; `name` must be given. journal.path may also be\n"
    "# written as a mapping, journal: {path: ...}, and as STATEROOM_JOURNAL_PATH in the "
    "environment;\n"
    "# flags (--set KEY=VALUE) win over both. Durations: 250ms, 30s, 10min, 1h. Sizes: 64MiB.\n\n";

void config_print(const struct config *config, FILE *out, enum config_print how)
{
    char name[2u * CONFIG_TEXT_BYTES + 4u];
    char address[2u * CONFIG_TEXT_BYTES + 4u];
    if (how == CONFIG_PRINT_HELP) {
        config_each_key(config, false, print_help, out);
        print_help(out, "peers", "-", CONFIG_DEFAULT, CONFIG_PEERS_HELP);
        return;
    }
    if (how == CONFIG_PRINT_EXAMPLE) {
        fprintf(out, "%s", example_head);
    }
    config_each_key(config, true, how == CONFIG_PRINT_EXAMPLE ? print_example : print_value, out);
    if (how == CONFIG_PRINT_EXAMPLE) {
        fprintf(out, "# %s\n#peers:\n#  - {name: D, address: \"tcp://10.0.0.2:7600\"}\n",
                CONFIG_PEERS_HELP);
        return;
    }
    fprintf(out, config->peer_count == 0 ? "peers: []\n" : "peers:\n");
    for (uint32_t i = 0; i < config->peer_count; i++) {
        quote(name, sizeof name, config->peers[i].name);
        quote(address, sizeof address, config->peers[i].address);
        fprintf(out, "  - {name: %s, address: %s}\n", name, address);
    }
}
