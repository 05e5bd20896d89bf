//! The machine as a whole: what was found at boot and never changes again.

pub mod console;
pub mod cpu;
pub mod due;
pub mod entropy;
pub mod epitaph;
pub mod os0;
pub mod stretch;
pub mod trace;

pub use epitaph::give_up;
pub use stretch::Kind;

pub use cpu::{CPUS_MAX, Cpu, ENTITIES_MAX};

use abi::bundle::Bundle;
use arch::psci::{self, Conduit};
use arch::{cpu as metal, timer};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use machine_locks::Once;
use model_addr::{NodeId, PaRange};
use model_frame_table::{MAX_NODES, MemoryMap, PerNode, PreferenceOrder};
use model_id_registers::GuestIdRegisters;

/// What was found at boot.
pub struct Machine {
    /// The device tree's contents.
    pub tree: &'static model_machine_tree::Machine,
    /// Where the machine counts misses, if it does; no memory of anybody's.
    pub counters: Option<PaRange>,
    /// The frame table.
    pub map: MemoryMap<'static>,
    /// Which node's memory to take when the own is used up.
    pub preference: PreferenceOrder,
    /// The bundle, if the boot loader brought one.
    pub bundle: Option<Bundle<'static>>,
    /// `VTCR_EL2` for every guest.
    pub vtcr: u64,
    /// Bytes of the frame table.
    pub frame_table_bytes: u64,
    /// Where the bundle lies.
    pub bundle_at: Option<PaRange>,
    /// The count at which EL2 started.
    pub started: u64,
}

static MACHINE: Once<Machine> = Once::new();
static GUEST_ID: Once<GuestIdRegisters> = Once::new();
static CPUS: [Once<&'static Cpu>; CPUS_MAX] = [const { Once::new() }; CPUS_MAX];
/// One more than the highest number of a CPU that came up.
static END: AtomicUsize = AtomicUsize::new(0);
/// The CPUs of each node, a bit for each: each `Cpu` is in another node's memory, and this near everybody.
static NODES: PerNode<AtomicU64> = PerNode([const { AtomicU64::new(0) }; MAX_NODES]);
const _: () = assert!(CPUS_MAX <= 64);

impl Machine {
    /// How the firmware below is called.
    pub fn conduit(&self) -> Conduit {
        match self.tree.psci.conduit {
            model_machine_tree::Conduit::Smc => Conduit::Smc,
            model_machine_tree::Conduit::Hvc => Conduit::Hvc,
        }
    }

    /// Powers the machine off.
    pub fn power_off(&self) {
        psci::system_off(self.conduit());
    }

    /// NUMA nodes that are used.
    pub fn nodes(&self) -> usize {
        let counters = usize::from(self.counters.is_some());
        (self.tree.distances.count() - counters).min(MAX_NODES)
    }

    /// The nodes that are used.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> {
        self.tree.distances.nodes().take(self.nodes())
    }
}

/// Installs what was found. Done by the first CPU, or when OS-0 has lent memory.
pub fn install(machine: Machine) {
    assert!(MACHINE.set(machine).is_ok(), "the machine is found once");
}

/// Forgets what was found, and what guests read of CPU features: OS-0 wants its memory back.
///
/// # Safety
/// No CPU uses any of it, and no VM is left.
pub unsafe fn forget() {
    // SAFETY: the caller's promise.
    unsafe {
        MACHINE.clear();
        GUEST_ID.clear();
    }
}

/// What was found; `None` early at boot.
pub fn try_get() -> Option<&'static Machine> {
    MACHINE.get()
}

/// What was found, for everything that runs after boot.
#[inline]
pub fn get() -> &'static Machine {
    match MACHINE.get() {
        Some(machine) => machine,
        None => metal::halt(),
    }
}

/// Says what guests read of CPU features. Done once, when all CPUs are known.
#[expect(
    clippy::large_types_passed_by_value,
    reason = "it moves to where it stays"
)]
pub fn set_guest_id(registers: GuestIdRegisters) {
    assert!(GUEST_ID.set(registers).is_ok(), "the CPUs are known once");
}

/// CPU feature registers as guests read them; none before the CPUs are known.
#[inline]
pub fn guest_ids() -> Option<&'static GuestIdRegisters> {
    GUEST_ID.get()
}

/// A CPU feature register as guests read it.
pub fn guest_id(crm: u8, op2: u8) -> u64 {
    guest_ids().map_or(0, |ids| ids.read(crm, op2))
}

/// Registers a CPU that is about to come up.
pub fn add_cpu(cpu: &'static Cpu) {
    assert!(
        CPUS[usize::from(cpu.id.0)].set(cpu).is_ok(),
        "{} comes up once",
        cpu.id
    );
    END.fetch_max(usize::from(cpu.id.0) + 1, Ordering::AcqRel);
    NODES[cpu.node].fetch_or(1 << cpu.id.0, Ordering::Release);
}

/// The CPU with that number, if it came up.
pub fn cpu(number: u16) -> Option<&'static Cpu> {
    CPUS.get(usize::from(number))?.get().copied()
}

/// All CPUs that came up.
pub fn cpus() -> impl Iterator<Item = &'static Cpu> {
    let up = CPUS.iter().take(END.load(Ordering::Acquire));
    up.filter_map(|cpu| cpu.get().copied())
}

/// Numbers of the CPUs of a node that came up, a bit for each.
pub fn cpu_bits(node: NodeId) -> u64 {
    NODES[node].load(Ordering::Acquire)
}

/// The CPUs of a node that came up.
pub fn cpus_of(node: NodeId) -> impl Iterator<Item = &'static Cpu> {
    let mut rest = cpu_bits(node);
    core::iter::from_fn(move || {
        let first = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        cpu(first as u16)
    })
}

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Counts to nanoseconds.
pub fn nanoseconds(counts: u64) -> u64 {
    in_units(counts, timer::frequency().max(1), SECOND)
}

/// Nanoseconds to counts.
pub fn counts(nanoseconds: u64) -> u64 {
    in_units(nanoseconds, SECOND, timer::frequency())
}

/// A time of `per` units a second in such of `wanted`, whose product is below 2^64. A division of 128 bits would take a hundred times as long.
const fn in_units(time: u64, per: u64, wanted: u64) -> u64 {
    let (seconds, rest) = (time / per, time % per);
    seconds
        .wrapping_mul(wanted)
        .wrapping_add(rest * wanted / per)
}

/// An ID register of the executing CPU, op0 3, op1 0, CRn 0.
pub fn id_register(crm: u8, op2: u8) -> u64 {
    let index = (usize::from(crm).wrapping_sub(1)) * 8 + usize::from(op2);
    arch::features::id_registers()
        .get(index)
        .copied()
        .unwrap_or(0)
}
