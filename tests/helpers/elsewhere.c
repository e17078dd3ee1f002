/* Another machine, for LD_PRELOAD: its clock is ELSEWHERE_SECONDS ahead, its name ELSEWHERE_NAME,
 * and with ELSEWHERE_NO_LINKS its disks have no hard links, as FAT.
 * Disks and servers keep their own clocks, as they do between machines. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    const char *text = getenv("ELSEWHERE_SECONDS");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int status = (int)syscall(SYS_clock_gettime, clock, found);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += ahead();
    return status;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

int gethostname(char *name, size_t length) {
    const char *text = getenv("ELSEWHERE_NAME");
    strncpy(name, text ? text : "elsewhere", length);
    return 0;
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    if (getenv("ELSEWHERE_NO_LINKS") == NULL)
        return (int)syscall(SYS_linkat, from, old, to, new, flags);
    errno = EPERM;
    return -1;
}

int link(const char *old, const char *new) {
    return linkat(AT_FDCWD, old, AT_FDCWD, new, 0);
}
