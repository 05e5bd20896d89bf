//! Pages go where they are used, on a machine that counts misses and on one that does not.

use super::kernels::powered_off;
use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    status::{MoveStatus, NumaStatus, parse},
    vm::Vm,
};
use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// Pages of the 2 MiB that it uses.
const PAGES: u64 = 512;
const SOON: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);

/// Lines of memory that the guest goes through: 2 MiB, twice a cache.
const LINES: u64 = 32_768;

/// Bytes that the guest of `by_hand` uses.
const EATEN: u64 = 16 << 20;

/// Memory that the guest of `turns` writes, and how often each page of it may move.
const TURNS_KIB: u64 = 64;
const TURNS_MOVES: u64 = 36;

/// After how often its pages are left, what the guest of `gain` did at first counts no more.
const LEFT_OFTEN: u64 = 4096;

/// The most misses that may be remote in `chance`, in percent.
const CHANCE_REMOTE: u64 = 60;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        moves(),
        stays(),
        copies(),
        sampled(),
        chance(3),
        chance(11),
        eight(),
        turns(),
        by_hand(),
        gain(),
    ]
}

/// One vCPU uses what the other one, on another node, has filled: it moves to that node, and every word
/// is as it was. A page is hot after two passes, and 128 move every 2 ms.
fn moves() -> Scenario {
    run("placement/moves", None, "passes=100").check(becomes_local)
}

/// Both vCPUs read the same memory: each node comes to have it. Then one writes all of it, and the other
/// one sees it; and again.
fn copies() -> Scenario {
    let work = "work=scene passes=80 rounds=2";
    run("placement/copies", None, work).check(becomes_local)
}

/// Nearly all lines are remote at first for all that use them but one, and nearly none for anybody in the end: 5 % of what
/// is read from afar at most, together and on each CPU.
fn becomes_local(stage: &mut Stage) -> Outcome {
    let first = column(stage, 0, "data_remote")?;
    let last = column(stage, 1, "data_remote")?;
    let far = first.iter().filter(|misses| **misses >= LINES * 9 / 10);
    let far = far.count() as u64;
    let is_near = |misses: &u64| *misses <= LINES / 20;
    let are_near = last.iter().all(is_near) && last.iter().sum::<u64>() <= far * LINES / 20;
    if far + 1 == first.len() as u64 && are_near {
        Ok(())
    } else {
        Err(format!(
            "remote misses by CPU: {first:?} at first, {last:?} at last, of {LINES} each"
        ))
    }
}

/// As `moves`, where nothing is to move.
fn stays() -> Scenario {
    run("placement/stays", Some("numa=off"), "passes=8").check(|stage| {
        let last = remote(stage, 1)?;
        if last >= LINES * 9 / 10 {
            Ok(())
        } else {
            Err(format!("remote misses: {last} at last, of {LINES}"))
        }
    })
}

/// As `moves`, on a machine that counts nothing: what vCPU 1 uses comes to its node.
fn sampled() -> Scenario {
    let vm = Vm::bare("guest", "placement", "kib=2048 passes=2000").cpus(2);
    let hardware = Hardware::new(2, "1G").nodes(2).counted();
    let hardware = hardware.option("--append").option("numa=sample");
    Scenario::new("placement/sampled", hardware, vec![vm])
        .check(|stage| {
            let machine = stage.machine()?;
            let deadline = Instant::now() + SOON;
            loop {
                let vm = guest(machine)?;
                if vm.misses == "sampled" && vm.moved >= PAGES / 2 {
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(format!("{} of {PAGES} pages have moved", vm.moved));
                }
                sleep(POLL);
            }
        })
        .check(|stage| {
            let machine = stage.machine()?;
            machine.expect("guest", "underpin-guest: placement ok", 1, SOON)?;
            powered_off(stage, "guest")
        })
}

/// What four vCPUs compute is right while pages move, get copies and lose them, for a seed's orders and
/// pauses; and they do move: without, three of four misses would be remote. `xtask bench-numa seeds` has more.
fn chance(seed: u64) -> Scenario {
    let args = format!("work=chance kib=1024 passes=20 rounds=2 seed={seed}");
    let vm = Vm::bare("guest", "placement", &args).cpus(4);
    let turn = format!("slice_ns={}", 2_000 + seed * 7_919 % 16_000);
    let hardware = Hardware::new(4, "1G").nodes(4).option("--flash");
    let hardware = ["cache_kib=32", &turn]
        .into_iter()
        .fold(hardware, |it, word| {
            it.option("--flash-option").option(word)
        });
    Scenario::new(format!("placement/chance-{seed}"), hardware, vec![vm])
        .prepare(|directory| Ok(results(directory)))
        .expect("guest", "underpin-guest: placement ok", 600)
        .check(|stage| {
            let (near, far) = (sum(stage, 2, "data_local")?, sum(stage, 2, "data_remote")?);
            if far * 100 < (near + far) * CHANCE_REMOTE {
                Ok(())
            } else {
                Err(format!("{far} misses of {} were remote", near + far))
            }
        })
        .check(|stage| powered_off(stage, "guest"))
}

