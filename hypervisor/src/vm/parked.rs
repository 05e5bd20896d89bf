//! VMs as records, for the image that takes this one's place (`abi::parked`).

use super::instance::Instance;
use super::table::{self, Refusal, Vm};
use super::{create, memory, reaper};
use crate::device::virtio::Slot;
use crate::{host, network, sharing};
use abi::bundle::{VmRecord, control_rights};
use abi::control::{VmStatus, code};
use abi::parked::{self, Reader, Run, Unreadable, Writer, kind, life, run};
use alloc::boxed::Box;
use alloc::sync::Arc;
use model_addr::{FrameRange, Gfn, Mfn, VmId};
use model_frame_table::{FrameEntry, Origin, Owner, Use};
use model_vgic::Groups;

/// Why there are no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// A VM has what no record says.
    Has(&'static str),
    /// There is no room for them.
    NoRoom,
}

/// Notes in `fits` whether a part was written.
fn fits(written: bool) -> Result<(), Unwritable> {
    written.then_some(()).ok_or(Unwritable::NoRoom)
}

/// Writes the records of all VMs, which stand still. Where one has none, its name is logged.
pub fn write(to: &mut Writer<'_>) -> Result<(), Unwritable> {
    for vm in table::all() {
        write_vm(&vm, to).inspect_err(|why| {
            if let Unwritable::Has(what) = why {
                log::warn!(
                    "{} cannot go over to another image: it has {what}",
                    vm.record.name
                );
            }
        })?;
    }
    Ok(())
}

fn write_vm(vm: &Vm, to: &mut Writer<'_>) -> Result<(), Unwritable> {
    let (instance, ended) = (vm.instance(), vm.last_status());
    let description = vm.described();
    if let Some(instance) = &instance {
        check(&description, instance)?;
        for vcpu in &instance.vcpus {
            vcpu.give_back_interrupts(&instance.distributor);
        }
    }
    let running = instance.as_deref();
    let [time_offset, paused_at] = running.map_or([0; 2], Instance::times);
    let head = parked::Vm {
        life: match (running, &ended) {
            (Some(_), _) => life::PARKED,
            (None, Some(_)) => life::ENDED,
            (None, None) => life::DEFINED,
        },
        starts: vm.starts.load(core::sync::atomic::Ordering::Relaxed),
        time_offset,
        paused_at,
        sources: running.map_or([0; 3], |vm| vm.space.sources().0),
        groups: running.map_or(0, |vm| vm.distributor.lock().groups().bits()),
        vcpus: running.map_or(0, |vm| vm.vcpus.len() as u32),
    };
    fits(to.put(kind::VM, &head) && to.put(kind::DESCRIPTION, &description))?;
    if let Some(status) = ended.filter(|_| running.is_none()) {
        fits(to.put(kind::ENDED, &status))?;
    }
    running.map_or(Ok(()), |vm| write_instance(vm, to))
}

/// Refuses what is in no record.
fn check(record: &VmRecord, vm: &Instance) -> Result<(), Unwritable> {
    let has = [
        (!record.swap.is_empty(), "swap"),
        (
            record.regions.iter().any(|region| !region.name.is_empty()),
            "a shared region",
        ),
        (record.hide != 0, "pages whose sharing is hidden"),
        (
            record.control != control_rights::NONE,
            "a way to ask the hypervisor",
        ),
        (vm.space.copies() > 0, "copies of pages on other nodes"),
        (
            vm.paging.paused_for().is_some(),
            "a debt for which it was paused",
        ),
    ];
    match has.into_iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(Unwritable::Has(what)),
        None => Ok(()),
    }
}

fn write_instance(vm: &Instance, to: &mut Writer<'_>) -> Result<(), Unwritable> {
    fits(to.put(kind::TREE, vm.space.sources().1))?;
    write_runs(vm, to)?;
    for vcpu in &vm.vcpus {
        fits(to.put(kind::VCPU, &vcpu.record()))?;
    }
    {
        let distributor = vm.distributor.lock();
        let mut spis = to.begin(kind::SPIS).ok_or(Unwritable::NoRoom)?;
        fits(distributor.records().all(|record| spis.add(&record)))?;
    }
    let mut typed = heapless::Deque::new();
    let uart = vm.uart.record(|waiting| typed.clone_from(waiting));
    fits(to.put(kind::UART, &uart))?;
    let (front, back) = typed.as_slices();
    let mut open = to.begin(kind::TYPED).ok_or(Unwritable::NoRoom)?;
    fits(open.add(front) && open.add(back))?;
    fits(to.put(kind::BUTTON, &vm.power_button.record()))?;
    let mut devices = to.begin(kind::DEVICES).ok_or(Unwritable::NoRoom)?;
    for slot in &vm.virtio {
        let record = slot.record().map_err(Unwritable::Has)?;
        fits(devices.add(&record))?;
    }
    let mut nets = to.begin(kind::NETS).ok_or(Unwritable::NoRoom)?;
    for slot in &vm.virtio {
        if let Slot::Net(net) = slot {
            fits(nets.add(&net.record().1))?;
        }
    }
    let mut written = true;
    let mut text = to.begin(kind::TEXT).ok_or(Unwritable::NoRoom)?;
    vm.uart.terminal.waiting(|bytes| written &= text.add(bytes));
    fits(written)
}

