// A program in a guest that uses a region of memory which its VM shares with others.
//
// Usage: region NAME write|read|give|take|copy|peek|poke ROUNDS
//   write  puts ROUNDS blocks of 1 MiB into the region, each when the reader has taken the one before
//   read   takes them, and says whether each has the sum that the writer gave it
//   give   copies ROUNDS blocks into the region, twice, and says how long a block of the second time took,
//          until it was taken
//   take   copies as many out of it
//   copy   does both by itself, in memory of its own
//   peek   says what the sum of all bytes is, without writing
//   poke   stores a word where nobody looks, and says what became of that
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK (1 << 20)

// The region's first page; blocks follow at 1 MiB and 2 MiB.
struct front {
    _Atomic uint64_t given; // blocks that the writer has put
    _Atomic uint64_t taken; // blocks that the reader has taken
    uint64_t sum[2];
    uint64_t poked;
};

static sigjmp_buf refused;

static void on_bus_error(int number)
{
    (void)number;
    siglongjmp(refused, 1);
}

static int read_file(const char *path, char *into, size_t size)
{
    int file = open(path, O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, into, size - 1);
    if (file >= 0)
        close(file);
    into[length < 0 ? 0 : length] = 0;
    return length > 0;
}

// The bytes of the region with that name, and how many there are.
static volatile unsigned char *find(const char *name, size_t *size)
{
    char path[512], text[256];
    const char *buses = "/sys/bus/dax/devices";
    DIR *devices = opendir(buses);
    struct dirent *entry;
    while (devices && (entry = readdir(devices))) {
        // A device is below its region, which says by which node of the device tree it came.
        snprintf(path, sizeof path, "%s/%s/../../of_node/label", buses, entry->d_name);
        if (entry->d_name[0] == '.' || !read_file(path, text, sizeof text) || strcmp(text, name))
            continue;
        snprintf(path, sizeof path, "%s/%s/size", buses, entry->d_name);
        *size = read_file(path, text, sizeof text) ? strtoull(text, 0, 0) : 0;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        int device = open(path, O_RDWR);
        void *bytes = mmap(0, *size, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
        if (bytes != MAP_FAILED)
            return bytes;
        perror(path);
        return 0;
    }
    return 0;
}

static uint64_t sum_of(const volatile unsigned char *bytes, size_t size)
{
    const volatile uint64_t *words = (const volatile uint64_t *)bytes;
    uint64_t sum = 0;
    for (size_t n = 0; n < size / 8; n++)
        sum = ((sum << 5 | sum >> 59) ^ words[n]) * 0x517cc1b727220a95;
    return sum;
}

static void fill(volatile unsigned char *bytes, uint64_t seed)
{
    volatile uint64_t *words = (volatile uint64_t *)bytes;
    for (size_t n = 0; n < BLOCK / 8; n++)
        words[n] = (seed + n + 1) * 0x9e3779b97f4a7c15;
}

static void await(_Atomic uint64_t *word, uint64_t value)
{
    while (atomic_load(word) < value)
        usleep(500);
}

// Nanoseconds by the machine's counter.
static double now(void)
{
    uint64_t count, frequency;
    __asm__ volatile("isb; mrs %0, cntvct_el0; mrs %1, cntfrq_el0" : "=r"(count), "=r"(frequency));
    return count * 1e9 / frequency;
}

// Copies blocks as one who gives, takes, or does both; `own` is a block of the program's.
static void exchange(unsigned char *own, unsigned char *blocks, size_t places, struct front *front,
                     uint64_t rounds, const char *verb)
{
    double start = 0;
    for (uint64_t n = 1; n <= 2 * rounds; n++) {
        unsigned char *block = blocks + BLOCK * (n % places);
        if (*verb != 't') {
            await(&front->taken, n < places ? 0 : n - places);
            if (n == rounds + 1) {
                await(&front->taken, rounds);
                start = now();
            }
            memcpy(block, own, BLOCK);
            atomic_store(&front->given, n);
        }
        if (*verb != 'g') {
            await(&front->given, n);
            memcpy(own, block, BLOCK);
            atomic_store(&front->taken, n);
        }
    }
    await(&front->taken, 2 * rounds);
    if (start > 0)
        printf("bench: region %.1f\n", (now() - start) / rounds);
}

int main(int count, char **words)
{
    size_t size = 0;
    if (count < 3)
        return 2;
    if (!strcmp(words[2], "copy")) {
        static struct front front;
        size_t places = 16;
        unsigned char *memory = malloc(BLOCK * (places + 1));
        if (!memory || count < 4)
            return 1;
        memset(memory, 1, BLOCK * (places + 1));
        exchange(memory, memory + BLOCK, places, &front, strtoull(words[3], 0, 0), words[2]);
        return 0;
    }
    volatile unsigned char *region = find(words[1], &size);
    if (!region || size < 3 * BLOCK) {
        printf("region: failed: no %s\n", words[1]);
        return 1;
    }
    struct front *front = (struct front *)region;
    uint64_t rounds = count > 3 ? strtoull(words[3], 0, 0) : 0, sum = 0;
    if (!strcmp(words[2], "give") || !strcmp(words[2], "take")) {
        unsigned char *own = malloc(BLOCK), *blocks = (unsigned char *)region + BLOCK;
        if (!own)
            return 1;
        memset(own, 1, BLOCK);
        exchange(own, blocks, size / BLOCK - 1, front, rounds, words[2]);
    } else if (!strcmp(words[2], "write")) {
        for (uint64_t n = 1; n <= rounds; n++) {
            volatile unsigned char *block = region + BLOCK * (1 + n % 2);
            // The other block may still be with the reader; this one is not.
            await(&front->taken, n < 2 ? 0 : n - 2);
            fill(block, n << 32);
            front->sum[n % 2] = sum_of(block, BLOCK);
            atomic_store(&front->given, n);
        }
        await(&front->taken, rounds);
        printf("region: gave %lu\n", (unsigned long)rounds);
    } else if (!strcmp(words[2], "read")) {
        uint64_t wrong = 0;
        for (uint64_t n = 1; n <= rounds; n++) {
            await(&front->given, n);
            wrong += sum_of(region + BLOCK * (1 + n % 2), BLOCK) != front->sum[n % 2];
            atomic_store(&front->taken, n);
        }
        printf("region: took %lu, %lu wrong\n", (unsigned long)rounds, (unsigned long)wrong);
    } else if (!strcmp(words[2], "poke")) {
        signal(SIGBUS, on_bus_error);
        signal(SIGSEGV, on_bus_error);
        if (sigsetjmp(refused, 1) == 0) {
            *(volatile uint64_t *)&front->poked = 0xbad;
            printf("region: stored\n");
        } else {
            printf("region: refused, %#lx is there\n", (unsigned long)front->poked);
        }
    } else {
        sum = sum_of(region + BLOCK, 2 * BLOCK);
        printf("region: size %zu sum %016lx given %lu poked %#lx\n", size, (unsigned long)sum,
               (unsigned long)atomic_load(&front->given), (unsigned long)front->poked);
    }
    return 0;
}
