/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: connections that come and go, each with a number that counts up. Memory that a peer could
 * touch on one connection is out of its reach when that connection, or a later one, has been
 * fenced.
 */
#include "sm_state.h"

static struct sm_text name_of(const struct sm_peer *peer)
{
    const struct sm_text text = {peer->name, peer->name_size};
    return text;
}

struct sm_text sm_peer_name(const struct sm *sm, uint32_t peer)
{
    const struct sm_text none = {"", 0};
    return peer < sm->peer_count ? name_of(sm_peer_at(sm, peer)) : none;
}

uint32_t sm_peer_find(const struct sm *sm, struct sm_text name)
{
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        if (sm_text_same(name_of(sm_peer_at(sm, i)), name)) {
            return i;
        }
    }
    return SM_NONE;
}

uint32_t sm_peer_find_node(const struct sm *sm, uint64_t node_id)
{
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        if (sm_peer_at(sm, i)->node_id == node_id) {
            return i;
        }
    }
    return SM_NONE;
}

/* Finds or adds; SM_NONE when the table is full or the name is no name. */
uint32_t sm_peer_add(struct sm *sm, struct sm_text name)
{
    uint32_t index = sm_peer_find(sm, name);
    if (index != SM_NONE) {
        return index;
    }
    if (sm->peer_count == sm->bounds.peers_max || name.size == 0 || name.size > SM_NAME_BYTES_MAX) {
        return SM_NONE;
    }
    index = sm->peer_count;
    sm->peer_count++;
    struct sm_peer *peer = sm_peer_at(sm, index);
    sm_zero(peer, sizeof *peer);
    sm_copy(peer->name, name.bytes, name.size);
    peer->name_size = (uint8_t)name.size;
    return index;
}

bool sm_peer_bound_reached(const struct sm *sm, uint32_t peer)
{
    return sm_peer_at(sm, peer)->rooms >= sm->policy.rooms_per_peer_max;
}

bool sm_peer_lost(const struct sm *sm, uint32_t index, uint32_t link, uint64_t *wake)
{
    const struct sm_peer *peer = sm_peer_at(sm, index);
    if (peer->state == PEER_IS_DOWN) {
        return true;
    }
    if (peer->state != PEER_IS_UP || peer->link == link) {
        return false;
    }
    /* A new connection: what the old one had is over, but the peer may still name its verdicts. */
    if (!peer->recovered && sm->now_ns < peer->grace_until_ns) {
        sm_want_wake(wake, peer->grace_until_ns);
        return false;
    }
    return true;
}

/* ---- fencing
 * --------------------------------------------------------------------------------------- */

/* Writes on fenced connections will not be reported any more: their records end here. */
static void drop_writes(struct sm *sm, uint32_t index)
{
    const uint32_t fenced = sm_peer_at(sm, index)->fenced_link;
    for (uint32_t at = sm_bits_next(sm, &sm->writes_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->writes_used, at + 1u)) {
        const struct sm_write *write = sm_write_at(sm, at);
        struct sm_half *half = sm_half_at(sm, write->half);
        struct sm_destination *destination = sm_destination_at(sm, write->destination);
        if (half->lives[destination->life].peer != index || destination->link > fenced) {
            continue;
        }
        destination->in_flight--;
        sm_half_rank(sm, half, write->rank)->in_flight--;
        half->in_flight--;
        sm_bits_remove(sm, &sm->writes_used, at);
    }
}

void sm_peer_fence(struct sm *sm, struct sm_output *out, uint32_t index, uint32_t link)
{
    struct sm_peer *peer = sm_peer_at(sm, index);
    if (link == 0 || link <= peer->fenced_link || link <= peer->fence_asked) {
        return;
    }
    peer->fence_asked = link;
    peer->fence_asked_ns = sm->now_ns;
    sm->counters.peers_fenced++;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PEER_FENCING, NULL);
    transition->index = index;
    transition->b = link;
    if (!sm_protected(sm, SM_PROTECT_FENCE)) {
        /* The fault that fencing prevents: taken for fenced, although nothing stops the peer. */
        peer->fenced_link = link;
        drop_writes(sm, index);
        sm_settle_all(sm);
        return;
    }
    struct sm_effect *effect = sm_order(sm, out, SM_FX_FENCE, NULL);
    effect->peer = index;
    effect->link = link;
}

/* ---- inputs
 * ----------------------------------------------------------------------------------------- */

static void owe_marker(struct sm *sm, struct sm_peer *peer)
{
    if (!peer->marker_owed) {
        peer->marker_owed = 1;
        sm->markers_owed++;
    }
}

