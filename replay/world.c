/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's nodes: steps, entries, gates, process lives, engines. */
#include "world_private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GATE_BYTES ((size_t)256 << 20) /* as a node has it; address space, not memory */
#define ARENA_BYTES ((size_t)32 << 20)

void *world_take(size_t bytes)
{
    void *memory = calloc(1, bytes == 0 ? 1 : bytes);
    if (memory == NULL) {
        fprintf(stderr, "stateroom: no memory for a simulated cluster\n");
        abort();
    }
    return memory;
}

void *world_grow(void *at, uint32_t *capacity, uint32_t count, size_t element)
{
    if (count < *capacity) {
        return at;
    }
    *capacity = *capacity == 0 ? 64u : *capacity * 2u;
    void *grown = realloc(at, *capacity * element);
    if (grown == NULL) {
        fprintf(stderr, "stateroom: no memory for a simulated cluster\n");
        abort();
    }
    return grown;
}

void world_fall(struct world *world, const char *format, ...)
{
    va_list arguments;
    if (world->fault[0] == '\0') {
        va_start(arguments, format);
        (void)vsnprintf(world->fault, sizeof world->fault, format, arguments);
        va_end(arguments);
    }
}

struct sm_text world_text(const char *text)
{
    return (struct sm_text){text, (uint32_t)strlen(text)};
}

uint32_t *world_page_list(const struct sm_runs *runs, uint32_t *out_count)
{
    uint32_t used = 0;
    *out_count = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        *out_count += runs->at[i].count;
    }
    uint32_t *pages = world_take(*out_count * sizeof *pages);
    for (uint32_t i = 0; i < runs->count; i++) {
        for (uint32_t k = 0; k < runs->at[i].count; k++) {
            pages[used++] = runs->at[i].first + k;
        }
    }
    return pages;
}

/* ---- building
 * ------------------------------------------------------------------------------------------- */

void world_node_defaults(struct world_node_options *out)
{
    memset(out, 0, sizeof *out);
    out->ranks = 1;
    out->pool_pages = 1024;
    out->auto_release = true;
    node_settings_default(&out->settings);
    /* What a scenario needs; the tables of a real node would be hundreds of megabytes. */
    out->settings.bounds.halves_max = 1024;
    out->settings.bounds.ranks_max = 8192;
    out->settings.bounds.destinations_max = 4096;
    out->settings.bounds.runs_max = 65536;
    out->settings.bounds.writes_max = 4096;
    out->settings.bounds.tombstones_max = 4096;
    out->settings.bounds.reasons_max = 1024;
    out->settings.bounds.peers_max = WORLD_NODES_MAX;
    out->settings.bounds.aux_slots_max = 16384;
    out->geometry = (struct sm_geometry){16, 2, 8, 256, 2, 1, 0, 0, 0};
}

struct world *world_create(const struct world_options *options, struct status_detail *out_detail)
{
    struct world *world = world_take(sizeof *world);
    (void)out_detail;
    world->options = *options;
    world->random = options->seed * UINT64_C(0x9e3779b97f4a7c15) + 1u;
    world->entry = malloc(ENTRY_BYTES_MAX);
    world->arena_memory = malloc(ARENA_BYTES);
    if (world->arena_memory == NULL || world->entry == NULL) {
        free(world->arena_memory);
        free(world->entry);
        free(world);
        (void)status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a simulated cluster");
        return NULL;
    }
    codec_arena_init(&world->arena, world->arena_memory, ARENA_BYTES);
    for (uint32_t i = 0; i < WORLD_NODES_MAX; i++) {
        for (uint32_t j = 0; j < WORLD_NODES_MAX; j++) {
            world->connections[i][j].latency_ns = 100000;
        }
    }
    return world;
}

static void free_lists(struct node *node)
{
    while (node->destinations != NULL) {
        struct destination *next = node->destinations->next;
        free(node->destinations->pages);
        free(node->destinations);
        node->destinations = next;
    }
    while (node->told != NULL) {
        struct told *next = node->told->next;
        free(node->told);
        node->told = next;
    }
    while (node->releases != NULL) {
        struct release *next = node->releases->next;
        free(node->releases);
        node->releases = next;
    }
    while (node->inbox != NULL) {
        struct event *next = node->inbox->next;
        event_free(node->inbox);
        node->inbox = next;
    }
    node->inbox_end = &node->inbox;
}

void node_forget(struct node *node, uint64_t keep)
{
    while (node->entry_count > keep) {
        free(node->entries[--node->entry_count].bytes);
    }
}

