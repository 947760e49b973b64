/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power loss: random work through the real journal and the real LMDB, cut at every kind of moment;
 * each directory that could be left is opened, verified, compared, and written on. A second life
 * begins in one of them, so that recovery is cut too.
 *
 *     power [--seconds N] [--seed S] [--seeds N] [--bite] [--keep DIRECTORY]
 *
 * --keep leaves the first bad image and the log that it was made from in DIRECTORY. Odd seeds do
 * the same each time; even ones have a thread of their own to commit with. Then, with --bite, the
 * same on disks and modes that do not keep their word must be found out.
 * Exit status: 0, or 1 when something was lost or broken (or, of what must be, nothing was).
 */
#include "disk.h"
#include "journal/journal_writer.h"
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define IMAGES_PER_LIFE 60u
#define LIVES 3u
#define TEXT_BYTES 900u

static char root[64];       /* where the work is done */
static char left_over[128]; /* where images are made */
static char journal_path[80];
static char image_path[160];
static const char *keep; /* or NULL */

struct work {
    uint64_t random;
    enum journal_mode mode;
    bool pessimist; /* fdatasync fails now and then, once */
    struct journal *journal;
    uint64_t next;
    uint64_t committed; /* mode PROCESS: before the last batch */
    uint64_t now_ns;
};

static void die(const char *what, const struct status_detail *detail)
{
    fprintf(stderr, "power: %s: %s\n", what, detail->text);
    exit(2);
}

static uint64_t below(struct work *work, uint64_t bound)
{
    return disk_random(&work->random) % bound;
}

/* What a power loss may not take from now on. */
static void acknowledge(struct work *work)
{
    struct journal_identity identity;
    if (journal_identity(work->journal, &identity) != STATUS_OK) {
        return;
    }
    if (work->mode == JOURNAL_PROCESS) {
        disk_mark(DISK_ACKNOWLEDGED, work->committed);
        disk_mark(DISK_COMMITTED, identity.last);
        work->committed = identity.last;
    } else {
        disk_mark(DISK_ACKNOWLEDGED, journal_durable(work->journal));
    }
}

static void open_it(struct work *work)
{
    const struct journal_options options = {
        .path = journal_path, .mode = work->mode, .segment_bytes = 96u << 10};
    struct journal_identity identity;
    struct status_detail detail;
    if (journal_open(&options, &work->journal, &detail) != STATUS_OK ||
        journal_identity(work->journal, &identity) != STATUS_OK) {
        die("open", &detail);
    }
    work->next = identity.last + 1u;
    work->committed = identity.last; /* opening has flushed it */
    disk_mark(DISK_ACKNOWLEDGED, identity.last);
    if (journal_note_epoch(work->journal, identity.epoch + 1u) != STATUS_OK ||
        journal_commit(work->journal) != STATUS_OK) {
        die("epoch", journal_detail(work->journal));
    }
    disk_mark(DISK_EPOCH, identity.epoch + 1u);
}

static void after_failure(struct work *work)
{
    struct journal_identity identity;
    journal_abort(work->journal);
    (void)journal_identity(work->journal, &identity);
    work->next = identity.last + 1u;
}

static bool append_some(struct work *work)
{
    for (uint64_t n = 1u + below(work, 8); n > 0; n--) {
        const struct journal_record record = store_entry(work->next);
        if (journal_append(work->journal, &record) != STATUS_OK) {
            return false;
        }
        work->next++;
    }
    return true;
}

static bool put_snapshot(struct work *work)
{
    return store_put_snapshot(work->journal, work->next - 1u) == STATUS_OK;
}

static void batch(struct work *work)
{
    const uint64_t how = below(work, 8);
    bool well = append_some(work);
    if (well && below(work, 6) == 0) {
        well = put_snapshot(work) && journal_snapshot_prune(work->journal, 2) == STATUS_OK;
    }
    if (well && how == 0) {
        journal_abort(work->journal);
        after_failure(work);
        return;
    }
    const enum status status = !well      ? STATUS_JOURNAL_IO
                               : how < 4u ? journal_commit_ahead(work->journal)
                                          : journal_commit(work->journal);
    if (status != STATUS_OK) {
        (void)journal_flush(work->journal); /* as the writer does */
        if (work->mode == JOURNAL_SYNC) {
            acknowledge(work);
        }
        after_failure(work);
        return;
    }
    acknowledge(work);
    if (below(work, 5) == 0 && work->mode == JOURNAL_SYNC) {
        (void)journal_flush(work->journal);
        acknowledge(work);
    }
}

