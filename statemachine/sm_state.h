/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: what the machine remembers, and where it stands in its one block of memory.
 *
 * The block is struct sm followed by its tables. Tables are found by offset, and records name each
 * other by index, so that a copy of the block is a machine. Index SM_NONE means "none". What the
 * machine does next depends on the values below alone, never on which free record was taken first:
 * halves and writes take the lowest free index, and work is done in index order.
 */
#ifndef STATEMACHINE_SM_STATE_H
#define STATEMACHINE_SM_STATE_H

#include "statemachine/sm.h"
#include "statemachine/sm_assert.h"

/* Decode nodes that one prefill half can be bound to. */
#define SM_LIVES_MAX 8u
/* Runs in one block of a page list: makes the block one cache line. */
#define SM_BLOCK_RUNS 7u
/* Output that one half may need at the most when it is settled, writes aside (see sm_settle.c). */
#define SM_HALF_TRANSITIONS 640u
#define SM_HALF_EFFECTS 448u

/* Page map: who holds a page. Otherwise holder's half index + 1. */
#define SM_PAGE_FREE 0u
#define SM_PAGE_QUARANTINED 0x7fffffffu
#define SM_PAGE_SHARED 0x80000000u /* | number of holders that only read it */

enum { PEER_UNKNOWN = 0, PEER_IS_UP = 1, PEER_IS_DOWN = 2 };
enum { ENGINE_ABSENT = 0, ENGINE_IS_ATTACHED = 1, ENGINE_AWAITED = 2, ENGINE_IS_LOST = 3 };
enum { NOTICE_NONE = 0, NOTICE_OWED = 1, NOTICE_ACKED = 2, NOTICE_GONE = 3 };

/* A set of indices, walked in order. */
struct sm_bits {
    uint32_t offset; /* of its words in the block, in units of 8 bytes */
    uint32_t size;   /* members 0..size-1 */
    uint32_t words;
    uint32_t count;
};

/* A list of page runs in prompt order. */
struct sm_page_list {
    uint32_t head;
    uint32_t tail;
    uint32_t runs;
    uint32_t pages;
};

/* Where the next page to be read from a list stands. */
struct sm_page_cursor {
    uint32_t block;
    uint32_t index;
    uint32_t skip;
};

struct sm_block {
    uint32_t next;
    uint32_t count;
    struct sm_run runs[SM_BLOCK_RUNS];
};

struct sm_reason {
    uint64_t hash;
    uint32_t refs;
    uint32_t next;
    uint32_t size;
    char bytes[SM_REASON_BYTES_MAX];
};

/* A cause as it is kept: the text by index. */
struct sm_kept_cause {
    uint32_t reason; /* SM_NONE: no text */
    uint16_t http;
    uint8_t origin;
    uint8_t typed;
};

struct sm_peer {
    uint64_t node_id;
    uint64_t epoch;
    uint64_t grace_until_ns; /* until then a restarted peer may still name its verdicts */
    uint64_t fence_asked_ns;
    uint32_t link;        /* greatest seen */
    uint32_t fenced_link; /* connections up to this one cannot touch memory any more */
    uint32_t fence_asked; /* greatest link that a fence was ordered for */
    uint32_t ranks;
    uint32_t rooms; /* halves that name it */
    uint8_t state;
    uint8_t recovered;   /* it said that all its verdicts have been repeated */
    uint8_t marker_owed; /* we owe it the same */
    uint8_t configured;  /* this start of the node names it; an earlier one may have named others */
    uint8_t name_size;
    char name[SM_NAME_BYTES_MAX + 1];
};

struct sm_engine {
    struct sm_geometry geometry;
    uint64_t awaited_until_ns;
    uint32_t pages;
    uint32_t aux_slots;
    uint32_t life; /* counts up when the engine's process is gone */
    uint8_t state;
    uint8_t lost; /* enum sm_lost: how the life before this one ended */
};

