/* SPDX-License-Identifier: Apache-2.0 */
/* Provider, domain, pools. */
#include "data_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define WINDOW_DEFAULT 64u
#define PIECE_BYTES_DEFAULT (1u << 20)
#define WRITES_DEFAULT 4096u

enum status data_fabric_status(struct status_detail *out_detail, long code, const char *what)
{
    if (code >= 0) {
        return STATUS_OK;
    }
    return status_fail(code == -FI_ENODATA ? STATUS_FABRIC_PROVIDER : STATUS_FABRIC_PEER,
                       out_detail, code, "fabric: %s: %s", what, fi_strerror((int)-code));
}

/* ---- choosing a provider
 * ----------------------------------------------------------------------------- */

struct candidate {
    const char *name; /* libfabric's */
    const char *why;
};

/* Best first; "auto" takes the first that this host has. shm only by name: it cannot leave the
 * host. */
static const struct candidate candidates[] = {
    {"efa", "an EFA device is present"},
    {"cxi", "a Slingshot device is present"},
    {"verbs;ofi_rxm", "an RDMA device is present"},
    {"tcp;ofi_rxm", "no RDMA device is present; tcp works everywhere"},
};

static struct fi_info *ask(const char *name, const char *address)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_info *info = NULL;
    if (hints == NULL) {
        return NULL;
    }
    const bool shm = strcmp(name, "shm") == 0;
    hints->fabric_attr->prov_name = strdup(name);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->addr_format = shm ? FI_ADDR_STR : FI_FORMAT_UNSPEC;
    const bool by_address = !shm && address != NULL && address[0] != '\0';
    const int code = fi_getinfo(FI_VERSION(1, 17), by_address ? address : NULL, NULL,
                                by_address ? FI_SOURCE : 0, hints, &info);
    fi_freeinfo(hints);
    return code == 0 ? info : NULL;
}

static uint32_t pieces_limit(const struct fi_info *info)
{
    size_t most = info->tx_attr->iov_limit;
    if (info->tx_attr->rma_iov_limit < most) {
        most = info->tx_attr->rma_iov_limit;
    }
    most = most < OPERATION_PIECES_MAX ? most : OPERATION_PIECES_MAX;
    return most < 1u ? 1u : (uint32_t)most;
}

