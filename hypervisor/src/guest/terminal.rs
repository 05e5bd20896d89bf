//! What a VM writes to its consoles, on its way to whoever watches.

use crate::guest::sessions;
use abi::Text;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};

/// Bytes kept while nobody takes them, on the heap: VMs are made on the stack.
pub const ROOM: usize = 8192;
/// Bytes from which on they are passed on while the vCPU still runs.
const PASS_ON: usize = 1024;

/// Output of some VM waits that [`Terminal::flush`] may pass on.
static SOME: AtomicBool = AtomicBool::new(false);

/// Whether output of some VM may wait: who asks flushes all.
pub fn take_some() -> bool {
    SOME.load(Ordering::Relaxed) && SOME.swap(false, Ordering::SeqCst)
}

/// A VM's output.
pub struct Terminal {
    name: Text<32>,
    waiting: SpinLock<Waiting>,
    is_full: AtomicBool,
    /// Whether the guest wrote to its UART, or to nothing yet, and not to a virtio console.
    pub is_uart: AtomicBool,
}

impl Terminal {
    /// Nothing written yet.
    pub fn new(name: Text<32>) -> Self {
        Self {
            name,
            waiting: SpinLock::new(Rank::Terminal, Waiting::default()),
            is_full: AtomicBool::new(false),
            is_uart: AtomicBool::new(true),
        }
    }

    /// Takes a byte; one for which there is no room is lost. It is passed on with those that
    /// follow, at the latest when the vCPU leaves its CPU or waits.
    #[inline]
    pub fn put(&self, byte: u8) {
        let mut waiting = self.waiting.lock();
        waiting.written += 1;
        if waiting.bytes.push_back(byte).is_err() {
            waiting.dropped += 1;
        }
        let len = waiting.bytes.len();
        drop(waiting);
        if len == 1 {
            SOME.store(true, Ordering::SeqCst);
        }
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
        while !waiting.bytes.is_empty() {
            let sent = sessions::console_output(self.name, waiting.bytes.as_slices().0);
            if sent == 0 {
                SOME.store(true, Ordering::SeqCst);
                return;
            }
            for _ in 0..sent {
                waiting.bytes.pop_front();
            }
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// Gives all that waits to `take`, in up to two parts.
    pub fn waiting(&self, mut take: impl FnMut(&[u8])) {
        let waiting = self.waiting.lock();
        let (front, rest) = waiting.bytes.as_slices();
        take(front);
        take(rest);
    }

    /// Bytes written, and bytes lost of them.
    pub fn counts(&self) -> [u64; 2] {
        let waiting = self.waiting.lock();
        [waiting.written, waiting.dropped]
    }
}

/// Bytes in the order they came.
#[derive(Default)]
struct Waiting {
    bytes: Box<heapless::Deque<u8, ROOM>>,
    /// How many came, and how many of them there was no room for.
    written: u64,
    dropped: u64,
}
