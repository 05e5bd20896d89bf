//! `xtask bench-numa`: how long work takes on a machine with near and far memory (300 and 900 ns), by
//! where its pages are put. Time is that of the measuring machine's parallel clock.
//!
//! Programs of Debian's are in [`linux`]. The others are bare guests of our own (`tests/guests/src/placement.rs`) in the shape of Disco's
//! workloads (section 5): a scene that all read, as Raytrace does, and memory of each process's own, as
//! in Engineering. They check every word and print a sum, which must not depend on where pages are.

mod figure8;
mod linux;
mod marks;
mod movement;
mod sampling;
mod seeds;
mod thresholds;
pub mod workloads;

use crate::{
    bench::table::{markdown, replace_between},
    bench_sharing::plot::write_bars,
    figures::{Measured, Verdict},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use clap::ValueEnum;
use std::{fs, path::Path, thread, time::Duration};
use tests_boot::{assets, machine::Hardware, machine::Machine, vm::Vm};
use workloads::{Size, Workload, spread};

const SPECIFICATION: &str = "SPECIFICATION.md";
/// How long a program may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(10);
/// Nodes of one CPU each, and vCPUs: as many as the measuring machine has.
const NODES: u32 = 8;
/// Debian's kernels test their ciphers after the boot, beside whatever runs, for seconds here.
const TESTS: &str = "cryptomgr.notests";

/// What a program is told beside its passes, and the machine's caches.
struct Work {
    name: &'static str,
    args: &'static str,
    cache_kib: u32,
}

const WORKS: [Work; 3] = [
    Work {
        name: "scene",
        args: "work=scene kib=8192",
        cache_kib: 256,
    },
    Work {
        name: "own",
        args: "work=own kib=4096",
        cache_kib: 1024,
    },
    Work {
        name: "still",
        args: "work=own kib=4096 still",
        cache_kib: 1024,
    },
];

/// How often a declared size is run, with CPUs whose turns are of other lengths each time: another order of events.
const SEEDS: u64 = 5;

/// Only a hypervisor with hooks does it.
const ROUND_ROBIN: &str = "numa=round-robin";
/// Where pages are put: the name, EL2's command line, and whether all memory is near.
const WAYS: [(&str, &str, bool); 5] = [
    ("round robin", ROUND_ROBIN, false),
    ("first touch", "numa=off", false),
    ("sampled", "numa=sample", false),
    ("Underpin", "", false),
    ("uniform", "numa=off", true),
];

/// What is run twice, as both must give the same figures.
const AGAIN: &str = "Underpin";
/// Machines that run at a time: each is one thread of the host's.
const AT_ONCE: usize = 2;

/// What a run gave.
#[derive(PartialEq)]
struct Run {
    ms: f64,
    /// Misses on memory of other nodes, in percent.
    remote: f64,
    sum: String,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Small programs of our own
    Programs,
    /// Programs of Debian's in a Debian guest
    Linux,
    /// What samples cost on a machine that counts no misses
    Sampling,
    /// Equal results with movement and without, over 20 seeds of interleaving
    Seeds,
    /// Many short processes in one to eight VMs, and in Linux alone
    Figure8,
    /// What it costs to move a page, beside its copy
    Movement,
    /// Other thresholds, in the model
    Thresholds,
}

impl Case {
    /// The markers in SPECIFICATION.md, and the files' name.
    fn key(self) -> &'static str {
        match self {
            Self::Programs => "numa",
            Self::Linux => "numa-linux",
            Self::Sampling => "numa-sampling",
            Self::Seeds => "numa-seeds",
            Self::Figure8 => "numa-figure8",
            Self::Movement => "numa-movement",
            Self::Thresholds => "numa-thresholds",
        }
    }
}

/// The head of the table.
const HEAD: [&str; 8] = [
    "program",
    "pages",
    "ms",
    "remote misses",
    "against round robin",
    "against uniform",
    "least to most",
    "",
];

