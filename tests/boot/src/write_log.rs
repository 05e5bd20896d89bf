//! QEMU's write log (`blklogwrites`, the format of Linux's dm-log-writes): what the machine wrote
//! to its disk, in order, with its flushes; replayed to see what each power failure would leave.

use crate::{Outcome, because};
use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

/// The superblock's first eight bytes, little-endian.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
/// A log sector of a sane log.
const SECTOR_MAX: u64 = 4096;
/// One write of a sane log.
const WRITE_MAX: u64 = 64 << 20;

/// One entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the write begins, in bytes.
    pub offset: u64,
    /// What is written; zeroes for a discard.
    pub data: Vec<u8>,
    /// Everything before it was flushed to the disk when it was made.
    pub flush: bool,
}

/// Reads a log from its beginning.
#[derive(Debug)]
pub struct WriteLog {
    input: BufReader<File>,
    sector: u64,
    left: u64,
}

impl WriteLog {
    /// Opens a log.
    ///
    /// # Errors
    /// It is not a write log.
    pub fn open(path: &Path) -> Outcome<Self> {
        let tried = || format!("cannot read the write log {}", path.display());
        let mut input = BufReader::new(File::open(path).map_err(because(tried()))?);
        let [magic, _version, entries] = words(&mut input).map_err(because(tried()))?;
        let mut sector = [0; 4];
        input.read_exact(&mut sector).map_err(because(tried()))?;
        let sector = u64::from(u32::from_le_bytes(sector));
        if magic != MAGIC || !(512..=SECTOR_MAX).contains(&sector) {
            return Err(format!("{}: it is no write log", tried()));
        }
        input
            .seek(SeekFrom::Start(sector))
            .map_err(because(tried()))?;
        Ok(Self {
            input,
            sector,
            left: entries,
        })
    }

    /// The next entry.
    ///
    /// # Errors
    /// The log ends too early or says what cannot be.
    pub fn next_entry(&mut self) -> Outcome<Option<Entry>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let tried = "cannot read a write log's entry";
        let [start, sectors, flags, _length] = words(&mut self.input).map_err(because(tried))?;
        let rest = i64::try_from(self.sector - 32).map_err(because(tried))?;
        self.input.seek_relative(rest).map_err(because(tried))?;
        let bytes = sectors
            .checked_mul(self.sector)
            .filter(|bytes| *bytes <= WRITE_MAX);
        let offset = start.checked_mul(self.sector);
        let (Some(bytes), Some(offset)) = (bytes, offset) else {
            return Err(format!("{tried}: {sectors} sectors at {start}"));
        };
        let mut data = vec![0; bytes as usize];
        if flags & DISCARD == 0 {
            self.input.read_exact(&mut data).map_err(because(tried))?;
        }
        Ok(Some(Entry {
            offset,
            data,
            flush: flags & FLUSH != 0,
        }))
    }
}

fn words<const N: usize>(input: &mut impl Read) -> std::io::Result<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        input.read_exact(&mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

/// Replays a log onto a copy of the disk as it was before, and calls `at_flush` with the number
/// of each flush when the copy holds what that flush promised. Gives how many flushes there were.
///
/// # Errors
/// The log or the disk cannot be read or written, or `at_flush` fails.
pub fn replay(
    log: &Path,
    disk: &Path,
    mut at_flush: impl FnMut(usize) -> Outcome,
) -> Outcome<usize> {
    let mut log = WriteLog::open(log)?;
    let disk = File::options()
        .write(true)
        .open(disk)
        .map_err(because("cannot open the replayed disk"))?;
    let mut flushes = 0;
    while let Some(entry) = log.next_entry()? {
        // A flush comes before the data of the entry that carries it.
        if entry.flush {
            at_flush(flushes)?;
            flushes += 1;
        }
        disk.write_all_at(&entry.data, entry.offset)
            .map_err(because("cannot write the replayed disk"))?;
    }
    Ok(flushes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn entry(log: &mut Vec<u8>, start: u64, flags: u64, sectors: u64, fill: u8) {
        let from = log.len();
        log.extend(
            [start, sectors, flags, 0]
                .map(u64::to_le_bytes)
                .as_flattened(),
        );
        log.resize(from + 512, 0);
        if flags & DISCARD == 0 {
            log.resize(log.len() + sectors as usize * 512, fill);
        }
    }

    fn log(entries: u64) -> Vec<u8> {
        let mut log = Vec::new();
        log.extend([MAGIC, 1, entries].map(u64::to_le_bytes).as_flattened());
        log.extend(512u32.to_le_bytes());
        log.resize(512, 0);
        log
    }

    #[test]
    fn flushes_see_what_came_before_them() {
        let directory = std::env::temp_dir().join(format!("write-log-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (path, disk) = (directory.join("log"), directory.join("disk"));
        let mut bytes = log(4);
        entry(&mut bytes, 1, 0, 1, 7);
        entry(&mut bytes, 0, FLUSH, 0, 0);
        entry(&mut bytes, 1, DISCARD, 1, 0);
        entry(&mut bytes, 2, FLUSH, 1, 9);
        fs::write(&path, &bytes).unwrap();
        fs::write(&disk, [1; 2048]).unwrap();
        let mut seen = Vec::new();
        let look = |n: usize| {
            seen.push((
                n,
                fs::read(&disk).unwrap()[512],
                fs::read(&disk).unwrap()[1024],
            ));
            Ok(())
        };
        assert_eq!(replay(&path, &disk, look), Ok(2));
        assert_eq!(seen, [(0, 7, 1), (1, 0, 1)]);
        assert_eq!(fs::read(&disk).unwrap()[1024], 9);

        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(replay(&path, &disk, |_| Ok(())).is_err());
        fs::write(&path, [0; 512]).unwrap();
        assert!(WriteLog::open(&path).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
