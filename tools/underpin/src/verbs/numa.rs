//! `underpin numa`: where VMs' memory is, why pages stay, and moving it.

use super::Context;
use crate::{
    cli::NumaVerb,
    failure::Result,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::control::{NUMA_LEFT, NumaStatus, state};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// The columns of the nodes' memory.
const NODES: [&str; 8] = [
    "NODE 0", "NODE 1", "NODE 2", "NODE 3", "NODE 4", "NODE 5", "NODE 6", "NODE 7",
];

/// Each reason of [`NUMA_LEFT`], and what it means.
const MEANING: [(&str, &str); 8] = [
    ("not-hot", "Nobody misses on it often."),
    (
        "at-home",
        "Who misses on it often has it at hand: its cache is too small.",
    ),
    (
        "write-shared",
        "Several nodes use it and somebody writes it: it is at the wrong place wherever it is.",
    ),
    (
        "moved-often",
        "It was moved too often of late: its user moves, or there are several by turns.",
    ),
    (
        "no-memory",
        "The node that would get it is short of memory.",
    ),
    (
        "read-shared",
        "Several nodes read it and nobody writes it. Copies on each node are not made yet.",
    ),
    ("gone", "It was another one by the time it was to move."),
    (
        "held",
        "It is on its way to a disk, watched, or in a block that is kept whole.",
    ),
];

/// Does what `underpin numa` was asked for.
pub fn numa(context: &Context, verb: Option<NumaVerb>) -> Result<()> {
    match verb {
        None | Some(NumaVerb::Show) => show(context),
        Some(NumaVerb::Why(vm)) => why(context, &vm.vm),
        Some(NumaVerb::Move { vm, node }) => {
            context.connect()?.numa_move(&vm, node)?;
            context.progress.say(&format!(
                "{vm} moves to node {node}; watch it: underpin numa"
            ));
            Ok(())
        }
    }
}

fn show(context: &Context) -> Result<()> {
    let mut client = context.connect()?;
    let nodes = client.nodes()?.len();
    let running = |state: u32| matches!(state, state::RUNNING | state::PAUSED);
    let mut all = Vec::new();
    for vm in client.list()? {
        // One that has ended meanwhile is left out.
        if running(vm.state)
            && let Ok(status) = client.numa(&vm.name.to_string())
        {
            all.push(status);
        }
    }
    all.sort_by_key(|vm| vm.name.to_string());
    context.output.result(
        || all.iter().map(|vm| to_json(vm, nodes)).collect(),
        |output| to_table(&all, nodes, output),
    )
}

fn why(context: &Context, vm: &str) -> Result<()> {
    let mut client = context.connect()?;
    let (nodes, status) = (client.nodes()?.len(), client.numa(vm)?);
    context.output.result(
        || to_json(&status, nodes),
        |output| reasons_text(&status, output),
    )
}

fn left(vm: &NumaStatus) -> impl Iterator<Item = (&'static str, u64)> {
    let pairs = NUMA_LEFT.into_iter().zip(vm.left);
    pairs.filter(|(name, _)| !name.is_empty())
}

/// The local share of misses on pages that were hot, in percent; nothing where none were counted.
fn local(vm: &NumaStatus) -> Option<u64> {
    let all = vm.local.saturating_add(vm.remote);
    vm.local.saturating_mul(100).checked_div(all)
}

fn to_json(vm: &NumaStatus, nodes: usize) -> Value {
    let left = left(vm).map(|(name, pages)| (name.to_owned(), pages.into()));
    json!({
        "name": vm.name.to_string(),
        "memory": vm.memory.iter().take(nodes).collect::<Vec<_>>(),
        "counts_misses": vm.counts != 0, "moving": vm.moving != 0,
        "misses_local": vm.local, "misses_remote": vm.remote,
        "moved": vm.moved, "left": Value::Object(left.collect::<Map<_, _>>()),
    })
}

fn to_table(vms: &[NumaStatus], nodes: usize, output: Output) -> String {
    let mut columns = vec![("NAME", Left)];
    columns.extend(NODES.iter().take(nodes).map(|name| (*name, Right)));
    columns.extend([
        ("LOCAL", Right),
        ("MOVED", Right),
        ("LEFT", Right),
        ("", Left),
    ]);
    let mut table = Table::new(&columns);
    for vm in vms {
        let left: u64 = left(vm).map(|(_, pages)| pages).sum();
        let mut row = vec![vm.name.to_string()];
        row.extend(
            vm.memory
                .iter()
                .take(nodes)
                .map(|bytes| units::size(*bytes)),
        );
        row.push(local(vm).map_or_else(|| "-".to_owned(), |part| format!("{part} %")));
        row.extend([vm.moved.to_string(), left.to_string()]);
        row.push(if vm.moving == 0 { "" } else { "moving" }.to_owned());
        table.row(row);
    }
    let mut text = table.render(output);
    if vms.iter().all(|vm| vm.counts == 0) && !vms.is_empty() {
        text.push_str(
            "This machine does not count misses: memory stays where it was first touched.\n",
        );
    }
    text
}

fn reasons_text(vm: &NumaStatus, output: Output) -> String {
    let mut text = format!("{}: {} pages moved\n", vm.name, vm.moved);
    if let Some(part) = local(vm) {
        let _ = writeln!(text, "{part} % of the misses on hot pages were local");
    }
    for (name, pages) in left(vm).filter(|(_, pages)| *pages > 0) {
        let meaning = MEANING.iter().find(|(reason, _)| *reason == name);
        let meaning = meaning.map_or("", |(_, meaning)| meaning);
        let name = output.paint(Tone::Strong, name);
        let _ = write!(text, "\n{name}: left {pages} times. {meaning}\n");
    }
    if vm.counts == 0 {
        text.push_str("This machine does not count misses: nothing moves by itself.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros as _;

    fn status() -> NumaStatus {
        let mut vm = NumaStatus::new_zeroed();
        vm.name = abi::Text::new("web1").unwrap_or_default();
        vm.memory[..2].copy_from_slice(&[1 << 20, 2 << 20]);
        (vm.local, vm.remote, vm.moved, vm.counts) = (30, 10, 7, 1);
        vm.left[2] = 5;
        vm
    }

    #[test]
    fn every_reason_has_a_meaning() {
        for name in NUMA_LEFT.iter().filter(|name| !name.is_empty()) {
            assert!(MEANING.iter().any(|(reason, _)| reason == name), "{name}");
        }
    }

    #[test]
    fn where_memory_is_and_why() {
        let json = to_json(&status(), 2);
        assert_eq!(json["memory"], json!([1 << 20, 2 << 20]));
        assert_eq!(json["left"]["write-shared"], 5);
        assert_eq!(local(&status()), Some(75));
        assert_eq!(local(&NumaStatus::new_zeroed()), None);
    }
}
