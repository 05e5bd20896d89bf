//! From the blob to a [`Machine`].

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::NodeStandard;
use dtoolkit::{Node, Property};
use heapless::{String, Vec};
use model_addr::{NodeId, Pa, PaRange};

use crate::node::{
    Result, cells, error, first_register, for_each_device, interrupt, is_enabled, number, one_cell,
    registers, string,
};
use crate::{
    Conduit, Cpu, Distances, Gic, MAX_CPUS, MAX_HOSTS, MAX_MEMORY, MAX_REDISTRIBUTORS,
    MAX_RESERVED, MAX_VIRTIO, Machine, Memory, Os0, Pl011, Problem, Psci, Timer, TreeError,
    VirtioTransport,
};

/// The most bytes of a blob: what Linux's boot protocol allows (`booting.rst`).
const MAX_BLOB: u32 = 2 << 20;
/// The affinity fields of MPIDR_EL1.
const MPIDR_AFFINITY: u64 = 0xff_00ff_ffff;
/// The node of CPUs and memory that name none.
const DEFAULT_NODE: u32 = 0;

/// How many bytes the blob has whose first bytes are `header` (at least 8); `None` where it is
/// no device tree or is larger than 2 MiB.
pub fn blob_size(header: &[u8]) -> Option<usize> {
    let magic = u32::from_be_bytes(*header.first_chunk()?);
    let size = u32::from_be_bytes(*header.get(4..)?.first_chunk()?);
    (magic == 0xd00d_feed && size <= MAX_BLOB).then_some(size as usize)
}

/// Reads the machine from a flattened device tree; `blob` is all of it and nothing more.
///
/// # Errors
/// Names the node and what is wrong with it: malformed, missing, out of range, or more than the
/// limits of this crate.
pub fn read(blob: &[u8]) -> Result<Machine> {
    let tree = Fdt::new(blob).map_err(|error| TreeError::new("", Problem::Blob(error)))?;
    let root = tree.root();
    let mut distances = Distances::new(numa_ids(&root)?)?;
    if let Some(map) = root.find_compatible("numa-distance-map-v1").next() {
        distances.apply(&map)?;
    }
    let (gic, width) = read_gic(&root)?;
    let mut machine = Machine {
        cpus: read_cpus(&root, &distances)?,
        memory: read_memory(&root, &distances)?,
        reserved: read_reserved(tree, &root)?,
        gic,
        timer: read_timer(&root, width)?,
        psci: read_psci(&root)?,
        console: None,
        rtc: None,
        virtio: Vec::new(),
        pci: Vec::new(),
        bootargs: String::new(),
        initrd: None,
        rng_seed: None,
        os0: None,
        distances,
    };
    read_devices(&root, width, &mut machine)?;
    if let Some(console) = stdout(tree) {
        machine.console = Some(read_pl011(&console, width)?);
    }
    if let Some(chosen) = root.child("chosen") {
        read_chosen(&chosen, &mut machine)?;
        machine.rng_seed = seed_place(&chosen, blob);
    }
    Ok(machine)
}

/// The child of the root called `name`.
fn required<'a>(root: &FdtNode<'a>, name: &str) -> Result<FdtNode<'a>> {
    root.child(name)
        .ok_or_else(|| TreeError::new(name, Problem::NoNode))
}

/// The root's child that is compatible with `name`.
fn compatible<'a>(root: &FdtNode<'a>, name: &str) -> Result<FdtNode<'a>> {
    let found = root
        .children()
        .find(|child| is_enabled(child) && child.is_compatible(name));
    found.ok_or_else(|| TreeError::new(name, Problem::NoNode))
}

fn cpu_nodes<'a>(root: &FdtNode<'a>) -> Result<impl Iterator<Item = FdtNode<'a>> + use<'a>> {
    let cpus = required(root, "cpus")?;
    Ok(cpus
        .children()
        .filter(|cpu| cpu.name_without_address() == "cpu" && is_enabled(cpu)))
}

fn memory_nodes<'a>(root: &FdtNode<'a>) -> impl Iterator<Item = FdtNode<'a>> + use<'a> {
    root.children()
        .filter(|node| string(node, "device_type") == Some("memory") && is_enabled(node))
}

fn numa_id(node: &FdtNode<'_>) -> Result<u32> {
    Ok(one_cell(node, "numa-node-id")?.unwrap_or(DEFAULT_NODE))
}

