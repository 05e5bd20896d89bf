//! The device tree a guest is given.

use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use model_addr::IpaRange;
use vm_fdt::FdtWriter;

use crate::{RegionNode, TREE_ROOM, map, stolen_times};

/// The most vCPUs: as many redistributors as fit below the UART.
pub const MAX_VCPUS: u16 =
    ((map::UART.start.0 - map::REDISTRIBUTORS.0) / map::REDISTRIBUTOR_SIZE) as u16;
/// The most virtio-mmio transports, as QEMU has.
pub const MAX_VIRTIO: u8 = 32;
/// The most bytes of a command line: what arm64 Linux takes (COMMAND_LINE_SIZE).
pub const MAX_BOOTARGS: usize = 2048;

const GIC_PHANDLE: u32 = 1;
const CLOCK_PHANDLE: u32 = 2;
const GPIO_PHANDLE: u32 = 3;
/// The clock that QEMU gives its UART.
const CLOCK_HZ: u32 = 24_000_000;

/// Cells of an interrupt specifier (binding `arm,gic-v3`).
const SPI: u32 = 0;
const PPI: u32 = 1;
/// Active high. QEMU says "rising edge" for virtio-mmio, but a transport's line is a level: it
/// is up while InterruptStatus is not zero. Telling the guest so means that the interrupt
/// controller samples the line, and no notification hangs on an edge nobody saw.
const LEVEL: u32 = 4;

/// A line that is high when it means something (binding `gpio`).
const ACTIVE_HIGH: u32 = 0;
/// Distance of a NUMA node to itself, as the binding has it, and to another host: beyond 30, the `node_reclaim_distance` of
/// Linux, so that its scheduler neither places new tasks on another host nor pulls wakened ones there.
const DISTANCES: [u32; 2] = [10, 40];
/// The code that Linux's input layer gives the power key (`KEY_POWER`).
const POWER_KEY: u32 = 116;

/// What the tree describes.
#[derive(Clone, Copy, Debug)]
pub struct GuestTree<'a> {
    /// The guest's memory.
    pub ram: IpaRange,
    /// How many vCPUs it has, 1 to [`MAX_VCPUS`].
    pub vcpus: u16,
    /// How many virtio-mmio transports, at most [`MAX_VIRTIO`].
    pub virtio: u8,
    /// Shares of its hosts, where it spans some: NUMA nodes in that order. Their memory follows each other from the start.
    pub hosts: &'a [HostShare],
    /// Its shared regions.
    pub regions: &'a [RegionNode<'a>],
    /// The kernel's command line.
    pub bootargs: &'a str,
    /// Where the initrd is.
    pub initrd: Option<IpaRange>,
    /// Entropy for the placement of the kernel, and for its random number generator; `None` where there is none.
    pub seeds: Option<[u64; 5]>,
}

/// vCPUs and memory of a guest on one host.
#[derive(Clone, Copy, Debug)]
pub struct HostShare {
    /// How many vCPUs.
    pub vcpus: u16,
    /// Bytes of memory.
    pub memory: u64,
}

/// Why there is no tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// No vCPU, or too many.
    #[error("vcpus is {0}; it must be between 1 and {MAX_VCPUS}")]
    Vcpus(u16),
    /// Too many virtio-mmio transports.
    #[error("{0} virtio devices (at most {MAX_VIRTIO})")]
    Virtio(u8),
    /// The command line has this many bytes, which are too many.
    #[error("a command line of {0} bytes (at most {MAX_BOOTARGS})")]
    Bootargs(usize),
    /// The tree has this many bytes, more than [`TREE_ROOM`].
    #[error("a device tree of {0} bytes (at most {TREE_ROOM})")]
    TooLarge(usize),
    /// It cannot be written: a NUL in the command line.
    #[error("the device tree: {0}")]
    Write(vm_fdt::Error),
}

/// The affinity of a guest's vCPU number `index`, as in MPIDR_EL1: 16 vCPUs to a cluster, since
/// an SGI reaches 16 of one cluster at once (GICv3, `ICC_SGI1R_EL1.TargetList`).
pub const fn vcpu_mpidr(index: u16) -> u64 {
    (index % 16) as u64 | ((index / 16) as u64) << 8
}

