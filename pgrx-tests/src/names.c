/* Host names that resolve to whatever they are told to, for programs that preload this: the directory that WEBHOOK_NAMES
 * names has a file for each, with an address in it, or nothing where the name hangs; a lookup that hangs makes another
 * file, NAME.asked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *restrict node, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
{
	lookup *system = (lookup *) dlsym(RTLD_NEXT, "getaddrinfo");
	const char *directory = getenv("WEBHOOK_NAMES");
	char path[4096], asked[4200], address[128];

	if (!directory || !node || strchr(node, '/') || (hints && hints->ai_flags & AI_NUMERICHOST)
	    || snprintf(path, sizeof path, "%s/%s", directory, node) >= (int) sizeof path)
		return system(node, service, hints, found);
	for (;;) {
		FILE *file = fopen(path, "re");
		if (!file)
			return system(node, service, hints, found);
		int length = (int) fread(address, 1, sizeof address - 1, file);
		fclose(file);
		address[length] = 0;
		if (length > 0)
			return system(address, service, hints, found);
		snprintf(asked, sizeof asked, "%s.asked", path);
		if ((file = fopen(asked, "we")))
			fclose(file);
		usleep(20000);
	}
}