/// The NUMA ids of all CPUs and memory. A malformed one counts as the default here; it is refused
/// where its CPU or memory is read.
fn numa_ids<'a>(root: &FdtNode<'a>) -> Result<impl Iterator<Item = u32> + use<'a>> {
    let nodes = cpu_nodes(root)?.chain(memory_nodes(root));
    Ok(nodes.map(|node| numa_id(&node).unwrap_or(DEFAULT_NODE)))
}

fn numa_node(node: &FdtNode<'_>, distances: &Distances) -> Result<NodeId> {
    let id = numa_id(node)?;
    distances
        .node(id)
        .ok_or_else(|| error(node, Problem::Value("numa-node-id", id.into())))
}

fn read_cpus(root: &FdtNode<'_>, distances: &Distances) -> Result<Vec<Cpu, MAX_CPUS>> {
    let mut cpus: Vec<Cpu, MAX_CPUS> = Vec::new();
    let mut without_method = None;
    for node in cpu_nodes(root)? {
        let mpidr = first_register(&node)?.start.0;
        if mpidr & !MPIDR_AFFINITY != 0 || cpus.iter().any(|cpu| cpu.mpidr == mpidr) {
            return Err(error(&node, Problem::Value("reg", mpidr)));
        }
        if string(&node, "enable-method") != Some("psci") {
            without_method = Some(node);
        }
        let cpu = Cpu {
            mpidr,
            node: numa_node(&node, distances)?,
        };
        cpus.push(cpu)
            .map_err(|_| error(&node, Problem::TooMany("CPUs", MAX_CPUS)))?;
    }
    // A single CPU needs no way to be started.
    match without_method {
        Some(node) if cpus.len() > 1 => Err(error(
            &node,
            Problem::Malformed("enable-method (must be psci)"),
        )),
        _ if cpus.is_empty() => Err(TreeError::new("cpus", Problem::Missing("cpu"))),
        _ => Ok(cpus),
    }
}

fn read_memory(root: &FdtNode<'_>, distances: &Distances) -> Result<Vec<Memory, MAX_MEMORY>> {
    let mut memory: Vec<Memory, MAX_MEMORY> = Vec::new();
    for node in memory_nodes(root) {
        let home = numa_node(&node, distances)?;
        for range in registers(&node)? {
            let range = range?;
            if range.size == 0 {
                continue;
            }
            if let Some(other) = memory.iter().find(|other| other.range.overlaps(range)) {
                let address = range.start.max(other.range.start);
                return Err(error(&node, Problem::Overlap(address.0)));
            }
            let too_many = |_| error(&node, Problem::TooMany("runs of memory", MAX_MEMORY));
            memory
                .push(Memory { range, node: home })
                .map_err(too_many)?;
        }
    }
    if memory.is_empty() {
        return Err(TreeError::new("memory", Problem::NoNode));
    }
    memory.sort_unstable_by_key(|memory| memory.range.start);
    Ok(memory)
}

fn read_reserved(tree: Fdt<'_>, root: &FdtNode<'_>) -> Result<Vec<PaRange, MAX_RESERVED>> {
    let mut reserved: Vec<PaRange, MAX_RESERVED> = Vec::new();
    let mut push = |name: &str, range: PaRange| {
        let too_many = |_| TreeError::new(name, Problem::TooMany("reserved runs", MAX_RESERVED));
        if range.size == 0 {
            Ok(())
        } else {
            reserved.push(range).map_err(too_many)
        }
    };
    for entry in tree.memory_reservations() {
        let wraps = || TreeError::new("", Problem::Value("memreserve", entry.address()));
        push(
            "",
            PaRange::new(Pa(entry.address()), entry.size()).ok_or_else(wraps)?,
        )?;
    }
    if let Some(parent) = root.child("reserved-memory") {
        // Nodes without `reg` ask an operating system to find a place; nothing is there yet.
        let placed = parent
            .children()
            .filter(|node| node.property("reg").is_some());
        for node in placed.filter(is_enabled) {
            for range in registers(&node)? {
                push(node.name(), range?)?;
            }
        }
    }
    reserved.sort_unstable();
    Ok(reserved)
}

