/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefill half: who must be written to, what is written, when it is complete, and the verdict's
 * way to every destination.
 */
#include "sm_state.h"
#include "statemachine/sm_geometry.h"

/* ---- ready -------------------------------------------------------------------------------------
 */

static uint32_t destinations_of(const struct sm *sm, const struct sm_half *half, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        count += (uint32_t)(sm_destination_at(sm, at)->sources >> rank & 1u);
    }
    return count;
}

static bool all_known(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
        const bool known = (half->required_known >> rank & 1u) != 0;
        if (!known || destinations_of(sm, half, rank) < half->required[rank]) {
            return false;
        }
    }
    return half->opened != 0 && half->destination_count > 0;
}

/* One field of the geometry, when the two sides do not have the same. */
static void put_difference(const struct sm *sm, struct sm_writer *text, const char *field,
                           uint32_t here, uint32_t there, struct sm_text peer)
{
    if (here == there) {
        return;
    }
    sm_put(text, field);
    sm_put(text, " is ");
    sm_put_number(text, here);
    sm_put(text, " at prefill node ");
    sm_put_text(text, sm_node_name(sm));
    sm_put(text, ", ");
    sm_put_number(text, there);
    sm_put(text, " at decode node ");
    sm_put_text(text, peer);
}

static void fail_for_geometry(struct sm *sm, struct sm_output *out, struct sm_half *half,
                              const struct sm_geometry *here,
                              const struct sm_destination *destination)
{
    const struct sm_geometry *there = &destination->geometry;
    const struct sm_text peer = sm_peer_name(sm, half->lives[destination->life].peer);
    const struct {
        const char *name;
        uint32_t here;
        uint32_t there;
    } fields[] = {{"page_tokens", here->page_tokens, there->page_tokens},
                  {"layers", here->layers, there->layers},
                  {"kv_heads", here->kv_heads, there->kv_heads},
                  {"item_bytes", here->item_bytes, there->item_bytes},
                  {"planes", here->planes, there->planes},
                  {"dtype", here->dtype, there->dtype}};
    char bytes[1280]; /* six fields, names as long as can be: cut below, at a character */
    struct sm_writer text = {bytes, sizeof bytes, 0};
    const char *before = "geometry differs: ";
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].here != fields[i].there) {
            sm_put(&text, before);
            put_difference(sm, &text, fields[i].name, fields[i].here, fields[i].there, peer);
            before = "; ";
        }
    }
    sm_half_fail_text(sm, out, half, 409, SM_ORIGIN_NODE,
                      sm_text_cut(sm_writer_text(&text), SM_REASON_BYTES_MAX));
}

static void put_part(struct sm_writer *text, const char *what, uint32_t first, uint32_t count)
{
    sm_put(text, what);
    sm_put(text, " ");
    sm_put_number(text, first);
    sm_put(text, " to ");
    sm_put_number(text, (uint64_t)first + count - 1u);
}

/* Both values: what the destination holds, and what the sources have for it. */
static void fail_for_cover(struct sm *sm, struct sm_output *out, struct sm_half *half,
                           const struct sm_destination *destination)
{
    char bytes[1536]; /* cut below */
    struct sm_writer text = {bytes, sizeof bytes, 0};
    struct sm_share share = {0, 0, 0, 0};
    const struct sm_text peer = sm_peer_name(sm, half->lives[destination->life].peer);
    sm_put(&text, "geometry differs: rank ");
    sm_put_number(&text, destination->decode_rank);
    sm_put(&text, " of decode node ");
    sm_put_text(&text, peer);
    if (sm_geometry_share(&destination->geometry, destination->decode_ranks,
                          destination->decode_rank, &share)) {
        put_part(&text, " holds layers", share.layer_first, share.layers);
        put_part(&text, " and heads", share.head_first, share.heads);
    } else {
        sm_put(&text, " has stages or layers that do not fit its ranks");
    }
    sm_put(&text, "; its sources at prefill node ");
    sm_put_text(&text, sm_node_name(sm));
    sm_put(&text, " do not cover them:");
    for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
        if ((destination->sources >> rank & 1u) != 0 &&
            sm_geometry_share(&sm->engines[rank].geometry, sm->policy.ranks, rank, &share)) {
            sm_put(&text, " rank ");
            sm_put_number(&text, rank);
            put_part(&text, " layers", share.layer_first, share.layers);
            put_part(&text, ", heads", share.head_first, share.heads);
            sm_put(&text, ";");
        }
    }
    sm_half_fail_text(sm, out, half, 409, SM_ORIGIN_NODE,
                      sm_text_cut(sm_writer_text(&text), SM_REASON_BYTES_MAX));
}

