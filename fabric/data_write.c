/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes: planned while they are posted, a window of operations for each connection, taken in turn
 * so that no room waits behind another's size.
 */
#include "data_private.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REFUSALS_MAX 100u
/* Looks without a pause after something has moved: more is likely to come, and waking up costs more
 * than looking. */
#define BUSY_LOOKS 256u

void data_fail(struct writing *writing, int32_t code, const char *text)
{
    if (writing->code == 0) {
        writing->code = code;
        (void)snprintf(writing->text, sizeof writing->text, "%.*s", (int)sizeof writing->text - 1,
                       text);
    }
    writing->planned_out = true;
    writing->next_count = 0; /* its pool may be gone */
    writing->has_after = false;
}

void data_finish(struct data *data, struct writing *writing)
{
    writing->next = NULL;
    if (data->finished_last != NULL) {
        data->finished_last->next = writing;
    } else {
        data->finished = writing;
    }
    data->finished_last = writing;
}

/* ---- the connection's lists
 * ---------------------------------------------------------------------------------------- */

static void link_writing(struct link *link, struct writing *writing)
{
    writing->before = link->last;
    if (link->last != NULL) {
        link->last->next = writing;
    } else {
        link->first = writing;
    }
    link->last = writing;
    link->writing_count++;
}

static void unlink_writing(struct link *link, struct writing *writing)
{
    if (writing->before != NULL) {
        writing->before->next = writing->next;
    } else {
        link->first = writing->next;
    }
    if (writing->next != NULL) {
        writing->next->before = writing->before;
    } else {
        link->last = writing->before;
    }
    link->writing_count--;
}

static void queue_last(struct link *link, struct writing *writing)
{
    writing->queued = true;
    writing->next_queued = NULL;
    if (link->last_queued != NULL) {
        link->last_queued->next_queued = writing;
    } else {
        link->first_queued = writing;
    }
    link->last_queued = writing;
}

static struct writing *take_queued(struct link *link)
{
    struct writing *writing = link->first_queued;
    link->first_queued = writing->next_queued;
    link->last_queued = link->first_queued == NULL ? NULL : link->last_queued;
    writing->queued = false;
    return writing;
}

static void queue_first(struct link *link, struct writing *writing)
{
    writing->queued = true;
    writing->next_queued = link->first_queued;
    link->first_queued = writing;
    link->last_queued = link->last_queued == NULL ? writing : link->last_queued;
}

void data_settle(struct data *data, struct link *link, struct writing *writing)
{
    if (link->broken || writing->queued || data_to_post(writing) || writing->in_flight > 0 ||
        writing->asked || writing->to_ask) {
        return;
    }
    if (writing->code == 0 && writing->checked < data_checks_of(writing)) {
        data_check_queue(link, writing);
        return;
    }
    unlink_writing(link, writing);
    data_finish(data, writing);
}

void data_sweep(struct data *data, struct link *link)
{
    struct writing *writing = link->first_queued;
    link->first_queued = NULL;
    link->last_queued = NULL;
    while (writing != NULL) {
        struct writing *next = writing->next_queued;
        writing->queued = false;
        if (data_to_post(writing)) {
            queue_last(link, writing);
        } else {
            data_settle(data, link, writing);
        }
        writing = next;
    }
}

/* ---- taking a write
 * ------------------------------------------------------------------------------------ */

static void begin_plan(struct data *data, struct link *link, struct writing *writing,
                       const struct data_write *write)
{
    struct status_detail detail;
    if (link == NULL || !link->connected || link->broken) {
        data_fail(writing, -ENOTCONN, "the peer is not connected");
        return;
    }
    if (write->from_rank >= SM_RANKS_MAX || !data->pools[write->from_rank].used ||
        data->pools[write->from_rank].retiring) {
        data_fail(writing, -EINVAL, "the source rank has no pool");
        return;
    }
    if (write->to_rank >= SM_RANKS_MAX || link->layouts[write->to_rank].ranks == 0) {
        data_fail(writing, -EINVAL, "the destination rank has not announced a pool");
        return;
    }
    const struct plan_side from = {&data->pools[write->from_rank].layout, write->from_rank,
                                   write->from, write->aux_from};
    const struct plan_side to = {&link->layouts[write->to_rank], write->to_rank, write->to,
                                 write->aux_to};
    if (plan_begin(&writing->plan, &from, &to, data->options.piece_bytes, writing->spans,
                   &detail) != STATUS_OK) {
        data_fail(writing, -EINVAL, detail.text);
    }
    writing->slot_bytes = writing->plan.slot.bytes;
}

static struct writing *new_writing(const struct data_write *write, bool verify)
{
    const size_t spans = (size_t)plan_spans_max(write->from.count, write->to.count);
    const size_t size = (sizeof(struct writing) + spans * sizeof(struct plan_span) + 7u) / 8u * 8u;
    struct writing *writing = calloc(1, size + (verify ? (spans + 1u) * sizeof(uint64_t) : 0u));
    if (writing == NULL) {
        return NULL;
    }
    writing->id = write->id;
    writing->room = write->room;
    writing->from_rank = write->from_rank;
    writing->to_rank = write->to_rank;
    writing->slot_from = write->aux_from;
    writing->slot_to = write->aux_to;
    writing->digests = verify ? (uint64_t *)(void *)((unsigned char *)writing + size) : NULL;
    return writing;
}

