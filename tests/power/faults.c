/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failing calls: the same work over and over, in which the n-th write, flush, open, mmap, rename,
 * ... fails, for n = 0, 1, 2 and so on until none is left to fail; and on a file system with n free
 * pages, for n = 0, 1, 2 and so on until the work fits. No run may crash. Each failure must have a
 * status that fits its cause, and a text that names the journal; the batch must be in the journal
 * as a whole or not at all; when the cause is gone the next attempt must succeed without opening
 * the journal again. In the end everything acknowledged is there, also in what a power loss at some
 * point would have left.
 *
 * Then a file system that can only be read: said so, and no loss.
 *
 *     faults [--call NAME] [--nth N] [--images N] [--stride N]
 *
 * --stride N tries all n up to 16, and then every N-th.
 *
 * Exit status: 0, or 1 with the run that failed and how to repeat it.
 */
#include "disk.h"
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FOR_EVER UINT32_MAX
#define STEPS 14u
#define BATCH 3u
#define SEGMENT_BYTES (160u << 10)
#define MAP_BYTES_FIRST (256u << 10) /* so that it must grow */
#define FULL_BYTES "1500k"
enum { PASSED = 0, FAILED = 1, UNTOUCHED = 3 /* passed, and nothing failed */ };

static char root[64];
static char left_over[80];
static char journal_path[80];
static char image_path[96];
static char filler_path[80];
static uint32_t stride = 1;

struct trial {
    enum disk_call call; /* DISK_CALLS: a file system with `nth` free pages */
    uint32_t nth;
    int error;
    uint32_t times;
    bool thread; /* through the journal thread */
    uint32_t images;
};

struct run {
    const struct trial *trial;
    struct journal *journal;
    uint64_t next;
    uint64_t acknowledged;
    uint32_t failures;
    bool relieved;
};

static void describe(const struct trial *trial, char *out, size_t size)
{
    if (trial->call == DISK_CALLS) {
        (void)snprintf(out, size, "%" PRIu32 " free pages%s", trial->nth,
                       trial->thread ? ", through the thread" : "");
    } else {
        (void)snprintf(out, size, "%s %" PRIu32 " fails with %s%s%s", disk_call_name(trial->call),
                       trial->nth, trial->error == 0 ? "half of it done" : strerror(trial->error),
                       trial->times == 1 ? "" : " and all after it",
                       trial->thread ? ", through the thread" : "");
    }
}

static void die(const struct run *run, const char *what, const char *text)
{
    char trial[160];
    describe(run->trial, trial, sizeof trial);
    printf("faults: %s: %s: %s; again: faults --call %s --nth %" PRIu32 "\n", trial, what, text,
           run->trial->call == DISK_CALLS ? "full" : disk_call_name(run->trial->call),
           run->trial->nth);
    (void)fflush(stdout);
    _exit(FAILED);
}

/* ---- what is to blame, and its end
 * ---------------------------------------------------------------------------------- */

static void relieve(struct run *run)
{
    run->relieved = true;
    disk_fail(DISK_CALLS, 0, 0, 0);
    (void)remove(filler_path);
}

/* Looks at a failure, and ends its cause when it has been seen often enough. */
static void failed(struct run *run, enum status status, const struct status_detail *detail)
{
    const struct trial *trial = run->trial;
    const bool full = trial->call == DISK_CALLS || trial->error == ENOSPC;
    const enum status fitting = full ? STATUS_JOURNAL_FULL : STATUS_JOURNAL_IO;
    if (run->relieved) {
        die(run, "it fails after the cause is gone", detail->text);
    }
    const bool half = trial->call != DISK_CALLS && trial->error == 0; /* nobody can say why */
    if (status != fitting && !(half && status == STATUS_JOURNAL_FULL)) {
        die(run, "the status does not fit the cause", detail->text);
    }
    if (strstr(detail->text, journal_path) == NULL) {
        die(run, "the text does not name the journal", detail->text);
    }
    run->failures++;
    if (trial->times == 1 || run->failures >= 3u) {
        relieve(run);
    }
}

/* ---- the work
 * ------------------------------------------------------------------------------------------------
 */

