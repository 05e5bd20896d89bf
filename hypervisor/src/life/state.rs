//! VMs as records, for the image that takes this one's place, or for another machine (`abi::state`).

use crate::devices::{control_port::ControlPort, disk::CowDisk};
use crate::drivers::{Extent, disk};
use crate::economy::ledger;
use crate::life::{create, reaper, verbs};
use crate::machine::{self, due};
use crate::memory::state::{may_have, write_run};
use crate::memory::{regions, sharing};
use crate::vms::{Instance, Vm, instance::connect, table};
use abi::bundle::VmRecord;
use abi::control::code;
use abi::state::{self, Reader, Run, Runs, Sink, Source, kind, life, run};
use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering;
use machine_contract::GuestMemory as _;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, Mfn, VmId};
use model_control::Refusal;
use model_disk::Store as _;
use model_frame_table::{MAX_ORDER, Owner};
use model_paging::{Store, Token};
use model_pmap::Backing;
use model_vgic::Groups;

/// Writes the records of all VMs, which stand still; a disk that is at work has none, which is logged.
pub fn write(to: &mut impl Sink) -> Result<(), &'static str> {
    regions::write(to);
    let mut vms = table::all().into_iter();
    vms.try_for_each(|vm| {
        write_vm(&vm, to).inspect_err(|what| {
            log::warn!("{} cannot go over to another image: it has {what}", vm.name);
        })
    })
}

pub fn write_vm(vm: &Vm, to: &mut impl Sink) -> Result<(), &'static str> {
    let (instance, ended, description) = (vm.instance(), vm.last(), vm.record());
    let head = state::Vm {
        life: match (&instance, &ended) {
            (Some(_), _) => life::PARKED,
            (None, Some(_)) => life::ENDED,
            (None, None) => life::DEFINED,
        },
        starts: vm.starts.load(Ordering::Relaxed),
        ..instance.as_deref().map_or(state::Vm::ZERO, head)
    };
    to.put(kind::VM, &head);
    to.put(kind::DESCRIPTION, &description);
    match (instance, ended) {
        (Some(instance), _) => return write_instance(&instance, &description, to),
        (None, Some(status)) => to.put(kind::ENDED, &status),
        (None, None) => {}
    }
    Ok(())
}

/// What is said of a VM as a whole.
fn head(vm: &Instance) -> state::Vm {
    let [time_offset, paused_at] = vm.times();
    let owed = vm.paging.paused_for();
    let groups = vm.distributor.lock().groups().bits();
    state::Vm {
        time_offset,
        paused_at,
        sources: vm.space.sources().0,
        groups,
        vcpus: vm.vcpus.len() as u32,
        debt: [owed.is_some().into(), owed.unwrap_or(0)],
        complaint: vm.paging.complaint().unwrap_or_default(),
        ..state::Vm::ZERO
    }
}

/// What no record says is settled: requests that are done are told, interrupts go back to where they came from, and
/// other nodes have no copies of its pages.
fn settle_all(vm: &Instance) {
    vm.disks().for_each(|block| block.end_held(vm));
    for vcpu in &vm.vcpus {
        // All of them look again before they run on.
        let _ = vcpu.give_back_interrupts(&vm.distributor);
    }
    for node in machine::get().node_ids() {
        let mut from = Some(Gfn(0));
        while let Some(first) = from {
            (_, from) = vm.space.give_copies_back(node, first);
        }
    }
}

fn write_instance(
    vm: &Instance,
    record: &VmRecord,
    to: &mut impl Sink,
) -> Result<(), &'static str> {
    if vm.span.is_some() {
        return Err("it spans hosts, and no image takes that over");
    }
    settle_all(vm);
    to.put(kind::TREE, vm.space.sources().1);
    write_runs(vm, record, to)?;
    for vcpu in &vm.vcpus {
        to.put(kind::VCPU, &vcpu.record());
    }
    to.begin(kind::SPIS);
    vm.distributor
        .lock()
        .records()
        .for_each(|record| to.add(&record));
    vm.uart.write(vm, to);
    to.put(kind::BUTTON, &vm.power_button.record());
    to.put(kind::CLOCK, &vm.clock.state().0);
    to.begin(kind::DEVICES);
    for device in &vm.virtio {
        to.add(&device.record()?);
    }
    if !(0..)
        .zip(vm.disks())
        .all(|(n, block)| block.write_overlay(n, to))
    {
        return Err("blocks on a partition of this machine");
    }
    vm.all()
        .for_each(|port: &ControlPort| port.write(vm.id, to));
    to.begin(kind::TEXT);
    vm.terminal.waiting(|bytes| to.add(bytes));
    Ok(())
}

