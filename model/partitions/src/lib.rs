//! Reads a GUID partition table (UEFI 2.10 section 5).
//!
//! What is on the disk is an allegation: sizes, places, checksums and overlaps are checked before
//! anything is believed, and the work is bounded whatever the disk says. Where the primary table is
//! damaged its backup, at the end of the disk, is read instead.
#![no_std]
#![forbid(unsafe_code)]

mod layout;

use core::fmt;
use heapless::{String, Vec};
use layout::{Entry, Header, Mbr};
use zerocopy::{FromBytes, IntoBytes};

/// Most partitions that are kept.
pub const MAX_PARTITIONS: usize = 32;
/// Most entries that are looked at, used or not; a usual table has 128.
const MAX_ENTRIES: u32 = 1024;
/// The block of the primary header.
const PRIMARY: u64 = 1;

/// A globally unique identifier, in the byte order of the disk (UEFI 2.10 appendix A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The type of partitions that are there for overlays and for what VMs swap. Underpin's own,
    /// 7d4e0c2a-91b6-4f35-a8e7-55ad2f3c90b1.
    pub const OVERLAYS: Self = Self([
        0x2a, 0x0c, 0x4e, 0x7d, 0xb6, 0x91, 0x35, 0x4f, 0xa8, 0xe7, 0x55, 0xad, 0x2f, 0x3c, 0x90,
        0xb1,
    ]);
    /// That of Linux's swap, 0657fd6d-a4ab-43c4-84e5-0933c84b4f4f (UAPI Group, Discoverable Partitions
    /// Specification).
    pub const SWAP: Self = Self([
        0x6d, 0xfd, 0x57, 0x06, 0xab, 0xa4, 0xc4, 0x43, 0x84, 0xe5, 0x09, 0x33, 0xc8, 0x4b, 0x4f,
        0x4f,
    ]);

    /// Whether what a partition of this type holds may be overwritten.
    pub fn is_scratch(self) -> bool {
        [Self::OVERLAYS, Self::SWAP].contains(&self)
    }
}

impl fmt::Display for Guid {
    /// As people write it; the first three groups are little-endian.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = u128::from_be_bytes(self.0);
        let first = (n >> 96) as u32;
        let second = (n >> 80) as u16;
        let third = (n >> 64) as u16;
        let (first, second, third) = (first.swap_bytes(), second.swap_bytes(), third.swap_bytes());
        let (fourth, fifth) = ((n >> 48) as u16, n as u64 & 0xffff_ffff_ffff);
        write!(
            f,
            "{first:08x}-{second:04x}-{third:04x}-{fourth:04x}-{fifth:012x}"
        )
    }
}

/// A partition. Its blocks are its own and lie within the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its place in the table, from 0; Linux calls it by this plus one.
    pub index: u32,
    /// Its name; what is no character is replaced.
    pub name: String<108>,
    /// What it is for.
    pub type_guid: Guid,
    /// Which one it is.
    pub guid: Guid,
    /// The first block, in the disk's blocks.
    pub first_lba: u64,
    /// The last block.
    pub last_lba: u64,
}

/// Which of the two tables was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The one at the start.
    Primary,
    /// The one at the end: the primary one has this fault.
    Backup(Fault),
}

/// A partition table. About 6 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The partitions, in table order.
    pub partitions: Vec<Partition, MAX_PARTITIONS>,
    /// Where they were read from.
    pub copy: Copy,
}

/// What is wrong with a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A block could not be read.
    #[error("block {lba} cannot be read")]
    Unreadable {
        /// The block.
        lba: u64,
    },
    /// There is no header.
    #[error("no header")]
    Signature,
    /// The header's checksum is wrong.
    #[error("wrong checksum of the header")]
    HeaderChecksum,
    /// The header contradicts itself, the disk or the limits of this reader.
    #[error("a header that cannot be")]
    Header,
    /// The checksum of the entries is wrong.
    #[error("wrong checksum of the entries")]
    EntriesChecksum,
    /// A partition is empty or reaches out of the usable blocks.
    #[error("entry {index} is not within the usable blocks")]
    Bounds {
        /// Its place in the table.
        index: u32,
    },
    /// Two partitions have blocks in common.
    #[error("entries {other} and {index} overlap")]
    Overlap {
        /// The place of the one in the table.
        index: u32,
        /// The place of the other.
        other: u32,
    },
    /// More than [`MAX_PARTITIONS`] partitions.
    #[error("more than {MAX_PARTITIONS} partitions")]
    TooMany,
}

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The buffer is not one block of 512 or 4096 bytes.
    #[error("blocks must have 512 or 4096 bytes")]
    BlockSize,
    /// Block 0 has no protective MBR: the disk is not partitioned this way.
    #[error("the disk has no GUID partition table")]
    NotGpt,
    /// Both copies are damaged.
    #[error("both partition tables are damaged: {primary}; backup: {backup}")]
    Damaged {
        /// The one at the start.
        primary: Fault,
        /// The one at the end.
        backup: Fault,
    },
}

