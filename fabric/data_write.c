/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes: planned while they are posted, a window of operations for each connection, taken in turn
 * so that no room waits behind another's size.
 */
#include "data_private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REFUSALS_MAX 100u

void data_fail(struct writing *writing, int32_t code, const char *text)
{
    if (writing->code == 0) {
        writing->code = code;
        (void)snprintf(writing->text, sizeof writing->text, "%.*s", (int)sizeof writing->text - 1,
                       text);
    }
    writing->planned_out = true;
    writing->has_kept = false; /* its pool may be gone */
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
}

enum status data_write(struct data *data, const struct data_write *write)
{
    struct link *link = data_link_find(data, write->peer, write->link);
    if (link != NULL && link->writing_count >= data->options.writes_max) {
        return STATUS_AGAIN;
    }
    const uint64_t spans = plan_spans_max(write->from.count, write->to.count);
    struct writing *writing = calloc(1, sizeof *writing + spans * sizeof writing->spans[0]);
    if (writing == NULL) {
        return STATUS_AGAIN;
    }
    writing->id = write->id;
    writing->room = write->room;
    writing->from_rank = write->from_rank;
    writing->to_rank = write->to_rank;
    data->counters.writes++;
    begin_plan(data, link, writing, write);
    if (link == NULL) {
        data_finish(data, writing);
        return STATUS_OK;
    }
    if (link->last != NULL) {
        link->last->next = writing;
    } else {
        link->first = writing;
    }
    link->last = writing;
    link->writing_count++;
    return STATUS_OK;
}

/* ---- posting
 * --------------------------------------------------------------------------------------------- */

static bool next_piece(struct writing *writing, struct plan_piece *out_piece)
{
    if (writing->has_kept) {
        writing->has_kept = false;
        *out_piece = writing->kept;
        return true;
    }
    if (!writing->planned_out && plan_next(&writing->plan, out_piece)) {
        return true;
    }
    writing->planned_out = true;
    return false;
}

/*
 * A provider that takes nothing although nothing is under way is not full. Over a connection that
 * stood, it has lost that and tries for another, without an error and without an end.
 */
static void note_refusal(struct data *data, struct link *link)
{
    if (link->stood && link->in_flight == 0 && ++link->refusals == REFUSALS_MAX) {
        data->counters.failures++;
        data_link_break(data, link, "the provider has lost the connection");
    }
}

/* Posts one operation of up to the provider's number of pieces; false: the provider is full. */
static bool post_operation(struct data *data, struct link *link, struct writing *writing,
                           struct plan_piece *pieces, uint32_t count)
{
    struct iovec local[OPERATION_PIECES_MAX];
    struct fi_rma_iov remote[OPERATION_PIECES_MAX];
    void *descriptors[OPERATION_PIECES_MAX];
    const struct pool *pool = &data->pools[writing->from_rank];
    const struct data_region *region = &link->regions[writing->to_rank];
    struct operation *operation = link->free_operations;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        local[i] = (struct iovec){pool->base + pieces[i].from, pieces[i].bytes};
        remote[i] =
            (struct fi_rma_iov){region->address + pieces[i].to, pieces[i].bytes, region->key};
        descriptors[i] = pool->local != NULL ? fi_mr_desc(pool->local) : NULL;
        bytes += pieces[i].bytes;
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
        data->counters.retries++;
        note_refusal(data, link);
        return false;
    }
    if (code != 0) {
        data->counters.failures++;
        data_link_break(data, link, fi_strerror((int)-code));
        return false;
    }
    link->refusals = 0;
    link->free_operations = operation->next_free;
    operation->writing = writing;
    operation->bytes = bytes;
    writing->in_flight++;
    data->pools[writing->from_rank].reading++;
    link->in_flight++;
    data->counters.operations++;
    return true;
}

static uint32_t pieces_limit(const struct data *data)
{
    size_t most = data->info->tx_attr->iov_limit;
    if (data->info->tx_attr->rma_iov_limit < most) {
        most = data->info->tx_attr->rma_iov_limit;
    }
    most = most < OPERATION_PIECES_MAX ? most : OPERATION_PIECES_MAX;
    return most < 1u ? 1u : (uint32_t)most;
}

