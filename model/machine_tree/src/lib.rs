//! Reads the machine's device tree: CPUs, memory, NUMA nodes, interrupt controller, devices.
//!
//! The tree comes from firmware or a user and is checked like any other input: nothing in it can
//! make [`read`] panic, and what does not fit is refused with the node and the value. The format
//! is the Devicetree Specification's (0.4), the bindings are those of the Linux kernel
//! (`arm,gic-v3`, `arm,psci`, `arm,armv8-timer`, `arm,pl011`, `virtio,mmio`,
//! `numa-distance-map-v1`). Parsing the blob itself is `dtoolkit`'s.
#![no_std]
#![forbid(unsafe_code)]

mod error;
mod node;
mod numa;
mod read;

pub use error::{Problem, TreeError};
pub use numa::Distances;
pub use read::{blob_size, read};

use heapless::{String, Vec};
use model_addr::{NodeId, Pa, PaRange};

/// The most CPUs a machine may have.
pub const MAX_CPUS: usize = 64;
/// The most runs of memory.
pub const MAX_MEMORY: usize = 64;
/// The most reserved runs of memory.
pub const MAX_RESERVED: usize = 32;
/// The most NUMA nodes.
pub const MAX_NODES: usize = 64;
/// The most redistributor regions.
pub const MAX_REDISTRIBUTORS: usize = 16;
/// The most translators of interrupt messages, and the most PCI hosts.
pub const MAX_HOSTS: usize = 8;
/// The most virtio-mmio transports.
pub const MAX_VIRTIO: usize = 64;
/// The most bytes of a command line.
pub const MAX_BOOTARGS: usize = 512;
/// The most bytes of OS-0's command line: as many as arm64 Linux takes (`COMMAND_LINE_SIZE`).
pub const MAX_OS0_BOOTARGS: usize = 2048;

/// What Underpin needs to know of the machine it runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The CPUs, in the order of the tree: the index is the `CpuId`.
    pub cpus: Vec<Cpu, MAX_CPUS>,
    /// The memory, by ascending address; no two runs overlap.
    pub memory: Vec<Memory, MAX_MEMORY>,
    /// What of it must not be touched: the reservation block and `/reserved-memory`, by
    /// ascending address.
    pub reserved: Vec<PaRange, MAX_RESERVED>,
    /// The NUMA nodes and how far they are from each other.
    pub distances: Distances,
    /// The interrupt controller.
    pub gic: Gic,
    /// The per-CPU timer interrupts.
    pub timer: Timer,
    /// How CPUs are started and the machine is switched off.
    pub psci: Psci,
    /// The console: the PL011 that `stdout-path` names, or else the first there is.
    pub console: Option<Pl011>,
    /// The registers of the real-time clock: the first PL031.
    pub rtc: Option<Pa>,
    /// The virtio-mmio transports, in the order of the tree.
    pub virtio: Vec<VirtioTransport, MAX_VIRTIO>,
    /// The configuration spaces of PCI hosts (`pci-host-ecam-generic`), each from its first bus on.
    pub pci: Vec<PaRange, MAX_HOSTS>,
    /// The command line (`/chosen/bootargs`).
    pub bootargs: String<MAX_BOOTARGS>,
    /// The initial ramdisk: where the boot loader put the bundle.
    pub initrd: Option<PaRange>,
    /// Where in the tree `/chosen/rng-seed` is, and its bytes. What it says is kept nowhere.
    pub rng_seed: Option<(u32, u32)>,
    /// The operating system that the boot loader brought to run beneath.
    pub os0: Option<Os0>,
}

impl Machine {
    /// Bytes of all memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(|memory| memory.range.size).sum()
    }

    /// Whether the command line has this word.
    pub fn has_word(&self, word: &str) -> bool {
        self.bootargs
            .split_ascii_whitespace()
            .any(|own| own == word)
    }

    /// What follows `name` in the first word of the command line that begins with it.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.bootargs.split_ascii_whitespace();
        words.find_map(|word| word.strip_prefix(name))
    }
}

/// The operating system that owns the machine, as boot modules below `/chosen` (binding
/// `multiboot,module`, as QEMU's guest-loader writes it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Os0 {
    /// Its kernel's file (`multiboot,kernel`).
    pub kernel: PaRange,
    /// Its initial ramdisk (`multiboot,ramdisk`).
    pub ramdisk: Option<PaRange>,
    /// Its command line: `bootargs` of the kernel's node.
    pub bootargs: String<MAX_OS0_BOOTARGS>,
}

/// A physical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its affinity (MPIDR_EL1 bits 39:32 and 23:0), as PSCI's CPU_ON wants it.
    pub mpidr: u64,
    /// The node it belongs to.
    pub node: NodeId,
}

/// A run of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Where it is.
    pub range: PaRange,
    /// The node it belongs to.
    pub node: NodeId,
}

/// An interrupt as the GIC numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The INTID: 16..32 for a CPU's own (PPI), 32..1020 for a shared one (SPI).
    pub intid: u32,
    /// Whether an edge raises it; otherwise it is a level.
    pub edge: bool,
}

/// The GICv3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gic {
    /// The distributor's registers.
    pub distributor: PaRange,
    /// The redistributors' registers.
    pub redistributors: Vec<PaRange, MAX_REDISTRIBUTORS>,
    /// The registers of what translates messages (ITS).
    pub translators: Vec<PaRange, MAX_HOSTS>,
    /// The maintenance interrupt of the virtual CPU interface.
    pub maintenance: Interrupt,
}

/// The generic timer's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Of the EL1 virtual timer, which guests use.
    pub virtual_timer: Interrupt,
    /// Of the EL2 physical timer, which EL2 uses.
    pub hypervisor_timer: Interrupt,
}

/// The instruction that calls the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduit {
    /// SMC: the firmware is at EL3.
    Smc,
    /// HVC: it is at EL2, where Underpin would have to be.
    Hvc,
}

/// The firmware's power interface (Arm DEN 0022).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Psci {
    /// How it is called.
    pub conduit: Conduit,
    /// Whether it says to be PSCI 1.0 or later; otherwise it is 0.2.
    pub version_1: bool,
}

/// A PL011 UART (Arm DDI 0183).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pl011 {
    /// Its registers.
    pub base: Pa,
    /// Its interrupt.
    pub interrupt: Option<Interrupt>,
}

/// A virtio-mmio transport, with or without a device behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioTransport {
    /// Its registers.
    pub registers: PaRange,
    /// Its interrupt.
    pub interrupt: Interrupt,
}
