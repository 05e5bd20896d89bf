//! From the boot loader's modules to OS-0's first instruction.

use crate::beneath::attach::{COUNTS, IS_ON};
use crate::beneath::{CPUS, Home, OS0, Os0, Os0Cpu, filter, stage2, world};
use crate::machine::{self, Cpu, console, give_up};
use crate::memory::heap;
use crate::start::{self, STACK, keep_tree};
use crate::vcpu::sched;
use abi::firmware::{CPU_SUSPEND_64, PSCI_FEATURES};
use arch::gic::{self, Distributor};
use arch::{boot::image_parts, cache, cpu as metal, frames::Ram, mmu::El2Map, psci};
use core::sync::atomic::Ordering;
use model_addr::{FRAME_SIZE, Ipa, Pa, PaRange};
use model_firmware_calls::{NOT_SUPPORTED, PowerStateFormat};
use model_guest_image::{HEADER_SIZE, ImageHeader};
use model_machine_tree::{Conduit, MAX_MEMORY, MAX_RESERVED, Machine};
use model_os0_boot::{Chosen, Given, Layout, lay_out, rewrite, used};

/// Bytes of EL2's heap at least, for what it notes of VMs: it is not lent, so that no reference to it
/// outlives a loan.
const HEAP: u64 = 2 << 20;

/// Memory of EL2's own, given out once and for ever.
pub struct Arena {
    next: Pa,
    end: Pa,
}

impl Arena {
    /// Bytes that each CPU takes.
    const PER_CPU: u64 = STACK + Self::ROOM_OF_STRUCTS;
    const ROOM_OF_STRUCTS: u64 =
        (size_of::<Cpu>() + size_of::<Os0Cpu>()).next_multiple_of(FRAME_SIZE as usize) as u64;

    /// Room for a `T`.
    fn put<T>(&mut self, value: T) -> &'static T {
        let place = self.take(size_of::<T>() as u64, align_of::<T>() as u64);
        // SAFETY: memory of EL2's own that nobody else has or gets, large enough and aligned.
        unsafe { start::put(place, value) }
    }

    /// All that is left is EL2's heap.
    fn rest_to_heap(self) {
        let start = self.next.align_up(FRAME_SIZE).unwrap_or(self.end);
        let size = self.end.0.saturating_sub(start.0) as usize;
        let start = core::ptr::with_exposed_provenance_mut(start.0 as usize);
        // SAFETY: memory of EL2's own that nobody else has or gets.
        unsafe { heap::confine(start, size) }
    }

    /// `size` bytes at a multiple of `align`.
    pub fn take(&mut self, size: u64, align: u64) -> Pa {
        let start = self.next.align_up(align).unwrap_or(self.end);
        match start.checked_add(size).filter(|end| *end <= self.end) {
            Some(end) => {
                self.next = end;
                start
            }
            None => give_up(format_args!("EL2's own memory is too small")),
        }
    }
}

/// Readies OS-0 for the first CPU. The others stay off until it starts them.
pub fn start(tree: Machine, blob: PaRange, mut map: El2Map) {
    let tree = keep_tree(tree);
    let Some(os0) = &tree.os0 else {
        give_up(format_args!("there is no OS-0"))
    };
    check_machine(tree);
    let layout = lay_out_memory(tree, blob, os0.kernel);
    say(tree, &layout);
    let home = Home {
        hidden: layout.hidden,
        own: PaRange {
            size: layout.spare.start.0 - layout.hidden.start.0,
            ..layout.hidden
        },
        spare: layout.spare,
        tree: blob,
        upgrades: 0,
    };
    settle(tree, home, layout.arena, &mut map);
    let first = become_first_cpu(tree);
    if layout.kernel != os0.kernel.start {
        // SAFETY: both runs are RAM, the layout says that they do not overlap, and nobody else
        // runs yet.
        unsafe { copy(os0.kernel, layout.kernel) }
    }
    let size = rewrite_tree(tree, blob, layout.hidden);
    cache::clean_to_coherency(blob.start, size);
    console::hand_over();
    {
        let mut power = first.power.lock();
        // It is running; nobody can have told it to start.
        let _ = power.turn_on(Ipa(layout.kernel.0), true, blob.start.0);
        COUNTS.store(IS_ON, Ordering::Release);
    }
}

