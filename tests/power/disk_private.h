/* SPDX-License-Identifier: Apache-2.0 */
/* The log between the calls (disk.c) and what could be left of it (disk_image.c). */
#ifndef TESTS_POWER_DISK_PRIVATE_H
#define TESTS_POWER_DISK_PRIVATE_H

#include "disk.h"

#include <pthread.h>

#define FDS_MAX 1024
#define NAMES_MAX 64u
#define NAME_BYTES 40u
#define INODES_MAX 512u
#define PAGE 4096u
#define SECTOR 512u
#define FILE_BYTES_MAX ((size_t)8 << 20)

enum op_kind {
    OP_WRITE,
    OP_SYNC,
    OP_CREATE,
    OP_RENAME,
    OP_UNLINK,
    OP_MKDIR,
    OP_NAMES_SYNC,
    OP_PARENT_SYNC,
    OP_MARK
};

struct op {
    enum op_kind kind;
    uint32_t inode;
    size_t offset;
    size_t size;
    unsigned char *bytes;
    bool durable;   /* written through O_DSYNC */
    bool abandoned; /* an fdatasync over it failed */
    char name[NAME_BYTES];
    char to[NAME_BYTES];
    uint32_t mark;
    uint64_t value;
};

/* What a descriptor is. */
enum of { OF_NOTHING, OF_FILE, OF_LOCK, OF_JOURNAL, OF_PARENT };
struct descriptor {
    enum of of;
    uint32_t inode;
    bool dsync;
};

struct name {
    char name[NAME_BYTES];
    uint32_t inode;
};

struct disk {
    pthread_mutex_t mutex;
    char root[256];
    bool recording;
    struct op *ops;
    uint32_t count;
    uint32_t capacity;
    struct descriptor fds[FDS_MAX];
    struct name names[NAMES_MAX]; /* as they are now */
    uint32_t name_count;
    uint32_t inodes;
    uint32_t first; /* ops before it stand for what was there before */
    uint32_t boot;  /* 0: the system's own */
    uint32_t lie_every;
    uint32_t lied;
    enum disk_call fail_call;
    uint32_t fail_after;
    uint32_t fail_times;
    int fail_error;
    uint32_t failed;
};
extern struct disk disk;

static inline void put_name(char *out, const char *name)
{
    (void)snprintf(out, NAME_BYTES, "%.39s", name);
}

#endif
