//! VMs whose disks are at work when they are parked.

use super::{first_number, sum_after};
use crate::{Outcome, os0::Os0, scenario::Scenario, vm::Vm};

use crate::scenarios::kernels::BOOT;

/// A VM that reads as much at a time as it can is parked and taken over by a new image, twice; its reads end, and its
/// clock is right. It hides what it shares, may ask the hypervisor, and shares a region with another, which reads and
/// writes disks of each kind that OS-0 can serve, at any alignment.
pub fn reader() -> Scenario {
    let vm = Vm::linux("reader", "trixie-cloud", "script").memory("128MiB");
    let vm = vm.persistent_disk("first").persistent_disk("data");
    let vm = vm.hides().control("read").region("board", "4MiB", "rw");
    let every = Vm::cached("every", "hostile", "do=transfers").memory("64MiB");
    let every = every
        .persistent_disk("own")
        .region("board", "4MiB", "ro")
        .cow_partition("base");
    let every = every.cow_partition("base").overlay("4MiB", "room");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "settled").cpu("max,pauth=off,sme=off");
    let os0 = os0.images().beside(vec![vm, every]);
    let os0 = os0.expect("settled parks=", 5 * BOOT);
    Scenario::os0("os0/settled", os0.expect("Power down", BOOT)).console(check)
}

fn check(said: &str) -> Outcome {
    let number = |text: &str| said.split(text).nth(1).and_then(first_number);
    let (vms, own) = (
        sum_after(said, "diskread ok "),
        sum_after(said, "os0: settled parks="),
    );
    let counts = (number("settled parks="), number(" upgrades="));
    let is_held = said.contains("console every underpin-guest: hostile/transfers ok");
    if counts == (Some(2), Some(2)) && vms.is_some() && vms == own && is_held {
        return Ok(());
    }
    Err(format!(
        "parked and upgraded {counts:?} times, of 2; a VM found {vms:?} where OS-0 has {own:?}; disks of another hold what was written: {is_held}"
    ))
}
