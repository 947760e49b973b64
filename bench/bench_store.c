/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal beside what could stand in its place. usage: bench_store [DIRECTORY [ENTRIES]]:
 * journals are made in DIRECTORY (default: here), the one that is read has ENTRIES (default a
 * million), and is left there when BENCH_KEEP is set.
 */
#include "bench_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number_or(const char *text, uint64_t preset)
{
    char *end = NULL;
    const uint64_t number = text != NULL ? strtoull(text, &end, 10) : preset;
    if (number < 1000u || (end != NULL && *end != '\0')) {
        bench_fail(text, "is no number of entries (at least 1000)");
    }
    return number;
}

int main(int argc, char **argv)
{
    char path[400];
    char command[512];
    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)snprintf(path, sizeof path, "%s/bench-store-XXXXXX", argc > 1 ? argv[1] : ".");
    const uint64_t entries = number_or(argc > 2 ? argv[2] : NULL, 1000000u);
    if (mkdtemp(path) == NULL) {
        bench_fail(path, "cannot be made");
    }
    bench_store_write(path);
    bench_store_read(path, entries);
    if (getenv("BENCH_KEEP") != NULL) {
        printf("kept: %s/read\n", path);
        return 0;
    }
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) {
        bench_fail(path, "cannot be removed");
    }
    return 0;
}
