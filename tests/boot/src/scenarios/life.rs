//! A VM's life: pause, resume, reset, kill, start again.

use super::kernels::BOOT;
use crate::{
    Outcome,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{thread::sleep, time::Duration};

/// Exit statuses of the command, as its help lists them.
const NO_SUCH_VM: i32 = 11;
const WRONG_STATE: i32 = 12;

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
    let wrong = [
        (["start", "busy"], WRONG_STATE),
        (["resume", "busy"], WRONG_STATE),
        (["kill", "nobody"], NO_SUCH_VM),
    ];
    for (words, code) in wrong {
        let status = machine.refused(&words)?;
        if status != code {
            return Err(format!(
                "'underpin {}' ended with {status} and not {code}",
                words.join(" ")
            ));
        }
    }
    Ok(())
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
