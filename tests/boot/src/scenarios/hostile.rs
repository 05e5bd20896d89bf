//! Guests that misbehave, each beside one that works.
//!
//! Time is counted in instructions (`--icount`), so that a neighbour's work can be compared: the
//! same VM does the same work once beside the hostile one, with which it shares the only CPU, and
//! once alone.

mod adversary;

pub use adversary::check_choices;

use super::kernels::{BOOT, WORK, WORK_ARGS};
use crate::{
    Outcome, disk_image,
    machine::Hardware,
    scenario::{Scenario, Stage},
    status::{NumaStatus, Why, parse},
    vm::Vm,
};
use std::{path::Path, time::Duration};

/// What becomes of a hostile guest.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It lives through it and says `underpin-guest: hostile/CASE ok`.
    Survives,
    /// Underpin ends it, and `list` says why: with this word.
    Ends(&'static str),
    /// It goes on for ever, at its own expense.
    Spins,
}

/// A case, as the guest's `do=` and the guest's fate.
type Case = (&'static str, Fate);

/// Guests that do one wrong thing, all at once beside one neighbour.
const FAULTS: [Case; 9] = [
    ("counted", Fate::Survives),
    ("unmapped", Fate::Survives),
    ("unmapped_exec", Fate::Survives),
    ("own_vector_abort", Fate::Ends("vectors")),
    ("aarch32", Fate::Ends("AArch32")),
    ("mmio_nosyndrome", Fate::Survives),
    ("self_modifying", Fate::Survives),
    ("unknown_sysreg", Fate::Survives),
    ("touch_all", Fate::Survives),
];

/// Guests that do the wrong thing again and again, each alone beside a neighbour.
const STORMS: [Case; 8] = [
    ("console_flood", Fate::Survives),
    ("sgi_storm", Fate::Survives),
    ("wfi_storm", Fate::Survives),
    ("hvc_storm", Fate::Survives),
    ("timer_storm", Fate::Survives),
    ("bad_virtio", Fate::Survives),
    ("notify_storm", Fate::Survives),
    ("spin", Fate::Survives),
];

/// A bare neighbour's work, of 50 ms where an instruction takes 2 ns, and its last line.
const COUNTED_ARGS: &str = "turns=12500000";
const COUNTED: &str = "underpin-guest: hello ok";

/// What `counted` does: register accesses, loads from nowhere, broken queues, and calls that nobody knows.
const ODDITIES: [(&str, u64); 4] = [("registers", 7), ("mmio", 5), ("queues", 2), ("calls", 3)];

/// A slice of the CPU, by which shares differ where somebody comes or goes in the middle of one.
const SLICE_NS: u64 = 10_000_000;
/// The part of a window by which two halves of it may differ further: what it costs to change from one to the other.
const HALVES_OFF: u64 = 100;

/// How much more a neighbour may run for the same work, in thousandths.
const INFLUENCE_MAX: u64 = 10;

pub fn scenarios() -> Vec<Scenario> {
    let storms = STORMS
        .into_iter()
        .map(|case| beside_a_neighbour(&vm_name(case.0), vec![case]));
    [
        exception_loop(),
        beside_a_neighbour("faults", FAULTS.into()).check(counts_misbehaviour),
    ]
    .into_iter()
    .chain(storms)
    .chain([
        resets("hostile/resets", Hardware::new(1, "1G")),
        resets("hostile/resets-counted", Hardware::new(1, "1G").counted()),
        large_end(),
        large_map(),
    ])
    .chain(adversary::scenarios())
    .collect()
}

/// Drivers reset a disk and a network device while requests are under way, and use the memory for other things. In
/// between, as many reads are under way as can be, and end together: that takes the disk's interrupt several passes.
fn resets(name: &str, hardware: Hardware) -> Scenario {
    let vm = Vm::bare("guest", "hostile", "do=resets").persistent_disk("spare");
    let vm = vm.net("own").net("own");
    Scenario::new(name, hardware, vec![vm])
        .prepare(|directory| {
            let disk = disk_image::partitioned(directory)?;
            Ok(vec!["--disk".into(), disk.display().to_string()])
        })
        .expect("guest", "underpin-guest: hostile/resets ok", BOOT)
}

/// A VM that looks for gaps in its time on the only CPU, for so many seconds.
fn watcher(seconds: u32) -> Vm {
    Vm::bare("watcher", "hostile", &format!("do=gaps seconds={seconds}"))
}

const WATCHED: &str = "underpin-guest: hostile/gaps ok";

/// A VM of much memory, all of it used, ends beside another on the same CPU.
fn large_end() -> Scenario {
    let large = Vm::bare("large", "hungry", "mib=all wait").memory("1536MiB");
    let vms = vec![large, watcher(4).asleep()];
    Scenario::new("hostile/large-end", Hardware::new(1, "2G").counted(), vms)
        .expect("large", "hungry: has eaten", 2 * BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            machine.run(&["start", "watcher"])?;
            machine.run(&["kill", "large"])?;
            let minutes = Duration::from_mins(3);
            machine.expect("watcher", WATCHED, 1, minutes)?;
            machine.await_state("large", "ended", minutes).map(drop)
        })
}

