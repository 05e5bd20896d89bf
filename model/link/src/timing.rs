//! Retransmission timeout, and budgets of work for strangers.

use core::hash::{Hash, Hasher};

/// Timeout before the first sample of the round trip.
const FIRST_TIMEOUT_NS: u64 = 10_000_000;
/// The longest timeout.
const TIMEOUT_MAX_NS: u64 = 1_000_000_000;
/// What doubled timeouts come to: after a cut, the peer hears of this host within that time. Members declare each other
/// dead after 2 s.
const DOUBLED_MAX_NS: u64 = 100_000_000;

/// Estimate of the round trip (RFC 6298), in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RoundTrip {
    /// Smoothed; zero before the first sample.
    pub(crate) smooth_ns: u64,
    spread_ns: u64,
    /// How often the timeout was doubled since the peer answered.
    pub(crate) doubled: u32,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, ns: u64) {
        let ns = ns.clamp(1, TIMEOUT_MAX_NS);
        if self.smooth_ns == 0 {
            (self.smooth_ns, self.spread_ns) = (ns, ns / 2);
        } else {
            self.spread_ns = (3 * self.spread_ns + self.smooth_ns.abs_diff(ns)) / 4;
            self.smooth_ns = (7 * self.smooth_ns + ns).div_ceil(8);
        }
    }

    /// Returns how long to wait for an answer that the peer may delay by `delay_ns`.
    pub(crate) fn timeout_ns(&self, floor_ns: u64, delay_ns: u64) -> u64 {
        let ns = match self.smooth_ns {
            0 => FIRST_TIMEOUT_NS,
            // A margin, for a round trip that hardly varies.
            smooth => smooth + (4 * self.spread_ns).max(smooth / 2) + delay_ns,
        };
        let ns = ns.max(floor_ns);
        let doubled = (ns << self.doubled.min(8)).min(DOUBLED_MAX_NS);
        doubled.max(ns).min(TIMEOUT_MAX_NS)
    }
}

/// Token bucket for work on frames that are not proved to be authentic: at most `MOST` tokens, one more each `EVERY_NS`.
/// Holds the time at which the bucket is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget<const MOST: u64, const EVERY_NS: u64>(u64);

impl<const MOST: u64, const EVERY_NS: u64> Budget<MOST, EVERY_NS> {
    /// Takes a token; `false` if none is left.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let after = self.0.max(now_ns).saturating_add(EVERY_NS);
        let is_left = after <= now_ns.saturating_add(MOST * EVERY_NS);
        if is_left {
            self.0 = after;
        }
        is_left
    }

    /// Puts a token back.
    pub fn give(&mut self) {
        self.0 = self.0.saturating_sub(EVERY_NS);
    }
}

impl<const MOST: u64, const EVERY_NS: u64> Hash for Budget<MOST, EVERY_NS> {
    /// Hashes nothing, so that a state search merges states that differ in their budgets only.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
