//! From the first instruction in Rust to the first guest: the steps of [`crate::primary`].

mod table;

pub use table::entries_at;

use crate::devices::net::from_outside;
use crate::drivers::{self, ENDS, Ends, disk, uplink};
use crate::economy::paging;
use crate::machine::{self, Cpu, console, cpu, give_up, stretch};
use crate::memory::frames::{self, Told};
use crate::memory::heap;
use crate::run::exit::take_interrupts;
use crate::{placement, vms};
use abi::bundle::Bundle;
use arch::boot::{SecondaryRecord, image_parts, secondary_entry};
use arch::mmu::{El2Map, MapError, Rights};
use arch::{cpu as metal, entry, features, gic, guest, mmu, psci, timer, uart::Uart};
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{CpuId, FRAME_SIZE, Pa, PaRange};
use model_frame_table::{
    MAX_NODES, MAX_ORDER, MAX_RANGES, MemoryMap, MemoryRange, PreferenceOrder, entries_bytes,
};
use model_id_registers::{GuestIdRegisters, HostIdRegisters, Shown};
use model_loans::Scattered;
use model_machine_tree::{Machine, Memory};
use model_native_el1::Native;
use model_stage2::{IpaSize, VmidBits, vtcr};
use table::{carve_entries, fill, fill_pool, scattered_ranges};

/// A CPU's stack, as an order of frames: 128 KiB, as making a VM takes 40 on top of what asked for it.
const STACK_ORDER: u8 = 5;
/// Bytes of a CPU's stack.
pub const STACK: u64 = FRAME_SIZE << STACK_ORDER;
/// Where stacks are mapped, each with as much unmapped space before it.
const STACKS: u64 = 0x4000_0000_0000;
/// How long a CPU that was started may take to come up, in seconds.
const START_PATIENCE: u64 = 10;

// So all memory and CPUs of a machine that can be read are used.
const _: () = assert!(model_machine_tree::MAX_NODES <= MAX_NODES);

/// Runs of memory that are in use before there are pools.
pub type InUse = heapless::Vec<PaRange, 48>;

/// Reads the machine's device tree, with the MMU off. A machine without one, or with one that
/// makes no sense, cannot even say so: there is no console yet.
pub fn read_device_tree(address: u64) -> (Machine, PaRange) {
    let start = core::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the boot protocol (booting.rst) says that x0 is the address of a device tree in RAM,
    // which nothing writes any more.
    let header = unsafe { core::slice::from_raw_parts(start, 8) };
    let Some(size) = model_machine_tree::blob_size(header) else {
        give_up(format_args!("no device tree"))
    };
    // SAFETY: as above; the blob says how long it is.
    let blob = unsafe { core::slice::from_raw_parts(start, size) };
    match model_machine_tree::read(blob) {
        Ok(tree) => (tree, PaRange::of(Pa(address), size as u64)),
        Err(error) => give_up(format_args!("{error}")),
    }
}

/// Maps the image with W^X, all other RAM, and the devices that are used; then turns the MMU on.
pub fn turn_mmu_on(tree: &Machine, _blob: PaRange) -> El2Map {
    // SAFETY: the first CPU comes here once, with the MMU off.
    let mut map = unsafe { El2Map::take_boot_tables() };
    if let Err(error) = map_all(&mut map, tree) {
        give_up(format_args!("{error}"));
    }
    // SAFETY: the map holds the image, the stack this runs on, all RAM and all devices.
    unsafe { mmu::enable(map.root()) }
    map
}

