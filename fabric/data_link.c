/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: an endpoint, a queue and keys for each, closed together. */
#include "data_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct link *data_link_find(struct data *data, uint32_t peer, uint32_t link)
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        if (data->links[i].used && data->links[i].peer == peer && data->links[i].link == link) {
            return &data->links[i];
        }
    }
    return NULL;
}

static struct link *free_link(struct data *data)
{
    for (uint32_t i = 0; i < DATA_LINKS_MAX; i++) {
        if (!data->links[i].used) {
            return &data->links[i];
        }
    }
    return NULL;
}

static enum status open_operations(struct data *data, struct link *link,
                                   struct status_detail *out_detail)
{
    link->operations = calloc(data->options.window, sizeof *link->operations);
    if (link->operations == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for a connection");
    }
    for (uint32_t i = 0; i < data->options.window; i++) {
        link->operations[i].kind = OPERATION_WRITE;
        link->operations[i].next_free = link->free_operations;
        link->free_operations = &link->operations[i];
    }
    return STATUS_OK;
}

/* What the peer writes shows nowhere else: who does not know of it sleeps too long. */
static enum status count_arrivals(struct data *data, struct link *link,
                                  struct status_detail *out_detail)
{
    struct fi_cntr_attr attributes = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
    TRY(data_fabric_status(out_detail,
                           fi_cntr_open(data->domain, &attributes, &link->arrivals, NULL),
                           "fi_cntr_open"));
    return data_fabric_status(out_detail,
                              fi_ep_bind(link->endpoint, &link->arrivals->fid, FI_REMOTE_WRITE),
                              "binding the counter");
}

static enum status open_endpoint(struct data *data, struct link *link,
                                 struct status_detail *out_detail)
{
    struct fi_av_attr addresses = {.type = FI_AV_TABLE, .count = 1};
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_MSG,
                               .size = (size_t)data->options.window * 2u + 64u,
                               .wait_obj = data->can_wait ? FI_WAIT_FD : FI_WAIT_NONE};
    TRY(data_fabric_status(out_detail, fi_av_open(data->domain, &addresses, &link->addresses, NULL),
                           "fi_av_open"));
    TRY(data_fabric_status(out_detail, fi_cq_open(data->domain, &queue, &link->queue, NULL),
                           "fi_cq_open"));
    TRY(data_fabric_status(out_detail, fi_endpoint(data->domain, data->info, &link->endpoint, NULL),
                           "fi_endpoint"));
    TRY(data_fabric_status(out_detail, fi_ep_bind(link->endpoint, &link->addresses->fid, 0),
                           "binding the address table"));
    TRY(data_fabric_status(out_detail,
                           fi_ep_bind(link->endpoint, &link->queue->fid, FI_TRANSMIT | FI_RECV),
                           "binding the completion queue"));
    if (!data->can_wait) {
        TRY(count_arrivals(data, link, out_detail));
    }
    TRY(data_fabric_status(out_detail, fi_enable(link->endpoint), "fi_enable"));
    if (data->can_wait && fi_control(&link->queue->fid, FI_GETWAIT, &link->wait_fd) != 0) {
        link->wait_fd = -1;
    }
    TRY(open_operations(data, link, out_detail));
    return data_checks_open(data, link, out_detail);
}

enum status data_link_local(struct data *data, uint32_t peer, uint32_t number,
                            struct data_endpoint *out, struct status_detail *out_detail)
{
    struct link *link = data_link_find(data, peer, number);
    if (link == NULL || link->broken) {
        return status_fail(STATUS_NOT_FOUND, out_detail, 0, "no such connection");
    }
    memset(out, 0, sizeof *out);
    out->verify = data->options.verify;
    out->size = sizeof out->bytes;
    TRY(data_fabric_status(out_detail, fi_getname(&link->endpoint->fid, out->bytes, &out->size),
                           "fi_getname"));
    TRY(data_keys(data, link, out_detail));
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        const struct pool *pool = &data->pools[rank];
        if (!pool->used || pool->retiring) {
            continue;
        }
        struct data_region *region = &out->regions[out->region_count++];
        region->rank = rank;
        region->address = data->virtual_addresses ? (uint64_t)(uintptr_t)pool->base : 0;
        region->bytes = pool->layout.bytes;
        region->key = fi_mr_key(link->remote_keys[rank]);
        region->pages = pool->layout.pages;
        region->aux_slots = pool->layout.aux_slots;
        region->aux_stride = pool->layout.aux_stride;
        region->geometry = pool->layout.geometry;
    }
    return STATUS_OK;
}

