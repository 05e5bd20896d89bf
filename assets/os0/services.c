// SPDX-License-Identifier: GPL-2.0-or-later
// What the kernel's services cost (Mercury, table 1): prints a line `services: KEY NS` for each, the shortest of
// ROUNDS averages, and the longest. Nanoseconds are instructions where a simulator's clock counts those.
//
// Usage: services [exit | SHELL [DISK]]
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define PAGE 4096
#define PAGES 256
#define WORDS (1 << 15)

static char *self, *shell;
static char *guarded;
static unsigned long *worked;
static sigjmp_buf after_fault;
static int there[2], back[2];

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status)
		_exit(3);
}

static void do_fork(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	wait_for(child);
}

static void do_exec(void)
{
	pid_t child = fork();

	if (!child) {
		execl(self, self, "exit", NULL);
		_exit(3);
	}
	wait_for(child);
}

static void do_sh(void)
{
	pid_t child = fork();

	if (!child) {
		execl(shell, "sh", "-c", self, NULL);
		_exit(3);
	}
	wait_for(child);
}

// What a program does by itself: a walk over 256 KiB that it changes.
static void do_load(void)
{
	unsigned long state = 1;
	int n;

	for (n = 0; n < 1 << 20; n++) {
		state = state * 6364136223846793005UL + 1442695040888963407UL;
		worked[state >> 49] += state ^ worked[n % WORDS];
	}
}

// To another process, which sends each byte back, and to this one again.
static void do_switch(void)
{
	char byte = 1;

	if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
		_exit(3);
}

static void do_mmap(void)
{
	char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || munmap(at, PAGES * PAGE))
		_exit(3);
}

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(after_fault, 1);
}

static void do_protection_fault(void)
{
	if (!sigsetjmp(after_fault, 0))
		*(volatile char *)guarded = 1;
}

// All pages of a mapping, each touched for the first time.
static void do_page_faults(void)
{
	char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int n;

	if (at == MAP_FAILED || madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE))
		_exit(3);
	for (n = 0; n < PAGES; n++)
		*(volatile char *)(at + n * PAGE) = 1;
	munmap(at, PAGES * PAGE);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

// What one of `parts` of an operation costs that is done `count` times.
static void measure(const char *key, int count, int parts, void (*operate)(void))
{
	double least = 1e18, most = 0;
	int round, n;

	operate();
	for (round = 0; round < ROUNDS; round++) {
		double start = now(), each;

		for (n = 0; n < count; n++)
			operate();
		each = (now() - start) / count / parts;
		least = each < least ? each : least;
		most = each > most ? each : most;
	}
	printf("services: %s %.0f %.0f\n", key, least, most);
}

static pid_t start_echo(void)
{
	char byte;
	pid_t child;

	if (pipe(there) || pipe(back))
		_exit(3);
	child = fork();
	if (!child) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
		_exit(0);
	}
	return child;
}

// A read of a disk past all caches, without what a CPU idles meanwhile: a program that runs when nobody else wants to
// counts that, in turns whose length is known.
static void measure_disk(const char *key, const char *disk, int count)
{
	volatile unsigned long *turns = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct sched_param none = { 0 };
	double least = 1e18, most = 0;
	int file = open(disk, O_RDONLY | O_DIRECT);
	int round, n;
	void *page;
	pid_t idle;

	if (file < 0 || turns == MAP_FAILED || posix_memalign(&page, PAGE, PAGE))
		_exit(3);
	idle = fork();
	if (!idle) {
		if (sched_setscheduler(0, SCHED_IDLE, &none))
			_exit(3);
		for (;;)
			++*turns;
	}
	for (round = 0; round < ROUNDS; round++) {
		unsigned long from = *turns;
		double start = now(), turn, each;

		usleep(200000);
		turn = (now() - start) / (*turns - from);
		from = *turns;
		start = now();
		for (n = 0; n < count; n++)
			if (pread(file, page, PAGE, n % 1024 * PAGE) != PAGE)
				_exit(3);
		each = (now() - start - (*turns - from) * turn) / count;
		least = each < least ? each : least;
		most = each > most ? each : most;
	}
	printf("services: %s %.0f %.0f\n", key, least, most);
	kill(idle, SIGKILL);
	waitpid(idle, NULL, 0);
}

int main(int count, char **words)
{
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	cpu_set_t first;
	pid_t echo;

	// Without words it is what a shell is asked to run.
	if (count < 2 || !strcmp(words[1], "exit"))
		return 0;
	self = words[0];
	shell = words[1];
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	sched_setaffinity(0, sizeof(first), &first);
	guarded = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (guarded == MAP_FAILED || sigaction(SIGSEGV, &action, NULL))
		return 3;
	setbuf(stdout, NULL);
	worked = calloc(WORDS, sizeof(*worked));
	if (!worked)
		return 3;
	measure("load", 10, 1, do_load);
	// A fork would take it along.
	free(worked);
	measure("fork", 100, 1, do_fork);
	measure("exec", 100, 1, do_exec);
	measure("sh", 50, 1, do_sh);
	echo = start_echo();
	measure("switch", 1000, 2, do_switch);
	close(there[1]);
	wait_for(echo);
	measure("mmap", 1000, 1, do_mmap);
	measure("protection_fault", 1000, 1, do_protection_fault);
	measure("page_fault", 20, PAGES, do_page_faults);
	if (count > 2)
		measure_disk("disk_read", words[2], 2000);
	return 0;
}
