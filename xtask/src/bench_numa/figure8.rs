//! Disco's figure 8: many short processes on eight CPUs in one to eight VMs of the same size in all, and in Linux
//! without anything beneath it, on the same measuring machine. The processes are busybox's, in the place of
//! pmake's: each job writes a source, and sorts, compresses and sums it, in a shell of its own.

use super::{
    TESTS, directory, marks,
    workloads::{Size, Workload},
};
use crate::bench_sharing::plot::Plot;
use crate::step::{Outcome, Step};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{archive, assets, machine::Hardware, machine::Machine, vm::Vm};

const KERNEL: &str = "trixie-cloud";
const WORK_MAX: Duration = Duration::from_mins(30);
const POLL: Duration = Duration::from_millis(250);
/// CPUs and nodes of the machine, and MiB of each node.
const CPUS: u32 = 8;
const NODE_MIB: u32 = 256;
/// MiB of all VMs together.
const VMS_MIB: u32 = 1408;
/// How many VMs; none is Linux without Underpin, which is told nothing, as Debian's kernels are, or to move no pages by
/// itself. Then what EL2 is told: nothing, so that it moves pages, or to leave them where they were touched first.
const RUNS: [(u32, &str); 10] = [
    (0, ""),
    (0, UNBALANCED),
    (1, ""),
    (1, STILL),
    (2, ""),
    (2, STILL),
    (4, ""),
    (4, STILL),
    (8, ""),
    (8, STILL),
];
const STILL: &str = "numa=off";
const UNBALANCED: &str = "numa_balancing=disable";
/// MiB of the counters' window: a header, and nine words for each page.
const WINDOW_MIB: u32 = (36_864 + CPUS * NODE_MIB * 256 * 4 * (CPUS + 1)).div_ceil(1 << 20);
/// Distances of two nodes, and to the window.
const FAR: u32 = 30;
const NOBODYS: u32 = 254;

/// What the guest does instead of `/init`: `vm=` is its number, `jobs=` how many it does, `vms=` with how many it
/// begins, and all are on before any goes. Region 2 and its number is the work.
const WORK: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for word in $(cat /proc/cmdline); do case $word in vm=*|jobs=*|vms=*) eval $word;; esac; done
cpus=$(nproc)
job() {
    (sed \"s/LINE/$1/\" /source >/tmp/$1.c; sort /tmp/$1.c >/tmp/$1.s; gzip -c /tmp/$1.s >/tmp/$1.o
    wc /tmp/$1.c >/tmp/$1.w; sha256sum /tmp/$1.o | cut -c 1-64 >/tmp/$1.sum; rm /tmp/$1.c /tmp/$1.s)
}
lane() { n=$1; while [ $n -lt $jobs ]; do job $n; n=$((n + cpus)); done; }
for module in $(cat /pmem.order); do insmod /$module; done
/begin$vm-$vms
lane=0
while [ $lane -lt $cpus ]; do lane $lane & lane=$((lane + 1)); done
wait
/end$vm-$vms
echo \"underpin-guest: sum $(cat /tmp/*.sum | sha256sum)\"
echo 'underpin-guest: work ok'
poweroff -f
";

/// Milliseconds of the parallel clock, and of it, for whom CPUs worked: programs, kernels, Underpin, nobody.
struct Run {
    ms: f64,
    parts: [f64; 4],
}

/// The table.
///
/// # Errors
/// A run that fails.
pub fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let initrd = directory()?.join("figure8.initrd");
    let files = files()?;
    let named: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    archive::initrd(&initrd, KERNEL, &named)?;
    let head = [
        "",
        "ms",
        "user",
        "kernel",
        "Underpin",
        "idle",
        "against Linux alone",
        "against it, balancing off",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let workload = Workload::named("figure8")?;
    for size in workload.sizes() {
        rows.extend(at_size(step, &initrd, &workload, size)?);
    }
    Ok(rows)
}

fn at_size(
    step: &Step<'_>,
    initrd: &Path,
    workload: &Workload,
    size: Size,
) -> Outcome<Vec<Vec<String>>> {
    let mut runs = Vec::new();
    for (count, line) in RUNS {
        let machine = match count {
            0 => "Linux alone".to_owned(),
            1 => "1 VM".to_owned(),
            _ => format!("{count} VMs"),
        };
        let how = match line {
            STILL => ", first touch",
            UNBALANCED => ", balancing off",
            _ => "",
        };
        let name = machine + how;
        step.doing(&format!("{}: {name}", workload.title(size)));
        let run = match count {
            0 => bare(initrd, line, size.count)?,
            _ => in_vms(count, line, initrd, size.count)?,
        };
        runs.push((name, run));
    }
    let [(_, alone), (_, unbalanced), ..] = &runs[..] else {
        return Err("no runs".to_owned());
    };
    let row = |(name, run): &(String, Run)| {
        let title = format!("{}: {name}", workload.title(size));
        let ratio = |other: &Run| format!("{:.2}", run.ms / other.ms);
        let mut row = vec![title, format!("{:.1}", run.ms)];
        row.extend(run.parts.iter().map(|ms| format!("{ms:.1}")));
        row.extend([ratio(alone), ratio(unbalanced)]);
        row
    };
    let rows = runs.iter().map(row).collect();
    if size.is_extra {
        return Ok(rows);
    }
    let bars = runs.iter();
    let bars = bars.map(|(name, run)| (name.clone(), run.parts.to_vec()));
    let bars = bars.collect();
    let jobs = size.count;
    let plot = Plot {
        title: &format!("Milliseconds of the parallel clock: {jobs} jobs on eight CPUs"),
        parts: &["user", "kernel", "Underpin", "idle"],
        bars,
    };
    plot.write(&directory()?.join("numa-figure8.svg"))?;
    Ok(rows)
}

