/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of the meaning, field by field, never of raw memory. Sums over tables make the digest of
 * the whole independent of where records lie; within a half, lists are walked in their own order.
 */
#include "sm_state.h"

static uint64_t text_digest(uint64_t digest, struct sm_text text)
{
    for (uint32_t i = 0; i < text.size; i++) {
        digest = (digest ^ (unsigned char)text.bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sm_mix(digest, text.size);
}

static uint64_t cause_digest(const struct sm *sm, uint64_t digest,
                             const struct sm_kept_cause *cause)
{
    digest =
        sm_mix(digest, (uint64_t)cause->http << 16 | (uint64_t)cause->origin << 8 | cause->typed);
    return text_digest(digest, sm_reason_text(sm, cause->reason));
}

static uint64_t list_digest(const struct sm *sm, uint64_t digest, const struct sm_page_list *list)
{
    digest = sm_mix(digest, (uint64_t)list->runs << 32 | list->pages);
    uint32_t at = list->runs == 0 ? SM_NONE : list->head;
    for (; at != SM_NONE; at = sm_block_at(sm, at)->next) {
        const struct sm_block *block = sm_block_at(sm, at);
        for (uint32_t i = 0; i < block->count; i++) {
            digest = sm_mix(digest, (uint64_t)block->runs[i].first << 32 | block->runs[i].count);
        }
    }
    return digest;
}

static uint64_t life_digest(uint64_t digest, const struct sm_life *life)
{
    return sm_mix(sm_mix(sm_mix(digest, life->node), life->epoch), life->generation);
}

static uint64_t rank_digest(const struct sm *sm, uint64_t digest, const struct sm_half *half,
                            const struct sm_rank *rank)
{
    const uint32_t in_flight = half->writes_epoch == sm->epoch ? rank->in_flight : 0;
    digest = sm_mix(digest, (uint64_t)rank->rank << 32 | rank->peer);
    digest = sm_mix(digest, rank->request);
    digest = sm_mix(digest, rank->sources_required);
    digest = sm_mix(digest, rank->sources_done);
    digest = sm_mix(digest, rank->prepare_next_ns);
    digest = sm_mix(digest, rank->abort_next_ns);
    digest = sm_mix(digest, (uint64_t)rank->prepared_link << 32 | rank->abort_link);
    digest = sm_mix(digest, (uint64_t)rank->reach_link << 32 | rank->reach_link_old);
    digest = sm_mix(digest, (uint64_t)rank->prefix_pages << 32 | rank->aux_slot);
    digest = sm_mix(digest, (uint64_t)rank->posted_pages << 32 | in_flight);
    digest = sm_mix(digest, (uint64_t)rank->engine_life << 32 |
                                (uint64_t)rank->prepare_tries << 16 | rank->abort_tries);
    digest =
        sm_mix(digest, (uint64_t)rank->opened | (uint64_t)rank->last_sent << 1 |
                           (uint64_t)rank->last_posted << 2 | (uint64_t)rank->drained_said << 3 |
                           (uint64_t)rank->abort_answered << 4 | (uint64_t)rank->freed << 5 |
                           (uint64_t)rank->own_outcome << 6);
    digest = cause_digest(sm, digest, &rank->own_cause);
    return list_digest(sm, digest, &rank->pages);
}

static uint64_t destination_digest(const struct sm *sm, uint64_t digest, const struct sm_half *half,
                                   const struct sm_destination *destination)
{
    const uint32_t in_flight = half->writes_epoch == sm->epoch ? destination->in_flight : 0;
    digest = sm_mix(digest, destination->sources);
    digest = sm_mix(digest, destination->notice_next_ns);
    digest = sm_mix(digest, (uint64_t)destination->life << 32 | destination->decode_rank);
    digest = sm_mix(digest, (uint64_t)destination->decode_ranks << 32 | destination->index);
    digest = sm_mix(digest, (uint64_t)destination->prefix_pages << 32 | destination->aux_slot);
    digest = sm_mix(digest, (uint64_t)destination->link << 32 | destination->notice_link);
    digest = sm_mix(digest, (uint64_t)in_flight << 32 | (uint64_t)destination->notice_tries << 16 |
                                (uint64_t)destination->notice << 8 | destination->drain_asked);
    return list_digest(sm, digest, &destination->pages);
}

uint64_t sm_half_digest_at(const struct sm *sm, const struct sm_half *half)
{
    uint64_t digest = sm_mix(half->room, half->generation);
    digest = sm_mix(digest, half->epoch);
    digest = sm_mix(digest, half->opened_ns);
    digest = sm_mix(digest, half->deadline_ns);
    digest = sm_mix(digest, half->verdict_ns);
    digest = sm_mix(digest, half->grace_until_ns);
    digest = sm_mix(digest, half->wake_ns);
    digest = sm_mix(digest, half->opened);
    digest = sm_mix(digest, half->admitted);
    digest = sm_mix(digest, half->released);
    digest = sm_mix(digest, half->told);
    digest = sm_mix(digest, half->told_ever);
    digest = sm_mix(digest, half->delivered);
    digest = sm_mix(digest, half->required_known);
    digest = sm_mix(digest, (uint64_t)half->side | (uint64_t)half->phase << 8 |
                                (uint64_t)half->outcome << 16 | (uint64_t)half->owner_engine << 24 |
                                (uint64_t)half->by_journal << 32 | (uint64_t)half->late << 40);
    for (uint32_t rank = 0; rank < SM_RANKS_MAX; rank++) {
        if (half->required[rank] != 0) {
            digest = sm_mix(digest, (uint64_t)rank << 8 | half->required[rank]);
        }
    }
    for (uint32_t i = 0; i < half->life_count; i++) {
        digest = life_digest(digest, &half->lives[i].life);
        digest = sm_mix(digest, half->lives[i].peer);
    }
    digest = cause_digest(sm, digest, &half->cause);
    for (uint32_t at = half->ranks; at != SM_NONE; at = sm_rank_at(sm, at)->next) {
        digest = rank_digest(sm, digest, half, sm_rank_at(sm, at));
    }
    for (uint32_t at = half->destinations; at != SM_NONE; at = sm_destination_at(sm, at)->next) {
        digest = destination_digest(sm, digest, half, sm_destination_at(sm, at));
    }
    return digest;
}

uint64_t sm_node_digest(const struct sm *sm)
{
    uint64_t digest = sm_mix(sm->node_id, sm->epoch);
    digest = sm_mix(digest, sm->now_ns);
    digest = sm_mix(digest, sm->stop_deadline_ns);
    digest = sm_mix(digest, sm->generation_floor);
    digest = sm_mix(digest, sm->write_seq);
    digest = sm_mix(digest, sm->tombstone_end - sm->tombstone_first);
    digest = sm_mix(digest, sm->pages_held);
    digest = sm_mix(digest, (uint64_t)sm->halves_used.count << 32 | sm->writes_used.count);
    digest = sm_mix(digest, (uint64_t)sm->work.count << 32 | sm->blocked.count);
    digest = sm_mix(digest, (uint64_t)sm->link_last << 32 | sm->peer_count);
    return sm_mix(digest, (uint64_t)sm->started | (uint64_t)sm->stopping << 1 |
                              (uint64_t)sm->stopped << 2 | (uint64_t)sm->journal_failed << 3);
}

static uint64_t peer_digest(const struct sm_peer *peer)
{
    const struct sm_text name = {peer->name, peer->name_size};
    uint64_t digest = text_digest(peer->node_id, name);
    digest = sm_mix(digest, peer->epoch);
    digest = sm_mix(digest, peer->grace_until_ns);
    digest = sm_mix(digest, peer->fence_asked_ns);
    digest = sm_mix(digest, (uint64_t)peer->link << 32 | peer->fenced_link);
    digest = sm_mix(digest, (uint64_t)peer->fence_asked << 32 | peer->ranks);
    return sm_mix(digest, (uint64_t)peer->rooms << 32 | (uint64_t)peer->state << 16 |
                              (uint64_t)peer->recovered << 8 | peer->marker_owed |
                              (uint64_t)peer->configured << 24);
}

static uint64_t engines_digest(const struct sm *sm)
{
    uint64_t digest = 0;
    for (uint32_t i = 0; i < SM_RANKS_MAX; i++) {
        const struct sm_engine *engine = &sm->engines[i];
        digest = sm_mix(digest, engine->awaited_until_ns);
        digest = sm_mix(digest, (uint64_t)engine->pages << 32 | engine->aux_slots);
        digest = sm_mix(digest,
                        (uint64_t)engine->life << 32 | (uint64_t)engine->lost << 8 | engine->state);
        digest =
            sm_mix(digest, (uint64_t)engine->geometry.page_tokens << 32 | engine->geometry.layers);
        digest =
            sm_mix(digest, (uint64_t)engine->geometry.kv_heads << 32 | engine->geometry.item_bytes);
        digest = sm_mix(digest, (uint64_t)engine->geometry.planes << 32 | engine->geometry.dtype);
        digest = sm_mix(digest, (uint64_t)engine->geometry.layer_first << 32 |
                                    engine->geometry.layer_count);
        digest = sm_mix(digest, engine->geometry.stages);
    }
    return digest;
}

static uint64_t tombstones_digest(const struct sm *sm)
{
    uint64_t digest = 0;
    for (uint64_t at = sm->tombstone_first; at < sm->tombstone_end; at++) {
        const struct sm_tombstone *tombstone = sm_tombstone_at(sm, at);
        digest = sm_mix(digest, tombstone->room);
        digest = sm_mix(digest, tombstone->generation);
        digest = sm_mix(digest, tombstone->expires_ns);
        digest = sm_mix(digest, tombstone->opened);
        digest = life_digest(digest, &tombstone->life);
        digest = sm_mix(digest, tombstone->destinations);
        digest = cause_digest(sm, digest, &tombstone->cause);
        digest = sm_mix(digest, (uint64_t)tombstone->side | (uint64_t)tombstone->outcome << 8 |
                                    (uint64_t)tombstone->expecting << 16 |
                                    (uint64_t)tombstone->owner_engine << 24);
    }
    return digest;
}

uint64_t sm_digest(const struct sm *sm)
{
    uint64_t digest = sm_node_digest(sm);
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        digest = sm_mix(digest, peer_digest(sm_peer_at(sm, i)));
    }
    digest = sm_mix(digest, engines_digest(sm));
    for (uint32_t at = sm_bits_next(sm, &sm->halves_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->halves_used, at + 1u)) {
        digest = sm_mix(digest, sm_mix(at, sm_half_digest_at(sm, sm_half_at(sm, at))));
        digest = sm_mix(digest, (uint64_t)sm_bits_has(sm, &sm->work, at) << 1 |
                                    (uint64_t)sm_bits_has(sm, &sm->blocked, at));
    }
    for (uint32_t at = sm_bits_next(sm, &sm->writes_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->writes_used, at + 1u)) {
        const struct sm_write *write = sm_write_at(sm, at);
        digest = sm_mix(digest, write->id);
        digest = sm_mix(digest, (uint64_t)write->rank << 32 | write->pages);
    }
    return sm_mix(digest, tombstones_digest(sm));
}

uint64_t sm_half_digest(const struct sm *sm, uint64_t room, uint32_t side)
{
    const uint32_t half = sm_half_newest(sm, room, side);
    return half == SM_NONE ? 0 : sm_half_digest_at(sm, sm_half_at(sm, half));
}
