//! A trace in Chrome's JSON format ("Trace Event Format", Duffy and Sinclair), which Perfetto's
//! viewer opens: a process for each VM with its vCPUs as threads, and one for the machine with its
//! pCPUs.

use super::{Event, Trace};
use abi::control::trace;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fmt::Write as _};

/// The machine's own process; that of a VM is its place and one more.
const MACHINE: usize = 0;

/// The trace as a document.
pub fn json(trace: &Trace) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let mut first = true;
    let mut line = |value: &Value| {
        let comma = if first { "" } else { ",\n" };
        first = false;
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{value}");
    };
    for name in names(trace) {
        line(&name);
    }
    for event in &trace.events {
        line(&drawn(event, trace));
    }
    let _ = write!(
        text,
        "\n],\"otherData\":{}}}\n",
        json!({ "lost": trace.lost, "odd": trace.odd })
    );
    text
}

/// On which track an event is: its process and thread.
fn track(event: &Event) -> (usize, u32) {
    match event.whose {
        Some((vm, vcpu)) if event.class != trace::SWITCH => (vm + 1, vcpu.into()),
        _ => (MACHINE, event.cpu),
    }
}

/// The names of all tracks that something is on.
fn names(trace: &Trace) -> Vec<Value> {
    let tracks: BTreeSet<_> = trace.events.iter().map(track).collect();
    let processes: BTreeSet<_> = tracks.iter().map(|(process, _)| *process).collect();
    let named = |what: &str, process: usize, thread: u32, name: String| json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } });
    let processes = processes.into_iter().map(|process| {
        let vm = process.checked_sub(1).and_then(|vm| trace.vms.get(vm));
        let name = vm.map_or_else(|| "machine".to_owned(), |vm| format!("VM {vm}"));
        named("process_name", process, 0, name)
    });
    let threads = tracks.iter().map(|(process, thread)| {
        let kind = if *process == MACHINE { "CPU" } else { "vCPU" };
        named("thread_name", *process, *thread, format!("{kind} {thread}"))
    });
    processes.chain(threads).collect()
}

fn drawn(event: &Event, trace: &Trace) -> Value {
    let (process, thread) = track(event);
    let vm = event.whose.and_then(|(vm, _)| trace.vms.get(vm));
    let name = match (event.class, event.whose, vm) {
        (trace::SWITCH, Some((_, vcpu)), Some(vm)) => format!("{vm}/{vcpu}"),
        (trace::INTERRUPT, ..) => format!("interrupt {}", event.value),
        _ => event.name.to_owned(),
    };
    let arguments = match event.class {
        trace::EXIT => json!({ "cpu": event.cpu, "pc": hex(event.value) }),
        trace::SWITCH => json!({ "left": event.name, "pc": hex(event.value) }),
        trace::INTERRUPT => json!({ "intid": event.value }),
        trace::STRETCH => json!({ "kind": event.name }),
        trace::HOST => json!({ "host": event.value }),
        _ => json!({ "cpu": event.cpu, "address": hex(event.value) }),
    };
    let mut value = json!({
        "name": name, "cat": event.class_name(), "pid": process, "tid": thread,
        "ts": microseconds(event.at_ns), "args": arguments,
    });
    if event.is_span() {
        value["ph"] = json!("X");
        value["dur"] = json!(microseconds(event.span_ns));
    } else {
        value["ph"] = json!("i");
        value["s"] = json!("t");
    }
    value
}

/// The format's unit. A double holds nanoseconds of a hundred days.
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Addresses are beyond what a number in JSON may hold.
fn hex(value: u64) -> String {
    format!("{value:#x}")
}

#[cfg(test)]
mod tests {
    use super::{super::tests::event, *};
    use abi::control::NO_VM;

    #[test]
    fn events_lie_on_the_tracks_of_their_vms_and_cpus() {
        let mut trace = Trace {
            vms: vec!["a".into(), "b".into()],
            ..Trace::default()
        };
        trace.add(
            3,
            &[
                event(trace::FAULT, 1, 1, 2_500, 500),
                event(trace::EXIT, 8, 1, 2_000, 1_500),
                event(trace::SWITCH, 1, 1, 1_000, 4_000),
                event(trace::INTERRUPT, 0, NO_VM, 900, 7),
            ],
        );
        trace.finish(None);
        let value: Value = serde_json::from_str(&json(&trace)).unwrap();
        let all = value["traceEvents"].as_array().unwrap();
        let names = all.iter().filter(|event| event["ph"] == "M");
        let names: Vec<_> = names.filter_map(|e| e["args"]["name"].as_str()).collect();
        assert_eq!(names, ["machine", "VM b", "CPU 3", "vCPU 1"]);
        let line = |event: &Value| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            let track = (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap(),
            );
            (
                text("name"),
                text("ph"),
                track,
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64(),
            )
        };
        let events = all.iter().filter(|event| event["ph"] != "M").map(line);
        let expected = [
            ("interrupt 1073741824", "i", (0, 3), 0.9, None),
            ("b/1", "X", (0, 3), 1.0, Some(4.0)),
            ("memory", "X", (2, 1), 2.0, Some(1.5)),
            ("write", "X", (2, 1), 2.5, Some(0.5)),
        ];
        let expected = expected.map(|(n, p, t, at, d)| (n.to_owned(), p.to_owned(), t, at, d));
        assert_eq!(events.collect::<Vec<_>>(), expected);
    }
}