/// Where a VM of this description has blocks of its memory: in its swap, or in the base of that disk.
fn partition(record: &VmRecord, kind: u8, disk: u8) -> Option<Extent> {
    let name = match kind {
        run::STORED => record.swap,
        _ => record.disks.get(usize::from(disk))?.partition,
    };
    disk::named(name.as_str()?)
}

fn write_runs(vm: &Instance, record: &VmRecord, to: &mut impl Sink) -> Result<(), &'static str> {
    let base = |number: u8| vm.disks().position(|block| block.base() == Some(number));
    // A guest that hides must not find out that it is the last that has a page.
    let sharers = if record.hide != 0 { 1 } else { 2 };
    let place = |backing: Backing| match backing {
        Backing::Discarded(token) => {
            let Token { store, disk, block } = Token::decode(token);
            match store {
                Store::Swap => (run::STORED, 0, block),
                Store::Base => (run::BASE, base(disk).unwrap_or(usize::MAX) as u8, block),
            }
        }
        Backing::Private(frame) | Backing::Shared(frame) => {
            (sharing::kind_of(frame, sharers), 0, frame.0)
        }
        Backing::Absent => (run::EMPTY, 0, 0),
    };
    let mut known = true;
    to.begin(kind::RUNS);
    vm.space.maps().records(place, |run| {
        let extent = || partition(record, run.kind, run.disk);
        known &= write_run(to, &run, |block| Some(extent()?.word(block)));
    });
    known.then_some(()).ok_or("pages on a disk that is gone")
}

/// Frames of the tables of all VMs' overlays.
pub fn overlay_tables(vms: &[Arc<Vm>]) -> u64 {
    let instances = vms.iter().filter_map(|vm| vm.instance());
    let tables = |vm: Arc<Instance>| {
        vm.disks()
            .map(|it| it.of_overlay(CowDisk::tables))
            .sum::<u64>()
    };
    instances.map(tables).sum()
}

/// What a record says cannot be: that item's kind.
fn senseless(kind: u32) -> Refusal {
    let what = format_args!("invalid record of kind {kind}");
    Refusal::new(code::IMPOSSIBLE, kind.into(), what)
}

pub fn all(restored: bool, kind: u32) -> Result<(), Refusal> {
    restored.then_some(()).ok_or_else(|| senseless(kind))
}

/// Takes frames that are VMs' own memory, or their disks', for them, by all records: before any pool has any.
pub fn adopt_frames(mut records: Reader<'_>) -> Result<(), Refusal> {
    let (mut slot, mut generation) = (None, 0);
    while let Some(kind) = records.peek() {
        match kind {
            kind::REGION_RUNS => {
                for (n, [first, _]) in records.all::<[u64; 2]>(kind)?.enumerate() {
                    adopt_own(Mfn(first), if n == 0 { 1 } else { MAX_ORDER })?;
                }
            }
            kind::VM => {
                let head: state::Vm = records.one(kind)?;
                slot = Some(slot.map_or(0, |slot: u16| slot + 1));
                generation = head.starts as u16;
            }
            kind::RUNS | kind::OVERLAY => {
                let index = slot.ok_or_else(|| senseless(kind))?;
                let vm = VmId { index, generation };
                for (run, _) in records.runs(kind)? {
                    let of_disk = || create::disk_user(vm, run.disk.into());
                    let (gfn, is_disks) = (Gfn(run.gfn), kind == kind::OVERLAY);
                    adopt_run(&run, is_disks.then(of_disk), Owner { vm, gfn })?;
                }
            }
            _ => {
                records.bytes(kind)?;
            }
        }
    }
    Ok(())
}

/// Takes frames for a region.
fn adopt_own(start: Mfn, order: u8) -> Result<(), Refusal> {
    let adopted = machine::get()
        .map
        .adopt_own(FrameRange::of(start, 1 << order));
    let is_its = adopted.is_ok() && start.is_aligned(1 << order);
    is_its.then_some(()).ok_or_else(|| senseless(kind::REGION))
}