static uint64_t last_of(struct run *run)
{
    struct journal_identity identity;
    if (journal_identity(run->journal, &identity) != STATUS_OK) {
        die(run, "no identity", journal_detail(run->journal)->text);
    }
    return identity.last;
}

static void acknowledge(struct run *run, uint64_t durable, uint64_t last)
{
    if (durable < run->acknowledged || durable > last) {
        die(run, "acknowledged", "less than before, or more than there is");
    }
    run->acknowledged = durable;
    disk_mark(DISK_ACKNOWLEDGED, durable);
}

static void open_it(struct run *run)
{
    const struct journal_options options = {.path = journal_path,
                                            .mode = JOURNAL_SYNC,
                                            .segment_bytes = SEGMENT_BYTES,
                                            .map_bytes_first = MAP_BYTES_FIRST};
    struct status_detail detail = {"", 0};
    enum status status = journal_open(&options, &run->journal, &detail);
    while (status != STATUS_OK) {
        failed(run, status, &detail);
        status = journal_open(&options, &run->journal, &detail);
    }
    const uint64_t last = last_of(run);
    if (last < run->acknowledged) {
        die(run, "opened again", "entries are gone");
    }
    run->next = last + 1u;
    acknowledge(run, last, last);
}

static enum status append(struct run *run, uint64_t to, bool ahead)
{
    for (; run->next <= to; run->next++) {
        const struct journal_record record = store_entry(run->next);
        const enum status status = journal_append(run->journal, &record);
        if (status != STATUS_OK) {
            return status;
        }
    }
    const enum status status = store_put_snapshot(run->journal, to);
    return status != STATUS_OK ? status
           : ahead             ? journal_commit_ahead(run->journal)
                               : journal_commit(run->journal);
}

static void after_failure(struct run *run, uint64_t before, uint64_t to)
{
    struct journal_record record;
    (void)journal_flush(run->journal);
    const uint64_t last = last_of(run);
    acknowledge(run, journal_durable(run->journal), last);
    if (last != before && last != to) {
        die(run, "a batch", "is in the journal in part");
    }
    /* What was there can still be read. (Opening a file for that may fail, too.) */
    if (last > 0 && run->relieved && journal_read(run->journal, last, &record) != STATUS_OK) {
        die(run, "the last entry cannot be read", journal_detail(run->journal)->text);
    }
    journal_read_pause(run->journal);
    run->next = last + 1u;
}

static void batch(struct run *run, bool ahead)
{
    const uint64_t before = run->next - 1u;
    const uint64_t to = before + BATCH;
    while (run->next <= to) {
        const enum status status = append(run, to, ahead);
        if (status != STATUS_OK) {
            failed(run, status, journal_detail(run->journal));
            after_failure(run, before, to);
        }
    }
    acknowledge(run, journal_durable(run->journal), last_of(run));
}

static void flush(struct run *run)
{
    enum status status = journal_flush(run->journal);
    while (status != STATUS_OK) {
        failed(run, status, journal_detail(run->journal));
        status = journal_flush(run->journal);
    }
    acknowledge(run, run->next - 1u, last_of(run));
}

static void segment(struct run *run, uint64_t now_ns)
{
    const uint32_t count = journal_segment_count(run->journal);
    while (journal_segment_count(run->journal) == count) {
        enum status status = journal_segment_begin(run->journal, now_ns);
        status = status == STATUS_OK ? store_put_snapshot(run->journal, run->next - 1u) : status;
        status = status == STATUS_OK ? journal_segment_end(run->journal) : status;
        if (status != STATUS_OK) {
            failed(run, status, journal_detail(run->journal));
            journal_abort(run->journal);
        }
        if (last_of(run) != run->next - 1u) {
            die(run, "a segment", "changes the last entry");
        }
    }
}

static void trim(struct run *run)
{
    const struct journal_retention one_only = {1, 0};
    uint32_t removed = 0;
    disk_mark(DISK_TRIMMED_TO, run->next);
    enum status status = journal_trim(run->journal, &one_only, 0, &removed);
    while (status != STATUS_OK) {
        failed(run, status, journal_detail(run->journal));
        status = journal_trim(run->journal, &one_only, 0, &removed);
    }
    if (journal_segment_count(run->journal) != 1u) {
        die(run, "trim", "old segments are left");
    }
}

