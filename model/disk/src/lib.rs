//! A VM's disk: what its requests read and write, a bounded pass at a time.
//!
//! A request of the virtio-blk device is cut into *pieces* that lie in one 4 KiB block of the disk each. A
//! piece of a read is answered from wherever its block is, without a copy where whole blocks meet whole
//! pages (Disco 4.2.5, Satori 4); a piece of a write goes to the overlay. What is on a physical disk goes
//! through a buffer of EL2's own:
//!
//! ```text
//!             ┌────────────────────── More: the pass is over ──────────────────────┐
//!             ▼                                                                    │
//!  Request ─► execute ──► Needs(side, io) ──► fill a buffer ──► physical disk ─► Loaded
//!             │   ▲                             │ Err(turn)                        │
//!             ▼   └─────────────────────────────┴──────────────────────────────────┘
//!           Done(status)
//! ```
//!
//! [`Backing`] is the disk, [`execute`] and [`fill`] are the two steps, [`Progress`] says how far a request
//! is, and [`Budget`] what one pass may still do: whatever a guest asks for, a pass ends after about as much
//! work as 64 KiB of copied blocks are, or when it has taken too long. The machine is behind [`Machine`] and [`Store`], the VM behind
//! [`Guest`]: EL2 and the fake machine of tests run the same code.
//!
//! Nothing here indexes memory: all bytes are [`Bytes`], of which a part that is not inside is `None` and
//! fails the request.
#![no_std]
#![forbid(unsafe_code)]

mod bytes;
mod cow;
mod jobs;
mod pages;
mod records;
mod request;
mod write;

pub use bytes::Bytes;
pub use cow::{Base, CowDisk, Piece, Remains};
pub use jobs::{Job, Jobs, Lane, Lent, Place, UnderWay};
pub use pages::{Block, Outcome, Pages};
pub use request::{Backing, Budget, Loaded, Pass, Progress, Side, Turn, execute};
pub use write::fill;

use core::ops::{Deref, Range};
use machine_contract::{GuestMemoryError, TableMemory};
use model_addr::{Gfn, Ipa, Mfn, VmId};
use model_address_space::Gets;
use model_frame_table::{CacheKey, Owner};
use model_pmap::Why;

/// The most bytes of data in one transfer of a physical disk.
pub const DATA_AT_ONCE: u64 = 64 * 1024;

/// What a physical disk is asked for (virtio 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Transfer {
    /// Fills the buffer.
    Read = 0,
    /// Stores what is in the buffer.
    Write = 1,
    /// Makes durable what was written.
    Flush = 4,
}

/// A transfer between a buffer and a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// What is done.
    pub operation: Transfer,
    /// The first sector on the partition.
    pub sector: u64,
    /// Bytes, at most [`DATA_AT_ONCE`].
    pub bytes: u64,
}

/// An image that is in memory.
pub trait Image {
    /// Bytes of it.
    fn size(&self) -> u64;
    /// The frame that holds a block; `None` where it is zeroes, or behind the end.
    fn block(&self, block: u64) -> Option<Mfn>;
}

/// A partition of a physical disk, with what is known of its blocks.
pub trait Store {
    /// Its number on the machine, from 1 on.
    fn number(&self) -> u8;
    /// Bytes of its whole blocks.
    fn size(&self) -> u64;
    /// Whether a block holds what it held before, as far as that is known; it is from now on.
    fn check(&self, block: u64, page: Mfn) -> bool;
    /// A block that is free, and holds nothing that may be read.
    fn reserve(&self) -> Option<u64>;
    /// The word for what a page holds.
    fn word_of(&self, page: Mfn) -> u64;
    /// Notes that a block that was reserved is to hold what that word is for.
    fn remember(&self, block: u64, word: u64);
    /// Notes that a block is free.
    fn forget(&self, block: u64);
    /// What is known of a block, as records have it: zero where nothing is.
    fn word(&self, block: u64) -> u64;
    /// Notes what a record says of a block of which nothing is known; one that is taken `alone` is nobody else's. `false`
    /// where that makes no sense, or without memory for it.
    fn adopt(&self, block: u64, word: u64, alone: bool) -> bool;
    /// Frames of the tables that say what its blocks hold.
    fn tables(&self) -> u64;
}

/// The machine's frames, and who uses them, as disks need them.
pub trait Machine: Copy {
    /// An image in memory.
    type Image: Image;
    /// A partition of a physical disk, for as long as a disk has it.
    type Store: Deref<Target: Store>;
    /// Memory of tables.
    type Tables: TableMemory;

