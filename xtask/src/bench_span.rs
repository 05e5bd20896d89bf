//! `xtask bench-span`: how much faster parallel programs run in a VM over several hosts than on one CPU, by the class of
//! the Ethernet between them: with IVY's protocol, which keeps pages that bounce, and with all that helps.
//!
//! The programs are those of vNUMA's paper (`assets/parallel`). Each runs in a Debian guest that has just booted, from its
//! initial RAM disk; hosts have a CPU each and run in lock-step. Time is virtual, and an instruction takes 1 ns.

pub mod steps;

use crate::{
    bench::table::{keep, markdown},
    bench_numa::{self, workloads::Workload},
    figures::{self, Measured},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fs,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    archive, assets, cluster_file,
    machine::{Hardware, Machine},
    vm::Vm,
};

const KERNEL: &str = "trixie-cloud";
/// The wire of the host that runs the program on one CPU, which uses none.
const ALONE: &str = "class=20us";
/// How long a run may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(40);
/// How often a guest's end is looked for.
const POLL: Duration = Duration::from_millis(50);
/// A program, and what it needs.
#[derive(Clone, Copy)]
struct Program {
    /// Its workload in `bench/workloads.toml`.
    workload: &'static str,
    /// Its file, and what the guest is told behind the number of threads and the size.
    file: &'static str,
    layout: &'static str,
    memory: &'static str,
    /// How far checks of two runs may lie apart, as a part of them.
    spread: f64,
}

const OCEAN: Program = Program {
    workload: "ocean-squares",
    file: "ocean",
    layout: "-squares",
    memory: "480MiB",
    spread: 0.0,
};
const BARNES: Program = Program {
    workload: "barnes",
    file: "barnes",
    layout: "",
    memory: "192MiB",
    spread: 0.0,
};
const PROGRAMS: [Program; 4] = [
    OCEAN,
    Program {
        workload: "ocean-strips",
        layout: "-strips",
        ..OCEAN
    },
    Program {
        workload: "water",
        file: "water",
        // Forces are added in the order in which threads come.
        spread: WATER_SPREAD,
        ..BARNES
    },
    BARNES,
];
const WATER_SPREAD: f64 = 1e-8;
/// How much later a guest begins for each seed, in microseconds: no multiple of its timer's ticks.
const SEED_US: u32 = 1_370;
/// What the guest does instead of `/init`: the program that its command line names, with the words behind it.
const WORK: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
for word in $(/bin/busybox cat /proc/cmdline); do
    case $word in
    work=*) set -- $(echo ${word#work=} | /bin/busybox tr - ' ') ;;
    later=*) later=${word#later=} ;;
    esac
done
/bin/busybox usleep $later
program=$1
shift
/$program \"$@\" && echo 'underpin-guest: work ok'
/bin/busybox poweroff -f
";

/// What is measured where nothing else is said.
const HOSTS: [u8; 1] = [2];
const WIRES: [&str; 1] = ["class=20us"];
const COHERENCE: [&str; 2] = ["hold", "best"];

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Only these workloads of bench/workloads.toml
    #[arg(long, value_name = "WORKLOAD", value_parser = PROGRAMS.map(|it| it.workload))]
    only: Vec<String>,
    /// Hosts of the VM, beside one CPU
    #[arg(long, default_values_t = HOSTS, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=8))]
    hosts: Vec<u8>,
    /// Networks between them, as `--wire` of `underpin sim` takes them
    #[arg(long, default_values_t = WIRES.map(str::to_owned), value_name = "WIRE")]
    wire: Vec<String>,
    /// What is done for pages beyond IVY's protocol: a word as `coherence` of VM files takes it, or names with + between
    #[arg(long, default_values_t = COHERENCE.map(str::to_owned), value_name = "WORDS")]
    coherence: Vec<String>,
    /// Runs of each on several hosts, which begin at other times: the median and the range are told
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    seeds: u32,
    /// Sizes beside the declared ones, too
    #[arg(long)]
    extra: bool,
    /// Words more for the guest's kernel, also on one CPU
    #[arg(long, default_value = "", conflicts_with = "write")]
    words: String,
    /// Take what `xtask build` has left
    #[arg(long)]
    built: bool,
    /// MTU of the hosts' Ethernet: from 4256 on, a page takes one frame
    #[arg(long, default_value_t = 1500, value_name = "BYTES")]
    mtu: u16,
    /// Put the figures into SPECIFICATION.md, too
    #[arg(long, conflicts_with_all = ["only", "mtu"])]
    write: bool,
}

impl Asked {
    /// Returns what is measured where nothing else is said.
    pub fn all(write: bool) -> Self {
        Self {
            only: Vec::new(),
            hosts: HOSTS.to_vec(),
            wire: WIRES.map(str::to_owned).to_vec(),
            coherence: COHERENCE.map(str::to_owned).to_vec(),
            seeds: 1,
            extra: false,
            words: String::new(),
            mtu: 1500,
            built: false,
            write,
        }
    }
}

/// A run: nanoseconds of the parallel part, and what the program found.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Nanoseconds of the guest.
    pub ns: f64,
    check: f64,
}

