/* SPDX-License-Identifier: Apache-2.0 */
/* The node itself: start, stop, time, and a journal that fails and comes back. */
#include "sm_state.h"

/* Expired tombstones dropped by one tick at the most: each is a transition. */
#define TOMBSTONES_PER_TICK 256u

void sm_bounds_default(struct sm_bounds *out)
{
    out->halves_max = 65536u;
    out->ranks_max = 8u * 65536u;
    out->destinations_max = 4u * 65536u;
    out->runs_max = 4u << 20;
    out->writes_max = 65536u;
    out->tombstones_max = 1000000u;
    out->reasons_max = 16384u;
    out->peers_max = 256u;
    out->pages_max = 4u << 20;
    out->aux_slots_max = 65536u;
}

void sm_policy_default(struct sm_policy *out)
{
    const uint64_t ms = UINT64_C(1000000);
    sm_zero(out, sizeof *out);
    out->room_deadline_ns = 300000u * ms;
    out->unclaimed_deadline_ns = 120000u * ms;
    out->retry_first_ns = 100u * ms;
    out->retry_max_ns = 5000u * ms;
    out->cause_grace_ns = 200u * ms;
    out->recovery_grace_ns = 2000u * ms;
    out->drain_timeout_ns = 30000u * ms;
    out->stop_grace_ns = 30000u * ms;
    out->tombstone_ttl_ns = 600000u * ms;
    out->rooms_per_peer_max = 16384u;
    out->destinations_per_room_max = SM_DESTINATIONS_MAX;
    out->pages_per_room_max = SM_OUTPUT_RUNS_MAX;
    out->reason_bytes_max = SM_REASON_BYTES_MAX;
    out->ranks = 1;
}

static bool policy_sound(const struct sm_policy *policy)
{
    return policy->ranks >= 1u && policy->ranks <= SM_RANKS_MAX && policy->retry_first_ns > 0 &&
           policy->retry_max_ns >= policy->retry_first_ns &&
           policy->destinations_per_room_max >= 1u &&
           policy->destinations_per_room_max <= SM_DESTINATIONS_MAX &&
           policy->pages_per_room_max <= SM_OUTPUT_RUNS_MAX &&
           policy->reason_bytes_max <= SM_REASON_BYTES_MAX;
}

/* The process that posted them is gone, and its fabric with it. */
static void forget_writes(struct sm *sm)
{
    for (uint32_t at = sm_bits_next(sm, &sm->writes_used, 0); at != SM_NONE;
         at = sm_bits_next(sm, &sm->writes_used, at + 1u)) {
        sm_half_refresh(sm, sm_half_at(sm, sm_write_at(sm, at)->half));
    }
    sm_bits_clear(sm, &sm->writes_used);
    sm_bits_clear(sm, &sm->blocked);
}

static void on_started(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const struct sm_in_node_started *in = &input->u.node_started;
    if (in->node_id == 0 || in->epoch <= sm->epoch || !policy_sound(&in->policy) ||
        in->name.size > SM_NAME_BYTES_MAX) {
        sm_ignore(sm, out, input, SM_IGNORED_MALFORMED);
        return;
    }
    const bool ranks_changed = sm->started && sm->policy.ranks != in->policy.ranks;
    sm->started = 1;
    sm->node_id = in->node_id;
    sm->epoch = in->epoch;
    sm->policy = in->policy;
    sm->stopping = 0;
    sm->stopped = 0;
    sm->stop_deadline_ns = 0;
    sm->journal_failed = 0;
    sm_zero(sm->name, sizeof sm->name);
    sm_copy(sm->name, in->name.bytes, in->name.size);
    sm->name_size = in->name.size;
    forget_writes(sm);
    if (ranks_changed) {
        sm_pages_rebuild(sm);
    }
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        sm_peer_at(sm, i)->configured = 0;
    }
    for (uint32_t i = 0; i < in->peer_count; i++) {
        const uint32_t peer = sm_peer_add(sm, in->peer_names[i]);
        if (peer != SM_NONE) { /* over peers_max: unknown until it is there */
            sm_peer_at(sm, peer)->configured = 1;
        }
    }
    for (uint32_t i = 0; i < sm->peer_count; i++) {
        struct sm_peer *peer = sm_peer_at(sm, i);
        peer->state = PEER_UNKNOWN;
        peer->recovered = 0;
        peer->marker_owed = 0;
        peer->fenced_link = peer->link; /* our end of every old connection died with the process */
        peer->fence_asked = peer->link;
    }
    sm->markers_owed = 0;
    for (uint32_t i = 0; i < SM_RANKS_MAX; i++) {
        if (sm->engines[i].state == ENGINE_IS_ATTACHED) {
            sm->engines[i].state = ENGINE_AWAITED;
            sm->engines[i].awaited_until_ns = sm->now_ns + sm->policy.room_deadline_ns;
        }
    }
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_NODE_STARTED, NULL);
    transition->a = in->epoch;
    transition->text = in->name;
    sm_settle_all(sm);
}

