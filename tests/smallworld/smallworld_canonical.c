/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One digest for all states that have the same future: what is taken for one, and why that is
 * sound, stands in smallworld.h. A copy of the world is renamed in place and digested by the
 * machine's own functions, so that a field that is forgotten here only keeps states apart.
 */
#include "smallworld_private.h"

#include "sm_state.h"

#include <stddef.h>
#include <string.h>

#define TIME_BASE (UINT64_C(1) << 40)
#define ROOM_PAGES (LIVES_MAX * 4u)

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return sm_mix(hash, value);
}

static uint64_t mix_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (; size > 0;) {
        uint64_t word = 0;
        const size_t part = size < sizeof word ? size : sizeof word;
        memcpy(&word, at, part);
        hash = mix(hash, word);
        at += part;
        size -= part;
    }
    return hash;
}

/* ---- time: only what is left until it counts
 * ------------------------------------------------------------------ */

static void shift(uint64_t *time_ns, uint64_t now_ns)
{
    if (*time_ns != 0 && *time_ns != SM_NEVER) {
        *time_ns = *time_ns - now_ns + TIME_BASE;
    }
}

static void shift_half(const struct sm *sm, struct sm_half *half, uint64_t now)
{
    half->opened_ns = 0; /* told to readers only */
    shift(&half->deadline_ns, now);
    shift(&half->verdict_ns, now);
    shift(&half->grace_until_ns, now);
    shift(&half->fence_asked_ns, now);
    shift(&half->wake_ns, now);
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        shift(&sm_rank_at(sm, at)->prepare_next_ns, now);
        shift(&sm_rank_at(sm, at)->abort_next_ns, now);
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        shift(&sm_destination_at(sm, at)->notice_next_ns, now);
    }
}

static void shift_machine(struct sm *sm, bool expires)
{
    const uint64_t now = sm->now_ns;
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        shift_half(sm, sm_half_at(sm, at), now);
    }
    for (uint64_t at = sm->tombstone_first; at < sm->tombstone_end; at++) {
        if (expires) {
            shift(&sm_tombstone_at(sm, at)->expires_ns, now);
        } else {
            sm_tombstone_at(sm, at)->expires_ns = 0; /* act_tick sees that it never comes to it */
        }
    }
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        shift(&sm_peer_at(sm, i)->grace_until_ns, now);
        shift(&sm_peer_at(sm, i)->fence_asked_ns, now);
    }
    for (uint32_t i = 0; i < RANKS_MAX; i++) {
        shift(&sm->engines[i].awaited_until_ns, now);
    }
    shift(&sm->stop_deadline_ns, now);
    sm->now_ns = TIME_BASE;
    sm->write_seq = 0; /* names of writes to come */
}

/* ---- names
 * --------------------------------------------------------------------------------------------- */

struct naming {
    bool rooms; /* 1 and 2 are exchanged */
    bool ranks; /* D.0 and D.1 are */
};

static uint64_t room_name(const struct naming *n, uint64_t room)
{
    return n->rooms && room != 0 ? 3u - room : room;
}

static uint32_t rank_name(const struct naming *n, uint32_t side, uint32_t rank)
{
    return n->ranks && side == SM_DECODE && rank < RANKS_MAX ? 1u - rank : rank;
}

static uint32_t page_name(const struct naming *n, uint32_t page)
{
    return !n->rooms ? page : page < ROOM_PAGES ? page + ROOM_PAGES : page - ROOM_PAGES;
}

static void rename_mask(const struct naming *n, uint32_t side, uint64_t *mask)
{
    if (n->ranks && side == SM_DECODE) {
        *mask = (*mask & ~UINT64_C(3)) | (*mask & 1u) << 1 | (*mask >> 1 & 1u);
    }
}

static void rename_pages(const struct sm *sm, const struct naming *n,
                         const struct sm_page_list *list)
{
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
        struct sm_block *block = sm_block_at(sm, at);
        for (uint32_t i = 0; i < block->count; i++) {
            block->runs[i].first = page_name(n, block->runs[i].first);
        }
    }
}