/// Builds, unless `built` says that all is there, and measures `cases`, or all, and of their workloads `only` these, or all; with `write`, puts the figures
/// into SPECIFICATION.md. Gives whether sums were equal.
pub fn run(
    cases: &[Case],
    only: &[String],
    built: bool,
    write: bool,
    verdict: &mut Verdict,
) -> bool {
    let cases = if cases.is_empty() {
        Case::value_variants()
    } else {
        cases
    };
    let logs = project::products().join("bench-numa/logs");
    let steps = Steps::new(1 + 2 * cases.len(), logs);
    let is_built = steps.run(
        "build",
        |step| if built { Ok(()) } else { images::all(step) },
    );
    is_built.is_some()
        && cases.iter().all(|case| {
            let measured = steps.run(case.key(), |step| match case {
                Case::Programs => measure(step, only),
                Case::Linux => linux::measure(step, only),
                Case::Sampling => sampling::measure(step),
                Case::Seeds => seeds::measure(step),
                Case::Figure8 => figure8::measure(step),
                Case::Movement => movement::measure(step),
                Case::Thresholds => thresholds::measure(step),
            });
            let Some(rows) = measured else { return false };
            print_line(&format!("\n{}", markdown(&rows)));
            let kept = steps.run("files", |_| {
                let is_missed =
                    |row: &&Vec<String>| row.last().is_some_and(|cell| cell == "missed");
                let missed = rows.iter().filter(is_missed).map(|row| row[0].as_str());
                let missed = missed.map(|name| (name, false));
                verdict.take(case.key(), Measured::of_rows(&rows), missed)?;
                keep(*case, &rows, write)
            });
            kept.is_some()
        })
}

fn measure(step: &mut Step<'_>, only: &[String]) -> Outcome<Vec<Vec<String>>> {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    let mut bars = Vec::new();
    for work in WORKS.iter().filter(|work| is_asked(only, work.name)) {
        let workload = Workload::named(work.name)?;
        for size in workload.sizes() {
            let title = workload.title(size);
            let args = format!("{} passes={}", work.args, size.count);
            let seeds = if size.is_extra { 1 } else { SEEDS };
            let mut runs = Vec::new();
            for seed in 0..seeds {
                let name = format!("{title}, seed {seed}");
                let guest = |line: &str, near: bool| {
                    let hardware = machine((NODES, "1G"), work.cache_kib, line, near);
                    let guest = Vm::bare("guest", "placement", &args).cpus(NODES);
                    Ok((seeded(hardware, seed), guest))
                };
                runs.push(all_ways(step, &name, ("placement ok", WORK_MAX), guest)?);
            }
            let these = rows_of(&workload, size, &runs);
            if !size.is_extra {
                bars.extend(WAYS.iter().zip(&runs[0]).map(bar));
            }
            rows.extend(these);
        }
    }
    let title = "Milliseconds of the parallel clock: scene; own, moved; own, not moved";
    write_bars(&directory()?.join("numa.svg"), title, bars)?;
    Ok(rows)
}

/// Whether a workload is among these; all are among none.
/// Whether a workload is among those that are asked for, or all are.
pub fn is_asked(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|asked| asked == name)
}

/// The machine, with turns of another length for each seed but 0.
fn seeded(hardware: Hardware, seed: u64) -> Hardware {
    if seed == 0 {
        return hardware;
    }
    let turn = format!("slice_ns={}", seeds::turn_ns(seed));
    hardware.option("--flash-option").option(turn)
}

