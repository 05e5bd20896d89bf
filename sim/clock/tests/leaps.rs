//! The counted clock on a guest that sleeps all the time. Skipped, with a sentence, where there is no QEMU.
#![allow(clippy::unwrap_used, reason = "a test")]

use sim_qemu::trial::{self, QEMU, has_qemu};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
    thread,
};

/// Runs with the plugin, all of which must be the same.
const RUNS: usize = 40;
/// Runs without, in one of which at least a timer must be late: it was in one of five.
const RUNS_MAX: usize = 400;
/// Machines that run at a time: the main thread of each is to be kept waiting now and then.
const AT_ONCE: usize = 4;
/// Of the guest, which tells what its clock said.
const SUM_DIGITS: usize = 16;

fn guest() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::guest("sleeps").unwrap())
}

fn plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::plugin("clock").unwrap())
}

/// The machine, with one nanosecond for each instruction and for each count of the guest's counter.
fn qemu(serial: &Path, icount: &[&str], options: &str) -> Output {
    let mut qemu = Command::new(QEMU);
    qemu.args("-nodefaults -no-user-config -display none -monitor none".split(' '));
    qemu.args("-M virt,gic-version=3,dtb-randomness=off -m 64".split(' '));
    qemu.args("-cpu neoverse-n1,cntfrq=1000000000 -rtc base=2020-01-01,clock=vm".split(' '));
    qemu.args(["-accel", "tcg,thread=single"]).args(icount);
    qemu.arg("-serial")
        .arg(format!("file:{}", serial.display()));
    qemu.arg("-kernel").arg(guest());
    qemu.arg("-plugin")
        .arg(format!("{}{options}", plugin().display()));
    qemu.output().unwrap()
}

const COUNTED: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// What the guest and the plugin say of one run; `name` is one of its own.
fn run(name: &str, options: &str) -> (String, String) {
    let directory = env::temp_dir().join(format!("clock-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (serial, report) = (directory.join("serial"), directory.join("report"));
    let options = format!("{options},report={}", report.display());
    let output = qemu(&serial, &COUNTED, &options);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "QEMU says: {words}");
    let said = fs::read_to_string(serial).unwrap();
    assert_eq!(said.len(), SUM_DIGITS, "the guest says '{said}'");
    let report = fs::read_to_string(report).unwrap();
    fs::remove_dir_all(directory).unwrap();
    (said, report)
}

/// So many runs at a time, as [`run`].
fn some(name: &str, options: &str) -> Vec<(String, String)> {
    thread::scope(|scope| {
        let one = |n| scope.spawn(move || run(&format!("{name}{n}"), options));
        let threads: Vec<_> = (0..AT_ONCE).map(one).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn number(report: &str, key: &str) -> u64 {
    trial::number(report, key).unwrap()
}

#[test]
fn no_leap_of_the_plugin_ends_late() {
    if !has_qemu() {
        return;
    }
    guest();
    plugin();
    let runs: Vec<_> = (0..RUNS / AT_ONCE)
        .flat_map(|_| some("cured", ""))
        .collect();
    let (_, report) = &runs[0];
    assert_eq!(number(report, "leaps"), 20_000, "{report}");
    // Each leap ends at one.
    assert!(number(report, "timers") >= 20_000, "{report}");
    assert_eq!(number(report, "late"), 0, "{report}");
    for other in &runs {
        assert_eq!(other, &runs[0]);
    }
}

#[test]
fn a_leap_of_the_main_thread_ends_late_now_and_then() {
    if !has_qemu() {
        return;
    }
    guest();
    plugin();
    // Timers so close together that most of its leaps end at one.
    let options = ",cure=off,late=counted,probe_ns=300";
    for round in 1..=RUNS_MAX / AT_ONCE {
        let reports = some("race", options);
        let late = reports.iter().map(|(_, report)| number(report, "late"));
        let late: u64 = late.sum();
        if late > 0 {
            eprintln!("{late} late timers in {AT_ONCE} runs after {round} rounds: {reports:?}");
            return;
        }
    }
    panic!(
        "no timer was late in {RUNS_MAX} runs: does this QEMU need the plugin at all, and does it count late ones?"
    );
}

#[test]
fn a_late_timer_ends_qemu() {
    if !has_qemu() {
        return;
    }
    guest();
    plugin();
    let serial = PathBuf::from("/dev/null");
    for _ in 0..RUNS_MAX / AT_ONCE {
        let ended: Vec<Output> = thread::scope(|scope| {
            let one = |_| scope.spawn(|| qemu(&serial, &COUNTED, ",cure=off,probe_ns=300"));
            let threads: Vec<_> = (0..AT_ONCE).map(one).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.collect()
        });
        let mut failed = ended.iter().filter(|output| !output.status.success());
        if let Some(output) = failed.next() {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(
                words.contains("ns late; the run is worth nothing"),
                "{words}"
            );
            return;
        }
    }
    panic!("no timer was late in {RUNS_MAX} runs");
}

#[test]
fn what_the_plugin_cannot_put_right_is_refused() {
    if !has_qemu() {
        return;
    }
    guest();
    plugin();
    let serial = env::temp_dir().join(format!("clock-refused-{}", std::process::id()));
    for (icount, options, said) in [
        (&[][..], "", "QEMU must count instructions"),
        (&COUNTED[..], ",probe_ns=0", "'probe_ns=0' is no time"),
        (&COUNTED[..], ",else=1", "'else=1' is no option"),
    ] {
        let output = qemu(&serial, icount, options);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains(said), "{words}");
    }
    let _ = fs::remove_file(serial); // QEMU may not have made it
}