/* One engine rank's part in a half. */
struct sm_rank {
    uint64_t request;          /* of the open: a repeated open is known by it */
    uint64_t sources_required; /* decode: prefill ranks that must write */
    uint64_t sources_done;     /* decode: those that said so */
    uint64_t prepare_next_ns;
    uint64_t abort_next_ns;
    struct sm_page_list pages;
    struct sm_page_cursor posted_at; /* prefill: next page to be posted */
    struct sm_kept_cause own_cause;  /* only with `gather` switched off */
    uint32_t next;
    uint32_t rank;
    uint32_t peer;          /* decode: where its pages are announced */
    uint32_t prepared_link; /* decode: connection on which prefill confirmed; 0 not yet */
    uint32_t reach_link; /* decode: newest connection on which the pages were announced; 0 never */
    uint32_t reach_link_old; /* decode: the one before */
    uint32_t prefix_pages;
    uint32_t aux_slot;
    uint32_t destinations; /* prefill: required for this rank; 0 not known yet */
    uint32_t posted_pages; /* prefill */
    uint32_t in_flight;    /* prefill: writes that read its pages */
    uint32_t abort_link;   /* decode: connection on which the abort was last sent; 0 never */
    uint32_t engine_life;  /* of the engine process that opened it */
    uint16_t prepare_tries;
    uint16_t abort_tries;
    uint8_t opened;
    uint8_t last_sent;      /* prefill */
    uint8_t last_posted;    /* prefill */
    uint8_t drained_said;   /* decode: prefill said that nothing is in flight */
    uint8_t abort_answered; /* decode */
    uint8_t freed;          /* its pages are its engine's again */
    uint8_t own_outcome;    /* only with `gather` switched off */
};

/* A decode rank that published pages for a prefill half. */
struct sm_destination {
    uint64_t sources;
    uint64_t notice_next_ns;
    struct sm_page_list pages;
    struct sm_geometry geometry;
    uint32_t next;
    uint32_t index; /* 0.. in the order of arrival */
    uint32_t life;  /* index in the half's lives */
    uint32_t decode_rank;
    uint32_t decode_ranks;
    uint32_t prefix_pages;
    uint32_t aux_slot;
    uint32_t link;        /* connection on which it was prepared */
    uint32_t notice_link; /* connection on which its verdict was last sent; 0 never */
    uint32_t in_flight;
    uint16_t notice_tries;
    uint8_t notice;      /* NOTICE_* */
    uint8_t drain_asked; /* decode wants to hear when nothing can touch its pages */
};

struct sm_bound_life {
    struct sm_life life;
    uint32_t peer;
};

struct sm_half {
    uint64_t room;
    uint64_t generation;
    uint64_t epoch; /* of this node, when it was created */
    uint64_t opened_ns;
    uint64_t deadline_ns;
    uint64_t verdict_ns;
    uint64_t grace_until_ns; /* an untyped cause waits; 0: no wait */
    uint64_t fence_asked_ns; /* drain overdue: fence ordered at; 0 not yet */
    uint64_t wake_ns;
    uint64_t writes_epoch;
    uint64_t opened; /* masks over engine ranks */
    uint64_t admitted;
    uint64_t released;
    uint64_t told; /* since its engine attached */
    uint64_t told_ever;
    uint64_t delivered;
    uint64_t required_known;                  /* prefill ranks whose required count is known */
    uint8_t required[SM_RANKS_MAX];           /* prefill: destinations that each rank needs */
    struct sm_bound_life lives[SM_LIVES_MAX]; /* prefill */
    struct sm_kept_cause cause;
    uint32_t hash_next;
    uint32_t heap_at;
    uint32_t ranks;        /* first rank record */
    uint32_t destinations; /* first destination record */
    uint32_t destination_count;
    uint32_t life_count;
    uint32_t in_flight;
    uint8_t side;
    uint8_t phase;
    uint8_t outcome;
    uint8_t owner_engine;
    uint8_t by_journal; /* the verdict is the journal's own 503 */
    uint8_t late;       /* joined after its end: only tells */
    uint8_t used;
};

struct sm_write {
    uint64_t id;
    uint32_t half;
    uint32_t rank;
    uint32_t destination; /* record index */
    uint32_t pages;
};

struct sm_tombstone {
    uint64_t room;
    uint64_t generation;
    uint64_t expires_ns;
    uint64_t opened;
    struct sm_life life;
    uint64_t destinations; /* prefill: decode ranks of the life that the verdict is about */
    struct sm_kept_cause cause;
    uint32_t hash_next;
    uint8_t side;
    uint8_t outcome;
    uint8_t expecting; /* prefill: destinations may still come that belong to it */
    uint8_t owner_engine;
};

struct sm_pool {
    uint32_t offset; /* in units of 16 bytes */
    uint32_t size;
    uint32_t used; /* records ever taken */
    uint32_t free; /* first of the free list, linked through the record's first uint32 */
    uint32_t live;
};