fn map_all(map: &mut El2Map, tree: &Machine) -> Result<(), MapError> {
    let image = image_parts();
    map.map(image.code.start.0, image.code, Rights::Code)?;
    map.map(image.constants.start.0, image.constants, Rights::Constant)?;
    map.map(image.data.start.0, image.data, Rights::Data)?;
    map.map(image.stack.start.0, image.stack, Rights::Data)?;
    for memory in &tree.memory {
        for run in without(memory.range, image.whole).into_iter().flatten() {
            map.map(run.start.0, run, Rights::Data)?;
        }
    }
    let mut mapped: heapless::Vec<u64, 128> = heapless::Vec::new();
    let devices = tree
        .gic
        .redistributors
        .iter()
        .copied()
        .chain([tree.gic.distributor]);
    let windows = tree.virtio.iter().map(|window| window.registers);
    let console = tree.console.iter().map(|uart| uart.base);
    let pages = console
        .chain(tree.rtc)
        .map(|start| PaRange::of(start, FRAME_SIZE));
    // What OS-0 may leave behind.
    let owned = tree.os0.iter().flat_map(|_| &tree.pci);
    let owned = owned.chain(&tree.gic.translators).copied();
    for range in devices.chain(windows).chain(pages).chain(owned) {
        let start = range.start.align_down(FRAME_SIZE);
        let end = range.end().align_up(FRAME_SIZE).unwrap_or(range.end());
        if mapped.contains(&start.0) {
            continue;
        }
        map.map(start.0, PaRange::of(start, end.0 - start.0), Rights::Device)?;
        // More devices than fit here would be an overlap, which `map` reports.
        let _ = mapped.push(start.0);
    }
    Ok(())
}

/// What is left of `range` before and behind `hole`.
fn without(range: PaRange, hole: PaRange) -> [Option<PaRange>; 2] {
    if !range.overlaps(hole) {
        return [Some(range), None];
    }
    let part = |start: Pa, end: Pa| (start < end).then(|| PaRange::of(start, end.0 - start.0));
    [
        part(range.start, hole.start.min(range.end())),
        part(hole.end().max(range.start), range.end()),
    ]
}

/// Starts the log.
pub fn open_console(tree: &Machine) {
    machine_locks::set_relax(metal::relax);
    if let Some(pl011) = &tree.console {
        // SAFETY: the device tree says that a PL011 is there; it was mapped, and only EL2 uses it.
        console::init(unsafe { Uart::new(pl011.base) }, tree.option("log="));
    }
    log::info!("Underpin {} at EL2", env!("CARGO_PKG_VERSION"));
}

/// What the device tree says, for ever.
static TREE: Once<Machine> = Once::new();

/// Keeps what the device tree says.
pub fn keep_tree(tree: Machine) -> &'static Machine {
    let _ = TREE.set(tree);
    match TREE.get() {
        Some(tree) => tree,
        None => metal::halt(),
    }
}

/// Takes the machine's memory for VMs, all but what is in use.
pub fn take_memory(mut tree: Machine, blob: PaRange) {
    let counters = placement::find_counters(&tree);
    tree.memory.retain(|memory| Some(memory.range) != counters);
    let tree = keep_tree(tree);
    let mut in_use = InUse::new();
    let fixed = [Some(image_parts().whole), Some(blob)];
    let reserved = tree.reserved.iter().copied();
    for range in fixed.into_iter().flatten().chain(reserved) {
        if in_use.push(range).is_err() {
            give_up(format_args!("too many reserved runs of memory"));
        }
    }
    use_memory(tree, (&tree.memory, &[]), tree.initrd, in_use, counters);
}

