/* Writes down what a process does to the files of one directory, and makes its disk slow, full, read-only or faulty.
 *
 * Loaded with LD_PRELOAD. Writes go on to the real files, so the process reads what it wrote. The log has each of
 * them, each sync, and each change of a name, in their order. chaos/platter.py computes from it what a disk may hold
 * after the power failed at any moment. The log survives a SIGKILL, because its octets are with the kernel then.
 *
 * Variables: POWER_ROOT, the directory (its real path, without a slash at the end); POWER_LOG, the log, elsewhere;
 * POWER_FAULTS, a file with the eight numbers of `struct faults`, which may change while the process runs.
 *
 * A sync is not passed on: the model decides what is on the disk. Not modelled: writes through shared mappings
 * (refused, but for SQLite's -shm, which no recovery reads), hard and symbolic links (refused), directories (a
 * directory is durable once it is there), files of other processes, asynchronous input and output of the kernel.
 */
#define _GNU_SOURCE
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
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS_MAX 65536
#define FILES_MAX 65536

struct faults {
	int64_t sync_delay_us; /* each sync takes this long */
	int64_t failing_syncs; /* the next ones fail with EIO, and what they should have synced may be lost */
	int64_t failing_writes; /* the next ones fail with EIO, and write nothing */
	int64_t free_octets; /* files may grow by so many octets, then ENOSPC; below 0: without limit */
	int64_t is_read_only; /* EROFS */
	int64_t writes, syncs, octets; /* counted here, for the harness */
};

struct record { /* little-endian, as every machine that runs this is */
	uint8_t kind;
	uint8_t unused[3];
	uint32_t file;
	uint64_t number;
	uint32_t size;
} __attribute__((packed));

struct file {
	dev_t device;
	ino_t inode;
	int is_directory, may_map;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char root[PATH_MAX];
static size_t root_size; /* 0: nothing is watched */
static int log_fd = -1;
static uint64_t records;
static struct faults no_faults = {.free_octets = -1};
static struct faults *faults = &no_faults;
static int file_of_fd[FDS_MAX]; /* number + 1; 0: not watched */
static struct file files[FILES_MAX];
static int files_known;

#define REAL(name) \
	static __typeof__(&name) real; \
	if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int real_open(int at, const char *path, int flags, mode_t mode)
{
	static int (*real)(int, const char *, int, ...);
	if (real == NULL) real = dlsym(RTLD_NEXT, "openat64");
	return real(at, path, flags, mode);
}

static ssize_t real_pwrite(int fd, const void *octets, size_t size, off64_t offset)
{
	REAL(pwrite64);
	return real(fd, octets, size, offset);
}

static ssize_t real_writev(int fd, const struct iovec *parts, int count)
{
	REAL(writev);
	return real(fd, parts, count);
}

static void die(const char *what)
{
	char text[256];
	int size = snprintf(text, sizeof text, "power: %s: %s\n", what, strerror(errno));
	struct iovec part = {text, (size_t)size};
	(void)!real_writev(2, &part, 1);
	abort();
}

static void begin(void)
{
	const char *path = getenv("POWER_ROOT"), *faults_path = getenv("POWER_FAULTS");
	if (path == NULL) return;
	if (getenv("POWER_LOG") == NULL || strlen(path) >= sizeof root) die("POWER_LOG is not set, or a path is too long");
	if (faults_path != NULL) {
		int fd = real_open(AT_FDCWD, faults_path, O_RDWR | O_CLOEXEC, 0);
		void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED) die("POWER_FAULTS cannot be mapped");
		faults = at;
	}
	strcpy(root, path);
	root_size = strlen(root);
}

/* --- the log; the mutex is held ------------------------------------------------------------------------------- */

