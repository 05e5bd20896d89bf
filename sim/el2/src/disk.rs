//! The machine's disk: a GUID partition table (UEFI 2.10, section 5), a partition that is the base of VMs' disks, and
//! those that VMs have alone.

use machine_host::rng::Rng;

/// The name of the base.
pub const NAME: &str = "base";
/// The first partition's first sector, and the bytes of each.
const FIRST: u64 = 64;
/// See [`FIRST`].
pub const SIZE: u64 = 64 * 4096;
const SECTOR: u64 = 512;
/// The type of Linux's swap (UAPI Group, Discoverable Partitions Specification).
const SWAP: [u8; 16] = [
    0x6d, 0xfd, 0x57, 0x06, 0xab, 0xa4, 0xc4, 0x43, 0x84, 0xe5, 0x09, 0x33, 0xc8, 0x4b, 0x4f, 0x4f,
];
const ENTRIES: usize = 128;
const ENTRY: usize = 128;

/// What the base holds: each block another content.
pub fn base(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words = (0..SIZE / 8).flat_map(|_| rng.next().to_le_bytes());
    words.collect()
}

/// The whole disk, with partitions of these names behind the base; `true`: it may be overwritten.
pub fn image(base: &[u8], more: &[(String, bool)]) -> Vec<u8> {
    let each = SIZE / SECTOR;
    let last = FIRST + each * (1 + more.len() as u64) - 1;
    let numbers = |of: &[u64]| -> Vec<u8> { of.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let short = |of: &[u32]| -> Vec<u8> { of.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let first = (NAME.to_owned(), false);
    let mut entries = Vec::new();
    for (n, (name, is_scratch)) in (0..).zip(std::iter::once(&first).chain(more)) {
        let start = FIRST + n * each;
        entries.extend(if *is_scratch { SWAP } else { [1; 16] });
        entries.extend([n as u8 + 1; 16]);
        entries.extend(numbers(&[start, start + each - 1, 0]));
        entries.extend(name.encode_utf16().flat_map(u16::to_le_bytes));
        entries.resize((n as usize + 1) * ENTRY, 0);
    }
    entries.resize(ENTRIES * ENTRY, 0);
    let mut header = b"EFI PART".to_vec();
    header.extend(short(&[0x0001_0000, 92, 0, 0]));
    header.extend(numbers(&[1, last, FIRST, last]));
    header.extend([2; 16]);
    header.extend(numbers(&[2]));
    header.extend(short(&[ENTRIES as u32, ENTRY as u32, checksum(&entries)]));
    let sum = checksum(&header).to_le_bytes();
    header.splice(16..20, sum);
    let mut disk = vec![0; 446];
    disk.extend([0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    disk.extend(short(&[1, last as u32]));
    disk.resize(510, 0);
    disk.extend([0x55, 0xaa]);
    disk.extend(header);
    disk.resize(2 * SECTOR as usize, 0);
    disk.extend(entries);
    disk.resize((FIRST * SECTOR) as usize, 0);
    disk.extend(base);
    disk.resize(((last + 1) * SECTOR) as usize, 0);
    disk
}

/// CRC-32 as Ethernet has it.
fn checksum(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), bit);
    !bytes.iter().fold(!0, byte)
}
