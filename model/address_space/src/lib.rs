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
//! A guest frame may also use a frame that others use ([`Gets`], [`Maps::exchange`]): the page of a
//! disk's base image that it read, or one that was found equal. Kernel and initrd are pages of the
//! bundle from the start. A write gives the guest a frame of its own:
//!
//! ```text
//!                  only user, no image's page
//!  write ─► ╔══════╗ ──────────────► claimed in place ─────────────────────► Done
//!           ║ look ║                            ╔═══════╗ copy, or zero where the guest
//!           ╚══════╝ ─────────► take one ─────► ║ break ║ overwrites it all ──► Done
//!                                  │none        ╚═══════╝
//!                                  ▼            somebody was faster: give back
//!                               NoMemory
//! ```
//!
//! The machine is behind [`Frames`] and [`Translation`]. Callers lock: they pass what locks the VM's [`Maps`].
#![no_std]
#![forbid(unsafe_code)]

mod dismantle;
mod exchange;
mod fault;
mod flights;
mod maps;
mod memory;
mod paging;
mod replicas;
mod state;
mod unshare;

pub use dismantle::Dismantling;
pub use exchange::{EXCHANGE_MAX, Gets};
pub use fault::{Access, Fault, Filled};
pub use flights::{FLIGHTS_MAX, Flight, Moved};
pub use maps::{Events, Maps, Run};
pub use memory::{GuestRam, Policy, SOURCES, Source};
pub use paging::AGE_AT_ONCE;
pub use replicas::GIVE_BACK_AT_ONCE;

use machine_contract::TableMemory;
use model_addr::{Mfn, NodeId};
use model_frame_table::{MemoryMap, Owner, Purpose};
use model_pmap::{Reasons, Why};
use model_stage2::Invalidation;

/// Reasons that the fault ends which they cause. Whoever gives a page another one ends it, too ([`Maps::lift`]).
pub const ENDED: Reasons = paging::SAMPLED.union(replicas::GUARDED);

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
    /// Gives single private frames back; those that follow each other cost less.
    fn free_each(&self, frames: &[Mfn]) {
        for frame in frames {
            self.free(*frame, 0);
        }
    }
    /// Gives back what is still reserved for `owner` and those after it, of the 2 MiB from `first`.
    fn free_reserved(&self, first: Mfn, owner: Owner);
    /// Fills frames with zeroes that a guest sees whether its caches are on or off.
    fn zero(&self, first: Mfn, count: u64);
    /// Makes sure that no instruction cache holds what frames, which nobody sees yet, held for somebody else.
    fn drop_code(&self, first: Mfn, count: u64);
    /// A frame for a page that a guest is about to have alone, near `home`. It may come from what is
    /// kept for this, so that a write never waits for others to give memory back.
    fn allocate_for_break(&self, home: NodeId, owner: Owner) -> Option<Mfn>;
    /// As [`Self::allocate_for_break`], for a break that ends by [`Self::leave_hidden`].
    fn allocate_hidden(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        self.allocate_for_break(home, owner)
    }
    /// A frame for a page that a device is about to use, or a guest that must run to give memory back,
    /// where no other is left. It may come from what is kept for this.
    fn allocate_urgently(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        self.allocate_for_break(home, owner)
    }
    /// Copies a frame that nobody writes into one that nobody sees yet, of which no instruction cache holds
    /// anything then; as for [`Self::write`].
    fn copy(&self, from: Mfn, to: Mfn);
    /// Copies a frame that a guest wrote until [`Maps::begin`] into one that nobody sees yet, without
    /// its lock. The guest may have written it with its caches off; by now it may be another's.
    fn relocate(&self, from: Mfn, to: Mfn) {
        self.copy(from, to);
    }
    /// Adds `user` to a frame that others use, or that is kept for its contents. An image's page
    /// is made visible to guests whose caches are off.
    ///
    /// # Errors
    /// Why it must have a frame of its own.
    fn join(&self, frame: Mfn, user: Owner) -> Result<(), Why>;
    /// Takes `user` from a shared frame, and gives the frame back where that was the last and
    /// nothing keeps it. No TLB knows the user's translation any more.
    fn leave(&self, frame: Mfn, user: Owner);
    /// As [`Self::leave`], at the end of what [`Self::allocate_hidden`] began: all between them takes
    /// as long whoever else uses the frame, and whatever memory is free.
    fn leave_hidden(&self, frame: Mfn, user: Owner);
    /// Makes a shared frame private memory of `user` where that is its only user; whether it did.
    fn claim(&self, frame: Mfn, user: Owner) -> bool;
    /// Makes a private frame one that others may use, with `user` as its only user; whether it
    /// did. Others find it after [`Self::enlist`] only.
    fn publish(&self, frame: Mfn, user: Owner) -> bool;
    /// Lets others find a shared frame by its contents: nobody writes it any more.
    fn enlist(&self, frame: Mfn);
    /// A page was touched on `node` of which that was to be noticed ([`Maps::sample`], [`Maps::age`]), or one
    /// of a VM of that node got the frame of another in exchange.
    fn touched(&self, frame: Mfn, page: Owner, (node, access): (NodeId, Access)) {
        let _ = (frame, page, node, access);
    }
    /// What `token` names of a page on a disk is not needed any more.
    fn forget(&self, token: u64) {
        let _ = token;
    }
    /// Puts bytes where `offset` says, counted from the start of `first`, into zeroes that nobody
    /// has seen; a guest sees them whether its caches are on or off.
    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]);
}

/// The memory of a VM's tables, which the hardware walks.
pub trait Translation: TableMemory {
    /// Pays a debt of the VM's translation: returns when no TLB holds what `what` names.
    fn invalidate(&mut self, what: Invalidation);
    /// CPUs of `node` may walk from `root`, too, which maps nothing yet.
    fn use_root(&mut self, node: NodeId, root: Mfn) {
        let _ = (node, root);
    }
}