/* Our own requests have rank and room in them (smallworld_act.c). */
static void rename_request(const struct naming *n, uint32_t side, uint64_t *request)
{
    if (*request != 0) {
        *request = (*request & ~UINT64_C(0xffff)) |
                   (uint64_t)rank_name(n, side, (uint32_t)(*request >> 8 & 0xffu)) << 8 |
                   room_name(n, *request & 0xffu);
    }
}

/* Lists stand in the order in which their records came; by name they are the same list. */
static void order_ranks(const struct sm *sm, struct sm_half *half)
{
    uint32_t sorted = SM_NONE;
    while (half->ranks != SM_NONE) {
        const uint32_t at = half->ranks;
        uint32_t *link = &sorted;
        half->ranks = sm_rank_at(sm, at)->next;
        while (*link != SM_NONE && sm_rank_at(sm, *link)->rank < sm_rank_at(sm, at)->rank) {
            link = &sm_rank_at(sm, *link)->next;
        }
        sm_rank_at(sm, at)->next = *link;
        *link = at;
    }
    half->ranks = sorted;
}

static uint64_t destination_key(const struct sm *sm, uint32_t at)
{
    const struct sm_destination *d = sm_destination_at(sm, at);
    return (uint64_t)d->life << 32 | d->decode_rank;
}

static void order_destinations(const struct sm *sm, struct sm_half *half)
{
    uint32_t sorted = SM_NONE;
    uint32_t index = 0;
    while (half->destinations != SM_NONE) {
        const uint32_t at = half->destinations;
        uint32_t *link = &sorted;
        half->destinations = sm_destination_at(sm, at)->next;
        while (*link != SM_NONE && destination_key(sm, *link) < destination_key(sm, at)) {
            link = &sm_destination_at(sm, *link)->next;
        }
        sm_destination_at(sm, at)->next = *link;
        *link = at;
    }
    half->destinations = sorted;
    for (uint32_t at = sorted; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        sm_destination_at(sm, at)->index = index++;
    }
}

static void rename_half(const struct sm *sm, const struct naming *n, struct sm_half *half)
{
    half->room = room_name(n, half->room);
    rename_mask(n, half->side, &half->opened);
    rename_mask(n, half->side, &half->admitted);
    rename_mask(n, half->side, &half->released);
    rename_mask(n, half->side, &half->told);
    rename_mask(n, half->side, &half->told_ever);
    rename_mask(n, half->side, &half->delivered);
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        struct sm_rank *rank = sm_rank_at(sm, at);
        rank->rank = rank_name(n, half->side, rank->rank);
        rename_request(n, half->side, &rank->request);
        rename_pages(sm, n, &rank->pages);
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        struct sm_destination *d = sm_destination_at(sm, at);
        d->decode_rank = rank_name(n, SM_DECODE, d->decode_rank);
        rename_pages(sm, n, &d->pages);
    }
    order_ranks(sm, half);
    order_destinations(sm, half);
}

static void rename_machine(struct sm *sm, uint32_t side, const struct naming *n)
{
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        rename_half(sm, n, sm_half_at(sm, at));
    }
    for (uint64_t at = sm->tombstone_first; at < sm->tombstone_end; at++) {
        struct sm_tombstone *t = sm_tombstone_at(sm, at);
        t->room = room_name(n, t->room);
        rename_mask(n, t->side, &t->opened);
        rename_mask(n, SM_DECODE, &t->destinations);
    }
    if (n->ranks && side == SM_DECODE) {
        const struct sm_engine first = sm->engines[0];
        sm->engines[0] = sm->engines[1];
        sm->engines[1] = first;
    }
}

static void rename_parcel(const struct naming *n, struct parcel *parcel)
{
    if (parcel->kind == 0 || sm_input_is_message(parcel->kind)) {
        parcel->room = room_name(n, parcel->room);
        if (parcel->room != 0) {
            parcel->body.decode_rank = rank_name(n, SM_DECODE, parcel->body.decode_rank);
        }
        for (uint32_t i = 0; i < parcel->body.pages.count; i++) {
            parcel->runs[i].first = page_name(n, parcel->runs[i].first);
        }
    }
}

