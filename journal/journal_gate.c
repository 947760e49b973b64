/* SPDX-License-Identifier: Apache-2.0 */
/* Effects in a ring of bytes, each with the runs and texts that it points to. */
#include "journal/journal_gate.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct slot {
    uint64_t step;  /* bytes to the next slot, a multiple of 16 */
    uint64_t state; /* SLOT_*; with step the 16 bytes that even the end of the ring has room for */
    uint64_t number;
    struct sm_effect effect;
};

enum { SLOT_WAITING = 0, SLOT_GONE = 1, SLOT_SKIP = 2 };

struct gate {
    unsigned char *bytes;
    size_t capacity;
    uint64_t head;
    uint64_t tail;
    uint64_t waiting;
    uint64_t without_journal; /* waiting slots that need not wait */
    bool open;
};

/* The most that one step can need: every effect, all runs, all texts, and reasons of messages. */
#define STEP_BYTES_MAX                                                    \
    (SM_EFFECTS_MAX * (sizeof(struct slot) + SM_REASON_BYTES_MAX + 64u) + \
     SM_OUTPUT_RUNS_MAX * sizeof(struct sm_run) + SM_OUTPUT_TEXT_BYTES)

enum status gate_create(size_t capacity_bytes, struct gate **out_gate,
                        struct status_detail *out_detail)
{
    struct gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL) {
        return status_fail(STATUS_NO_MEMORY, out_detail, 0, "no memory for the effect gate");
    }
    gate->capacity = 1u << 20;
    while (gate->capacity < capacity_bytes || gate->capacity < 2u * STEP_BYTES_MAX) {
        gate->capacity *= 2u;
    }
    gate->bytes = mmap(NULL, gate->capacity, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (gate->bytes == MAP_FAILED) {
        free(gate);
        return status_fail(STATUS_NO_MEMORY, out_detail, errno, "no memory for the effect gate");
    }
    *out_gate = gate;
    return STATUS_OK;
}

void gate_destroy(struct gate *gate)
{
    if (gate != NULL) {
        (void)munmap(gate->bytes, gate->capacity);
        free(gate);
    }
}

bool gate_has_room(const struct gate *gate)
{
    return gate->capacity - (gate->tail - gate->head) >= 2u * STEP_BYTES_MAX;
}

static struct slot *slot_at(const struct gate *gate, uint64_t position)
{
    return (struct slot *)(void *)(gate->bytes + (position & (gate->capacity - 1u)));
}

/* The borrowed parts of an effect, wherever they stand in the union. */
struct parts {
    struct sm_runs *runs[2];
    struct sm_text *texts[1];
};

static struct parts parts_of(struct sm_effect *effect)
{
    struct parts parts = {{NULL, NULL}, {NULL}};
    switch (effect->kind) {
    case SM_FX_WRITE:
        parts.runs[0] = &effect->u.write.from;
        parts.runs[1] = &effect->u.write.to;
        break;
    case SM_FX_PAGES_FREE:
        parts.runs[0] = &effect->u.pages;
        break;
    case SM_FX_TELL:
        parts.texts[0] = &effect->u.tell.cause.reason;
        break;
    case SM_FX_REPLY:
        parts.texts[0] = &effect->u.reply.reason;
        break;
    case SM_FX_FENCE:
    case SM_FX_STOPPED:
        break;
    default:
        parts.runs[0] = &effect->u.message.pages;
        parts.texts[0] = &effect->u.message.cause.reason;
        break;
    }
    return parts;
}

static size_t rounded(size_t size)
{
    return (size + 15u) / 16u * 16u;
}

/* Bytes behind the effect itself. */
static size_t parts_bytes(const struct sm_effect *effect)
{
    struct sm_effect copy = *effect;
    const struct parts parts = parts_of(&copy);
    size_t need = 0;
    for (size_t i = 0; i < 2; i++) {
        need += parts.runs[i] == NULL ? 0 : rounded(parts.runs[i]->count * sizeof(struct sm_run));
    }
    return need + (parts.texts[0] == NULL ? 0 : rounded(parts.texts[0]->size));
}

