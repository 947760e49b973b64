/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that are verified, over real providers: what is right goes through, in as many questions as
 * it takes; a byte that is not the one that was sent fails its write alone. Bytes are changed while
 * a target that stands still has not taken them yet.
 */
#include "data_world.h"
#include "fabric/check.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define MANY_RUNS 600u

/* ---- notes
 * -----------------------------------------------------------------------------------------------
 */

Test(data_check, a_note_is_read_as_it_was_written_and_nothing_else_is)
{
    static struct check_note note;
    static struct check_note again;
    static unsigned char bytes[CHECK_NOTE_BYTES + 1u];
    memset(&note, 0, sizeof note);
    note.kind = CHECK_QUESTION;
    note.id = UINT64_C(0x0102030405060708);
    note.from_rank = 3;
    note.to_rank = 5;
    note.slot_from = 7;
    note.slot_to = SM_AUX_NONE;
    note.piece_bytes = UINT64_C(1) << 40;
    note.slot_digest = 99;
    note.span_count = CHECK_SPANS_MAX;
    for (uint32_t i = 0; i < CHECK_SPANS_MAX; i++) {
        note.spans[i] = (struct plan_span){i * 3u, i * 5u, i + 1u};
        note.digests[i] = UINT64_MAX - i;
    }
    const size_t size = check_write(&note, bytes);
    cr_assert_leq(size, CHECK_NOTE_BYTES);
    cr_assert(check_read(bytes, size, &again));
    cr_assert_eq(memcmp(&note, &again, sizeof note), 0);
    for (size_t other = 0; other <= CHECK_NOTE_BYTES; other++) {
        cr_assert(other == size || !check_read(bytes, other, &again), "%zu bytes are taken", other);
    }
    note.kind = CHECK_ANSWER;
    note.verdict = CHECK_DIFFERS;
    note.at = 17;
    note.span_count = 0;
    const size_t short_size = check_write(&note, bytes);
    cr_assert(check_read(bytes, short_size, &again));
    cr_assert(again.verdict == CHECK_DIFFERS && again.at == 17u && again.id == note.id);
    cr_assert_not(check_read(bytes, short_size + 1u, &again));
    bytes[16] = 9; /* no such verdict */
    cr_assert_not(check_read(bytes, short_size, &again));
    bytes[0] ^= 1u;
    cr_assert_not(check_read(bytes, short_size, &again));
}

/* ---- what is right
 * -------------------------------------------------------------------------------------------- */

static void give_verified(struct data_world *w, bool slot)
{
    struct sm_run runs[MANY_RUNS];
    for (uint32_t i = 0; i < MANY_RUNS; i++) {
        runs[i] = (struct sm_run){i * 7u % WORLD_PAGES, 1};
    }
    struct data_write write = world_order(w, 0, 1);
    write.from = (struct sm_runs){runs, MANY_RUNS};
    write.to = (struct sm_runs){runs, MANY_RUNS};
    write.aux_from = slot ? 1u : SM_AUX_NONE;
    write.aux_to = slot ? 3u : SM_AUX_NONE;
    (void)world_give(w, &write);
}

static void goes_through(const char *provider)
{
    struct data_world w;
    const struct world_shape shape = {provider, 1, 1, 1, world_geometry, 0, true};
    world_set_up(&w, &shape);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    for (uint32_t i = 0; i < 8; i++) {
        give_verified(&w, i % 2u == 0);
    }
    struct data_write nothing = world_order(&w, 0, 1);
    nothing.from.count = 0;
    nothing.to.count = 0;
    (void)world_give(&w, &nothing);
    nothing = world_order(&w, 0, 1);
    nothing.from.count = 0;
    nothing.to.count = 0;
    nothing.aux_from = 0;
    nothing.aux_to = 2; /* the slot alone */
    (void)world_give(&w, &nothing);
    world_look_until(&w, w.ordered);
    for (uint32_t id = 0; id < w.ordered; id++) {
        cr_assert_eq(w.results[id].code, 0, "%s: write %u: %s", provider, id, w.results[id].text);
    }
    world_tear_down(&w);
}

Test(data_check, what_is_right_goes_through_over_tcp, .timeout = 240)
{
    goes_through("tcp");
}

Test(data_check, what_is_right_goes_through_over_shm, .timeout = 240)
{
    goes_through("shm");
}

