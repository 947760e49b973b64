/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's nodes: steps, entries, gates, process lives, engines. */
#include "world_private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define GATE_BYTES ((size_t)256 << 20) /* as a node has it; address space, not memory */
#define ARENA_BYTES ((size_t)32 << 20)
#define SEAT_BUCKETS 256u /* at first */

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

uint32_t *world_page_list(struct world *world, const struct sm_runs *runs, uint32_t *out_count)
{
    uint32_t used = 0;
    *out_count = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        *out_count += runs->at[i].count;
    }
    uint32_t *pages = chunks_take(&world->memory, *out_count * sizeof *pages);
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

static void begin(struct world *world, const struct world_options *options)
{
    world->options = *options;
    world->random = options->seed * UINT64_C(0x9e3779b97f4a7c15) + 1u;
    for (uint32_t i = 0; i < WORLD_NODES_MAX; i++) {
        for (uint32_t j = 0; j < WORLD_NODES_MAX; j++) {
            world->connections[i][j].latency_ns = 100000;
        }
    }
}

struct world *world_create(const struct world_options *options, struct status_detail *out_detail)
{
    struct world *world = calloc(1, sizeof *world);
    if (world == NULL || (world->entry = malloc(ENTRY_BYTES_MAX)) == NULL ||
        (world->arena_memory = malloc(ARENA_BYTES)) == NULL ||
        (world->seats = calloc(SEAT_BUCKETS, sizeof(struct seat *))) == NULL) {
        world_destroy(world);
        (void)status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a simulated cluster");
        return NULL;
    }
    world->seat_buckets = SEAT_BUCKETS;
    codec_arena_init(&world->arena, world->arena_memory, ARENA_BYTES);
    begin(world, options);
    return world;
}

void world_renew(struct world *world, const struct world_options *options)
{
    for (uint32_t i = 0; i < WORLD_NODES_MAX; i++) {
        struct node *node = &world->nodes[i];
        sglang_end(node);
        memset(node, 0, offsetof(struct node, machine));
    }
    memset(world, 0, offsetof(struct world, nodes));
    memset(world->seats, 0, world->seat_buckets * sizeof(struct seat *));
    chunks_reset(&world->memory);
    begin(world, options);
}

void world_destroy(struct world *world)
{
    if (world == NULL) {
        return;
    }
    for (uint32_t i = 0; i < WORLD_NODES_MAX; i++) {
        sglang_end(&world->nodes[i]);
        journal_machine_close(&world->nodes[i].machine);
        gate_destroy(world->nodes[i].gate);
        free(world->nodes[i].entries);
    }
    free(world->heap);
    free(world->rules);
    free(world->aliases);
    free(world->paths);
    free(world->flights);
    free(world->logs);
    free(world->seats);
    free(world->entry);
    free(world->arena_memory);
    chunks_free(&world->memory);
    free(world);
}

