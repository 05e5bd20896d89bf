//! Messages by which hosts of a cluster join and stay together (`model/membership`), on the urgent lane of the link.
//!
//! ```text
//!  Description      once in a session: what a host is
//!  Propose          leader to all: the next membership
//!  Beat             all to all: asks for an answer, answers, or both
//!  Probe            one to another, as its owner asks: measures the link (`model/cluster`)
//!  Errand           one to another, as a control VM asks: a request, or its answer
//! ```

use crate::Text;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the messages between hosts, of the link's layout and of all that is said over it.
pub const PROTOCOL: u8 = 6;
/// The most hosts of a cluster, numbered from 0.
pub const HOSTS_MAX: usize = 16;
/// The most ID registers in a description.
pub const FEATURES_MAX: usize = 16;

/// Kind of a [`Description`]. Kinds of `abi::coherence` are below; those of what hosts share are from 0x48 on.
pub const DESCRIPTION: u8 = 0x40;
/// Kind of a [`Propose`].
pub const PROPOSE: u8 = 0x41;
/// Kind of a [`Beat`].
pub const BEAT: u8 = 0x42;
/// Kind of a [`Farewell`].
pub const FAREWELL: u8 = 0x43;

/// Kind of a [`Probe`], on either lane.
pub const PROBE: u8 = 0x60;
/// Kind of the answer to a [`Probe`], on the urgent lane.
pub const PROBED: u8 = 0x61;

/// Kind of an [`Errand`] before what belongs to the request; on either lane.
pub const ASKED: u8 = 0x62;
/// Kind of an [`Errand`] before a [`crate::control::ReplyHeader`] and what follows that.
pub const ANSWERED: u8 = 0x63;

/// Request of a control VM to a member, or its answer, which repeats all but the kind.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Errand {
    /// [`ASKED`] or [`ANSWERED`].
    pub kind: u8,
    /// What the VM may ([`crate::bundle::control_rights`]).
    pub rights: u8,
    /// Zeroes.
    pub zeroes: [u8; 2],
    /// The VM, for its own host: its slot, and which occupant.
    pub vm: [U16; 2],
    /// Number of the request ([`crate::control::request`]).
    pub request: U32,
    /// The asking host's number of it, another one for each.
    pub number: U32,
    /// Share group of the VM.
    pub group: Text<24>,
}
const _: () = assert!(size_of::<Errand>() == 40);

/// What a host is: compared when it joins.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Description {
    /// [`DESCRIPTION`].
    pub kind: u8,
    /// [`PROTOCOL`].
    pub protocol: u8,
    /// log2 of the bytes of a page.
    pub page_log2: u8,
    /// log2 of the bytes that DC ZVA zeroes (DCZID_EL0.BS + 2), or 0 if guests may not use DC ZVA.
    pub zva_log2: u8,
    /// Version of Underpin: major, minor and patch, of a byte each, from bit 16 down.
    pub version: U32,
    /// Frequency of the guests' counter in Hz (CNTFRQ_EL0).
    pub clock_hz: U32,
    /// Sizes of cache lines (CTR_EL0), lower half.
    pub cache_lines: U32,
    /// Bytes of the longest frame of the link.
    pub frame_bytes: U64,
    /// Life of the sender; not 0.
    pub life: U64,
    /// ID registers in the order of `model/id_registers`, then zeroes.
    pub features: [U64; FEATURES_MAX],
}

impl Description {
    /// Returns what a message says. A host of another protocol may say more or less: then it is what both have, so that the
    /// host is refused by its protocol. `None` if it makes no sense.
    pub fn of(message: &[u8]) -> Option<Self> {
        let mut it = Self::new_zeroed();
        let len = message.len().min(size_of::<Self>());
        it.as_mut_bytes()[..len].copy_from_slice(&message[..len]);
        let is_whole = message.len() == size_of::<Self>();
        (is_whole || len > 1 && it.protocol != PROTOCOL).then_some(it)
    }
}

/// Proposal of a membership.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Propose {
    /// [`PROPOSE`].
    pub kind: u8,
    /// Zeroes.
    pub zeroes: [u8; 7],
    /// Epoch, and in the lowest 8 bits the number of the leader.
    pub id: U64,
    /// Life of each member; 0 for hosts that are not members.
    pub lives: [U64; HOSTS_MAX],
}

/// A sign of life, which asks for an answer, is one, or both.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Beat {
    /// [`BEAT`].
    pub kind: u8,
    /// 1 if the receiver is in the sender's membership, or in the proposal that it accepted.
    pub with: u8,
    /// Zeroes.
    pub zeroes: [u8; 2],
    /// Number of the beat, to be answered; 0 for one that needs no answer.
    pub number: U32,
    /// Number of the beat that is answered, or 0.
    pub echo: U32,
    /// The latest membership that the sender accepted.
    pub accepted: U64,
    /// Life of the sender.
    pub life: U64,
}

/// A host leaves the membership, and shares nothing any more; or the answer to one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Farewell {
    /// [`FAREWELL`].
    pub kind: u8,
    /// Zeroes.
    pub zeroes: [u8; 7],
    /// The life that it has left; of an answer, that which is answered.
    pub life: U64,
}

/// A message by which people measure the link, with a page behind it on the bulk lane; or the answer to the last of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Probe {
    /// [`PROBE`] or [`PROBED`].
    pub kind: u8,
    /// 1: the last message of a probe, which is to be answered.
    pub asks: u8,
    /// Zeroes.
    pub zeroes: [u8; 2],
    /// Number of the message in its probe, from 0; in the answer, that of the last one.
    pub number: U32,
    /// Digest of all messages of the probe, in the answer.
    pub digest: U64,
}

const _: () = assert!(size_of::<Probe>() == 16);
const _: () = assert!(size_of::<Description>() == 160 && size_of::<Propose>() == 144);
const _: () = assert!(size_of::<Beat>() == 28);
