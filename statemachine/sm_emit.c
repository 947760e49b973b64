/* SPDX-License-Identifier: Apache-2.0 */
/* Writing into a step's output: transitions, orders, refusals, and what was ignored and why. */
#include "sm_state.h"

struct sm_transition *sm_emit(struct sm *sm, struct sm_output *out, uint32_t kind,
                              const struct sm_half *half)
{
    SM_ASSERT(out->transition_count < SM_TRANSITIONS_MAX);
    struct sm_transition *transition = &out->transitions[out->transition_count];
    out->transition_count++;
    sm->counters.transitions++;
    sm_zero(transition, sizeof *transition);
    transition->kind = kind;
    transition->rank = SM_NONE;
    transition->index = SM_NONE;
    transition->text.bytes = "";
    if (half != NULL) {
        transition->room = half->room;
        transition->side = half->side;
        transition->generation = half->generation;
    }
    return transition;
}

/* What may leave although the journal is broken: the journal's own 503, and "nothing is in flight".
 */
static bool leaves_without_journal(uint32_t kind, const struct sm_half *half)
{
    return kind == SM_FX_SEND_DRAINED ||
           (half != NULL && half->by_journal != 0 &&
            (kind == SM_FX_SEND_STATUS || kind == SM_FX_SEND_ABORT || kind == SM_FX_TELL));
}

struct sm_effect *sm_order(struct sm *sm, struct sm_output *out, uint32_t kind,
                           const struct sm_half *half)
{
    SM_ASSERT(out->effect_count < SM_EFFECTS_MAX);
    struct sm_effect *effect = &out->effects[out->effect_count];
    out->effect_count++;
    sm->counters.effects++;
    sm_zero(effect, sizeof *effect);
    effect->kind = kind;
    effect->peer = SM_NONE;
    effect->rank = SM_NONE;
    effect->without_journal = sm->journal_failed != 0 && leaves_without_journal(kind, half);
    if (half != NULL) {
        effect->room = half->room;
        effect->side = half->side;
        effect->generation = half->generation;
    }
    return effect;
}

struct sm_text sm_output_text(struct sm_output *out, struct sm_text text)
{
    struct sm_text copy = {"", 0};
    if (text.size <= SM_OUTPUT_TEXT_BYTES - out->text_used) {
        sm_copy(out->text + out->text_used, text.bytes, text.size);
        copy.bytes = out->text + out->text_used;
        copy.size = text.size;
        out->text_used += text.size;
    }
    return copy;
}

bool sm_output_has_room(const struct sm_output *out)
{
    return SM_TRANSITIONS_MAX - out->transition_count >= SM_HALF_TRANSITIONS &&
           SM_EFFECTS_MAX - out->effect_count >= SM_HALF_EFFECTS;
}

void sm_ignore(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t reason)
{
    SM_ASSERT(reason > SM_IGNORED_NONE && reason < SM_IGNORED_COUNT);
    sm->counters.ignored[reason]++;
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_IGNORED, NULL);
    transition->room = input->room;
    transition->a = reason;
}

static bool is_command(uint32_t kind)
{
    return sm_input_is_command(kind);
}

void sm_refuse(struct sm *sm, struct sm_output *out, const struct sm_input *input, uint32_t refusal,
               struct sm_text text)
{
    SM_ASSERT(refusal > SM_REFUSAL_NONE && refusal < SM_REFUSAL_COUNT);
    sm->counters.refused[refusal]++;
    const struct sm_text kept = sm_output_text(out, sm_text_cut(text, SM_REASON_BYTES_MAX));
    struct sm_transition *transition = sm_emit(sm, out, SM_TR_REFUSED, NULL);
    transition->room = input->room;
    transition->a = refusal;
    transition->b = sm_refusal_http(refusal);
    transition->text = kept;
    if (!is_command(input->kind)) {
        return;
    }
    transition->rank = input->u.command.rank;
    transition->side = input->u.command.side;
    if (input->u.command.request != 0) {
        struct sm_effect *effect = sm_order(sm, out, SM_FX_REPLY, NULL);
        effect->room = input->room;
        effect->side = input->u.command.side;
        effect->rank = input->u.command.rank;
        effect->without_journal = sm->journal_failed != 0;
        effect->u.reply.request = input->u.command.request;
        effect->u.reply.refusal = refusal;
        effect->u.reply.http = sm_refusal_http(refusal);
        effect->u.reply.reason = kept;
    }
}

void sm_accept(struct sm *sm, struct sm_output *out, const struct sm_input *input)
{
    SM_ASSERT(is_command(input->kind));
    if (input->u.command.request != 0) {
        struct sm_effect *effect = sm_order(sm, out, SM_FX_REPLY, NULL);
        effect->room = input->room;
        effect->side = input->u.command.side;
        effect->rank = input->u.command.rank;
        effect->u.reply.request = input->u.command.request;
        effect->u.reply.reason.bytes = "";
    }
}

uint32_t sm_refusal_http(uint32_t refusal)
{
    static const uint16_t http[] = {[SM_REFUSAL_NONE] = 0,
#define SM_X(name, number, text, status) [SM_REFUSAL_##name] = (status),
                                    SM_REFUSAL_LIST(SM_X)
#undef SM_X
    };
    return refusal < SM_REFUSAL_COUNT ? http[refusal] : 500u;
}
