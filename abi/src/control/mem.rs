//! What is said of memory: who has what, why, and what would fit.

use super::VmName;
use crate::Text;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A VM's memory, in bytes where nothing else is said.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemStatus {
    /// Its name.
    pub name: VmName,
    /// The name of its share group.
    pub group: Text<24>,
    /// What it is sure of.
    pub base: u64,
    /// The most it can have: what its guest sees.
    pub max: u64,
    /// The most it may have now; EL2 enforces it.
    pub limit: u64,
    /// What its guest was asked to keep to.
    pub target: u64,
    /// Guest memory with a frame behind it.
    pub resident: u64,
    /// Of it, frames that nobody else can use.
    pub private: u64,
    /// Of it, frames that others use or could use.
    pub shared: u64,
    /// What it is charged: private frames, its part of shared ones, its overlays, its tables.
    pub charge: u64,
    /// What sharing saves on its account: (n-1)/n of each frame that n use.
    pub entitlement: u64,
    /// Of it, what was given to the guest beyond its base.
    pub drawn: u64,
    /// Entitlement less drawn.
    pub balance: i64,
    /// What it has to give back before it may go on.
    pub owed: u64,
    /// Overlays of its disks in memory.
    pub overlay: u64,
    /// Its translation tables and maps.
    pub tables: u64,
    /// 2 MiB entries of its translation.
    pub blocks: u64,
    /// 4 KiB entries of its translation.
    pub pages: u64,
    /// What EL2 could take from it now without its help: an estimate, as the pages that partitions
    /// hold are counted once a second.
    pub takeable: u64,
    /// How long half of its pages, and 99 of 100, took at most to be read again, in nanoseconds.
    pub refault_ns: [u64; 2],
    /// How long somebody of it waited for frames since it owed, in nanoseconds.
    pub stalled_ns: u64,
    /// What was counted since it started, by kind.
    pub events: [u64; MEM_EVENT_COUNT],
}
const _: () = assert!(size_of::<MemStatus>() == 32 + 24 + 20 * 8 + 8 * MEM_EVENT_COUNT);

/// How many kinds of events of shared memory are counted.
pub const MEM_EVENT_COUNT: usize = 20;

/// The machine's memory as VMs share it, in bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MachineMem {
    /// What pools manage.
    pub managed: u64,
    /// Of it, free.
    pub free: u64,
    /// Kept for breaking what is shared.
    pub reserve: u64,
    /// Frames that VMs share, each counted once.
    pub shared: u64,
    /// What VMs would need more if nothing were shared.
    pub saved: u64,
    /// Blocks of disks kept though no VM uses them now.
    pub cached: u64,
    /// The bundle's pages that VMs may use.
    pub images: u64,
    /// Sum of the bases of the VMs that run.
    pub bases: u64,
    /// What was saved and waits for a VM to start with it.
    pub pool: u64,
    /// Records of who uses what.
    pub records: u64,
}
const _: () = assert!(size_of::<MachineMem>() == 80);

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

/// Why a VM's memory is not shared.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WhyStatus {
    /// Private frames, by reason.
    pub private: [u64; WHY_COUNT],
    /// Frames that could be shared and have no second user.
    pub no_twin: u64,
    /// Frames with two users or more.
    pub shared: u64,
}
const _: () = assert!(size_of::<WhyStatus>() == 8 * WHY_COUNT + 16);

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

/// How many more VMs of a description would start.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FitStatus {
    /// How many.
    pub count: u64,
    /// What the next one would need, in bytes.
    pub needed: u64,
    /// What there would be for it, in bytes.
    pub there: u64,
    /// What binds: one of [`fit`].
    pub binds: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<FitStatus>() == 32);

/// What keeps one more VM from starting, in [`FitStatus::binds`].
pub mod fit {
    /// The machine's memory.
    pub const MEMORY: u32 = 0;
    /// As many VMs as the machine can have.
    pub const VMS: u32 = 1;
    /// As many vCPUs as the machine can have.
    pub const VCPUS: u32 = 2;
    /// A persistent disk that only one VM can have.
    pub const DISK: u32 = 3;
}

/// Asks about some of a VM's memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PagesRequest {
    /// The VM.
    pub name: VmName,
    /// The guest-physical address to begin at, a multiple of 4 KiB.
    pub from: u64,
}
const _: () = assert!(size_of::<PagesRequest>() == 40);

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
