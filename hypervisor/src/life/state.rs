//! VMs as records, for the image that takes this one's place (`abi::state`).

use crate::devices::{control_port::ControlPort, disk::CowDisk};
use crate::drivers::{Extent, disk};
use crate::economy::ledger;
use crate::life::{create, reaper, verbs};
use crate::machine::{self, due};
use crate::memory::{regions, sharing};
use crate::vms::{Instance, Vm, instance::connect, table};
use abi::bundle::VmRecord;
use abi::control::{RawVm, code};
use abi::state::{self, Reader, Run, Writer, kind, life, run};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Mfn, VmId};
use model_control::Refusal;
use model_disk::Store as _;
use model_frame_table::{MAX_ORDER, Owner};
use model_paging::{Store, Token};
use model_pmap::Backing;
use model_vgic::Groups;

/// Writes the records of all VMs, which stand still; a disk that is at work has none, which is logged.
pub fn write(to: &mut Writer<'_>) -> Result<(), &'static str> {
    regions::write(to);
    let mut vms = table::all().into_iter();
    vms.try_for_each(|vm| {
        write_vm(&vm, to).inspect_err(|what| {
            log::warn!("{} cannot go over to another image: it has {what}", vm.name);
        })
    })
}

fn write_vm(vm: &Vm, to: &mut Writer<'_>) -> Result<(), &'static str> {
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
    state::Vm {
        time_offset,
        paused_at,
        sources: vm.space.sources().0,
        groups: vm.distributor.lock().groups().bits(),
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
        vcpu.give_back_interrupts(&vm.distributor);
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
    to: &mut Writer<'_>,
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
    vm.disks().for_each(|block| block.write_overlay(to));
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

fn write_runs(vm: &Instance, record: &VmRecord, to: &mut Writer<'_>) -> Result<(), &'static str> {
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
    let mut is_on_disk = false;
    to.begin(kind::RUNS);
    vm.space.maps().records(place, |run| {
        is_on_disk |= blocks(&run).next().is_some();
        to.add(&run);
    });
    to.begin(kind::WORDS);
    let mut known = true;
    let mut words = |run: Run| {
        let extent = partition(record, run.kind, run.disk);
        known &= extent.is_some() || blocks(&run).next().is_none();
        let words = extent
            .into_iter()
            .flat_map(|it| blocks(&run).map(move |at| it.word(at)));
        words.for_each(|word| to.add(&word));
    };
    if is_on_disk {
        vm.space.maps().records(place, &mut words);
    }
    known.then_some(()).ok_or("pages on a disk that is gone")
}

/// The blocks of a partition that a record names.
fn blocks(run: &Run) -> impl Iterator<Item = u64> {
    let is_on_disk = matches!(run.kind, run::STORED | run::BASE);
    let count = if is_on_disk { run.count.into() } else { 0 };
    (0..count).map(|n| run.frame.saturating_add(n))
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

fn all(restored: bool, kind: u32) -> Result<(), Refusal> {
    restored.then_some(()).ok_or_else(|| senseless(kind))
}

/// Takes frames that are VMs' own memory, or their disks', for them, by all records: before any pool has any.
pub fn adopt_frames(mut records: Reader<'_>) -> Result<(), Refusal> {
    let (mut slot, mut generation, mut disk) = (None, 0, 0);
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
                (generation, disk) = (head.starts as u16, 0);
            }
            kind::RUNS | kind::OVERLAY => {
                let index = slot.ok_or_else(|| senseless(kind))?;
                let vm = VmId { index, generation };
                let of_disk = (kind == kind::OVERLAY).then(|| create::disk_user(vm, disk));
                disk += usize::from(kind == kind::OVERLAY);
                for run in records.all::<Run>(kind)? {
                    let gfn = Gfn(run.gfn);
                    adopt_run(&run, of_disk, Owner { vm, gfn })?;
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
pub fn read(records: &mut Reader<'_>) -> Result<(), Refusal> {
    reaper::init();
    while let Some(record) = records.one_if(kind::REGION)? {
        let runs = records.all(kind::REGION_RUNS)?;
        all(regions::take_over(&record, runs), kind::REGION)?;
    }
    while let Some(head) = records.one_if::<state::Vm>(kind::VM)? {
        let description: VmRecord = records.one(kind::DESCRIPTION)?;
        let vm = verbs::describe(&description)?;
        let ended = match head.life {
            life::ENDED => Some(records.one::<RawVm>(kind::ENDED)?),
            _ => None,
        };
        let instance = match head.life {
            life::PARKED => Some(read_instance(&vm, &head, records)?),
            life::DEFINED | life::ENDED => None,
            _ => return Err(senseless(kind::VM)),
        };
        vm.take_over(head.starts, instance, ended.as_ref());
    }
    all(regions::are_used(), kind::REGION)
}

fn read_instance(
    vm: &Vm,
    head: &state::Vm,
    records: &mut Reader<'_>,
) -> Result<Arc<Instance>, Refusal> {
    let id = VmId {
        index: vm.slot,
        generation: head.starts as u16,
    };
    let tree = records.bytes(kind::TREE)?;
    let runs = records.all::<Run>(kind::RUNS)?;
    let mut words = records.all::<u64>(kind::WORDS)?;
    let instance = create::instance_with(vm, id, |record, vmid, home, _| {
        let space = create::parked_space(record, (id, vmid, home), head.sources, tree)?;
        for run in runs.clone() {
            let token = take_behind(&run, record, id, &mut words);
            if !token.is_some_and(|token| space.adopt(&run, token)) {
                return Err(senseless(kind::RUNS));
            }
        }
        Ok(space)
    })?;
    instance.stand_still_as(head);
    if head.vcpus as usize != instance.vcpus.len() {
        return Err(senseless(kind::VM));
    }
    let groups = Groups::from_bits_truncate(head.groups);
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
    all(instance.uart.restore(&instance, &uart, typed), kind::UART)?;
    instance.power_button.restore(&records.one(kind::BUTTON)?);
    instance.clock.state().0 = records.one(kind::CLOCK)?;
    let devices = records.all::<state::Device>(kind::DEVICES)?;
    all(devices.len() == instance.virtio.len(), kind::DEVICES)?;
    for (device, record) in instance.virtio.iter().zip(devices) {
        all(device.restore(&record), kind::DEVICES)?;
    }
    connect(&instance);
    for block in instance.disks() {
        let (runs, words) = (records.all(kind::OVERLAY)?, records.all(kind::WORDS)?);
        all(block.adopt(runs, words), kind::OVERLAY)?;
    }
    for port in instance.all::<ControlPort>() {
        let (asked, answers) = (records.bytes(kind::ASKED)?, records.bytes(kind::ANSWERS)?);
        all(port.read(id, asked, answers), kind::ASKED)?;
    }
    for byte in records.bytes(kind::TEXT)? {
        instance.terminal.put(*byte);
    }
    Ok(instance)
}

/// Makes a VM of this description the user of what is behind guest frames: where that is on a disk, if it is.
fn take_behind(
    run: &Run,
    record: &VmRecord,
    vm: VmId,
    words: &mut impl Iterator<Item = u64>,
) -> Option<u64> {
    match run.kind {
        run::SHARED | run::JOINED => (0..run.count.into()).all(|n| {
            let gfn = Gfn(run.gfn.saturating_add(n));
            let frame = Mfn(run.frame.saturating_add(n));
            sharing::take_over(run.kind, frame, Owner { vm, gfn })
        }),
        run::STORED | run::BASE => {
            let extent = partition(record, run.kind, run.disk)?;
            let alone = run.kind == run::STORED;
            let is_there = blocks(run).all(|block| {
                let is_within = block < extent.size() / FRAME_SIZE;
                words
                    .next()
                    .is_some_and(|word| is_within && extent.adopt(block, word, alone))
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
