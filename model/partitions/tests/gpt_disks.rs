//! Disks laid out field by field, and by sfdisk, are read back; damaged ones are not believed.
#![allow(clippy::panic, clippy::unwrap_used)]

use model_partitions::{Copy, Fault, Guid, PartitionError, Table, read};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Layout {
    block: usize,
    blocks: u64,
    entries: u32,
    /// Index, first and last block, name.
    partitions: Vec<(u32, u64, u64, String)>,
}

/// "Microsoft basic data", as it lies on the disk.
const BASIC_DATA: [u8; 16] = [
    0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7,
];

/// A header's fields, in the order in which they lie on the disk (UEFI 2.10 table 5.5).
struct Header {
    signature: [u8; 8],
    revision: u32,
    size: u32,
    lba: u64,
    alternate_lba: u64,
    first_usable_lba: u64,
    last_usable_lba: u64,
    entries_lba: u64,
    entries: u32,
    entry_size: u32,
    entries_crc: u32,
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.signature.to_vec();
        // The checksum is made with zero in its own place.
        for word in [self.revision, self.size, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        let (first, last) = (self.first_usable_lba, self.last_usable_lba);
        for lba in [self.lba, self.alternate_lba, first, last] {
            bytes.extend(lba.to_le_bytes());
        }
        bytes.extend([0xd1; 16]); // the disk's own identifier
        bytes.extend(self.entries_lba.to_le_bytes());
        for word in [self.entries, self.entry_size, self.entries_crc] {
            bytes.extend(word.to_le_bytes());
        }
        let crc = crc(&bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

impl Layout {
    fn array_blocks(&self) -> u64 {
        (u64::from(self.entries) * 128).div_ceil(self.block as u64)
    }

    fn usable(&self) -> (u64, u64) {
        (
            2 + self.array_blocks(),
            self.blocks - 2 - self.array_blocks(),
        )
    }

    fn array(&self) -> Vec<u8> {
        let mut array = vec![0; self.array_blocks() as usize * self.block];
        for (index, first, last, name) in &self.partitions {
            let mut entry = BASIC_DATA.to_vec();
            entry.extend([*index as u8; 16]);
            for field in [*first, *last, 0] {
                entry.extend(field.to_le_bytes()); // the last one: attributes
            }
            for unit in name.encode_utf16().take(36) {
                entry.extend(unit.to_le_bytes());
            }
            let at = *index as usize * 128;
            array[at..at + entry.len()].copy_from_slice(&entry);
        }
        array
    }

    fn header(&self, lba: u64, entries_lba: u64, edit: impl Fn(&mut Header)) -> Vec<u8> {
        let (first, last) = self.usable();
        let array = self.array();
        let mut header = Header {
            signature: *b"EFI PART",
            revision: 0x1_0000,
            size: 92,
            lba,
            alternate_lba: self.blocks - lba,
            first_usable_lba: first,
            last_usable_lba: last,
            entries_lba,
            entries: self.entries,
            entry_size: 128,
            entries_crc: crc(&array[..self.entries as usize * 128]),
        };
        edit(&mut header);
        header.bytes()
    }

    /// The whole disk; `edit` changes both headers before their checksum is made.
    fn disk(&self, edit: impl Fn(&mut Header)) -> Vec<u8> {
        let mut disk = vec![0; self.blocks as usize * self.block];
        let mut put = |lba: u64, bytes: &[u8]| {
            let at = lba as usize * self.block;
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let backup = self.blocks - 1;
        let backup_array = backup - self.array_blocks();
        put(0, &protective_mbr(self.blocks as u32));
        put(1, &self.header(1, 2, &edit));
        put(2, &self.array());
        put(backup_array, &self.array());
        put(backup, &self.header(backup, backup_array, &edit));
        disk
    }
}

/// A master boot record with one partition of type 0xee over the whole disk.
fn protective_mbr(blocks: u32) -> [u8; 512] {
    let mut mbr = [0; 512];
    mbr[446..454].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    mbr[454..458].copy_from_slice(&1u32.to_le_bytes());
    mbr[458..462].copy_from_slice(&(blocks - 1).to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    mbr
}

fn read_disk(disk: &[u8], block: usize) -> Result<Table, PartitionError> {
    let mut buffer = vec![0; block];
    read((disk.len() / block) as u64, &mut buffer, |lba, into| {
        let at = lba as usize * block;
        into.copy_from_slice(disk.get(at..at + block).ok_or(())?);
        Ok::<(), ()>(())
    })
}

fn layouts() -> impl Strategy<Value = Layout> {
    let block = prop_oneof![Just(512usize), Just(4096)];
    let run = (any::<bool>(), 0..20u64, 0..9u64, "\\PC{0,40}");
    (block, 32..200u32, prop::collection::vec(run, 0..33)).prop_map(|(block, entries, runs)| {
        let mut layout = Layout {
            block,
            blocks: 1200,
            entries,
            partitions: Vec::new(),
        };
        let (mut at, last) = layout.usable();
        let mut index = 0;
        for (skip, gap, extra, name) in runs {
            let (first, end) = (at + gap, at + gap + extra);
            index += u32::from(skip);
            if end > last || index >= entries || layout.partitions.len() == 32 {
                break;
            }
            layout.partitions.push((index, first, end, name));
            at = end + 1;
            index += 1;
        }
        layout
    })
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn the_types_of_what_may_be_overwritten_are_as_people_write_them() {
    let overlays = "7d4e0c2a-91b6-4f35-a8e7-55ad2f3c90b1";
    assert_eq!(Guid::OVERLAYS.to_string(), overlays);
    let swap = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";
    assert_eq!(Guid::SWAP.to_string(), swap);
    assert!(
        Guid::OVERLAYS.is_scratch() && Guid::SWAP.is_scratch() && !Guid::default().is_scratch()
    );
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn what_was_laid_out_is_read(layout in layouts()) {
        let table = read_disk(&layout.disk(|_| ()), layout.block).unwrap();
        prop_assert_eq!(table.copy, Copy::Primary);
        prop_assert_eq!(table.partitions.len(), layout.partitions.len());
        for (found, (index, first, last, name)) in table.partitions.iter().zip(&layout.partitions) {
            prop_assert_eq!((found.index, found.first_lba, found.last_lba), (*index, *first, *last));
            let units: Vec<u16> = name.encode_utf16().take(36).collect();
            prop_assert_eq!(&found.name[..], String::from_utf16_lossy(&units));
            prop_assert_eq!(found.guid.0, [*index as u8; 16]);
            prop_assert_eq!(found.type_guid.to_string(), "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7");
        }
    }

    #[test]
    fn one_damaged_byte_costs_a_copy_at_most(
        layout in layouts(), at in any::<prop::sample::Index>(), bit in 0..8u8, backup: bool,
    ) {
        let disk = layout.disk(|_| ());
        let good = read_disk(&disk, layout.block).unwrap();
        // The header's 92 bytes, or the checked bytes of the array behind it.
        let array = layout.entries as usize * 128;
        let n = at.index(92 + array);
        let (header, entries) = if backup {
            (layout.blocks - 1, layout.blocks - 1 - layout.array_blocks())
        } else {
            (1, 2)
        };
        let place = if n < 92 { header as usize * layout.block + n }
            else { entries as usize * layout.block + n - 92 };
        let mut damaged = disk.clone();
        damaged[place] ^= 1 << bit;
        let table = read_disk(&damaged, layout.block).unwrap();
        prop_assert_eq!(table.partitions, good.partitions);
        prop_assert_eq!(matches!(table.copy, Copy::Backup(_)), !backup);
    }

    #[test]
    fn any_bytes_are_survived(
        layout in layouts(), edits in prop::collection::vec((0..20_000usize, any::<u8>()), 0..40),
        fields in prop::collection::vec((0..6usize, any::<u64>()), 0..3), cut in 0..20_000usize,
    ) {
        let mut disk = layout.disk(|header| for &(field, value) in &fields {
            let value = value >> (value % 60);
            match field {
                0 => header.first_usable_lba = value,
                1 => header.last_usable_lba = value,
                2 => header.entries_lba = value,
                3 => header.entries = value as u32,
                4 => header.entry_size = value as u32,
                _ => header.size = value as u32,
            }
        });
        for (at, value) in edits {
            disk[at] = value;
        }
        disk.truncate(disk.len() - cut);
        if let Ok(table) = read_disk(&disk, layout.block) {
            for partition in &table.partitions {
                prop_assert!(partition.first_lba <= partition.last_lba);
                prop_assert!(partition.last_lba < (disk.len() / layout.block) as u64);
            }
        }
    }
}

fn small() -> Layout {
    let partitions = vec![(0, 40, 50, "root".into()), (3, 60, 60, "data".into())];
    Layout {
        block: 512,
        blocks: 200,
        entries: 128,
        partitions,
    }
}

/// The fault of both copies, which are laid out alike.
fn fault(layout: &Layout, edit: impl Fn(&mut Header)) -> Fault {
    match read_disk(&layout.disk(edit), layout.block) {
        Err(PartitionError::Damaged { primary, backup }) => {
            assert_eq!(primary, backup);
            primary
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn partitions_that_cannot_be_are_refused() {
    let with = |n: usize, first, last| {
        let mut layout = small();
        (layout.partitions[n].1, layout.partitions[n].2) = (first, last);
        fault(&layout, |_| ())
    };
    assert_eq!(with(0, 40, 60), Fault::Overlap { index: 3, other: 0 });
    assert_eq!(with(1, 34, 40), Fault::Overlap { index: 3, other: 0 });
    assert_eq!(with(1, 33, 60), Fault::Bounds { index: 3 });
    assert_eq!(with(1, 100, 167), Fault::Bounds { index: 3 });
    assert_eq!(with(0, 41, 40), Fault::Bounds { index: 0 });
    let mut layout = small();
    layout.partitions = (0..33)
        .map(|n| (n, 40 + u64::from(n), 40 + u64::from(n), "x".into()))
        .collect();
    assert_eq!(fault(&layout, |_| ()), Fault::TooMany);
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let layout = small();
    let fault = |edit: &dyn Fn(&mut Header)| fault(&layout, edit);
    assert_eq!(fault(&|h| h.signature[0] = 0), Fault::Signature);
    assert_eq!(fault(&|h| h.revision = 0x2_0000), Fault::Header);
    assert_eq!(fault(&|h| h.lba = 7), Fault::Header);
    assert_eq!(fault(&|h| h.last_usable_lba = 200), Fault::Header);
    assert_eq!(fault(&|h| h.first_usable_lba = 1), Fault::Header);
    assert_eq!(fault(&|h| h.entries_lba = 50), Fault::Header);
    assert_eq!(fault(&|h| h.entries_lba = u64::MAX), Fault::Header);
    let count = |n| move |h: &mut Header| h.entries = n;
    assert_eq!(fault(&count(1025)), Fault::Header);
    assert_eq!(fault(&count(u32::MAX)), Fault::Header);
    assert_eq!(fault(&count(127)), Fault::EntriesChecksum);
    for size in [0, 64, 130, 1024] {
        let edit = |h: &mut Header| h.entry_size = size;
        assert_eq!(fault(&edit), Fault::Header);
    }
    assert_eq!(fault(&|h| h.size = 91), Fault::Header);
    assert_eq!(fault(&|h| h.size = 513), Fault::Header);
}

#[test]
fn other_disks_are_told_apart() {
    let mut disk = small().disk(|_| ());
    assert_eq!(read_disk(&disk, 1024), Err(PartitionError::BlockSize));
    assert_eq!(read_disk(&[], 512), Err(PartitionError::NotGpt));
    let table = read::<()>(u64::MAX, &mut [0; 512], |lba, into| {
        let at = lba as usize * 512;
        into.copy_from_slice(disk.get(at..at + 512).ok_or(())?);
        Ok(())
    });
    assert_eq!(table.map(|table| table.copy), Ok(Copy::Primary));
    disk[450] = 0x83;
    assert_eq!(read_disk(&disk, 512), Err(PartitionError::NotGpt));
}

#[test]
fn an_unreadable_primary_does_not_hide_the_backup() {
    let disk = small().disk(|_| ());
    let table = read(200, &mut [0; 512], |lba, into| {
        let at = lba as usize * 512;
        into.copy_from_slice(&disk[at..at + 512]);
        if lba == 3 { Err(()) } else { Ok(()) }
    });
    let unreadable = Copy::Backup(Fault::Unreadable { lba: 3 });
    assert_eq!(table.map(|table| table.copy), Ok(unreadable));
}

/// From byte 446 on, block 0 of a disk of 200 blocks that sfdisk 2.41 has partitioned.
const SFDISK_MBR: [u8; 66] = [
    0x00, 0x00, 0x02, 0x00, 0xee, 0xff, 0xff, 0xff, 0x01, 0x00, 0x00, 0x00, 0xc7, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x55, 0xaa,
];

/// Its block 1.
const SFDISK_HEADER: [u8; 92] = [
    0x45, 0x46, 0x49, 0x20, 0x50, 0x41, 0x52, 0x54, 0x00, 0x00, 0x01, 0x00, 0x5c, 0x00, 0x00, 0x00,
    0xdc, 0x5b, 0xe4, 0x1c, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xc7, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x22, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xc5, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x67, 0x45, 0x23, 0x01, 0xab, 0x89, 0xef, 0xcd,
    0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x04, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x81, 0x43, 0x30, 0x5d,
];

/// The used part of its block 2; the table has four entries.
const SFDISK_ENTRIES: [u8; 192] = [
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
    0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55,
    0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x32, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x72, 0x00, 0x6f, 0x00, 0x6f, 0x00, 0x74, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
    0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
    0x3c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x3c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x64, 0x00, 0x61, 0x00, 0x74, 0x00, 0x61, 0x00,
];

#[test]
fn what_sfdisk_wrote_is_read() {
    let mut disk = vec![0; 200 * 512];
    disk[446..512].copy_from_slice(&SFDISK_MBR);
    disk[512..604].copy_from_slice(&SFDISK_HEADER);
    disk[1024..1216].copy_from_slice(&SFDISK_ENTRIES);
    let table = read_disk(&disk, 512).unwrap();
    assert_eq!(table.copy, Copy::Primary);
    let shown = table.partitions.iter().map(|p| {
        let blocks = (p.first_lba, p.last_lba);
        (p.index, &p.name[..], blocks, p.type_guid.to_string())
    });
    let linux = || "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned();
    let expected = [
        (0, "root", (40, 50), linux()),
        (1, "data", (60, 60), linux()),
    ];
    assert!(shown.eq(expected));
}
