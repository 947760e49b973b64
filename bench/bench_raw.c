/* SPDX-License-Identifier: Apache-2.0 */
/* The raw client. */
#include "bench_raw.h"

#include "bench.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 8u
#define WINDOW_MAX 1024u

struct raw {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *endpoint;
    struct fid_cq *queue;
    struct fid_av *addresses;
    struct fid_mr *memory;
    unsigned char *pool;
    fi_addr_t there;
    uint64_t base;
    uint64_t key;
    struct fi_context2 contexts[WINDOW_MAX];
    struct fi_context2 *free_contexts[WINDOW_MAX];
    uint32_t free_count;
};

static void must(long code, const char *what)
{
    if (code < 0) {
        bench_fail(what, fi_strerror((int)-code));
    }
}

static struct fi_info *ask(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_info *info = NULL;
    const bool shm = strcmp(provider, "shm") == 0;
    if (hints == NULL) {
        bench_fail(provider, "no memory");
    }
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->addr_format = shm ? FI_ADDR_STR : FI_FORMAT_UNSPEC;
    must(fi_getinfo(FI_VERSION(1, 17), shm ? NULL : "127.0.0.1", NULL, shm ? 0 : FI_SOURCE, hints,
                    &info),
         "fi_getinfo");
    fi_freeinfo(hints);
    return info;
}

struct raw *raw_open(const char *provider, void *pool, size_t bytes, struct raw_address *out_here)
{
    struct raw *raw = calloc(1, sizeof *raw);
    struct fi_av_attr addresses = {.type = FI_AV_TABLE, .count = 1};
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .size = WINDOW_MAX + 64u};
    if (raw == NULL) {
        bench_fail("raw", "no memory");
    }
    raw->pool = pool;
    raw->info = ask(provider);
    must(fi_fabric(raw->info->fabric_attr, &raw->fabric, NULL), "fi_fabric");
    must(fi_domain(raw->fabric, raw->info, &raw->domain, NULL), "fi_domain");
    must(fi_av_open(raw->domain, &addresses, &raw->addresses, NULL), "fi_av_open");
    must(fi_cq_open(raw->domain, &queue, &raw->queue, NULL), "fi_cq_open");
    must(fi_endpoint(raw->domain, raw->info, &raw->endpoint, NULL), "fi_endpoint");
    must(fi_ep_bind(raw->endpoint, &raw->addresses->fid, 0), "fi_ep_bind");
    must(fi_ep_bind(raw->endpoint, &raw->queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_enable(raw->endpoint), "fi_enable");
    must(fi_mr_reg(raw->domain, pool, bytes, FI_WRITE | FI_REMOTE_WRITE, 0, 77, 0, &raw->memory,
                   NULL),
         "fi_mr_reg");
    memset(out_here, 0, sizeof *out_here);
    out_here->size = sizeof out_here->name;
    must(fi_getname(&raw->endpoint->fid, out_here->name, &out_here->size), "fi_getname");
    const bool virtual = (raw->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    out_here->base = virtual ? (uint64_t)(uintptr_t)pool : 0;
    out_here->key = fi_mr_key(raw->memory);
    for (uint32_t i = 0; i < WINDOW_MAX; i++) {
        raw->free_contexts[raw->free_count++] = &raw->contexts[i];
    }
    return raw;
}

void raw_connect(struct raw *raw, const struct raw_address *there)
{
    if (fi_av_insert(raw->addresses, there->name, 1, &raw->there, 0, NULL) != 1) {
        bench_fail("fi_av_insert", "the address is not taken");
    }
    raw->base = there->base;
    raw->key = there->key;
}

/* Returns how many have ended. */
static uint32_t reap(struct raw *raw)
{
    struct fi_cq_entry entries[64];
    const ssize_t count = fi_cq_read(raw->queue, entries, 64);
    if (count == -FI_EAGAIN) {
        (void)sched_yield(); /* the other end may need this core */
        return 0;
    }
    must(count, "fi_cq_read");
    for (ssize_t i = 0; i < count; i++) {
        raw->free_contexts[raw->free_count++] = entries[i].op_context;
    }
    return (uint32_t)count;
}

void raw_look(struct raw *raw)
{
    (void)reap(raw);
}

uint32_t raw_pieces_max(const struct raw *raw)
{
    const size_t most = raw->info->tx_attr->rma_iov_limit < raw->info->tx_attr->iov_limit
                            ? raw->info->tx_attr->rma_iov_limit
                            : raw->info->tx_attr->iov_limit;
    return most < PIECES_MAX ? (uint32_t)most : PIECES_MAX;
}

/* One operation from the pieces that come next; returns how many it took, 0: the queue is full. */
static size_t post(struct raw *raw, const struct plan_piece *pieces, size_t count,
                   uint32_t together, uint64_t bytes_max)
{
    struct iovec local[PIECES_MAX];
    struct fi_rma_iov remote[PIECES_MAX];
    void *descriptors[PIECES_MAX];
    uint64_t bytes = 0;
    size_t n = 0;
    while (n < together && n < count && (n == 0 || bytes + pieces[n].bytes <= bytes_max)) {
        local[n] = (struct iovec){raw->pool + pieces[n].from, pieces[n].bytes};
        remote[n] = (struct fi_rma_iov){raw->base + pieces[n].to, pieces[n].bytes, raw->key};
        descriptors[n] = fi_mr_desc(raw->memory);
        bytes += pieces[n++].bytes;
    }
    const struct fi_msg_rma message = {.msg_iov = local,
                                       .desc = descriptors,
                                       .iov_count = n,
                                       .addr = raw->there,
                                       .rma_iov = remote,
                                       .rma_iov_count = n,
                                       .context = raw->free_contexts[raw->free_count - 1u]};
    const ssize_t code = fi_writemsg(raw->endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
    if (code == -FI_EAGAIN) {
        return 0;
    }
    must(code, "fi_writemsg");
    raw->free_count--;
    return n;
}

void raw_write(struct raw *raw, const struct plan_piece *pieces, size_t count, uint32_t together,
               uint64_t bytes_max, uint32_t window)
{
    size_t at = 0;
    uint32_t in_flight = 0;
    while (at < count || in_flight > 0) {
        bool full = false;
        while (at < count && in_flight < window && !full) {
            const size_t took = post(raw, pieces + at, count - at, together, bytes_max);
            at += took;
            in_flight += took > 0 ? 1u : 0u;
            full = took == 0;
        }
        in_flight -= reap(raw);
    }
}

void raw_close(struct raw *raw)
{
    (void)fi_close(&raw->endpoint->fid);
    (void)fi_close(&raw->memory->fid);
    (void)fi_close(&raw->queue->fid);
    (void)fi_close(&raw->addresses->fid);
    (void)fi_close(&raw->domain->fid);
    (void)fi_close(&raw->fabric->fid);
    fi_freeinfo(raw->info);
    free(raw);
}
