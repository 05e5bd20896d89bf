//! A VM's life: pause, resume, reset, kill, start again.

use super::kernels::BOOT;
use crate::{
    Outcome,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    status::{self, Fit, Why},
    vm::Vm,
};
use std::{
    thread::sleep,
    time::{Duration, SystemTime},
};

/// Exit statuses of the command, as its help lists them.
const NO_SUCH_VM: i32 = 11;
const WRONG_STATE: i32 = 12;
const NO_MEMORY: i32 = 14;
const IMPOSSIBLE: i32 = 15;

pub fn scenarios() -> Vec<Scenario> {
    let busy = Vm::linux("busy", "trixie-cloud", "spin").cpus(2).restarts();
    let other = Vm::bare("other", "hostile", "do=spin seconds=100000");
    vec![
        Scenario::new("life/verbs", Hardware::new(2, "1G"), vec![busy, other])
            .expect("busy", "ready kernel=", BOOT)
            .check(pause_and_resume)
            .check(|stage| again(stage, "reset"))
            .check(kill_and_start)
            .check(what_cannot_be),
        power_button(),
        clock(),
        promises(),
        refused(),
        answers(),
    ]
}

fn runs(machine: &Machine, vm: &str) -> Outcome<bool> {
    let before = machine.vm(vm)?.run_ns;
    sleep(Duration::from_secs(2));
    Ok(machine.vm(vm)?.run_ns > before)
}

fn pause_and_resume(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    machine.run(&["pause", "busy"])?;
    machine.await_state("busy", "paused", Duration::from_secs(10))?;
    if runs(machine, "busy")? {
        return Err("a paused VM runs".into());
    }
    if !runs(machine, "other")? {
        return Err("the other VM stands still, too".into());
    }
    machine.run(&["resume", "busy"])?;
    if runs(machine, "busy")? {
        Ok(())
    } else {
        Err("a resumed VM does not run".into())
    }
}

/// A guest's `date`, and the clock that it has it from, show the machine's time (that of this test) after boot
/// and after a pause.
fn clock() -> Scenario {
    let vm = Vm::linux("guest", "trixie-cloud", "shell");
    Scenario::new("life/clock", Hardware::new(1, "1G"), vec![vm])
        .expect("guest", "ready kernel=", BOOT)
        .check(|stage| is_right(stage, 1))
        .check(|stage| {
            let machine = stage.machine()?;
            machine.run(&["pause", "guest"])?;
            sleep(PAUSE);
            machine.run(&["resume", "guest"])?;
            is_right(stage, 2)
        })
}

/// Much more than a clock may be wrong by.
const PAUSE: Duration = Duration::from_secs(10);

fn is_right(stage: &mut Stage, times: usize) -> Outcome {
    let machine = stage.machine()?;
    let seconds = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    };
    let before = seconds();
    // What is typed is echoed, and is not what is waited for.
    let rtc = "/sys/class/rtc/rtc0/since_epoch";
    machine.type_line("guest", &format!("echo clo''ck=$(date +%s)=$(cat {rtc})="))?;
    let said = machine.expect("guest", "clock=", times, Duration::from_mins(2))?;
    let after = seconds();
    let shown = said.split('=').filter_map(|word| word.parse::<u64>().ok());
    let shown: Vec<u64> = shown.collect();
    // Linux takes whole seconds from its clock when it boots.
    let is_right = |shown: &u64| (before - 2..=after + 2).contains(shown);
    if shown.len() == 2 && shown.iter().all(is_right) {
        return Ok(());
    }
    Err(format!(
        "it is {before} to {after}, and the guest says: {said}"
    ))
}

/// The VM boots once more after the verb.
fn again(stage: &mut Stage, verb: &str) -> Outcome {
    let machine = stage.machine()?;
    let seen = machine.console("busy").matches("ready kernel=").count();
    machine.run(&[verb, "busy"])?;
    machine
        .expect("busy", "ready kernel=", seen + 1, Duration::from_secs(BOOT))
        .map(drop)
}

fn kill_and_start(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    machine.run(&["kill", "busy"])?;
    let ended = machine.await_state("busy", "ended", Duration::from_secs(30))?;
    if !ended.reason.contains("kill") || ended.touched != 0 {
        return Err(format!(
            "a killed VM holds {} bytes and ended because: {}",
            ended.touched, ended.reason
        ));
    }
    again(stage, "start")
}

fn what_cannot_be(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    refuses(machine, "start busy", WRONG_STATE)?;
    refuses(machine, "resume busy", WRONG_STATE)?;
    refuses(machine, "kill nobody", NO_SUCH_VM)
}

fn refuses(machine: &Machine, words: &str, code: i32) -> Outcome {
    let split: Vec<&str> = words.split(' ').collect();
    match machine.refused(&split)? {
        status if status == code => Ok(()),
        status => Err(format!(
            "'underpin {words}' ended with {status} and not {code}"
        )),
    }
}

