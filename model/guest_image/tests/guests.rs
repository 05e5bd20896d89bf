//! Headers, layouts and trees, read back by another's reader.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use model_addr::{Ipa, IpaRange};
use model_guest_image::{
    GuestTree, HeaderError, HostShare, ImageHeader, Kernel, LayoutError, MAX_BOOTARGS, MAX_VCPUS,
    MAX_VIRTIO, RegionNode, STOLEN_TIMES_ROOM, TREE_ROOM, TreeError, layout, map, stolen_time,
    stolen_times, vcpu_mpidr,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn ram(size: u64) -> IpaRange {
    IpaRange {
        start: map::RAM,
        size,
    }
}

fn image(text_offset: u64, image_size: u64, flags: u64) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&image_size.to_le_bytes());
    bytes[24..32].copy_from_slice(&flags.to_le_bytes());
    bytes[56..60].copy_from_slice(b"ARM\x64");
    bytes
}

#[test]
fn headers() {
    // Debian 13's: offset 0, flags 0xa (little-endian, 4 KiB pages, anywhere).
    let header = ImageHeader {
        text_offset: 0,
        image_size: 0x27f_0000,
    };
    assert_eq!(
        ImageHeader::parse(&image(0, 0x27f_0000, 0xa)),
        Ok(Some(header))
    );
    let old = ImageHeader {
        text_offset: 0x8_0000,
        image_size: 0,
    };
    assert_eq!(ImageHeader::parse(&image(0x1234, 0, 0)), Ok(Some(old)));
    assert_eq!(
        ImageHeader::parse(&image(0, 1, 1)),
        Err(HeaderError::BigEndian)
    );
    assert_eq!(
        ImageHeader::parse(&image(0, u64::MAX, 0)),
        Err(HeaderError::Absurd(u64::MAX))
    );
    let parse = |offset, size| ImageHeader::parse(&image(offset, size, 0)).map(drop);
    let (most, more) = (1 << 40, (1 << 40) + 1);
    assert_eq!([parse(most, most), parse(0, 0)], [Ok(()); 2]);
    assert_eq!(
        [parse(more, 1), parse(0, more)],
        [Err(HeaderError::Absurd(more)); 2]
    );
    assert_eq!(ImageHeader::parse(&[0; 64]), Ok(None));
    assert_eq!(ImageHeader::parse(&image(0, 1, 0)[..63]), Ok(None));
}

#[test]
fn a_flat_image_has_its_tree_above() {
    let laid = layout(ram(8 * MIB), Kernel::Flat, 5000, 0).unwrap();
    assert_eq!((laid.entry, laid.kernel.start), (map::RAM, map::RAM));
    assert_eq!(laid.tree.start, Ipa(0x4020_0000));
    assert_eq!(laid.initrd, None);
}

#[test]
fn what_does_not_fit_is_refused() {
    let linux = Kernel::Linux(ImageHeader {
        text_offset: 0,
        image_size: 40 * MIB,
    });
    let laid = layout(ram(128 * MIB), linux, 38 * MIB, 30 * MIB).unwrap();
    assert_eq!(laid.kernel.size, 40 * MIB);
    assert_eq!(
        laid.initrd.unwrap().start,
        Ipa(0x4000_0000 + 40 * MIB + TREE_ROOM)
    );
    let needed = 70 * MIB + TREE_ROOM + STOLEN_TIMES_ROOM;
    let small = layout(ram(needed - 1), linux, 38 * MIB, 30 * MIB);
    assert_eq!(
        small,
        Err(LayoutError::TooSmall {
            needed,
            given: needed - 1
        })
    );
    assert!(layout(ram(needed), linux, 38 * MIB, 30 * MIB).is_ok());
    assert_eq!(
        layout(ram(8 * MIB), Kernel::Flat, 0, 0),
        Err(LayoutError::EmptyKernel)
    );
    let odd = IpaRange {
        start: Ipa(0x4010_0000),
        size: 64 * MIB,
    };
    assert_eq!(
        layout(odd, Kernel::Flat, 1, 0),
        Err(LayoutError::Unaligned(odd.start))
    );
}

