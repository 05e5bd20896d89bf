//! `underpin show`: one VM in full.

use super::{
    Context,
    list::{self, Host, names},
};
use crate::{
    failure::Result,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::control::{LATENCY_BUCKETS, vcpu_state};
use serde_json::{Value, json};
use std::fmt::Write as _;
use tools_abi::status::{VcpuStatus, VmStatus};
use tools_abi::{EXIT_CLASSES, NET_DROPS, latency_bound_ns};

/// The width of a full bar in characters.
const BAR: u64 = 30;

/// Shows one VM.
pub fn show(context: &Context, vm: &str) -> Result<()> {
    let mut client = context.connect()?;
    let (vm, vcpus) = client.show(vm)?;
    let hosts = list::hosts_of(&mut client, &vm)?;
    context.output.result(
        || to_json(&vm, &vcpus, &hosts),
        |output| to_text(&vm, &vcpus, &hosts, output),
    )
}

/// A vCPU's state for people.
pub fn vcpu_state_name(state: u32) -> &'static str {
    match state {
        vcpu_state::OFF => "off",
        vcpu_state::WAITING => "waiting",
        vcpu_state::READY => "ready",
        vcpu_state::RUNNING => "running",
        vcpu_state::ELSEWHERE => "away",
        vcpu_state::LEAVES => "leaves",
        _ => "unknown",
    }
}

/// The name of the host that has a vCPU, where that is another one.
fn away<'a>(vcpu: &VcpuStatus, hosts: &'a [Host]) -> Option<&'a str> {
    let mut hosts = hosts.iter().filter(|_| vcpu.state == vcpu_state::ELSEWHERE);
    let host = hosts.find(|(number, _)| *number == vcpu.cpu);
    host.map(|(_, name)| name.as_str())
}

fn to_json(vm: &VmStatus, vcpus: &[VcpuStatus], hosts: &[Host]) -> Value {
    let vcpu = |vcpu: &VcpuStatus| {
        let away = away(vcpu, hosts);
        json!({
            "state": vcpu_state_name(vcpu.state), "host": away,
            "cpu": away.is_none().then_some(vcpu.cpu), "run_ns": vcpu.run_ns,
            "steal_ns": vcpu.steal_ns, "hypervisor_ns": vcpu.hypervisor_ns, "idle_ns": vcpu.idle_ns,
            "migrations": vcpu.migrations, "pc": vcpu.pc, "exits": list::exits_json(&vcpu.exits),
            "exit_ns": list::exits_json(&vcpu.exit_ns),
        })
    };
    let mut object = list::vm_json(vm, &names(hosts));
    object["vcpu"] = vcpus.iter().map(vcpu).collect();
    object
}

fn to_text(vm: &VmStatus, vcpus: &[VcpuStatus], hosts: &[Host], output: Output) -> String {
    let mut text = String::new();
    head(&mut text, vm, output);
    if !hosts.is_empty() {
        lines(&mut text, &[("hosts", names(hosts).join(", "))]);
    }
    heading(&mut text, output, "Memory");
    memory(&mut text, vm);
    heading(&mut text, output, "CPU time");
    let times = [
        ("run", vm.run_ns),
        ("hypervisor", vm.hypervisor_ns),
        ("stolen", vm.steal_ns),
        ("idle", vm.idle_ns),
    ];
    bars(&mut text, &times);
    heading(&mut text, output, "Exits");
    text.push_str(&indent(&exit_table(vm).render(output)));
    heading(&mut text, output, "vCPUs");
    text.push_str(&indent(&vcpu_table(vcpus, hosts).render(output)));
    heading(&mut text, output, "Devices");
    devices(&mut text, vm);
    text
}

