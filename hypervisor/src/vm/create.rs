//! From a description to a VM that runs.

use super::address_space::{AddressSpace, Bytes, Source};
use super::instance::{Instance, Parts};
use super::layout::{RAM_START, SPIS, VIRTIO_MAX};
use super::table::{Refusal, Vm};
use super::vmids::Vmid;
use crate::device::block::{Backing, Block};
use crate::device::overlay::CowDisk;
use crate::device::virtio::Slot;
use crate::physical::disk::{self, Unavailable};
use crate::vcpu::Vcpu;
use crate::{entropy, heap, host, sched};
use abi::bundle::{DiskRecord, NO_ENTRY, VmRecord, disk_mode, kind};
use abi::control::{KEEP, code};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use model_addr::{FRAME_SIZE, IpaRange, NodeId, VmId};
use model_guest_image::{GuestTree, HEADER_SIZE, ImageHeader, Kernel, Layout, layout};
use model_scheduler::Parameters;
use model_vgic::Redistributor;
use model_virtio::blk::{Blk, BlockSize, Options, SECTOR_SIZE};

/// The most vCPUs of a VM.
const VCPUS_MAX: u32 = 16;
/// Bytes of heap that a VM of the largest kind takes, and some to spare.
const HEAP_FOR_A_VM: u64 = 256 * 1024;

fn impossible(value: u64, sentence: core::fmt::Arguments<'_>) -> Refusal {
    Refusal::new(code::IMPOSSIBLE, value, sentence)
}

/// Checks a description as far as the machine does not matter.
pub fn check(record: &VmRecord) -> Result<(), Refusal> {
    let VmRecord {
        vcpus,
        memory,
        weight,
        cap,
        nodes,
        ..
    } = *record;
    if !(1..=VCPUS_MAX).contains(&vcpus) {
        return Err(impossible(
            vcpus.into(),
            format_args!("{vcpus} vCPUs: 1 to {VCPUS_MAX} are possible"),
        ));
    }
    if memory == 0 || !memory.is_multiple_of(2 << 20) || memory > 256 << 30 {
        return Err(impossible(
            memory,
            format_args!("{memory} bytes of memory: multiples of 2 MiB up to 256 GiB are possible"),
        ));
    }
    share(weight, cap, (256, 0))?;
    let existing = (1_u64 << host::get().nodes()) - 1;
    if nodes & !existing != 0 {
        return Err(impossible(
            nodes,
            format_args!("nodes {nodes:#x}: this machine has {existing:#x}"),
        ));
    }
    Ok(())
}

/// A weight and a cap as they were asked for, over those there were.
pub fn share(weight: u32, cap: u32, before: (u16, u8)) -> Result<(u16, u8), Refusal> {
    let weight = match weight {
        0 => before.0,
        1..=10_000 => weight as u16,
        _ => {
            return Err(impossible(
                weight.into(),
                format_args!("a weight of {weight}: 1 to 10000 are possible"),
            ));
        }
    };
    let cap = match cap {
        KEEP => before.1,
        0..=100 => cap as u8,
        _ => {
            return Err(impossible(
                cap.into(),
                format_args!("a cap of {cap} %: 0 (none) to 100 are possible"),
            ));
        }
    };
    Ok((weight, cap))
}

