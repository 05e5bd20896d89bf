//! The way to and from OS-0, where it owns the machine: its module carries the bytes.
//!
//! Both directions are bounded. What EL2 has to say waits for OS-0 to ask for it; of consoles, only
//! as much as leaves room for an answer, so that a request is taken only where its answer fits.

use crate::drivers::requests::{self, Incoming, RESERVE};
use alloc::collections::VecDeque;
use machine_locks::{Once, Rank, SpinLock};
use model_control::{FRAME_MAX, Inbox};

/// Bytes that wait for OS-0 at most.
const ROOM: usize = 4 * RESERVE;

struct Channel {
    out: VecDeque<u8>,
    inbox: Inbox,
}

static CHANNEL: Once<SpinLock<Channel>> = Once::new();

/// Opens it, if it is not. What was left in it is dropped.
pub fn open() {
    if let Some(channel) = CHANNEL.get() {
        let mut channel = channel.lock();
        channel.out.clear();
        channel.inbox.clear();
        return;
    }
    let channel = Channel {
        out: VecDeque::with_capacity(ROOM),
        inbox: Inbox::default(),
    };
    let _ = CHANNEL.set(SpinLock::new(Rank::PhysicalDevice, channel));
}

/// Whether there is one.
pub fn is_open() -> bool {
    CHANNEL.get().is_some()
}

/// Gives all that waits for OS-0 to `take`, in two parts; `false` where a request waits, too.
pub fn waiting(mut take: impl FnMut(&[u8])) -> bool {
    let Some(channel) = CHANNEL.get() else {
        return true;
    };
    let channel = channel.lock();
    let (front, back) = channel.out.as_slices();
    take(front);
    take(back);
    channel.inbox.room() == FRAME_MAX
}

/// Takes bytes of a request; how many there was room for.
pub fn tell(bytes: &[u8]) -> usize {
    let taken = CHANNEL
        .get()
        .map_or(0, |channel| channel.lock().inbox.push(bytes));
    requests::ring();
    taken
}

/// Gives bytes that wait; how many.
pub fn hear(into: &mut [u8]) -> usize {
    let Some(channel) = CHANNEL.get() else {
        return 0;
    };
    let mut channel = channel.lock();
    let count = into.len().min(channel.out.len());
    for (byte, own) in into.iter_mut().zip(channel.out.drain(..count)) {
        *byte = own;
    }
    if count > 0 {
        // A request may have waited for room, and consoles may.
        requests::ring();
    }
    count
}

/// The next complete request, if its answer will fit.
pub fn receive() -> Option<Incoming> {
    let mut channel = CHANNEL.get()?.lock();
    if ROOM - channel.out.len() < RESERVE {
        return None;
    }
    requests::next(&mut channel.inbox)
}

/// Sends a frame whole, if `reserve` bytes stay free behind it.
pub fn send(reserve: usize, parts: &[&[u8]]) -> bool {
    let Some(channel) = CHANNEL.get() else {
        return false;
    };
    let mut channel = channel.lock();
    let length: usize = parts.iter().map(|part| part.len()).sum();
    if channel.out.len() + length + reserve > ROOM {
        return false;
    }
    for part in parts {
        channel.out.extend(*part);
    }
    true
}
