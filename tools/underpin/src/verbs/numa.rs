//! `underpin numa`: where VMs' memory is, why pages stay, and moving it.

use super::Context;
use crate::{
    cli::NumaVerb,
    control::Client,
    failure::Result,
    order::natural_by,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone, print,
    },
    units,
};
use abi::control::{left::NO_MEMORY, misses, state};
use serde_json::{Map, Value, json};
use std::{
    fmt::Write as _,
    thread::sleep,
    time::{Duration, Instant},
};
use tools_abi::NUMA_LEFT;
use tools_abi::status::NumaStatus;

/// The columns of the nodes' memory.
const NODES: [&str; 8] = [
    "NODE 0", "NODE 1", "NODE 2", "NODE 3", "NODE 4", "NODE 5", "NODE 6", "NODE 7",
];

/// Each reason of [`NUMA_LEFT`], and what it means.
const MEANING: [(&str, &str); 7] = [
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
        "gone",
        "It was another one by the time it was to move or be copied.",
    ),
    (
        "held",
        "It is on its way to a disk, watched, in a block that is kept whole, or its VM hides what it shares.",
    ),
];

/// Does what `underpin numa` was asked for.
pub fn numa(context: &Context, verb: Option<NumaVerb>) -> Result<()> {
    match verb {
        None | Some(NumaVerb::Show) => show(context),
        Some(NumaVerb::Why(vm)) => why(context, &vm.vm),
        Some(NumaVerb::Move { vm, node, wait }) => move_to(context, &vm, node, wait),
    }
}

/// How long one waits between two looks at a VM that moves.
const LOOK: Duration = Duration::from_millis(200);
/// For how long one watches what a move gained.
const WATCH: Duration = Duration::from_secs(2);

/// Moves a VM's memory: what is to be expected before, and where that is asked, what came of it after.
fn move_to(context: &Context, vm: &str, node: u8, wait: bool) -> Result<()> {
    let mut client = context.connect()?;
    let before = client.numa(vm)?;
    // First, so that nothing is foretold of what is refused; the move itself takes a while.
    client.numa_move(vm, node)?;
    let begun = Instant::now();
    let forecast = Forecast::of(&before, node);
    context.progress.say(&forecast.text((vm, node)));
    let gain = if wait {
        let (moved, took) = loop {
            sleep(LOOK);
            let now = client.numa(vm)?;
            if now.moving == 0 {
                break (now, begun.elapsed());
            }
        };
        let later = watch(&mut client, &moved)?;
        let gain = Gain::of(&before, (&moved, &later), (node, took));
        context.progress.say(&gain.text((vm, node)));
        Some(gain)
    } else {
        let line = format!("{vm} moves to node {node}; watch it: underpin numa");
        context.progress.say(&line);
        None
    };
    // People have read it already.
    if context.output.is_json() {
        let gain = gain.map(|gain| gain.json());
        let whole = json!({ "name": vm, "node": node, "forecast": forecast.json(), "gain": gain });
        print(&format!("{whole:#}\n"))?;
    }
    Ok(())
}

/// What a VM is like some time after it moved, where misses are known.
fn watch(client: &mut Client, moved: &NumaStatus) -> Result<NumaStatus> {
    if moved.counts == 0 {
        return Ok(*moved);
    }
    sleep(WATCH);
    client.numa(&moved.name.to_string())
}

/// Bytes of a VM that are on `node`, and that are not.
fn near(vm: &NumaStatus, node: u8) -> (u64, u64) {
    let near = vm.memory.get(usize::from(node)).copied().unwrap_or(0);
    (near, vm.memory.iter().sum::<u64>().saturating_sub(near))
}

/// What a move would do.
struct Forecast {
    /// Bytes of the VM, and of them, those on other nodes.
    memory: u64,
    elsewhere: u64,
    /// How long it takes at least: EL2 looks at 64 guest frames every 2 ms.
    least: Duration,
    /// Misses on hot pages that went to other nodes, in percent, where they are known.
    remote: Option<u64>,
}

