//! What several VMs read from their disks is in memory once.

use super::kernels::BOOT;
use crate::{
    Outcome, because, disk_image,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The file that is read, and the one that is read where there is time.
const MIB: u64 = 64;
const LARGE: u64 = 256;
/// How much of it must be shared when both VMs have read it, in percent.
const SHARED: u64 = 97;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        both("share/same-image", ["../data.img"; 2], MIB),
        both("share/two-images", ["../data.img", "../other.img"], MIB),
        both("share/large-same-image", ["../data.img"; 2], LARGE).slow(),
        both(
            "share/large-two-images",
            ["../data.img", "../other.img"],
            LARGE,
        )
        .slow(),
        large_partition().slow(),
        other_group(),
    ]
}

fn linux(name: &str, mib: u64) -> Vm {
    let vm = Vm::linux(name, "trixie-cloud", "shell");
    vm.memory(&format!("{}MiB", mib + 192))
}

fn reader(name: &str, image: &str) -> Vm {
    linux(name, MIB).cow_disk(image)
}

/// Both read a file of so many MiB: the same one, or each its own copy from an image of its own.
fn both(name: &str, images: [&str; 2], mib: u64) -> Scenario {
    let [one, two] = images;
    let vms = vec![
        linux("one", mib).cow_disk(one),
        linux("two", mib).cow_disk(two),
    ];
    let prepare = match mib {
        LARGE => |directory: &Path| with_images(directory, LARGE),
        _ => |directory: &Path| with_images(directory, MIB),
    };
    Scenario::new(name, machine(mib), vms)
        .prepare(prepare)
        .check(move |stage| both_read(stage)?.are_shared(mib))
}

/// A machine for two such VMs.
fn machine(mib: u64) -> Hardware {
    Hardware::new(2, if mib == LARGE { "2G" } else { "1G" })
}

/// Both read the same file of a base on a partition: the second reader needs no I/O at all.
fn large_partition() -> Scenario {
    let vms = ["one", "two"].map(|name| linux(name, LARGE).cow_partition("data"));
    Scenario::new("share/large-partition", machine(LARGE), vms.into())
        .prepare(with_partition)
        .check(|stage| {
            both_read(stage)?.are_shared(LARGE)?;
            let events = stage.machine()?.mem("two")?.events;
            let count = |name: &str| events.get(name).copied().unwrap_or(u64::MAX);
            let (entered, joined) = (count("entered"), count("shared-by-block"));
            // What is in the index was read by somebody: of the second VM, nothing but what the first
            // did not look at when it mounted.
            if entered > 16 || joined < LARGE << 8 {
                return Err(format!(
                    "{entered} blocks were read and {joined} were there"
                ));
            }
            Ok(())
        })
}

/// A VM of another share group reads the same bytes, and nothing of it is shared.
fn other_group() -> Scenario {
    let stranger = reader("two", "../data.img").group("strangers");
    Scenario::new(
        "share/other-group",
        Hardware::new(2, "1G"),
        vec![reader("one", "../data.img"), stranger],
    )
    .prepare(|directory| with_images(directory, MIB))
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
    /// Whether the file, of so many MiB, is in memory once.
    fn are_shared(&self, mib: u64) -> Outcome {
        let wanted = mib << 20;
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
                "of {mib} MiB that both have read, {shared:?} % can be shared and {earned:?} % are"
            ))
        }
    }
}

fn both_read(stage: &mut Stage) -> Outcome<Read> {
    let patience = Duration::from_secs(4 * BOOT);
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
fn with_images(directory: &Path, mib: u64) -> Outcome<Vec<String>> {
    let tree = with_file(directory, mib)?;
    fs::write(tree.join("before"), vec![1; 5 << 20]).map_err(because("cannot write a file"))?;
    disk_image::populated(&directory.join("other.img"), &tree, image(mib) + 16)?;
    Ok(Vec::new())
}

/// A disk with `data.img` on its partition.
fn with_partition(directory: &Path) -> Outcome<Vec<String>> {
    with_file(directory, LARGE)?;
    let disk = directory.join("disk.img");
    disk_image::with_image(&disk, "data", &directory.join("data.img"))?;
    Ok(vec!["--disk".into(), disk.display().to_string()])
}

/// `data.img`, and the directory with what is in it.
fn with_file(directory: &Path, mib: u64) -> Outcome<PathBuf> {
    let tree = directory.join("tree");
    fs::create_dir_all(&tree).map_err(because("cannot make a directory"))?;
    let data: Vec<u8> = (0..mib << 17)
        .flat_map(|n| random(n).to_le_bytes())
        .collect();
    fs::write(tree.join("data"), data).map_err(because("cannot write a file"))?;
    disk_image::populated(&directory.join("data.img"), &tree, image(mib))?;
    Ok(tree)
}

/// MiB of an image with a file of so many, and the file system's own tables.
const fn image(mib: u64) -> u64 {
    mib + 16 + mib / 8
}

/// Numbers that do not repeat (`SplitMix64`).
pub(super) const fn random(n: u64) -> u64 {
    let x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}
