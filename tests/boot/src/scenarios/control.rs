//! VMs that ask things of the hypervisor, with the same command as outside.

use super::kernels::BOOT;
use crate::{
    Outcome, archive, assets, because,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{fs, path::Path, time::Duration};

pub(super) const KERNEL: &str = "trixie-cloud";
const WITHIN: Duration = Duration::from_secs(BOOT);

pub fn scenarios() -> Vec<Scenario> {
    let guest = |name: &str| {
        Vm::linux(name, KERNEL, "shell")
            .initrd("../initrd")
            .memory("384MiB")
    };
    let vms = vec![
        guest("boss").control("all"),
        guest("eye").control("read"),
        Vm::linux("job", KERNEL, "work").asleep(),
        Vm::bare("far", "hostile", "do=spin seconds=100000")
            .group("far")
            .region("apart", "2MiB", "rw"),
    ];
    let scenario = Scenario::new("control/rights", Hardware::new(2, "2G"), vms)
        .prepare(files)
        .expect("boss", "ready kernel=", 2 * BOOT)
        .expect("eye", "ready kernel=", BOOT)
        .check(all_may_do_everything)
        .check(read_sees_its_group)
        .check(a_flood_delays_nobody)
        .check(a_program_that_takes_nothing);
    vec![scenario, eight()]
}

/// Eight VMs that may ask, one of them everything, and one that may ask nothing.
fn eight() -> Scenario {
    let guest = |name: String| {
        let vm = Vm::linux(&name, KERNEL, "shell");
        vm.initrd("../initrd").memory("256MiB")
    };
    let eyes = (2..=8).map(|n| guest(format!("eye{n}")).control("read"));
    let mut vms: Vec<Vm> = eyes.collect();
    vms.push(guest("boss".into()).control("all"));
    vms.push(guest("none".into()));
    vms.push(Vm::linux("job", KERNEL, "work"));
    vms.push(Vm::bare("spin", "hostile", "do=spin seconds=100000"));
    let names = (2..=8).map(|n| format!("eye{n}"));
    let names = names.chain(["boss", "none"].map(str::to_owned));
    names
        .fold(
            Scenario::new("control/eight", Hardware::new(2, "4G"), vms).prepare(files),
            |scenario, name| scenario.expect(&name, "ready kernel=", 8 * BOOT),
        )
        .check(every_verb)
        .check(all_at_a_time)
        .slow()
}

/// What `control/rights` does not ask: the verb, its exit status, and some of what it says.
const VERBS: [(&str, u8, &[&str]); 17] = [
    (
        "console eye2 < /tmp/typed & sleep 5; kill $!",
        0,
        &["hello-42"],
    ),
    ("trace spin --for 1s", 0, &["irq"]),
    (
        "trace spin --for 1s --out /tmp/t; grep -c traceEvents /tmp/t",
        0,
        &["\n1"],
    ),
    (
        "report /tmp/r --for 3s; grep -c '<svg' /tmp/r/index.html",
        0,
        &[],
    ),
    ("mem why spin", 0, &["not-from-disk"]),
    ("mem fit /nothing.toml", 6, &["/nothing.toml"]),
    ("numa", 0, &["spin"]),
    ("numa why spin", 0, &["spin"]),
    ("numa move spin 7", 15, &["there is no node 7"]),
    ("list -o json", 0, &["\"boss\""]),
    ("metrics", 0, &["underpin_"]),
    ("reset spin", 0, &["spin: reset"]),
    ("start job", 0, &["job: started"]),
    ("kill job", 0, &["job: killed"]),
    ("man | head -n 5", 0, &["underpin"]),
    ("explain 15", 0, &[]),
    ("check /nothing.toml", 6, &["/nothing.toml"]),
];

fn every_verb(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    machine.await_state("job", "ended", WITHIN)?;
    let typed = "(echo 'echo hello-$((40 + 2))'; sleep 9) > /tmp/typed &";
    machine.type_line("boss", &format!("mkfifo /tmp/typed; {typed}"))?;
    for (n, (verb, status, wanted)) in VERBS.iter().enumerate() {
        let mark = format!("verb{n}");
        let said = ask(machine, "boss", &mark, &format!("/underpin {verb}"))?;
        let said = said.replace('\r', "");
        holds(&said, wanted).map_err(|why| format!("{verb}: {why}"))?;
        holds(&said, &[&format!("{mark}={status}\n")])?;
    }
    let said = ask(machine, "none", "deaf", "/underpin list")?;
    holds(&said, &["control = ", "deaf=3"])
}

/// All eight ask again and again, and each gets its answers.
fn all_at_a_time(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let asks = "for n in 1 2 3 4 5 6 7 8 9 10; do /underpin list -q | grep -c running; done";
    let names: Vec<String> = (2..=8).map(|n| format!("eye{n}")).collect();
    let names = names.iter().map(String::as_str).chain(["boss"]);
    for name in names.clone() {
        machine.type_line(name, &format!("{asks} | sort -u | xargs echo all''ten"))?;
    }
    for name in names {
        let said = machine.expect(name, "allten", 1, WITHIN)?;
        // Nine kernels and one that spins; each time the same.
        holds(&format!("{}\n", said.trim_end()), &["allten 10\n"])?;
    }
    Ok(())
}

/// `initrd`: that of the kernel, with the command.
pub(super) fn files(directory: &Path) -> Outcome<Vec<String>> {
    let path = assets::arm64_command();
    let command = fs::read(&path).map_err(because(format!("cannot read {}", path.display())))?;
    let files = [("underpin", command)];
    archive::initrd(&directory.join("initrd"), KERNEL, &files)?;
    Ok(Vec::new())
}

/// Types a line at a VM's shell, and waits for what it prints at the end: `mark` and the shell's `$?`.
fn ask(machine: &mut Machine, vm: &str, mark: &str, line: &str) -> Outcome<String> {
    let before = machine.console(vm).len();
    // The mark is spelled so that the line itself, which the terminal shows, does not hold it.
    let (first, rest) = mark.split_at(1);
    machine.type_line(vm, &format!("{line}; echo {first}''{rest}=$?"))?;
    machine.expect(vm, &format!("{mark}="), 1, WITHIN)?;
    Ok(machine.console(vm).split_off(before))
}

pub(super) fn holds(said: &str, wanted: &[&str]) -> Outcome {
    match wanted.iter().find(|word| !said.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("'{word}' is not in: {said}")),
    }
}

