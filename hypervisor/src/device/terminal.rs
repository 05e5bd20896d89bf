//! What a VM writes to its consoles, on its way to whoever watches.

use crate::control;
use abi::Text;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};

/// Bytes kept while nobody takes them.
const ROOM: usize = 8192;
/// Bytes from which on they are passed on while the vCPU still runs.
const PASS_ON: usize = 1024;

/// A VM's output.
pub struct Terminal {
    name: Text<32>,
    waiting: SpinLock<Ring>,
    is_full: AtomicBool,
}

impl Terminal {
    /// Nothing written yet.
    pub const fn new(name: Text<32>) -> Self {
        Self {
            name,
            waiting: SpinLock::new(Rank::Terminal, Ring::new()),
            is_full: AtomicBool::new(false),
        }
    }

    /// Takes a byte; one for which there is no room is lost. It is passed on with those that
    /// follow, at the latest when the vCPU leaves its CPU or waits.
    #[inline]
    pub fn put(&self, byte: u8) {
        let mut waiting = self.waiting.lock();
        waiting.push(byte);
        let len = waiting.len;
        drop(waiting);
        if len >= PASS_ON {
            self.is_full.store(len == ROOM, Ordering::Relaxed);
            self.flush();
        }
    }

    /// Whether there is room for a byte, after an attempt to make some.
    #[inline]
    pub fn has_room(&self) -> bool {
        if self.is_full.load(Ordering::Relaxed) {
            self.flush();
        }
        !self.is_full.load(Ordering::Relaxed)
    }

    /// Passes on what waits, as far as the way out takes it.
    pub fn flush(&self) {
        let mut waiting = self.waiting.lock();
        while waiting.len > 0 {
            let sent = control::port::console_output(self.name, waiting.front());
            if sent == 0 {
                return;
            }
            waiting.drop_front(sent);
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// Gives all that waits to `take`, in up to two parts.
    pub fn waiting(&self, mut take: impl FnMut(&[u8])) {
        let waiting = self.waiting.lock();
        let front = waiting.front();
        take(front);
        take(&waiting.bytes[..waiting.len - front.len()]);
    }

    /// Bytes written, and bytes lost of them.
    pub fn counts(&self) -> [u64; 2] {
        let waiting = self.waiting.lock();
        [waiting.written, waiting.dropped]
    }
}

/// Bytes in the order they came.
struct Ring {
    bytes: [u8; ROOM],
    start: usize,
    len: usize,
    written: u64,
    dropped: u64,
}

impl Ring {
    const fn new() -> Self {
        Self {
            bytes: [0; ROOM],
            start: 0,
            len: 0,
            written: 0,
            dropped: 0,
        }
    }

    /// Adds a byte; one too many is dropped.
    fn push(&mut self, byte: u8) {
        self.written += 1;
        if self.len == ROOM {
            self.dropped += 1;
            return;
        }
        self.bytes[(self.start + self.len) % ROOM] = byte;
        self.len += 1;
    }

    /// The oldest bytes, up to where the ring wraps around.
    fn front(&self) -> &[u8] {
        &self.bytes[self.start..(self.start + self.len).min(ROOM)]
    }

    /// Takes out the `count` oldest bytes, at most as many as there are.
    fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.start = (self.start + count) % ROOM;
        self.len -= count;
    }
}