/// As `copies`, on eight nodes: all come to have what all read.
fn eight() -> Scenario {
    let vm = Vm::bare("guest", "placement", "work=scene kib=2048 passes=30").cpus(8);
    let hardware = Hardware::new(8, "1G").nodes(8).option("--flash").counted();
    Scenario::new("placement/eight", hardware, vec![vm])
        .prepare(|directory| Ok(results(directory)))
        .expect("guest", "underpin-guest: placement ok", 600)
        .check(becomes_local)
        .check(|stage| powered_off(stage, "guest"))
}

/// Four nodes write the same pages in turn, 400 times: they move a few times, and are left then.
fn turns() -> Scenario {
    let args = format!("work=turns kib={TURNS_KIB} passes=4 rounds=100");
    let vm = Vm::bare("guest", "placement", &args).cpus(4);
    let hardware = Hardware::new(4, "1G").nodes(4).option("--flash");
    let hardware = hardware.option("--flash-option").option("cache_kib=32");
    Scenario::new("placement/turns", hardware, vec![vm])
        .prepare(|directory| Ok(results(directory)))
        .check(|stage| {
            let machine = stage.machine()?;
            let mut last = guest(machine)?;
            // Until it has ended: the figures are those of while it writes.
            while let Ok(vm) = guest(machine) {
                last = vm;
                sleep(POLL);
            }
            machine.expect("guest", "underpin-guest: placement ok", 1, SOON)?;
            let left = last.left.get("moved-often").copied().unwrap_or(0);
            let moves = last.moved * 4 / TURNS_KIB;
            if moves > 0 && moves <= TURNS_MOVES && left > last.moved {
                Ok(())
            } else {
                Err(format!(
                    "{moves} moves of a page; left as often moved: {left} times"
                ))
            }
        })
        .check(|stage| powered_off(stage, "guest"))
}

/// All of a waiting VM's memory goes to the other node: how much that is and how long it takes at least is told before,
/// and what came of it after. What stays behind is what it shares: pages of its image that it never wrote.
fn by_hand() -> Scenario {
    let vm = Vm::bare("guest", "hungry", "mib=16 wait").memory("64MiB");
    let hardware = Hardware::new(2, "1G").nodes(2).counted();
    Scenario::new("placement/by-hand", hardware, vec![vm])
        .expect("guest", "hungry: has eaten", 600)
        .check(|stage| {
            let machine = stage.machine()?;
            let [here, there] = on_nodes(machine)?;
            let (from, to) = if here > there { (0, 1) } else { (1, 0) };
            let told = machine.told(&["numa", "move", "guest", &to.to_string(), "--wait"])?;
            let after = on_nodes(machine)?;
            let shared = machine.mem("guest")?.shared;
            if after[to] < EATEN || after[from] != shared {
                return Err(format!(
                    "{after:?} bytes are on the nodes, {shared} are shared; told: {told}"
                ));
            }
            let came = format!("guest: 16 MiB came to node {to} in ");
            let foretold = "guest: 16 MiB of 16 MiB are on other nodes; to move them takes 0.1 s";
            let mut expected = [foretold, &came, " did not"].into_iter();
            expected
                .find(|words| !told.contains(*words))
                .map_or(Ok(()), |words| {
                    Err(format!("not told: '{words}'; but: {told}"))
                })
        })
        .check(|stage| stage.machine()?.run(&["kill", "guest"]).map(drop))
}

/// Two nodes write the same pages in turn, which is no reason to move them, but one of them more lines: by hand they go
/// to the other one and back, and each time it is told that more misses are local, or fewer.
fn gain() -> Scenario {
    let args = "work=turns uneven kib=256 passes=1 rounds=10000000";
    let vm = Vm::bare("guest", "placement", args).cpus(2);
    let hardware = Hardware::new(2, "1G").nodes(2).option("--flash");
    let hardware = hardware.option("--flash-option").option("cache_kib=32");
    Scenario::new("placement/gain", hardware, vec![vm])
        .check(|stage| {
            let machine = stage.machine()?;
            let home = await_misses(machine)?;
            let (before, after) = moved(machine, 1 - home)?;
            let (_, back) = moved(machine, home)?;
            // Which vCPU runs on which node is the scheduler's to say, so either node may have more.
            let is_told = |more, less| more > 55 && less < 45;
            let is_less = is_told(before, after) && is_told(back, after);
            let is_more = is_told(after, before) && is_told(after, back);
            if is_less || is_more {
                Ok(())
            } else {
                Err(format!(
                    "{before} % local misses, {after} % after, {back} % back"
                ))
            }
        })
        .check(|stage| stage.machine()?.run(&["kill", "guest"]).map(drop))
}

