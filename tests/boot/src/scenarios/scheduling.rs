//! Shares of CPU time. Time is counted in instructions (`--icount`), so that shares depend on
//! Underpin alone and not on what else the host has to do.

use crate::{
    Outcome,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{thread::sleep, time::Duration};

/// Time for all VMs to be running, and then the window that is measured.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(10);

pub fn scenarios() -> Vec<Scenario> {
    vec![
        // Two to a CPU, and one VM of four vCPUs as well.
        shares(
            "cpu/equal",
            spinners(&[("a", 256), ("b", 256), ("c", 256), ("d", 256)]),
            &[("b", 1.0), ("c", 1.0), ("d", 1.0)],
            0.03,
        ),
        shares(
            "cpu/weights",
            spinners(&[("a", 256), ("b", 256), ("c", 768), ("d", 768)]),
            &[("b", 1.0), ("c", 3.0), ("d", 3.0)],
            0.05,
        ),
        shares(
            "cpu/cap",
            vec![spinner("a"), spinner("b").cap(30)],
            &[("b", 0.3)],
            0.05,
        ),
        shares(
            "cpu/odd",
            spinners(&[("a", 256), ("b", 256), ("c", 256)]),
            &[("b", 1.0), ("c", 1.0)],
            0.05,
        )
        .slow(),
        Scenario::new(
            "cpu/smp-equal",
            Hardware::new(2, "1G").counted(),
            vec![spinner("four").cpus(4)],
        )
        .check(vcpus_are_equal),
        idle_leaves(),
    ]
}

fn spinner(name: &str) -> Vm {
    Vm::bare(name, "hostile", "do=spin seconds=100000")
}

fn spinners(weights: &[(&str, u32)]) -> Vec<Vm> {
    weights
        .iter()
        .map(|(name, weight)| spinner(name).weight(*weight))
        .collect()
}

/// Each VM of `ratios` runs so many times as long as VM `a`, within `tolerance`, on two pCPUs.
fn shares(name: &str, vms: Vec<Vm>, ratios: &'static [(&str, f64)], tolerance: f64) -> Scenario {
    Scenario::new(name, Hardware::new(2, "1G").counted(), vms).check(move |stage| {
        let ran = run_times(stage)?;
        let time = |vm: &str| {
            ran.iter()
                .find(|(name, _)| name == vm)
                .map_or(0.0, |(_, ns)| *ns as f64)
        };
        let wrong = ratios
            .iter()
            .find(|(vm, ratio)| (time(vm) / time("a") / ratio - 1.0).abs() > tolerance);
        match wrong {
            _ if time("a") == 0.0 => Err("VM 'a' did not run".into()),
            Some((vm, ratio)) => Err(format!(
                "'{vm}' should run {ratio} times as long as 'a'; ran (ns): {ran:?}"
            )),
            None => Ok(()),
        }
    })
}

/// How long each VM ran within the window. All are read in one request, so that the windows agree.
fn run_times(stage: &mut Stage) -> Outcome<Vec<(String, u64)>> {
    let machine = stage.machine()?;
    sleep(SETTLE);
    let before = machine.list()?;
    sleep(WINDOW);
    let after = machine.list()?;
    let pairs = after.into_iter().zip(before);
    Ok(pairs
        .map(|(after, before)| (after.name, after.run_ns.saturating_sub(before.run_ns)))
        .collect())
}

/// The vCPUs of one VM share as VMs do.
fn vcpus_are_equal(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    sleep(SETTLE);
    let before = machine.vcpu_run_times("four")?;
    sleep(WINDOW);
    let after = machine.vcpu_run_times("four")?;
    let ran: Vec<u64> = after
        .iter()
        .zip(&before)
        .map(|(a, b)| a.saturating_sub(*b))
        .collect();
    let (least, most) = (
        ran.iter().min().copied().unwrap_or(0),
        ran.iter().max().copied().unwrap_or(0),
    );
    if least * 103 >= most * 100 && least > 0 {
        Ok(())
    } else {
        Err(format!("unequal vCPUs (ns): {ran:?}"))
    }
}

/// A VM that waits leaves its CPU to the one that works: it costs next to nothing.
fn idle_leaves() -> Scenario {
    let idle = Vm::linux("idle", "trixie-cloud", "idle").cpus(2);
    Scenario::new(
        "cpu/idle",
        Hardware::new(1, "1G"),
        vec![idle, spinner("busy")],
    )
    .expect("idle", "ready kernel=", 2 * super::kernels::BOOT)
    .check(|stage| {
        sleep(Duration::from_secs(5)); // the boot's deferred work
        let ran = run_times(stage)?;
        let time = |vm: &str| {
            ran.iter()
                .find(|(name, _)| name == vm)
                .map_or(0, |(_, ns)| *ns)
        };
        if time("idle") * 20 < time("busy") {
            Ok(())
        } else {
            Err(format!("an idle VM is busy (ns): {ran:?}"))
        }
    })
}
