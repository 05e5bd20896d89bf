//! Records about where memory is.

use super::VmName;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many reasons there may be for a page to stay.
pub const NUMA_LEFT_COUNT: usize = 12;

/// Why a hot page stayed, in [`super::RawVm::counts`] from [`super::count::LEFT`] on.
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

/// How the misses of nodes on memory are known, in [`super::MachineStatus::misses`].
pub mod misses {
    /// They are not: nothing moves by itself.
    pub const UNKNOWN: u64 = 0;
    /// The machine counts them.
    pub const COUNTED: u64 = 1;
    /// Some pages are sampled.
    pub const SAMPLED: u64 = 2;
}

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