/// A VM with as much memory as one may have, more than the machine's: 512 MiB of it are used, and a page in each
/// 128 MiB of the rest. Its whole map is asked about, and it ends.
fn large_map() -> Scenario {
    let large = Vm::bare("large", "hungry", "mib=512 every=128 wait");
    let vms = vec![large.terms("704MiB", "256GiB", None)];
    let minutes = Duration::from_mins(3);
    Scenario::new("hostile/large-map", Hardware::new(1, "2G").counted(), vms)
        .expect("large", "hungry: has eaten", 2 * BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            let resident = machine.mem("large")?.resident;
            let why = machine.run(&["mem", "why", "large", "-o", "json"])?;
            let why: Why = parse("mem why", &why)?;
            let numa: Vec<NumaStatus> = parse("numa", &machine.run(&["numa", "-o", "json"])?)?;
            machine.run(&["mem", "analyze", "large"])?;
            let known = why.private.bytes + why.no_second_user.bytes + why.shared.bytes;
            let there = numa.iter().flat_map(|vm| &vm.memory).sum::<u64>();
            if [known, there] == [resident; 2] && resident > 512 << 20 {
                return Ok(());
            }
            Err(format!(
                "of {resident} bytes, 'mem why' tells of {known} and 'numa' of {there}"
            ))
        })
        .check(move |stage| {
            let machine = stage.machine()?;
            machine.run(&["kill", "large"])?;
            machine.await_state("large", "ended", minutes).map(drop)
        })
}

fn vm_name(case: &str) -> String {
    case.replace('_', "-")
}

/// A VM whose every instruction traps at its own EL1. QEMU takes exceptions so slowly that its
/// slices of the CPU last seconds: the neighbour's work is enough for some of them, and no more.
fn exception_loop() -> Scenario {
    let case = ("exception_loop", Fate::Spins);
    let neighbour = |name| Vm::bare(name, "hello", COUNTED_ARGS).flat();
    let vms = vec![
        neighbour("neighbour"),
        neighbour("alone").asleep(),
        hostile(case.0),
    ];
    let hardware = Hardware::new(1, "2G").counted();
    Scenario::new("hostile/exception-loop", hardware, vms)
        .prepare(with_scratch_disk)
        .expect("neighbour", COUNTED, 2 * BOOT)
        .check(move |stage| {
            let machine = stage.machine()?;
            let (its, ours) = (machine.vm("exception-loop")?, machine.vm("neighbour")?);
            if its.run_ns < ours.run_ns / 2 {
                return Err("the two did not share the CPU".to_owned());
            }
            meets(stage, case)
        })
        .check(|stage| neighbour_did_not_notice(stage, COUNTED))
}

fn worker(name: &str) -> Vm {
    let vm = Vm::linux(name, "trixie-cloud", "work");
    vm.args(WORK_ARGS).memory("128MiB")
}

/// As long as the neighbour needs; the disk is there for the cases that abuse it.
fn hostile(case: &str) -> Vm {
    let args = format!("do={case} seconds=4");
    let vm = Vm::bare(&vm_name(case), "hostile", &args).cow_disk("../scratch.img");
    vm.net("hostile")
}

fn with_scratch_disk(directory: &Path) -> Outcome<Vec<String>> {
    disk_image::scratch(directory)?;
    Ok(Vec::new())
}

fn beside_a_neighbour(name: &str, cases: Vec<Case>) -> Scenario {
    let vms = [worker("neighbour"), worker("alone").asleep()]
        .into_iter()
        .chain(cases.iter().map(|(case, _)| hostile(case)));
    let hardware = Hardware::new(1, "2G").counted();
    Scenario::new(format!("hostile/{name}"), hardware, vms.collect())
        .prepare(with_scratch_disk)
        .check(move |stage| {
            cases.iter().try_for_each(|case| meets(stage, *case))?;
            match cases[..] {
                [(case, _)] => halves_of_the_cpu(stage, &vm_name(case)),
                _ => Ok(()),
            }
        })
        .check(|stage| neighbour_did_not_notice(stage, WORK))
}

