//! The profile of a guest whose instructions are known. Skipped, with a sentence, where there is no QEMU.
#![allow(clippy::unwrap_used, reason = "a test")]

use sim_qemu::trial::{self, QEMU, has_qemu};
use std::{env, fs, path::Path, process::Command, sync::OnceLock};

/// Of the guest (`sim/guest/src/sleeps.S`): how often it sleeps, and what it draws its turns from.
const SLEEPS: usize = 20_000;
const CHANCE: [u64; 3] = [12345, 6_364_136_223_846_793_005, 1_442_695_040_888_963_407];
/// Instructions of each sleep beside two for each turn, of which there is one more than are drawn.
const SLEEP: u64 = 13;
/// Where QEMU puts the guest, and the most instructions before it first sleeps and after it last did.
const START: u64 = 0x4040_0000;
const AROUND: u64 = 300;

fn plugin() -> &'static Path {
    static BUILT: OnceLock<std::path::PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| trial::plugin("profile").unwrap())
}

/// A line of the results: visit, address, times and instructions.
type Row = (u64, u64, u64, u64);

fn run(name: &str, options: &str) -> Vec<Row> {
    let out = env::temp_dir().join(format!("profile-{name}-{}", std::process::id()));
    let mut qemu = Command::new(QEMU);
    qemu.args("-nodefaults -no-user-config -display none -monitor none -serial null".split(' '));
    qemu.args("-M virt,gic-version=3,dtb-randomness=off -m 64".split(' '));
    qemu.args("-cpu neoverse-n1,cntfrq=1000000000 -rtc base=2020-01-01,clock=vm".split(' '));
    qemu.args("-accel tcg,thread=single -icount shift=0,sleep=off".split(' '));
    qemu.arg("-kernel").arg(trial::guest("sleeps").unwrap());
    let words = format!("{},out={},{options}", plugin().display(), out.display());
    let output = qemu.arg("-plugin").arg(words).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "QEMU says: {words}");
    let text = fs::read_to_string(&out).unwrap();
    fs::remove_file(out).unwrap();
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => word.parse().unwrap(),
    };
    let row = |line: &str| {
        let words: Vec<&str> = line.split(',').collect();
        (
            number(words[0]),
            number(words[2]),
            number(words[3]),
            number(words[4]),
        )
    };
    text.lines().skip(1).map(row).collect()
}

/// What the guest executes for each sleep, up to where it waits.
fn sleeps() -> Vec<u64> {
    let [mut chance, factor, term] = CHANCE;
    let sleep = |_| {
        chance = chance.wrapping_mul(factor).wrapping_add(term);
        SLEEP + 2 * ((chance >> 57) + 1)
    };
    (0..SLEEPS).map(sleep).collect()
}

#[test]
fn each_instruction_is_counted_once() {
    if !has_qemu() {
        return;
    }
    let rows = run("all", &format!("from={START:#x},bytes=4096"));
    let sum: u64 = rows.iter().map(|row| row.3).sum();
    let least: u64 = sleeps().iter().sum();
    let most = least + AROUND;
    assert!(
        (least..=most).contains(&sum),
        "{sum}, and not {least} to {most}"
    );
    assert!(rows.iter().all(|row| row.0 == 0), "no visit was to be told");
    // What it prints in the end is of its clock, which QEMU keeps as it happens.
    let again = run("again", &format!("from={START:#x},bytes=4096"));
    let of_loop = |rows: &[Row]| -> Vec<Row> {
        let often = rows.iter().filter(|row| row.2 + 1 >= SLEEPS as u64);
        often.copied().collect()
    };
    assert_eq!(of_loop(&rows), of_loop(&again));
}

#[test]
fn a_visit_ends_where_the_cpu_waits() {
    if !has_qemu() {
        return;
    }
    let over = 250;
    let rows = run("visits", &format!("from={START:#x},bytes=4096,over={over}"));
    let of = |visit: u64| rows.iter().filter(move |row| row.0 == visit);
    let visits = rows.iter().map(|row| row.0).max().unwrap();
    let told: Vec<u64> = (1..=visits)
        .map(|visit| of(visit).map(|row| row.3).sum())
        .collect();
    // Before the first sleep the guest prepares, and behind the last one it prints less than is told.
    let long = sleeps().into_iter().skip(1).filter(|it| *it > over);
    let long: Vec<u64> = long.collect();
    let first = told.len() - long.len();
    assert!(
        first <= 1,
        "{} visits were told, not {}",
        told.len(),
        long.len()
    );
    assert_eq!(told[first..], long);
}

#[test]
fn visits_add_up() {
    if !has_qemu() {
        return;
    }
    let all = run("loop", &format!("from={START:#x},bytes=4096"));
    // Without the last block of the loop, each sleep ends two visits.
    let of_loop = all.iter().filter(|row| row.2 >= SLEEPS as u64);
    let cut = of_loop.map(|row| row.1).max().unwrap();
    let rows = run(
        "cut",
        &format!("from={START:#x},bytes={},over=1", cut - START),
    );
    let sum = |rows: &[Row], first: u64, last: u64| {
        let chosen = rows
            .iter()
            .filter(|row| row.1 < cut && (first..=last).contains(&row.0));
        chosen.map(|row| row.3).sum::<u64>()
    };
    assert_eq!(sum(&rows, 0, 0), sum(&all, 0, 0));
    let visits = rows.iter().map(|row| row.0).max().unwrap();
    assert_eq!(visits, 10_000, "the first of {SLEEPS} are told");
    assert!(sum(&rows, 1, visits) < sum(&rows, 0, 0));
}
