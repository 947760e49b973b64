/* SPDX-License-Identifier: Apache-2.0 */
/* The node as a library of an engine's process. */
#include "stateroom/stateroom_node.h"

#include "coordinator/log.h"
#include "coordinator/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define SETTING_BYTES 512u
#define ALIGNMENT 64u

struct stateroom_node {
    struct node *node;
    struct config config;
    struct engine_memory memory[SM_RANKS_MAX];
};

static enum status set_one(struct config *config, const char *setting,
                           struct status_detail *out_detail)
{
    char copy[SETTING_BYTES];
    const int length = snprintf(copy, sizeof copy, "%s", setting);
    char *equals = strchr(copy, '=');
    if (length < 0 || (size_t)length >= sizeof copy || equals == NULL) {
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "setting \"%.100s\": write KEY=VALUE, in at most %u bytes", setting,
                           SETTING_BYTES - 1u);
    }
    *equals = '\0';
    return config_set(config, copy, equals + 1, CONFIG_FLAG, out_detail);
}

static enum status configure(struct stateroom_node *node,
                             const struct stateroom_node_options *options,
                             struct status_detail *out_detail)
{
    struct config_faults *faults = calloc(1, sizeof *faults);
    enum status status = STATUS_OK;
    if (faults == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a node");
    }
    config_default(&node->config);
    if (options->config != NULL) {
        status = config_read_file(&node->config, options->config, faults);
    }
    status = config_read_environment(&node->config, faults) == STATUS_OK ? status : STATUS_CONFIG;
    for (size_t i = 0; i < options->setting_count && status == STATUS_OK; i++) {
        status = set_one(&node->config, options->settings[i], &faults->at[0]);
    }
    if (status == STATUS_OK) {
        status = config_check(&node->config, faults);
    }
    *out_detail = faults->at[0];
    free(faults);
    return status;
}

static enum status take_memory(struct stateroom_node *node,
                               const struct stateroom_node_options *options,
                               struct status_detail *out_detail)
{
    for (size_t i = 0; i < options->memory_count; i++) {
        const struct stateroom_node_memory *from = &options->memory[i];
        if (from->rank >= node->config.ranks || from->at == NULL || from->bytes == 0 ||
            (uintptr_t)from->at % ALIGNMENT != 0) {
            return status_fail(STATUS_INVALID, out_detail, 0,
                               "memory %zu: rank %u at %p, %llu bytes: the rank must be below %llu "
                               "(ranks) and the memory aligned to %u bytes and not empty",
                               i, from->rank, from->at, (unsigned long long)from->bytes,
                               (unsigned long long)node->config.ranks, ALIGNMENT);
        }
        if (node->memory[from->rank].at != NULL) {
            return status_fail(STATUS_INVALID, out_detail, 0,
                               "memory %zu: rank %u has memory already: one pool a rank", i,
                               from->rank);
        }
        node->memory[from->rank].at = from->at;
        node->memory[from->rank].bytes = from->bytes;
    }
    return STATUS_OK;
}

EXPORT bool stateroom_node_start(const struct stateroom_node_options *options,
                                 struct stateroom_node **out_node, char *text, size_t text_size)
{
    struct status_detail detail = {"", 0};
    struct stateroom_node *node = calloc(1, sizeof *node);
    enum status status = STATUS_NO_MEMORY;
    *out_node = NULL;
    if (node != NULL) {
        status = configure(node, options, &detail);
        status = status == STATUS_OK ? take_memory(node, options, &detail) : status;
        if (status == STATUS_OK) {
            log_setup(node->config.name, node->config.log_format, node->config.log_level);
            status = node_start(&node->config, node->memory, &node->node, &detail);
        }
    }
    if (status == STATUS_OK) {
        *out_node = node;
        return true;
    }
    if (text != NULL && text_size > 0) {
        (void)snprintf(text, text_size, "%s",
                       detail.text[0] != '\0' ? detail.text : status_text(status));
    }
    free(node);
    return false;
}

EXPORT void stateroom_node_stop(struct stateroom_node *node)
{
    node_stop(node->node);
}

EXPORT bool stateroom_node_wait(struct stateroom_node *node, uint32_t timeout_ms)
{
    return node_wait(node->node, timeout_ms);
}

EXPORT void stateroom_node_close(struct stateroom_node *node)
{
    if (node != NULL) {
        node_destroy(node->node);
        free(node);
    }
}
