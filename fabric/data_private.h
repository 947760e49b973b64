/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the data plane. */
#ifndef FABRIC_DATA_PRIVATE_H
#define FABRIC_DATA_PRIVATE_H

#include "fabric/check.h"
#include "fabric/data.h"
#include "fabric/plan.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OPERATION_PIECES_MAX 8u
#define QUESTIONS_MAX 4u /* a connection, each way */

struct pool {
    bool used;
    bool retiring; /* announced no more; kept until nothing can touch it */
    bool quiet;    /* no peer's write can touch it any more: the owner has said so */
    unsigned char *base;
    struct pool_layout layout;
    struct fid_mr *local; /* for reading out of it; NULL when the provider needs none */
    uint32_t reading;     /* operations in flight and answers in work that read from it */
};

/* One write on its way: its spans are found when it is taken, cut into pieces as it is posted. */
struct writing {
    uint64_t id;
    uint64_t room;
    uint32_t from_rank;
    uint32_t to_rank;
    struct plan plan;
    uint32_t slot_from; /* as ordered */
    uint32_t slot_to;
    uint64_t slot_bytes; /* 0: none is written */
    /* The next operation's pieces; those that the provider did not take stay. The one after them
     * was too large for it. */
    struct plan_piece next_pieces[OPERATION_PIECES_MAX + 1u];
    uint32_t next_count; /* of the next operation; 0: not put together */
    bool has_after;
    bool planned_out; /* the plan has no more pieces */
    bool queued;      /* for posting */
    int32_t code;     /* first failure */
    char text[DATA_TEXT_BYTES];
    uint64_t bytes;
    uint32_t in_flight; /* operations */
    /* Verified: */
    uint64_t *digests; /* of each span, then of the slot; NULL: it is not */
    uint32_t checked;  /* spans and slot that are the same at the destination */
    bool asked;        /* a question is not answered */
    bool to_ask;
    struct writing *next; /* of the connection's */
    struct writing *before;
    struct writing *next_queued;
    struct writing *next_to_ask;
    struct plan_span spans[]; /* of the plan */
};

enum operation_kind { OPERATION_WRITE, OPERATION_SEND, OPERATION_RECEIVE };

struct operation {
    struct fi_context2 context; /* first: the provider gives it back */
    enum operation_kind kind;
    struct writing *writing; /* WRITE */
    struct note *note;       /* SEND, RECEIVE */
    struct operation *next_free;
    uint64_t bytes;
};

/* A note on its way, in or out. */
struct note {
    struct operation operation;
    struct fid_mr *local; /* NULL when the provider needs none */
    size_t size;
    bool to_send; /* the provider has not taken it yet */
    bool in_use;  /* at the provider */
    unsigned char bytes[CHECK_NOTE_BYTES];
};

/* A question of ours. */
struct question {
    struct note note;
    struct writing *writing; /* NULL: answered, or nobody wants to know any more */
    uint64_t id;
    uint32_t count; /* spans and slot that it is about */
};

/* A question of the peer's. */
struct answering {
    struct note in;
    struct note out;
    bool waiting; /* read, and the answer of before is not away */
    bool hashing;
    uint32_t rank; /* whose pool is read */
    struct check_note question;
    struct pool_layout from; /* the plan's */
    struct pool_layout to;
    struct plan plan;
    struct sm_run runs[2][CHECK_SPANS_MAX];
    struct plan_span spans[2u * CHECK_SPANS_MAX];
    uint64_t digests[CHECK_SPANS_MAX + 1u];
};

/* Verification over one connection. */
struct checks {
    struct question questions[QUESTIONS_MAX];
    struct answering answers[QUESTIONS_MAX];
    uint64_t last_id;
    struct writing *first_to_ask;
    struct writing *last_to_ask;
    uint32_t hashing; /* answers in work */
};

struct link {
    bool used;
    bool connected;
    bool broken; /* closed; its writes are not reported before it is fenced */
    bool told;   /* data_broken has named it */
    bool stood;  /* something has arrived over it */
    bool verify; /* we want it, or the peer */
    char why[DATA_TEXT_BYTES];
    uint32_t peer;
    uint32_t link;
    uint32_t remote_ranks;
    struct fid_ep *endpoint;
    struct fid_cq *queue;
    struct fid_av *addresses;
    struct fid_mr *remote_keys[SM_RANKS_MAX]; /* our pools, for this peer to write into */
    fi_addr_t remote;
    struct data_region regions[SM_RANKS_MAX];
    struct pool_layout layouts[SM_RANKS_MAX]; /* ranks 0: not announced */
    struct operation *operations;
    struct operation *free_operations;
    uint32_t in_flight;
    uint32_t refusals;     /* of the provider in a row, with nothing in flight */
    struct writing *first; /* all that are not finished */
    struct writing *last;
    struct writing *first_queued; /* round robin among these */
    struct writing *last_queued;
    uint32_t writing_count;
    struct checks *checks;
    int wait_fd;
    struct fid_cntr *arrivals; /* of the peer's writes, where there is nothing to wait on */
    uint64_t arrived;
};

struct data {
    struct data_options options;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    bool can_wait;
    bool needs_local_mr;
    uint64_t virtual_addresses;
    uint32_t operation_pieces; /* at most */
    char provider[64];
    char explanation[512];
    struct pool pools[SM_RANKS_MAX];
    struct link links[DATA_LINKS_MAX];
    uint32_t busy;            /* looks without a pause that are left: something has moved */
    uint32_t links_end;       /* links from here on are not used */
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
enum status data_keys(struct data *data, struct link *link, struct status_detail *out_detail);
/* Memory that the provider reads from or writes into for us; *out_mr NULL where it needs none. */
enum status data_register_local(struct data *data, void *base, size_t bytes, uint64_t access,
                                struct fid_mr **out_mr, struct status_detail *out_detail);
/* Lets go of pools that are retiring and that nothing can touch any more. */
void data_release_pools(struct data *data);

/* ---- writes: data_write.c */

void data_finish(struct data *data, struct writing *writing);
void data_fail(struct writing *writing, int32_t code, const char *text);
/* Finishes it if nothing of it is under way or to come. */
void data_settle(struct data *data, struct link *link, struct writing *writing);
/* After data_fail of some that may be queued. */
void data_sweep(struct data *data, struct link *link);
void data_post(struct data *data, struct link *link);
void data_reap(struct data *data, struct link *link);

/* Whether pieces of it are still to be posted. */
static inline bool data_to_post(const struct writing *writing)
{
    return !writing->planned_out || writing->next_count > 0 || writing->has_after;
}

/* ---- verification: data_check.c */

enum status data_checks_open(struct data *data, struct link *link,
                             struct status_detail *out_detail);
/* The endpoint is closed. */
void data_checks_close(struct data *data, struct link *link);
/* How many spans and slots a write has to have verified; 0: it is not. */
uint32_t data_checks_of(const struct writing *writing);
/* All of it is at the destination: asks about what is not verified yet. */
void data_check_queue(struct link *link, struct writing *writing);
/* Sends what waits, and goes on with answers. */
void data_check_work(struct data *data, struct link *link);
void data_check_sent(struct note *note);
void data_check_received(struct data *data, struct link *link, struct note *note, size_t size);

#endif
