//! What EL2 starts in the place of this system when it ends while VMs need the machine: a kernel, its
//! ramdisk and this machine's device tree, laid out as they will run (`abi::stage`).

use crate::{
    failure::{Failure, Result, exit},
    units,
};
use abi::stage::{ALIGN, Head, MAGIC, PAYLOAD_AT, RESERVATION_BYTES};
use clap::Args;
use dtoolkit::{Node as _, Property as _, fdt::Fdt};
use model_addr::{Pa, PaRange};
use model_guest_image::ImageHeader;
use model_os0_boot::{Chosen, rewrite};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use zerocopy::IntoBytes as _;

/// The device tree that this system was started with.
const TREE: &str = "/sys/firmware/fdt";
/// How much the tree may grow by its command line.
const SLACK: usize = 8 << 10;
/// Runs of memory that EL2 can tell the new system not to touch.
const RESERVATIONS: u64 = 1024;
/// Bytes of a device tree's header, and where it has the size of all, the place of the reservation block,
/// and place and size of the two others (devicetree specification, 5.2).
const HEADER: usize = 40;
const TOTAL_SIZE: usize = 4;
const RESERVATIONS_AT: usize = 16;
const STRUCTURE: (usize, usize) = (8, 36);
const STRINGS: (usize, usize) = (12, 32);

/// `underpin stage`.
#[derive(Args, Clone, Debug, Default)]
pub struct Stage {
    /// The kernel, an arm64 Image; left out: the one that runs, in /boot
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Its ramdisk; left out: the one of the kernel that runs, in /boot
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Its command line; left out: this system's
    #[arg(long, value_name = "ARGS")]
    pub append: Option<String>,
    /// Give back the memory of what is staged instead
    #[arg(long, conflicts_with_all = ["kernel", "initrd", "append"])]
    pub drop: bool,
}

impl Stage {
    /// The stage's bytes, with this system's own where nothing is said.
    pub fn build(&self) -> Result<Vec<u8>> {
        let release = text("/proc/sys/kernel/osrelease")?;
        let or = |given: &Option<PathBuf>, usual: &str| {
            let usual = || PathBuf::from(format!("/boot/{usual}-{release}"));
            given.clone().unwrap_or_else(usual)
        };
        let kernel = or(&self.kernel, "vmlinuz");
        let initrd = or(&self.initrd, "initrd.img");
        let append = match &self.append {
            Some(append) => append.clone(),
            None => text("/proc/cmdline")?,
        };
        let is_kernel = |bytes: &Vec<u8>| matches!(ImageHeader::parse(bytes), Ok(Some(_)));
        let bytes = read(&kernel)?;
        if !is_kernel(&bytes) {
            let message = format!("{} is no arm64 Image", kernel.display());
            return Err(Failure::new(exit::FILE, message)
                .help("a kernel that is compressed: uncompress it first"));
        }
        build(&bytes, &read(&initrd)?, &append, &read(Path::new(TREE))?)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Failure::file("cannot stage", path, &error))
}

fn text(path: &str) -> Result<String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| Failure::file("cannot read", Path::new(path), &error))?;
    Ok(text.trim_end().to_owned())
}

/// Kernel, ramdisk and tree one behind the other.
fn build(kernel: &[u8], initrd: &[u8], append: &str, tree: &[u8]) -> Result<Vec<u8>> {
    let broken = |what: String| {
        let message = format!("cannot stage this system: {what}");
        Failure::new(exit::FILE, message).help(format!("{TREE} is not as was expected"))
    };
    let header = ImageHeader::parse(kernel).ok().flatten();
    let image = header.map_or(0, |header| header.image_size);
    let image = image.max(kernel.len() as u64);
    let ramdisk = PaRange {
        start: Pa(image.next_multiple_of(ALIGN)),
        size: initrd.len() as u64,
    };
    // Linux wants the tree within one block of 2 MiB.
    let tree_at = ramdisk.end().0.next_multiple_of(ALIGN);
    let mut blob = tree.to_vec();
    blob.resize(tree.len() + SLACK, 0);
    let chosen = Chosen {
        bootargs: append,
        initrd: (!initrd.is_empty()).then_some(ramdisk),
    };
    let nothing = PaRange {
        start: Pa(0),
        size: 0,
    };
    let size = rewrite(&mut blob, nothing, chosen).map_err(|error| broken(error.to_string()))?;
    blob.truncate(size);
    let blob = with_reservations(&blob).ok_or_else(|| broken("it is cut off".to_owned()))?;
    let initrd_at = |name| match value_at(&blob, name) {
        Some(at) => Ok(tree_at + at),
        None if initrd.is_empty() => Ok(0),
        None => Err(broken(format!("it has no {name}"))),
    };
    let head = Head {
        magic: MAGIC,
        bytes: tree_at + blob.len() as u64,
        room: tree_at + blob.len() as u64,
        tree: tree_at,
        initrd: [
            initrd_at("linux,initrd-start")?,
            initrd_at("linux,initrd-end")?,
        ],
        reservations: [tree_at + HEADER as u64, RESERVATIONS],
    };
    let mut stage = head.as_bytes().to_vec();
    for (at, bytes) in [(0, kernel), (ramdisk.start.0, initrd), (tree_at, &blob)] {
        stage.resize((PAYLOAD_AT + at) as usize, 0);
        stage.extend(bytes);
    }
    Ok(stage)
}

