//! Times, rates and shares as people write them.

/// A number of nanoseconds: `250`, `250ns`, `10us`, `2ms`, `1s`; at most 10 hours.
pub fn time(text: &str) -> Result<i64, String> {
    const MOST_NS: i64 = 36_000 * 1_000_000_000;
    let (number, unit) = split(text);
    let scale = match unit {
        "" | "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let number = number.parse::<i64>().ok();
    let ns = number
        .zip(scale)
        .and_then(|(n, scale)| n.checked_mul(scale));
    ns.filter(|ns| *ns <= MOST_NS).ok_or_else(|| {
        format!("'{text}' is no time; give a whole number with ns, us, ms or s, up to 36000s")
    })
}

/// Bits per second: `100G`, `25G`, `10M`; 1 Mbit/s to 1 Tbit/s.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = match unit {
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let bits = number
        .zip(scale)
        .and_then(|(n, scale)| n.checked_mul(scale));
    bits.filter(|bits| (1_000_000..=1_000_000_000_000).contains(bits))
        .ok_or_else(|| {
            format!(
                "'{text}' is no rate; give bits per second, as in 10G or 100M, from 1M to 1000G"
            )
        })
}

/// Parts of a million: `0.5%`, `100%`, with at most four digits behind the point.
pub fn share(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is no share; give percent from 0% to 100%, as in 0.5%");
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.len() > 4 || part.contains(|c: char| !c.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole = whole.parse::<u32>().map_err(|_| wrong())?;
    let part = format!("{part:0<4}").parse::<u32>().map_err(|_| wrong())?;
    let ppm = whole.checked_mul(10_000).and_then(|w| w.checked_add(part));
    ppm.filter(|ppm| *ppm <= 1_000_000).ok_or_else(wrong)
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(time("7"), Ok(7));
        assert_eq!(time("10us"), Ok(10_000));
        assert_eq!(time("36000s"), Ok(36_000_000_000_000));
        assert_eq!(rate("100G"), Ok(100_000_000_000));
        assert_eq!(rate("1M"), Ok(1_000_000));
        assert_eq!(share("0.5%"), Ok(5_000));
        assert_eq!(share("100%"), Ok(1_000_000));
        assert_eq!(share("0.0001%"), Ok(1));
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "us",
            "-1",
            "1.5us",
            "1h",
            "36001s",
            "99999999999999999999",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["", "10", "10K", "0M", "1001G", "-1G"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in [
            "",
            "1",
            "%",
            "101%",
            "0.12345%",
            "-1%",
            "1.+2%",
            "100.0001%",
        ] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