/* One operation of one write. False: stop posting on this connection for now. */
static bool post_from(struct data *data, struct link *link, struct writing *writing)
{
    struct plan_piece pieces[OPERATION_PIECES_MAX];
    const struct writing before = *writing;
    const uint32_t most = pieces_limit(data);
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (count < most && next_piece(writing, &pieces[count])) {
        bytes += pieces[count].bytes;
        if (count > 0 && bytes > data->options.piece_bytes) {
            writing->kept = pieces[count]; /* too large together */
            writing->has_kept = true;
            break;
        }
        count++;
    }
    if (count == 0 || post_operation(data, link, writing, pieces, count)) {
        return true;
    }
    if (!link->broken) {
        *writing = before; /* the provider is full: the plan goes back to where it was */
    }
    return false;
}

static void unlink_writing(struct link *link, struct writing *before, struct writing *writing)
{
    if (before != NULL) {
        before->next = writing->next;
    } else {
        link->first = writing->next;
    }
    if (link->last == writing) {
        link->last = before;
    }
    link->writing_count--;
}

void data_collect(struct data *data, struct link *link)
{
    struct writing *before = NULL;
    struct writing *writing = link->first;
    while (writing != NULL && !link->broken) {
        struct writing *next = writing->next;
        if (!data_to_post(writing) && writing->in_flight == 0) {
            unlink_writing(link, before, writing);
            data_finish(data, writing);
        } else {
            before = writing;
        }
        writing = next;
    }
}

void data_post(struct data *data, struct link *link)
{
    bool more = true;
    while (more && link->free_operations != NULL) {
        more = false;
        for (struct writing *w = link->first; w != NULL && link->free_operations != NULL;
             w = w->next) {
            if (!data_to_post(w)) {
                continue;
            }
            if (!post_from(data, link, w)) {
                data_collect(data, link);
                return;
            }
            more = true;
        }
    }
    data_collect(data, link);
}

/* ---- completions
 * ------------------------------------------------------------------------------------------ */

static void operation_done(struct data *data, struct link *link, struct operation *operation)
{
    operation->next_free = link->free_operations;
    link->free_operations = operation;
    link->in_flight--;
    operation->writing->in_flight--;
    data->pools[operation->writing->from_rank].reading--;
}

static bool reap_error(struct data *data, struct link *link)
{
    struct fi_cq_err_entry entry;
    memset(&entry, 0, sizeof entry);
    if (fi_cq_readerr(link->queue, &entry, 0) <= 0) {
        return false;
    }
    struct operation *operation = entry.op_context;
    if (operation == NULL) {
        return true; /* nothing of ours: a receive that nobody posted */
    }
    /*
     * Whatever it was, nobody knows how much of which message is under way now, and the provider
     * would begin another connection by itself. Both ends close theirs instead.
     */
    data->counters.failures++;
    data_link_break(data, link, fi_strerror(entry.err != 0 ? entry.err : EIO));
    return false;
}

void data_reap(struct data *data, struct link *link)
{
    struct fi_cq_entry entries[64];
    for (;;) {
        const ssize_t count = fi_cq_read(link->queue, entries, 64);
        if (count == -FI_EAVAIL) {
            if (!reap_error(data, link)) {
                return;
            }
            continue;
        }
        if (count <= 0) {
            return;
        }
        link->stood = true;
        for (ssize_t i = 0; i < count; i++) {
            struct operation *operation = entries[i].op_context;
            if (operation != NULL) {
                operation->writing->bytes += operation->bytes;
                data->counters.bytes += operation->bytes;
                operation_done(data, link, operation);
            }
        }
    }
}

uint32_t data_poll(struct data *data, struct data_result *out_results, uint32_t max)
{
    for (uint32_t i = 0; i < DATA_LINKS_MAX; i++) {
        if (data->links[i].used && !data->links[i].broken) {
            data_reap(data, &data->links[i]);
        }
        if (data->links[i].used && !data->links[i].broken) {
            data_post(data, &data->links[i]);
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
    const struct timespec wait = {0, counters.in_flight > 0 ? 100000 : 1000000};
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
    for (uint32_t i = 0; i < DATA_LINKS_MAX; i++) {
        const struct link *link = &data->links[i];
        if (link->used && link->broken && !link->told) {
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
    (void)poll(fds, count, (int)timeout_ms);
}
