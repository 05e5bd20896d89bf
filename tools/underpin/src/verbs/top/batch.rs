//! `underpin top --batch`: samples in lines.

use super::{
    super::{Context, list::state_name},
    columns::COLUMNS,
};
use crate::{
    cli::Top,
    failure::Result,
    hosts,
    output::{Output, Side::Left, Table, print},
    units,
    watch::{
        Sample, VmSample,
        rates::{Rates, Shares, VmRates},
    },
};
use serde_json::{Map, Value, json};
use std::{iter, thread};
use tools_abi::{EXIT_CLASSES, MEM_EVENTS};

/// Prints samples. Each needs one before it, so the first comes after one delay.
pub fn batch(context: &Context, options: &Top) -> Result<()> {
    let mut client = context.connect()?;
    let mut before = Sample::take(&mut client, |_| true)?;
    let mut left = options.number;
    while left != Some(0) {
        thread::sleep(options.delay);
        let after = Sample::take(&mut client, |_| true)?;
        let rates = Rates::between(&before, &after).unwrap_or_default();
        if context.output.is_json() {
            let json = context.output.of_its_host(to_json(&after, &rates));
            print(&format!("{json}\n"))?;
        } else {
            print(&to_text(&after, &rates, context.output))?;
        }
        before = after;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn to_text(sample: &Sample, rates: &Rates, output: Output) -> String {
    let machine = &sample.machine;
    let mut titles = vec![("NAME", Left)];
    titles.extend(COLUMNS.map(|column| (column.title, column.side)));
    let mut table = Table::new(&titles);
    for (n, vm) in sample.vms.iter().enumerate() {
        let rates = rates.vms.get(n);
        // A name may be any text, and this goes to a terminal.
        let name = vm.name.replace(char::is_control, "?");
        let cells = COLUMNS.map(|column| (column.cell)(vm, rates));
        table.row(iter::once(name).chain(cells));
        for (n, column) in COLUMNS.iter().enumerate() {
            table.tone(n + 1, (column.tone)(vm, rates));
        }
    }
    let hosts = hosts::line(&sample.hosts).map_or_else(String::new, |line| line + "\n");
    format!(
        "up {}  CPUs {:.1} of {} busy  memory {}  used {}  free {}  shared {}  saved {}\n{hosts}{}\n",
        units::nanoseconds(machine.uptime_ns),
        rates.busy(),
        machine.cpus,
        units::size(machine.memory),
        units::size(sample.memory_used()),
        units::size(machine.memory_free),
        units::size(sample.memory.shared),
        units::size(sample.memory.saved),
        table.render(output),
    )
}

/// A sample and its rates, for programs.
pub fn to_json(sample: &Sample, rates: &Rates) -> Value {
    let machine = &sample.machine;
    let vms = sample.vms.iter().zip(&rates.vms);
    json!({
        "uptime_ns": machine.uptime_ns, "seconds": rates.seconds,
        "machine": {
            "cpus": machine.cpus, "cpus_busy": rates.busy(), "memory": machine.memory,
            "used": sample.memory_used(), "free": machine.memory_free,
            "shared": sample.memory.shared, "saved": sample.memory.saved,
        },
        "nodes": sample.nodes.iter().map(|node| json!({
            "memory": node.memory, "free": node.free, "cpus": node.cpus, "vcpus": node.vcpus,
            "local_frames": node.local, "remote_frames": node.remote,
        })).collect::<Value>(),
        "cpus": sample.cpus.iter().map(|cpu| json!({
            "cpu": cpu.cpu, "node": cpu.node, "idle_ns": cpu.idle_ns,
            "os0_run_ns": cpu.os0_run_ns, "os0_steal_ns": cpu.os0_steal_ns,
        })).collect::<Value>(),
        "hosts": sample.hosts.iter().map(|it| hosts::to_json(it, hosts::own(&sample.hosts))).collect::<Value>(),
        "vms": vms.map(|(vm, rates)| vm_json(vm, rates)).collect::<Value>(),
    })
}

fn vm_json(vm: &VmSample, rates: &VmRates) -> Value {
    let mut object = shares_json(&rates.shares);
    object["name"] = json!(vm.name);
    object["state"] = json!(state_name(vm.status.state).0);
    object["exits_per_second"] = by_name(&EXIT_CLASSES, &rates.exits);
    object["exits_per_second"]["all"] = json!(rates.all_exits());
    object["disk"] = json!({
        "read_bytes_per_second": rates.read, "written_bytes_per_second": rates.written,
    });
    object["net"] = json!({
        "sent_bytes_per_second": rates.sent, "received_bytes_per_second": rates.received,
    });
    object["memory"] = vm.memory.map_or(Value::Null, |memory| {
        json!({
            "resident": memory.resident, "private": memory.private, "shared": memory.shared,
            "entitlement": memory.entitlement, "owed": memory.owed,
            "events_per_second": by_name(&MEM_EVENTS, &rates.events),
        })
    });
    let vcpus = rates.vcpus.iter().map(|vcpu| {
        let mut object = shares_json(&vcpu.shares);
        object["exits_per_second"] = by_name(&EXIT_CLASSES, &vcpu.exits);
        object
    });
    object["vcpus"] = vcpus.collect();
    object
}

fn shares_json(shares: &Shares) -> Value {
    json!({
        "cpu_percent": shares.run, "steal_percent": shares.steal,
        "hypervisor_percent": shares.hypervisor, "idle_percent": shares.idle,
    })
}

fn by_name(names: &[&str], values: &[f64]) -> Value {
    let pairs = names.iter().zip(values);
    let object = pairs.map(|(name, n)| ((*name).to_owned(), json!(n)));
    Value::Object(object.collect::<Map<_, _>>())
}
