//! Disks that OS-0 serves: what EL2 asks for, and how it is answered, in pages that OS-0 gives.
//!
//! The area begins with a page: [`SLOTS`] records, then as many [`Offer`]s. Behind the page each slot
//! has [`DATA_BYTES`] for its data. EL2 fills a [`Record`] and, after all else, its `ticket`, which no
//! request had before. Whoever serves does what it says and then, after all else, stores the ticket's
//! [`answer`].
//!
//! What was not answered was not done, as far as anybody was told. So a server that ends in the middle
//! loses nothing: the next one finds the tickets without an answer and does those requests again,
//! which is the same to a disk whether it was done before, in part or not at all.

use crate::Text;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Requests under way at a time.
pub const SLOTS: usize = 16;
/// Bytes of data of one request, at most.
pub const DATA_BYTES: u64 = 64 << 10;
/// Disks that are offered, at most.
pub const OFFERS_MAX: usize = 16;
/// Bytes before the first slot's data.
pub const HEAD_BYTES: u64 = 4096;
/// Where the offers begin.
pub const OFFERS_AT: u64 = (SLOTS * size_of::<Record>()) as u64;
/// Bytes of the whole area, which begins with a page and is in one piece.
pub const AREA_BYTES: u64 = HEAD_BYTES + SLOTS as u64 * DATA_BYTES;
/// Sectors have 512 bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The most sectors of a disk: 1 EiB.
pub const SECTORS_MAX: u64 = 1 << 51;

/// [`Record::operation`]; numbers as virtio 5.2.6 has them.
pub mod operation {
    /// Fill the slot's data from the disk.
    pub const READ: u32 = 0;
    /// Store the slot's data on the disk.
    pub const WRITE: u32 = 1;
    /// Make durable all that was answered.
    pub const FLUSH: u32 = 4;
}

/// What a slot is asked for. EL2 writes all but the answer, which it reads and never writes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Record {
    /// The request; zero: none was made yet.
    pub ticket: u64,
    /// One of [`operation`].
    pub operation: u32,
    /// The number of the disk's [`Offer`].
    pub disk: u32,
    /// The first sector.
    pub sector: u64,
    /// Bytes of data, whole sectors.
    pub bytes: u64,
    /// [`answer`] of the last ticket that was served.
    pub answer: u64,
    /// Zero.
    pub reserved: [u64; 3],
}
const _: () = assert!(size_of::<Record>() == 64);

/// Where `answer` is in a [`Record`].
pub const ANSWER_AT: u64 = core::mem::offset_of!(Record, answer) as u64;

/// A disk that OS-0 will serve; the first without a name ends the list.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Offer {
    /// What VM files call it.
    pub name: Text<40>,
    /// How large it is.
    pub sectors: u64,
    /// [`FOR_OVERLAYS`], or zero.
    pub uses: u64,
    /// Zero.
    pub reserved: u64,
}

/// [`Offer::uses`]: overlays and what VMs swap may be on it, which overwrite what it holds.
pub const FOR_OVERLAYS: u64 = 1;
const _: () = assert!(size_of::<Offer>() == 64);
const _: () = assert!(OFFERS_AT as usize + OFFERS_MAX * size_of::<Offer>() <= HEAD_BYTES as usize);

/// How a ticket is answered: whether it was done, or failed.
pub const fn answer(ticket: u64, done: bool) -> u64 {
    ticket << 1 | done as u64
}