static void work_direct(struct run *run)
{
    open_it(run);
    for (uint32_t step = 0; step < STEPS; step++) {
        batch(run, step % 3u != 2u);
        if (step == 2u || step == 11u) {
            segment(run, step);
        }
        if (step == 1u) {
            flush(run);
        }
        if (step == 5u) {
            journal_close(run->journal);
            open_it(run);
        }
    }
    trim(run);
    batch(run, false);
    journal_close(run->journal);
}

/* ---- the same through the journal thread
 * ------------------------------------------------------------------------- */

static void await(struct run *run, struct journal_writer *writer, int wake_fd, uint64_t entry)
{
    struct status_detail detail = {"", 0};
    while (writer_durable(writer) < entry) {
        const enum status status = writer_failure(writer, &detail);
        if (status == STATUS_OK) {
            struct pollfd wait = {wake_fd, POLLIN, 0};
            (void)poll(&wait, 1, 1);
            continue;
        }
        failed(run, status, &detail);
        const uint64_t written = writer_written(writer);
        acknowledge(run, writer_durable(writer), written);
        writer_retry(writer);
        for (run->next = written + 1u; run->next <= entry; run->next++) {
            store_submit(writer, run->next);
        }
        if (written == entry) {
            /* It is there, and durable only with what follows. */
            store_submit(writer, run->next++);
            entry++;
        }
    }
    acknowledge(run, writer_durable(writer), run->next - 1u);
}

static void work_through_writer(struct run *run)
{
    const struct writer_options options = {eventfd(0, EFD_NONBLOCK), {SEGMENT_BYTES, 0}};
    struct journal_writer *writer = NULL;
    struct status_detail detail = {"", 0};
    open_it(run);
    if (writer_start(run->journal, &options, &writer, &detail) != STATUS_OK) {
        die(run, "the thread", detail.text);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < 2u * BATCH; i++) {
            store_submit(writer, run->next++);
        }
        if (step % 3u == 2u) {
            await(run, writer, options.wake_fd, run->next - 1u);
            disk_mark(DISK_TRIMMED_TO, run->next);
            store_submit_snapshot(writer, run->next - 1u, step);
            store_submit(writer, run->next++);
        }
        await(run, writer, options.wake_fd, run->next - 1u);
    }
    journal_close(writer_stop(writer));
    (void)close(options.wake_fd);
}

/* ---- one run
 * -------------------------------------------------------------------------------------------------
 */

/* What can be left in any case, and by power loss at some points. */
static void look(const struct run *run)
{
    char text[900] = "";
    const struct store_promise promise = store_promised(disk_length());
    if (store_look(journal_path, &promise, text, sizeof text) != STORE_WELL) {
        die(run, "what is left", text);
    }
    uint64_t random = run->trial->nth;
    for (uint32_t i = 0; i < run->trial->images; i++) {
        const uint32_t points = disk_length() - disk_first() + 1u;
        const uint32_t at = disk_first() + (uint32_t)(disk_random(&random) % points);
        disk_image(at, disk_random(&random), left_over);
        const struct store_promise then = store_promised(at);
        if (store_look(image_path, &then, text, sizeof text) != STORE_WELL) {
            die(run, "what a power loss leaves", text);
        }
    }
}

/* Takes all space but n pages. */
static void fill(const struct run *run)
{
    static const char page[4096] = {1};
    const int fd = open(filler_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    off_t pages = 0;
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page) {
        pages++;
    }
    if (fd < 0 || ftruncate(fd, (pages - (off_t)run->trial->nth) * 4096) != 0 || close(fd) != 0) {
        die(run, "the filler", strerror(errno));
    }
}

