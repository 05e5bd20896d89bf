//! Messages between the hosts of one VM that keep its pages coherent (`model/coherence`).
//!
//! ```text
//!  Message, 40 bytes | nothing, a page (Data, Full), what changed in it (Data, Changes), operations (Tlbi), or entries
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Bytes of a page, the unit of coherence.
pub const PAGE_BYTES: usize = 4096;
/// The most operations in a message; more become one that invalidates everything.
pub const OPERATIONS_MAX: usize = 56;

/// What hosts can leave out of the protocol, all of one VM alike: without all of it, it is IVY's.
pub const SWITCHES: [&str; 9] = [
    "versions",
    "zero",
    "lazy-tlbi",
    "burst",
    "companions",
    "hold",
    "push",
    "changes",
    "migratory",
];

/// Those that are left out where nothing is said, a bit each: what is pushed costs more than it saves (docs/span.md).
pub const WITHOUT: u16 = 1 << 6;

/// A TLB invalidation, as the owners of both ends write it.
pub type Operation = U64;

/// Kind of a message, with its sender and receiver.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(u8)]
pub enum Kind {
    /// Requester to home: asks for a page.
    Get = 1,
    /// Requester to home: has the page; ends the transaction.
    Done = 2,
    /// Home to owner: give the page to the requester.
    Forward = 3,
    /// Home to sharer: give up the copy and tell the requester.
    Invalidate = 4,
    /// Home to requester that is the owner: write once `acks` sharers have told.
    Grant = 5,
    /// Owner to requester: the page, to be used once `acks` sharers have told.
    Data = 6,
    /// Sharer to requester: the copy is gone.
    Ack = 7,
    /// Requester to home: an older vCPU waits for this transaction.
    Hurry = 8,
    /// Home to owner and sharers: the transaction has become older.
    Yield = 9,
    /// Any to any: invalidate TLB entries; without operations, all of them.
    Tlbi = 10,
    /// Answer to [`Kind::Tlbi`].
    TlbiDone = 11,
    /// Owner to home: give the page to those that read it before. A hint, which nothing answers.
    Push = 12,
    /// Leaver to all: how far it is, in `acks`.
    Leave = 13,
    /// In answer, with the same `acks`: nothing of this host is under way to it any more.
    Held = 14,
    /// Leaver to heir: what it knows as the home of pages from this one on, an [`Entry`] for those that are alike.
    Entries = 15,
    /// In answer: those up to this page are the heir's. Home to leaver: this page has another owner.
    Taken = 16,
    /// Leaver to home: take this page.
    Give = 17,
}

/// Access to a page.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(u8)]
pub enum Access {
    /// Nothing is allowed.
    None = 0,
    /// Read and execute.
    Read = 1,
    /// Read, write and execute.
    Write = 2,
    /// As [`Access::Write`]; in a request, the requester overwrites the whole page with zeroes, so its bytes are of no use.
    Zero = 3,
    /// Of a request to the owner: [`Access::Read`], or the only copy if the owner has written the page. Of its answer, and when
    /// the transaction ends: the only copy was given, though the requester asked to read.
    Any = 4,
}

/// Form of the bytes of [`Kind::Data`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(u8)]
pub enum Form {
    /// None: the requester has those of this version, or needs none.
    None = 0,
    /// None: all are zero.
    Zero = 1,
    /// The page follows the message.
    Full = 2,
    /// What changed since the version that the requester has follows the message (`model_coherence::changes`).
    Changes = 3,
}

/// Beginning of every message. Fields that a kind does not need are those of the request that it belongs to, or zero.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Message {
    /// Kind.
    pub kind: Kind,
    /// What the requester asks for.
    pub access: Access,
    /// Form of the bytes that follow.
    pub form: Form,
    /// Requester.
    pub host: u8,
    /// Number of the transaction among those that the requester has open.
    pub slot: u8,
    /// Sharers that tell the requester when their copies are gone.
    pub acks: u8,
    /// vCPU that waits, by its host (upper half) and its number there; decides between two that began at the same time. Of what a home
    /// gives without being asked, the home.
    pub vcpu: U16,
    /// Page, by its number in the guest's physical address space.
    pub page: U32,
    /// Number of the VM's life ([`crate::span::Message::life`]).
    pub life: U32,
    /// Version of the bytes that the requester has, or gets; 0 if it has none.
    pub version: U64,
    /// Time at which the instruction that waits first faulted, in nanoseconds of the guest's counter. Of [`Form::Changes`],
    /// the version that they follow.
    pub since: U64,
    /// The guest's counter at the sender when the message left; 0 until then.
    pub count: U64,
}

/// What a home knows of pages that follow each other and are alike.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Entry {
    /// Host that owns them.
    pub owner: u8,
    /// Host that is known to have written them last.
    pub writer: u8,
    /// Hosts that have copies, a bit each.
    pub sharers: U16,
    /// Hosts that had copies before they were written.
    pub readers: U16,
    /// How many they are.
    pub pages: u8,
    /// [`Self::MIGRATES`], [`Self::UNTOUCHED`].
    pub flags: u8,
}

impl Entry {
    /// Each host reads them and then writes them.
    pub const MIGRATES: u8 = 1 << 0;
    /// They are all zero, and become the receiver's, though `owner` has been theirs.
    pub const UNTOUCHED: u8 = 1 << 1;

    /// Returns whether another is like it, but for its pages.
    pub fn is_like(&self, other: &Self) -> bool {
        let pages = self.pages;
        Self { pages, ..*other } == *self
    }

    /// Returns entries as what follows a message: they have the size of operations.
    pub fn words(entries: &[Self]) -> &[Operation] {
        <[Operation]>::ref_from_bytes(entries.as_bytes()).unwrap_or_default()
    }

    /// Takes what follows [`Kind::Entries`] apart; `None` if a part of an entry is missing.
    pub fn all(bytes: &[u8]) -> Option<&[Self]> {
        <[Self]>::ref_from_bytes(bytes).ok()
    }
}

impl Message {
    /// Returns a message that belongs to no transaction.
    pub fn plain(kind: Kind, host: u8) -> Self {
        Self {
            kind,
            access: Access::Read,
            form: Form::None,
            host,
            slot: 0,
            acks: 0,
            vcpu: 0.into(),
            page: 0.into(),
            life: 0.into(),
            version: 0.into(),
            since: 0.into(),
            count: 0.into(),
        }
    }

    /// Takes a message apart: its beginning, and what follows. `None` if it is too short, or a field has no meaning.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        Self::try_read_from_prefix(bytes).ok()
    }
}

const _: () = assert!(size_of::<Entry>() == size_of::<Operation>());
const _: () = assert!(size_of::<Message>() == 40);
const _: () = assert!(size_of::<Message>() + PAGE_BYTES == crate::link::BULK_MAX);
const _: () = assert!(size_of::<Message>() + 8 * OPERATIONS_MAX <= crate::link::URGENT_MAX);
