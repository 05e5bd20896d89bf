//! Physical interrupts: acknowledged by EL2, handed on or handled.

use crate::machine::{self, Cpu, due, stretch};
use crate::run::entry::{Flow, Loaded};
use crate::run::os0::{self, Os0};
use crate::vcpu::{ExitClass, Outcome, attention};
use abi::control::trace;
use arch::{cpu as metal, gic, timer};
use core::sync::atomic::Ordering;
use model_gic_forward::Forwarded;

/// Interrupts that are taken at one look.
const INTERRUPTS_AT_ONCE: u32 = 16;

/// What a physical interrupt was.
enum Kind {
    Spurious,
    Kick,
    Alarm,
    GuestTimer,
    Maintenance,
    Device,
}

/// The guest left, or slept in place, because of a physical interrupt. One is taken, and one more after a kick: that comes
/// first, and a CPU that kicks itself for device work would take no other.
#[inline]
pub fn interrupt(guest: &mut Loaded<'_>) -> Flow {
    let stats = &guest.vcpu.stats;
    let mut kind = take(guest.cpu);
    if matches!(kind, Kind::Kick) && metal::is_interrupt_pending() {
        kind = take_further(guest.cpu);
    }
    match kind {
        Kind::GuestTimer => {
            stats.count(ExitClass::Timer);
            guest_timer(guest);
        }
        Kind::Maintenance => {
            stats.count(ExitClass::Maintenance);
            guest.deliver();
        }
        Kind::Alarm => {
            stats.count(ExitClass::Interrupt);
            let asked = &guest.vcpu.attention;
            asked.fetch_or(attention::SAMPLE, Ordering::Relaxed);
            crate::run::housekeeping::wake(guest.cpu);
            let now = timer::now();
            if now >= guest.cpu.guest_deadline.get() {
                guest.drive_physical_timer();
            }
            if now >= guest.cpu.slice_end.get() {
                return Flow::Leave(Outcome::Preempted);
            }
            due::set_alarm(guest.cpu);
            // What is due is done now, not at the end of the slice.
            if due::is_needed() {
                return Flow::Leave(Outcome::Preempted);
            }
        }
        Kind::Kick | Kind::Device => stats.count(ExitClass::Interrupt),
        Kind::Spurious => {}
    }
    if guest.cpu.reschedule.load(Ordering::Relaxed) {
        return Flow::Leave(Outcome::Preempted);
    }
    Flow::Resume
}

/// Takes what is pending while the CPU has no guest.
pub fn take_interrupts(cpu: &'static Cpu) {
    // A disk that is as fast as EL2 has its next interrupt ready when one was dealt with: the rest stays pending.
    for _ in 0..INTERRUPTS_AT_ONCE {
        let kind = take(cpu);
        stretch::end();
        match kind {
            Kind::Spurious => return,
            Kind::Alarm => crate::run::housekeeping::wake(cpu),
            // A timer that fired as its vCPU left: it goes with the vCPU.
            Kind::GuestTimer => gic::deactivate(machine::get().tree.timer.virtual_timer.intid),
            Kind::Kick | Kind::Maintenance | Kind::Device => {}
        }
    }
}

/// Acknowledges one interrupt and ends it, all but the guest's timer, which stays active until
/// the guest ends it.
#[inline]
fn take(cpu: &'static Cpu) -> Kind {
    if let Some(os0) = os0::get() {
        return take_beside(cpu, os0);
    }
    let intid = gic::acknowledge();
    if cpu.trace.wants(trace::INTERRUPT) {
        note(cpu, intid);
    }
    if intid >= gic::SPURIOUS - 3 {
        return Kind::Spurious;
    }
    gic::drop_priority(intid);
    own(cpu, intid)
}

/// As [`take`], apart from the path of one interrupt.
#[cold]
#[inline(never)]
fn take_further(cpu: &'static Cpu) -> Kind {
    take(cpu)
}

/// As [`take`] beside OS-0: what is OS-0's is kept for it.
#[inline(never)]
fn take_beside(cpu: &'static Cpu, os0: &Os0) -> Kind {
    match (os0.take_away)() {
        Forwarded::Own(intid) => own(cpu, intid),
        Forwarded::Spurious => Kind::Spurious,
        Forwarded::Given(_) | Forwarded::Held | Forwarded::Maintenance => {
            (os0.call)();
            Kind::Device
        }
    }
}

/// Ends an interrupt whose priority is dropped.
#[inline]
fn own(cpu: &'static Cpu, intid: u32) -> Kind {
    if intid == gic::kick_sgi() {
        gic::deactivate(intid);
        return Kind::Kick;
    }
    let machine = machine::get();
    if intid == machine.tree.timer.virtual_timer.intid {
        return Kind::GuestTimer;
    }
    if intid == machine.tree.timer.hypervisor_timer.intid {
        timer::clear_alarm();
        gic::deactivate(intid);
        return Kind::Alarm;
    }
    let kind = if intid == machine.tree.gic.maintenance.intid {
        Kind::Maintenance
    } else {
        crate::drivers::interrupt(cpu, intid);
        Kind::Device
    };
    gic::deactivate(intid);
    kind
}

/// Notes the interrupt that is taken, where one is.
#[cold]
fn note(cpu: &Cpu, intid: u32) {
    if intid < gic::SPURIOUS - 3 {
        let what = (trace::INTERRUPT, 0);
        cpu.trace.note(what, None, timer::now(), intid.into());
    }
}

/// The guest's virtual timer fired: into a list register with it, so that the guest's own end of
/// interrupt ends the physical one.
#[inline]
fn guest_timer(guest: &mut Loaded<'_>) {
    let physical = machine::get().tree.timer.virtual_timer.intid;
    let injected = {
        let mut redistributor = guest.vcpu.redistributor.lock();
        let lists = &mut guest.core.lists;
        lists.inject_hw_ppi(
            &mut redistributor,
            &mut guest.lists,
            crate::guest::layout::TIMER_PPI,
            physical,
        )
    };
    if !injected {
        guest.deliver_private();
    }
}