/* Heads in parts: the digests are of the places that this pair of ranks shares. */
Test(data_check, ranks_of_different_tp_sizes_agree, .timeout = 240)
{
    struct data_world w;
    const struct world_shape shape = {"tcp", 1, 2, 4, {4, 2, 4, 16, 2, 1, 0, 0, 0}, 0, true};
    world_set_up(&w, &shape);
    for (uint32_t from = 0; from < 2; from++) {
        for (uint32_t to = 0; to < 4; to++) {
            struct data_write write = world_order(&w, 0, 1);
            write.from_rank = from;
            write.to_rank = to;
            (void)world_give(&w, &write);
        }
    }
    world_look_until(&w, w.ordered);
    for (uint32_t id = 0; id < w.ordered; id++) {
        cr_assert_eq(w.results[id].code, 0, "%s", w.results[id].text);
    }
    world_tear_down(&w);
}

/* ---- what is not
 * -------------------------------------------------------------------------------------------- */

/* 16 MiB a region: 16 operations of 1 MiB are the window, more than sockets hold. */
static const struct sm_geometry large = {64, 2, 16, 256, 2, 1, 0, 0, 0};

/*
 * The last byte of the first region changes after it was posted, and before the target has it. Who
 * wants the writes verified: the writer, or only the target.
 */
static void a_byte_changes(const char *provider, bool writer_wants)
{
    struct data_world w;
    struct status_detail detail;
    struct data_counters counters;
    const struct world_shape shape = {provider, 2, 1, 1, large, 1u << 20, writer_wants};
    world_set_up(&w, &shape);
    struct data_endpoint *local = &w.peers[0].desk->local;
    local->verify = true;
    cr_assert_eq(data_link_connect(w.data, 0, 1, 1, local, &detail), STATUS_OK, "%s", detail.text);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    (void)world_ask(&w, 0, ERRAND_HOLD);
    const struct data_write write = world_order(&w, 0, 1);
    const uint32_t bad = world_give(&w, &write);
    world_look_for(&w, 200);
    w.source[0][w.layout.region_bytes - 1u] ^= 0x10u;
    (void)world_ask(&w, 0, ERRAND_NONE);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.results[bad].code, -EBADMSG, "%s: %s", provider, w.results[bad].text);
    cr_assert_not_null(strstr(w.results[bad].text, "verify_pages: pages 0 to 63"), "%s",
                       w.results[bad].text);
    data_counters(w.data, &counters);
    cr_assert_eq(counters.mismatches, 1u);
    cr_assert_eq(counters.failures, 0u);
    /* The write alone: the connection goes on, and what is sent now is what is there. */
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_check_arrives(&w, 1, 1, w.peers[1].memory[0]);
    world_tear_down(&w);
}

Test(data_check, a_byte_that_changes_fails_its_write_over_tcp, .timeout = 240)
{
    a_byte_changes("tcp", true);
}

Test(data_check, a_byte_that_changes_fails_its_write_over_shm, .timeout = 240)
{
    a_byte_changes("shm", true);
}

Test(data_check, the_target_alone_can_want_it, .timeout = 240)
{
    a_byte_changes("shm", false);
}

/* The same without it: the write is reported well. So it is the check that sees the byte. */
Test(data_check, without_it_nobody_looks, .timeout = 240)
{
    struct data_world w;
    const struct world_shape shape = {"shm", 1, 1, 1, large, 1u << 20, false};
    world_set_up(&w, &shape);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    (void)world_ask(&w, 0, ERRAND_HOLD);
    world_give_many(&w, 0, 1, 1);
    world_look_for(&w, 200);
    w.source[0][w.layout.region_bytes - 1u] ^= 0x10u;
    (void)world_ask(&w, 0, ERRAND_NONE);
    world_look_until(&w, w.ordered);
    cr_assert_eq(w.well, w.ordered, "%s", w.results[1].text);
    world_tear_down(&w);
}

/* The pool goes while it is to be read: the write fails in words, and the pool can go. */
Test(data_check, a_pool_that_goes_is_not_the_same, .timeout = 240)
{
    struct data_world w;
    const struct world_shape shape = {"tcp", 1, 1, 1, large, 1u << 20, true};
    world_set_up(&w, &shape);
    world_check_arrives(&w, 0, 1, w.peers[0].memory[0]);
    world_give_many(&w, 0, 1, 4);
    world_look_until_moved(&w, w.layout.bytes + w.layout.bytes / 2u);
    w.peers[0].desk->rank = 0;
    (void)world_ask(&w, 0, ERRAND_POOL_RETIRE);
    world_look_until(&w, w.ordered);
    cr_assert_lt(w.well, w.ordered);
    cr_assert_not_null(strstr(w.results[w.ordered - 1u].text, "no such pool"), "%s",
                       w.results[w.ordered - 1u].text);
    (void)world_ask(&w, 0, ERRAND_POOL_QUIET);
    const uint64_t until = world_now_ms() + WORLD_WAIT_MS;
    while (atomic_load(&w.peers[0].desk->gone) == 0) {
        world_look(&w);
        cr_assert_lt(world_now_ms(), until, "the pool is not let go");
    }
    world_tear_down(&w);
}
