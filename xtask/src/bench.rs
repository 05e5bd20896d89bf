//! `xtask bench`: what Underpin costs, beside the bare machine, our aims and the peers.
//!
//! `nano`, a bare guest, times one kind of entry into the hypervisor at a time; `bench_linux`, the
//! first program of a Linux guest, times what the kernel's services cost. Both run on machines
//! whose clock counts instructions (see [`counted`]), each run twice: the same binaries must
//! print the same bytes. What is measured and aimed at is in `bench/figures.toml`.

pub mod counted;
pub mod initramfs;
mod network;
pub mod table;

use crate::{
    bench_cluster, bench_numa, bench_os0, bench_sharing,
    bench_span::{self, Asked, steps},
    figures::Verdict,
    images,
    project::{self, cargo},
    step::{Outcome, Step, Steps, print_line},
};
use clap::ValueEnum;
use counted::{Guest, Run};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use table::{Figures, Rows, Table, Unit, replace_between};
use tests_boot::{
    assets,
    machine::{Hardware, Machine},
    status,
    vm::Vm,
};

/// The kernel that is measured.
pub const KERNEL: &str = "trixie-cloud";
/// KASLR and KPTI are off: on this CPU the first turns the second on, which makes each system call
/// several times as long, here and on the peers. The kernel's jitter source is off, too: its start
/// takes as long as chance will have it.
pub const LINUX_ARGS: &str =
    "console=ttyAMA0 quiet panic=-1 nokaslr kpti=off initcall_blacklist=jent_mod_init";
/// Bytes of the disk that Linux reads.
const DISK: usize = 16 << 20;
/// How long the machine whose memory is looked at may take for a step.
const MEMORY_MAX: Duration = Duration::from_mins(2);
/// Where the figures are kept.
const SPECIFICATION: &str = "SPECIFICATION.md";

/// What is said where a run and its repetition differ.
const DISAGREED: &str = "A REPEATED RUN GAVE OTHER BYTES";

/// What was measured: the tables, and what else is worth a line.
struct Report {
    tables: Vec<Table>,
    notes: Vec<String>,
}

/// What `xtask bench` consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Entries into the hypervisor, Linux in a VM, and memory
    Vms,
    /// TCP between two VMs
    Network,
    /// Shared memory
    Sharing,
    /// Services of a Linux that Underpin lies beneath
    Os0,
    /// NUMA placement
    Numa,
    /// The link between hosts, with its cipher and without
    Cluster,
    /// A VM over several hosts: single steps, and parallel programs
    Span,
}

/// Runs all parts, or those, and prints; with `write`, also puts the tables into SPECIFICATION.md. Gives whether all
/// could be measured, repeated runs agreed, no aim was missed that is not known to be, and, with `check`, no figure is
/// worse than the accepted one.
pub fn run(parts: &[Part], without: &[Part], check: bool, write: bool) -> bool {
    let is_chosen =
        |part: &Part| (parts.is_empty() || parts.contains(part)) && !without.contains(part);
    let verdict = if check {
        Verdict::check()
    } else {
        Ok(Verdict::print())
    };
    let mut verdict = match verdict {
        Ok(verdict) => verdict,
        Err(why) => {
            print_line(&why);
            return false;
        }
    };
    let mut is_good = true;
    for part in Part::value_variants().iter().filter(|part| is_chosen(part)) {
        print_line(&format!("\n{}", part.name()));
        is_good &= match part {
            Part::Vms | Part::Network => run_counted(*part, write, &mut verdict),
            Part::Sharing => bench_sharing::run(&[], false, write, &mut verdict),
            Part::Os0 => bench_os0::run(write, &mut verdict),
            Part::Numa => bench_numa::run(&[], &[], false, write, &mut verdict),
            Part::Cluster => bench_cluster::run_both(write),
            Part::Span => {
                let steps = steps::run(&steps::Asked::all(write));
                bench_span::run(&Asked::all(write)) && steps
            }
        };
    }
    for part in Part::value_variants()
        .iter()
        .filter(|part| !is_chosen(part))
    {
        print_line(&format!("left out: {}", part.name()));
    }
    for fault in &verdict.faults {
        print_line(fault);
    }
    is_good && verdict.faults.is_empty()
}

