//! Whether a guest can tell by the time of a write that others have the same page.
//!
//! The first of two VMs has what the second reads, or as much of something else. The second times its first stores
//! to the pages that it has read, one store each.

use super::{
    Found, Vm,
    histogram::{Histogram, distance, histogram, quartiles},
    lab::Lab,
    plot::Plot,
    plot_of, put, steps,
};
use crate::step::{Outcome, Step};
use abi::hypercall::MAY_SET_ASIDE;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use tests_boot::assets;

/// Stores on each side.
const STORES: u64 = 100_000;
/// The blocks that only the first VM works with.
const OTHER_BLOCKS: u64 = 1024;
/// When the first VM is ready for sure, in microseconds.
const WAIT: u64 = 2_000_000;
/// How far two histograms may be from each other: what part of the stores is elsewhere.
const DISTANCE_MAX: f64 = 0.01;

/// What is tried: the pages are of the disk's image, or written by the guests; they hide, or not; and
/// frames are free while they are stored to, or only some of the reserve.
struct Case {
    what: &'static str,
    kind: &'static str,
    hide: bool,
    scarce: bool,
}

const fn case(what: &'static str, kind: &'static str, hide: bool, scarce: bool) -> Case {
    Case {
        what,
        kind,
        hide,
        scarce,
    }
}

const CASES: [Case; 6] = [
    case("pages of the image", "image", false, false),
    case("pages that were written", "written", false, false),
    case("pages of the image, hiding", "image", true, false),
    case("pages that were written, hiding", "written", true, false),
    case(
        "pages of the image, hiding, no free frame",
        "image",
        true,
        true,
    ),
    case(
        "pages that were written, hiding, no free frame",
        "written",
        true,
        true,
    ),
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
        figures: None,
    };
    for case in CASES {
        let mut sides = Vec::new();
        for others in [true, false] {
            step.doing(&format!("{}, others have it: {others}", case.what));
            sides.push(stores(&case, others, &disk)?);
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

/// What first stores took.
fn stores(case: &Case, others: bool, disk: &Path) -> Outcome<Histogram> {
    let sharing = if case.hide { "hide = true" } else { "" };
    let kernel = steps::kernel();
    let vm = |name, args| Vm {
        name,
        kernel: &kernel,
        initrd: None,
        args,
        memory: "'64MiB'",
        sharing,
        disk: Some(disk),
        limit: None,
    };
    // It does the same with other blocks, where nobody is to have the same: so the machine's memory
    // looks alike.
    let first = if others { 0 } else { OTHER_BLOCKS };
    let kind = case.kind;
    let hold = format!("do=hold kind={kind} first={first}");
    let scarce = u8::from(case.scarce);
    let writes = format!("do=writes kind={kind} count={STORES} wait={WAIT} scarce={scarce}");
    let vms = [vm("one", hold).text(), vm("two", writes).text()];
    let (image, el2) = if case.scarce {
        (assets::hooked_image(), MAY_SET_ASIDE)
    } else {
        (assets::image(), "")
    };
    let mut lab = Lab::start_with(&image, el2, "hiding", "512M", &vms)?;
    lab.await_all(&["one", "two"], "timing: done")?;
    histogram(lab.console("two"), "store")
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