fn bar(((way, ..), run): (&(&str, &'static str, bool), &Run)) -> (String, f64) {
    ((*way).to_owned(), run.ms)
}

/// Runs a guest in all [`WAYS`], some at a time: as nobody asks their machines anything, they do not change each
/// other's figures. All must end with the same sum, and [`AGAIN`] with the same figures when it runs again.
fn all_ways(
    step: &Step<'_>,
    name: &str,
    (done, within): (&str, Duration),
    guest: impl Fn(&str, bool) -> Outcome<(Hardware, Vm)> + Sync,
) -> Outcome<Vec<Run>> {
    let again = WAYS.iter().filter(|(way, ..)| *way == AGAIN);
    let ways: Vec<_> = WAYS.iter().chain(again).collect();
    let run = |n: usize, line: &str, is_uniform: bool| {
        let (hardware, vm) = guest(line, is_uniform)?;
        Run::of(&format!("machine{n}"), &hardware, &vm, (done, within))
    };
    let mut runs = Vec::new();
    for some in ways.chunks(AT_ONCE) {
        let names: Vec<_> = some.iter().map(|(way, ..)| *way).collect();
        step.doing(&format!("{name}, {}", names.join(" and ")));
        let ended = thread::scope(|scope| {
            let one = |(n, (_, line, near)): (usize, &&(&str, &'static str, bool))| {
                let (line, near, run) = (*line, *near, &run);
                scope.spawn(move || run(n, line, near))
            };
            let threads: Vec<_> = some.iter().enumerate().map(one).collect();
            let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
            ended.collect::<Vec<_>>()
        });
        for run in ended {
            runs.push(run.map_err(|_| "a run panicked".to_owned())??);
        }
    }
    let again = runs.pop();
    for ((way, ..), run) in WAYS.iter().zip(&runs) {
        if *way == AGAIN && again.as_ref() != Some(run) {
            return Err(format!("{name}, {way}: another run has other figures"));
        }
        if again.as_ref().is_none_or(|again| again.sum != run.sum) {
            return Err(format!("{name}, {way}: another sum"));
        }
    }
    Ok(runs)
}

/// The measuring machine, of so many nodes of one CPU and so much memory in all, with such caches, and how EL2 is
/// told to place pages.
fn machine((nodes, memory): (u32, &str), cache_kib: u32, line: &str, is_uniform: bool) -> Hardware {
    let cache = format!("cache_kib={cache_kib}");
    let hardware = Hardware::new(nodes, memory).nodes(nodes);
    let mut hardware = hardware.option("--flash").option("--unasked");
    for (option, value) in [("--flash-option", cache), ("--append", line.to_owned())] {
        if !value.is_empty() {
            hardware = hardware.option(option).option(value);
        }
    }
    if line == ROUND_ROBIN {
        hardware = hardware.hooks();
    }
    if is_uniform {
        let near = vec!["10"; (nodes * nodes) as usize].join(":");
        hardware = hardware
            .option("--flash-option")
            .option(format!("distances={near}"));
    }
    hardware
}

impl Run {
    /// Runs a guest to its end on a machine of this name, before which it must say that it has `done`. Nobody asks the
    /// machine anything in the meantime, as a request comes at a chance moment: the same run gives the same figures.
    fn of(
        name: &str,
        hardware: &Hardware,
        vm: &Vm,
        (done, within): (&str, Duration),
    ) -> Outcome<Self> {
        let place = directory()?.join(name);
        let results = place.join("results.csv");
        let hardware = hardware.clone().option("--results");
        let hardware = hardware.option(results.display().to_string());
        let _ = fs::remove_dir_all(&place); // absent is fine
        fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
        let vms = std::slice::from_ref(vm);
        let mut machine = Machine::start(&assets::command(), &place, &hardware, vms)?;
        machine.await_end(within)?;
        let console = machine.console("guest");
        if !console.contains(&format!("underpin-guest: {done}")) {
            return Err(format!("the guest ended without saying '{done}'"));
        }
        let sum = console
            .lines()
            .find_map(|line| Some(line.split_once("sum ")?.1.trim()));
        let sum = sum.ok_or("the guest told no sum")?.to_owned();
        let (ms, remote) = read(&results)?;
        Ok(Self { ms, remote, sum })
    }
}

/// The rows of a workload at a size: for each way, the medians of runs in all ways, one for each seed.
fn rows_of(workload: &Workload, size: Size, runs: &[Vec<Run>]) -> Vec<Vec<String>> {
    let last = WAYS.len() - 1;
    let row = |(at, (way, ..)): (usize, &(&str, &'static str, bool))| {
        let of =
            |value: &dyn Fn(&[Run]) -> f64| spread(runs.iter().map(|ways| value(ways)).collect());
        let (ms, least, most) = of(&|ways| ways[at].ms);
        let (remote, ..) = of(&|ways| ways[at].remote);
        let (round_robin, ..) = of(&|ways| ways[at].ms / ways[0].ms);
        let (uniform, ..) = of(&|ways| ways[at].ms / ways[last].ms);
        let verdict = if *way == AGAIN {
            workload.verdict(size, round_robin, uniform)
        } else {
            ""
        };
        vec![
            workload.title(size),
            (*way).to_owned(),
            format!("{ms:.1}"),
            format!("{remote:.1} %"),
            format!("{round_robin:.2}"),
            format!("{uniform:.3}"),
            if runs.len() > 1 {
                format!("{least:.1} to {most:.1}")
            } else {
                String::new()
            },
            verdict.to_owned(),
        ]
    };
    WAYS.iter().enumerate().map(row).collect()
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
fn keep(case: Case, rows: &[Vec<String>], write: bool) -> Outcome {
    let put = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    let key = case.key();
    let quoted = |cell: &String| format!("\"{cell}\"");
    let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    let csv: String = rows.iter().map(line).collect();
    put(&directory()?.join(format!("{key}.csv")), &csv)?;
    if !write {
        return Ok(());
    }
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let specification = project::root().join(SPECIFICATION);
    let text = replace_between(&read(&specification)?, key, &markdown(rows))?;
    put(&specification, &text)?;
    if matches!(case, Case::Sampling | Case::Movement) {
        return Ok(());
    }
    let picture = read(&directory()?.join(format!("{key}.svg")))?;
    let place = project::root().join(format!("docs/figures/{key}.svg"));
    put(&place, &picture)
}