impl Forecast {
    fn of(vm: &NumaStatus, node: u8) -> Self {
        let (near, far) = near(vm, node);
        let looks = ((near + far) / 4096).div_ceil(64);
        Self {
            memory: near + far,
            elsewhere: far,
            least: Duration::from_millis(2 * looks),
            remote: local(vm).map(|part| 100 - part),
        }
    }

    fn text(&self, (vm, node): (&str, u8)) -> String {
        if self.elsewhere == 0 {
            let all = units::size(self.memory);
            return format!("{vm}: all it has, {all}, is on node {node} already");
        }
        let mut text = format!(
            "{vm}: {} of {} are on other nodes; to move them takes {:.1} s or more of the machine's time",
            units::size(self.elsewhere),
            units::size(self.memory),
            self.least.as_secs_f64(),
        );
        if let Some(far) = self.remote {
            let _ = write!(
                text,
                "; {far} % of the misses on hot pages went to other nodes, which is the most that can be gained"
            );
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "memory": self.memory, "elsewhere": self.elsewhere,
            "least_ns": nanoseconds(self.least), "remote_percent": self.remote,
        })
    }
}

/// What a move did.
struct Gain {
    /// Bytes that came, and that did not.
    came: u64,
    stayed: u64,
    /// The node had no room for some.
    is_short: bool,
    /// From when it was asked for until nothing was on its way, by the host's clock.
    took: Duration,
    /// The local share of misses on hot pages before, and in the [`WATCH`] after, in percent; nothing where none are
    /// known, or no page was hot.
    before: Option<u64>,
    after: Option<u64>,
}

impl Gain {
    /// Of a VM `before`, when all had `moved`, and some time `later`.
    fn of(
        before: &NumaStatus,
        (moved, later): (&NumaStatus, &NumaStatus),
        (node, took): (u8, Duration),
    ) -> Self {
        let ((_, was_far), (_, far)) = (near(before, node), near(moved, node));
        let since = NumaStatus {
            local: later.local.saturating_sub(moved.local),
            remote: later.remote.saturating_sub(moved.remote),
            ..*later
        };
        Self {
            came: was_far.saturating_sub(far),
            stayed: far,
            is_short: moved.left[NO_MEMORY] > before.left[NO_MEMORY],
            took,
            before: local(before),
            after: local(&since),
        }
    }

