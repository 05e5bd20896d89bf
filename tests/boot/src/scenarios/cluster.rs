//! Machines that join a cluster, or do not, in lock-step of virtual time.

mod errands;
mod floods;
mod strangers;
mod transfers;

use super::network::hosts as ring;
use super::watching::{interrupt, said_by};
use crate::{
    Outcome, because,
    cluster_file::{NAMES, options, write as cluster},
    machine::{Hardware, Machine},
    scenario::{Prepare, Scenario, Stage},
    status::HostStatus,
    twice::{Transfer, Twice, again},
    vm::Vm,
};
use serde_json::Value;
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use transfers::{BULK_MIB, FAULTS_MIB};

/// How long something may take to come, on a busy host.
const PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(250);
/// The least round trip: twice the latency of the line.
const LINE_NS: u64 = 20_000;
/// More than a round trip takes where EL2 has nothing else to do. Less than from one beat to the next, over which hosts leap.
const LATE_NS: u64 = 200_000;
/// A host of which nothing is heard is declared dead after so many milliseconds, and the next beat is due.
const DECLARED_MS: std::ops::Range<u64> = 1_900..2_200;

/// Exit status of what is impossible on the machine.
const IMPOSSIBLE: i32 = 15;
/// The most that a stretch at EL2 may take.
const STRETCH_NS_MAX: u64 = 100_000;

/// All; and again each that starts several hosts, to compare two runs of these.
pub fn scenarios() -> Vec<Scenario> {
    let pings = ring::twice("twice/repeats", |directory| {
        Ok([one_key::<2>(directory)?, ring::words(directory)?].concat())
    });
    once()
        .into_iter()
        .chain(again(once(), twice))
        .chain([pings])
        .collect()
}

/// Until when two runs of a scenario are compared, what is transferred meanwhile, and what a console says. The hosts of others are asked nothing:
/// what befalls them is over at 65 s, and they join soon after that.
fn twice(name: &str) -> Twice {
    let transfer = |bytes: u64| Transfer {
        from_s: 5,
        pages: (bytes / 4096) as u32,
    };
    let (seconds, transfer) = match name {
        "cluster/probe" | "cluster/probe-chacha" => (15, Some(transfer(PROBED))),
        "cluster/bulk" | "cluster/bulk-loss" => (20, Some(transfer(BULK_MIB << 20))),
        "cluster/faults" => (8, Some(transfer(FAULTS_MIB << 20))),
        // VMs of these never rest.
        "cluster/forger" | "cluster/flood" => (2, None),
        "cluster/hello-flood"
        | "cluster/sealed-flood"
        | "cluster/copied-flood"
        | "cluster/registers" => (1, None),
        "cluster/control" => (3, None),
        _ => (75, None),
    };
    let says = (name == "cluster/control").then_some(errands::ANSWERED);
    Twice {
        seconds,
        transfer,
        says,
    }
}

fn once() -> Vec<Scenario> {
    let mut all = strangers::scenarios();
    all.extend(floods::scenarios());
    all.push(errands::scenario());
    all.extend([
        hosts("cluster/join-2", 2, "class=20us", one_key::<2>).check(join),
        hosts("cluster/join-4", 4, "class=60us,lose=5%", one_key::<4>).check(join_all),
        hosts("cluster/dies", 2, "class=20us,die=1@60s", one_key::<2>).check(die),
        hosts("cluster/traced", 2, "class=20us,die=1@600s", one_key::<2>)
            .check(trace)
            .slow(),
        hosts("cluster/cut-and-back", 2, CUT, one_key::<2>).check(come_back),
        other_clock(),
        other_cpu(),
        hosts("cluster/probe", 2, "class=20us,lose=5%", one_key::<2>)
            .check(|stage| measure(stage, "AES-128-GCM")),
        hosts("cluster/probe-chacha", 2, "class=20us,lose=5%", without_aes)
            .check(|stage| measure(stage, "ChaCha20-Poly1305")),
        without_random_bits(),
        repeat(),
    ]);
    all.extend(transfers::scenarios());
    all
}

/// A cut of 5 s, with 2 % loss.
const CUT: &str = "class=20us,lose=2%,cut=0-1@60s+5s";

/// Hosts with a VM each.
fn hosts(name: &'static str, count: u8, wire: &'static str, prepare: Prepare) -> Scenario {
    let hardware = Hardware::hosts(count, "512M", wire);
    let vm = Vm::bare("hello", "hello", "").flat();
    Scenario::new(name, hardware, vec![vm]).prepare(prepare)
}