/* What a source writes into the destination; false: nothing. */
static bool written_by(const struct sm *sm, const struct sm_destination *destination, uint32_t rank,
                       struct sm_share *out_share)
{
    const struct sm_geometry_rank from = {&sm->engines[rank].geometry, sm->policy.ranks, rank};
    const struct sm_geometry_rank to = {&destination->geometry, destination->decode_ranks,
                                        destination->decode_rank};
    return (destination->sources >> rank & 1u) != 0 && sm->engines[rank].pages > 0 &&
           sm_geometry_written(&from, &to, out_share) && out_share->layers > 0 &&
           out_share->heads > 0;
}

/* The first head from `head` on that no source writes in this layer, and the layer from which on
 * that may be different. */
static uint32_t heads_covered(const struct sm *sm, const struct sm_destination *destination,
                              uint32_t layer, uint32_t head, uint32_t *out_until)
{
    struct sm_share part = {0, 0, 0, 0};
    bool grew = true;
    *out_until = UINT32_MAX;
    while (grew) {
        grew = false;
        for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
            if (!written_by(sm, destination, rank, &part)) {
                continue;
            }
            const uint32_t end = part.layer_first + part.layers;
            const uint32_t change = part.layer_first > layer ? part.layer_first : end;
            if (change > layer && change < *out_until) {
                *out_until = change;
            }
            if (part.layer_first <= layer && layer < end && part.head_first <= head &&
                head < part.head_first + part.heads) {
                head = part.head_first + part.heads;
                grew = true;
            }
        }
    }
    return head;
}

/* Whether the sources write each layer and head that the destination holds. */
static bool covered(const struct sm *sm, const struct sm_destination *destination)
{
    struct sm_share whole;
    if (!sm_geometry_share(&destination->geometry, destination->decode_ranks,
                           destination->decode_rank, &whole)) {
        return false;
    }
    const uint32_t end = whole.layer_first + whole.layers;
    uint32_t layer = whole.layer_first;
    while (layer < end) {
        uint32_t until = 0;
        if (heads_covered(sm, destination, layer, whole.head_first, &until) <
            whole.head_first + whole.heads) {
            return false;
        }
        layer = until;
    }
    return true;
}

static bool in_parts(const struct sm_geometry *g)
{
    return g->layer_first != 0 || g->layer_count != 0 || g->stages > 1u;
}

/* Compares the pools of all sources with all destinations before the first byte; false: failed. */
static bool geometry_fits(struct sm *sm, struct sm_output *out, struct sm_half *half)
{
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        bool parts = in_parts(&destination->geometry);
        for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
            const struct sm_engine *engine = &sm->engines[rank];
            if ((destination->sources >> rank & 1u) != 0 && engine->pages > 0 &&
                destination->geometry.page_tokens != 0) {
                parts = parts || in_parts(&engine->geometry);
                if (!sm_geometry_alike(&engine->geometry, &destination->geometry)) {
                    fail_for_geometry(sm, out, half, &engine->geometry, destination);
                    return false;
                }
            }
        }
        if (parts && !covered(sm, destination)) {
            fail_for_cover(sm, out, half, destination);
            return false;
        }
    }
    return true;
}

/* ---- writes ------------------------------------------------------------------------------------
 */

static bool connected(const struct sm *sm, const struct sm_half *half,
                      const struct sm_destination *destination)
{
    const struct sm_peer *peer = sm_peer_at(sm, half->lives[destination->life].peer);
    return peer->state == PEER_IS_UP && peer->link == destination->link;
}

static void fail_for_length(struct sm *sm, struct sm_output *out, struct sm_half *half,
                            const struct sm_rank *rank, const struct sm_destination *destination)
{
    char bytes[SM_REASON_BYTES_MAX + 1u];
    struct sm_writer text = {bytes, sizeof bytes, 0};
    sm_put(&text, "rank ");
    sm_put_number(&text, rank->rank);
    sm_put(&text, " of prefill node ");
    sm_put_text(&text, sm_node_name(sm));
    sm_put(&text, " sent ");
    sm_put_number(&text, rank->pages.pages);
    sm_put(&text, rank->last_sent ? " pages in all, rank " : " pages so far, rank ");
    sm_put_number(&text, destination->decode_rank);
    sm_put(&text, " of decode node ");
    sm_put_text(&text, sm_peer_name(sm, half->lives[destination->life].peer));
    sm_put(&text, " published ");
    sm_put_number(&text, destination->pages.pages);
    sm_half_fail_text(sm, out, half, 500, SM_ORIGIN_ENGINE, sm_writer_text(&text));
}