type Written = Result<(), vm_fdt::Error>;

impl GuestTree<'_> {
    /// The flattened tree, at most [`TREE_ROOM`] bytes. `pause` is called between nodes, for a writer that may
    /// not be busy for as long as all of them take.
    ///
    /// # Errors
    /// Where the description is beyond this crate's limits.
    pub fn write(&self, pause: impl FnMut()) -> Result<Vec<u8>, TreeError> {
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return Err(TreeError::Vcpus(self.vcpus));
        }
        if self.virtio > MAX_VIRTIO {
            return Err(TreeError::Virtio(self.virtio));
        }
        if self.bootargs.len() > MAX_BOOTARGS {
            return Err(TreeError::Bootargs(self.bootargs.len()));
        }
        let tree = self.flatten(pause).map_err(TreeError::Write)?;
        if tree.len() as u64 > TREE_ROOM {
            return Err(TreeError::TooLarge(tree.len()));
        }
        Ok(tree)
    }

    fn flatten(&self, mut pause: impl FnMut()) -> Result<Vec<u8>, vm_fdt::Error> {
        let mut fdt = FdtWriter::new()?;
        let root = fdt.begin_node("")?;
        fdt.property_string("compatible", "linux,dummy-virt")?;
        fdt.property_string("model", "Underpin virtual machine")?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_u32("interrupt-parent", GIC_PHANDLE)?;
        self.write_chosen(&mut fdt)?;
        self.write_memory(&mut fdt)?;
        self.write_reserved(&mut fdt)?;
        pause();
        self.write_cpus(&mut fdt)?;
        self.write_distances(&mut fdt)?;
        pause();
        write_psci(&mut fdt)?;
        write_timer(&mut fdt)?;
        self.write_gic(&mut fdt)?;
        write_clock(&mut fdt)?;
        pause();
        write_uart(&mut fdt)?;
        write_rtc(&mut fdt)?;
        write_gpio(&mut fdt)?;
        write_power_button(&mut fdt)?;
        for index in 0..u32::from(self.virtio) {
            pause();
            write_virtio(&mut fdt, index)?;
        }
        pause();
        for region in self.regions {
            write_region(&mut fdt, region)?;
        }
        fdt.end_node(root)?;
        fdt.finish()
    }

    fn write_chosen(&self, fdt: &mut FdtWriter) -> Written {
        let node = fdt.begin_node("chosen")?;
        fdt.property_string("bootargs", self.bootargs)?;
        fdt.property_string("stdout-path", &format!("/pl011@{:x}", map::UART.start.0))?;
        if let Some(initrd) = self.initrd {
            fdt.property_u64("linux,initrd-start", initrd.start.0)?;
            fdt.property_u64("linux,initrd-end", initrd.end().0)?;
        }
        if let Some([kaslr, seed @ ..]) = self.seeds {
            let bytes = seed.map(u64::to_le_bytes);
            fdt.property("rng-seed", bytes.as_flattened())?;
            fdt.property_u64("kaslr-seed", kaslr)?;
        }
        fdt.end_node(node)
    }

    fn write_memory(&self, fdt: &mut FdtWriter) -> Written {
        let mut start = self.ram.start.0;
        let shares = self.hosts.iter().map(|share| share.memory);
        let alone = self.hosts.is_empty().then_some(self.ram.size);
        for (n, size) in (0..).zip(shares.chain(alone)) {
            let node = fdt.begin_node(&format!("memory@{start:x}"))?;
            fdt.property_string("device_type", "memory")?;
            fdt.property_array_u64("reg", &[start, size])?;
            self.write_node(fdt, n)?;
            fdt.end_node(node)?;
            start += size;
        }
        Ok(())
    }

    /// Says of which NUMA node something is, where there are several.
    fn write_node(&self, fdt: &mut FdtWriter, number: u32) -> Written {
        if self.hosts.is_empty() {
            return Ok(());
        }
        fdt.property_u32("numa-node-id", number)
    }

    fn write_distances(&self, fdt: &mut FdtWriter) -> Written {
        if self.hosts.is_empty() {
            return Ok(());
        }
        let nodes = self.hosts.len() as u32;
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let distance = |(from, to)| [from, to, DISTANCES[usize::from(from != to)]];
        let distances: Vec<u32> = pairs.flat_map(distance).collect();
        let node = fdt.begin_node("distance-map")?;
        fdt.property_string("compatible", "numa-distance-map-v1")?;
        fdt.property_array_u32("distance-matrix", &distances)?;
        fdt.end_node(node)
    }

    fn write_reserved(&self, fdt: &mut FdtWriter) -> Written {
        let kept = stolen_times(self.ram);
        let reserved = fdt.begin_node("reserved-memory")?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_null("ranges")?;
        let node = fdt.begin_node(&format!("stolen-time@{:x}", kept.start.0))?;
        fdt.property_array_u64("reg", &[kept.start.0, kept.size])?;
        fdt.end_node(node)?;
        fdt.end_node(reserved)
    }

    fn write_cpus(&self, fdt: &mut FdtWriter) -> Written {
        let cpus = fdt.begin_node("cpus")?;
        fdt.property_u32("#address-cells", 1)?;
        fdt.property_u32("#size-cells", 0)?;
        let shares = (0..).zip(self.hosts);
        let nodes = shares.flat_map(|(n, share)| (0..share.vcpus).map(move |_| n));
        for (index, node) in (0..self.vcpus).zip(nodes.chain(core::iter::repeat(0))) {
            // Affinities of up to 123 vCPUs fit into one cell.
            let mpidr = vcpu_mpidr(index) as u32;
            let cpu = fdt.begin_node(&format!("cpu@{mpidr:x}"))?;
            fdt.property_string("device_type", "cpu")?;
            fdt.property_string("compatible", "arm,armv8")?;
            fdt.property_string("enable-method", "psci")?;
            fdt.property_u32("reg", mpidr)?;
            self.write_node(fdt, node)?;
            fdt.end_node(cpu)?;
        }
        fdt.end_node(cpus)
    }

    fn write_gic(&self, fdt: &mut FdtWriter) -> Written {
        let distributor = map::DISTRIBUTOR;
        let redistributors = u64::from(self.vcpus) * map::REDISTRIBUTOR_SIZE;
        let node = fdt.begin_node(&format!("intc@{:x}", distributor.start.0))?;
        fdt.property_string("compatible", "arm,gic-v3")?;
        fdt.property_null("interrupt-controller")?;
        fdt.property_u32("#interrupt-cells", 3)?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_null("ranges")?;
        fdt.property_u32("#redistributor-regions", 1)?;
        let frames = [
            distributor.start.0,
            distributor.size,
            map::REDISTRIBUTORS.0,
            redistributors,
        ];
        fdt.property_array_u64("reg", &frames)?;
        fdt.property_phandle(GIC_PHANDLE)?;
        fdt.end_node(node)
    }
}

