//! A new image takes this one's place while OS-0 has the machine for itself. It is put into EL2's spare
//! memory, page by page, and entered by one CPU while the others wait here; until it has answered, all of
//! this image is as it was, and that CPU can come back.

use crate::beneath::attach::{IRQ_MASKED, meet, reason};
use crate::beneath::{CPUS, Home, Os0Cpu, get, handover, loans, this};
use abi::os0::{DONE, Refusal};
use abi::upgrade::{Handover, Mark, Misfit, VERSION, state};
use arch::boot::image_parts;
use arch::entry::GuestContext;
use arch::frames::Ram;
use arch::{cache, cpu as metal, native, upgrade as metal_upgrade};
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Pa, PaRange};
use model_switch::{Meeting, Reason, Side};
use model_vpsci::Power;

static MEETING: Meeting = Meeting::new();
/// Bytes that were given of the image.
static GIVEN: SpinLock<u64> = SpinLock::new(Rank::Vm, 0);
/// All of it was, and it fits.
static IS_WHOLE: AtomicBool = AtomicBool::new(false);
static HANDOVER: Handover = Handover::empty();

fn refusal(misfit: Misfit) -> Refusal {
    match misfit {
        Misfit::NoImage => Refusal::NoImage,
        Misfit::Version => Refusal::Misfit,
        Misfit::TooLarge => Refusal::TooLittle,
    }
}

/// GIVE_IMAGE.
pub fn give(start: u64, before: u64, bytes: u64) -> Result<u64, Refusal> {
    let spare = get().home.spare;
    IS_WHOLE.store(false, Ordering::Relaxed);
    let mut given = GIVEN.lock();
    if before == 0 {
        *given = 0;
        // What caches hold of the image that was here before must not come over the new one.
        cache::clean_to_coherency(spare.start, spare.size);
    }
    if *given != before || !before.is_multiple_of(FRAME_SIZE) && bytes > 0 {
        return Err(Refusal::NoImage);
    }
    if bytes == 0 {
        return check(spare, before).map(|()| DONE);
    }
    let lending = loans::hold();
    let page = loans::window(lending.loans(), start, bytes).ok_or(Refusal::NoMemory)?;
    if before + bytes > spare.size {
        return Err(Refusal::TooLittle);
    }
    // SAFETY: EL2's own memory, of which nothing is made.
    let to = unsafe { Ram::new(spare.start, spare.size) };
    to.copy_from(before, page, 0, bytes as usize);
    cache::clean_to_coherency(Pa(spare.start.0 + before), bytes);
    *given += bytes;
    Ok(DONE)
}

/// Whether what was given is an image that can go on from here.
fn check(spare: PaRange, bytes: u64) -> Result<(), Refusal> {
    let start = core::ptr::with_exposed_provenance::<u8>(spare.start.0 as usize);
    // SAFETY: so much of EL2's spare memory was written, and nobody writes it while `GIVEN` is locked.
    let file = unsafe { core::slice::from_raw_parts(start, bytes as usize) };
    let mark = Mark::of(file).map_err(refusal)?;
    mark.fits(VERSION, spare.size).map_err(refusal)?;
    IS_WHOLE.store(true, Ordering::Relaxed);
    Ok(())
}

/// A CPU that goes over to the new image.
struct Leaving<'a> {
    me: &'static Os0Cpu,
    context: &'a GuestContext,
}

