//! Watching a machine: what is recorded of VMs agrees with what is counted of them.

use super::kernels::BOOT;
use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::Scenario,
    status::VmStatus,
    vm::Vm,
};
use serde_json::Value;
use std::{
    fs,
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_mins(1);
/// After so long a trace has begun. Where it has not, the scenario says so.
const INTO_TRACE: Duration = Duration::from_secs(2);
/// Exits of the work that is traced, at least.
const EXITS_MIN: u64 = 200;

pub fn scenarios() -> Vec<Scenario> {
    vec![trace(), hung(), top_inside()]
}

const SHARING: [&str; 3] = ["full", "part", "exact"];

/// The most by which a share of time that a guest tells may differ from EL2's.
const SHARE_OFF: f64 = 0.02;

/// What `top` inside a VM shows (it reads `/proc/stat`) is what EL2 counts, where three guests share a
/// CPU: one that always works, one that also sleeps, and one whose kernel counts its time exactly on
/// the vCPU that works. The others count user and system by ticks: turns of a multiple of their 4 ms
/// would show them the same part of each turn.
fn top_inside() -> Scenario {
    let mut vms = ["full", "part"]
        .map(|name| Vm::linux(name, "trixie-cloud", "shell"))
        .to_vec();
    vms.push(
        Vm::linux("exact", "trixie-cloud", "shell")
            .cpus(2)
            .args("nohz_full=1"),
    );
    let hardware = Hardware::new(1, "1G").counted();
    let mut scenario = Scenario::new("watch/top-inside", hardware, vms).slow();
    for name in SHARING {
        scenario = scenario.expect(name, "ready kernel=", 3 * BOOT);
    }
    scenario.check(|stage| {
        let machine = stage.machine()?;
        let turn = "x=0; while [ $x -lt 9000 ]; do x=$((x+1)); done; usleep 50000";
        machine.type_line("full", "while :; do :; done &")?;
        machine.type_line("part", &format!("while :; do {turn}; done &"))?;
        let copy = "taskset 2 dd if=/dev/zero of=/dev/null bs=64k &";
        machine.type_line("exact", copy)?;
        sleep(Duration::from_secs(2));
        let mut before = Vec::new();
        for name in SHARING {
            before.push(times(machine, name, 1)?);
        }
        sleep(WINDOW);
        for (name, before) in SHARING.into_iter().zip(before) {
            let after = times(machine, name, 2)?;
            let passed = |n: usize| [0, 1, 2].map(|k| after[n][k] - before[n][k]);
            let (inside, at_el2) = (passed(0), passed(1));
            let most = SHARE_OFF * at_el2.iter().sum::<f64>();
            if (0..3).any(|k| (inside[k] - at_el2[k]).abs() > most) {
                return Err(format!(
                    "{name}: {inside:.2?} s busy, stolen and idle inside, {at_el2:.2?} at EL2"
                ));
            }
        }
        Ok(())
    })
}

/// Seconds busy, stolen and idle of a VM's vCPU, as `/proc/stat` tells for the `nth` time, and as EL2
/// does at the same time (the middle of before and after).
fn times(machine: &mut Machine, vm: &str, nth: usize) -> Outcome<[[f64; 3]; 2]> {
    let before = machine.vm(vm)?;
    machine.type_line(vm, r"echo $(sed -n '1s/^cpu//p' /proc/stat) end")?;
    // The time of the guest's guests, of which there are none, comes last.
    let line = machine.expect(vm, "0 0 end", nth, ANSWER)?;
    let after = machine.vm(vm)?;
    let ticks: Vec<f64> = line.split(' ').flat_map(str::parse).collect();
    let [user, nice, system, idle, wait, irq, softirq, steal, ..] = ticks[..] else {
        return Err(format!("'{vm}' says '{line}'"));
    };
    let inside = [user + nice + system + irq + softirq, steal, idle + wait];
    let middle = |of: fn(&VmStatus) -> u64| (of(&before) + of(&after)) as f64 / 2e9;
    let at_el2 = [
        middle(|vm| vm.run_ns + vm.hypervisor_ns),
        middle(|vm| vm.steal_ns),
        middle(|vm| vm.idle_ns),
    ];
    Ok([inside.map(|ticks| ticks / 100.0), at_el2])
}

/// What people ask of a machine with the VMs `hung` and `other`.
const QUESTIONS: [&[&str]; 8] = [
    &["list"],
    &["show", "hung"],
    &["show", "other"],
    &["mem"],
    &["nodes"],
    &["numa"],
    &["top", "--batch", "-n", "1"],
    &["metrics"],
];

/// A guest hangs on the only CPU, with all its interrupts masked: all questions are answered as before, also
/// about itself, and its neighbour comes to its end.
fn hung() -> Scenario {
    let vm = |name, turns| Vm::bare(name, "hello", turns).flat().asleep();
    let vms = vec![
        vm("hung", "turns=1000000000000000"),
        vm("other", "turns=100000000"),
    ];
    Scenario::new("watch/hung", Hardware::new(1, "1G"), vms).check(|stage| {
        let machine = stage.machine()?;
        machine.await_answer()?;
        let before = answered(machine)?;
        machine.run(&["start", "hung"])?;
        machine.expect("hung", "hello: bootargs", 1, ANSWER)?;
        sleep(Duration::from_secs(1));
        let after = answered(machine)?;
        if after > 3 * before + Duration::from_secs(3) {
            return Err(format!("answers took {before:.1?}, and then {after:.1?}"));
        }
        machine.run(&["mem", "why", "hung"])?;
        let events = machine.run(&["-o", "json", "trace", "hung", "--for", "1s"])?;
        if !events.contains("\"vm\": \"hung\"") {
            return Err(format!("nothing of it is in its trace: {events}"));
        }
        machine.run(&["start", "other"])?;
        machine.await_state("other", "ended", ANSWER)?;
        match machine.vm("hung")?.state.as_str() {
            "running" => Ok(()),
            state => Err(format!("who was to hang is {state}")),
        }
    })
}

/// How long the answers to all questions take.
fn answered(machine: &Machine) -> Outcome<Duration> {
    let begin = Instant::now();
    for words in QUESTIONS {
        machine.run(words)?;
    }
    Ok(begin.elapsed())
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
            let words = ["-o", "json", "trace", "one", "--for", "5m", "--out", &out];
            let (said, sleepy) = traced_work(machine, &words, 1)?;
            let after = machine.vm("one")?;
            let said: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
            agrees(&said, &before, &after)?;
            let drawn = fs::read(&file).map_err(because("no trace"))?;
            let drawn: Value = serde_json::from_slice(&drawn).map_err(because("no JSON"))?;
            // An interrupt that ends a sleep in place is counted, and is part of the event of that sleep.
            is_complete(&drawn, &sleepy, |class| class != "irq" && class != "timer")?;
            let events = drawn["traceEvents"].as_array().map_or(0, Vec::len) as u64;
            // And a name for the VM, and for each of its tracks.
            if events <= said["events"].as_u64().unwrap_or(u64::MAX) {
                return Err(format!("{events} events are drawn of {said}"));
            }
            // From here on its CPU never idles, and there is little else that a ring could lose.
            machine.type_line("one", "while :; do :; done &")?;
            let words = [&words[..], &["--classes", "exits"]].concat();
            let (_, busy) = traced_work(machine, &words, 2)?;
            let drawn = fs::read(&file).map_err(because("no trace"))?;
            let drawn: Value = serde_json::from_slice(&drawn).map_err(because("no JSON"))?;
            is_complete(&drawn, &busy, |_| true)?;
            machine.run(&["trace", "--stop"])?;
            match machine.refused(&["trace", "nobody"])? {
                11 => Ok(()),
                status => Err(format!("a trace of nobody ends with {status}")),
            }
        })
}