/// A cluster of so many hosts that have one key.
pub(super) fn one_key<const HOSTS: usize>(directory: &Path) -> Outcome<Vec<String>> {
    let file = cluster(directory, "cluster", 'a', HOSTS)?;
    Ok(options(&[file]))
}

/// A host with another clock stays out, and each side names both frequencies.
fn other_clock() -> Scenario {
    let scenario = hosts("cluster/other-clock", 2, "class=20us", |directory| {
        let mut words = one_key::<2>(directory)?;
        words.push("--cpu-on=host1=neoverse-n1,cntfrq=50000000".to_owned());
        Ok(words)
    });
    scenario.check(|stage| {
        let machine = stage.machine()?;
        for (number, hz) in [
            (0, "50000000 Hz, here 62500000"),
            (1, "62500000 Hz, here 50000000"),
        ] {
            let seen = await_seen(machine, number, |it| it.state == "unfit")?;
            let why = seen.why.unwrap_or_default();
            let (host, other) = (format!("host{number}"), NAMES[1 - number]);
            await_log(
                machine,
                &host,
                &[&format!("{other} cannot join: its clock has {hz}")],
            )?;
            let told = machine.run(&["--host", &host, "cluster", "why", other])?;
            if !why.contains(hz) || !told.contains(hz) || told.lines().count() != 3 {
                return Err(format!("{host} says: {why}; {told}"));
            }
        }
        Ok(())
    })
}

/// A host with other CPUs stays out, as guests would see other caches; each side names all ID registers that differ.
fn other_cpu() -> Scenario {
    let scenario = hosts("cluster/other-cpu", 2, "class=20us", |directory| {
        let mut words = one_key::<2>(directory)?;
        words.push("--cpu-on=host1=neoverse-v1".to_owned());
        Ok(words)
    });
    scenario.check(|stage| {
        let machine = stage.machine()?;
        for number in [0, 1] {
            await_seen(machine, number, |it| it.state == "unfit")?;
            let host = format!("host{number}");
            let told = machine.run(&["--host", &host, "cluster", "why", NAMES[1 - number]])?;
            // What Neoverse N1 has of ID_AA64ISAR0_EL1 is a part of what V1 has.
            let both = "VMs of both get 0x100010211120";
            if !told.contains("in CTR_EL0, here") || !told.contains(both) {
                return Err(format!("{host} says: {told}"));
            }
        }
        Ok(())
    })
}

/// Bytes that the hosts of `cluster/probe` transfer.
const PROBED: u64 = 16 << 20;

/// A cluster of two hosts, of which the second has no AES.
fn without_aes(directory: &Path) -> Outcome<Vec<String>> {
    let mut words = one_key::<2>(directory)?;
    words.push("--auth=host1=chacha20".to_owned());
    Ok(words)
}

/// A transfer arrives as it was sent though frames are lost, while the hosts stay members.
fn measure(stage: &mut Stage, cipher: &str) -> Outcome {
    let machine = stage.machine()?;
    let joined = [0, 1].map(|host| await_seen(machine, host, |it| it.state == "in"));
    let [before, _] = [joined[0].clone()?, joined[1].clone()?];
    let bytes = format!("{}MiB", PROBED >> 20);
    let words = [
        "--host", "host0", "cluster", "probe", "right", "--rounds", "4",
    ];
    let words = [&words[..], &["--bytes", &bytes, "-o", "json"]].concat();
    let told = machine.run(&words)?;
    let json: Value = serde_json::from_str(&told).map_err(because("no JSON"))?;
    let least = json["round_trips"]["least_ns"].as_u64().unwrap_or(0);
    let after = seen_by(machine, 0)?;
    let is_right = json["transfer"]["bytes"] == PROBED
        && least >= LINE_NS
        && after.epoch == before.epoch
        && after.cipher.as_deref() == Some(cipher)
        && after.resent > before.resent
        && after.dropped["forged"] == 0;
    if !is_right {
        return Err(format!("it tells {told}; {before:?}, then {after:?}"));
    }
    let metrics = machine.run(&["--host", "host1", "metrics"])?;
    let in_it = "underpin_peer_state{host=\"host1\",peer=\"left\",state=\"in\"} 1";
    if !metrics.contains(in_it) {
        return Err(format!("the metrics lack {in_it}: {metrics}"));
    }
    check_stretches(machine)
}