static bool lengths_fit(struct sm *sm, struct sm_output *out, struct sm_half *half)
{
    for (uint32_t r = half->ranks; r != SM_NONE; r = sm_rank_at(sm, r)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, r);
        for (uint32_t at = half->destinations; at != SM_NONE;
             at = sm_destination_at(sm, at)->next) {
            const struct sm_destination *destination = sm_destination_at(sm, at);
            const uint32_t sent = rank->pages.pages;
            const uint32_t want = destination->pages.pages;
            if ((destination->sources >> rank->rank & 1u) != 0 &&
                (sent > want || (rank->last_sent && sent != want))) {
                fail_for_length(sm, out, half, rank, destination);
                return false;
            }
        }
    }
    return true;
}

struct post {
    struct sm_half *half;
    struct sm_rank *rank;
    struct sm_runs from;
    uint32_t pages;
    bool last;
};

static void post_write(struct sm *sm, struct sm_output *out, const struct post *post,
                       uint32_t destination_index)
{
    struct sm_destination *destination = sm_destination_at(sm, destination_index);
    const uint32_t slot = sm_bits_lowest_free(sm, &sm->writes_used);
    SM_ASSERT(slot != SM_NONE);
    sm_bits_add(sm, &sm->writes_used, slot);
    sm->write_seq++;
    struct sm_write *write = sm_write_at(sm, slot);
    write->id = (sm->write_seq << 24) | slot;
    write->half = sm_half_index(sm, post->half);
    write->rank = post->rank->rank;
    write->destination = destination_index;
    write->pages = post->pages;
    destination->in_flight++;
    post->rank->in_flight++;
    post->half->in_flight++;
    sm->counters.writes_posted++;

    struct sm_transition *transition = sm_emit(sm, out, SM_TR_WRITE_POSTED, post->half);
    transition->rank = post->rank->rank;
    transition->index = destination->index;
    transition->a = write->id;
    transition->b = post->pages;

    struct sm_effect *effect = sm_order(sm, out, SM_FX_WRITE, post->half);
    effect->peer = post->half->lives[destination->life].peer;
    effect->link = destination->link;
    effect->rank = post->rank->rank;
    effect->u.write.id = write->id;
    effect->u.write.decode_rank = destination->decode_rank;
    effect->u.write.decode_ranks = destination->decode_ranks;
    effect->u.write.first_page = post->rank->posted_pages;
    effect->u.write.from = post->from;
    effect->u.write.aux_from = SM_AUX_NONE;
    effect->u.write.aux_to = SM_AUX_NONE;
    effect->u.write.life = post->half->lives[destination->life].life;
    if (post->last && destination->aux_slot != SM_AUX_NONE) {
        effect->u.write.aux_from = post->rank->aux_slot;
        effect->u.write.aux_to =
            post->rank->aux_slot == SM_AUX_NONE ? SM_AUX_NONE : destination->aux_slot;
    }
    struct sm_page_cursor cursor = sm_list_start(&destination->pages);
    (void)sm_list_read(sm, &cursor, post->rank->posted_pages, NULL, 0);
    effect->u.write.to.at = out->runs + out->runs_used;
    const uint32_t count = sm_list_read(sm, &cursor, post->pages, out->runs + out->runs_used,
                                        SM_OUTPUT_RUNS_MAX - out->runs_used);
    SM_ASSERT(count != SM_NONE);
    effect->u.write.to.count = count;
    out->runs_used += count;
}

/* A last chunk without pages still carries the metadata slot to whoever published one. */
static bool wants_write(const struct post *post, const struct sm_destination *destination)
{
    return post->pages > 0 || (post->last && destination->aux_slot != SM_AUX_NONE &&
                               post->rank->aux_slot != SM_AUX_NONE);
}

/* How many pages of the rank can be posted now; SM_NONE: wait (marked as work or blocked). */
static uint32_t postable_pages(struct sm *sm, struct sm_output *out, const struct post *post)
{
    const uint32_t index = sm_half_index(sm, post->half);
    const uint32_t targets = destinations_of(sm, post->half, post->rank->rank);
    const uint32_t runs_left = SM_OUTPUT_RUNS_MAX - out->runs_used;
    const uint32_t pending = post->rank->pages.pages - post->rank->posted_pages;
    if (sm->bounds.writes_max - sm->writes_used.count < targets) {
        sm_bits_add(sm, &sm->blocked, index);
        return SM_NONE;
    }
    if (SM_EFFECTS_MAX - out->effect_count < targets + SM_HALF_EFFECTS ||
        SM_TRANSITIONS_MAX - out->transition_count < targets + SM_HALF_TRANSITIONS ||
        runs_left < 64u * (targets + 1u)) {
        sm_bits_add(sm, &sm->work, index);
        return SM_NONE;
    }
    /* At worst each page is a run of its own, once in the source and once for each destination. */
    const uint32_t most = runs_left / (targets + 1u);
    return pending < most ? pending : most;
}

