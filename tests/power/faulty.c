/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a node: its journal's calls fail while a switch is on. Environment:
 * STATEROOM_FAULTY_JOURNAL, the directory; STATEROOM_FAULTY_SWITCH, a file of struct
 * faulty_switch that the test maps, too.
 */
#include "faulty.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static struct faulty_switch *faulty;
static char directory[256];

#define REAL(result, name, ...)                        \
    static result (*real)(__VA_ARGS__);                \
    if (real == NULL) {                                \
        void *const symbol = dlsym(RTLD_NEXT, name);   \
        memcpy((void *)&real, &symbol, sizeof symbol); \
    }

static void __attribute__((constructor)) find_switch(void)
{
    const char *path = getenv("STATEROOM_FAULTY_SWITCH");
    const char *journal = getenv("STATEROOM_FAULTY_JOURNAL");
    const int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof *faulty, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                        : MAP_FAILED;
    if (map == MAP_FAILED || journal == NULL) {
        fprintf(stderr, "faulty: no switch\n");
        _exit(127);
    }
    (void)close(fd);
    (void)snprintf(directory, sizeof directory, "%s/", journal);
    faulty = map;
}

/* One call of `one_in`; which one is the threads' affair. */
static bool now(void)
{
    const uint32_t one_in = faulty != NULL ? atomic_load(&faulty->one_in) : 0;
    if (one_in == 0 || atomic_fetch_add(&faulty->calls, 1u) % one_in != one_in - 1u) {
        return false;
    }
    atomic_fetch_add(&faulty->failed, 1u);
    errno = (int)atomic_load(&faulty->error);
    return true;
}

static bool is_ours(const char *path)
{
    return strncmp(path, directory, strlen(directory)) == 0;
}

static bool fails(int fd)
{
    char link[64];
    char path[512];
    if (faulty == NULL || atomic_load(&faulty->one_in) == 0) {
        return false;
    }
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = readlink(link, path, sizeof path - 1u);
    path[size > 0 ? (size_t)size : 0] = '\0';
    return is_ours(path) && now();
}

#pragma GCC visibility push(default)

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)
    return fails(fd) ? -1 : real(fd, bytes, size, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset)
{
    return pwrite(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int)
    return fails(fd) ? -1 : real(fd, parts, count);
}

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int)
    return fails(fd) ? -1 : real(fd);
}

int fsync(int fd)
{
    REAL(int, "fsync", int)
    return fails(fd) ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *)
    return is_ours(from) && now() ? -1 : real(from, to);
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
    return is_ours(path) && now() ? -1 : real(path, flags, mode);
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

#pragma GCC visibility pop
