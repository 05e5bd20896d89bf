//! Adversaries that never end, beside a VM that does nothing wrong and watches.
//!
//! ```text
//!  first    bare, 2 vCPUs: tests/guests/src/adversary       on each of them the same base, in one group
//!  second   Linux, 2 vCPUs: assets/adversary/adversary.c
//!  control  Linux with all rights: asks, and what it asks is often none
//!  victim   is started, paused, killed, weighed by it
//!  watcher  bare: tests/guests/src/watcher.rs; says at last that all was as it should be, or what was not
//! ```
//!
//! `hostile/bare-adversary` is short: first, another of its kind as second, and the watcher.
//!
//! `UNDERPIN_SEED` and `UNDERPIN_SECONDS` (of the watcher's time) choose another run.

use super::super::{kernels::BOOT, sharing};
use crate::{
    Outcome, archive, assets, because,
    disk_image::{self, FIRST_PARTITION, FOR_OVERLAYS, LINUX},
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

const KERNEL: &str = "trixie-cloud";
const MIB: u64 = 1 << 20;
/// Blocks of 4 KiB of the base.
const BLOCKS: u64 = 64 << 8;
/// Why a VM of adversaries may have ended: then it is started again.
const ENDS: [&str; 3] = ["AArch32", "powered off", "killed"];
/// How long the machine may take for a second of the watcher's time.
const PACE: u32 = 60;
const POLL: Duration = Duration::from_secs(1);

/// The watcher's weight, and that of each other vCPU.
const WATCHERS: u32 = 512;
const OTHERS: u32 = 256;
const OTHER_VCPUS: u32 = 2 + 2 + 1 + 1;
const BARE_VCPUS: u32 = 2 + 2;

/// What the watcher has at least beside so many, in thousandths: nine tenths of what its weight promises where all want
/// the CPU.
const fn share(others: u32) -> u32 {
    900 * WATCHERS / (WATCHERS + others * OTHERS)
}

/// The longest that the watcher may wait for the CPU: each other vCPU may have slept and come back a bonus behind
/// (`model_scheduler::SLEEPER_BONUS`), which it runs off before the watcher's turn, and have a slice then.
///
/// The scheduler promises less: its clock stands still while one runs, so what the watcher ran before they woke, up to
/// 5 ms of virtual time (`MAX_SLICE` at twice their weight), comes to each bonus: 75 ms where all six wake at once.
const fn gap_us(others: u32) -> u32 {
    others * (6_000 + 11_000 / (others + 1))
}

pub fn scenarios() -> Vec<Scenario> {
    let clock = SystemTime::UNIX_EPOCH.elapsed();
    let clock = clock.map_or(1, |since| since.as_secs());
    let one = || Hardware::new(1, "1G").counted();
    vec![
        bare_scenario("hostile/bare-adversary", one(), 1, 1),
        scenario("hostile/adversary", one(), 1, 4).slow(),
        // Reads are raced by vCPUs that run at the same time.
        scenario("hostile/smp-adversary", Hardware::new(3, "1G"), 2, 60),
        scenario("hostile/long-adversary", one(), clock, 900).slow(),
        scenario(
            "hostile/long-smp-adversary",
            Hardware::new(3, "1G"),
            clock,
            1800,
        )
        .slow(),
    ]
}

/// The variables that choose another run, and the largest value of each.
const CHOICES: [(&str, u64); 2] = [
    ("UNDERPIN_SEED", u64::MAX),
    ("UNDERPIN_SECONDS", u32::MAX as u64),
];

/// Whether the variables that choose another run have values that do.
///
/// # Errors
/// The first that has not.
pub fn check_choices() -> Outcome {
    CHOICES
        .into_iter()
        .try_for_each(|choice| chosen(choice).map(drop))
}

fn chosen((name, most): (&str, u64)) -> Outcome<Option<u64>> {
    let value = env::var_os(name);
    value.map(|value| number((name, most), &value)).transpose()
}

fn number((name, most): (&str, u64), value: &OsStr) -> Outcome<u64> {
    let parsed = value.to_str().and_then(|value| value.parse().ok());
    parsed.filter(|value| *value <= most).ok_or_else(|| {
        let value = value.display();
        format!("{name} is {value}; it must be a number from 0 to {most}, or not be set")
    })
}

/// The seed and seconds that were chosen, or these.
fn choices(seed: u64, seconds: u32) -> (u64, u32) {
    // What cannot be read ends the run before any scenario: `check_choices`.
    let [chosen_seed, chosen_seconds] = CHOICES.map(|choice| chosen(choice).unwrap_or_default());
    (
        chosen_seed.unwrap_or(seed),
        chosen_seconds.map_or(seconds, |seconds| seconds as u32),
    )
}

fn scenario(name: &str, hardware: Hardware, seed: u64, seconds: u32) -> Scenario {
    let (seed, seconds) = choices(seed, seconds);
    let watcher = watcher(seed, seconds, hardware.is_counted().then_some(OTHER_VCPUS));
    let mut vms = vms(seed);
    vms.push(watcher);
    let scenario = Scenario::new(name, hardware, vms)
        .prepare(|directory| {
            programs(directory)?;
            files(directory)
        })
        .expect("first", "adversary: seed", 2 * BOOT)
        .expect("second", "adversary: seed", 3 * BOOT)
        .expect("control", "ready kernel=", BOOT);
    checked(scenario, seed, seconds)
}

/// One without Linux, which takes long to boot.
fn bare_scenario(name: &str, hardware: Hardware, seed: u64, seconds: u32) -> Scenario {
    let (seed, seconds) = choices(seed, seconds);
    let watcher = watcher(seed, seconds, hardware.is_counted().then_some(BARE_VCPUS));
    let second = seed.wrapping_add(1 << 32);
    let vms = vec![
        bare("first", seed, "first"),
        bare("second", second, "second"),
        watcher,
    ];
    let scenario = Scenario::new(name, hardware, vms)
        .prepare(files)
        .expect("first", "adversary: seed", BOOT)
        .expect("second", "adversary: seed", BOOT);
    checked(scenario, seed, seconds)
}

fn checked(scenario: Scenario, seed: u64, seconds: u32) -> Scenario {
    scenario
        .check(move |stage| {
            attend(stage, seconds).map_err(|why| format!("seed {seed}, {seconds} s: {why}"))
        })
        .check(base_is_unchanged)
        .check(nothing_is_lost)
}

/// A bare adversary, with a partition of its own.
fn bare(name: &str, seed: u64, own: &str) -> Vm {
    Vm::bare(name, "adversary", &format!("seed={seed}"))
        .cpus(2)
        .weight(OTHERS)
        .cow_partition("data")
        .cow_disk("../scratch.img")
        .persistent_disk(own)
        .net("wild")
        .plain_net("wild")
}

fn watcher(seed: u64, seconds: u32, others: Option<u32>) -> Vm {
    let mut args = format!("seed={seed} seconds={seconds}");
    if let Some(others) = others {
        args = format!("{args} share={} gap_us={}", share(others), gap_us(others));
    }
    Vm::bare("watcher", "watcher", &args)
        .weight(WATCHERS)
        .cow_partition("data")
        .persistent_disk("watched")
        .asleep()
}

fn vms(seed: u64) -> Vec<Vm> {
    let linux = |name: &str, disk: &str| {
        Vm::linux(name, KERNEL, "script")
            .args(&format!("seed={seed}"))
            .initrd("../initrd")
            .cow_disk(disk)
            .net("wild")
            .weight(OTHERS)
    };
    let second = linux("second", "../second.img")
        .cpus(2)
        .memory("128MiB")
        .cow_partition("data")
        .overlay("12MiB", "over")
        .persistent_disk("second")
        .cow_disk("../scratch.img");
    let control = linux("control", "../control.img").memory("192MiB");
    let victim = Vm::bare("victim", "hostile", "do=spin seconds=100000")
        .weight(OTHERS)
        .asleep();
    vec![
        bare("first", seed, "first"),
        second,
        control.control("all"),
        victim,
    ]
}

/// The disk with the base.
fn files(directory: &Path) -> Outcome<Vec<String>> {
    disk_image::scratch(directory)?;
    let disk = directory.join("disk.img");
    let parts = [
        ("data", 4096 * BLOCKS, LINUX),
        ("first", 32 * MIB, LINUX),
        ("second", 4 * MIB, LINUX),
        ("watched", 4 * MIB, LINUX),
        ("over", 16 * MIB, FOR_OVERLAYS),
    ];
    disk_image::with_partitions(&disk, &parts)?;
    let tried = "cannot write the base";
    let file = File::options().write(true).open(&disk);
    let written = file.map_err(because(tried))?;
    let written = written.write_all_at(&sharing::blocks(BLOCKS), FIRST_PARTITION);
    written.map_err(because(tried))?;
    Ok(vec!["--disk".into(), disk.display().to_string()])
}

/// The scripts of Linux guests, and an initial RAM disk with their programs.
fn programs(directory: &Path) -> Outcome {
    let sources = assets::root().join("assets/adversary");
    for name in ["second", "control"] {
        let source = sources.join(format!("{name}.sh"));
        let text = fs::read_to_string(&source);
        let text = text.map_err(because(format!("cannot read {}", source.display())))?;
        disk_image::script(directory, &format!("{name}.img"), &text)?;
    }
    let programs = [
        ("adversary", assets::read_cached("adversary")?),
        ("underpin", assets::read(&assets::arm64_command())?),
    ];
    archive::initrd(&directory.join("initrd"), KERNEL, &programs)
}

/// Starts the watcher and waits for what it says; starts the adversaries again where they brought themselves to an end.
fn attend(stage: &mut Stage, seconds: u32) -> Outcome {
    let machine = stage.machine()?;
    machine.run(&["start", "watcher"])?;
    let deadline = Instant::now() + Duration::from_secs(BOOT) + seconds * PACE * POLL;
    loop {
        machine.check_alive()?;
        for vm in machine.list()? {
            if vm.state != "ended" {
                continue;
            }
            if vm.name == "watcher" {
                let said = machine.console("watcher");
                let last = said
                    .lines()
                    .rfind(|line| line.starts_with("underpin-guest:"));
                return match last {
                    Some("underpin-guest: watcher ok") => Ok(()),
                    last => Err(format!(
                        "{} ({})",
                        last.unwrap_or("nothing was said"),
                        vm.reason
                    )),
                };
            }
            let is_broken = machine.console(&vm.name).contains("FAILED");
            if is_broken || !ENDS.iter().any(|why| vm.reason.contains(why)) {
                return Err(format!("'{}' ended: {}", vm.name, vm.reason));
            }
            if vm.name != "victim" {
                machine.run(&["start", &vm.name])?;
            }
        }
        if Instant::now() > deadline {
            return Err("the watcher says nothing".to_owned());
        }
        sleep(POLL);
    }
}

/// Whatever guests wrote, the disk's base has what it had.
fn base_is_unchanged(stage: &mut Stage) -> Outcome {
    let tried = "cannot read the base";
    let file = File::open(stage.directory.join("disk.img")).map_err(because(tried))?;
    let wanted = sharing::blocks(BLOCKS);
    let mut found = vec![0; wanted.len()];
    let read = file.read_exact_at(&mut found, FIRST_PARTITION);
    read.map_err(because(tried))?;
    let differs = wanted.iter().zip(&found).position(|(a, b)| a != b);
    differs.map_or(Ok(()), |at| {
        Err(format!("byte {at} of the base has changed on the disk"))
    })
}

/// The adversaries end, and the frame table agrees with maps and accounts.
fn nothing_is_lost(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    for vm in machine.list()? {
        if vm.state != "ended" && vm.state != "defined" {
            machine.run(&["kill", &vm.name])?;
        }
    }
    for vm in machine.list()? {
        if vm.state != "defined" {
            let ended = machine.await_state(&vm.name, "ended", Duration::from_mins(1))?;
            if ended.touched != 0 {
                return Err(format!(
                    "'{}' has ended and holds {} bytes",
                    vm.name, ended.touched
                ));
            }
        }
    }
    machine.run(&["mem", "recount"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_number_or_an_error() {
        let [seed, seconds] = CHOICES;
        assert_eq!(number(seed, OsStr::new("17")), Ok(17));
        assert_eq!(number(seconds, OsStr::new("60")), Ok(60));
        for (choice, value) in [
            (seed, "x1"),
            (seed, ""),
            (seed, "-1"),
            (seconds, "4294967296"),
        ] {
            let why = number(choice, OsStr::new(value)).unwrap_err();
            assert!(why.contains(choice.0) && why.contains(value), "{why}");
        }
    }
}
