/* SPDX-License-Identifier: Apache-2.0 */
/* export, import: a journal as one file, and back. */
#include "carry.h"

#include "schemas/text.h"

#include <inttypes.h>
#include <string.h>

/* ---- export
 * -------------------------------------------------------------------------------------------- */

struct exporting {
    struct journal *journal;
    const char *to;
    uint64_t from;
    uint64_t until;
    struct journal_copied copied;
    uint64_t bytes;
    char node[SM_NAME_BYTES_MAX + 1u];
};

/* --from and --until, within what the journal has. */
static int find_range(const struct cli_values *values, struct exporting *e)
{
    struct journal_identity identity;
    const enum status status = journal_identity(e->journal, &identity);
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s", journal_detail(e->journal)->text);
    }
    const uint64_t first = identity.first != 0 ? identity.first : 1u;
    e->from = cli_number(values, "from", first);
    e->until = cli_number(values, "until", identity.last);
    const bool empty = identity.last == 0 && !cli_given(values, "from") && e->until == 0;
    if (!empty && (e->from < first || e->until > identity.last || e->from > e->until)) {
        return cli_fail(EXIT_NOT_THERE,
                        "the journal has entries %" PRIu64 " to %" PRIu64 ", not %" PRIu64
                        " to %" PRIu64,
                        identity.first, identity.last, e->from, e->until);
    }
    return EXIT_WELL;
}

static enum status write_bundle(struct exporting *e, struct status_detail *out_detail)
{
    struct carry_head head;
    struct journal_sink sink;
    struct bundle_writer *writer = NULL;
    TRY(carry_head_make(e->journal, e->from, &head, out_detail));
    (void)snprintf(e->node, sizeof e->node, "%s", head.node);
    enum status status = bundle_create(e->to, &head.head, &writer, out_detail);
    if (status == STATUS_OK) {
        status = journal_sink_open(&sink, NULL, writer, &head.head, out_detail);
        if (status == STATUS_OK) {
            status =
                carry_range(e->journal, e->from, e->until, &sink, NULL, &e->copied, out_detail);
            journal_sink_close(&sink);
        }
        if (status == STATUS_OK) {
            status = bundle_finish(writer, &e->bytes, out_detail);
        } else {
            bundle_abandon(writer);
        }
    }
    carry_head_free(&head);
    return status;
}

static void say_exported(const struct cli_values *values, const struct exporting *e)
{
    char bundle_size[32];
    char payload_size[32];
    carry_bytes_text(e->bytes, bundle_size, sizeof bundle_size);
    carry_bytes_text(e->copied.bytes, payload_size, sizeof payload_size);
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "bundle",
                                 cli_json_text(e->to), "node", cli_json_text(e->node), "first",
                                 (json_int_t)e->from, "last", (json_int_t)e->until, "entries",
                                 (json_int_t)e->copied.entries, "bytes", (json_int_t)e->bytes,
                                 "payload_bytes", (json_int_t)e->copied.bytes));
        return;
    }
    fprintf(strcmp(e->to, "-") == 0 ? stderr : stdout,
            "%s: node %s, entries %" PRIu64 " to %" PRIu64 ", %s (entries alone: %s)\n", e->to,
            e->node, e->from, e->until, bundle_size, payload_size);
}

int cmd_export(const struct cli_values *values)
{
    struct exporting e;
    struct status_detail detail = {"", 0};
    int code = EXIT_WELL;
    memset(&e, 0, sizeof e);
    e.to = cli_text(values, "output", NULL);
    if (e.to == NULL) {
        return cli_fail(EXIT_WRONG_USAGE, "export: name the file to be written with -o FILE");
    }
    if (strcmp(e.to, "-") == 0 && cli_given(values, "json")) {
        return cli_fail(EXIT_WRONG_USAGE, "export: --json and the bundle cannot share the output");
    }
    e.journal = cli_command_journal(values, 0, &code);
    if (e.journal == NULL) {
        return code;
    }
    code = find_range(values, &e);
    const enum status status = code == EXIT_WELL ? write_bundle(&e, &detail) : STATUS_OK;
    if (status != STATUS_OK) {
        code = cli_fail(cli_code(status), "%s", detail.text);
    } else if (code == EXIT_WELL) {
        say_exported(values, &e);
    }
    journal_close(e.journal);
    return code;
}

/* ---- import
 * -------------------------------------------------------------------------------------------- */

int cmd_import(const struct cli_values *values)
{
    struct journal_copied copied;
    struct status_detail detail = {"", 0};
    int code = EXIT_WELL;
    const char *to = values->words[1];
    struct journal *journal = cli_open_journal(values->words[0], &code);
    if (journal == NULL) {
        return code;
    }
    const enum status status = carry_into_directory(journal, to, 0, NULL, false, &copied, &detail);
    journal_close(journal);
    if (status != STATUS_OK) {
        return cli_fail(cli_code(status), "%s", detail.text);
    }
    if (cli_given(values, "json")) {
        cli_print_json(json_pack("{s:o, s:I, s:I}", "journal", cli_json_text(to), "entries",
                                 (json_int_t)copied.entries, "last", (json_int_t)copied.last));
    } else {
        printf("%s: %" PRIu64 " entries, up to %" PRIu64 "\n", to, copied.entries, copied.last);
    }
    return EXIT_WELL;
}
