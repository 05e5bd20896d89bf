//! The bytes on the disk (UEFI 2.10 tables 5-1, 5-5 and 5-6).

use crate::{Fault, Guid, Partition};
use heapless::String;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const SIGNATURE: &[u8; 8] = b"EFI PART";
pub const REVISION: u32 = 0x0001_0000;

/// The legacy master boot record.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mbr {
    boot_code: [u8; 446],
    records: [MbrRecord; 4],
    signature: U16,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MbrRecord {
    boot_indicator: u8,
    start_chs: [u8; 3],
    os_type: u8,
    end_chs: [u8; 3],
    start_lba: U32,
    blocks: U32,
}

impl Mbr {
    /// Whether it marks the disk as one with a GUID partition table.
    pub fn is_protective(&self) -> bool {
        const PROTECTIVE: u8 = 0xee;
        self.signature.get() == 0xaa55
            && self
                .records
                .iter()
                .any(|record| record.os_type == PROTECTIVE)
    }
}

/// The header of either copy.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub signature: [u8; 8],
    pub revision: U32,
    pub size: U32,
    pub checksum: U32,
    reserved: U32,
    pub my_lba: U64,
    alternate_lba: U64,
    pub first_usable_lba: U64,
    pub last_usable_lba: U64,
    disk_guid: [u8; 16],
    pub entries_lba: U64,
    pub entries: U32,
    pub entry_size: U32,
    pub entries_checksum: U32,
}

const _: () = assert!(size_of::<Header>() == 92);

/// An entry; the type is all zeroes where it is not used.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    pub type_guid: [u8; 16],
    guid: [u8; 16],
    first_lba: U64,
    last_lba: U64,
    attributes: U64,
    name: [U16; 36],
}

const _: () = assert!(size_of::<Entry>() == 128);

impl Entry {
    /// The partition, if it is within the `usable` blocks (first and last).
    pub fn decode(&self, index: u32, usable: (u64, u64)) -> Result<Partition, Fault> {
        let (first_lba, last_lba) = (self.first_lba.get(), self.last_lba.get());
        if first_lba < usable.0 || last_lba > usable.1 || first_lba > last_lba {
            return Err(Fault::Bounds { index });
        }
        let mut name = String::new();
        let units = self
            .name
            .iter()
            .map(|unit| unit.get())
            .take_while(|&unit| unit != 0);
        for decoded in char::decode_utf16(units) {
            let character = decoded.unwrap_or(char::REPLACEMENT_CHARACTER);
            // 36 units of at most three bytes each always fit.
            let _ = name.push(character);
        }
        Ok(Partition {
            index,
            name,
            type_guid: Guid(self.type_guid),
            guid: Guid(self.guid),
            first_lba,
            last_lba,
        })
    }
}
