//! Loads and stores of device registers.

use crate::devices::RegisterAccess;
use crate::guest::layout::{Place, REDISTRIBUTOR_SIZE};
use crate::memory::frames;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{inject, skip};
use crate::vcpu::{ExitClass, attention};
use crate::vms::Instance;
use abi::control::count;
use arch::{cpu, guest};
use model_addr::{FRAME_SIZE, Ipa};
use model_address_space::Access as PageAccess;
use model_mmio::Row;
use model_trap::{Injection, MmioAccess, instruction};
use model_vgic::{SyncNeeded, VcpuSet};

/// What became of an access.
enum Access {
    /// Done; a load has this value.
    Done(u64),
    /// The same instruction must run again: another vCPU was asked for what it holds.
    Again,
    /// There is no device.
    Nobody,
    /// Another host has the device.
    Elsewhere,
}

/// An access that the syndrome describes.
#[inline]
pub fn described(guest: &mut Loaded<'_>, ipa: Ipa, access: MmioAccess, va: u64) -> Flow {
    match reach(guest, ipa, access.size, stored(guest, access)) {
        Access::Done(value) => {
            if !access.write {
                guest
                    .core
                    .context
                    .set_register(access.rt, access.loaded(value));
            }
            skip(guest);
            Flow::Resume
        }
        Access::Again => Flow::Resume,
        Access::Nobody => abort(guest, va, access.write),
        Access::Elsewhere => guest.ask_device(ipa, access),
    }
}

/// An access that the syndrome does not describe: the instruction itself tells.
#[inline(never)]
pub fn undescribed(guest: &mut Loaded<'_>, ipa: Ipa, va: u64, write: bool) -> Flow {
    let code = code(guest, guest.core.context.pc);
    let Some(instruction) = code.and_then(|[word]| instruction::decode(word)) else {
        return abort(guest, va, write);
    };
    let context = &guest.core.context;
    let index = instruction.index().map_or(0, |n| context.register(n));
    let base = match instruction.base {
        31 => guest::stack_pointer(context.pstate),
        n => context.register(n),
    };
    // The registers must be those that made the address, or the instruction is not the one that
    // faulted: another vCPU may have changed it.
    if instruction.address(base, index) != va {
        return Flow::Resume;
    }
    let size = u64::from(instruction.first.size);
    for (n, access) in core::iter::once(instruction.first)
        .chain(instruction.second)
        .enumerate()
    {
        let ipa = Ipa(ipa.0.wrapping_add(n as u64 * size));
        match reach(guest, ipa, access.size, stored(guest, access)) {
            Access::Done(value) if !access.write => {
                guest
                    .core
                    .context
                    .set_register(access.rt, access.loaded(value));
            }
            Access::Done(_) => {}
            Access::Again => return Flow::Resume,
            Access::Nobody | Access::Elsewhere => return abort(guest, va, access.write),
        }
    }
    if let Some(base_after) = instruction.written_back(base, index) {
        match instruction.base {
            31 => guest::set_stack_pointer(guest.core.context.pstate, base_after),
            n => guest.core.context.set_register(n, base_after),
        }
    }
    skip(guest);
    Flow::Resume
}

/// The instruction words at a virtual address of the guest, where they can be read and are in one
/// page.
pub fn code<const WORDS: usize>(guest: &Loaded<'_>, va: u64) -> Option<[u32; WORDS]> {
    let ipa = cpu::translate_stage1(va)?;
    let offset = ipa.offset();
    if !ipa.is_aligned(4) || offset + 4 * WORDS as u64 > FRAME_SIZE {
        return None;
    }
    let memory = guest.vm.memory();
    let read = |frame| frames::ram(frame, 1).read_words(offset);
    let words = memory
        .space
        .with_frame(ipa, PageAccess::Read, memory.node, read);
    words.ok()
}

/// Nothing is there: the guest has an external abort, as on a bus without a device.
#[inline(never)]
pub fn abort(guest: &mut Loaded<'_>, va: u64, write: bool) -> Flow {
    guest.vcpu.stats.count(ExitClass::Abort);
    guest.vm.count(count::ODDITIES + 1, 1);
    inject(guest, Injection::DataAbort { va, write })
}

/// What a store sends; a load sends nothing.
#[inline]
fn stored(guest: &Loaded<'_>, access: MmioAccess) -> Option<u64> {
    access
        .write
        .then(|| access.stored(guest.core.context.register(access.rt)))
}