/// Who was to start by itself and cannot is told why, each time that it is asked for; the others run.
fn refused() -> Scenario {
    let spin = |name| Vm::bare(name, "hostile", "do=spin seconds=100000");
    let far = spin("far").on_node(5);
    let vms = vec![spin("big").memory("4GiB"), far, spin("other")];
    Scenario::new("life/refused", Hardware::new(1, "512M"), vms).check(|stage| {
        let machine = stage.machine()?;
        machine.await_state("other", "running", Duration::from_secs(10))?;
        for (vm, why) in [
            ("big", "not started: big needs "),
            ("far", "not started: there is no node 5: the machine has 1"),
        ] {
            let ended = machine.await_state(vm, "ended", Duration::from_secs(10))?;
            if !ended.reason.starts_with(why) {
                return Err(format!("{vm}: {}", ended.reason));
            }
        }
        refuses(machine, "start big", NO_MEMORY)?;
        refuses(machine, "start far", IMPOSSIBLE)?;
        machine.run(&["set", "big", "--base", "64MiB"])?;
        machine.run(&["start", "big"])?;
        machine.await_state("big", "running", Duration::from_secs(10))?;
        match machine.end()?.code() {
            Some(NO_MEMORY) => Ok(()),
            other => Err(format!("the machine ended with {other:?}")),
        }
    })
}

/// What a VM is promised, and how it shares, changes while it runs as far as it can, and for its next
/// start; a start that is only tried knows of the change.
fn promises() -> Scenario {
    let spin = "do=spin seconds=100000";
    let vm = Vm::bare("guest", "hostile", spin).terms("64MiB", "128MiB", None);
    Scenario::new("life/promises", Hardware::new(1, "512M"), vec![vm]).check(|stage| {
        let machine = stage.machine()?;
        let set = |words: &str| {
            let words: Vec<&str> = ["set", "guest"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            machine.run(&words).map(drop)
        };
        set("--max 96MiB --base 70MiB --claim start --never true --blocks keep --hold 2s")?;
        let mem = machine.mem("guest")?;
        if (mem.base >> 20, mem.max >> 20) != (70, 96) {
            return Err(format!("it has {} to {} bytes", mem.base, mem.max));
        }
        refuses(machine, "set guest --base 98MiB", IMPOSSIBLE)?;
        refuses(machine, "set guest --max 2GiB --base 2GiB", NO_MEMORY)?;
        refuses(machine, "set guest --group others", WRONG_STATE)?;
        refuses(machine, "set guest --hide true", WRONG_STATE)?;
        machine.run(&["kill", "guest"])?;
        let machine = stage.machine()?;
        machine.await_state("guest", "ended", Duration::from_secs(30))?;
        machine.run(&["start", "guest", "--dry-run"])?;
        machine.run(&[
            "set", "guest", "--group", "others", "--max", "2GiB", "--base", "2GiB",
        ])?;
        refuses(machine, "start guest --dry-run", NO_MEMORY)?;
        refuses(machine, "start guest", NO_MEMORY)?;
        machine.run(&["set", "guest", "--max", "256MiB", "--base", "80MiB"])?;
        machine.run(&["start", "guest", "--dry-run"])?;
        machine.run(&["start", "guest"])?;
        let (mem, given) = (machine.mem("guest")?, machine.vm("guest")?.memory);
        let found = (
            mem.group.as_str(),
            mem.base >> 20,
            mem.max >> 20,
            given >> 20,
        );
        if found == ("others", 80, 256, 256) {
            Ok(())
        } else {
            Err(format!(
                "started anew it has group, base, max and memory {found:?}"
            ))
        }
    })
}

/// What is told of memory comes to pass: the private pages of a VM by reason are all that it has, and as many
/// more VMs start as was said.
fn answers() -> Scenario {
    let vm = |name: &str| Vm::bare(name, "hungry", "mib=8 wait").memory("64MiB");
    let others = ["two", "three", "four", "five", "six"];
    let mut vms = others.map(|name| vm(name).asleep()).to_vec();
    vms.push(vm("one"));
    Scenario::new("life/answers", Hardware::new(1, "288M"), vms).check(move |stage| {
        let file = stage.directory.join("vms/two.toml").display().to_string();
        let machine = stage.machine()?;
        let minute = Duration::from_mins(1);
        machine.expect("one", "hungry: has eaten", 1, minute)?;
        machine.run(&["pause", "one"])?;
        let why: Why = status::parse(
            "mem why",
            &machine.run(&["mem", "why", "one", "-o", "json"])?,
        )?;
        let reasons: u64 = why.reasons.values().map(|reason| reason.bytes).sum();
        let private = machine.mem("one")?.private;
        if [reasons, why.private.bytes] != [private; 2] || private < 8 << 20 {
            let all = why.private.bytes;
            return Err(format!(
                "{reasons} of {all} bytes have a reason, {private} are private"
            ));
        }
        refuses(machine, "mem reclaim one 4MiB", IMPOSSIBLE)?;
        let words = ["mem", "fit", &file, "-o", "json"];
        let fit: Fit = status::parse("mem fit", &machine.run(&words)?)?;
        if fit.binds != "memory" || !(1..others.len() as u64).contains(&fit.fits) {
            return Err(format!(
                "{} more would start; {} binds",
                fit.fits, fit.binds
            ));
        }
        for (n, name) in (0..).zip(others) {
            if n == fit.fits {
                refuses(machine, &format!("start {name} --dry-run"), NO_MEMORY)?;
                return refuses(machine, &format!("start {name}"), NO_MEMORY);
            }
            machine.run(&["start", name, "--dry-run"])?;
            machine.run(&["start", name])?;
        }
        Err("all of them started".into())
    })
}

/// A kernel that nobody told to listen does not obey the power button; then `stop` says so in time.
fn power_button() -> Scenario {
    let deaf = Vm::bare("deaf", "hostile", "do=spin seconds=100000");
    Scenario::new("life/deaf", Hardware::new(1, "1G"), vec![deaf]).check(|stage| {
        let machine = stage.machine()?;
        machine.refused(&["stop", "deaf", "--timeout", "3s"])?;
        machine.run(&["kill", "deaf"]).map(drop)
    })
}