/// A machine without a source of random bits does not join, and says why.
fn without_random_bits() -> Scenario {
    let scenario = hosts("cluster/no-random-bits", 2, "class=20us", |directory| {
        let mut words = one_key::<2>(directory)?;
        let no_seed = ["-M", "dtb-randomness=off"];
        words.extend(no_seed.map(|word| format!("--qemu-arg={word}")));
        Ok(words)
    });
    scenario.check(|stage| {
        let machine = stage.machine()?;
        let status = machine.refused(&["--host", "host0", "cluster"])?;
        let log = machine.host_log("host0");
        let says = log.contains("this machine does not join: no source of random bits");
        if says && status == IMPOSSIBLE {
            return Ok(());
        }
        Err(format!("the command ended with {status}, the log is {log}"))
    })
}

/// VMs on both hosts ping each other by the cards of the link; two runs are equal to the bit.
fn repeat() -> Scenario {
    // The scenario's own machine makes room for a cluster of its name.
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new("cluster/repeats", Hardware::new(1, "512M"), vec![other]);
    scenario.check(|stage| {
        stage.machine()?.kill();
        let file = cluster(&stage.directory, "cluster", 'a', 2)?;
        let more = ["--cluster".to_owned(), file];
        let mut run = |name: &str| -> Outcome<[[String; 2]; 2]> {
            let said = ring::run(stage, name, &more)?;
            Ok(said.map(|[console, log]| [console, until_asked(&log)]))
        };
        let (first, second) = (run("first")?, run("second")?);
        if first != second {
            return Err(format!("two runs differ: {first:?}, then {second:?}"));
        }
        first.iter().try_for_each(|[console, log]| {
            ring::judge(console)?;
            let has_joined = log.contains("epoch 1 has left right");
            has_joined.then_some(()).ok_or_else(|| log.clone())
        })
    })
}

/// A hypervisor's log until its VM has ended: then the machine is asked to power off, at a moment of chance.
fn until_asked(log: &str) -> String {
    let lines = log.lines().take_while(|line| !line.contains("has ended"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What a host sees of all.
fn all_seen_by(machine: &Machine, number: usize) -> Outcome<Vec<HostStatus>> {
    let host = format!("host{number}");
    let said = machine.run(&["--host", &host, "cluster", "-o", "json"])?;
    serde_json::from_str(&said).map_err(because("no JSON"))
}

/// What a host of two sees of the other.
fn seen_by(machine: &Machine, number: usize) -> Outcome<HostStatus> {
    let all = all_seen_by(machine, number)?;
    let mut others = all.iter().filter(|it| it.name == NAMES[1 - number]);
    let other = others.next().cloned();
    other.ok_or_else(|| format!("host{number} does not know the other: {all:?}"))
}

/// Waits until a host sees the other as `wanted`.
fn await_seen(
    machine: &Machine,
    number: usize,
    wanted: impl Fn(&HostStatus) -> bool,
) -> Outcome<HostStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = seen_by(machine, number)?;
        if wanted(&seen) {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            return Err(format!("host{number} still sees {seen:?}"));
        }
        sleep(POLL);
    }
}

/// Waits until a host's log has these, one after the other; gives the time of each in milliseconds.
pub(super) fn await_log(machine: &Machine, host: &str, wanted: &[&str]) -> Outcome<Vec<u64>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = machine.host_log(host);
        let mut lines = log.lines();
        let times = wanted.iter().map_while(|text| {
            let line = lines.find(|line| line.contains(text))?;
            time_ms(line)
        });
        let times: Vec<u64> = times.collect();
        if times.len() == wanted.len() {
            return Ok(times);
        }
        if Instant::now() > deadline {
            let missing = wanted.get(times.len()).copied().unwrap_or_default();
            return Err(format!("{host} does not say '{missing}': {log}"));
        }
        sleep(POLL);
    }
}

/// The time of a line of the log, which has seconds in brackets.
pub fn time_ms(line: &str) -> Option<u64> {
    let (seconds, _) = line.split_once('[')?.1.split_once(']')?;
    let seconds: f64 = seconds.trim().parse().ok()?;
    Some((seconds * 1000.0) as u64)
}

/// Both hosts are in one membership.
fn join(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let is_in = |it: &HostStatus| it.state == "in" && it.round_trip_ns > 0;
    let seen = [
        await_seen(machine, 0, is_in)?,
        await_seen(machine, 1, is_in)?,
    ];
    for it in &seen {
        let is_clean = it.resent == 0 && it.dropped["forged"] == 0;
        if it.epoch == 0 || it.epoch != seen[0].epoch || it.round_trip_ns < LINE_NS || !is_clean {
            return Err(format!("the hosts see each other so: {seen:?}"));
        }
    }
    check_stretches(machine)?;
    let text = machine.run(&["cluster"])?;
    let is_told = |text: &str| text.contains("left: in epoch") && text.contains("with 2 members");
    if !is_told(&text) {
        return Err(format!("the table is {text}"));
    }
    be_in_time(machine)
}

