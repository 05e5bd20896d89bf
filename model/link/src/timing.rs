//! Retransmission timeout, and the budget of work for strangers.

use core::hash::{Hash, Hasher};

/// Timeout before the first sample of the round trip.
const FIRST_TIMEOUT_NS: u64 = 10_000_000;
/// The longest timeout.
const TIMEOUT_MAX_NS: u64 = 1_000_000_000;
/// How often a timeout is doubled, at most.
const DOUBLED_MAX: u32 = 8;

/// Estimate of the round trip (RFC 6298), in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RoundTrip {
    /// Smoothed; zero before the first sample.
    smooth_ns: u64,
    spread_ns: u64,
    doubled: u32,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, ns: u64) {
        let ns = ns.clamp(1, TIMEOUT_MAX_NS);
        if self.smooth_ns == 0 {
            self.smooth_ns = ns;
            self.spread_ns = ns / 2;
        } else {
            self.spread_ns = (3 * self.spread_ns + self.smooth_ns.abs_diff(ns)) / 4;
            self.smooth_ns = ((7 * self.smooth_ns + ns) / 8).max(1);
        }
    }

    /// Returns how long to wait for an answer that the peer may delay by `delay_ns`.
    pub(crate) fn timeout_ns(&self, floor_ns: u64, delay_ns: u64) -> u64 {
        let ns = match self.smooth_ns {
            0 => FIRST_TIMEOUT_NS,
            // A margin, for a round trip that hardly varies.
            smooth => smooth + (4 * self.spread_ns).max(smooth / 2) + delay_ns,
        };
        (ns.max(floor_ns) << self.doubled).min(TIMEOUT_MAX_NS)
    }

    /// Doubles the next timeout.
    pub(crate) fn back_off(&mut self) {
        self.doubled = (self.doubled + 1).min(DOUBLED_MAX);
    }

    /// Ends the doubling: the peer has answered.
    pub(crate) fn answered(&mut self) {
        self.doubled = 0;
    }

    pub(crate) const fn smooth_ns(&self) -> u64 {
        self.smooth_ns
    }
}

/// Token bucket for work on frames that are not proved to be authentic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    most: u32,
    left: u32,
    every_ns: u64,
    since_ns: u64,
}

impl Budget {
    pub(crate) const fn new(most: u32, every_ns: u64) -> Self {
        Self {
            most,
            left: most,
            every_ns,
            since_ns: 0,
        }
    }

    /// Takes one token; `false` if none is left.
    pub(crate) fn take(&mut self, now_ns: u64) -> bool {
        let gained = now_ns.saturating_sub(self.since_ns) / self.every_ns;
        if gained > 0 {
            let left = u64::from(self.left).saturating_add(gained);
            self.left = left.min(self.most.into()) as u32;
            self.since_ns = now_ns;
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }

    /// Puts back `n` tokens.
    pub(crate) fn give(&mut self, n: u32) {
        self.left = (self.left + n).min(self.most);
    }
}

impl Hash for Budget {
    /// Hashes nothing, so that a state search merges states that differ in their budgets only.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
