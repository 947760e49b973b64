/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a node. */
#include "node_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define NS_PER_HOUR UINT64_C(3600000000000)
#define NODE_RINGS 6u
#define RING_BYTES ((size_t)16 << 20)
#define GATE_BYTES ((size_t)256 << 20)

uint64_t monotonic_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t node_wall_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t node_clock(const struct node *node)
{
    return node->clock_base_ns + (monotonic_ns() - node->clock_start_ns);
}

/* ---- the journal, and the machine out of it
 * -------------------------------------------------------------- */

static enum status open_journal(struct node *node, struct status_detail *out_detail)
{
    const bool process = strcmp(node->config.journal_mode, "process") == 0;
    const struct journal_options options = {
        .path = node->config.journal_path,
        .mode = process ? JOURNAL_PROCESS : JOURNAL_SYNC,
        .map_bytes_max = node->config.map_max,
        .segment_bytes = node->config.segment_bytes,
    };
    TRY(journal_open(&options, &node->journal, out_detail));
    if (journal_power_lost(node->journal)) {
        log_event(LOG_WARNING_LEVEL, "journal.power_lost",
                  "path=%s reason=\"the system went down while a node wrote in mode process: the "
                  "batch that it acknowledged last may be missing; journal.mode: sync loses none\"",
                  node->config.journal_path);
    }
    return STATUS_OK;
}

static enum status recover(struct node *node, struct status_detail *out_detail)
{
    struct journal_replay options;
    struct journal_replayed replayed;
    const uint64_t started = monotonic_ns();
    memset(&options, 0, sizeof options);
    options.from_snapshot = true;
    options.upgrade = true;
    TRY(journal_machine_open(&node->machine, out_detail));
    TRY(journal_replay(node->journal, &node->machine, &options, &replayed, out_detail));
    TRY(journal_machine_lay_out(&node->machine, &node->config.settings.bounds, out_detail));
    const struct sm_text name = sm_node_name(node->machine.sm);
    if (name.size > 0 && (name.size != strlen(node->config.name) ||
                          memcmp(name.bytes, node->config.name, name.size) != 0)) {
        return status_fail(
            STATUS_CONFIG, out_detail, 0,
            "journal %s is of node %.*s and this node's name is %s: change `name` or "
            "journal.path",
            node->config.journal_path, (int)name.size, name.bytes, node->config.name);
    }
    struct journal_identity identity;
    TRY(journal_identity(node->journal, &identity));
    node->node_id = identity.node_id;
    node->epoch = identity.epoch + 1u;
    node->next_entry = replayed.last + 1u;
    node->last_snapshot = replayed.started_at;
    const uint64_t wall_ns = node_wall_ns();
    /* Time goes on while no process runs, and never back. */
    node->clock_base_ns = wall_ns > replayed.last_time_ns ? wall_ns : replayed.last_time_ns + 1u;
    node->clock_start_ns = monotonic_ns();
    if (replayed.version != 0 && replayed.version != SM_MACHINE_VERSION) {
        TRY(journal_machine_begin_segment(node->journal, &node->machine, wall_ns, out_detail));
        log_event(LOG_WARNING_LEVEL, "journal.upgraded",
                  "from_machine_version=%" PRIu32 " to=%u entry=%" PRIu64, replayed.version,
                  SM_MACHINE_VERSION, replayed.last);
    }
    log_event(LOG_INFO_LEVEL, "journal.recovered",
              "path=%s entries=%" PRIu64 " from_snapshot_at=%" PRIu64 " replayed=%" PRIu64
              " ms=%" PRIu64,
              node->config.journal_path, replayed.last, replayed.started_at, replayed.entries,
              (monotonic_ns() - started) / 1000000u);
    return STATUS_OK;
}

/* Steps the start and makes its entry durable; bytes and also are working memory. */
static enum status commit_start(struct node *node, struct codec_entry *entry, unsigned char *bytes,
                                uint64_t *also)
{
    struct journal_machine *machine = &node->machine;
    size_t size = 0;
    sm_step(machine->sm, &entry->input, machine->output);
    entry->digest = machine->output->digest;
    entry->effects = codec_effects_digest(machine->output);
    entry->transitions = machine->output->transitions;
    entry->transition_count = machine->output->transition_count;
    TRY(codec_entry_pack(entry, &machine->scratch, bytes, NODE_ENTRY_BYTES_MAX, &size));
    /* Rooms that were live at the end of the last life get their verdict here. */
    const uint32_t also_count =
        journal_other_rooms(entry->transitions, entry->transition_count, 0, also);
    const struct journal_record record = {node->next_entry, 0, 0, bytes, size, also, also_count};
    TRY(journal_append(node->journal, &record));
    TRY(journal_note_epoch(node->journal, node->epoch));
    return journal_commit(node->journal);
}

