//! Overlays beside OS-0: base and overlay of a VM's disk are files that OS-0 serves.

use super::{BOOT, first_number, sum_after};
use crate::{os0::Os0, scenario::Scenario, vm::Vm};

/// What the VM writes over its base, in bytes: no whole number of blocks, and not from the start of one.
const WRITTEN: u64 = 6_000_000;

/// A VM writes parts and whole blocks over a base, while the server is killed twice, and reads all of it
/// again; it is told when the overlay is full. The base is as it was. A file that nobody called scratch is
/// not overwritten.
pub fn on_a_served_file() -> Scenario {
    let vm = Vm::linux("writer", "trixie-cloud", "script").memory("64MiB");
    let vm = vm.persistent_disk("first");
    let vm = vm.cow_partition("base").overlay("8MiB", "room");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "overlay").cpu("max,pauth=off,sme=off");
    let careless = Vm::linux("careless", "trixie-cloud", "script").memory("64MiB");
    let careless = careless.cow_partition("base").overlay("4MiB", "kept");
    let os0 = os0
        .images()
        .beside(vec![vm, careless])
        .expect("overlay kills=", 5 * BOOT);
    let os0 = os0.expect("Power down", BOOT);
    Scenario::os0("os0/overlay", os0).console(|said| {
        let [wanted, found] = ["wanted ", "diskwrite ok "].map(|text| sum_after(said, text));
        let number = |text: &str| said.split(text).nth(1).and_then(first_number);
        let (kills, stored) = (number("overlay kills="), number(" stored="));
        let is_kept = said.contains("base=same") && said.contains("full=1 told");
        let all = stored.is_some_and(|stored| stored > WRITTEN * 9 / 10);
        if wanted.is_some() && wanted == found && kills == Some(2) && is_kept && all {
            return Ok(());
        }
        Err(format!(
            "after {kills:?} kills {wanted:?} was read as {found:?}, with {stored:?} bytes in the overlay's file; \
             the base is as it was, and the VM was told: {is_kept}"
        ))
    })
}
