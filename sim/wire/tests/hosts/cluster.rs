//! Hosts that are started together, what they leave behind, and a machine that is busy.

use sim_qemu::trial::{self, QEMU};
use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

fn guest() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::flat_guest("ring").unwrap())
}

fn plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::plugin("wire").unwrap())
}

/// Hosts that are started together.
#[derive(Clone)]
pub struct Cluster {
    name: &'static str,
    hosts: usize,
    /// Options of the wire.
    pub wire: String,
    /// The guests' command line.
    pub guest: String,
    /// What stands before that, host by host.
    pub extra: [&'static str; 3],
    pub cpus: usize,
    pub card: &'static str,
}

/// What a host leaves behind.
#[derive(PartialEq, Eq)]
pub struct Outcome {
    /// What the guest says.
    pub said: String,
    /// What the plugin counted.
    pub report: String,
    pub record: String,
    /// What QEMU says.
    pub words: String,
    pub succeeded: bool,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrivals = self.record.lines().count();
        let (said, words) = (self.said.trim(), self.words.trim());
        write!(
            f,
            "{said} / {} / {arrivals} arrivals / {words}",
            self.report.trim()
        )
    }
}

impl Outcome {
    pub fn guest(&self, key: &str) -> u64 {
        trial::number(&self.said, key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    pub fn wire(&self, key: &str) -> u64 {
        trial::number(&self.report, key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }
}

impl Cluster {
    pub fn new(name: &'static str, hosts: usize, wire: &str, guest: &str) -> Self {
        Self {
            name,
            hosts,
            wire: wire.to_owned(),
            guest: format!("hosts={hosts} {guest}"),
            extra: [""; 3],
            cpus: 1,
            card: "tx=timer,x-txtimer=1",
        }
    }

    pub fn directory(&self) -> PathBuf {
        env::temp_dir().join(format!("wire-{}-{}", self.name, std::process::id()))
    }

    /// The machine of one host, with a nanosecond for each instruction and each count of the guest's counter.
    pub fn qemu(&self, host: usize) -> Command {
        let directory = self.directory();
        let here = directory.display();
        let mut qemu = Command::new(QEMU);
        qemu.args("-nodefaults -no-user-config -display none -monitor none".split(' '));
        qemu.args("-M virt,gic-version=3,dtb-randomness=off -m 64".split(' '));
        qemu.args("-cpu neoverse-n1,cntfrq=1000000000 -rtc base=2020-01-01,clock=vm".split(' '));
        qemu.arg("-smp").arg(self.cpus.to_string());
        qemu.args("-accel tcg,thread=single -icount shift=0,sleep=off -seed 1".split(' '));
        qemu.args("-global virtio-mmio.force-legacy=false".split(' '));
        qemu.args("-global virtio-mmio.ioeventfd=off".split(' '));
        qemu.arg("-serial").arg(format!("file:{here}/{host}.said"));
        qemu.arg("-kernel").arg(guest());
        qemu.arg("-append")
            .arg(format!("{} {}", self.extra[host], self.guest));
        let plugin = plugin().display();
        let wire = if self.wire.is_empty() {
            String::new()
        } else {
            format!(",{}", self.wire)
        };
        let hosts = self.hosts;
        qemu.arg("-plugin").arg(format!(
            "{plugin},me={host},hosts={hosts},shared={here}/shared,report={here}/{host}.report,record={here}/{host}.record{wire}"
        ));
        qemu.arg("-device").arg(format!(
            "virtio-net-device,netdev=wire,mac=52:54:00:00:00:0{host},{}",
            self.card
        ));
        qemu.stdin(Stdio::null()).stderr(Stdio::piped());
        qemu
    }

    pub fn start(&self) -> Vec<Child> {
        let _ = fs::remove_dir_all(self.directory());
        fs::create_dir_all(self.directory()).unwrap();
        (0..self.hosts)
            .map(|host| self.qemu(host).spawn().unwrap())
            .collect()
    }

    pub fn end(&self, hosts: Vec<Child>) -> Vec<Outcome> {
        let directory = self.directory();
        let read = |host: usize, what: &str| {
            fs::read_to_string(directory.join(format!("{host}.{what}"))).unwrap_or_default()
        };
        let outcome = |(host, child): (usize, Child)| {
            let output = child.wait_with_output().unwrap();
            Outcome {
                said: read(host, "said"),
                report: read(host, "report"),
                record: read(host, "record"),
                words: String::from_utf8_lossy(&output.stderr).into_owned(),
                succeeded: output.status.success(),
            }
        };
        let outcomes = hosts.into_iter().enumerate().map(outcome).collect();
        fs::remove_dir_all(directory).unwrap();
        outcomes
    }

    pub fn run(&self) -> Vec<Outcome> {
        self.end(self.start())
    }

    /// Runs, and all must end well.
    pub fn succeed(&self) -> Vec<Outcome> {
        let outcomes = self.run();
        for outcome in &outcomes {
            assert!(
                outcome.succeeded && outcome.said.contains("underpin-guest: ring ok"),
                "{outcome:?}"
            );
            assert_eq!(outcome.wire("outside"), 0, "nobody asks: {outcome:?}");
        }
        outcomes
    }
}

/// Runs must be the same, whatever else the host has to do.
pub fn repeat(cluster: &Cluster, times: usize) -> Vec<Outcome> {
    let first = cluster.succeed();
    for _ in 1..times {
        assert_eq!(cluster.succeed(), first);
    }
    first
}

/// Keeps all CPUs of this machine busy until it is dropped.
pub struct Load(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Load {
    pub fn new() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = || {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Relaxed) {})
        };
        let threads = (0..2).map(|_| busy()).collect();
        Self(stop, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        for thread in self.1.drain(..) {
            thread.join().unwrap();
        }
    }
}