/* The first entry of this process life; durable before anything else happens. */
static enum status begin_life(struct node *node, struct status_detail *out_detail)
{
    struct codec_entry entry;
    struct sm_text peers[CONFIG_PEERS_MAX];
    for (uint32_t i = 0; i < node->config.peer_count; i++) {
        peers[i] = (struct sm_text){node->config.peers[i].name,
                                    (uint32_t)strlen(node->config.peers[i].name)};
    }
    memset(&entry, 0, sizeof entry);
    entry.wall_ns = node_wall_ns();
    entry.input.kind = SM_IN_NODE_STARTED;
    entry.input.time_ns = node_clock(node);
    entry.input.u.node_started.node_id = node->node_id;
    entry.input.u.node_started.epoch = node->epoch;
    entry.input.u.node_started.name =
        (struct sm_text){node->config.name, (uint32_t)strlen(node->config.name)};
    entry.input.u.node_started.policy = node->config.settings.policy;
    entry.input.u.node_started.peer_names = peers;
    entry.input.u.node_started.peer_count = node->config.peer_count;
    entry.bounds = node->config.settings.bounds;
    entry.machine_version = SM_MACHINE_VERSION;
    entry.program = (struct sm_text){"stateroomd 0.1.0", 16};
    unsigned char *bytes = malloc(NODE_ENTRY_BYTES_MAX);
    uint64_t *also = calloc(SM_TRANSITIONS_MAX, sizeof *also);
    if (bytes == NULL || also == NULL) {
        free(bytes);
        free(also);
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory");
    }
    const enum status status = commit_start(node, &entry, bytes, also);
    free(bytes);
    free(also);
    if (status != STATUS_OK) {
        *out_detail = *journal_detail(node->journal);
        return status;
    }
    gate_push(node->gate, node->next_entry, node->machine.output);
    node->next_entry++;
    return STATUS_OK;
}

/* ---- queues and planes
 * -------------------------------------------------------------------------------------- */

static struct ring *ring_of(struct node *node, uint32_t index)
{
    struct ring *const rings[NODE_RINGS] = {
        &node->to_machine_from_control, &node->to_machine_from_fabric,
        &node->to_control_from_machine, &node->to_control_from_fabric,
        &node->to_fabric_from_control,  &node->to_fabric_from_machine};
    return rings[index];
}

static enum status open_queues(struct node *node, struct status_detail *out_detail)
{
    for (uint32_t i = 0; i < NODE_RINGS; i++) {
        TRY(ring_open(ring_of(node, i), RING_BYTES, out_detail));
    }
    node->machine_wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return node->machine_wake >= 0
               ? STATUS_OK
               : status_fail(STATUS_SYSTEM, out_detail, errno, "eventfd: %s", strerror(errno));
}

static enum status open_planes(struct node *node, struct status_detail *out_detail)
{
    const struct config *config = &node->config;
    const struct data_options data = {config->provider,
                                      config->fabric_address,
                                      (uint32_t)config->window,
                                      0,
                                      config->settings.bounds.writes_max,
                                      config->verify_pages};
    TRY(data_open(&data, &node->data, out_detail));
    node->zmq_context = zmq_ctx_new();
    if (node->zmq_context == NULL) {
        return status_fail(STATUS_SYSTEM, out_detail, errno, "zmq: %s", zmq_strerror(errno));
    }
    for (uint32_t i = 0; i < config->peer_count; i++) {
        node->addresses[i].name = config->peers[i].name;
        node->addresses[i].address = config->peers[i].address;
    }
    const struct peer_options peers = {config->name,
                                       node->node_id,
                                       node->epoch,
                                       (uint32_t)config->ranks,
                                       config->listen,
                                       data_provider(node->data),
                                       config->insecure,
                                       config->settings.heartbeat_interval_ns,
                                       config->settings.heartbeat_bound_ns,
                                       sm_link_last(node->machine.sm),
                                       node->addresses,
                                       config->peer_count};
    TRY(peer_open(&peers, node->zmq_context, monotonic_ns(), &node->peers, out_detail));
    const struct engine_options engines = {config->engines,         config->name,
                                           node->node_id,           node->epoch,
                                           (uint32_t)config->ranks, node->memory};
    return engine_open(&engines, node->zmq_context, &node->engines, out_detail);
}

