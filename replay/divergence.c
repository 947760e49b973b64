/* SPDX-License-Identifier: Apache-2.0 */
/* Where replay left the journal's way: both sides, field by field. */
#include "stepper.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)64 << 20)

static bool text_same(struct sm_text a, struct sm_text b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.bytes, b.bytes, a.size) == 0);
}

static bool transition_same(const struct sm_transition *a, const struct sm_transition *b)
{
    return a->kind == b->kind && a->side == b->side && a->room == b->room &&
           a->generation == b->generation && a->rank == b->rank && a->index == b->index &&
           a->a == b->a && a->b == b->b && text_same(a->text, b->text);
}

static void row(const char *name, const char *recorded, const char *replayed)
{
    printf("  %-10s  %-28s  %s\n", name, recorded, replayed);
}

static void row_number(const char *name, uint64_t recorded, uint64_t replayed)
{
    char a[32] = "-";
    char b[32] = "-";
    if (recorded == replayed) {
        return;
    }
    if (recorded != SM_NONE) {
        (void)snprintf(a, sizeof a, "%" PRIu64, recorded);
    }
    if (replayed != SM_NONE) {
        (void)snprintf(b, sizeof b, "%" PRIu64, replayed);
    }
    row(name, a, b);
}

static void row_text(const char *name, struct sm_text recorded, struct sm_text replayed)
{
    char a[512];
    char b[512];
    if (text_same(recorded, replayed)) {
        return;
    }
    (void)text_clean(recorded.bytes, recorded.size, a, sizeof a);
    (void)text_clean(replayed.bytes, replayed.size, b, sizeof b);
    row(name, a[0] != '\0' ? a : "(none)", b[0] != '\0' ? b : "(none)");
}

/* Only the fields that differ; phases and outcomes by their names where both sides are of a kind.
 */
static void print_fields(const struct sm_transition *recorded, const struct sm_transition *replayed)
{
    const bool phases = recorded->kind == SM_TR_PHASE && replayed->kind == SM_TR_PHASE;
    const bool verdicts = recorded->kind == SM_TR_VERDICT && replayed->kind == SM_TR_VERDICT;
    row("field", "recorded", "replayed");
    if (recorded->kind != replayed->kind) {
        row("kind", sm_transition_name(recorded->kind), sm_transition_name(replayed->kind));
    }
    if (recorded->side != replayed->side) {
        row("side", sm_side_name(recorded->side), sm_side_name(replayed->side));
    }
    row_number("room", recorded->room, replayed->room);
    row_number("generation", recorded->generation, replayed->generation);
    row_number("rank", recorded->rank, replayed->rank);
    row_number("index", recorded->index, replayed->index);
    if (phases && recorded->a != replayed->a) {
        row("from", sm_phase_name((uint32_t)recorded->a), sm_phase_name((uint32_t)replayed->a));
    } else if (verdicts && recorded->a != replayed->a) {
        row("outcome", sm_outcome_name((uint32_t)recorded->a),
            sm_outcome_name((uint32_t)replayed->a));
    } else {
        row_number("a", recorded->a, replayed->a);
    }
    if (phases && recorded->b != replayed->b) {
        row("to", sm_phase_name((uint32_t)recorded->b), sm_phase_name((uint32_t)replayed->b));
    } else {
        row_number(verdicts ? "http" : "b", recorded->b, replayed->b);
    }
    row_text("text", recorded->text, replayed->text);
}

static void print_line(const char *mark, const struct sm_transition *t)
{
    char line[1024];
    (void)sm_describe_transition(t, line, sizeof line);
    (void)text_clean(line, strlen(line), line, sizeof line);
    printf("  %s %s\n", mark, line);
}

/* All of the step; marked where one side has what the other has not. Returns the first place. */
static uint32_t print_sides(const struct codec_entry *entry, const struct sm_output *output)
{
    const uint32_t most = entry->transition_count > output->transition_count
                              ? entry->transition_count
                              : output->transition_count;
    uint32_t first = most;
    for (uint32_t i = 0; i < most; i++) {
        const bool recorded = i < entry->transition_count;
        const bool replayed = i < output->transition_count;
        if (recorded && replayed &&
            transition_same(&entry->transitions[i], &output->transitions[i])) {
            print_line(" ", &entry->transitions[i]);
            continue;
        }
        first = first == most ? i : first;
        if (recorded) {
            print_line("- recorded", &entry->transitions[i]);
        }
        if (replayed) {
            print_line("+ replayed", &output->transitions[i]);
        }
    }
    return first;
}

static void print_digests(const struct codec_entry *entry, const struct sm_output *output)
{
    const uint64_t effects = codec_effects_digest(output);
    if (entry->digest != output->digest) {
        printf("  state after it    recorded %016" PRIx64 "  replayed %016" PRIx64 "\n",
               entry->digest, output->digest);
    }
    if (entry->effects != effects) {
        printf("  effects ordered   recorded %016" PRIx64 "  replayed %016" PRIx64 "\n",
               entry->effects, effects);
    }
}

static void print_entry(const struct codec_entry *entry, const struct journal_machine *machine)
{
    char line[4096];
    const struct sm_output *output = machine->output;
    (void)sm_describe_input(&entry->input, line, sizeof line);
    (void)text_clean(line, strlen(line), line, sizeof line);
    printf("  input %s\n", line);
    const uint32_t first = print_sides(entry, output);
    if (first < entry->transition_count && first < output->transition_count) {
        printf("what differs first, transition %" PRIu32 ":\n", first + 1u);
        print_fields(&entry->transitions[first], &output->transitions[first]);
    }
    print_digests(entry, output);
    for (uint32_t side = SM_PREFILL; side <= SM_DECODE && entry->input.room != 0; side++) {
        struct sm_half_view view;
        if (sm_half_find(machine->sm, entry->input.room, side, &view)) {
            (void)sm_describe_half(machine->sm, entry->input.room, side, line, sizeof line);
            for (char *c = line; *c != '\0'; c++) {
                *c = *c == '\n' ? ';' : *c;
            }
            (void)text_clean(line, strlen(line), line, sizeof line);
            printf("  replayed state   %s\n", line);
        }
    }
}

void divergence_print(struct journal *journal, const struct journal_machine *machine,
                      const struct journal_divergence *d)
{
    struct codec_arena arena;
    struct journal_record record;
    struct codec_entry entry;
    void *memory = malloc(ARENA_BYTES);
    codec_arena_init(&arena, memory, memory != NULL ? ARENA_BYTES : 0);
    printf("differs at entry %" PRIu64 ": %s\n", d->number, d->field);
    if (memory != NULL && machine->sm != NULL &&
        journal_read(journal, d->number, &record) == STATUS_OK &&
        codec_entry_unpack(record.payload, record.payload_size, &arena, &entry) == STATUS_OK) {
        print_entry(&entry, machine);
    }
    free(memory);
    journal_read_pause(journal);
}
