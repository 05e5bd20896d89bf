//! What a guest did that was out of the ordinary: counted, answered, and lived with.

use core::sync::atomic::{AtomicU64, Ordering};
use model_addr::Ipa;

/// Counters of one VM.
#[derive(Default)]
pub struct Oddities {
    registers: AtomicU64,
    accesses: AtomicU64,
    calls: AtomicU64,
    last_refused: AtomicU64,
    writes: AtomicU64,
}

impl Oddities {
    /// A system register that guests are not given.
    pub fn unknown_register(&self) {
        self.registers.fetch_add(1, Ordering::Relaxed);
    }

    /// An access to where nothing is.
    pub fn refused_access(&self, ipa: Ipa) {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        self.last_refused.store(ipa.0, Ordering::Relaxed);
    }

    /// A write to a disk that has no room; how many there were.
    pub fn refused_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A hypercall or firmware call that does not exist.
    pub fn unknown_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters: registers, accesses, calls.
    pub fn counts(&self) -> [u64; 3] {
        [&self.registers, &self.accesses, &self.calls]
            .map(|counter| counter.load(Ordering::Relaxed))
    }
}
