//! VMs beside OS-0 that reach it, and what is outside, by its network device.

use super::{super::kernels::BOOT, sum_after};
use crate::{Outcome, os0::Os0, scenario::Scenario, vm::Vm};

/// A VM gets its address from OS-0, a file, and echoes from outside by OS-0's own card; a stream of its
/// outlives that it is parked in the middle.
pub fn routed(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let vm = Vm::linux("web", kernel, "script").memory("128MiB");
    let vm = vm.args("cma=16M").cow_partition("first").uplink("lan");
    let os0 = Os0::new(kernel, cpus, "2G", "network").cpu(cpu).images();
    // Of Debian's 6.1 the driver of PCI devices is not in the initial RAM disk.
    let has_card = kernel != "bookworm";
    let os0 = if has_card { os0.nic() } else { os0 };
    Scenario::os0(
        format!("os0/network-{kernel}-{cpus}"),
        os0.beside(vec![vm])
            .expect("network refused wrong calls", 4 * BOOT)
            .expect("network parked at=", 4 * BOOT)
            .expect("network heard ", 2 * BOOT)
            .expect("network done entries=0", BOOT)
            .expect("Power down", BOOT),
    )
    .console(if has_card { check } else { check_own })
}

/// OS-0 ends and starts anew: what was a way out leads nowhere until its module gives another area.
pub fn mended() -> Scenario {
    let kernel = "trixie-cloud";
    let vm = Vm::linux("web", kernel, "script").memory("128MiB");
    let vm = vm.cow_partition("first").uplink("lan");
    let os0 = Os0::new(kernel, 2, "2G", "severed").cpu("max,pauth=off,sme=off");
    Scenario::os0(
        "os0/network-mended",
        os0.beside(vec![vm])
            .starts_anew()
            .expect("os0: first has fetched", 2 * BOOT)
            .expect("underpin: OS-0 has ended; it starts anew", BOOT)
            .expect("os0: second has fetched", 2 * BOOT)
            .expect("os0: mended lent=0", BOOT)
            .expect("Power down", BOOT),
    )
    .slow()
}

fn check(said: &str) -> Outcome {
    if !said.contains("underpin-guest: net outside ok") {
        return Err("what is outside was not reached".to_owned());
    }
    check_own(said)
}

fn check_own(said: &str) -> Outcome {
    let after = |text: &str| sum_after(said, text);
    let (fetched, own) = (after("net fetched "), after("network own "));
    let (sent, heard) = (after("net sent "), after("network heard "));
    let has_address = said.contains("underpin-guest: net address 10.0.2.13");
    let heard = heard.and_then(|sum| sum.split(' ').next().map(str::to_owned));
    let (kept, disk) = (after("net kept "), after("net disk "));
    let is_disk = kept == fetched && disk == fetched && !said.contains("net failed disk");
    let is_whole =
        fetched.is_some() && fetched == own && sent.is_some() && sent == heard && is_disk;
    if has_address && is_whole {
        return Ok(());
    }
    Err(format!(
        "address: {has_address}; fetched {fetched:?} of {own:?}; sent {sent:?}, heard {heard:?}; \
         on its disk {kept:?}, {disk:?}"
    ))
}
