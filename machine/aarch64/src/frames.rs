//! Access to frames by machine address: copies through raw pointers, never a reference.
//!
//! Guests and devices may write the same bytes at the same time. Such races tear values, which
//! the callers expect: what a guest says is an allegation, read once and checked afterwards.

use crate::bytes::{
    bytes_copy, bytes_copy_wide, frame_copy, frame_equal, frame_zero_clean, load_pairs, store_pairs,
};
use core::ptr;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use model_addr::{FRAME_SIZE, Mfn, Pa};

const FRAME: usize = FRAME_SIZE as usize;

/// A run of RAM that EL2 may read and write by machine address.
///
/// Holding one is the proof that the run is RAM: only [`Ram::new`] makes them.
#[derive(Clone, Copy, Debug)]
pub struct Ram {
    start: Pa,
    size: u64,
}

impl Ram {
    /// No memory at all: a place holder.
    pub const EMPTY: Self = Self {
        start: Pa(0),
        size: 0,
    };

    /// Names a run of RAM.
    ///
    /// # Safety
    ///
    /// All `size` bytes from `start` are RAM that EL2 has mapped one to one as Normal memory, and
    /// Rust owns none of them: no reference and no allocation of EL2 lies inside.
    pub const unsafe fn new(start: Pa, size: u64) -> Self {
        Self { start, size }
    }

    /// Whole frames from `first`.
    ///
    /// # Safety
    ///
    /// As [`Self::new`].
    pub const unsafe fn frames(first: Mfn, count: u64) -> Self {
        Self {
            start: first.address(),
            size: count * FRAME_SIZE,
        }
    }

    /// Bytes.
    pub const fn size(self) -> u64 {
        self.size
    }

    /// Where it begins.
    pub const fn start(self) -> Pa {
        self.start
    }

    fn pointer(self, offset: u64, len: usize) -> *mut u8 {
        assert!(
            offset <= self.size && len as u64 <= self.size - offset,
            "run of {len} bytes at {offset:#x} leaves RAM of {:#x} bytes at {}",
            self.size,
            self.start
        );
        ptr::with_exposed_provenance_mut((self.start.0 + offset) as usize)
    }

    /// Copies bytes out.
    pub fn read(self, offset: u64, into: &mut [u8]) {
        let from = self.pointer(offset, into.len());
        // SAFETY: `from` is RAM for `into.len()` bytes (checked), `into` is EL2's own, and the
        // two do not overlap since Rust owns nothing inside the run.
        unsafe { bytes_copy(into.as_mut_ptr(), from, into.len() as u64) }
    }

    /// Copies bytes in.
    pub fn write(self, offset: u64, from: &[u8]) {
        let to = self.pointer(offset, from.len());
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { bytes_copy(to, from.as_ptr(), from.len() as u64) }
    }

    /// Copies bytes from another run.
    pub fn copy_from(self, offset: u64, source: Ram, source_offset: u64, len: usize) {
        let to = self.pointer(offset, len);
        let from = source.pointer(source_offset, len);
        let (first, second) = (self.start.0 + offset, source.start.0 + source_offset);
        let is_aligned = (first | second).is_multiple_of(8);
        if len == FRAME && is_aligned && first.abs_diff(second) >= FRAME_SIZE {
            // SAFETY: both are RAM for a frame (checked), apart, and aligned for its accesses.
            return unsafe { frame_copy(to, from) };
        }
        if first.abs_diff(second) >= len as u64 {
            // SAFETY: both are RAM for `len` bytes (checked), apart, and EL2 checks no alignment.
            return unsafe { bytes_copy(to, from, len as u64) };
        }
        // SAFETY: both are RAM for `len` bytes (checked); `copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len) }
    }

    /// Copies all of `source` to where this begins, apart from it, by SIMD registers where that is shorter.
    /// They are afterwards what they were.
    ///
    /// # Safety
    ///
    /// SVE and SME registers of this CPU hold nothing of anybody's.
    pub unsafe fn copy_wide(self, source: Ram) {
        let len = source.size as usize;
        let (to, from) = (self.pointer(0, len), source.pointer(0, len));
        assert!(
            self.start.0.abs_diff(source.start.0) >= source.size,
            "copy onto itself"
        );
        // SAFETY: both are RAM for `len` bytes (checked) and apart (checked); EL2 runs on the stack with
        // room for eight registers, and checks no alignment.
        unsafe { bytes_copy_wide(to, from, len as u64) }
    }

    /// The part of `len` bytes from `offset` on.
    #[must_use]
    pub fn part(self, offset: u64, len: usize) -> Self {
        let start = self.pointer(offset, len).expose_provenance();
        Self {
            start: Pa(start as u64),
            size: len as u64,
        }
    }

    /// Whether the first frame of both runs holds the same.
    pub fn equals(self, other: Ram) -> bool {
        let (one, two) = (self.pointer(0, FRAME), other.pointer(0, FRAME));
        // SAFETY: both are RAM for a frame (checked); loads change nothing, and what somebody else
        // stores meanwhile is seen or not.
        unsafe { frame_equal(one, two) }
    }