/// Traces the VM while it works; gives what the trace said, and what was counted in a part of it.
fn traced_work(machine: &mut Machine, words: &[&str], nth: usize) -> Outcome<(String, Window)> {
    let trace = machine.spawn(words)?;
    sleep(INTO_TRACE);
    stir(machine, 2 * nth - 1)?;
    let window = Window::of_work(machine, nth)?;
    stir(machine, 2 * nth)?;
    interrupt(&trace)?;
    Ok((said_by(trace)?, window))
}

/// What a verb printed that has worked for a while.
pub(super) fn said_by(verb: Child) -> Outcome<String> {
    let output = verb.wait_with_output().map_err(because("no answer"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = || format!("the trace failed ({})", output.status);
    output.status.success().then_some(said).ok_or_else(failed)
}

/// Makes the VM do something that is recorded.
fn stir(machine: &mut Machine, nth: usize) -> Outcome {
    machine.type_line("one", "echo stirred-$((6 * 7))")?;
    machine.expect("one", "stirred-42", nth, ANSWER).map(drop)
}

/// Ends a verb as a user at a terminal does.
pub(super) fn interrupt(verb: &Child) -> Outcome {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-INT", &verb.id().to_string()]).status();
    let is_sent = sent.map_err(because("cannot run kill"))?.success();
    let ended = || "the trace had ended by itself".to_owned();
    is_sent.then_some(()).ok_or_else(ended)
}

/// What was counted of the VM at some time between two.
struct Counted {
    since_us: f64,
    vm: VmStatus,
    until_us: f64,
}

impl Counted {
    fn now(machine: &Machine) -> Outcome<Self> {
        let now = || Ok::<_, String>(machine.status()?.uptime_ns as f64 / 1000.0);
        Ok(Self {
            since_us: now()?,
            vm: machine.vm("one")?,
            until_us: now()?,
        })
    }
}

/// What was counted before and after some work.
struct Window {
    first: Counted,
    last: Counted,
}

impl Window {
    /// The VM touches memory that was never touched, a little at a time.
    fn of_work(machine: &mut Machine, nth: usize) -> Outcome<Self> {
        let first = Counted::now(machine)?;
        let work = format!(
            "for i in $(seq 20); do head -c 500000 /dev/zero >/tmp/{nth}-$i; sleep 0.1; done; echo touched-$((6 * 7))"
        );
        machine.type_line("one", &work)?;
        machine.expect("one", "touched-42", nth, ANSWER)?;
        let last = Counted::now(machine)?;
        Ok(Self { first, last })
    }
}

/// Whether all exits of the classes that `is_told` were recorded, and none twice, that were counted between two times:
/// those that lie between are no more than were counted, and with those that may have been before or after they are no
/// less.
fn is_complete(drawn: &Value, window: &Window, is_told: impl Fn(&str) -> bool) -> Outcome {
    let Window { first, last } = window;
    // A machine that is busy with others may lose some, and says how many.
    let lost = drawn["otherData"]["lost"]
        .as_u64()
        .ok_or("nothing is said of what was lost")?;
    let events = drawn["traceEvents"].as_array().ok_or("nothing is drawn")?;
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or(0.0);
    let times: Vec<(&str, f64, f64)> = events
        .iter()
        .filter(|event| event["cat"] == "exits")
        .map(|event| {
            (
                event["name"].as_str().unwrap_or(""),
                number(event, "ts"),
                number(event, "dur"),
            )
        })
        .collect();
    let covers = times.iter().any(|(_, at, _)| *at < first.since_us)
        && times.iter().any(|(_, at, _)| *at > last.until_us);
    if !covers {
        return Err("the trace does not cover the work".to_owned());
    }
    let mut all = 0;
    for (class, count) in last.vm.exits.iter().filter(|(class, _)| is_told(class)) {
        let counted = count - first.vm.exits.get(class).copied().unwrap_or(0);
        let within = |from: f64, to: f64| {
            let is = |(name, at, dur): &&(&str, f64, f64)| {
                name == class && at + dur >= from && *at <= to
            };
            times.iter().filter(is).count() as u64
        };
        let (least, most) = (
            within(first.until_us, last.since_us),
            within(first.since_us, last.until_us),
        );
        // One of each vCPU may be under way at either time.
        if most + lost < counted || least > counted + 2 {
            return Err(format!(
                "{counted} {class} were counted, and from {least} to {most} recorded"
            ));
        }
        all += counted;
    }
    println!("        {all} exits were counted and recorded, {lost} events lost");
    let is_enough = all >= EXITS_MIN;
    is_enough
        .then_some(())
        .ok_or_else(|| format!("the VM had {all} exits only"))
}

/// Whether what was recorded of a VM can be what was counted of it between two times.
fn agrees(said: &Value, before: &VmStatus, after: &VmStatus) -> Outcome {
    let seen = said["seen"].as_array().ok_or("nothing was seen")?;
    let counted = |class: &str| {
        let of = |vm: &VmStatus| vm.exits.get(class).copied().unwrap_or(0);
        of(after).saturating_sub(of(before))
    };
    // The exit that was under way at first was counted before, and is recorded at its end.
    let mut under_way = 0;
    let mut classes = Vec::new();
    for line in seen {
        let (class, name) = (line["class"].as_str(), line["name"].as_str().unwrap_or(""));
        let count = line["count"].as_u64().unwrap_or(0);
        classes.extend(class.map(str::to_owned));
        let more = if class == Some("exits") {
            count.saturating_sub(counted(name))
        } else {
            0
        };
        under_way += more;
        if line["vm"] != "one" || under_way > 1 {
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
