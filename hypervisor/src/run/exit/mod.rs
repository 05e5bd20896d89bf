//! From an exit to what is done about it.

mod abort;
mod hypercall;
mod interrupt;
pub mod mmio;
mod sysreg;

pub use interrupt::{interrupt, take_interrupts};

use crate::machine::{Kind, due};
use crate::run::entry::{Flow, Loaded};
use crate::run::os0;
use crate::vcpu::{ExitClass, Outcome};
use abi::control::work;
use arch::entry::{self, GuestContext, Syndrome};
use arch::timer::{self, VirtualTimer};
use arch::{guest, list_registers::VirtualInterface};
use core::sync::atomic::Ordering;
use model_trap::{El1State, Exit, Injection, enter_el1, is_aarch32, skip_instruction};

/// An instruction of the guest's own made it leave.
#[inline]
pub fn synchronous(guest: &mut Loaded<'_>) -> Flow {
    if is_aarch32(guest.core.context.pstate) {
        return end_vm(guest, "it runs AArch32, which no VM is shown");
    }
    match model_trap::decode(Syndrome::esr(), Syndrome::addresses) {
        Exit::Hvc { imm } => hypercall::hvc(guest, imm),
        Exit::Sysreg(access) => sysreg::access(guest, access),
        Exit::DataAbort(abort) => abort::data(guest, abort),
        Exit::InstructionAbort(abort) => abort::instruction(guest, abort),
        Exit::Wfx { is_wfe } => wait(guest, is_wfe),
        Exit::Smc { imm } => hypercall::smc(guest, imm),
        Exit::FpSimd => floating_point(guest),
        Exit::Illegal => end_vm(guest, "it returned to an illegal state"),
        Exit::SError { .. } => system_error(guest),
        Exit::Sve | Exit::Sme | Exit::PointerAuth | Exit::Other { .. } => {
            guest.vcpu.stats.count(ExitClass::Other);
            inject(guest, Injection::Undefined)
        }
    }
}

/// A system error while the guest ran: the machine's, and no guest may suffer for another's. The
/// one that was running ends.
#[inline(never)]
pub fn system_error(guest: &mut Loaded<'_>) -> Flow {
    guest.vcpu.stats.count(ExitClass::Other);
    end_vm(guest, "the machine reported a system error while it ran")
}

/// A system error of what the guest did comes before the guest leaves its CPU: the next one must not be
/// ended for it. One that cannot be deferred is taken by entering the guest once more: at EL1 nothing masks it.
pub fn settle_errors(guest: &mut Loaded<'_>) {
    if entry::take_deferred_error() {
        let _ = system_error(guest);
    } else if entry::has_pending_error() {
        // SAFETY: the vCPU is loaded still.
        unsafe { entry::enter(&mut guest.core.context) };
        let _ = system_error(guest);
    }
}

/// Ends the guest's VM for a reason of its own.
#[inline(never)]
pub fn end_vm(guest: &mut Loaded<'_>, reason: &str) -> Flow {
    guest.vm.end(format_args!(
        "{reason} (vcpu {}, pc {:#x})",
        guest.vcpu.index, guest.core.context.pc
    ));
    Flow::Leave(Outcome::Stopped)
}

/// Steps over the instruction that was done for the guest.
#[inline]
pub fn skip(guest: &mut Loaded<'_>) {
    let context = &mut guest.core.context;
    (context.pc, context.pstate) = skip_instruction(context.pc, context.pstate);
}

/// Makes the guest take an exception at EL1.
#[inline(never)]
pub fn inject(guest: &mut Loaded<'_>, exception: Injection) -> Flow {
    // SAFETY: this vCPU is the one that is loaded.
    unsafe { take_exception(&mut guest.core.context, exception) }
    Flow::Resume
}

/// An exception at EL1, of a vCPU or of OS-0.
///
/// # Safety
/// `context` is of what is loaded on the executing CPU.
#[inline]
pub unsafe fn take_exception(context: &mut GuestContext, exception: Injection) {
    let (sctlr, vbar) = guest::loaded_sctlr_vbar();
    let entry = enter_el1(
        El1State {
            pc: context.pc,
            pstate: context.pstate,
            vbar,
            sctlr,
        },
        exception,
    );
    context.pc = entry.pc;
    context.pstate = entry.pstate;
    // SAFETY: as the caller promises.
    unsafe { guest::set_loaded_exception(entry.esr, entry.elr, entry.spsr, entry.far) }
}

