/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that commits. */
#include "journal/journal_writer.h"

#include "schemas/ring.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Entries in one batch at the most: bounds the time to the next commit. */
#define BATCH_ENTRIES_MAX 4096u
#define QUEUE_BYTES (UINT64_C(128) << 20)

enum { ITEM_ENTRY = 1, ITEM_SNAPSHOT = 2, ITEM_SNAPSHOT_END = 3 };

struct item {
    uint64_t kind;
    uint64_t number; /* entry; of a snapshot: the entry it includes */
    uint64_t room;
    uint64_t also;  /* rooms, before the bytes */
    uint64_t index; /* of a snapshot's item */
    uint64_t now_ns;
    uint64_t size; /* of the bytes that follow */
};

/*
 * Where the items of the snapshot that is arriving go: into a batch of its own, which is committed
 * when all are there (half a snapshot in the journal would look like damage), or into the segment
 * that begins with it.
 */
enum snapshot_at { NOWHERE, IN_BATCH, IN_SEGMENT };

struct journal_writer {
    struct journal *journal;
    struct ring ring;
    pthread_t thread;
    struct writer_options options;
    enum snapshot_at snapshot;
    uint64_t now_ns; /* wall time, of the last snapshot */
    _Atomic bool full;
    _Atomic bool stop;
    _Atomic bool failed;
    _Atomic bool retry; /* set by the machine thread, cleared by ours when the queue is empty */
    _Atomic uint64_t durable;
    _Atomic uint64_t written;
    _Atomic uint64_t segments_begun;
    _Atomic uint64_t segments_removed;
    _Atomic uint64_t segment_failures;
    _Atomic uint64_t batches;
    _Atomic uint64_t entries;
    _Atomic uint64_t failures;
    _Atomic uint64_t commit_ns_max;
    _Atomic int fault_status;
    _Atomic uint32_t fault_after;
    _Atomic bool fault_set;
    pthread_mutex_t lock; /* failure and its detail only */
    enum status failure;
    struct status_detail detail;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tell_machine(const struct journal_writer *writer)
{
    const uint64_t one = 1;
    while (write(writer->options.wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Says how far the journal has come, when it has. */
static void publish(struct journal_writer *writer)
{
    struct journal_identity identity;
    if (journal_identity(writer->journal, &identity) == STATUS_OK) {
        atomic_store(&writer->written, identity.last);
    }
    atomic_store(&writer->full, journal_segment_full(writer->journal));
    const uint64_t durable = journal_durable(writer->journal);
    if (durable > atomic_load(&writer->durable)) {
        atomic_store(&writer->durable, durable);
        tell_machine(writer);
    }
}

static void fail(struct journal_writer *writer, enum status status)
{
    (void)pthread_mutex_lock(&writer->lock);
    writer->failure = status;
    writer->detail = *journal_detail(writer->journal);
    (void)pthread_mutex_unlock(&writer->lock);
    atomic_fetch_add(&writer->failures, 1u);
    /* What was committed before may still become durable, and those who wait for it be told. */
    (void)journal_flush(writer->journal);
    publish(writer);
    atomic_store(&writer->failed, true);
    tell_machine(writer);
}

/* ---- segments: begun with a snapshot, whose items come one by one
 * ---------------------------------------------- */

static void give_up_snapshot(struct journal_writer *writer)
{
    journal_abort(writer->journal);
    if (writer->snapshot == IN_SEGMENT) {
        atomic_fetch_add(&writer->segment_failures, 1u);
    }
    writer->snapshot = NOWHERE;
}

/* No entry is in the batch. */
static enum status begin_snapshot(struct journal_writer *writer, const struct item *item)
{
    if (writer->snapshot != NOWHERE) {
        give_up_snapshot(writer); /* the one before was never finished */
    }
    writer->now_ns = item->now_ns;
    if (!journal_segment_full(writer->journal)) {
        writer->snapshot = IN_BATCH;
        /* Who waits for the last entries shall not wait for the whole snapshot. */
        const enum status status = journal_flush(writer->journal);
        publish(writer);
        return status;
    }
    writer->snapshot = IN_SEGMENT;
    if (journal_segment_begin(writer->journal, item->now_ns) != STATUS_OK) {
        give_up_snapshot(writer);
    }
    return STATUS_OK;
}

/* STATUS_OK also when no segment came of it: the journal goes on in the one that it has. */
static enum status end_segment(struct journal_writer *writer)
{
    uint32_t removed = 0;
    const uint32_t count = journal_segment_count(writer->journal);
    const enum status status = journal_segment_end(writer->journal);
    if (journal_segment_count(writer->journal) == count) {
        atomic_fetch_add(&writer->segment_failures, 1u);
        return STATUS_OK;
    }
    atomic_fetch_add(&writer->segments_begun, 1u);
    if (journal_trim(writer->journal, &writer->options.retention, writer->now_ns, &removed) !=
        STATUS_OK) {
        atomic_fetch_add(&writer->segment_failures, 1u);
    }
    atomic_fetch_add(&writer->segments_removed, removed);
    return status;
}

/* A snapshot that cannot be put is left out: entries are what the journal is for. */
static enum status append_snapshot(struct journal_writer *writer, const struct item *item,
                                   const unsigned char *bytes)
{
    if (item->kind == ITEM_SNAPSHOT) {
        if (item->index == 0) {
            TRY(begin_snapshot(writer, item));
        }
        if (writer->snapshot != NOWHERE &&
            journal_snapshot_put(writer->journal, item->number, (uint32_t)item->index, bytes,
                                 (size_t)item->size) != STATUS_OK) {
            give_up_snapshot(writer);
        }
        return STATUS_OK;
    }
    const enum snapshot_at at = writer->snapshot;
    writer->snapshot = NOWHERE;
    return at == IN_SEGMENT ? end_segment(writer)
           : at == IN_BATCH ? journal_snapshot_prune(writer->journal, 2)
                            : STATUS_OK;
}

static enum status append_item(struct journal_writer *writer, const struct item *item)
{
    const uint64_t *also = (const uint64_t *)(const void *)(item + 1);
    const unsigned char *bytes = (const unsigned char *)(also + item->also);
    if (item->kind != ITEM_ENTRY) {
        return append_snapshot(writer, item, bytes);
    }
    if (writer->snapshot != NOWHERE) {
        give_up_snapshot(writer); /* the machine has not finished it */
    }
    const struct journal_record record = {
        item->number, item->room, 0, bytes, (size_t)item->size, also, (uint32_t)item->also};
    return journal_append(writer->journal, &record);
}

/* Takes what has arrived into one batch and commits it. */
static void commit_batch(struct journal_writer *writer)
{
    uint32_t count = 0;
    uint32_t entries = 0;
    enum status status = STATUS_OK;
    size_t size = 0;
    const struct item *item = ring_front(&writer->ring, &size);
    while (item != NULL && status == STATUS_OK && count < BATCH_ENTRIES_MAX) {
        if (item->kind == ITEM_SNAPSHOT && item->index == 0 && count > 0) {
            break; /* what is before it is committed by itself */
        }
        entries += item->kind == ITEM_ENTRY ? 1u : 0u;
        status = append_item(writer, item);
        ring_pop(&writer->ring);
        count++;
        item = ring_front(&writer->ring, &size);
    }
    const uint64_t started = now_ns();
    if (status == STATUS_OK && writer->snapshot == NOWHERE) {
        status = journal_commit_ahead(writer->journal);
    }
    if (status != STATUS_OK) {
        journal_abort(writer->journal);
        writer->snapshot = NOWHERE;
        fail(writer, status);
        return;
    }
    const uint64_t took = now_ns() - started;
    if (took > atomic_load(&writer->commit_ns_max)) {
        atomic_store(&writer->commit_ns_max, took);
    }
    atomic_fetch_add(&writer->batches, 1u);
    atomic_fetch_add(&writer->entries, entries);
    publish(writer);
}

/* Nothing has followed the last batch: it is flushed by itself. */
static void flush_if_idle(struct journal_writer *writer)
{
    if (atomic_load(&writer->written) == atomic_load(&writer->durable)) {
        return;
    }
    const enum status status = journal_flush(writer->journal);
    if (status != STATUS_OK) {
        fail(writer, status);
        return;
    }
    publish(writer);
}

/* What was submitted after the last entry of the journal will never be: its numbers are given
 * again. */
static void discard(struct journal_writer *writer)
{
    size_t size = 0;
    while (ring_front(&writer->ring, &size) != NULL) {
        ring_pop(&writer->ring);
    }
}

static void wait_for_work(struct journal_writer *writer)
{
    struct pollfd poll_fd = {writer->ring.wake_fd, POLLIN, 0};
    if (ring_may_sleep(&writer->ring)) {
        (void)poll(&poll_fd, 1, 1000);
    }
    ring_woken(&writer->ring);
}

static void *run(void *context)
{
    struct journal_writer *writer = context;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) {
        if (atomic_exchange(&writer->fault_set, false)) {
            journal_fault(writer->journal, (enum status)atomic_load(&writer->fault_status),
                          atomic_load(&writer->fault_after));
        }
        if (atomic_load(&writer->failed)) {
            discard(writer);
            if (atomic_load(&writer->retry)) {
                discard(writer);
                atomic_store(&writer->failed, false);
                atomic_store(&writer->retry, false);
                continue;
            }
        }
        if (!atomic_load(&writer->failed) && ring_used(&writer->ring) > 0) {
            commit_batch(writer);
            continue;
        }
        if (!atomic_load(&writer->failed) && writer->snapshot == NOWHERE) {
            flush_if_idle(writer);
        }
        if (atomic_load(&writer->stop)) {
            return NULL;
        }
        wait_for_work(writer);
    }
}

enum status writer_start(struct journal *take_journal, const struct writer_options *options,
                         struct journal_writer **out_writer, struct status_detail *out_detail)
{
    struct journal_writer *writer = calloc(1, sizeof *writer);
    struct journal_identity identity;
    if (writer == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the journal thread");
    }
    writer->journal = take_journal;
    writer->options = *options;
    enum status status = journal_identity(take_journal, &identity);
    if (status == STATUS_OK) {
        status = ring_open(&writer->ring, QUEUE_BYTES, out_detail);
    }
    if (status != STATUS_OK) {
        free(writer);
        return status;
    }
    atomic_store(&writer->durable, identity.last);
    atomic_store(&writer->written, identity.last);
    (void)pthread_mutex_init(&writer->lock, NULL);
    const int error = pthread_create(&writer->thread, NULL, run, writer);
    if (error != 0) {
        ring_close(&writer->ring);
        free(writer);
        return status_fail(STATUS_SYSTEM, out_detail, error, "no thread for the journal: %s",
                           strerror(error));
    }
    *out_writer = writer;
    return STATUS_OK;
}

struct journal *writer_stop(struct journal_writer *writer)
{
    atomic_store(&writer->stop, true);
    ring_wake(&writer->ring);
    (void)pthread_join(writer->thread, NULL);
    struct journal *journal = writer->journal;
    ring_close(&writer->ring);
    (void)pthread_mutex_destroy(&writer->lock);
    free(writer);
    return journal;
}

static struct item *begin_item(struct journal_writer *writer, uint64_t kind, uint64_t number,
                               size_t size)
{
    struct item *item = ring_begin(&writer->ring, sizeof *item + size);
    if (item != NULL) {
        memset(item, 0, sizeof *item);
        item->kind = kind;
        item->number = number;
        item->size = size;
    }
    return item;
}

unsigned char *writer_begin(struct journal_writer *writer, uint64_t number, uint64_t room,
                            const uint64_t *also, uint32_t also_count, size_t size)
{
    struct item *item = begin_item(writer, ITEM_ENTRY, number, size + also_count * sizeof *also);
    if (item == NULL) {
        return NULL;
    }
    item->room = room;
    item->also = also_count;
    item->size = size;
    if (also_count > 0) {
        memcpy(item + 1, also, also_count * sizeof *also);
    }
    return (unsigned char *)(item + 1) + also_count * sizeof *also;
}

void writer_submit(struct journal_writer *writer)
{
    ring_end(&writer->ring);
}

bool writer_snapshot_item(struct journal_writer *writer, uint64_t entry, uint32_t index,
                          uint64_t now, const unsigned char *bytes, size_t size)
{
    struct item *item = begin_item(writer, ITEM_SNAPSHOT, entry, size);
    if (item == NULL) {
        return false;
    }
    item->index = index;
    item->now_ns = now;
    memcpy(item + 1, bytes, size);
    ring_end(&writer->ring);
    return true;
}

bool writer_snapshot_end(struct journal_writer *writer, uint64_t entry)
{
    if (begin_item(writer, ITEM_SNAPSHOT_END, entry, 0) == NULL) {
        return false;
    }
    ring_end(&writer->ring);
    return true;
}

uint64_t writer_durable(const struct journal_writer *writer)
{
    return atomic_load(&writer->durable);
}

uint64_t writer_written(const struct journal_writer *writer)
{
    return atomic_load(&writer->written);
}

bool writer_wants_snapshot(const struct journal_writer *writer)
{
    return atomic_load(&writer->full);
}

enum status writer_failure(struct journal_writer *writer, struct status_detail *out_detail)
{
    if (!atomic_load(&writer->failed)) {
        return STATUS_OK;
    }
    (void)pthread_mutex_lock(&writer->lock);
    const enum status status = writer->failure;
    *out_detail = writer->detail;
    (void)pthread_mutex_unlock(&writer->lock);
    return status;
}

void writer_retry(struct journal_writer *writer)
{
    const struct timespec pause = {0, 1000000};
    atomic_store(&writer->retry, true);
    while (atomic_load(&writer->retry)) {
        ring_wake(&writer->ring);
        (void)nanosleep(&pause, NULL);
    }
}

void writer_fault(struct journal_writer *writer, enum status status, uint32_t after)
{
    atomic_store(&writer->fault_status, (int)status);
    atomic_store(&writer->fault_after, after);
    atomic_store(&writer->fault_set, true);
    ring_wake(&writer->ring);
}

void writer_counters(const struct journal_writer *writer, struct writer_counters *out)
{
    out->batches = atomic_load(&writer->batches);
    out->entries = atomic_load(&writer->entries);
    out->failures = atomic_load(&writer->failures);
    out->commit_ns_max = atomic_load(&writer->commit_ns_max);
    out->segments_begun = atomic_load(&writer->segments_begun);
    out->segments_removed = atomic_load(&writer->segments_removed);
    out->segment_failures = atomic_load(&writer->segment_failures);
    out->queue_bytes = ring_used(&writer->ring);
}
