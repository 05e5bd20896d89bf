//! Bare guests, which look where Linux does not.

use super::kernels::powered_off;
use crate::{machine::Hardware, scenario::Scenario, vm::Vm};

/// The quick ones: a flat image starts, interrupts, timers and PSCI are as the architecture says.
pub fn plain() -> Vec<Scenario> {
    let reset = Vm::bare("guest", "reset", "");
    vec![
        hello(),
        guest("psci", 2, 2),
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

/// A flat image.
fn hello() -> Scenario {
    let vm = Vm::bare("guest", "hello", "mib=64").flat();
    Scenario::new("bare/hello", Hardware::new(1, "1G"), vec![vm])
        .expect("guest", "underpin-guest: hello ok", 180)
        .check(|stage| powered_off(stage, "guest"))
}

fn guest(program: &'static str, vcpus: u32, pcpus: u32) -> Scenario {
    let name = format!("bare/{}-{vcpus}on{pcpus}", program.replace('_', "-"));
    let vm = Vm::bare("guest", program, "mib=64").cpus(vcpus);
    Scenario::new(name, Hardware::new(pcpus, "1G"), vec![vm])
        .expect("guest", format!("underpin-guest: {program} ok"), 180)
        .check(|stage| powered_off(stage, "guest"))
}