/// The verbs, from inside: tables, a start, a console, sets, metrics, `top`, a stop that is not listened to.
fn all_may_do_everything(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let ask = |machine: &mut Machine, mark: &str, line: &str| ask(machine, "boss", mark, line);
    let said = ask(machine, "listed", "/underpin list")?;
    holds(&said, &["boss", "eye", "job", "far", "defined", "listed=0"])?;
    let said = ask(machine, "shown", "/underpin show far")?;
    holds(&said, &["running", "shown=0"])?;
    let said = ask(machine, "begun", "/underpin start job")?;
    holds(&said, &["job: started", "begun=0"])?;
    let ran = machine.await_state("job", "ended", WITHIN)?;
    if ran.starts != 1 || !ran.reason.contains("powered off") {
        return Err(format!("the job's end was '{}'", ran.reason));
    }
    let said = ask(machine, "paused", "/underpin pause far && /underpin list")?;
    holds(&said, &["far: paused", "paused=0"])?;
    machine.await_state("far", "paused", WITHIN)?;
    let said = ask(machine, "resumed", "/underpin resume far")?;
    holds(&said, &["resumed=0"])?;
    let said = ask(machine, "weighed", "/underpin set far --weight 300")?;
    holds(&said, &["weighed=0"])?;
    // Nobody there listens to a power button: refused with what to do.
    let said = ask(machine, "stopped", "/underpin stop far")?;
    holds(&said, &["power button", "stopped=15"])?;
    let said = ask(
        machine,
        "sampled",
        "/underpin top --batch -n 1 --delay 1s -o json",
    )?;
    holds(&said, &["\"vms\"", "sampled=0"])?;
    let said = ask(machine, "counted", "/underpin metrics | grep -c ^underpin_")?;
    holds(&said, &["counted=0"])?;
    let said = ask(
        machine,
        "memory",
        "/underpin mem; /underpin nodes; /underpin machine",
    )?;
    holds(&said, &["memory=0"])?;
    let said = ask(machine, "killed", "/underpin kill far")?;
    holds(&said, &["far: killed", "killed=0"])?;
    machine.await_state("far", "ended", WITHIN)?;
    let said = ask(machine, "again", "/underpin start far")?;
    holds(&said, &["again=0"])
}

