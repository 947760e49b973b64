/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one list of failures: disk, network, device, peer. What the domain decides (refusals,
 * verdicts) is data in the journal and not here; what is a bug of ours is an assertion and not here
 * either.
 *
 * Layer: every folder outside the core may use it.
 *
 * The class says how much is broken, and the caller reacts to the class:
 *   CALL     this request only; report it and go on
 *   PEER     this peer or engine; drop its connection
 *   STORE    the journal cannot be written; refuse new rooms, stay readable
 *   PROCESS  nothing can go on; exit with the text
 */
#ifndef SCHEMAS_STATUS_H
#define SCHEMAS_STATUS_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, number, CLASS, "text"): numbers are fixed for ever; a block of one hundred a folder. */
#define STATUS_LIST(X)                                                              \
    X(OK, 0, CALL, "ok")                                                            \
    X(AGAIN, -1, CALL, "try again: no room right now")                              \
    X(INVALID, -2, CALL, "the request makes no sense")                              \
    X(TOO_LARGE, -3, CALL, "larger than its bound")                                 \
    X(NOT_FOUND, -4, CALL, "not found")                                             \
    X(EXISTS, -5, CALL, "exists already")                                           \
    X(MALFORMED, -6, CALL, "the bytes do not parse")                                \
    X(NO_MEMORY, -7, PROCESS, "out of memory")                                      \
    X(SYSTEM, -8, PROCESS, "the operating system refused")                          \
    X(CLOSED, -9, CALL, "closed")                                                   \
    X(TIMEOUT, -10, CALL, "no answer in time")                                      \
    X(UNSUPPORTED, -11, CALL, "not supported here")                                 \
    X(END, -12, CALL, "nothing more")                                               \
    X(JOURNAL_FULL, -100, STORE, "no space for the journal")                        \
    X(JOURNAL_IO, -101, STORE, "the journal cannot be read or written")             \
    X(JOURNAL_DAMAGED, -102, PROCESS, "the journal is damaged")                     \
    X(JOURNAL_LOCKED, -103, PROCESS, "another process has the journal")             \
    X(JOURNAL_VERSION, -104, PROCESS, "the journal was written by another version") \
    X(JOURNAL_DIVERGED, -105, PROCESS, "replay and journal differ")                 \
    X(FABRIC_PROVIDER, -200, PROCESS, "no libfabric provider fits")                 \
    X(FABRIC_PEER, -201, PEER, "the peer cannot be written to")                     \
    X(FABRIC_WRITE, -202, CALL, "a write failed")                                   \
    X(FABRIC_FENCED, -203, PEER, "the peer is fenced")                              \
    X(FABRIC_BIND, -204, PROCESS, "the address cannot be bound")                    \
    X(FABRIC_POOL, -205, CALL, "the pool cannot be used")                           \
    X(GPU_DEVICE, -300, PROCESS, "the device failed")                               \
    X(CONFIG, -400, PROCESS, "the configuration is wrong")                          \
    X(ENGINE_LOST, -500, PEER, "the engine is gone")                                \
    X(NODE_LOST, -501, PEER, "the node is gone")

enum status {
#define STATUS_X(name, number, class, text) STATUS_##name = (number),
    STATUS_LIST(STATUS_X)
#undef STATUS_X
};

enum status_class {
    STATUS_CLASS_CALL,
    STATUS_CLASS_PEER,
    STATUS_CLASS_STORE,
    STATUS_CLASS_PROCESS
};

#define STATUS_MUST_CHECK __attribute__((warn_unused_result))

/* Room for the detail of one failure: which thing, which operation, the foreign code's own words.
 */
#define STATUS_DETAIL_BYTES 320u
struct status_detail {
    char text[STATUS_DETAIL_BYTES]; /* zero-terminated; "" when nothing failed */
    int64_t foreign_code;           /* errno, MDB_*, -FI_E*; 0 without one */
};

const char *status_name(enum status status);
const char *status_text(enum status status);
enum status_class status_class(enum status status);

/* Writes the detail (printf format) and returns `status`, so that a failure is one statement. */
enum status status_fail(enum status status, struct status_detail *out_detail, int64_t foreign_code,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Returns the status of an expression that failed; the only control flow hidden in a macro. */
#define TRY(expression)                              \
    do {                                             \
        const enum status try_status = (expression); \
        if (try_status != STATUS_OK) {               \
            return try_status;                       \
        }                                            \
    } while (0)

#endif