static enum status choose(struct data *data, struct status_detail *out_detail)
{
    const char *wanted = data->options.provider;
    const char *name = strcmp(wanted, "tcp") == 0 ? "tcp;ofi_rxm" : wanted;
    const char *why = "named by fabric.provider";
    if (strcmp(wanted, "auto") == 0) {
        for (size_t i = 0; i < sizeof candidates / sizeof candidates[0] && data->info == NULL;
             i++) {
            name = candidates[i].name;
            why = candidates[i].why;
            data->info = ask(name, data->options.address);
        }
    } else {
        data->info = ask(name, data->options.address);
    }
    if (data->info == NULL) {
        return status_fail(
            STATUS_FABRIC_PROVIDER, out_detail, 0,
            "fabric: provider %s does not offer reliable datagrams with remote writes "
            "and delivery completion at address '%s'; see fi_info -p %s, or set "
            "fabric.provider and fabric.address",
            wanted, data->options.address, name);
    }
    const struct fi_info *info = data->info;
    (void)snprintf(data->provider, sizeof data->provider, "%s", info->fabric_attr->prov_name);
    data->needs_local_mr = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
    data->virtual_addresses = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    data->operation_pieces = pieces_limit(info);
    (void)snprintf(data->explanation, sizeof data->explanation,
                   "provider %s, domain %s (%s); %zu pieces an operation, largest message %zu, "
                   "local registration %s, addresses %s, keys by %s",
                   data->provider, info->domain_attr->name, why, info->tx_attr->rma_iov_limit,
                   info->ep_attr->max_msg_size, data->needs_local_mr ? "yes" : "no",
                   data->virtual_addresses ? "virtual" : "offsets",
                   (info->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0 ? "provider" : "us");
    return STATUS_OK;
}

/* Whether endpoints can be made with these options: at the start, not when the first peer comes. */
static enum status try_endpoint(struct data *data, struct status_detail *out_detail)
{
    struct data_endpoint endpoint;
    TRY(data_link_open(data, 0, 1, &endpoint, out_detail));
    data_link_fence(data, 0, 1);
    return STATUS_OK;
}

enum status data_open(const struct data_options *options, struct data **out_data,
                      struct status_detail *out_detail)
{
    struct data *data = calloc(1, sizeof *data);
    if (data == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the data plane");
    }
    data->options = *options;
    data->options.provider =
        options->provider == NULL || options->provider[0] == '\0' ? "auto" : options->provider;
    data->options.address = options->address == NULL ? "" : options->address;
    data->options.window = options->window == 0 ? WINDOW_DEFAULT : options->window;
    data->options.piece_bytes =
        options->piece_bytes == 0 ? PIECE_BYTES_DEFAULT : options->piece_bytes;
    data->options.writes_max = options->writes_max == 0 ? WRITES_DEFAULT : options->writes_max;
    enum status status = choose(data, out_detail);
    if (status == STATUS_OK) {
        status = data_fabric_status(
            out_detail, fi_fabric(data->info->fabric_attr, &data->fabric, NULL), "fi_fabric");
    }
    if (status == STATUS_OK) {
        status = data_fabric_status(
            out_detail, fi_domain(data->fabric, data->info, &data->domain, NULL), "fi_domain");
    }
    /* shm has nothing to wait on; tcp has. */
    data->can_wait = strstr(data->provider, "shm") == NULL;
    status = status == STATUS_OK ? try_endpoint(data, out_detail) : status;
    if (status != STATUS_OK) {
        data_close(data);
        return status;
    }
    *out_data = data;
    return STATUS_OK;
}

void data_close(struct data *data)
{
    struct data_result result;
    if (data == NULL) {
        return;
    }
    for (uint32_t i = 0; i < data->links_end; i++) {
        if (data->links[i].used) {
            data_link_close(data, &data->links[i], "the node is closing");
        }
    }
    while (data->finished != NULL && data_poll(data, &result, 1) > 0) {
    }
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        data_pool_retire(data, rank);
    }
    data_release_pools(data);
    if (data->domain != NULL) {
        (void)fi_close(&data->domain->fid);
    }
    if (data->fabric != NULL) {
        (void)fi_close(&data->fabric->fid);
    }
    if (data->info != NULL) {
        fi_freeinfo(data->info);
    }
    free(data);
}

const char *data_provider(const struct data *data)
{
    return data->provider;
}

const char *data_explanation(const struct data *data)
{
    return data->explanation;
}

void data_counters(const struct data *data, struct data_counters *out)
{
    *out = data->counters;
    out->links = 0;
    out->in_flight = 0;
    for (uint32_t i = 0; i < data->links_end; i++) {
        out->links += data->links[i].used ? 1u : 0u;
        out->in_flight += data->links[i].used ? data->links[i].in_flight : 0u;
    }
}

/* ---- pools
 * ---------------------------------------------------------------------------------------------- */

/* Keys are ours to choose with most providers here: nobody should guess another's. */
static uint64_t random_key(void)
{
    uint64_t key = 0;
    if (getrandom(&key, sizeof key, 0) != (ssize_t)sizeof key) {
        static uint64_t counter = 1; /* a key only has to be unique for safety against mistakes */
        key = counter++;
    }
    return key & (UINT64_MAX >> 2);
}

