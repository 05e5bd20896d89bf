// A program in a Linux guest that does again and again, on all CPUs at once, what needs old translations gone on all of them:
// it maps and unmaps, protects, and forks, and checks each time that nobody sees what is gone.
//
// Usage: storms SEED ROUNDS
//   map      each thread replaces its pages by new ones, writes these, and says so; others read them meanwhile: what was
//            said to be there is there, and never what was there before
//   protect  each thread takes from all the right to write its page: from then on it does not change
//   fork     each thread fills pages, forks, and writes them anew at once: the child, on another CPU, finds them as they were
//   file     each thread cuts and grows a file that all have mapped: what it cut away is never read again
// Prints a line for each, and at last "storms ok". The first thing that is wrong is said, and ends it with status 1.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define PAGES 8
#define THREADS_MAX 16
#define BYTES (PAGES * PAGE)

// Each thread's, as others use it, too.
static struct {
    _Alignas(64) _Atomic uint64_t round; // odd while its pages change
    _Atomic uint64_t checked;            // what showed something
    volatile uint64_t *pages;
} part[THREADS_MAX];

static int threads;
static uint64_t seed, rounds;
static _Atomic int done;
static pthread_barrier_t barrier;
static __thread sigjmp_buf fault;
static __thread volatile int is_guarded;

static void wrong(const char *storm, int owner, const char *what, uint64_t expected, uint64_t found)
{
    printf("storms: FAILED %s of thread %d: %s: %" PRIx64 " instead of %" PRIx64 "\n", storm, owner, what, found, expected);
    fflush(stdout);
    _exit(1);
}

static void failed(const char *call)
{
    printf("storms: FAILED: %s: %s\n", call, strerror(errno));
    fflush(stdout);
    _exit(1);
}

// xorshift64*
static uint64_t below(uint64_t *state, uint64_t limit)
{
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (*state * 0x2545f4914f6cdd1d >> 16) % limit;
}

// What a word of a thread's pages holds in a round.
static uint64_t word(int owner, uint64_t round, uint64_t at)
{
    return (round << 24 | (uint64_t)owner << 16 | at) * 0x9e3779b97f4a7c15;
}

static void go_to_cpu(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu % threads, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        failed("sched_setaffinity");
}

// A store that may not be allowed, or a load of what may be gone: its signal goes on behind it.
static void on_fault(int number)
{
    if (!is_guarded) {
        signal(number, SIG_DFL);
        return;
    }
    siglongjmp(fault, 1);
}

static volatile uint64_t *mapped(void *at, int flags, int file)
{
    void *pages = mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
    if (pages == MAP_FAILED)
        failed("mmap");
    return pages;
}

static void fill(volatile uint64_t *pages, int owner, uint64_t round)
{
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t at = page; at < WORDS; at += 64)
            pages[page * WORDS + at] = word(owner, round, page * WORDS + at);
}

static void check_filled(const char *storm, volatile uint64_t *pages, int owner, uint64_t round)
{
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t at = page; at < WORDS; at += 64) {
            uint64_t expected = word(owner, round, page * WORDS + at), found = pages[page * WORDS + at];
            if (found != expected)
                wrong(storm, owner, "a word", expected, found);
        }
}

// Reads words of another thread's pages. They count where no round began or ended meanwhile.
static void look_at(int owner, uint64_t *random)
{
    uint64_t page = below(random, PAGES), at = page * WORDS + page + 64 * below(random, 7);
    uint64_t before = atomic_load(&part[owner].round);
    if (before == 0 || before % 2)
        return;
    is_guarded = 1;
    if (sigsetjmp(fault, 1) == 0) {
        uint64_t found = part[owner].pages[at];
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load(&part[owner].round) == before) {
            if (found != word(owner, before, at))
                wrong("map or file", owner, "another thread reads", word(owner, before, at), found);
            atomic_fetch_add(&part[owner].checked, 1);
        }
    } else if (atomic_load(&part[owner].round) == before) {
        wrong("map or file", owner, "another thread may not read", word(owner, before, at), 0);
    }
    is_guarded = 0;
}

static int another(int me, uint64_t *random)
{
    return threads == 1 ? me : (me + 1 + (int)below(random, threads - 1)) % threads;
}

// A round of a thread lasts until another has looked at its pages: that one has a translation of what comes to be gone.
static void look_around(int me, uint64_t *random)
{
    uint64_t before = atomic_load(&part[me].checked);
    while (atomic_load(&part[me].checked) == before)
        look_at(another(me, random), random);
}

