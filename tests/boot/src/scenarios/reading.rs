//! What several VMs read from their disks is in memory once.

use super::kernels::BOOT;
use crate::{
    Outcome, because, disk_image,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{fs, path::Path, time::Duration};

/// The file that is read.
const MIB: u64 = 64;
/// How much of it must be shared when both VMs have read it, in percent.
const SHARED: u64 = 97;

pub fn scenarios() -> Vec<Scenario> {
    vec![same_image(), two_images(), other_group()]
}

fn reader(name: &str, image: &str) -> Vm {
    let vm = Vm::linux(name, "trixie-cloud", "shell").memory("256MiB");
    vm.cow_disk(image)
}

/// Both read the same file of the same base image.
fn same_image() -> Scenario {
    Scenario::new(
        "share/same-image",
        Hardware::new(2, "1G"),
        vec![reader("one", "../data.img"), reader("two", "../data.img")],
    )
    .prepare(with_images)
    .check(|stage| both_read(stage)?.are_shared())
}

/// Each reads its own copy of the file, from an image of its own.
fn two_images() -> Scenario {
    Scenario::new(
        "share/two-images",
        Hardware::new(2, "1G"),
        vec![reader("one", "../data.img"), reader("two", "../other.img")],
    )
    .prepare(with_images)
    .check(|stage| both_read(stage)?.are_shared())
}

/// A VM of another share group reads the same bytes, and nothing of it is shared.
fn other_group() -> Scenario {
    let stranger = reader("two", "../data.img").group("strangers");
    Scenario::new(
        "share/other-group",
        Hardware::new(2, "1G"),
        vec![reader("one", "../data.img"), stranger],
    )
    .prepare(with_images)
    .check(|stage| {
        let [one, two] = both_read(stage)?.entitlements;
        if (one, two) == (0, 0) {
            Ok(())
        } else {
            Err(format!(
                "strangers earn {one} and {two} bytes by each other"
            ))
        }
    })
}

/// What both VMs have after both have read.
struct Read {
    shared: [u64; 2],
    entitlements: [u64; 2],
}

impl Read {
    fn are_shared(&self) -> Outcome {
        let wanted = MIB << 20;
        // Each of two users of a frame earns half of it.
        let earned = self.entitlements.map(|bytes| 2 * bytes * 100 / wanted);
        let shared = self.shared.map(|bytes| bytes * 100 / wanted);
        if earned
            .iter()
            .chain(&shared)
            .all(|percent| *percent >= SHARED)
        {
            Ok(())
        } else {
            Err(format!(
                "of {MIB} MiB that both have read, {shared:?} % can be shared and {earned:?} % are"
            ))
        }
    }
}

fn both_read(stage: &mut Stage) -> Outcome<Read> {
    let patience = Duration::from_secs(2 * BOOT);
    let machine = stage.machine()?;
    let mut sums = Vec::new();
    for vm in ["one", "two"] {
        machine.expect(vm, "ready kernel=", 1, patience)?;
        machine.type_line(vm, "mount -t ext4 -o ro /dev/vda /mnt")?;
        machine.type_line(
            vm,
            "echo $(sha256sum </mnt/data | cut -c-64)-read-$((6 * 7))",
        )?;
        sums.push(machine.expect(vm, "-read-42", 1, patience)?);
    }
    if sums[0] != sums[1] || sums[0].len() != 64 + "-read-42".len() {
        return Err(format!("both read the same file: {sums:?}"));
    }
    let [one, two] = ["one", "two"].map(|vm| machine.mem(vm));
    let (one, two) = (one?, two?);
    Ok(Read {
        shared: [one.shared, two.shared],
        entitlements: [one.entitlement, two.entitlement],
    })
}

/// `data.img`, a file system with the file in it, and `other.img`, which has it elsewhere.
fn with_images(directory: &Path) -> Outcome<Vec<String>> {
    let tree = directory.join("tree");
    fs::create_dir_all(&tree).map_err(because("cannot make a directory"))?;
    let data: Vec<u8> = (0..MIB << 17)
        .flat_map(|n| random(n).to_le_bytes())
        .collect();
    fs::write(tree.join("data"), data).map_err(because("cannot write a file"))?;
    disk_image::populated(&directory.join("data.img"), &tree, MIB + 16)?;
    fs::write(tree.join("before"), vec![1; 5 << 20]).map_err(because("cannot write a file"))?;
    disk_image::populated(&directory.join("other.img"), &tree, MIB + 32)?;
    Ok(Vec::new())
}

/// Numbers that do not repeat (`SplitMix64`).
const fn random(n: u64) -> u64 {
    let x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}