    fn text(&self, (vm, node): (&str, u8)) -> String {
        let mut text = format!(
            "{vm}: {} came to node {node} in {:.1} s, {} did not",
            units::size(self.came),
            self.took.as_secs_f64(),
            units::size(self.stayed),
        );
        if self.stayed > 0 {
            text.push_str(if self.is_short {
                ": the node is short of memory"
            } else {
                ": what is shared stays where it is"
            });
        }
        let seconds = WATCH.as_secs();
        match (self.before, self.after) {
            (Some(then), Some(now)) => {
                let _ = write!(
                    text,
                    "; {then} % of the misses on hot pages were local before, {now} % in the {seconds} s after"
                );
            }
            (Some(_), None) => {
                let _ = write!(text, "; no page was hot in the {seconds} s after");
            }
            _ => {}
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "came": self.came, "stayed": self.stayed, "short_of_memory": self.is_short,
            "took_ns": nanoseconds(self.took),
            "local_percent_before": self.before, "local_percent_after": self.after,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
    natural_by(&mut all, |vm| vm.name.to_string());
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

/// How misses are known.
fn known(vm: &NumaStatus) -> &'static str {
    match vm.counts {
        misses::COUNTED => "counted",
        misses::SAMPLED => "sampled",
        _ => "unknown",
    }
}

fn to_json(vm: &NumaStatus, nodes: usize) -> Value {
    let left = left(vm).map(|(name, pages)| (name.to_owned(), pages.into()));
    json!({
        "name": vm.name.to_string(),
        "memory": vm.memory.iter().take(nodes).collect::<Vec<_>>(),
        "misses": known(vm), "moving": vm.moving != 0,
        "misses_local": vm.local, "misses_remote": vm.remote,
        "moved": vm.moved, "replicated": vm.replicated, "collapsed": vm.collapsed,
        "copies": vm.copies, "moving_ns": vm.moving_ns, "copying_ns": vm.copying_ns,
        "left": Value::Object(left.collect::<Map<_, _>>()),
    })
}

fn to_table(vms: &[NumaStatus], nodes: usize, output: Output) -> String {
    let mut columns = vec![("NAME", Left)];
    columns.extend(NODES.iter().take(nodes).map(|name| (*name, Right)));
    columns.extend([
        ("LOCAL", Right),
        ("MOVED", Right),
        ("COPIED", Right),
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
        row.extend([vm.moved, vm.replicated, left].map(|pages| pages.to_string()));
        row.push(if vm.moving == 0 { "" } else { "moving" }.to_owned());
        table.row(row);
    }
    let mut text = table.render(output);
    if vms.iter().all(|vm| vm.counts == 0) && !vms.is_empty() {
        text.push_str("Nothing moves by itself on this machine: it counts no misses, and was not told numa=sample.\n");
    }
    text
}

fn reasons_text(vm: &NumaStatus, output: Output) -> String {
    let mut text = format!(
        "{}: {} pages moved; {} copies for readers, of which there are {} now; {} pages lost theirs to a write\n",
        vm.name, vm.moved, vm.replicated, vm.copies, vm.collapsed
    );
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
        text.push_str("Nothing moves by itself on this machine: it counts no misses, and was not told numa=sample.\n");
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
    fn a_move_is_foretold_and_told() {
        let before = status();
        let foretold = Forecast::of(&before, 0);
        let text = foretold.text(("web1", 0));
        assert!(text.contains("2.0 MiB of 3.0 MiB") || text.contains("2 MiB of 3 MiB"));
        assert!(text.contains("0.0 s") && text.contains("25 %"), "{text}");
        // 768 pages, 64 at each look.
        let expected = json!({
            "memory": 3 << 20, "elsewhere": 2 << 20, "least_ns": 24_000_000, "remote_percent": 25,
        });
        assert_eq!(foretold.json(), expected);
        let mut moved = before;
        moved.memory[..2].copy_from_slice(&[3 << 20, 0]);
        let there = Forecast::of(&moved, 0).text(("web1", 0));
        assert!(there.contains("on node 0 already"), "{there}");
        let none = (0, Duration::ZERO);
        let told = Gain::of(&before, (&before, &before), none).text(("web1", 0));
        assert!(told.contains("did not: what is shared stays"), "{told}");
        let mut short = before;
        short.left[NO_MEMORY] += 1;
        let told = Gain::of(&before, (&short, &short), none);
        assert!(told.text(("web1", 0)).contains("short of memory"));
        assert_eq!(told.json()["short_of_memory"], true);
        // While it moves does not count.
        moved.remote += 500;
        let mut later = moved;
        later.local += 90;
        later.remote += 10;
        let took = (0, Duration::from_millis(1_400));
        let gain = Gain::of(&before, (&moved, &later), took);
        let text = gain.text(("web1", 0));
        assert!(
            text.contains("node 0 in 1.4 s") && text.contains("75 %"),
            "{text}"
        );
        assert!(text.contains("90 % in the 2 s after"), "{text}");
        let expected = json!({
            "came": 2 << 20, "stayed": 0, "short_of_memory": false, "took_ns": 1_400_000_000_u64,
            "local_percent_before": 75, "local_percent_after": 90,
        });
        assert_eq!(gain.json(), expected);
        let gain = Gain::of(&before, (&moved, &moved), took);
        assert!(gain.text(("web1", 0)).contains("no page was hot"));
        assert_eq!(gain.json()["local_percent_after"], Value::Null);
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