void node_free(struct node *node)
{
    node_forget(node, 0);
    free(node->entries);
    free_lists(node);
    for (uint32_t rank = 0; rank < WORLD_RANKS_MAX; rank++) {
        free(node->stamps[rank]);
    }
    journal_machine_close(&node->machine);
    gate_destroy(node->gate);
    sglang_end(node);
}

void world_destroy(struct world *world)
{
    if (world == NULL) {
        return;
    }
    while (world->heap_count > 0) {
        event_free(event_pop(world));
    }
    for (uint32_t i = 0; i < world->node_count; i++) {
        node_free(&world->nodes[i]);
    }
    for (uint32_t i = 0; i < world->flight_count; i++) {
        free(world->flights[i].pages);
    }
    free(world->heap);
    free(world->rules);
    free(world->aliases);
    free(world->paths);
    free(world->flights);
    free(world->logs);
    free(world->entry);
    free(world->arena_memory);
    free(world);
}

uint32_t world_add_node(struct world *world, const struct world_node_options *options)
{
    const uint32_t index = world->node_count++;
    struct node *node = &world->nodes[index];
    node->options = *options;
    node->inbox_end = &node->inbox;
    struct sm_bounds *bounds = &node->options.settings.bounds;
    bounds->pages_max = options->ranks * options->pool_pages;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        node->stamps[rank] =
            world_take((size_t)options->pool_pages * WORLD_STAMPS * sizeof(struct stamp));
    }
    return index;
}

uint32_t world_node_count(const struct world *world)
{
    return world->node_count;
}

const struct world_node_options *world_node(const struct world *world, uint32_t node)
{
    return &world->nodes[node].options;
}

enum status world_start(struct world *world, struct status_detail *out_detail)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        struct node *node = &world->nodes[i];
        TRY(gate_create(GATE_BYTES, &node->gate, out_detail));
        gate_open_for_all(node->gate,
                          (world->options.protections_off >> SM_PROTECT_JOURNAL_FIRST & 1u) != 0);
        node_start(world, i);
    }
    for (uint32_t i = 0; i < world->node_count; i++) {
        for (uint32_t j = i + 1u; j < world->node_count; j++) {
            net_connect(world, i, j);
        }
    }
    return world->fault[0] == '\0' ? STATUS_OK
                                   : status_fail(STATUS_INVALID, out_detail, 0, "%s", world->fault);
}

/* ---- looking
 * -------------------------------------------------------------------------------------------- */

uint64_t world_now(const struct world *world)
{
    return world->now_ns;
}

uint64_t world_steps(const struct world *world)
{
    return world->steps;
}

const char *world_fault(const struct world *world)
{
    return world->fault[0] != '\0' ? world->fault : NULL;
}

const struct sm *world_machine(const struct world *world, uint32_t node)
{
    return world->nodes[node].state == NODE_RUNS || world->nodes[node].state == NODE_STOPPED
               ? world->nodes[node].machine.sm
               : NULL;
}

bool world_alive(const struct world *world, uint32_t node)
{
    return world->nodes[node].state == NODE_RUNS && !world->nodes[node].frozen;
}

bool world_journal_failed(const struct world *world, uint32_t node)
{
    return world->nodes[node].journal_down;
}

bool world_quiescent(const struct world *world)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        if (world->nodes[i].state == NODE_RUNS && !sm_quiescent(world->nodes[i].machine.sm)) {
            return false;
        }
    }
    return true;
}

uint32_t world_log_count(const struct world *world)
{
    return world->log_count;
}

const struct world_log *world_log_at(const struct world *world, uint32_t index)
{
    return &world->logs[index];
}

uint64_t world_sources(const struct world *world, uint32_t from, uint32_t to, uint32_t to_rank)
{
    const struct world_node_options *d = &world->nodes[to].options;
    const uint32_t tp = world->nodes[from].options.ranks;
    if (d->sources_by_hand[to_rank] != 0) {
        return d->sources_by_hand[to_rank];
    }
    if (tp <= d->ranks) {
        return UINT64_C(1) << (to_rank / (d->ranks / tp));
    }
    const uint32_t share = tp / d->ranks;
    return ((UINT64_C(1) << share) - 1u) << (to_rank * share);
}

