//! The memory in which the hypervisor reads what the machine counted.
//!
//! All is little-endian words of 32 bits; times are two of them. First comes a header of nine pages,
//! in it a ring of hot pages; then, for each page of memory, one word of misses per node and one
//! that is not 0 once the page was stored to. The machine adds; the hypervisor may set any of these
//! words to 0 at any time. Nothing that it writes can make the machine fail.

use crate::{Bad, CPUS_MAX, PAGE_SHIFT, Topology};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What the first word holds: "UNUM".
pub const MAGIC: u32 = u32::from_le_bytes(*b"UNUM");
/// The layout that this describes.
pub const VERSION: u32 = 2;
/// Entries of the ring of hot pages, each two words: the page's number from the first page of
/// memory, and the node with the misses.
pub const RING_ENTRIES: u32 = 4096;

/// Where words are, counted in words from the window's beginning.
pub mod offset {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// How many nodes: each page has one word more than that.
    pub const NODES: usize = 2;
    /// How many pages are counted.
    pub const PAGES: usize = 3;
    /// The address of the first page, two words.
    pub const BASE: usize = 4;
    /// How many CPUs.
    pub const CPUS: usize = 6;
    /// The word where the pages' counters begin.
    pub const COUNTERS: usize = 7;
    /// The hypervisor writes here from how many misses of one node on a page is hot; 0: never.
    pub const THRESHOLD: usize = 8;
    /// How many entries were ever put into the ring, modulo 2^32.
    pub const HEAD: usize = 9;
    /// The hypervisor writes here how many it has taken out, modulo 2^32.
    pub const TAIL: usize = 10;
    /// How many entries found no place.
    pub const DROPPED: usize = 11;
    /// The parallel clock in nanoseconds, two words.
    pub const CLOCK: usize = 12;
    /// The local time of each CPU in nanoseconds, two words each.
    pub const LOCAL: usize = 64;
    /// The ring.
    pub const RING: usize = 256;
    /// The end of the header.
    pub const HEADER_END: usize = 9216;
}

const _: () = assert!(offset::LOCAL + 2 * CPUS_MAX <= offset::RING);
const _: () = assert!(offset::RING + 2 * RING_ENTRIES as usize <= offset::HEADER_END);

/// The window, as the machine writes it.
#[derive(Debug)]
pub struct Window<'w> {
    words: &'w [AtomicU32],
    stride: usize,
}

impl<'w> Window<'w> {
    /// How many words the counters of a machine need.
    pub fn words_for(topology: &Topology) -> usize {
        let pages = (topology.bytes() >> PAGE_SHIFT) as usize;
        offset::HEADER_END + pages * (topology.nodes() + 1)
    }

    /// Lays the window out in memory, which is made empty.
    ///
    /// # Errors
    /// The memory is too small.
    pub fn new(words: &'w [AtomicU32], topology: &Topology) -> Result<Self, Bad> {
        let needed = Self::words_for(topology);
        let Some(words) = words.get(..needed) else {
            let bytes = words.len() * 4;
            let needed = needed * 4;
            return Err(Bad::Window { bytes, needed });
        };
        // Only what is not 0 is written: a fresh file stays as small on disk as it was.
        for word in words.iter().filter(|word| word.load(Relaxed) != 0) {
            word.store(0, Relaxed);
        }
        let window = Self {
            words,
            stride: topology.nodes() + 1,
        };
        window.set(offset::VERSION, VERSION);
        window.set(offset::NODES, topology.nodes() as u32);
        window.set(offset::PAGES, (topology.bytes() >> PAGE_SHIFT) as u32);
        window.set_long(offset::BASE, topology.base());
        window.set(offset::CPUS, topology.cpus() as u32);
        window.set(offset::COUNTERS, offset::HEADER_END as u32);
        window.set(offset::MAGIC, MAGIC);
        Ok(window)
    }

    fn set(&self, at: usize, value: u32) {
        self.words[at].store(value, Relaxed);
    }

    fn get(&self, at: usize) -> u32 {
        self.words[at].load(Relaxed)
    }

    fn set_long(&self, at: usize, value: u64) {
        self.set(at, value as u32);
        self.set(at + 1, (value >> 32) as u32);
    }

    /// Counts a miss of a node on a page. At each multiple of the threshold the page is reported, so that
    /// one which found no place in the ring comes back; but where it is its `home` alone that misses (no
    /// other node has a quarter of the threshold), the page's counts begin anew.
    pub fn miss(&self, page: usize, node: usize, home: usize) {
        let record = offset::HEADER_END + page * self.stride;
        let count = self.get(record + node).saturating_add(1);
        self.set(record + node, count);
        let threshold = self.get(offset::THRESHOLD);
        if threshold == 0 || !count.is_multiple_of(threshold) {
            return;
        }
        let has_share = |other| other != home && self.get(record + other) >= threshold.div_ceil(4);
        if (0..self.stride - 1).any(has_share) {
            self.report(page as u32, node as u32);
        } else {
            (0..self.stride).for_each(|at| self.set(record + at, 0));
        }
    }

