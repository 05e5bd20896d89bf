//! `xtask bench-span`: how much faster parallel programs run in a VM over several hosts than on one CPU, by the class of
//! the Ethernet between them: with IVY's protocol, which keeps pages that bounce, and with all that helps.
//!
//! The programs are those of vNUMA's paper (`assets/parallel`). Each runs in a Debian guest that has just booted, from its
//! initial RAM disk; hosts have a CPU each and run in lock-step. Time is virtual, and an instruction takes 1 ns.

use crate::{
    bench::table::{keep, markdown},
    bench_numa::workloads::Workload,
    figures::{self, Measured},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    archive, assets, cluster_file,
    machine::{Hardware, Machine},
    vm::Vm,
};

const KERNEL: &str = "trixie-cloud";
/// How long a run may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(40);
/// The programs: the workload, what the guest is told behind the number of threads, and the guest's memory.
const PROGRAMS: [(&str, &str, &str, &str); 4] = [
    ("ocean-squares", "ocean", "-squares", "480MiB"),
    ("ocean-strips", "ocean", "-strips", "480MiB"),
    ("water", "water", "", "192MiB"),
    ("barnes", "barnes", "", "192MiB"),
];
/// How far checks of two runs of Water may lie apart, as a part of them: it adds forces in the order in which threads come. The
/// other programs' are equal.
const WATER_SPREAD: f64 = 1e-8;
/// What the guest does instead of `/init`: the program that its command line names, with the words behind it.
const WORK: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
for word in $(/bin/busybox cat /proc/cmdline); do
    case $word in work=*) set -- $(echo ${word#work=} | /bin/busybox tr - ' ') ;; esac
done
program=$1
shift
/$program \"$@\" && echo 'underpin-guest: work ok'
/bin/busybox poweroff -f
";

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Only these workloads of bench/workloads.toml
    #[arg(long, value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Hosts of the VM, beside one CPU
    #[arg(long, default_values_t = [2], value_name = "N", value_parser = clap::value_parser!(u8).range(2..=4))]
    hosts: Vec<u8>,
    /// Networks between them, as `--wire` of `underpin sim` takes them
    #[arg(long, default_values_t = ["class=20us".to_owned()], value_name = "WIRE")]
    wire: Vec<String>,
    /// What is done for pages beyond IVY's protocol: a word as `coherence` of VM files takes it, or names with + between
    #[arg(long, default_values_t = ["hold".to_owned(), "best".to_owned()], value_name = "WORDS")]
    coherence: Vec<String>,
    /// Sizes beside the declared ones, too
    #[arg(long)]
    extra: bool,
    /// Take what `xtask build` has left
    #[arg(long)]
    built: bool,
    /// Put the figures into SPECIFICATION.md, too
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// A run: nanoseconds of the parallel part, and what the program found.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    ns: f64,
    check: f64,
}

impl Run {
    fn agrees_with(&self, other: &Self, spread: f64) -> bool {
        (self.check - other.check).abs() <= other.check.abs() * spread
    }
}

/// Measures, and prints; gives whether that could be done.
pub fn run(asked: &Asked) -> bool {
    let programs = PROGRAMS
        .iter()
        .filter(|it| asked.only.is_empty() || asked.only.iter().any(|only| only == it.0));
    let programs: Vec<_> = programs.collect();
    let mut steps = Steps::new(programs.len() + 2, directory());
    let measured = measure(&mut steps, asked, &programs);
    measured.is_some()
}

fn directory() -> PathBuf {
    project::products().join("bench").join("span")
}

fn measure(
    steps: &mut Steps,
    asked: &Asked,
    programs: &[&(&'static str, &'static str, &'static str, &'static str)],
) -> Option<()> {
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
        rows.extend(steps.run(program.0, |step| of_program(step, asked, **program))?);
    }
    let table = markdown(&rows);
    print_line(&format!("\n{table}"));
    steps.run("files", |_| {
        figures::record("span", Measured::of_rows(&rows))?;
        if asked.write {
            keep("span", &table)
        } else {
            Ok(())
        }
    })
}

const HEAD: [&str; 7] = [
    "program",
    "hosts",
    "Ethernet",
    "protocol",
    "one CPU, ms",
    "ms",
    "times as fast",
];