static void run_trial(const struct trial *trial)
{
    struct run run = {.trial = trial};
    disk_clear(root);
    if (trial->call == DISK_CALLS) {
        fill(&run);
    }
    disk_begin();
    disk_record(true);
    disk_fail(trial->call, trial->nth, trial->error, trial->times);
    if (trial->thread) {
        work_through_writer(&run);
    } else {
        work_direct(&run);
    }
    const bool touched =
        trial->call == DISK_CALLS ? run.failures > 0 : run.relieved || disk_failed() > 0;
    relieve(&run);
    disk_record(false);
    look(&run);
    (void)fflush(stdout);
    _exit(touched ? PASSED : UNTOUCHED);
}

/* In a child: a call that fails at the wrong place may crash who made it. */
static int in_child(const struct trial *trial)
{
    char text[160];
    int status = 0;
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(60);
        run_trial(trial);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("faults: fork");
        exit(2);
    }
    if (WIFEXITED(status)) {
        return WEXITSTATUS(status);
    }
    describe(trial, text, sizeof text);
    printf("faults: %s: killed by signal %d (%s); again: faults --call %s --nth %" PRIu32 "\n",
           text, WTERMSIG(status), strsignal(WTERMSIG(status)),
           trial->call == DISK_CALLS ? "full" : disk_call_name(trial->call), trial->nth);
    return FAILED;
}

struct totals {
    uint32_t runs;
    uint32_t failed;
};

/* n from `first` on, until nothing fails any more. */
static void sweep(struct trial trial, uint32_t only, struct totals *totals)
{
    uint32_t failed_here = 0;
    for (trial.nth = only == FOR_EVER ? 0 : only;; trial.nth += trial.nth < 16u ? 1u : stride) {
        const int result = in_child(&trial);
        const bool well = result == PASSED || result == UNTOUCHED;
        totals->runs++;
        totals->failed += well ? 0u : 1u;
        if (result == UNTOUCHED || only != FOR_EVER || (!well && ++failed_here == 3u)) {
            return;
        }
    }
}

static void sweep_call(enum disk_call call, uint32_t only, uint32_t images, struct totals *totals)
{
    const int errors[] = {EIO, ENOSPC, 0};
    for (uint32_t e = 0; e < (call == DISK_WRITE ? 3u : 2u); e++) {
        for (uint32_t variant = 0; variant < 4u; variant++) {
            const struct trial trial = {
                call, 0, errors[e], variant % 2u == 0 ? 1u : FOR_EVER, variant > 1u, images};
            sweep(trial, only, totals);
        }
    }
}

/* ---- a file system of our own
 * ------------------------------------------------------------------------------------- */

static bool put(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool well = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return fd >= 0 && close(fd) == 0 && well;
}

