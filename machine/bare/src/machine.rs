//! The machine as its device tree describes it.

use crate::boot::EntryState;
use crate::console;
use crate::cpu::MAX_CPUS;
use crate::device::Device;
use crate::device_tree::{self, Node};
use crate::memory::{self, Range, Scratch};

/// virtio-mmio slots of QEMU's `virt`.
pub const MAX_VIRTIO: usize = 32;
const MAX_BOOTARGS: usize = 256;

/// What the guest runs on. All of it is copied out of the device tree, whose memory is then part
/// of [`Machine::scratch`].
pub struct Machine {
    /// How the guest was entered.
    pub entry: EntryState,
    /// The memory range that holds the image.
    pub memory: Range,
    /// Bytes in all memory ranges.
    pub memory_total: u64,
    /// Whether a generic PCIe host bridge is there.
    pub has_pcie: bool,
    /// GICv3 distributor.
    pub gicd: Device,
    /// GICv3 redistributors, all in one range.
    pub gicr: Device,
    /// Bytes that the device tree takes; 0 if it was malformed.
    pub device_tree_size: u64,
    cpus: [u64; MAX_CPUS],
    cpu_count: usize,
    virtio: [Device; MAX_VIRTIO],
    virtio_count: usize,
    bootargs: [u8; MAX_BOOTARGS],
    bootargs_length: usize,
}

impl Machine {
    pub(crate) const EMPTY: Self = Self {
        entry: EntryState {
            mmu_on: false,
            exception_level: 0,
            masks: 0,
            device_tree: 0,
            image: 0,
            image_end: 0,
        },
        memory: Range { base: 0, size: 0 },
        memory_total: 0,
        has_pcie: false,
        gicd: Device::NONE,
        gicr: Device::NONE,
        device_tree_size: 0,
        cpus: [0; MAX_CPUS],
        cpu_count: 0,
        virtio: [Device::NONE; MAX_VIRTIO],
        virtio_count: 0,
        bootargs: [0; MAX_BOOTARGS],
        bootargs_length: 0,
    };

    /// Affinity (MPIDR_EL1 without its flags) of each CPU that can be used, the boot CPU first.
    pub fn cpus(&self) -> &[u64] {
        &self.cpus[..self.cpu_count]
    }

    /// The virtio-mmio slots, empty ones too.
    pub fn virtio(&self) -> &[Device] {
        &self.virtio[..self.virtio_count]
    }

    /// The command line, as far as it is text.
    pub fn bootargs(&self) -> &str {
        str::from_utf8(&self.bootargs[..self.bootargs_length]).unwrap_or("")
    }

    /// The value of `key=value` on the command line.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.bootargs()
            .split_ascii_whitespace()
            .filter_map(|word| word.split_once('='))
            .find_map(|(name, value)| (name == key).then_some(value))
    }

    /// The number of `key=value` on the command line, else `default`.
    pub fn number(&self, key: &str, default: u64) -> u64 {
        self.option(key)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }

    /// Whether the command line holds `word`.
    pub fn flag(&self, word: &str) -> bool {
        self.bootargs()
            .split_ascii_whitespace()
            .any(|listed| listed == word)
    }

    /// Memory for tests: all behind the image, from the next 2 MiB boundary on.
    pub fn scratch(&self) -> Scratch {
        let tree_end = self.entry.device_tree + self.device_tree_size;
        let used = self.entry.image_end.max(tree_end.min(self.memory.end()));
        let base = used.next_multiple_of(2 << 20);
        let size = self.memory.end().saturating_sub(base);
        // SAFETY: memory by the device tree, and every Rust object lies in the image before it.
        unsafe { Scratch::at(Range { base, size }) }
    }

    /// Fills in what the device tree says.
    pub(crate) fn discover(&mut self, entry: EntryState) {
        self.entry = entry;
        // SAFETY: the boot protocol promises the blob there, and nothing writes to it while the
        // reference lives.
        let Some(blob) = (unsafe { memory::device_tree(entry.device_tree) }) else {
            return;
        };
        if device_tree::walk(blob, |node| self.take(node)).is_some() {
            self.device_tree_size = blob.len() as u64;
        }
        self.boot_cpu_first();
    }

    fn take(&mut self, node: &Node) {
        if !node.bootargs.is_empty() {
            let text = node.bootargs.strip_suffix(&[0]).unwrap_or(node.bootargs);
            let length = text.len().min(MAX_BOOTARGS);
            self.bootargs[..length].copy_from_slice(&text[..length]);
            self.bootargs_length = length;
        }
        self.has_pcie |= node.is_compatible("pci-host-ecam-generic");
        let Some((address, size)) = node.reg(0) else {
            return;
        };
        // SAFETY: a device by the device tree, which the guest has to trust.
        let device = unsafe { Device::at(address as usize, size as usize) };
        if node.device_type == b"memory\0" {
            self.memory_total = self.memory_total.saturating_add(size);
            let range = Range {
                base: address,
                size,
            };
            if range.contains(self.entry.image) {
                self.memory = range;
            }
        } else if node.device_type == b"cpu\0" && self.cpu_count < MAX_CPUS {
            self.cpus[self.cpu_count] = address;
            self.cpu_count += 1;
        } else if node.is_compatible("arm,gic-v3") {
            self.gicd = device;
            if let Some((address, size)) = node.reg(1) {
                // SAFETY: as above.
                self.gicr = unsafe { Device::at(address as usize, size as usize) };
            }
        } else if node.is_compatible("arm,pl011") || node.is_compatible("arm,sbsa-uart") {
            console::set_uart(address as usize);
        } else if node.is_compatible("virtio,mmio") && self.virtio_count < MAX_VIRTIO {
            self.virtio[self.virtio_count] = device;
            self.virtio_count += 1;
        }
    }

    /// CPU indices count from the boot CPU.
    fn boot_cpu_first(&mut self) {
        let own = crate::cpu::affinity();
        if let Some(place) = self.cpus().iter().position(|&cpu| cpu == own) {
            self.cpus[..=place].rotate_right(1);
        }
    }
}
