//! Who does not know the cluster's key, or seals no frames.

use super::{PATIENCE, POLL, all_seen_by, await_seen, hosts, one_key};
use crate::{
    Outcome, because,
    cluster_file::{options, write as cluster},
    machine::Hardware,
    scenario::{Scenario, Stage},
    status::HostStatus,
    vm::Vm,
};
use serde_json::Value;
use std::{path::Path, thread::sleep, time::Instant};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        hosts("cluster/wrong-key", 2, "class=20us", two_keys).check(stay_apart),
        hosts("cluster/auth-off", 3, "class=20us", without_auth).check(talk_in_the_open),
        forge(),
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
