//! Looks at how a disk image lays files out: pages of files are shared between VMs where they are
//! whole, aligned 4 KiB blocks of the disk.
//!
//! Knows the partition tables MBR and GPT (UEFI 2.10 section 5), and of the file systems ext4 (Linux:
//! `Documentation/filesystems/ext4/super.rst`) and EROFS (`fs/erofs/erofs_fs.h`) their superblocks.

use crate::units;
use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

/// A page of a guest, and a block that can be shared.
const PAGE: u64 = 4096;
/// A partition table counts in sectors of so many bytes; GPT also in blocks of a page.
const SECTOR: u64 = 512;
/// The most entries of a partition table that are looked at.
const ENTRIES_MAX: u64 = 256;
/// Where a superblock is, in its partition.
const SUPERBLOCK: u64 = 1024;
/// Bits of an EROFS superblock's `feature_incompat` that compressed images have: zero padding,
/// compression configurations, tails packed with them, fragments.
const EROFS_COMPRESSED: u32 = 0x33;

/// Something that keeps pages from being shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What it is.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

/// Where a file system may be.
struct Place {
    /// The partition's number, from 1; 0: the whole disk is one file system.
    number: u64,
    start: u64,
}

/// What in this disk image keeps its pages from being shared, as far as its layout is known.
pub fn obstacles(image: &Path) -> io::Result<Vec<Obstacle>> {
    let image = File::open(image)?;
    Ok(of(&|at, buffer| image.read_exact_at(buffer, at).ok()))
}

/// Reads all of the buffer from a byte of the image.
type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> Option<()>;

fn of(read: Read<'_>) -> Vec<Obstacle> {
    let mut places = gpt(read, SECTOR).or_else(|| gpt(read, PAGE));
    places = places.or_else(|| mbr(read));
    let whole = vec![Place {
        number: 0,
        start: 0,
    }];
    let places = places.unwrap_or(whole);
    places
        .iter()
        .filter_map(|place| obstacle(read, place))
        .collect()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..N)?.copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(word))
}