#[test]
fn every_vcpu_has_a_stolen_time_of_its_own() {
    let ram = ram(128 * MIB);
    let kept = stolen_times(ram);
    assert!(kept.start.is_aligned(4096) && kept.end() == ram.end());
    let mut end = kept.start;
    for index in 0..MAX_VCPUS {
        let record = stolen_time(ram, index);
        assert!(record >= end && record.is_aligned(64) && kept.contains_run(record, 64));
        end = Ipa(record.0 + 64);
    }
}

proptest! {
    #[test]
    fn layouts_fit_and_do_not_overlap(
        size in 0..1_u64 << 33,
        offset in prop_oneof![Just(0), 0..4 * MIB, any::<u64>()],
        image_size in prop_oneof![0..64 * MIB, any::<u64>()],
        kernel_size in prop_oneof![0..64 * MIB, any::<u64>()],
        initrd_size in prop_oneof![Just(0), 0..64 * MIB, any::<u64>()],
        flat: bool,
    ) {
        let header = ImageHeader { text_offset: offset, image_size };
        let kernel = if flat { Kernel::Flat } else { Kernel::Linux(header) };
        let ram = ram(size);
        match layout(ram, kernel, kernel_size, initrd_size) {
            Ok(laid) => {
                let parts = [Some(laid.kernel), Some(laid.tree), laid.initrd, Some(stolen_times(ram))];
                let parts: Vec<IpaRange> = parts.into_iter().flatten().collect();
                for (index, part) in parts.iter().enumerate() {
                    prop_assert!(ram.contains_run(part.start, part.size));
                    prop_assert!(parts[..index].iter().all(|other| !other.overlaps(*part)));
                }
                prop_assert!(laid.kernel.size >= kernel_size);
                prop_assert!(laid.tree.start.is_aligned(8));
                prop_assert_eq!(laid.tree.start.0 >> 21, (laid.tree.end().0 - 1) >> 21);
                prop_assert!(laid.tree.start >= laid.kernel.end());
                prop_assert_eq!(laid.initrd.map_or(0, |initrd| initrd.size), initrd_size);
            }
            Err(LayoutError::TooSmall { needed, given }) => prop_assert!(needed > given),
            Err(other) => prop_assert_eq!((other, kernel_size), (LayoutError::EmptyKernel, 0)),
        }
    }

    #[test]
    fn any_header_parses(bytes in prop::collection::vec(any::<u8>(), 0..80), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 60 {
            bytes[56..60].copy_from_slice(b"ARM\x64");
        }
        if let Ok(Some(header)) = ImageHeader::parse(&bytes) {
            prop_assert!(magic && header.text_offset <= 1 << 40);
        }
    }
}

/// A word of a seed.
const SEED: u64 = 0x0707_0707_0707_0707;

fn description(vcpus: u16, virtio: u8, bootargs: &str) -> GuestTree<'_> {
    GuestTree {
        ram: ram(512 * MIB),
        vcpus,
        virtio,
        hosts: &[],
        regions: &[],
        bootargs,
        initrd: Some(IpaRange {
            start: Ipa(0x4800_0000),
            size: 5000,
        }),
        seeds: Some([0x1234_5678_9abc_def0, SEED, SEED, SEED, SEED]),
    }
}

fn value<'a>(node: &FdtNode<'a>, name: &str) -> &'a [u8] {
    node.property(name).unwrap().value_as().unwrap()
}

fn cells(node: &FdtNode<'_>, name: &str) -> Vec<u32> {
    value(node, name)
        .chunks(4)
        .map(|c| u32::from_be_bytes(c.try_into().unwrap()))
        .collect()
}