fn files() -> Outcome<Vec<(String, Vec<u8>)>> {
    let read = |name: &str| assets::read_cached(&format!("pmem/{KERNEL}/{name}"));
    let order = read("modules.order")?;
    let names = String::from_utf8_lossy(&order).into_owned();
    let mut files = vec![
        ("pmem.order".to_owned(), order),
        ("work".to_owned(), WORK.into()),
        ("source".to_owned(), source().into()),
    ];
    for name in names.lines() {
        files.push((name.to_owned(), read(name)?));
    }
    for (vms, line) in RUNS {
        let own = if line.is_empty() { vms.max(1) } else { 0 };
        for vm in 0..own {
            let region = 2 + vm;
            let [begin, end] = match vms {
                0 | 1 => [marks::BEGIN, marks::END].map(|hint| marks::mark(hint, region)),
                _ => [
                    marks::begin_together(vm, vms, region),
                    marks::end_together(vm, vms, region),
                ],
            };
            files.push((format!("begin{vm}-{vms}"), begin));
            files.push((format!("end{vm}-{vms}"), end));
        }
    }
    Ok(files)
}

/// Lines in an order that is to be sorted.
fn source() -> String {
    let line = |n: u32| {
        format!(
            "LINE {:08x} of a source that is no program\n",
            n.wrapping_mul(0x9e37_79b9)
        )
    };
    (0..600).map(line).collect()
}

/// A Linux's words, of `vms` that do so many jobs together.
fn arguments(vm: u32, vms: u32, jobs: u32) -> String {
    let jobs = jobs / vms.max(1);
    format!("console=ttyAMA0 rdinit=/work vm={vm} vms={vms} jobs={jobs} nokaslr quiet {TESTS}")
}

fn in_vms(count: u32, line: &str, initrd: &Path, jobs: u32) -> Outcome<Run> {
    let place = fresh(count)?;
    let names: Vec<String> = (0..count).map(|n| format!("work{n}")).collect();
    let vms = names.iter().zip(0..).map(|(name, n)| {
        let args = arguments(n, count, jobs);
        Vm::linux(name, KERNEL, "poweroff")
            .initrd(&initrd.display().to_string())
            .args(&args)
            .memory(&format!("{}MiB", VMS_MIB / count))
            .cpus(CPUS / count)
            .region("meeting", "2MiB", "rw")
    });
    let results = results(count, line)?;
    let out = results.display().to_string();
    let options = ["--flash", "--unasked", "--results", &out];
    let hardware = Hardware::new(CPUS, &format!("{}M", CPUS * NODE_MIB)).nodes(CPUS);
    let mut hardware = options.into_iter().fold(hardware, Hardware::option);
    if !line.is_empty() {
        hardware = hardware.option("--append").option(line);
    }
    let vms: Vec<Vm> = vms.collect();
    // The host has no word from here on: each would be work of the CPU that serves it.
    let mut machine = Machine::start(&assets::command(), &place, &hardware, &vms)?;
    machine.await_end(WORK_MAX)?;
    for name in &names {
        said_done(&machine.console(name)).map_err(|why| format!("{name}: {why}"))?;
    }
    longest(&results, count)
}

/// Linux on the machine itself: QEMU as `underpin sim` starts it, without Underpin.
fn bare(initrd: &Path, line: &str, jobs: u32) -> Outcome<Run> {
    let place = fresh(0)?;
    let (results, console) = (results(0, line)?, place.join("console.log"));
    let kernel = assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?;
    let plugin = assets::target().join("sim/release/libsim_plugin.so");
    let words = machine_words(&place, &results, &plugin).map_err(|error| cannot(&error))?;
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "qemu-system-aarch64"])
        .args(words)
        .args(assets::counted_clock())
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        // The window is nobody's memory.
        .args([
            "-append",
            &format!("{} {line} mem={}M", arguments(0, 0, jobs), CPUS * NODE_MIB),
        ])
        .stdin(Stdio::null());
    let mut qemu = qemu.spawn().map_err(|error| cannot(&error))?;
    let said = await_work(&mut qemu, &console);
    let _ = qemu.kill(); // it may have ended by itself
    let _ = qemu.wait();
    said?;
    longest(&results, 0)
}

fn cannot(error: &std::io::Error) -> String {
    format!("cannot set up a machine: {error}")
}

