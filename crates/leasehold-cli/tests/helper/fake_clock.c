/*
 * Clock that a test moves: a program that loads this library first (LD_PRELOAD) reads its wall clock
 * here. The file that FAKE_CLOCK names holds four 64-bit numbers: the offset in microseconds, the
 * rate, and the wall and monotonic times in microseconds from which on the rate applies. A monotonic
 * time of 0 leaves that clock alone. The test replaces the file as a whole.
 *
 * Calls the kernel directly, and allocates nothing: an allocator may read the clock while it starts.
 * Does not reach programs that call the kernel or the vDSO themselves.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct settings {
    int64_t offset, rate, wall_base, monotonic_base;
};

static int read_settings(struct settings *settings) {
    const char *path = getenv("FAKE_CLOCK");
    int saved = errno;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = file < 0 ? -1 : read(file, settings, sizeof *settings);
    if (file >= 0) {
        close(file);
    }
    errno = saved;
    return length == sizeof *settings;
}

static int64_t ahead(int64_t now, int64_t base, const struct settings *settings) {
    return now > base ? (settings->rate - 1) * (now - base) : 0;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    struct settings settings;
    int result = syscall(SYS_clock_gettime, id, time);
    if (result != 0 || !read_settings(&settings)) {
        return result;
    }
    int64_t now = (int64_t)time->tv_sec * 1000000 + time->tv_nsec / 1000;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
        now += settings.offset + ahead(now, settings.wall_base, &settings);
    } else if ((id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE) && settings.monotonic_base != 0) {
        now += ahead(now, settings.monotonic_base, &settings);
    } else {
        return 0;
    }
    time->tv_sec = now / 1000000;
    time->tv_nsec = now % 1000000 * 1000 + time->tv_nsec % 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) {
        *result = now.tv_sec;
    }
    return now.tv_sec;
}
