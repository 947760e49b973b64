/* SPDX-License-Identifier: Apache-2.0 */
/* Private to sglang_rooms*.c: what is kept of a room, a peer, and one call's answers. */
#ifndef SCHEMAS_SGLANG_ROOMS_PRIVATE_H
#define SCHEMAS_SGLANG_ROOMS_PRIVATE_H

#include "schemas/sglang_rooms.h"

#define SENDS_MAX (SM_RANKS_MAX * 2u)
#define INPUTS_MAX 80u
#define NO_RECORD UINT32_MAX
#define ENTRIES_MAX 65536u

/* One decode rank of one room with one peer: at prefill the peer's rank, at decode ours. */
struct record {
    uint64_t room;
    struct sm_life life;
    uint64_t published; /* prefill: our ports that have its metadata; decode: targets that got it */
    uint64_t targets;   /* decode: prefill ranks that it is about */
    uint64_t aborted;   /* prefill: our ports that got its abort; decode: targets that got ours */
    uint64_t done;      /* decode: targets that have succeeded */
    uint64_t acked;     /* decode: targets that have drained; prefill: ports that owe an ack */
    uint64_t token;     /* prefill: the generation to give back */
    uint64_t token_old; /* prefill: the greatest of the lives before, on this connection */
    uint64_t content;   /* prefill: digest of what was announced */
    uint32_t peer;
    uint32_t rank;
    uint32_t tries;
    uint32_t next; /* in its chain, or in the list of free ones */
    bool used;
    bool side_decode;
    bool has_token;
    bool concluded; /* prefill: a status was sent */
    bool drained;   /* prefill: the machine said so */
    bool old_link;  /* prefill: of a connection before this one */
    bool waited;    /* decode: of an old connection, and the next life has waited once */
    bool before;    /* decode: an earlier life on this connection was aborted */
    bool finished;  /* nothing of this life can come any more */
};

/* A decode rank of the peer, as it has registered. */
struct session {
    char text[SGLANG_TEXT_BYTES_MAX];
    char ip[SGLANG_TEXT_BYTES_MAX];
    uint32_t text_size;
    uint32_t ip_size;
    uint16_t port;
    uint64_t ports; /* of ours, at which it has registered */
    uint64_t entries;
    uint64_t item_bytes;
};

struct peer {
    bool known;
    char name[SM_NAME_BYTES_MAX + 1u];
    uint64_t node_id;
    uint64_t epoch;
    uint32_t ranks;
    uint32_t page_tokens;
    uint32_t dtype;
    struct session sessions[SM_RANKS_MAX];
    uint64_t registered[SM_RANKS_MAX]; /* our rank: ranks of the peer that have our registration */
};

struct send {
    uint32_t peer, peer_rank, rank;
    struct sm_life life;
    struct sglang_message message;
};

struct sglang_rooms {
    struct sglang_rooms_options options;
    char ip[SGLANG_TEXT_BYTES_MAX + 1u];
    char sessions[SM_RANKS_MAX][SGLANG_TEXT_BYTES_MAX + 8u];
    struct peer **peers;
    struct record *records;
    uint32_t *chains;
    uint32_t chain_mask;
    uint32_t record_count; /* so many have ever been used: the first ones */
    uint32_t free_first;
    uint32_t hand; /* where the next look for a finished record begins */
    uint64_t generation_last;
    struct send sends[SENDS_MAX];
    uint32_t send_count, send_next;
    struct sm_input inputs[INPUTS_MAX];
    uint32_t input_count, input_next;
    char reason[SM_REASON_BYTES_MAX + 1u];
    struct sm_run *runs;
    uint32_t runs_capacity;
    unsigned char *pages; /* packed, of the announcement being sent */
    size_t pages_capacity;
    unsigned char *pointers;  /* zeros: nothing of ours is reached by an address */
    unsigned char *layer_ids; /* packed */
    uint32_t entries;
    struct sglang_rooms_counters counters;
};

struct record *rooms_find(struct sglang_rooms *rooms, bool decode, uint64_t room, uint32_t peer,
                          uint32_t rank);
/* Of any peer. */
struct record *rooms_find_rank(struct sglang_rooms *rooms, uint64_t room, uint32_t rank);
/* NULL: the table is full of rooms that are not over. */
struct record *rooms_add(struct sglang_rooms *rooms, bool decode, uint64_t room, uint32_t peer,
                         uint32_t rank);
struct sglang_message *rooms_send(struct sglang_rooms *rooms, const struct record *record,
                                  uint32_t peer_rank, uint32_t rank, enum sglang_kind kind);
/* An input of the record's peer about its life; NULL: more than one call can have. */
struct sm_message *rooms_say(struct sglang_rooms *rooms, const struct record *record,
                             uint32_t kind);
struct sm_text rooms_reason(struct sglang_rooms *rooms, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t rooms_sources(uint32_t rank, uint32_t decode_ranks, uint32_t prefill_ranks);
bool rooms_same_life(const struct sm_life *a, const struct sm_life *b);
bool rooms_latent(const struct sm_geometry *geometry); /* one plane, the same on all ranks */
struct sglang_text rooms_text(const char *text);
uint64_t rooms_item_bytes(const struct sm_geometry *geometry, uint32_t ranks);

/* Each side's orders and arrivals. */
void rooms_decode_order(struct sglang_rooms *rooms, const struct sm_effect *effect);
void rooms_decode_take(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                       const struct sglang_message *message);
void rooms_prefill_order(struct sglang_rooms *rooms, const struct sm_effect *effect);
void rooms_prefill_take(struct sglang_rooms *rooms, const struct sglang_arrival *arrival,
                        const struct sglang_message *message, uint64_t now_ns);

#endif