impl Side for Leaving<'_> {
    const STEPS: usize = 1;

    fn take(&mut self, _: usize) -> Result<(), Reason> {
        self.check().map_err(reason)?;
        HANDOVER.state.store(state::WAITING, Ordering::Relaxed);
        let own = &HANDOVER.cpu[usize::from(self.me.cpu.id.0)];
        let GuestContext {
            registers,
            pc,
            pstate,
        } = self.context;
        for (place, value) in own
            .registers
            .iter()
            .zip(registers.iter().chain([pc, pstate]))
        {
            place.store(*value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn undo(&mut self, _: usize) {}

    fn commit(&mut self) {}
}

impl Leaving<'_> {
    fn check(&self) -> Result<(), Refusal> {
        if self.me.attached.get() {
            return Err(Refusal::AlreadyAttached);
        }
        if self.context.pstate & IRQ_MASKED == 0 {
            return Err(Refusal::InterruptsOpen);
        }
        if loans::are_any() && !loans::are_parked() {
            return Err(Refusal::Lent);
        }
        IS_WHOLE
            .load(Ordering::Relaxed)
            .then_some(())
            .ok_or(Refusal::NoImage)
    }
}

/// UPGRADE: all CPUs that are on call it. Comes back only where the new image does not take over; gives X0.
#[inline(never)]
pub fn upgrade(context: &GuestContext, expected: u64) -> u64 {
    let me = this();
    if let Err(code) = meet(&MEETING, &mut Leaving { me, context }, expected) {
        return code;
    }
    if is_first(me) {
        let answer = enter();
        HANDOVER.state.store(answer, Ordering::Release);
        return answer;
    }
    loop {
        match HANDOVER.state.load(Ordering::Acquire) {
            state::WAITING => metal::relax(),
            state::TAKEN => {
                let own = &HANDOVER.cpu[usize::from(me.cpu.id.0)];
                let record = own.record.load(Ordering::Relaxed);
                // SAFETY: the new image has taken over.
                unsafe { metal_upgrade::follow(HANDOVER.entry.load(Ordering::Relaxed), record) }
            }
            refused => return refused,
        }
    }
}

fn is_on(cpu: &Os0Cpu) -> bool {
    cpu.power.lock().state == Power::On
}

/// Whether it has the lowest number of those that are on.
fn is_first(me: &Os0Cpu) -> bool {
    let mut cpus = CPUS.iter().filter_map(|cpu| cpu.get());
    let first = cpus.find(|cpu| is_on(cpu));
    first.is_some_and(|first| first.cpu.id == me.cpu.id)
}

/// Enters the new image, and comes back if it does not take over: why not.
fn enter() -> u64 {
    match handover::leave() {
        Ok(left) => {
            HANDOVER.parked.set(left.records.0, left.records.1);
            let answer = enter_with_records();
            left.take_back();
            answer
        }
        Err(refusal) => refusal.code(),
    }
}

fn enter_with_records() -> u64 {
    let os0 = get();
    let Home {
        hidden,
        own,
        spare,
        tree,
        upgrades,
    } = os0.home;
    IS_WHOLE.store(false, Ordering::Relaxed);
    for (run, range) in [
        (&HANDOVER.hidden, hidden),
        (&HANDOVER.slots[0], spare),
        (&HANDOVER.slots[1], own),
        (&HANDOVER.tree, tree),
    ] {
        run.set(range.start.0, range.size);
    }
    let words = [
        (&HANDOVER.version, VERSION.into()),
        (&HANDOVER.upgrades, upgrades + 1),
        (
            &HANDOVER.fails_at,
            crate::memory::hooks::take_injected_step(),
        ),
        (&HANDOVER.cpus, os0.tree.cpus.len() as u64),
    ];
    for (word, value) in words {
        word.store(value, Ordering::Relaxed);
    }
    for cpu in CPUS.iter().filter_map(|cpu| cpu.get()) {
        let handed = &HANDOVER.cpu[usize::from(cpu.cpu.id.0)];
        handed.affinity.store(cpu.cpu.affinity, Ordering::Relaxed);
        handed.is_on.store(is_on(cpu).into(), Ordering::Relaxed);
    }
    let at = Pa(core::ptr::from_ref(&HANDOVER).expose_provenance() as u64);
    cache::clean_to_coherency(at, size_of::<Handover>() as u64);
    crate::machine::entropy::renew(os0.tree, tree);
    cache::clean_to_coherency(tree.start, tree.size);
    cache::clean_to_coherency(image_parts().whole.start, image_parts().whole.size);
    // SAFETY: `check` found it to be an image; all that it reads was cleaned, and it goes where this one's
    // memory is not.
    let answer = unsafe { metal_upgrade::enter(at, spare.start, abi::upgrade::TAKE_OVER) };
    let native = this().native.get();
    // SAFETY: what the CPU had, as at `run::arrive`.
    unsafe { native::open(&native, os0.stage2.0, os0.stage2.1) }
    log::warn!("a new image did not take over: {answer:#x}");
    answer
}
