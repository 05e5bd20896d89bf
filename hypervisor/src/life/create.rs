//! From a description to a VM that runs.

mod disks;

use crate::cluster::calls::{self, Span};
use crate::devices::{
    Block, Cable, Console, Devices, Net, Rng, VirtualDevice, balloon::Balloon,
    control_port::ControlPort, virtio::as_a,
};
use crate::drivers::Partition;
use crate::guest::layout::{self, Places, RAM_START, SPIS, VIRTIO_MAX};
use crate::guest::{Guest, Paging, sessions};
use crate::machine::{self, entropy, stretch};
use crate::memory::address_space::{Bytes, Policy, Source};
use crate::memory::{AddressSpace, Vmid, frames, heap, regions, sharing};
use crate::vcpu::{Vcpu, sched};
use crate::vms::{Instance, Vm, instance::connect, seats};
use abi::bundle::{
    DISK_NEVER_SHARE, DiskRecord, HOLD_MS_MAX, NET_DOWN, NET_PLAIN, NET_UPLINK, NO_ENTRY,
    NetRecord, REGION_READ_ONLY, REGIONS_MAX, VM_FLAGS, VmRecord, block_policy, claim,
    control_rights, disk_mode, kind,
};
use abi::{Text, coherence::SWITCHES, control::code};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::iter::repeat;
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange, NodeId, VmId};
use model_control::Refusal;
use model_frame_table::Owner;
use model_guest_image::{
    GuestTree, HEADER_SIZE, ImageHeader, Kernel, Layout, RegionNode, layout, region_windows,
};
use model_scheduler::{Load, NodeSet, Parameters};
use model_vgic::Redistributor;
use model_virtio::net;

/// The most vCPUs of a VM.
const VCPUS_MAX: u32 = 16;
/// The disks of a VM are users of frames too: as guest frames beyond any memory.
const FIRST_DISK_USER: u64 = 0xffff_ff00;
/// Bytes of heap that a VM of the largest kind takes, and some to spare.
const HEAP_FOR_A_VM: usize = 256 * 1024;

fn impossible(value: u64, sentence: core::fmt::Arguments<'_>) -> Refusal {
    Refusal::new(code::IMPOSSIBLE, value, sentence)
}

/// Checks a description as far as the machine does not matter.
pub fn check(record: &VmRecord) -> Result<(), Refusal> {
    let VmRecord {
        vcpus,
        memory,
        base,
        weight,
        cap,
        switched,
        hold_ms,
        nodes,
        ..
    } = *record;
    for (bytes, most) in [(memory, 256 << 30), (base, memory)] {
        if bytes == 0 || !bytes.is_multiple_of(2 << 20) || bytes > most {
            let what = format_args!(
                "memory is {bytes} bytes; it must be a multiple of 2 MiB and at most {most}"
            );
            return Err(impossible(bytes, what));
        }
    }
    for (what, value, least, most) in [
        ("vcpus", vcpus, 1, VCPUS_MAX),
        ("weight", weight, 1, 10_000),
        ("cap", cap.into(), 0, 100),
        ("hold_ms", hold_ms.into(), 0, HOLD_MS_MAX.into()),
        ("switched", switched.into(), 0, (1 << SWITCHES.len()) - 1),
    ] {
        if !(least..=most).contains(&value) {
            let sentence = format_args!("{what} is {value}; it must be between {least} and {most}");
            return Err(impossible(value.into(), sentence));
        }
    }
    let known = (record.flags | VM_FLAGS, record.reserved) == (VM_FLAGS, 0)
        && record.claim <= claim::LAST
        && record.blocks <= block_policy::LAST
        && record.control <= control_rights::LAST;
    if !(known && record.hide <= 1 && record.never_share <= 1 && record.has_texts()) {
        let sentence = format_args!(
            "invalid VM description: unknown flag or sharing policy, or a text that is not UTF-8"
        );
        return Err(impossible(0, sentence));
    }
    regions::check(record)?;
    if record.hosts != 0 {
        check_spanning(record)?;
    }
    let count = machine::get().nodes();
    let missing = nodes.checked_shr(count as u32).unwrap_or(0);
    if missing != 0 {
        let node = missing.trailing_zeros() as usize + count;
        let what = format_args!("there is no node {node}: the machine has {count}, from 0 on");
        return Err(impossible(node as u64, what));
    }
    Ok(())
}

