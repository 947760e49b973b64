/* SPDX-License-Identifier: Apache-2.0 */
/* Any text is a scenario or an error with a line; what is one runs without a crash. */
#include "scenario.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct scenario scenario = {.file = NULL};
    struct scenario_error error;
    const bool well = scenario_parse("fuzz", (const char *)data, size, &scenario, &error);
    if (!well && (error.line == 0 || error.column == 0 || error.text[0] == '\0')) {
        abort();
    }
    if (well && scenario.statement_count < 64u) {
        struct scenario_run run;
        struct status_detail detail;
        memset(&run, 0, sizeof run);
        /* Times of years would only pass ticks. */
        scenario.end_ns = scenario.end_ns == 0 || scenario.end_ns > UINT64_C(100000000000)
                              ? UINT64_C(100000000000)
                              : scenario.end_ns;
        (void)scenario_execute(&scenario, &run, stdout, &detail);
        world_destroy(run.world);
    }
    scenario_free(&scenario);
    return 0;
}
