/* SPDX-License-Identifier: Apache-2.0 */
/* usage: bench_node [DIRECTORY]: where journals are made; the current directory by default. */
#include "bench.h"
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>

#define ROOMS 20000u

static void one_room(struct pair *pair, uint64_t room)
{
    struct sm_run run = {(uint32_t)(room % 32u) * 16u, 16};
    struct sm_input open = pair_command(SM_IN_OPEN, SM_DECODE, 0, room);
    struct sm_input send = pair_command(SM_IN_SEND, SM_PREFILL, 0, room);
    struct sm_input input = pair_command(SM_IN_OPEN, SM_PREFILL, 0, room);
    open.u.command.pages = send.u.command.pages = (struct sm_runs){&run, 1};
    send.u.command.last = true;
    pair_step(pair, PAIR_D, &open);
    pair_step(pair, PAIR_P, &input);
    input.kind = SM_IN_ADMIT;
    pair_step(pair, PAIR_P, &input);
    pair_step(pair, PAIR_P, &send);
    pair->now_ns += 1000000;
    if (room % 64u == 0) {
        pair_pass(pair, 1000000);
    }
}

/* The pair's queue between the machines (a calloc a message) is part of the figure. */
static void bench_core(void)
{
    double rooms[BENCH_ROUNDS];
    double steps[BENCH_ROUNDS];
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++) {
        struct pair pair;
        pair_open(&pair, 1, 1);
        pair.unchecked = true;
        const uint64_t before = pair.steps;
        const uint64_t start = bench_now_ns();
        for (uint64_t room = 1; room <= ROOMS; room++) {
            one_room(&pair, room);
        }
        const double seconds = (double)(bench_now_ns() - start) / 1e9;
        if (pair_phase(&pair, PAIR_D, ROOMS) != SM_PHASE_CLEARED) {
            bench_fail("core", "the last room is not cleared");
        }
        rooms[round] = ROOMS / seconds;
        steps[round] = (double)(pair.steps - before) / seconds;
        pair_close(&pair);
    }
    printf("core     %10.0f rooms/s through both machines, %.0f ns a step\n", bench_median(rooms),
           1e9 / bench_median(steps));
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("median of %u rounds; a ratio is against the baseline in the same round\n",
           BENCH_ROUNDS);
    bench_core();
    bench_journal(argc > 1 ? argv[1] : ".");
    return 0;
}