fn write_psci(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node("psci")?;
    let versions = vec!["arm,psci-1.0".to_string(), "arm,psci-0.2".to_string()];
    fdt.property_string_list("compatible", versions)?;
    fdt.property_string("method", "hvc")?;
    fdt.end_node(node)
}

fn write_timer(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node("timer")?;
    fdt.property_string("compatible", "arm,armv8-timer")?;
    fdt.property_null("always-on")?;
    let interrupts = map::TIMER_PPIS.map(|ppi| [PPI, ppi, LEVEL]);
    fdt.property_array_u32("interrupts", interrupts.as_flattened())?;
    fdt.end_node(node)
}

fn write_clock(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node("apb-pclk")?;
    fdt.property_string("compatible", "fixed-clock")?;
    fdt.property_u32("#clock-cells", 0)?;
    fdt.property_u32("clock-frequency", CLOCK_HZ)?;
    fdt.property_string("clock-output-names", "clk24mhz")?;
    fdt.property_phandle(CLOCK_PHANDLE)?;
    fdt.end_node(node)
}

fn write_uart(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node(&format!("pl011@{:x}", map::UART.start.0))?;
    let compatible = vec!["arm,pl011".to_string(), "arm,primecell".to_string()];
    fdt.property_string_list("compatible", compatible)?;
    fdt.property_array_u64("reg", &[map::UART.start.0, map::UART.size])?;
    fdt.property_array_u32("interrupts", &[SPI, map::UART_SPI, LEVEL])?;
    fdt.property_array_u32("clocks", &[CLOCK_PHANDLE, CLOCK_PHANDLE])?;
    let names = vec!["uartclk".to_string(), "apb_pclk".to_string()];
    fdt.property_string_list("clock-names", names)?;
    fdt.end_node(node)
}