static void post_rank(struct sm *sm, struct sm_output *out, struct sm_half *half,
                      struct sm_rank *rank)
{
    const uint32_t pending = rank->pages.pages - rank->posted_pages;
    if (pending == 0 && (!rank->last_sent || rank->last_posted)) {
        return;
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        if ((destination->sources >> rank->rank & 1u) != 0 && !connected(sm, half, destination)) {
            return; /* its peer is being watched; the half fails or waits for the peer's verdicts */
        }
    }
    struct post post = {half, rank, {NULL, 0}, 0, false};
    const uint32_t pages = postable_pages(sm, out, &post);
    if (pages == SM_NONE) {
        return;
    }
    post.pages = pages;
    post.last = rank->last_sent && pages == pending;
    post.from.at = out->runs + out->runs_used;
    if (rank->posted_at.block == SM_NONE) {
        rank->posted_at = sm_list_start(&rank->pages);
    }
    post.from.count = sm_list_read(sm, &rank->posted_at, pages, out->runs + out->runs_used,
                                   SM_OUTPUT_RUNS_MAX - out->runs_used);
    SM_ASSERT(post.from.count != SM_NONE);
    out->runs_used += post.from.count;
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        if ((destination->sources >> rank->rank & 1u) != 0 && wants_write(&post, destination)) {
            post_write(sm, out, &post, at);
        }
    }
    rank->posted_pages += pages;
    rank->last_posted = post.last;
    if (rank->posted_pages < rank->pages.pages) {
        sm_bits_add(sm, &sm->work, sm_half_index(sm, half));
    }
}

static bool anything_to_post(const struct sm *sm, const struct sm_half *half)
{
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        const struct sm_rank *rank = sm_rank_at(sm, at);
        if (rank->pages.pages > 0 || rank->last_sent) {
            return true;
        }
    }
    return false;
}

static bool complete(const struct sm *sm, const struct sm_half *half)
{
    uint64_t sources = 0;
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        const uint32_t peer = half->lives[destination->life].peer;
        if (destination->link <= sm_peer_at(sm, peer)->fenced_link &&
            sm_protected(sm, SM_PROTECT_FENCE)) {
            /* Its writes ended with the fence, not by arriving. The peer may still name its
             * verdict; else the half fails with the connection. */
            return false;
        }
        sources |= destination->sources;
    }
    for (uint32_t rank = 0; rank < sm->policy.ranks; rank++) {
        if ((sources >> rank & 1u) == 0) {
            continue;
        }
        const struct sm_rank *record = sm_half_rank(sm, half, rank);
        if (record == NULL || !record->last_posted) {
            return false;
        }
    }
    return sources != 0 && half->in_flight == 0;
}

void sm_prefill_live(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        const struct sm_destination *destination = sm_destination_at(sm, at);
        const uint32_t peer = half->lives[destination->life].peer;
        if (sm_peer_lost(sm, peer, destination->link, wake)) {
            char bytes[128];
            struct sm_writer text = {bytes, sizeof bytes, 0};
            sm_put(&text, "decode node ");
            sm_put_text(&text, sm_peer_name(sm, peer));
            sm_put(&text, " was lost");
            sm_half_fail_text(sm, out, half, 503, SM_ORIGIN_NODE, sm_writer_text(&text));
            return;
        }
    }
    if (half->phase == SM_PHASE_ALLOCATED && all_known(sm, half) && geometry_fits(sm, out, half)) {
        sm_half_phase(sm, out, half, SM_PHASE_READY);
    }
    if (sm_half_terminal(half) || half->phase < SM_PHASE_READY || !lengths_fit(sm, out, half)) {
        return;
    }
    if (half->phase == SM_PHASE_READY && anything_to_post(sm, half)) {
        sm_half_phase(sm, out, half, SM_PHASE_TRANSFERRING);
    }
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        post_rank(sm, out, half, sm_rank_at(sm, at));
    }
    if (half->phase == SM_PHASE_TRANSFERRING && complete(sm, half)) {
        sm_half_succeed(sm, out, half);
    }
}

/* ---- the verdict's way --------------------------------------------------------------------------
 */