    /// A page is stored to, by whichever node.
    pub fn written(&self, page: usize) {
        self.set(offset::HEADER_END + page * self.stride + self.stride - 1, 1);
    }

    fn report(&self, page: u32, node: u32) {
        let head = self.get(offset::HEAD);
        if head.wrapping_sub(self.get(offset::TAIL)) >= RING_ENTRIES {
            let dropped = self.get(offset::DROPPED);
            self.set(offset::DROPPED, dropped.saturating_add(1));
            return;
        }
        let at = offset::RING + (head % RING_ENTRIES) as usize * 2;
        self.set(at, page);
        self.set(at + 1, node);
        self.set(offset::HEAD, head.wrapping_add(1));
    }

    /// Shows the clocks.
    pub fn publish(&self, now_ns: u64, local_ns: impl Iterator<Item = u64>) {
        self.set_long(offset::CLOCK, now_ns);
        for (cpu, ns) in local_ns.enumerate().take(CPUS_MAX) {
            self.set_long(offset::LOCAL + 2 * cpu, ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(words: usize) -> Vec<AtomicU32> {
        (0..words).map(|_| AtomicU32::new(7)).collect()
    }

    fn topology() -> Topology {
        Topology::new(
            2,
            2,
            0x4000_0000,
            4 << PAGE_SHIFT,
            Topology::two_latencies(2, 1, 3),
        )
        .unwrap()
    }

    #[test]
    fn hot_pages_are_reported_until_they_are_taken() {
        let words = memory(Window::words_for(&topology()));
        let window = Window::new(&words, &topology()).unwrap();
        assert_eq!(window.get(offset::MAGIC), MAGIC);
        window.set(offset::THRESHOLD, 3);
        for _ in 0..5 {
            window.miss(6, 1, 0);
        }
        window.written(6);
        let record = offset::HEADER_END + 6 * 3;
        assert_eq!(
            [
                window.get(record),
                window.get(record + 1),
                window.get(record + 2)
            ],
            [0, 5, 1]
        );
        assert_eq!(window.get(offset::HEAD), 1);
        assert_eq!(
            [window.get(offset::RING), window.get(offset::RING + 1)],
            [6, 1]
        );
        window.miss(6, 1, 0);
        assert_eq!(window.get(offset::HEAD), 2);
        // The hypervisor starts anew.
        window.set(record + 1, 0);
        (0..3).for_each(|_| window.miss(6, 1, 0));
        assert_eq!(window.get(offset::HEAD), 3);
    }

    #[test]
    fn a_page_that_only_its_home_uses_is_not_reported() {
        let words = memory(Window::words_for(&topology()));
        let window = Window::new(&words, &topology()).unwrap();
        window.set(offset::THRESHOLD, 8);
        window.written(6);
        window.miss(6, 1, 0);
        (0..8).for_each(|_| window.miss(6, 0, 0));
        let record = offset::HEADER_END + 6 * 3;
        assert!((record..record + 3).all(|at| window.get(at) == 0));
        assert_eq!(window.get(offset::HEAD), 0);
        // Both use it.
        (0..2).for_each(|_| window.miss(6, 1, 0));
        (0..8).for_each(|_| window.miss(6, 0, 0));
        assert_eq!((window.get(offset::HEAD), window.get(record)), (1, 8));
    }

    #[test]
    fn a_full_ring_drops_and_no_tail_does_harm() {
        let words = memory(Window::words_for(&topology()));
        let window = Window::new(&words, &topology()).unwrap();
        window.set(offset::THRESHOLD, 1);
        for _ in 0..=RING_ENTRIES {
            window.miss(0, 0, 1);
            window.set(offset::HEADER_END, 0);
        }
        assert_eq!(window.get(offset::HEAD), RING_ENTRIES);
        assert_eq!(window.get(offset::DROPPED), 1);
        window.set(offset::TAIL, u32::MAX / 2);
        window.miss(0, 0, 1);
        assert_eq!(window.get(offset::DROPPED), 2);
    }

    #[test]
    fn clocks_are_shown_and_small_windows_refused() {
        let words = memory(Window::words_for(&topology()));
        let window = Window::new(&words, &topology()).unwrap();
        window.publish(1 << 33 | 5, [1, 2].into_iter());
        assert_eq!(
            [window.get(offset::CLOCK), window.get(offset::CLOCK + 1)],
            [5, 2]
        );
        assert_eq!(window.get(offset::LOCAL + 2), 2);
        assert!(Window::new(&words[1..], &topology()).is_err());
    }
}