static void exchange(void *a, void *b, size_t size)
{
    unsigned char kept[64];
    memcpy(kept, a, size);
    memcpy(a, b, size);
    memcpy(b, kept, size);
}

static void rename_engines(struct world_state *s, const struct naming *n)
{
    for (uint32_t room = 0; room < ROOMS_MAX && n->ranks; room++) {
        exchange(&s->scripts[AT_D][0][room], &s->scripts[AT_D][1][room], sizeof(struct script));
        for (uint32_t life = 0; life < LIVES_MAX; life++) {
            exchange(&s->written[room][life][0], &s->written[room][life][1], sizeof(uint32_t));
            exchange(&s->given_back[room][life][0], &s->given_back[room][life][1], sizeof(bool));
        }
    }
    for (uint32_t node = 0; node < 2u && n->rooms; node++) {
        for (uint32_t rank = 0; rank < RANKS_MAX; rank++) {
            exchange(&s->scripts[node][rank][0], &s->scripts[node][rank][1], sizeof(struct script));
        }
    }
    if (n->rooms) {
        exchange(s->written[0], s->written[1], sizeof s->written[0]);
        exchange(s->given_back[0], s->given_back[1], sizeof s->given_back[0]);
    }
}

static void rename_world(struct world *world, const struct naming *n)
{
    struct world_state *s = &world->s;
    rename_machine(world_machine(world, AT_P), SM_PREFILL, n);
    rename_machine(world_machine(world, AT_D), SM_DECODE, n);
    rename_engines(s, n);
    for (uint32_t to = 0; to < 2u; to++) {
        for (uint32_t i = 0; i < s->count[to]; i++) {
            rename_parcel(n, &s->channel[to][i]);
        }
    }
    if (s->has_held) {
        rename_parcel(n, &s->held);
    }
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        struct flying *w = &s->writes[i];
        if (w->used) {
            w->room = room_name(n, w->room);
            w->decode_rank = rank_name(n, SM_DECODE, w->decode_rank);
            w->first = page_name(n, w->first);
        }
    }
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        s->results[i].room = room_name(n, s->results[i].room);
        s->results[i].rank = rank_name(n, s->results[i].side, s->results[i].rank);
        if (s->verdicts[i].used) {
            s->verdicts[i].room = room_name(n, s->verdicts[i].room);
            s->verdicts[i].rank = rank_name(n, SM_DECODE, s->verdicts[i].rank);
        }
    }
}

/* ---- digests: of sets, where an order or a place means nothing
 * -------------------------------------------------- */

static uint64_t text_digest(struct sm_text text)
{
    return mix_bytes(text.size, text.bytes, text.size);
}

static uint64_t tombstone_digest(const struct sm *sm, const struct sm_tombstone *t)
{
    uint64_t digest = mix(mix(t->room, t->generation), t->expires_ns);
    digest = mix(digest, t->opened);
    digest = mix_bytes(digest, &t->life, sizeof t->life);
    digest = mix(digest, t->destinations);
    digest = mix(digest,
                 (uint64_t)t->cause.http << 16 | (uint64_t)t->cause.origin << 8 | t->cause.typed);
    digest = mix(digest, text_digest(sm_reason_text(sm, t->cause.reason)));
    return mix(digest, (uint64_t)t->side | (uint64_t)t->outcome << 8 |
                           (uint64_t)t->expecting << 16 | (uint64_t)t->owner_engine << 24);
}