#[test]
fn the_tree_says_what_the_guest_has() {
    let blob = description(18, 3, "console=ttyAMA0 quiet")
        .write(|| ())
        .unwrap();
    let tree = Fdt::new(&blob).unwrap();
    let node = |path: &str| tree.find_node(path).unwrap();
    assert_eq!(
        cells(&node("/memory@40000000"), "reg"),
        [0, 0x4000_0000, 0, 0x2000_0000]
    );
    let reserved = node("/reserved-memory/stolen-time@5fffe000");
    assert_eq!(cells(&reserved, "reg"), [0, 0x5fff_e000, 0, 0x2000]);
    assert!(reserved.property("no-map").is_none(), "Linux maps it");
    let cpus: Vec<u32> = node("/cpus")
        .children()
        .map(|cpu| cells(&cpu, "reg")[0])
        .collect();
    let expected: Vec<u32> = (0..18).map(|index| vcpu_mpidr(index) as u32).collect();
    assert_eq!(cpus, expected);
    assert_eq!(cpus[17], 0x101);
    assert_eq!(
        value(&node("/psci"), "compatible"),
        b"arm,psci-1.0\0arm,psci-0.2\0"
    );
    assert_eq!(value(&node("/psci"), "method"), b"hvc\0");
    let timer = [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4];
    assert_eq!(cells(&node("/timer"), "interrupts"), timer);
    let gic = [0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 18 * 0x2_0000];
    assert_eq!(cells(&node("/intc@8000000"), "reg"), gic);
    let phandle = cells(&node("/intc@8000000"), "phandle");
    assert_eq!(cells(&node("/"), "interrupt-parent"), phandle);
    assert_eq!(cells(&node("/pl011@9000000"), "interrupts"), [0, 1, 4]);
    let clock = cells(&node("/apb-pclk"), "phandle")[0];
    assert_eq!(cells(&node("/pl011@9000000"), "clocks"), [clock, clock]);
    let gpio = node("/pl061@9030000");
    assert_eq!(cells(&gpio, "reg"), [0, 0x903_0000, 0, 0x1000]);
    assert_eq!(cells(&gpio, "interrupts"), [0, 7, 4]);
    assert_eq!(cells(&gpio, "clocks"), [clock]);
    let rtc = node("/pl031@9010000");
    assert_eq!(value(&rtc, "compatible"), b"arm,pl031\0arm,primecell\0");
    assert_eq!(cells(&rtc, "reg"), [0, 0x901_0000, 0, 0x1000]);
    assert_eq!(cells(&rtc, "clocks"), [clock]);
    assert!(rtc.property("interrupts").is_none());
    let button = node("/gpio-keys/poweroff");
    let line = [cells(&gpio, "phandle")[0], 3, 0];
    assert_eq!(cells(&button, "gpios"), line);
    assert_eq!(cells(&button, "linux,code"), [116]);
    assert_eq!(
        cells(&node("/virtio_mmio@a000400"), "interrupts"),
        [0, 18, 4]
    );
    assert!(tree.find_node("/virtio_mmio@a000600").is_none());
    let chosen = node("/chosen");
    assert_eq!(value(&chosen, "bootargs"), b"console=ttyAMA0 quiet\0");
    assert_eq!(value(&chosen, "stdout-path"), b"/pl011@9000000\0");
    assert_eq!(cells(&chosen, "linux,initrd-end"), [0, 0x4800_0000 + 5000]);
    assert_eq!(value(&chosen, "rng-seed"), [7; 32]);
    assert_eq!(cells(&chosen, "kaslr-seed"), [0x1234_5678, 0x9abc_def0]);
}

#[test]
fn a_machine_without_random_bits_gives_no_seeds() {
    let tree = GuestTree {
        seeds: None,
        ..description(1, 0, "")
    };
    let blob = tree.write(|| ()).unwrap();
    let chosen = Fdt::new(&blob).unwrap();
    let chosen = chosen.find_node("/chosen").unwrap();
    assert!(chosen.property("bootargs").is_some());
    for name in ["rng-seed", "kaslr-seed"] {
        assert!(chosen.property(name).is_none(), "{name}");
    }
}