/// Checks that a VM over several hosts needs nothing that only memory of one host can have.
fn check_spanning(record: &VmRecord) -> Result<(), Refusal> {
    let is_on = |name: Text<40>| !name.is_empty();
    let on_partitions = |disk: &DiskRecord| is_on(disk.partition) || is_on(disk.overlay_on);
    for (is_there, what) in [
        (
            record.base != record.memory,
            "memory that is given and taken (memory.base below memory.max)",
        ),
        (is_on(record.swap), "a swap partition"),
        (
            record.disks.iter().any(on_partitions),
            "disks on partitions",
        ),
        (regions::records(record).next().is_some(), "shared regions"),
        (machine::get().nodes() > 1, "a machine with several nodes"),
        (
            (record.claim, record.hide, record.control) != (0, 0, 0),
            "memory shared with other VMs, or a control port",
        ),
    ] {
        if is_there {
            let sentence = format_args!("a VM over several hosts cannot have {what}");
            return Err(impossible(record.hosts.into(), sentence));
        }
    }
    Ok(())
}

/// Makes what the VM needs of the bundle its share group's, where it is no other's.
pub fn adopt(record: &VmRecord) -> Result<(), Refusal> {
    let group = sharing::group(record.group).ok_or_else(|| {
        let what = format_args!("too many share groups (limit {})", model_sharing::ACCOUNTS);
        impossible(0, what)
    })?;
    let is_there = |disk: &&DiskRecord| disk.mode != disk_mode::NONE;
    let disks = record.disks.iter().filter(is_there).map(|disk| disk.entry);
    sharing::adopt(disks.chain([record.kernel, record.initrd]), group);
    Ok(())
}

/// Everything a VM needs, ready to run.
pub fn instance(vm: &Vm, id: VmId) -> Result<Arc<Instance>, Refusal> {
    instance_with(vm, id, |record, vmid, home, virtio| {
        address_space(record, id, vmid, home, virtio)
    })
}

/// The same, with what makes its memory from its description, a VMID, its home and the number of its
/// virtio devices.
pub fn instance_with(
    vm: &Vm,
    id: VmId,
    space: impl FnOnce(&VmRecord, &Vmid, NodeId, u8) -> Result<Box<AddressSpace>, Refusal>,
) -> Result<Arc<Instance>, Refusal> {
    let record = &vm.record();
    let _reserved = heap::reserve(HEAP_FOR_A_VM).ok_or_else(|| {
        let what = format_args!("no memory left for the VM's bookkeeping");
        Refusal::new(code::NO_MEMORY, HEAP_FOR_A_VM as u64, what)
    })?;
    stretch::look(stretch::Kind::Control);
    let span = Span::of(record)?;
    let parameters = parameters(record);
    let nodes = parameters.nodes;
    let load = u64::from(parameters.weight) * u64::from(record.vcpus);
    let loads = sched::loads();
    let home = model_scheduler::place(load, nodes, &loads).unwrap_or(NodeId(0));
    if let Some(group) = sharing::group(record.group) {
        sharing::enter_group(id.index, group);
    }
    let virtio = devices(record, id, home, span.as_deref())?;
    let swaps = !record.swap.is_empty();
    let swap = swaps.then(|| disks::scratch(record.swap)).transpose()?;
    let vmid = Vmid::take().ok_or_else(|| {
        let what = "no VMID is free: VMs that have ended are still being taken apart";
        impossible(0, format_args!("{what}"))
    })?;
    let count = record.vcpus as usize;
    let places = match &span {
        Some(span) if !span.is_first() => layout::places_elsewhere(count),
        _ => layout::places(count, virtio.len()),
    };
    let places =
        places.map_err(|refused| impossible(virtio.len() as u64, format_args!("{refused}")))?;
    // Memory last: what was claimed before is given back here, tables are not.
    let vcpus = vcpus(record.vcpus)?;
    let parts = (virtio, places, swap, span);
    let instance = with_memory(record, (id, home, vmid), vcpus, parts, space)?;
    stretch::look(stretch::Kind::Control);
    let homes = vcpu_homes(record, home, nodes, &loads);
    for (vcpu, home) in instance.vcpus.iter().zip(homes) {
        if instance.is_elsewhere(vcpu.index.into()) {
            continue;
        }
        seats::enter(vcpu.entity, &instance, vcpu.index, home, parameters).map_err(|refused| {
            sessions::leave(id);
            impossible(0, format_args!("{refused}"))
        })?;
    }
    Ok(instance)
}