static uint64_t machine_digest(const struct sm *sm)
{
    uint64_t digest = sm_node_digest(sm);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        digest = mix_bytes(digest, sm_peer_at(sm, i), sizeof(struct sm_peer));
    }
    digest = mix_bytes(digest, sm->engines, RANKS_MAX * sizeof sm->engines[0]);
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        const struct sm_half *half = sm_half_at(sm, at);
        sum += mix(sm_half_digest_at(sm, half) ^ half->fence_asked_ns,
                   (uint64_t)sm_bits_has(sm, &sm->work, at) << 1 |
                       (uint64_t)sm_bits_has(sm, &sm->blocked, at));
    }
    digest = mix(digest, sum);
    sum = 0;
    for (uint32_t at = sm_bits_next(sm, &sm->writes_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->writes_used, at + 1u)) {
        const struct sm_write *write = sm_write_at(sm, at);
        const struct sm_half *half = sm_half_at(sm, write->half);
        sum += mix(mix(half->room, half->generation),
                   (uint64_t)sm_destination_at(sm, write->destination)->index << 48 |
                       (uint64_t)write->rank << 32 | write->pages);
    }
    digest = mix(digest, sum);
    sum = 0;
    for (uint64_t at = sm->tombstone_first; at < sm->tombstone_end; at++) {
        sum += tombstone_digest(sm, sm_tombstone_at(sm, at));
    }
    return mix(digest, sum);
}

static uint64_t parcel_digest(const struct parcel *p)
{
    uint64_t digest = mix_bytes(p->kind, (const unsigned char *)p + offsetof(struct parcel, link),
                                offsetof(struct parcel, runs) - offsetof(struct parcel, link));
    digest = mix_bytes(digest, p->runs, p->body.pages.count * sizeof p->runs[0]);
    return mix_bytes(digest, p->reason, p->body.cause.reason.size);
}

/* Messages about different destinations stand beside each other, between two barriers. */
static uint64_t channel_digest(const struct world *world, uint32_t to)
{
    const struct world_state *s = &world->s;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->count[to]; i++) {
        uint32_t before = 0; /* of its kind, or barriers */
        for (uint32_t k = 0; k < i; k++) {
            before += world_before(world, &s->channel[to][k], &s->channel[to][i]);
        }
        sum += mix(parcel_digest(&s->channel[to][i]), before);
    }
    return sum;
}

static bool write_known(const struct sm *sm, uint64_t id)
{
    for (uint32_t at = sm_bits_next(sm, &sm->writes_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->writes_used, at + 1u)) {
        if (sm_write_at(sm, at)->id == id) {
            return true;
        }
    }
    return false;
}

/* What an end comes to: who was told what; the same for worlds that differ in names only. */
static uint64_t told_digest(const struct world *world, const struct naming *n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        const struct result *r = &world->s.results[i];
        if (r->used) {
            sum += mix(mix(room_name(n, r->room), rank_name(n, r->side, r->rank)),
                       (uint64_t)r->side << 32 | (uint64_t)r->outcome << 16 | r->http);
        }
    }
    return sum;
}

uint64_t world_told(const struct world *world)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < 4u; i++) {
        const struct naming n = {(i & 1u) != 0 && world->options->rooms == 2u,
                                 (i & 2u) != 0 && world->options->decode_ranks == 2u};
        const uint64_t digest = told_digest(world, &n);
        least = digest < least ? digest : least;
    }
    return least;
}

/* ---- copies
 * -------------------------------------------------------------------------------------------- */

static void copy_machine(unsigned char *to, const unsigned char *from)
{
    const struct sm *sm = (const struct sm *)(const void *)from;
    const size_t engines = offsetof(struct sm, engines) + RANKS_MAX * sizeof sm->engines[0];
    const size_t behind = offsetof(struct sm, engines) + sizeof sm->engines;
    const size_t end =
        (size_t)sm->reasons.offset * 16u + sm->reasons.used * sizeof(struct sm_reason);
    memcpy(to, from, engines); /* the other engines are absent in all worlds */
    memcpy(to + behind, from + behind, end - behind);
}

