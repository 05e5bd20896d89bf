//! What the machine's CPUs did.

use super::Row;
use super::exposition::{
    Exposition,
    Kind::{Counter, Gauge},
    Value, series,
};
use abi::control::CpuStatus;
use tools_abi::STRETCHES;

/// Writes what the pCPUs did.
pub fn write(out: &mut Exposition, cpus: &[CpuStatus]) {
    let times: [Row<CpuStatus>; 3] = [
        (
            "idle",
            "Time that the pCPU slept, or zeroed memory ahead of need.",
            |cpu| cpu.idle_ns,
        ),
        (
            "os0_run",
            "Time that OS-0 had the pCPU, since it shares it with VMs.",
            |cpu| cpu.os0_run_ns,
        ),
        (
            "os0_steal",
            "Time that OS-0 could have had the pCPU, and did not.",
            |cpu| cpu.os0_steal_ns,
        ),
    ];
    for (name, help, time) in times {
        let one = |cpu: &CpuStatus| {
            let (number, node) = (cpu.cpu.to_string(), cpu.node.to_string());
            let time = Value::Nanoseconds(time(cpu));
            series(&[("cpu", &number), ("node", &node)], time)
        };
        let name = format!("underpin_cpu_{name}_seconds_total");
        out.family(&name, Counter, help, cpus.iter().map(one));
    }
    let stretches = cpus.iter().flat_map(|cpu| {
        let number = cpu.cpu.to_string();
        let named = STRETCHES.iter().zip(cpu.stretch_ns);
        named.map(move |(kind, ns)| {
            series(&[("cpu", &number), ("kind", kind)], Value::Nanoseconds(ns))
        })
    });
    out.family(
        "underpin_cpu_longest_stretch_seconds",
        Gauge,
        "Longest time that the pCPU worked for the hypervisor without a look at its interrupts.",
        stretches,
    );
}
