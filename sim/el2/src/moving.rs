//! A VM that moves: all of it is said in bytes on one machine, which then is gone, and goes on on another one, of which the
//! process has a hypervisor with statics of its own. Its flat memory, and the disk, are the same on both.

use crate::bundle::{self, Vm};
use crate::disk;
use crate::flat::{Memories, Sums};
use crate::life::{BUNDLE_AT, SLEEPS_MAX, STEPS_MAX, TREE_AT};
use crate::scene::Scene;
use crate::tree;
use crate::wire::Wire;
use abi::Text;
use abi::control::{RawVm, VmName, state};
use machine_host::machine::{self, Config, Entries, Machine, Observer, Progress};
use machine_host::rng::Rng;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

/// A machine starts at most so many steps after its boot to say all of a VM.
const LATEST: u64 = 8_000;

/// What became of a VM that was to move.
#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    /// It went on, and has ended as it should.
    Went {
        /// Bytes that it took.
        bytes: usize,
        /// What was answered where they were damaged before, if they were.
        refused: Option<String>,
    },
    /// It had ended before.
    Late,
    /// It cannot move as it is.
    Stays(String),
}

/// The count that a machine begins with.
fn switched_on(rng: &mut Rng) -> u64 {
    let bits = 8 + rng.below(32);
    rng.below(1 << bits)
}

/// A hypervisor, of which the process has two.
struct Hypervisor {
    entries: Entries,
    has_booted: fn() -> bool,
    vms: fn() -> Vec<RawVm>,
    is_idle: fn() -> bool,
    frames_missing: fn() -> i64,
    save: fn(VmName),
    restore: fn(Vec<u8>),
    answer: fn() -> Option<Result<Vec<u8>, String>>,
}

macro_rules! hypervisor {
    ($name:ident) => {
        Hypervisor {
            entries: Entries {
                first: |tree| $name::primary(tree, 0),
                other: || $name::secondary(),
            },
            has_booted: $name::outside::has_booted,
            vms: $name::outside::vms,
            is_idle: $name::outside::is_idle,
            frames_missing: $name::outside::frames_missing,
            save: |name| $name::outside::ask($name::outside::Ask::Save(name)),
            restore: |bytes| $name::outside::ask($name::outside::Ask::Restore(bytes)),
            answer: $name::outside::answer,
        }
    };
}

/// What goes from one machine to the other beside the VM.
struct Rest {
    observer: Box<dyn Observer>,
    disk: Vec<u8>,
}

/// A machine of a scene.
struct Place<'a> {
    scene: &'a Scene,
    config: Config,
    nodes: usize,
    /// VMs that its bundle describes.
    described: usize,
    /// When it is switched on.
    time: u64,
    wire: Rc<RefCell<Wire>>,
    /// What its VMs say.
    sums: Rc<RefCell<Sums>>,
}

