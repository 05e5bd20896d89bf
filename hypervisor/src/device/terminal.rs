//! What a VM writes to its consoles, on its way to whoever watches.

use crate::control;
use abi::Text;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};

/// Bytes kept while nobody takes them.
const ROOM: usize = 8192;
/// Bytes from which on they are passed on without waiting for the end of a line.
const PASS_ON: usize = 1024;

/// A VM's output.
pub struct Terminal {
    name: Text<32>,
    waiting: SpinLock<heapless::Deque<u8, ROOM>>,
    written: AtomicU64,
    dropped: AtomicU64,
}

impl Terminal {
    /// Nothing written yet.
    pub const fn new(name: Text<32>) -> Self {
        Self {
            name,
            waiting: SpinLock::new(Rank::Terminal, heapless::Deque::new()),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Takes a byte; `false` where there is no room left, and the byte is lost.
    pub fn put(&self, byte: u8) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.push_back(byte).is_err() {
            drop(waiting);
            self.flush();
            waiting = self.waiting.lock();
            if waiting.push_back(byte).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        let due = byte == b'\n' || waiting.len() >= PASS_ON;
        drop(waiting);
        self.written.fetch_add(1, Ordering::Relaxed);
        if due {
            self.flush();
        }
        true
    }

    /// Whether there is room for a byte, after an attempt to make some.
    pub fn has_room(&self) -> bool {
        if !self.waiting.lock().is_full() {
            return true;
        }
        self.flush();
        !self.waiting.lock().is_full()
    }

    /// Passes on what waits, as far as the way out takes it.
    pub fn flush(&self) {
        let mut waiting = self.waiting.lock();
        while !waiting.is_empty() {
            let (first, _) = waiting.as_slices();
            let sent = control::port::console_output(self.name, first);
            if sent == 0 {
                return;
            }
            for _ in 0..sent {
                waiting.pop_front();
            }
        }
    }

    /// Bytes written, and bytes lost of them.
    pub fn counts(&self) -> [u64; 2] {
        [&self.written, &self.dropped].map(|counter| counter.load(Ordering::Relaxed))
    }
}