fn head(text: &mut String, vm: &VmStatus, output: Output) {
    let (state, tone) = list::state_name(vm.state);
    let name = output.paint(Tone::Strong, &vm.name.to_string());
    let line = format!("{name}  {}  {}", output.paint(tone, state), vm.reason);
    let _ = writeln!(text, "{}", line.trim_end());
    let cap = if vm.cap == 0 {
        "none".to_owned()
    } else {
        format!("{} %", vm.cap)
    };
    lines(
        text,
        &[
            ("kernel", vm.kernel.to_string()),
            ("starts", vm.starts.to_string()),
            ("weight", vm.weight.to_string()),
            ("cap", cap),
        ],
    );
}

fn memory(text: &mut String, vm: &VmStatus) {
    let touched = percent(vm.touched, vm.memory);
    lines(
        text,
        &[
            ("given", units::size(vm.memory)),
            (
                "touched",
                format!("{} ({touched} %)", units::size(vm.touched)),
            ),
            ("overlays", overlays(vm)),
            ("overhead", units::size(vm.overhead)),
            ("first node", vm.node.to_string()),
            ("TLBs told", invalidations(vm)),
        ],
    );
}

/// How far its invalidations reached.
fn invalidations(vm: &VmStatus) -> String {
    let [one, all] = vm.invalidations.map(units::count);
    format!("{one} times on one CPU, {all} times on all")
}

fn overlays(vm: &VmStatus) -> String {
    match vm.stored {
        0 => units::size(vm.overlay),
        stored => format!(
            "{} on disk, {} in memory",
            units::size(stored),
            units::size(vm.overlay)
        ),
    }
}

fn devices(text: &mut String, vm: &VmStatus) {
    let [reads, writes, flushes, refused] = vm.disk.map(units::count);
    let [read, written] = vm.disk_bytes.map(units::size);
    let errors = units::count(vm.disk_errors);
    let [said, dropped] = vm.console.map(units::size);
    lines(
        text,
        &[
            (
                "disks",
                format!("{reads} reads ({read}), {writes} writes ({written}), {flushes} flushes"),
            ),
            (
                "refused",
                format!("{refused} disk requests, {errors} failed"),
            ),
            (
                "latency",
                latency(&vm.disk_latency, vm.disk_ns, "disk request"),
            ),
            ("console", format!("{said} written, {dropped} dropped")),
        ],
    );
    network(text, vm);
    let [registers, mmio, queues, calls] = vm.oddities;
    if vm.oddities.iter().any(|n| *n > 0) {
        let odd =
            format!("{registers} registers, {mmio} MMIO accesses, {queues} queues, {calls} calls");
        lines(text, &[("odd", odd)]);
    }
}

fn network(text: &mut String, vm: &VmStatus) {
    let [sent, received] = vm.net_frames.map(units::count);
    let [out, into] = vm.net_bytes.map(units::size);
    let lost = NET_DROPS.iter().zip(vm.net_drops).filter(|(_, n)| *n > 0);
    let lost: Vec<_> = lost
        .map(|(why, n)| format!("{} {why}", units::count(n)))
        .collect();
    if vm.net_frames != [0; 2] {
        let frames = format!("{sent} frames sent ({out}), {received} received ({into})");
        let took = latency(&vm.net_latency, vm.net_ns, "frame sent");
        lines(text, &[("network", frames), ("frames took", took)]);
    }
    // A cable that is in is nothing to tell of.
    if vm.links_down != 0 {
        lines(text, &[("links", links(vm).join(", "))]);
    }
    if !lost.is_empty() {
        lines(text, &[("lost frames", lost.join(", "))]);
    }
}

fn links(vm: &VmStatus) -> Vec<String> {
    let link = |(n, up)| format!("{n} {}", if up { "up" } else { "down" });
    tools_abi::links(vm).enumerate().map(link).collect()
}

