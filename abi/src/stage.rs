//! The system that EL2 starts in the place of an OS-0 that has ended: one run of memory, made by
//! `underpin stage` inside OS-0.
//!
//! A [`Head`] in the first page says where in what follows (the *payload*) is what. EL2 copies the payload
//! to memory that is free at that time, at a multiple of [`ALIGN`], writes its few words that depend on
//! that time, and enters the kernel at the payload's first byte with the address of the device tree.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `Head::magic`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"UNDRSTG1");
/// Where the payload begins in the run.
pub const PAYLOAD_AT: u64 = 4096;
/// What the payload's address is a multiple of.
pub const ALIGN: u64 = 2 << 20;
/// Bytes of an entry of the device tree's reservation block.
pub const RESERVATION_BYTES: u64 = 16;

/// What a stage begins with. Offsets count from the payload's first byte, in multiples of 8, or of 4 for
/// values of properties.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: u64,
    /// Bytes of the payload that are there.
    pub bytes: u64,
    /// Bytes that it takes when it runs; no less.
    pub room: u64,
    /// Where the device tree is.
    pub tree: u64,
    /// Where the values of `linux,initrd-start` and `linux,initrd-end` are, both of 8 bytes, which hold the
    /// ramdisk's offsets; zero where there is none.
    pub initrd: [u64; 2],
    /// Where the tree's reservation block is, and how many entries it has room for. EL2 writes all of it.
    pub reservations: [u64; 2],
}
const _: () = assert!(size_of::<Head>() == 64);