static void append(char kind, int file, uint64_t number, const void *octets, size_t size)
{
	if (log_fd < 0) {
		/* Late: of the process and its children only the one that opens a file here writes a log. */
		log_fd = real_open(AT_FDCWD, getenv("POWER_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
		if (log_fd < 0) die("POWER_LOG cannot be opened");
		append('B', 0, 0, NULL, 0);
	}
	struct record record = {.kind = (uint8_t)kind, .file = (uint32_t)file, .number = number, .size = (uint32_t)size};
	struct iovec parts[] = {{&record, sizeof record}, {(void *)octets, size}};
	if (real_writev(log_fd, parts, 2) != (ssize_t)(sizeof record + size)) die("POWER_LOG cannot be written");
	records++;
}

/* The path below the root, or NULL. `path` is absolute, without symbolic links. */
static const char *below(const char *path)
{
	if (strncmp(path, root, root_size) != 0) return NULL;
	if (path[root_size] == '\0') return path + root_size;
	return path[root_size] == '/' ? path + root_size + 1 : NULL;
}

/* The same for any path that a call names: its directory must exist, it itself need not. */
static const char *named(int at, const char *path, char *whole)
{
	char copy[PATH_MAX], folder[PATH_MAX];
	if (root_size == 0 || strlen(path) >= sizeof copy) return NULL;
	if (path[0] != '/' && at != AT_FDCWD) {
		char link[64];
		snprintf(link, sizeof link, "/proc/self/fd/%d", at);
		ssize_t size = readlink(link, folder, sizeof folder - 1);
		if (size < 0) return NULL;
		folder[size] = '\0';
		if (snprintf(copy, sizeof copy, "%s/%s", folder, path) >= (int)sizeof copy) return NULL;
	} else {
		strcpy(copy, path);
	}
	char *slash = strrchr(copy, '/'), *name = slash == NULL ? copy : slash + 1;
	char last[NAME_MAX + 1];
	if (strlen(name) > NAME_MAX) return NULL;
	strcpy(last, name);
	if (slash != NULL) *slash = '\0';
	const char *parent = slash == NULL ? "." : slash == copy ? "/" : copy;
	if (realpath(parent, folder) == NULL) return NULL;
	if (snprintf(whole, PATH_MAX, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, last) >= PATH_MAX) return NULL;
	size_t size = strlen(whole);
	if (size > 1 && whole[size - 1] == '/') whole[size - 1] = '\0';
	return below(whole);
}

/* Watch this descriptor if it is of a file below the root. */
static void watch(int fd, int was_there)
{
	char link[64], path[PATH_MAX];
	struct stat64 state;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t size = readlink(link, path, sizeof path - 1);
	if (size < 0 || fd >= FDS_MAX) return;
	path[size] = '\0';
	const char *name = below(path);
	file_of_fd[fd] = 0;
	if (name == NULL || fstat64(fd, &state) != 0) return;
	int number = files_known - 1;
	while (number >= 0 && (files[number].inode != state.st_ino || files[number].device != state.st_dev)) number--;
	if (number < 0 || !was_there) {
		if (files_known == FILES_MAX) die("too many files");
		size_t length = strlen(name);
		int is_shared_memory = length > 4 && strcmp(name + length - 4, "-shm") == 0;
		number = files_known++;
		files[number] = (struct file){state.st_dev, state.st_ino, S_ISDIR(state.st_mode), is_shared_memory};
		append(was_there ? 'O' : 'C', number, files[number].is_directory, name, length);
	}
	file_of_fd[fd] = number + 1;
}

/* The number of the file that this descriptor is of, or -1. */
static int watched(int fd, struct stat64 *state)
{
	if (fd < 0 || fd >= FDS_MAX || file_of_fd[fd] == 0) return -1;
	struct file *file = &files[file_of_fd[fd] - 1];
	/* The C library may have closed it without us, and somebody else has the number. */
	if (fstat64(fd, state) == 0 && state->st_ino == file->inode && state->st_dev == file->device)
		return file_of_fd[fd] - 1;
	file_of_fd[fd] = 0;
	return -1;
}

static int is_watched(int fd)
{
	return fd >= 0 && fd < FDS_MAX && __atomic_load_n(&file_of_fd[fd], __ATOMIC_RELAXED) != 0;
}

/* --- faults ----------------------------------------------------------------------------------------------------- */

static int64_t get(int64_t *number) { return __atomic_load_n(number, __ATOMIC_SEQ_CST); }

static void count(int64_t *number, int64_t more) { __atomic_add_fetch(number, more, __ATOMIC_SEQ_CST); }

static int take_one(int64_t *left)
{
	int64_t had = get(left);
	while (had > 0)
		if (__atomic_compare_exchange_n(left, &had, had - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
	return 0;
}

/* 0, or the error of a change that lets the file grow from `before` to `after` octets. */
static int refusal(off64_t before, off64_t after)
{
	int64_t room = get(&faults->free_octets);
	if (get(&faults->is_read_only)) return EROFS;
	if (take_one(&faults->failing_writes)) return EIO;
	if (room < 0) return 0;
	if (after > before && after - before > room) return ENOSPC;
	count(&faults->free_octets, before - after);
	return 0;
}

/* --- what is written ---------------------------------------------------------------------------------------------- */

static ssize_t do_write(int fd, const struct iovec *parts, int count_of_parts, off64_t offset, int *is_ours)
{
	struct stat64 state;
	pthread_mutex_lock(&mutex);
	int number = watched(fd, &state), flags = number < 0 ? 0 : fcntl(fd, F_GETFL);
	*is_ours = number >= 0;
	ssize_t done = -1;
	if (number >= 0) {
		size_t size = 0, copied = 0;
		for (int part = 0; part < count_of_parts; part++) size += parts[part].iov_len;
		int is_at_place = offset < 0;
		if (flags & O_APPEND) offset = state.st_size;
		else if (is_at_place) offset = lseek64(fd, 0, SEEK_CUR);
		off64_t end = offset + (off64_t)size;
		int error = refusal(state.st_size, end > state.st_size ? end : state.st_size);
		if (error != 0) {
			errno = error;
		} else {
			char *octets = malloc(size + 1);
			if (octets == NULL) die("no memory");
			for (int part = 0; part < count_of_parts; part++) {
				memcpy(octets + copied, parts[part].iov_base, parts[part].iov_len);
				copied += parts[part].iov_len;
			}
			done = real_pwrite(fd, octets, size, offset);
			if (done > 0) append('W', number, (uint64_t)offset, octets, (size_t)done);
			if (done > 0 && is_at_place) lseek64(fd, offset + done, SEEK_SET);
			count(&faults->writes, 1);
			count(&faults->octets, done > 0 ? done : 0);
			free(octets);
		}
	}
	int kept = errno;
	pthread_mutex_unlock(&mutex);
	errno = kept;
	return done;
}

ssize_t write(int fd, const void *octets, size_t size)
{
	REAL(write);
	if (!is_watched(fd)) return real(fd, octets, size);
	struct iovec part = {(void *)octets, size};
	int is_ours;
	ssize_t done = do_write(fd, &part, 1, -1, &is_ours);
	return is_ours ? done : real(fd, octets, size);
}

ssize_t pwrite64(int fd, const void *octets, size_t size, off64_t offset)
{
	if (!is_watched(fd)) return real_pwrite(fd, octets, size, offset);
	struct iovec part = {(void *)octets, size};
	int is_ours;
	ssize_t done = do_write(fd, &part, 1, offset, &is_ours);
	return is_ours ? done : real_pwrite(fd, octets, size, offset);
}

ssize_t pwrite(int fd, const void *octets, size_t size, off_t offset) { return pwrite64(fd, octets, size, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count_of_parts)
{
	if (!is_watched(fd)) return real_writev(fd, parts, count_of_parts);
	int is_ours;
	ssize_t done = do_write(fd, parts, count_of_parts, -1, &is_ours);
	return is_ours ? done : real_writev(fd, parts, count_of_parts);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count_of_parts, off64_t offset)
{
	REAL(pwritev64);
	if (!is_watched(fd)) return real(fd, parts, count_of_parts, offset);
	int is_ours;
	ssize_t done = do_write(fd, parts, count_of_parts, offset, &is_ours);
	return is_ours ? done : real(fd, parts, count_of_parts, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count_of_parts, off_t offset)
{
	return pwritev64(fd, parts, count_of_parts, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count_of_parts, off64_t offset, int flags)
{
	REAL(pwritev64v2);
	if (!is_watched(fd)) return real(fd, parts, count_of_parts, offset, flags);
	int is_ours;
	ssize_t done = do_write(fd, parts, count_of_parts, offset, &is_ours);
	return is_ours ? done : real(fd, parts, count_of_parts, offset, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count_of_parts, off_t offset, int flags)
{
	return pwritev64v2(fd, parts, count_of_parts, offset, flags);
}

static int resize(int fd, off64_t size, int only_to_grow)
{
	REAL(ftruncate64);
	struct stat64 state;
	if (!is_watched(fd)) return only_to_grow ? 1 : real(fd, size);
	pthread_mutex_lock(&mutex);
	int number = watched(fd, &state), result = 0, error = 0;
	if (number < 0) {
		result = only_to_grow ? 1 : real(fd, size);
	} else if (!only_to_grow || size > state.st_size) {
		error = refusal(state.st_size, size);
		if (error != 0) errno = error;
		result = error != 0 ? -1 : real(fd, size);
		if (result == 0) append('T', number, (uint64_t)size, NULL, 0);
	}
	int kept = errno;
	pthread_mutex_unlock(&mutex);
	errno = kept;
	return result;
}

int ftruncate64(int fd, off64_t size) { return resize(fd, size, 0); }

int ftruncate(int fd, off_t size) { return resize(fd, size, 0); }

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
	REAL(posix_fallocate64);
	int result = resize(fd, offset + size, 1);
	return result == 1 ? real(fd, offset, size) : result == 0 ? 0 : errno;
}

int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }

int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
	REAL(fallocate64);
	if (!is_watched(fd)) return real(fd, mode, offset, size);
	if (mode == 0) return resize(fd, offset + size, 1);
	errno = EOPNOTSUPP;
	return -1;
}

int fallocate(int fd, int mode, off_t offset, off_t size) { return fallocate64(fd, mode, offset, size); }

/* --- syncs ------------------------------------------------------------------------------------------------------- */

static int do_sync(int fd, int *is_ours)
{
	struct stat64 state;
	pthread_mutex_lock(&mutex);
	int number = watched(fd, &state), is_failing = 0;
	uint64_t covered = records;
	int64_t delay_us = get(&faults->sync_delay_us);
	pthread_mutex_unlock(&mutex);
	*is_ours = number >= 0;
	if (number < 0) return 0;
	if (delay_us > 0) {
		struct timespec span = {delay_us / 1000000, delay_us % 1000000 * 1000};
		while (nanosleep(&span, &span) != 0 && errno == EINTR) continue;
	}
	pthread_mutex_lock(&mutex);
	is_failing = take_one(&faults->failing_syncs);
	append(is_failing ? 'E' : 'S', number, covered, NULL, 0);
	count(&faults->syncs, 1);
	pthread_mutex_unlock(&mutex);
	errno = is_failing ? EIO : errno;
	return is_failing ? -1 : 0;
}

int fsync(int fd)
{
	REAL(fsync);
	int is_ours = 0, result = is_watched(fd) ? do_sync(fd, &is_ours) : 0;
	return is_ours ? result : real(fd);
}

int fdatasync(int fd)
{
	REAL(fdatasync);
	int is_ours = 0, result = is_watched(fd) ? do_sync(fd, &is_ours) : 0;
	return is_ours ? result : real(fd);
}

/* --- names ------------------------------------------------------------------------------------------------------- */

static int do_open(int at, const char *path, int flags, mode_t mode)
{
	char whole[PATH_MAX];
	pthread_once(&once, begin);
	int is_change = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
	if (root_size == 0) return real_open(at, path, flags, mode);
	pthread_mutex_lock(&mutex);
	const char *name = named(at, path, whole);
	struct stat64 state;
	int was_there = name == NULL || fstatat64(at, path, &state, 0) == 0, fd = -1;
	if (name != NULL && is_change && get(&faults->is_read_only)) {
		errno = EROFS;
	} else {
		fd = real_open(at, path, flags, mode);
		int kept = errno;
		if (fd >= 0) watch(fd, was_there);
		if (fd >= 0 && was_there && (flags & O_TRUNC) && is_watched(fd)) {
			if (get(&faults->free_octets) >= 0) count(&faults->free_octets, state.st_size);
			append('T', file_of_fd[fd] - 1, 0, NULL, 0);
		}
		errno = kept;
	}
	int kept = errno;
	pthread_mutex_unlock(&mutex);
	errno = kept;
	return fd;
}

#define MODE_AFTER(last) \
	mode_t mode = 0; \
	if (flags & (O_CREAT | __O_TMPFILE)) { \
		va_list rest; \
		va_start(rest, last); \
		mode = va_arg(rest, mode_t); \
		va_end(rest); \
	}

int open(const char *path, int flags, ...) { MODE_AFTER(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_AFTER(flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE_AFTER(flags) return do_open(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE_AFTER(flags) return do_open(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
/* What <fcntl.h> makes of calls without a mode where _FORTIFY_SOURCE is on. */
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }

static void forget(int fd)
{
	if (fd >= 0 && fd < FDS_MAX) __atomic_store_n(&file_of_fd[fd], 0, __ATOMIC_RELAXED);
}

int close(int fd)
{
	REAL(close);
	forget(fd);
	return real(fd);
}

static int copied(int fd, int copy)
{
	if (copy >= 0 && copy < FDS_MAX && fd >= 0 && fd < FDS_MAX)
		__atomic_store_n(&file_of_fd[copy], file_of_fd[fd], __ATOMIC_RELAXED);
	return copy;
}

int dup(int fd)
{
	REAL(dup);
	return copied(fd, real(fd));
}

int dup2(int fd, int copy)
{
	REAL(dup2);
	return copied(fd, real(fd, copy));
}

int dup3(int fd, int copy, int flags)
{
	REAL(dup3);
	return copied(fd, real(fd, copy, flags));
}

int fcntl64(int fd, int command, ...)
{
	static int (*real)(int, int, ...);
	if (real == NULL) real = dlsym(RTLD_NEXT, "fcntl64");
	va_list rest;
	va_start(rest, command);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	int result = real(fd, command, argument);
	return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}

int fcntl(int fd, int command, ...)
{
	va_list rest;
	va_start(rest, command);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	return fcntl64(fd, command, argument);
}

int renameat2(int old_at, const char *old_path, int new_at, const char *new_path, unsigned int flags)
{
	REAL(renameat2);
	char old_whole[PATH_MAX], new_whole[PATH_MAX], both[2 * PATH_MAX];
	pthread_once(&once, begin);
	if (root_size == 0) return real(old_at, old_path, new_at, new_path, flags);
	pthread_mutex_lock(&mutex);
	const char *old_name = named(old_at, old_path, old_whole), *new_name = named(new_at, new_path, new_whole);
	int result = -1;
	if (old_name == NULL && new_name == NULL) {
		result = real(old_at, old_path, new_at, new_path, flags);
	} else if (old_name == NULL || new_name == NULL || flags != 0) {
		errno = EXDEV;
	} else if (get(&faults->is_read_only)) {
		errno = EROFS;
	} else {
		result = real(old_at, old_path, new_at, new_path, flags);
		size_t old_size = strlen(old_name) + 1, new_size = strlen(new_name);
		memcpy(both, old_name, old_size);
		memcpy(both + old_size, new_name, new_size);
		int kept = errno;
		if (result == 0) append('R', 0, 0, both, old_size + new_size);
		errno = kept;
	}
	int kept = errno;
	pthread_mutex_unlock(&mutex);
	errno = kept;
	return result;
}

int renameat(int old_at, const char *old_path, int new_at, const char *new_path)
{
	return renameat2(old_at, old_path, new_at, new_path, 0);
}

int rename(const char *old_path, const char *new_path)
{
	return renameat2(AT_FDCWD, old_path, AT_FDCWD, new_path, 0);
}

int unlinkat(int at, const char *path, int flags)
{
	REAL(unlinkat);
	char whole[PATH_MAX];
	pthread_once(&once, begin);
	if (root_size == 0 || (flags & AT_REMOVEDIR)) return real(at, path, flags);
	pthread_mutex_lock(&mutex);
	const char *name = named(at, path, whole);
	struct stat64 state = {0};
	int result = -1;
	if (name != NULL && get(&faults->is_read_only)) {
		errno = EROFS;
	} else {
		int is_known = name != NULL && fstatat64(at, path, &state, AT_SYMLINK_NOFOLLOW) == 0;
		result = real(at, path, flags);
		int kept = errno;
		if (result == 0 && name != NULL) append('U', 0, 0, name, strlen(name));
		if (result == 0 && is_known && get(&faults->free_octets) >= 0) count(&faults->free_octets, state.st_size);
		errno = kept;
	}
	int kept = errno;
	pthread_mutex_unlock(&mutex);
	errno = kept;
	return result;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int remove(const char *path)
{
	REAL(remove);
	int result = unlink(path);
	return result != 0 && errno == EISDIR ? real(path) : result;
}

/* --- what is refused ----------------------------------------------------------------------------------------------- */

static int is_refused_name(int at, const char *path)
{
	char whole[PATH_MAX];
	pthread_once(&once, begin);
	return root_size != 0 && named(at, path, whole) != NULL;
}

int linkat(int old_at, const char *old_path, int new_at, const char *new_path, int flags)
{
	REAL(linkat);
	if (!is_refused_name(new_at, new_path)) return real(old_at, old_path, new_at, new_path, flags);
	errno = EPERM;
	return -1;
}

int link(const char *old_path, const char *new_path)
{
	return linkat(AT_FDCWD, old_path, AT_FDCWD, new_path, 0);
}

int symlinkat(const char *target, int at, const char *path)
{
	REAL(symlinkat);
	if (!is_refused_name(at, path)) return real(target, at, path);
	errno = EPERM;
	return -1;
}

int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int truncate64(const char *path, off64_t size)
{
	int fd = do_open(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
	if (fd < 0) return -1;
	int result = resize(fd, size, 0), kept = errno;
	close(fd);
	errno = kept;
	return result;
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }

ssize_t sendfile64(int to, int from, off64_t *offset, size_t size)
{
	static ssize_t (*real)(int, int, off64_t *, size_t);
	if (real == NULL) real = dlsym(RTLD_NEXT, "sendfile64");
	if (!is_watched(to)) return real(to, from, offset, size);
	errno = EINVAL;
	return -1;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) { return sendfile64(to, from, offset, size); }

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned int flags)
{
	REAL(copy_file_range);
	if (!is_watched(to)) return real(from, from_at, to, to_at, size, flags);
	errno = EXDEV;
	return -1;
}

void *mmap64(void *where, size_t size, int protection, int flags, int fd, off64_t offset)
{
	REAL(mmap64);
	int is_refused = (protection & PROT_WRITE) && (flags & MAP_TYPE) != MAP_PRIVATE && is_watched(fd)
		&& !files[file_of_fd[fd] - 1].may_map;
	if (!is_refused) return real(where, size, protection, flags, fd, offset);
	errno = EACCES;
	return MAP_FAILED;
}

void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset)
{
	return mmap64(where, size, protection, flags, fd, offset);
}
