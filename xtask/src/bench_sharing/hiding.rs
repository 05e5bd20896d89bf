//! Whether a guest can tell by the time of a write that others have the same page.
//!
//! The first of two VMs has what the second reads, or as much of something else. The second times its first stores
//! to the pages that it has read, one store each.

use super::{Found, Vm, lab::Lab, plot::Plot, plot_of, put, steps};
use crate::step::{Outcome, Step};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Stores on each side.
const STORES: u64 = 100_000;
/// The blocks that only the first VM works with.
const OTHER_BLOCKS: u64 = 1024;
/// When the first VM is ready for sure, in microseconds.
const WAIT: u64 = 2_000_000;
/// Frames that are left beside the reserve where it is said that none is.
const SPARE: u64 = 8;
/// Memory of the VMs: together they may have all that the machine has. Each sees more than that, for
/// there is some that the guest does not touch.
const SMALL: &str = "{ base = '64MiB', max = '96MiB' }";
const LARGE: &str = "{ base = '426MiB', max = '448MiB' }";
/// How many pages the first of them touches at the most beside those that it reads.
const LARGE_FILL: u64 = 420 << 8;
/// How often it is tried to leave no frame.
const TRIES: u32 = 6;
/// How far two histograms may be from each other: what part of the stores is elsewhere.
const DISTANCE_MAX: f64 = 0.01;

/// How often a store took so many nanoseconds.
type Histogram = BTreeMap<u64, u64>;

/// What is tried: the pages are of the disk's image, or written by the guests; they hide, or not;
/// and no frame is free.
struct Case {
    what: &'static str,
    kind: &'static str,
    hide: bool,
    full: bool,
}

const CASES: [Case; 5] = [
    Case {
        what: "pages of the image",
        kind: "image",
        hide: false,
        full: false,
    },
    Case {
        what: "pages that were written",
        kind: "written",
        hide: false,
        full: false,
    },
    Case {
        what: "pages of the image, hiding",
        kind: "image",
        hide: true,
        full: false,
    },
    Case {
        what: "pages that were written, hiding",
        kind: "written",
        hide: true,
        full: false,
    },
    Case {
        what: "the same, with no free frame",
        kind: "written",
        hide: true,
        full: true,
    },
];

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let disk = steps::disk()?;
    let head = [
        "instructions of a first store",
        "others have it",
        "nobody has it",
        "distance",
        "",
    ];
    let mut found = Found {
        name: "hiding",
        rows: vec![head.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
    };
    for case in CASES {
        let fill = if case.full {
            step.doing("how much memory is free");
            match all_but_spare(&case, &disk) {
                Ok(fill) => fill,
                Err(why) => {
                    found.wrong.push(format!("{}: {why}", case.what));
                    continue;
                }
            }
        } else {
            [0; 2]
        };
        let mut sides = Vec::new();
        for others in [true, false] {
            step.doing(&format!("{}, others have it: {others}", case.what));
            let trial = Trial::run(&case, others, fill, STORES, &disk)?;
            if case.full && trial.spare > SPARE {
                let line = format!("{} frames were free: {}", trial.spare, case.what);
                found.wrong.push(line);
            }
            sides.push(trial.histogram);
        }
        let distance = distance(&sides[0], &sides[1]);
        let (is_hidden, hides) = (distance <= DISTANCE_MAX, case.hide);
        if hides && !is_hidden {
            found
                .wrong
                .push(format!("{}: they can be told apart", case.what));
        }
        found.rows.push(vec![
            case.what.to_owned(),
            quartiles(&sides[0]),
            quartiles(&sides[1]),
            format!("{:.2} %", distance * 100.0),
            if is_hidden { "alike" } else { "told apart" }.to_owned(),
        ]);
        step.say(&found.rows[found.rows.len() - 1].join(", "));
        draw(&case, &sides)?;
    }
    let note = format!(
        "{STORES} stores on each side; least, median and most; distance: the part of the stores \
         that are elsewhere in the other histogram"
    );
    found.notes.push(note);
    Ok(found)
}

/// How many more pages each VM must touch for no frame to be left. Found by trying: tables and what
/// is reserved go with them.
fn all_but_spare(case: &Case, disk: &Path) -> Outcome<[u64; 2]> {
    let (mut all, mut spare) = (0, 0);
    for _ in 0..TRIES {
        let fill = [all.min(LARGE_FILL), all.saturating_sub(LARGE_FILL)];
        spare = Trial::run(case, true, fill, 16, disk)?.spare;
        if spare <= SPARE {
            return Ok(fill);
        }
        all += spare - SPARE / 2;
    }
    Err(format!("{spare} frames are left at {all} filled ones"))
}

