// Calls of the C library that misbehave where the environment asks for it.
//
// FAULT_CLOCK    the wall clock jumps by an hour, forward and back, every 200 ms
// FAULT_SYNC     milliseconds that syncing a file takes
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && getenv("FAULT_CLOCK")) {
        struct timespec now;
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
        time->tv_sec += now.tv_nsec / 200000000 % 2 ? 3600 : -3600;
    }
    return result;
}

int fsync(int file) {
    const char *millis = getenv("FAULT_SYNC");
    if (millis) {
        long ms = atol(millis);
        struct timespec nap = { ms / 1000, ms % 1000 * 1000000 };
        nanosleep(&nap, NULL);
    }
    return (int)syscall(SYS_fsync, file);
}
