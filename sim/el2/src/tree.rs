//! The machine's device tree, as firmware would write it (bindings of the Linux kernel).

use machine_host::machine::{Config, HYPERVISOR_TIMER, MAINTENANCE, RAM, UART, VIRTUAL_TIMER};
use machine_host::place;
use vm_fdt::{Error, FdtWriter};

/// The interrupt controller's phandle.
const GIC: u32 = 1;
/// A level that is high, as `interrupts` says it, and interrupts of a CPU's own.
const LEVEL: u32 = 4;
const PPI: u32 = 1;

/// The tree of a machine with this command line and a bundle of `bundle` (start, end), whose memory and CPUs are
/// spread evenly over `nodes`.
pub fn write(
    (config, nodes): (&Config, usize),
    command_line: &str,
    bundle: (u64, u64),
) -> Result<Vec<u8>, Error> {
    let mut tree = FdtWriter::new()?;
    let root = tree.begin_node("")?;
    tree.property_u32("#address-cells", 2)?;
    tree.property_u32("#size-cells", 2)?;
    tree.property_u32("interrupt-parent", GIC)?;
    let node = tree.begin_node("chosen")?;
    tree.property_string("bootargs", command_line)?;
    tree.property_string("stdout-path", "/pl011@9000000")?;
    tree.property_u64("linux,initrd-start", bundle.0)?;
    tree.property_u64("linux,initrd-end", bundle.1)?;
    tree.end_node(node)?;
    let cpus = tree.begin_node("cpus")?;
    tree.property_u32("#address-cells", 1)?;
    tree.property_u32("#size-cells", 0)?;
    for number in 0..config.cpus as u32 {
        let node = tree.begin_node(&format!("cpu@{number}"))?;
        tree.property_string("device_type", "cpu")?;
        tree.property_u32("reg", number)?;
        tree.property_string("enable-method", "psci")?;
        tree.property_u32("numa-node-id", number % nodes as u32)?;
        tree.end_node(node)?;
    }
    tree.end_node(cpus)?;
    let size = (config.memory / nodes) as u64;
    for number in 0..nodes as u32 {
        let start = RAM.0 + u64::from(number) * size;
        let node = tree.begin_node(&format!("memory@{start:x}"))?;
        tree.property_string("device_type", "memory")?;
        tree.property_array_u64("reg", &[start, size])?;
        tree.property_u32("numa-node-id", number)?;
        tree.end_node(node)?;
    }
    let node = tree.begin_node("psci")?;
    tree.property_string("compatible", "arm,psci-1.0")?;
    tree.property_string("method", "smc")?;
    tree.end_node(node)?;
    devices(&mut tree, config)?;
    tree.end_node(root)?;
    tree.finish()
}

fn devices(tree: &mut FdtWriter, config: &Config) -> Result<(), Error> {
    let node = tree.begin_node("intc@8000000")?;
    tree.property_string("compatible", "arm,gic-v3")?;
    tree.property_null("interrupt-controller")?;
    tree.property_u32("#interrupt-cells", 3)?;
    tree.property_u32("phandle", GIC)?;
    let redistributors = place::STRIDE * config.cpus as u64;
    let places = [
        place::DISTRIBUTOR,
        0x1_0000,
        place::REDISTRIBUTORS,
        redistributors,
    ];
    tree.property_array_u64("reg", &places)?;
    tree.property_array_u32("interrupts", &[PPI, MAINTENANCE - 16, LEVEL])?;
    tree.end_node(node)?;
    let node = tree.begin_node("timer")?;
    tree.property_string("compatible", "arm,armv8-timer")?;
    let timers = [29, 30, VIRTUAL_TIMER, HYPERVISOR_TIMER].map(|intid| [PPI, intid - 16, LEVEL]);
    tree.property_array_u32("interrupts", timers.as_flattened())?;
    tree.end_node(node)?;
    for number in 0..place::WINDOWS as u32 {
        let start = place::WINDOW + u64::from(number) * place::WINDOW_SIZE;
        let node = tree.begin_node(&format!("virtio_mmio@{start:x}"))?;
        tree.property_string("compatible", "virtio,mmio")?;
        tree.property_array_u64("reg", &[start, place::WINDOW_SIZE])?;
        tree.property_array_u32("interrupts", &[0, place::INTERRUPT - 32 + number, LEVEL])?;
        tree.end_node(node)?;
    }
    let node = tree.begin_node("pl011@9000000")?;
    tree.property_string("compatible", "arm,pl011")?;
    tree.property_array_u64("reg", &[UART, 0x1000])?;
    tree.property_array_u32("interrupts", &[0, 1, LEVEL])?;
    tree.end_node(node)
}
