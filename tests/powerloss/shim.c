/* Records what a program does to the files below one directory, for replaying a power loss.
 *
 * Preloaded (LD_PRELOAD) into an unmodified program on Linux with glibc, x86-64 or aarch64.
 *   PENSTOCK_TRACE_ROOT    directory whose changes are recorded; must exist
 *   PENSTOCK_TRACE_FILE    trace to append to, outside the root; several programs may share it
 *   PENSTOCK_TRACE_ACK_FD  descriptor whose written bytes are acknowledgements (optional)
 *   PENSTOCK_TRACE_ACKS    file whose written bytes are acknowledgements; must exist (optional)
 *
 * Invariant: the order of the records is the order of the effects, over all threads and programs
 * that share the trace. A change is made and recorded under one lock; a sync, which may take long,
 * runs outside it and leaves two records, so that only what was complete before it *started* counts
 * as covered. Only what succeeded is recorded. What cannot be replayed is recorded as such, and a
 * record that cannot be written ends the program: a hole in the trace would pass for safety.
 *
 * There is no table of descriptors: the kernel is asked what a descriptor is (fstat for the inode,
 * /proc/self/fd for the path), so dup, fork, exec and renames of open files need no attention.
 */
#define _GNU_SOURCE
#include "recorder.h"

/* ---- creating and opening ---- */

NEEDS(openat);

static int open_traced(int dirfd, const char *given, int flags, mode_t mode) {
    char path[PATH_BYTES_MAX];
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    int is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    if (!writes && !(flags & (O_CREAT | O_TRUNC))) return REAL(openat)(dirfd, given, flags, mode);
    if (!is_traced(dirfd, given, path)) return REAL(openat)(dirfd, given, flags, mode);
    enter();
    struct stat before, now;
    int error = errno;
    int existed = fstatat(dirfd, given, &before, 0) == 0;
    errno = error;
    int fd = REAL(openat)(dirfd, given, flags, mode);
    if (fd >= 0 && fstat(fd, &now) == 0 && S_ISREG(now.st_mode) && path_of(fd, path) && is_below_root(path)) {
        if (is_unnamed) record_unmodelled("O_TMPFILE", path);
        else if (!existed) record((struct header){.op = OP_CREATE, .inode = now.st_ino}, relative(path), NULL, NULL);
        else if ((flags & O_TRUNC) && before.st_size > 0)
            record((struct header){.op = OP_TRUNCATE, .inode = now.st_ino}, relative(path), NULL, NULL);
        if (writes && (flags & O_DSYNC)) record_unmodelled("O_SYNC or O_DSYNC", path);
    }
    leave();
    return fd;
}

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
#define OPEN(name) int name(const char *path, int flags, ...) { \
    MODE_OF(flags, mode) return open_traced(AT_FDCWD, path, flags, mode); }
