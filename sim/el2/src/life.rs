//! One life of a machine, from its boot until its last VM has ended.

use crate::bundle::{self, Vm};
use crate::control::{Control, Phase};
use crate::disk;
use crate::flat::{Memories, Sums};
use crate::program;
use crate::scene::Scene;
use crate::tree;
use crate::wire::Wire;
use abi::control::{RawVm, request, state, work};
use hypervisor::outside;
use machine_host::machine::{self, Entries, FREQUENCY, Machine, Progress, RAM};
use machine_host::rng::Rng;
use model_addr::Pa;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

/// Where the boot loader puts the device tree and the bundle.
pub const TREE_AT: Pa = Pa(RAM.0 + (4 << 20));
/// See [`TREE_AT`].
pub const BUNDLE_AT: Pa = Pa(RAM.0 + (6 << 20));
/// After so many points at which another CPU could go on, a life has hung.
pub const STEPS_MAX: u64 = 5_000_000;
/// How often all CPUs may sleep in a row while nothing is told or answered.
pub const SLEEPS_MAX: u64 = 2_000;

/// How long whoever asks takes no answers, at most, in counts: 30 ms.
const NAP_MAX: u64 = 30 * FREQUENCY / 1000;
/// The longest that a CPU may work at EL2 without a look at interrupts, in nanoseconds: alone, and beside others, whose work
/// takes time meanwhile. Whoever waits for somebody outside takes more. Time here is no count of instructions, so that this is
/// no measure of EL2's own bound (`LONG_STRETCH_NS`): up to 138 us and 523 us were seen.
const STRETCH_MAX_NS: [u64; 2] = [200_000, 1_000_000];

/// What became of a life.
#[derive(Debug, Default)]
pub struct Life {
    /// What guests did.
    pub sums: Sums,
    /// Points at which another CPU could go on.
    pub steps: u64,
    /// A sum of all that happened: equal for two lives of one seed.
    pub trace: u64,
    /// What was asked of the hypervisor, where somebody wants to know.
    pub told: Vec<String>,
    /// What went wrong.
    pub wrong: Option<String>,
}

/// Lives the life of `seed` on its scene. `log` is given what the hypervisor writes to its log. One life a process: what
/// the hypervisor keeps for ever stays.
pub fn live(seed: u64, scene: &Scene, tells: bool, log: impl FnMut(&str)) -> Life {
    let base = disk::base(seed);
    let bundle = bundle::build(&scene.vms, scene.in_bundle);
    let bundle_range = (BUNDLE_AT.0, BUNDLE_AT.0 + bundle.len() as u64);
    let disk_faults = scene.faults.disk;
    let may_fail = disk_faults.fails + disk_faults.tears + scene.faults.allocations > 0;
    let (memories, sums, wire) = Memories::new(&scene.vms, &base, may_fail);
    let partitions = scene.vms.iter().flat_map(Vm::partitions);
    let image = disk::image(&base, &partitions.collect::<Vec<_>>());
    let mut control = Control::new(scene, seed);
    control.told = tells.then(Vec::new);
    let mut watch = Watch {
        life: Life::default(),
        scene,
        control,
        sums: Rc::clone(&sums),
        wire,
        rng: Rng::new(seed.rotate_left(32)),
        naps: Rng::new(seed.rotate_left(16)),
        sleeps: 0,
        requests: 0,
        is_booted: false,
        counted: BTreeMap::new(),
        lacks_cpu: false,
        log,
    };
    let config = scene.config;
    let tree = match tree::write((&config, scene.nodes), &scene.command_line, bundle_range) {
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
        machine.attach_disk(image);
        if scene.requests.is_some() {
            machine.attach_port();
        }
        if scene.has_card {
            machine.attach_card();
        }
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
    life.told = watch.control.told.take().unwrap_or_default();
    life.sums = sums.take();
    life
}

/// Whoever watches a life.
struct Watch<'a, L> {
    life: Life,
    scene: &'a Scene,
    control: Control,
    sums: Rc<RefCell<Sums>>,
    wire: Rc<RefCell<Wire>>,
    /// Decides what comes from outside.
    rng: Rng,
    /// Decides when whoever asks takes no answers.
    naps: Rng,
    /// How often all CPUs have slept since something was told, answered or read.
    sleeps: u64,
    /// Requests of disks so far.
    requests: u64,
    is_booted: bool,
    /// The last count in the log, by who was counted.
    counted: BTreeMap<String, u64>,
    /// The log has said that a CPU does not come.
    lacks_cpu: bool,
    log: L,
}

