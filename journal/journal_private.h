/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the journal: the handle, and the frame around an entry. */
#ifndef JOURNAL_JOURNAL_PRIVATE_H
#define JOURNAL_JOURNAL_PRIVATE_H

#include "journal/journal.h"
#include "schemas/lock_file.h"

#include <lmdb.h>

struct journal {
    struct journal_options options;
    char path[4096];
    MDB_env *env;
    MDB_dbi entries;
    MDB_dbi heads;
    MDB_dbi meta;
    MDB_dbi snapshots;
    MDB_dbi also; /* (room, entry), big-endian, no value */
    MDB_txn *write;
    MDB_txn *read;
    bool read_active;
    uint32_t reads; /* since the read transaction began */
    struct lock_file lock;
    struct journal_identity identity; /* committed */
    struct journal_identity pending;  /* with the open batch */
    enum status fault;
    uint32_t fault_after;
    struct status_detail detail;
};

/* Translates LMDB's and the system's codes; the only place that knows them. */
enum status journal_lmdb_status(struct journal *journal, int code, const char *what);

/* A read transaction of the caller's own; takes over the writer's grown map. */
enum status journal_begin_reading(struct journal *journal, MDB_txn **out_txn);
/* What the journal's head says as of a transaction. */
enum status journal_get_identity(struct journal *journal, MDB_txn *txn,
                                 struct journal_identity *out_identity);

/* 16 bytes that sort by room, then by entry. */
void journal_also_key(unsigned char *key, uint64_t room, uint64_t number);

/* ---- the frame (FORMAT.md): 56 bytes before each payload, little-endian
 * -------------------------------- */

#define JOURNAL_HEAD_BYTES 56u

struct journal_head {
    uint16_t version;
    uint16_t flags;
    uint32_t payload_size;
    uint64_t check; /* XXH3-64 over the head with this field 0, then the payload */
    uint64_t number;
    uint64_t room;
    uint64_t room_before;
    uint64_t chain[2]; /* XXH3-128 over (chain before, XXH3-128 of the payload) */
};

void journal_head_write(const struct journal_head *head, unsigned char *bytes);
void journal_head_read(const unsigned char *bytes, struct journal_head *out_head);
uint64_t journal_head_check(const unsigned char *head_bytes, const unsigned char *payload,
                            size_t payload_size);
void journal_chain_next(const uint64_t before[2], const unsigned char *payload, size_t payload_size,
                        uint64_t out_chain[2]);
/* STATUS_JOURNAL_DAMAGED with the broken property's name. */
enum status journal_frame_check(const unsigned char *bytes, size_t size, uint64_t number,
                                struct journal_head *out_head, const char **out_broken);

#endif
