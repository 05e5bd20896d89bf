// A program in a Linux guest that does with its devices and memory what no program should, at random from a seed.
//
// Usage: adversary race DISK
//   Reads all of a disk once, with O_DIRECT, into pages that a thread stores into as soon as they are filled; says into how
//   many it did.
// Usage: adversary SEED SECONDS DISK...
//   SECONDS 0 means for ever. The first disk is a base that others read, too: it is read with O_DIRECT into pages that a
//   thread stores into, drops and takes again meanwhile. All disks are written, discarded and zeroed at random;
//   frames of every length go to every network device; memory comes and goes; physical addresses are looked at.
// Prints a line every few seconds. It judges nothing: whatever its own disks hold, it has brought about itself.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define RACED 16
#define DISKS 8
#define MEMORY (24ul << 20)
#define MARK 0x0bad0bad0bad0badul

static uint64_t state;
static _Atomic int racing = -1;
static unsigned char *raced;
static int disk[DISKS], disks;
static uint64_t size[DISKS];

// xorshift64*
static uint64_t below(uint64_t limit)
{
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (state * 0x2545f4914f6cdd1d >> 16) % limit;
}

static unsigned char *pages(size_t bytes)
{
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : at;
}

// Stores into each page of a read as soon as it is filled, or drops the page.
static void *race(void *nothing)
{
    for (uint64_t turn = 0;; turn++) {
        int way = atomic_load(&racing);
        if (way < 0) {
            usleep(100);
            continue;
        }
        for (int n = 0; n < RACED; n++) {
            volatile uint64_t *word = (uint64_t *)(raced + n * PAGE);
            if (way == 1 && turn % 64 == 0)
                madvise(raced + n * PAGE, PAGE, MADV_DONTNEED);
            else if (*word != 1)
                word[64] = MARK;
        }
    }
    return nothing;
}

// Reads whole blocks that maybe nobody has read.
static void read_raced(void)
{
    uint64_t at = below(size[0] / (RACED * PAGE)) * RACED * PAGE;
    for (int n = 0; n < RACED; n++)
        *(uint64_t *)(raced + n * PAGE) = 1;
    atomic_store(&racing, below(4) == 0);
    // Refused or done: what is read is nobody's to believe.
    if (pread(disk[0], raced, RACED * PAGE, at) < 0)
        usleep(1);
    atomic_store(&racing, -1);
}

// Stores into each page of a read, in order, as soon as its first word is there.
static void *chase(void *nothing)
{
    for (;;) {
        while (atomic_load(&racing) < 0)
            ;
        for (int n = 0; n < RACED; n++) {
            volatile uint64_t *word = (uint64_t *)(raced + n * PAGE);
            while (*word == 1)
                ;
            word[1] = MARK;
        }
        atomic_store(&racing, -1);
    }
    return nothing;
}

// Reads each block once, raced.
static int race_all(const char *name)
{
    pthread_t thread;
    uint64_t blocks = 0, stores = 0;
    disk[0] = open(name, O_RDONLY | O_DIRECT);
    raced = pages(RACED * PAGE);
    if (disk[0] < 0 || !raced || ioctl(disk[0], BLKGETSIZE64, &size[0]) || pthread_create(&thread, 0, chase, 0))
        return perror(name), 1;
    for (uint64_t at = 0; at + RACED * PAGE <= size[0]; at += RACED * PAGE) {
        for (int n = 0; n < RACED; n++)
            *(uint64_t *)(raced + n * PAGE) = 1;
        atomic_store(&racing, 0);
        if (pread(disk[0], raced, RACED * PAGE, at) != RACED * PAGE)
            return perror(name), 1;
        while (atomic_load(&racing) >= 0)
            ;
        for (int n = 0; n < RACED; n++, blocks++)
            stores += ((uint64_t *)(raced + n * PAGE))[1] == MARK;
    }
    printf("adversary: stored into %lu of %lu blocks\n", (unsigned long)stores, (unsigned long)blocks);
    return 0;
}

static void transfer(unsigned char *buffer)
{
    int which = below(disks);
    uint64_t bytes = 512 * (1 + below(below(4) ? 64 : 2048)), at = 512 * below(size[which] / 512);
    unsigned char *from = buffer + 512 * below(8);
    if (below(4) == 0)
        at &= ~(PAGE - 1);
    for (int n = 0; n < 8; n++)
        *(uint64_t *)(from + 8 * below(bytes / 8)) = state;
    if ((below(2) ? pwrite(disk[which], from, bytes, at) : pread(disk[which], from, bytes, at)) < 0)
        usleep(1);
}