static void trim(struct work *work)
{
    const struct journal_retention retention = {(64u << 10) + below(work, 200u << 10), 0};
    struct journal_segment newest;
    uint32_t removed = 0;
    if (journal_segment_at(work->journal, journal_segment_count(work->journal) - 1u, &newest) ==
        STATUS_OK) {
        disk_mark(DISK_TRIMMED_TO, newest.first);
        (void)journal_trim(work->journal, &retention, work->now_ns, &removed);
    }
}

static void another_segment(struct work *work)
{
    work->now_ns += 1000u;
    if (journal_segment_begin(work->journal, work->now_ns) != STATUS_OK) {
        journal_abort(work->journal);
        return;
    }
    const uint64_t how = below(work, 5);
    if (!put_snapshot(work) || how == 0) {
        journal_abort(work->journal);
    } else if (journal_segment_end(work->journal) == STATUS_OK) {
        work->committed = work->next - 1u;
    }
    acknowledge(work);
    if (how > 2u) {
        trim(work);
    }
}

static void reopen(struct work *work)
{
    journal_close(work->journal);
    open_it(work);
}

static void work_direct(struct work *work)
{
    open_it(work);
    for (uint32_t i = 0; i < 50u; i++) {
        const uint64_t what = below(work, 20);
        if (work->pessimist && below(work, 6) == 0) {
            disk_fail(DISK_FDATASYNC, (uint32_t)below(work, 3), 5, 1u + (uint32_t)below(work, 2));
        }
        if (what == 0) {
            disk_fail(DISK_CALLS, 0, 0, 0);
            reopen(work);
        } else if (what == 1 || (what == 2 && journal_segment_full(work->journal))) {
            another_segment(work);
        } else {
            batch(work);
        }
    }
    disk_fail(DISK_CALLS, 0, 0, 0);
    journal_close(work->journal);
}

/* ---- the same through the journal thread
 * ------------------------------------------------------------------------- */

static void submit_batch(struct work *work, struct journal_writer *writer)
{
    for (uint64_t n = 1u + below(work, 12); n > 0; n--) {
        store_submit(writer, work->next++);
    }
}

static void submit_snapshot(struct work *work, struct journal_writer *writer)
{
    work->now_ns += 1000u;
    /* With it a segment may begin and all before it go. */
    disk_mark(DISK_TRIMMED_TO, work->next);
    store_submit_snapshot(writer, work->next - 1u, work->now_ns);
}

static void work_through_writer(struct work *work)
{
    const struct writer_options options = {eventfd(0, EFD_NONBLOCK), {160u << 10, 0}};
    struct journal_writer *writer = NULL;
    struct status_detail detail;
    open_it(work);
    if (writer_start(work->journal, &options, &writer, &detail) != STATUS_OK) {
        die("writer", &detail);
    }
    for (uint32_t i = 0; i < 40u; i++) {
        submit_batch(work, writer);
        if (writer_wants_snapshot(writer) || below(work, 12) == 0) {
            submit_snapshot(work, writer);
        }
        const uint64_t last = work->next - 1u;
        while (below(work, 3) == 0 && writer_durable(writer) < last) {
            (void)usleep(50);
        }
        const uint64_t durable = writer_durable(writer);
        if (work->mode != JOURNAL_PROCESS) {
            disk_mark(DISK_ACKNOWLEDGED, durable);
        } else if (durable == last) {
            disk_mark(DISK_ACKNOWLEDGED, work->committed);
            disk_mark(DISK_COMMITTED, last);
            work->committed = last;
        }
    }
    journal_close(writer_stop(writer));
    (void)close(options.wake_fd);
}

/* ---- images
 * ---------------------------------------------------------------------------------------------------
 */

struct results {
    uint32_t looked;
    uint32_t counts[STORE_STATES];
    uint32_t crashed;
    bool done;
    uint32_t first_bad; /* 1 + image */
    char text[TEXT_BYTES];
};

