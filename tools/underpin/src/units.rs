//! Sizes and times as people write and read them.

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

/// A time span from text such as `500ms`, `60s`, `5m` or a plain number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "" | "s" => Ok(Duration::from_secs(number)),
        "m" | "min" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(format!(
            "'{unit}' is no unit of time: use ms, s or m, as in 60s"
        )),
    }
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
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536 << 20), "1.5 GiB");
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(size(u64::MAX), "16777215 TiB");
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
        assert!(parse_duration("1h").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,12}") {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }

        #[test]
        fn whole_units_survive(n in 1u64..10_000, (unit, shift) in proptest::sample::select(&UNITS[..])) {
            prop_assert_eq!(parse_size(&format!("{n}{unit}")), Ok(n << shift));
        }
    }
}
