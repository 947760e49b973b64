/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the data plane. */
#ifndef FABRIC_DATA_PRIVATE_H
#define FABRIC_DATA_PRIVATE_H

#include "fabric/data.h"
#include "fabric/plan.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OPERATION_PIECES_MAX 8u

struct pool {
    bool used;
    bool retiring; /* announced no more; kept until nothing can touch it */
    bool quiet;    /* no peer's write can touch it any more: the owner has said so */
    unsigned char *base;
    struct pool_layout layout;
    struct fid_mr *local; /* for reading out of it; NULL when the provider needs none */
    uint32_t reading;     /* operations in flight that read from it */
};

/* One write on its way: its spans are found when it is taken, cut into pieces as it is posted. */
struct writing {
    uint64_t id;
    uint64_t room;
    uint32_t from_rank;
    uint32_t to_rank;
    struct plan plan;
    struct plan_piece kept; /* a piece that did not fit the operation before */
    bool has_kept;
    bool planned_out; /* every piece has been posted */
    int32_t code;     /* first failure */
    char text[DATA_TEXT_BYTES];
    uint64_t bytes;
    uint32_t in_flight; /* operations */
    struct writing *next;
    struct plan_span spans[]; /* of the plan */
};

struct link;

struct operation {
    struct fi_context2 context; /* first: the provider gives it back */
    struct writing *writing;
    struct operation *next_free;
    uint64_t bytes;
};

struct link {
    bool used;
    bool connected;
    bool broken;               /* closed; its writes are not reported before it is fenced */
    bool told;                 /* data_broken has named it */
    bool stood;                /* something has arrived over it */
    char why[DATA_TEXT_BYTES]; /* it is broken */
    uint32_t peer;
    uint32_t link;
    uint32_t remote_ranks;
    struct fid_ep *endpoint;
    struct fid_cq *queue;
    struct fid_av *addresses;
    struct fid_mr *remote_keys[SM_RANKS_MAX]; /* our pools, for this peer to write into */
    fi_addr_t remote;
    struct data_region regions[SM_RANKS_MAX];
    struct pool_layout layouts[SM_RANKS_MAX]; /* pages 0: not announced */
    struct operation *operations;
    struct operation *free_operations;
    uint32_t in_flight;
    uint32_t refusals;     /* of the provider in a row, with nothing in flight */
    struct writing *first; /* round robin among these */
    struct writing *last;
    uint32_t writing_count;
    int wait_fd;
};

struct data {
    struct data_options options;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    bool can_wait;
    bool needs_local_mr;
    uint64_t virtual_addresses;
    char provider[64];
    char explanation[512];
    struct pool pools[SM_RANKS_MAX];
    struct link links[DATA_LINKS_MAX];
    struct writing *finished; /* to be reported */
    struct writing *finished_last;
    uint64_t pools_gone; /* a bit for each rank, to be reported */
    struct data_counters counters;
};

/* Translates libfabric's codes; the only place that knows them. */
enum status data_fabric_status(struct status_detail *out_detail, long code, const char *what);

struct link *data_link_find(struct data *data, uint32_t peer, uint32_t link);
/* Closes everything of the link: nothing lands over it any more. Its writes wait for the fence. */
void data_link_break(struct data *data, struct link *link, const char *why);
/* The same, reports its writes as failed, and forgets it. */
void data_link_close(struct data *data, struct link *link, const char *why);
/* Lets go of pools that are retiring and that nothing can touch any more. */
void data_release_pools(struct data *data);
void data_finish(struct data *data, struct writing *writing);
void data_fail(struct writing *writing, int32_t code, const char *text);
/* Moves writes that are over to the finished ones; a broken link's wait for the fence. */
void data_collect(struct data *data, struct link *link);
void data_post(struct data *data, struct link *link);
void data_reap(struct data *data, struct link *link);
enum status data_keys(struct data *data, struct link *link, struct status_detail *out_detail);

/* Whether pieces of it are still to be posted. */
static inline bool data_to_post(const struct writing *writing)
{
    return !writing->planned_out || writing->has_kept;
}

#endif
