//! A program whose own heap has nothing left. A test alone in its program: whoever allocates meanwhile fails.
#![allow(unsafe_code)]

mod limited;

use limited::{Limited, give, take};
use machine_heap::{Heap, try_box};
use std::sync::atomic::Ordering;

#[global_allocator]
static GLOBAL: Heap<Limited> = Heap::new(Limited::of(usize::MAX));

#[test]
fn a_box_that_does_not_fit_gives_its_value_back() {
    const BYTES: usize = 15 << 10;
    let left = &GLOBAL.source().0;
    left.store(0, Ordering::Relaxed);
    // Nothing is printed or collected meanwhile, which would allocate.
    let mut blocks = [None; 512];
    for block in &mut blocks {
        *block = take(&GLOBAL, BYTES);
    }
    let boxed = try_box([7_u8; BYTES]);
    left.store(usize::MAX, Ordering::Relaxed);
    for block in blocks.into_iter().flatten() {
        give(&GLOBAL, block);
    }
    let value = boxed.expect_err("there is memory for it");
    assert!(value.iter().all(|byte| *byte == 7));
    let boxed = try_box(value).expect("there is memory again");
    assert!(boxed.iter().all(|byte| *byte == 7));
}
