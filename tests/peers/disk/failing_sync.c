/* Preloaded: once the file FAIL_WHEN exists, the FAIL_AT-th sync of a path that ends in FAIL_PATH
 * fails with EIO.
 *
 * Like the kernel's: the bytes stay readable, and the next sync of the same file succeeds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int synced;

static int fails(int fd) {
    const char *wanted = getenv("FAIL_PATH"), *at = getenv("FAIL_AT"), *when = getenv("FAIL_WHEN");
    if (wanted == NULL || at == NULL || when == NULL || access(when, F_OK) != 0) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t suffix = strlen(wanted);
    if (length < (ssize_t)suffix || memcmp(path + length - suffix, wanted, suffix) != 0) return 0;
    if (__atomic_add_fetch(&synced, 1, __ATOMIC_SEQ_CST) != atoi(at)) return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}