/* What the provider says of an endpoint that it does not make, with the keys that it was asked by.
 */
static enum status explain_open(const struct data *data, enum status status,
                                struct status_detail *out_detail)
{
    if (out_detail == NULL || status == STATUS_NO_MEMORY) {
        return status;
    }
    const struct status_detail why = *out_detail;
    if (why.foreign_code == -FI_EADDRNOTAVAIL && data->options.address[0] != '\0') {
        return status_fail(status, out_detail, why.foreign_code,
                           "fabric.address '%.64s' is not of this host (%.120s); name one that is, "
                           "or leave it empty for any",
                           data->options.address, why.text);
    }
    return status_fail(status, out_detail, why.foreign_code,
                       "no endpoint with fabric.provider '%.32s', fabric.address '%.64s': %.180s",
                       data->options.provider, data->options.address, why.text);
}

/*
 * One that never stood is known to nobody who would fence it: the next one takes its place. One
 * that stood is over, and the peer that begins anew has nothing more to write over it; its writes
 * are reported when it is fenced, in the order that the owner knows of things.
 */
static void end_earlier(struct data *data, uint32_t peer, uint32_t number)
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        if (!link->used || link->peer != peer || link->link >= number) {
            continue;
        }
        if (!link->connected) {
            data_link_close(data, link, "it never stood");
        } else {
            data_link_break(data, link, "the peer has begun another connection");
            link->told = true;
        }
    }
}

enum status data_link_open(struct data *data, uint32_t peer, uint32_t number,
                           struct data_endpoint *out_endpoint, struct status_detail *out_detail)
{
    end_earlier(data, peer, number);
    struct link *link = free_link(data);
    if (link == NULL || data_link_find(data, peer, number) != NULL) {
        return status_fail(STATUS_TOO_LARGE, out_detail, 0, "more than %u connections",
                           DATA_LINKS_MAX);
    }
    memset(link, 0, sizeof *link);
    link->used = true;
    link->peer = peer;
    link->link = number;
    link->wait_fd = -1;
    const uint32_t end = (uint32_t)(link - data->links) + 1u;
    data->links_end = end > data->links_end ? end : data->links_end;
    enum status status = open_endpoint(data, link, out_detail);
    if (status == STATUS_OK) {
        status = data_link_local(data, peer, number, out_endpoint, out_detail);
    }
    if (status != STATUS_OK) {
        data_link_close(data, link, "it could not be opened");
        return explain_open(data, status, out_detail);
    }
    return STATUS_OK;
}

/*
 * The destination is another pool now, or none: what was planned for the one before must not go on
 * into it, where these pages are somebody else's.
 */
static void end_writes_to(struct data *data, struct link *link, uint32_t rank)
{
    for (struct writing *w = link->first; w != NULL; w = w->next) {
        if (w->to_rank == rank && data_to_post(w)) {
            data_fail(w, -ECANCELED, "the destination's pool was taken away");
        }
    }
    data_sweep(data, link);
}

/* Nothing from the wire is trusted: a region that does not fit its own geometry is refused. */
static enum status take_region(struct data *data, struct link *link,
                               const struct data_region *region, struct status_detail *out_detail)
{
    struct pool_layout layout;
    if (region->rank >= link->remote_ranks || region->aux_stride > (1u << 24) ||
        region->aux_slots > (1u << 24) || region->pages > (1u << 30)) {
        return status_fail(STATUS_FABRIC_PEER, out_detail, 0, "the peer announces rank %u of %u",
                           region->rank, link->remote_ranks);
    }
    TRY(pool_layout_make(&region->geometry, link->remote_ranks, region->pages, region->aux_slots,
                         (uint32_t)region->aux_stride, &layout, out_detail));
    if (layout.bytes != region->bytes) {
        return status_fail(STATUS_FABRIC_PEER, out_detail, 0,
                           "the peer announces a pool of %llu bytes whose geometry needs %llu",
                           (unsigned long long)region->bytes, (unsigned long long)layout.bytes);
    }
    if (link->layouts[region->rank].ranks != 0 &&
        memcmp(region, &link->regions[region->rank], sizeof *region) != 0) {
        end_writes_to(data, link, region->rank);
    }
    link->regions[region->rank] = *region;
    link->layouts[region->rank] = layout;
    return STATUS_OK;
}

