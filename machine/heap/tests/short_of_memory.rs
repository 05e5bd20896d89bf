//! A heap whose source has nothing left: what was reserved can be allocated, and nothing else stops the program.
#![allow(unsafe_code)]

mod limited;

use limited::{Block, Limited, NOBODY, RUN, give, take};
use machine_heap::{Heap, Source};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers that are as good as any.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

/// Half full of blocks of any size, and in holes.
fn fragmented(heap: &Heap<Limited>, dice: &mut Dice) -> Vec<Block> {
    let mut blocks = Vec::new();
    while let Some(block) = take(heap, 1 + dice.below(6000)) {
        blocks.push(block);
    }
    for _ in 0..blocks.len() / 2 {
        let block = blocks.swap_remove(dice.below(blocks.len()));
        give(heap, block);
    }
    blocks
}

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// A source for which each thread is a CPU.
struct PerThread(Limited);

// SAFETY: it gives what the other gives.
unsafe impl Source for PerThread {
    fn run(&self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        self.0.run(bytes)
    }

    fn owner(&self) -> Option<usize> {
        Some(CPU.get())
    }
}

/// What follows is allocated by that one.
fn by(heap: &Heap<Limited>, owner: usize) {
    heap.source().1.store(owner, Ordering::Relaxed);
}

#[test]
fn what_was_reserved_can_be_allocated_whatever_others_take() {
    let (mut granted, mut refused) = (0, 0);
    for seed in 1..200 {
        let mut dice = Dice(seed << 32 | 0x9e37_79b9);
        let heap = Heap::new(Limited::of(2));
        let mut blocks = fragmented(&heap, &mut dice);
        let bytes = 256 + dice.below(24 << 10);
        by(&heap, 0);
        let Some(reserved) = heap.reserve(bytes) else {
            refused += 1;
            continue;
        };
        granted += 1;
        let mut left = bytes;
        while left >= 128 {
            // Another one takes all that it can get; and what comes at the owner's time is nobody's.
            for other in [1, NOBODY] {
                by(&heap, other);
                while let Some(block) = take(&heap, 16 + dice.below(6000)) {
                    blocks.push(block);
                }
                // Some of it comes back, and the next one may take that.
                if dice.below(2) == 0 {
                    let block = blocks.swap_remove(dice.below(blocks.len()));
                    give(&heap, block);
                }
            }
            by(&heap, 0);
            let size = (128 + dice.below(bytes)).min(left);
            let block = take(&heap, size);
            assert!(
                block.is_some(),
                "seed {seed}: {size} of {bytes} bytes, of which {left} were left"
            );
            blocks.extend(block);
            left -= size;
        }
        drop(reserved);
        for block in blocks {
            give(&heap, block);
        }
        assert_eq!(heap.usage().0, 0, "seed {seed}");
        // All of it is there again.
        assert!(heap.reserve(RUN / 2).is_some(), "seed {seed}");
    }
    assert!(
        granted > 20 && refused > 20,
        "{granted} granted, {refused} refused"
    );
}

#[test]
fn a_source_is_asked_once_for_what_it_has() {
    let heap = Heap::new(Limited::of(1));
    assert!(heap.reserve(3 * RUN).is_some());
    assert_eq!(heap.source().0.load(Ordering::Relaxed), 0);
    assert!(heap.reserve(8 * RUN).is_none());
    assert_eq!(heap.usage(), (0, 4 * RUN as u64));
}

/// A request reserves within another that did; what is aligned more is cut from it, too, and nothing for others.
#[test]
fn reservations_nest() {
    let heap = Heap::new(Limited::of(1));
    by(&heap, 3);
    let outer = heap.reserve(64 << 10).expect("the first");
    let inner = heap.reserve(128 << 10).expect("the second");
    by(&heap, 4);
    let mut others = Vec::new();
    while let Some(block) = take(&heap, 1000) {
        others.push(block);
    }
    by(&heap, 3);
    let layout = Layout::from_size_align(4096, 4096).expect("a page");
    let mut pages = Vec::new();
    for _ in 0..16 {
        // SAFETY: the layout has a size.
        let page = unsafe { heap.alloc(layout) };
        assert!(!page.is_null() && page.addr() % 4096 == 0);
        pages.push((page, layout));
    }
    drop(inner);
    pages.extend(take(&heap, 40 << 10));
    assert_eq!(pages.len(), 17);
    drop(outer);
    for block in pages.into_iter().chain(others) {
        give(&heap, block);
    }
    assert_eq!(heap.usage().0, 0);
    assert!(heap.reserve(RUN / 2).is_some());
}

/// Counts a thread's end, by a failed assertion, too.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The same with CPUs that are threads: each request finds what it has reserved, while others empty the heap.
#[test]
fn owners_on_several_cpus_do_not_take_each_others_memory() {
    let heap: Heap<PerThread> = Heap::new(PerThread(Limited::of(2)));
    let ended = AtomicUsize::new(0);
    let rounds = |cpu: usize| {
        let _ended = Ended(&ended);
        CPU.set(cpu);
        let mut dice = Dice(cpu as u64 + 77);
        let mut granted = 0;
        while granted < 100 {
            let bytes = 4096 + dice.below(64 << 10);
            let Some(_reserved) = heap.reserve(bytes) else {
                std::thread::yield_now();
                continue;
            };
            granted += 1;
            let blocks: Vec<Block> = (0..bytes / 1024)
                .map(|_| take(&heap, 1024).expect("it was reserved"))
                .collect();
            for block in blocks {
                give(&heap, block);
            }
        }
    };
    let greedy = || {
        CPU.set(9);
        while ended.load(Ordering::Relaxed) < 2 {
            let mut blocks = Vec::new();
            while let Some(block) = take(&heap, 777) {
                blocks.push(block);
            }
            for block in blocks {
                give(&heap, block);
            }
        }
    };
    std::thread::scope(|scope| {
        let rounds = &rounds;
        for cpu in 1..=2 {
            scope.spawn(move || rounds(cpu));
        }
        scope.spawn(greedy);
    });
    assert_eq!(heap.usage().0, 0);
}
