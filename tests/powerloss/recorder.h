/* The recorder behind shim.c: one trace, one lock, and what a descriptor or a path is.
 *
 * Invariant: between enter() and leave() no other thread or program of this trace makes or records
 * a change. Nothing here changes errno.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "off_t and off64_t must be the same type");

#define PATH_BYTES_MAX (PATH_MAX + NAME_MAX + 2)
#define DELETED " (deleted)"

enum op {
    OP_CREATE = 1, OP_MKDIR, OP_WRITE, OP_ZERO, OP_TRUNCATE, OP_RENAME, OP_UNLINK, OP_LINK,
    OP_SYNC_BEGIN, OP_SYNC_END, OP_ACK, OP_UNMODELLED,
};
enum sync_flag { SYNC_DATA_ONLY = 1, SYNC_DIRECTORY = 2 };
enum watch { WATCH_NOTHING, WATCH_FILE, WATCH_DIRECTORY, WATCH_ACKS };

struct __attribute__((packed)) header { /* trace.py: HEADER */
    uint32_t magic;
    uint8_t op, flag;
    uint16_t unused;
    uint32_t thread, path_bytes, path2_bytes, unused2;
    uint64_t inode, a, b, data_bytes;
};
#define MAGIC 0x31544c50u /* "PLT1" */

static char root[PATH_BYTES_MAX], ack_path[PATH_BYTES_MAX];
static size_t root_bytes;
static int trace_fd = -1, ack_fd = -1, ready;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The next definition of a symbol after ours; looked up at first use, since constructors of other
 * libraries may run before ours. */
#define REAL(name) ((__typeof__(&name))real(&real_##name, #name))
#define NEEDS(name) static void *real_##name

static void fail(const char *what) {
    fprintf(stderr, "power-loss shim: %s: %s\n", what, strerror(errno));
    abort();
}

static void *real(void **slot, const char *name) {
    void *found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        if (!found) fail(name);
        __atomic_store_n(slot, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* ---- one order for all threads and programs ---- */

static void lock_file(short type) {
    /* A POSIX record lock belongs to the program, and the kernel drops it if the program is killed.
     * Nobody waits for anything while holding it, so a reported deadlock is a false alarm about
     * locks that the program itself holds. */
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(trace_fd, F_SETLKW, &whole) != 0)
        if (errno != EINTR && errno != EDEADLK) fail("cannot lock the trace");
}

static void enter(void) {
    int error = errno;
    pthread_mutex_lock(&mutex);
    lock_file(F_WRLCK);
    errno = error;
}

static void leave(void) {
    int error = errno;
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    errno = error;
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }

__attribute__((constructor)) static void start(void) {
    const char *root_given = getenv("PENSTOCK_TRACE_ROOT"), *file = getenv("PENSTOCK_TRACE_FILE");
    const char *fd = getenv("PENSTOCK_TRACE_ACK_FD"), *acks = getenv("PENSTOCK_TRACE_ACKS");
    if (!root_given || !file) return;
    char resolved[PATH_MAX];
    if (!realpath(root_given, resolved)) fail("PENSTOCK_TRACE_ROOT");
    strcpy(root, resolved);
    root_bytes = strlen(root);
    if (fd && *fd) ack_fd = atoi(fd);
    if (acks && *acks) {
        if (!realpath(acks, resolved)) fail("PENSTOCK_TRACE_ACKS");
        strcpy(ack_path, resolved);
    }
    int low = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (low < 0) fail("PENSTOCK_TRACE_FILE");
    trace_fd = fcntl(low, F_DUPFD_CLOEXEC, 500); /* out of the way of programs that count on 3, 4, … */
    if (trace_fd < 0) trace_fd = low;
    else syscall(SYS_close, low);
    pthread_atfork(before_fork, after_fork, after_fork);
    ready = 1;
}

/* ---- records ---- */

static int is_below_root(const char *path) {
    return strncmp(path, root, root_bytes) == 0
        && (path[root_bytes] == '/' || path[root_bytes] == '\0');
}

static const char *relative(const char *path) {
    return path[root_bytes] ? path + root_bytes + 1 : "";
}

/* Call between enter and leave. Keeps errno. */
static void record(struct header h, const char *path, const char *path2, const void *data) {
    int error = errno;
    h.magic = MAGIC;
    h.thread = (uint32_t)syscall(SYS_gettid);
    h.path_bytes = path ? (uint32_t)strlen(path) : 0;
    h.path2_bytes = path2 ? (uint32_t)strlen(path2) : 0;
    if (!data) h.data_bytes = 0;
    struct iovec parts[4] = {
        {&h, sizeof h}, {(void *)path, h.path_bytes}, {(void *)path2, h.path2_bytes},
        {(void *)data, h.data_bytes},
    };
    long long want = (long long)(sizeof h + h.path_bytes + h.path2_bytes + h.data_bytes);
    if (syscall(SYS_writev, trace_fd, parts, 4) != want) fail("cannot write the trace");
    errno = error;
}

static void record_unmodelled(const char *what, const char *path) {
    record((struct header){.op = OP_UNMODELLED}, relative(path), what, NULL);
}

/* ---- what is this descriptor, where is this path ---- */

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_BYTES_MAX - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    return 1;
}