/// Without an interrupt: it has no alarm.
fn write_rtc(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node(&format!("pl031@{:x}", map::RTC.start.0))?;
    let compatible = vec!["arm,pl031".to_string(), "arm,primecell".to_string()];
    fdt.property_string_list("compatible", compatible)?;
    fdt.property_array_u64("reg", &[map::RTC.start.0, map::RTC.size])?;
    fdt.property_u32("clocks", CLOCK_PHANDLE)?;
    fdt.property_string("clock-names", "apb_pclk")?;
    fdt.end_node(node)
}

fn write_gpio(fdt: &mut FdtWriter) -> Written {
    let node = fdt.begin_node(&format!("pl061@{:x}", map::GPIO.start.0))?;
    let compatible = vec!["arm,pl061".to_string(), "arm,primecell".to_string()];
    fdt.property_string_list("compatible", compatible)?;
    fdt.property_array_u64("reg", &[map::GPIO.start.0, map::GPIO.size])?;
    fdt.property_array_u32("interrupts", &[SPI, map::GPIO_SPI, LEVEL])?;
    fdt.property_null("gpio-controller")?;
    fdt.property_u32("#gpio-cells", 2)?;
    fdt.property_u32("clocks", CLOCK_PHANDLE)?;
    fdt.property_string("clock-names", "apb_pclk")?;
    fdt.property_phandle(GPIO_PHANDLE)?;
    fdt.end_node(node)
}

fn write_power_button(fdt: &mut FdtWriter) -> Written {
    let keys = fdt.begin_node("gpio-keys")?;
    fdt.property_string("compatible", "gpio-keys")?;
    let key = fdt.begin_node("poweroff")?;
    fdt.property_string("label", "GPIO Key Poweroff")?;
    fdt.property_u32("linux,code", POWER_KEY)?;
    let line = [GPIO_PHANDLE, map::POWER_BUTTON_LINE.into(), ACTIVE_HIGH];
    fdt.property_array_u32("gpios", &line)?;
    fdt.end_node(key)?;
    fdt.end_node(keys)
}

fn write_virtio(fdt: &mut FdtWriter, index: u32) -> Written {
    let base = map::VIRTIO.0 + u64::from(index) * map::VIRTIO_SIZE;
    let node = fdt.begin_node(&format!("virtio_mmio@{base:x}"))?;
    fdt.property_string("compatible", "virtio,mmio")?;
    fdt.property_array_u64("reg", &[base, map::VIRTIO_SIZE])?;
    fdt.property_array_u32("interrupts", &[SPI, map::VIRTIO_SPI + index, LEVEL])?;
    fdt.property_null("dma-coherent")?;
    fdt.end_node(node)
}

fn write_region(fdt: &mut FdtWriter, region: &RegionNode<'_>) -> Written {
    let window = region.window;
    let node = fdt.begin_node(&format!("pmem@{:x}", window.start.0))?;
    fdt.property_string("compatible", "pmem-region")?;
    fdt.property_string("label", region.name)?;
    fdt.property_array_u64("reg", &[window.start.0, window.size])?;
    // Nothing must be flushed: it is memory, and gone with its last user.
    fdt.property_null("volatile")?;
    if region.read_only {
        fdt.property_null("read-only")?;
    }
    fdt.end_node(node)
}
