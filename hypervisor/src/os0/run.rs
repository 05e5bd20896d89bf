//! A CPU under OS-0: how it arrives there, and what brings it back.

use super::calls;
use crate::epitaph::give_up;
use core::sync::atomic::Ordering;
use machine_aarch64::entry::{self, GuestContext, Leave, Syndrome};
use machine_aarch64::{features, native};
use model_native_el1::Native;
use model_trap::{Exit, decode};

/// EL1h, all interrupts masked (Linux: `booting.rst`).
const PSTATE: u64 = 0x3c5;

/// An ID register of the executing CPU, op0 3, op1 0, CRn 0.
pub fn id_register(crm: u8, op2: u8) -> u64 {
    let index = (usize::from(crm).wrapping_sub(1)) * 8 + usize::from(op2);
    features::id_registers().get(index).copied().unwrap_or(0)
}

/// A CPU has come to EL2: the first one at boot, others when OS-0 has started them or when they
/// wake without their state. It goes on to where OS-0 wants it.
pub fn arrive() -> ! {
    let me = super::this();
    let os0 = super::get();
    let native = Native::of(id_register);
    // SAFETY: EL2 runs with E2H clear (boot.S); what runs above is OS-0, whose machine it is.
    unsafe {
        native::open(&native, os0.stage2.0, os0.stage2.1);
        native::reset_el1();
    }
    let mut context = GuestContext {
        pstate: PSTATE,
        ..GuestContext::default()
    };
    {
        let mut power = me.power.lock();
        power.state.arrive();
        context.pc = power.entry.0;
        context.registers[0] = power.context;
    }
    me.entries.store(0, Ordering::Relaxed);
    run(me, &mut context)
}

fn run(me: &super::Os0Cpu, context: &mut GuestContext) -> ! {
    loop {
        // SAFETY: the CPU is as `native::open` left it, and OS-0 is the machine's owner.
        let leave = unsafe { entry::enter(context) };
        me.entries.fetch_add(1, Ordering::Relaxed);
        let syndrome = Syndrome::read();
        let exit = decode(syndrome.esr, syndrome.far, syndrome.hpfar);
        match (leave, exit) {
            (Leave::Synchronous, Exit::Smc { imm }) => {
                // The return address is the instruction's own.
                context.pc = context.pc.wrapping_add(4);
                calls::smc(context, imm);
            }
            (Leave::Synchronous, Exit::Hvc { imm }) => calls::hvc(context, imm),
            // Nothing else is routed here: EL2 has set the CPU up wrongly.
            _ => give_up(format_args!(
                "OS-0 left by {leave:?}, {exit:?}, esr {:#x}, pc {:#x}",
                syndrome.esr, context.pc
            )),
        }
    }
}
