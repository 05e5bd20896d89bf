//! Who does not know the cluster's key, or seals no frames, or floods a host.

use super::{PATIENCE, POLL, all_seen_by, await_seen, hosts, one_key};
use crate::{
    Outcome, because,
    cluster_file::{options, write as cluster},
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    status::HostStatus,
    vm::Vm,
};
use serde_json::Value;
use std::{fs, path::Path, thread::sleep, time::Instant};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        hosts("cluster/wrong-key", 2, "class=20us", two_keys).check(stay_apart),
        hosts("cluster/auth-off", 3, "class=20us", without_auth).check(talk_in_the_open),
        forge(),
        flood(),
    ]
}

fn two_keys(directory: &Path) -> Outcome<Vec<String>> {
    let file = cluster(directory, "cluster", 'a', 2)?;
    let other = cluster(directory, "other", 'b', 2)?;
    Ok(options(&[file, format!("host1={other}")]))
}

/// A cluster of three hosts, of which the third alone seals its frames.
fn without_auth(directory: &Path) -> Outcome<Vec<String>> {
    let file = cluster(directory, "cluster", 'a', 3)?;
    let mut words = options(&[file]);
    words.extend(["--auth=off", "--auth=host2=on"].map(str::to_owned));
    Ok(words)
}

/// Hosts with authentication off join each other and say so; one with it on stays away, and both sides say why.
fn talk_in_the_open(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    await_seen(machine, 0, |it| it.state == "in")?;
    await_seen(machine, 1, |it| it.state == "in")?;
    let told = machine.run(&["--host", "host0", "cluster"])?;
    let words = "--host host0 cluster probe right --rounds 4 --bytes 1MiB -o json";
    let probed = machine.run(&words.split(' ').collect::<Vec<_>>())?;
    if !told.contains("auth is off") || !probed.contains("1048576") {
        return Err(format!("host0 says {told}, {probed}"));
    }
    let says = [
        (0, "third", "it has auth on, and this machine auth off"),
        (2, "left", "it has auth off, and this machine auth on"),
    ];
    for (number, name, why) in says {
        let seen = all_seen_by(machine, number)?;
        let is_away = |it: &HostStatus| it.name == name && it.state == "away";
        let mut away = seen.iter().filter(|it| is_away(it));
        let said = away.next().and_then(|it| it.why.clone());
        if !said.is_some_and(|said| said.contains(why)) {
            return Err(format!("host{number} sees {seen:?}"));
        }
    }
    Ok(())
}

/// A host with another key stays out, and both say why.
fn stay_apart(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    for number in [0, 1] {
        let refused = |it: &HostStatus| it.dropped["forged"] > 3;
        let seen = await_seen(machine, number, refused)?;
        let says = seen
            .why
            .as_ref()
            .is_some_and(|why| why.contains("another key"));
        if seen.state != "away" || seen.epoch != 0 || !says {
            return Err(format!("host{number} sees {seen:?}"));
        }
    }
    Ok(())
}

/// A VM that sends frames which look like the link's, to the other host's card, makes that host no work.
fn forge() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let vm = Vm::bare(
        "forger",
        "ring",
        "link rounds=1000000000 patience=2000 pause=100",
    );
    let vm = vm.uplink("lan").address("52:54:00:00:00:00");
    Scenario::new("cluster/forger", hardware, vec![vm])
        .prepare(one_key::<2>)
        .check(|stage| {
            let machine = stage.machine()?;
            let is_in = |it: &HostStatus| it.state == "in";
            await_seen(machine, 1, is_in)?;
            let deadline = Instant::now() + PATIENCE;
            loop {
                let said = machine.run(&["--host", "host0", "show", "forger", "-o", "json"])?;
                let json: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
                let lost = json["net"]["dropped"]["nowhere"].as_u64();
                if lost.is_some_and(|lost| lost > 1000) {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!("the forger has lost {lost:?} frames: {said}"));
                }
                sleep(POLL);
            }
            let seen = await_seen(machine, 1, is_in)?;
            let dropped: u64 = seen.dropped.values().sum();
            // Hellos that cross can cost a frame or two; of the forger's there were more than a thousand.
            (dropped <= 4)
                .then_some(())
                .ok_or_else(|| format!("host1 sees {seen:?}"))
        })
}