/// Makes all that EL2 needs beneath OS-0, in `room`, where it also keeps the device tree.
pub fn settle(tree: &'static Machine, mut home: Home, room: PaRange, map: &mut El2Map) {
    let mut arena = Arena {
        next: room.start,
        end: room.end(),
    };
    home.tree = keep_blob(&mut arena, home.tree);
    stage2::take_vmid();
    gic::kick_beside_os0();
    let filtered = filter::pages(tree);
    let mut ends = tree.memory.iter().map(|memory| memory.range.end());
    let found = Os0 {
        tree,
        home,
        power_states: power_states(),
        stage2: stage2::identity(&mut arena, tree, home.hidden, &filtered),
        filtered,
        // SAFETY: the device tree says where the distributor is; it was mapped.
        distributor: unsafe { Distributor::new(tree.gic.distributor.start) },
        maintenance: tree.gic.maintenance.intid,
        is_in_reach: ends.all(|end| end <= stage2::reach()),
    };
    let distributor = found.distributor;
    let part = crate::run::os0::Os0 {
        turn: world::turn,
        has_interrupt: world::has_interrupt,
        take_away: world::take_away,
        call: world::call,
        put_fp_aside: world::put_fp_aside,
    };
    let is_first = OS0.set(found).is_ok() && crate::run::os0::install(part);
    if !is_first || !crate::machine::os0::install(distributor) {
        give_up(format_args!("OS-0 starts once"));
    }
    for number in 0..tree.cpus.len() {
        make_cpu(tree, number, &mut arena, map);
    }
    arena.rest_to_heap();
}

/// Bytes of [`settle`]'s room at least.
pub fn room(tree: &Machine, blob: PaRange) -> u64 {
    let cpus = Arena::PER_CPU * tree.cpus.len() as u64;
    cpus + stage2::room(tree) + blob_bytes(blob) + HEAP
}

/// Bytes of a device tree.
fn blob_bytes(blob: PaRange) -> u64 {
    let start = core::ptr::with_exposed_provenance::<u8>(blob.start.0 as usize);
    // SAFETY: it was read before, and nobody writes it now.
    let bytes = unsafe { core::slice::from_raw_parts(start, blob.size as usize) };
    used(bytes).map_or(blob.size, |used| used as u64)
}

/// A copy of the device tree, for the image that takes this one's place.
fn keep_blob(arena: &mut Arena, blob: PaRange) -> PaRange {
    let size = blob_bytes(blob);
    let start = arena.take(size, FRAME_SIZE);
    // SAFETY: the boot loader's, or the last image's, and memory of EL2's own that nobody else has.
    let (from, to) = unsafe { (Ram::new(blob.start, size), Ram::new(start, size)) };
    to.copy_from(0, from, 0, size as usize);
    // Its header says that it ends here (devicetree specification, 5.2).
    to.write(4, &(size as u32).to_be_bytes());
    PaRange { start, size }
}

fn check_machine(tree: &Machine) {
    if tree.psci.conduit != Conduit::Smc {
        give_up(format_args!("OS-0 needs firmware that is called by SMC"));
    }
    if metal::is_e2h() {
        give_up(format_args!(
            "cpu 0 cannot run with HCR_EL2.E2H clear, as Underpin does"
        ));
    }
    for name in model_native_el1::unknown(crate::machine::id_register) {
        log::warn!("{name} is not let through to OS-0");
    }
}

fn power_states() -> PowerStateFormat {
    let mut registers = [0; 18];
    registers[0] = PSCI_FEATURES.into();
    registers[1] = CPU_SUSPEND_64.into();
    psci::forward(&mut registers);
    // The answer has 32 bits.
    if registers[0] as u32 == NOT_SUPPORTED as u32 {
        PowerStateFormat::Original
    } else {
        PowerStateFormat::of(registers[0] as u32 as u64)
    }
}

fn lay_out_memory(tree: &Machine, blob: PaRange, kernel: PaRange) -> Layout {
    let memory: heapless::Vec<PaRange, MAX_MEMORY> =
        tree.memory.iter().map(|memory| memory.range).collect();
    let ramdisk = tree.os0.as_ref().and_then(|os0| os0.ramdisk);
    let others = [Some(blob), ramdisk, tree.initrd];
    let kept = tree.reserved.iter().copied();
    let kept: heapless::Vec<PaRange, { MAX_RESERVED + 3 }> =
        kept.chain(others.into_iter().flatten()).collect();
    let layout = header(kernel).and_then(|header| {
        let given = Given {
            memory: &memory,
            kept: &kept,
            image: image_parts().whole,
            arena: room(tree, blob),
            kernel,
            header,
        };
        lay_out(&given).map_err(|error| give_up(format_args!("{error}")))
    });
    match layout {
        Ok(layout) => layout,
        Err(()) => give_up(format_args!(
            "what the boot loader left at {} as OS-0's kernel is no arm64 Image",
            kernel.start
        )),
    }
}