/* As any user where the system lets users have mounts of their own. */
static bool mount_small(void)
{
    const unsigned uid = (unsigned)getuid();
    const unsigned gid = (unsigned)getgid();
    char map[32];
    char group_map[32];
    if (unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) {
        return false;
    }
    if (uid != 0) {
        (void)snprintf(map, sizeof map, "0 %u 1", uid);
        (void)snprintf(group_map, sizeof group_map, "0 %u 1", gid);
        if (!put("/proc/self/uid_map", map) || !put("/proc/self/setgroups", "deny") ||
            !put("/proc/self/gid_map", group_map)) {
            return false;
        }
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", root, "tmpfs", 0, "size=" FULL_BYTES) == 0;
}

/* The directory's names are as if on a read-only file system; what was open before stays so. */
static void read_only(void)
{
    if (mount(root, root, NULL, MS_BIND, NULL) != 0 ||
        mount(NULL, root, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0) {
        perror("faults: read-only mount");
        _exit(FAILED);
    }
}

/* A disk that can only be read: a live journal goes on where it is, a start is refused, a reader
 * reads. */
static void run_read_only(void)
{
    const struct trial trial = {DISK_CALLS, 0, EROFS, 1, false, 0};
    const struct journal_options writing = {.path = journal_path};
    const struct journal_options reading = {.path = journal_path, .read_only = true};
    struct run run = {.trial = &trial};
    struct status_detail detail = {"", 0};
    struct journal *other = NULL;
    disk_clear(root);
    disk_begin();
    open_it(&run);
    batch(&run, false);
    read_only();
    enum status status = journal_segment_begin(run.journal, 1);
    if (status != STATUS_JOURNAL_IO ||
        strstr(journal_detail(run.journal)->text, strerror(EROFS)) == NULL) {
        die(&run, "a segment on a read-only disk", journal_detail(run.journal)->text);
    }
    journal_abort(run.journal);
    run.relieved = true; /* nothing but new names may fail */
    batch(&run, true);
    journal_close(run.journal);
    status = journal_open(&writing, &other, &detail);
    if (status != STATUS_JOURNAL_IO || strstr(detail.text, journal_path) == NULL ||
        strstr(detail.text, strerror(EROFS)) == NULL) {
        die(&run, "a start on a read-only disk", detail.text);
    }
    if (journal_open(&reading, &other, &detail) != STATUS_OK) {
        die(&run, "a reader on a read-only disk", detail.text);
    }
    journal_close(other);
    (void)umount(root);
    look(&run);
    _exit(PASSED);
}

static void try_read_only(struct totals *totals)
{
    int status = 0;
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(60);
        run_read_only();
    }
    const bool well =
        waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == PASSED;
    totals->runs++;
    totals->failed += well ? 0u : 1u;
    printf("faults: read-only file system: %s\n", well ? "passed" : "FAILED");
}

static void sweep_full(uint32_t only, struct totals *totals)
{
    if (!mount_small()) {
        printf("faults: no full file system is tried: this user may not mount one (%s)\n",
               strerror(errno));
        return;
    }
    for (uint32_t thread = 0; thread < 2u; thread++) {
        const struct trial trial = {DISK_CALLS, 0, 0, FOR_EVER, thread == 1u, 0};
        sweep(trial, only, totals);
    }
    (void)umount(root);
    try_read_only(totals);
}

/* ---- main
 * ----------------------------------------------------------------------------------------------------
 */

static bool make_directories(void)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(root, sizeof root, "%s/stateroom-faults-XXXXXX", base);
    if (mkdtemp(root) == NULL) {
        return false;
    }
    (void)snprintf(left_over, sizeof left_over, "%s-left", root);
    (void)snprintf(journal_path, sizeof journal_path, "%s/j", root);
    (void)snprintf(image_path, sizeof image_path, "%s/j", left_over);
    (void)snprintf(filler_path, sizeof filler_path, "%s/filler", root);
    disk_watch(root);
    return mkdir(left_over, 0700) == 0;
}

int main(int argc, char **argv)
{
    const char *only_call = "";
    uint32_t only = FOR_EVER;
    uint32_t images = 3;
    struct totals totals = {0, 0};
    for (int i = 1; i + 1 < argc; i += 2) {
        only_call = strcmp(argv[i], "--call") == 0 ? argv[i + 1] : only_call;
        only = strcmp(argv[i], "--nth") == 0 ? (uint32_t)strtoul(argv[i + 1], NULL, 10) : only;
        stride =
            strcmp(argv[i], "--stride") == 0 ? (uint32_t)strtoul(argv[i + 1], NULL, 10) : stride;
        images =
            strcmp(argv[i], "--images") == 0 ? (uint32_t)strtoul(argv[i + 1], NULL, 10) : images;
    }
    if (!make_directories()) {
        perror("faults");
        return 2;
    }
    for (enum disk_call call = DISK_WRITE; call < DISK_CALLS; call++) {
        const uint32_t before = totals.runs;
        if (only_call[0] == '\0' || strcmp(only_call, disk_call_name(call)) == 0) {
            sweep_call(call, only, images, &totals);
            printf("faults: %s: %" PRIu32 " runs\n", disk_call_name(call), totals.runs - before);
        }
    }
    if (only_call[0] == '\0' || strcmp(only_call, "full") == 0) {
        const uint32_t before = totals.runs;
        sweep_full(only, &totals);
        printf("faults: full file system: %" PRIu32 " runs\n", totals.runs - before);
    }
    disk_clear(root);
    disk_clear(left_over);
    (void)rmdir(left_over);
    (void)rmdir(root);
    printf("faults: %" PRIu32 " runs, %" PRIu32 " failed: %s\n", totals.runs, totals.failed,
           totals.failed == 0 ? "passed" : "FAILED");
    return totals.failed == 0 ? 0 : 1;
}
