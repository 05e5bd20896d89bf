//! What stage 2 refused: memory that is not there yet, devices, and nothing at all.

use crate::cluster::span;
use crate::guest::{Coming, paging};
use crate::memory::{Filled, frames, hooks};
use crate::placement;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{end_vm, inject, mmio};
use crate::vcpu::{ExitClass, Outcome};
use abi::control::{access, share, trace};
use arch::{cpu, guest, timer};
use model_addr::Ipa;
use model_address_space::Access;
use model_coherence::{Access as Asked, intent};
use model_trap::overwrite::{COPY_BEFORE, Overwrite, Store, is_clear_loop, is_copy_loop};
use model_trap::{Abort, DataAbort, Fault, Injection};

/// A load or store.
#[inline]
pub fn data(guest: &mut Loaded<'_>, data: DataAbort) -> Flow {
    let va = data.abort.va.unwrap_or(0);
    let refusal = Injection::DataAbort {
        va,
        write: data.write,
    };
    let ipa = match address(&data.abort) {
        Some(ipa) => ipa,
        // Stage 1 had an address a moment ago: another vCPU has changed the guest's tables, or what
        // is behind them. The instruction runs again and tells.
        None if data.abort.fault == Fault::Permission => return Flow::Resume,
        None => return inject(guest, refusal),
    };
    if guest.vm.space.contains(ipa) {
        let access = if data.is_refused_store() && overwrites(guest, va) {
            Access::Overwrite
        } else {
            Access::of(data.wants_write())
        };
        return memory(guest, ipa, access, refusal);
    }
    if let Some(filled) = guest
        .vm
        .space
        .fill_window(ipa, guest.cpu.node, data.wants_write())
    {
        return region(guest, filled, refusal);
    }
    if data.abort.walk || data.cache_maintenance {
        return mmio::abort(guest, va, data.write);
    }
    match data.access {
        Some(access) => mmio::described(guest, ipa, access, va),
        None => mmio::undescribed(guest, ipa, va, data.write),
    }
}

/// An instruction fetch.
#[inline(never)]
pub fn instruction(guest: &mut Loaded<'_>, abort: Abort) -> Flow {
    let va = abort.va.unwrap_or(guest.core.context.pc);
    let refusal = Injection::InstructionAbort { va };
    if let Some(ipa) = address(&abort).filter(|&ipa| guest.vm.space.contains(ipa)) {
        let access = Access::of(abort.is_table_update());
        return memory(guest, ipa, access, refusal);
    }
    guest.vcpu.stats.count(ExitClass::Abort);
    // A guest whose vectors are not in memory would take this abort for ever, at the same place.
    let (_, vbar) = guest::loaded_sctlr_vbar();
    let pc = guest.core.context.pc;
    if pc.wrapping_sub(vbar) < 0x800 {
        return end_vm(guest, "its exception vectors are not in its memory");
    }
    inject(guest, refusal)
}

/// The guest-physical address: from the hardware, or, for a permission fault, by the guest's own
/// stage 1.
#[inline]
fn address(abort: &Abort) -> Option<Ipa> {
    abort.ipa.or_else(|| cpu::translate_stage1(abort.va?))
}

/// Whether the refused store to `va` begins a loop that overwrites all of its page.
#[inline(never)]
fn overwrites(guest: &Loaded<'_>, va: u64) -> bool {
    let context = &guest.core.context;
    let store = Store {
        va,
        pstate: context.pstate,
        x0: context.register(0),
        x1: context.register(1),
        dczid: cpu::dczid(),
    };
    let start = context.pc.wrapping_sub(4 * COPY_BEFORE as u64);
    match store.candidate() {
        Some(Overwrite::Clear) => mmio::code(guest, context.pc).is_some_and(|c| is_clear_loop(&c)),
        Some(Overwrite::Copy) => mmio::code(guest, start).is_some_and(|c| is_copy_loop(&c)),
        None => false,
    }
}