/// Two VMs of equal weights that always want the only CPU have half of it each, whether a VM runs or EL2 works for it.
/// The hostile one has just ended, so that each of its two halves is also what its neighbour waited for it so far. Both
/// wait while EL2 answers this test, too, so it has asked nothing.
fn halves_of_the_cpu(stage: &mut Stage, hostile: &str) -> Outcome {
    let machine = stage.machine()?;
    let (its, ours) = (machine.vm(hostile)?, machine.vm("neighbour")?);
    if ours.state == "ended" {
        return Err(format!("the neighbour ended before '{hostile}' did"));
    }
    let own = its.run_ns + its.hypervisor_ns;
    let off_max = (own + its.steal_ns) / HALVES_OFF + SLICE_NS;
    let off = [its.steal_ns, ours.steal_ns].map(|steal| steal.abs_diff(own));
    if off.iter().all(|off| *off <= off_max) {
        return Ok(());
    }
    let (run, hypervisor) = (its.run_ns, its.hypervisor_ns);
    let steals = (its.steal_ns, ours.steal_ns);
    Err(format!(
        "'{hostile}' ran {run} ns, EL2 worked {hypervisor} ns for it; it and its neighbour waited {steals:?} ns for each other"
    ))
}

/// The hostile VM meets its fate; what would go on is then killed.
fn meets(stage: &mut Stage, (case, fate): Case) -> Outcome {
    let vm = &vm_name(case);
    let machine = stage.machine()?;
    let patience = Duration::from_secs(2 * BOOT);
    match fate {
        Fate::Survives => {
            machine.hear(vm, &format!("underpin-guest: hostile/{case} ok"), patience)?;
            machine.await_state(vm, "ended", patience)?;
        }
        Fate::Ends(word) => {
            let reason = machine.await_state(vm, "ended", patience)?.reason;
            if !reason.contains(word) {
                return Err(format!(
                    "'list' does not say '{word}' of '{vm}', but: {reason}"
                ));
            }
        }
        Fate::Spins => {
            let before = machine.vm(vm)?;
            std::thread::sleep(Duration::from_secs(2));
            let after = machine.vm(vm)?;
            machine.run(&["kill", vm])?;
            if after.state != "running" || after.run_ns <= before.run_ns {
                return Err(format!(
                    "'{vm}' is {} and its CPU time does not grow",
                    after.state
                ));
            }
        }
    }
    Ok(())
}

/// What a guest did wrong is counted by kind, each of it once; `metrics` says the same.
fn counts_misbehaviour(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let (vm, neighbour) = (machine.vm("counted")?, machine.vm("neighbour")?);
    let counted = ODDITIES.map(|(kind, _)| (kind, vm.oddities.get(kind).copied().unwrap_or(0)));
    if counted != ODDITIES || vm.oddities.len() != ODDITIES.len() {
        return Err(format!("{:?} counted of {ODDITIES:?}", vm.oddities));
    }
    if neighbour.oddities.values().any(|count| *count > 0) {
        return Err(format!("its neighbour's are {:?}", neighbour.oddities));
    }
    let metrics = machine.run(&["metrics"])?;
    for (kind, count) in ODDITIES {
        let kind = kind.strip_suffix('s').unwrap_or(kind);
        let line = format!("underpin_vm_oddities_total{{vm=\"counted\",kind=\"{kind}\"}} {count}");
        if !metrics.lines().any(|said| said == line) {
            return Err(format!("no '{line}' in the metrics"));
        }
    }
    Ok(())
}

/// Beside the hostile VM the neighbour ran as many instructions as an equal VM alone, which has
/// done its work when it says `done`.
fn neighbour_did_not_notice(stage: &mut Stage, done: &str) -> Outcome {
    let machine = stage.machine()?;
    let patience = Duration::from_secs(BOOT);
    machine.expect("neighbour", done, 1, 2 * patience)?;
    let beside = machine.await_state("neighbour", "ended", patience)?.run_ns;
    machine.run(&["start", "alone"])?;
    machine.expect("alone", done, 1, 2 * patience)?;
    let alone = machine.await_state("alone", "ended", patience)?.run_ns;
    if beside.abs_diff(alone) * 1000 <= alone * INFLUENCE_MAX {
        return Ok(());
    }
    Err(format!(
        "the neighbour ran {beside} ns beside the hostile VM, and an equal VM {alone} ns alone"
    ))
}
