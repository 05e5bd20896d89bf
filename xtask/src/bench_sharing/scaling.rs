//! What a step takes on the host, beside the number of frames and of users: `model/sharing`'s bench,
//! once for the time and once under callgrind, which counts its instructions.

use super::{Found, lab, plot::write_bars, plot_of};
use crate::{
    project,
    step::{Outcome, Step},
};
use std::{collections::BTreeMap, fs, path::Path};

/// Numbers of shared frames.
const FRAMES: [u64; 3] = [10_000, 1_000_000, 10_000_000];
/// How often callgrind sees each step.
const STEPS: u64 = 1000;
/// How much more a step may take with a thousand times as many frames.
const GROWTH_MAX: f64 = 1.02;

/// What a block that equals many others may take beside one that equals none, to come and to leave.
const EQUAL_MAX: f64 = 1.2;
/// What the machine adds, by loops of its own that the bench leaves out: to compare a frame (32 turns of 35
/// instructions, `frame_equal`), to copy one (`bytes_copy_wide`), and to clean one (64 lines, `cache::publish`).
const COMPARE: f64 = 1123.0;
const COPY: f64 = 300.0;
const CLEAN: f64 = 165.0;

/// Instructions and nanoseconds of a step, by its number of frames.
type Costs = BTreeMap<u64, (f64, f64)>;

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    project::first_program(&["valgrind"])
        .ok_or("there is no valgrind, which counts instructions")?;
    step.doing("time");
    let times = lines(&bench(step, &[], &[])?);
    step.doing("instructions");
    let out = lab::directory("scaling")?;
    let _ = fs::remove_dir_all(&out); // absent is fine
    let out = lab::directory("scaling")?.join("out");
    let callgrind = [
        "valgrind",
        "--tool=callgrind",
        "--collect-atstart=no",
        "--toggle-collect=*measured*",
        "--dump-after=*note_end*",
        &format!("--callgrind-out-file={}", out.display()),
    ];
    let counted = lines(&bench(step, &callgrind, &["once"])?);
    let mut names = Vec::new();
    let mut all: BTreeMap<String, Costs> = BTreeMap::new();
    for (n, (frames, name, _)) in (1..).zip(counted) {
        let ns = times
            .iter()
            .find(|time| (time.0, &time.1) == (frames, &name));
        let ns = ns
            .ok_or_else(|| format!("{name} was timed at no {frames} frames"))?
            .2;
        let instructions = total(&out.with_extension(n.to_string()))? as f64 / STEPS as f64;
        if !all.contains_key(&name) {
            names.push(name.clone());
        }
        all.entry(name)
            .or_default()
            .insert(frames, (instructions, ns));
    }
    table(&names, &all)
}

/// Runs the bench; what it prints.
fn bench(step: &Step<'_>, runner: &[&str], words: &[&str]) -> Outcome<String> {
    let mut cargo = project::cargo("host", "bench -q -p model_sharing --bench growth");
    if !runner.is_empty() {
        cargo.args([
            "--config",
            &format!("target.'cfg(all())'.runner={runner:?}"),
        ]);
    }
    step.command(cargo.arg("--").args(words))
}

/// Frames, step and nanoseconds of each line.
fn lines(text: &str) -> Vec<(u64, String, f64)> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("growth: ")?.split_whitespace();
        Some((
            words.next()?.parse().ok()?,
            words.next()?.to_owned(),
            words.next()?.parse().ok()?,
        ))
    };
    text.lines().filter_map(line).collect()
}

/// Instructions of one of callgrind's dumps.
fn total(dump: &Path) -> Outcome<u64> {
    let text = fs::read_to_string(dump)
        .map_err(|error| format!("cannot read {}: {error}", dump.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| format!("{} has no total", dump.display()))
}

fn table(names: &[String], all: &BTreeMap<String, Costs>) -> Outcome<Found> {
    let mut head = vec!["a step, on the host".to_owned()];
    for what in ["instructions", "ns"] {
        head.extend(FRAMES.map(|frames| format!("{what}, {frames} frames")));
    }
    let mut found = Found {
        name: "scaling",
        rows: vec![head],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    let mut bars = Vec::new();
    for name in names {
        let costs: Option<Vec<_>> = FRAMES.iter().map(|at| all[name].get(at).copied()).collect();
        let costs = costs.ok_or_else(|| format!("{name} was not measured at all sizes"))?;
        let (first, last) = (costs[0].0, costs[costs.len() - 1].0);
        if last > first * GROWTH_MAX {
            found.wrong.push(format!(
                "{name} grows from {first:.0} to {last:.0} instructions"
            ));
        }
        let instructions = costs.iter().map(|cost| format!("{:.0}", cost.0));
        let times = costs.iter().map(|cost| format!("{:.0}", cost.1));
        let name = name.replacen('-', " of ", 1).replace('-', " ");
        bars.push((name.clone(), last));
        found.rows.push(
            std::iter::once(name)
                .chain(instructions)
                .chain(times)
                .collect(),
        );
    }
    found.notes.push(format!(
        "each on the same {STEPS} frames among all; `join of 64`: the 64th user comes, `leave of 64`: the first \
         of 64 goes, which changes the accounts of all of them; the most that instructions may grow is {GROWTH_MAX}"
    ));
    equals(all, &mut found)?;
    let title = "Instructions of a step, with 10,000,000 shared frames";
    write_bars(&plot_of("scaling")?, title, bars)?;
    Ok(found)
}

/// What a block takes that equals all others, beside one that equals none: to come and to leave.
fn equals(all: &BTreeMap<String, Costs>, found: &mut Found) -> Outcome {
    let both = |whose: &str, frames: u64| {
        let of = |what: &str| {
            let cost = all.get(&format!("{what}-{whose}"));
            cost.and_then(|costs| costs.get(&frames)).map(|cost| cost.0)
        };
        of("block")
            .zip(of("leave"))
            .map(|(block, leave)| block + leave)
    };
    for (whose, of) in [
        ("equal", "one VM"),
        ("two-VMs", "two VMs by turns"),
        ("eight-VMs", "eight VMs by turns"),
        ("all-VMs", "64 VMs by turns"),
    ] {
        for frames in FRAMES {
            let costs = both(whose, frames).zip(both("different", frames));
            let (equal, different) = costs.ok_or("blocks were not measured")?;
            let (equal, different) = (equal + COMPARE, different + COPY + CLEAN);
            let ratio = equal / different;
            let is_met = ratio <= EQUAL_MAX;
            found.notes.push(format!(
                "{frames} equal blocks of {of}, one of which comes and leaves, compared once: {equal:.0} \
                 instructions, and {different:.0} where all differ, copied and cleaned: {ratio:.2} times; aim \
                 {EQUAL_MAX}: {}",
                if is_met { "met" } else { "missed" }
            ));
            if !is_met {
                found.wrong.push(format!(
                    "an equal block of {of} takes {ratio:.2} times as much"
                ));
            }
        }
    }
    Ok(())
}