impl<L: FnMut(&str)> Watch<'_, L> {
    /// The hypervisor has panicked, which the standard library has told already.
    fn has_stopped(&mut self) {
        let rest = machine::with(|machine| std::mem::take(&mut machine.log));
        (self.log)(&String::from_utf8_lossy(&rest));
        self.life.wrong = Some("the hypervisor has stopped by a bug of its own".into());
    }

    /// Notes what has happened; what was written to the log.
    fn note(&mut self, progress: Progress) -> String {
        let (text, mut violation, steps, time) = machine::with(|machine| {
            let text = take_lines(&mut machine.log);
            (text, machine.violation.take(), machine.steps, machine.time)
        });
        if !text.is_empty() {
            self.sleeps = 0;
            self.lacks_cpu |= text.contains("does not come up");
            violation = violation.or_else(|| self.repeats(&text));
            (self.log)(&text);
        }
        if !self.is_booted && outside::has_booted() {
            self.is_booted = true;
            let faults = self.scene.faults;
            machine::with(|machine| machine.set_faults(faults));
        }
        let requests = self.sums.borrow().requests;
        if requests != std::mem::replace(&mut self.requests, requests) {
            self.sleeps = 0;
        }
        self.sleeps += u64::from(matches!(progress, Progress::Slept | Progress::Idle));
        self.life.steps = steps;
        let trace = (self.life.trace.rotate_left(7) ^ time).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.life.trace = trace;
        self.life.wrong = violation;
        text
    }

    /// What the log says too often of what a guest does as often as it likes: the log may be a slow line. Each count is at least
    /// twice the one before it, or the first of another start.
    fn repeats(&mut self, text: &str) -> Option<String> {
        text.lines().find_map(|line| {
            let (what, count) = line.strip_suffix(" so far)")?.rsplit_once('(')?;
            let (_, whose) = what.split_once("warn  ")?;
            let (whose, _) = whose.split_once(": ")?;
            let count: u64 = count.parse().ok()?;
            let before = self.counted.insert(whose.to_owned(), count).unwrap_or(0);
            (count != 1 && count < 2 * before).then(|| format!("the log repeats itself: {line}"))
        })
    }

    /// Looks at what has happened; whether the life goes on.
    fn goes_on(&mut self, progress: Progress) -> bool {
        let text = self.note(progress);
        let steps = self.life.steps;
        if self.life.wrong.is_some() {
            return false;
        }
        if progress == Progress::Off {
            return self.is_off(&text);
        }
        if let Err(what) = self.exchange_frames() {
            self.life.wrong = Some(what);
            return false;
        }
        self.nap();
        let rests = matches!(progress, Progress::Slept | Progress::Idle) && self.is_booted;
        for (said, known) in self
            .sums
            .borrow_mut()
            .vms
            .iter_mut()
            .zip(&self.control.known)
        {
            said.is_ended = known.may_be_ended;
            said.stands_still &= !known.may_go_on();
        }
        let said = self.sums.borrow().vms.clone();
        let heard = match self.control.go_on(steps, progress == Progress::Idle, &said) {
            Ok(heard) => heard,
            Err(what) => {
                self.life.wrong = Some(what);
                return false;
            }
        };
        if heard {
            self.sleeps = 0;
            return true;
        }
        if rests && self.control.is_quiet() {
            // Who stands still does so for certain once all CPUs have slept.
            for (said, known) in self
                .sums
                .borrow_mut()
                .vms
                .iter_mut()
                .zip(&self.control.known)
            {
                said.stands_still = !known.may_go_on();
            }
        }
        if rests && self.control.phase != Phase::Asks && self.winds_up() {
            return false;
        }
        let hangs = steps > STEPS_MAX || self.sleeps > SLEEPS_MAX;
        if hangs || progress == Progress::Idle && self.control.is_quiet() {
            let states = || {
                outside::vms()
                    .iter()
                    .map(|vm| (vm.name, vm.state))
                    .collect()
            };
            // A CPU that does not sleep may hold a lock that who asks about VMs would wait for.
            let states: Option<Vec<_>> = rests.then(states);
            self.life.wrong = Some(format!(
                "nothing goes on: {progress:?} after {steps} steps, {:?}; {}; {states:?}",
                self.control.phase,
                machine::with(|machine| machine.describe()),
            ));
        }
        self.life.wrong.is_none()
    }

    /// In some lives whoever asks takes no answers for a while, now and then.
    fn nap(&mut self) {
        if self.scene.naps && self.control.phase == Phase::Asks && self.naps.below(200) == 0 {
            let counts = self.naps.below(NAP_MAX);
            machine::with(|machine| machine.stop_hearing(counts));
        }
    }

    /// Takes what the network card sends, and sends it something now and then.
    fn exchange_frames(&mut self) -> Result<(), String> {
        if !self.scene.has_card {
            return Ok(());
        }
        let mut wire = self.wire.borrow_mut();
        while let Some(frame) = machine::with(machine::Machine::take_frame) {
            let mut sums = self.sums.borrow_mut();
            wire.got_outside(&frame, |vm| sums.vms[vm].life())?;
            sums.arrived += 1;
        }
        if self.control.phase == Phase::Asks && self.rng.below(400) == 0 {
            let sums = self.sums.borrow();
            let frame = wire.make_outside(&mut self.rng, |vm| sums.vms[vm].life());
            machine::with(|machine| machine.send_frame(&frame));
        }
        Ok(())
    }

    /// The machine is off: whether it was to be.
    fn is_off(&mut self, text: &str) -> bool {
        let is_meant = self.control.phase == Phase::SwitchesOff
            || self.scene.config.silent != 0 && self.lacks_cpu;
        if !is_meant {
            self.life.wrong = Some(format!("the machine has stopped: {text}"));
        }
        false
    }

    /// All CPUs sleep, and nothing is left to ask: lets VMs that stand still go on, and looks at what is left once all have
    /// ended. Whether nothing is left.
    fn winds_up(&mut self) -> bool {
        let untold = outside::frames_untold();
        if untold != 0 {
            self.life.wrong = Some(format!("{untold} frames of overlays are not told of"));
        }
        let vms = outside::vms();
        let is_over = |vm: &RawVm| [state::ENDED, state::DEFINED].contains(&vm.state);
        if !self.control.is_quiet() {
            return false;
        }
        for (number, vm) in vms.iter().enumerate() {
            if vm.state == state::PAUSED {
                let by_name =
                    |known: &usize| format!("vm{known}") == vm.name.as_str().unwrap_or("");
                let number = (0..self.control.known.len())
                    .find(by_name)
                    .unwrap_or(number);
                self.control.ask_about(request::RESUME, number);
                return false;
            }
        }
        if !vms.iter().all(is_over) || !outside::is_idle() {
            return false;
        }
        match self.control.phase {
            Phase::Winds => {
                self.look_at_the_end(&vms);
                let counts = self.scene.requests.is_some() && self.life.wrong.is_none();
                self.control.phase = if counts {
                    Phase::Counts(0)
                } else {
                    Phase::Done
                };
                self.control.ask_last();
            }
            Phase::Counts(_) | Phase::SwitchesOff => self.control.ask_last(),
            Phase::Asks | Phase::Done => {}
        }
        self.control.phase == Phase::Done
    }

    /// All VMs have ended.
    fn look_at_the_end(&mut self, vms: &[RawVm]) {
        let missing = outside::frames_missing();
        let mut wrong = None;
        if missing != 0 {
            wrong = Some(format!(
                "{missing} frames are missing after all VMs have ended"
            ));
        }
        let kept = outside::vcpus_kept();
        if kept != 0 {
            wrong = Some(format!("{kept} vCPUs are kept after all VMs have ended"));
        }
        let stretches = outside::stretches();
        let most = STRETCH_MAX_NS[usize::from(self.scene.config.cpus > 1)];
        if stretches.iter().any(|took| *took > most) && self.scene.config.silent == 0 {
            wrong = Some(format!(
                "a CPU worked at EL2 for more than {most} ns without a look at interrupts: {stretches:?}"
            ));
        }
        if vms.len() != self.control.count() {
            wrong = Some(format!(
                "there are {} VMs, and not {}",
                vms.len(),
                self.control.count()
            ));
        }
        let sums = self.sums.borrow();
        let is_short = self.scene.faults.allocations > 0;
        for vm in vms {
            let name = vm.name.as_str().unwrap_or_default();
            let number = name.trim_start_matches("vm").parse().unwrap_or(usize::MAX);
            let said = sums.vms.get(number).copied().unwrap_or_default();
            let known = self.control.known.get_mut(number);
            let what = known.map_or_else(
                || Some("nobody knows it".to_owned()),
                |known| known.is_wrong_in_the_end(vm, said, is_short),
            );
            let letters = self
                .scene
                .plans
                .get(number)
                .map(|plan| program::letters(*plan));
            let is_whole = vm.starts == 1 && vm.reason.as_str() == Some("powered off");
            if is_whole && letters != Some(vm.console[0]) {
                wrong = Some(format!(
                    "{name} has said {} letters of {letters:?}",
                    vm.console[0]
                ));
            }
            if let Some(what) = what {
                wrong = Some(format!("{name} has ended: {what}"));
            } else if !makes_sense(vm, said.begun > 0) {
                wrong = Some(format!("figures of a VM that has ended: {vm:?}"));
            }
        }
        if wrong.is_some() {
            self.life.wrong = wrong;
        }
    }
}

/// Whether what is counted of a VM that has ended is of one that has nothing left and, where its guest has begun, ran.
fn makes_sense(vm: &RawVm, has_begun: bool) -> bool {
    let exits = &vm.work[work::EXITS..work::TIMED];
    let ran =
        vm.work[work::RUN] > 0 && vm.work[work::HYPERVISOR] > 0 && exits.iter().sum::<u64>() > 0;
    let left = vm.holding != [0; 7] || vm.overlays != [0; 2] || vm.bookkeeping != 0;
    // Figures are those of its last start, which may have been a short one.
    (ran || !has_begun || vm.starts > 1) && !left
}

/// The whole lines of a log, which keeps the rest.
pub fn take_lines(log: &mut Vec<u8>) -> String {
    let end = log
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    String::from_utf8_lossy(&log.drain(..end).collect::<Vec<u8>>()).into_owned()
}
