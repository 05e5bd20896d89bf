//! Sizes and times as people write and read them.

use abi::bundle::HOLD_MS_MAX;
use std::time::Duration;

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Bytes from text such as `512MiB`, `2GiB` or, short, `2G`. The error says what is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    if unit.is_empty() {
        return Err(format!(
            "'{text}' has no unit: KiB, MiB, GiB or TiB, as in {number}MiB"
        ));
    }
    let known = UNITS
        .iter()
        .find(|(name, _)| *name == unit || name.strip_suffix("iB") == Some(unit));
    let (_, shift) =
        known.ok_or_else(|| format!("'{unit}' is no unit: use KiB, MiB, GiB or TiB"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' is more than 64 bits can count"))
}

/// Bytes in a second from text such as `5MB/s` or `64KiB/s`. The error says what is wrong.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let number_of = |number: &str| {
        let number = number.trim_end().parse::<u64>().ok();
        number.ok_or_else(|| format!("'{text}' does not begin with a whole number"))
    };
    let known = "kB/s, MB/s, GB/s, KiB/s, MiB/s or GiB/s";
    let amount = text.trim().strip_suffix("/s");
    let amount = amount.ok_or_else(|| format!("'{text}' has no unit of a rate: {known}"))?;
    let decimal = [("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];
    let binary = UNITS.map(|(name, shift)| (name, 1 << shift));
    for (unit, bytes) in decimal.into_iter().chain(binary) {
        if let Some(number) = amount.strip_suffix(unit) {
            let rate = number_of(number)?
                .checked_mul(bytes)
                .filter(|rate| *rate > 0);
            return rate.ok_or_else(|| format!("'{text}' is nothing, or more than 64 bits"));
        }
    }
    Err(format!("'{text}' has no unit that is known: {known}"))
}

/// Bytes for people: the largest unit that gives at least 1, with one decimal below 10.
pub fn size(bytes: u64) -> String {
    let Some((name, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let whole = bytes >> shift;
    let tenths = ((bytes >> (shift - 10)) % 1024) * 10 / 1024;
    if whole >= 10 || tenths == 0 {
        format!("{whole} {name}")
    } else {
        format!("{whole}.{tenths} {name}")
    }
}

/// Bytes for people in at most five characters, as [`parse_size`] reads them: `512M`, `1.5G`.
/// Zero is `0`.
pub fn short(bytes: u64) -> String {
    let text = size(bytes);
    match text.split_once(' ') {
        _ if bytes == 0 => "0".to_owned(),
        Some((number, "B")) => number.to_owned(),
        Some((number, unit)) => format!("{number}{}", unit.trim_end_matches("iB")),
        None => text,
    }
}

/// Nanoseconds for people, in about three digits.
pub fn nanoseconds(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ if seconds < 100.0 => format!("{seconds:.1} s"),
        _ => format!("{}:{:02} min", ns / 60_000_000_000, ns / 1_000_000_000 % 60),
    }
}

/// A count for people: `950`, `12.3 k`, `4.5 M`.
pub fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.1} G", n as f64 / 1e9),
    }
}

/// The longest span that anybody waits: moments can be reckoned with it.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// A time span from text such as `500ms`, `60s`, `5m` or a plain number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    let span = match unit {
        "ms" => Duration::from_millis(number),
        "" | "s" => Duration::from_secs(number),
        "m" | "min" => Duration::from_secs(number.saturating_mul(60)),
        _ => {
            return Err(format!(
                "'{unit}' is no unit of time: use ms, s or m, as in 60s"
            ));
        }
    };
    if span > LONGEST {
        return Err(format!("'{text}' is too long: 30 days are the most"));
    }
    Ok(span)
}

/// Milliseconds for which a VM may hold reported memory, from text such as `100ms`.
pub fn parse_hold(text: &str) -> Result<u16, String> {
    let span = parse_duration(text)?;
    u16::try_from(span.as_millis())
        .ok()
        .filter(|ms| *ms <= HOLD_MS_MAX)
        .ok_or_else(|| format!("'{text}' is too long: {HOLD_MS_MAX}ms are the most"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("2 GiB"), Ok(2 << 30));
        assert!(parse_size("512").unwrap_err().contains("no unit"));
        assert!(parse_size("5GB").unwrap_err().contains("'GB' is no unit"));
        assert!(
            parse_size("99999999999TiB")
                .unwrap_err()
                .contains("64 bits")
        );
        let rates = ["5MB/s", "64 KiB/s", "1GB/s"].map(parse_rate);
        assert_eq!(rates, [Ok(5_000_000), Ok(64 << 10), Ok(1_000_000_000)]);
        for wrong in ["5MB", "5/s", "MB/s", "0MB/s", "99999999999TiB/s", "5 mb/s"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536 << 20), "1.5 GiB");
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(size(u64::MAX), "16777215 TiB");
        let shorts = [0, 1023, 4096, 1536 << 20, 512 << 20].map(short);
        assert_eq!(shorts, ["0", "1023", "4K", "1.5G", "512M"]);
    }

    #[test]
    fn times_and_counts_are_short() {
        let times = [0, 999, 12_345, 5_000_000, 12_340_000_000, 754_000_000_000];
        let texts = ["0", "999 ns", "12 us", "5 ms", "12.3 s", "12:34 min"];
        assert_eq!(times.map(nanoseconds), texts);
        assert_eq!(
            [9_999, 12_300, 4_500_000].map(count),
            ["9999", "12.3 k", "4.5 M"]
        );
        assert_eq!(parse_duration("50s"), Ok(Duration::from_secs(50)));
        assert!(parse_duration("18446744073709551615m").is_err());
        assert!(parse_duration("1h").is_err());
        assert_eq!(parse_hold("100ms"), Ok(100));
        assert_eq!(parse_hold("1m"), Ok(60_000));
        assert!(parse_hold("60001ms").unwrap_err().contains("60000ms"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,12}") {
            let _ = parse_size(&text);
            let _ = parse_rate(&text);
            let _ = parse_duration(&text);
            let _ = parse_hold(&text);
        }

        #[test]
        fn whole_units_survive(n in 1u64..10_000, (unit, shift) in proptest::sample::select(&UNITS[..])) {
            prop_assert_eq!(parse_size(&format!("{n}{unit}")), Ok(n << shift));
        }
    }
}