/// Waits until misses are known; the node that has most of the VM's memory.
fn await_misses(machine: &Machine) -> Outcome<usize> {
    let deadline = Instant::now() + SOON;
    loop {
        let why = guest(machine)?;
        let left = why.left.get("write-shared").copied().unwrap_or(0);
        if left > LEFT_OFTEN {
            let [here, there] = on_nodes(machine)?;
            return Ok(usize::from(there > here));
        }
        if Instant::now() > deadline {
            return Err(format!("pages are not written by several: {why:?}"));
        }
        sleep(POLL);
    }
}

/// Moves the VM by hand; the local share of misses before and after, in percent, told to people and to programs alike.
fn moved(machine: &Machine, node: usize) -> Outcome<(u64, u64)> {
    let (json, said) = machine.both(&[
        "numa",
        "move",
        "guest",
        &node.to_string(),
        "--wait",
        "-o",
        "json",
    ])?;
    let told: MoveStatus = parse("numa move", &json)?;
    let gain = told.gain.ok_or("no gain was told")?;
    let (Some(before), Some(after)) = (gain.local_percent_before, gain.local_percent_after) else {
        return Err(format!("no misses were told: {json}"));
    };
    let expected =
        format!("{before} % of the misses on hot pages were local before, {after} % in the");
    let far = format!("; {} % of the misses", 100 - before);
    let is_told = said.contains(&expected)
        && said.contains(&far)
        && told.forecast.remote_percent == Some(100 - before);
    if is_told && gain.came > 0 && gain.came <= told.forecast.elsewhere {
        Ok((before, after))
    } else {
        Err(format!("{json} and {said}"))
    }
}

/// Bytes of the VM on each node.
fn on_nodes(machine: &Machine) -> Outcome<[u64; 2]> {
    let memory = guest(machine)?.memory;
    memory
        .try_into()
        .map_err(|memory| format!("memory is told of other nodes: {memory:?}"))
}

/// What became of the VM's pages.
fn guest(machine: &Machine) -> Outcome<NumaStatus> {
    let vms: Vec<NumaStatus> = parse("numa", &machine.run(&["numa", "-o", "json"])?)?;
    vms.into_iter()
        .next()
        .ok_or_else(|| "there is no VM".to_owned())
}

fn run(name: &str, append: Option<&str>, work: &str) -> Scenario {
    let args = format!("kib=2048 {work}");
    let vm = Vm::bare("guest", "placement", &args).cpus(2);
    let mut hardware = Hardware::new(2, "1G").nodes(2).option("--flash");
    if let Some(append) = append {
        hardware = hardware.option("--append").option(append);
    }
    Scenario::new(name, hardware, vec![vm])
        .prepare(|directory| Ok(results(directory)))
        .expect("guest", "underpin-guest: placement ok", 600)
        .check(|stage| powered_off(stage, "guest"))
}

fn results(directory: &Path) -> Vec<String> {
    let file = directory.join("results.csv").display().to_string();
    vec!["--results".to_owned(), file]
}

/// Misses on remote memory that all CPUs had in a region.
fn remote(stage: &Stage, region: u64) -> Outcome<u64> {
    sum(stage, region, "data_remote")
}

/// The sum of [`column`].
fn sum(stage: &Stage, region: u64, name: &str) -> Outcome<u64> {
    Ok(column(stage, region, name)?.iter().sum())
}

/// A column of a region's results, by CPU.
fn column(stage: &Stage, region: u64, name: &str) -> Outcome<Vec<u64>> {
    let file = stage.directory.join("results.csv");
    let text = fs::read_to_string(file).map_err(because("cannot read the results"))?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().ok_or("there are no results")?;
    let at = header.iter().position(|title| *title == name);
    let at = at.ok_or_else(|| format!("the results have no column {name}"))?;
    let of_region = lines.filter(|line| line.first() == Some(&region.to_string().as_str()));
    let misses: Vec<u64> = of_region
        .filter_map(|line| line.get(at)?.parse().ok())
        .collect();
    if misses.is_empty() {
        return Err(format!("region {region} has no results"));
    }
    Ok(misses)
}