uint32_t world_data(const struct world *world, uint32_t index, uint32_t rank, uint64_t room)
{
    const struct node *node = &world->nodes[index];
    const struct destination *d = node->destinations;
    while (d != NULL && (d->room != room || d->rank != rank || d->generation == 0)) {
        d = d->next;
    }
    if (d == NULL || d->from == UINT32_MAX) {
        return WORLD_DATA_NONE;
    }
    const uint64_t sources = world_sources(world, d->from, index, rank);
    uint32_t own = 0;
    uint32_t wanted = 0;
    uint32_t foreign = 0;
    for (uint32_t i = 0; i < d->page_count; i++) {
        for (uint32_t s = 0; s < WORLD_STAMPS; s++) {
            const struct stamp *stamp = &node->stamps[rank][d->pages[i] * WORLD_STAMPS + s];
            const bool ours = stamp->room == room && stamp->generation == d->generation &&
                              stamp->epoch == d->epoch;
            wanted += (uint32_t)(sources >> s & 1u);
            own += ours && (sources >> s & 1u) != 0;
            foreign += stamp->room != 0 && !ours;
        }
    }
    return (own == wanted && foreign == 0 ? (uint32_t)WORLD_DATA_INTACT : 0) |
           (own > 0 && own < wanted ? (uint32_t)WORLD_DATA_PARTIAL : 0) |
           (foreign > 0 ? (uint32_t)WORLD_DATA_FOREIGN : 0);
}

/* How often it was told, or an open of it accepted, since the journal of its node began. */
static uint32_t count_logs(const struct world *world, enum world_log_kind kind,
                           const struct world_log *like)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->log_count; i++) {
        const struct world_log *log = &world->logs[i];
        count += log->kind == kind && log->room == like->room && log->node == like->node &&
                 log->rank == like->rank && log->time_ns >= world->nodes[like->node].wiped_ns;
    }
    return count;
}

const char *world_owed(struct world *world)
{
    for (uint32_t i = 0; i < world->log_count; i++) {
        const struct world_log *log = &world->logs[i];
        const struct node *node = &world->nodes[log->node];
        struct sm_half_view view;
        if (node->state == NODE_DOWN || node->frozen || node->muted[log->rank] ||
            log->time_ns < node->wiped_ns) {
            continue;
        }
        if (log->kind == WORLD_OPENED && log->life == 0 &&
            count_logs(world, WORLD_TOLD, log) == 0) {
            world_fall(world,
                       "no_lost_verdict: room %" PRIu64 ": %s.%u has opened it and waits for ever",
                       log->room, node->options.name, log->rank);
        }
        if (log->kind == WORLD_TOLD &&
            sm_half_find(node->machine.sm, log->room, node->options.side, &view) &&
            view.generation == log->generation && view.outcome != log->outcome) {
            world_fall(world,
                       "one_verdict: room %" PRIu64 ": %s.%u was told %s and the node knows %s",
                       log->room, node->options.name, log->rank, sm_outcome_name(log->outcome),
                       sm_outcome_name(view.outcome));
        }
    }
    return world_fault(world);
}

/* ---- journals
 * ------------------------------------------------------------------------------------------- */

enum status world_save_journal(const struct world *world, uint32_t index, const char *path,
                               struct status_detail *out_detail)
{
    const struct node *node = &world->nodes[index];
    const struct journal_options options = {.path = path, .mode = JOURNAL_PROCESS};
    struct journal *journal = NULL;
    struct codec_arena arena = world->arena;
    uint64_t epoch = 0;
    TRY(journal_open(&options, &journal, out_detail));
    uint64_t *also = world_take(SM_TRANSITIONS_MAX * sizeof *also);
    enum status status = STATUS_OK;
    for (uint64_t i = 0; i < node->durable && status == STATUS_OK; i++) {
        struct codec_entry entry;
        codec_arena_reset(&arena);
        status = codec_entry_unpack(node->entries[i].bytes, node->entries[i].size, &arena, &entry);
        if (status != STATUS_OK) {
            break;
        }
        const uint32_t count =
            journal_other_rooms(entry.transitions, entry.transition_count, entry.input.room, also);
        const struct journal_record record = {
            i + 1u, node->entries[i].room, 0, node->entries[i].bytes, node->entries[i].size, also,
            count};
        epoch = entry.input.kind == SM_IN_NODE_STARTED ? entry.input.u.node_started.epoch : epoch;
        status = journal_append(journal, &record);
    }
    status = status == STATUS_OK ? journal_note_epoch(journal, epoch) : status;
    status = status == STATUS_OK ? journal_commit(journal) : status;
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(journal);
    }
    free(also);
    journal_close(journal);
    return status;
}