fn header(kernel: PaRange) -> Result<ImageHeader, ()> {
    if kernel.size < HEADER_SIZE as u64 {
        return Err(());
    }
    let start = core::ptr::with_exposed_provenance::<u8>(kernel.start.0 as usize);
    // SAFETY: the boot loader put the kernel into RAM, which is mapped; nothing writes it now.
    let bytes = unsafe { core::slice::from_raw_parts(start, HEADER_SIZE) };
    ImageHeader::parse(bytes).ok().flatten().ok_or(())
}

fn say(tree: &Machine, layout: &Layout) {
    log::info!(
        "OS-0 gets {} CPUs and {} MiB of memory; EL2 keeps {} KiB at {}, half of it for another image: image {} KiB, {} KiB for each CPU, {} KiB of tables, {} KiB or more of heap",
        tree.cpus.len(),
        (tree.memory_bytes() - layout.hidden.size) >> 20,
        layout.hidden.size >> 10,
        layout.hidden.start,
        image_parts().whole.size >> 10,
        Arena::PER_CPU >> 10,
        stage2::room(tree) >> 10,
        HEAP >> 10,
    );
}

/// Makes all that EL2 needs on a CPU, so that starting it later allocates nothing.
fn make_cpu(tree: &Machine, number: usize, arena: &mut Arena, map: &mut El2Map) {
    let room = arena.take(size_of::<Cpu>() as u64, align_of::<Cpu>() as u64);
    let cpu = start::make_cpu(tree, number, room);
    machine::add_cpu(cpu);
    let stack = arena.take(STACK, FRAME_SIZE);
    let top = start::map_stack(map, number, stack)
        .unwrap_or_else(|error| give_up(format_args!("cpu {number}: {error}")));
    let record = start::record_of(cpu, top, map);
    let Some(entity) = sched::claim() else {
        give_up(format_args!("CPU {number} exceeds the limit of CPUs"));
    };
    let made = arena.put(Os0Cpu::new(cpu, record, entity));
    made.record.publish();
    if CPUS[number].set(made).is_err() {
        give_up(format_args!("cpu {number} is made twice"));
    }
}

pub fn become_first_cpu(tree: &Machine) -> &'static Os0Cpu {
    let affinity = metal::affinity();
    let number = tree.cpus.iter().position(|cpu| cpu.mpidr == affinity);
    let found = number.and_then(|number| CPUS[number].get().copied());
    let Some(first) = found else {
        give_up(format_args!(
            "the device tree does not name the CPU that boots, {affinity:#x}"
        ));
    };
    start::become_cpu(first.cpu);
    first
}

/// Copies the kernel's file to where it runs.
///
/// # Safety
///
/// Both runs are RAM that nobody uses, and they do not overlap.
unsafe fn copy(from: PaRange, to: Pa) {
    let source = core::ptr::with_exposed_provenance::<u8>(from.start.0 as usize);
    let target = core::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize);
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(source, target, from.size as usize) }
    cache::publish(to, from.size);
}

/// Makes the machine's tree OS-0's, in place; gives its size.
fn rewrite_tree(tree: &Machine, blob: PaRange, hidden: PaRange) -> u64 {
    let Some(os0) = &tree.os0 else { return 0 };
    let start = core::ptr::with_exposed_provenance_mut::<u8>(blob.start.0 as usize);
    // SAFETY: the blob is RAM of this size; what EL2 needs of it has been copied out, and no other
    // reference to it is left.
    let bytes = unsafe { core::slice::from_raw_parts_mut(start, blob.size as usize) };
    let chosen = Chosen {
        bootargs: &os0.bootargs,
        initrd: os0.ramdisk,
    };
    match rewrite(bytes, hidden, chosen) {
        Ok(size) => size as u64,
        Err(error) => give_up(format_args!("{error}")),
    }
}
