/* SPDX-License-Identifier: Apache-2.0 */
/* The calls and their log. */
#include "disk_private.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct disk disk = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fail_call = DISK_CALLS};

/* libc's own; through memcpy, since ISO C knows no cast between data and functions. */
#define REAL(result, name, ...)                        \
    static result (*real)(__VA_ARGS__);                \
    if (real == NULL) {                                \
        void *const symbol = dlsym(RTLD_NEXT, name);   \
        memcpy((void *)&real, &symbol, sizeof symbol); \
    }

uint64_t disk_random(uint64_t *state)
{
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

const char *disk_call_name(enum disk_call call)
{
    static const char *const names[DISK_CALLS] = {"write",     "fdatasync",      "fsync", "open",
                                                  "ftruncate", "rename",         "mkdir", "unlink",
                                                  "mmap",      "posix_fallocate"};
    return names[call];
}

/* ---- the log
 * ---------------------------------------------------------------------------------------------- */

static void lock(void)
{
    (void)pthread_mutex_lock(&disk.mutex);
}

static void unlock(void)
{
    (void)pthread_mutex_unlock(&disk.mutex);
}

static struct op *push(enum op_kind kind)
{
    if (disk.count == disk.capacity) {
        disk.capacity = disk.capacity == 0 ? 4096u : 2u * disk.capacity;
        disk.ops = realloc(disk.ops, disk.capacity * sizeof *disk.ops);
        if (disk.ops == NULL) {
            abort();
        }
    }
    struct op *op = &disk.ops[disk.count++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    return op;
}

static struct name *find(const char *name)
{
    for (uint32_t i = 0; i < disk.name_count; i++) {
        if (strcmp(disk.names[i].name, name) == 0) {
            return &disk.names[i];
        }
    }
    return NULL;
}

static uint32_t add_name(const char *name)
{
    if (disk.name_count == NAMES_MAX || disk.inodes == INODES_MAX) {
        abort();
    }
    put_name(disk.names[disk.name_count].name, name);
    disk.names[disk.name_count].inode = disk.inodes;
    disk.name_count++;
    return disk.inodes++;
}

static void drop_name(const char *name)
{
    struct name *found = find(name);
    if (found != NULL) {
        *found = disk.names[--disk.name_count];
    }
}

/* What a path is; of a file its name in the journal's directory. */
static enum of path_of(const char *path, const char **out_name)
{
    const size_t size = strlen(disk.root);
    if (size == 0 || strncmp(path, disk.root, size) != 0 || strncmp(path + size, "/j", 2) != 0) {
        return OF_NOTHING;
    }
    const char *rest = path + size + 2;
    if (rest[0] == '\0') {
        return OF_JOURNAL;
    }
    if (strcmp(rest, "/..") == 0) {
        return OF_PARENT;
    }
    *out_name = rest + 1;
    const size_t length = strlen(*out_name);
    const bool is_lock = strcmp(*out_name, "LOCK") == 0 ||
                         (length > 5u && strcmp(*out_name + length - 5u, "-lock") == 0);
    return rest[0] != '/' ? OF_NOTHING : is_lock ? OF_LOCK : OF_FILE;
}

static enum of fd_of(int fd)
{
    return fd >= 0 && fd < FDS_MAX ? disk.fds[fd].of : OF_NOTHING;
}

/* Whether this call is to fail; sets errno. */
static bool fails(enum disk_call call)
{
    if (disk.fail_call != call || disk.fail_times == 0) {
        return false;
    }
    if (disk.fail_after > 0) {
        disk.fail_after--;
        return false;
    }
    disk.fail_times--;
    disk.failed++;
    errno = disk.fail_error;
    return true;
}

static void note_write(int fd, const void *bytes, size_t size, size_t offset)
{
    if (!disk.recording || fd_of(fd) != OF_FILE || size == 0) {
        return;
    }
    struct op *op = push(OP_WRITE);
    op->inode = disk.fds[fd].inode;
    op->offset = offset;
    op->size = size;
    op->durable = disk.fds[fd].dsync;
    op->bytes = malloc(size);
    if (op->bytes == NULL || offset + size > FILE_BYTES_MAX) {
        abort();
    }
    memcpy(op->bytes, bytes, size);
}

static void note_sync(uint32_t inode, bool failed)
{
    if (!disk.recording) {
        return;
    }
    if (!failed) {
        push(OP_SYNC)->inode = inode;
        return;
    }
    for (uint32_t i = disk.count; i > 0; i--) {
        struct op *op = &disk.ops[i - 1u];
        if (op->kind == OP_SYNC && op->inode == inode) {
            break;
        }
        op->abandoned = op->abandoned || (op->kind == OP_WRITE && op->inode == inode);
    }
}

static void note_name(enum op_kind kind, const char *name, const char *to, uint32_t inode)
{
    if (disk.recording) {
        struct op *op = push(kind);
        op->inode = inode;
        put_name(op->name, name);
        put_name(op->to, to);
    }
}

/* ---- the calls
 * ---------------------------------------------------------------------------------------------- */

/* LMDB must see them. */
#pragma GCC visibility push(default)

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)
    if (fd_of(fd) == OF_NOTHING) {
        return real(fd, bytes, size, offset);
    }
    lock();
    const bool failed = fails(DISK_WRITE);
    const size_t some = failed && disk.fail_error == 0 ? size / 2u : size;
    const ssize_t done = failed && some == size ? -1 : real(fd, bytes, some, offset);
    note_write(fd, bytes, done > 0 ? (size_t)done : 0, (size_t)offset);
    unlock();
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset)
{
    return pwrite(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int)
    if (fd_of(fd) == OF_NOTHING) {
        return real(fd, parts, count);
    }
    lock();
    size_t offset = (size_t)lseek(fd, 0, SEEK_CUR);
    const bool failed = fails(DISK_WRITE);
    const int some = failed && disk.fail_error == 0 ? count / 2 : count;
    const ssize_t done = failed && some == count ? -1 : real(fd, parts, some);
    size_t left = done > 0 ? (size_t)done : 0;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t size = parts[i].iov_len < left ? parts[i].iov_len : left;
        note_write(fd, parts[i].iov_base, size, offset);
        offset += size;
        left -= size;
    }
    unlock();
    return done;
}

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int)
    if (fd_of(fd) == OF_NOTHING) {
        return real(fd);
    }
    lock();
    const bool failed = fails(DISK_FDATASYNC);
    const bool lie = !failed && disk.lie_every != 0 && ++disk.lied % disk.lie_every == 0;
    if (fd_of(fd) == OF_FILE && !lie) {
        note_sync(disk.fds[fd].inode, failed);
    }
    unlock();
    return failed ? -1 : 0;
}

