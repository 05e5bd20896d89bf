//! Real trees, trees made to order, and broken ones.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node as _, Property as _};
use model_addr::{NodeId, Pa, PaRange};
use model_machine_tree::{Conduit, Interrupt, Machine, Problem, blob_size, read};
use proptest::prelude::*;
use vm_fdt::{FdtReserveEntry, FdtWriter};

const ONE: &[u8] = include_bytes!("data/one_node.dtb");
const TWO: &[u8] = include_bytes!("data/two_nodes.dtb");
const FOUR: &[u8] = include_bytes!("data/four_nodes.dtb");
const EIGHT: &[u8] = include_bytes!("data/eight_nodes.dtb");
const OS0: &[u8] = include_bytes!("data/os0.dtb");
const GIB: u64 = 1 << 30;

fn level(intid: u32) -> Interrupt {
    Interrupt { intid, edge: false }
}

/// (numa id, bytes) by node.
fn memory_by_node(machine: &Machine) -> Vec<(u32, u64)> {
    machine
        .distances
        .nodes()
        .map(|node| {
            let own = machine.memory.iter().filter(|memory| memory.node == node);
            (
                machine.distances.id(node).unwrap(),
                own.map(|memory| memory.range.size).sum(),
            )
        })
        .collect()
}

/// The seed is found where it is, and a tree without one has none.
#[test]
fn the_seed_of_a_tree_is_found() {
    assert_eq!(read(ONE).unwrap().rng_seed, None);
    let mut blob = OS0.to_vec();
    let (at, size) = read(&blob).unwrap().rng_seed.unwrap();
    let seed = at as usize..(at + size) as usize;
    blob[seed.clone()].fill(0xa5);
    let tree = Fdt::new(&blob).unwrap();
    let found = tree.root().child("chosen").unwrap();
    let found = found.property("rng-seed").unwrap();
    assert_eq!(found.value(), vec![0xa5; seed.len()]);
    // Nothing else was written over.
    let rest = |blob: &[u8]| [&blob[..seed.start], &blob[seed.end..]].concat();
    assert_eq!(rest(&blob), rest(OS0));
}