#[test]
fn hosts_are_numa_nodes() {
    let share = |vcpus, memory| HostShare {
        vcpus,
        memory: memory * MIB,
    };
    let hosts = [share(2, 256), share(1, 192), share(1, 64)];
    let tree = GuestTree {
        hosts: &hosts,
        ..description(4, 0, "")
    };
    let blob = tree.write(|| ()).unwrap();
    let tree = Fdt::new(&blob).unwrap();
    let node = |path: &str| tree.find_node(path).unwrap();
    let memory = [
        ("/memory@40000000", 0x4000_0000, 256),
        ("/memory@50000000", 0x5000_0000, 192),
        ("/memory@5c000000", 0x5c00_0000, 64),
    ];
    for (n, (path, start, size)) in (0..).zip(memory) {
        assert_eq!(cells(&node(path), "reg"), [0, start, 0, size << 20]);
        assert_eq!(cells(&node(path), "numa-node-id"), [n], "{path}");
    }
    let cpus = node("/cpus");
    let nodes = cpus.children().map(|cpu| cells(&cpu, "numa-node-id")[0]);
    assert_eq!(nodes.collect::<Vec<_>>(), [0, 0, 1, 2]);
    let map = node("/distance-map");
    assert_eq!(value(&map, "compatible"), b"numa-distance-map-v1\0");
    let matrix = cells(&map, "distance-matrix");
    assert_eq!(matrix.len(), 27);
    for entry in matrix.chunks(3) {
        assert_eq!(entry[2], if entry[0] == entry[1] { 10 } else { 40 });
    }
    // A guest of one machine has none of this.
    let blob = description(4, 0, "").write(|| ()).unwrap();
    let tree = Fdt::new(&blob).unwrap();
    assert!(tree.find_node("/distance-map").is_none());
    let memory = tree.find_node("/memory@40000000").unwrap();
    assert!(memory.property("numa-node-id").is_none());
}

#[test]
fn the_tree_names_shared_regions() {
    let window = IpaRange {
        start: Ipa(0x6000_0000),
        size: 6 << 20,
    };
    let region = |read_only| RegionNode {
        name: "table",
        window,
        read_only,
    };
    for read_only in [false, true] {
        let regions = [region(read_only)];
        let tree = GuestTree {
            regions: &regions,
            ..description(1, 0, "")
        };
        let blob = tree.write(|| ()).unwrap();
        let tree = Fdt::new(&blob).unwrap();
        let node = tree.find_node("/pmem@60000000").unwrap();
        assert_eq!(value(&node, "compatible"), b"pmem-region\0");
        assert_eq!(value(&node, "label"), b"table\0");
        assert_eq!(cells(&node, "reg"), [0, 0x6000_0000, 0, 6 << 20]);
        assert!(node.property("volatile").is_some());
        assert_eq!(node.property("read-only").is_some(), read_only);
    }
}

#[test]
fn the_largest_guest_has_room() {
    let bootargs = "x".repeat(MAX_BOOTARGS);
    let blob = description(MAX_VCPUS, MAX_VIRTIO, &bootargs)
        .write(|| ())
        .unwrap();
    assert!(blob.len() as u64 <= TREE_ROOM);
    let last = map::REDISTRIBUTORS.0 + u64::from(MAX_VCPUS) * map::REDISTRIBUTOR_SIZE;
    assert!(MAX_VCPUS == 123 && last <= map::UART.start.0);
}

#[test]
fn descriptions_beyond_the_limits_are_refused() {
    let refused = |tree: GuestTree<'_>| tree.write(|| ()).unwrap_err();
    assert_eq!(refused(description(0, 0, "")), TreeError::Vcpus(0));
    assert_eq!(
        refused(description(MAX_VCPUS + 1, 0, "")),
        TreeError::Vcpus(MAX_VCPUS + 1)
    );
    assert_eq!(
        refused(description(1, MAX_VIRTIO + 1, "")),
        TreeError::Virtio(MAX_VIRTIO + 1)
    );
    assert!(matches!(
        refused(description(1, 0, "a\0b")),
        TreeError::Write(_)
    ));
    let long = "x".repeat(MAX_BOOTARGS + 1);
    assert_eq!(
        refused(description(1, 0, &long)),
        TreeError::Bootargs(MAX_BOOTARGS + 1)
    );
}

/// `dtc` knows many bindings' rules; where it is installed it must find nothing to say.
#[test]
fn dtc_has_no_complaint() {
    let dtc = Command::new("dtc")
        .args(["-I", "dtb", "-O", "dts", "-o", "/dev/null", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut dtc) = dtc else {
        eprintln!("dtc is not installed: nothing checked");
        return;
    };
    let blob = description(4, 8, "quiet").write(|| ()).unwrap();
    dtc.stdin.take().unwrap().write_all(&blob).unwrap();
    let output = dtc.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
}