/// Takes the frames of a record for a disk, whose are all of them, or for the guest frames from `first` on.
fn adopt_run(run: &Run, of_disk: Option<Owner>, first: Owner) -> Result<(), Refusal> {
    let (map, start) = (&machine::get().map, Mfn(run.frame));
    let one_by_one = |n: u64| {
        let start = Mfn(run.frame.saturating_add(n));
        let gfn = Gfn(first.gfn.0.saturating_add(n));
        let user = of_disk.unwrap_or(Owner { gfn, ..first });
        map.adopt(FrameRange { start, count: 1 }, user)
    };
    let count = u64::from(run.count);
    let adopted = match (run.kind, of_disk) {
        (run::PRIVATE, None) => map.adopt(FrameRange { start, count }, first),
        (run::PRIVATE, Some(_)) => (0..count).try_for_each(one_by_one),
        (run::JOINED, _) => {
            // Those that another user's record named before are looked at when this one joins it.
            let is_there = |n: &u64| map.entry(Mfn(run.frame.saturating_add(*n))).is_some();
            (0..count).take_while(is_there).for_each(|n| {
                let _ = one_by_one(n);
            });
            Ok(())
        }
        _ => Ok(()),
    };
    adopted.map_err(|refused| {
        let what = format_args!("frames at {start} of {:?}: {refused}", first.vm);
        Refusal::new(code::IMPOSSIBLE, 0, what)
    })
}

/// Makes all VMs as records have them, which stand where the VMs do.
pub fn read(records: &mut impl Source) -> Result<(), Refusal> {
    reaper::init();
    while let Some(record) = records.one_if(kind::REGION)? {
        let runs = records.all(kind::REGION_RUNS)?;
        all(regions::take_over(&record, runs), kind::REGION)?;
    }
    while let Some(head) = records.one_if::<state::Vm>(kind::VM)? {
        let description: VmRecord = records.one(kind::DESCRIPTION)?;
        let vm = verbs::describe(&description)?;
        match head.life {
            life::DEFINED => vm.take_over(head.starts, None, None),
            life::ENDED => vm.take_over(head.starts, None, Some(&records.one(kind::ENDED)?)),
            life::PARKED => {
                let instance = make_instance(&vm, &head, records)?;
                vm.take_over(head.starts, Some(Arc::clone(&instance)), None);
                fill_instance(&instance, &description, &head, records)?;
            }
            _ => return Err(senseless(kind::VM)),
        }
    }
    all(regions::are_used(), kind::REGION)
}

/// A VM that stands still and has nothing behind its memory yet.
pub fn make_instance(
    vm: &Vm,
    head: &state::Vm,
    records: &mut impl Source,
) -> Result<Arc<Instance>, Refusal> {
    let id = VmId {
        index: vm.slot,
        generation: head.starts as u16,
    };
    let tree = Box::from(records.bytes(kind::TREE)?);
    let instance = create::instance_with(vm, id, |record, vmid, home, _| {
        create::parked_space(record, (id, vmid, home), head.sources, tree)
    })?;
    instance.stand_still_as(head);
    Ok(instance)
}

/// Gives it what the rest of its records say.
pub fn fill_instance<S: Source>(
    instance: &Arc<Instance>,
    description: &VmRecord,
    head: &state::Vm,
    records: &mut S,
) -> Result<(), Refusal> {
    all(head.vcpus as usize == instance.vcpus.len(), kind::VM)?;
    while records.peek() == Some(kind::RUNS) {
        let restored = records.runs(kind::RUNS)?.all(|(run, behind)| {
            may_have(S::KEEPS_FRAMES, &run) && take_run::<S>(instance, description, &run, behind)
        });
        all(restored, kind::RUNS)?;
    }
    let groups = Groups::from_bits_truncate(head.groups);
    for vcpu in &instance.vcpus {
        all(vcpu.restore(&records.one(kind::VCPU)?, groups), kind::VCPU)?;
    }
    let spis = records.all(kind::SPIS)?;
    let mut distributor = instance.distributor.lock();
    all(distributor.restore(spis, head.groups), kind::SPIS)?;
    drop(distributor);
    let uart = records.one(kind::UART)?;
    let typed = records.bytes(kind::TYPED)?;
    all(instance.uart.restore(instance, &uart, typed), kind::UART)?;
    instance.power_button.restore(&records.one(kind::BUTTON)?);
    instance.clock.state().0 = records.one(kind::CLOCK)?;
    let devices = records.all::<state::Device>(kind::DEVICES)?;
    all(devices.len() == instance.virtio.len(), kind::DEVICES)?;
    for (device, record) in instance.virtio.iter().zip(devices) {
        all(device.restore(&record), kind::DEVICES)?;
    }
    connect(instance);
    while records.peek() == Some(kind::OVERLAY) {
        all(
            take_overlay::<S>(instance, &records.runs(kind::OVERLAY)?),
            kind::OVERLAY,
        )?;
    }
    for port in instance.all::<ControlPort>() {
        all(port.take_asked(records.bytes(kind::ASKED)?), kind::ASKED)?;
        let answers = records.bytes(kind::ANSWERS)?;
        all(port.take_answers(instance.id, answers), kind::ANSWERS)?;
    }
    for byte in records.bytes(kind::TEXT)? {
        instance.terminal.put(*byte);
    }
    Ok(())
}