impl Part {
    /// The word of the command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The parts whose machines have nothing but VMs of one or two kinds.
fn run_counted(part: Part, write: bool, verdict: &mut Verdict) -> bool {
    let is_network = part == Part::Network;
    let count = if is_network { 3 } else { 6 };
    let steps = Steps::new(count, directory().join("logs"));
    let rows = match read_rows() {
        Ok(rows) => rows,
        Err(error) => {
            print_line(&error);
            return false;
        }
    };
    let measured = if is_network {
        network_only(&steps, &rows)
    } else {
        measure(&steps, &rows)
    };
    let Some((report, agreed)) = measured else {
        return false;
    };
    for table in &report.tables {
        print_line(&format!("\n{}\n", table.name));
        print_line(&table.markdown());
    }
    for note in &report.notes {
        print_line(note);
    }
    let kept = steps.run("files", |_| {
        for table in &report.tables {
            verdict.take(table.name, table.measured(), table.missed())?;
        }
        keep(&report, write)
    });
    agreed && kept.is_some()
}

/// The rows of all tables.
///
/// # Errors
/// They cannot be read.
pub fn read_rows() -> Outcome<Rows> {
    toml::from_str(include_str!("../../bench/figures.toml"))
        .map_err(|error| format!("bench/figures.toml: {error}"))
}

fn network_only(steps: &Steps, rows: &Rows) -> Option<(Report, bool)> {
    steps.run("build", build)?;
    let network = steps.run("network", |step| network::measure(step, rows))?;
    let report = Report {
        tables: vec![network.table],
        notes: if network.agreed {
            Vec::new()
        } else {
            vec![DISAGREED.to_owned()]
        },
    };
    Some((report, network.agreed))
}

fn measure(steps: &Steps, rows: &Rows) -> Option<(Report, bool)> {
    steps.run("build", build)?;
    let nano = steps.run("nano", |step| entries(step, rows))?;
    let one = steps.run("Linux with one CPU", |step| {
        linux(step, rows, 1, "linux-1cpu")
    })?;
    let two = steps.run("Linux with two CPUs", |step| {
        linux(step, rows, 2, "linux-2cpu")
    })?;
    let memory = steps.run("memory", |step| memory(step, rows, &one.log))?;
    let runs = [nano, one, two];
    let agreed = runs.iter().all(|measured| measured.agreed);
    let mut notes = vec![if agreed {
        "each run was repeated and gave the same bytes".to_owned()
    } else {
        DISAGREED.to_owned()
    }];
    notes.extend(runs.iter().filter_map(exits));
    let tables = runs
        .into_iter()
        .map(|measured| measured.table)
        .chain([memory])
        .collect();
    Some((Report { tables, notes }, agreed))
}

/// Where files and results go.
fn directory() -> PathBuf {
    project::products().join("bench")
}

/// What Linux starts with.
pub fn initrd() -> PathBuf {
    directory().join("initramfs.cpio")
}

fn disk() -> PathBuf {
    directory().join("disk.img")
}

/// Builds Underpin, the guests, and what the Linux guest boots and reads.
fn build(step: &mut Step<'_>) -> Outcome {
    images::all(step)?;
    linux_program(step)?;
    // No page of it is like another, and none is zero.
    let numbers = (0..DISK as u64 / 8).flat_map(u64::to_le_bytes);
    fs::write(disk(), numbers.collect::<Vec<u8>>())
        .map_err(|error| format!("cannot write {}: {error}", disk().display()))
}

/// Builds what the Linux guest boots: [`initrd`].
///
/// # Errors
/// As cargo says, or a file cannot be read or written.
pub fn linux_program(step: &Step<'_>) -> Outcome {
    step.doing("building the Linux benchmark");
    step.command(&mut cargo(
        "linux",
        "build --release --manifest-path bench/linux/Cargo.toml",
    ))?;
    let program = assets::target().join("linux/aarch64-unknown-linux-gnu/release/bench_linux");
    let archive = initramfs::archive(
        &program,
        &assets::cached(&format!("kernels/{KERNEL}"))?,
        &[],
        None,
    )?;
    fs::create_dir_all(directory())
        .and_then(|()| fs::write(initrd(), archive))
        .map_err(|error| format!("cannot write {}: {error}", initrd().display()))
}

/// A table, what EL2 said and counted in the run that it is from, and whether a second run was the
/// same.
struct Measured {
    table: Table,
    log: String,
    exits: Vec<(&'static str, u64)>,
    agreed: bool,
}

/// Runs a guest in a VM, twice; gives the first run and whether the second was the same.
fn twice(step: &Step<'_>, guest: &Guest, cpus: u32, el2: &str) -> Outcome<(Run, bool)> {
    step.doing("in a VM");
    let first = counted::under_underpin(guest, cpus, el2)?;
    step.doing("in a VM, again");
    let second = counted::under_underpin(guest, cpus, el2)?;
    let agreed = first == second;
    Ok((first, agreed))
}

/// The guest `nano` with so many CPUs.
fn nano(cpus: u32) -> Guest {
    Guest {
        name: "nano",
        cpus,
        kernel: PathBuf::from(assets::guest("nano")),
        initrd: None,
        args: "",
        disk: None,
    }
}

/// Instructions of each entry, of one run of `nano` in a VM.
///
/// # Errors
/// It does not come to its end.
pub fn entries_once() -> Outcome<Figures> {
    let run = counted::under_underpin(&nano(2), 1, "bhb=off")?;
    let mut once = figures("nano:", 1, &run.console)?;
    // As [`set_apart`] has it, and without what the table does not have.
    let ready = once.remove("first_store");
    once.extend(ready.map(|figure| ("first_store_ready".to_owned(), figure)));
    let rows = read_rows()?.entry;
    let is_row = |key: &str| rows.iter().any(|row| row.key == key);
    once.retain(|key, _| is_row(key) && key != "first_store_worst");
    Ok(once)
}

/// `nano` on a bare machine and in a VM, whose second vCPU shares the only CPU. Without the loop
/// against Spectre-BHB, which this CPU needs at each exit and which is a row of its own.
fn entries(step: &mut Step<'_>, rows: &Rows) -> Outcome<Measured> {
    let mut guest = nano(1);
    step.doing("on the bare machine");
    let bare = figures("nano:", 1, &counted::bare(&guest)?.console)?;
    guest.cpus = 2;
    let (run, agreed) = twice(step, &guest, 1, "bhb=off")?;
    let mut ours = figures("nano:", 1, &run.console)?;
    step.doing("in a VM, with the loop against Spectre-BHB");
    let mitigated = counted::under_underpin(&guest, 1, "")?;
    let mitigated = figures("nano:", 1, &mitigated.console)?;
    let null = |figures: &table::Figures| figures.get("null_hypercall").copied();
    if let (Some(with), Some(without)) = (null(&mitigated), null(&ours)) {
        ours.insert("bhb".to_owned(), with - without);
    }
    let ready = ["first_store", "first_store_worst"];
    set_apart(
        step,
        &guest,
        (1, "bhb=off zeroed=off"),
        ("nano:", 1),
        &ready,
        &mut ours,
    )?;
    let table = Table::new("entries", Unit::Instructions, &rows.entry, &bare, &ours);
    Ok(Measured {
        table,
        log: run.log,
        exits: run.exits,
        agreed,
    })
}

/// Linux on a bare machine, and in a VM alone on a machine with as many CPUs.
fn linux(step: &mut Step<'_>, rows: &Rows, cpus: u32, name: &'static str) -> Outcome<Measured> {
    let guest = Guest {
        name,
        cpus,
        kernel: assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?,
        initrd: Some(initrd()),
        args: LINUX_ARGS,
        disk: Some(disk()),
    };
    step.doing("on the bare machine");
    let bare = figures("bench:", 0, &counted::bare(&guest)?.console)?;
    let (run, agreed) = twice(step, &guest, cpus, "")?;
    let mut ours = figures("bench:", 0, &run.console)?;
    let ready = ["mmap_64m_first_touch"];
    set_apart(
        step,
        &guest,
        (cpus, "zeroed=off"),
        ("bench:", 0),
        &ready,
        &mut ours,
    )?;
    ours.extend(own_start(&run.log).map(|ns| ("own_start".to_owned(), ns)));
    let table = Table::new(name, Unit::Times, &rows.linux, &bare, &ours);
    Ok(Measured {
        table,
        log: run.log,
        exits: run.exits,
        agreed,
    })
}

/// The figures `keys` of `ours` are from memory that idle CPUs had zeroed, as is usual: they become
/// `KEY_ready`, beside those of a run without such memory.
fn set_apart(
    step: &Step<'_>,
    guest: &Guest,
    (cpus, el2): (u32, &str),
    (prefix, skip): (&str, usize),
    keys: &[&str],
    ours: &mut Figures,
) -> Outcome {
    step.doing("in a VM, with nothing zeroed ahead");
    let run = counted::under_underpin(guest, cpus, el2)?;
    let without = figures(prefix, skip, &run.console)?;
    for &key in keys {
        let ready = match without.get(key) {
            Some(figure) => ours.insert(key.to_owned(), *figure),
            None => ours.remove(key),
        };
        ours.extend(ready.map(|figure| (format!("{key}_ready"), figure)));
    }
    Ok(())
}

/// Reads `PREFIX KEY NUMBER...` lines: the number that follows `skip` others.
///
/// # Errors
/// There are none, or the guest has failed.
pub fn figures(prefix: &str, skip: usize, console: &str) -> Outcome<Figures> {
    let figure = |line: &str| {
        let mut words = line.split_once(prefix)?.1.split_whitespace();
        let key = words.next()?.to_owned();
        Some((key, words.nth(skip)?.parse().ok()?))
    };
    let figures: Figures = console.lines().filter_map(figure).collect();
    if figures.is_empty() || console.contains("bench: failed") {
        Err(format!(
            "the guest did not print its figures, but:\n{console}"
        ))
    } else {
        Ok(figures)
    }
}

/// When EL2 started the VM, in nanoseconds since the machine's first instruction.
fn own_start(log: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains(" starts: "))?;
    let seconds: f64 = line
        .split_once('[')?
        .1
        .split_once(']')?
        .0
        .trim()
        .parse()
        .ok()?;
    Some(seconds * 1e9)
}

/// The number before `KiB` that follows `name` in EL2's log.
fn kib(log: &str, name: &str) -> Option<f64> {
    let mut words = log.split_once(name)?.1.split_whitespace();
    words.next()?.parse().ok()
}

/// What Underpin itself takes, and what it takes for a VM whose Linux has booted and is idle.
fn memory(step: &mut Step<'_>, rows: &Rows, log: &str) -> Outcome<Table> {
    step.doing("an idle VM");
    let work = std::env::temp_dir().join(format!("up{}", std::process::id()));
    let idle = idle_vm(&work)?;
    let _ = fs::remove_dir_all(&work); // it holds nothing but a bundle and logs
    let image =
        fs::metadata(assets::image()).map_err(|error| format!("cannot read the image: {error}"))?;
    let in_kib = |bytes: u64| Some(bytes as f64 / 1024.0);
    let found = [
        ("image_file", in_kib(image.len())),
        ("image", kib(log, ", image ")),
        ("frame_table", kib(log, ", frame table ")),
        ("idle_vm", in_kib(idle.account)),
        ("idle_vm_touched", in_kib(idle.touched)),
        ("idle_vm_set_aside", in_kib(idle.set_aside())),
    ];
    let found = found
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let ours = found.collect();
    Ok(Table::new(
        "memory",
        Unit::Kib,
        &rows.memory,
        &Figures::new(),
        &ours,
    ))
}

/// Bytes that an idle VM costs.
struct Idle {
    /// All that came free when it was killed.
    taken: u64,
    /// Of that, its own memory that it had touched.
    touched: u64,
    /// Tables and state that EL2 holds for the VM, by its own account.
    account: u64,
}

impl Idle {
    /// Free frames next to touched ones, which other VMs get only when memory is short.
    fn set_aside(&self) -> u64 {
        self.taken.saturating_sub(self.touched + self.account)
    }
}

fn idle_vm(work: &Path) -> Outcome<Idle> {
    let vm = Vm::linux("idle", KERNEL, "idle").memory("512MiB").cpus(1);
    let mut machine = Machine::start(&assets::command(), work, &Hardware::new(1, "2G"), &[vm])?;
    machine.await_answer()?;
    machine.expect("idle", "ready", 1, MEMORY_MAX)?;
    // Paused, it touches nothing between the two looks.
    machine.run(&["pause", "idle"])?;
    let idle: serde_json::Value =
        status::parse("show", &machine.run(&["show", "idle", "-o", "json"])?)?;
    let before = free(&machine)?;
    machine.run(&["kill", "idle"])?;
    machine.await_state("idle", "ended", MEMORY_MAX)?;
    let taken = free(&machine)?.saturating_sub(before);
    machine.shut_down()?;
    let bytes = |key: &str| {
        let value = idle[key].as_u64();
        value.ok_or_else(|| format!("'underpin show' does not tell '{key}'"))
    };
    Ok(Idle {
        taken,
        touched: bytes("touched")?,
        account: bytes("overhead")?,
    })
}

/// Bytes of the machine that nobody uses.
fn free(machine: &Machine) -> Outcome<u64> {
    Ok(machine.nodes()?.iter().map(|node| node.free).sum())
}

/// A line about a run's exits, where they were counted.
fn exits(measured: &Measured) -> Option<String> {
    let all: Vec<String> = measured
        .exits
        .iter()
        .map(|(class, count)| format!("{class} {count}"))
        .collect();
    let name = measured.table.name;
    (!all.is_empty()).then(|| format!("exits of {name}: {}", all.join(", ")))
}

/// Writes the CSV files and, where asked, the tables in SPECIFICATION.md.
fn keep(report: &Report, write: bool) -> Outcome {
    for table in &report.tables {
        table.write_csv(&directory())?;
    }
    if !write {
        return Ok(());
    }
    let path = project::root().join(SPECIFICATION);
    let mut text = fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {SPECIFICATION}: {error}"))?;
    for table in &report.tables {
        text = replace_between(&text, table.name, &table.markdown())?;
    }
    let notes: Vec<String> = report
        .notes
        .iter()
        .map(|note| format!("- {note}"))
        .collect();
    if !notes.is_empty() {
        let notes = notes.join("\n") + "\n";
        text = replace_between(&text, "notes", &notes)?;
    }
    fs::write(&path, text).map_err(|error| format!("cannot write {SPECIFICATION}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_consoles() {
        let nano =
            "nano: null_hypercall 398.2 199.1\r\nnoise\nnano: gicd_typer 700.0 350.0\nnano: bad\n";
        let found = figures("nano:", 1, nano).unwrap();
        assert_eq!(found.len(), 2);
        assert!((found["gicd_typer"] - 350.0).abs() < 0.01);
        assert!(figures("bench:", 0, "[ 0.1] bench: a 12.5\n").is_ok());
        assert!(figures("bench:", 0, "bench: a 12.5\nbench: failed b\n").is_err());
        assert!(figures("bench:", 0, "nothing").is_err());
    }

    #[test]
    fn figures_are_read_from_the_log() {
        let log = "underpin [   0.028331] info  1 CPUs, image 704 KiB, frame table 16384 KiB, heap 512 KiB\n\
            underpin [   0.029080] info  bench starts: 1 vCPUs\n";
        assert_eq!(kib(log, ", frame table "), Some(16384.0));
        assert_eq!(kib(log, ", image "), Some(704.0));
        assert!(own_start(log).is_some_and(|ns| (ns - 29_080_000.0).abs() < 1.0));
    }
}