/// What the scheduler is told of each of its vCPUs.
pub fn parameters(record: &VmRecord) -> Parameters {
    Parameters {
        weight: record.weight as u16,
        cap: record.cap as u8,
        nodes: sched::node_set(record.nodes),
    }
}

/// Puts a VM together from what was made for it. Apart, as it passes through the stack, on which its devices are made
/// from the same caller.
#[inline(never)]
fn with_memory(
    record: &VmRecord,
    (id, home, vmid): (VmId, NodeId, Vmid),
    vcpus: Box<[Vcpu]>,
    (virtio, places, swap, span): (Devices, Places, Option<Partition>, Option<Box<Span>>),
    space: impl FnOnce(&VmRecord, &Vmid, NodeId, u8) -> Result<Box<AddressSpace>, Refusal>,
) -> Result<Arc<Instance>, Refusal> {
    let space = space(record, &vmid, home, shown(record, &virtio));
    let space = space.inspect_err(|_| release(&vcpus))?;
    let bases = virtio
        .iter()
        .filter_map(|device| as_a::<Block>(&**device)?.base());
    let paging = Paging::new(swap, bases);
    let rights = record.control;
    if rights != control_rights::NONE && !sessions::enter(id, record.name, record.group, rights) {
        release(&vcpus);
        let most = sessions::CONTROL_VMS_MAX;
        let what = format_args!("too many control VMs are running (limit {most})");
        return Err(impossible(most as u64, what));
    }
    let guest = Guest::new((id, home, record.name), (space, vmid), vcpus, paging, span);
    Ok(Arc::new(Instance::new(guest, virtio, places)))
}

/// The home of each vCPU: all at `home`, unless the VM has more vCPUs than that node has CPUs, or more
/// memory than is free there.
fn vcpu_homes(
    record: &VmRecord,
    home: NodeId,
    nodes: NodeSet,
    loads: &[Load],
) -> impl Iterator<Item = NodeId> {
    let near = machine::get().preference.from(home).iter().copied();
    let allowed = near.filter(move |node| nodes.contains(*node));
    let with_cpus = allowed.filter_map(|node| Some((node, loads.get(usize::from(node.0))?.cpus)));
    let free = (frames::counts(home).free * FRAME_SIZE).max(1);
    let parts = record
        .memory
        .div_ceil(free)
        .clamp(1, record.vcpus.max(1).into());
    let most = u64::from(record.vcpus).div_ceil(parts) as u16;
    model_scheduler::homes(with_cpus, most).chain(repeat(home))
}

/// Plugs its cables in and turns vCPU 0 on; of a VM that spans hosts, once all have it.
pub fn launch(instance: &Arc<Instance>) {
    connect(instance);
    if instance.span.is_some() {
        return calls::begin(instance.id);
    }
    turn_on_first(instance);
}

/// Turns vCPU 0 on.
pub fn turn_on_first(instance: &Instance) {
    let (entry, tree) = instance.space.begin();
    if let Some(first) = instance.vcpus.first() {
        // A vCPU that was just made is off, and the entry was laid out in memory.
        let _ = first.turn_on(entry, true, tree.0);
    }
}

/// Gives back the entities of vCPUs that never entered a queue.
fn release(vcpus: &[Vcpu]) {
    for vcpu in vcpus {
        seats::release(vcpu.entity);
    }
}

fn vcpus(count: u32) -> Result<Box<[Vcpu]>, Refusal> {
    let mut vcpus: Vec<Vcpu> = Vec::with_capacity(count as usize);
    for index in 0..count as u16 {
        let Some(entity) = sched::claim() else {
            release(&vcpus);
            let what = format_args!("too many vCPUs are running");
            return Err(impossible(index.into(), what));
        };
        let mpidr = model_guest_image::vcpu_mpidr(index);
        let redistributor = Redistributor::new(index.into(), count as usize);
        vcpus.push(Vcpu::new(index, mpidr, entity, redistributor));
    }
    stretch::look(stretch::Kind::Control);
    Ok(vcpus.into_boxed_slice())
}

/// Lays kernel, initrd and device tree out in new memory.
fn address_space(
    record: &VmRecord,
    id: VmId,
    vmid: &Vmid,
    home: NodeId,
    virtio: u8,
) -> Result<Box<AddressSpace>, Refusal> {
    let ram = IpaRange::of(RAM_START, record.memory);
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
    let initrd = laid.initrd.map(|range| (range.start, initrd));
    let begin = (laid.entry, laid.tree.start);
    with_sources(record, (id, vmid, home), begin, kernel, tree.into(), initrd)
}