/// Everything a VM needs, ready to run.
pub fn instance(vm: &Vm, id: VmId) -> Result<Arc<Instance>, Refusal> {
    let record = &vm.record;
    if !heap::reserve(HEAP_FOR_A_VM) {
        return Err(Refusal::new(
            code::NO_MEMORY,
            HEAP_FOR_A_VM,
            format_args!("no memory left for the VM's bookkeeping"),
        ));
    }
    let (weight, cap) = *vm.share.lock();
    let nodes = sched::node_set(record.nodes);
    let load = u64::from(weight) * u64::from(record.vcpus);
    let home = model_scheduler::place(load, nodes, &sched::loads()).unwrap_or(NodeId(0));
    let virtio = devices(record, home)?;
    let vmid = Vmid::take().ok_or_else(|| {
        impossible(
            0,
            format_args!("no VMID is free: VMs that have ended are still being taken apart"),
        )
    })?;
    // Memory last: what was claimed before is given back here, tables are not.
    let vcpus = vcpus(record.vcpus)?;
    let space = address_space(record, id, &vmid, home, virtio.len() as u8);
    let space = space.inspect_err(|_| release(&vcpus))?;
    let parts = Parts {
        id,
        home,
        name: record.name,
        space,
        vmid,
        vcpus,
        virtio,
    };
    let instance = Arc::new(Instance::new(parts));
    for vcpu in &instance.vcpus {
        let parameters = Parameters { weight, cap, nodes };
        sched::enter(vcpu.entity, &instance, vcpu.index, home, parameters)
            .map_err(|refused| impossible(0, format_args!("{refused}")))?;
    }
    Ok(instance)
}

/// Turns vCPU 0 on.
pub fn launch(instance: &Arc<Instance>) {
    let (entry, tree) = instance.space.begin();
    if let Some(first) = instance.vcpus.first() {
        // A vCPU that was just made is off, and the entry was laid out in memory.
        let _ = first.turn_on(entry, true, tree.0);
    }
}

/// Gives back the entities of vCPUs that never entered a queue.
fn release(vcpus: &[Vcpu]) {
    for vcpu in vcpus {
        sched::release(vcpu.entity);
    }
}

fn vcpus(count: u32) -> Result<Box<[Vcpu]>, Refusal> {
    let mut vcpus: Vec<Vcpu> = Vec::with_capacity(count as usize);
    for index in 0..count as u16 {
        let Some(entity) = sched::claim() else {
            release(&vcpus);
            return Err(impossible(
                index.into(),
                format_args!("the machine runs as many vCPUs as it can"),
            ));
        };
        let mpidr = model_guest_image::vcpu_mpidr(index);
        let redistributor = Redistributor::new(index.into(), count as usize);
        vcpus.push(Vcpu::new(index, mpidr, entity, redistributor));
    }
    Ok(vcpus.into_boxed_slice())
}

/// Lays kernel, initrd and device tree out in new memory.
fn address_space(
    record: &VmRecord,
    id: VmId,
    vmid: &Vmid,
    home: NodeId,
    virtio: u8,
) -> Result<AddressSpace, Refusal> {
    let ram = IpaRange {
        start: RAM_START,
        size: record.memory,
    };
    let kernel = content(record.kernel, kind::KERNEL)?;
    let initrd = match record.initrd {
        NO_ENTRY => &[],
        entry => content(entry, kind::INITRD)?,
    };
    let header = ImageHeader::parse(&kernel[..kernel.len().min(HEADER_SIZE)]);
    let kind = match header {
        Ok(Some(header)) => Kernel::Linux(header),
        Ok(None) => Kernel::Flat,
        Err(error) => return Err(impossible(0, format_args!("the kernel: {error}"))),
    };
    let laid = layout(ram, kind, kernel.len() as u64, initrd.len() as u64)
        .map_err(|error| impossible(record.memory, format_args!("{error}")))?;
    let tree = tree(record, ram, &laid, virtio)?;
    let sources = [
        Some(Source {
            at: laid.entry,
            bytes: Bytes::Static(kernel),
        }),
        Some(Source {
            at: laid.tree.start,
            bytes: Bytes::Owned(tree.into_boxed_slice()),
        }),
        laid.initrd.map(|range| Source {
            at: range.start,
            bytes: Bytes::Static(initrd),
        }),
    ];
    let begin = (laid.entry, laid.tree.start);
    AddressSpace::new(id, vmid.number(), ram, sources, begin, home).ok_or_else(|| {
        Refusal::new(
            code::NO_MEMORY,
            FRAME_SIZE,
            format_args!("no memory left for the VM's tables"),
        )
    })
}

