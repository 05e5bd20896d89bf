/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parallel programs share: a crew of threads with a CPU each, a barrier, locks, and the clock.
 *
 * Barrier and locks spin, as those of SPLASH-2 do on machines of their own. Neither is padded: what lies beside them in
 * a program's data is its own affair.
 */
#ifndef CREW_H
#define CREW_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CREW_MAX 8

struct barrier {
    atomic_int arrived;
    atomic_int turn;
};

struct lock {
    atomic_int taken;
};

static inline void relax(void)
{
#ifdef __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Returns once all `threads` are here. */
static inline void barrier_wait(struct barrier *barrier, int threads)
{
    int turn = atomic_load_explicit(&barrier->turn, memory_order_acquire);
    if (atomic_fetch_add(&barrier->arrived, 1) == threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->turn, turn + 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&barrier->turn, memory_order_acquire) == turn)
        relax();
}

static inline void lock_take(struct lock *lock)
{
    while (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire))
        while (atomic_load_explicit(&lock->taken, memory_order_relaxed))
            relax();
}

static inline void lock_release(struct lock *lock)
{
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* So many bytes of zeroes, from a page boundary on. */
static inline void *crew_memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("memory");
        exit(1);
    }
    return at;
}

static inline void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        perror("affinity");
}

struct member {
    void (*work)(int);
    int number;
};

static void *crew_member(void *arg)
{
    struct member *member = arg;
    pin(member->number);
    member->work(member->number);
    return NULL;
}

/* `work(n)` on CPU n, for all n below `threads`, one of them in this thread. Returns when all have ended. */
static inline void crew_run(int threads, void (*work)(int))
{
    pthread_t others[CREW_MAX];
    struct member members[CREW_MAX];
    for (int n = 0; n < threads; n++)
        members[n] = (struct member){work, n};
    for (int n = 1; n < threads; n++)
        if (pthread_create(&others[n], NULL, crew_member, &members[n])) {
            perror("thread");
            exit(1);
        }
    crew_member(&members[0]);
    for (int n = 1; n < threads; n++)
        pthread_join(others[n], NULL);
}

/* The number that argument `n` has, from `least` to `most`; without it, `otherwise`. */
static inline int crew_arg(int argc, char **argv, int n, int least, int most, int otherwise)
{
    if (n >= argc)
        return otherwise;
    char *end;
    long value = strtol(argv[n], &end, 10);
    if (end == argv[n] || *end || value < least || value > most) {
        fprintf(stderr, "%s: argument %d is '%s', not %d to %d\n", argv[0], n, argv[n], least, most);
        exit(2);
    }
    return (int)value;
}

/* What the benches read: the time of the parallel part, and a number by which runs are compared. */
static inline void crew_report(const char *program, int threads, uint64_t ns, double check)
{
    printf("%s: threads=%d ns=%" PRIu64 " check=%.9e\n", program, threads, ns, check);
    fflush(stdout);
}

#endif
