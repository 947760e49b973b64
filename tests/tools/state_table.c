/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints docs/state-machine.md from the tables that the machine itself runs by: which phases follow
 * each other, what each input does in each phase, and the reasons for which inputs are ignored or
 * refused. usage: state_table > docs/state-machine.md
 */
#include "statemachine/sm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sides[] = {SM_PREFILL, SM_DECODE};

static void print_diagram(uint32_t side)
{
    printf("```mermaid\nstateDiagram-v2\n    direction LR\n");
    for (uint32_t from = 0; from < SM_PHASE_COUNT; from++) {
        for (uint32_t to = 0; to < SM_PHASE_COUNT; to++) {
            if (sm_phase_may_follow(side, from, to)) {
                printf("    %s --> %s\n", from == SM_PHASE_ABSENT ? "[*]" : sm_phase_name(from),
                       sm_phase_name(to));
            }
        }
    }
    printf("    cleared --> [*]\n```\n\n");
    for (uint32_t from = 0; from < SM_PHASE_COUNT; from++) {
        bool first = true;
        for (uint32_t to = 0; to < SM_PHASE_COUNT; to++) {
            if (sm_phase_may_follow(side, from, to)) {
                printf(first ? "    %-18s -> %s" : "%.0s | %s", sm_phase_name(from),
                       sm_phase_name(to));
                first = false;
            }
        }
        printf(first ? "" : "\n");
    }
    printf("\n");
}

/* The phases of a column behave alike; the page would lie if they did not. */
static const char *cell(uint32_t side, uint32_t input, uint32_t first, uint32_t last)
{
    const char *name = sm_table_handler(side, first, input);
    for (uint32_t phase = first; phase <= last; phase++) {
        if (strcmp(sm_table_handler(side, phase, input), name) != 0) {
            fprintf(stderr, "%s differs between the phases of one column: give them columns\n",
                    sm_input_name(input));
            exit(1);
        }
    }
    if (name[0] == '\0') {
        fprintf(stderr, "%s has no cell\n", sm_input_name(input));
        exit(1);
    }
    return name;
}

static void print_table(uint32_t side)
{
    printf("| input | absent | live | over | cleared |\n| --- | --- | --- | --- | --- |\n");
    for (uint32_t input = SM_IN_OPEN; input < SM_IN_COUNT; input++) {
        printf("| %s | %s | %s | %s | %s |\n", sm_input_name(input),
               cell(side, input, SM_PHASE_ABSENT, SM_PHASE_ABSENT),
               cell(side, input, SM_PHASE_ALLOCATED, SM_PHASE_TRANSFERRING),
               cell(side, input, SM_PHASE_SUCCEEDED, SM_PHASE_NOTIFIED),
               cell(side, input, SM_PHASE_CLEARED, SM_PHASE_CLEARED));
    }
    printf("\n");
}

static void print_inputs(void)
{
    printf(
        "## Inputs about the node\n\nThey belong to no phase of a room: the whole table of rooms "
        "is looked at where it matters.\n\n");
    for (uint32_t input = 1; input < SM_IN_OPEN; input++) {
        printf("- %s\n", sm_input_name(input));
    }
    printf("\n");
}

static void print_names(const char *title, const char *text, uint32_t count,
                        const char *(*name)(uint32_t))
{
    printf("## %s\n\n%s\n\n", title, text);
    for (uint32_t i = 1; i < count; i++) {
        if (strcmp(name(i), "none") != 0) {
            printf("- %s\n", name(i));
        }
    }
    printf("\n");
}

int main(void)
{
    printf(
        "<!-- Made by tests/tools/state_table.c from the tables of statemachine/: do not edit. "
        "-->\n# The state machine\n\n"
        "A half goes through its phases in one direction. The diagrams show every change that "
        "the machine asserts to be possible; the tables what each input does, by the phase that "
        "the half is in: *live* is allocated, ready or transferring; *over* is succeeded, "
        "failed, pre_queue_terminal or notified; *cleared* is a tombstone. A cell is the name of "
        "a handler, a refusal that the engine is answered with, or the reason for which the "
        "input is ignored and counted. No cell is empty.\n\n");
    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
        printf("## %s\n\n", sides[i] == SM_PREFILL ? "The prefill half" : "The decode half");
        print_diagram(sides[i]);
        print_table(sides[i]);
    }
    print_inputs();
    print_names("Refusals", "An engine's command is answered with one of these and a status.",
                SM_REFUSAL_COUNT, sm_refusal_name);
    print_names(
        "Ignored inputs",
        "An input that changes nothing is an entry all the same, with one of these reasons.",
        SM_IGNORED_COUNT, sm_ignored_name);
    return 0;
}
