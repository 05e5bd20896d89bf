//! The short form of the benches, for the gate: one run each of `nano`, of the steps of sharing (among them a disk's
//! request), and of attach and detach. All count instructions, so that a busy host changes nothing.

use super::{Accepted, Measured, record};
use crate::{
    bench::{self, table::Figures},
    bench_sharing::steps,
    step::{Outcome, Step},
};
use std::fs;
use tests_boot::os0::Os0;

/// Its tables: all must have accepted figures.
pub const TABLES: [&str; 3] = ["entries", "sharing-steps", "attach"];

/// The seconds that OS-0 may take to its figures, on a host that is busy.
const SWITCHES_MAX: u64 = 240;

/// Measures what `xtask build` has left, and fails where a figure is worse than the accepted one.
///
/// # Errors
/// A sentence for each such figure, or why there is none.
pub fn check(step: &mut Step<'_>) -> Outcome {
    let accepted = Accepted::read()?;
    let mut worse = Vec::new();
    let [entries, sharing, attach] = TABLES;
    for (table, measure) in [
        (entries, bench::entries_once as fn() -> Outcome<Figures>),
        (sharing, steps::once),
        (attach, switches),
    ] {
        step.doing(table);
        let measured = Measured::plain(&measure()?);
        worse.extend(accepted.worse(table, &measured));
        for line in accepted.better(table, &measured) {
            step.say(&line);
        }
        record(&format!("{table}, short"), measured)?;
    }
    if worse.is_empty() {
        Ok(())
    } else {
        Err(worse.join("\n"))
    }
}

/// The instructions of attach and detach on the CPU that calls, and of each with all of `stop_machine`: the least of
/// three, as an interrupt may come in between.
fn switches() -> Outcome<Figures> {
    let directory = super::directory().join("switches");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let machine = Os0::new("trixie-cloud", 1, "1G", "switches").counted();
    let machine = machine.expect("switches told", SWITCHES_MAX);
    least(&machine.play(&directory, &directory)?)
}

/// Reads `os0: attach ROUND counts=... pause=...`, and the same of detach.
fn least(said: &str) -> Outcome<Figures> {
    let mut figures = Figures::new();
    for line in said.lines() {
        let mut words = line.split_whitespace().skip_while(|word| *word != "os0:");
        let Some(kind @ ("attach" | "detach")) = words.nth(1) else {
            continue;
        };
        for word in words {
            let Some((what, number)) = word.split_once('=') else {
                continue;
            };
            let number = number.split(',').next().unwrap_or_default();
            let number: f64 = number
                .parse()
                .map_err(|_| format!("'{line}' has no number of {what}"))?;
            let key = format!("{kind}_{what}");
            let before = figures.get(&key).copied().unwrap_or(f64::INFINITY);
            figures.insert(key, before.min(number));
        }
    }
    if figures.len() == 4 {
        Ok(figures)
    } else {
        Err(format!("no switch was told, but:\n{said}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_three_switches_is_taken() {
        let said = "[ 1.0] os0: attach 1 counts=579 pause=47036\r\nos0: detach 1 counts=560 pause=5600\nos0: ready\n\
                    os0: attach 2 counts=600 pause=5588\nos0: detach 2 counts=551 pause=5700\n";
        let found = least(said).unwrap();
        let keys: Vec<_> = found
            .iter()
            .map(|(key, value)| (key.as_str(), *value))
            .collect();
        assert_eq!(
            keys,
            [
                ("attach_counts", 579.0),
                ("attach_pause", 5588.0),
                ("detach_counts", 551.0),
                ("detach_pause", 5600.0)
            ]
        );
        assert!(least("os0: ready\n").is_err());
    }
}