static void copy_parts(struct sm_effect *effect, unsigned char *at)
{
    const struct parts parts = parts_of(effect);
    for (size_t i = 0; i < 2; i++) {
        if (parts.runs[i] != NULL && parts.runs[i]->count > 0) {
            const size_t size = parts.runs[i]->count * sizeof(struct sm_run);
            memcpy(at, parts.runs[i]->at, size);
            parts.runs[i]->at = (const struct sm_run *)(const void *)at;
            at += rounded(size);
        }
    }
    if (parts.texts[0] != NULL && parts.texts[0]->size > 0) {
        memcpy(at, parts.texts[0]->bytes, parts.texts[0]->size);
        parts.texts[0]->bytes = (const char *)at;
    } else if (parts.texts[0] != NULL) {
        parts.texts[0]->bytes = "";
    }
}

size_t effect_copy_bytes(const struct sm_effect *effect)
{
    return rounded(sizeof *effect) + parts_bytes(effect);
}

struct sm_effect *effect_copy(const struct sm_effect *effect, void *memory)
{
    struct sm_effect *copy = memory;
    *copy = *effect;
    copy_parts(copy, (unsigned char *)memory + rounded(sizeof *effect));
    return copy;
}

static void push_one(struct gate *gate, uint64_t number, const struct sm_effect *effect)
{
    const size_t need = rounded(sizeof(struct slot)) + parts_bytes(effect);
    const uint64_t to_end = gate->capacity - (gate->tail & (gate->capacity - 1u));
    if (need > to_end) {
        /* Every position is a multiple of 16, so step and state always fit before the end. */
        struct slot *skip = slot_at(gate, gate->tail);
        skip->state = SLOT_SKIP;
        skip->step = to_end;
        gate->tail += to_end;
    }
    assert(gate->capacity - (gate->tail - gate->head) >= need);
    struct slot *slot = slot_at(gate, gate->tail);
    slot->number = number;
    slot->step = need;
    slot->state = SLOT_WAITING;
    slot->effect = *effect;
    copy_parts(&slot->effect, (unsigned char *)slot + rounded(sizeof *slot));
    gate->tail += need;
    gate->waiting++;
    gate->without_journal += effect->without_journal ? 1u : 0u;
}

void gate_push(struct gate *gate, uint64_t number, const struct sm_output *output)
{
    for (uint32_t i = 0; i < output->effect_count; i++) {
        push_one(gate, number, &output->effects[i]);
    }
}

static void trim(struct gate *gate)
{
    while (gate->head != gate->tail && slot_at(gate, gate->head)->state != SLOT_WAITING) {
        gate->head += slot_at(gate, gate->head)->step;
    }
    if (gate->head == gate->tail) {
        /* Empty: from the start again, where the memory is warm. */
        gate->head = 0;
        gate->tail = 0;
    }
}

static const struct sm_effect *take(struct gate *gate, struct slot *slot, uint64_t *out_number)
{
    slot->state = SLOT_GONE;
    gate->waiting--;
    gate->without_journal -= slot->effect.without_journal ? 1u : 0u;
    *out_number = slot->number;
    return &slot->effect;
}

const struct sm_effect *gate_pop(struct gate *gate, uint64_t durable, uint64_t *out_number)
{
    trim(gate);
    if (gate->head == gate->tail) {
        return NULL;
    }
    struct slot *first = slot_at(gate, gate->head);
    if (gate->open || first->number <= durable) {
        return take(gate, first, out_number);
    }
    if (gate->without_journal == 0) {
        return NULL;
    }
    for (uint64_t at = gate->head; at != gate->tail; at += slot_at(gate, at)->step) {
        struct slot *slot = slot_at(gate, at);
        if (slot->state == SLOT_WAITING && slot->effect.without_journal) {
            return take(gate, slot, out_number);
        }
    }
    return NULL;
}

void gate_drop_after(struct gate *gate, uint64_t number)
{
    for (uint64_t at = gate->head; at != gate->tail; at += slot_at(gate, at)->step) {
        struct slot *slot = slot_at(gate, at);
        if (slot->state == SLOT_WAITING && slot->number > number) {
            uint64_t ignored = 0;
            (void)take(gate, slot, &ignored);
        }
    }
}

void gate_open_for_all(struct gate *gate, bool open)
{
    gate->open = open;
}

uint64_t gate_waiting(const struct gate *gate)
{
    return gate->waiting;
}
