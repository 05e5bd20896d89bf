//! What memory costs when it is touched.

use crate::clock::{average, report, since_start};
use std::hint::black_box;

/// Bytes mapped at once.
const SIZE: usize = 64 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Mappings that are averaged.
const WARM: u32 = 4;

/// Maps memory and touches each page, the first time from memory that the kernel never used.
pub fn measure() {
    let start = since_start();
    map_and_touch(SIZE);
    report("mmap_64m_first_touch", since_start() - start);
    report("mmap_64m_warm", average(WARM, || map_and_touch(SIZE)));
}

/// An allocation of this size is a mapping of its own, zeroed page by page as it is touched.
pub fn map_and_touch(size: usize) {
    let mut memory = vec![0_u8; size];
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    black_box(memory);
}