/// The GIC, and how many cells its interrupts take.
fn read_gic(root: &FdtNode<'_>) -> Result<(Gic, usize)> {
    let node = compatible(root, "arm,gic-v3")?;
    let width = one_cell(&node, "#interrupt-cells")?.unwrap_or(3);
    if !(3..=4).contains(&width) {
        return Err(error(
            &node,
            Problem::Value("#interrupt-cells", width.into()),
        ));
    }
    let regions = one_cell(&node, "#redistributor-regions")?.unwrap_or(1);
    if regions == 0 || regions as usize > MAX_REDISTRIBUTORS {
        return Err(error(
            &node,
            Problem::Value("#redistributor-regions", regions.into()),
        ));
    }
    let mut ranges = registers(&node)?;
    let missing = || error(&node, Problem::Missing("reg"));
    let distributor = ranges.next().ok_or_else(missing)??;
    let mut redistributors = Vec::new();
    for _ in 0..regions {
        // `regions` is within the capacity.
        let _ = redistributors.push(ranges.next().ok_or_else(missing)??);
    }
    let mut translators = Vec::new();
    for child in node.children().filter(is_enabled) {
        if child.is_compatible("arm,gic-v3-its") {
            let too_many = |_| error(&child, Problem::TooMany("ITSes", MAX_HOSTS));
            translators
                .push(first_register(&child)?)
                .map_err(too_many)?;
        }
    }
    let maintenance = interrupt(&node, 0, width as usize)?;
    let gic = Gic {
        distributor,
        redistributors,
        translators,
        maintenance: maintenance.ok_or_else(|| error(&node, Problem::Missing("interrupts")))?,
    };
    Ok((gic, width as usize))
}

/// The timer's interrupts, by name where they are named and else in the binding's order: secure
/// physical, physical, virtual, hypervisor physical.
fn read_timer(root: &FdtNode<'_>, width: usize) -> Result<Timer> {
    let node = compatible(root, "arm,armv8-timer")?;
    let find = |name: &str, index: usize| {
        let names = node.property("interrupt-names");
        let index = match names.as_ref().map(Property::value) {
            Some(names) => names
                .split(|byte| *byte == 0)
                .position(|n| n == name.as_bytes()),
            None => Some(index),
        };
        let found = match index {
            Some(index) => interrupt(&node, index, width)?,
            None => None,
        };
        found.ok_or_else(|| error(&node, Problem::Missing("interrupts")))
    };
    Ok(Timer {
        virtual_timer: find("virt", 2)?,
        hypervisor_timer: find("hyp-phys", 3)?,
    })
}

fn read_psci(root: &FdtNode<'_>) -> Result<Psci> {
    let version_1 = compatible(root, "arm,psci-1.0");
    let is_version_1 = version_1.is_ok();
    let node = version_1.or_else(|_| compatible(root, "arm,psci-0.2"))?;
    let conduit = match string(&node, "method") {
        Some("smc") => Conduit::Smc,
        Some("hvc") => Conduit::Hvc,
        Some(_) => return Err(error(&node, Problem::Malformed("method"))),
        None => return Err(error(&node, Problem::Missing("method"))),
    };
    Ok(Psci {
        conduit,
        version_1: is_version_1,
    })
}

/// The first PL011 and PL031, all PCI hosts and virtio-mmio transports.
fn read_devices(root: &FdtNode<'_>, width: usize, machine: &mut Machine) -> Result<()> {
    for_each_device(root, &mut |node| {
        if machine.console.is_none() && node.is_compatible("arm,pl011") {
            machine.console = Some(read_pl011(node, width)?);
        }
        if machine.rtc.is_none() && node.is_compatible("arm,pl031") {
            machine.rtc = Some(first_register(node)?.start);
        }
        if node.is_compatible("pci-host-ecam-generic") {
            let too_many = |_| error(node, Problem::TooMany("PCI hosts", MAX_HOSTS));
            machine.pci.push(first_register(node)?).map_err(too_many)?;
        }
        if node.is_compatible("virtio,mmio") {
            let interrupt = interrupt(node, 0, width)?;
            let transport = VirtioTransport {
                registers: first_register(node)?,
                interrupt: interrupt.ok_or_else(|| error(node, Problem::Missing("interrupts")))?,
            };
            let too_many = |_| error(node, Problem::TooMany("virtio transports", MAX_VIRTIO));
            machine.virtio.push(transport).map_err(too_many)?;
        }
        Ok(())
    })
}