#[test]
fn one_node() {
    let machine = read(ONE).unwrap();
    assert_eq!(memory_by_node(&machine), [(0, GIB)]);
    assert_eq!(
        machine.cpus.iter().map(|cpu| cpu.mpidr).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(
        machine.gic.distributor,
        PaRange {
            start: Pa(0x0800_0000),
            size: 0x1_0000
        }
    );
    let redistributors = PaRange {
        start: Pa(0x080a_0000),
        size: 0xf6_0000,
    };
    assert_eq!(machine.gic.redistributors, [redistributors]);
    assert_eq!(machine.gic.maintenance, level(25));
    let run = |start, size| PaRange {
        start: Pa(start),
        size,
    };
    assert_eq!(machine.gic.translators, [run(0x0808_0000, 0x2_0000)]);
    assert_eq!(machine.pci, [run(0x40_1000_0000, 256 << 20)]);
    assert_eq!(machine.timer.virtual_timer, level(27));
    assert_eq!(machine.timer.hypervisor_timer, level(26));
    assert_eq!(machine.psci.conduit, Conduit::Smc);
    assert!(machine.psci.version_1);
    let console = machine.console.unwrap();
    assert_eq!(
        (console.base, console.interrupt),
        (Pa(0x0900_0000), Some(level(33)))
    );
    assert_eq!(machine.rtc, Some(Pa(0x0901_0000)));
    assert_eq!(machine.virtio.len(), 32);
    let last = machine
        .virtio
        .iter()
        .max_by_key(|v| v.registers.start)
        .unwrap();
    assert_eq!(
        last.registers,
        PaRange {
            start: Pa(0x0a00_3e00),
            size: 0x200
        }
    );
    assert_eq!(
        last.interrupt,
        Interrupt {
            intid: 32 + 0x2f,
            edge: true
        }
    );
    assert!(machine.bootargs.is_empty() && machine.initrd.is_none());
}

#[test]
fn two_nodes_without_a_map() {
    let machine = read(TWO).unwrap();
    assert_eq!(memory_by_node(&machine), [(0, GIB), (1, 2 * GIB)]);
    let nodes: Vec<u8> = machine.cpus.iter().map(|cpu| cpu.node.0).collect();
    assert_eq!(nodes, [0, 0, 1, 1]);
    assert_eq!(machine.distances.between(NodeId(0), NodeId(1)), 20);
    assert_eq!(machine.distances.between(NodeId(1), NodeId(1)), 10);
}

#[test]
fn four_nodes_with_a_map() {
    let machine = read(FOUR).unwrap();
    assert_eq!(
        memory_by_node(&machine),
        [0, 1, 2, 3].map(|node| (node, 2 * GIB))
    );
    let row: Vec<u8> = machine
        .distances
        .nodes()
        .map(|to| machine.distances.between(NodeId(2), to))
        .collect();
    assert_eq!(row, [30, 30, 10, 20]);
    assert_eq!(machine.bootargs, "log=debug bundle=initrd");
    assert_eq!(machine.option("bundle="), Some("initrd"));
    assert_eq!(machine.option("numa="), None);
    assert!(machine.has_word("log=debug") && !machine.has_word("log="));
    assert_eq!(
        machine.initrd,
        Some(PaRange {
            start: Pa(0x4800_0000),
            size: 5000
        })
    );
}

#[test]
fn eight_uneven_nodes() {
    let machine = read(EIGHT).unwrap();
    let expected: Vec<(u32, u64)> = (0..8).map(|i| (i, (u64::from(i) + 1) << 28)).collect();
    assert_eq!(memory_by_node(&machine), expected);
    assert!(machine.cpus.iter().all(|cpu| cpu.node != NodeId(5)));
    assert_eq!(machine.cpus.len(), 7);
    assert_eq!(machine.distances.between(NodeId(0), NodeId(7)), 34);
    assert!(machine.memory.is_sorted_by_key(|memory| memory.range.start));
}

#[test]
fn boot_modules() {
    let machine = read(OS0).unwrap();
    let os0 = machine.os0.unwrap();
    let run = |start, size| PaRange {
        start: Pa(start),
        size,
    };
    assert_eq!(os0.kernel, run(0x5000_0000, 0x1d7_67c0));
    assert_eq!(os0.ramdisk, Some(run(0x5400_0000, 0x11_1bdb)));
    assert_eq!(os0.bootargs, "console=ttyAMA0 quiet");
    assert_eq!(machine.bootargs, "log=debug");
    assert!(read(ONE).unwrap().os0.is_none());
}

#[test]
fn boot_modules_that_make_no_sense() {
    let spoilt = |from: &[u8], to: &[u8]| {
        let mut blob = OS0.to_vec();
        let found = blob.windows(from.len()).position(|bytes| bytes == from);
        let at = found.unwrap();
        blob[at..at + to.len()].copy_from_slice(to);
        read(&blob).unwrap_err().problem
    };
    // There is no kernel; it has no bytes.
    assert_eq!(
        spoilt(b"multiboot,kernel", b"multiboot,bernel"),
        Problem::Missing("multiboot,kernel")
    );
    let kernel = [0, 0x5000_0000_u32, 0, 0x1d7_67c0].map(u32::to_be_bytes);
    let nothing = [0, 0x5000_0000_u32, 0, 0].map(u32::to_be_bytes);
    assert_eq!(
        spoilt(kernel.as_flattened(), nothing.as_flattened()),
        Problem::Value("reg", 0x5000_0000)
    );
}

const REGIONS: &str = "#redistributor-regions";

/// One CPU on `node`, and what every machine has: interrupt controller, timer, firmware.
fn add_cpu_and_controllers(fdt: &mut FdtWriter, node: u32) {
    let cpus = fdt.begin_node("cpus").unwrap();
    fdt.property_u32("#address-cells", 1).unwrap();
    fdt.property_u32("#size-cells", 0).unwrap();
    let cpu = fdt.begin_node("cpu@100").unwrap();
    fdt.property_u32("reg", 0x100).unwrap();
    fdt.property_u32("numa-node-id", node).unwrap();
    fdt.end_node(cpu).unwrap();
    fdt.end_node(cpus).unwrap();
    let gic = fdt.begin_node("intc@8000000").unwrap();
    fdt.property_string("compatible", "arm,gic-v3").unwrap();
    fdt.property_u32(REGIONS, 1).unwrap();
    fdt.property_array_u64("reg", &[0x800_0000, 0x1_0000, 0x80a_0000, 0x4_0000])
        .unwrap();
    fdt.property_array_u32("interrupts", &[1, 9, 4]).unwrap();
    let translator = fdt.begin_node("its@8080000").unwrap();
    fdt.property_string("compatible", "arm,gic-v3-its").unwrap();
    fdt.property_string("status", "disabled").unwrap();
    fdt.end_node(translator).unwrap();
    fdt.end_node(gic).unwrap();
    let timer = fdt.begin_node("timer").unwrap();
    fdt.property_string("compatible", "arm,armv8-timer")
        .unwrap();
    let names = ["hyp-phys".to_string(), "virt".to_string()];
    fdt.property_string_list("interrupt-names", names.into())
        .unwrap();
    fdt.property_array_u32("interrupts", &[1, 10, 4, 1, 11, 4])
        .unwrap();
    fdt.end_node(timer).unwrap();
    let psci = fdt.begin_node("psci").unwrap();
    fdt.property_string("compatible", "arm,psci-0.2").unwrap();
    fdt.property_string("method", "hvc").unwrap();
    fdt.end_node(psci).unwrap();
}

/// Three on a bus, the first of them switched off.
fn serial_ports(fdt: &mut FdtWriter) {
    let soc = fdt.begin_node("soc").unwrap();
    fdt.property_string("compatible", "simple-bus").unwrap();
    fdt.property_u32("#address-cells", 2).unwrap();
    fdt.property_u32("#size-cells", 2).unwrap();
    fdt.property_null("ranges").unwrap();
    for (at, status) in [
        (0x100_0000_u64, "disabled"),
        (0x200_0000, "okay"),
        (0x300_0000, "okay"),
    ] {
        let uart = fdt.begin_node(&format!("serial@{at:x}")).unwrap();
        fdt.property_string("compatible", "arm,pl011").unwrap();
        fdt.property_string("status", status).unwrap();
        fdt.property_array_u64("reg", &[at, 0x1000]).unwrap();
        fdt.end_node(uart).unwrap();
    }
    fdt.end_node(soc).unwrap();
}

/// A tree made to order: (start, size, numa id) of memory, and triples of the distance map.
fn made(memory: &[(u64, u64, u32)], map: &[u32], reserve: &[(u64, u64)]) -> Vec<u8> {
    made_with(memory, map, reserve, |_| ())
}

/// The same, with what is chosen.
fn made_with(
    memory: &[(u64, u64, u32)],
    map: &[u32],
    reserve: &[(u64, u64)],
    choose: impl FnOnce(&mut FdtWriter),
) -> Vec<u8> {
    let reserve: Vec<_> = reserve
        .iter()
        .map(|(at, size)| FdtReserveEntry::new(*at, *size).unwrap())
        .collect();
    let mut fdt = FdtWriter::new_with_mem_reserv(&reserve).unwrap();
    let root = fdt.begin_node("").unwrap();
    fdt.property_u32("#address-cells", 2).unwrap();
    fdt.property_u32("#size-cells", 2).unwrap();
    for (start, size, node) in memory {
        let memory = fdt.begin_node(&format!("memory@{start:x}")).unwrap();
        fdt.property_string("device_type", "memory").unwrap();
        fdt.property_array_u64("reg", &[*start, *size]).unwrap();
        fdt.property_u32("numa-node-id", *node).unwrap();
        fdt.end_node(memory).unwrap();
    }
    let held = fdt.begin_node("reserved-memory").unwrap();
    fdt.property_u32("#address-cells", 2).unwrap();
    fdt.property_u32("#size-cells", 2).unwrap();
    let firmware = fdt.begin_node("firmware@100000").unwrap();
    fdt.property_array_u64("reg", &[0x10_0000, 0x1000]).unwrap();
    fdt.end_node(firmware).unwrap();
    let unused = fdt.begin_node("unused@200000").unwrap();
    fdt.property_array_u64("reg", &[0x20_0000, 0x1000]).unwrap();
    fdt.property_string("status", "disabled").unwrap();
    fdt.end_node(unused).unwrap();
    fdt.end_node(held).unwrap();
    let chosen = fdt.begin_node("chosen").unwrap();
    choose(&mut fdt);
    fdt.end_node(chosen).unwrap();
    add_cpu_and_controllers(&mut fdt, memory.first().map_or(0, |memory| memory.2));
    serial_ports(&mut fdt);
    if !map.is_empty() {
        let distances = fdt.begin_node("distance-map").unwrap();
        fdt.property_string("compatible", "numa-distance-map-v1")
            .unwrap();
        fdt.property_array_u32("distance-matrix", map).unwrap();
        fdt.end_node(distances).unwrap();
    }
    fdt.end_node(root).unwrap();
    fdt.finish().unwrap()
}

#[test]
fn holes_in_ids_and_memory() {
    let empty = (12 * GIB, 0, 2);
    let memory = [(8 * GIB, GIB, 7), (0, GIB, 2), empty, (4 * GIB, 2 * GIB, 2)];
    let map = [2, 7, 15, 7, 2, 35, 2, 9, 80];
    let machine = read(&made(
        &memory,
        &map,
        &[(0x30_0000, 0x1000), (0x8000, 0x1000)],
    ))
    .unwrap();
    assert_eq!(machine.memory.len(), 3);
    assert_eq!(memory_by_node(&machine), [(2, 3 * GIB), (7, GIB)]);
    assert_eq!(machine.cpus[0].node, NodeId(1));
    assert_eq!(machine.distances.between(NodeId(0), NodeId(1)), 15);
    assert_eq!(machine.distances.between(NodeId(1), NodeId(0)), 35);
    let reserved: Vec<u64> = machine.reserved.iter().map(|range| range.start.0).collect();
    assert_eq!(reserved, [0x8000, 0x10_0000, 0x30_0000]);
    assert!(machine.gic.translators.is_empty());
    assert_eq!(machine.timer.hypervisor_timer, level(26));
    assert_eq!(machine.console.unwrap().base, Pa(0x200_0000));
    assert_eq!(machine.psci.conduit, Conduit::Hvc);
}

/// The console may be another than the first, with its settings; an initrd or a seed without bytes is none.
#[test]
fn what_is_chosen() {
    let machine = |initrd_end| {
        let tree = made_with(&[(0, GIB, 0)], &[], &[], |fdt| {
            let path = "/soc/serial@3000000:115200n8";
            fdt.property_string("stdout-path", path).unwrap();
            fdt.property_u64("linux,initrd-start", 0x4000).unwrap();
            fdt.property_u64("linux,initrd-end", initrd_end).unwrap();
            fdt.property_null("rng-seed").unwrap();
        });
        read(&tree).unwrap()
    };
    let chosen = machine(0x4001);
    assert_eq!(chosen.console.unwrap().base, Pa(0x300_0000));
    assert_eq!(chosen.initrd.unwrap().size, 1);
    assert_eq!(chosen.rng_seed, None);
    assert_eq!(machine(0x4000).initrd, None);
}

#[test]
fn one_direction_holds_for_both() {
    let machine = read(&made(&[(0, GIB, 0), (GIB, GIB, 1)], &[1, 0, 42], &[])).unwrap();
    assert_eq!(machine.distances.between(NodeId(0), NodeId(1)), 42);
}

#[test]
fn errors_name_node_and_value() {
    let twice = read(&made(&[(0, GIB, 0), (GIB / 2, GIB, 1)], &[], &[])).unwrap_err();
    assert_eq!(twice.problem, Problem::Overlap(GIB / 2));
    assert_eq!(
        twice.to_string(),
        "device tree, memory@20000000: memory is given twice at 0x20000000"
    );
    let wraps = read(&made(&[(u64::MAX - 1, 16, 0)], &[], &[])).unwrap_err();
    assert_eq!(wraps.problem, Problem::Value("reg", u64::MAX - 1));
    let near = read(&made(&[(0, GIB, 0), (GIB, GIB, 1)], &[0, 1, 9], &[])).unwrap_err();
    assert_eq!(near.problem, Problem::Value("distance-matrix", 9));
    let none = read(&made(&[], &[], &[])).unwrap_err();
    assert_eq!(
        (none.node.as_str(), &none.problem),
        ("memory", &Problem::NoNode)
    );
    // The number of a CPU has bits that are no affinity.
    let mut tree = made(&[(0, GIB, 0)], &[], &[]);
    let name = tree
        .windows(8)
        .position(|name| name == b"cpu@100\0")
        .unwrap();
    let number = (name..)
        .step_by(4)
        .find(|at| tree[*at..][..4] == [0, 0, 1, 0]);
    tree[number.unwrap()] = 0x80;
    let cpu = read(&tree).unwrap_err();
    assert_eq!(cpu.problem, Problem::Value("reg", 0x8000_0100));
    let many: Vec<_> = (0..65).map(|i| (u64::from(i) * GIB, GIB, i)).collect();
    let many = read(&made(&many, &[], &[])).unwrap_err();
    assert_eq!(many.problem, Problem::TooMany("NUMA nodes", 64));
}

/// None at all, and more than are kept or have an address.
#[test]
fn wrong_numbers_of_redistributor_regions_are_refused() {
    let mut tree = made(&[(0, GIB, 0)], &[], &[]);
    let word = |tree: &[u8], at: usize| u32::from_be_bytes(*tree[at..].first_chunk().unwrap());
    let mut names = tree.windows(REGIONS.len());
    let name = names.position(|it| it == REGIONS.as_bytes());
    let name = name.unwrap() as u32 - word(&tree, 12);
    // A property is its token, the length of its value, its name and the value.
    let mut at = (0..tree.len()).step_by(4);
    let is_it = |at: &usize| [0, 4, 8].map(|n| word(&tree, at + n)) == [3, 4, name];
    let value = at.find(is_it).unwrap() + 12;
    let mut with = |regions: u32| {
        tree[value..][..4].copy_from_slice(&regions.to_be_bytes());
        read(&tree).map(drop).map_err(|why| why.problem)
    };
    assert_eq!(with(1), Ok(()));
    for wrong in [0, u32::MAX] {
        assert_eq!(with(wrong), Err(Problem::Value(REGIONS, wrong.into())));
    }
    assert_eq!(with(2), Err(Problem::Missing("reg")));
}

#[test]
fn the_size_is_in_the_header() {
    assert_eq!(blob_size(ONE), Some(ONE.len()));
    assert_eq!(blob_size(&ONE[..7]), None);
    assert_eq!(blob_size(&[0xd0, 0x0d, 0xfe, 0xed, 0xff, 0, 0, 0]), None);
    assert_eq!(blob_size(&[0; 8]), None);
}

/// Reads a blob and says what came of it, so that errors are formatted as well.
fn attempt(blob: &[u8]) -> String {
    let mut said = String::new();
    match read(blob) {
        Ok(machine) => {
            assert!(machine.memory.is_sorted_by_key(|memory| memory.range.end()));
            assert!(machine.distances.count() >= 1);
            write!(said, "{machine:?}").unwrap();
        }
        Err(error) => write!(said, "{error}").unwrap(),
    }
    said
}

/// What a damaged cell may hold: small numbers and limits more often than others.
fn cell() -> impl Strategy<Value = u32> {
    prop_oneof![Just(u32::MAX), Just(0_u32), 0..64_u32, any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_trees_never_panic(
        which in 0..5_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
    ) {
        let mut blob = [ONE, TWO, FOUR, EIGHT, OS0][which].to_vec();
        for (index, value) in damage {
            let index = index.index(blob.len());
            blob[index] = value;
        }
        prop_assert!(!attempt(&blob).is_empty());
    }

    #[test]
    fn damaged_cells_never_panic(
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), cell()),
            1..4,
        ),
    ) {
        let mut blob = FOUR.to_vec();
        for (index, value) in damage {
            let index = index.index(blob.len() / 4) * 4;
            blob[index..index + 4].copy_from_slice(&value.to_be_bytes());
        }
        prop_assert!(!attempt(&blob).is_empty());
    }

    #[test]
    fn cut_trees_are_refused(length in 0..TWO.len()) {
        let mut blob = TWO[..length].to_vec();
        prop_assert!(read(&blob).is_err());
        if length >= 8 {
            blob[4..8].copy_from_slice(&(length as u32).to_be_bytes());
            prop_assert!(!attempt(&blob).is_empty());
        }
    }

    #[test]
    fn noise_is_refused(blob in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(read(&blob).is_err());
    }
}
