//! Files that are disks of single VMs, as one physical disk of the simulated machine.
//!
//! VMs get partitions of physical disks. So the files are put one behind the other below a partition
//! table that is made for them, without a copy: QEMU composes them to one disk as a VMDK descriptor
//! says, with each file as a flat extent ("VMware Virtual Disks, Virtual Disk Format 1.1").

use crate::{
    failure::{Failure, Result, exit},
    vmfile::DiskFile,
};
use std::{
    fs::{self, File},
    io,
    os::unix::{fs::FileExt as _, fs::symlink},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_128;

/// The most partitions of a disk that the hypervisor offers.
const FILES_MAX: usize = 16;
const SECTOR: u64 = 512;
/// What is before the first file: the table, and nothing.
const HEAD: u64 = 1 << 20;
/// Entries of a partition table, and bytes of each.
const ENTRIES: usize = 128;
const ENTRY: usize = 128;
/// Partitions of a Linux, 0fc63daf-8483-4772-8e79-3d69d8477de4 (UAPI Group, Discoverable Partitions
/// Specification).
const LINUX: [u8; 16] = [
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
];

/// Makes a disk of all files in a machine's directory; gives its descriptor, or `None` where there are
/// no files.
pub fn compose(directory: &Path, files: &[DiskFile]) -> Result<Option<PathBuf>> {
    if files.is_empty() {
        return Ok(None);
    }
    if files.len() > FILES_MAX {
        let message = format!(
            "{} files and directories that are disks of VMs are too many",
            files.len()
        );
        let help = format!("use at most {FILES_MAX}, or partitions of one disk: --disk");
        return Err(Failure::new(exit::FILE, message).help(help));
    }
    let failed = |error: io::Error| Failure::file("cannot set up disks in", directory, &error);
    let descriptor = directory.join("files.vmdk");
    write(directory, &descriptor, files).map_err(failed)?;
    Ok(Some(descriptor))
}

fn write(directory: &Path, descriptor: &Path, files: &[DiskFile]) -> io::Result<()> {
    let head = File::create(directory.join("files.head"))?;
    head.set_len(HEAD)?;
    head.write_all_at(&table(files), 0)?;
    let mut lines = "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n\
                     createType=\"twoGbMaxExtentFlat\"\n"
        .to_owned();
    lines.push_str(&extent(HEAD, "files.head"));
    for (n, file) in files.iter().enumerate() {
        // Paths may have characters that a descriptor cannot hold.
        let name = format!("file-{n}");
        let link = directory.join(&name);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(&file.path, &link)?,
        }
        lines.push_str(&extent(file.size, &name));
    }
    fs::write(descriptor, lines)
}

fn extent(bytes: u64, name: &str) -> String {
    format!("RW {} FLAT \"{name}\" 0\n", bytes / SECTOR)
}

/// A GUID partition table with a partition for each file (UEFI 2.10 section 5). It has no second copy: it
/// is made anew each time.
fn table(files: &[DiskFile]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut first = HEAD / SECTOR;
    for file in files {
        let after = first + file.size / SECTOR;
        entries.extend(LINUX);
        entries.extend(xxh3_128(file.name.as_bytes()).to_le_bytes());
        entries.extend([first, after - 1, 0].iter().flat_map(|n| n.to_le_bytes()));
        entries.extend(file.name.encode_utf16().flat_map(u16::to_le_bytes));
        entries.resize(entries.len().next_multiple_of(ENTRY), 0);
        first = after;
    }
    entries.resize(ENTRIES * ENTRY, 0);
    let last = first - 1;
    let mut header = b"EFI PART".to_vec();
    header.extend(
        [0x0001_0000_u32, 92, 0, 0]
            .iter()
            .flat_map(|n| n.to_le_bytes()),
    );
    header.extend(
        [1, last, HEAD / SECTOR, last]
            .iter()
            .flat_map(|n| n.to_le_bytes()),
    );
    header.extend(xxh3_128(&entries).to_le_bytes());
    header.extend(2_u64.to_le_bytes());
    let numbers = [ENTRIES as u32, ENTRY as u32, checksum(&entries)];
    header.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    let sum = checksum(&header).to_le_bytes();
    header.splice(16..20, sum);
    let mut table = protective(last);
    table.extend(header);
    table.resize(2 * SECTOR as usize, 0);
    table.extend(entries);
    table
}

/// The block before the table, which says that there is one.
fn protective(last: u64) -> Vec<u8> {
    let mut block = vec![0; 446];
    block.extend([0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    let blocks = u32::try_from(last).unwrap_or(u32::MAX);
    block.extend([1, blocks].iter().flat_map(|n| n.to_le_bytes()));
    block.resize(510, 0);
    block.extend([0x55, 0xaa]);
    block
}

/// CRC-32 as Ethernet and zip have it; bit by bit, as there is little of it.
fn checksum(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), bit);
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: u64) -> DiskFile {
        DiskFile {
            path: PathBuf::from(format!("/srv/{name}")),
            size,
            name: format!("{name}-0123456789abcdef"),
        }
    }

    /// The hypervisor's own reader finds each file where QEMU puts it.
    #[test]
    fn the_hypervisor_finds_a_partition_for_each_file() {
        // Beyond 2 TiB, numbers of sectors have more than 32 bits.
        let files = [
            file("a.img", 4096),
            file("nineteen.letters.xx", 5 << 40),
            file("c", 8192),
        ];
        let bytes = table(&files);
        assert!(bytes.len() as u64 <= HEAD);
        let sectors = (HEAD + files.iter().map(|file| file.size).sum::<u64>()) / SECTOR;
        let read = |sector: u64, into: &mut [u8]| {
            let at = (sector * SECTOR) as usize;
            let from = bytes.get(at..at + into.len()).ok_or(())?;
            into.copy_from_slice(from);
            Ok::<_, ()>(())
        };
        let table = model_partitions::read(sectors, &mut [0; 512], read).unwrap();
        assert_eq!(table.copy, model_partitions::Copy::Primary);
        let mut first = HEAD / SECTOR;
        assert_eq!(table.partitions.len(), files.len());
        for (found, file) in table.partitions.iter().zip(&files) {
            let sectors = found.last_lba - found.first_lba + 1;
            assert_eq!((&*found.name, found.first_lba), (&*file.name, first));
            assert_eq!(sectors * SECTOR, file.size);
            assert!(!found.type_guid.is_scratch());
            first += sectors;
        }
    }

    #[test]
    fn a_descriptor_names_all_files_in_order() {
        let directory = std::env::temp_dir().join(format!("underpin-own-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut files = [file("a", 4096), file("b", 8192)];
        for file in &mut files {
            file.path = directory.join(format!("{} \"x\", y", file.name));
        }
        // A second start finds the first one's links.
        for _ in 0..2 {
            write(&directory, &directory.join("d"), &files).unwrap();
        }
        let text = fs::read_to_string(directory.join("d")).unwrap();
        let extents: Vec<_> = text.lines().filter(|line| line.starts_with("RW")).collect();
        assert_eq!(
            extents,
            [
                "RW 2048 FLAT \"files.head\" 0",
                "RW 8 FLAT \"file-0\" 0",
                "RW 16 FLAT \"file-1\" 0"
            ]
        );
        files[1].make().unwrap();
        assert_eq!(fs::metadata(directory.join("file-1")).unwrap().len(), 8192);
        fs::remove_dir_all(&directory).unwrap();
    }
}