enum status data_write(struct data *data, const struct data_write *write)
{
    struct link *link = data_link_find(data, write->peer, write->link);
    if (link != NULL && link->writing_count >= data->options.writes_max) {
        return STATUS_AGAIN;
    }
    struct writing *writing = new_writing(write, link != NULL && link->verify);
    if (writing == NULL) {
        return STATUS_AGAIN;
    }
    data->counters.writes++;
    begin_plan(data, link, writing, write);
    if (link == NULL) {
        data_finish(data, writing);
        return STATUS_OK;
    }
    link_writing(link, writing);
    if (!link->broken) {
        queue_last(link, writing);
    }
    return STATUS_OK;
}

/* ---- posting
 * --------------------------------------------------------------------------------------------- */

/*
 * A provider that takes nothing although nothing is under way is not full. Over a connection that
 * stood, it has lost that and tries for another, without an error and without an end.
 */
static void note_refusal(struct data *data, struct link *link)
{
    data->counters.retries++;
    if (link->stood && link->in_flight == 0 && ++link->refusals == REFUSALS_MAX) {
        data->counters.failures++;
        data_link_break(data, link, "the provider has lost the connection");
    }
}

/* The next operation's pieces: as many as it may have, in piece_bytes together. */
static void put_together(const struct data *data, struct writing *writing)
{
    struct plan_piece *pieces = writing->next_pieces;
    uint32_t count = 0;
    uint64_t bytes = 0;
    if (writing->has_after) {
        pieces[0] = pieces[OPERATION_PIECES_MAX];
        writing->has_after = false;
        bytes = pieces[0].bytes;
        count = 1;
    }
    while (count < data->operation_pieces && !writing->planned_out) {
        struct plan_piece *piece = &pieces[count];
        if (!plan_next(&writing->plan, piece)) {
            writing->planned_out = true;
        } else if (count > 0 && bytes + piece->bytes > data->options.piece_bytes) {
            pieces[OPERATION_PIECES_MAX] = *piece;
            writing->has_after = true;
            break;
        } else {
            bytes += piece->bytes;
            count++;
        }
    }
    writing->next_count = count;
}

static void take_digests(const struct pool *pool, struct writing *writing)
{
    for (uint32_t i = 0; i < writing->next_count; i++) {
        const struct plan_piece *piece = &writing->next_pieces[i];
        writing->digests[piece->span] +=
            check_digest(pool->base + piece->from, piece->bytes, piece->to);
    }
}

/* Posts what was put together; false: the provider is full, or the connection broke. */
static bool post_operation(struct data *data, struct link *link, struct writing *writing)
{
    struct iovec local[OPERATION_PIECES_MAX];
    struct fi_rma_iov remote[OPERATION_PIECES_MAX];
    void *descriptors[OPERATION_PIECES_MAX];
    struct pool *pool = &data->pools[writing->from_rank];
    const struct data_region *region = &link->regions[writing->to_rank];
    struct operation *operation = link->free_operations;
    const uint32_t count = writing->next_count;
    operation->bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_piece *piece = &writing->next_pieces[i];
        local[i] = (struct iovec){pool->base + piece->from, piece->bytes};
        remote[i] = (struct fi_rma_iov){region->address + piece->to, piece->bytes, region->key};
        descriptors[i] = pool->local != NULL ? fi_mr_desc(pool->local) : NULL;
        operation->bytes += piece->bytes;
    }
    const struct fi_msg_rma message = {.msg_iov = local,
                                       .desc = descriptors,
                                       .iov_count = count,
                                       .addr = link->remote,
                                       .rma_iov = remote,
                                       .rma_iov_count = count,
                                       .context = &operation->context};
    const ssize_t code =
        fi_writemsg(link->endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
    if (code == -FI_EAGAIN) {
        note_refusal(data, link);
        return false;
    }
    if (code != 0) {
        data->counters.failures++;
        data_link_break(data, link, fi_strerror((int)-code));
        return false;
    }
    if (writing->digests != NULL) {
        take_digests(pool, writing);
    }
    writing->next_count = 0;
    link->refusals = 0;
    link->free_operations = operation->next_free;
    operation->writing = writing;
    writing->in_flight++;
    pool->reading++;
    link->in_flight++;
    data->counters.operations++;
    return true;
}

void data_post(struct data *data, struct link *link)
{
    while (link->first_queued != NULL && link->free_operations != NULL) {
        struct writing *writing = take_queued(link);
        if (writing->next_count == 0 && data_to_post(writing)) {
            put_together(data, writing);
        }
        if (writing->next_count > 0 && !post_operation(data, link, writing)) {
            if (!link->broken) {
                queue_first(link, writing);
            }
            return;
        }
        if (data_to_post(writing)) {
            queue_last(link, writing);
        } else {
            data_settle(data, link, writing);
        }
    }
}

