//! A guest stores into the pages of its reads while they are under way, from a base that nobody has read; another one
//! then reads the same base, and finds what is on it.

use super::super::kernels::{BOOT, powered_off};
use super::{BLOCKS, write_blocks};
use crate::{
    Outcome, archive, assets,
    disk_image::{self, script},
    machine::Hardware,
    scenario::Scenario,
    vm::Vm,
};
use std::{path::Path, time::Duration};

const KERNEL: &str = "trixie-cloud";
/// Blocks of the base that Linux reads: 32 MiB.
const MANY: u64 = 8 * BLOCKS;

pub fn by_bare_guest() -> Scenario {
    let vm = |name: &str, args: &str| Vm::bare(name, "sharing", args).cow_partition("data");
    // One CPU takes the interrupt of the disk; one of the others can store meanwhile.
    let racer = vm("racer", "race").cpus(3);
    let reader = vm("reader", "compare rounds=0").asleep();
    Scenario::new("share/raced", Hardware::new(3, "1G"), vec![racer, reader])
        .prepare(|directory| with_base(directory, BLOCKS))
        .expect("racer", "sharing: has raced", 120)
        .check(|stage| {
            let machine = stage.machine()?;
            machine.run(&["start", "reader"])?;
            let done = "underpin-guest: sharing ok";
            let patience = Duration::from_mins(2);
            machine.expect("reader", done, 1, patience).map(drop)
        })
}

/// The same by two Linux guests, one of which reads with `O_DIRECT`. The other one compares all with a second copy.
pub fn by_linux() -> Scenario {
    let vm = |name: &str, script: &str| {
        let vm = Vm::linux(name, KERNEL, "script").memory("128MiB");
        vm.cow_disk(script).cow_partition("data")
    };
    let racer = vm("racer", "../race.sh").initrd("../initrd").cpus(2);
    let reader = vm("reader", "../compare.sh").cow_disk("../blocks.img");
    let vms = vec![racer, reader.asleep()];
    Scenario::new("share/raced-linux", Hardware::new(2, "1G"), vms)
        .prepare(|directory| {
            let programs = [("adversary", assets::read_cached("adversary")?)];
            archive::initrd(&directory.join("initrd"), KERNEL, &programs)?;
            script(directory, "race.sh", RACE)?;
            script(directory, "compare.sh", COMPARE)?;
            with_base(directory, MANY)
        })
        .expect("racer", "adversary: stored into", 2 * BOOT)
        .check(|stage| powered_off(stage, "racer"))
        .check(|stage| {
            let machine = stage.machine()?;
            let said = machine.console("racer");
            let words = said.split_once("adversary: stored into ");
            let (stores, _) = words
                .and_then(|(_, it)| it.split_once(' '))
                .unwrap_or_default();
            // Where it was too early, the rest of the block has come over what it stored.
            if stores.parse().unwrap_or(0) < MANY / 16 {
                return Err(format!("the racer has stored into {stores} blocks only"));
            }
            machine.run(&["start", "reader"])?;
            let patience = Duration::from_secs(2 * BOOT);
            machine.expect(
                "reader",
                "underpin-guest: the base is as it was",
                1,
                patience,
            )?;
            powered_off(stage, "reader")
        })
}

const RACE: &str = "await /dev/vdb\n/adversary race /dev/vdb\n";
const COMPARE: &str = "await /dev/vdc
cmp /dev/vdb /dev/vdc && say the base is as it was
";

/// The base, on a partition of the machine's disk.
fn with_base(directory: &Path, blocks: u64) -> Outcome<Vec<String>> {
    write_blocks(directory, blocks)?;
    let disk = directory.join("disk.img");
    disk_image::with_image(&disk, "data", &directory.join("blocks.img"))?;
    Ok(vec!["--disk".into(), disk.display().to_string()])
}
