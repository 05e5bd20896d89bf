//! One life of a machine, from its boot until its last VM has ended.

use crate::bundle::{self, Vm};
use crate::disk;
use crate::flat::{Memories, Sums};
use crate::program::{self, Plan};
use crate::tree;
use abi::control::{RawVm, state, work};
use hypervisor::outside;
use machine_host::machine::{self, Config, Entries, Machine, Progress, RAM};
use machine_host::rng::Rng;
use model_addr::Pa;
use std::panic::{self, AssertUnwindSafe};

/// Bytes of the machine's memory, and of a VM's.
const MEMORY: usize = 48 << 20;
const VM_MEMORY: u64 = 4 << 20;
/// Where the boot loader puts the device tree and the bundle.
const TREE_AT: Pa = Pa(RAM.0 + (4 << 20));
const BUNDLE_AT: Pa = Pa(RAM.0 + (6 << 20));
/// After so many points at which another CPU could go on, a life has hung.
const STEPS_MAX: u64 = 20_000_000;
/// Tables in which the hypervisor keeps for ever what blocks of the base must hold, once one was read: as many as a path has.
const KNOWN_TABLES: i64 = 3;
/// How often all CPUs may sleep in a row without a VM that ends.
const SLEEPS_MAX: u64 = 2_000;

/// What became of a life.
#[derive(Debug, Default)]
pub struct Life {
    /// What guests did.
    pub sums: Sums,
    /// Points at which another CPU could go on.
    pub steps: u64,
    /// A sum of all that happened: equal for two lives of one seed.
    pub trace: u64,
    /// What went wrong.
    pub wrong: Option<String>,
}

/// What a seed makes of a machine.
fn plan(seed: u64) -> (Config, Vec<Plan>) {
    let mut rng = Rng::new(seed);
    let config = Config {
        seed: rng.next(),
        cpus: 1 + rng.below(3) as usize,
        memory: MEMORY,
        pause_every: 2 + rng.below(30),
    };
    let vms = 1 + rng.below(3);
    let plan = |vm: u64| Plan {
        vm,
        vcpus: 1 + rng.below(3),
        steps: 20 + rng.below(100),
        seed: rng.next(),
        data_seed: rng.below(2),
    };
    (config, (0..vms).map(plan).collect())
}

/// Lives the life of `seed`. `log` is given what the hypervisor writes to its log. One life a process: what the
/// hypervisor keeps for ever stays.
pub fn live(seed: u64, log: impl FnMut(&str)) -> Life {
    let (config, plans) = plan(seed);
    let kernels: Vec<Vec<u8>> = plans.iter().map(|plan| program::kernel(*plan)).collect();
    let base = disk::base(seed);
    let bundle = bundle::build(&vms(&plans, &kernels));
    let bundle_range = (BUNDLE_AT.0, BUNDLE_AT.0 + bundle.len() as u64);
    let (memories, sums) = Memories::new(&kernels, &base);
    let mut watch = Watch {
        life: Life::default(),
        vms: plans.len(),
        ended: 0,
        sleeps: 0,
        log,
    };
    let tree = match tree::write(&config, "zeroed=off", bundle_range) {
        Ok(tree) => tree,
        Err(error) => {
            watch.life.wrong = Some(format!("no device tree: {error}"));
            return watch.life;
        }
    };
    let prepare = |machine: &mut Machine| {
        let placed = machine
            .fill(TREE_AT, &tree)
            .and(machine.fill(BUNDLE_AT, &bundle));
        machine.violation = placed
            .is_none()
            .then(|| "tree or bundle lie outside memory".into());
        machine.attach_disk(disk::image(&base));
        machine.observer = Some(Box::new(memories));
        TREE_AT.0
    };
    let entries = Entries {
        first: |tree| hypervisor::primary(tree, 0),
        other: || hypervisor::secondary(),
    };
    let run = || machine::run(config, entries, prepare, |progress| watch.goes_on(progress));
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => watch.life.wrong = Some(error),
        Err(_) => watch.has_stopped(),
    }
    let mut life = watch.life;
    life.sums = sums.take();
    life
}

fn vms(plans: &[Plan], kernels: &[Vec<u8>]) -> Vec<Vm> {
    let vm = |(plan, kernel): (&Plan, &Vec<u8>)| Vm {
        name: format!("vm{}", plan.vm),
        group: "all".into(),
        vcpus: plan.vcpus as u32,
        memory: VM_MEMORY,
        kernel: kernel.clone(),
    };
    plans.iter().zip(kernels).map(vm).collect()
}

/// Whoever watches a life.
struct Watch<L> {
    life: Life,
    vms: usize,
    ended: usize,
    /// How often all CPUs have slept since the log said something.
    sleeps: u64,
    log: L,
}

impl<L: FnMut(&str)> Watch<L> {
    /// The hypervisor has panicked, which the standard library has told already.
    fn has_stopped(&mut self) {
        let rest = machine::with(|machine| std::mem::take(&mut machine.log));
        (self.log)(&String::from_utf8_lossy(&rest));
        self.life.wrong = Some("the hypervisor has stopped by a bug of its own".into());
    }

    /// Looks at what has happened; whether the life goes on.
    fn goes_on(&mut self, progress: Progress) -> bool {
        let (text, violation, steps, time) = machine::with(|machine| {
            let text = take_lines(&mut machine.log);
            (text, machine.violation.take(), machine.steps, machine.time)
        });
        if !text.is_empty() {
            self.ended += text.matches("has ended: ").count();
            self.sleeps = 0;
            (self.log)(&text);
        }
        self.sleeps += u64::from(progress == Progress::Slept);
        let life = &mut self.life;
        life.steps = steps;
        life.trace = (life.trace.rotate_left(7) ^ time).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        life.wrong = violation;
        let all_sleep = matches!(progress, Progress::Slept | Progress::Idle);
        if self.ended == self.vms && all_sleep && outside::is_idle() {
            let missing = outside::frames_missing();
            if missing != 0 && missing != KNOWN_TABLES {
                life.wrong = Some(format!(
                    "{missing} frames are missing after all VMs have ended"
                ));
            }
            let vms = outside::vms();
            if vms.len() != self.vms || vms.iter().any(|vm| !makes_sense(vm)) {
                life.wrong = Some(format!("figures of VMs that have ended: {vms:?}"));
            }
            return false;
        }
        let hangs = steps > STEPS_MAX || self.sleeps > SLEEPS_MAX || progress == Progress::Idle;
        if life.wrong.is_none() && (hangs || progress == Progress::Off) {
            life.wrong = Some(format!(
                "{} of {} VMs have ended, and nothing goes on: {progress:?} after {steps} steps; {}",
                self.ended,
                self.vms,
                machine::with(|machine| machine.describe())
            ));
        }
        life.wrong.is_none()
    }
}

/// Whether what is counted of a VM that has ended is of one that ran and has nothing left.
fn makes_sense(vm: &RawVm) -> bool {
    let exits = &vm.work[work::EXITS..work::TIMED];
    let ran =
        vm.work[work::RUN] > 0 && vm.work[work::HYPERVISOR] > 0 && exits.iter().sum::<u64>() > 0;
    let left = vm.holding != [0; 7] || vm.overlays != [0; 2] || vm.bookkeeping != 0;
    ran && !left && vm.state == state::ENDED && vm.starts == 1 && !vm.reason.is_empty()
}

/// The whole lines of a log, which keeps the rest.
fn take_lines(log: &mut Vec<u8>) -> String {
    let end = log
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    String::from_utf8_lossy(&log.drain(..end).collect::<Vec<u8>>()).into_owned()
}