static enum status start_threads(struct node *node, struct status_detail *out_detail)
{
    const struct writer_options options = {
        node->machine_wake, {node->config.keep_bytes, node->config.keep_hours * NS_PER_HOUR}};
    TRY(writer_start(node->journal, &options, &node->writer, out_detail));
    void *(*const mains[NODE_THREADS])(void *) = {machine_main, fabric_main, control_main};
    for (; node->threads_started < NODE_THREADS; node->threads_started++) {
        pthread_t *thread = &node->threads[node->threads_started];
        const int error = pthread_create(thread, NULL, mains[node->threads_started], node);
        if (error != 0) {
            return status_fail(STATUS_SYSTEM, out_detail, error,
                               "no thread for the node: %s; see the limits on processes (ulimit "
                               "-u, TasksMax)",
                               strerror(error));
        }
    }
    return STATUS_OK;
}

enum status node_start(const struct config *config, const struct engine_memory *memory,
                       struct node **out_node, struct status_detail *out_detail)
{
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a node");
    }
    node->config = *config;
    node->memory = memory;
    node->machine_wake = -1;
    for (uint32_t i = 0; i < NODE_RINGS; i++) {
        ring_of(node, i)->wake_fd = -1;
    }
    if (config->settings.policy.protections_off != 0) {
        free(node);
        return status_fail(STATUS_CONFIG, out_detail, 0,
                           "a node does not run with a protection switched off");
    }
    enum status status = open_queues(node, out_detail);
    status = status == STATUS_OK ? gate_create(GATE_BYTES, &node->gate, out_detail) : status;
    status = status == STATUS_OK ? open_journal(node, out_detail) : status;
    status = status == STATUS_OK ? recover(node, out_detail) : status;
    /* Addresses and providers that do not work must not cost an entry and an epoch. */
    status = status == STATUS_OK ? open_planes(node, out_detail) : status;
    status = status == STATUS_OK ? begin_life(node, out_detail) : status;
    status = status == STATUS_OK ? start_threads(node, out_detail) : status;
    if (status != STATUS_OK) {
        node_destroy(node);
        return status;
    }
    log_event(LOG_INFO_LEVEL, "node.ready",
              "id=%016" PRIx64 " epoch=%" PRIu64 " listen=%s engines=%s peers=%u fabric=\"%s\"",
              node->node_id, node->epoch, config->listen, config->engines, config->peer_count,
              data_explanation(node->data));
    *out_node = node;
    return STATUS_OK;
}

void node_stop(struct node *node)
{
    const uint64_t one = 1;
    atomic_store(&node->stop_asked, true);
    if (write(node->machine_wake, &one, sizeof one) < 0) {
        return; /* it looks twice a second anyway */
    }
}

void node_log_summary(struct node *node)
{
    const uint64_t one = 1;
    atomic_store(&node->summary_asked, true);
    if (write(node->machine_wake, &one, sizeof one) < 0) {
        return;
    }
}

bool node_wait(struct node *node, uint32_t timeout_ms)
{
    const struct timespec pause = {0, 10000000};
    for (uint32_t waited = 0; waited < timeout_ms; waited += 10u) {
        if (atomic_load(&node->stopped)) {
            return true;
        }
        (void)nanosleep(&pause, NULL);
    }
    return atomic_load(&node->stopped);
}

/*
 * After a graceful stop nothing will be added: a snapshot here makes the next start quick, and is
 * what another version of the machine can go on from.
 */
static void write_last_snapshot(struct node *node)
{
    struct journal_identity identity;
    struct status_detail detail = {"", 0};
    if (!atomic_load(&node->stopped) || node->machine.sm == NULL ||
        journal_identity(node->journal, &identity) != STATUS_OK ||
        identity.last + 1u != node->next_entry) {
        return;
    }
    const enum status status = journal_machine_snapshot(node->journal, &node->machine, &detail);
    if (status != STATUS_OK) {
        log_event(LOG_WARNING_LEVEL, "journal.snapshot_failed", "entry=%" PRIu64 " reason=\"%s\"",
                  identity.last, detail.text);
    }
}

void node_destroy(struct node *node)
{
    if (node == NULL) {
        return;
    }
    atomic_store(&node->quit, true);
    for (uint32_t i = 0; i < node->threads_started; i++) {
        (void)pthread_join(node->threads[i], NULL);
    }
    if (node->writer != NULL) {
        node->journal = writer_stop(node->writer);
        write_last_snapshot(node);
    }
    data_close(node->data);
    peer_close(node->peers);
    engine_close(node->engines);
    if (node->zmq_context != NULL) {
        (void)zmq_ctx_term(node->zmq_context);
    }
    journal_close(node->journal);
    journal_machine_close(&node->machine);
    gate_destroy(node->gate);
    for (uint32_t i = 0; i < NODE_RINGS; i++) {
        ring_close(ring_of(node, i));
    }
    if (node->machine_wake >= 0) {
        (void)close(node->machine_wake);
    }
    free(node);
}
