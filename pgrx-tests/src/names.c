/* Host names that resolve to whatever they are told to, for programs that preload this: the directory that WEBHOOK_NAMES
 * names has a file for each. The file has the addresses of the name, one in a line. A blank line ends an answer: each lookup
 * has the next one, and the last is repeated. The lookup hangs while the file is empty, and makes another file, NAME.asked.
 * NAME.lookups has a byte for each lookup that was answered.
 *
 * The file "monotonic" has the number of microseconds by which the programs' monotonic clock is ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_clock(void)
{
	const char *directory = getenv("WEBHOOK_NAMES");
	char path[4096];
	if (!directory || snprintf(path, sizeof path, "%s/monotonic", directory) >= (int) sizeof path)
		return;
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return;
	void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
	if (mapped != MAP_FAILED)
		ahead = mapped;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int) syscall(SYS_clock_gettime, clock, now);
	if (result == 0 && ahead && clock == CLOCK_MONOTONIC) {
		int64_t nanoseconds = now->tv_nsec + *ahead % 1000000 * 1000;
		now->tv_sec += *ahead / 1000000 + nanoseconds / 1000000000;
		now->tv_nsec = nanoseconds % 1000000000;
	}
	return result;
}

/* Counts this lookup, and returns how many came before. */
static off_t count_lookup(const char *path)
{
	char counter[4200];
	struct stat counted = {0};
	snprintf(counter, sizeof counter, "%s.lookups", path);
	int file = open(counter, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (file < 0)
		return 0;
	if (write(file, ".", 1) == 1)
		fstat(file, &counted);
	close(file);
	return counted.st_size > 0 ? counted.st_size - 1 : 0;
}

/* All addresses of an answer, as one list; freeaddrinfo() frees its entries one by one. */
static int resolve_all(lookup *system, char *answer, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
	struct addrinfo **end = found;
	char *rest = NULL;
	*found = NULL;
	for (char *address = strtok_r(answer, "\n", &rest); address; address = strtok_r(NULL, "\n", &rest)) {
		int problem = system(address, service, hints, end);
		if (problem) {
			*end = NULL;
			if (*found)
				freeaddrinfo(*found);
			return problem;
		}
		while (*end)
			end = &(*end)->ai_next;
	}
	return *found ? 0 : EAI_NONAME;
}

int getaddrinfo(const char *restrict node, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
{
	lookup *system = (lookup *) dlsym(RTLD_NEXT, "getaddrinfo");
	const char *directory = getenv("WEBHOOK_NAMES");
	char path[4096], asked[4200], answers[1024];

	if (!directory || !node || strchr(node, '/') || (hints && hints->ai_flags & AI_NUMERICHOST)
	    || snprintf(path, sizeof path, "%s/%s", directory, node) >= (int) sizeof path)
		return system(node, service, hints, found);
	for (;;) {
		FILE *file = fopen(path, "re");
		if (!file)
			return system(node, service, hints, found);
		int length = (int) fread(answers, 1, sizeof answers - 1, file);
		fclose(file);
		answers[length] = 0;
		if (length > 0) {
			char *answer = answers, *end;
			for (off_t before = count_lookup(path); before > 0 && (end = strstr(answer, "\n\n")); before--)
				answer = end + 2;
			if ((end = strstr(answer, "\n\n")))
				*end = 0;
			return resolve_all(system, answer, service, hints, found);
		}
		snprintf(asked, sizeof asked, "%s.asked", path);
		if ((file = fopen(asked, "we")))
			fclose(file);
		usleep(20000);
	}
}