/// Builds the frame table, each range's part in the range itself, and fills the pools with what is
/// not in use. The bundle lies at `bundle_at`. Of some blocks it has pages only, whose entries are in the first
/// range.
pub fn use_memory(
    tree: &'static Machine,
    (memory, scattered): (&[Memory], &[Scattered]),
    bundle_at: Option<PaRange>,
    mut in_use: InUse,
    counters: Option<PaRange>,
) {
    let bundle = bundle_at.and_then(open_bundle);
    if bundle_at.is_some_and(|range| in_use.push(range).is_err()) {
        give_up(format_args!("too many reserved runs of memory"));
    }
    let mut ranges: heapless::Vec<MemoryRange<'static>, MAX_RANGES> = heapless::Vec::new();
    let mut frame_table_bytes = 0;
    for memory in memory {
        let frames = memory.range.whole_frames();
        if frames.count == 0 {
            continue;
        }
        let entries = carve_entries(frames, frames.count, &mut in_use);
        frame_table_bytes += size_of_val(entries) as u64;
        let range = MemoryRange {
            frames,
            node: memory.node,
            entries,
        };
        if ranges.push(range).is_err() {
            give_up(format_args!("more than {MAX_RANGES} runs of memory"));
        }
    }
    let whole = ranges.len();
    let blocks = scattered_ranges(tree, scattered, &ranges, &mut in_use);
    frame_table_bytes += blocks.len() as u64 * entries_bytes(1 << MAX_ORDER);
    if ranges.extend_from_slice(&blocks).is_err() {
        give_up(format_args!("more than {MAX_RANGES} runs of memory"));
    }
    let map = match MemoryMap::new(&ranges) {
        Ok(map) => map,
        Err(error) => give_up(format_args!("the machine's memory: {error}")),
    };
    install(tree, map, (bundle, bundle_at), frame_table_bytes, counters);
    let (whole, blocks) = ranges.split_at(whole);
    for range in whole {
        fill_pool(range.frames, range.node, &mut in_use);
    }
    for (range, pages) in blocks.iter().zip(scattered) {
        for (run, is_lent) in pages.runs() {
            fill(run.whole_frames(), range.node, is_lent);
        }
    }
    keep_zeroed();
    frames::count();
}

/// Notes what the machine is.
pub fn install(
    tree: &'static Machine,
    map: MemoryMap<'static>,
    (bundle, bundle_at): (Option<Bundle<'static>>, Option<PaRange>),
    frame_table_bytes: u64,
    counters: Option<PaRange>,
) {
    let distances = &tree.distances;
    let preference = PreferenceOrder::new(distances.count(), |a, b| distances.between(a, b).into());
    machine::install(machine::Machine {
        vtcr: vtcr(
            IpaSize::ONE_TABLE,
            features::physical_address_bits(),
            vmid_bits(),
        ),
        tree,
        counters,
        map,
        preference,
        bundle,
        bundle_at,
        frame_table_bytes,
        started: timer::now(),
    });
}

/// How many bits of VMID there are.
pub fn vmid_bits() -> VmidBits {
    if features::has_16_bit_vmid() {
        VmidBits::Sixteen
    } else {
        VmidBits::Eight
    }
}

/// The bundle in a run of memory, if one is there.
pub fn open_bundle(range: PaRange) -> Option<Bundle<'static>> {
    if !range.start.0.is_multiple_of(FRAME_SIZE) {
        log::warn!(
            "no VMs: the bundle at {} begins within a frame",
            range.start
        );
        return None;
    }
    let start = core::ptr::with_exposed_provenance::<u8>(range.start.0 as usize);
    // SAFETY: the boot loader put it into RAM; it is set aside below and never written.
    let bytes = unsafe { core::slice::from_raw_parts(start, range.size as usize) };
    Bundle::parse(bytes)
        .map_err(|error| log::warn!("no VMs: {error}"))
        .ok()
}

/// Lets idle CPUs keep blocks of 2 MiB zeroed on each node: an eighth of what is free, from 4 up to
/// 128 of them. On the command line, `zeroed=64M` sets how much; anything else, as `zeroed=off`,
/// is none.
pub fn keep_zeroed() {
    let machine = machine::get();
    let word = machine.tree.option("zeroed=");
    let mib = |word: &str| word.strip_suffix('M')?.parse::<u64>().ok();
    for node in machine.node_ids() {
        frames::with_pool(node, |pool| {
            pool.keep_zeroed(match word {
                Some(word) => mib(word).unwrap_or(0) / 2,
                None => (pool.counts().free >> 3 >> MAX_ORDER).clamp(4, 128),
            });
        });
    }
}

/// Makes the per-CPU part of the executing CPU.
pub fn first_cpu() {
    let machine = machine::get();
    // SAFETY: the device tree says where the distributor is; it was mapped.
    unsafe { gic::Distributor::new(machine.tree.gic.distributor.start) }.init();
    let affinity = metal::affinity();
    let mut cpus = machine.tree.cpus.iter();
    let number = cpus.position(|cpu| cpu.mpidr == affinity).unwrap_or(0);
    let cpu = make_cpu(machine.tree, number, room_of_cpu(number));
    machine::add_cpu(cpu);
    become_cpu(cpu);
    this_cpu(cpu);
}