static void discard(void)
{
    int which = below(disks);
    uint64_t range[2] = {512 * below(size[which] / 512), 512 * (1 + below(below(8) ? 256 : 1 << 16))};
    if (below(2))
        range[0] &= ~(PAGE - 1), range[1] &= ~(PAGE - 1);
    if (ioctl(disk[which], below(2) ? BLKDISCARD : BLKZEROOUT, range) < 0)
        usleep(1);
    if (below(8) == 0)
        fsync(disk[which]);
}

static void memory(unsigned char *all)
{
    uint64_t at = below(MEMORY / PAGE) * PAGE, bytes = (1 + below(512)) * PAGE;
    if (at + bytes > MEMORY)
        bytes = MEMORY - at;
    if (below(2))
        madvise(all + at, bytes, MADV_DONTNEED);
    for (uint64_t n = 0; n < bytes; n += PAGE)
        if (below(4))
            *(uint64_t *)(all + at + n) = below(4) ? state : 0;
}

static void send_frames(int packets, int datagrams, unsigned char *buffer)
{
    struct sockaddr_ll link = {.sll_family = AF_PACKET, .sll_halen = 6};
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = 0xffffffff};
    for (int n = 0; n < 8; n++) {
        link.sll_ifindex = 1 + below(4);
        memset(link.sll_addr, 0xff, 6);
        size_t bytes = below(below(4) ? 1515 : 65536);
        memset(buffer, below(2) ? 0xff : below(256), 12);
        sendto(packets, buffer, bytes, MSG_DONTWAIT, (struct sockaddr *)&link, sizeof link);
        sendto(datagrams, buffer, bytes % 65000, MSG_DONTWAIT, (struct sockaddr *)&all, sizeof all);
    }
}

// A process of its own looks at a physical address and lives or dies of it.
static void look(void)
{
    static const uint64_t places[] = {0x8000000, 0x80a0000, 0x9000000, 0x9010000, 0x9030000, 0xa000000, 0xf000000, 0x40000000};
    uint64_t place = places[below(8)], offset = below(PAGE - 8), value = state;
    int kind = below(6);
    pid_t child = fork();
    if (child == 0) {
        int mem = open("/dev/mem", O_RDWR | O_SYNC);
        volatile unsigned char *at = mem < 0 ? MAP_FAILED : mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mem, place);
        if (at == MAP_FAILED || mem < 0)
            _exit(1);
        if (kind < 2)
            value = at[offset];
        else if (kind < 4)
            value = *(volatile uint32_t *)(at + (offset & ~3));
        else
            value = *(volatile uint64_t *)(at + (offset & ~7));
        _exit(value & 1);
    }
    if (child > 0)
        waitpid(child, 0, 0);
}

int main(int count, char **words)
{
    if (count == 3 && !strcmp(words[1], "race"))
        return race_all(words[2]);
    if (count < 4)
        return 2;
    uint64_t seed = strtoull(words[1], 0, 0), steps = 0;
    time_t seconds = atol(words[2]), start = time(0), said = start;
    state = seed * 0x9e3779b97f4a7c15 | 1;
    for (int n = 3; n < count && disks < DISKS; n++) {
        disk[disks] = open(words[n], O_RDWR | O_DIRECT);
        if (disk[disks] >= 0 && ioctl(disk[disks], BLKGETSIZE64, &size[disks]) == 0 && size[disks] > 1 << 20)
            disks++;
        else
            perror(words[n]);
    }
    unsigned char *buffer = pages(2 << 20), *all = pages(MEMORY);
    raced = pages(RACED * PAGE);
    int packets = socket(AF_PACKET, SOCK_RAW, htons(3)), datagrams = socket(AF_INET, SOCK_DGRAM, 0), yes = 1;
    setsockopt(datagrams, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes);
    pthread_t thread;
    if (!disks || !buffer || !all || !raced || pthread_create(&thread, 0, race, 0))
        return 1;
    printf("adversary: seed %lu begins with %d disks\n", (unsigned long)seed, disks);
    for (; !seconds || time(0) - start < seconds; steps++) {
        switch (below(16)) {
        case 0 ... 5: read_raced(); break;
        case 6 ... 8: transfer(buffer); break;
        case 9: discard(); break;
        case 10 ... 12: memory(all); break;
        case 13 ... 14: send_frames(packets, datagrams, buffer); break;
        default: below(16) ? (void)0 : look();
        }
        if (time(0) - said >= 3) {
            said = time(0);
            printf("adversary: seed %lu: %lu steps\n", (unsigned long)seed, (unsigned long)steps);
            fflush(stdout);
        }
    }
    printf("adversary: seed %lu: %lu steps\n", (unsigned long)seed, (unsigned long)steps);
    return 0;
}
