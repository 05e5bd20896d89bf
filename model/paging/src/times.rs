//! How long things took: a count for each range of times, from which quantiles are read.

use core::sync::atomic::{AtomicU32, Ordering};

/// Ranges between a power of two and the next.
const PARTS: u64 = 4;
/// Ranges in all: up to 2^39 ns, nine minutes.
const RANGES: usize = 40 * PARTS as usize;

/// Times in nanoseconds, each known to a quarter of itself.
#[derive(Debug)]
pub struct Times {
    counts: [AtomicU32; RANGES],
}

impl Default for Times {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; RANGES],
        }
    }
}

impl Times {
    /// Notes a time.
    pub fn note(&self, nanoseconds: u64) {
        let range = range(nanoseconds).min(RANGES - 1);
        if let Some(count) = self.counts.get(range) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The time that so many of a hundred did not exceed; 0 where none was noted.
    pub fn quantile(&self, percent: u64) -> u64 {
        let count = |count: &AtomicU32| u64::from(count.load(Ordering::Relaxed));
        let all: u64 = self.counts.iter().map(count).sum();
        let wanted = (all * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (range, counted) in self.counts.iter().enumerate() {
            seen += count(counted);
            if seen >= wanted {
                return most(range);
            }
        }
        0
    }
}

/// The range of a time: its power of two, and the two bits after its first.
fn range(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(PARTS);
    let power = value.ilog2();
    let part = (value >> (power - PARTS.ilog2())) % PARTS;
    (u64::from(power) * PARTS + part) as usize
}

/// The longest time of a range.
const fn most(range: usize) -> u64 {
    let (power, part) = (range as u64 / PARTS, range as u64 % PARTS);
    let unit = (1 << power) / PARTS;
    ((PARTS + part + 1) * unit).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let times = Times::default();
        assert_eq!(times.quantile(50), 0);
        for time in 1..=10_000 {
            times.note(time * 100);
        }
        for (percent, exact) in [(1, 10_000), (50, 500_000), (99, 990_000), (100, 1_000_000)] {
            let found = times.quantile(percent);
            assert!(
                found >= exact && found <= exact * 5 / 4,
                "{percent}: {found}"
            );
        }
    }

    #[test]
    fn any_time_has_a_range() {
        let times = Times::default();
        for time in [0, 1, 3, 4, 7, 1 << 39, u64::MAX] {
            times.note(time);
        }
        assert_eq!(times.quantile(10), 4);
        assert_eq!(times.quantile(100), (1 << 40) - 1);
        for time in (0..63)
            .map(|power| 1_u64 << power)
            .filter(|time| *time >= PARTS)
        {
            assert!(most(range(time)) >= time && most(range(time)) < time + time / 2);
            assert!(most(range(time) - 1) < time);
        }
    }
}
