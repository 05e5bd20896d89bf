//! Machines of many shapes: nodes, uneven memory, much memory.

use super::kernels::{BOOT, WORK, WORK_ARGS, powered_off};
use crate::{
    Outcome,
    machine::Hardware,
    scenario::{Scenario, Stage},
    status::NodeStatus,
    vm::Vm,
};
use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;
/// What the hypervisor may take of a machine, beside the frame table and the bundle.
const OWN: u64 = 32 * MIB;

pub fn scenarios() -> Vec<Scenario> {
    let mut all = vec![even(4)];
    all.extend([1, 2, 8, 32].map(|nodes| even(nodes).slow()));
    all.push(uneven());
    all.push(huge());
    all.push(memory_comes_back());
    all
}

fn worker() -> Vm {
    Vm::linux("guest", "trixie-cloud", "work")
        .args(WORK_ARGS)
        .cpus(2)
        .memory("256MiB")
}

/// The nodes of a VM that is to stay on some: on a machine of four, each with one CPU.
const OWN_NODES: [u8; 2] = [2, 3];

/// A machine split evenly; each node has its CPU and its part of the memory. On one of four nodes the VM is to stay
/// on two.
fn even(nodes: u32) -> Scenario {
    let hardware = Hardware::new(nodes.max(2), "4G").nodes(nodes);
    let own: &[u8] = if nodes == 4 { &OWN_NODES } else { &[] };
    let vm = own.iter().fold(worker(), |vm, node| vm.on_node(*node));
    Scenario::new(format!("machine/{nodes}-nodes"), hardware, vec![vm])
        .expect("guest", "ready kernel=", 2 * BOOT)
        .check(|stage| stays_on(stage, own))
        .check(|stage| {
            let patience = Duration::from_secs(2 * BOOT);
            stage
                .machine()?
                .expect("guest", WORK, 1, patience)
                .map(drop)
        })
        .check(|stage| powered_off(stage, "guest"))
        .check(move |stage| {
            let found = stage.machine()?.nodes()?;
            let share = 4096 * MIB / u64::from(nodes);
            // The first node has the bundle and more of the hypervisor.
            let taken = stage.machine()?.status()?.bundle + share / 1000 * 8 + OWN;
            let whole =
                |n: &NodeStatus| n.memory <= share && n.memory + taken >= share && n.cpus >= 1;
            if found.len() == nodes as usize && found.iter().all(whole) {
                return Ok(());
            }
            Err(format!(
                "{nodes} even nodes of 4 GiB look like this: {found:?}"
            ))
        })
}

/// Looks where a VM runs and where its memory is until it ends: on its own nodes, where it has any.
fn stays_on(stage: &mut Stage, own: &[u8]) -> Outcome {
    if own.is_empty() {
        return Ok(());
    }
    let machine = stage.machine()?;
    let deadline = Instant::now() + Duration::from_secs(2 * BOOT);
    let mut seen = BTreeSet::new();
    while machine.vm("guest")?.state == "running" {
        let vcpus = machine.vcpus("guest")?;
        let memory = machine.numa()?.pop().map_or_else(Vec::new, |vm| vm.memory);
        let ran = vcpus.iter().filter(|vcpu| vcpu.run_ns > 0);
        let cpus: Vec<u8> = ran.map(|vcpu| vcpu.cpu as u8).collect();
        // What it shares of the bundle lies on the first node.
        let bundle = machine.status()?.bundle;
        let is_foreign = |(node, bytes): (u8, &u64)| {
            !own.contains(&node) && *bytes > if node == 0 { bundle } else { 0 }
        };
        if cpus.iter().any(|cpu| !own.contains(cpu)) || (0..).zip(&memory).any(is_foreign) {
            return Err(format!(
                "on CPUs {cpus:?} with memory {memory:?}, and not on nodes {own:?} alone"
            ));
        }
        seen.extend(cpus);
        if Instant::now() > deadline {
            return Err("it does not end".to_owned());
        }
        sleep(Duration::from_millis(500));
    }
    let was_seen = !seen.is_empty();
    was_seen
        .then_some(())
        .ok_or_else(|| "nobody saw it run".to_owned())
}

/// Nodes of unlike sizes, one of them without a CPU of its own.
fn uneven() -> Scenario {
    let hardware = Hardware::uneven(&[
        "cpus=1,memory=512M",
        "cpus=3,memory=3G",
        "cpus=0,memory=1536M",
    ]);
    Scenario::new("machine/uneven", hardware, vec![worker()])
        .check(|stage| {
            let nodes = stage.machine()?.nodes()?;
            let cpus: Vec<u32> = nodes.iter().map(|node| node.cpus).collect();
            if cpus == [1, 3, 0]
                && nodes[1].memory > nodes[2].memory
                && nodes[2].memory > nodes[0].memory
            {
                return Ok(());
            }
            Err(format!(
                "nodes of 1, 3, 0 CPUs and 512M, 3G, 1536M look like this: {nodes:?}"
            ))
        })
        .expect("guest", WORK, 2 * BOOT)
}

/// 64 GiB, of which the frame table takes at most 0.8 %: all the rest is there to be given away.
fn huge() -> Scenario {
    let hardware = Hardware::new(2, "64G").nodes(2);
    Scenario::new("machine/64-gib", hardware, vec![worker()])
        .expect("guest", WORK, 2 * BOOT)
        .check(|stage| powered_off(stage, "guest"))
        .check(|stage| {
            let status = stage.machine()?.status()?;
            let table_max = status.memory / 1000 * 8;
            let rest = status.frame_table + status.bundle + OWN;
            if status.memory == 64 << 30
                && (1..=table_max).contains(&status.frame_table)
                && status.memory_free + rest >= status.memory
            {
                return Ok(());
            }
            Err(format!("64 GiB look like this: {status:?}"))
        })
}

/// Every frame that a VM took is free again when it has ended.
fn memory_comes_back() -> Scenario {
    let vms = vec![
        worker().asleep(),
        Vm::bare("greedy", "hostile", "do=touch_all")
            .memory("1GiB")
            .asleep(),
    ];
    Scenario::new("machine/returned", Hardware::new(2, "2G").nodes(2), vms).check(|stage| {
        run_to_the_end(stage, "guest")?;
        // What a first start sets up for good is set up now.
        let before = free(stage)?;
        for vm in ["greedy", "guest", "greedy"] {
            run_to_the_end(stage, vm)?;
            let after = free(stage)?;
            if after != before {
                return Err(format!(
                    "{before} bytes were free before '{vm}' ran, and {after} after it"
                ));
            }
        }
        Ok(())
    })
}

fn free(stage: &mut Stage) -> Outcome<u64> {
    Ok(stage.machine()?.nodes()?.iter().map(|node| node.free).sum())
}

fn run_to_the_end(stage: &mut Stage, vm: &str) -> Outcome {
    let machine = stage.machine()?;
    machine.run(&["start", vm])?;
    machine
        .await_state(vm, "ended", Duration::from_secs(2 * BOOT))
        .map(drop)
}
