//! Hosts on a wire: bare programs that ping each other. Skipped, with a sentence, where there is no QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use sim_ethernet::{
    Options,
    frame::{Head, append},
};
use sim_qemu::trial::{self, QEMU, has_qemu};
use std::{
    env, fmt,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
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
struct Cluster {
    name: &'static str,
    hosts: usize,
    /// Options of the wire.
    wire: String,
    /// The guests' command line.
    guest: String,
    /// What stands before that, host by host.
    extra: [&'static str; 3],
    cpus: usize,
    card: &'static str,
}

/// What a host leaves behind.
#[derive(PartialEq, Eq)]
struct Outcome {
    /// What the guest says.
    said: String,
    /// What the plugin counted.
    report: String,
    record: String,
    /// What QEMU says.
    words: String,
    succeeded: bool,
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
    fn guest(&self, key: &str) -> u64 {
        trial::number(&self.said, key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    fn wire(&self, key: &str) -> u64 {
        trial::number(&self.report, key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }
}

impl Cluster {
    fn new(name: &'static str, hosts: usize, wire: &str, guest: &str) -> Self {
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

    fn directory(&self) -> PathBuf {
        env::temp_dir().join(format!("wire-{}-{}", self.name, std::process::id()))
    }

    /// The machine of one host, with a nanosecond for each instruction and each count of the guest's counter.
    fn qemu(&self, host: usize) -> Command {
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

    fn start(&self) -> Vec<Child> {
        let _ = fs::remove_dir_all(self.directory());
        fs::create_dir_all(self.directory()).unwrap();
        (0..self.hosts)
            .map(|host| self.qemu(host).spawn().unwrap())
            .collect()
    }

    fn end(&self, hosts: Vec<Child>) -> Vec<Outcome> {
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

    fn run(&self) -> Vec<Outcome> {
        self.end(self.start())
    }

    /// Runs, and all must end well.
    fn succeed(&self) -> Vec<Outcome> {
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
fn repeat(cluster: &Cluster, times: usize) -> Vec<Outcome> {
    let first = cluster.succeed();
    for _ in 1..times {
        assert_eq!(cluster.succeed(), first);
    }
    first
}

/// Keeps all CPUs of this machine busy until it is dropped.
struct Load(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Load {
    fn new() -> Self {
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

/// Of a round trip, what the two guests take, but for a few instructions that depend on what else they do.
const GUESTS_NS: u64 = 504;
const GUESTS_SPREAD_NS: u64 = 10;

#[test]
fn round_trips_take_what_the_line_takes() {
    if !has_qemu() {
        return;
    }
    // One way: latency, cost of a frame, 1,024 bytes.
    for (name, wire, one_way_ps) in [
        ("line", "latency=10us,rate=10G", 10_000_000 + 819_200),
        (
            "frame",
            "latency=10us,rate=10G,frame=3us",
            13_000_000 + 819_200,
        ),
        ("slow", "latency=5us,rate=100M", 5_000_000 + 81_920_000),
        ("4us", "class=4us", 2_000_000 + 81_920),
        ("20us", "class=20us", 10_000_000 + 327_680),
        ("60us", "class=60us", 30_000_000 + 819_200),
        ("200us", "class=200us", 100_000_000 + 8_192_000),
        ("1ms", "class=1ms", 500_000_000 + 8_192_000),
    ] {
        let guest = "rounds=40 length=1000 end=60000000";
        for outcome in Cluster::new(name, 2, wire, guest).succeed() {
            let expected = 2 * one_way_ps / 1000 + GUESTS_NS;
            let found = outcome.guest("least");
            assert!(
                found.abs_diff(expected) <= GUESTS_SPREAD_NS,
                "{wire}: {found} ns, not {expected}"
            );
            assert_eq!(
                (outcome.guest("pings"), outcome.guest("unanswered")),
                (40, 0)
            );
        }
    }
}

#[test]
fn runs_are_the_same_also_under_load() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 end=40000000";
    let two = Cluster::new("same", 2, "latency=10us", guest);
    let first = two.succeed();
    let load = Load::new();
    assert_eq!(two.succeed(), first);
    // Each host's meetings are the same; what arrives differs.
    let digest = |host: usize, key: &str| {
        let word = first[host]
            .report
            .split_whitespace()
            .find(|word| word.starts_with(key));
        word.unwrap().to_owned()
    };
    assert_eq!(digest(0, "meetings_digest"), digest(1, "meetings_digest"));
    assert_ne!(digest(0, "arrivals_digest"), digest(1, "arrivals_digest"));
    assert_eq!(first[0].wire("received"), 800);
    assert_eq!(first[0].record.lines().count(), 800);
    // Three hosts, two CPUs each, which fight; everything that can befall frames.
    let faults = "latency=10us,lose=2%,repeat=2%,reorder=5%,corrupt=1%,spread=40us,seed=3";
    let guest = "rounds=100 patience=300000 end=25000000 second";
    let mut three = Cluster::new("faults", 3, faults, guest);
    three.cpus = 2;
    let three = repeat(&three, 2);
    drop(load);
    for outcome in &three {
        for key in ["lost", "repeated", "late", "corrupt"] {
            assert!(outcome.wire(key) > 0, "{key} in {outcome:?}");
        }
        assert_eq!(outcome.guest("pings") + outcome.guest("unanswered"), 100);
    }
    // Polling guests never sleep: a meeting each 10 us.
    let spins = Cluster::new("spins", 2, "latency=10us", "rounds=50 end=5000000 spin");
    let spins = repeat(&spins, 2);
    assert!(spins[0].wire("meetings") >= 500 && spins[0].wire("leaps") < 20);
}

/// 10^6 meetings, twice, the second time under load: minutes.
#[test]
#[ignore = "takes minutes; make soak runs it"]
fn a_million_meetings_are_the_same() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=100000000 pause=3000 end=2001000000 spin";
    let million = Cluster::new("million", 2, "latency=2us,rate=100G", guest);
    let first = million.succeed();
    let _load = Load::new();
    assert_eq!(million.succeed(), first);
    assert!(first[0].wire("meetings") >= 1_000_000, "{first:?}");
    for outcome in &first {
        eprintln!("{}{}", outcome.said, outcome.report);
    }
}

/// The sums of both hosts.
fn sum(outcomes: &[Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(of).sum()
}

#[test]
fn faults_are_what_was_asked_for() {
    if !has_qemu() {
        return;
    }
    let run = |name, faults: &str| {
        let guest = "rounds=250 length=100 pause=1000 patience=100000 end=40000000";
        Cluster::new(name, 2, &format!("latency=10us,{faults}"), guest).succeed()
    };
    // Each ping or answer that is lost is a ping without answer.
    let lost = run("lost", "lose=10%");
    let count = sum(&lost, |host| host.wire("lost"));
    assert_eq!(sum(&lost, |host| host.guest("unanswered")), count);
    assert!((70..130).contains(&count), "{count} of about 1,000 frames");
    // Each second ping makes a second answer, and each second answer is one: within 30 us, before the next ping's.
    let twice = run("twice", "repeat=10%");
    let count = sum(&twice, |host| host.wire("repeated"));
    let strays = sum(&twice, |host| host.guest("strays"));
    assert!(
        (70..130).contains(&count) && strays.abs_diff(count) <= 15,
        "{count}, {strays}"
    );
    assert_eq!(sum(&twice, |host| host.guest("unanswered")), 0);
    // Late frames take up to the spread longer.
    let late = run("late", "reorder=10%,spread=25us");
    let count = sum(&late, |host| host.wire("late"));
    let most = late.iter().map(|host| host.guest("most")).max().unwrap();
    assert!(
        (70..130).contains(&count) && (40_000..72_000).contains(&most),
        "{count}, {most}"
    );
    // One wrong bit each: in these frames of 100 bytes, the guest looks at 40.
    let wrong = run("wrong", "corrupt=100%");
    let count = sum(&wrong, |host| host.wire("corrupt"));
    let received = sum(&wrong, |host| host.wire("received"));
    // The last may be on their way when a host ends.
    assert!(
        received > 100 && (received..received + 5).contains(&count),
        "{received}, {count}"
    );
    let other = run("other", "lose=10%,seed=2");
    assert_ne!(other[0].record, lost[0].record);
}

#[test]
fn a_cut_lasts_as_long_as_it_was_planned() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 length=100 pause=1 patience=1000000 end=60000000";
    let mut cluster = Cluster::new("cut", 3, "latency=10us,cut=0-1@5ms+10ms", guest);
    let hosts = cluster.succeed();
    // Each asks the others in turn, and waits for 1 ms where no answer comes: between 10 and 20 rounds, of which every
    // other is to the host that is cut off.
    for host in &hosts[..2] {
        let unanswered = host.guest("unanswered");
        assert!((9..=11).contains(&unanswered), "{unanswered}");
        assert!(host.wire("cut") > 0);
    }
    assert_eq!((hosts[2].guest("unanswered"), hosts[2].wire("cut")), (0, 0));
    // No frame between the two arrives that was on its way within the cut.
    let between = |line: &str, from: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[0].parse().unwrap();
        words[1] == from && (5_000_000..15_010_000).contains(&at)
    };
    assert!(!hosts[0].record.lines().any(|line| between(line, "1")));
    assert!(hosts[0].record.lines().any(|line| between(line, "2")));
    assert!(!hosts[1].record.lines().any(|line| between(line, "0")));
    cluster.wire = "latency=10us".into();
    assert_eq!(cluster.succeed()[0].guest("unanswered"), 0);
}

#[test]
fn a_stall_holds_cpus_and_not_the_card() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 length=100 pause=1 end=30000000";
    let wire = "latency=10us,stall=1@5ms+3ms,stall=1@12ms+1ms,stall=0@20ms+1us";
    let hosts = repeat(&Cluster::new("stall", 2, wire, guest), 2);
    for host in &hosts {
        assert_eq!(host.guest("unanswered"), 0);
        // A ping that comes when the stall begins is answered when it ends.
        let most = host.guest("most");
        assert!((2_975_000..3_025_000).contains(&most), "{most}");
    }
    // Its card took frames meanwhile.
    let at = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    let taken = hosts[1]
        .record
        .lines()
        .filter(|line| (5_000_001..8_000_000).contains(&at(line)));
    assert!(taken.count() > 0, "{}", hosts[1].record);
}

#[test]
fn the_death_of_a_host_is_said_and_repeats() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=300 length=100 pause=1 patience=1000000 end=40000000";
    let cluster = Cluster::new("die", 3, "latency=10us,die=host1@5ms", guest);
    let (first, second) = (cluster.run(), cluster.run());
    for (host, outcome) in first.iter().enumerate() {
        assert_eq!(outcome.succeeded, host != 1, "{outcome:?}");
        let said = if host == 1 {
            "host1 dies at 5000000 ns"
        } else {
            "host1 has died"
        };
        assert!(outcome.words.contains(said), "{outcome:?}");
    }
    for host in [0, 2] {
        // 35 ms are left, and each other ping goes to it: 1 ms without answer.
        let unanswered = first[host].guest("unanswered");
        assert!((33..=37).contains(&unanswered), "{unanswered}");
        assert_eq!(first[host].said, second[host].said);
        assert_eq!(first[host].record, second[host].record);
        assert_eq!(first[host].report, second[host].report);
    }
}

#[test]
fn a_host_that_ends_sends_its_last_frames() {
    if !has_qemu() {
        return;
    }
    let mut cluster = Cluster::new("ends", 2, "latency=500us", "rounds=3 end=20000000");
    // Its answers to the pings at 1 ms go out; it ends in the quantum in which it asked itself.
    cluster.extra = ["", "rounds=0 end=1700000", ""];
    let hosts = repeat(&cluster, 2);
    assert_eq!(
        (hosts[0].guest("pings"), hosts[0].guest("unanswered")),
        (1, 2)
    );
    assert!(
        hosts[0].words.contains("host1 has left the wire"),
        "{hosts:?}"
    );
    assert_eq!(hosts[1].words, "");
}

#[test]
fn a_host_that_hangs_is_named() {
    if !has_qemu() {
        return;
    }
    let cluster = Cluster::new(
        "hangs",
        2,
        "latency=10us,patience=1s",
        "rounds=100000000 spin",
    );
    let mut hosts = cluster.start();
    thread::sleep(Duration::from_millis(300));
    let process = rustix::process::Pid::from_child(&hosts[1]);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let status = hosts[0].wait().unwrap();
    hosts[1].kill().unwrap();
    let outcomes = cluster.end(hosts);
    let said = format!(
        "host1 hangs: its QEMU, process {}, has not come to",
        process.as_raw_nonzero()
    );
    assert!(
        !status.success() && outcomes[0].words.contains(&said),
        "{outcomes:?}"
    );
    // One that never starts.
    let mut cluster = Cluster::new("alone", 2, "latency=10us,patience=1s", "");
    fs::create_dir_all(cluster.directory()).unwrap();
    let output = cluster.qemu(0).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("host1 has not started for 1 s"), "{words}");
    // One that was started twice; and two that differ.
    let output = cluster.qemu(0).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("host0 was started before"), "{words}");
    fs::remove_file(cluster.directory().join("shared")).unwrap();
    let one = cluster.qemu(0).spawn().unwrap();
    cluster.wire = "latency=10us,patience=1s,seed=2".into();
    let other = cluster.qemu(1).spawn().unwrap();
    let words: String = cluster
        .end(vec![one, other])
        .into_iter()
        .map(|host| host.words)
        .collect();
    assert!(
        words.contains("have different options of the wire"),
        "{words}"
    );
}

#[test]
fn a_late_timer_ends_the_run() {
    if !has_qemu() {
        return;
    }
    let wire = "latency=10us,cure=off,patience=5s";
    let cluster = Cluster::new(
        "late-timer",
        2,
        wire,
        "rounds=2000 pause=1000 patience=100000",
    );
    for _ in 0..50 {
        let hosts = cluster.run();
        let mut failed = hosts.iter().filter(|host| !host.succeeded);
        if let Some(host) = failed.next() {
            assert!(host.words.contains("ns late at host"), "{host:?}");
            return;
        }
    }
    panic!("no timer was late in 50 runs, although QEMU leaps");
}

/// The desk of a host in the memory that hosts share, by `sim_wire::shared`.
fn desk(host: u64) -> u64 {
    host * 4096
}

/// This process plays host1, which tells of a frame when its arrival is past.
#[test]
fn a_frame_of_the_past_ends_the_run() {
    if !has_qemu() {
        return;
    }
    let cluster = Cluster::new("past", 2, "latency=10us,patience=5s", "rounds=3");
    fs::create_dir_all(cluster.directory()).unwrap();
    let shared = cluster.directory().join("shared");
    let words = ["me=1", "hosts=2", "shared=s", "latency=10us"].map(str::to_owned);
    let room = Options::read(&words).unwrap().room();
    for (arrival_ns, is_past) in [(10_000, true), (10_001, false)] {
        fs::write(&shared, []).unwrap();
        let host = cluster.qemu(0).spawn().unwrap();
        let file = File::options().read(true).write(true).open(&shared);
        let file = file.unwrap();
        let mut word = [0; 8];
        // Its fingerprint, which is that of all.
        while file.read_exact_at(&mut word, desk(0) + 16).is_err() || word == [0; 8] {
            thread::sleep(Duration::from_millis(5));
        }
        let tell = |at: u64, bytes: &[u8]| file.write_all_at(bytes, desk(1) + at).unwrap();
        tell(12, &std::process::id().to_ne_bytes());
        tell(16, &word);
        let head = Head {
            start_ns: 1,
            arrival_ns,
            number: 0,
            receivers: 1,
        };
        let mut frames = vec![0; room];
        let used = append(&mut frames, 0, &head, &[0xff; 60]).unwrap();
        let half_1_of_host_1 = desk(2) + 3 * room as u64;
        file.write_all_at(&frames, half_1_of_host_1).unwrap();
        tell(40, &10_000_i64.to_ne_bytes());
        tell(48, &(used as u64).to_ne_bytes());
        tell(0, &1_u32.to_ne_bytes());
        let output = host.wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        let said = "host1 tells at 10000 ns of a frame that arrived at 10000 ns";
        assert!(!output.status.success());
        assert_eq!(words.contains(said), is_past, "{words}");
        // What came in time is taken: then host1 hangs.
        assert_eq!(words.contains("host1 hangs"), !is_past, "{words}");
    }
    fs::remove_dir_all(cluster.directory()).unwrap();
}

#[test]
fn what_cannot_be_exact_is_refused() {
    if !has_qemu() {
        return;
    }
    let mut cluster = Cluster::new("refused", 2, "latency=10us,patience=1s", "");
    fs::create_dir_all(cluster.directory()).unwrap();
    let refused = |cluster: &Cluster, said: &str, change: &dyn Fn(&mut Command)| {
        let _ = fs::remove_file(cluster.directory().join("shared"));
        let mut qemu = cluster.qemu(0);
        change(&mut qemu);
        let output = qemu.output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains(said), "{words}");
    };
    let clock = trial::plugin("clock").unwrap();
    refused(
        &cluster,
        "load libsim_wire.so or libsim_clock.so, not both",
        &|qemu| {
            qemu.arg("-plugin").arg(&clock);
        },
    );
    cluster.wire = "latency=0".into();
    refused(
        &cluster,
        "hosts that run apart need a latency of 1ns or more",
        &|_| (),
    );
    let mut by_chance = Cluster::new("by-chance", 2, "latency=10us", "patience=100000");
    by_chance.card = "tx=bh";
    let outcomes = by_chance.run();
    let said = "the card sends from QEMU's main thread";
    assert!(
        outcomes.iter().any(|host| host.words.contains(said)),
        "{outcomes:?}"
    );
    fs::remove_dir_all(cluster.directory()).unwrap();
}