/// The most of a CPU that frames of strangers may take, in percent.
const FLOOD_PERCENT_MAX: u64 = 35;
/// The least frames a second that are called a flood.
const FLOOD_RATE_MIN: u64 = 100_000;
/// How long the flood is looked at, in milliseconds of the machine.
const FLOOD_MS: u64 = 2_500;

/// A machine that is no host sends 10^5 frames a second, which look like the link's, to a host: it takes a bounded part of that
/// host's CPU, whose VM and membership go on.
fn flood() -> Scenario {
    let hardware = Hardware::hosts(3, "512M", "class=20us");
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new("cluster/flood", hardware, vec![other]);
    let scenario = scenario.prepare(|directory| {
        let file = cluster(directory, "cluster", 'a', 3)?;
        let mut words = options(&[1, 2].map(|host| format!("host{host}={file}")));
        let args = "link length=60 rounds=1000000000 patience=0 pause=0 busy=1100";
        let sender = Vm::bare("flooder", "ring", args).uplink("lan");
        let sender = sender.address("52:54:00:00:00:00");
        let busy = Vm::bare("busy", "hello", "turns=1000000000000").flat();
        for (host, vm) in [(0, sender), (1, busy)] {
            let file = directory.join(format!("on{host}.toml"));
            fs::write(&file, vm.to_toml()?).map_err(because("cannot write a VM file"))?;
            words.extend(["--on".to_owned(), format!("host{host}={}", file.display())]);
        }
        Ok(words)
    });
    scenario.check(bear).slow()
}

/// What `cluster/flood` measures of a host: time, time of its VM, frames that its card took, and that nobody read.
fn measured(machine: &Machine) -> Outcome<[u64; 3]> {
    let said = |words: &[&str]| -> Outcome<Value> {
        let words = [&["--host", "host1"], words, &["-o", "json"]].concat();
        serde_json::from_str(&machine.run(&words)?).map_err(because("no JSON"))
    };
    let (of_machine, of_vm) = (said(&["machine"])?, said(&["show", "busy"])?);
    let all = [
        &of_machine["uptime_ns"],
        &of_vm["run_ns"],
        &of_machine["card"]["received"],
    ];
    Ok(all.map(|it| it.as_u64().unwrap_or(0)))
}

fn bear(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let is_in = |it: &HostStatus| it.name == "third" && it.state == "in";
    let third = || -> Outcome<HostStatus> {
        let all = all_seen_by(machine, 1)?;
        let third = all.iter().find(|it| it.name == "third").cloned();
        third.ok_or_else(|| format!("host1 does not know the third: {all:?}"))
    };
    let deadline = Instant::now() + PATIENCE;
    while !is_in(&third()?) {
        if Instant::now() > deadline {
            return Err(format!("host1 still sees {:?}", third()?));
        }
        sleep(POLL);
    }
    let (before, epoch) = (measured(machine)?, third()?.epoch);
    let mut after = before;
    while after[0] < before[0] + 1_000_000 * FLOOD_MS {
        sleep(POLL);
        after = measured(machine)?;
    }
    let [time, ran, frames] = [0, 1, 2].map(|n| after[n] - before[n]);
    let percent = 100 - 100 * ran / time;
    let rate = frames * 1_000_000_000 / time;
    let told = format!(
        "{rate} frames a second took {percent} % of a CPU; {:?}",
        third()?
    );
    println!("{told}");
    let is_same = is_in(&third()?) && third()?.epoch == epoch;
    let is_borne = percent <= FLOOD_PERCENT_MAX && rate >= FLOOD_RATE_MIN && is_same;
    is_borne.then_some(()).ok_or(told)
}