int fsync(int fd)
{
    REAL(int, "fsync", int)
    const enum of of = fd_of(fd);
    if (of == OF_NOTHING) {
        return real(fd);
    }
    lock();
    const bool failed = fails(DISK_FSYNC);
    if (of == OF_FILE) {
        note_sync(disk.fds[fd].inode, failed);
    } else if (!failed && of == OF_JOURNAL) {
        note_name(OP_NAMES_SYNC, "", "", 0);
    } else if (!failed && of == OF_PARENT) {
        note_name(OP_PARENT_SYNC, "", "", 0);
    }
    unlock();
    return failed ? -1 : 0;
}

static void opened(int fd, enum of of, const char *name, int flags)
{
    if (fd < 0 || fd >= FDS_MAX) {
        return;
    }
    disk.fds[fd] = (struct descriptor){of, 0, (flags & O_DSYNC) != 0};
    if (of == OF_FILE) {
        const struct name *found = find(name);
        disk.fds[fd].inode = found != NULL ? found->inode : add_name(name);
        if (found == NULL) {
            note_name(OP_CREATE, name, "", disk.fds[fd].inode);
        }
    }
}

static int boot_id(void)
{
    const int fd = memfd_create("boot_id", MFD_CLOEXEC);
    (void)dprintf(fd, "boot %u\n", disk.boot);
    (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

int open(const char *path, int flags, ...)
{
    REAL(int, "open", const char *, int, ...)
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    const char *name = "";
    if (disk.boot != 0 && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
        return boot_id();
    }
    lock();
    const enum of of = path_of(path, &name);
    int fd = -1;
    if (of == OF_NOTHING || !fails(DISK_OPEN)) {
        fd = real(path, flags, mode);
        opened(fd, of, name, flags);
    }
    unlock();
    return fd;
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return open(path, flags, mode);
}

int close(int fd)
{
    REAL(int, "close", int)
    lock();
    if (fd >= 0 && fd < FDS_MAX) {
        disk.fds[fd].of = OF_NOTHING;
    }
    unlock();
    return real(fd);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *)
    const char *name = "";
    const char *new_name = "";
    lock();
    const enum of of = path_of(from, &name);
    (void)path_of(to, &new_name);
    int code = -1;
    if (of == OF_NOTHING || !fails(DISK_RENAME)) {
        code = real(from, to);
        if (code == 0 && of == OF_FILE) {
            note_name(OP_RENAME, name, new_name, find(name)->inode);
            drop_name(new_name);
            put_name(find(name)->name, new_name);
        }
    }
    unlock();
    return code;
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *)
    const char *name = "";
    lock();
    const enum of of = path_of(path, &name);
    int code = -1;
    if (of == OF_NOTHING || !fails(DISK_UNLINK)) {
        code = real(path);
        if (code == 0 && of == OF_FILE) {
            note_name(OP_UNLINK, name, "", 0);
            drop_name(name);
        }
    }
    unlock();
    return code;
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t)
    const char *name = "";
    lock();
    const enum of of = path_of(path, &name);
    int code = -1;
    if (of == OF_NOTHING || !fails(DISK_MKDIR)) {
        code = real(path, mode);
        if (code == 0 && of == OF_JOURNAL) {
            note_name(OP_MKDIR, "", "", 0);
        }
    }
    unlock();
    return code;
}

