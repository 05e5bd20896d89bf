//! Whether what guests compute depends on where pages are: four vCPUs use pages of four kinds in orders and
//! with pauses that a seed gives, on CPUs whose turns are of other lengths for each seed, with movement and
//! without. The guest looks at every word that it reads and knows what must be there in the end.

use super::{Run, WORK_MAX, directory, machine};
use crate::bench_sharing::plot::write_bars;
use crate::step::{Outcome, Step};
use std::{fs, ops::RangeInclusive};
use tests_boot::vm::Vm;

const SEEDS: RangeInclusive<u64> = 1..=20;
const ARGS: &str = "work=chance kib=1024 passes=20 rounds=4";
const CACHE_KIB: u32 = 32;
/// Nodes, and vCPUs.
const NODES: u32 = 4;
/// Where pages are put: the name, and EL2's command line.
const WAYS: [(&str, &str); 3] = [
    ("stay", "numa=off"),
    ("move", ""),
    ("sampled, move", "numa=sample"),
];

/// How long a CPU's turn lasts on the measuring machine, in nanoseconds of its own.
pub fn turn_ns(seed: u64) -> u64 {
    2_000 + seed * 7_919 % 16_000
}

/// The table; all runs as `seeds-runs.csv`.
///
/// # Errors
/// A run that fails, or ends with another sum than the one before.
pub fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let mut runs: Vec<Vec<Run>> = WAYS.iter().map(|_| Vec::new()).collect();
    let mut lines = vec!["seed,pages,ms,remote,sum\n".to_owned()];
    for seed in SEEDS {
        for ((way, line), its) in WAYS.iter().zip(&mut runs) {
            step.doing(&format!("seed {seed}, pages {way}"));
            let turn = format!("slice_ns={}", turn_ns(seed));
            let hardware = machine((NODES, "1G"), CACHE_KIB, line, false);
            let hardware = hardware.option("--flash-option").option(turn);
            let vm = Vm::bare("guest", "placement", &format!("{ARGS} seed={seed}")).cpus(NODES);
            let run = Run::of("machine", &hardware, &vm, ("placement ok", WORK_MAX))?;
            lines.push(format!(
                "{seed},\"{way}\",{},{},{}\n",
                run.ms, run.remote, run.sum
            ));
            its.push(run);
        }
    }
    let path = directory()?.join("seeds-runs.csv");
    fs::write(&path, lines.concat())
        .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    let all = || runs.iter().flatten();
    if let Some(other) = all().zip(all().skip(1)).position(|(a, b)| a.sum != b.sum) {
        return Err(format!(
            "another sum after run {other}: see {}",
            path.display()
        ));
    }
    let head = [
        "pages",
        "runs",
        "different times",
        "ms",
        "remote misses",
        "sums",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut bars = Vec::new();
    for ((way, _), its) in WAYS.iter().zip(&runs) {
        rows.push(row(way, its));
        bars.extend(its.iter().map(|run| (String::new(), run.ms)));
    }
    let title =
        "Milliseconds of the parallel clock, 20 seeds each: pages stay; move; sampled, move";
    write_bars(&directory()?.join("numa-seeds.svg"), title, bars)?;
    Ok(rows)
}

fn row(way: &str, runs: &[Run]) -> Vec<String> {
    let sorted = |value: fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let span = |values: &[f64]| match values {
        [least, .., most] => format!("{least:.1} to {most:.1}"),
        _ => String::new(),
    };
    let mut times = sorted(|run| run.ms);
    let (ms, remote) = (span(&times), span(&sorted(|run| run.remote)));
    times.dedup();
    let sums = runs.iter().map(|run| &run.sum);
    let sums: std::collections::BTreeSet<_> = sums.collect();
    vec![
        way.to_owned(),
        runs.len().to_string(),
        times.len().to_string(),
        ms,
        format!("{remote} %"),
        sums.len().to_string(),
    ]
}
