//! The measuring machine as a whole: QEMU, the plugin and a bare program whose misses and time are
//! known beforehand. Skipped, with a sentence, where there is no QEMU.
#![allow(clippy::unwrap_used, reason = "a test")]

use sim_model::offset;
use sim_qemu::trial::{self, QEMU, has_qemu};
use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

const MEMORY: u64 = 0x4000_0000;
/// Where the program reads its parameters.
const PARAMETERS: u64 = 0x4030_0000;
const WINDOW_BYTES: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

/// A machine with one CPU on each node, and what the program does on it.
#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    nodes: u64,
    node_mib: u64,
    cpus: u64,
    array: u64,
    bytes: u64,
    passes: u64,
    stride: u64,
    blocks: u64,
    threshold: u64,
    /// The word of memory that the program reads after its work.
    reads: u64,
    icount: bool,
}

const LOCAL: Run = Run {
    name: "local",
    nodes: 2,
    node_mib: 128,
    cpus: 1,
    array: MEMORY + 16 * MIB,
    bytes: 16 * MIB,
    passes: 2,
    stride: 0,
    blocks: 0,
    threshold: 0,
    reads: 0,
    icount: true,
};

/// What a run left behind.
struct Outcome {
    csv: String,
    window: Vec<u8>,
    /// The word that the program read.
    read: u64,
}

impl Outcome {
    /// A column of the lines of region 0, one for each CPU.
    fn column(&self, name: &str) -> Vec<u64> {
        let mut lines = self.csv.lines();
        let header = lines.next().unwrap();
        let at = header.split(',').position(|title| title == name).unwrap();
        let number = |line: &str| line.split(',').nth(at).unwrap().parse().unwrap();
        lines.map(number).collect()
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.window[at * 4..at * 4 + 4].try_into().unwrap())
    }
}

/// The program, once built.
fn guest() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::guest("known_answers").unwrap())
}

/// The plugin, once built.
fn plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::plugin("plugin").unwrap())
}

impl Run {
    fn file(directory: &Path, name: &str, bytes: u64) -> String {
        let path = directory.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    }

    fn numa(&self, qemu: &mut Command, directory: &Path) {
        for node in 0..=self.nodes {
            let is_window = node == self.nodes;
            let (name, bytes) = if is_window {
                ("window".to_owned(), WINDOW_BYTES)
            } else {
                (format!("node{node}.ram"), self.node_mib * MIB)
            };
            let path = Self::file(directory, &name, bytes);
            let cpus = if is_window {
                String::new()
            } else {
                format!(",cpus={node}")
            };
            qemu.arg("-object").arg(format!(
                "memory-backend-file,id=m{node},size={bytes},mem-path={path},share=on"
            ));
            qemu.arg("-numa")
                .arg(format!("node,nodeid={node},memdev=m{node}{cpus}"));
        }
        for from in 0..self.nodes {
            for to in (0..=self.nodes).filter(|to| *to != from) {
                let far = if to == self.nodes { 254 } else { 30 };
                qemu.arg("-numa")
                    .arg(format!("dist,src={from},dst={to},val={far}"));
            }
        }
    }

    fn start(&self, directory: &Path) -> Output {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).unwrap();
        let window = MEMORY + self.nodes * self.node_mib * MIB;
        let parameters = [
            (0x00, self.cpus),
            (0x08, self.array),
            (0x10, self.bytes),
            (0x18, self.passes),
            (0x20, self.stride),
            (0x28, self.blocks),
            (0x30, window),
            (0x38, self.threshold),
            (0x88, self.reads),
        ];
        let mut qemu = Command::new(QEMU);
        qemu.args([
            "-M",
            "virt,gic-version=3,dtb-randomness=off",
            "-cpu",
            "cortex-a76",
        ]);
        let nodes = self.nodes;
        qemu.arg("-smp").arg(format!(
            "{nodes},sockets={nodes},clusters=1,cores=1,threads=1"
        ));
        let bytes = nodes * self.node_mib * MIB + WINDOW_BYTES;
        qemu.arg("-m").arg(format!("{}", bytes / MIB));
        qemu.args(["-display", "none", "-monitor", "none", "-serial", "none"]);
        qemu.args(["-nic", "none", "-rtc", "base=2020-01-01,clock=vm"]);
        if self.icount {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        self.numa(&mut qemu, directory);
        for (at, value) in parameters {
            qemu.arg("-device").arg(format!(
                "loader,addr={:#x},data={value:#x},data-len=8",
                PARAMETERS + at
            ));
        }
        qemu.arg("-kernel").arg(guest());
        let here = directory.display();
        qemu.arg("-plugin").arg(format!(
            "{},nodes={nodes},node_mib={},ram={here},window={here}/window,out={here}/out.csv",
            plugin().display(),
            self.node_mib
        ));
        qemu.output().unwrap()
    }

    fn directory(&self) -> PathBuf {
        env::temp_dir().join(format!("sim-{}-{}", self.name, std::process::id()))
    }

    fn measure(&self) -> Outcome {
        let directory = self.directory();
        let output = self.start(&directory);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "QEMU says: {words}");
        let memory = fs::read(directory.join("node0.ram")).unwrap();
        let at = (PARAMETERS - MEMORY) as usize + 0x80;
        let outcome = Outcome {
            csv: fs::read_to_string(directory.join("out.csv")).unwrap(),
            window: fs::read(directory.join("window")).unwrap(),
            read: u64::from_le_bytes(memory[at..at + 8].try_into().unwrap()),
        };
        fs::remove_dir_all(directory).unwrap();
        outcome
    }
}

