//! What the plugin's arguments ask for. Without any, it does what it is for; the others are for its tests.

use std::path::PathBuf;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the plugin takes over the leap, or only looks how QEMU does it.
    pub is_cured: bool,
    /// Whether a late timer ends QEMU, or is counted.
    pub ends: bool,
    /// The time between two timers of the plugin's own beside those at the ends of leaps, if there are to be any: each ends
    /// CPUs' turns, which guests with several CPUs can see.
    pub probe_ns: Option<i64>,
    /// Where counts go in the end.
    pub report: Option<PathBuf>,
}

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// The sentence about the first that is wrong.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            is_cured: true,
            ends: true,
            probe_ns: None,
            report: None,
        };
        for word in words {
            match word.split_once('=') {
                Some(("cure", "off")) => options.is_cured = false,
                Some(("late", "counted")) => options.ends = false,
                Some(("probe_ns", number)) => {
                    let number = number.parse().ok().filter(|ns| *ns > 0);
                    options.probe_ns = Some(number.ok_or_else(|| {
                        format!("'{word}' is no time; give a number of nanoseconds from 1")
                    })?);
                }
                Some(("report", path)) => options.report = Some(PathBuf::from(path)),
                _ => {
                    return Err(format!(
                        "'{word}' is no option of the clock's plugin; there are cure=off, late=counted, probe_ns=NUMBER and report=FILE"
                    ));
                }
            }
        }
        Ok(options)
    }
}
