//! Bare guests, which look where Linux does not.

use super::kernels::powered_off;
use crate::{machine::Hardware, scenario::Scenario, vm::Vm};
use abi::hypercall::MAY_SET_ASIDE;

/// The quick ones: a flat image starts, interrupts, timers and PSCI are as the architecture says.
pub fn plain() -> Vec<Scenario> {
    let reset = Vm::bare("guest", "reset", "");
    vec![
        hello(),
        guest("psci", 2, 2),
        gcm(),
        random(&["rng-seed"], "neoverse-n1", "on"),
        random(&["rng-seed", "RNDRRS"], "max", "on"),
        random(&["RNDRRS"], "max", "off"),
        random(&[], "neoverse-n1", "off"),
        guest("gic", 2, 2),
        timers(1),
        timers(2),
        // It asks for a reset each time, so it is seen more than once and never ends by itself.
        Scenario::new("bare/reset", Hardware::new(1, "1G"), vec![reset]).check(|stage| {
            let machine = stage.machine()?;
            machine.expect(
                "guest",
                "underpin-guest: reset boots",
                3,
                std::time::Duration::from_mins(1),
            )?;
            machine.run(&["kill", "guest"])?;
            let starts = machine.vm("guest")?.starts;
            if starts >= 3 {
                Ok(())
            } else {
                Err(format!(
                    "{starts} starts were counted, at least 3 were seen"
                ))
            }
        }),
    ]
}

/// TLB, FP, timers and SGIs of vCPUs that share CPUs.
pub fn thorough() -> Vec<Scenario> {
    vec![
        guest("tlb_hygiene", 2, 1),
        guest("tlb_hygiene", 4, 2),
        guest("tlb_hygiene", 2, 2).slow(),
        guest("tlb_hygiene", 4, 1).slow(),
    ]
}

/// The physical timer, alone and with a busy vCPU on the same CPU. Time is counted in
/// instructions, so that a sleep is over to the microsecond.
fn timers(vcpus: u32) -> Scenario {
    let vm = Vm::bare("guest", "timers", "late=50").cpus(vcpus);
    let hardware = Hardware::new(1, "1G").counted();
    Scenario::new(format!("bare/timers-{vcpus}on1"), hardware, vec![vm])
        .expect("guest", "underpin-guest: timers ok", 180)
        .check(|stage| powered_off(stage, "guest"))
}

/// The cipher of the link between hosts, by the CPU's instructions, which are counted: an instruction takes 2 ns.
fn gcm() -> Scenario {
    let vm = Vm::bare("guest", "gcm", "clock_ns=2");
    let hardware = Hardware::new(1, "1G").counted();
    Scenario::new("bare/gcm", hardware, vec![vm])
        .expect("guest", "underpin-guest: gcm ok", 180)
        .check(|stage| powered_off(stage, "guest"))
}

/// A flat image.
fn hello() -> Scenario {
    let vm = Vm::bare("guest", "hello", "mib=64").flat();
    Scenario::new("bare/hello", Hardware::new(1, "1G"), vec![vm])
        .expect("guest", "underpin-guest: hello ok", 180)
        .check(|stage| powered_off(stage, "guest"))
}

/// A guest has random bits where the machine has these sources, and none where it has none; then the log says so.
fn random(sources: &'static [&str], cpu: &str, seed: &str) -> Scenario {
    let name = format!("bare/random-{cpu}-seed-{seed}");
    let hardware = Hardware::new(1, "1G").option("--cpu").option(cpu);
    let hardware = hardware.option("--qemu-arg").option("-M");
    let hardware = hardware.option("--qemu-arg");
    let hardware = hardware.option(format!("dtb-randomness={seed}"));
    let args = ["", "no-random"][usize::from(sources.is_empty())];
    let vm = Vm::bare("guest", "psci", args);
    Scenario::new(name, hardware, vec![vm])
        .expect("guest", "underpin-guest: psci ok", 180)
        .check(move |stage| {
            let machine = stage.machine()?;
            let shown = machine.run(&["machine"])?;
            if shown.contains("no source of random bits") != sources.is_empty() {
                return Err(format!("the command shows: {shown}"));
            }
            let log = machine.hypervisor_log();
            let told = |what: &str| log.matches(what).count();
            let from = |source: &&str| told(&format!("random bits come from {source}"));
            let all = sources.iter().all(|source| from(source) == 1);
            if all
                && told("random bits come from") == sources.len()
                && told("no source of random bits") == usize::from(sources.is_empty())
            {
                return Ok(());
            }
            Err(format!("the log does not tell of {sources:?} alone"))
        })
}

/// The command line allows what only images with hooks can do.
fn guest(program: &'static str, vcpus: u32, pcpus: u32) -> Scenario {
    let name = format!("bare/{}-{vcpus}on{pcpus}", program.replace('_', "-"));
    let vm = Vm::bare("guest", program, "mib=64").cpus(vcpus);
    let hardware = Hardware::new(pcpus, "1G").option("--append");
    Scenario::new(name, hardware.option(MAY_SET_ASIDE), vec![vm])
        .expect("guest", format!("underpin-guest: {program} ok"), 180)
        .check(|stage| powered_off(stage, "guest"))
}
