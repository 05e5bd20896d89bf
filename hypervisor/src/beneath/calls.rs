//! OS-0's calls: those to the firmware, by the table of `model_firmware_calls`, and those to EL2.

use crate::beneath::attach::{self, COUNTS, IS_ON};
use crate::beneath::{Home, Os0Cpu, by_affinity, cpus, facts, get, loans, restart, this, upgrade};
use crate::memory::hooks;
use abi::os0::{
    ATTACH, CLOSE, DETACH, DYING, FACTS, FRAMES, GIVE_IMAGE, HEAR, ID_REGISTERS, LEND, LEND_PAGES,
    LOANED, LOG, OPEN, REPAY, Refusal, SERVE, SERVED, SHARE, STAGE, STATUS, State, TELL, UNSTAGE,
    UPGRADE, UPLINK,
};
use arch::{boot::secondary_entry, entry::GuestContext, psci};
use core::sync::atomic::Ordering;
use model_addr::{Ipa, Pa};
use model_firmware_calls::{INVALID_PARAMETERS, NOT_SUPPORTED, Verdict, decide};
use model_loans::Borrower;
use model_vpsci::{Call, Capabilities, Reply};

/// PSCI's DENIED: while VMs share OS-0's CPUs, all stay on.
const DENIED: u64 = (-3_i64).cast_unsigned();

/// X0 to X17: what SMCCC calls arguments and results.
const REGISTERS: usize = 18;

/// SMC.
pub fn smc(context: &mut GuestContext, imm: u16) {
    let [function, first, second, third, ..] = context.registers;
    let arguments = [first, second, third];
    if imm != 0 {
        return answer(context, NOT_SUPPORTED);
    }
    match decide(function, arguments, get().power_states) {
        Verdict::Forward => forward(context, |_| {}),
        Verdict::CpuOff | Verdict::Suspend { .. } if loans::pin_cpus() => answer(context, DENIED),
        // Its turn is over with this call, and does not come back.
        Verdict::End if restart::begin(this()) => {}
        Verdict::End => forward(context, |_| {}),
        Verdict::Answer(value) => answer(context, value),
        Verdict::Own => own(context),
        Verdict::CpuOn {
            target,
            entry,
            context: argument,
        } => turn_on(context, target, entry, argument),
        Verdict::CpuOff => {
            // Whoever starts it next finds it off; the firmware has the last word.
            attach::go_off(this());
            mark_off(this());
            forward(context, |_| {});
            mark_on(this());
            attach::stay_on(this());
        }
        Verdict::Suspend {
            entry,
            context: argument,
            slot,
        } => suspend(context, entry, argument, slot.into()),
    }
}

/// HVC: for EL2 alone.
pub fn hvc(context: &mut GuestContext, imm: u16) {
    let arguments = [context.registers[1], context.registers[2], 0];
    match decide(context.registers[0], arguments, get().power_states) {
        Verdict::Own if imm == 0 => own(context),
        _ => answer(context, NOT_SUPPORTED),
    }
}

fn answer(context: &mut GuestContext, value: u64) {
    context.registers[0] = value;
}

/// Makes the call, changed by `change`, and gives OS-0 what the firmware answers.
fn forward(context: &mut GuestContext, change: impl FnOnce(&mut [u64; REGISTERS])) {
    let mut registers = [0; REGISTERS];
    registers.copy_from_slice(&context.registers[..REGISTERS]);
    change(&mut registers);
    psci::forward(&mut registers);
    context.registers[..REGISTERS].copy_from_slice(&registers);
}

/// As [`forward`], but arguments `slot` and the next are where `target` starts at EL2.
fn forward_start(context: &mut GuestContext, target: &Os0Cpu, slot: usize) {
    let mine = [context.registers[slot], context.registers[slot + 1]];
    let record = core::ptr::from_ref(&target.record).expose_provenance() as u64;
    forward(context, |registers| {
        registers[slot] = secondary_entry().0;
        registers[slot + 1] = record;
    });
    // SMCCC: what a call does not return in, it keeps.
    context.registers[slot..slot + 2].copy_from_slice(&mine);
}

/// CPU_ON. OS-0's own rules come first, then the firmware's.
fn turn_on(context: &mut GuestContext, target: u64, entry: u64, argument: u64) {
    let Some(target) = by_affinity(target) else {
        return answer(context, INVALID_PARAMETERS);
    };
    let is_shared = loans::pin_cpus();
    if is_shared && !restart::is_off(target) {
        return answer(context, DENIED);
    }
    {
        let mut power = target.power.lock();
        if let Err(refusal) = power.turn_on(Ipa(entry), may_start_at(entry), argument) {
            if let Reply::X0(value) = refusal.reply() {
                answer(context, value);
            }
            return;
        }
        COUNTS.fetch_add(IS_ON, Ordering::Release);
    }
    if is_shared {
        restart::bring_up(target);
        return answer(context, 0);
    }
    // The call with 32-bit arguments cannot carry EL2's addresses everywhere.
    context.registers[0] |= 1 << 30;
    forward_start(context, target, 2);
    if context.registers[0] != 0 {
        mark_off(target);
    }
}

