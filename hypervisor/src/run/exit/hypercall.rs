//! HVC and SMC: PSCI, SMCCC and what hangs on them.

use crate::guest::{End, paging};
use crate::machine::{entropy, stretch};
use crate::memory::hooks;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{inject, skip};
use crate::vcpu::{Asked, ExitClass, Outcome};
use abi::{control::count, hypercall::PAGES_AT_ONCE};
use model_addr::{FRAME_SIZE, Ipa};
use model_span::Kind;
use model_trap::Injection;
use model_vgic::vcpu_at;
use model_vpsci::{Call, Capabilities, Random, Refusal, Reply};

/// What the standard calls offer here. Guests learn from `CSV2`, which they are shown, whether their
/// CPU needs a workaround.
const OFFERED: Capabilities = Capabilities {
    // See `random`.
    entropy: false,
    stolen_time: true,
};

/// HVC: the return address is behind it already.
#[inline]
pub fn hvc(guest: &mut Loaded<'_>, imm: u16) -> Flow {
    guest.vcpu.stats.count(ExitClass::Hypercall);
    if imm != 0 {
        return inject_undefined_at(guest, 4);
    }
    call(guest)
}

/// SMC: the return address is the instruction's own.
#[inline(never)]
pub fn smc(guest: &mut Loaded<'_>, imm: u16) -> Flow {
    guest.vcpu.stats.count(ExitClass::Smc);
    if imm != 0 {
        return inject(guest, Injection::Undefined);
    }
    skip(guest);
    call(guest)
}

/// An HVC that means nothing is an undefined instruction, at its own address.
fn inject_undefined_at(guest: &mut Loaded<'_>, back: u64) -> Flow {
    let context = &mut guest.core.context;
    context.pc = context.pc.wrapping_sub(back);
    inject(guest, Injection::Undefined)
}

#[inline]
fn call(guest: &mut Loaded<'_>) -> Flow {
    let [function, first, second, third, ..] = guest.core.context.registers;
    match model_vpsci::decode(function, [first, second, third], OFFERED) {
        Call::Answered(answer) => reply(guest, answer),
        call => act(guest, call),
    }
}

#[inline]
fn reply(guest: &mut Loaded<'_>, reply: Reply) -> Flow {
    let registers = &mut guest.core.context.registers;
    match reply {
        Reply::X0(value) => registers[0] = value,
        Reply::X0To3(values) => registers[..4].copy_from_slice(&values),
    }
    Flow::Resume
}

#[inline(never)]
fn act(guest: &mut Loaded<'_>, call: Call) -> Flow {
    match call {
        Call::Answered(answer) => reply(guest, answer),
        Call::CpuOn {
            target,
            entry,
            context,
        } => {
            if let Some(n) = elsewhere(guest, target) {
                return guest.ask((Kind::CpuOn, n, entry.0, context), Asked::Call);
            }
            let answer = turn_on(guest, target, entry, context);
            reply(guest, answer)
        }
        Call::CpuOff => Flow::Leave(Outcome::Off),
        Call::Standby => {
            guest.core.context.set_register(0, 0);
            guest.idle_in_place()
        }
        Call::AffinityInfo { target } => {
            if let Some(n) = elsewhere(guest, target) {
                return guest.ask((Kind::AffinityInfo, n, 0, 0), Asked::Call);
            }
            let vcpu = vcpu_at(target, guest.vm.vcpus.len()).and_then(|n| guest.vm.vcpus.get(n));
            let answer = vcpu.map_or(Refusal::InvalidParameters.reply(), |vcpu| {
                vcpu.power.lock().state.affinity_info()
            });
            reply(guest, answer)
        }
        Call::SystemOff => {
            guest.vm.finish(End::PowerOff);
            Flow::Leave(Outcome::Stopped)
        }
        Call::SystemReset => {
            guest.vm.finish(End::Reset);
            Flow::Leave(Outcome::Stopped)
        }
        Call::StolenTime if guest.vm.span.is_some() => reply(guest, Refusal::NotSupported.reply()),
        Call::StolenTime => {
            let record = guest.begin_stolen_time();
            reply(guest, Reply::X0(record.0))
        }
        Call::NeverShare {
            first,
            pages,
            never,
        } => never_share(guest, first, pages, never),
        Call::Random(_) | Call::Unknown => random(guest),
    }
}

/// A call of the generator, if there are random bits, or an unknown one. Other calls do not pay for the question.
#[cold]
fn random(guest: &mut Loaded<'_>) -> Flow {
    let [function, first, second, third, ..] = guest.core.context.registers;
    let offered = Capabilities {
        entropy: entropy::is_seeded(),
        ..OFFERED
    };
    let answer = match model_vpsci::decode(function, [first, second, third], offered) {
        Call::Answered(answer) => answer,
        Call::Random(random) => {
            entropy::words().map_or(Random::NO_ENTROPY, |words| random.reply(words))
        }
        _ => hooks::set_aside(function, guest.cpu.node, first).map_or_else(
            || {
                guest.vm.count(count::ODDITIES + 2, 1);
                Refusal::NotSupported.reply()
            },
            Reply::X0,
        ),
    };
    reply(guest, answer)
}

/// Marks pages of the guest; see [`abi::hypercall::NEVER_SHARE`].
#[cold]
fn never_share(guest: &mut Loaded<'_>, first: Ipa, pages: u64, never: bool) -> Flow {
    let (vm, node) = (guest.vm, guest.cpu.node);
    if !vm.space.range().contains_run(first, pages * FRAME_SIZE) {
        return reply(guest, Refusal::InvalidParameters.reply());
    }
    stretch::begin_access();
    let mut done = 0;
    while done < pages.min(PAGES_AT_ONCE) {
        if !vm
            .space
            .set_never_share(first.frame().add(done), never, node)
        {
            // What is on a disk, or waits for a frame, is asked for again.
            paging::bring_wanted(vm);
            break;
        }
        done += 1;
        if stretch::is_long() {
            break;
        }
    }
    reply(guest, Reply::X0(done))
}

/// The vCPU of that affinity, where another host has it.
fn elsewhere(guest: &Loaded<'_>, affinity: u32) -> Option<u8> {
    let vcpu = vcpu_at(affinity, guest.vm.vcpus.len());
    let vcpu = vcpu.filter(|n| guest.vm.is_elsewhere(*n))?;
    Some(vcpu as u8)
}

/// CPU_ON.
fn turn_on(guest: &mut Loaded<'_>, target: u32, entry: Ipa, context: u64) -> Reply {
    let vcpu = vcpu_at(target, guest.vm.vcpus.len()).and_then(|n| guest.vm.vcpus.get(n));
    let Some(vcpu) = vcpu else {
        return Refusal::InvalidParameters.reply();
    };
    let is_memory = guest.vm.space.contains(entry);
    match vcpu.turn_on(entry, is_memory, context) {
        Ok(()) => Reply::SUCCESS,
        Err(refusal) => refusal.reply(),
    }
}
