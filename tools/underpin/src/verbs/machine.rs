//! `underpin machine`: the machine, and what the hypervisor takes of it.

use super::{Context, show};
use crate::{failure::Result, units, watch::os0_times};
use abi::control::{CpuStatus, MachineStatus};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tools_abi::STRETCHES;

/// How long the hypervisor may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Shows the machine.
pub fn machine(context: &Context) -> Result<()> {
    let mut client = context.connect()?;
    let machine = client.hello(ANSWER_TIME)?;
    let cpus = client.cpus()?;
    context
        .output
        .result(|| to_json(&machine, &cpus), |_| to_text(&machine, &cpus))
}

/// Of each pCPU, its longest stretch with interrupts masked for each kind of work, in nanoseconds.
fn stretches(cpus: &[CpuStatus]) -> Vec<Value> {
    let kinds = |cpu: &CpuStatus| -> Map<String, Value> {
        let named = STRETCHES.iter().zip(cpu.stretch_ns);
        named
            .map(|(kind, ns)| ((*kind).to_owned(), ns.into()))
            .collect()
    };
    cpus.iter()
        .map(|cpu| json!({ "cpu": cpu.cpu, "longest_ns": kinds(cpu) }))
        .collect()
}

/// The longest of all, with its pCPU and kind.
fn longest_stretch(cpus: &[CpuStatus]) -> Option<String> {
    let all = cpus.iter().flat_map(|cpu| {
        let named = STRETCHES.iter().zip(cpu.stretch_ns);
        named.map(|(kind, ns)| (ns, *kind, cpu.cpu))
    });
    let (ns, kind, cpu) = all.max()?;
    let time = units::nanoseconds(ns);
    Some(format!("{time} ({kind}, CPU {cpu})"))
}

fn to_json(machine: &MachineStatus, cpus: &[CpuStatus]) -> Value {
    let os0 = os0_times(cpus);
    let [received, sent, lost] = machine.card_frames;
    json!({
        "version": machine.version, "cpus": machine.cpus, "nodes": machine.nodes, "vms": machine.vms,
        "memory": machine.memory, "memory_free": machine.memory_free, "image": machine.image,
        "frame_table": machine.frame_table, "heap": machine.heap, "bundle": machine.bundle,
        "uptime_ns": machine.uptime_ns, "random_bits": machine.seeded == 1,
        "os0": os0.map(|[run, steal]| json!({ "run_ns": run, "steal_ns": steal })),
        "stretches": stretches(cpus),
        "caches": { "frames_cleaned": machine.caches[0], "code_emptied": machine.caches[1] },
        "card": { "received": received, "sent": sent, "lost": lost },
    })
}

fn to_text(machine: &MachineStatus, cpus: &[CpuStatus]) -> String {
    let mut text = String::new();
    let [received, sent, lost] = machine.card_frames.map(units::count);
    let [cleaned, emptied] = machine.caches.map(units::count);
    let mut pairs = vec![
        ("CPUs", machine.cpus.to_string()),
        ("nodes", machine.nodes.to_string()),
        ("VMs", machine.vms.to_string()),
        ("memory", units::size(machine.memory)),
        ("free", units::size(machine.memory_free)),
        ("image", units::size(machine.image)),
        ("frame table", units::size(machine.frame_table)),
        ("heap", units::size(machine.heap)),
        ("bundle", units::size(machine.bundle)),
        (
            "card",
            format!("{received} frames received, {sent} sent, {lost} lost"),
        ),
        (
            "caches",
            format!("{cleaned} frames cleaned to be shared, code emptied {emptied} times"),
        ),
        ("up for", units::nanoseconds(machine.uptime_ns)),
    ];
    if machine.seeded == 0 {
        pairs.push(("random bits", tools_os0::WITHOUT_RANDOM_BITS.to_owned()));
    }
    if let Some(longest) = longest_stretch(cpus) {
        pairs.push(("masked at most", longest));
    }
    if let Some([run, steal]) = os0_times(cpus).map(|times| times.map(units::nanoseconds)) {
        pairs.push(("OS-0", format!("ran {run} beside VMs, {steal} stolen")));
    }
    show::lines(&mut text, &pairs);
    text
}