/// Finds the device and does the access of `size` bytes: a store of `value`, or a load.
#[inline]
fn reach(guest: &mut Loaded<'_>, ipa: Ipa, size: u8, value: Option<u64>) -> Access {
    let (vm, stats) = (guest.vm, &guest.vcpu.stats);
    let Some((place, offset)) = vm.places.find(&mut guest.place, ipa) else {
        return Access::Nobody;
    };
    match place {
        Place::Uart => {
            stats.count(ExitClass::Uart);
            let Some(value) = value else {
                return Access::Done(vm.uart.load(vm, offset));
            };
            vm.uart.store(vm, offset, value);
            Access::Done(0)
        }
        Place::Distributor => {
            stats.count(ExitClass::Gic);
            let (offset, size) = (offset as u32, size.into());
            match value {
                None => read_fresh(guest, |vm, fresh| {
                    vm.distributor.lock().read(offset, size, fresh)
                }),
                Some(value) => write_distributor(guest.vm, offset, size, value),
            }
        }
        Place::Redistributors => {
            stats.count(ExitClass::Gic);
            redistributor(guest, offset, size, value)
        }
        Place::Virtio(n) => {
            stats.count(ExitClass::Virtio);
            let size = size.into();
            let access = RegisterAccess {
                offset,
                size,
                value,
            };
            Access::Done(vm.virtio_access(n, access))
        }
        Place::Button => {
            stats.count(ExitClass::Other);
            Access::Done(vm.power_button.access(vm, offset as u32, value))
        }
        Place::Clock => {
            stats.count(ExitClass::Other);
            Access::Done(vm.clock.access(offset as u32, value))
        }
        Place::Elsewhere => Access::Elsewhere,
    }
}

#[inline(never)]
fn write_distributor(vm: &Instance, offset: u32, size: u32, value: u64) -> Access {
    let deliver = {
        let mut distributor = vm.distributor.lock();
        let effects = distributor.write(offset, size, value);
        let mut deliver = effects.deliver;
        if let Some(groups) = effects.groups {
            for vcpu in &vm.vcpus {
                if vcpu.redistributor.lock().set_groups(groups) {
                    deliver = deliver.or(VcpuSet::only(vcpu.index.into()));
                }
            }
        }
        deliver
    };
    vm.call_vcpus(deliver, attention::DELIVER);
    Access::Done(0)
}

/// An access of a vCPU of another host. What lies in list registers is read as it was published last.
pub fn of_another_host(vm: &Instance, ipa: Ipa, size: u8, value: Option<u64>) -> u64 {
    let Some((place, offset)) = vm.places.find(&mut Row::default(), ipa) else {
        return 0;
    };
    let access = RegisterAccess {
        offset,
        size: size.into(),
        value,
    };
    let (offset, size) = (offset as u32, size.into());
    match (place, value) {
        (Place::Uart, None) => vm.uart.load(vm, offset.into()),
        (Place::Uart, Some(value)) => {
            vm.uart.store(vm, offset.into(), value);
            0
        }
        (Place::Distributor, None) => {
            let all = VcpuSet::first(vm.vcpus.len());
            let read = vm.distributor.lock().read(offset, size, all);
            read.unwrap_or(0)
        }
        (Place::Distributor, Some(value)) => {
            write_distributor(vm, offset, size, value);
            0
        }
        (Place::Virtio(n), _) => vm.virtio_access(n, access),
        (Place::Button, _) => vm.power_button.access(vm, offset, value),
        (Place::Clock, _) => vm.clock.access(offset, value),
        (Place::Redistributors | Place::Elsewhere, _) => 0,
    }
}

#[inline(never)]
fn redistributor(guest: &mut Loaded<'_>, offset: u64, size: u8, value: Option<u64>) -> Access {
    let size = u32::from(size);
    let index = (offset / REDISTRIBUTOR_SIZE) as usize;
    let offset = (offset % REDISTRIBUTOR_SIZE) as u32;
    let vm = guest.vm;
    let Some(vcpu) = vm.vcpus.get(index) else {
        return Access::Nobody;
    };
    if index == usize::from(guest.vcpu.index) {
        guest.withdraw_timer();
    }
    let Some(value) = value else {
        return read_fresh(guest, |_, fresh| {
            vcpu.redistributor
                .lock()
                .read(offset, size, fresh.contains(index))
        });
    };
    let mut redistributor = vcpu.redistributor.lock();
    // Those of other hosts' vCPUs are where these are. They come and go with the lock held.
    let is_called = !guest.vm.is_elsewhere(index) && redistributor.write(offset, size, value);
    drop(redistributor);
    if is_called {
        vcpu.call(attention::DELIVER);
    }
    Access::Done(0)
}

/// Reads a register that may show what lies in list registers.
#[inline]
fn read_fresh(
    guest: &mut Loaded<'_>,
    read: impl Fn(&Instance, VcpuSet) -> Result<u64, SyncNeeded>,
) -> Access {
    match read(guest.vm, VcpuSet::NONE) {
        Ok(value) => Access::Done(value),
        Err(SyncNeeded(needed)) => read_published(guest, needed, read),
    }
}

/// Reads what lies in the list registers of `needed`. This vCPU's are published at once; others are
/// asked to publish theirs, and the guest's instruction runs again.
#[inline(never)]
fn read_published(
    guest: &mut Loaded<'_>,
    needed: VcpuSet,
    read: impl Fn(&Instance, VcpuSet) -> Result<u64, SyncNeeded>,
) -> Access {
    let vm = guest.vm;
    let own = VcpuSet::only(guest.vcpu.index.into());
    if needed.contains(guest.vcpu.index.into()) {
        guest.publish();
    }
    let missing = needed.without(own).without(vm.take_fresh(needed));
    if missing.is_empty() {
        return read(vm, needed).map_or(Access::Again, Access::Done);
    }
    vm.call_vcpus(missing, attention::PUBLISH);
    Access::Again
}