/// The tree with a reservation block that is empty and has room.
fn with_reservations(blob: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_be_bytes(*blob.get(at..)?.first_chunk()?) as usize);
    let block = |at: usize, size: usize| blob.get(word(at)?..word(at)? + word(size)?);
    let (structure, strings) = (
        block(STRUCTURE.0, STRUCTURE.1)?,
        block(STRINGS.0, STRINGS.1)?,
    );
    let mut tree = blob.get(..HEADER)?.to_vec();
    tree.resize(HEADER + (RESERVATIONS * RESERVATION_BYTES) as usize, 0);
    let structure_at = tree.len();
    tree.extend(structure);
    let strings_at = tree.len();
    tree.extend(strings);
    tree.resize(tree.len().next_multiple_of(8), 0);
    let size = tree.len();
    for (at, value) in [
        (TOTAL_SIZE, size),
        (RESERVATIONS_AT, HEADER),
        (STRUCTURE.0, structure_at),
        (STRINGS.0, strings_at),
    ] {
        let word = tree.get_mut(at..at + 4)?;
        word.copy_from_slice(&(value as u32).to_be_bytes());
    }
    Some(tree)
}

/// Where in a tree the value of a property of `/chosen` is.
fn value_at(blob: &[u8], name: &str) -> Option<u64> {
    let tree = Fdt::new(blob).ok()?;
    let chosen = tree.find_node("/chosen")?;
    let value = chosen.property(name)?.value().as_ptr() as usize;
    Some((value - blob.as_ptr() as usize) as u64)
}

/// Writes a stage to a file, to be read by the module.
pub fn write(path: &Path, stage: &[u8]) -> Result<()> {
    let failed = |error: io::Error| {
        let what = format!("cannot write {} to", units::size(stage.len() as u64));
        Failure::file(&what, path, &error)
    };
    fs::write(path, stage).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_os0_boot::is_startable;
    use zerocopy::FromBytes as _;

    const MACHINE: &[u8] = include_bytes!("../../../../model/machine_tree/tests/data/os0.dtb");

    /// What EL2 reads of a stage is where the stage says.
    #[test]
    fn a_stage_holds_what_a_kernel_finds() {
        let mut kernel = vec![0; 4096];
        kernel[16..24].copy_from_slice(&(3_u64 << 20).to_le_bytes());
        kernel[56..60].copy_from_slice(b"ARM\x64");
        let stage = build(&kernel, &[7; 5000], "root=/dev/vda1", MACHINE).unwrap();
        let head = Head::read_from_bytes(&stage[..size_of::<Head>()]).unwrap();
        assert!(is_startable(&head, stage.len() as u64));
        let mut payload = stage[PAYLOAD_AT as usize..].to_vec();
        assert_eq!(payload[..4096], kernel);
        assert_eq!(payload[4 << 20..][..5000], [7; 5000]);
        // As EL2 does at address 0x5000_0000.
        for at in head.initrd {
            let value: &mut [u8; 8] = (&mut payload[at as usize..at as usize + 8])
                .try_into()
                .unwrap();
            *value = (u64::from_be_bytes(*value) + 0x5000_0000).to_be_bytes();
        }
        let entry = [0x7000_0000_u64, 0x20_0000];
        for (n, value) in entry.iter().enumerate() {
            let at = head.reservations[0] as usize + n * 8;
            payload[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
        let machine = model_machine_tree::read(&payload[head.tree as usize..]).unwrap();
        let ramdisk = PaRange {
            start: Pa(0x5040_0000),
            size: 5000,
        };
        assert_eq!(machine.initrd, Some(ramdisk));
        assert_eq!(machine.bootargs.as_str(), "root=/dev/vda1");
        let reserved = PaRange {
            start: Pa(0x7000_0000),
            size: 0x20_0000,
        };
        assert_eq!(machine.reserved, [reserved]);
        assert_eq!(machine.os0, None);
    }
}
