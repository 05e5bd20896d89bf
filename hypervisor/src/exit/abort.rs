//! What stage 2 refused: memory that is not there yet, devices, and nothing at all.

use super::{end_vm, inject, mmio};
use crate::vcpu::{ExitClass, Flow, Loaded};
use crate::vm::Filled;
use machine_aarch64::cpu::translate_stage1;
use machine_aarch64::guest;
use model_addr::Ipa;
use model_trap::{Abort, DataAbort, Injection};

/// A load or store.
#[inline]
pub fn data(guest: &mut Loaded<'_>, data: DataAbort) -> Flow {
    let va = data.abort.va.unwrap_or(0);
    let Some(ipa) = address(&data.abort) else {
        return inject(
            guest,
            Injection::DataAbort {
                va,
                write: data.write,
            },
        );
    };
    if guest.vm.memory_contains(ipa) {
        return memory(
            guest,
            ipa,
            Injection::DataAbort {
                va,
                write: data.write,
            },
        );
    }
    if data.abort.walk || data.cache_maintenance {
        return mmio::abort(guest, ipa, va, data.write);
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
    if let Some(ipa) = address(&abort).filter(|&ipa| guest.vm.memory_contains(ipa)) {
        return memory(guest, ipa, Injection::InstructionAbort { va });
    }
    guest.vcpu.stats.count(ExitClass::Abort);
    // A guest whose vectors are not in memory would take this abort for ever, at the same place.
    let (_, vbar) = guest::loaded_sctlr_vbar();
    let pc = guest.core.context.pc;
    if pc.wrapping_sub(vbar) < 0x800 {
        return end_vm(guest, "its exception vectors are not in its memory");
    }
    inject(guest, Injection::InstructionAbort { va })
}

/// The guest-physical address: from the hardware, or, for a permission fault, by the guest's own
/// stage 1.
#[inline]
fn address(abort: &Abort) -> Option<Ipa> {
    abort.ipa.or_else(|| translate_stage1(abort.va?))
}

/// Memory of the guest that has no frame yet, or fewer rights than it needs.
#[inline(never)]
fn memory(guest: &mut Loaded<'_>, ipa: Ipa, refusal: Injection) -> Flow {
    guest.vcpu.stats.count(ExitClass::Memory);
    match guest.vm.fill(ipa, guest.cpu.node) {
        Filled::Done => Flow::Resume,
        Filled::NoMemory => end_vm(guest, "the machine has no memory left for it"),
        Filled::Refused => inject(guest, refusal),
    }
}
