/* LD_PRELOAD shim between a program and the file system for everything below one folder. It logs the calls of all
 * processes in order, and can make a call fail or the process die.
 *
 *   FAULT_ROOT      the folder
 *   FAULT_LOG       log of the calls (optional)
 *   FAULT_KIND      kill (before the call), enospc, eio, short (half of a write is done), erofs
 *   FAULT_AT        number of the affected call, counted from 1 among the calls of this kind
 *   FAULT_STICKY=1  after the fault, all later calls fail too, in every process
 *   FAULT_MARK      for FAULT_STICKY: path of a file outside the folder, created at the fault; processes check it
 *   FAULT_RANK      the fault occurs only in the process with this RANK
 *   FAULT_UNDER     the fault affects only paths that contain this text
 *   FAULT_NO_EXCHANGE=1  simulates a file system without RENAME_EXCHANGE
 *
 * Each line of the log is: call TAB path [TAB more]. The data of a write follows its line, which has the length. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1, num_seen = 0, at = 0, sticky = 0;
static const char *root = NULL, *kind = NULL, *under = NULL, *mark = NULL;

enum { MAKES = 1, WRITES = 2, SYNCS = 4, NAMES = 8 };

__attribute__((constructor)) static void begin(void) {
  const char *rank = getenv("FAULT_RANK"), *own = getenv("RANK"), *log = getenv("FAULT_LOG"),
             *where = getenv("FAULT_AT");
  root = getenv("FAULT_ROOT");
  under = getenv("FAULT_UNDER");
  if (root && log) log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (rank && (!own || strcmp(own, rank) != 0)) return;
  kind = getenv("FAULT_KIND");
  at = where ? atoi(where) : 0;
  sticky = getenv("FAULT_STICKY") != NULL;
  mark = getenv("FAULT_MARK");
}

/* Writes the absolute path of a name, or of a descriptor if name is NULL, to `path`. Returns 0 if it is outside the
 * root. */
static int inside(int dir, const char* name, char* path) {
  if (!root) return 0;
  char base[4096] = "";
  if (name && name[0] == '/') {
    snprintf(path, 4096, "%s", name);
  } else {
    if (dir == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      char link[64];
      snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
      ssize_t n = readlink(link, base, sizeof base - 1);
      if (n <= 0) return 0;
      base[n] = 0;
    }
    if (snprintf(path, 4096, "%s%s%s", base, name ? "/" : "", name ? name : "") >= 4096) return 0;
  }
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') path[--length] = 0;
  size_t n = strlen(root);
  return strncmp(path, root, n) == 0 && path[n] == '/';
}

static void lock(void) {
  pthread_mutex_lock(&mutex);
  if (log_fd >= 0) flock(log_fd, LOCK_EX);
}
static void unlock(void) {
  int error = errno;
  if (log_fd >= 0) flock(log_fd, LOCK_UN);
  pthread_mutex_unlock(&mutex);
  errno = error;
}

static void note(const void* data, size_t bytes, const char* format, ...) {
  if (log_fd < 0) return;
  int error = errno;
  char line[9000];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(line, sizeof line, format, list);
  va_end(list);
  struct iovec parts[2] = {{line, (size_t)n}, {(void*)data, bytes}};
  syscall(SYS_writev, log_fd, parts, bytes ? 2 : 1);
  errno = error;
}

/* True if the sticky fault has occurred in any process, because a full disk is full for all processes. */
static int marked(void) {
  return sticky && mark && syscall(SYS_faccessat, AT_FDCWD, mark, F_OK) == 0;
}

/* Returns the errno with which this call must fail, -1 for a half write, or 0 for no fault. Kills the process if
 * FAULT_KIND is kill. */
static int fault(int what, const char* path) {
  if (!kind || !at || (under && !strstr(path, under))) return 0;
  int concerned = strcmp(kind, "kill") == 0     ? MAKES | WRITES | SYNCS | NAMES
                  : strcmp(kind, "enospc") == 0 ? MAKES | WRITES
                  : strcmp(kind, "eio") == 0    ? WRITES | SYNCS
                  : strcmp(kind, "short") == 0  ? WRITES
                                                : MAKES | NAMES;
  if (!(concerned & what)) return 0;
  ++num_seen;
  if ((sticky ? num_seen < at : num_seen != at) && !marked()) return 0;
  if (sticky && mark) close((int)syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
  return strcmp(kind, "enospc") == 0  ? ENOSPC
         : strcmp(kind, "eio") == 0   ? EIO
         : strcmp(kind, "short") == 0 ? -1
                                      : EROFS;
}

int access(const char* name, int mode) {
  char path[4096];
  const int denied = (mode & W_OK) && kind && strcmp(kind, "erofs") == 0 && marked() && inside(AT_FDCWD, name, path) &&
                     (!under || strstr(path, under));
  if (!denied) return (int)syscall(SYS_faccessat, AT_FDCWD, name, mode);
  errno = EROFS;
  return -1;
}

static int opened(int dir, const char* name, int flags, mode_t mode) {
  char path[4096];
  if (!inside(dir, name, path) || !(flags & (O_CREAT | O_TRUNC)))
    return (int)syscall(SYS_openat, dir, name, flags, mode);
  lock();
  const int there = access(path, F_OK) == 0, failure = flags & O_CREAT && !there ? fault(MAKES, path) : 0;
  int fd = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    fd = (int)syscall(SYS_openat, dir, name, flags, mode);
    if (fd >= 0 && !there) note(NULL, 0, "create\t%s\n", path);
    if (fd >= 0 && there && flags & O_TRUNC) note(NULL, 0, "truncate\t%s\t0\n", path);
  }
  unlock();
  return fd;
}
static mode_t mode_of(int flags, va_list list) {
  return flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
}
#define OPEN_BODY(dir, name)                \
  va_list list;                             \
  va_start(list, flags);                    \
  const mode_t mode = mode_of(flags, list); \
  va_end(list);                             \
  return opened(dir, name, flags, mode);