/// The rows of a program, at each of its sizes.
fn of_program(
    step: &mut Step<'_>,
    asked: &Asked,
    (name, program, more, memory): (&str, &str, &str, &str),
) -> Outcome<Vec<Vec<String>>> {
    let workload = Workload::named(name)?;
    let spread = if program == "water" {
        WATER_SPREAD
    } else {
        0.0
    };
    let mut rows = Vec::new();
    for size in workload.sizes() {
        if size.is_extra && !asked.extra {
            continue;
        }
        let title = workload.title(size);
        let start = |step: &mut Step<'_>, hosts: u8, wire: &str, coherence: Option<&str>| {
            step.doing(&format!(
                "{title}: {hosts} hosts, {wire}, {}",
                coherence.unwrap_or("one CPU")
            ));
            let work = format!("{program}-{hosts}-{}{more}", size.count);
            run_once(&work, hosts, (wire, coherence), memory)
        };
        let alone = start(step, 1, "class=20us", None)?;
        for hosts in &asked.hosts {
            for wire in &asked.wire {
                for coherence in &asked.coherence {
                    let run = start(step, *hosts, wire, Some(coherence))?;
                    if !run.agrees_with(&alone, spread) {
                        let (found, wanted) = (run.check, alone.check);
                        return Err(format!("{title}: {found} on {hosts} hosts, not {wanted}"));
                    }
                    rows.push(row((&title, *hosts, wire, coherence), &alone, &run));
                }
            }
        }
    }
    Ok(rows)
}

fn row(
    (title, hosts, wire, coherence): (&str, u8, &str, &str),
    alone: &Run,
    run: &Run,
) -> Vec<String> {
    let ms = |ns: f64| format!("{:.1}", ns / 1e6);
    vec![
        title.to_owned(),
        hosts.to_string(),
        wire.to_owned(),
        coherence.to_owned(),
        ms(alone.ns),
        ms(run.ns),
        format!("{:.2}", alone.ns / run.ns),
    ]
}

/// Boots a guest that does this work, and waits for its end. On one host it is an ordinary VM with one CPU.
fn run_once(
    work: &str,
    hosts: u8,
    (wire, coherence): (&str, Option<&str>),
    memory: &str,
) -> Outcome<Run> {
    let directory = directory().join("run");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let initrd = directory.join("initrd");
    archive::initrd(&initrd, KERNEL, &files()?)?;
    let args = format!("rdinit=/work work={work} numa_balancing=disable nokaslr");
    let mut vm = Vm::linux("guest", KERNEL, "poweroff")
        .initrd(&initrd.display().to_string())
        .args(&args)
        .memory(memory)
        .cpus(hosts.into());
    if let Some(coherence) = coherence {
        vm = vm.hosts(hosts).coherence(coherence);
    }
    let mut machine = start(&directory, hosts.max(2), wire, &vm)?;
    let run = await_work(&mut machine);
    machine.kill();
    run
}

fn start(directory: &Path, hosts: u8, wire: &str, vm: &Vm) -> Outcome<Machine> {
    let cluster = cluster_file::write(directory, "cluster", 'a', hosts.into())?;
    let mut hardware = Hardware::new(1, "1G").option("--hosts");
    hardware = hardware.option(hosts.to_string());
    hardware = hardware.option("--wire").option(wire);
    for word in cluster_file::options(&[cluster]) {
        hardware = hardware.option(word);
    }
    Machine::start(
        &assets::command(),
        directory,
        &hardware,
        std::slice::from_ref(vm),
    )
}

fn files() -> Outcome<Vec<(&'static str, Vec<u8>)>> {
    let mut files = vec![("work", WORK.into())];
    for program in ["ocean", "water", "barnes"] {
        files.push((
            program,
            assets::read_cached(&format!("parallel/{program}"))?,
        ));
    }
    Ok(files)
}

/// Waits for the program's word.
fn await_work(machine: &mut Machine) -> Outcome<Run> {
    let deadline = Instant::now() + WORK_MAX;
    loop {
        let alive = machine.check_alive();
        let console = machine.host_console("host0", "guest");
        if console.contains("underpin-guest: work ok") {
            return reported(&console).ok_or_else(|| format!("no figures: {console}"));
        }
        alive.map_err(|why| format!("{why}; the console: {console}"))?;
        if Instant::now() > deadline {
            return Err(format!("the work does not end; the console: {console}"));
        }
        sleep(Duration::from_millis(200));
    }
}

/// What a program has reported: `NAME: threads=N ns=N check=N`.
fn reported(console: &str) -> Option<Run> {
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
        let alone = Run {
            ns: 3e6,
            ..run.clone()
        };
        let cells = row(("Ocean", 2, "class=20us", "all"), &alone, &run);
        assert_eq!(cells[4..], ["3.0", "1.5", "2.00"]);
        assert_eq!(cells.len(), HEAD.len());
    }

    #[test]
    fn every_program_has_a_size() {
        for (name, ..) in PROGRAMS {
            let size = Workload::named(name).unwrap().sizes()[0];
            assert!(
                matches!(size, Size { is_extra: false, count } if count > 0),
                "{name}"
            );
        }
    }
}