void world_copy(struct world *to, const struct world *from)
{
    const uint32_t before[2] = {to->s.count[0], to->s.count[1]};
    to->options = from->options;
    memcpy(&to->s, &from->s, offsetof(struct world_state, channel));
    for (uint32_t way = 0; way < 2u; way++) {
        const uint32_t count = from->s.count[way];
        const uint32_t had = before[way];
        memcpy(to->s.channel[way], from->s.channel[way], count * sizeof(struct parcel));
        if (had > count) {
            memset(&to->s.channel[way][count], 0, (had - count) * sizeof(struct parcel));
        }
    }
    for (uint32_t node = 0; node < 2u; node++) {
        copy_machine(to->memory[node], from->memory[node]);
    }
}

static uint64_t result_digest(const struct result *r)
{
    uint64_t digest = mix(mix(r->room, r->generation), r->node_epoch);
    digest = mix(digest, (uint64_t)r->side << 32 | r->rank);
    digest = mix(digest, (uint64_t)r->outcome << 32 | r->http);
    return mix(digest, (uint64_t)r->free << 1 | (uint64_t)r->released);
}

static uint64_t verdict_digest(const struct verdict *v)
{
    return mix(mix_bytes(v->room, &v->life, sizeof v->life), (uint64_t)v->outcomes << 32 | v->rank);
}

static uint64_t state_digest(const struct world *world)
{
    const struct world_state *s = &world->s;
    const struct sm *prefill = world_machine(world, AT_P);
    uint64_t digest = mix(machine_digest(prefill), machine_digest(world_machine(world, AT_D)));
    uint64_t sum = 0;
    digest = mix_bytes(digest, s->epoch, sizeof s->epoch);
    digest = mix(digest, channel_digest(world, AT_P));
    digest = mix(digest, channel_digest(world, AT_D));
    digest = mix(digest, s->has_held ? parcel_digest(&s->held) + s->held_to + 1u : 0);
    digest = mix_bytes(digest, s->scripts, sizeof s->scripts);
    digest = mix_bytes(digest, s->written, sizeof s->written);
    digest = mix_bytes(digest, s->given_back, sizeof s->given_back);
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        const struct flying *w = &s->writes[i];
        if (w->used) {
            uint64_t its = mix_bytes(w->room, &w->life, sizeof w->life);
            its = mix(its, (uint64_t)w->link << 32 | w->decode_rank);
            its = mix(its, (uint64_t)w->first << 32 | w->count);
            sum += mix(its, (uint64_t)w->dead << 1 | (uint64_t)write_known(prefill, w->id));
        }
    }
    digest = mix(digest, sum);
    sum = 0;
    for (uint32_t i = 0; i < RESULTS_MAX; i++) {
        sum += s->results[i].used ? result_digest(&s->results[i]) : 0;
        sum += s->verdicts[i].used ? verdict_digest(&s->verdicts[i]) : 0;
    }
    digest = mix(digest, sum);
    digest = mix(digest, (uint64_t)s->link << 8 | s->slow);
    digest = mix(digest, (uint64_t)s->aborts << 32 | (uint64_t)s->crashes << 24 |
                             (uint64_t)s->cuts << 16 | (uint64_t)s->losses << 8 | s->fails);
    return digest == 0 ? 1 : digest;
}

uint64_t world_canonical(struct world *scratch)
{
    static const struct naming same = {false, false};
    static const struct naming ranks = {false, true};
    static const struct naming rooms = {true, false};
    const struct world_options *o = scratch->options;
    /* Engines that give up say it in words of their own rank. */
    const bool by_rank = o->decode_ranks == 2u && o->aborts == 0;
    const bool by_room = o->rooms == 2u;
    shift_machine(world_machine(scratch, AT_P), o->slow > 0);
    shift_machine(world_machine(scratch, AT_D), o->slow > 0);
    rename_world(scratch, &same);
    uint64_t least = state_digest(scratch);
    for (uint32_t i = 1; i < 4u; i++) {
        const bool swap_ranks = (i & 1u) != 0; /* ranks, rooms, ranks: all four */
        if ((swap_ranks ? !by_rank : !by_room) || (i == 3u && !by_room)) {
            continue;
        }
        rename_world(scratch, swap_ranks ? &ranks : &rooms);
        const uint64_t digest = state_digest(scratch);
        least = digest < least ? digest : least;
    }
    return least;
}