fn read_pl011(node: &FdtNode<'_>, width: usize) -> Result<Pl011> {
    Ok(Pl011 {
        base: first_register(node)?.start,
        interrupt: interrupt(node, 0, width)?,
    })
}

/// The PL011 that `stdout-path` names, by path or by alias.
fn stdout(tree: Fdt<'_>) -> Option<FdtNode<'_>> {
    let chosen = tree.find_node("/chosen")?;
    let path = string(&chosen, "stdout-path")?;
    // What follows a colon are settings such as the speed.
    let path = path.split(':').next()?;
    let path = if path.starts_with('/') {
        path
    } else {
        string(&tree.find_node("/aliases")?, path)?
    };
    tree.find_node(path)
        .filter(|node| node.is_compatible("arm,pl011"))
}

fn read_chosen(chosen: &FdtNode<'_>, machine: &mut Machine) -> Result<()> {
    if let Some(bootargs) = string(chosen, "bootargs") {
        let limit = machine.bootargs.capacity();
        let too_long = |_| error(chosen, Problem::TooMany("bytes of bootargs", limit));
        machine.bootargs.push_str(bootargs).map_err(too_long)?;
    }
    let start = number(chosen, "linux,initrd-start")?;
    let end = number(chosen, "linux,initrd-end")?;
    if let (Some(start), Some(end)) = (start, end) {
        let size = end.checked_sub(start);
        let bad = || error(chosen, Problem::Value("linux,initrd-end", end));
        let range = PaRange::new(Pa(start), size.ok_or_else(bad)?).ok_or_else(bad)?;
        machine.initrd = (range.size > 0).then_some(range);
    }
    machine.os0 = read_os0(chosen)?;
    Ok(())
}

/// Where `rng-seed` is in the tree.
fn seed_place(chosen: &FdtNode<'_>, blob: &[u8]) -> Option<(u32, u32)> {
    let seed = chosen.property("rng-seed")?;
    let at = (seed.value().as_ptr() as usize).checked_sub(blob.as_ptr() as usize)?;
    let place = (at as u32, seed.value().len() as u32);
    (place.1 > 0).then_some(place)
}

/// The boot modules below `/chosen`.
fn read_os0(chosen: &FdtNode<'_>) -> Result<Option<Os0>> {
    const KERNEL: &str = "multiboot,kernel";
    let mut os0 = Os0::default();
    let mut found = false;
    for module in chosen.children() {
        if module.is_compatible(KERNEL) {
            os0.kernel = module_range(&module)?;
            if core::mem::replace(&mut found, true) {
                return Err(error(&module, Problem::TooMany(KERNEL, 1)));
            }
            if let Some(bootargs) = string(&module, "bootargs") {
                let limit = os0.bootargs.capacity();
                let too_long = |_| error(&module, Problem::TooMany("bytes of bootargs", limit));
                os0.bootargs.push_str(bootargs).map_err(too_long)?;
            }
        } else if module.is_compatible("multiboot,ramdisk") {
            let range = module_range(&module)?;
            if os0.ramdisk.replace(range).is_some() {
                return Err(error(&module, Problem::TooMany("multiboot,ramdisk", 1)));
            }
        }
    }
    match (found, os0.ramdisk) {
        (true, _) => Ok(Some(os0)),
        (false, None) => Ok(None),
        (false, Some(_)) => Err(error(chosen, Problem::Missing(KERNEL))),
    }
}

/// Where a boot module lies. `/chosen` need not say how many cells its children use (QEMU's does
/// not, and uses two and two), so the length of `reg` tells.
fn module_range(module: &FdtNode<'_>) -> Result<PaRange> {
    const NAME: &str = "reg";
    let cells = cells(module, NAME)?.ok_or_else(|| error(module, Problem::Missing(NAME)))?;
    let mut words = [0u64; 4];
    let mut count = 0;
    for cell in cells {
        let word = words.get_mut(count);
        *word.ok_or_else(|| error(module, Problem::Malformed(NAME)))? = cell.into();
        count += 1;
    }
    let [a, b, c, d] = words;
    let (start, size) = match count {
        4 => (a << 32 | b, c << 32 | d),
        3 => (a << 32 | b, c),
        2 => (a, b),
        _ => return Err(error(module, Problem::Malformed(NAME))),
    };
    let range = PaRange::new(Pa(start), size).filter(|range| range.size > 0);
    range.ok_or_else(|| error(module, Problem::Value(NAME, start)))
}
