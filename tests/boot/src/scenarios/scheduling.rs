//! Shares of CPU time. Time is counted in instructions (`--icount`), so that shares depend on
//! Underpin alone and not on what else the host has to do.

use crate::{
    Outcome,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{thread::sleep, time::Duration};

/// Time for all VMs to be running, and then the window that is measured.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(10);
/// How long a busy guest may take to answer what is typed at it.
const ANSWER: Duration = Duration::from_mins(1);

pub fn scenarios() -> Vec<Scenario> {
    vec![
        // Two to a CPU, and one VM of four vCPUs as well.
        shares(
            "cpu/equal",
            spinners(&[("a", 256), ("b", 256), ("c", 256), ("d", 256)]),
            &[("b", 1.0), ("c", 1.0), ("d", 1.0)],
            0.03,
        )
        .slow(),
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
        steal(),
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

/// Guests on one CPU know how much of it the other has: as much as EL2 says, and half of all.
fn steal() -> Scenario {
    let vms = [("old", "bookworm"), ("new", "newest")];
    let vms = vms.map(|(name, kernel)| Vm::linux(name, kernel, "shell"));
    Scenario::new("cpu/steal", Hardware::new(1, "1G").counted(), vms.into())
        .expect("old", "ready kernel=", 3 * super::kernels::BOOT)
        .expect("new", "ready kernel=", super::kernels::BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            for vm in ["old", "new"] {
                machine.type_line(vm, "dmesg | grep stolen")?;
                machine.expect(vm, "using stolen time PV", 1, ANSWER)?;
                machine.type_line(vm, "while :; do :; done &")?;
            }
            sleep(SETTLE);
            let before = [
                guest_times(machine, "old", 1)?,
                guest_times(machine, "new", 1)?,
            ];
            sleep(WINDOW);
            let after = [
                guest_times(machine, "old", 2)?,
                guest_times(machine, "new", 2)?,
            ];
            for ([stolen, all], [stolen_before, all_before]) in after.into_iter().zip(before) {
                let share = (stolen - stolen_before) / (all - all_before);
                if (share - 0.5).abs() > 0.05 {
                    return Err(format!(
                        "a guest says that {share:.3} of its time is stolen"
                    ));
                }
            }
            Ok(())
        })
}

/// Seconds that were stolen from a guest of one vCPU, and seconds since it started, as it says for
/// the `times`-th time. What was stolen is within 2 % of what EL2 says. (What Linux says of its users'
/// time is no measure unless it is counted exactly: `watch/top-inside`.)
fn guest_times(machine: &mut Machine, vm: &str, times: usize) -> Outcome<[f64; 2]> {
    let asked = r"echo $(sed 's/ .*//' /proc/uptime) $(sed -n '1s/^cpu//p' /proc/stat) end";
    let least = machine.vm(vm)?.steal_ns;
    machine.type_line(vm, asked)?;
    // The time of the guest's guests, of which there are none, comes last.
    let line = machine.expect(vm, "0 0 end", times, ANSWER)?;
    let most = machine.vm(vm)?.steal_ns;
    let numbers: Vec<f64> = line.split(' ').flat_map(str::parse).collect();
    let (Some(uptime), Some(ticks)) = (numbers.first(), numbers.get(8)) else {
        return Err(format!("'{vm}' says '{line}'"));
    };
    let stolen = ticks / 100.0;
    let [least, most] = [least, most].map(|ns| ns as f64 / 1e9);
    if stolen < 0.98 * least || stolen > 1.02 * most {
        return Err(format!(
            "'{vm}' says that {stolen} s were stolen, EL2 {least} s to {most} s"
        ));
    }
    Ok([stolen, *uptime])
}
