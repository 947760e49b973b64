/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of a node: a YAML file, STATEROOM_* in the environment, flags; a later one
 * wins.
 *
 * Layer: libyaml; one table of keys from which parser, --help, --print-config and the example file
 * come.
 *
 * Failure: STATUS_CONFIG; each fault names FILE:LINE:COLUMN, the key, and what was expected.
 */
#ifndef COORDINATOR_CONFIG_H
#define COORDINATOR_CONFIG_H

#include "coordinator/policy.h"
#include "schemas/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CONFIG_PEERS_MAX 256u
#define CONFIG_TEXT_BYTES 256u

struct config_peer {
    char name[SM_NAME_BYTES_MAX + 1u];
    char address[CONFIG_TEXT_BYTES];
};

enum config_origin { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_FLAG };

#define CONFIG_KEYS_MAX 64u

struct config {
    char name[CONFIG_TEXT_BYTES];
    char listen[CONFIG_TEXT_BYTES];
    char engines[CONFIG_TEXT_BYTES];
    char journal_path[CONFIG_TEXT_BYTES];
    char journal_mode[CONFIG_TEXT_BYTES];
    char provider[CONFIG_TEXT_BYTES];
    char fabric_address[CONFIG_TEXT_BYTES];
    char log_format[CONFIG_TEXT_BYTES];
    char log_level[CONFIG_TEXT_BYTES];
    uint64_t snapshot_every;
    uint64_t map_max;
    uint64_t segment_bytes;
    uint64_t keep_bytes;
    uint64_t keep_hours;
    uint64_t window;
    bool verify_pages;
    uint64_t ranks;
    bool insecure;
    struct config_peer peers[CONFIG_PEERS_MAX];
    uint32_t peer_count;
    struct node_settings settings;
    uint8_t origins[CONFIG_KEYS_MAX]; /* by row of the table */
};

#define CONFIG_FAULTS_MAX 32u
#define CONFIG_FILE_BYTES_MAX ((size_t)1 << 20)

/* Everything that is wrong, so that it can be mended in one go. */
struct config_faults {
    struct status_detail at[CONFIG_FAULTS_MAX];
    uint32_t count;
    uint32_t more; /* that had no room */
};

void config_default(struct config *out_config);
/*
 * STATUS_CONFIG: something was added to `faults`; what was well is set all the same. path may be
 * anything that can be read; more than CONFIG_FILE_BYTES_MAX is a fault.
 */
enum status config_read_file(struct config *config, const char *path, struct config_faults *faults);
/* The same from memory; `name` stands in front of line and column. */
enum status config_read_text(struct config *config, const char *name, const char *bytes,
                             size_t size, struct config_faults *faults);
enum status config_read_environment(struct config *config, struct config_faults *faults);
/* One key from text: flags use it. */
enum status config_set(struct config *config, const char *key, const char *value,
                       enum config_origin origin, struct status_detail *out_detail);
/* What must fit together: name given, heartbeats, peers unlike us and each other. */
enum status config_check(struct config *config, struct config_faults *faults);
/* Adds one (printf format); always STATUS_CONFIG. */
enum status config_fault(struct config_faults *faults, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* UTF-8 without control characters. */
bool config_text_sound(const char *text);

/* Each key but `peers`, in the order of the table; yaml: values as YAML scalars. */
typedef void (*config_key_visit)(void *context, const char *name, const char *value,
                                 enum config_origin origin, const char *help);
void config_each_key(const struct config *config, bool yaml, config_key_visit visit, void *context);
#define CONFIG_PEERS_HELP "list of {name, address}: the nodes that this one talks to"

/* HELP: each key, its value and meaning. VALUES: YAML that reads back as the same, with where each
 * value comes from. EXAMPLE: a file with every key as a comment. */
enum config_print { CONFIG_PRINT_HELP, CONFIG_PRINT_VALUES, CONFIG_PRINT_EXAMPLE };
void config_print(const struct config *config, FILE *out, enum config_print how);

#endif
