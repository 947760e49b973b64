/* SPDX-License-Identifier: Apache-2.0 */
/* Names, texts and classes of the one list of failures. */
#include "schemas/status.h"

#include <stdarg.h>
#include <stdio.h>

struct row {
    enum status status;
    enum status_class class;
    const char *name;
    const char *text;
};

static const struct row rows[] = {
#define STATUS_X(name, number, class, text) {STATUS_##name, STATUS_CLASS_##class, #name, text},
    STATUS_LIST(STATUS_X)
#undef STATUS_X
};

static const struct row *row_of(enum status status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == status) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *status_name(enum status status)
{
    const struct row *row = row_of(status);
    return row != NULL ? row->name : "UNKNOWN";
}

const char *status_text(enum status status)
{
    const struct row *row = row_of(status);
    return row != NULL ? row->text : "a status that this program does not know";
}

enum status_class status_class(enum status status)
{
    const struct row *row = row_of(status);
    return row != NULL ? row->class : STATUS_CLASS_PROCESS;
}

enum status status_fail(enum status status, struct status_detail *out_detail, int64_t foreign_code,
                        const char *format, ...)
{
    if (out_detail != NULL) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(out_detail->text, sizeof out_detail->text, format, arguments);
        va_end(arguments);
        out_detail->foreign_code = foreign_code;
    }
    return status;
}