enum status data_link_connect(struct data *data, uint32_t peer, uint32_t number,
                              uint32_t remote_ranks, const struct data_endpoint *remote,
                              struct status_detail *out_detail)
{
    struct link *link = data_link_find(data, peer, number);
    if (link == NULL || link->broken || remote_ranks == 0 || remote_ranks > SM_RANKS_MAX ||
        remote->region_count > DATA_REGIONS_MAX || remote->size == 0 ||
        remote->size > sizeof remote->bytes) {
        return status_fail(STATUS_FABRIC_PEER, out_detail, 0,
                           "the connection is gone, or the peer's announcement makes no sense");
    }
    link->remote_ranks = remote_ranks;
    link->verify = data->options.verify || remote->verify;
    uint64_t announced = 0;
    for (uint32_t i = 0; i < remote->region_count; i++) {
        TRY(take_region(data, link, &remote->regions[i], out_detail));
        announced |= UINT64_C(1) << remote->regions[i].rank;
    }
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        if ((announced >> rank & 1u) == 0 && link->layouts[rank].ranks != 0) {
            end_writes_to(data, link, rank);
            memset(&link->layouts[rank], 0, sizeof link->layouts[rank]);
        }
    }
    if (!link->connected) {
        /* Providers read as much of an address as its kind has: give them a zeroed whole. */
        unsigned char address[DATA_ENDPOINT_BYTES_MAX + 1u] = {0};
        memcpy(address, remote->bytes, remote->size);
        if (fi_av_insert(link->addresses, address, 1, &link->remote, 0, NULL) != 1) {
            return status_fail(STATUS_FABRIC_PEER, out_detail, 0,
                               "the peer's fabric address is not one of provider %s",
                               data->provider);
        }
        link->connected = true;
    }
    return STATUS_OK;
}

static void close_parts(struct link *link)
{
    /* The endpoint first: it ends what is in flight; then the keys, so that nothing new can land.
     */
    if (link->endpoint != NULL) {
        (void)fi_close(&link->endpoint->fid);
    }
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        if (link->remote_keys[rank] != NULL) {
            (void)fi_close(&link->remote_keys[rank]->fid);
        }
        link->remote_keys[rank] = NULL;
    }
    if (link->queue != NULL) {
        (void)fi_close(&link->queue->fid);
    }
    if (link->addresses != NULL) {
        (void)fi_close(&link->addresses->fid);
    }
    if (link->arrivals != NULL) {
        (void)fi_close(&link->arrivals->fid);
    }
    link->arrivals = NULL;
    link->endpoint = NULL;
    link->queue = NULL;
    link->addresses = NULL;
    link->wait_fd = -1;
}

void data_link_break(struct data *data, struct link *link, const char *why)
{
    if (link->broken) {
        return;
    }
    close_parts(link);
    data_checks_close(data, link);
    for (struct writing *w = link->first; w != NULL; w = w->next) {
        if (w->in_flight > 0) {
            data->pools[w->from_rank].reading -= w->in_flight;
            w->in_flight = 0;
        }
        w->queued = false;
        w->asked = false;
        w->to_ask = false;
        data_fail(w, -ECANCELED, why);
    }
    link->first_queued = NULL;
    link->last_queued = NULL;
    link->in_flight = 0;
    free(link->operations);
    link->operations = NULL;
    link->free_operations = NULL;
    link->broken = true;
    (void)snprintf(link->why, sizeof link->why, "%s", why);
}

void data_link_close(struct data *data, struct link *link, const char *why)
{
    data_link_break(data, link, why);
    while (link->first != NULL) {
        struct writing *writing = link->first;
        link->first = writing->next;
        data_finish(data, writing);
    }
    memset(link, 0, sizeof *link);
    link->wait_fd = -1;
}

bool data_broken(struct data *data, uint32_t *out_peer, uint32_t *out_link,
                 char out_text[DATA_TEXT_BYTES])
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        if (link->used && link->broken && !link->told) {
            link->told = true;
            *out_peer = link->peer;
            *out_link = link->link;
            memcpy(out_text, link->why, sizeof link->why);
            return true;
        }
    }
    return false;
}

void data_link_fence(struct data *data, uint32_t peer, uint32_t number)
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        if (link->used && link->peer == peer && link->link <= number) {
            data_link_close(data, link, "the peer was fenced");
        }
    }
}