/// First use of floating point since the vCPU came to this CPU.
#[inline(never)]
fn floating_point(guest: &mut Loaded<'_>) -> Flow {
    guest.vcpu.stats.count(ExitClass::FloatingPoint);
    if !guest.core.fp_loaded {
        if let Some(os0) = os0::get() {
            (os0.put_fp_aside)();
        }
        // SAFETY: the vCPU is loaded and the flag says that its state is not in the registers.
        unsafe { guest.core.fp.load() }
        guest.core.fp_loaded = true;
    }
    Flow::Resume
}

/// WFI, and WFE where it traps. The guest may go on at any time; it does so at once where an
/// interrupt is there for it, and its CPU goes to others where there are any.
fn wait(guest: &mut Loaded<'_>, is_wfe: bool) -> Flow {
    guest.vcpu.stats.count(ExitClass::WaitForInterrupt);
    skip(guest);
    if is_wfe {
        return Flow::Leave(Outcome::Preempted);
    }
    guest.idle_in_place()
}

impl Loaded<'_> {
    /// Waits for an interrupt with the guest still in the CPU, as long as nobody else wants it: no
    /// world switch then, and the guest's own timer wakes the CPU.
    #[inline(never)]
    fn idle_in_place(&mut self) -> Flow {
        self.vm.tell_drivers();
        // Nobody kicks its own CPU for what was put off meanwhile.
        if self.has_interrupt() || self.vcpu.is_called() {
            return Flow::Resume;
        }
        let began = timer::now();
        self.cpu.stretch.begin(began, Kind::Exit);
        self.vm.terminal.flush();
        self.cpu.sleeps_in_place.store(true, Ordering::SeqCst);
        let flow = self.sleep_until_interrupt();
        self.cpu.sleeps_in_place.store(false, Ordering::Relaxed);
        if self.cpu.slice_end.get() == u64::MAX {
            due::begin_slice(self.cpu, model_scheduler::SHARED_SLICE);
        }
        let waited = timer::now() - began;
        self.slept += waited;
        self.vcpu.stats.add(work::IDLE, waited);
        // The caller counts all since the exit as EL2's work; what was idle is not.
        let back = waited.wrapping_neg();
        self.vcpu.stats.add(work::HYPERVISOR, back);
        flow
    }

    fn sleep_until_interrupt(&mut self) -> Flow {
        loop {
            let wanted = self.cpu.reschedule.load(Ordering::Acquire) || due::is_needed();
            let leaves = wanted
                || crate::vcpu::sched::somebody_waits(self.cpu)
                || crate::vcpu::sched::is_missed_at_home(self.vcpu.entity);
            if leaves {
                return Flow::Leave(Outcome::Waiting);
            }
            crate::run::cpu_loop::sleep(self.cpu);
            if let Flow::Leave(outcome) = interrupt(self) {
                if timer::now() < self.cpu.slice_end.get() {
                    return Flow::Leave(outcome);
                }
                // Nobody else wants the CPU, so the end of the slice means nothing; the guest has
                // a new one when it goes on.
                self.cpu.slice_end.set(u64::MAX);
                due::set_alarm(self.cpu);
            }
            if self.has_interrupt() || self.vcpu.is_called() {
                return Flow::Resume;
            }
        }
    }

    /// Whether a WFI must return at once.
    fn has_interrupt(&mut self) -> bool {
        self.withdraw_timer();
        let deadline = VirtualTimer::loaded_deadline();
        if deadline.is_some_and(|at| at <= timer::now().wrapping_sub(self.vm.time_offset())) {
            return true;
        }
        self.publish();
        let mask = VirtualInterface::loaded_priority_mask();
        let distributor = self.vm.distributor.lock();
        let redistributor = self.vcpu.redistributor.lock();
        self.core
            .lists
            .has_deliverable(&redistributor, Some(&distributor), mask)
    }
}
