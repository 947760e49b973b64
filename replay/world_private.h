/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the simulated cluster: its parts, and what its files do for each other. */
#ifndef REPLAY_WORLD_PRIVATE_H
#define REPLAY_WORLD_PRIVATE_H

#include "chunks.h"
#include "world.h"

#define WORLD_STAMPS 8u /* source ranks whose share of a page is told apart */
#define ENTRY_BYTES_MAX ((size_t)4 << 20)

enum node_state { NODE_DOWN = 0, NODE_RUNS, NODE_STOPPED };

struct kept_entry {
    unsigned char *bytes;
    size_t size;
    uint64_t room;
};

/* An engine's destination: what its newest open asked for. */
struct destination {
    uint64_t request; /* of that open */
    uint64_t room;
    uint64_t generation;
    uint64_t epoch;
    uint32_t rank;
    uint32_t from; /* the prefill node */
    uint32_t page_count;
    uint32_t *pages;
    struct destination *next;
};

/* What one source rank has written into its share of a page. */
struct stamp {
    uint64_t room;
    uint64_t generation;
    uint64_t epoch;
};

/* A release that has no answer yet: its engine says it again when it attaches anew. */
struct release {
    uint64_t request;
    uint64_t room;
    uint64_t generation;
    uint32_t side;
    uint32_t rank;
    struct release *next;
};

struct told {
    uint64_t generation;
    struct told *next;
};

/* What a log of a notice said, so that each is seen once. */
struct noticed {
    uint64_t generation;
    uint32_t from;
    uint32_t outcome;
    struct noticed *next;
};

/* One engine rank's dealings with one room number: what would else be looked for in all logs. */
struct seat {
    uint64_t room;
    uint32_t node;
    uint32_t rank;
    struct destination *destinations; /* the newest first */
    struct told *told;                /* results of the node's journal as it is, the newest first */
    uint32_t told_wipes;              /* how often that had been wiped */
    uint64_t told_ns;                 /* when the last one was told */
    bool told_ever;
    uint32_t let_go; /* the engine waits for no result of an open that was logged before this */
    struct noticed *noticed;
    struct seat *next; /* in its bucket */
};

/* From `machine` on stands what world_renew keeps. */
struct node {
    struct world_node_options options;
    size_t name_size;
    enum node_state state;
    bool frozen;
    bool crash_after_commit;
    bool wants_start; /* a start that cannot be written down fails; its supervisor tries again */
    enum world_disk disk;
    bool journal_down;
    uint64_t node_id;
    uint64_t epoch;
    uint32_t wipes;
    uint32_t link_last;
    uint64_t request_next;
    struct sglang_rooms *sglang; /* of this process life; NULL: it speaks natively only */
    uint64_t entry_count;
    uint64_t durable;
    bool muted[WORLD_RANKS_MAX];
    bool reused; /* an engine gave pages away that it did not have: data is not looked at */
    uint64_t wiped_ns;
    struct release *releases;
    struct event *inbox; /* while frozen, in order */
    struct event **inbox_end;
    struct stamp *stamps[WORLD_RANKS_MAX]; /* pages x WORLD_STAMPS */

    struct journal_machine machine;
    struct gate *gate;
    struct kept_entry *entries; /* durable first, then those that wait for the disk */
    uint64_t entry_capacity;
};

/* How node i sees node j. */
struct connection {
    bool up;
    uint32_t link;      /* i's number for it */
    uint32_t fenced;    /* i has fenced its links to j up to this */
    bool cut;           /* what i sends to j is lost */
    uint64_t cut_count; /* counts cuts, so that a later look knows whether it is the same */
    uint64_t latency_ns;
    uint64_t last_arrival; /* keeps the order */
    uint64_t peer_id;      /* whom i was connected with */
    uint64_t peer_epoch;
};

struct flight {
    uint64_t id;
    uint64_t room;
    struct sm_life life;
    uint32_t from, from_rank, to, to_rank;
    uint32_t from_link, to_link;
    uint64_t from_epoch, to_epoch;
    uint32_t *pages;
    uint32_t page_count;
    bool fails;
    bool held;
    bool over;
    char text[64];
};

