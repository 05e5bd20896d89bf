//! The memory in which a simulated machine counts misses by page and node, as the hypervisor reads
//! it. What stands where is described in `sim/model/src/window.rs`; where the two differ, the boot
//! scenario `placement/moves` fails.
//!
//! The window is the memory of a node without CPUs. It is believed only where its header describes
//! the machine at hand, and whatever is read from it later is checked again.
#![no_std]
#![forbid(unsafe_code)]

use model_addr::Mfn;
use model_placement::MissSource;

/// What the first word holds: "UNUM".
pub const MAGIC: u32 = u32::from_le_bytes(*b"UNUM");
/// The layout that this reads.
const VERSION: u32 = 2;
/// Entries of the ring of hot pages, of two words each.
const RING_ENTRIES: u32 = 4096;

/// Where words are, counted in words from the window's beginning.
mod offset {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const NODES: usize = 2;
    pub const PAGES: usize = 3;
    pub const BASE: usize = 4;
    pub const COUNTERS: usize = 7;
    pub const THRESHOLD: usize = 8;
    pub const HEAD: usize = 9;
    pub const TAIL: usize = 10;
    pub const RING: usize = 256;
    pub const HEADER_END: usize = 9216;
}

/// Little-endian words of 32 bits that the machine changes at any moment.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;
    /// Word `at`, which is below [`Self::count`].
    fn get(&self, at: usize) -> u32;
    /// Sets word `at`, which is below [`Self::count`].
    fn set(&mut self, at: usize, value: u32);
}

/// A window whose header makes sense.
#[derive(Debug)]
pub struct MissWindow<W> {
    words: W,
    nodes: usize,
    base: Mfn,
    pages: usize,
    counters: usize,
}

impl<W: Words> MissWindow<W> {
    /// The window of a machine with so many nodes, of pages from `base` on; `None` where the memory
    /// is no such window. A page is reported at each `threshold` misses of a node, until it is taken: one
    /// that found no place in the ring comes back.
    pub fn open(mut words: W, nodes: usize, base: Mfn, threshold: u32) -> Option<Self> {
        if words.count() < offset::HEADER_END {
            return None;
        }
        let expected = [
            (offset::MAGIC, MAGIC),
            (offset::VERSION, VERSION),
            (offset::NODES, u32::try_from(nodes).ok()?),
            (offset::BASE, base.address().0 as u32),
            (offset::BASE + 1, (base.address().0 >> 32) as u32),
        ];
        if expected.iter().any(|(at, value)| words.get(*at) != *value) {
            return None;
        }
        let pages = words.get(offset::PAGES) as usize;
        let counters = words.get(offset::COUNTERS) as usize;
        let end = pages.checked_mul(nodes + 1)?.checked_add(counters)?;
        if counters < offset::HEADER_END || end > words.count() {
            return None;
        }
        words.set(offset::TAIL, words.get(offset::HEAD));
        words.set(offset::THRESHOLD, threshold);
        Some(Self {
            words,
            nodes,
            base,
            pages,
            counters,
        })
    }

    fn page_of(&self, frame: Mfn) -> Option<usize> {
        let page = usize::try_from(frame.0.checked_sub(self.base.0)?).ok()?;
        (page < self.pages).then_some(page)
    }

    /// Where a page's words begin.
    fn record(&self, page: usize) -> usize {
        self.counters + page * (self.nodes + 1)
    }
}

impl<W: Words> MissSource for MissWindow<W> {
    fn hot(&self) -> u32 {
        let (head, tail) = (self.words.get(offset::HEAD), self.words.get(offset::TAIL));
        head.wrapping_sub(tail)
    }

    fn next_hot(&mut self) -> Option<Mfn> {
        let tail = self.words.get(offset::TAIL);
        let waiting = self.hot();
        if waiting == 0 {
            return None;
        }
        if waiting > RING_ENTRIES {
            // No machine that counts does this.
            self.words.set(offset::TAIL, tail.wrapping_add(waiting));
            return None;
        }
        let at = offset::RING + 2 * (tail % RING_ENTRIES) as usize;
        let page = self.words.get(at) as usize;
        self.words.set(offset::TAIL, tail.wrapping_add(1));
        (page < self.pages).then(|| self.base.add(page as u64))
    }

