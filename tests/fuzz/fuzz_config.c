/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration from whatever bytes: faults or values, never a crash; values print and read back.
 */
#include "coordinator/config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PRINTED_BYTES ((size_t)1 << 19)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config config;
    static struct config again;
    static struct config_faults faults;
    static char text[PRINTED_BYTES];
    faults.count = 0;
    faults.more = 0;
    config_default(&config);
    const bool well =
        config_read_text(&config, "fuzz", (const char *)data, size, &faults) == STATUS_OK;
    if (well != (faults.count == 0)) {
        abort();
    }
    if (well && config_check(&config, &faults) == STATUS_OK) {
        FILE *out = fmemopen(text, sizeof text, "w");
        config_print(&config, out, CONFIG_PRINT_VALUES);
        const long printed = ftell(out);
        (void)fclose(out);
        config_default(&again);
        if (config_read_text(&again, "again", text, (size_t)printed, &faults) != STATUS_OK) {
            abort();
        }
    }
    return 0;
}
