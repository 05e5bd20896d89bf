//! Trapped system registers: SGIs, CPU features, and what guests are not given.

use crate::cluster::span;
use crate::machine;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{inject, skip};
use crate::vcpu::{ExitClass, Outcome, attention};
use abi::control::count;
use arch::timer;
use model_trap::{Injection, SysregAccess, SysregId};
use model_vgic::{Sgi, SgiRegister};
use model_vtimer::Register;

const ICC_SGI1R: SysregId = SysregId::new(3, 0, 12, 11, 5);
const ICC_ASGI1R: SysregId = SysregId::new(3, 0, 12, 11, 6);
const ICC_SGI0R: SysregId = SysregId::new(3, 0, 12, 11, 7);
const ICC_SRE: SysregId = SysregId::new(3, 0, 12, 12, 5);
const ACTLR_EL1: SysregId = SysregId::new(3, 0, 1, 0, 1);
const OSLSR_EL1: SysregId = SysregId::new(2, 0, 1, 1, 4);
const CNTP_TVAL: SysregId = SysregId::new(3, 3, 14, 2, 0);
const CNTP_CTL: SysregId = SysregId::new(3, 3, 14, 2, 1);
const CNTP_CVAL: SysregId = SysregId::new(3, 3, 14, 2, 2);

/// `ICC_SRE_EL1`: system registers, no bypass.
const SYSTEM_REGISTERS: u64 = 7;

/// `OSLSR_EL1`: an OS lock is implemented and open.
const OS_LOCK_OPEN: u64 = 1 << 3;

/// MRS, MSR or a system instruction.
#[inline]
pub fn access(guest: &mut Loaded<'_>, access: SysregAccess) -> Flow {
    let SysregAccess {
        register,
        rt,
        is_read,
    } = access;
    if register.is_id() {
        guest.vcpu.stats.count(ExitClass::IdRegister);
        if !is_read {
            return undefined(guest, register);
        }
        let ids = match &guest.vm.span {
            Some(span) => span.ids.get(),
            None => machine::guest_ids(),
        };
        let value = ids.map_or(0, |ids| ids.read(register.crm(), register.op2()));
        guest.core.context.set_register(rt, value);
        skip(guest);
        return Flow::Resume;
    }
    let value = guest.core.context.register(rt);
    match (register, is_read) {
        (ICC_SGI1R, false) => send(guest, SgiRegister::Sgi1r, value),
        (ICC_SGI0R, false) => send(guest, SgiRegister::Sgi0r, value),
        (ICC_ASGI1R, false) => send(guest, SgiRegister::Asgi1r, value),
        _ => return others(guest, access),
    }
    skip(guest);
    Flow::Resume
}

/// Sends an SGI: straight into the list registers if it is to the sender itself.
#[inline(never)]
fn send(guest: &mut Loaded<'_>, register: SgiRegister, value: u64) {
    guest.vcpu.stats.count(ExitClass::Sgi);
    let own = usize::from(guest.vcpu.index);
    let sgi = Sgi::decode(register, value, own, guest.vm.vcpus.len());
    let mut elsewhere = 0;
    for index in sgi.targets.iter() {
        let Some(vcpu) = guest.vm.vcpus.get(index) else {
            continue;
        };
        let mut redistributor = vcpu.redistributor.lock();
        if !redistributor.receive_sgi(sgi.intid, sgi.group1_too) {
            // Those of other hosts' vCPUs are delivered there. They come and go with the lock held.
            elsewhere |= u64::from(guest.vm.is_elsewhere(index)) << index;
            continue;
        }
        drop(redistributor);
        if index == own {
            guest.deliver_private();
        } else {
            vcpu.call(attention::DELIVER);
        }
    }
    if elsewhere != 0 {
        guest.send_sgi_elsewhere(&sgi, elsewhere);
    }
}

/// The physical timer; registers that read as zero and ignore writes, so that guests which touch
/// them without asking live on; everything else is undefined. The latter two are counted.
#[inline(never)]
fn others(
    guest: &mut Loaded<'_>,
    SysregAccess {
        register,
        rt,
        is_read,
    }: SysregAccess,
) -> Flow {
    guest.vcpu.stats.count(ExitClass::SystemRegister);
    let value = match register {
        CNTP_CTL => return physical_timer(guest, Register::Control, rt, is_read),
        CNTP_CVAL => return physical_timer(guest, Register::Compare, rt, is_read),
        CNTP_TVAL => return physical_timer(guest, Register::Value, rt, is_read),
        OSLSR_EL1 => OS_LOCK_OPEN,
        ICC_SRE => SYSTEM_REGISTERS,
        ACTLR_EL1 => 0,
        // TLBI, which traps where a VM spans hosts.
        register if register.op0() == 1 && guest.vm.space.spans() => {
            let goes_on = span::tlbi(guest.vcpu.index);
            skip(guest);
            if !goes_on {
                return Flow::Leave(Outcome::Waiting);
            }
            return Flow::Resume;
        }
        // Debug: guests see no breakpoint that works (op0 = 2).
        register if register.op0() == 2 => 0,
        register => return undefined(guest, register),
    };
    if register.op0() != 2 && register != ICC_SRE {
        guest.vm.count(count::ODDITIES, 1);
    }
    if is_read {
        guest.core.context.set_register(rt, value);
    }
    skip(guest);
    Flow::Resume
}

/// The physical timer counts as `CNTPCT_EL0` does, which guests read without a trap.
fn physical_timer(guest: &mut Loaded<'_>, register: Register, rt: u8, is_read: bool) -> Flow {
    let now = timer::now();
    if is_read {
        let value = guest.core.physical_timer.read(register, now);
        guest.core.context.set_register(rt, value);
    } else {
        let value = guest.core.context.register(rt);
        guest.core.physical_timer.write(register, value, now);
        guest.drive_physical_timer();
    }
    skip(guest);
    Flow::Resume
}

fn undefined(guest: &mut Loaded<'_>, register: SysregId) -> Flow {
    guest.vm.count(count::ODDITIES, 1);
    log::debug!("{}: {register} is undefined for guests", guest.vm.name());
    inject(guest, Injection::Undefined)
}