static struct sm_effect *order_message(struct sm *sm, struct sm_output *out,
                                       const struct sm_half *half,
                                       const struct sm_destination *destination, uint32_t kind)
{
    const uint32_t peer = half->lives[destination->life].peer;
    struct sm_effect *effect = sm_order(sm, out, kind, half);
    effect->peer = peer;
    effect->link = sm_peer_at(sm, peer)->link;
    effect->u.message.life = half->lives[destination->life].life;
    effect->u.message.decode_rank = destination->decode_rank;
    effect->u.message.sources = destination->sources;
    effect->u.message.aux_slot = SM_AUX_NONE;
    return effect;
}

static void send_notice(struct sm *sm, struct sm_output *out, struct sm_half *half,
                        struct sm_destination *destination)
{
    struct sm_effect *effect = order_message(sm, out, half, destination, SM_FX_SEND_STATUS);
    effect->u.message.outcome = half->outcome;
    effect->u.message.cause = sm_cause_view(sm, &half->cause);
    effect->u.message.drained = destination->in_flight == 0 || !sm_protected(sm, SM_PROTECT_DRAIN);
    sm->counters.notices_sent++;
    if (destination->notice_tries > 0) {
        sm->counters.notices_repeated++;
    }
    if (destination->notice_tries < UINT16_MAX) {
        destination->notice_tries++;
    }
    destination->notice_link = effect->link;
    destination->notice_next_ns = sm->now_ns + sm_backoff(sm, destination->notice_tries);
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_NOTICE_SENT, half);
    transition->index = destination->index;
    transition->a = destination->notice_tries;
}

static void settle_notice(struct sm *sm, struct sm_output *out, struct sm_half *half,
                          struct sm_destination *destination, uint64_t *wake)
{
    const struct sm_peer *peer = sm_peer_at(sm, half->lives[destination->life].peer);
    if (destination->notice != NOTICE_OWED) {
        return;
    }
    if (peer->state == PEER_IS_DOWN) {
        /* It has failed its own half by now; when it comes back, the tombstone answers it. */
        destination->notice = NOTICE_GONE;
        sm_emit(sm, out, SM_TR_DESTINATION_GONE, half)->index = destination->index;
        return;
    }
    if (peer->state != PEER_IS_UP) {
        return; /* peer_up or peer_down will come */
    }
    if (!sm_grace_over(sm, half)) {
        sm_want_wake(wake, half->grace_until_ns);
        return;
    }
    const bool first_here = destination->notice_link != peer->link;
    const bool again = sm->now_ns >= destination->notice_next_ns;
    if (first_here || (again && sm_protected(sm, SM_PROTECT_RETRY))) {
        send_notice(sm, out, half, destination);
    }
    if (sm_protected(sm, SM_PROTECT_RETRY)) {
        sm_want_wake(wake, destination->notice_next_ns);
    }
}

static void settle_drain(struct sm *sm, struct sm_output *out, struct sm_half *half,
                         struct sm_destination *destination, uint64_t *wake)
{
    const uint32_t peer = half->lives[destination->life].peer;
    const bool drained = destination->in_flight == 0 || !sm_protected(sm, SM_PROTECT_DRAIN);
    if (destination->drain_asked && drained) {
        destination->drain_asked = 0; /* asked again if this one gets lost: the tombstone knows */
        if (sm_peer_at(sm, peer)->state == PEER_IS_UP) {
            (void)order_message(sm, out, half, destination, SM_FX_SEND_DRAINED);
        }
    }
    if (destination->in_flight > 0) {
        const uint64_t overdue_ns = half->verdict_ns + sm->policy.drain_timeout_ns;
        if (sm->now_ns >= overdue_ns) {
            sm_peer_fence(sm, out, peer, destination->link);
        } else {
            sm_want_wake(wake, overdue_ns);
        }
    }
}

void sm_prefill_over(struct sm *sm, struct sm_output *out, struct sm_half *half, uint64_t *wake)
{
    bool owed = false;
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        struct sm_destination *destination = sm_destination_at(sm, at);
        settle_notice(sm, out, half, destination, wake);
        settle_drain(sm, out, half, destination, wake);
        owed = owed || destination->notice == NOTICE_OWED;
    }
    if (!owed && half->phase < SM_PHASE_NOTIFIED && sm_grace_over(sm, half)) {
        sm_half_phase(sm, out, half, SM_PHASE_NOTIFIED);
    }
}

bool sm_prefill_rank_drained(const struct sm *sm, const struct sm_half *half,
                             const struct sm_rank *rank)
{
    (void)sm;
    (void)half;
    return rank->in_flight == 0;
}