/// The address space of a parked VM, nothing of it there yet.
pub fn parked_space(
    record: &VmRecord,
    who: (VmId, &Vmid, NodeId),
    [kernel_at, tree_at, initrd_at]: [u64; 3],
    tree: Box<[u8]>,
) -> Result<Box<AddressSpace>, Refusal> {
    let kernel = content(record.kernel, kind::KERNEL)?;
    let initrd = match record.initrd {
        NO_ENTRY => None,
        entry => Some((Ipa(initrd_at), content(entry, kind::INITRD)?)),
    };
    let begin = (Ipa(kernel_at), Ipa(tree_at));
    let ram = IpaRange::of(RAM_START, record.memory);
    for at in [kernel_at, tree_at, initrd_at].map(Ipa) {
        if at.0 != 0 && !(at.is_aligned(FRAME_SIZE) && ram.contains(at)) {
            let what = format_args!("{at} is no page of its memory, which begins with an image");
            return Err(impossible(at.0, what));
        }
    }
    with_sources(record, who, begin, kernel, tree, initrd)
}

/// An address space with kernel, device tree and initial RAM disk where they belong.
fn with_sources(
    record: &VmRecord,
    (id, vmid, home): (VmId, &Vmid, NodeId),
    begin: (Ipa, Ipa),
    kernel: &'static [u8],
    tree: Box<[u8]>,
    initrd: Option<(Ipa, &'static [u8])>,
) -> Result<Box<AddressSpace>, Refusal> {
    let ram = IpaRange::of(RAM_START, record.memory);
    let windows = regions::join(record, windows(record), home)?;
    let of_bundle = |at, bytes| Source {
        at,
        bytes: Bytes::Static(bytes),
        frames: Some(sharing::frame_of(bytes)),
    };
    let sources = [
        Some(of_bundle(begin.0, kernel)),
        Some(Source {
            at: begin.1,
            bytes: Bytes::Owned(tree),
            frames: None,
        }),
        initrd.map(|(at, bytes)| of_bundle(at, bytes)),
    ];
    let memory = (ram, windows);
    let (number, policy) = (vmid.number(), policy(record));
    let mut space = AddressSpace::new(id, number, memory, sources, begin, home, policy)?;
    if record.hosts != 0 {
        space.span();
    }
    Ok(space)
}

/// Where a VM finds the regions that it shares.
fn windows(record: &VmRecord) -> impl Iterator<Item = IpaRange> {
    let ram = IpaRange::of(RAM_START, record.memory);
    region_windows(ram, regions::records(record).map(|region| region.size))
}

/// Whether a VM of this description shares pages with others.
const fn shares(record: &VmRecord) -> bool {
    record.never_share == 0 && record.hosts == 0
}

/// What a VM of this description shares.
pub fn policy(record: &VmRecord) -> Policy {
    Policy {
        share: shares(record),
        keep_blocks: record.blocks == block_policy::KEEP,
        hide: record.hide != 0,
    }
}

fn tree(record: &VmRecord, ram: IpaRange, laid: &Layout, virtio: u8) -> Result<Vec<u8>, Refusal> {
    let seeds = entropy::words();
    stretch::look(stretch::Kind::Control);
    let mut nodes = heapless::Vec::<_, REGIONS_MAX>::new();
    for (region, window) in regions::records(record).zip(windows(record)) {
        let node = RegionNode {
            name: region.name.as_str().unwrap_or_default(),
            window,
            read_only: region.flags & REGION_READ_ONLY != 0,
        };
        // A description has no more of them.
        let _ = nodes.push(node);
    }
    let tree = GuestTree {
        ram,
        vcpus: record.vcpus as u16,
        hosts: &calls::shares(record),
        virtio,
        regions: &nodes,
        bootargs: record.command_line.as_str().unwrap_or_default(),
        initrd: laid.initrd,
        seeds,
    };
    tree.write(|| stretch::look(stretch::Kind::Control))
        .map_err(|error| impossible(0, format_args!("the device tree: {error}")))
}

fn content(entry: u32, kind: u32) -> Result<&'static [u8], Refusal> {
    let bundle = machine::get().bundle.as_ref();
    bundle
        .and_then(|bundle| bundle.content_of(entry, kind))
        .ok_or_else(|| wrong_entry(entry))
}

