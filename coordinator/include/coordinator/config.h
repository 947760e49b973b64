/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of a node: a YAML file, STATEROOM_* in the environment, flags; a later one
 * wins.
 *
 * Layer: libyaml; one table of keys from which parser, --help, --print-config and the example file
 * come.
 *
 * Failure: STATUS_CONFIG with FILE:LINE:COLUMN, the key, and what was expected.
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
    uint64_t window;
    uint64_t ranks;
    bool insecure;
    struct config_peer peers[CONFIG_PEERS_MAX];
    uint32_t peer_count;
    struct node_settings settings;
    uint8_t origins[CONFIG_KEYS_MAX]; /* by row of the table */
};

void config_default(struct config *out_config);
enum status config_read_file(struct config *config, const char *path,
                             struct status_detail *out_detail);
enum status config_read_environment(struct config *config, struct status_detail *out_detail);
/* One key from text: flags use it. */
enum status config_set(struct config *config, const char *key, const char *value,
                       enum config_origin origin, struct status_detail *out_detail);
/* What must fit together: name given, heartbeats, peers unlike us. */
enum status config_check(struct config *config, struct status_detail *out_detail);
/* Every key with its value and where it comes from; `help`: with its text instead. */
void config_print(const struct config *config, FILE *out, bool help);

#endif