/* Fills st and path when the answer is a file or a directory. Keeps errno. */
static enum watch watched(int fd, struct stat *st, char *path) {
    if (!ready) return WATCH_NOTHING;
    if (fd == ack_fd) return WATCH_ACKS;
    int error = errno;
    enum watch kind = WATCH_NOTHING;
    if (fstat(fd, st) == 0 && (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)) && path_of(fd, path)) {
        if (is_below_root(path)) kind = S_ISDIR(st->st_mode) ? WATCH_DIRECTORY : WATCH_FILE;
        else if (*ack_path && strcmp(path, ack_path) == 0) kind = WATCH_ACKS;
    }
    size_t length = kind ? strlen(path) : 0, suffix = strlen(DELETED);
    if (kind && kind != WATCH_ACKS && st->st_nlink == 0 && length > suffix
        && strcmp(path + length - suffix, DELETED) == 0)
        path[length - suffix] = '\0';
    errno = error;
    return kind;
}

/* The canonical path of an entry: its directory resolved by the kernel, its name as given.
 * True when it lies strictly below the root. Keeps errno. */
static int is_traced(int dirfd, const char *given, char *path) {
    char folder[PATH_MAX];
    size_t length = given ? strlen(given) : 0;
    if (!ready || length == 0 || length >= PATH_MAX) return 0;
    int error = errno, found = 0;
    strcpy(folder, given);
    while (length > 1 && folder[length - 1] == '/') folder[--length] = '\0';
    char *slash = strrchr(folder, '/');
    char name[NAME_MAX + 1];
    const char *last = slash ? slash + 1 : folder;
    if (strlen(last) <= NAME_MAX && *last) {
        strcpy(name, last);
        if (!slash) strcpy(folder, ".");
        else slash[slash == folder] = '\0';
        int fd = (int)syscall(SYS_openat, dirfd, folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        if (fd >= 0) {
            found = path_of(fd, path) && is_below_root(path);
            syscall(SYS_close, fd);
            if (found) strcat(strcat(path, "/"), name);
        }
    }
    errno = error;
    return found;
}

/* ---- what the laboratory cannot replay: noticed, so that no trace hides it ---- */

static void note_fd(int fd, const char *what) {
    struct stat st;
    char path[PATH_BYTES_MAX];
    if (watched(fd, &st, path) != WATCH_FILE) return;
    enter();
    record_unmodelled(what, path);
    leave();
}

static void note_path(int dirfd, const char *given, const char *what) {
    char path[PATH_BYTES_MAX];
    if (!is_traced(dirfd, given, path)) return;
    enter();
    record_unmodelled(what, path);
    leave();
}