/// Room for a CPU's own structure, in memory of its node.
fn room_of_cpu(number: usize) -> Pa {
    let frames = (size_of::<Cpu>() as u64).div_ceil(FRAME_SIZE);
    let order = frames.next_power_of_two().ilog2() as u8;
    let node = machine::get().tree.cpus[number].node;
    match frames::take_for_el2(node, order) {
        Some(frame) => frame.address(),
        None => give_up(format_args!("no memory for cpu {number}")),
    }
}

/// Puts a value of EL2's own at `place`, for ever.
///
/// # Safety
///
/// It is memory of EL2's own that nobody else has or gets, large enough and aligned.
pub unsafe fn put<T>(place: Pa, value: T) -> &'static T {
    let place = core::ptr::with_exposed_provenance_mut::<T>(place.0 as usize);
    // SAFETY: the caller's promise.
    unsafe {
        place.write(value);
        &*place
    }
}

/// Makes a CPU's own structure at `place`, which has room for it and is nobody's; the machine does not know it yet.
pub fn make_cpu(tree: &Machine, number: usize, place: Pa) -> &'static Cpu {
    let described = &tree.cpus[number];
    let cpu = Cpu::new(CpuId(number as u16), described.node, described.mpidr);
    // SAFETY: callers took it from the pools or from OS-0's arena for this.
    unsafe { put(place, cpu) }
}

/// Makes `cpu` the executing one's structure.
pub fn become_cpu(cpu: &'static Cpu) {
    metal::set_local_word(core::ptr::from_ref(cpu).expose_provenance() as u64);
    machine_locks::set_rank_tracker(|rank, event| cpu::this().held.note(rank, event));
}

/// Maps [`STACK`] bytes from `stack` on as that CPU's stack; gives its end.
pub fn map_stack(map: &mut El2Map, number: usize, stack: Pa) -> Result<u64, MapError> {
    let top = STACKS + (number as u64 * 2 + 2) * STACK;
    let range = PaRange::of(stack, STACK);
    map.map(top - STACK, range, Rights::Data)?;
    Ok(top)
}

/// What a CPU finds when it starts.
pub fn record_of(cpu: &'static Cpu, stack: u64, map: &El2Map) -> SecondaryRecord {
    SecondaryRecord {
        stack,
        root: map.root().0,
        local_word: core::ptr::from_ref(cpu).expose_provenance() as u64,
    }
}

static HOST_ID: SpinLock<Option<HostIdRegisters>> = SpinLock::new(Rank::Vm, None);

/// Sets up the executing CPU: its interrupt interface, what guests may do on it, what it can.
pub fn this_cpu(cpu: &'static Cpu) {
    let machine = machine::get();
    let tree = &machine.tree;
    // SAFETY: the device tree says where redistributors are; they were mapped.
    let Some(redistributor) = (unsafe { gic::Redistributor::find_own(&tree.gic.redistributors) })
    else {
        give_up(format_args!("{} has no redistributor", cpu.id));
    };
    redistributor.init();
    for intid in [
        gic::SGI_KICK,
        tree.gic.maintenance.intid,
        tree.timer.virtual_timer.intid,
        tree.timer.hypervisor_timer.intid,
    ] {
        redistributor.enable(intid);
    }
    gic::init_cpu_interface();
    assert!(
        cpu.redistributor.set(redistributor).is_ok(),
        "{} starts once",
        cpu.id
    );
    if metal::is_e2h() {
        give_up(format_args!(
            "{} cannot run with HCR_EL2.E2H clear, as Underpin does",
            cpu.id
        ));
    }
    let branches = features::branch_history_length();
    if branches > 0 && !tree.has_word("bhb=off") {
        entry::forget_branches_at_exits(branches);
    }
    // SAFETY: EL2 runs with E2H clear (boot.S), and no guest has run here.
    unsafe { guest::init_cpu(machine.vtcr, &Native::of(crate::machine::id_register)) }
    note_features();
    cpu.online.store(true, Ordering::Release);
}