    /// Frames that tables take.
    fn count(tables: &Self::Tables) -> u64;
    /// Copies bytes; both runs are equally long, and EL2 may read and write both.
    fn copy(&self, to: Bytes, from: Bytes);
    /// Fills bytes with zeroes.
    fn zero(&self, bytes: Bytes);
    /// A frame for a block of a disk's own, with unspecified contents.
    fn allocate(&self, owner: Owner) -> Option<Mfn>;
    /// Gives back a frame that [`Self::allocate`] returned and that others may not use.
    fn free(&self, frame: Mfn);

    /// Whether others may use a frame.
    fn is_shared(&self, frame: Mfn) -> bool;
    /// Lets others of the owner's group find and use its frame by what it holds; whether they may.
    fn share(&self, frame: Mfn, owner: Owner) -> bool;
    /// Makes a shared frame the user's own where nobody else uses it; whether it is.
    fn claim(&self, frame: Mfn, user: Owner) -> bool;
    /// Takes a user from a shared frame.
    fn leave(&self, frame: Mfn, user: Owner);
    /// Adds a user to a page of an image.
    ///
    /// # Errors
    /// Why it must have a copy.
    fn join_image(&self, frame: Mfn, user: Owner) -> Result<(), Why>;
    /// Adds a user to a frame of a locked disk of its own; whether it is one.
    fn join_own(&self, frame: Mfn, user: Owner) -> bool;
    /// Adds a user to a frame of its group that holds what `page` holds, if one is found among so many that
    /// are `left` to compare.
    fn join_equal(&self, page: Mfn, user: Owner, left: &mut u32) -> Option<Mfn>;
    /// Whether a page of an image is used for the first time by whoever asks now.
    fn is_first_use(&self, frame: Mfn) -> bool;

    /// What the user's group knows a block of a partition as.
    fn key(&self, user: Owner, partition: u8, block: u64) -> CacheKey;
    /// Whether a frame of the group holds a block of a partition.
    fn has_block(&self, key: CacheKey) -> bool;
    /// Adds a user to a frame that holds a block of a partition; `None` where none does.
    fn join_block(&self, key: CacheKey, user: Owner) -> Option<Result<Mfn, Why>>;
    /// Copies a part of a block of a partition, from byte `from` of it on; whether a frame holds it.
    fn copy_block(&self, key: CacheKey, from: u64, to: Bytes) -> bool;
    /// Fills a frame that nobody has seen with what `page` of EL2's own holds, and lets the group find it as
    /// that block, with the user as its first; `None` without memory for it.
    fn enter_block(&self, page: Mfn, key: CacheKey, user: Owner) -> Option<Mfn>;

    /// What a record says of a frame that a disk has (`abi::state::run`).
    fn kind_of(&self, frame: Mfn) -> u8;
    /// Makes a disk one of those who have a frame, as a record of that kind says; whether it is.
    fn take_over(&self, kind: u8, frame: Mfn, user: Owner) -> bool;
}

/// A VM, as its disks need it.
pub trait Guest {
    /// Which VM.
    fn id(&self) -> VmId;
    /// Whether it shares pages with others.
    fn shares(&self) -> bool;
    /// Whether an address is in its own memory, and in no region that it shares.
    fn contains(&self, ipa: Ipa) -> bool;
    /// Whether its memory stays in blocks where it is in some.
    fn keeps_blocks(&self) -> bool;
    /// Whether it has marked a page as never to be shared.
    fn is_never_shared(&self, gfn: Gfn) -> bool;
    /// Calls `each` with every piece of the run of `len` bytes from `ipa` that lies in one frame, and which
    /// bytes of the run that is. The run is read, or `write`n.
    ///
    /// # Errors
    /// Where it is no memory, or cannot be had now.
    fn pieces(
        &self,
        ipa: Ipa,
        len: usize,
        write: bool,
        each: impl FnMut(Bytes, Range<usize>),
    ) -> Result<(), GuestMemoryError>;
    /// Lets `with` look at the frame behind a page.
    ///
    /// # Errors
    /// As [`Self::pieces`].
    fn look(&self, ipa: Ipa, with: impl FnOnce(Mfn) -> bool) -> Result<bool, GuestMemoryError>;
    /// Gives pages what they get ([`model_address_space::Maps::exchange`]).
    fn exchange(&self, pages: &[(Gfn, Gets)]) -> u64;
    /// Counts a page that could not be shared.
    fn refused(&self, why: Why);
    /// Counts a page that was found by its contents.
    fn found_equal(&self);
    /// Something the guest did was refused, and why: for whoever looks for the cause.
    fn complain(&self, at: u64, why: model_disk_overlay::OverlayError);
}