int ftruncate(int fd, off_t size)
{
    REAL(int, "ftruncate", int, off_t)
    lock();
    const bool failed = fd_of(fd) != OF_NOTHING && fails(DISK_FTRUNCATE);
    if (disk.recording && fd_of(fd) == OF_FILE) {
        abort(); /* the images know nothing of it */
    }
    unlock();
    return failed ? -1 : real(fd, size);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    REAL(void *, "mmap", void *, size_t, int, int, int, off_t)
    if (fd < 0 || fd_of(fd) == OF_NOTHING) {
        return real(address, size, protection, flags, fd, offset);
    }
    lock();
    const bool failed = fails(DISK_MMAP);
    unlock();
    return failed ? MAP_FAILED : real(address, size, protection, flags, fd, offset);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    REAL(int, "posix_fallocate", int, off_t, off_t)
    lock();
    const bool failed = fd_of(fd) != OF_NOTHING && fails(DISK_ALLOCATE);
    if (disk.recording && fd_of(fd) == OF_FILE) {
        abort(); /* the images know nothing of it */
    }
    unlock();
    return failed ? disk.fail_error : real(fd, offset, size);
}

#pragma GCC visibility pop

/* ---- control
 * ------------------------------------------------------------------------------------------------
 */

void disk_watch(const char *directory)
{
    (void)snprintf(disk.root, sizeof disk.root, "%s", directory);
    disk_begin();
}

void disk_clear(const char *directory)
{
    char path[800];
    (void)snprintf(path, sizeof path, "%s/j", directory);
    DIR *opened = opendir(path);
    for (struct dirent *entry = opened == NULL ? NULL : readdir(opened); entry != NULL;
         entry = readdir(opened)) {
        (void)snprintf(path, sizeof path, "%s/j/%s", directory, entry->d_name);
        (void)remove(path); /* not unlink: this is no call of the journal's */
    }
    if (opened != NULL) {
        (void)closedir(opened);
    }
    (void)snprintf(path, sizeof path, "%s/j", directory);
    (void)rmdir(path);
}