/// What a run gave.
struct Trial {
    histogram: Histogram,
    /// Frames that were free at its end, beside the reserve.
    spare: u64,
}

impl Trial {
    fn run(case: &Case, others: bool, fill: [u64; 2], stores: u64, disk: &Path) -> Outcome<Self> {
        let sharing = if case.hide { "hide = true" } else { "" };
        let kernel = steps::kernel();
        let vm = |name, args, memory, disk| Vm {
            name,
            kernel: &kernel,
            initrd: None,
            args,
            memory,
            sharing,
            disk: Some(disk),
            limit: None,
        };
        // It does the same with other blocks, where nobody is to have the same: so the machine's
        // memory looks alike.
        let first = if others { 0 } else { OTHER_BLOCKS };
        let [one, two] = fill;
        let (kind, wait) = (case.kind, WAIT);
        let hold = format!("do=hold kind={kind} first={first} fill={one}");
        let writes = format!("do=writes kind={kind} count={stores} wait={wait} fill={two}");
        let vms = [
            vm("one", hold, LARGE, disk).text(),
            vm("two", writes, SMALL, disk).text(),
        ];
        let mut lab = Lab::start("hiding", "512M", &vms)?;
        lab.await_all(&["one", "two"], "timing: done")?;
        let (node, machine) = (lab.node()?, lab.machine()?);
        Ok(Self {
            histogram: histogram(lab.console("two"))?,
            spare: node.free.saturating_sub(machine.reserve) / 4096,
        })
    }
}

fn histogram(console: &str) -> Outcome<Histogram> {
    let bins = console.lines().filter_map(|line| {
        let mut words = line.split_once("timing: store ")?.1.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    });
    let bins: Histogram = bins.collect();
    if bins.is_empty() {
        return Err(format!(
            "the guest did not print its figures, but:\n{console}"
        ));
    }
    Ok(bins)
}

/// What part of the stores would have to be elsewhere for both to be alike (total variation).
fn distance(one: &Histogram, two: &Histogram) -> f64 {
    let sums = [one, two].map(|histogram| histogram.values().sum::<u64>().max(1) as f64);
    let part = |histogram: &Histogram, at: &u64| histogram.get(at).copied().unwrap_or(0) as f64;
    let mut all: Vec<&u64> = one.keys().chain(two.keys()).collect();
    all.sort_unstable();
    all.dedup();
    let apart = |at: &u64| (part(one, at) / sums[0] - part(two, at) / sums[1]).abs();
    all.into_iter().map(apart).sum::<f64>() / 2.0
}

/// Least, median and most, in instructions.
fn quartiles(histogram: &Histogram) -> String {
    let all: u64 = histogram.values().sum();
    let mut seen = 0;
    let median = histogram.iter().find(|(_, count)| {
        seen += **count;
        2 * seen >= all
    });
    let least = histogram.first_key_value();
    let most = histogram.last_key_value();
    let of = |bin: Option<(&u64, &u64)>| bin.map_or(0, |(ns, _)| ns / 2);
    format!("{} / {} / {}", of(least), of(median), of(most))
}

/// Both sides of a case, in steps of the counter, most of them.
fn draw(case: &Case, sides: &[Histogram]) -> Outcome {
    let mut bins: Vec<u64> = sides.iter().flat_map(BTreeMap::keys).copied().collect();
    bins.sort_unstable();
    bins.dedup();
    let bars = bins.iter().map(|ns| {
        let counts = sides
            .iter()
            .map(|side| side.get(ns).copied().unwrap_or(0) as f64);
        ((ns / 2).to_string(), counts.collect())
    });
    let plot = Plot {
        title: &format!("First stores by instructions: {}", case.what),
        parts: &["others have it", "nobody has it"],
        bars: bars.collect(),
    };
    let name = format!("hiding-{}", case.what.replace(", ", "-").replace(' ', "-"));
    let rows = plot.bars.iter().map(|(instructions, counts)| {
        let [others, nobody] = [counts[0], counts[1]];
        format!("{instructions},{others},{nobody}")
    });
    let head = "instructions,others have it,nobody has it".to_owned();
    let csv: Vec<String> = std::iter::once(head).chain(rows).collect();
    let path: PathBuf = plot_of(&name)?;
    put(&path.with_extension("csv"), &(csv.join("\n") + "\n"))?;
    plot.write(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_read_and_set_apart() {
        let one = histogram("noise\r\ntiming: store 160 3\r\ntiming: store 320 1\r\n").unwrap();
        let two = histogram("timing: store 320 4\n").unwrap();
        assert!((distance(&one, &two) - 0.75).abs() < 1e-9);
        assert!(distance(&one, &one) < 1e-9);
        assert_eq!(quartiles(&one), "80 / 80 / 160");
        assert!(histogram("").is_err());
    }
}