/// Reads the table of a disk of `blocks` blocks. `buffer` has the size of one block, 512 or 4096
/// bytes; `read_block` fills it with the block of a number below `blocks`, and reports its errors
/// itself.
pub fn read<E>(
    blocks: u64,
    buffer: &mut [u8],
    read_block: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Table, PartitionError> {
    if buffer.len() != 512 && buffer.len() != 4096 {
        return Err(PartitionError::BlockSize);
    }
    let mut disk = Disk {
        blocks,
        buffer,
        read_block,
    };
    if !disk.has_protective_mbr() {
        return Err(PartitionError::NotGpt);
    }
    let primary = match disk.table(PRIMARY) {
        Ok(partitions) => {
            return Ok(Table {
                partitions,
                copy: Copy::Primary,
            });
        }
        Err(fault) => fault,
    };
    match disk.table(blocks.saturating_sub(1)) {
        Ok(partitions) => Ok(Table {
            partitions,
            copy: Copy::Backup(primary),
        }),
        Err(backup) => Err(PartitionError::Damaged { primary, backup }),
    }
}

/// A disk, one block of which is in the buffer.
struct Disk<'a, R> {
    blocks: u64,
    buffer: &'a mut [u8],
    read_block: R,
}

impl<E, R: FnMut(u64, &mut [u8]) -> Result<(), E>> Disk<'_, R> {
    fn load(&mut self, lba: u64) -> Result<(), Fault> {
        if lba >= self.blocks || (self.read_block)(lba, self.buffer).is_err() {
            return Err(Fault::Unreadable { lba });
        }
        Ok(())
    }

    fn has_protective_mbr(&mut self) -> bool {
        self.load(0).is_ok()
            && Mbr::read_from_prefix(self.buffer).is_ok_and(|(mbr, _)| mbr.is_protective())
    }

    /// The partitions of the table whose header is in block `lba`.
    fn table(&mut self, lba: u64) -> Result<Vec<Partition, MAX_PARTITIONS>, Fault> {
        let header = self.header(lba)?;
        let usable = (header.first_usable_lba.get(), header.last_usable_lba.get());
        let entry_size = header.entry_size.get() as usize;
        let per_block = self.buffer.len() / entry_size;
        let mut partitions = Vec::new();
        let mut checksum = Checksum::new();
        for index in 0..header.entries.get() {
            let place = index as usize % per_block;
            if place == 0 {
                let block = u64::from(index) / per_block as u64;
                self.load(header.entries_lba.get() + block)?;
            }
            let raw = &self.buffer[place * entry_size..(place + 1) * entry_size];
            checksum.add(raw);
            let (entry, _) = Entry::read_from_prefix(raw).map_err(|_| Fault::Header)?;
            if entry.type_guid != [0; 16] {
                let partition = entry.decode(index, usable)?;
                partitions.push(partition).map_err(|_| Fault::TooMany)?;
            }
        }
        if checksum.finish() != header.entries_checksum.get() {
            return Err(Fault::EntriesChecksum);
        }
        check_overlaps(&partitions)?;
        Ok(partitions)
    }

    /// The header in block `lba`, checked.
    fn header(&mut self, lba: u64) -> Result<Header, Fault> {
        self.load(lba)?;
        let (mut header, _) = Header::read_from_prefix(self.buffer).map_err(|_| Fault::Header)?;
        if header.signature != *layout::SIGNATURE {
            return Err(Fault::Signature);
        }
        let size = header.size.get() as usize;
        let fields = size_of::<Header>();
        let rest = self.buffer.get(fields..size).ok_or(Fault::Header)?;
        let alleged = header.checksum.get();
        header.checksum = 0.into();
        let mut checksum = Checksum::new();
        checksum.add(header.as_bytes());
        checksum.add(rest);
        if checksum.finish() != alleged {
            return Err(Fault::HeaderChecksum);
        }
        if header.my_lba.get() != lba || !self.is_sound(&header) {
            return Err(Fault::Header);
        }
        Ok(header)
    }

    /// Whether a header's numbers fit the disk and each other.
    fn is_sound(&self, header: &Header) -> bool {
        let entry_size = header.entry_size.get();
        let entries = header.entries.get();
        // A power of two up to 512, so that no entry straddles blocks.
        let sizes_fit = entry_size.is_power_of_two()
            && (128..=512).contains(&entry_size)
            && entries <= MAX_ENTRIES;
        if header.revision.get() != layout::REVISION || !sizes_fit {
            return false;
        }
        let (first, last) = (header.first_usable_lba.get(), header.last_usable_lba.get());
        let start = header.entries_lba.get();
        let bytes = u64::from(entries) * u64::from(entry_size);
        let end = start.checked_add(bytes.div_ceil(self.buffer.len() as u64));
        let Some(end) = end.filter(|&end| end <= self.blocks) else {
            return false;
        };
        first > PRIMARY
            && first <= last
            && last < self.blocks
            && start > PRIMARY
            && (end <= first || start > last)
    }
}

/// Refuses partitions with common blocks; there are few, so each is held against each.
fn check_overlaps(partitions: &[Partition]) -> Result<(), Fault> {
    for (n, one) in partitions.iter().enumerate() {
        for two in &partitions[..n] {
            if one.first_lba <= two.last_lba && two.first_lba <= one.last_lba {
                return Err(Fault::Overlap {
                    index: one.index,
                    other: two.index,
                });
            }
        }
    }
    Ok(())
}

/// CRC-32 of Ethernet and zip, which is UEFI's too; bit by bit, as a table is read once.
struct Checksum(u32);

impl Checksum {
    fn new() -> Self {
        Self(!0)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u32::from(*byte);
            for _ in 0..8 {
                let polynomial = if self.0 & 1 == 1 { 0xedb8_8320 } else { 0 };
                self.0 = self.0 >> 1 ^ polynomial;
            }
        }
    }

    fn finish(self) -> u32 {
        !self.0
    }
}
