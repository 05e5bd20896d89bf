//! How often something took how long, as the bare guest `timing` tells it.

use crate::step::Outcome;
use std::collections::BTreeMap;

/// How often something took so many nanoseconds, two for each instruction.
pub type Histogram = BTreeMap<u64, u64>;

/// The histogram of `what` that the guest `timing` printed.
///
/// # Errors
/// It printed none.
pub fn histogram(console: &str, what: &str) -> Outcome<Histogram> {
    let bins = bins(console, what);
    if bins.is_empty() {
        return Err(format!(
            "the guest did not print its figures, but:\n{console}"
        ));
    }
    Ok(bins)
}

/// The same; empty where it printed none.
pub fn bins(console: &str, what: &str) -> Histogram {
    let begin = format!("timing: {what} ");
    let bins = console.lines().filter_map(|line| {
        let mut words = line.split_once(&begin)?.1.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    });
    bins.collect()
}

/// What part of the stores would have to be elsewhere for both to be alike (total variation).
pub fn distance(one: &Histogram, two: &Histogram) -> f64 {
    let sums = [one, two].map(|histogram| histogram.values().sum::<u64>().max(1) as f64);
    let part = |histogram: &Histogram, at: &u64| histogram.get(at).copied().unwrap_or(0) as f64;
    let mut all: Vec<&u64> = one.keys().chain(two.keys()).collect();
    all.sort_unstable();
    all.dedup();
    let apart = |at: &u64| (part(one, at) / sums[0] - part(two, at) / sums[1]).abs();
    all.into_iter().map(apart).sum::<f64>() / 2.0
}

/// How much longer or shorter, at most, the store of any rank took on one side than that of the same rank on
/// the other, in nanoseconds.
pub fn farthest(one: &Histogram, two: &Histogram) -> u64 {
    let sorted = |histogram: &Histogram| {
        let times = histogram.iter();
        let each = times.flat_map(|(ns, count)| std::iter::repeat_n(*ns, *count as usize));
        each.collect::<Vec<u64>>()
    };
    let pairs = sorted(one).into_iter().zip(sorted(two));
    pairs.map(|(a, b)| a.abs_diff(b)).max().unwrap_or(0)
}

/// Least, median and most, in instructions.
pub fn quartiles(histogram: &Histogram) -> String {
    let of = |per_mille| quantile(histogram, per_mille);
    format!("{} / {} / {}", of(0), of(500), of(1000))
}

/// What so many of a thousand took at most, in instructions.
pub fn quantile(histogram: &Histogram, per_mille: u64) -> u64 {
    let all: u64 = histogram.values().sum();
    let mut seen = 0;
    let found = histogram.iter().find(|(_, count)| {
        seen += **count;
        1000 * seen >= per_mille * all
    });
    found.map_or(0, |(ns, _)| ns / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_read_and_set_apart() {
        let said = "noise\r\ntiming: store 160 3\r\ntiming: store 320 1\r\ntiming: other 0 9\r\n";
        let one = histogram(said, "store").unwrap();
        let two = histogram("timing: store 320 4\n", "store").unwrap();
        assert!((distance(&one, &two) - 0.75).abs() < 1e-9);
        assert!(distance(&one, &one) < 1e-9);
        assert_eq!(quartiles(&one), "80 / 80 / 160");
        assert_eq!(["store", "away"].map(|what| bins(said, what).len()), [2, 0]);
        assert_eq!([750, 751].map(|part| quantile(&one, part)), [80, 160]);
        assert!(histogram("", "store").is_err());
    }
}
