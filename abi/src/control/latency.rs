//! How long requests took, in buckets that double.

/// How many buckets there are; the last has no bound.
pub const LATENCY_BUCKETS: usize = 16;
/// The first bucket's bound in nanoseconds; the next one's is twice that.
pub const LATENCY_FIRST_NS: u64 = 4000;

/// The bucket of a request that took so long.
pub const fn latency_bucket(ns: u64) -> usize {
    let times = ns.saturating_sub(1) / LATENCY_FIRST_NS;
    let bucket = (u64::BITS - times.leading_zeros()) as usize;
    if bucket < LATENCY_BUCKETS {
        bucket
    } else {
        LATENCY_BUCKETS - 1
    }
}