impl Place<'_> {
    /// Runs it until `goes_on` says no, or goes wrong.
    fn run(
        &self,
        hypervisor: &Hypervisor,
        rest: Rest,
        log: &mut dyn FnMut(&str),
        mut goes_on: impl FnMut(u64, bool) -> Result<bool, String>,
    ) -> Result<(), String> {
        let bundle = bundle::build(&self.scene.vms, self.described);
        let range = (BUNDLE_AT.0, BUNDLE_AT.0 + bundle.len() as u64);
        let (config, words) = (self.config, &self.scene.command_line);
        let tree = tree::write((&config, self.nodes), words, range);
        let tree = tree.map_err(|error| format!("no device tree: {error}"))?;
        let prepare = |machine: &mut Machine| {
            let placed = machine
                .fill(TREE_AT, &tree)
                .and(machine.fill(BUNDLE_AT, &bundle));
            let is_outside = placed.is_none();
            machine.violation = is_outside.then(|| "tree or bundle lie outside memory".into());
            machine.attach_disk(rest.disk);
            if self.scene.has_card {
                machine.attach_card();
            }
            machine.observer = Some(rest.observer);
            machine.time += self.time;
            TREE_AT.0
        };
        let (mut wrong, mut sleeps) = (None, 0);
        let look = |progress| {
            sleeps = match progress {
                Progress::Slept | Progress::Idle => sleeps + 1,
                _ => 0,
            };
            let looked = self.look(hypervisor, (progress, sleeps), log);
            match looked.and_then(|steps| goes_on(steps, sleeps > 0)) {
                Ok(goes_on) => goes_on,
                Err(what) => {
                    wrong = Some(what);
                    false
                }
            }
        };
        let run = || machine::run(config, hypervisor.entries, prepare, look);
        match panic::catch_unwind(AssertUnwindSafe(run)) {
            Ok(ran) => ran?,
            Err(_) => return Err("the hypervisor has stopped by a bug of its own".into()),
        }
        wrong.map_or(Ok(()), Err)
    }

    /// Looks at what has happened: steps so far.
    fn look(
        &self,
        hypervisor: &Hypervisor,
        (progress, sleeps): (Progress, u64),
        log: &mut dyn FnMut(&str),
    ) -> Result<u64, String> {
        let (text, violation, steps) = machine::with(|machine| {
            if matches!(progress, Progress::Slept | Progress::Idle) {
                // Somebody is to look whether anything was asked.
                machine.disturb();
            }
            let text = std::mem::take(&mut machine.log);
            (text, machine.violation.take(), machine.steps)
        });
        log(&String::from_utf8_lossy(&text));
        while let Some(frame) = machine::with(Machine::take_frame) {
            // A switch that does not know who was on the first machine lets frames for them go out.
            let sums = self.sums.borrow();
            let life = |vm: usize| sums.vms[vm].life();
            let got = self.wire.borrow_mut().got_outside(&frame, life);
            got.or_else(|what| {
                if self.described > 0 {
                    Err(what)
                } else {
                    Ok(())
                }
            })?;
        }
        if let Some(what) = violation {
            return Err(what);
        }
        if progress == Progress::Off || steps > STEPS_MAX || sleeps > SLEEPS_MAX {
            // A CPU that does not sleep may hold a lock that who asks about VMs would wait for.
            let vms = (sleeps > 0).then(hypervisor.vms);
            return Err(format!(
                "nothing goes on: {progress:?} after {steps} steps; {}; {vms:?}",
                machine::with(|machine| machine.describe()),
            ));
        }
        Ok(steps)
    }
}

/// Moves a VM of this scene, at a moment of the seed, to another machine.
///
/// # Errors
/// What went wrong.
pub fn live(seed: u64, scene: &Scene, log: &mut dyn FnMut(&str)) -> Result<(Moved, Sums), String> {
    let mut rng = Rng::new(seed ^ 0x6d6f_7665);
    let base = disk::base(seed);
    let partitions: Vec<_> = scene.vms.iter().flat_map(Vm::partitions).collect();
    let (memories, sums, wire) = Memories::new(&scene.vms, &base, false);
    let number = rng.below(scene.in_bundle as u64) as usize;
    let mut place = Place {
        scene,
        config: scene.config,
        nodes: scene.nodes,
        described: scene.in_bundle,
        time: switched_on(&mut rng),
        wire,
        sums: Rc::clone(&sums),
    };
    let rest = Rest {
        observer: Box::new(memories),
        disk: disk::image(&base, &partitions),
    };
    let name = Text::new(&scene.vms[number].name).unwrap_or_default();
    let (answer, rest) = leaves(&place, (name, rng.below(LATEST)), rest, log)?;
    let moved = match answer {
        Err(why) if why.contains("not running") => Moved::Late,
        Err(why) => Moved::Stays(why),
        Ok(bytes) => {
            place.config.seed = rng.next();
            place.config.cpus = 1 + rng.below(3) as usize;
            place.nodes = 1 + rng.below(2) as usize;
            place.described = 0;
            place.time = switched_on(&mut rng);
            let damaged = (rng.below(3) == 0).then(|| {
                let mut other = bytes.clone();
                let at = rng.below(bytes.len() as u64) as usize;
                other[at] ^= 1 << rng.below(8);
                if rng.below(2) == 0 {
                    other.truncate(at);
                }
                other
            });
            let count = bytes.len();
            let refused = arrives(&place, &bytes, damaged, rest, log)?;
            if !sums.borrow().vms[number].is_done {
                return Err(format!("{name} has ended and was not done"));
            }
            Moved::Went {
                bytes: count,
                refused,
            }
        }
    };
    Ok((moved, sums.take()))
}

