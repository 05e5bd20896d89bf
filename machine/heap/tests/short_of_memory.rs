//! A heap whose source has nothing left: what was reserved can be allocated, and nothing else stops the program.
#![allow(unsafe_code)]

mod limited;

use limited::{Block, Limited, RUN, give, take};
use machine_heap::Heap;
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

#[test]
fn what_was_reserved_can_be_allocated() {
    let (mut granted, mut refused) = (0, 0);
    for seed in 1..200 {
        let mut dice = Dice(seed << 32 | 0x9e37_79b9);
        let heap = Heap::new(Limited(AtomicUsize::new(2)));
        let mut blocks = fragmented(&heap, &mut dice);
        let bytes = 256 + dice.below(24 << 10);
        if !heap.reserve(bytes) {
            refused += 1;
            continue;
        }
        granted += 1;
        let mut left = bytes;
        while left >= 128 {
            let size = (128 + dice.below(bytes)).min(left);
            let block = take(&heap, size);
            assert!(
                block.is_some(),
                "seed {seed}: {size} of {bytes} bytes, of which {left} were left"
            );
            blocks.extend(block);
            left -= size;
        }
        for block in blocks {
            give(&heap, block);
        }
        assert_eq!(heap.usage().0, 0, "seed {seed}");
    }
    assert!(
        granted > 20 && refused > 20,
        "{granted} granted, {refused} refused"
    );
}

#[test]
fn a_source_is_asked_once_for_what_it_has() {
    let heap = Heap::new(Limited(AtomicUsize::new(1)));
    assert!(heap.reserve(3 * RUN));
    assert_eq!(heap.source().0.load(Ordering::Relaxed), 0);
    assert!(!heap.reserve(8 * RUN));
    assert_eq!(heap.usage(), (0, 4 * RUN as u64));
}
