//! Memory of a host: frames that wait, and the buffers of links. It is taken once, when the machine joins.

use crate::cluster::cipher::Gcm;
use crate::machine::cpu;
use crate::memory::frames;
use abi::bundle::ClusterRecord;
use abi::link::FRAME_STANDARD;
use model_addr::FRAME_SIZE;
use model_link::{Lane, Link, Nonce, Secret, Settings};

/// Pieces in each window of a link.
pub const SLOTS: usize = 32;
/// A link's buffers, as an order of frames: 128 KiB.
const LINK_ORDER: u8 = 5;
/// The inbox, as an order of frames: 64 KiB.
const INBOX_ORDER: u8 = 4;
/// Bytes between two frames of the inbox.
const STRIDE: usize = 2048;
/// Frames that may wait.
const WAITING_MAX: usize = ((FRAME_SIZE as usize) << INBOX_ORDER) / STRIDE - 1;

/// The shortest retransmission timeout: what the other host's pass may wait for a vCPU's exit.
const TIMEOUT_FLOOR_NS: u64 = 2_000_000;
/// How long an acknowledgement waits for a message to go with.
const ACK_DELAY_NS: u64 = 500_000;
/// The first pause between hellos to a host that does not answer; it doubles to 64 times this.
const HELLO_NS: u64 = 20_000_000;

/// Frames that wait for the next pass, oldest first.
pub struct Inbox {
    bytes: &'static mut [u8],
    lengths: heapless::Deque<usize, WAITING_MAX>,
    /// Place of the oldest.
    first: usize,
}

impl Inbox {
    /// Makes one, and room for a frame that leaves.
    pub fn new() -> Option<(Self, &'static mut [u8])> {
        let (bytes, out) = take(INBOX_ORDER)?.split_at_mut(WAITING_MAX * STRIDE);
        let inbox = Self {
            bytes,
            lengths: heapless::Deque::new(),
            first: 0,
        };
        Some((inbox, out))
    }

    /// Adds a frame; `false` where there is no room.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let at = (self.first + self.lengths.len()) % WAITING_MAX * STRIDE;
        let place = self.bytes.get_mut(at..at + frame.len());
        let fits = frame.len() <= STRIDE && self.lengths.push_back(frame.len()).is_ok();
        match place.filter(|_| fits) {
            Some(place) => place.copy_from_slice(frame),
            None => return false,
        }
        true
    }

    /// Returns the oldest frame.
    pub fn first(&mut self) -> Option<&mut [u8]> {
        let (at, bytes) = (self.first * STRIDE, *self.lengths.front()?);
        self.bytes.get_mut(at..at + bytes)
    }

    /// Drops the oldest frame.
    pub fn pop(&mut self) {
        if self.lengths.pop_front().is_some() {
            self.first = (self.first + 1) % WAITING_MAX;
        }
    }
}

/// Makes the link to another host.
pub fn link(
    record: &ClusterRecord,
    peer: u8,
    nonce: Nonce,
) -> Option<Link<Gcm, &'static mut [u8], SLOTS>> {
    let mac = |host: u8| record.macs.get(usize::from(host)).copied();
    let settings = Settings {
        host: record.host,
        peer,
        macs: [mac(record.host)?, mac(peer)?],
        epoch: record.number,
        frame_bytes: FRAME_STANDARD,
        timeout_floor_ns: TIMEOUT_FLOOR_NS,
        delay_ns: ACK_DELAY_NS,
        hello_ns: HELLO_NS,
    };
    let mut rest = take(LINK_ORDER)?;
    let mut part = |lane: Lane| {
        let bytes = lane.buffer_bytes(SLOTS, FRAME_STANDARD);
        rest.split_off_mut(..bytes)
    };
    let mut both = || Some([part(Lane::Urgent)?, part(Lane::Bulk)?]);
    let buffers = [both()?, both()?];
    Link::new(settings, Secret(record.key), buffers, nonce)
}

/// Takes memory of this CPU's node, for ever.
fn take(order: u8) -> Option<&'static mut [u8]> {
    let first = frames::take_for_el2(cpu::this().node, order)?;
    let start = core::ptr::with_exposed_provenance_mut(first.address().0 as usize);
    // SAFETY: these frames were just taken from the pool for EL2, which maps them one to one, and never go back; nothing
    // else names them.
    Some(unsafe { core::slice::from_raw_parts_mut(start, (FRAME_SIZE as usize) << order) })
}
