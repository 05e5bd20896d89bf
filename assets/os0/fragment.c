// SPDX-License-Identifier: GPL-2.0-or-later
// For tests: leaves memory in pieces. Takes nearly all that is free, puts each STEPth page of it but for KEPT MiB into
// a pipe, from where the kernel cannot move it, gives back all others, says so, and waits.
//
// Usage: fragment STEP KEPT
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
// What the system needs meanwhile.
#define LEFT (40 * MIB)
#define PER_PIPE 128

static unsigned long available(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : info.freeram * info.mem_unit;
}

static int pin(char *page)
{
	static unsigned int room;
	static int ends[2];
	struct iovec one = { page, PAGE };

	if (!room) {
		if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, PER_PIPE * PAGE) < 0)
			return 1;
		room = PER_PIPE;
	}
	room--;
	return vmsplice(ends[1], &one, 1, 0) != (ssize_t)PAGE;
}

int main(int count, char **words)
{
	unsigned long step = count > 1 ? strtoul(words[1], NULL, 10) : 0;
	unsigned long kept = count > 2 ? strtoul(words[2], NULL, 10) * MIB : 0;
	unsigned long room = available(), size = 0, at, pinned = 0;
	char *all = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (!step || all == MAP_FAILED || madvise(all, room, MADV_NOHUGEPAGE))
		return 1;
	for (; size < room && (size % MIB || available() > LEFT); size += PAGE)
		all[size] = 1;
	for (at = kept; at < size; at += step * PAGE, pinned++)
		if (pin(all + at))
			return 1;
	munmap(all, room);
	printf("fragment: %lu of %lu pages\n", pinned, size / PAGE);
	fflush(stdout);
	pause();
	return 0;
}
