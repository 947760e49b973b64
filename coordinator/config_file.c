/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: YAML, one level of mappings, and a list of peers. */
#include "coordinator/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define KEY_BYTES 64u
#define DEPTH_MAX 32u
#define NAME_BYTES (2u * KEY_BYTES)

struct reader {
    struct config *config;
    const char *name;
    yaml_parser_t parser;
    struct config_faults *faults;
    char seen[CONFIG_KEYS_MAX][NAME_BYTES];
    size_t seen_count;
};

static void fault_at(struct reader *reader, yaml_mark_t mark, const char *text)
{
    (void)config_fault(reader->faults, "%.120s:%zu:%zu: %.190s", reader->name, mark.line + 1u,
                       mark.column + 1u, text);
}

/* STATUS_CONFIG: the rest cannot be read; the fault has been told. */
static enum status next_event(struct reader *reader, yaml_event_t *out_event)
{
    if (yaml_parser_parse(&reader->parser, out_event)) {
        return STATUS_OK;
    }
    char text[160];
    (void)snprintf(text, sizeof text, "not YAML: %.140s",
                   reader->parser.problem != NULL ? reader->parser.problem : "");
    fault_at(reader, reader->parser.problem_mark, text);
    return STATUS_CONFIG;
}

/* Takes the rest of the node that `first` begins. */
static enum status skip(struct reader *reader, yaml_event_type_t first)
{
    uint32_t depth = first == YAML_MAPPING_START_EVENT || first == YAML_SEQUENCE_START_EVENT;
    while (depth > 0) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        if (depth > DEPTH_MAX) {
            /* libyaml's time grows with the square of the depth. */
            fault_at(reader, event.start_mark, "nested too deeply");
            yaml_event_delete(&event);
            return STATUS_CONFIG;
        }
        depth += event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT;
        depth -= event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT;
        yaml_event_delete(&event);
    }
    return STATUS_OK;
}

static enum status unexpected(struct reader *reader, const yaml_event_t *event,
                              const char *expected)
{
    char text[128];
    (void)snprintf(text, sizeof text, "expected %s here", expected);
    fault_at(reader, event->start_mark, text);
    return skip(reader, event->type);
}

/* A scalar as a string; false: it holds a zero byte or is too long for `size`. */
static bool scalar_text(const yaml_event_t *event, char *out, size_t size)
{
    const char *value = (const char *)event->data.scalar.value;
    const size_t length = event->data.scalar.length;
    if (length >= size || memchr(value, 0, length) != NULL) {
        return false;
    }
    memcpy(out, value, length);
    out[length] = '\0';
    return true;
}

static bool stands_twice(struct reader *reader, const char *name)
{
    for (size_t i = 0; i < reader->seen_count; i++) {
        if (strcmp(reader->seen[i], name) == 0) {
            return true;
        }
    }
    if (reader->seen_count < CONFIG_KEYS_MAX) {
        (void)snprintf(reader->seen[reader->seen_count++], sizeof reader->seen[0], "%s", name);
    }
    return false;
}

/* ---- peers
 * ---------------------------------------------------------------------------------------------- */

static void peer_value(struct reader *reader, struct config_peer *peer, const char *key,
                       yaml_mark_t mark, const yaml_event_t *event)
{
    char value[CONFIG_TEXT_BYTES];
    const bool is_name = strcmp(key, "name") == 0;
    if (!is_name && strcmp(key, "address") != 0) {
        char text[160];
        (void)snprintf(text, sizeof text, "a peer has `name` and `address`, and no '%.60s'", key);
        fault_at(reader, mark, text);
    } else if (!scalar_text(event, value, is_name ? sizeof peer->name : sizeof peer->address) ||
               !config_text_sound(value)) {
        fault_at(reader, mark,
                 is_name ? "a peer's name has at most 63 bytes and no control characters"
                         : "a peer's address has at most 255 bytes and no control characters");
    } else {
        (void)snprintf(is_name ? peer->name : peer->address,
                       is_name ? sizeof peer->name : sizeof peer->address, "%s", value);
    }
}