fn write_runs(vm: &Instance, to: &mut Writer<'_>) -> Result<(), Unwritable> {
    let map = &host::get().map;
    let others = core::cell::Cell::new(false);
    let is_image = |frame: Mfn| {
        let state = map.entry(frame).map(FrameEntry::state).unwrap_or_default();
        let is_image = state.origin == Origin::Image;
        others.set(others.get() || state.usage == Use::Shared && state.references > 1 && !is_image);
        is_image
    };
    let mut open = to.begin(kind::RUNS).ok_or(Unwritable::NoRoom)?;
    let written = vm.space.records(is_image, |run| fits(open.add(&run)));
    written.map_err(|_| Unwritable::Has("pages on a disk"))??;
    if others.get() {
        return Err(Unwritable::Has("pages that others use, of no image"));
    }
    Ok(())
}

/// What a record says cannot be: that item's kind.
fn senseless(kind: u32) -> Refusal {
    let what = format_args!("a record of kind {kind} makes no sense");
    Refusal::new(code::IMPOSSIBLE, kind.into(), what)
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Self {
        Self::new(code::IMPOSSIBLE, 0, format_args!("{unreadable:?}"))
    }
}

/// Takes frames that are VMs' own memory for them, by all records: before any pool has any.
pub fn adopt_frames(mut records: Reader<'_>) -> Result<(), Refusal> {
    let (mut slot, mut generation) = (None, 0);
    while let Some(kind) = records.peek() {
        match kind {
            kind::VM => {
                let head: parked::Vm = records.one(kind)?;
                slot = Some(slot.map_or(0, |slot: u16| slot + 1));
                generation = head.starts as u16;
            }
            kind::RUNS => {
                let index = slot.ok_or_else(|| senseless(kind))?;
                let vm = VmId { index, generation };
                let runs = records.all::<Run>(kind)?;
                for run in runs.filter(|run| run.kind == run::PRIVATE) {
                    let gfn = Gfn(run.gfn);
                    let frames = FrameRange {
                        start: Mfn(run.frame),
                        count: run.count.into(),
                    };
                    let adopted = host::get().map.adopt(frames, Owner { vm, gfn });
                    adopted.map_err(|refused| {
                        let what = format_args!("frames at {} of {vm:?}: {refused}", frames.start);
                        Refusal::new(code::IMPOSSIBLE, 0, what)
                    })?;
                }
            }
            _ => {
                records.bytes(kind)?;
            }
        }
    }
    Ok(())
}

/// Makes all VMs as records have them, which stand where the VMs do.
pub fn read(records: &mut Reader<'_>) -> Result<(), Refusal> {
    reaper::init();
    while let Some(head) = records.one_if::<parked::Vm>(kind::VM)? {
        let description: VmRecord = records.one(kind::DESCRIPTION)?;
        let vm = table::describe(&description)?;
        let ended = match head.life {
            life::ENDED => Some(Box::new(records.one::<VmStatus>(kind::ENDED)?)),
            _ => None,
        };
        let instance = match head.life {
            life::PARKED => Some(read_instance(&vm, &head, records)?),
            life::DEFINED | life::ENDED => None,
            _ => return Err(senseless(kind::VM)),
        };
        vm.take_over(head.starts, instance, ended);
    }
    Ok(())
}

fn read_instance(
    vm: &Vm,
    head: &parked::Vm,
    records: &mut Reader<'_>,
) -> Result<Arc<Instance>, Refusal> {
    let id = VmId {
        index: vm.slot,
        generation: head.starts as u16,
    };
    let tree = records.bytes(kind::TREE)?;
    let runs = records.all::<Run>(kind::RUNS)?;
    let instance = create::instance_with(vm, id, |record, vmid, home, _| {
        let space = create::parked_space(record, (id, vmid, home), head.sources, tree)?;
        for run in runs.clone() {
            let is_joined = run.kind != run::SHARED || join(&run, id);
            if !(is_joined && space.adopt(&run)) {
                return Err(senseless(kind::RUNS));
            }
        }
        Ok(space)
    })?;
    instance.stand_still_since(head.time_offset, head.paused_at);
    if head.vcpus as usize != instance.vcpus.len() {
        return Err(senseless(kind::VM));
    }
    let groups = Groups::from_bits_truncate(head.groups);
    let all = |restored: bool, kind| restored.then_some(()).ok_or_else(|| senseless(kind));
    for vcpu in &instance.vcpus {
        all(vcpu.restore(&records.one(kind::VCPU)?, groups), kind::VCPU)?;
    }
    let spis = records.all(kind::SPIS)?;
    all(
        instance.distributor.lock().restore(spis, head.groups),
        kind::SPIS,
    )?;
    let uart = records.one(kind::UART)?;
    let typed = records.bytes(kind::TYPED)?;
    all(instance.uart.restore(&uart, typed), kind::UART)?;
    instance.power_button.restore(&records.one(kind::BUTTON)?);
    let devices = records.all::<parked::Device>(kind::DEVICES)?;
    let mut nets = records.all::<parked::Net>(kind::NETS)?;
    all(devices.len() == instance.virtio.len(), kind::DEVICES)?;
    for (slot, record) in instance.virtio.iter().zip(devices) {
        all(slot.restore(&record, &mut nets), kind::DEVICES)?;
    }
    all(nets.len() == 0, kind::NETS)?;
    network::connect(&instance);
    for byte in records.bytes(kind::TEXT)? {
        instance.uart.terminal.put(*byte);
    }
    Ok(instance)
}

/// Makes a VM the user of frames of the bundle.
fn join(run: &Run, vm: VmId) -> bool {
    (0..run.count.into()).all(|n| {
        let user = Owner {
            vm,
            gfn: Gfn(run.gfn + n),
        };
        sharing::join_image(Mfn(run.frame + n), user).is_ok()
    })
}

/// All frames are known again: how many VMs may have.
pub fn settle() {
    memory::init();
}
