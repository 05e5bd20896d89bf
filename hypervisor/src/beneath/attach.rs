//! Attaching and detaching: one CPU's side of `model_switch`, on metal.

use crate::beneath::{Os0Cpu, get, interrupts::Beside, loans, this};
use crate::memory::hooks;
use abi::os0::{BUSY, Refusal};
use arch::{cpu as metal, entry::GuestContext, gic, list_registers::HardwareLists, native, timer};
use core::sync::atomic::{AtomicU64, Ordering};
use machine_contract::ListRegisters;
use model_gic_forward::{Busy, CpuInterface, carry, check_give_back, give_back, return_carried};
use model_switch::{Meeting, Poll, Reason, Side, Visit};

/// How long a CPU waits for the others, in seconds.
const PATIENCE: u64 = 1;
/// `SPSR_EL2.I`.
pub const IRQ_MASKED: u64 = 1 << 7;

static MEETING: Meeting = Meeting::new();
/// How many CPUs are on, or about to be, in units of [`IS_ON`], and how many of them EL2 is beneath: one word, so that
/// both are of one moment. A CPU counts as on before it counts as one that EL2 is beneath, and longer. Where EL2 is
/// beneath any, CPUs that arrive come up attached.
pub static COUNTS: AtomicU64 = AtomicU64::new(0);
pub const IS_ON: u64 = 1 << 32;

/// Whether EL2 is beneath all CPUs that are on.
pub fn is_attached() -> bool {
    let counts = COUNTS.load(Ordering::Acquire);
    counts >> 32 == counts % IS_ON
}

/// How many CPUs are on, or about to be.
pub fn on() -> u64 {
    COUNTS.load(Ordering::Relaxed) >> 32
}

pub fn reason(refusal: Refusal) -> Reason {
    // Refusals are numbered from 1.
    Reason::new(refusal as u16).unwrap_or(Reason::MIN)
}

/// A CPU that goes beneath OS-0.
struct Attaching<'a> {
    me: &'static Os0Cpu,
    context: &'a GuestContext,
    physical: CpuInterface,
}

/// The steps, in their order; what undoes each stands in [`Side::undo`].
const CHECK: usize = 0;
const INTERFACE: usize = 1;
const TRAPS: usize = 2;

impl Side for Attaching<'_> {
    const STEPS: usize = 3;

    fn take(&mut self, step: usize) -> Result<(), Reason> {
        if hooks::is_to_fail(self.me.cpu.id, step) {
            return Err(reason(Refusal::Injected));
        }
        match step {
            CHECK => check(self.me, self.context).map_err(reason),
            INTERFACE => {
                let physical = gic::read_interface();
                let carried = carry(physical).ok_or(reason(Refusal::HandlingInterrupt))?;
                self.physical = physical;
                gic::begin_forwarding(carried);
                Ok(())
            }
            _ => {
                debug_assert_eq!(step, TRAPS);
                native::go_beneath(self.me.native.get().hcr);
                Ok(())
            }
        }
    }

    fn undo(&mut self, step: usize) {
        match step {
            TRAPS => native::step_aside(self.me.native.get().hcr),
            INTERFACE => gic::end_forwarding(self.physical),
            _ => {}
        }
    }

    fn commit(&mut self) {
        self.me.attached.set(true);
        COUNTS.fetch_add(1, Ordering::Release);
    }
}

fn check(me: &Os0Cpu, context: &GuestContext) -> Result<(), Refusal> {
    if me.attached.get() {
        return Err(Refusal::AlreadyAttached);
    }
    if context.pstate & IRQ_MASKED == 0 {
        return Err(Refusal::InterruptsOpen);
    }
    if HardwareLists::of_this_cpu().count() < 2 {
        return Err(Refusal::TooFewListRegisters);
    }
    if !get().is_in_reach {
        return Err(Refusal::MemoryOutOfReach);
    }
    Ok(())
}

/// What ATTACH would refuse here now, as X0; zero if nothing.
pub fn refusal(context: &GuestContext, expected: u64) -> u64 {
    if expected != on() {
        return Refusal::WrongNumber.code();
    }
    check(this(), context).map_or_else(Refusal::code, |()| 0)
}