/// Sums of a VM's kernel and initial RAM disk; zero: it has none.
#[cfg(not(target_os = "none"))]
pub fn images(record: &VmRecord) -> [u64; 2] {
    let images = [(record.kernel, kind::KERNEL), (record.initrd, kind::INITRD)];
    images.map(|(entry, kind)| content(entry, kind).map_or(0, abi::upgrade::checksum))
}

fn wrong_entry(entry: u32) -> Refusal {
    let what =
        format_args!("bundle entry {entry} is missing or of the wrong kind for this description");
    impossible(entry.into(), what)
}

/// The virtio devices: disks in their order, then entropy where there is some, a console, a balloon, networks, and the
/// control port.
fn devices(
    record: &VmRecord,
    vm: VmId,
    home: NodeId,
    span: Option<&Span>,
) -> Result<Devices, Refusal> {
    if span.is_some_and(|span| !span.is_first()) {
        return Ok(Devices::new());
    }
    let mut all = Devices::with_capacity(VIRTIO_MAX);
    let disks = record.disks.iter();
    for disk in disks.take_while(|disk| disk.mode != disk_mode::NONE) {
        let share = shares(record) && disk.flags & DISK_NEVER_SHARE == 0;
        let (n, user) = (all.len(), disk_user(vm, all.len()));
        all.push(on_heap(|| disks::block(disk, n, home, user, share))?);
        stretch::look(stretch::Kind::Control);
    }
    if entropy::is_seeded() {
        all.push(on_heap(|| Ok(Rng::new(all.len())))?);
    }
    all.push(on_heap(|| Ok(Console::new(all.len())))?);
    // Pages of a VM that spans hosts are not given back.
    if span.is_none() {
        all.push(on_heap(|| Ok(Balloon::new(record.hold_ms, all.len())))?);
    }
    for net in record.nets.iter().take_while(|net| !net.switch.is_empty()) {
        all.push(on_heap(|| network(net, all.len(), record.vcpus))?);
        stretch::look(stretch::Kind::Control);
    }
    if record.control != control_rights::NONE {
        all.push(on_heap(|| Ok(ControlPort::new(all.len())))?);
    }
    debug_assert!(all.len() <= VIRTIO_MAX && all.len() as u32 + 16 <= SPIS);
    Ok(all)
}

/// How many virtio devices the guest's tree has: at other hosts as many as at the first, which has them.
fn shown(record: &VmRecord, devices: &Devices) -> u8 {
    let disks = record
        .disks
        .iter()
        .take_while(|it| it.mode != disk_mode::NONE);
    let nets = record.nets.iter().take_while(|it| !it.switch.is_empty());
    let elsewhere = disks.count() + nets.count() + usize::from(entropy::is_seeded()) + 1;
    let is_elsewhere = record.hosts != 0 && devices.is_empty();
    let count = if is_elsewhere {
        elsewhere
    } else {
        devices.len()
    };
    count as u8
}

/// Makes a device. Not inlined, as each passes through the stack.
#[inline(never)]
fn on_heap<D: VirtualDevice>(
    make: impl FnOnce() -> Result<D, Refusal>,
) -> Result<Box<dyn VirtualDevice>, Refusal> {
    Ok(Box::new(make()?))
}

/// A disk of a VM as a user of frames.
pub const fn disk_user(vm: VmId, n: usize) -> Owner {
    let gfn = Gfn(FIRST_DISK_USER + n as u64);
    Owner { vm, gfn }
}

fn network(record: &NetRecord, window: usize, vcpus: u32) -> Result<Net, Refusal> {
    let (flags, mtu) = (record.flags, record.mtu);
    if flags & !(NET_PLAIN | NET_UPLINK | NET_DOWN) != 0 || mtu < net::MTU_MIN {
        let what = format_args!("a network device with flags {flags:#x} and an MTU of {mtu}");
        return Err(impossible(flags.into(), what));
    }
    let cable = Cable::plug(record)
        .map_err(|error| impossible(0, format_args!("switch {}: {error}", record.switch)))?;
    let options = net::Options {
        mac: record.mac,
        mtu: record.mtu,
        offloads: record.flags & NET_PLAIN == 0,
        // What Linux uses: one for each CPU.
        pairs: vcpus.min(net::PAIRS_MAX.into()) as u16,
    };
    let up = record.flags & NET_DOWN == 0;
    Ok(Net::new(net::Net::new(options), window, cable, up))
}