enum event_class { CLASS_STATEMENT = 0, CLASS_COMPLETION, CLASS_MESSAGE, CLASS_TIMER, CLASS_AFTER };
enum event_kind {
    EVENT_STATEMENT = 1,
    EVENT_COMPLETION, /* number: flight */
    EVENT_MESSAGE,    /* from, to, session, bytes */
    EVENT_INPUT,      /* to: node; kept input */
    EVENT_SILENCE,    /* to has not heard from `from` for the bound */
    EVENT_LOST,       /* to learns that its connection to `from` is over */
    EVENT_CONNECT,    /* from, to */
    EVENT_RETRY       /* to: its journal is tried again */
};

struct event {
    uint64_t time_ns;
    uint64_t order; /* within a class */
    enum event_class class;
    enum event_kind kind;
    uint32_t from;
    uint32_t to;
    uint64_t number;
    uint64_t session;
    world_statement_fn statement;
    void *context;
    bool frames; /* EVENT_MESSAGE: SGLang's, to the port of one rank */
    uint32_t to_rank;
    struct sm_life life; /* frames: decode's own life that they are about */
    unsigned char *bytes;
    size_t size;
    size_t capacity;       /* of bytes, which stay with an event that is used again */
    struct event *next;    /* in an inbox, or among those that are free */
    struct sm_input input; /* EVENT_INPUT only; its parts stand in bytes */
};

/* What prefill calls a life that was announced in frames, and what decode calls it. */
struct alias {
    uint32_t node; /* prefill */
    struct sm_life known_as;
    struct sm_life life;
};

struct rule {
    enum world_rule_kind kind;
    uint32_t from, to;
    uint32_t rank; /* of decode; SM_NONE: any */
    enum world_message message;
    uint64_t room;
    uint32_t left;
    uint64_t delay_ns;
};

enum path_rule_kind { PATH_TIME = 1, PATH_HOLD, PATH_FAIL };
struct path_rule {
    enum path_rule_kind kind;
    struct world_path path;
    uint64_t room;
    uint64_t ns;
    uint32_t left;
    bool when_posted;
    char text[64];
};

/* From `nodes` on stands what world_renew keeps. */
struct world {
    struct world_options options;
    uint32_t node_count;
    struct connection connections[WORLD_NODES_MAX][WORLD_NODES_MAX];
    uint64_t sessions[WORLD_NODES_MAX][WORLD_NODES_MAX]; /* by smaller, larger */
    uint64_t now_ns;
    uint64_t steps;
    uint32_t timers; /* taken in a row since timers_ns, to see a machine that spins */
    uint64_t timers_ns;
    uint64_t random;
    uint32_t heap_count;
    uint64_t order_next;
    struct event *events_free;
    uint32_t rule_count;
    uint32_t path_count;
    uint32_t flight_count;
    uint32_t flights_open;
    uint32_t alias_count;
    uint32_t log_count;
    uint32_t seat_count;
    char fault[320];

    struct node nodes[WORLD_NODES_MAX]; /* each keeps its own part */
    struct event **heap;
    uint32_t heap_capacity;
    struct rule *rules;
    uint32_t rule_capacity;
    struct path_rule *paths;
    uint32_t path_capacity;
    struct flight *flights;
    uint32_t flight_capacity;
    struct alias *aliases;
    uint32_t alias_capacity;
    struct world_log *logs;
    uint32_t log_capacity;
    struct seat **seats;
    uint32_t seat_buckets; /* a power of two */
    unsigned char *entry;  /* ENTRY_BYTES_MAX, for packing */
    struct codec_arena arena;
    void *arena_memory;
    struct chunks memory; /* events, entries and all lists of one run */
};

/* Times of the machines and of people's clocks, at world time 0. */
#define WORLD_MACHINE_BASE UINT64_C(1000000000)
#define WORLD_WALL_BASE UINT64_C(1767225600000000000)

