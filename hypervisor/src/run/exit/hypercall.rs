//! HVC and SMC: PSCI, SMCCC and what hangs on them.

use crate::guest::{End, paging};
use crate::machine::{entropy, stretch};
use crate::memory::hooks;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{inject, skip};
use crate::vcpu::{Asked, ExitClass, Outcome, PowerState, sched};
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
            let is_memory = guest.vm.space.contains(entry);
            let turn_on = |power: &mut PowerState| {
                let on = power.turn_on(entry, is_memory, context);
                on.map(|()| Reply::SUCCESS)
            };
            with_power(guest, target, (Kind::CpuOn, entry.0, context), turn_on)
        }
        Call::CpuOff => Flow::Leave(Outcome::Off),
        Call::Standby => {
            guest.core.context.set_register(0, 0);
            guest.idle_in_place()
        }
        Call::AffinityInfo { target } => {
            let info = |power: &mut PowerState| Ok(power.state.affinity_info());
            with_power(guest, target, (Kind::AffinityInfo, 0, 0), info)
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

/// CPU_ON and AFFINITY_INFO of the vCPU of that affinity, by its power state; or what its host answers, where that is another.
fn with_power(
    guest: &mut Loaded<'_>,
    affinity: u32,
    (kind, at, value): (Kind, u64, u64),
    act: impl FnOnce(&mut PowerState) -> Result<Reply, Refusal>,
) -> Flow {
    let vm = guest.vm;
    let vcpu = vcpu_at(affinity, vm.vcpus.len()).and_then(|n| vm.vcpus.get(n));
    let Some(vcpu) = vcpu else {
        return reply(guest, Refusal::InvalidParameters.reply());
    };
    // It leaves this host with that lock held.
    let mut power = vcpu.power.lock();
    if vm.is_elsewhere(vcpu.index.into()) {
        drop(power);
        return guest.ask((kind, vcpu.index as u8, at, value), Asked::Call);
    }
    let answer = act(&mut power);
    drop(power);
    if kind == Kind::CpuOn && answer.is_ok() {
        sched::wake(vcpu.entity);
    }
    reply(guest, answer.unwrap_or_else(Refusal::reply))
}
