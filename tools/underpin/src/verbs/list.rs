//! `underpin list` and `underpin nodes`.

use super::Context;
use crate::{
    control::Client,
    failure::Result,
    order::natural_by,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::control::{NodeStatus, state};
use serde_json::{Map, Value, json};
use tools_abi::status::VmStatus;
use tools_abi::{EXIT_CLASSES, NET_DROPS, latency_bound_ns, links};

/// A VM, and the names of the hosts that it spans.
type Listed = (VmStatus, Vec<String>);

/// A host's number, and its name.
pub type Host = (u32, String);

/// The hosts that a VM spans; none of a VM that is the machine's alone.
pub fn hosts_of(client: &mut Client, vm: &VmStatus) -> Result<Vec<Host>> {
    if vm.hosts == 0 {
        return Ok(Vec::new());
    }
    let hosts = client.hosts()?;
    let its = hosts.iter().filter(|host| vm.hosts >> host.number & 1 != 0);
    Ok(its.map(|it| (it.number, it.name.to_string())).collect())
}

/// Their names.
pub fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(|(_, name)| name.clone()).collect()
}

/// Lists the VMs, of all hosts where no host is named.
pub fn list(context: &Context) -> Result<()> {
    let ask = |host: &Context| {
        let mut client = host.connect()?;
        let mut vms = client.list()?;
        natural_by(&mut vms, |vm| vm.name.to_string());
        let named = |vm: VmStatus| Ok((vm, names(&hosts_of(&mut client, &vm)?)));
        vms.into_iter().map(named).collect()
    };
    let json = |vms: &[Listed]| vms.iter().map(|(vm, hosts)| vm_json(vm, hosts)).collect();
    context.show_of_hosts(ask, json, vm_table)
}

/// Lists the machine's nodes.
pub fn nodes(context: &Context) -> Result<()> {
    let nodes = context.connect()?.nodes()?;
    context.output.result(
        || nodes.iter().enumerate().map(node_json).collect(),
        |output| node_table(&nodes, output),
    )
}

/// A state's name, and how it stands out.
pub fn state_name(number: u32) -> (&'static str, Tone) {
    match number {
        state::DEFINED => ("defined", Tone::Plain),
        state::RUNNING => ("running", Tone::Good),
        state::PAUSED => ("paused", Tone::Still),
        state::ENDED => ("ended", Tone::Plain),
        state::ENDING => ("ending", Tone::Still),
        _ => ("unknown", Tone::Bad),
    }
}

fn vm_table(vms: &[Listed], output: Output) -> String {
    let mut table = Table::new(&[
        ("NAME", Left),
        ("STATE", Left),
        ("KERNEL", Left),
        ("VCPUS", Right),
        ("MEMORY", Right),
        ("TOUCHED", Right),
        ("RUN", Right),
        ("STEAL", Right),
        ("EXITS", Right),
        ("HOSTS", Left),
        ("REASON", Left),
    ]);
    for (vm, hosts) in vms {
        let (name, tone) = state_name(vm.state);
        table.row([
            vm.name.to_string(),
            name.to_owned(),
            vm.kernel.to_string(),
            vm.vcpus.to_string(),
            units::size(vm.memory),
            units::size(vm.touched),
            units::nanoseconds(vm.run_ns),
            units::nanoseconds(vm.steal_ns),
            units::count(vm.exits.iter().fold(0, |sum, n| sum.saturating_add(*n))),
            hosts.join(", "),
            vm.reason.to_string(),
        ]);
        table.tone(1, tone);
    }
    if vms.iter().all(|(_, hosts)| hosts.is_empty()) {
        table.without(&["HOSTS"]);
    }
    table.render(output)
}

fn node_table(nodes: &[NodeStatus], output: Output) -> String {
    let mut table = Table::new(&[
        ("NODE", Right),
        ("CPUS", Right),
        ("VCPUS", Right),
        ("MEMORY", Right),
        ("FREE", Right),
        ("ZEROED", Right),
        ("LOCAL", Right),
        ("REMOTE", Right),
    ]);
    for (n, node) in nodes.iter().enumerate() {
        table.row([
            n.to_string(),
            node.cpus.to_string(),
            node.vcpus.to_string(),
            units::size(node.memory),
            units::size(node.free),
            units::size(node.zeroed),
            units::count(node.local),
            units::count(node.remote),
        ]);
    }
    table.render(output)
}

fn node_json((n, node): (usize, &NodeStatus)) -> Value {
    json!({
        "node": n, "cpus": node.cpus, "vcpus": node.vcpus, "memory": node.memory,
        "free": node.free, "zeroed": node.zeroed, "local_frames": node.local,
        "remote_frames": node.remote, "zeroed_frames": node.zeroed_given,
    })
}

/// Exits by class.
pub fn exits_json(exits: &[u64]) -> Value {
    by_name(&EXIT_CLASSES, exits)
}

fn by_name(names: &[&str], counts: &[u64]) -> Value {
    let pairs = names.iter().zip(counts);
    Value::Object(
        pairs
            .map(|(class, n)| ((*class).to_owned(), json!(n)))
            .collect::<Map<_, _>>(),
    )
}

/// How many requests or frames took how long: those that took more than all before, and at most so much.
fn latency_json(counts: &[u64]) -> Value {
    let bucket =
        |(n, count): (usize, &u64)| json!({ "most_ns": latency_bound_ns(n), "count": count });
    counts.iter().enumerate().map(bucket).collect()
}

/// All of a VM's status.
pub fn vm_json(vm: &VmStatus, hosts: &[String]) -> Value {
    let [reads, writes, flushes, refused] = vm.disk;
    let [read, written] = vm.disk_bytes;
    let [console_written, console_dropped] = vm.console;
    let [registers, mmio, queues, calls] = vm.oddities;
    json!({
        "name": vm.name.to_string(), "state": state_name(vm.state).0, "reason": vm.reason.to_string(),
        "kernel": vm.kernel.to_string(), "vcpus": vm.vcpus, "weight": vm.weight, "cap": vm.cap,
        "node": vm.node, "starts": vm.starts, "hosts": hosts,
        "memory": vm.memory, "touched": vm.touched, "overlay": vm.overlay, "stored": vm.stored,
        "overhead": vm.overhead,
        "invalidations": { "one_cpu": vm.invalidations[0], "all_cpus": vm.invalidations[1] },
        "run_ns": vm.run_ns, "steal_ns": vm.steal_ns, "hypervisor_ns": vm.hypervisor_ns,
        "idle_ns": vm.idle_ns, "exits": exits_json(&vm.exits), "exit_ns": exits_json(&vm.exit_ns),
        "disk": { "reads": reads, "writes": writes, "flushes": flushes, "refused": refused,
                  "bytes_read": read, "bytes_written": written, "errors": vm.disk_errors,
                  "ns": vm.disk_ns, "latency": latency_json(&vm.disk_latency) },
        "net": { "frames_sent": vm.net_frames[0], "frames_received": vm.net_frames[1],
                 "bytes_sent": vm.net_bytes[0], "bytes_received": vm.net_bytes[1],
                 "dropped": by_name(&NET_DROPS, &vm.net_drops),
                 "ns": vm.net_ns, "latency": latency_json(&vm.net_latency),
                 "link": links(vm).map(|up| if up { "up" } else { "down" }).collect::<Vec<_>>() },
        "console": { "written": console_written, "dropped": console_dropped },
        "oddities": { "registers": registers, "mmio": mmio, "queues": queues, "calls": calls },
    })
}