struct sm {
    struct sm_bounds bounds;
    struct sm_policy policy;
    struct sm_counters counters;
    uint64_t node_id;
    uint64_t epoch;
    uint64_t now_ns;
    uint64_t stop_deadline_ns; /* 0: not stopping */
    uint64_t generation_floor; /* no forgotten life had a greater one */
    uint64_t write_seq;
    uint64_t tombstone_first; /* ring positions; count up for ever */
    uint64_t tombstone_end;
    uint64_t pages_held;
    uint32_t peer_count;
    uint32_t link_last;
    uint32_t heap_count;
    uint32_t markers_owed;   /* peers with marker_owed */
    uint32_t restoring_half; /* sm_restore.c: ranks and destinations go here; SM_NONE */
    uint32_t half_buckets;
    uint32_t tombstone_buckets;
    uint32_t reason_buckets;
    uint8_t started;
    uint8_t stopping;
    uint8_t stopped;
    uint8_t journal_failed;
    uint8_t map_built; /* sm_restore.c */
    char name[SM_NAME_BYTES_MAX + 1];
    uint32_t name_size;
    struct sm_engine engines[SM_RANKS_MAX];
    struct sm_bits halves_used;
    struct sm_bits work;    /* halves to be settled as soon as there is room in an output */
    struct sm_bits blocked; /* halves that wait for a free write record */
    struct sm_bits writes_used;
    struct sm_pool ranks;
    struct sm_pool destinations;
    struct sm_pool blocks;
    struct sm_pool reasons;
    uint32_t halves_at; /* offsets in units of 16 bytes */
    uint32_t heap_at;
    uint32_t half_heads_at;
    uint32_t writes_at;
    uint32_t tombstones_at;
    uint32_t tombstone_heads_at;
    uint32_t reason_heads_at;
    uint32_t peers_at;
    uint32_t pages_at;
    uint32_t aux_at;
};

/* ---- sm_memory.c ------------------------------------------------------------------------------
 */

void *sm_at(const struct sm *sm, uint32_t offset16);
struct sm_half *sm_half_at(const struct sm *sm, uint32_t index);
uint32_t sm_half_index(const struct sm *sm, const struct sm_half *half);
struct sm_rank *sm_rank_at(const struct sm *sm, uint32_t index);
struct sm_destination *sm_destination_at(const struct sm *sm, uint32_t index);
struct sm_block *sm_block_at(const struct sm *sm, uint32_t index);
struct sm_reason *sm_reason_at(const struct sm *sm, uint32_t index);
struct sm_write *sm_write_at(const struct sm *sm, uint32_t index);
struct sm_peer *sm_peer_at(const struct sm *sm, uint32_t index);
struct sm_tombstone *sm_tombstone_at(const struct sm *sm, uint64_t position);

/* Index of a zeroed record; SM_NONE when the table is full. */
uint32_t sm_pool_take(struct sm *sm, struct sm_pool *pool, size_t record_bytes);
void sm_pool_give(struct sm *sm, struct sm_pool *pool, size_t record_bytes, uint32_t index);

void sm_bits_add(struct sm *sm, struct sm_bits *bits, uint32_t member);
void sm_bits_remove(struct sm *sm, struct sm_bits *bits, uint32_t member);
bool sm_bits_has(const struct sm *sm, const struct sm_bits *bits, uint32_t member);
/* Lowest member not before `from`; SM_NONE when there is none. */
uint32_t sm_bits_next(const struct sm *sm, const struct sm_bits *bits, uint32_t from);
/* Lowest index that is not a member; SM_NONE when full. */
uint32_t sm_bits_lowest_free(const struct sm *sm, const struct sm_bits *bits);
void sm_bits_clear(struct sm *sm, struct sm_bits *bits);
void sm_bits_add_all(struct sm *sm, struct sm_bits *bits, const struct sm_bits *others);

/* memcpy, memset and memcmp are the only foreign symbols that the core may have; where a size is
 * known the compiler needs none of them. */
static inline void sm_copy(void *to, const void *from, size_t size)
{
    if (size > 0) { /* an empty text or list may have no address */
        __builtin_memcpy(to, from, size);
    }
}

static inline void sm_zero(void *at, size_t size)
{
    __builtin_memset(at, 0, size);
}

