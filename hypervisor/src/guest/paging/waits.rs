//! How long a VM waits: for pages that are read again, and for frames.

use crate::machine;
use alloc::boxed::Box;
use arch::timer;
use core::sync::atomic::{AtomicU64, Ordering};
use model_paging::Times;

/// What was waited for so far.
#[derive(Default)]
pub struct Waits {
    /// How long pages took to be read again.
    refaults: Box<Times>,
    /// How often somebody began to wait for a frame.
    stalls: AtomicU64,
    /// When the first of those that wait began, in counts; 0: nobody waits.
    stalled_since: AtomicU64,
    stalled_ns: AtomicU64,
}

impl Waits {
    /// A page is there again, which was asked for at a time in counts.
    pub fn page_came(&self, asked: u64) {
        let took = timer::now().saturating_sub(asked);
        self.refaults.note(machine::nanoseconds(took));
    }

    /// Somebody waits for a frame from now on.
    pub fn stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
        let (now, relaxed) = (timer::now().max(1), Ordering::Relaxed);
        // Where somebody waits already, that is when the wait began.
        let _ = self
            .stalled_since
            .compare_exchange(0, now, relaxed, relaxed);
    }

    /// All who wait try again.
    pub fn go(&self) {
        let since = self.stalled_since.swap(0, Ordering::Relaxed);
        if since != 0 {
            let waited = machine::nanoseconds(timer::now().saturating_sub(since));
            self.stalled_ns.fetch_add(waited, Ordering::Relaxed);
        }
    }

    /// As [`abi::control::RawVm::waits`] has them.
    pub fn all(&self) -> [u64; 4] {
        let [half, most] = [50, 99].map(|percent| self.refaults.quantile(percent));
        let [ns, stalls] = [&self.stalled_ns, &self.stalls].map(|it| it.load(Ordering::Relaxed));
        [half, most, ns, stalls]
    }
}