static void on_up(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const struct sm_in_peer_up *up = &input->u.peer_up;
    const uint32_t index = sm_peer_add(sm, up->name);
    if (index == SM_NONE || up->node_id == 0 || up->ranks == 0 || up->ranks > SM_RANKS_MAX) {
        sm_ignore(sm, out, input,
                  index == SM_NONE ? SM_IGNORED_UNKNOWN_PEER : SM_IGNORED_MALFORMED);
        return;
    }
    struct sm_peer *peer = sm_peer_at(sm, index);
    if (up->link <= peer->link) {
        sm_ignore(sm, out, input, SM_IGNORED_STALE_LINK);
        return;
    }
    const uint32_t before = peer->link;
    peer->node_id = up->node_id;
    peer->epoch = up->epoch;
    peer->link = up->link;
    peer->ranks = up->ranks;
    peer->state = PEER_IS_UP;
    peer->recovered = 0;
    peer->grace_until_ns = sm->now_ns + sm->policy.recovery_grace_ns;
    if (up->link > sm->link_last) {
        sm->link_last = up->link;
    }
    owe_marker(sm, peer);
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PEER_UP, NULL);
    transition->index = index;
    transition->a = up->epoch;
    transition->b = up->link;
    transition->text = name_of(peer);
    sm_peer_fence(sm, out, index, before);
    sm_settle_all(sm);
}

static void on_down(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const uint32_t index = sm_peer_find(sm, input->u.peer.name);
    if (index == SM_NONE) {
        sm_ignore(sm, out, input, SM_IGNORED_UNKNOWN_PEER);
        return;
    }
    struct sm_peer *peer = sm_peer_at(sm, index);
    const bool this_one = peer->state == PEER_IS_UP && input->u.peer.link == peer->link;
    const bool never_came = peer->state == PEER_UNKNOWN && input->u.peer.link == 0;
    if (!this_one && !never_came) {
        sm_ignore(sm, out, input, SM_IGNORED_STALE_LINK);
        return;
    }
    peer->state = PEER_IS_DOWN;
    if (peer->marker_owed) {
        peer->marker_owed = 0;
        sm->markers_owed--;
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PEER_DOWN, NULL);
    transition->index = index;
    transition->b = input->u.peer.link;
    transition->text = name_of(peer);
    sm_peer_fence(sm, out, index, peer->link);
    sm_settle_all(sm);
}

static void on_fenced(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const uint32_t index = sm_peer_find(sm, input->u.peer.name);
    if (index == SM_NONE) {
        sm_ignore(sm, out, input, SM_IGNORED_UNKNOWN_PEER);
        return;
    }
    struct sm_peer *peer = sm_peer_at(sm, index);
    const uint32_t link = input->u.peer.link;
    if (link <= peer->fenced_link || link > peer->link) {
        sm_ignore(sm, out, input, SM_IGNORED_STALE_LINK);
        return;
    }
    peer->fenced_link = link;
    if (peer->fence_asked < link) {
        peer->fence_asked = link;
    }
    if (link == peer->link && peer->state == PEER_IS_UP) {
        peer->state = PEER_IS_DOWN; /* fenced while up: it has to come back on a new connection */
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PEER_FENCED, NULL);
    transition->index = index;
    transition->b = link;
    transition->text = name_of(peer);
    drop_writes(sm, index);
    sm_settle_all(sm);
}

static void on_recovered(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const uint32_t index = sm_peer_find(sm, input->u.message.peer);
    if (index == SM_NONE) {
        sm_ignore(sm, out, input, SM_IGNORED_UNKNOWN_PEER);
        return;
    }
    struct sm_peer *peer = sm_peer_at(sm, index);
    if (peer->state != PEER_IS_UP || peer->epoch != input->u.message.epoch) {
        sm_ignore(sm, out, input, SM_IGNORED_STALE_LINK);
        return;
    }
    if (peer->recovered) {
        sm_ignore(sm, out, input, SM_IGNORED_DUPLICATE);
        return;
    }
    peer->recovered = 1;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_PEER_RECOVERED, NULL);
    transition->index = index;
    transition->text = name_of(peer);
    sm_settle_all(sm);
}

void sm_on_peer(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    switch (input->kind) {
    case SM_IN_PEER_UP:
        on_up(sm, input, out);
        break;
    case SM_IN_PEER_DOWN:
        on_down(sm, input, out);
        break;
    case SM_IN_PEER_FENCED:
        on_fenced(sm, input, out);
        break;
    default:
        SM_ASSERT(input->kind == SM_IN_PEER_RECOVERED);
        on_recovered(sm, input, out);
        break;
    }
}