static void on_stop(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    if (sm->stopping) {
        sm_ignore(sm, out, input, SM_IGNORED_DUPLICATE);
        return;
    }
    sm->stopping = 1;
    sm->stop_deadline_ns = sm->now_ns + sm->policy.stop_grace_ns;
    (void)sm_emit(sm, out, SM_TR_NODE_STOPPING, NULL);
    sm_settle_all(sm);
}

static void on_journal(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    const bool failed = input->kind == SM_IN_JOURNAL_FAILED;
    if ((sm->journal_failed != 0) == failed) {
        sm_ignore(sm, out, input, SM_IGNORED_DUPLICATE);
        return;
    }
    sm->journal_failed = failed;
    for (uint32_t i = 0; i < sm->peer_count && !failed; i++) {
        /* Fences that were ordered meanwhile leave now. */
        struct sm_peer *peer = sm_peer_at(sm, i);
        peer->fence_asked_ns =
            peer->fence_asked > peer->fenced_link ? sm->now_ns : peer->fence_asked_ns;
    }
    (void)sm_emit(sm, out, failed ? SM_TR_JOURNAL_FAILED : SM_TR_JOURNAL_OK, NULL);
    sm_settle_all(sm);
}

static void expire_tombstones(struct sm *sm, struct sm_output *out)
{
    for (uint32_t i = 0; i < TOMBSTONES_PER_TICK; i++) {
        if (sm->tombstone_first == sm->tombstone_end || !sm_output_has_room(out)) {
            return;
        }
        const struct sm_tombstone *oldest = sm_tombstone_at(sm, sm->tombstone_first);
        if (oldest->expires_ns > sm->now_ns) {
            return;
        }
        struct sm_transition *transition = sm_emit(sm, out, SM_TR_TOMBSTONE_EXPIRED, NULL);
        transition->room = oldest->room;
        transition->side = oldest->side;
        transition->generation = oldest->generation;
        sm_tombstone_drop_oldest(sm);
    }
}

static void give_up_engines(struct sm *sm, struct sm_output *out)
{
    for (uint32_t i = 0; i < sm->policy.ranks; i++) {
        if (sm->engines[i].state == ENGINE_AWAITED &&
            sm->engines[i].awaited_until_ns <= sm->now_ns) {
            sm_engine_lost(sm, out, i, SM_LOST_AWAITED);
        }
    }
}

static void on_tick(struct sm *sm, struct sm_output *out)
{
    give_up_engines(sm, out);
    sm_settle_work(sm, out);
    for (uint32_t due = sm_timer_due(sm); due != SM_NONE && sm_output_has_room(out);
         due = sm_timer_due(sm)) {
        sm_settle(sm, out, due);
    }
    expire_tombstones(sm, out);
}

void sm_on_node(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    switch (input->kind) {
    case SM_IN_NODE_STARTED:
        on_started(sm, input, out);
        break;
    case SM_IN_NODE_STOP:
        on_stop(sm, input, out);
        break;
    case SM_IN_TICK:
        on_tick(sm, out);
        break;
    default:
        SM_ASSERT(input->kind == SM_IN_JOURNAL_FAILED || input->kind == SM_IN_JOURNAL_OK);
        on_journal(sm, input, out);
        break;
    }
}

/* ---- the step
 * ---------------------------------------------------------------------------------------- */