__attribute__((format(printf, 2, 3))) void world_fall(struct world *world, const char *format, ...);
struct sm_text world_text(const char *text);
/* The pages of runs one by one, in the run's memory. */
uint32_t *world_page_list(struct world *world, const struct sm_runs *runs, uint32_t *out_count);
/* The seat of a rank and a room: made when it is not there; NULL: it is not there. */
struct seat *world_seat(struct world *world, uint32_t node, uint32_t rank, uint64_t room);
const struct seat *world_seat_find(const struct world *world, uint32_t node, uint32_t rank,
                                   uint64_t room);

struct event *event_new(struct world *world, uint64_t time_ns, enum event_class class,
                        enum event_kind kind);
void event_add(struct world *world, struct event *event);
struct event *event_first(const struct world *world);
struct event *event_pop(struct world *world);
void event_free(struct world *world, struct event *event);
/* Room for so many bytes that go with it. */
unsigned char *event_bytes(struct world *world, struct event *event, size_t size);
/* An input for later, with what it points to. */
void event_input(struct world *world, uint64_t time_ns, enum event_class class, uint32_t node,
                 const struct sm_input *input);

/* One input at one node, with everything that follows from it at once. */
void node_step(struct world *world, uint32_t node, struct sm_input *input);
/* A process life begins: from its entries, or from none. */
void node_start(struct world *world, uint32_t node);
void node_die(struct world *world, uint32_t node);
void node_retry(struct world *world, uint32_t node);

void net_send(struct world *world, uint32_t node, const struct sm_effect *effect, uint64_t entry);
void net_arrive(struct world *world, struct event *event);
void net_fence(struct world *world, uint32_t node, const struct sm_effect *effect);
void net_event(struct world *world, struct event *event);
/* What a peer notices when a process has died, frozen, or its messages are lost. */
void net_silence(struct world *world, uint32_t node);
void net_connect_later(struct world *world, uint32_t node);
void net_connect(struct world *world, uint32_t a, uint32_t b);
uint64_t *net_session(struct world *world, uint32_t a, uint32_t b);
/* The connection as node sees it is over; the other side learns it from the next hello. */
void net_lose(struct world *world, uint32_t node, uint32_t other);
void net_check_silence(struct world *world, const struct event *event);
/* A time up to a tenth longer, when there is a seed. */
uint64_t world_jittered(struct world *world, uint64_t ns);
uint32_t net_peer(const struct world *world, uint32_t node, uint32_t peer);

/* How a message goes: the first rule that fits, used up by one; NULL: none. */
const struct rule *net_rule(struct world *world, uint32_t from, uint32_t to,
                            const struct sm_effect *effect);
struct event *net_put(struct world *world, uint32_t from, uint32_t to, const unsigned char *bytes,
                      size_t size, uint64_t delay_ns);
void net_note(struct world *world, uint32_t from, uint32_t to, const struct sm_input *input);

/* Two nodes speak in frames when one of them does so to everybody. */
bool sglang_between(const struct world *world, uint32_t a, uint32_t b);
void sglang_start(struct world *world, uint32_t node);
void sglang_end(struct node *node);
void sglang_up(struct world *world, uint32_t node, uint32_t other);
void sglang_send(struct world *world, uint32_t node, uint32_t to, const struct sm_effect *effect);
void sglang_arrive(struct world *world, const struct event *event);
struct sm_life sglang_life(const struct world *world, uint32_t node, const struct sm_life *life);

void flight_post(struct world *world, uint32_t node, const struct sm_effect *effect);
void flight_complete(struct world *world, uint32_t index);
void flight_fence(struct world *world, uint32_t node, uint32_t peer, uint32_t link);

struct world_log *log_add(struct world *world, enum world_log_kind kind);
/* The reason of the log that was added last. */
void log_reason(struct world *world, struct sm_text reason);
void engine_told(struct world *world, uint32_t node, const struct sm_effect *effect);
void engine_replied(struct world *world, uint32_t node, const struct sm_effect *effect);
uint64_t world_sources(const struct world *world, uint32_t from, uint32_t to, uint32_t to_rank);

#endif
