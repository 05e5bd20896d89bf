//! Control VMs that ask things of another host's hypervisor, over the link.

use super::{POLL, await_seen, one_key};
use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    scenarios::control::{KERNEL, files, holds},
    vm::Vm,
};
use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a VM may take to say something, on a busy host.
const PATIENCE: Duration = Duration::from_mins(4);

/// What a VM of host0 asks of host1 by itself, and what became of it: it may not pause.
const SCRIPT: &str = "for verb in list 'show there' 'pause there' list; do
    /underpin --host right $verb
    told=\"$told $?\"
done
echo told$told
";
pub const ANSWERED: &str = "told 0 0 18 0";

/// A VM of host0 that may do everything, and one that may read, talk to VMs of host1; and one that asks as soon as it has
/// started.
pub fn scenario() -> Scenario {
    let hardware = Hardware::hosts(2, "1G", "class=20us");
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new("cluster/control", hardware, vec![other]);
    scenario.prepare(places).check(ask_and_act).slow()
}

fn places(directory: &Path) -> Outcome<Vec<String>> {
    files(directory)?;
    let mut words = one_key::<2>(directory)?;
    let asks = |name: &str, rights| {
        let vm = Vm::linux(name, KERNEL, "shell").initrd("initrd");
        vm.memory("256MiB").control(rights)
    };
    let script = directory.join("ask.sh");
    // A disk has whole blocks; the guest leaves zeroes out.
    fs::write(&script, format!("{SCRIPT:\0<4096}")).map_err(because("cannot write a script"))?;
    let early = Vm::linux("early", KERNEL, "script").initrd("initrd");
    let early = early.memory("256MiB").control("read");
    let idle = |name: &str| Vm::bare(name, "hello", "turns=1000000000000").flat();
    let vms = [
        (0, "boss", asks("boss", "all")),
        (0, "eye", asks("eye", "read")),
        (0, "early", early.cow_disk("ask.sh")),
        (1, "there", idle("there")),
        (1, "apart", idle("apart").group("far")),
    ];
    for (host, name, vm) in vms {
        let file = directory.join(format!("{name}.toml"));
        fs::write(&file, vm.to_toml()?).map_err(because("cannot write a VM file"))?;
        words.extend(["--on".to_owned(), format!("host{host}={}", file.display())]);
    }
    Ok(words)
}

/// Waits until a VM of host0 has said that; gives all that it said since its console had so many bytes.
fn hear(machine: &mut Machine, vm: &str, text: &str, since: usize) -> Outcome<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = machine.host_console("host0", vm).split_off(since);
        if said.contains(text) {
            return Ok(said);
        }
        machine.check_alive()?;
        if Instant::now() > deadline {
            return Err(format!("'{vm}' does not say '{text}': {said}"));
        }
        sleep(POLL);
    }
}

/// Types a command of Underpin's at a VM of host0; gives what it says, up to its exit status.
fn ask(machine: &mut Machine, vm: &str, words: &str) -> Outcome<String> {
    let since = machine.host_console("host0", vm).len();
    // The mark is spelled so that the line itself, which the terminal shows, does not hold it.
    let line = format!("/underpin {words}; echo sta''tus=$?.");
    machine.type_by(&["--host", "host0", "console", vm], &line)?;
    let said = hear(machine, vm, "status=", since)?;
    let end = said.find("status=").unwrap_or(0);
    // The line ends behind the status.
    match said[end..].find('.') {
        Some(_) => Ok(said),
        None => hear(machine, vm, ".\r", since + end),
    }
}

fn ask_and_act(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    await_seen(machine, 0, |it| it.state == "in")?;
    for vm in ["boss", "eye"] {
        hear(machine, vm, "ready kernel=", 0)?;
    }
    let said = ask(machine, "boss", "--host right list")?;
    holds(&said, &["there", "apart", "status=0."])?;
    let said = ask(machine, "boss", "--host right pause there")?;
    holds(&said, &["there: paused", "status=0."])?;
    let told = machine.run(&["--host", "host1", "show", "there"])?;
    holds(&told, &["paused"])?;
    // The rights and the group of the VM count at the host that answers.
    let said = ask(machine, "eye", "--host right list")?;
    holds(&said, &["there", "status=0."])?;
    if said.contains("apart") {
        return Err(format!("a reader sees another group's VM: {said}"));
    }
    let said = ask(machine, "eye", "--host right resume there")?;
    holds(&said, &["may not ask that"])?;
    let told = machine.run(&["--host", "host1", "show", "there"])?;
    holds(&told, &["paused"])?;
    let said = ask(machine, "boss", "--host right resume nothing")?;
    holds(&said, &["nothing"])?;
    let said = ask(machine, "boss", "--host nowhere list")?;
    holds(&said, &["nowhere is no member of the cluster"])?;
    let said = ask(machine, "boss", "--host right resume there")?;
    holds(&said, &["there: goes on", "status=0."])?;
    // A host that dies owes an answer: who asked is told so, and asks its own host as before.
    // The first words are for the `/underpin` that `ask` types.
    let words = "--version; read a b </proc/uptime; /underpin --host right shutdown; \
        read c b </proc/uptime; echo took=$((${c%%.*}-${a%%.*}))s";
    let said = ask(machine, "boss", words)?;
    holds(&said, &["no answer came in 3 s"])?;
    if !["took=3s", "took=4s"].iter().any(|it| said.contains(it)) {
        return Err(format!("the VM waited for longer: {said}"));
    }
    let said = ask(machine, "boss", "list")?;
    holds(&said, &["boss", "eye", "status=0."])
}
