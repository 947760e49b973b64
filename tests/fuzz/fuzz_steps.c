/* SPDX-License-Identifier: Apache-2.0 */
/* Any line is a command of a walk or an error that can be shown. */
#include "stepper.h"

#include "schemas/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[STEPS_LINE_MAX];
    char error[256];
    struct steps_command command;
    const size_t bytes = size < sizeof line ? size : sizeof line - 1u;
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    const bool well = steps_parse(line, &command, error, sizeof error);
    if (well != (error[0] == '\0')) {
        abort();
    }
    for (size_t at = 0; error[at] != '\0';) {
        const size_t character = text_character(error + at, strlen(error + at));
        if (character == 0 || !text_printable(error + at, character)) {
            abort();
        }
        at += character;
    }
    if (well && (command.verb > STEPS_QUIT || command.condition.side >= SM_SIDE_COUNT ||
                 (command.condition.rank != SM_NONE && command.condition.rank >= SM_RANKS_MAX))) {
        abort();
    }
    return 0;
}