static inline bool sm_same(const void *a, const void *b, size_t size)
{
    return size == 0 || __builtin_memcmp(a, b, size) == 0;
}

/* ---- sm_index.c -------------------------------------------------------------------------------
 */

/* Multiply-xorshift over both words; every input bit reaches every output bit. */
static inline uint64_t sm_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a ^ (b * UINT64_C(0x9e3779b97f4a7c15));
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return x;
}

uint32_t sm_half_newest(const struct sm *sm, uint64_t room, uint32_t side);
/* The half of exactly this generation; SM_NONE. */
uint32_t sm_half_exact(const struct sm *sm, uint64_t room, uint32_t side, uint64_t generation);
/* Next half of the same room and side after `half` in its bucket (for walks over all lives). */
uint32_t sm_half_chain(const struct sm *sm, uint64_t room, uint32_t side, uint32_t after);
uint32_t sm_half_take(struct sm *sm, uint64_t room, uint32_t side, uint64_t generation);
void sm_half_place(struct sm *sm, uint32_t index); /* into the hash (restore) */
void sm_half_give(struct sm *sm, uint32_t index);

/* Newest tombstone of the room and side; its ring position + 1, or 0. */
uint64_t sm_tombstone_newest(const struct sm *sm, uint64_t room, uint32_t side);
/* The one bound to exactly this life; position + 1, or 0. */
uint64_t sm_tombstone_of_life(const struct sm *sm, uint64_t room, const struct sm_life *life);
/* Walk over all of the room: start with 0, give the last answer back; 0 at the end. */
uint64_t sm_tombstone_chain(const struct sm *sm, uint64_t room, uint32_t side, uint64_t after);
struct sm_tombstone *sm_tombstone_add(struct sm *sm, uint64_t room, uint32_t side);
void sm_tombstone_drop_oldest(struct sm *sm);

void sm_timer_set(struct sm *sm, uint32_t half, uint64_t wake_ns); /* SM_NEVER removes */
uint32_t sm_timer_due(const struct sm *sm); /* half whose time has come; SM_NONE */

/* ---- sm_pages.c --------------------------------------------------------------------------------
 */

uint32_t sm_pages_quota(const struct sm *sm);
uint32_t sm_aux_quota(const struct sm *sm);
uint32_t *sm_page_entry(const struct sm *sm, uint32_t rank, uint32_t page);
uint32_t *sm_aux_entry(const struct sm *sm, uint32_t rank, uint32_t slot);
/* Appends; false when the run table is full (what was appended stays). */
bool sm_list_append(struct sm *sm, struct sm_page_list *list, const struct sm_runs *runs);
void sm_list_clear(struct sm *sm, struct sm_page_list *list);
bool sm_list_equals(const struct sm *sm, const struct sm_page_list *list,
                    const struct sm_runs *runs);
struct sm_page_cursor sm_list_start(const struct sm_page_list *list);
/* Copies the next `pages` pages as runs; returns the number of runs, or SM_NONE if more than `max`.
 */
uint32_t sm_list_read(const struct sm *sm, struct sm_page_cursor *cursor, uint32_t pages,
                      struct sm_run *out_runs, uint32_t max);
/* Whether every run is inside a pool of `pages`, none overlaps itself; total in *out_pages. */
bool sm_runs_valid(const struct sm_runs *runs, uint32_t pages, uint32_t *out_pages);
/* First page of the runs that may not be taken; SM_NONE when all may. exclusive: for writing into.
 */
uint32_t sm_pages_blocked(const struct sm *sm, uint32_t rank, const struct sm_runs *runs,
                          bool exclusive);
/* Takes pages for writing into; false, and nothing taken, when one is held (or stands twice). */
bool sm_pages_hold(struct sm *sm, uint32_t rank, const struct sm_runs *runs, uint32_t half);
/* Takes pages for reading; none of them may be held for writing. */
void sm_pages_share(struct sm *sm, uint32_t rank, const struct sm_runs *runs);
/* Enters what a rank record holds into the map. */
bool sm_list_hold(struct sm *sm, const struct sm_half *half, uint32_t index,
                  const struct sm_rank *rank);
void sm_pages_rebuild(struct sm *sm);
void sm_pages_drop(struct sm *sm, uint32_t rank, const struct sm_page_list *list, bool exclusive);
void sm_pages_quarantine(struct sm *sm, uint32_t rank, const struct sm_page_list *list);