impl Run {
    fn agrees_with(&self, other: &Self, spread: f64) -> bool {
        (self.check - other.check).abs() <= other.check.abs() * spread
    }
}

/// Measures, and prints; gives whether that could be done.
pub fn run(asked: &Asked) -> bool {
    let is_asked = |it: &Program| bench_numa::is_asked(&asked.only, it.workload);
    let programs: Vec<_> = PROGRAMS.into_iter().filter(is_asked).collect();
    let mut steps = Steps::new(programs.len() + 2, directory());
    measure(&mut steps, asked, &programs).is_some()
}

fn directory() -> PathBuf {
    project::products().join("bench").join("span")
}

fn measure(steps: &mut Steps, asked: &Asked, programs: &[Program]) -> Option<()> {
    steps.run("build", |step| {
        if asked.built {
            return Ok(());
        }
        images::plugin(step)?;
        images::command(step)?;
        images::hypervisor(step)
    })?;
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for program in programs {
        rows.extend(steps.run(program.workload, |step| of_program(step, asked, program))?);
    }
    finish(steps, "span", &rows, asked.write)
}

/// Prints the rows of a table, and keeps them under its name; with `write`, also in SPECIFICATION.md.
fn finish(steps: &mut Steps, name: &str, rows: &[Vec<String>], write: bool) -> Option<()> {
    let table = markdown(rows);
    print_line(&format!("\n{table}"));
    steps.run("files", |_| {
        figures::record(name, Measured::of_rows(rows))?;
        if write { keep(name, &table) } else { Ok(()) }
    })
}

/// A directory below the bench's own, with nothing in it.
fn emptied(name: &str) -> Outcome<PathBuf> {
    let directory = directory().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    Ok(directory)
}

const HEAD: [&str; 8] = [
    "program",
    "hosts",
    "Ethernet",
    "protocol",
    "one CPU, ms",
    "ms",
    "times as fast",
    "range",
];

/// Where a program runs: so many hosts, on such a wire, with this done for pages.
type Place<'a> = (u8, &'a str, &'a str);

impl Asked {
    fn places(&self) -> Vec<Place<'_>> {
        let mut places = Vec::new();
        for hosts in &self.hosts {
            for wire in &self.wire {
                places.extend(self.coherence.iter().map(|it| (*hosts, &**wire, &**it)));
            }
        }
        places
    }
}

/// The rows of a program, at each of its sizes.
fn of_program(step: &Step<'_>, asked: &Asked, program: &Program) -> Outcome<Vec<Vec<String>>> {
    let workload = Workload::named(program.workload)?;
    let mut rows = Vec::new();
    let sizes = workload.sizes().into_iter();
    for size in sizes.filter(|size| asked.extra || !size.is_extra) {
        let title = workload.title(size);
        step.doing(&format!("{title}: one CPU"));
        let alone = run_once(asked, program, size.count, (None, 0))?;
        for place in asked.places() {
            let (hosts, wire, coherence) = place;
            let mut all = Vec::new();
            for seed in 0..asked.seeds {
                step.doing(&format!(
                    "{title}: {hosts} hosts, {wire}, {coherence}, seed {seed}"
                ));
                let run = run_once(asked, program, size.count, (Some(place), seed))?;
                if !run.agrees_with(&alone, program.spread) {
                    let (found, wanted) = (run.check, alone.check);
                    return Err(format!("{title}: {found} on {hosts} hosts, not {wanted}"));
                }
                all.push(run.ns);
            }
            rows.push(row(&title, place, alone.ns, all));
        }
    }
    Ok(rows)
}

/// A row of the nanoseconds of one CPU, and of all runs.
fn row(
    title: &str,
    (hosts, wire, coherence): Place<'_>,
    alone: f64,
    mut all: Vec<f64>,
) -> Vec<String> {
    all.sort_by(f64::total_cmp);
    let ms = |ns: f64| format!("{:.1}", ns / 1e6);
    let times = |ns: f64| format!("{:.2}", alone / ns);
    let median = all[all.len() / 2];
    vec![
        title.to_owned(),
        hosts.to_string(),
        wire.to_owned(),
        coherence.to_owned(),
        ms(alone),
        ms(median),
        times(median),
        format!("{} to {}", times(all[all.len() - 1]), times(all[0])),
    ]
}

