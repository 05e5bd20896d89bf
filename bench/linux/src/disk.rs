//! What a read from a disk costs, without the guest's page cache.

use crate::{Outcome, clock};
use rustix::fs::OFlags;
use std::{
    fs::OpenOptions,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Reads that are averaged, each of another place.
const READS: u32 = 100;
/// The larger of the two reads, in bytes.
const LARGE: usize = 64 << 10;
/// The smaller.
const SMALL: usize = 4 << 10;

/// What direct I/O wants its buffers aligned to, in bytes.
const ALIGNMENT: usize = 4096;

/// Measures a disk, where there is one.
pub fn measure(device: &str) -> Outcome {
    if !Path::new(device).exists() {
        return Ok(());
    }
    let direct = OFlags::DIRECT.bits() as i32;
    let disk = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(device)?;
    let mut bytes = vec![0; LARGE + ALIGNMENT];
    let start = bytes.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut bytes[start..start + LARGE];
    for (key, size) in [("block_read_4k", SMALL), ("block_read_64k", LARGE)] {
        let mut offset = 0;
        clock::try_measure(key, READS, || {
            offset += size as u64;
            disk.read_exact_at(&mut buffer[..size], offset)
        })?;
    }
    Ok(())
}