/* ---- sm_text.c ----------------------------------------------------------------------------------
 */

struct sm_writer {
    char *bytes;
    size_t size;
    size_t used; /* may pass size: what would have been written */
};

void sm_put(struct sm_writer *writer, const char *text);
void sm_put_text(struct sm_writer *writer, struct sm_text text);
void sm_put_number(struct sm_writer *writer, uint64_t number);
void sm_put_hex(struct sm_writer *writer, uint64_t number);
struct sm_text sm_writer_text(const struct sm_writer *writer);
struct sm_text sm_text_of(const char *zero_terminated);
bool sm_text_same(struct sm_text a, struct sm_text b);
/* Cut to `most` bytes at a character, so that the rest is still UTF-8. */
struct sm_text sm_text_cut(struct sm_text text, uint32_t most);

uint32_t sm_reason_keep(struct sm *sm, struct sm_text text); /* SM_NONE: empty or no room */
void sm_reason_drop(struct sm *sm, uint32_t reason);
struct sm_text sm_reason_text(const struct sm *sm, uint32_t reason);
void sm_cause_keep(struct sm *sm, struct sm_kept_cause *kept, const struct sm_cause *cause);
void sm_cause_drop(struct sm *sm, struct sm_kept_cause *kept);
void sm_cause_copy(struct sm *sm, struct sm_kept_cause *to, const struct sm_kept_cause *from);
struct sm_cause sm_cause_view(const struct sm *sm, const struct sm_kept_cause *kept);

/* ---- sm_emit.c ----------------------------------------------------------------------------------
 */

struct sm_transition *sm_emit(struct sm *sm, struct sm_output *out, uint32_t kind,
                              const struct sm_half *half);
struct sm_effect *sm_order(struct sm *sm, struct sm_output *out, uint32_t kind,
                           const struct sm_half *half);
void sm_ignore(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t reason);
/* Answers the engine's command with a refusal; text is copied into the output. */
void sm_refuse(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t refusal,
               struct sm_text text);
void sm_accept(struct sm *sm, struct sm_output *out, const struct sm_input *input);
uint32_t sm_refusal_http(uint32_t refusal);
struct sm_text sm_output_text(struct sm_output *out, struct sm_text text);
/* Room for one more half's worth of output. */
bool sm_output_has_room(const struct sm_output *out);

/* ---- sm_half.c: one half ------------------------------------------------------------------------
 */

struct sm_rank *sm_half_rank(const struct sm *sm, const struct sm_half *half, uint32_t rank);
struct sm_rank *sm_half_rank_add(struct sm *sm, struct sm_half *half, uint32_t rank);
struct sm_destination *sm_half_destination(const struct sm *sm, const struct sm_half *half,
                                           uint32_t life, uint32_t decode_rank);
uint32_t sm_half_life(const struct sm_half *half, const struct sm_life *life); /* SM_NONE */
uint32_t sm_half_life_of_node(const struct sm_half *half, uint64_t node);
bool sm_half_terminal(const struct sm_half *half);
void sm_half_phase(struct sm *sm, struct sm_output *out, struct sm_half *half, uint32_t phase);
uint64_t sm_next_generation(const struct sm *sm, uint64_t room, uint32_t side);
/* A new half; NULL when the table is full. */
struct sm_half *sm_half_create(struct sm *sm, struct sm_output *out, uint64_t room, uint32_t side,
                               uint64_t generation);
bool sm_half_bind(struct sm *sm, struct sm_half *half, const struct sm_life *life, uint32_t peer);
/* Sets or betters the verdict; rank says whose cause it is (SM_NONE: the half's). */
void sm_half_fail(struct sm *sm, struct sm_output *out, struct sm_half *half,
                  const struct sm_cause *cause, uint32_t rank);
void sm_half_fail_text(struct sm *sm, struct sm_output *out, struct sm_half *half, uint16_t http,
                       uint32_t origin, struct sm_text text);
void sm_half_succeed(struct sm *sm, struct sm_output *out, struct sm_half *half);
/* Remembers a verdict for a life that never lived here. */
void sm_remember(struct sm *sm, struct sm_output *out, uint64_t room, uint32_t side,
                 const struct sm_life *life, const struct sm_cause *cause);
