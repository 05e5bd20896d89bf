//! Watching a machine: what is recorded of VMs agrees with what is counted of them.

use super::kernels::BOOT;
use crate::{Outcome, because, machine::Hardware, scenario::Scenario, status::VmStatus, vm::Vm};
use serde_json::Value;
use std::fs;

pub fn scenarios() -> Vec<Scenario> {
    vec![trace()]
}

/// A guest that touches new memory while its events are recorded.
fn trace() -> Scenario {
    let vms = ["one", "other"].map(|name| Vm::linux(name, "trixie-cloud", "shell"));
    Scenario::new("watch/trace", Hardware::new(2, "1G"), vms.into())
        .expect("one", "ready kernel=", 2 * BOOT)
        .expect("other", "ready kernel=", BOOT)
        .check(|stage| {
            let file = stage.directory.join("trace.json");
            let out = file.display().to_string();
            let machine = stage.machine()?;
            let before = machine.vm("one")?;
            // Memory that was never touched, a little at a time.
            let work =
                "for i in $(seq 40); do head -c 2000000 /dev/zero > /tmp/$i; sleep 0.1; done &";
            machine.type_line("one", work)?;
            let said =
                machine.run(&["-o", "json", "trace", "one", "--for", "3s", "--out", &out])?;
            let after = machine.vm("one")?;
            let said: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
            agrees(&said, &before, &after)?;
            let drawn = fs::read(&file).map_err(because("no trace"))?;
            let drawn: Value = serde_json::from_slice(&drawn).map_err(because("no JSON"))?;
            let events = drawn["traceEvents"].as_array().map_or(0, Vec::len) as u64;
            // And a name for the VM, and for each of its tracks.
            if events <= said["events"].as_u64().unwrap_or(u64::MAX) {
                return Err(format!("{events} events are drawn of {said}"));
            }
            machine.run(&["trace", "--stop"])?;
            match machine.refused(&["trace", "nobody"])? {
                11 => Ok(()),
                status => Err(format!("a trace of nobody ends with {status}")),
            }
        })
}

/// Whether what was recorded of a VM can be what was counted of it between two times.
fn agrees(said: &Value, before: &VmStatus, after: &VmStatus) -> Outcome {
    let seen = said["seen"].as_array().ok_or("nothing was seen")?;
    let counted = |class: &str| {
        let of = |vm: &VmStatus| vm.exits.get(class).copied().unwrap_or(0);
        of(after).saturating_sub(of(before))
    };
    let mut classes = Vec::new();
    for line in seen {
        let (class, name) = (line["class"].as_str(), line["name"].as_str().unwrap_or(""));
        let count = line["count"].as_u64().unwrap_or(0);
        classes.extend(class.map(str::to_owned));
        if line["vm"] != "one" || class == Some("exits") && count > counted(name) {
            return Err(format!("{line} beside {} {name} counted", counted(name)));
        }
    }
    let has = |class: &str| classes.iter().any(|seen| seen == class);
    let faulted = seen
        .iter()
        .any(|line| line["class"] == "exits" && line["name"] == "memory");
    if !has("exits") || !has("switches") || faulted && !has("faults") {
        return Err(format!("only {classes:?} were seen: {said}"));
    }
    let at_el2: u64 = after.exit_ns.values().sum();
    if at_el2 == 0 || at_el2 > after.hypervisor_ns || said["odd"] != 0 {
        return Err(format!(
            "{at_el2} ns of {} for exits; {said}",
            after.hypervisor_ns
        ));
    }
    Ok(())
}