/// Boots a guest that runs the program, and waits for its end. Without a place it is an ordinary VM with one CPU. Of another
/// seed, it begins later.
fn run_once(
    asked: &Asked,
    program: &Program,
    size: u32,
    (place, seed): (Option<Place<'_>>, u32),
) -> Outcome<Run> {
    let directory = emptied("run")?;
    let initrd = directory.join("initrd");
    archive::initrd(&initrd, KERNEL, &files(program)?)?;
    let (file, layout) = (program.file, program.layout);
    let threads = place.map_or(1, |place| place.0);
    let later = seed * SEED_US;
    let args = format!(
        "rdinit=/work work={file}-{threads}-{size}{layout} later={later} numa_balancing=disable nokaslr {}",
        asked.words
    );
    let vm = Vm::linux("guest", KERNEL, "poweroff").initrd(&initrd.display().to_string());
    let mut vm = vm.args(&args).memory(program.memory).cpus(threads.into());
    let (mut hosts, mut wire) = (2, ALONE);
    if let Some((count, between, coherence)) = place {
        vm = vm.hosts(count).coherence(coherence);
        (hosts, wire) = (count, between);
    }
    let hardware = Hardware::hosts(hosts, "1G", wire);
    let hardware = cluster_file::joined(hardware, &directory, (hosts.into(), asked.mtu))?;
    let mut machine = Machine::start(&assets::command(), &directory, &hardware, &[vm])?;
    let run = await_work(&mut machine);
    machine.kill();
    run
}

fn files(program: &Program) -> Outcome<Vec<(&'static str, Vec<u8>)>> {
    let content = assets::read_cached(&format!("parallel/{}", program.file))?;
    Ok(vec![("work", WORK.into()), (program.file, content)])
}

/// Waits for the program's word.
fn await_work(machine: &mut Machine) -> Outcome<Run> {
    await_said(machine, "guest", WORK_MAX, |console| {
        let is_done = console.contains("underpin-guest: work ok");
        is_done.then(|| reported(console).ok_or_else(|| format!("no figures: {console}")))
    })
}

/// Waits until what a VM has said on the first host has a result, and asks the machine nothing meanwhile.
fn await_said<T>(
    machine: &mut Machine,
    vm: &str,
    within: Duration,
    result: impl Fn(&str) -> Option<Outcome<T>>,
) -> Outcome<T> {
    let deadline = Instant::now() + within;
    loop {
        let alive = machine.check_alive();
        let console = machine.host_console("host0", vm);
        if let Some(result) = result(&console) {
            return result;
        }
        alive.map_err(|why| format!("{why}; the console: {console}"))?;
        if Instant::now() > deadline {
            return Err(format!("{vm} does not end; the console: {console}"));
        }
        sleep(POLL);
    }
}

/// What a program has reported first: `NAME: threads=N ns=N check=N`.
pub fn reported(console: &str) -> Option<Run> {
    let line = console.lines().find(|line| line.contains(" check="))?;
    let word = |key: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(key))
    };
    Some(Run {
        ns: word("ns=")?.parse().ok()?,
        check: word("check=")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_numa::workloads::Size;

    #[test]
    fn a_report_is_read() {
        let console = "boot\r\nocean: threads=2 ns=1500000 check=4.138000814e+06\r\nunderpin-guest: work ok\r\n";
        let run = reported(console).unwrap();
        assert!((run.ns - 1.5e6).abs() < 1.0);
        let other = |check| Run { ns: 1.0, check };
        let agrees = |check, spread| run.agrees_with(&other(check), spread);
        assert!(agrees(4.138000814e+06, 0.0) && !agrees(4.138000815e+06, 0.0));
        assert!(agrees(4.138000815e+06, WATER_SPREAD));
        assert!(!agrees(4.138000914e+06, WATER_SPREAD) && !agrees(f64::NAN, WATER_SPREAD));
        assert_eq!(reported("ocean: threads=2 ns=x check=1"), None);
        let cells = row(
            "Ocean",
            (2, "class=20us", "all"),
            3e6,
            vec![2e6, 1.5e6, 1e6],
        );
        assert_eq!(cells[4..], ["3.0", "1.5", "2.00", "1.50 to 3.00"]);
        assert_eq!(cells.len(), HEAD.len());
    }

    #[test]
    fn every_program_has_a_size() {
        for Program { workload, .. } in PROGRAMS {
            let size = Workload::named(workload).unwrap().sizes()[0];
            assert!(
                matches!(size, Size { is_extra: false, count } if count > 0),
                "{workload}"
            );
        }
    }
}
