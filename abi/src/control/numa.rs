//! Records about where memory is.

use super::VmName;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many reasons there may be for a page to stay.
pub const NUMA_LEFT_COUNT: usize = 12;

/// Places in [`NumaStatus::left`].
pub mod left {
    /// Nobody misses often.
    pub const NOT_HOT: usize = 0;
    /// Who misses often has it at hand.
    pub const AT_HOME: usize = 1;
    /// Several nodes use it and somebody writes it.
    pub const WRITE_SHARED: usize = 2;
    /// It was moved too often of late.
    pub const MOVED_OFTEN: usize = 3;
    /// The node that would get it is short of memory.
    pub const NO_MEMORY: usize = 4;
    /// It was another one by then.
    pub const GONE: usize = 6;
    /// It is on its way to a disk, watched, or in a block that is kept whole.
    pub const HELD: usize = 7;
}

/// Where a VM's memory is, and what became of its pages.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NumaStatus {
    /// Its name.
    pub name: VmName,
    /// Bytes on each node.
    pub memory: [u64; 8],
    /// Pages that moved.
    pub moved: u64,
    /// Copies that nodes got of pages that they read.
    pub replicated: u64,
    /// Pages whose copies went since somebody wrote them.
    pub collapsed: u64,
    /// Copies there are now.
    pub copies: u64,
    /// Misses on pages that were hot, on memory of the own node.
    pub local: u64,
    /// As `local`, on other nodes' memory.
    pub remote: u64,
    /// Hot pages that stayed, by [`left`].
    pub left: [u64; NUMA_LEFT_COUNT],
    /// 1 where all of it is on its way to a node.
    pub moving: u64,
    /// How misses are known: [`Self::COUNTED`], [`Self::SAMPLED`], or 0 where nothing moves by itself.
    pub counts: u64,
    /// Nanoseconds of CPUs that went into moving and copying pages, beside `copying_ns`.
    pub moving_ns: u64,
    /// Nanoseconds of CPUs that went into the bytes themselves: caches cleaned, and the copy.
    pub copying_ns: u64,
}

impl NumaStatus {
    /// The machine counts misses.
    pub const COUNTED: u64 = 1;
    /// Some pages are sampled.
    pub const SAMPLED: u64 = 2;
}
const _: () = assert!(size_of::<NumaStatus>() == 32 + 8 * 8 + 48 + 8 * NUMA_LEFT_COUNT + 32);

/// Moves a VM's memory to a node.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MoveRequest {
    /// The VM.
    pub name: VmName,
    /// The node's number.
    pub node: u64,
}
const _: () = assert!(size_of::<MoveRequest>() == 40);
