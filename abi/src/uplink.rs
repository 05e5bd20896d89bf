//! Frames between EL2's switches and OS-0's network device, in an area that OS-0 gives.
//!
//! The area begins with a page of which two words are used; words have 16 bits. Behind it are [`SLOTS`] slots for frames to
//! OS-0, and behind those as many for frames from OS-0. A slot begins with a word: zero where it is its
//! writer's, else the bytes of the frame in it, which is its reader's until that stores zero. Writer and
//! reader go through a way's slots in turn, each with a place of its own. So nobody waits for the other, and
//! what one says can make the other lose frames and nothing else.

/// Bytes of the page before the slots.
pub const HEAD_BYTES: u64 = 4096;
/// Slots of each way.
pub const SLOTS: usize = 340;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 1536;
/// Where a frame begins in its slot.
pub const FRAME_AT: u64 = 8;
/// The shortest frame: an Ethernet header.
pub const FRAME_MIN: usize = 14;
/// The longest: 1500 bytes, an Ethernet header, a VLAN tag.
pub const FRAME_MAX: usize = 1518;
/// Bytes of the whole area, which begins with a page and is in one piece.
pub const AREA_BYTES: u64 = HEAD_BYTES + 2 * SLOTS as u64 * SLOT_BYTES;

/// Where the word is by which EL2 says that a switch has a way out: 1, or else 0.
pub const LINK_AT: u64 = 0;
/// Where the word is by which OS-0 asks for an interrupt with the next frame: 1. EL2 stores 0 as it raises
/// one.
pub const WANTS_AT: u64 = 2;

const _: () = assert!(FRAME_AT + FRAME_MAX as u64 <= SLOT_BYTES);
const _: () = assert!(AREA_BYTES == 1 << 20);