    fn take(&mut self, frame: Mfn, misses: &mut [u32]) -> bool {
        misses.fill(0);
        let Some(page) = self.page_of(frame) else {
            return false;
        };
        let record = self.record(page);
        for node in 0..self.nodes {
            if let Some(misses) = misses.get_mut(node) {
                *misses = self.words.get(record + node);
            }
            self.words.set(record + node, 0);
        }
        let written = self.words.get(record + self.nodes) != 0;
        self.words.set(record + self.nodes, 0);
        written
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{vec, vec::Vec};

    const BASE: Mfn = Mfn(0x4_0000);

    struct Memory(Vec<u32>);

    impl Words for &mut Memory {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn get(&self, at: usize) -> u32 {
            self.0[at]
        }
        fn set(&mut self, at: usize, value: u32) {
            self.0[at] = value;
        }
    }

    /// Two nodes, 300 pages.
    fn memory() -> Memory {
        let mut words = vec![0; 10_240];
        words[..8].copy_from_slice(&[MAGIC, VERSION, 2, 300, 0x4000_0000, 0, 2, 9216]);
        Memory(words)
    }

    #[test]
    fn a_header_that_is_wrong_is_no_window() {
        assert!(MissWindow::open(&mut memory(), 2, BASE, 9).is_some());
        assert!(MissWindow::open(&mut memory(), 3, BASE, 9).is_none());
        assert!(MissWindow::open(&mut memory(), 2, BASE.add(1), 9).is_none());
        for (at, value) in [
            (0, 0),
            (1, 1),
            (2, 3),
            (3, u32::MAX),
            (3, 342),
            (7, 8),
            (7, u32::MAX),
        ] {
            let mut memory = memory();
            memory.0[at] = value;
            assert!(
                MissWindow::open(&mut memory, 2, BASE, 9).is_none(),
                "{at} {value}"
            );
        }
    }

    #[test]
    fn hot_pages_come_once_and_lies_do_no_harm() {
        let mut memory = memory();
        memory.0[offset::RING..offset::RING + 6].copy_from_slice(&[7, 1, 4000, 0, 299, 0]);
        memory.0[9216 + 21..9216 + 24].copy_from_slice(&[5, 12, 1]);
        let mut window = MissWindow::open(&mut memory, 2, BASE, 9).unwrap();
        assert_eq!(window.hot(), 0);
        window.words.0[offset::HEAD] = 3;
        assert_eq!(window.hot(), 3);
        assert_eq!(window.next_hot(), Some(BASE.add(7)));
        let mut misses = [1; 4];
        assert!(window.take(BASE.add(7), &mut misses));
        assert_eq!(misses, [5, 12, 0, 0]);
        assert!(!window.take(BASE.add(7), &mut misses) && misses == [0; 4]);
        assert!(!window.take(BASE.add(300), &mut misses));
        // A page that there is not is passed over.
        assert_eq!(window.next_hot(), None);
        assert_eq!(window.next_hot(), Some(BASE.add(299)));
        assert_eq!(window.next_hot(), None);
        window.words.0[offset::HEAD] = 5000;
        assert_eq!(window.next_hot(), None);
        assert_eq!(window.words.0[offset::TAIL], 5000);
    }

    /// What stands in the ring before it is opened is no news; from then on all of a full ring comes, wherever in it
    /// that begins.
    #[test]
    fn a_ring_begins_anew_and_wraps() {
        let mut memory = memory();
        memory.0[offset::HEAD] = 4090;
        let mut window = MissWindow::open(&mut memory, 2, BASE, 9).unwrap();
        assert_eq!((window.hot(), window.words.0[offset::THRESHOLD]), (0, 9));
        let page = |entry: u32| entry % RING_ENTRIES % 300;
        for entry in 0..RING_ENTRIES {
            window.words.0[offset::RING + 2 * entry as usize] = page(entry);
        }
        let end = 4090 + RING_ENTRIES;
        window.words.0[offset::HEAD] = end;
        for entry in 4090..end {
            assert_eq!(window.next_hot(), Some(BASE.add(page(entry).into())));
        }
        assert_eq!(window.next_hot(), None);
    }
}