uint32_t world_add_node(struct world *world, const struct world_node_options *options)
{
    const uint32_t index = world->node_count++;
    struct node *node = &world->nodes[index];
    node->options = *options;
    node->name_size = strlen(options->name);
    node->inbox_end = &node->inbox;
    struct sm_bounds *bounds = &node->options.settings.bounds;
    bounds->pages_max = options->ranks * options->pool_pages;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        node->stamps[rank] = chunks_take_zeroed(
            &world->memory, (size_t)options->pool_pages * WORLD_STAMPS * sizeof(struct stamp));
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
        if (node->gate == NULL) {
            TRY(gate_create(GATE_BYTES, &node->gate, out_detail));
        }
        gate_drop_after(node->gate, 0);
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

/* ---- seats
 * ---------------------------------------------------------------------------------------------- */

static uint32_t seat_hash(uint32_t node, uint32_t rank, uint64_t room)
{
    const uint64_t key = room * WORLD_NODES_MAX * WORLD_RANKS_MAX + node * WORLD_RANKS_MAX + rank;
    return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

const struct seat *world_seat_find(const struct world *world, uint32_t node, uint32_t rank,
                                   uint64_t room)
{
    const struct seat *seat =
        world->seats[seat_hash(node, rank, room) & (world->seat_buckets - 1u)];
    while (seat != NULL && (seat->room != room || seat->node != node || seat->rank != rank)) {
        seat = seat->next;
    }
    return seat;
}

static void seat_place(struct world *world, struct seat *seat)
{
    const uint32_t hash = seat_hash(seat->node, seat->rank, seat->room);
    struct seat **bucket = &world->seats[hash & (world->seat_buckets - 1u)];
    seat->next = *bucket;
    *bucket = seat;
}

static void grow_seats(struct world *world)
{
    struct seat **old = world->seats;
    const uint32_t count = world->seat_buckets;
    world->seats = calloc((size_t)count * 4u, sizeof(struct seat *));
    if (world->seats == NULL) {
        fprintf(stderr, "stateroom: no memory for a simulated cluster\n");
        abort();
    }
    world->seat_buckets = count * 4u;
    for (uint32_t i = 0; i < count; i++) {
        while (old[i] != NULL) {
            struct seat *seat = old[i];
            old[i] = seat->next;
            seat_place(world, seat);
        }
    }
    free(old);
}

struct seat *world_seat(struct world *world, uint32_t node, uint32_t rank, uint64_t room)
{
    /* The world is writable, and so are its seats. */
    struct seat *seat = (struct seat *)(uintptr_t)world_seat_find(world, node, rank, room);
    if (seat != NULL) {
        return seat;
    }
    if (world->seat_count >= world->seat_buckets) {
        grow_seats(world);
    }
    world->seat_count++;
    seat = chunks_take_zeroed(&world->memory, sizeof *seat);
    seat->room = room;
    seat->node = node;
    seat->rank = rank;
    seat_place(world, seat);
    return seat;
}

uint32_t world_data(const struct world *world, uint32_t index, uint32_t rank, uint64_t room)
{
    const struct node *node = &world->nodes[index];
    const struct seat *seat = world_seat_find(world, index, rank, room);
    const struct destination *d = seat == NULL ? NULL : seat->destinations;
    while (d != NULL && d->generation == 0) {
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

/* Whether it was told anything since the journal of its node began. */
static bool told_any(const struct world *world, const struct seat *seat)
{
    return seat->told_ever && seat->told_ns >= world->nodes[seat->node].wiped_ns;
}

const char *world_owed(struct world *world)
{
    for (uint32_t i = 0; i < world->log_count; i++) {
        const struct world_log *log = &world->logs[i];
        const struct node *node = &world->nodes[log->node];
        struct sm_half_view view;
        if ((log->kind != WORLD_OPENED && log->kind != WORLD_TOLD) || node->state == NODE_DOWN ||
            node->frozen || node->muted[log->rank] || log->time_ns < node->wiped_ns) {
            continue;
        }
        const struct seat *seat = world_seat_find(world, log->node, log->rank, log->room);
        if (log->kind == WORLD_OPENED && i >= seat->let_go && !told_any(world, seat)) {
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

uint64_t world_journal_digest(const struct world *world)
{
    uint64_t digest = world->node_count;
    for (uint32_t i = 0; i < world->node_count; i++) {
        const struct node *node = &world->nodes[i];
        digest = XXH3_64bits_withSeed(&node->durable, sizeof node->durable, digest);
        for (uint64_t k = 0; k < node->durable; k++) {
            digest = XXH3_64bits_withSeed(node->entries[k].bytes, node->entries[k].size, digest);
        }
    }
    return digest;
}

enum status world_save_journal(const struct world *world, uint32_t index, const char *path,
                               struct status_detail *out_detail)
{
    const struct node *node = &world->nodes[index];
    const struct journal_options options = {.path = path, .mode = JOURNAL_PROCESS};
    struct journal *journal = NULL;
    struct codec_arena arena = world->arena;
    uint64_t epoch = 0;
    TRY(journal_open(&options, &journal, out_detail));
    uint64_t *also = malloc(SM_TRANSITIONS_MAX * sizeof *also);
    if (also == NULL) {
        journal_close(journal);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory to write a journal");
    }
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