/* A file that is there before anything is done. */
static void adopt(const char *name)
{
    char path[800];
    (void)snprintf(path, sizeof path, "%s/j/%s", disk.root, name);
    const uint32_t inode = add_name(name);
    note_name(OP_CREATE, name, "", inode);
    FILE *file = fopen(path, "rb");
    struct op *op = push(OP_WRITE);
    op->inode = inode;
    op->bytes = malloc(FILE_BYTES_MAX);
    if (file == NULL || op->bytes == NULL) {
        abort();
    }
    op->size = fread(op->bytes, 1, FILE_BYTES_MAX, file);
    (void)fclose(file);
    push(OP_SYNC)->inode = inode;
}

static void adopt_all(void)
{
    char path[800];
    (void)snprintf(path, sizeof path, "%s/j", disk.root);
    DIR *opened = opendir(path);
    if (opened == NULL) {
        return;
    }
    disk.recording = true;
    (void)push(OP_MKDIR);
    (void)push(OP_PARENT_SYNC);
    for (struct dirent *entry = readdir(opened); entry != NULL; entry = readdir(opened)) {
        const char *name = "";
        (void)snprintf(path, sizeof path, "%s/j/%s", disk.root, entry->d_name);
        if (entry->d_name[0] != '.' && path_of(path, &name) == OF_FILE) {
            adopt(entry->d_name);
        }
    }
    (void)push(OP_NAMES_SYNC);
    (void)closedir(opened);
    disk.recording = false;
}

void disk_begin(void)
{
    for (uint32_t i = 0; i < disk.count; i++) {
        free(disk.ops[i].bytes);
    }
    disk.count = 0;
    disk.name_count = 0;
    disk.inodes = 0;
    disk.lied = 0;
    adopt_all();
}

void disk_boot(uint32_t number)
{
    disk.boot = number;
}

void disk_record(bool on)
{
    disk.first = on ? disk.count : disk.first;
    disk.recording = on;
}

void disk_mark(enum disk_mark mark, uint64_t value)
{
    lock();
    struct op *op = push(OP_MARK);
    op->mark = mark;
    op->value = value;
    unlock();
}

uint32_t disk_first(void)
{
    return disk.first;
}

uint32_t disk_length(void)
{
    return disk.count;
}

uint64_t disk_promised(enum disk_mark mark, uint32_t at)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < at; i++) {
        const struct op *op = &disk.ops[i];
        most = op->kind == OP_MARK && op->mark == mark && op->value > most ? op->value : most;
    }
    return most;
}

void disk_print(FILE *out, uint32_t at)
{
    static const char *const kinds[] = {"write", "sync",       "create",      "rename", "unlink",
                                        "mkdir", "sync names", "sync parent", "mark"};
    for (uint32_t i = 0; i < disk.count; i++) {
        const struct op *op = &disk.ops[i];
        fprintf(out, "%s%6u %-11s file %-3u %8zu +%-7zu%s%s %s %s %u %llu\n",
                i == at ? "** here\n" : "", i, kinds[op->kind], op->inode, op->offset, op->size,
                op->durable ? " durable" : "", op->abandoned ? " abandoned" : "", op->name, op->to,
                op->mark, (unsigned long long)op->value);
    }
}

void disk_lie(uint32_t every)
{
    disk.lie_every = every;
}

void disk_fail(enum disk_call call, uint32_t nth, int error, uint32_t times)
{
    lock();
    disk.fail_call = call;
    disk.fail_after = nth;
    disk.fail_error = error;
    disk.fail_times = times;
    disk.failed = 0;
    unlock();
}

uint32_t disk_failed(void)
{
    return disk.failed;
}