/* All verdicts that we owe have been repeated: peers that wait for that may stop waiting. */
static void send_markers(struct sm *sm, struct sm_output *out)
{
    if (sm->markers_owed == 0 || sm->work.count > 0) {
        return;
    }
    for (uint32_t i = 0; i < sm->peer_count && out->effect_count < SM_EFFECTS_MAX; i++) {
        struct sm_peer *peer = sm_peer_at(sm, i);
        if (peer->marker_owed) {
            peer->marker_owed = 0;
            sm->markers_owed--;
            struct sm_effect *effect = sm_order(sm, out, SM_FX_SEND_RECOVERED, NULL);
            effect->peer = i;
            effect->link = peer->link;
            effect->u.message.aux_slot = SM_AUX_NONE;
        }
    }
}

static void finish_stop(struct sm *sm, struct sm_output *out)
{
    if (!sm->stopping || sm->stopped) {
        return;
    }
    if (sm->halves_used.count == 0 ||
        sm->now_ns >= sm->stop_deadline_ns + sm->policy.retry_max_ns) {
        sm->stopped = 1;
        (void)sm_emit(sm, out, SM_TR_NODE_STOPPED, NULL);
        (void)sm_order(sm, out, SM_FX_STOPPED, NULL);
    }
}

static void reset_output(struct sm_output *out)
{
    out->transition_count = 0;
    out->effect_count = 0;
    out->digest = 0;
    out->text_used = 0;
    out->runs_used = 0;
}

void sm_step(struct sm *sm, const struct sm_input *input, struct sm_output *out)
{
    SM_ASSERT(input->time_ns >= sm->now_ns);
    reset_output(out);
    sm->now_ns = input->time_ns;
    sm->counters.steps++;
    if (!sm->started && input->kind != SM_IN_NODE_STARTED) {
        sm_ignore(sm, out, input, SM_IGNORED_NOT_STARTED);
        return;
    }
    switch (input->kind) {
    case SM_IN_NODE_STARTED:
    case SM_IN_NODE_STOP:
    case SM_IN_TICK:
    case SM_IN_JOURNAL_FAILED:
    case SM_IN_JOURNAL_OK:
        sm_on_node(sm, input, out);
        break;
    case SM_IN_PEER_UP:
    case SM_IN_PEER_DOWN:
    case SM_IN_PEER_FENCED:
    case SM_IN_PEER_RECOVERED:
        sm_on_peer(sm, input, out);
        break;
    case SM_IN_ENGINE_ATTACHED:
    case SM_IN_ENGINE_LOST:
        sm_on_engine(sm, input, out);
        break;
    default:
        sm_dispatch(sm, input, out);
        break;
    }
    sm_settle_work(sm, out);
    send_markers(sm, out);
    finish_stop(sm, out);
    if (out->transition_count == 0) {
        /* Nothing is silent: what only repeats what is known already stands in the journal as that.
         */
        sm_ignore(sm, out, input,
                  input->kind == SM_IN_TICK ? SM_IGNORED_NOTHING_DUE : SM_IGNORED_DUPLICATE);
    }
    out->digest = sm_mix(out->digest, sm_node_digest(sm));
}

uint64_t sm_deadline(const struct sm *sm)
{
    uint64_t deadline = SM_NEVER;
    if (!sm->started) {
        return SM_NEVER;
    }
    if (sm->work.count > 0) {
        return sm->now_ns;
    }
    if (sm->heap_count > 0) {
        const uint32_t *first = sm_at(sm, sm->heap_at);
        sm_want_wake(&deadline, sm_half_at(sm, *first)->wake_ns);
    }
    if (sm->tombstone_first < sm->tombstone_end) {
        sm_want_wake(&deadline, sm_tombstone_at(sm, sm->tombstone_first)->expires_ns);
    }
    for (uint32_t i = 0; i < sm->policy.ranks; i++) {
        if (sm->engines[i].state == ENGINE_AWAITED) {
            sm_want_wake(&deadline, sm->engines[i].awaited_until_ns);
        }
    }
    if (sm->stopping && !sm->stopped) {
        sm_want_wake(&deadline, sm->stop_deadline_ns + sm->policy.retry_max_ns);
    }
    return deadline;
}