/// A VM with the right to read sees its own group, and changes nothing.
fn read_sees_its_group(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let said = ask(machine, "eye", "listed", "/underpin list")?;
    holds(&said, &["boss", "eye", "job", "listed=0"])?;
    if said.contains("far") {
        return Err(format!("another group's VM is seen: {said}"));
    }
    let said = ask(machine, "eye", "shown", "/underpin show far")?;
    holds(&said, &["there is no VM named far", "shown=11"])?;
    for (mark, verb) in [
        ("reasons", "mem why far"),
        ("nodes", "numa why far"),
        ("pages", "mem analyze boss far"),
    ] {
        let said = ask(machine, "eye", mark, &format!("/underpin {verb}"))?;
        holds(&said, &["there is no VM named far", &format!("{mark}=11")])?;
    }
    let tables = "/underpin mem; /underpin numa";
    let said = ask(machine, "eye", "tables", tables)?;
    holds(&said, &["boss", "tables=0"])?;
    if said.contains("far") || said.contains("apart") {
        return Err(format!("another group's VM or region is seen: {said}"));
    }
    for (mark, verb) in [
        ("killed", "kill boss"),
        ("unseen", "kill far"),
        ("shut", "shutdown"),
        ("traced", "trace boss --for 1s"),
        ("weighed", "set boss --weight 1"),
    ] {
        let said = ask(machine, "eye", mark, &format!("/underpin {verb}"))?;
        holds(&said, &["may not ask", &format!("{mark}=18")])?;
    }
    let said = ask(
        machine,
        "eye",
        "sampled",
        "/underpin top --batch -n 1 --delay 1s",
    )?;
    holds(&said, &["boss", "sampled=0"])?;
    if said.contains("far") || machine.vm("boss")?.state != "running" {
        return Err(format!("a reader sees or does too much: {said}"));
    }
    Ok(())
}

/// A VM that writes noise and requests as fast as it can, with nobody to read the answers: others are
/// answered as before, and another VM runs on.
fn a_flood_delays_nobody(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let port =
        "p=/dev/$(basename $(dirname $(grep -l org.underpin /sys/class/virtio-ports/*/name)))";
    machine.type_line("boss", &format!("{port}; cat /dev/urandom > $p &"))?;
    let before = machine.vm("far")?;
    // Answers to somebody else while it floods.
    for _ in 0..10 {
        machine.list()?;
    }
    let said = ask(machine, "eye", "beside", "/underpin list")?;
    holds(&said, &["beside=0"])?;
    std::thread::sleep(Duration::from_secs(2));
    let after = machine.vm("far")?;
    let ran = after.run_ns - before.run_ns;
    let waited = after.steal_ns - before.steal_ns;
    // Two CPUs for two VMs that always want one, and a third one now and then.
    if ran < 2 * waited {
        return Err(format!("another VM ran {ran} ns and waited {waited} ns"));
    }
    let said = ask(
        machine,
        "boss",
        "calm",
        "kill %1; wait; sleep 1; /underpin list",
    )?;
    holds(&said, &["far", "calm=0"])
}

/// A program that asks and never reads: what it asked is answered up to a bound, and the next program
/// that opens the port finds it as new.
fn a_program_that_takes_nothing(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    // LIST, many times: the header's magic, kind 2, a tag and no payload.
    let frame = "printf 'UPCT\\002\\000\\000\\000\\001\\000\\000\\000\\000\\000\\000\\000'";
    let flood = format!("(while :; do {frame}; done) > $p & sleep 3; kill %1; wait");
    machine.type_line("boss", &flood)?;
    machine.list()?;
    let said = ask(machine, "boss", "fresh", "sleep 4; /underpin list")?;
    holds(&said, &["far", "fresh=0"])
}