/* ---- completions
 * ------------------------------------------------------------------------------------------ */

static void write_done(struct data *data, struct link *link, struct operation *operation)
{
    struct writing *writing = operation->writing;
    writing->bytes += operation->bytes;
    data->counters.bytes += operation->bytes;
    operation->next_free = link->free_operations;
    link->free_operations = operation;
    link->in_flight--;
    writing->in_flight--;
    data->pools[writing->from_rank].reading--;
    data_settle(data, link, writing);
}

/*
 * Whatever it was, nobody knows how much of which message is under way now, and the provider would
 * begin another connection by itself. Both ends close theirs instead.
 */
static void break_for_error(struct data *data, struct link *link)
{
    struct fi_cq_err_entry entry;
    memset(&entry, 0, sizeof entry);
    const ssize_t count = fi_cq_readerr(link->queue, &entry, 0);
    data->counters.failures++;
    data_link_break(data, link, fi_strerror(count > 0 && entry.err != 0 ? entry.err : EIO));
}

void data_reap(struct data *data, struct link *link)
{
    struct fi_cq_msg_entry entries[64];
    while (!link->broken) {
        const ssize_t count = fi_cq_read(link->queue, entries, 64);
        if (count == -FI_EAGAIN) {
            return;
        }
        if (count <= 0) {
            break_for_error(data, link);
            return;
        }
        data->busy = BUSY_LOOKS;
        for (ssize_t i = 0; i < count && !link->broken; i++) {
            struct operation *operation = entries[i].op_context;
            if (operation == NULL) {
                continue;
            }
            link->stood = true;
            if (operation->kind == OPERATION_WRITE) {
                write_done(data, link, operation);
            } else if (operation->kind == OPERATION_SEND) {
                data_check_sent(operation->note);
            } else {
                data_check_received(data, link, operation->note, entries[i].len);
            }
        }
    }
}

static void note_arrivals(struct data *data, struct link *link)
{
    if (!link->broken && link->arrivals != NULL) {
        const uint64_t arrived = fi_cntr_read(link->arrivals);
        data->busy = arrived != link->arrived ? BUSY_LOOKS : data->busy;
        link->arrived = arrived;
    }
}

uint32_t data_poll(struct data *data, struct data_result *out_results, uint32_t max)
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        if (link->used && !link->broken) {
            data_reap(data, link);
            note_arrivals(data, link);
        }
        if (link->used && !link->broken) {
            data_post(data, link);
        }
        if (link->used && !link->broken) {
            data_check_work(data, link);
        }
    }
    uint32_t count = 0;
    while (count < max && data->finished != NULL) {
        struct writing *writing = data->finished;
        data->finished = writing->next;
        if (data->finished == NULL) {
            data->finished_last = NULL;
        }
        struct data_result *result = &out_results[count++];
        result->id = writing->id;
        result->room = writing->room;
        result->bytes = writing->bytes;
        result->code = writing->code;
        memcpy(result->text, writing->text, sizeof result->text);
        free(writing);
    }
    return count;
}

/* ---- waiting
 * ------------------------------------------------------------------------------------------------
 */

static void pause_briefly(struct data *data, int wake_fd)
{
    struct data_counters counters;
    struct pollfd fd = {wake_fd, POLLIN, 0};
    data_counters(data, &counters);
    const struct timespec wait = {0, counters.in_flight > 0 ? 50000 : 250000};
    (void)ppoll(&fd, 1, &wait, NULL);
}

void data_wait(struct data *data, int wake_fd, uint32_t timeout_ms)
{
    struct pollfd fds[DATA_LINKS_MAX + 1u];
    struct fid *queues[DATA_LINKS_MAX];
    nfds_t count = 1;
    fds[0] = (struct pollfd){wake_fd, POLLIN, 0};
    if (data->finished != NULL || data->pools_gone != 0) {
        return;
    }
    if (data->busy > 0) {
        data->busy--;
        (void)sched_yield();
        return;
    }
    for (uint32_t i = 0; i < data->links_end; i++) {
        const struct link *link = &data->links[i];
        if (link->used && link->broken && !link->told) {
            return;
        }
        if (link->used && !link->broken && link->checks->hashing > 0) {
            return;
        }
        if (!link->used || link->broken) {
            continue;
        }
        if (link->wait_fd < 0) {
            pause_briefly(data, wake_fd);
            return;
        }
        queues[count - 1u] = &link->queue->fid;
        fds[count++] = (struct pollfd){link->wait_fd, POLLIN, 0};
    }
    /* The provider says whether anything is pending that the descriptors would not show. */
    if (count > 1 && fi_trywait(data->fabric, queues, (int)count - 1) != 0) {
        return;
    }
    if (poll(fds, count, (int)timeout_ms) > 0 && (fds[0].revents & POLLIN) == 0) {
        data->busy = BUSY_LOOKS;
    }
}