void sm_half_clear(struct sm *sm, struct sm_output *out, struct sm_half *half);
/* Writes of an earlier process life are over: their fabric died with it. */
void sm_half_refresh(struct sm *sm, struct sm_half *half);
bool sm_protected(const struct sm *sm, uint32_t protection);

/* ---- sm_settle.c: everything that is due for a half, from its state alone -----------------------
 */

void sm_settle(struct sm *sm, struct sm_output *out, uint32_t half);
void sm_settle_work(struct sm *sm, struct sm_output *out);
void sm_settle_all(struct sm *sm); /* marks every half as work */
uint64_t sm_backoff(const struct sm *sm, uint32_t tries);
bool sm_grace_over(const struct sm *sm, const struct sm_half *half);
void sm_want_wake(uint64_t *wake_ns, uint64_t at_ns);

/* sm_prefill.c and sm_decode.c: the sides' parts of sm_settle. */
void sm_prefill_live(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake);
void sm_prefill_over(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake);
bool sm_prefill_rank_drained(const struct sm *sm, const struct sm_half *half,
                             const struct sm_rank *rank);
void sm_decode_live(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake);
void sm_decode_over(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake);
/* With `gather` switched off: the rank has heard nothing itself, and does not learn it from others.
 */
bool sm_waits_for_own_cause(const struct sm *sm, const struct sm_half *half,
                            const struct sm_rank *rank);
bool sm_decode_owes_abort(const struct sm_half *half, const struct sm_rank *rank);
bool sm_decode_rank_drained(const struct sm *sm, const struct sm_half *half,
                            const struct sm_rank *rank);
void sm_destination_in_flight_reset(struct sm *sm, struct sm_half *half,
                                    struct sm_destination *destination);

/* ---- sm_peer.c ----------------------------------------------------------------------------------
 */

uint32_t sm_peer_find(const struct sm *sm, struct sm_text name);
uint32_t sm_peer_add(struct sm *sm, struct sm_text name);
uint32_t sm_peer_find_node(const struct sm *sm, uint64_t node_id);
void sm_peer_fence(struct sm *sm, struct sm_output *out, uint32_t peer, uint32_t link);
bool sm_peer_bound_reached(const struct sm *sm, uint32_t peer);
/* Whether the connection `link` of the peer is over and what it had is lost for a live half now. */
bool sm_peer_lost(const struct sm *sm, uint32_t peer, uint32_t link, uint64_t *wake);

/* ---- handlers, called from the table in sm_table.c ----------------------------------------------
 */

struct sm_call {
    struct sm *sm;
    struct sm_output *out;
    const struct sm_input *input;
    uint32_t side;
    uint32_t half;      /* newest half of (room, side), SM_NONE */
    uint64_t tombstone; /* newest tombstone position + 1, 0 */
    uint32_t phase;     /* row of the table */
};

void sm_on_node(struct sm *sm, const struct sm_input *input, struct sm_output *out);
void sm_on_peer(struct sm *sm, const struct sm_input *input, struct sm_output *out);
void sm_on_engine(struct sm *sm, const struct sm_input *input, struct sm_output *out);
void sm_engine_lost(struct sm *sm, struct sm_output *out, uint32_t rank, uint32_t lost);
void sm_dispatch(struct sm *sm, const struct sm_input *input, struct sm_output *out);

void sm_do_open(const struct sm_call *call);
void sm_do_admit(const struct sm_call *call);
void sm_do_reject(const struct sm_call *call);
void sm_do_send(const struct sm_call *call);
void sm_do_abort(const struct sm_call *call);
void sm_do_release(const struct sm_call *call);
void sm_do_delivered(const struct sm_call *call);
void sm_do_prepare(const struct sm_call *call);
void sm_do_prepared(const struct sm_call *call);
void sm_do_status(const struct sm_call *call);
void sm_do_ack(const struct sm_call *call);
void sm_do_peer_abort(const struct sm_call *call);
void sm_do_drained(const struct sm_call *call);
void sm_do_write_done(const struct sm_call *call);
uint32_t sm_write_half(const struct sm *sm, uint64_t id); /* SM_NONE: no such write */

/* Verdict of a tombstone or of "nothing" to one destination of a peer. */
void sm_answer(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t peer,
               uint32_t kind, uint32_t outcome, const struct sm_cause *cause);

uint64_t sm_half_digest_at(const struct sm *sm, const struct sm_half *half);
uint64_t sm_node_digest(const struct sm *sm);

#endif