/// Guests see no feature that the executing CPU lacks.
pub fn note_features() {
    let registers = features::id_registers();
    let own =
        HostIdRegisters::new(|crm, op2| registers[(usize::from(crm) - 1) * 8 + usize::from(op2)]);
    let mut all = HOST_ID.lock();
    *all = Some(all.take().map_or(own, |others| others.minimum(own)));
}

/// Says what guests see, once all CPUs have [noted](note_features) what they can.
pub fn settle_features() {
    let shown = Shown {
        pa_bits: features::physical_address_bits().min(40) as u8,
        pointer_auth: false,
        mops: false,
    };
    if let Some(host_id) = &*HOST_ID.lock() {
        machine::set_guest_id(GuestIdRegisters::new(host_id, shown));
    }
}

/// Starts the other CPUs through PSCI and waits for each.
pub fn other_cpus(map: &mut El2Map) {
    let machine = machine::get();
    let own = cpu::this().id;
    for number in 0..machine.tree.cpus.len() {
        if number != usize::from(own.0) {
            start_cpu(map, number);
        }
    }
    settle_features();
}

fn start_cpu(map: &mut El2Map, number: usize) {
    let machine = machine::get();
    let described = &machine.tree.cpus[number];
    let Some(stack) = frames::take_for_el2(described.node, STACK_ORDER) else {
        log::warn!("CPU {number} is not used: no memory for its stack");
        return;
    };
    let top = match map_stack(map, number, stack.address()) {
        Ok(top) => top,
        Err(error) => return log::warn!("CPU {number} is not used: {error}"),
    };
    let cpu = make_cpu(machine.tree, number, room_of_cpu(number));
    let record = record_of(cpu, top, map);
    record.publish();
    let context = core::ptr::from_ref(&record).expose_provenance() as u64;
    if let Err(error) = psci::cpu_on(
        machine.conduit(),
        described.mpidr,
        secondary_entry(),
        context,
    ) {
        log::warn!("CPU {number} is not used: CPU_ON failed: {error:?}");
        return;
    }
    machine::add_cpu(cpu);
    let patience = timer::now() + START_PATIENCE * timer::frequency();
    while !cpu.online.load(Ordering::Acquire) {
        if timer::now() >= patience {
            give_up(format_args!(
                "cpu {number} was started and does not come up"
            ));
        }
        metal::relax();
    }
}

static RELEASED: AtomicBool = AtomicBool::new(false);

/// Lets the other CPUs look for work.
pub fn release_cpus() {
    RELEASED.store(true, Ordering::Release);
}

/// Waits until the machine is ready.
pub fn wait_for_release() {
    while !RELEASED.load(Ordering::Acquire) {
        metal::relax();
    }
}

/// Starts the machine's own devices.
#[inline(never)]
pub fn devices() {
    // SAFETY: as in `first_cpu`.
    drivers::init(unsafe { gic::Distributor::new(machine::get().tree.gic.distributor.start) });
}

/// One line for whoever reads the log.
pub fn say_what_was_found() {
    let machine = machine::get();
    log::info!(
        "{} CPUs, {} nodes, {} MiB of memory, image {} KiB, frame table {} KiB, heap {} KiB",
        machine::cpus().count(),
        machine.nodes(),
        machine.tree.memory_bytes() >> 20,
        image_parts().whole.size >> 10,
        machine.frame_table_bytes >> 10,
        heap::usage().1 >> 10,
    );
    for node in machine.node_ids() {
        log::info!("{node}: {} MiB free", frames::counts(node).free >> 8);
    }
}

/// Tells lower floors whom they tell of what: interrupts between two pieces of work, pages that are touched or forgotten.
pub fn connect() {
    let _ = stretch::TAKE_INTERRUPTS.set(take_interrupts);
    let _ = frames::TOLD.set(Told {
        touched: placement::touched,
        forget: disk::forget,
    });
    let _ = ENDS.set(Ends {
        request: vms::table::go_on,
        page: paging::end,
    });
    let _ = uplink::RECEIVER.set(from_outside);
}
