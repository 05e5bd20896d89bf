//! Disks laid out by another crate are read back; damaged ones are not believed.
#![allow(clippy::panic, clippy::unwrap_used)]

use bytemuck::bytes_of;
use gpt_disk_types::{
    Crc32, GptHeader, GptPartitionEntry, GptPartitionType, Guid, LbaLe, MasterBootRecord, U32Le,
};
use model_partitions::{Copy, Fault, PartitionError, Table, read};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Layout {
    block: usize,
    blocks: u64,
    entries: u32,
    /// Index, first and last block, name.
    partitions: Vec<(u32, u64, u64, String)>,
}

fn crc(bytes: &[u8]) -> Crc32 {
    let digest = !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    });
    Crc32(U32Le::from_u32(digest))
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
            let mut entry = GptPartitionEntry {
                partition_type_guid: GptPartitionType::BASIC_DATA,
                unique_partition_guid: Guid::from_bytes([*index as u8; 16]),
                starting_lba: LbaLe::from_u64(*first),
                ending_lba: LbaLe::from_u64(*last),
                ..GptPartitionEntry::default()
            };
            for (n, unit) in name.encode_utf16().take(36).enumerate() {
                entry.name.0[2 * n..2 * n + 2].copy_from_slice(&unit.to_le_bytes());
            }
            let at = *index as usize * 128;
            array[at..at + 128].copy_from_slice(bytes_of(&entry));
        }
        array
    }

    fn header(&self, lba: u64, entries_lba: u64, edit: impl Fn(&mut GptHeader)) -> Vec<u8> {
        let (first, last) = self.usable();
        let array = self.array();
        let mut header = GptHeader {
            my_lba: LbaLe::from_u64(lba),
            alternate_lba: LbaLe::from_u64(self.blocks - lba),
            first_usable_lba: LbaLe::from_u64(first),
            last_usable_lba: LbaLe::from_u64(last),
            partition_entry_lba: LbaLe::from_u64(entries_lba),
            number_of_partition_entries: U32Le::from_u32(self.entries),
            partition_entry_array_crc32: crc(&array[..self.entries as usize * 128]),
            ..GptHeader::default()
        };
        edit(&mut header);
        header.update_header_crc32();
        bytes_of(&header).to_vec()
    }

    /// The whole disk; `edit` changes both headers before their checksum is made.
    fn disk(&self, edit: impl Fn(&mut GptHeader)) -> Vec<u8> {
        let mut disk = vec![0; self.blocks as usize * self.block];
        let mut put = |lba: u64, bytes: &[u8]| {
            let at = lba as usize * self.block;
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let backup = self.blocks - 1;
        let backup_array = backup - self.array_blocks();
        put(0, bytes_of(&MasterBootRecord::protective_mbr(self.blocks)));
        put(1, &self.header(1, 2, &edit));
        put(2, &self.array());
        put(backup_array, &self.array());
        put(backup, &self.header(backup, backup_array, &edit));
        disk
    }
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
                0 => header.first_usable_lba = LbaLe::from_u64(value),
                1 => header.last_usable_lba = LbaLe::from_u64(value),
                2 => header.partition_entry_lba = LbaLe::from_u64(value),
                3 => header.number_of_partition_entries = U32Le::from_u32(value as u32),
                4 => header.size_of_partition_entry = U32Le::from_u32(value as u32),
                _ => header.header_size = U32Le::from_u32(value as u32),
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
fn fault(layout: &Layout, edit: impl Fn(&mut GptHeader)) -> Fault {
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
    let number = |n: u64| LbaLe::from_u64(n);
    let fault = |edit: &dyn Fn(&mut GptHeader)| fault(&layout, edit);
    assert_eq!(fault(&|h| h.signature.0.0[0] = 0), Fault::Signature);
    assert_eq!(
        fault(&|h| h.revision.0 = U32Le::from_u32(0x2_0000)),
        Fault::Header
    );
    assert_eq!(fault(&|h| h.my_lba = number(7)), Fault::Header);
    assert_eq!(fault(&|h| h.last_usable_lba = number(200)), Fault::Header);
    assert_eq!(fault(&|h| h.first_usable_lba = number(1)), Fault::Header);
    assert_eq!(
        fault(&|h| h.partition_entry_lba = number(50)),
        Fault::Header
    );
    assert_eq!(
        fault(&|h| h.partition_entry_lba = number(u64::MAX)),
        Fault::Header
    );
    let count = |n| move |h: &mut GptHeader| h.number_of_partition_entries = U32Le::from_u32(n);
    assert_eq!(fault(&count(1025)), Fault::Header);
    assert_eq!(fault(&count(u32::MAX)), Fault::Header);
    assert_eq!(fault(&count(127)), Fault::EntriesChecksum);
    for size in [0, 64, 130, 1024] {
        let edit = |h: &mut GptHeader| h.size_of_partition_entry = U32Le::from_u32(size);
        assert_eq!(fault(&edit), Fault::Header);
    }
    assert_eq!(
        fault(&|h| h.header_size = U32Le::from_u32(91)),
        Fault::Header
    );
    assert_eq!(
        fault(&|h| h.header_size = U32Le::from_u32(513)),
        Fault::Header
    );
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