/// How many CPUs EL2 is beneath.
pub fn beneath() -> u64 {
    COUNTS.load(Ordering::Acquire) % IS_ON
}

/// ATTACH: all CPUs that are on call it, and go beneath OS-0 together. Gives X0.
pub fn attach(context: &GuestContext, expected: u64) -> u64 {
    let mut side = Attaching {
        me: this(),
        context,
        physical: CpuInterface::default(),
    };
    meet(&MEETING, &mut side, expected).map_or_else(|code| code, |()| 0)
}

/// Makes a switch with all other CPUs, `expected` with this one; or gives X0.
pub fn meet(meeting: &Meeting, side: &mut impl Side, expected: u64) -> Result<(), u64> {
    if expected != on() {
        return Err(Refusal::WrongNumber.code());
    }
    let mut visit = Visit::new(expected as u32);
    let end = timer::now() + PATIENCE * timer::frequency();
    let late = || (timer::now() > end).then(|| reason(Refusal::Late));
    loop {
        match visit.poll(meeting, side, late) {
            Poll::Working => {}
            Poll::Waiting => metal::relax(),
            Poll::Done => return Ok(()),
            Poll::Failed(reason) => return Err(abi::os0::code(reason.get())),
            Poll::Excluded => return Err(Refusal::Elsewhere.code()),
        }
    }
}

/// DETACH, for the CPU that calls: OS-0 has it for itself again. Where it holds a message-signalled
/// interrupt that OS-0 has not taken, nothing is changed but that new interrupts wait: until the next
/// call if `comes_back`, or else until list registers are free. Gives X0.
pub fn detach(context: &GuestContext, comes_back: bool) -> u64 {
    let me = this();
    if !me.attached.get() {
        return Refusal::NotAttached.code();
    }
    if context.pstate & IRQ_MASKED == 0 {
        return Refusal::InterruptsOpen.code();
    }
    if hooks::is_to_fail(me.cpu.id, 0) {
        return Refusal::Injected.code();
    }
    // Until it has left: nobody lends or shares between.
    let lending = loans::hold();
    if lending.are_in_use() {
        return Refusal::Lent.code();
    }
    let mut lists = HardwareLists::of_this_cpu();
    let mut own = me.gic(Beside::No);
    match check_give_back(&lists) {
        Ok(()) => {}
        Err(Busy::Active(_)) => return Refusal::HandlingInterrupt.code(),
        Err(Busy::Lpi(_)) => {
            let mut forwarder = me.forwarder.get();
            if comes_back {
                forwarder.hold_for_leaving(&mut own);
            } else {
                forwarder.hold(&mut lists, &mut own);
            }
            me.forwarder.set(forwarder);
            return BUSY;
        }
    }
    let Some(physical) = return_carried(gic::read_virtual_interface()) else {
        return Refusal::HandlingInterrupt.code();
    };
    // What stood against it has been asked.
    let _ = give_back(&mut lists, &mut own);
    own.redistributor.disable(own.maintenance);
    gic::end_forwarding(physical);
    native::step_aside(me.native.get().hcr);
    me.forget_forwarding();
    me.attached.set(false);
    COUNTS.fetch_sub(1, Ordering::Release);
    0
}

/// A CPU is about to end.
pub fn go_off(me: &Os0Cpu) {
    if me.attached.get() {
        COUNTS.fetch_sub(1, Ordering::Release);
    }
}

/// The firmware has refused to end it.
pub fn stay_on(me: &Os0Cpu) {
    if me.attached.get() {
        COUNTS.fetch_add(1, Ordering::Release);
    }
}

/// A CPU has arrived from the firmware, opened to OS-0: it comes up as the others run.
pub fn come_up(me: &Os0Cpu) {
    me.forget_forwarding();
    let attached = beneath() > 0;
    me.attached.set(attached);
    if attached {
        COUNTS.fetch_add(1, Ordering::Release);
        if let Some(carried) = carry(CpuInterface::default()) {
            gic::begin_forwarding(carried);
        }
        native::go_beneath(me.native.get().hcr);
    }
}