/* { name: D, address: tcp://... } after its mapping has begun. */
static enum status read_peer(struct reader *reader, struct config_peer *peer)
{
    memset(peer, 0, sizeof *peer);
    for (;;) {
        char key[KEY_BYTES];
        yaml_event_t event;
        TRY(next_event(reader, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return STATUS_OK;
        }
        const yaml_mark_t mark = event.start_mark;
        const bool sound = event.type == YAML_SCALAR_EVENT && scalar_text(&event, key, sizeof key);
        enum status status =
            sound ? STATUS_OK : unexpected(reader, &event, "`name: TEXT` or `address: TEXT`");
        yaml_event_delete(&event);
        TRY(status);
        TRY(next_event(reader, &event));
        if (sound && event.type == YAML_SCALAR_EVENT) {
            peer_value(reader, peer, key, mark, &event);
        } else {
            status = sound ? unexpected(reader, &event, "a text") : skip(reader, event.type);
        }
        yaml_event_delete(&event);
        TRY(status);
    }
}

static enum status read_peers(struct reader *reader, const yaml_event_t *first)
{
    struct config *config = reader->config;
    if (first->type != YAML_SEQUENCE_START_EVENT) {
        return unexpected(reader, first, "a list of peers, each with name and address,");
    }
    config->peer_count = 0;
    for (;;) {
        yaml_event_t event;
        enum status status = STATUS_OK;
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        if (type == YAML_MAPPING_START_EVENT && config->peer_count < CONFIG_PEERS_MAX) {
            status = read_peer(reader, &config->peers[config->peer_count]);
            config->peer_count += status == STATUS_OK ? 1u : 0u;
        } else if (type != YAML_SEQUENCE_END_EVENT) {
            status = unexpected(reader, &event, "a peer with name and address (at most 256)");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_SEQUENCE_END_EVENT) {
            return STATUS_OK;
        }
    }
}

/* ---- keys
 * -----------------------------------------------------------------------------------------------
 */

static void set_scalar(struct reader *reader, const char *name, yaml_mark_t mark,
                       const yaml_event_t *event)
{
    char value[CONFIG_TEXT_BYTES];
    char text[STATUS_DETAIL_BYTES];
    struct status_detail detail;
    if (stands_twice(reader, name)) {
        (void)snprintf(text, sizeof text, "%s stands twice", name);
        fault_at(reader, mark, text);
    } else if (!scalar_text(event, value, sizeof value)) {
        (void)snprintf(text, sizeof text,
                       "%s: the value is longer than %u bytes or has a zero byte", name,
                       CONFIG_TEXT_BYTES - 1u);
        fault_at(reader, mark, text);
    } else if (config_set(reader->config, name, value, CONFIG_FILE, &detail) != STATUS_OK) {
        fault_at(reader, mark, detail.text);
    }
}

static enum status read_mapping(struct reader *reader, const char *prefix);

/* The value after `key`: a scalar sets it, a mapping goes one level down. */
static enum status read_value(struct reader *reader, const char *prefix, const char *key,
                              yaml_mark_t mark)
{
    char name[NAME_BYTES];
    char expected[NAME_BYTES + 32u];
    yaml_event_t event;
    enum status status = STATUS_OK;
    (void)snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", key);
    TRY(next_event(reader, &event));
    if (strcmp(name, "peers") == 0) {
        if (stands_twice(reader, name)) {
            fault_at(reader, mark, "peers stands twice");
            status = skip(reader, event.type);
        } else {
            status = read_peers(reader, &event);
        }
    } else if (event.type == YAML_SCALAR_EVENT) {
        set_scalar(reader, name, mark, &event);
    } else if (event.type == YAML_MAPPING_START_EVENT && prefix[0] == '\0') {
        status = read_mapping(reader, key);
    } else {
        (void)snprintf(expected, sizeof expected, "a value for %s", name);
        status = unexpected(reader, &event, expected);
    }
    yaml_event_delete(&event);
    return status;
}

static enum status read_mapping(struct reader *reader, const char *prefix)
{
    for (;;) {
        char key[KEY_BYTES];
        yaml_event_t event;
        enum status status = STATUS_OK;
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        const yaml_mark_t mark = event.start_mark;
        const bool sound = type == YAML_SCALAR_EVENT && scalar_text(&event, key, sizeof key);
        if (!sound && type != YAML_MAPPING_END_EVENT) {
            status = unexpected(reader, &event, "`key: value`");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_MAPPING_END_EVENT) {
            return STATUS_OK;
        }
        if (sound) {
            TRY(read_value(reader, prefix, key, mark));
        } else {
            TRY(next_event(reader, &event));
            status = skip(reader, event.type);
            yaml_event_delete(&event);
            TRY(status);
        }
    }
}

static enum status read_documents(struct reader *reader)
{
    for (;;) {
        yaml_event_t event;
        enum status status = STATUS_OK;
        TRY(next_event(reader, &event));
        const yaml_event_type_t type = event.type;
        if (type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT ||
            type == YAML_ALIAS_EVENT) {
            status = unexpected(reader, &event, "`key: value` lines");
        } else if (type == YAML_MAPPING_START_EVENT) {
            status = read_mapping(reader, "");
        }
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_STREAM_END_EVENT || type == YAML_NO_EVENT) {
            return STATUS_OK;
        }
    }
}

enum status config_read_text(struct config *config, const char *name, const char *bytes,
                             size_t size, struct config_faults *faults)
{
    const uint32_t before = faults->count + faults->more;
    struct reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL || !yaml_parser_initialize(&reader->parser)) {
        free(reader);
        return config_fault(faults, "no memory to read %.200s", name);
    }
    reader->config = config;
    reader->name = name;
    reader->faults = faults;
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)bytes, size);
    const enum status status = read_documents(reader);
    yaml_parser_delete(&reader->parser);
    free(reader);
    return status == STATUS_OK && faults->count + faults->more == before ? STATUS_OK
                                                                         : STATUS_CONFIG;
}

enum status config_read_file(struct config *config, const char *path, struct config_faults *faults)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return config_fault(faults, "configuration %.200s: %s; name a file with --config", path,
                            strerror(errno));
    }
    char *bytes = malloc(CONFIG_FILE_BYTES_MAX + 1u);
    errno = 0;
    const size_t size = bytes == NULL ? 0 : fread(bytes, 1, CONFIG_FILE_BYTES_MAX + 1u, file);
    const int error = bytes == NULL ? ENOMEM : ferror(file) ? errno : 0;
    (void)fclose(file);
    enum status status = STATUS_CONFIG;
    if (error != 0) {
        (void)config_fault(faults, "configuration %.200s: %s; name a file with --config", path,
                           strerror(error));
    } else if (size > CONFIG_FILE_BYTES_MAX) {
        (void)config_fault(faults, "configuration %.200s: larger than 1 MiB", path);
    } else {
        status = config_read_text(config, path, bytes, size, faults);
    }
    free(bytes);
    return status;
}