/// A call after which this CPU may come back through `arrive`.
fn suspend(context: &mut GuestContext, entry: u64, argument: u64, slot: usize) {
    if !may_start_at(entry) {
        return answer(context, INVALID_PARAMETERS);
    }
    let me = this();
    {
        let mut power = me.power.lock();
        power.entry = Ipa(entry);
        power.context = argument;
    }
    context.registers[0] |= 1 << 30;
    forward_start(context, me, slot);
}

fn may_start_at(entry: u64) -> bool {
    !get().home.hidden.contains(Pa(entry))
}

/// It is about to end, or did not start.
pub fn mark_off(cpu: &Os0Cpu) {
    cpu.power.lock().state.turn_off();
    COUNTS.fetch_sub(IS_ON, Ordering::Release);
}

/// The firmware has refused to end the CPU.
fn mark_on(cpu: &Os0Cpu) {
    let mut power = cpu.power.lock();
    if power.state.turn_on(Ipa(0), true).is_ok() {
        power.state.arrive();
        COUNTS.fetch_add(IS_ON, Ordering::Release);
    }
}

/// A call of the range that is Underpin's.
fn own(context: &mut GuestContext) {
    let [function, first, ..] = context.registers;
    match function as u32 {
        STATUS => {
            let me = this();
            let state = if me.attached.get() {
                State::Attached
            } else {
                State::Detached
            };
            let entries: u64 = cpus().map(|cpu| cpu.entries.load(Ordering::Relaxed)).sum();
            let beneath = attach::beneath();
            let Home {
                hidden, upgrades, ..
            } = get().home;
            let results = [0, state as u64, entries, hidden.size, beneath, upgrades];
            context.registers[..6].copy_from_slice(&results);
        }
        ATTACH => context.registers[0] = attach::attach(context, first),
        DETACH => context.registers[0] = attach::detach(context, first == 1),
        _ => other(context),
    }
}

/// Any but that. Apart, so that what these calls need of the stack costs a switch nothing.
#[inline(never)]
fn other(context: &mut GuestContext) {
    let [function, first, second, third, fourth, ..] = context.registers;
    let done = match function as u32 {
        FACTS | ID_REGISTERS | LOG => {
            let results = facts::of(function as u32, first, context);
            return context.registers[..REGISTERS].copy_from_slice(&results);
        }
        GIVE_IMAGE => upgrade::give(first, second, third),
        UPGRADE => Ok(upgrade::upgrade(context, first)),
        LEND => loans::lend(first, second),
        LEND_PAGES => loans::lend_pages(&context.registers),
        REPAY => loans::give_back(Borrower::Vms, first),
        OPEN => loans::open((first, second), (third, fourth)),
        SERVED => loans::served(),
        STAGE => restart::stage(first, second),
        UNSTAGE => loans::give_back(Borrower::Successor, first),
        LOANED => match restart::loaned(first) {
            Some((run, is_staged)) => {
                let results = [0, run.start.0, run.size, u64::from(is_staged)];
                return context.registers[..4].copy_from_slice(&results);
            }
            None => Err(Refusal::NotLent),
        },
        SERVE => loans::serve(first, second),
        UPLINK => loans::open_uplink((first, second), None),
        FRAMES => loans::frames(),
        DYING => Ok(restart::say_it_dies()),
        CLOSE => loans::close(),
        SHARE => loans::share(this(), first == 1),
        TELL => loans::carry(first, second, true),
        HEAR => loans::carry(first, second, false),
        function => match hooks::fail_next(get().tree, function, first, second) {
            Some(answer) => Ok(answer),
            None => return firmware(context),
        },
    };
    answer(context, done.unwrap_or_else(Refusal::code));
}

/// A call of the range that EL2 answers as a firmware does.
fn firmware(context: &mut GuestContext) {
    let [function, first, second, third, ..] = context.registers;
    let call = model_vpsci::decode(function, [first, second, third], Capabilities::default());
    match call {
        Call::Answered(Reply::X0(value)) => answer(context, value),
        Call::Answered(Reply::X0To3(values)) => context.registers[..4].copy_from_slice(&values),
        _ => answer(context, NOT_SUPPORTED),
    }
}
