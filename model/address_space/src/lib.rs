//! A VM's memory: what a fault decides, and how frames come to be behind guest frames and go.
//!
//! The pmap is the truth, the stage-2 tables are a cache of it, and both are [`Maps`], behind one
//! lock of the VM. A [`Fault`] goes from step to step; a step that changes the maps holds the lock
//! for a few dozen stores, and frames are allocated and zeroed without it:
//!
//! ```text
//!             ┌──────────────────────────────────────────────────┐
//!             ▼        region untouched                          │
//!          ╔══════╗────────────────────► reserve ──2 MiB──► ╔══════╗
//!  fault ─►║ look ║                        2 MiB            ║ note ║
//!          ╚══════╝                          │none          ╚══════╝
//!   present │ │ │  no run, or reclaimed      ▼                  │no table
//!  ┌────────┘ │ └────────────────────────► take ◄───────────────┘
//!  │  chunk   │                     64 KiB, else 4 KiB ──none──► NoMemory
//!  │  reserved│                            │
//!  ▼          ▼                            ▼         ╔══════╗ full: 2 MiB block
//! Done      zero, then the sources' bytes ─────────► ║ show ║──────────► Done
//!                                                    ╚══════╝ somebody was faster: give back
//! ```
//!
//! Double frames hold the lock. A fault fills an aligned chunk of 64 KiB at most, so no guest waits
//! long and EL2 is never busy zeroing for longer. Chunks of one 2 MiB region come from one reserved
//! run of the machine where the own node has one, so that a region that is filled becomes a single
//! block. What is reserved can be reclaimed for other VMs at any moment until it is taken, which
//! is one compare-and-swap in the frame table; from then on the chunk is this fault's alone.
//!
//! The machine is behind [`Frames`] and [`Translation`]. Callers lock: they pass what locks the VM's [`Maps`].
#![no_std]
#![forbid(unsafe_code)]

mod dismantle;
mod fault;
mod maps;
mod memory;

pub use dismantle::Dismantling;
pub use fault::{Fault, Filled};
pub use maps::{Maps, Run};
pub use memory::{GuestRam, SOURCES, Source};

use machine_contract::TableMemory;
use model_addr::{Mfn, NodeId};
use model_frame_table::{MemoryMap, Owner, Purpose};
use model_stage2::Invalidation;

/// The machine's frames, as a VM's memory uses them. None of this waits for the VM's lock.
pub trait Frames {
    /// The frame table.
    fn map(&self) -> &MemoryMap<'_>;
    /// 2^`order` frames as near to `home` as there are; reserved ones of any VM are reclaimed
    /// before it is `None`.
    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn>;
    /// 2^`order` frames of `home` itself, without reclaiming any.
    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn>;
    /// Gives 2^`order` private frames back.
    fn free(&self, first: Mfn, order: u8);
    /// Gives back what is still reserved for `owner` and those after it, of the 2 MiB from `first`.
    fn free_reserved(&self, first: Mfn, owner: Owner);
    /// Fills frames with zeroes that a guest sees whether its caches are on or off.
    fn zero(&self, first: Mfn, count: u64);
    /// Puts bytes where `offset` says, counted from the start of `first`; a guest sees them as
    /// data and as instructions, whether its caches are on or off.
    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]);
}

/// The memory of a VM's tables, which the hardware walks.
pub trait Translation: TableMemory {
    /// Pays a debt of the VM's translation: returns when no TLB holds what `what` names.
    fn invalidate(&mut self, what: Invalidation);
}
