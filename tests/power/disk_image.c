/* SPDX-License-Identifier: Apache-2.0 */
/* What a power loss at a point of the log can leave. */
#include "disk_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool one_in(uint64_t *state, uint32_t n)
{
    return disk_random(state) % n == 0;
}

/* How much of what is not flushed gets lost, and in what pieces. */
struct loss {
    uint64_t random;
    uint32_t lost_of_8;
    size_t piece;
    bool names_in_order;
};

static uint32_t last_of(enum op_kind kind, uint32_t inode, uint32_t at)
{
    for (uint32_t i = at; i > 0; i--) {
        if (disk.ops[i - 1u].kind == kind && disk.ops[i - 1u].inode == inode) {
            return i;
        }
    }
    return 0;
}

static bool is_lost(struct loss *loss)
{
    return disk_random(&loss->random) % 8u < loss->lost_of_8;
}

/* The file as it is on disk; returns its size. */
static size_t content(uint32_t inode, uint32_t at, struct loss *loss, unsigned char *file)
{
    const uint32_t synced = last_of(OP_SYNC, inode, at);
    size_t size = 0;
    for (uint32_t i = 0; i < at; i++) {
        const struct op *op = &disk.ops[i];
        if (op->kind == OP_WRITE && op->inode == inode) {
            memset(file + op->offset, 0, op->size); /* from the image before */
        }
    }
    for (uint32_t i = 0; i < at; i++) {
        const struct op *op = &disk.ops[i];
        if (op->kind != OP_WRITE || op->inode != inode) {
            continue;
        }
        const size_t end = op->offset + op->size;
        const bool whole = (i < synced && !op->abandoned) || (op->durable && i + 1u < at);
        for (size_t from = op->offset; from < end;) {
            const size_t border = (from / loss->piece + 1u) * loss->piece;
            const size_t to = border < end ? border : end;
            if (whole || !is_lost(loss)) {
                memcpy(file + from, op->bytes + (from - op->offset), to - from);
                size = size < to ? to : size;
            }
            from = to;
        }
        if (size < end && one_in(&loss->random, 4)) {
            size = end; /* longer, with nothing in it */
        }
    }
    return size;
}

static void remove_name(struct name *names, uint32_t *count, const char *name)
{
    for (uint32_t i = *count; i > 0; i--) {
        if (strcmp(names[i - 1u].name, name) == 0) {
            names[i - 1u] = names[--*count];
        }
    }
}

static void apply_name(struct name *names, uint32_t *count, const struct op *op)
{
    const char *name = op->kind == OP_RENAME ? op->to : op->name;
    if (op->kind == OP_RENAME) {
        remove_name(names, count, op->name);
    }
    remove_name(names, count, name);
    if (op->kind != OP_UNLINK && *count < NAMES_MAX) {
        put_name(names[*count].name, name);
        names[(*count)++].inode = op->inode;
    }
}

/* The names that are on disk; false: not even the directory. */
static bool names_at(uint32_t at, struct loss *loss, struct name *names, uint32_t *count)
{
    const uint32_t synced = last_of(OP_NAMES_SYNC, 0, at);
    bool there = true;
    bool all = true;
    *count = 0;
    for (uint32_t i = 0; i < at; i++) {
        const struct op *op = &disk.ops[i];
        if (op->kind == OP_MKDIR) {
            const uint32_t parent = last_of(OP_PARENT_SYNC, 0, at);
            there = parent > i || !is_lost(loss);
        } else if (op->kind == OP_CREATE || op->kind == OP_RENAME || op->kind == OP_UNLINK) {
            const bool lost = i >= synced && (!all || is_lost(loss));
            all = all && !(lost && loss->names_in_order);
            if (!lost) {
                apply_name(names, count, op);
            }
        }
    }
    return there;
}

static void write_file(const char *directory, const char *name, const unsigned char *bytes,
                       size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/j/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        abort();
    }
}

void disk_image(uint32_t at, uint64_t seed, const char *directory)
{
    static unsigned char file[FILE_BYTES_MAX];
    struct loss loss = {.random = seed};
    struct name names[NAMES_MAX];
    uint32_t count = 0;
    char path[512];
    loss.lost_of_8 = (uint32_t[]){1, 4, 7, 8}[disk_random(&loss.random) % 4u];
    loss.piece = one_in(&loss.random, 2) ? PAGE : SECTOR;
    loss.names_in_order = !one_in(&loss.random, 3);
    disk_clear(directory);
    if (!names_at(at, &loss, names, &count)) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s/j", directory);
    (void)mkdir(path, 0750);
    for (uint32_t i = 0; i < count; i++) {
        write_file(directory, names[i].name, file, content(names[i].inode, at, &loss, file));
        if (one_in(&loss.random, 2)) {
            char lock_name[NAME_BYTES + 8u];
            unsigned char junk[8192];
            memset(junk, one_in(&loss.random, 2) ? 0 : 0xa5, sizeof junk);
            (void)snprintf(lock_name, sizeof lock_name, "%.39s-lock", names[i].name);
            write_file(directory, lock_name, junk, sizeof junk);
        }
    }
}
