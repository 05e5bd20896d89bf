//! A CPU under OS-0: how it arrives there, and what brings it back.

use crate::beneath::{attach, calls, filter, interrupts, stage2, world};
use crate::machine::give_up;
use crate::run::exit::take_exception;
use crate::start;
use arch::entry::{self, GuestContext, Leave, Syndrome};
use arch::gic::{self, Redistributor, SgiRegister};
use arch::{native, tlb};
use core::sync::atomic::Ordering;
use model_native_el1::Native;
use model_trap::{
    Abort, DataAbort, Exit, Fault, Injection, SysregAccess, SysregId, decode, skip_instruction,
};
use model_vpsci::Power;

const ICC_SGI1R: SysregId = SysregId::new(3, 0, 12, 11, 5);
const ICC_ASGI1R: SysregId = SysregId::new(3, 0, 12, 11, 6);
const ICC_SGI0R: SysregId = SysregId::new(3, 0, 12, 11, 7);

/// EL1h, all interrupts masked (Linux: `booting.rst`).
pub const PSTATE: u64 = 0x3c5;

/// A CPU has come to EL2: the first one at boot, others when OS-0 has started them or when they
/// wake without their state; it goes on to where OS-0 wants it. Or it comes from the image before this
/// one, and OS-0 goes on as it is.
pub fn arrive() -> ! {
    let me = crate::beneath::this();
    let os0 = crate::beneath::get();
    let native = Native::of(crate::machine::id_register);
    let goes_on = me.power.lock().state == Power::On;
    // SAFETY: EL2 runs with E2H clear (boot.S); what runs above is OS-0, whose machine it is.
    unsafe { native::open(&native, os0.stage2.0, os0.stage2.1) }
    if !goes_on {
        // SAFETY: nothing ran there since the CPU was started.
        unsafe { native::reset_el1() }
    }
    tlb::flush_el1_here();
    me.native.set(native);
    start::note_features();
    // SAFETY: the device tree says where redistributors are; they were mapped.
    me.redistributor
        .set(unsafe { Redistributor::find_own(&os0.tree.gic.redistributors) });
    if let Some(redistributor) = me.redistributor.get() {
        // It is the same each time that the CPU arrives.
        let _ = me.cpu.redistributor.set(redistributor);
    }
    me.cpu.online.store(true, Ordering::Relaxed);
    attach::come_up(me);
    if !goes_on {
        let mut world = me.world.lock();
        let mut power = me.power.lock();
        power.state.arrive();
        world.context = GuestContext {
            pstate: PSTATE,
            pc: power.entry.0,
            ..GuestContext::default()
        };
        world.context.registers[0] = power.context;
    }
    me.entries.store(0, Ordering::Relaxed);
    loop {
        alone(me);
        world::share(me);
    }
}

/// OS-0 has the CPU for itself, attached or not, until it shares it.
fn alone(me: &crate::beneath::Os0Cpu) {
    let native = me.native.get();
    // The CPU may be turned off in here and never come back: no lock is held.
    let mut context = {
        let mut world = me.world.lock();
        world.load(me, &native);
        world.context
    };
    while !me.shares.get() {
        step(me, &mut context);
    }
    let mut world = me.world.lock();
    world.context = context;
    world.unload(me, &native);
}

/// What OS-0's vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Go,
    /// It waits for an interrupt.
    Wait,
    /// Its slice is over.
    Leave,
}

/// OS-0, which is in the CPU, to its next exit and what is done about that.
#[inline]
pub fn step(me: &crate::beneath::Os0Cpu, context: &mut GuestContext) -> Next {
    // SAFETY: the CPU is as `native::open` left it, and OS-0 is the machine's owner.
    let leave = unsafe { entry::enter(context) };
    me.entries.fetch_add(1, Ordering::Relaxed);
    if matches!(leave, Leave::Interrupt | Leave::FastInterrupt) {
        return interrupts::forward(me);
    }
    let syndrome = Syndrome::read();
    let exit = decode(syndrome.esr, || [syndrome.far, syndrome.hpfar]);
    match (leave, exit) {
        (Leave::Synchronous, Exit::Smc { imm }) => {
            // The return address is the instruction's own.
            context.pc = context.pc.wrapping_add(4);
            calls::smc(context, imm);
        }
        (Leave::Synchronous, Exit::Hvc { imm }) => calls::hvc(context, imm),
        (Leave::Synchronous, Exit::Wfx { .. }) if me.shares.get() => {
            (context.pc, context.pstate) = skip_instruction(context.pc, context.pstate);
            return Next::Wait;
        }
        (Leave::Synchronous, Exit::Sysreg(access)) if me.attached.get() => {
            sysreg(context, access);
        }
        (Leave::Synchronous, Exit::DataAbort(abort))
            if me.attached.get() && filter::access(context, &abort) => {}
        (
            Leave::Synchronous,
            Exit::DataAbort(DataAbort { abort, .. }) | Exit::InstructionAbort(abort),
        ) if me.attached.get() && has_met_change(&abort) => {}
        (Leave::Synchronous, Exit::DataAbort(abort)) if me.attached.get() => {
            let va = abort.abort.va.unwrap_or(0);
            let write = abort.write;
            inject(context, Injection::DataAbort { va, write });
        }
        (Leave::Synchronous, Exit::InstructionAbort(abort)) if me.attached.get() => {
            let va = abort.va.unwrap_or(0);
            inject(context, Injection::InstructionAbort { va });
        }
        // Nothing else is routed here: EL2 has set the CPU up wrongly.
        _ => give_up(format_args!(
            "OS-0 left by {leave:?}, {exit:?}, esr {:#x}, pc {:#x}",
            syndrome.esr, context.pc
        )),
    }
    Next::Go
}

/// Whether a fault met tables that were being changed.
fn has_met_change(abort: &Abort) -> bool {
    abort.fault == Fault::Translation && abort.ipa.is_some_and(stage2::is_mapped)
}

/// With interrupts at EL2, the registers that send SGIs trap; OS-0's go where it sends them.
fn sysreg(context: &mut GuestContext, access: SysregAccess) {
    let register = match access.register {
        ICC_SGI1R => SgiRegister::Sgi1r,
        ICC_ASGI1R => SgiRegister::Asgi1r,
        ICC_SGI0R => SgiRegister::Sgi0r,
        _ => return inject(context, Injection::Undefined),
    };
    if access.is_read {
        return inject(context, Injection::Undefined);
    }
    gic::send_for(register, context.register(access.rt));
    (context.pc, context.pstate) = skip_instruction(context.pc, context.pstate);
}

/// OS-0 takes an exception: what it touched is EL2's, or is nothing.
fn inject(context: &mut GuestContext, exception: Injection) {
    // SAFETY: OS-0 is what is loaded.
    unsafe { take_exception(context, exception) }
}
