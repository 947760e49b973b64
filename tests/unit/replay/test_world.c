/* SPDX-License-Identifier: Apache-2.0 */
/* The same scenario and seed give the same entries, byte for byte, whatever ran there before. */
#include "scenario.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* A crash, a wiped journal, a full disk, lost messages, more rooms than the tables have. */
static const char hard[] = "scenario \"hard\"\n"
                           "node P prefill ranks=2 pool=64\n"
                           "node D decode ranks=4 pool=64\n"
                           "set rooms_max 6\n"
                           "at 0 drop P>D status count=2\n"
                           "at 1ms D open room=1 pages=0-7\n"
                           "at 1ms P open room=1\n"
                           "at 2ms D open room=2 pages=8-15\n"
                           "at 2ms P open room=2\n"
                           "at 3ms P send room=1 pages=0-7 last\n"
                           "at 3ms fabric P D hold room=2\n"
                           "at 4ms P send room=2 pages=8-15 last\n"
                           "at 50ms P disk full\n"
                           "at 60ms D.1 abort room=2 by=client http=499 reason=\"gone\"\n"
                           "at 400ms P disk ok\n"
                           "at 3s D crash after=commit\n"
                           "at 3s P open room=3\n"
                           "at 4s D restart\n"
                           "at 5s P crash\n"
                           "at 6s P restart wipe\n"
                           "at 8s D open room=1 pages=0-7\n"
                           "at 8s P open room=1\n"
                           "at 8s P send room=1 pages=0-7 last\n"
                           "end expect told D.0 room=1 succeeded\n"
                           "end expect quiescent\n";
/* Other nodes, more of everything, in frames. */
static const char other[] = "scenario \"other\"\n"
                            "node A prefill pool=2048 wire=sglang\n"
                            "node B prefill pool=512\n"
                            "node C decode pool=2048\n"
                            "at 0 C open room=9 pages=0-1999 from=A aux=1\n"
                            "at 0 A open room=9\n"
                            "at 1ms A send room=9 pages=0-1999 last\n"
                            "at 0 C open room=10 pages=2000-2040 from=B\n"
                            "at 0 B reject room=10 http=400 reason=\"too long\"\n"
                            "at 0 B open room=10\n"
                            "end expect quiescent\n";

static uint64_t run(struct scenario *scenario, struct world **io_world, const char *text,
                    uint64_t seed)
{
    struct scenario_error error;
    struct scenario_run run;
    struct status_detail detail;
    memset(&run, 0, sizeof run);
    run.seed = seed;
    run.world = *io_world;
    cr_assert(scenario_parse("test", text, strlen(text), scenario, &error), "%u: %s", error.line,
              error.text);
    cr_assert_eq(scenario_execute(scenario, &run, stdout, &detail), STATUS_OK);
    cr_assert_eq(run.failure_count, 0u, "%s: %s", run.failures[0].expected, run.failures[0].seen);
    cr_assert_gt(run.steps, 20u);
    *io_world = run.world;
    return run.journal_digest;
}

static uint64_t run_in_a_new_world(const char *text, uint64_t seed)
{
    struct scenario scenario = {.file = NULL};
    struct world *world = NULL;
    const uint64_t digest = run(&scenario, &world, text, seed);
    world_destroy(world);
    scenario_free(&scenario);
    return digest;
}

Test(world, what_ran_before_leaves_nothing_behind, .timeout = 60)
{
    struct scenario scenario = {.file = NULL};
    struct world *world = NULL;
    uint64_t last = 0;
    for (uint64_t seed = 0; seed < 8u; seed++) {
        const uint64_t digest = run(&scenario, &world, hard, seed);
        cr_assert_eq(digest, run_in_a_new_world(hard, seed), "seed %lu", (unsigned long)seed);
        cr_assert_neq(digest, last, "a seed changes nothing");
        last = digest;
        cr_assert_eq(run(&scenario, &world, other, seed), run_in_a_new_world(other, seed));
    }
    world_destroy(world);
    scenario_free(&scenario);
}
