//! How long requests took, in buckets that double.

/// How many buckets there are; the last has no bound.
pub const LATENCY_BUCKETS: usize = 16;
/// The first bucket's bound in nanoseconds.
const FIRST_NS: u64 = 4000;

/// The most that requests of a bucket took, in nanoseconds; `None` for the last bucket, and beyond.
pub const fn latency_bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < LATENCY_BUCKETS {
        Some(FIRST_NS << bucket)
    } else {
        None
    }
}

/// The bucket of a request that took so long.
pub const fn latency_bucket(ns: u64) -> usize {
    let times = ns.saturating_sub(1) / FIRST_NS;
    let bucket = (u64::BITS - times.leading_zeros()) as usize;
    if bucket < LATENCY_BUCKETS {
        bucket
    } else {
        LATENCY_BUCKETS - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_the_first_bucket_that_holds_it() {
        for bucket in 0..LATENCY_BUCKETS {
            let Some(bound) = latency_bound_ns(bucket) else {
                assert_eq!(
                    (bucket, latency_bucket(u64::MAX)),
                    (LATENCY_BUCKETS - 1, bucket)
                );
                continue;
            };
            assert_eq!(latency_bucket(bound), bucket);
            assert_eq!(latency_bucket(bound + 1), bucket + 1);
        }
        assert_eq!(latency_bucket(0), 0);
    }
}
