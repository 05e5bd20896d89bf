//! Requests that have come in, by whichever way: that there are some, and each as it was taken.

use crate::machine::due;
use crate::memory::heap;
use abi::control::{FrameHeader, PAYLOAD_MAX};
use arch::timer;
use core::sync::atomic::{AtomicBool, Ordering};
use model_control::{FRAME_MAX, Inbox};

/// Bytes of the largest frame.
pub const RESERVE: usize = FRAME_MAX;

static RING: AtomicBool = AtomicBool::new(false);
/// A request waits for memory.
static SHORT: AtomicBool = AtomicBool::new(false);

/// There may be a request: housekeeping looks.
pub fn ring() {
    RING.store(true, Ordering::Release);
    due::request();
}

/// There may be a request that is taken from that count on.
pub fn ring_at(count: u64) {
    RING.store(true, Ordering::Release);
    due::request_at(count);
}

/// Something waits for memory or room: housekeeping looks again in 10 ms.
pub fn ring_later() {
    ring_at(timer::now() + timer::frequency() / 100);
}

/// Sees to it that a request that waits for memory is looked at again.
pub fn retry() {
    if SHORT.swap(false, Ordering::Relaxed) {
        ring_later();
    }
}

/// Whether the port has rung since this was asked.
pub fn has_rung() -> bool {
    RING.swap(false, Ordering::AcqRel)
}

/// A frame that has come in.
pub struct Incoming {
    /// Its header.
    pub header: FrameHeader,
    /// What followed. Aligned to 8 bytes.
    pub payload: alloc::boxed::Box<Payload>,
}

/// A payload, aligned so that records in it can be referred to.
#[repr(C, align(8))]
pub struct Payload {
    bytes: [u8; PAYLOAD_MAX],
    len: usize,
}

impl Payload {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The next complete frame of an inbox. Where there is no memory for it, it stays, and is looked at again.
pub fn next(inbox: &mut Inbox) -> Option<Incoming> {
    let has_frame = inbox.has_frame();
    has_frame.then(|| take(|bytes| inbox.take(bytes)))?
}

/// Takes what `fill` writes, with its header; nothing where there is no memory for it. Not inlined: the payload is made on the
/// stack, which whoever acts on the request needs for itself.
#[inline(never)]
pub fn take(fill: impl FnOnce(&mut [u8; PAYLOAD_MAX]) -> Option<FrameHeader>) -> Option<Incoming> {
    let empty = Payload {
        bytes: [0; PAYLOAD_MAX],
        len: 0,
    };
    let Ok(mut payload) = heap::try_box(empty) else {
        // The caller holds the inbox, so that no alarm is set here.
        SHORT.store(true, Ordering::Relaxed);
        return None;
    };
    let header = fill(&mut payload.bytes)?;
    payload.len = header.length as usize;
    Some(Incoming { header, payload })
}