/// Puts over the base of the disk that they name what runs say.
fn take_overlay<S: Source>(vm: &Instance, runs: &Runs<'_>) -> bool {
    let Some((first, _)) = runs.clone().next() else {
        return true;
    };
    let fits = |(run, _): (Run, &[u8])| run.disk == first.disk && may_have(S::KEEPS_FRAMES, &run);
    let block = vm.disks().nth(first.disk.into());
    runs.clone().all(fits) && block.is_some_and(|block| block.adopt(runs))
}

/// Puts behind a VM's guest frames what a run says.
fn take_run<S: Source>(vm: &Instance, record: &VmRecord, run: &Run, behind: &[u8]) -> bool {
    if !S::KEEPS_FRAMES {
        return fill(vm, run, behind).is_some();
    }
    let token = take_behind(run, record, vm.id, behind);
    token.is_some_and(|token| vm.space.adopt(run, token))
}

/// Lets a guest find what a run says, as if it had done it itself: its memory may come in blocks.
fn fill(vm: &Instance, run: &Run, pages: &[u8]) -> Option<()> {
    let (at, bytes) = (
        run.gfn.checked_mul(FRAME_SIZE)?,
        u64::from(run.count) * FRAME_SIZE,
    );
    let is_memory = vm.space.range().contains_run(Ipa(at), bytes);
    is_memory.then_some(())?;
    if run.kind == run::EMPTY {
        vm.space.release(Gfn(run.gfn), run.count.into());
    }
    for n in 0..run.count {
        let gfn = Gfn(run.gfn).add(n.into());
        if let Some(page) = Runs::page(pages, n) {
            vm.memory().write(gfn.address(), page).ok()?;
        }
        let is_marked = run.never_share == 0 || vm.space.set_never_share(gfn, true, vm.home);
        is_marked.then_some(())?;
    }
    Some(())
}

/// Makes a VM of this description the user of what is behind guest frames: where that is on a disk, if it is.
fn take_behind(run: &Run, record: &VmRecord, vm: VmId, words: &[u8]) -> Option<u64> {
    match run.kind {
        run::SHARED | run::JOINED => (0..run.count.into()).all(|n| {
            let gfn = Gfn(run.gfn.saturating_add(n));
            let frame = Mfn(run.frame.saturating_add(n));
            sharing::take_over(run.kind, frame, Owner { vm, gfn })
        }),
        run::STORED | run::BASE => {
            let extent = partition(record, run.kind, run.disk)?;
            let alone = run.kind == run::STORED;
            let is_there = (0..run.count).all(|n| {
                let block = run.frame.saturating_add(n.into());
                let is_within = block < extent.size() / FRAME_SIZE;
                let word = Runs::word(words, n).filter(|_| is_within);
                word.is_some_and(|word| extent.adopt(block, word, alone))
            });
            let store = if alone { Store::Swap } else { Store::Base };
            let (disk, block) = (extent.number(), run.frame);
            return is_there.then(|| Token { store, disk, block }.encode());
        }
        _ => true,
    }
    .then_some(0)
}

/// All frames are known again: how many VMs may have, and who owes some.
pub fn settle() {
    ledger::init();
    due::begin_anew();
}