/// Whether a figure is as expected, but for so many thousandths.
fn close(found: u64, expected: u64, thousandths: u64) -> bool {
    found.abs_diff(expected) * 1000 <= expected * thousandths
}

#[test]
fn misses_and_latencies_are_as_expected() {
    if !has_qemu() {
        return;
    }
    let lines = LOCAL.bytes / 64 * LOCAL.passes;
    let far = Run {
        name: "remote",
        array: MEMORY + LOCAL.node_mib * MIB,
        ..LOCAL
    };
    // Four instructions for each line.
    for (run, misses, ns) in [(LOCAL, "data_local", 300), (far, "data_remote", 900)] {
        let outcome = run.measure();
        let found = outcome.column(misses)[0];
        assert!(close(found, lines, 1), "{found} misses, {lines} expected");
        let clock = outcome.column("clock_ns")[0];
        let expected = lines * (4 + ns);
        assert!(close(clock, expected, 1), "{clock} ns, {expected} expected");
        // It is a kernel, with nothing beneath it.
        let [user, kernel, beneath] =
            ["user_ns", "kernel_ns", "hypervisor_ns"].map(|name| outcome.column(name)[0]);
        assert_eq!(
            (user, kernel, beneath),
            (0, outcome.column("local_ns")[0], 0)
        );
        eprintln!("{}: {found} misses, {clock} ns", run.name);
    }
}

#[test]
fn pages_are_counted_and_reported() {
    if !has_qemu() {
        return;
    }
    let array = MEMORY + LOCAL.node_mib * MIB;
    let page = (array - MEMORY) / 4096;
    let record = offset::HEADER_END + page as usize * 3;
    let window = MEMORY + LOCAL.nodes * LOCAL.node_mib * MIB;
    let run = Run {
        name: "pages",
        array,
        threshold: 100,
        reads: window + record as u64 * 4,
        ..LOCAL
    };
    let outcome = run.measure();
    // Each page has 64 lines, and each pass misses on all of them.
    let pages = (run.bytes / 4096) as usize;
    for page in 0..pages {
        let words = [0, 1, 2].map(|word| outcome.word(record + page * 3 + word));
        assert_eq!(words, [128, 0, 0], "page {page}");
    }
    assert_eq!(outcome.read, 128, "what the guest itself reads");
    let reported = outcome.word(offset::HEAD) + outcome.word(offset::DROPPED);
    assert!(
        (reported as usize).abs_diff(pages) <= 2,
        "{reported} hot pages"
    );
    let ring = [outcome.word(offset::RING), outcome.word(offset::RING + 1)];
    assert_eq!(ring[1], 0);
    assert!((page as u32..page as u32 + pages as u32).contains(&ring[0]));
}

#[test]
fn pages_that_only_their_node_uses_are_not_reported() {
    if !has_qemu() {
        return;
    }
    let run = Run {
        name: "home",
        threshold: 100,
        ..LOCAL
    };
    let outcome = run.measure();
    let page = (run.array - MEMORY) / 4096;
    let record = offset::HEADER_END + page as usize * 3;
    assert_eq!(outcome.word(record), 28, "128 misses, anew at 100");
    assert_eq!(outcome.word(offset::HEAD), 0);
}

#[test]
fn the_same_work_takes_as_long_on_many_cpus() {
    if !has_qemu() {
        return;
    }
    let times = [1, 2, 4, 8].map(|cpus| {
        let run = Run {
            name: ["", "one", "two", "", "four", "", "", "", "eight"][cpus],
            nodes: 8,
            node_mib: 64,
            cpus: cpus as u64,
            bytes: 2 * MIB,
            stride: 64 * MIB,
            blocks: 156_250,
            ..LOCAL
        };
        let outcome = run.measure();
        for (cpu, misses) in outcome
            .column("data_local")
            .into_iter()
            .take(cpus)
            .enumerate()
        {
            assert!(close(misses, 65_536, 5), "CPU {cpu}: {misses} misses");
        }
        outcome.column("clock_ns")[0]
    });
    eprintln!("1, 2, 4, 8 CPUs: {times:?} ns");
    for time in times {
        assert!(close(time, times[0], 60), "{times:?}");
    }
}

#[test]
fn two_runs_are_the_same() {
    if !has_qemu() {
        return;
    }
    let run = |name| Run {
        name,
        nodes: 8,
        node_mib: 64,
        cpus: 8,
        bytes: MIB,
        // All CPUs share node 0's array.
        stride: 4096,
        blocks: 1000,
        threshold: 64,
        ..LOCAL
    };
    let (first, second) = (run("first").measure(), run("second").measure());
    assert_eq!(first.csv, second.csv);
    assert!(first.window[..] == second.window[..]);
    assert!(first.column("data_remote")[7] > 16_000);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    if !has_qemu() {
        return;
    }
    let run = Run {
        name: "refused",
        icount: false,
        ..LOCAL
    };
    let directory = run.directory();
    let output = run.start(&directory);
    fs::remove_dir_all(directory).unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(words.contains("QEMU must count instructions"), "{words}");
}
