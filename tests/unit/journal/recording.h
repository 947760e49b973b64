/* SPDX-License-Identifier: Apache-2.0 */
/* A journal in a directory of its own, and a machine that is run into it. */
#ifndef TESTS_RECORDING_H
#define TESTS_RECORDING_H

#include "journal/journal.h"
#include "journal/journal_recover.h"
#include "pair.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char directory[64];

static inline void make_directory(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/stateroom-journal-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
}

static inline void remove_directory(void)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert_eq(system(command), 0);
}

static inline struct journal *open_journal(enum journal_mode mode, bool read_only)
{
    const struct journal_options options = {
        .path = directory, .mode = mode, .read_only = read_only};
    struct journal *journal = NULL;
    struct status_detail detail;
    const enum status status = journal_open(&options, &journal, &detail);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", detail.text);
        abort();
    }
    return journal;
}

struct recording {
    struct journal *journal;
    struct journal_machine machine;
    struct gate *gate;
    uint64_t next;
    uint32_t version; /* of the machine that it claims to be; 0: this program's */
};

static inline uint32_t recorded_version(const struct recording *r)
{
    return r->version != 0 ? r->version : SM_MACHINE_VERSION;
}

static inline void record_step(struct recording *r, struct sm_input *input, uint64_t falsify)
{
    static unsigned char bytes[1u << 20];
    struct codec_entry entry;
    size_t size = 0;
    memset(&entry, 0, sizeof entry);
    sm_step(r->machine.sm, input, r->machine.output);
    entry.input = *input;
    entry.transitions = r->machine.output->transitions;
    entry.transition_count = r->machine.output->transition_count;
    entry.digest = r->machine.output->digest;
    entry.effects = codec_effects_digest(r->machine.output);
    entry.bounds = r->machine.bounds;
    entry.machine_version = recorded_version(r);
    entry.program = (struct sm_text){"test", 4};
    if (falsify == r->next) {
        r->machine.output->transitions[0].a ^= 1u;
    }
    cr_assert_eq(codec_entry_pack(&entry, &r->machine.scratch, bytes, sizeof bytes, &size),
                 STATUS_OK);
    const struct journal_record record = {r->next++, input->room, 0, bytes, size, NULL, 0};
    cr_assert_eq(journal_append(r->journal, &record), STATUS_OK);
}

static inline bool put_item(void *context, uint32_t index, const unsigned char *bytes, size_t size)
{
    static unsigned char head_bytes[4096];
    struct recording *r = context;
    struct codec_snapshot head;
    if (index == 0 && r->version != 0) {
        codec_arena_reset(&r->machine.arena);
        cr_assert_eq(codec_snapshot_unpack(bytes, size, &r->machine.arena, &head), STATUS_OK);
        head.machine_version = r->version;
        cr_assert_eq(
            codec_snapshot_pack(&head, &r->machine.scratch, head_bytes, sizeof head_bytes, &size),
            STATUS_OK);
        bytes = head_bytes;
    }
    return journal_snapshot_put(r->journal, r->next - 1u, index, bytes, size) == STATUS_OK;
}

/* A new journal with a machine that has started and one engine. */
static inline void record_begin(struct recording *r, enum journal_mode mode, uint64_t falsify)
{
    const struct sm_bounds bounds = {64, 256, 128, 4096, 64, 256, 64, 8, 8192, 256};
    struct status_detail detail;
    struct sm_input input;
    const uint32_t version = r->version;
    memset(r, 0, sizeof *r);
    r->version = version;
    r->next = 1;
    r->journal = open_journal(mode, false);
    cr_assert_eq(journal_machine_open(&r->machine, &detail), STATUS_OK);
    cr_assert_eq(journal_machine_lay_out(&r->machine, &bounds, &detail), STATUS_OK);
    memset(&input, 0, sizeof input);
    input.kind = SM_IN_NODE_STARTED;
    input.time_ns = 1;
    input.u.node_started.node_id = 7;
    input.u.node_started.epoch = 1;
    input.u.node_started.name = (struct sm_text){"P", 1};
    sm_policy_default(&input.u.node_started.policy);
    record_step(r, &input, falsify);
    memset(&input, 0, sizeof input);
    input.kind = SM_IN_ENGINE_ATTACHED;
    input.time_ns = 2;
    input.u.engine.pages = 1024;
    record_step(r, &input, falsify);
}

/* The i-th of commands that open a prefill half, send, abort: room 1 + i / 3. */
static inline void record_command(struct recording *r, uint64_t i, uint64_t falsify)
{
    struct sm_run run = {(uint32_t)(i % 900u), 8};
    struct sm_input command = pair_command(i % 3u == 0   ? SM_IN_OPEN
                                           : i % 3u == 1 ? SM_IN_SEND
                                                         : SM_IN_ABORT,
                                           SM_PREFILL, 0, 1u + i / 3u);
    command.time_ns = 10u + i * 1000000u;
    command.u.command.request = i + 1u;
    command.u.command.pages = (struct sm_runs){&run, i % 3u == 1 ? 1u : 0u};
    record_step(r, &command, falsify);
}

static inline void record_snapshot(struct recording *r)
{
    struct status_detail detail;
    cr_assert_eq(journal_machine_pack(&r->machine, r->next - 1u, put_item, r, &detail), STATUS_OK);
}

/* A prefill half opened, sent, and aborted many times; a snapshot in the middle. */
static inline void record_run(struct recording *r, uint64_t falsify)
{
    record_begin(r, JOURNAL_NO_SYNC, falsify);
    for (uint64_t i = 0; i < 300u; i++) {
        record_command(r, i, falsify);
        if (i == 150u) {
            record_snapshot(r);
        }
    }
    cr_assert_eq(journal_commit(r->journal), STATUS_OK);
}

#endif