static uint32_t image_point(uint64_t seed, uint32_t life, uint32_t image, uint64_t *out_seed)
{
    uint64_t random = seed * 1000003u + life * 997u + image;
    const uint32_t points = disk_length() - disk_first() + 1u;
    const uint32_t at = disk_first() + (uint32_t)(disk_random(&random) % points);
    *out_seed = disk_random(&random);
    return at;
}

static void keep_image(uint32_t at, uint64_t image_seed)
{
    char path[512];
    if (keep == NULL) {
        return;
    }
    disk_image(at, image_seed, keep);
    (void)snprintf(path, sizeof path, "%s/log", keep);
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        disk_print(file, at);
        (void)fclose(file);
    }
    keep = NULL; /* the first only; the others are of children that know nothing of this one */
}

/* In a child: a broken file may crash who maps it. */
static void look_at_images(uint64_t seed, uint32_t life, uint32_t from, struct results *results)
{
    for (uint32_t image = from; image < IMAGES_PER_LIFE; image++) {
        uint64_t image_seed = 0;
        char text[TEXT_BYTES] = "";
        const uint32_t at = image_point(seed, life, image, &image_seed);
        disk_image(at, image_seed, left_over);
        results->looked = image + 1u;
        const struct store_promise promise = store_promised(at);
        const enum store_state state = store_look(image_path, &promise, text, sizeof text);
        results->counts[state]++;
        if (state != STORE_WELL && results->first_bad == 0) {
            results->first_bad = image + 1u;
            (void)snprintf(results->text, sizeof results->text, "%s", text);
            keep_image(at, image_seed);
        }
    }
    results->done = true;
    _exit(0);
}

static void look(uint64_t seed, uint32_t life, struct results *results)
{
    memset(results, 0, sizeof *results);
    while (!results->done) {
        const pid_t child = fork();
        if (child == 0) {
            look_at_images(seed, life, results->looked, results);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("power: fork");
            exit(2);
        }
        if (!results->done) {
            results->crashed++;
            results->first_bad = results->first_bad == 0 ? results->looked : results->first_bad;
            results->done = results->looked >= IMAGES_PER_LIFE;
        }
    }
}

/* ---- runs
 * -----------------------------------------------------------------------------------------------------
 */

struct run {
    enum journal_mode force; /* NO_SYNC: instead of the seed's */
    uint32_t lie;
    bool quiet;
    uint64_t images;
    uint64_t lives;
    uint64_t well, lost, broken;
};

static void report(const struct run *run, uint64_t seed, uint32_t life, enum journal_mode mode,
                   const struct results *results)
{
    if (results->first_bad != 0 && !run->quiet) {
        printf("power: seed %llu, life %u, image %u (%s): %s; again: power --seed %llu --seeds 1 "
               "--keep DIRECTORY\n",
               (unsigned long long)seed, life, results->first_bad - 1u,
               mode == JOURNAL_SYNC ? "sync" : "process",
               results->text[0] != '\0' ? results->text : "its reader crashed",
               (unsigned long long)seed);
    }
}

/* One seed: lives on one disk, each begun in what a power loss left of the one before. */
static void run_seed(struct run *run, uint64_t seed, struct results *results)
{
    struct store_promise promise = {0, 0, 0, 0};
    disk_clear(root);
    for (uint32_t life = 0; life < LIVES; life++) {
        struct work work = {.random = seed * 31u + life};
        work.mode = run->force == JOURNAL_NO_SYNC ? JOURNAL_NO_SYNC
                    : seed % 3u == 2u             ? JOURNAL_PROCESS
                                                  : JOURNAL_SYNC;
        work.pessimist = run->lie == 0 && seed % 4u == 1u && run->force != JOURNAL_NO_SYNC;
        disk_begin();
        disk_mark(DISK_ACKNOWLEDGED, promise.acknowledged);
        disk_mark(DISK_TRIMMED_TO, promise.trimmed_to);
        disk_mark(DISK_EPOCH, promise.epoch);
        disk_boot(1u + life);
        disk_record(true);
        disk_lie(run->lie);
        if (seed % 2u == 0) {
            work_through_writer(&work);
        } else {
            work_direct(&work);
        }
        disk_record(false);
        disk_lie(0);
        disk_boot(1u + LIVES);
        look(seed, life, results);
        report(run, seed, life, work.mode, results);
        run->images += IMAGES_PER_LIFE;
        run->lives++;
        run->well += results->counts[STORE_WELL];
        run->lost += results->counts[STORE_LOST];
        run->broken += results->counts[STORE_BROKEN] + results->crashed;
        if (results->first_bad != 0) {
            return; /* the next life would begin in a broken one */
        }
        uint64_t image_seed = 0;
        const uint32_t at = image_point(seed, life, IMAGES_PER_LIFE, &image_seed);
        promise = store_promised(at);
        disk_image(at, image_seed, root);
    }
}

