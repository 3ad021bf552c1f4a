/* A wall clock that can be set, for programs that preload this: the file that WEBHOOK_CLOCK names has how far it is
 * from the true time, in microseconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void)
{
	const char *path = getenv("WEBHOOK_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	if (mapped != MAP_FAILED)
		offset = mapped;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int) syscall(SYS_clock_gettime, clock, now);
	if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t nanoseconds = now->tv_nsec + *offset % 1000000 * 1000;
		now->tv_sec += *offset / 1000000 + nanoseconds / 1000000000;
		now->tv_nsec = nanoseconds % 1000000000;
		if (now->tv_nsec < 0) {
			now->tv_nsec += 1000000000;
			now->tv_sec--;
		}
	}
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;
	(void) zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec precise;
	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
