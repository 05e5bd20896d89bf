//! A disk somebody else has partitioned.

use model_partitions::read;

/// The first byte chooses the block size and whether checksums are made right, so that what lies
/// behind them is reached; the rest is the disk.
pub fn partitions(data: &[u8]) {
    let Some((choice, disk)) = data.split_first() else {
        return;
    };
    let mut disk = disk.to_vec();
    let block = if choice & 1 == 0 { 512 } else { 4096 };
    if choice & 2 != 0 {
        mend(&mut disk, block);
    }
    let blocks = (disk.len() / block) as u64;
    let table = read(blocks, &mut vec![0; block], |lba, into| {
        let at = lba as usize * block;
        into.copy_from_slice(disk.get(at..at + block).ok_or(())?);
        Ok::<(), ()>(())
    });
    for partition in table.iter().flat_map(|table| &table.partitions) {
        assert!(partition.first_lba > 1 && partition.first_lba <= partition.last_lba);
        assert!(partition.last_lba < blocks);
    }
}

/// Makes the primary table's checksums right where its numbers allow.
fn mend(disk: &mut [u8], block: usize) -> Option<()> {
    let number = |disk: &[u8], at: usize| {
        disk.get(block + at..)?
            .first_chunk()
            .map(|bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let (lba, count, size) = (number(disk, 72)?, number(disk, 80)?, number(disk, 84)?);
    let start = lba.checked_mul(block)?;
    let entries = disk.get(start..start.checked_add(count.checked_mul(size)?)?)?;
    let checksum = crc32(entries);
    disk.get_mut(block + 88..block + 92)?
        .copy_from_slice(&checksum.to_le_bytes());
    let length = number(disk, 12)?;
    disk.get_mut(block + 16..block + 20)?.fill(0);
    let checksum = crc32(disk.get(block..block.checked_add(length)?)?);
    disk.get_mut(block + 16..block + 20)?
        .copy_from_slice(&checksum.to_le_bytes());
    Some(())
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ ((crc & 1) * 0xedb8_8320)
        })
    })
}
