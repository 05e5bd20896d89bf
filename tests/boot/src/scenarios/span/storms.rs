//! Debian's kernel over several hosts, on which a program maps, unmaps, protects and forks on all CPUs at once: nobody sees
//! what is gone.

use super::super::cluster::one_key;
use super::await_off;
use crate::{
    Outcome, archive, assets,
    machine::Hardware,
    scenario::{Prepare, Scenario, Stage},
    vm::Vm,
};
use std::{path::Path, time::Duration};

const KERNEL: &str = "trixie";
/// What the program says of each storm.
const STORMS: [&str; 4] = ["map", "protect", "fork", "file"];

/// The storms pass on two or four hosts, each with so many rounds.
pub(super) fn storms(
    name: &str,
    (hosts, rounds): (u8, u32),
    wire: &str,
    patience: Duration,
) -> Scenario {
    // Its memory is more than a run of frames has entries for.
    let hardware = Hardware::hosts(hosts, "768M", wire);
    let vm = Vm::linux("debian", KERNEL, "storms").memory("320MiB");
    let vm = vm.args(&format!("underpin.seed={hosts} underpin.rounds={rounds}"));
    let vm = vm.initrd("../initrd").cpus(hosts.into()).hosts(hosts);
    let prepare: Prepare = match hosts {
        2 => prepared::<2>,
        _ => prepared::<4>,
    };
    let scenario = Scenario::new(name, hardware, vec![vm]).prepare(prepare);
    scenario.check(move |stage| {
        await_off(stage.machine()?, (hosts, patience), "debian", &[])?;
        all_have_passed(stage, hosts)
    })
}

/// Hosts of one cluster, and an initial RAM disk with the program.
fn prepared<const HOSTS: usize>(directory: &Path) -> Outcome<Vec<String>> {
    let program = ("storms", assets::read_cached("storms")?);
    archive::initrd(&directory.join("initrd"), KERNEL, &[program])?;
    one_key::<HOSTS>(directory)
}

fn all_have_passed(stage: &mut Stage, hosts: u8) -> Outcome {
    let console = stage.machine()?.host_console("host0", "debian");
    let passed = |storm| console.contains(&format!("storms: {storm} threads={hosts} checked="));
    let is_good = STORMS.into_iter().all(passed) && console.contains("storms ok");
    is_good.then_some(()).ok_or(console)
}