/// What vCPUs left their guests for, how often, and the time at EL2 until they were back.
fn exit_table(vm: &VmStatus) -> Table {
    let mut table = Table::new(&[
        ("CLASS", Left),
        ("COUNT", Right),
        ("TIME", Right),
        ("MEAN", Right),
    ]);
    let exits = EXIT_CLASSES.into_iter().zip(vm.exits).zip(vm.exit_ns);
    for ((class, count), ns) in exits.filter(|((_, count), _)| *count > 0) {
        // None of them was timed.
        let time = |ns| {
            if ns == 0 {
                "-".to_owned()
            } else {
                units::nanoseconds(ns)
            }
        };
        table.row([
            class.to_owned(),
            units::count(count),
            time(ns),
            time(ns / count),
        ]);
    }
    table
}

/// How long requests took: the bounds that half, nine in ten and all but one in a hundred keep.
fn latency(counts: &[u64; LATENCY_BUCKETS], ns: u64, what: &str) -> String {
    let all: u64 = counts.iter().fold(0, |sum, n| sum.saturating_add(*n));
    if all == 0 {
        return format!("no {what}");
    }
    let within = |percent: u64| {
        let wanted = (u128::from(all) * u128::from(percent)).div_ceil(100);
        let mut sum = 0;
        let bucket = counts.iter().position(|n| {
            sum += u128::from(*n);
            sum >= wanted
        });
        match bucket.and_then(latency_bound_ns) {
            Some(ns) => format!("{percent} % within {}", units::nanoseconds(ns)),
            None => format!(
                "{percent} % beyond {}",
                units::nanoseconds(latency_bound_ns(LATENCY_BUCKETS - 2).unwrap_or(0))
            ),
        }
    };
    let mean = units::nanoseconds(ns / all);
    format!("mean {mean}; {}", [50, 90, 99].map(within).join(", "))
}

fn vcpu_table(vcpus: &[VcpuStatus], hosts: &[Host]) -> Table {
    let mut table = Table::new(&[
        ("VCPU", Right),
        ("STATE", Left),
        ("CPU", Right),
        ("RUN", Right),
        ("HYPERVISOR", Right),
        ("STEAL", Right),
        ("IDLE", Right),
        ("MOVES", Right),
        ("PC", Left),
    ]);
    for (n, vcpu) in vcpus.iter().enumerate() {
        table.row([
            n.to_string(),
            vcpu_state_name(vcpu.state).to_owned(),
            away(vcpu, hosts).map_or_else(|| vcpu.cpu.to_string(), str::to_owned),
            units::nanoseconds(vcpu.run_ns),
            units::nanoseconds(vcpu.hypervisor_ns),
            units::nanoseconds(vcpu.steal_ns),
            units::nanoseconds(vcpu.idle_ns),
            vcpu.migrations.to_string(),
            format!("{:#x}", vcpu.pc),
        ]);
    }
    table
}

fn heading(text: &mut String, output: Output, title: &str) {
    let _ = writeln!(text, "\n{}", output.paint(Tone::Strong, title));
}

/// Names and values, a pair on each line.
pub fn lines(text: &mut String, pairs: &[(&str, String)]) {
    for (name, value) in pairs {
        let _ = writeln!(text, "  {name:12} {value}");
    }
}

/// A bar for each time, the longest for the greatest.
fn bars(text: &mut String, pairs: &[(&str, u64)]) {
    let most = pairs.iter().map(|(_, n)| *n).max().unwrap_or(0);
    for (name, n) in pairs {
        let length = (u128::from(*n) * u128::from(BAR)).div_ceil(u128::from(most.max(1))) as usize;
        let line = format!(
            "  {name:12} {:>10}  {}",
            units::nanoseconds(*n),
            "#".repeat(length)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn percent(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 100)
        .checked_div(u128::from(whole))
        .unwrap_or(0)
}

/// Two blanks before each line.
fn indent(text: &str) -> String {
    text.lines().flat_map(|line| ["  ", line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_small_values_are_seen() {
        let mut text = String::new();
        bars(&mut text, &[("a", 3000), ("b", 1), ("c", 0)]);
        let marks = |line: &str| line.matches('#').count();
        assert_eq!(text.lines().map(marks).collect::<Vec<_>>(), [30, 1, 0]);
        assert_eq!(percent(1, 0), 0);
    }
}