/// The first machine: what came of saying all of the VM, and what else goes on.
fn leaves(
    place: &Place<'_>,
    (name, at): (VmName, u64),
    rest: Rest,
    log: &mut dyn FnMut(&str),
) -> Result<(Result<Vec<u8>, String>, Rest), String> {
    let hypervisor = hypervisor!(hypervisor);
    let (mut booted_at, mut is_asked, mut found) = (None, false, None);
    place.run(&hypervisor, rest, log, |steps, _| {
        if booted_at.is_none() && (hypervisor.has_booted)() {
            booted_at = Some(steps);
        }
        if !is_asked && booted_at.is_some_and(|booted| steps >= booted + at) {
            (hypervisor.save)(name);
            is_asked = true;
        }
        // The next machine's log goes by the same console, whose lock no CPU that is gone may have.
        if machine::with(|machine| machine.holds_locks()) {
            return Ok(true);
        }
        let Some(answer) = (hypervisor.answer)() else {
            return Ok(true);
        };
        let (observer, disk) =
            machine::with(|machine| (machine.observer.take(), machine.take_disk()));
        let observer = observer.ok_or("nobody watches")?;
        found = Some((answer, Rest { observer, disk }));
        Ok(false)
    })?;
    found.ok_or_else(|| "nothing was answered".into())
}

/// The second machine: what was answered to what was damaged.
fn arrives(
    place: &Place<'_>,
    bytes: &[u8],
    damaged: Option<Vec<u8>>,
    rest: Rest,
    log: &mut dyn FnMut(&str),
) -> Result<Option<String>, String> {
    let hypervisor = hypervisor!(sim_twin);
    let (mut waits, mut is_there, mut refused) = (false, false, None);
    let mut damaged = damaged;
    place.run(&hypervisor, rest, log, |_, sleeps| {
        if !(hypervisor.has_booted)() {
            return Ok(true);
        }
        if !waits && !is_there {
            (hypervisor.restore)(damaged.clone().unwrap_or_else(|| bytes.to_vec()));
            waits = true;
        }
        if let Some(answer) = (hypervisor.answer)().filter(|_| waits) {
            waits = false;
            match (answer, damaged.take()) {
                (Ok(_), None) => is_there = true,
                (Ok(_), Some(_)) => return Err("what was damaged was restored".into()),
                (Err(what), Some(_)) => refused = Some(what),
                // What was made of the damaged bytes is on its way out.
                (Err(what), None) if refused.is_some() && what.contains("not complete") => {}
                (Err(what), None) => return Err(format!("it is not restored: {what}")),
            }
        }
        if !sleeps || !is_there {
            return Ok(true);
        }
        let vms = (hypervisor.vms)();
        let is_over = vms.iter().all(|vm| vm.state == state::ENDED);
        if !is_over || !(hypervisor.is_idle)() {
            return Ok(true);
        }
        match vms.as_slice() {
            [vm] if vm.reason.as_str() == Some("powered off") => {}
            vms => return Err(format!("VMs that have ended: {vms:?}")),
        }
        match (hypervisor.frames_missing)() {
            0 => Ok(false),
            missing => Err(format!(
                "{missing} frames are missing after the VM has ended"
            )),
        }
    })?;
    Ok(refused)
}