/// The moment at which a host is asked for a round trip changes nothing of what it takes.
fn be_in_time(machine: &mut Machine) -> Outcome {
    let words = "--host host0 cluster probe right --rounds 400 --bytes 0MiB -o json";
    let told = machine.run(&words.split(' ').collect::<Vec<_>>())?;
    let json: Value = serde_json::from_str(&told).map_err(because("no JSON"))?;
    let most = json["round_trips"]["most_ns"].as_u64();
    most.is_some_and(|most| (LINE_NS..LATE_NS).contains(&most))
        .then_some(())
        .ok_or_else(|| format!("a round trip takes too long: {told}"))
}

/// All of four hosts are in one membership, though frames are lost.
fn join_all(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all: Vec<HostStatus> = (0..4)
            .map(|host| all_seen_by(machine, host))
            .collect::<Outcome<Vec<_>>>()?
            .concat();
        let is_in = |it: &&HostStatus| it.state == "in" && it.epoch == all[0].epoch;
        let resent: u64 = all.iter().map(|it| it.resent).sum();
        if all.iter().filter(is_in).count() == 12 && resent > 0 {
            return check_stretches(machine);
        }
        if Instant::now() > deadline {
            return Err(format!("the hosts see each other so: {all:?}"));
        }
        sleep(POLL);
    }
}

/// No stretch at EL2 of either host took more than 100,000 instructions, of 1 ns each.
fn check_stretches(machine: &Machine) -> Outcome {
    for host in ["host0", "host1"] {
        let said = machine.run(&["--host", host, "machine", "-o", "json"])?;
        let json: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
        let kinds = json["stretches"][0]["longest_ns"].as_object();
        let longest = kinds.and_then(|kinds| kinds.values().filter_map(Value::as_u64).max());
        if longest.is_none_or(|ns| ns > STRETCH_NS_MAX) {
            return Err(format!("stretches of {host}: {kinds:?}"));
        }
    }
    Ok(())
}

/// A host that dies is declared dead in time, after what is shared has stopped.
fn die(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let wanted = ["has left right", "is silent", "right is lost"];
    let times = await_log(machine, "host0", &wanted)?;
    let seen = await_seen(machine, 0, |it| it.state == "away")?;
    let silence = times[2].saturating_sub(60_000);
    machine.kill();
    if times[1] >= times[2] || !DECLARED_MS.contains(&silence) || seen.epoch != 0 {
        return Err(format!("died at 60000 ms, {times:?}, {seen:?}"));
    }
    Ok(())
}

/// A trace has what happens to hosts. The death is late enough for a busy host to begin the trace before.
fn trace(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let words = "--host host0 -o json trace --classes hosts --for 5m";
    let trace = machine.spawn(&words.split(' ').collect::<Vec<_>>())?;
    await_log(machine, "host0", &["is silent", "right is lost"])?;
    await_seen(machine, 0, |it| it.state == "away")?;
    interrupt(&trace)?;
    let traced = said_by(trace)?;
    let json: Value = serde_json::from_str(&traced).map_err(because("no JSON"))?;
    let counted = |what: &str| {
        let mut lines = json["seen"].as_array().into_iter().flatten();
        let line = lines.find(|line| line["class"] == "hosts" && line["name"] == what);
        line.and_then(|line| line["count"].as_u64())
    };
    let is_right = [counted("stopped"), counted("lost")] == [Some(1), Some(1)];
    is_right
        .then_some(())
        .ok_or_else(|| format!("host0 has traced {traced}"))
}

/// Hosts that are cut off from each other lose each other, and join again as new ones.
fn come_back(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let wanted = ["has left right", "right is lost", "has left right"];
    let times = await_log(machine, "host0", &wanted)?;
    let is_in = |it: &HostStatus| it.state == "in";
    let seen = await_seen(machine, 0, is_in)?;
    await_seen(machine, 1, is_in)?;
    check_stretches(machine)?;
    if times[2] < 65_000 || times[2] > 72_000 || seen.epoch < 2 || seen.resent == 0 {
        return Err(format!("cut from 60000 to 65000 ms, {times:?}, {seen:?}"));
    }
    Ok(())
}