/// The partitions of a GPT on a disk with blocks of so many bytes.
fn gpt(read: Read<'_>, block: u64) -> Option<Vec<Place>> {
    let mut header = [0; 92];
    read(block, &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let table = number::<8>(&header, 72)?.checked_mul(block)?;
    let count = number::<4>(&header, 80)?.min(ENTRIES_MAX);
    let size = number::<4>(&header, 84)?;
    let mut places = Vec::new();
    for n in 0..count {
        let mut entry = [0; 40];
        read(table.checked_add(n * size)?, &mut entry)?;
        if entry[..16] != [0; 16] {
            places.push(Place {
                number: n + 1,
                start: number::<8>(&entry, 32)?.checked_mul(block)?,
            });
        }
    }
    Some(places)
}

/// The primary partitions of an MBR.
fn mbr(read: Read<'_>) -> Option<Vec<Place>> {
    let mut sector = [0; SECTOR as usize];
    read(0, &mut sector)?;
    let (entries, _) = sector[446..510].as_chunks::<16>();
    // The same two bytes end a file system's boot sector, whose code is no table.
    let sound = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    if sector[510..] != [0x55, 0xaa] || !sound {
        return None;
    }
    let place = |(n, entry): (u64, &[u8; 16])| {
        let start = number::<4>(entry, 8).filter(|_| entry[4] != 0)?;
        Some(Place {
            number: n,
            start: start * SECTOR,
        })
    };
    let places: Vec<Place> = (1..).zip(entries).filter_map(place).collect();
    (!places.is_empty()).then_some(places)
}

fn obstacle(read: Read<'_>, place: &Place) -> Option<Obstacle> {
    let name = match place.number {
        0 => "the disk".to_owned(),
        n => format!("partition {n}"),
    };
    let found = |message, help| Some(Obstacle { message, help });
    if !place.start.is_multiple_of(PAGE) {
        return found(
            format!("{name} begins at byte {}, within a page", place.start),
            "none of its pages can be shared: let partitions begin at multiples of 1 MiB",
        );
    }
    let mut block = [0; 128];
    read(place.start.checked_add(SUPERBLOCK)?, &mut block)?;
    let (system, log, make) = if number::<2>(&block, 0x38)? == 0xef53 {
        let log = number::<4>(&block, 0x18)?.saturating_add(10);
        (
            "ext4",
            log,
            "pages of its files are seldom whole blocks: make it with mkfs.ext4 -b 4096",
        )
    } else if number::<4>(&block, 0)? == 0xe0f5_e1e2 {
        if number::<4>(&block, 80)? as u32 & EROFS_COMPRESSED != 0 {
            return found(
                format!("{name} has a compressed EROFS"),
                "each VM unpacks pages of its own: make it with mkfs.erofs without -z",
            );
        }
        (
            "EROFS",
            number::<1>(&block, 12)?,
            "pages of its files are seldom whole blocks: make it with mkfs.erofs -b 4096",
        )
    } else {
        return None;
    };
    if log >= u64::from(PAGE.ilog2()) {
        return None;
    }
    let size = units::size(1 << log);
    found(format!("{name} has {system} with blocks of {size}"), make)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(image: &[u8]) -> Vec<String> {
        let found = of(&|at, buffer: &mut [u8]| {
            let at = usize::try_from(at).ok()?;
            let end = at.checked_add(buffer.len())?;
            buffer.copy_from_slice(image.get(at..end)?);
            Some(())
        });
        found.into_iter().map(|found| found.message).collect()
    }

    fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn ext4(image: &mut [u8], at: usize, log: u8) {
        put(image, at + 1024 + 0x38, &[0x53, 0xef]);
        image[at + 1024 + 0x18] = log;
    }

    fn erofs(image: &mut [u8], at: usize, log: u8, features: u8) {
        put(image, at + 1024, &0xe0f5_e1e2_u32.to_le_bytes());
        image[at + 1024 + 12] = log;
        image[at + 1024 + 80] = features;
    }

    /// A GPT of partitions that begin at these blocks.
    fn gpt_of(block: usize, starts: &[u64]) -> Vec<u8> {
        let mut image = vec![0; 64 * 4096];
        put(&mut image, 510, &[0x55, 0xaa]);
        image[446 + 4] = 0xee;
        put(&mut image, block, b"EFI PART");
        put(&mut image, block + 72, &2_u64.to_le_bytes());
        put(&mut image, block + 80, &4_u32.to_le_bytes());
        put(&mut image, block + 84, &128_u32.to_le_bytes());
        for (n, start) in starts.iter().enumerate() {
            let at = 2 * block + 128 * n;
            image[at] = 1;
            put(&mut image, at + 32, &start.to_le_bytes());
        }
        image
    }

    #[test]
    fn whole_disks_are_told_apart() {
        let none: [&str; 0] = [];
        let mut image = vec![0; 8192];
        assert_eq!(messages(&image), none);
        assert_eq!(messages(&[]), none);
        ext4(&mut image, 0, 2);
        assert_eq!(messages(&image), none);
        ext4(&mut image, 0, 0);
        assert_eq!(messages(&image), ["the disk has ext4 with blocks of 1 KiB"]);
        image.fill(0);
        // Chunked files and prefixes of attribute names are no compression.
        erofs(&mut image, 0, 12, 0x44);
        assert_eq!(messages(&image), none);
        erofs(&mut image, 0, 9, 0);
        assert_eq!(
            messages(&image),
            ["the disk has EROFS with blocks of 512 B"]
        );
        erofs(&mut image, 0, 12, 1);
        assert_eq!(messages(&image), ["the disk has a compressed EROFS"]);
    }

    #[test]
    fn partitions_are_found_in_both_tables() {
        let mut image = gpt_of(512, &[63, 64, 72]);
        ext4(&mut image, 64 * 512, 1);
        ext4(&mut image, 72 * 512, 2);
        let expected = [
            "partition 1 begins at byte 32256, within a page",
            "partition 2 has ext4 with blocks of 2 KiB",
        ];
        assert_eq!(messages(&image), expected);
        let mut image = gpt_of(4096, &[8]);
        erofs(&mut image, 8 * 4096, 12, 2);
        assert_eq!(messages(&image), ["partition 1 has a compressed EROFS"]);
        let mut image = vec![0; 64 * 512];
        put(&mut image, 510, &[0x55, 0xaa]);
        put(&mut image, 446 + 16, &[0x80, 0, 0, 0, 0x83, 0, 0, 0, 63]);
        assert_eq!(messages(&image), [expected[0].replace('1', "2")]);
        // A boot sector with code where a table would be.
        image[446] = 0x33;
        assert!(messages(&image).is_empty());
    }

    proptest! {
        #[test]
        fn any_table_is_read(
            blocks in any::<bool>(),
            starts in proptest::collection::vec(any::<u64>(), 0..5),
            changes in proptest::collection::vec((0usize..8320, any::<u8>()), 0..40),
        ) {
            let mut image = gpt_of(if blocks { 4096 } else { 512 }, &starts[..starts.len().min(4)]);
            for (at, byte) in changes {
                image[at] = byte;
            }
            let _ = messages(&image);
        }
    }
}