int open(const char* name, int flags, ...) {
  OPEN_BODY(AT_FDCWD, name)
}
int open64(const char* name, int flags, ...) {
  OPEN_BODY(AT_FDCWD, name)
}
int openat(int dir, const char* name, int flags, ...) {
  OPEN_BODY(dir, name)
}
int openat64(int dir, const char* name, int flags, ...){OPEN_BODY(dir, name)}

ssize_t write(int fd, const void* data, size_t bytes) {
  char path[4096];
  if (fd == log_fd || !inside(fd, NULL, path)) return syscall(SYS_write, fd, data, bytes);
  lock();
  const int failure = fault(WRITES, path);
  ssize_t done = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    struct stat info;
    fstat(fd, &info);
    const off_t offset = fcntl(fd, F_GETFL) & O_APPEND ? info.st_size : lseek(fd, 0, SEEK_CUR);
    done = syscall(SYS_write, fd, data, failure < 0 && bytes > 1 ? bytes / 2 : bytes);
    if (done > 0) note(data, (size_t)done, "write\t%s\t%lld\t%zd\n", path, (long long)offset, done);
  }
  unlock();
  return done;
}

static int synced(int fd, long call) {
  char path[4096];
  if (!inside(fd, NULL, path) && (!root || strcmp(path, root) != 0)) return (int)syscall(call, fd);
  lock();
  const int failure = fault(SYNCS, path);
  int result = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    result = (int)syscall(call, fd);
    if (result == 0) note(NULL, 0, "sync\t%s\n", path);
  }
  unlock();
  return result;
}
int fsync(int fd) {
  return synced(fd, SYS_fsync);
}
int fdatasync(int fd) {
  return synced(fd, SYS_fdatasync);
}

int ftruncate(int fd, off_t bytes) {
  char path[4096];
  const int result = (int)syscall(SYS_ftruncate, fd, bytes);
  if (result == 0 && inside(fd, NULL, path)) note(NULL, 0, "truncate\t%s\t%lld\n", path, (long long)bytes);
  return result;
}
int ftruncate64(int fd, off_t bytes) {
  return ftruncate(fd, bytes);
}

static int renamed(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  char a[4096], b[4096];
  if (!inside(from_dir, from, a) || !inside(to_dir, to, b))
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
  if (flags && getenv("FAULT_NO_EXCHANGE")) {
    errno = EINVAL;
    return -1;
  }
  lock();
  const int failure = fault(NAMES, a);
  int result = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (result == 0) note(NULL, 0, "%s\t%s\t%s\n", flags & RENAME_EXCHANGE ? "exchange" : "rename", a, b);
  }
  unlock();
  return result;
}
int rename(const char* from, const char* to) {
  return renamed(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int x, const char* from, int y, const char* to) {
  return renamed(x, from, y, to, 0);
}
int renameat2(int x, const char* from, int y, const char* to, unsigned flags) {
  return renamed(x, from, y, to, flags);
}

static int removed(int dir, const char* name, int flags) {
  char path[4096];
  if (!inside(dir, name, path)) return (int)syscall(SYS_unlinkat, dir, name, flags);
  lock();
  const int failure = fault(NAMES, path);
  int result = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    result = (int)syscall(SYS_unlinkat, dir, name, flags);
    if (result == 0) note(NULL, 0, "remove\t%s\n", path);
  }
  unlock();
  return result;
}
int unlink(const char* name) {
  return removed(AT_FDCWD, name, 0);
}
int rmdir(const char* name) {
  return removed(AT_FDCWD, name, AT_REMOVEDIR);
}
int unlinkat(int dir, const char* name, int flags) {
  return removed(dir, name, flags);
}
int remove(const char* name) {
  const int result = removed(AT_FDCWD, name, 0);
  return result != 0 && errno == EISDIR ? removed(AT_FDCWD, name, AT_REMOVEDIR) : result;
}

static int made(int dir, const char* name, mode_t mode) {
  char path[4096];
  if (!inside(dir, name, path)) return (int)syscall(SYS_mkdirat, dir, name, mode);
  lock();
  const int failure = fault(MAKES, path);
  int result = -1;
  if (failure > 0) {
    errno = failure;
  } else {
    result = (int)syscall(SYS_mkdirat, dir, name, mode);
    if (result == 0) note(NULL, 0, "mkdir\t%s\n", path);
  }
  unlock();
  return result;
}
int mkdir(const char* name, mode_t mode) {
  return made(AT_FDCWD, name, mode);
}
int mkdirat(int dir, const char* name, mode_t mode) {
  return made(dir, name, mode);
}