#define OPENAT(name) int name(int dirfd, const char *path, int flags, ...) { \
    MODE_OF(flags, mode) return open_traced(dirfd, path, flags, mode); }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int __open_2(const char *path, int flags) { return open_traced(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_traced(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return open_traced(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return open_traced(dirfd, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open_traced(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* ---- writing ---- */

#define AT_POSITION (-1)

static int is_zeros(const char *data, size_t bytes) {
    return bytes > 1 && data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

static void record_written(enum watch kind, int fd, const void *data, ssize_t written, off_t offset) {
    struct stat st;
    char path[PATH_BYTES_MAX];
    int error = errno;
    if (kind == WATCH_ACKS) {
        record((struct header){.op = OP_ACK, .data_bytes = (uint64_t)written}, NULL, NULL, data);
    } else {
        watched(fd, &st, path); /* again, now under the lock: the size after this write */
        if (offset == AT_POSITION) offset = lseek(fd, 0, SEEK_CUR) - written;
        else if (fcntl(fd, F_GETFL) & O_APPEND) offset = st.st_size - written; /* Linux appends, see pwrite(2) */
        int zeros = is_zeros(data, (size_t)written);
        record((struct header){.op = zeros ? OP_ZERO : OP_WRITE, .inode = st.st_ino, .a = (uint64_t)offset,
                               .b = (uint64_t)written, .data_bytes = (uint64_t)written},
               relative(path), NULL, zeros ? NULL : data);
    }
    errno = error;
}

static void record_gathered(enum watch kind, int fd, const struct iovec *parts, int count, ssize_t written,
                            off_t offset) {
    char *data = malloc((size_t)written);
    if (!data) fail("malloc");
    size_t done = 0;
    for (int i = 0; i < count && done < (size_t)written; i++) {
        size_t left = (size_t)written - done;
        size_t bytes = parts[i].iov_len < left ? parts[i].iov_len : left;
        memcpy(data + done, parts[i].iov_base, bytes);
        done += bytes;
    }
    record_written(kind, fd, data, written, offset);
    free(data);
}

#define RECORDED(fd, call, store) \
    struct stat st; \
    char path[PATH_BYTES_MAX]; \
    enum watch kind = watched(fd, &st, path); \
    if (kind == WATCH_NOTHING) return call; \
    enter(); \
    ssize_t written = call; \
    if (written > 0) store; \
    leave(); \
    return written;

NEEDS(write);
ssize_t write(int fd, const void *data, size_t bytes) {
    RECORDED(fd, REAL(write)(fd, data, bytes), record_written(kind, fd, data, written, AT_POSITION))
}
NEEDS(pwrite64);
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
    RECORDED(fd, REAL(pwrite64)(fd, data, bytes, offset), record_written(kind, fd, data, written, offset))
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) { return pwrite64(fd, data, bytes, offset); }
NEEDS(writev);
ssize_t writev(int fd, const struct iovec *parts, int count) {
    RECORDED(fd, REAL(writev)(fd, parts, count), record_gathered(kind, fd, parts, count, written, AT_POSITION))
}
NEEDS(pwritev64v2);
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    if (flags & (RWF_SYNC | RWF_DSYNC | RWF_APPEND)) note_fd(fd, "pwritev2 with flags");
    RECORDED(fd, REAL(pwritev64v2)(fd, parts, count, offset, flags),
             record_gathered(kind, fd, parts, count, written, offset))
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(fd, parts, count, offset, flags);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    if (offset < 0) { errno = EINVAL; return -1; } /* -1 means "the position" to pwritev2 only */
    return pwritev64v2(fd, parts, count, offset, 0);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(fd, parts, count, offset);
}

/* ---- sizes ---- */

static void record_size(int fd) {
    struct stat st;
    char path[PATH_BYTES_MAX];
    if (watched(fd, &st, path) == WATCH_FILE)
        record((struct header){.op = OP_TRUNCATE, .inode = st.st_ino, .a = (uint64_t)st.st_size},
               relative(path), NULL, NULL);
}

#define RESIZED(fd, call) \
    struct stat st; \
    char path[PATH_BYTES_MAX]; \
    if (watched(fd, &st, path) != WATCH_FILE) return call; \
    enter(); \
    int result = call; \
    if (result == 0) record_size(fd); \
    leave(); \
    return result;

NEEDS(ftruncate);
int ftruncate(int fd, off_t size) { RESIZED(fd, REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
NEEDS(posix_fallocate);
int posix_fallocate(int fd, off_t offset, off_t bytes) {
    RESIZED(fd, REAL(posix_fallocate)(fd, offset, bytes))
}
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) { return posix_fallocate(fd, offset, bytes); }
NEEDS(fallocate);
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    if (mode & ~FALLOC_FL_KEEP_SIZE) note_fd(fd, "fallocate with a mode");
    RESIZED(fd, REAL(fallocate)(fd, mode, offset, bytes))
}
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) { return fallocate(fd, mode, offset, bytes); }
NEEDS(truncate);
int truncate(const char *given, off_t size) {
    char path[PATH_BYTES_MAX];
    if (!is_traced(AT_FDCWD, given, path)) return REAL(truncate)(given, size);
    enter();
    struct stat st;
    int result = REAL(truncate)(given, size);
    if (result == 0 && stat(given, &st) == 0)
        record((struct header){.op = OP_TRUNCATE, .inode = st.st_ino, .a = (uint64_t)size}, relative(path), NULL, NULL);
    leave();
    return result;
}
int truncate64(const char *given, off64_t size) { return truncate(given, size); }

/* ---- entries of directories ---- */

NEEDS(mkdirat);
int mkdirat(int dirfd, const char *given, mode_t mode) {
    char path[PATH_BYTES_MAX];
    if (!is_traced(dirfd, given, path)) return REAL(mkdirat)(dirfd, given, mode);
    enter();
    struct stat st;
    int result = REAL(mkdirat)(dirfd, given, mode);
    if (result == 0 && fstatat(dirfd, given, &st, 0) == 0)
        record((struct header){.op = OP_MKDIR, .inode = st.st_ino}, relative(path), NULL, NULL);
    leave();
    return result;
}
int mkdir(const char *given, mode_t mode) { return mkdirat(AT_FDCWD, given, mode); }

NEEDS(unlinkat);
int unlinkat(int dirfd, const char *given, int flags) {
    char path[PATH_BYTES_MAX];
    if (!is_traced(dirfd, given, path)) return REAL(unlinkat)(dirfd, given, flags);
    enter();
    struct stat st;
    int error = errno;
    int known = fstatat(dirfd, given, &st, AT_SYMLINK_NOFOLLOW) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
    errno = error;
    int result = REAL(unlinkat)(dirfd, given, flags);
    if (result == 0 && known) record((struct header){.op = OP_UNLINK, .inode = st.st_ino}, relative(path), NULL, NULL);
    leave();
    return result;
}
int unlink(const char *given) { return unlinkat(AT_FDCWD, given, 0); }
int rmdir(const char *given) { return unlinkat(AT_FDCWD, given, AT_REMOVEDIR); }

/* Renames and links: the same shape, two paths. */
static int moved(uint8_t op, int from_traced, int to_traced, const char *from, const char *to, unsigned flags,
                 int result, uint64_t inode) {
    if (result != 0) return result;
    if (!from_traced || !to_traced) record_unmodelled("a rename or link across the root", from_traced ? from : to);
    else if (flags & ~(unsigned)RENAME_NOREPLACE) record_unmodelled("renameat2 with flags", to);
    else record((struct header){.op = op, .inode = inode}, relative(from), relative(to), NULL);
    return result;
}

#define MOVE(op, from_dir, from, to_dir, to, flags, call) \
    char path[PATH_BYTES_MAX], path2[PATH_BYTES_MAX]; \
    int in = is_traced(from_dir, from, path), in2 = is_traced(to_dir, to, path2); \
    if (!in && !in2) return call; \
    enter(); \
    struct stat st = {0}; \
    int error = errno; \
    (void)!fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW); \
    errno = error; \
    int result = moved(op, in, in2, path, path2, flags, call, st.st_ino); \
    leave(); \
    return result;

NEEDS(renameat);
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    MOVE(OP_RENAME, from_dir, from, to_dir, to, 0u, REAL(renameat)(from_dir, from, to_dir, to))
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
NEEDS(renameat2);
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    MOVE(OP_RENAME, from_dir, from, to_dir, to, flags, REAL(renameat2)(from_dir, from, to_dir, to, flags))
}
NEEDS(linkat);
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    MOVE(OP_LINK, from_dir, from, to_dir, to, 0u, REAL(linkat)(from_dir, from, to_dir, to, flags))
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* ---- syncs ---- */

static int sync_traced(int fd, uint8_t flag, int (*sync_one)(int)) {
    struct stat st;
    char path[PATH_BYTES_MAX];
    enum watch kind = watched(fd, &st, path);
    if (kind != WATCH_FILE && kind != WATCH_DIRECTORY) return sync_one(fd);
    if (kind == WATCH_DIRECTORY) flag |= SYNC_DIRECTORY;
    enter();
    record((struct header){.op = OP_SYNC_BEGIN, .flag = flag, .inode = st.st_ino}, relative(path), NULL, NULL);
    leave();
    int result = sync_one(fd);
    enter();
    record((struct header){.op = OP_SYNC_END, .a = result == 0 ? 0 : (uint64_t)errno}, NULL, NULL, NULL);
    leave();
    return result;
}

NEEDS(fsync);
int fsync(int fd) { return sync_traced(fd, 0, REAL(fsync)); }
NEEDS(fdatasync);
int fdatasync(int fd) { return sync_traced(fd, SYNC_DATA_ONLY, REAL(fdatasync)); }

/* ---- ways around the above: noticed, not replayed ---- */

NEEDS(mmap);
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    int type = flags & MAP_TYPE;
    if (fd >= 0 && (protection & PROT_WRITE) && (type == MAP_SHARED || type == MAP_SHARED_VALIDATE)) {
        struct stat st;
        char path[PATH_BYTES_MAX];
        /* SQLite's -shm is rebuilt after a crash whatever it holds; everything else must be seen. */
        if (watched(fd, &st, path) == WATCH_FILE
            && (strlen(path) < 4 || strcmp(path + strlen(path) - 4, "-shm") != 0)) note_fd(fd, "a writable mmap");
    }
    return REAL(mmap)(at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset) {
    return mmap(at, bytes, protection, flags, fd, offset);
}
NEEDS(sendfile);
ssize_t sendfile(int to, int from, off_t *offset, size_t bytes) {
    note_fd(to, "sendfile");
    return REAL(sendfile)(to, from, offset, bytes);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t bytes) { return sendfile(to, from, offset, bytes); }
NEEDS(copy_file_range);
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    note_fd(to, "copy_file_range");
    return REAL(copy_file_range)(from, from_at, to, to_at, bytes, flags);
}
NEEDS(splice);
ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    note_fd(to, "splice");
    return REAL(splice)(from, from_at, to, to_at, bytes, flags);
}
NEEDS(symlinkat);
int symlinkat(const char *target, int dirfd, const char *path) {
    note_path(dirfd, path, "symlink");
    return REAL(symlinkat)(target, dirfd, path);
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
NEEDS(fopen);
FILE *fopen(const char *path, const char *mode) {
    if (strpbrk(mode, "wa+")) note_path(AT_FDCWD, path, "fopen for writing");
    return REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