/// Memory of the guest that has no frame yet, or fewer rights than it needs.
#[inline(never)]
fn memory(guest: &mut Loaded<'_>, ipa: Ipa, access: Access, refusal: Injection) -> Flow {
    guest.vcpu.stats.count(ExitClass::Memory);
    let (gfn, vcpu) = (ipa.frame(), guest.vcpu.index);
    if paging::must_wait(guest.vm, gfn, access.writes(), vcpu) {
        return Flow::Leave(Outcome::Waiting);
    }
    match fill(guest, ipa, access) {
        Filled::Done => Flow::Resume,
        Filled::Away(token) => match paging::bring(guest.vm, gfn, token, 1 << vcpu) {
            Coming::Now => Flow::Resume,
            Coming::Soon => Flow::Leave(Outcome::Waiting),
            Coming::Later => Flow::Leave(Outcome::Preempted),
        },
        Filled::NoMemory => without_frame(guest, ipa, access),
        Filled::Held(_) if guest.vm.space.spans() => elsewhere(guest, ipa, access, refusal),
        Filled::Refused | Filled::Held(_) => inject(guest, refusal),
    }
}

/// Memory of a VM that spans hosts, of which another host has what the access needs.
#[cold]
fn elsewhere(guest: &mut Loaded<'_>, ipa: Ipa, access: Access, refusal: Injection) -> Flow {
    let (vcpu, pc) = (guest.vcpu.index, guest.core.context.pc);
    let mut writes = access.writes();
    // A page that is being cleared is asked for with its bytes: until it is here, this vCPU may turn to something else, and the
    // loop that clears go on elsewhere.
    if let Injection::DataAbort { .. } = refusal
        && let Some([word]) = mmio::code(guest, pc)
    {
        writes = intent::access(word, writes) == Asked::Write;
    }
    let detail = access::AWAY + u8::from(writes);
    guest.note(trace::FAULT, detail, timer::now(), ipa.0);
    if span::fault(vcpu, ipa.frame(), writes, pc) {
        return Flow::Resume;
    }
    Flow::Leave(Outcome::Waiting)
}

/// A region that the guest shares with others: shown to it, or not allowed so.
#[inline(never)]
fn region(guest: &mut Loaded<'_>, filled: Filled, refusal: Injection) -> Flow {
    guest.vcpu.stats.count(ExitClass::Memory);
    match filled {
        Filled::Done => Flow::Resume,
        Filled::NoMemory if frames::may_be_reserved() => Flow::Resume,
        // No table: as for the guest's own memory, somebody may give some back.
        Filled::NoMemory if crate::memory::shortage::may_wait_for_frames() => {
            paging::stall(guest.vm, 1 << guest.vcpu.index);
            Flow::Leave(Outcome::Waiting)
        }
        Filled::NoMemory => end_vm(guest, "the machine has no memory left for it"),
        Filled::Refused | Filled::Away(_) | Filled::Held(_) => inject(guest, refusal),
    }
}

/// Fills, and notes what that was where faults or shares are traced.
fn fill(guest: &Loaded<'_>, ipa: Ipa, access: Access) -> Filled {
    if !guest.cpu.trace.is_on() {
        let node = hooks::node_for(ipa.frame(), guest.cpu.node);
        return guest.vm.space.fill(ipa, node, access);
    }
    fill_traced(guest, ipa, access)
}

#[cold]
fn fill_traced(guest: &Loaded<'_>, ipa: Ipa, access: Access) -> Filled {
    let since = timer::now();
    let (_, before) = guest.vm.space.counts();
    let filled = guest.vm.space.fill(ipa, guest.cpu.node, access);
    // Another vCPU's fault of the same moment counts here, too.
    let (_, after) = guest.vm.space.counts();
    let detail = match access {
        Access::Read => access::READ,
        Access::Write => access::WRITE,
        Access::Overwrite => access::OVERWRITE,
    };
    guest.note(trace::FAULT, detail, since, ipa.0);
    if after.breaks != before.breaks {
        guest.note(trace::SHARE, share::BROKEN, since, ipa.0);
    }
    if after.claims != before.claims {
        guest.note(trace::SHARE, share::CLAIMED, since, ipa.0);
    }
    filled
}

/// No frame is left for a fault: it waits for those who owe some.
#[cold]
fn without_frame(guest: &mut Loaded<'_>, ipa: Ipa, access: Access) -> Flow {
    let (vm, node) = (guest.vm, guest.cpu.node);
    if frames::may_be_reserved() {
        return Flow::Resume;
    }
    if paging::may_use_emergency(vm) && vm.space.fill_urgently(ipa, node, access) == Filled::Done {
        return Flow::Resume;
    }
    if placement::give_a_copy_back() {
        return Flow::Resume;
    }
    if crate::memory::shortage::may_wait_for_frames() {
        paging::stall(vm, 1 << guest.vcpu.index);
        return Flow::Leave(Outcome::Waiting);
    }
    end_vm(guest, "the machine has no memory left for it")
}