/// QEMU's words for the machine that `underpin sim --flash` starts, and the files that it needs.
fn machine_words(place: &Path, results: &Path, plugin: &Path) -> std::io::Result<Vec<String>> {
    let mut words: Vec<String> = "-nodefaults -no-user-config -display none -no-reboot \
         -M virt,gic-version=3,virtualization=on -seed 1 -cpu neoverse-n1 \
         -accel tcg,thread=single -icount shift=0,sleep=off -rtc base=2020-01-01,clock=vm"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let mut pair = |option: &str, value: String| words.extend([option.to_owned(), value]);
    let window = place.join("window");
    let mut memory = vec![(window.clone(), WINDOW_MIB, "mw".to_owned())];
    for node in 0..CPUS {
        let file = place.join(format!("node{node}.ram"));
        memory.push((file, NODE_MIB, format!("m{node}")));
        pair(
            "-numa",
            format!("node,nodeid={node},cpus={node},memdev=m{node}"),
        );
    }
    for (file, mib, id) in memory {
        File::create(&file).and_then(|made| made.set_len(u64::from(mib) << 20))?;
        let file = file.display();
        pair(
            "-object",
            format!("memory-backend-file,id={id},size={mib}M,mem-path={file},share=on"),
        );
    }
    pair("-numa", format!("node,nodeid={CPUS},memdev=mw"));
    for from in 0..CPUS {
        for to in (0..=CPUS).filter(|to| *to != from) {
            let distance = if to == CPUS { NOBODYS } else { FAR };
            pair("-numa", format!("dist,src={from},dst={to},val={distance}"));
        }
    }
    pair(
        "-smp",
        format!("{CPUS},sockets={CPUS},clusters=1,cores=1,threads=1"),
    );
    pair("-m", format!("{}M", CPUS * NODE_MIB + WINDOW_MIB));
    let files = [plugin, place, &window, results].map(|path| path.display().to_string());
    let [plugin, place, window, results] = files;
    pair(
        "-plugin",
        format!(
            "{plugin},nodes={CPUS},node_mib={NODE_MIB},ram={place},window={window},out={results}"
        ),
    );
    Ok(words)
}

/// Whether a console says that all jobs are done.
fn said_done(console: &str) -> Outcome {
    if console.contains("underpin-guest: work ok") {
        return Ok(());
    }
    let last = console.lines().last().unwrap_or("nothing");
    Err(format!("it came to no end; last it said: {last}"))
}

fn await_work(qemu: &mut Child, console: &Path) -> Outcome {
    let deadline = Instant::now() + WORK_MAX;
    loop {
        let over = Instant::now() > deadline || !matches!(qemu.try_wait(), Ok(None));
        let said = fs::read(console).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let done = said_done(&said);
        if over || done.is_ok() {
            return done.map_err(|why| format!("Linux alone: {why}"));
        }
        sleep(POLL);
    }
}

/// Where the machine's results are left: what each CPU did in each VM's while.
fn results(vms: u32, line: &str) -> Outcome<PathBuf> {
    let how = match line {
        STILL => "-first-touch",
        UNBALANCED => "-unbalanced",
        _ => "",
    };
    Ok(directory()?.join(format!("figure8-{vms}-vms{how}.csv")))
}

fn fresh(vms: u32) -> Outcome<PathBuf> {
    let place = directory()?.join(format!("figure8-{vms}"));
    let _ = fs::remove_dir_all(&place); // absent is fine
    fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
    Ok(place)
}

/// The region that took longest: that of the VM that was last.
fn longest(results: &Path, vms: u32) -> Outcome<Run> {
    let text = fs::read_to_string(results)
        .map_err(|error| format!("cannot read {}: {error}", results.display()))?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().ok_or("there are no results")?;
    let lines: Vec<_> = lines.collect();
    let column = |title: &str| {
        let at = head.iter().position(|column| *column == title);
        at.ok_or_else(|| format!("the results have no column {title}"))
    };
    let (region, clock) = (column("region")?, column("clock_ns")?);
    let number = |line: &Vec<&str>, at: usize| {
        line.get(at)
            .and_then(|cell| cell.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let regions: BTreeSet<_> = lines.iter().filter_map(|line| line.get(region)).collect();
    if regions.len() != vms.max(1) as usize {
        return Err(format!("the results hold {} VMs", regions.len()));
    }
    let last = lines
        .iter()
        .max_by(|a, b| number(a, clock).total_cmp(&number(b, clock)));
    let last = last.ok_or("nothing was measured")?;
    let its = || {
        lines
            .iter()
            .filter(|line| line.get(region) == last.get(region))
    };
    let ms = number(last, clock) / 1e6;
    let mut parts = [0.0; 4];
    for (part, title) in parts
        .iter_mut()
        .zip(["user_ns", "kernel_ns", "hypervisor_ns"])
    {
        let at = column(title)?;
        *part = its().map(|line| number(line, at)).sum::<f64>() / 1e6 / f64::from(CPUS);
    }
    parts[3] = (ms - parts.iter().sum::<f64>()).max(0.0);
    Ok(Run { ms, parts })
}
