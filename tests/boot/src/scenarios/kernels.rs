//! Unmodified Debian kernels, alone and side by side, up to a login prompt.

use crate::{
    Outcome,
    assets::{DEBIAN13, KERNELS},
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::{SELF_TESTS, Vm},
};

/// What `seq 0 199999 | sha256sum` prints: a guest that computes it has a working machine.
pub const WORK: &str = "sha256=6f90caf91bd7362f38cdd423e205c1738dd29f3ff95e6db3cc2b0eafc806547a";
/// The kernel's command line that asks for [`WORK`].
pub const WORK_ARGS: &str = "underpin.count=200000";
/// How long a kernel may take to its first program, in seconds, with two machines on two cores.
pub const BOOT: u64 = 240;

/// vCPUs and memory, so that each kernel meets each count and the extremes of memory.
const SHAPES: [(u32, &str); 4] = [(1, SMALLEST), (2, "512MiB"), (4, "1GiB"), (2, "4GiB")];
const SMALLEST: &str = "128MiB";
/// Debian's kernel 7 sets 64 MiB aside for DMA, half of the smallest memory, and has too little left.
const SMALLEST_ARGS: &str = "cma=16M";

pub fn scenarios() -> Vec<Scenario> {
    let mut all = vec![systemd(), side_by_side(), shared_cpu(), typed()];
    for (which, kernel) in KERNELS.iter().enumerate() {
        for (shape, (cpus, memory)) in SHAPES.into_iter().enumerate() {
            let scenario = boot(kernel, cpus, memory);
            // One shape for each kernel is the gate's, the whole square is the soak's.
            all.push(if which == shape {
                scenario
            } else {
                scenario.slow()
            });
        }
    }
    all
}

/// A kernel to its first program, which sees what it was given, computes, and powers off.
fn boot(kernel: &'static str, cpus: u32, memory: &'static str) -> Scenario {
    let name = format!("kernel/{kernel}-{cpus}-{}", memory.to_lowercase());
    let mut vm = Vm::linux("guest", kernel, "work")
        .args(SELF_TESTS)
        .args(WORK_ARGS)
        .cpus(cpus)
        .memory(memory);
    if memory == SMALLEST {
        vm = vm.args(SMALLEST_ARGS);
    }
    Scenario::new(name, Hardware::new(2, "6G"), vec![vm])
        .expect("guest", format!("cpus={cpus} mem="), BOOT)
        .expect("guest", WORK, 120)
        .check(|stage| powered_off(stage, "guest"))
}

/// Two versions at once on as many pCPUs as one of them has vCPUs.
fn side_by_side() -> Scenario {
    let old = Vm::linux("old", "bookworm", "work")
        .args(WORK_ARGS)
        .cpus(2)
        .memory("512MiB");
    let new = Vm::linux("new", "trixie", "work")
        .args(WORK_ARGS)
        .cpus(2)
        .memory("512MiB");
    Scenario::new(
        "kernel/side-by-side",
        Hardware::new(2, "2G"),
        vec![old, new],
    )
    .expect("old", "ready kernel=6.1", 2 * BOOT)
    .expect("new", "ready kernel=6.12", 2 * BOOT)
    .expect("old", WORK, 120)
    .expect("new", WORK, 120)
    .check(|stage| powered_off(stage, "old"))
    .check(|stage| powered_off(stage, "new"))
}

/// An SMP kernel whose vCPUs all share the machine's only CPU.
fn shared_cpu() -> Scenario {
    let vm = Vm::linux("guest", "trixie-cloud", "work")
        .args(WORK_ARGS)
        .cpus(4)
        .memory("512MiB");
    Scenario::new("kernel/shared-cpu", Hardware::new(1, "2G"), vec![vm])
        .expect("guest", "cpus=4 mem=", 2 * BOOT)
        .expect("guest", WORK, 240)
        .check(|stage| powered_off(stage, "guest"))
}

/// All of Debian 13 to its login prompt, from a copy-on-write disk, and down by its power button.
fn systemd() -> Scenario {
    let vm = Vm::linux("debian", "trixie-cloud", "none").args("root=/dev/vda1 rw");
    let vm = vm.cpus(2).memory("1GiB").cow_disk(DEBIAN13);
    Scenario::new("kernel/systemd", Hardware::new(2, "4G"), vec![vm])
        .expect("debian", " login:", 2 * BOOT)
        .check(|stage| {
            stage
                .machine()?
                .run(&["stop", "debian", "--timeout", "180s"])?;
            powered_off(stage, "debian")
        })
}

/// A shell that answers what is typed at the console.
fn typed() -> Scenario {
    let vm = Vm::linux("guest", "trixie-cloud", "shell");
    Scenario::new("kernel/console", Hardware::new(1, "1G"), vec![vm])
        .expect("guest", "ready kernel=", BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            machine.type_line("guest", "echo $((6 * 7))-is-the-answer; poweroff -f")?;
            machine.expect(
                "guest",
                "42-is-the-answer",
                1,
                std::time::Duration::from_mins(1),
            )?;
            powered_off(stage, "guest")
        })
}

/// The VM ends by its own power-off, and says so.
pub fn powered_off(stage: &mut Stage, vm: &str) -> Outcome {
    let ended = stage
        .machine()?
        .await_state(vm, "ended", std::time::Duration::from_mins(1))?;
    if ended.reason.contains("power") {
        Ok(())
    } else {
        Err(format!("'{vm}' ended because: {}", ended.reason))
    }
}