static double seconds_since(const struct timespec *start)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

/* At least `seeds` of them. */
static bool faithful(uint64_t first, uint64_t seeds, double seconds, struct results *results)
{
    struct run run = {.force = JOURNAL_SYNC};
    struct timespec start;
    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t seed = first;
    for (; seconds_since(&start) < seconds || seed < first + seeds; seed++) {
        run_seed(&run, seed, results);
    }
    printf(
        "power: seeds %llu to %llu, %llu lives, %llu images in %.1f s: %llu well, %llu lack what "
        "was acknowledged, %llu broken\n",
        (unsigned long long)first, (unsigned long long)seed - 1u, (unsigned long long)run.lives,
        (unsigned long long)run.images, seconds_since(&start), (unsigned long long)run.well,
        (unsigned long long)run.lost, (unsigned long long)run.broken);
    return run.lost == 0 && run.broken == 0;
}

/* What must be found out: each with the seeds 1 to 12. */
static bool bite(const char *name, enum journal_mode force, uint32_t lie, struct results *results)
{
    struct run run = {.force = force, .lie = lie, .quiet = true};
    for (uint64_t seed = 1; seed <= 12u; seed++) {
        run_seed(&run, seed, results);
    }
    printf("power: %s: of %llu images %llu lack what was acknowledged, %llu are broken\n", name,
           (unsigned long long)run.images, (unsigned long long)run.lost,
           (unsigned long long)run.broken);
    return run.lost + run.broken > 0;
}

int main(int argc, char **argv)
{
    double seconds = 0;
    uint64_t seed = 1;
    uint64_t seeds = 12;
    bool biting = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--bite") == 0) {
            biting = true;
            continue;
        }
        seconds = strcmp(argv[i], "--seconds") == 0 ? strtod(value, NULL) : seconds;
        seed = strcmp(argv[i], "--seed") == 0 ? strtoull(value, NULL, 10) : seed;
        seeds = strcmp(argv[i], "--seeds") == 0 ? strtoull(value, NULL, 10) : seeds;
        keep = strcmp(argv[i], "--keep") == 0 ? value : keep;
        i++;
    }
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(root, sizeof root, "%s/stateroom-power-XXXXXX", base);
    struct results *results =
        mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mkdtemp(root) == NULL || results == MAP_FAILED) {
        perror("power");
        return 2;
    }
    (void)snprintf(left_over, sizeof left_over, "%s/left", root);
    (void)snprintf(journal_path, sizeof journal_path, "%s/j", root);
    (void)snprintf(image_path, sizeof image_path, "%s/j", left_over);
    if (mkdir(left_over, 0700) != 0 ||
        (keep != NULL && mkdir(keep, 0700) != 0 && errno != EEXIST)) {
        perror("power");
        return 2;
    }
    disk_watch(root);
    bool well = faithful(seed, seeds, seconds, results);
    if (biting) {
        keep = NULL;
        well = bite("LMDB without its flushes", JOURNAL_NO_SYNC, 0, results) && well;
        well = bite("every third flush lies", JOURNAL_SYNC, 3, results) && well;
        well = bite("every 20th flush lies", JOURNAL_SYNC, 20, results) && well;
    }
    disk_clear(root);
    disk_clear(left_over);
    (void)rmdir(left_over);
    (void)rmdir(root);
    printf("power: %s\n", well ? "passed" : "FAILED");
    return well ? 0 : 1;
}
