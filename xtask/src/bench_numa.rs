//! `xtask bench-numa`: how long work takes on a machine with near and far memory (300 and 900 ns), by
//! where its pages are put. Time is that of the measuring machine's parallel clock.
//!
//! The programs are bare guests of our own (`tests/guests/src/placement.rs`) in the shape of Disco's
//! workloads (section 5): a scene that all read, as Raytrace does, and memory of each process's own, as
//! in Engineering. They check every word and print a sum, which must not depend on where pages are.

use crate::{
    bench::table::{markdown, replace_between},
    bench_sharing::plot::write_bars,
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{fs, path::Path, time::Duration};
use tests_boot::{assets, machine::Hardware, machine::Machine, vm::Vm};

const SPECIFICATION: &str = "SPECIFICATION.md";
/// How long a program may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(10);
const NODES: u32 = 4;

/// What a program is told, and the machine's caches.
struct Work {
    name: &'static str,
    args: &'static str,
    cache_kib: u32,
}

const WORKS: [Work; 3] = [
    Work {
        name: "read-shared scene",
        args: "work=scene kib=8192 passes=40",
        cache_kib: 256,
    },
    Work {
        name: "own memory, moved midway",
        args: "work=own kib=4096 passes=80",
        cache_kib: 1024,
    },
    Work {
        name: "own memory, not moved",
        args: "work=own kib=4096 passes=20 still",
        cache_kib: 1024,
    },
];

/// Where pages are put: the name, EL2's command line, and whether all memory is near.
const WAYS: [(&str, &str, bool); 4] = [
    ("round robin", "numa=round-robin", false),
    ("first touch", "numa=off", false),
    ("Underpin", "", false),
    ("uniform", "numa=off", true),
];

/// What a run gave.
struct Run {
    ms: f64,
    /// Misses on memory of other nodes, in percent.
    remote: f64,
    sum: String,
}

/// Builds, unless `built` says that all is there, and measures; with `write`, puts the figures into
/// SPECIFICATION.md. Gives whether sums were equal.
pub fn run(built: bool, write: bool) -> bool {
    let mut steps = Steps::new(3, project::products().join("bench-numa/logs"));
    let is_built = steps.run(
        "build",
        |step| if built { Ok(()) } else { images::all(step) },
    );
    if is_built.is_none() {
        return false;
    }
    let Some(rows) = steps.run("numa", measure) else {
        return false;
    };
    print_line(&format!("\n{}", markdown(&rows)));
    steps.run("files", |_| keep(&rows, write)).is_some()
}

fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let head = [
        "program",
        "pages",
        "ms",
        "remote misses",
        "against round robin",
        "against uniform",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut bars = Vec::new();
    for work in &WORKS {
        let mut runs = Vec::new();
        for (way, line, is_uniform) in WAYS {
            step.doing(&format!("{}, {way}", work.name));
            runs.push(Run::of(work, line, is_uniform)?);
        }
        let [round_robin, .., uniform] = &runs[..] else {
            return Err("no runs".to_owned());
        };
        for ((way, ..), run) in WAYS.iter().zip(&runs) {
            if run.sum != uniform.sum {
                return Err(format!("{}, {way}: another sum", work.name));
            }
            rows.push(vec![
                work.name.to_owned(),
                (*way).to_owned(),
                format!("{:.1}", run.ms),
                format!("{:.1} %", run.remote),
                format!("{:.2}", run.ms / round_robin.ms),
                format!("{:.2}", run.ms / uniform.ms),
            ]);
            bars.push(((*way).to_owned(), run.ms));
        }
    }
    let title = "Milliseconds of the parallel clock: scene; own, moved; own, not moved";
    write_bars(&directory()?.join("numa.svg"), title, bars)?;
    Ok(rows)
}

impl Run {
    fn of(work: &Work, line: &str, is_uniform: bool) -> Outcome<Self> {
        let place = directory()?.join("machine");
        let _ = fs::remove_dir_all(&place); // absent is fine
        fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
        let results = place.join("results.csv");
        let cache = format!("cache_kib={}", work.cache_kib);
        let mut hardware = Hardware::new(NODES, "1G").nodes(NODES).option("--flash");
        for (option, value) in [
            ("--results", results.display().to_string()),
            ("--flash-option", cache),
            ("--append", line.to_owned()),
        ] {
            if !value.is_empty() {
                hardware = hardware.option(option).option(value);
            }
        }
        if is_uniform {
            let near = vec!["10"; (NODES * NODES) as usize].join(":");
            hardware = hardware
                .option("--flash-option")
                .option(format!("distances={near}"));
        }
        let vm = Vm::bare("guest", "placement", work.args).cpus(NODES);
        let mut machine = Machine::start(&assets::command(), &place, &hardware, &[vm])?;
        machine.await_answer()?;
        machine.expect("guest", "underpin-guest: placement ok", 1, WORK_MAX)?;
        let console = machine.console("guest");
        let sum = console
            .lines()
            .find_map(|line| Some(line.split_once("sum ")?.1.trim()));
        let sum = sum.ok_or("the guest told no sum")?.to_owned();
        machine.shut_down()?;
        let (ms, remote) = read(&results)?;
        Ok(Self { ms, remote, sum })
    }
}

/// The time of region 2, and the part of its misses that went to other nodes.
fn read(results: &Path) -> Outcome<(f64, f64)> {
    let text = fs::read_to_string(results)
        .map_err(|error| format!("cannot read {}: {error}", results.display()))?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().ok_or("there are no results")?;
    let whole: Vec<_> = lines.filter(|line| line.first() == Some(&"2")).collect();
    let sum = |title: &str| -> Outcome<Vec<f64>> {
        let at = head.iter().position(|column| *column == title);
        let at = at.ok_or_else(|| format!("the results have no column {title}"))?;
        let values = whole.iter().filter_map(|line| line.get(at)?.parse().ok());
        Ok(values.collect())
    };
    let ns = sum("clock_ns")?.into_iter().fold(0.0, f64::max);
    let (near, far) = (sum("data_local")?, sum("data_remote")?);
    let (near, far): (f64, f64) = (near.iter().sum(), far.iter().sum());
    if ns <= 0.0 || near + far <= 0.0 {
        return Err("nothing was measured".to_owned());
    }
    Ok((ns / 1e6, 100.0 * far / (near + far)))
}

fn directory() -> Outcome<std::path::PathBuf> {
    let path = project::products().join("bench-numa");
    fs::create_dir_all(&path)
        .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

/// Writes the table and, where asked, SPECIFICATION.md and the picture that it shows.
fn keep(rows: &[Vec<String>], write: bool) -> Outcome {
    let put = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    let csv: String = rows.iter().map(|row| row.join(",") + "\n").collect();
    put(&directory()?.join("numa.csv"), &csv)?;
    if !write {
        return Ok(());
    }
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let specification = project::root().join(SPECIFICATION);
    let text = replace_between(&read(&specification)?, "numa", &markdown(rows))?;
    put(&specification, &text)?;
    let picture = read(&directory()?.join("numa.svg"))?;
    put(&project::root().join("docs/figures/numa.svg"), &picture)
}
