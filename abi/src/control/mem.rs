//! What is said of memory: who has what, why, and what would fit.

use super::VmName;
use crate::Text;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A region of memory that VMs share on purpose.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionStatus {
    /// Its name.
    pub name: Text<24>,
    /// The share group of the VMs that use it.
    pub group: Text<24>,
    /// Its bytes, all of which are taken from the machine while somebody uses it.
    pub size: u64,
    /// Bytes of it that somebody has touched.
    pub touched: u64,
    /// VMs that use it.
    pub users: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RegionStatus>() == 72);

/// How many reasons there may be for a frame to be private.
pub const WHY_COUNT: usize = 16;

/// What is behind some of a VM's guest frames.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageCounts {
    /// Private frames, by reason.
    pub private: [u64; WHY_COUNT],
    /// Frames that could be shared and have no second user.
    pub no_twin: u64,
    /// Frames with two users or more.
    pub shared: u64,
    /// Frames on each node.
    pub nodes: [u64; 8],
}
const _: () = assert!(size_of::<PageCounts>() == 8 * (WHY_COUNT + 10));

/// Takes memory from a VM.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReclaimRequest {
    /// The VM.
    pub name: VmName,
    /// How many bytes.
    pub bytes: u64,
}
const _: () = assert!(size_of::<ReclaimRequest>() == 40);

/// What the frame table and the maps of VMs say of each other, of the frames looked at so far.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecountStatus {
    /// Where to go on; 0 at the end.
    pub next: u64,
    /// Frames that one guest frame has.
    pub private: u64,
    /// Frames that guest frames and blocks of overlays use together.
    pub shared: u64,
    /// Frames that are kept for what they hold.
    pub cached: u64,
    /// Frames of overlays.
    pub overlay: u64,
    /// Frames that nobody has: their VM is gone, or its map does not have them.
    pub lost: u64,
    /// The first of those.
    pub first_lost: u64,
    /// VMs whose account or map has other sums than the frames of it; at the end.
    pub unequal: u64,
}
const _: () = assert!(size_of::<RecountStatus>() == 64);

/// A page of a VM that something is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageStatus {
    /// Its guest-physical address, a multiple of 4 KiB; in its low bits one of [`page`].
    pub address: u64,
    /// A hash of what it holds, with a key of this boot: equal for equal pages. 0: zeroes.
    pub hash: u64,
}
const _: () = assert!(size_of::<PageStatus>() == 16);

/// What backs a page, in the low bits of [`PageStatus::address`].
pub mod page {
    /// A frame of its own.
    pub const PRIVATE: u64 = 1;
    /// A frame that others may use, and nobody else does.
    pub const ALONE: u64 = 2;
    /// A frame with two users or more.
    pub const SHARED: u64 = 3;
}