static void map_storm(int me, uint64_t *random)
{
    part[me].pages = mapped(0, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    pthread_barrier_wait(&barrier);
    for (uint64_t round = 2; round <= 2 * rounds; round += 2) {
        atomic_store(&part[me].round, round - 1);
        volatile uint64_t *pages = mapped((void *)part[me].pages, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1);
        uint64_t at = below(random, PAGES * WORDS);
        if (pages[at] != 0)
            wrong("map", me, "a new page", 0, pages[at]);
        fill(pages, me, round);
        atomic_store(&part[me].round, round);
        look_around(me, random);
        check_filled("map", pages, me, round);
    }
}

// Stores into a thread's page, if that is allowed.
static void store_at(int owner, uint64_t *random)
{
    is_guarded = 1;
    if (sigsetjmp(fault, 1) == 0)
        part[owner].pages[7] = below(random, UINT64_MAX);
    is_guarded = 0;
}

static void protect_storm(int me, uint64_t *random)
{
    part[me].pages = mapped(0, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    pthread_barrier_wait(&barrier);
    for (uint64_t round = 1; round <= rounds; round++) {
        if (mprotect((void *)part[me].pages, PAGE, PROT_READ))
            failed("mprotect");
        uint64_t before = part[me].pages[7];
        for (int n = 0; n < 16; n++) {
            store_at(another(me, random), random);
            uint64_t after = part[me].pages[7];
            if (after != before)
                wrong("protect", me, "a page that nobody may write", before, after);
        }
        if (mprotect((void *)part[me].pages, PAGE, PROT_READ | PROT_WRITE))
            failed("mprotect");
        while (part[me].pages[7] == before)
            store_at(another(me, random), random);
        atomic_fetch_add(&part[me].checked, 1);
    }
}

// The child of a round: its pages are as they were when it began, whatever its parent writes, and then its own.
static void be_child(int me, uint64_t round)
{
    go_to_cpu(me + 1);
    check_filled("fork", part[me].pages, me, round);
    fill(part[me].pages, me, round + 1);
    go_to_cpu(me);
    check_filled("fork", part[me].pages, me, round + 1);
    _exit(0);
}

static void fork_storm(int me, uint64_t *random)
{
    (void)random;
    part[me].pages = mapped(0, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    pthread_barrier_wait(&barrier);
    // It costs most of all.
    for (uint64_t round = 3; round <= 3 * (rounds / 8 + 1); round += 3) {
        fill(part[me].pages, me, round);
        pid_t child = fork();
        if (child < 0)
            failed("fork");
        if (child == 0)
            be_child(me, round);
        fill(part[me].pages, me, round + 2);
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0)
            wrong("fork", me, "a child's status", 0, (uint64_t)status);
        check_filled("fork", part[me].pages, me, round + 2);
        atomic_fetch_add(&part[me].checked, 1);
    }
}

static void file_storm(int me, uint64_t *random)
{
    int file = memfd_create("storm", 0);
    if (file < 0 || ftruncate(file, BYTES))
        failed("memfd_create");
    part[me].pages = mapped(0, MAP_SHARED, file);
    pthread_barrier_wait(&barrier);
    for (uint64_t round = 2; round <= 2 * rounds; round += 2) {
        atomic_store(&part[me].round, round - 1);
        if (ftruncate(file, 0) || ftruncate(file, BYTES))
            failed("ftruncate");
        uint64_t at = below(random, PAGES * WORDS);
        if (part[me].pages[at] != 0)
            wrong("file", me, "a page that was cut away", 0, part[me].pages[at]);
        fill(part[me].pages, me, round);
        atomic_store(&part[me].round, round);
        look_around(me, random);
        check_filled("file", part[me].pages, me, round);
    }
}

static void wait_for(int owner, uint64_t *random)
{
    (void)owner, (void)random;
    sched_yield();
}

// Whoever is done goes on to use another thread's pages until all are.
static const struct {
    const char *name;
    void (*run)(int me, uint64_t *random);
    void (*use)(int owner, uint64_t *random);
} storms[] = {
    {"map", map_storm, look_at},
    {"protect", protect_storm, store_at},
    {"fork", fork_storm, wait_for},
    {"file", file_storm, look_at},
};

static void say(const char *storm)
{
    uint64_t least = UINT64_MAX;
    for (int n = 0; n < threads; n++) {
        uint64_t checked = atomic_load(&part[n].checked);
        least = checked < least ? checked : least;
    }
    // One that nobody has looked at shows nothing.
    if (least == 0)
        wrong(storm, 0, "looks at a thread", 1, 0);
    printf("storms: %s threads=%d checked=%" PRIu64 "\n", storm, threads, least);
    fflush(stdout);
}

static void *run(void *number)
{
    int me = (int)(intptr_t)number;
    go_to_cpu(me);
    for (size_t n = 0; n < sizeof storms / sizeof *storms; n++) {
        uint64_t random = (seed << 8 | (uint64_t)me << 4 | n) + 1;
        atomic_store(&part[me].round, 0);
        atomic_store(&part[me].checked, 0);
        pthread_barrier_wait(&barrier);
        storms[n].run(me, &random);
        atomic_fetch_add(&done, 1);
        while (atomic_load(&done) < threads * (int)(n + 1))
            storms[n].use(another(me, &random), &random);
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            say(storms[n].name);
        pthread_barrier_wait(&barrier);
        munmap((void *)part[me].pages, BYTES);
    }
    return 0;
}

int main(int count, char **words)
{
    threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (count != 3 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: storms SEED ROUNDS, with at most %d CPUs\n", THREADS_MAX);
        return 2;
    }
    seed = strtoull(words[1], 0, 0), rounds = strtoull(words[2], 0, 0);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    pthread_barrier_init(&barrier, 0, (unsigned)threads);
    pthread_t others[THREADS_MAX];
    for (intptr_t n = 1; n < threads; n++)
        if (pthread_create(&others[n], 0, run, (void *)n))
            failed("pthread_create");
    run(0);
    for (int n = 1; n < threads; n++)
        pthread_join(others[n], 0);
    puts("storms ok");
    return 0;
}