fn tree(record: &VmRecord, ram: IpaRange, laid: &Layout, virtio: u8) -> Result<Vec<u8>, Refusal> {
    entropy::stir(record.memory);
    let mut rng_seed = [0; 32];
    entropy::fill(&mut rng_seed);
    let tree = GuestTree {
        ram,
        vcpus: record.vcpus as u16,
        virtio,
        bootargs: record.command_line.as_str().unwrap_or_default(),
        initrd: laid.initrd,
        rng_seed,
        kaslr_seed: entropy::word(),
    };
    tree.write()
        .map_err(|error| impossible(0, format_args!("the device tree: {error}")))
}

fn content(entry: u32, kind: u32) -> Result<&'static [u8], Refusal> {
    let bundle = host::get().bundle.as_ref();
    bundle
        .and_then(|bundle| bundle.content_of(entry, kind))
        .ok_or_else(|| {
            impossible(
                entry.into(),
                format_args!("entry {entry} of the bundle is not what the description needs"),
            )
        })
}

/// The virtio devices: disks in their order, then entropy and a console.
fn devices(record: &VmRecord, home: NodeId) -> Result<Vec<Slot>, Refusal> {
    let mut slots = Vec::with_capacity(VIRTIO_MAX);
    for disk in record
        .disks
        .iter()
        .take_while(|disk| disk.mode != disk_mode::NONE)
    {
        slots.push(Slot::Block(block(disk, home)?));
    }
    slots.push(Slot::rng());
    slots.push(Slot::console());
    debug_assert!(slots.len() <= VIRTIO_MAX && slots.len() as u32 + 16 <= SPIS);
    Ok(slots)
}

fn block(disk: &DiskRecord, home: NodeId) -> Result<Block, Refusal> {
    let block_size = match disk.block_size {
        512 => BlockSize::B512,
        4096 => BlockSize::B4096,
        other => {
            return Err(impossible(
                other.into(),
                format_args!("blocks of {other} bytes: 512 or 4096 are possible"),
            ));
        }
    };
    let (backing, bytes) = match disk.mode {
        disk_mode::COW => {
            let base = content(disk.entry, kind::DISK)?;
            let size = if disk.size == 0 {
                base.len() as u64
            } else {
                disk.size
            };
            let limit = if disk.overlay_max == 0 {
                size
            } else {
                disk.overlay_max
            };
            let cow = CowDisk::new(base, size, limit, home)
                .map_err(|error| impossible(size, format_args!("{error}")))?;
            (Backing::Cow(cow), size)
        }
        disk_mode::READ_ONLY => {
            let base = content(disk.entry, kind::DISK)?;
            (Backing::ReadOnly(base), base.len() as u64)
        }
        disk_mode::PERSISTENT => {
            let partition = disk::take(disk.partition.as_str().unwrap_or_default())
                .map_err(|error| unavailable(disk, error))?;
            let bytes = partition.sectors() * SECTOR_SIZE;
            (Backing::Partition(partition), bytes)
        }
        other => {
            return Err(impossible(
                other.into(),
                format_args!("a disk of unknown kind {other}"),
            ));
        }
    };
    let options = Options {
        capacity: bytes / SECTOR_SIZE,
        block_size,
        read_only: disk.mode == disk_mode::READ_ONLY,
        discard: disk.mode == disk_mode::COW,
        id: *b"underpin\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    Ok(Block::new(Blk::new(options), backing))
}

fn unavailable(disk: &DiskRecord, error: Unavailable) -> Refusal {
    let name = disk.partition;
    match error {
        Unavailable::Missing => impossible(
            0,
            format_args!("no disk of the machine has a partition named {name}"),
        ),
        Unavailable::Taken => Refusal::new(
            code::BUSY,
            0,
            format_args!("partition {name} is in use by another VM"),
        ),
    }
}