static enum status register_memory(struct data *data, struct link *link, void *base, uint64_t bytes,
                                   uint64_t access, struct fid_mr **out_mr,
                                   struct status_detail *out_detail)
{
    long code = fi_mr_reg(data->domain, base, bytes, access, 0, random_key(), 0, out_mr, NULL);
    if (code == 0 && link != NULL && (data->info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
        code = fi_mr_bind(*out_mr, &link->endpoint->fid, 0);
        code = code != 0 ? code : fi_mr_enable(*out_mr);
    }
    return data_fabric_status(out_detail, code, "a pool cannot be registered");
}

enum status data_register_local(struct data *data, void *base, size_t bytes, uint64_t access,
                                struct fid_mr **out_mr, struct status_detail *out_detail)
{
    *out_mr = NULL;
    return data->needs_local_mr
               ? register_memory(data, NULL, base, bytes, access, out_mr, out_detail)
               : STATUS_OK;
}

enum status data_pool_add(struct data *data, uint32_t rank, void *base,
                          const struct pool_layout *layout, struct status_detail *out_detail)
{
    if (rank >= SM_RANKS_MAX || layout->bytes == 0) {
        return status_fail(STATUS_FABRIC_POOL, out_detail, 0, "rank %u: no such pool", rank);
    }
    struct pool *pool = &data->pools[rank];
    if (pool->used && !pool->retiring && pool->base == base &&
        memcmp(&pool->layout, layout, sizeof *layout) == 0) {
        return STATUS_OK; /* the same engine again: writes may run on it */
    }
    if (pool->used) {
        return status_fail(STATUS_FABRIC_POOL, out_detail, 0,
                           "rank %u: its pool of before has not been let go yet", rank);
    }
    TRY(data_register_local(data, base, layout->bytes, FI_WRITE, &pool->local, out_detail));
    pool->used = true;
    pool->base = base;
    pool->layout = *layout;
    return STATUS_OK;
}

void data_pool_retire(struct data *data, uint32_t rank)
{
    struct pool *pool = &data->pools[rank];
    if (!pool->used) {
        data->pools_gone |= UINT64_C(1) << rank;
        return;
    }
    pool->retiring = true;
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        for (struct writing *w = link->used ? link->first : NULL; w != NULL; w = w->next) {
            if (w->from_rank == rank && data_to_post(w)) {
                data_fail(w, -ECANCELED, "the source pool was taken away");
            }
        }
        if (link->used && !link->broken) {
            data_sweep(data, link);
        }
    }
}

void data_pool_quiet(struct data *data, uint32_t rank)
{
    data->pools[rank].quiet = data->pools[rank].used;
}

/* A connection over which a peer may still write into the pool. */
static bool exposed(const struct data *data, uint32_t rank)
{
    for (uint32_t i = 0; i < data->links_end; i++) {
        if (data->links[i].used && data->links[i].remote_keys[rank] != NULL) {
            return true;
        }
    }
    return false;
}

static void release_pool(struct data *data, uint32_t rank)
{
    struct pool *pool = &data->pools[rank];
    for (uint32_t i = 0; i < data->links_end; i++) {
        struct link *link = &data->links[i];
        if (link->used && link->remote_keys[rank] != NULL) {
            (void)fi_close(&link->remote_keys[rank]->fid);
            link->remote_keys[rank] = NULL;
        }
    }
    if (pool->local != NULL) {
        (void)fi_close(&pool->local->fid);
    }
    memset(pool, 0, sizeof *pool);
    data->pools_gone |= UINT64_C(1) << rank;
}

/*
 * A key that is closed stops only what has not begun: providers look at it when a message starts,
 * and put the rest of that message where it belongs however much later it comes. So memory goes
 * when the owner knows that no write can be under way, or when the connections are gone.
 */
void data_release_pools(struct data *data)
{
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        const struct pool *pool = &data->pools[rank];
        if (pool->retiring && pool->reading == 0 && (pool->quiet || !exposed(data, rank))) {
            release_pool(data, rank);
        }
    }
}

uint64_t data_pools_gone(struct data *data)
{
    data_release_pools(data);
    const uint64_t gone = data->pools_gone;
    data->pools_gone = 0;
    return gone;
}

/* Keys of all our pools for this connection, where it has none yet. */
enum status data_keys(struct data *data, struct link *link, struct status_detail *out_detail)
{
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        const struct pool *pool = &data->pools[rank];
        if (pool->used && !pool->retiring && link->remote_keys[rank] == NULL) {
            TRY(register_memory(data, link, pool->base, pool->layout.bytes, FI_REMOTE_WRITE,
                                &link->remote_keys[rank], out_detail));
        }
    }
    return STATUS_OK;
}
