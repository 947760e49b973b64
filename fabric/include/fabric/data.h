/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane: pages written into a peer's pools by libfabric.
 *
 * Layer: libfabric, the planner. Holds no room state; does what it is told and reports each write
 * once.
 *
 * Model: a domain for the node; for each connection to a peer (peer, link) an endpoint, a
 * completion queue and memory keys of its own. Fencing a connection closes them: nothing of that
 * peer can land any more, and nobody else is touched.
 *
 * Ownership: pools are lent: base must stay mapped until data_pools_gone has named the rank, or
 * data_close. A write's runs are copied.
 *
 * Threads: one owner thread calls everything.
 *
 * Limits: DATA_LINKS_MAX connections; `window` operations in flight a connection; `writes_max`
 * writes waiting a connection, over that STATUS_AGAIN.
 *
 * Ordering: none between writes. A write is reported when all its bytes are visible at the
 * destination (delivery complete); with `verify` at either side, when the destination has read them
 * and found them to be those that were sent (check.h). Every connection answers such questions.
 *
 * Failure: an order that makes no sense, or whose pool is taken away, fails alone, with words. An
 * error of the provider breaks the connection: it is closed at once, since nobody knows what is
 * under way on it, and named by data_broken; its writes are reported as failed when it is fenced,
 * so that the owner knows of the connection before it hears of them. FABRIC_PROVIDER: nothing that
 * fits, with what was asked and what there is.
 */
#ifndef FABRIC_DATA_H
#define FABRIC_DATA_H

#include "schemas/pool_layout.h"
#include "schemas/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATA_LINKS_MAX 256u
#define DATA_ENDPOINT_BYTES_MAX 256u
#define DATA_REGIONS_MAX SM_RANKS_MAX
#define DATA_TEXT_BYTES 128u

struct data;

struct data_options {
    const char *provider; /* "auto", "tcp", "shm", or a libfabric provider name */
    const char *address;  /* of this host for the provider, "" any; shm ignores it */
    uint32_t window;      /* operations in flight a connection; 0: 64 */
    uint32_t piece_bytes; /* largest single operation; 0: 1 MiB */
    uint32_t writes_max;  /* writes waiting a connection; 0: 4,096 */
    bool verify;          /* our writes and those to us are verified */
};

enum status data_open(const struct data_options *options, struct data **out_data,
                      struct status_detail *out_detail);
void data_close(struct data *data);
/* libfabric's name of the provider. */
const char *data_provider(const struct data *data);
/* What was chosen and why, one line for the log. */
const char *data_explanation(const struct data *data);

/* ---- pools
 * ------------------------------------------------------------------------------------------ */

/*
 * Registers a rank's pool; links opened before announce it with the next data_link_local. The pool
 * that the rank has already: nothing changes. STATUS_FABRIC_POOL: another one, while the pool of
 * before has not been let go.
 */
enum status data_pool_add(struct data *data, uint32_t rank, void *base,
                          const struct pool_layout *layout, struct status_detail *out_detail);
/*
 * Begins to let go of a pool: it is announced no more, and what is not posted of writes out of it
 * fails. It stays registered until nothing can touch it: no operation of ours reads it, and either
 * data_pool_quiet was called or every connection that had a key to it has been closed. (A peer's
 * message that has begun lands where it was meant to, even after its key is closed.)
 */
void data_pool_retire(struct data *data, uint32_t rank);
/* No write of a peer can touch the rank's pool any more, now or later; before or after retire. */
void data_pool_quiet(struct data *data, uint32_t rank);
/* The ranks whose pools have been let go since the last call, a bit each: nothing touches them. */
uint64_t data_pools_gone(struct data *data);

/* ---- connections
 * ------------------------------------------------------------------------------------ */

/* A rank's pool at a peer, as it announced it. */
struct data_region {
    uint32_t rank;
    uint64_t address; /* what the provider wants as the address of byte 0 */
    uint64_t bytes;
    uint64_t key;
    uint32_t pages;
    uint32_t aux_slots;
    uint64_t aux_stride; /* bytes of a metadata slot, rounded */
    struct sm_geometry geometry;
};

struct data_endpoint {
    unsigned char bytes[DATA_ENDPOINT_BYTES_MAX];
    size_t size;
    bool verify; /* it wants writes to it verified */
    uint32_t region_count;
    struct data_region regions[DATA_REGIONS_MAX];
};

/*
 * Makes the endpoint for a connection; *out_endpoint is what the peer has to know. Connections of
 * that peer with a smaller number are closed; writes of those that stood are reported when they are
 * fenced.
 */
enum status data_link_open(struct data *data, uint32_t peer, uint32_t link,
                           struct data_endpoint *out_endpoint, struct status_detail *out_detail);
/* The same again after pools have changed. */
enum status data_link_local(struct data *data, uint32_t peer, uint32_t link,
                            struct data_endpoint *out_endpoint, struct status_detail *out_detail);
/* What the peer has told: from now on writes can be posted. Again when its pools have changed. */
enum status data_link_connect(struct data *data, uint32_t peer, uint32_t link,
                              uint32_t remote_ranks, const struct data_endpoint *remote,
                              struct status_detail *out_detail);
/* Closes every connection of the peer up to `link`. Its unfinished writes are reported as failed.
 */
void data_link_fence(struct data *data, uint32_t peer, uint32_t link);
/* A connection that the provider has broken, and why; each once. Fence it. */
bool data_broken(struct data *data, uint32_t *out_peer, uint32_t *out_link,
                 char out_text[DATA_TEXT_BYTES]);

/* ---- writes
 * -------------------------------------------------------------------------------------------- */

struct data_write {
    uint64_t id;
    uint64_t room;
    uint32_t peer;
    uint32_t link;
    uint32_t from_rank;
    uint32_t to_rank;
    struct sm_runs from;
    struct sm_runs to;
    uint32_t aux_from; /* SM_AUX_NONE: no metadata */
    uint32_t aux_to;
};

struct data_result {
    uint64_t id;
    uint64_t room;
    uint64_t bytes;
    int32_t code; /* 0 delivered; else negative */
    char text[DATA_TEXT_BYTES];
};

/* STATUS_AGAIN: the connection's queue is full; every other failure is reported as a result. */
enum status data_write(struct data *data, const struct data_write *write);

/* Drives all connections; fills up to `max` results and returns their number. Never blocks. */
uint32_t data_poll(struct data *data, struct data_result *out_results, uint32_t max);

/*
 * Waits until something may have happened on a connection, or wake_fd is readable, or the time is
 * over. After something has moved it returns at once for a while. Providers without a file
 * descriptor to wait on are looked at every 50 us while writes are in flight, every 250 us else.
 */
void data_wait(struct data *data, int wake_fd, uint32_t timeout_ms);

struct data_counters {
    uint64_t writes;
    uint64_t operations;
    uint64_t bytes;
    uint64_t failures;
    uint64_t retries;    /* the provider's queue was full */
    uint64_t mismatches; /* bytes at the destination were not what was sent */
    uint64_t links;
    uint64_t in_flight;
};
void data_counters(const struct data *data, struct data_counters *out_counters);

#endif
