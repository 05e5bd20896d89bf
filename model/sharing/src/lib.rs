//! Frames that guests share: who uses them, what each is charged, and how they are found.
//!
//! A *user* of a frame is a guest frame, or a disk's overlay, that the frame is behind. A shared
//! frame has 1 to [`MAX_USERS`], and nobody writes it (Disco, section 4.2.5; Satori, section 4.2 for
//! what each is charged).
//!
//! ```text
//!            publish            join                   leave (the last one, kept)
//!  Private ──────────► Shared ───────► Shared ─ ... ─► Shared ──────────► CachedOnly ──► pool
//!     ▲                  │  n = 1        n = 2           │ n = 1   ◄──────────  evict
//!     └──────────────────┘                               │          join
//!        claim (sole user)                               └───────────────────────────────► pool
//!                                                          leave (the last one, not kept)
//!
//!  frame's entry         records of a slab                         accounts, a line per VM slot
//!  first link ─────────► 5 users, next ──► user, last user         users; units: sum of 1/n
//!  next by content ─┐
//!  next by block ───┴──► other frames of the same bucket of the index
//! ```
//!
//! A disk image's frames are kept from boot on, and go back and forth between shared and kept for
//! ever: they are neither claimed nor freed.
//!
//! **What protects what.** The frame's lock: its use, its users, their records, and the accounts'
//! changes for it, which are therefore exact at every moment. A stripe's lock: the chains of its
//! buckets. A frame has to leave the index before it may be claimed or freed, and leaving takes the
//! stripe's lock; so whoever holds that lock and finds a frame may compare its contents, and join
//! it: they cannot have changed in between, for nobody writes a shared or kept frame. The frame
//! table refuses the wrong order ([`model_frame_table::Refused::Indexed`]).
//!
//! Stripes' locks come before frames' locks, and those before the slab's. [`join`], [`publish`] and
//! the index are for callers with or without a stripe; [`leave`], [`claim`] and [`evict`] take
//! stripes themselves. No lock is held while a record is allocated, and frames that are neither
//! shared nor kept are not locked even for a moment, so nothing here is in a pool's way.
//!
//! **What caches hold.** A guest that maps a frame as Non-cacheable sees what memory holds of it, and others what
//! caches hold: so a frame is cleaned ([`Ground::clean`]) before others can find it ([`enlist`]), and an image's
//! page before its first user has it ([`join`]). From then on nobody writes it, and both stay the same.
//!
//! All work is bounded: [`MAX_USERS`] records of a frame, [`LONGEST_CHAIN`] frames of a bucket.
#![no_std]
#![forbid(unsafe_code)]

mod account;
mod clock;
mod frame;
mod index;
mod list;
mod record;

use model_addr::{Mfn, NodeId};
use model_frame_table::MemoryMap;

pub use account::{ACCOUNTS, Account, Accounts, UNIT};
pub use clock::Clock;
pub use frame::{
    Expect, Joined, Left, MAX_USERS, NotJoined, claim, enlist, evict, join, join_equal, leave,
    publish, users,
};
pub use index::{Bucket, Index, LONGEST_CHAIN, RELISTED, STRIPES};
pub use record::{Link, RecordId, Size, Slab};

/// What sharing stands on: the machine gives it, or a test.
pub trait Ground {
    /// The frame table.
    fn map(&self) -> &MemoryMap<'_>;
    /// The accounts.
    fn accounts(&self) -> &Accounts;
    /// The index.
    fn index(&self) -> &Index<'_>;
    /// Locks a stripe of the index, below [`STRIPES`], until the guard is dropped.
    fn lock_stripe(&self, stripe: usize) -> impl Sized;
    /// Word `n`, below 512, of what `frame` holds. It may be anybody's frame meanwhile.
    fn word(&self, frame: Mfn, n: usize) -> u64;
    /// Whether a frame that nobody writes holds what `page` holds.
    fn is_equal(&self, frame: Mfn, page: Mfn) -> bool;
    /// Makes what memory holds of a frame that nobody writes any more the same as what caches hold: guests see it
    /// with their caches on or off.
    fn clean(&self, frame: Mfn);
    /// Lets no instruction cache hold anything of a frame that is clean: what its own guest executed there may be old.
    fn drop_instructions(&self, frame: Mfn);
    /// A record with unspecified contents, as near to `near` as there is one. No frame is
    /// locked. `None` where there is no memory left.
    fn take_record(&self, near: NodeId, size: Size) -> Option<RecordId>;
    /// Takes back a record; no frame is locked.
    fn give_record(&self, record: RecordId);
    /// The first words of a record ([`RecordId::read`]); the frame that it is of is locked.
    fn read<const N: usize>(&self, record: RecordId) -> [u64; N];
    /// Sets word `n` of a record; the frame that it is of is locked.
    fn write(&self, record: RecordId, n: usize, word: u64);
    /// Gives a frame of EL2's own back to its pool; it is not locked, nor is any other.
    fn free(&self, frame: Mfn);
}
