//! OS-0 ends and starts anew, alone: VMs beside it go on.
//!
//! What starts was staged by OS-0 before (`abi::stage`), in memory that it has lent. The CPU that ended
//! OS-0 leads: each other CPU's OS-0 vCPU parts in a turn of its own, and is off then, as by CPU_OFF; the
//! CPU itself goes on with VMs. When all have, the leader silences devices, copies what is staged to memory
//! that nobody has, and starts it. It comes up attached, with CPUs that it shares.

use crate::beneath::{Os0Cpu, attach, calls, filter, get, loans, stage2};
use crate::drivers::{disk, uplink};
use crate::machine::{console, give_up};
use crate::vcpu::{Outcome, sched};
use abi::os0::{DONE, Refusal};
use abi::stage::{Head, PAYLOAD_AT};
use arch::gic::{self, Redistributor};
use arch::{cache, devices, frames::Ram, timer};
use core::sync::atomic::{AtomicU8, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{Ipa, Pa, PaRange};
use model_loans::Borrower;
use model_os0_boot::{SOON, STARTS_MAX, Starts, is_startable, place};
use zerocopy::FromBytes;

/// The most runs that are taken.
type Runs = heapless::Vec<PaRange, 128>;

/// How often it was started, each end soon after its start.
static TRIES: SpinLock<Starts> = SpinLock::new(Rank::Vm, Starts::NONE);

/// What OS-0's vCPU on a CPU does, where VMs share it.
#[derive(Default)]
pub struct Course(AtomicU8);

const RUNS: u8 = 0;
/// It is to part.
const PARTS: u8 = 1;
/// It has.
const OFF: u8 = 2;
/// It ended OS-0.
const LEADS: u8 = 3;
/// It is to start, where its power state says.
const STARTS: u8 = 4;

impl Course {
    /// Whether it goes on as it does.
    pub fn goes_on(&self) -> bool {
        self.get() == RUNS
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, course: u8) {
        self.0.store(course, Ordering::Release);
    }

    fn is_changed(&self, from: u8, to: u8) -> bool {
        let changed = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        changed.is_ok()
    }
}

/// STAGE.
pub fn stage(start: u64, size: u64) -> Result<u64, Refusal> {
    let run = loans::take(Borrower::Successor, start, size, false)?;
    if head(run).is_none() {
        return Err(Refusal::NotStaged);
    }
    Ok(DONE)
}

/// LOANED: the run of that number, and whether it is what is staged.
pub fn loaned(number: u64) -> Option<(PaRange, bool)> {
    let lent = loans::runs().into_iter().map(|run| (run, false));
    let staged = loans::staged().map(|run| (run, true));
    lent.chain(staged).nth(usize::try_from(number).ok()?)
}

fn ram(run: PaRange) -> Ram {
    // SAFETY: memory of OS-0's or lent by it, which EL2 has mapped and Rust owns nothing of.
    unsafe { Ram::new(run.start, run.size) }
}

/// What a run begins with, if it can be started.
fn head(run: PaRange) -> Option<Head> {
    let mut bytes = [0; size_of::<Head>()];
    ram(run).read(0, &mut bytes);
    let head = Head::read_from_bytes(&bytes).ok()?;
    is_startable(&head, run.size).then_some(head)
}

/// OS-0 ends on this CPU: whether it alone does, as VMs are there and something can be started. What is
/// staged was in OS-0's reach while it was detached.
pub fn begin(me: &Os0Cpu) -> bool {
    let is_alone = loans::pin_cpus() && me.shares.get();
    let is_worth_it = TRIES.lock().are_worth_another(seconds());
    if is_alone && is_worth_it && loans::staged().and_then(head).is_some() {
        // Where another CPU leads already, this one is about to part.
        me.course.is_changed(RUNS, LEADS);
        return true;
    }
    if is_alone && !is_worth_it {
        console::announce(format_args!(
            "what OS-0 has staged ended {STARTS_MAX} times within {SOON} s of its start: the machine ends"
        ));
    } else if is_alone {
        console::announce(format_args!(
            "OS-0 ends, and nothing is staged that can be started: the machine ends with it"
        ));
    } else if loans::pin_cpus() {
        console::announce(format_args!(
            "OS-0 ends while VMs are parked: the machine ends with it, and they do"
        ));
    }
    false
}

fn seconds() -> u64 {
    timer::now() / timer::frequency().max(1)
}

/// DYING.
pub fn say_it_dies() -> u64 {
    let what = if loans::hold().are_in_use() {
        "its VMs go on"
    } else {
        "VMs that are parked end with it"
    };
    console::announce(format_args!("OS-0 says that it dies; {what}"));
    DONE
}

/// CPU_ON of a CPU whose vCPU has parted.
pub fn is_off(target: &Os0Cpu) -> bool {
    target.course.get() == OFF
}

/// Starts the vCPU of a CPU that has it off, as its power state says.
pub fn bring_up(target: &Os0Cpu) {
    attach::stay_on(target);
    target.course.set(STARTS);
    sched::wake(target.entity);
}

/// What OS-0's vCPU on this CPU, which is not in it, does instead of going on.
pub fn look(me: &Os0Cpu) -> Option<Outcome> {
    match me.course.get() {
        PARTS => {
            attach::go_off(me);
            calls::mark_off(me);
            me.course.set(OFF);
            Some(Outcome::Off)
        }
        OFF => Some(Outcome::Off),
        LEADS => {
            if have_parted(me) {
                restart(me);
            }
            Some(Outcome::Preempted)
        }
        STARTS => {
            let mut power = me.power.lock();
            power.state.arrive();
            let (entry, argument) = (power.entry, power.context);
            drop(power);
            me.world.lock().begin_anew(me, entry.0, argument);
            me.course.set(RUNS);
            None
        }
        _ => None,
    }
}

/// Whether no other CPU has OS-0 any more; those that do are told.
fn have_parted(me: &Os0Cpu) -> bool {
    let mut all = true;
    for other in crate::beneath::cpus().filter(|other| other.cpu.id != me.cpu.id) {
        for from in [RUNS, LEADS, STARTS] {
            if other.course.is_changed(from, PARTS) {
                other.cpu.poke();
                sched::wake(other.entity);
            }
        }
        all &= is_off(other);
    }
    all
}

/// Starts what is staged: no CPU runs anything of OS-0's.
fn restart(me: &Os0Cpu) {
    console::announce(format_args!("OS-0 has ended; it starts anew, VMs go on"));
    TRIES.lock().note(seconds());
    silence();
    disk::keep_area();
    uplink::close();
    let Some((entry, tree)) = put_in_place() else {
        give_up(format_args!("what OS-0 has staged cannot be started"));
    };
    stage2::forget_translations();
    let mut power = me.power.lock();
    power.entry = Ipa(entry.0);
    power.context = tree.0;
    me.course.set(STARTS);
}

/// No device that is known writes memory or raises interrupts any more.
fn silence() {
    let os0 = get();
    // SAFETY: the device tree says where all these are; they were mapped. Their owner is gone, and what
    // EL2 and its VMs have of the interrupt controller is kept.
    unsafe {
        os0.tree
            .pci
            .iter()
            .for_each(|host| devices::silence_pci(*host));
        let transports = os0.tree.virtio.iter();
        transports.for_each(|window| devices::silence_virtio(window.registers));
        let translators = os0.tree.gic.translators.iter();
        translators.for_each(|its| gic::silence_translator(*its));
        os0.distributor.silence();
        let kept = filter::own(os0) | 1 << (os0.tree.timer.virtual_timer.intid & 31);
        Redistributor::all(&os0.tree.gic.redistributors).for_each(|own| own.silence(kept));
    }
}

/// Copies what is staged to where it runs, and tells it of memory that it must not touch. Gives the
/// kernel's first instruction, and its device tree.
fn put_in_place() -> Option<(Pa, Pa)> {
    let os0 = get();
    let run = loans::staged()?;
    let head = head(run)?;
    let mut reserved: Runs = loans::runs().into_iter().chain([run]).collect();
    reserved.extend_from_slice(&os0.tree.reserved).ok()?;
    let [at, room] = head.reservations;
    if reserved.len() as u64 >= room {
        return None;
    }
    let memory: Runs = os0.tree.memory.iter().map(|memory| memory.range).collect();
    let mut taken = reserved.clone();
    taken.push(os0.home.hidden).ok()?;
    let start = place(&memory, &taken, head.room)?;
    let whole = PaRange::of(start, head.room);
    let to = ram(whole);
    to.copy_from(0, ram(run), PAYLOAD_AT, head.bytes as usize);
    let end = PaRange::of(Pa(0), 0);
    for (n, run) in reserved.iter().chain([&end]).enumerate() {
        to.write(at + 16 * n as u64, &run.start.0.to_be_bytes());
        to.write(at + 16 * n as u64 + 8, &run.size.to_be_bytes());
    }
    for at in head.initrd.into_iter().filter(|at| *at > 0) {
        let mut offset = [0; 8];
        to.read(at, &mut offset);
        let address = start.0.wrapping_add(u64::from_be_bytes(offset));
        to.write(at, &address.to_be_bytes());
    }
    cache::publish(start, head.room);
    Some((start, Pa(start.0 + head.tree)))
}