    /// Fills a part with zeroes.
    pub fn zero(self, offset: u64, len: usize) {
        // SAFETY: RAM for `len` bytes (checked) that Rust does not own.
        unsafe { ptr::write_bytes(self.pointer(offset, len), 0, len) }
    }

    /// The aligned 32-bit words from `offset` on, each in one access.
    pub fn read_words<const WORDS: usize>(self, offset: u64) -> [u32; WORDS] {
        let first = self.pointer(offset, 4 * WORDS).cast::<u32>();
        assert!(first.is_aligned(), "odd address for 32-bit words");
        // SAFETY: RAM for so many words, aligned; volatile, as others may write it meanwhile.
        core::array::from_fn(|n| unsafe { first.add(n).read_volatile() })
    }

    /// The aligned 16-bit word at `offset`, in one access.
    pub fn read_u16(self, offset: u64) -> u16 {
        let word = self.pointer(offset, 2).cast::<u16>();
        assert!(word.is_aligned(), "odd address for a 16-bit word");
        // SAFETY: RAM for two bytes, aligned; all accesses of EL2 to it are atomic or copies.
        unsafe { AtomicU16::from_ptr(word).load(Ordering::Acquire) }
    }

    /// Entry `place` of those of 16 bytes, little-endian, that begin here, at an aligned address; `None` outside.
    #[inline]
    pub fn entry(self, place: u16) -> Option<u128> {
        let offset = 16 * u64::from(place);
        if offset + 16 > self.size || !self.start.is_aligned(16) {
            return None;
        }
        let entry = ptr::with_exposed_provenance_mut::<u64>((self.start.0 + offset) as usize);
        // SAFETY: RAM for two words, aligned; all accesses of EL2 to it are atomic or copies.
        let word = |n| unsafe { AtomicU64::from_ptr(entry.add(n)) }.load(Ordering::Relaxed);
        Some(u128::from(word(1)) << 64 | u128::from(word(0)))
    }

    /// Sets the aligned 16-bit word at `offset`, after all earlier stores.
    pub fn write_u16(self, offset: u64, value: u16) {
        let word = self.pointer(offset, 2).cast::<u16>();
        assert!(word.is_aligned(), "odd address for a 16-bit word");
        // SAFETY: as in `read_u16`.
        unsafe { AtomicU16::from_ptr(word).store(value, Ordering::Release) }
    }
}

/// A frame of 512 words that table walkers may read at any moment. Whatever the index, an access
/// stays inside, so that none is checked.
#[derive(Clone, Copy, Debug)]
pub struct Table(Mfn);

impl Table {
    const WORDS: usize = FRAME_SIZE as usize / size_of::<u64>();

    /// Names a frame that holds a table.
    ///
    /// # Safety
    ///
    /// As [`Ram::new`], for the whole frame.
    #[inline]
    pub const unsafe fn new(frame: Mfn) -> Self {
        Self(frame)
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        let start = ptr::with_exposed_provenance_mut::<u64>(self.0.address().0 as usize);
        // SAFETY: RAM (the promise of `new`), inside the frame and aligned to eight bytes; all
        // accesses of EL2 to it are atomic.
        unsafe { AtomicU64::from_ptr(start.add(index % Self::WORDS)) }
    }

    /// Word `index`, below 512. Whoever calls holds the lock of what the table belongs to.
    #[inline]
    pub fn read(self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Sets word `index`. Walkers that see it see what it leads to: zeroing a frame, publishing
    /// bytes and paying a debt each end in a barrier, and come before.
    #[inline]
    pub fn write(self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Where the `N` words from `index` on begin, an aligned run of a power of two, and more than one. Each word of a pair is
    /// an access of its own (Arm ARM, single-copy atomicity).
    #[inline]
    fn pairs<const N: usize>(&self, index: usize) -> *mut u64 {
        const { assert!(N.is_power_of_two() && N <= Self::WORDS) }
        self.word(index & !(N - 1)).as_ptr()
    }

    /// The `N` words of such a run, ORed.
    #[inline]
    pub fn read_together<const N: usize>(self, index: usize) -> u64 {
        if N == 1 {
            return self.read(index);
        }
        // SAFETY: the run is aligned, so all of it is inside the frame, of which `word` says what it is.
        unsafe { load_pairs::<N>(self.pairs::<N>(index)) }
    }

    /// Sets the words of such a run: the first to `first`, each other one to `step` more.
    #[inline]
    pub fn write_series<const N: usize>(self, index: usize, first: u64, step: u64) {
        if N == 1 {
            return self.write(index, first);
        }
        // SAFETY: as in `read_together`.
        unsafe { store_pairs::<N>(self.pairs::<N>(index), first, step) }
    }
}

/// Zeroes whole frames and cleans them to the point of coherency line by line, so that a guest
/// whose caches are off sees zeroes too and never what was there before.
///
/// # Safety
///
/// The frames are RAM that nobody uses.
pub unsafe fn zero_frames_for_guest(first: Mfn, frames: u64) {
    // SAFETY: the caller's promise; the routine touches exactly these frames.
    unsafe { frame_zero_clean(first.address().0, frames) }
}
