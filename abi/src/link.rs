//! Frames of the link between two hosts of a cluster (`model/link`).
//!
//! ```text
//!          0              22                                42
//!  hello   | Prefix       | Hello: mine, theirs, tag                               |
//!  sealed  | Prefix       | Sealed: session, stamp, counter | body           | tag |
//!          └─ authenticated ────────────────────────────────┴─ and encrypted ┘
//!  body    | Report | SACK words, urgent then bulk | Piece, bytes | Piece, bytes | ...
//! ```
//!
//! A hello's tag is a MAC under the cluster's key over all bytes before it. A sealed frame's tag is that of the
//! cipher, with the bytes before the body as associated data. Its stamp is a MAC of the counter, by which a receiver tells
//! strangers' frames before it keeps or opens them.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Ethertype of all frames: local experimental 1 (IEEE 802).
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Version of this layout.
pub const VERSION: u8 = 2;
/// Bit of [`Prefix::version`]: the sender neither seals frames nor takes sealed ones. Tags of its frames are zeroes.
pub const OPEN: u8 = 0x80;
/// Bit of [`Prefix::version`]: the sender has no AES in its CPUs.
pub const NO_AES: u8 = 0x40;
/// Bytes of a nonce and of a tag.
pub const NONCE_BYTES: usize = 16;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Lanes, the most urgent first.
pub const LANES: usize = 2;
/// The most pieces in a window, a power of two.
pub const SLOTS_MAX: usize = 256;
/// The most pieces of a message.
pub const PARTS_MAX: usize = 3;
/// The longest bulk message: a page, and 40 bytes that say what it is.
pub const BULK_MAX: usize = 4096 + 40;
/// The longest urgent message.
pub const URGENT_MAX: usize = 512;
/// Bytes of a frame before those that an MTU counts.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of the longest frame on an Ethernet of 1,500 bytes.
pub const FRAME_STANDARD: usize = 1514;
/// Bytes of the longest frame on an Ethernet of 9,000 bytes.
pub const FRAME_JUMBO: usize = 9014;

/// Kind of a frame whose sender has no session, or one that the receiver has not confirmed, and wants one.
pub const HELLO: u8 = 1;
/// Kind of a frame whose sender has a session, and asks for a proof that a hello was not replayed.
pub const CHALLENGE: u8 = 2;
/// Kind of a frame with messages and a report, under a session's key.
pub const SEALED: u8 = 3;

/// Beginning of every frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Prefix {
    /// MAC address of the receiver, then that of the sender.
    pub macs: [[u8; 6]; 2],
    /// [`ETHERTYPE`].
    pub ethertype: [u8; 2],
    /// [`VERSION`], with [`OPEN`] and [`NO_AES`] or without.
    pub version: u8,
    /// [`HELLO`], [`CHALLENGE`] or [`SEALED`].
    pub kind: u8,
    /// Host number of the sender.
    pub from: u8,
    /// Host number of the receiver.
    pub to: u8,
    /// Number of the cluster.
    pub epoch: U32,
}

/// A hello or a challenge.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// Prefix.
    pub prefix: Prefix,
    /// Nonce of the sender.
    pub mine: [u8; NONCE_BYTES],
    /// Nonce of the receiver that is answered, or zeroes.
    pub theirs: [u8; NONCE_BYTES],
    /// MAC of all bytes before.
    pub tag: [u8; TAG_BYTES],
}

/// Header of a sealed frame, before its body.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sealed {
    /// Prefix.
    pub prefix: Prefix,
    /// Number that tells sessions of the same two hosts apart; not secret.
    pub session: U32,
    /// SipHash-2-4 of `counter` (little-endian) under a key of the session and its sender; zero if frames are open.
    pub stamp: U64,
    /// Number of the frame among those that its sender sealed in this session, from 1.
    pub counter: U64,
}

/// State of a receive window of the sender.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LaneReport {
    /// All pieces before this one have come: the lower half of its number.
    pub next: U32,
    /// Pieces that may be sent, from `next` on.
    pub credit: U16,
    /// SACK words: bit `n` of word `w` says that piece `next + 1 + 64 w + n` has come.
    pub words: u8,
}

/// Beginning of a body.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Report {
    /// Highest counter that the sender has received.
    pub seen: U64,
    /// Receive windows, by lane.
    pub lanes: [LaneReport; LANES],
    /// [`ASK`] or zero.
    pub flags: u8,
    /// Pieces in this body.
    pub pieces: u8,
}

/// Flag of a report: answer at once.
pub const ASK: u8 = 1;

/// Header of a piece: a message, or a part of a message that does not fit in a frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Piece {
    /// Number of the piece in its lane, from 0.
    pub number: U64,
    /// Bytes of the piece.
    pub bytes: U16,
    /// Part number of the piece within its message (upper half), and number of parts (lower half). All parts but the last
    /// are of full size.
    pub parts: u8,
    /// Lane.
    pub lane: u8,
}

/// Bytes of a sealed frame before its body.
pub const BODY_AT: usize = size_of::<Sealed>();
/// Bytes of a hello or challenge.
pub const HELLO_BYTES: usize = size_of::<Hello>();
/// The most SACK words of each lane in a report. With more for the urgent one, a page would take four standard frames.
pub const WORDS_MAX: [usize; LANES] = [1, SLOTS_MAX / 64];
/// The longest message of each lane.
pub const MESSAGE_MAX: [usize; LANES] = [URGENT_MAX, BULK_MAX];

/// Bytes of a frame beside a full piece: the longest report is among them.
const AROUND: usize = BODY_AT
    + size_of::<Report>()
    + 8 * (WORDS_MAX[0] + WORDS_MAX[1])
    + size_of::<Piece>()
    + TAG_BYTES;
/// Bytes of the longest frame where a page takes one.
pub const FRAME_PAGE: usize = AROUND + BULK_MAX;

/// Returns the bytes of a full piece of a lane, which fits in a frame of `frame_bytes` beside the longest report.
pub const fn piece_bytes(lane: usize, frame_bytes: usize) -> usize {
    let room = frame_bytes.saturating_sub(AROUND);
    if room < MESSAGE_MAX[lane] {
        room
    } else {
        MESSAGE_MAX[lane]
    }
}

const _: () = assert!(size_of::<Prefix>() == 22 && size_of::<Hello>() == 70);
const _: () = assert!(size_of::<Sealed>() == 42 && size_of::<Report>() == 24);
const _: () = assert!(size_of::<Piece>() == 12);
const _: () = assert!(piece_bytes(1, FRAME_STANDARD) * PARTS_MAX >= BULK_MAX);
const _: () = assert!(piece_bytes(1, FRAME_PAGE) == BULK_MAX && FRAME_PAGE < FRAME_JUMBO);
// The shortest frame of Ethernet has 60 bytes, so that nothing is padded.
const _: () = assert!(HELLO_BYTES >= 60 && BODY_AT + size_of::<Report>() + TAG_BYTES >= 60);
