/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of every record, in the order in which a snapshot keeps them. */
#include "sm_rows.h"

/* ---- a row of numbers, written or read by the same code
 * ------------------------------------------- */

void sm_row64(struct row *row, uint64_t *value)
{
    if (row->write != NULL) {
        SM_ASSERT(row->at < SM_ITEM_NUMBERS_MAX);
        row->write->numbers[row->at] = *value;
        row->write->number_count = row->at + 1u;
    } else if (row->at < row->read->number_count && row->at < SM_ITEM_NUMBERS_MAX) {
        *value = row->read->numbers[row->at];
    } else {
        row->well = false;
    }
    row->at++;
}

void sm_row32(struct row *row, uint32_t *value)
{
    uint64_t wide = *value;
    sm_row64(row, &wide);
    row->well = row->well && wide <= UINT32_MAX;
    *value = (uint32_t)wide;
}

static void field16(struct row *row, uint16_t *value)
{
    uint64_t wide = *value;
    sm_row64(row, &wide);
    row->well = row->well && wide <= UINT16_MAX;
    *value = (uint16_t)wide;
}

static void field8(struct row *row, uint8_t *value)
{
    uint64_t wide = *value;
    sm_row64(row, &wide);
    row->well = row->well && wide <= UINT8_MAX;
    *value = (uint8_t)wide;
}

static void field_life(struct row *row, struct sm_life *life)
{
    sm_row64(row, &life->node);
    sm_row64(row, &life->epoch);
    sm_row64(row, &life->generation);
}

static void field_geometry(struct row *row, struct sm_geometry *g)
{
    sm_row32(row, &g->page_tokens);
    sm_row32(row, &g->layers);
    sm_row32(row, &g->kv_heads);
    sm_row32(row, &g->item_bytes);
    sm_row32(row, &g->planes);
    sm_row32(row, &g->dtype);
    sm_row32(row, &g->layer_first);
    sm_row32(row, &g->layer_count);
    sm_row32(row, &g->stages);
}

/* The text of a cause is the item's next text. */
static void field_cause(struct sm *sm, struct row *row, struct sm_kept_cause *cause)
{
    field16(row, &cause->http);
    field8(row, &cause->origin);
    field8(row, &cause->typed);
    if (row->write != NULL) {
        row->write->texts[row->write->text_count] = sm_reason_text(sm, cause->reason);
        row->write->text_count++;
    } else {
        cause->reason = SM_NONE;
        if (row->read->text_count > 0) {
            cause->reason = sm_reason_keep(sm, row->read->texts[row->read->text_count - 1u]);
        }
    }
}

/* ---- the records
 * ------------------------------------------------------------------------------------ */

void sm_row_node(struct sm *sm, struct row *row)
{
    struct sm_policy *p = &sm->policy;
    sm_row64(row, &p->room_deadline_ns);
    sm_row64(row, &p->unclaimed_deadline_ns);
    sm_row64(row, &p->retry_first_ns);
    sm_row64(row, &p->retry_max_ns);
    sm_row64(row, &p->cause_grace_ns);
    sm_row64(row, &p->recovery_grace_ns);
    sm_row64(row, &p->drain_timeout_ns);
    sm_row64(row, &p->stop_grace_ns);
    sm_row64(row, &p->tombstone_ttl_ns);
    sm_row32(row, &p->rooms_per_peer_max);
    sm_row32(row, &p->destinations_per_room_max);
    sm_row32(row, &p->pages_per_room_max);
    sm_row32(row, &p->reason_bytes_max);
    sm_row32(row, &p->ranks);
    sm_row32(row, &p->protections_off);
    sm_row64(row, &sm->node_id);
    sm_row64(row, &sm->epoch);
    sm_row64(row, &sm->now_ns);
    sm_row64(row, &sm->stop_deadline_ns);
    sm_row64(row, &sm->generation_floor);
    sm_row64(row, &sm->write_seq);
    sm_row32(row, &sm->link_last);
    field8(row, &sm->started);
    field8(row, &sm->stopping);
    field8(row, &sm->stopped);
    field8(row, &sm->journal_failed);
    for (uint32_t i = 0; i < SM_RANKS_MAX; i++) {
        sm_row64(row, &p->sources_by_hand[i]);
    }
}

void sm_row_peer(struct sm_peer *peer, struct row *row)
{
    sm_row64(row, &peer->node_id);
    sm_row64(row, &peer->epoch);
    sm_row64(row, &peer->grace_until_ns);
    sm_row64(row, &peer->fence_asked_ns);
    sm_row32(row, &peer->link);
    sm_row32(row, &peer->fenced_link);
    sm_row32(row, &peer->fence_asked);
    sm_row32(row, &peer->ranks);
    field8(row, &peer->state);
    field8(row, &peer->recovered);
    field8(row, &peer->marker_owed);
    field8(row, &peer->configured);
}

void sm_row_engine(struct sm_engine *engine, struct row *row)
{
    field_geometry(row, &engine->geometry);
    sm_row64(row, &engine->awaited_until_ns);
    sm_row32(row, &engine->pages);
    sm_row32(row, &engine->aux_slots);
    sm_row32(row, &engine->life);
    field8(row, &engine->state);
    field8(row, &engine->lost);
}

void sm_row_half(struct sm *sm, struct sm_half *half, struct row *row)
{
    sm_row64(row, &half->epoch);
    sm_row64(row, &half->opened_ns);
    sm_row64(row, &half->deadline_ns);
    sm_row64(row, &half->verdict_ns);
    sm_row64(row, &half->grace_until_ns);
    sm_row64(row, &half->fence_asked_ns);
    sm_row64(row, &half->writes_epoch);
    sm_row64(row, &half->opened);
    sm_row64(row, &half->admitted);
    sm_row64(row, &half->released);
    sm_row64(row, &half->told);
    sm_row64(row, &half->told_ever);
    sm_row64(row, &half->delivered);
    sm_row64(row, &half->required_known);
    sm_row32(row, &half->in_flight);
    sm_row32(row, &half->life_count);
    field8(row, &half->phase);
    field8(row, &half->outcome);
    field8(row, &half->owner_engine);
    field8(row, &half->by_journal);
    field8(row, &half->late);
    row->well = row->well && half->life_count <= SM_LIVES_MAX;
    for (uint32_t i = 0; i < SM_LIVES_MAX && i < half->life_count; i++) {
        field_life(row, &half->lives[i].life);
        sm_row32(row, &half->lives[i].peer);
    }
    /* Required counts, eight ranks to a number. */
    for (uint32_t i = 0; i < SM_RANKS_MAX; i += 8u) {
        uint64_t eight = 0;
        for (uint32_t k = 0; k < 8u; k++) {
            eight |= (uint64_t)half->required[i + k] << (8u * k);
        }
        sm_row64(row, &eight);
        for (uint32_t k = 0; k < 8u; k++) {
            half->required[i + k] = (uint8_t)(eight >> (8u * k));
        }
    }
    field_cause(sm, row, &half->cause);
}

void sm_row_rank(struct sm *sm, struct sm_rank *rank, struct row *row)
{
    sm_row32(row, &rank->rank);
    sm_row64(row, &rank->request);
    sm_row64(row, &rank->sources_required);
    sm_row64(row, &rank->sources_done);
    sm_row64(row, &rank->prepare_next_ns);
    sm_row64(row, &rank->abort_next_ns);
    sm_row32(row, &rank->peer);
    sm_row32(row, &rank->prepared_link);
    sm_row32(row, &rank->reach_link);
    sm_row32(row, &rank->reach_link_old);
    sm_row32(row, &rank->prefix_pages);
    sm_row32(row, &rank->aux_slot);
    sm_row32(row, &rank->posted_pages);
    sm_row32(row, &rank->in_flight);
    sm_row32(row, &rank->abort_link);
    sm_row32(row, &rank->engine_life);
    field16(row, &rank->prepare_tries);
    field16(row, &rank->abort_tries);
    field8(row, &rank->opened);
    field8(row, &rank->last_sent);
    field8(row, &rank->last_posted);
    field8(row, &rank->drained_said);
    field8(row, &rank->abort_answered);
    field8(row, &rank->freed);
    field8(row, &rank->own_outcome);
    field_cause(sm, row, &rank->own_cause);
}

void sm_row_destination(struct sm_destination *d, struct row *row)
{
    sm_row64(row, &d->sources);
    sm_row64(row, &d->notice_next_ns);
    field_geometry(row, &d->geometry);
    sm_row32(row, &d->index);
    sm_row32(row, &d->life);
    sm_row32(row, &d->decode_rank);
    sm_row32(row, &d->decode_ranks);
    sm_row32(row, &d->prefix_pages);
    sm_row32(row, &d->aux_slot);
    sm_row32(row, &d->link);
    sm_row32(row, &d->notice_link);
    sm_row32(row, &d->in_flight);
    field16(row, &d->notice_tries);
    field8(row, &d->notice);
    field8(row, &d->drain_asked);
}

void sm_row_tombstone(struct sm *sm, struct sm_tombstone *t, struct row *row)
{
    sm_row64(row, &t->generation);
    sm_row64(row, &t->expires_ns);
    sm_row64(row, &t->opened);
    field_life(row, &t->life);
    field8(row, &t->outcome);
    field8(row, &t->expecting);
    field8(row, &t->owner_engine);
    sm_row64(row, &t->destinations);
    field_cause(sm, row, &t->cause);
}
