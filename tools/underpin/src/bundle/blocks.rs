//! Disk images by block: blocks of zeroes are not stored, and equal ones once in each share group.

use crate::units;
use abi::bundle::BLOCK_SIZE;
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a block.
const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes of an image that are read at once.
const CHUNK: u64 = 1 << 20;
/// What a block without data holds.
const ZEROES: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// What became of the images' blocks, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many images there are.
    pub images: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that are stored.
    pub different: u64,
    /// Blocks of zeroes.
    pub zero: u64,
    /// Blocks that equal a stored one.
    pub equal: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, .. } = self;
        let plural = if *images == 1 { "image" } else { "images" };
        let [bytes, different, zero, equal] =
            [self.bytes, self.different, self.zero, self.equal].map(units::size);
        write!(
            f,
            "{images} {plural}, {bytes}: {different} of different blocks, {zero} zero, {equal} equal"
        )
    }
}

/// The different blocks of all images, on their way into the bundle.
pub struct Store<'a> {
    out: &'a File,
    /// Where they begin in `out`.
    start: u64,
    /// Numbers of stored blocks, from 0, by share group and hash.
    seen: HashMap<(usize, u64), u32>,
    /// The share groups, by the numbers that `seen` has of them.
    groups: Vec<String>,
    hash: fn(&[u8]) -> u64,
    /// Blocks from here on are in `pending` and not yet in `out`.
    written: u32,
    pending: Vec<u8>,
    tally: Tally,
}

impl<'a> Store<'a> {
    /// An empty store, whose blocks will lie in `out` from `start` on.
    pub fn new(out: &'a File, start: u64) -> Self {
        Self::with_hash(out, start, xxh3_64)
    }

    /// As [`Store::new`]. Where two blocks that differ have one hash, the second of them is stored
    /// and not found again: blocks are equal only where all their bytes are.
    pub fn with_hash(out: &'a File, start: u64, hash: fn(&[u8]) -> u64) -> Self {
        Self {
            out,
            start,
            seen: HashMap::new(),
            groups: Vec::new(),
            hash,
            written: 0,
            pending: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Takes the blocks of an image of `size` bytes that belongs to a share group; `done` hears how
    /// far it is. The image's map. Blocks of other groups are not looked at: whether they are equal
    /// is none of this group's business.
    pub fn add(
        &mut self,
        image: &File,
        size: u64,
        group: &str,
        mut done: impl FnMut(u64),
    ) -> io::Result<Vec<u32>> {
        let known = self.groups.iter().position(|known| known == group);
        let group = known.unwrap_or_else(|| {
            self.groups.push(group.to_owned());
            self.groups.len() - 1
        });
        let mut map = vec![0; usize::try_from(size.div_ceil(BLOCK)).map_err(io::Error::other)?];
        let mut buffer = vec![0; CHUNK as usize];
        let mut at = 0;
        for run in data_runs(image, size) {
            let run = run?;
            at = at.max(run.start / BLOCK * BLOCK);
            while at < run.end {
                let len = CHUNK.min(size - at);
                let chunk = &mut buffer[..len.next_multiple_of(BLOCK) as usize];
                chunk[len as usize..].fill(0);
                image
                    .read_exact_at(&mut chunk[..len as usize], at)
                    .map_err(shrunk)?;
                let (blocks, _) = chunk.as_chunks();
                for (word, block) in map[(at / BLOCK) as usize..].iter_mut().zip(blocks) {
                    *word = self.put(group, block)?;
                }
                at += chunk.len() as u64;
                done(at.min(size));
            }
        }
        self.flush()?;
        self.tally.images += 1;
        self.tally.bytes += size;
        let zero = map.iter().filter(|word| **word == 0).count();
        self.tally.zero += zero as u64 * BLOCK;
        Ok(map)
    }

    /// What became of the blocks so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The word of a map for a block.
    fn put(&mut self, group: usize, block: &[u8; BLOCK_SIZE]) -> io::Result<u32> {
        if *block == ZEROES {
            return Ok(0);
        }
        let next = self.written + (self.pending.len() / BLOCK_SIZE) as u32;
        let known = match self.seen.entry((group, (self.hash)(block))) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(next);
                None
            }
        };
        if let Some(number) = known
            && self.get(number)? == *block
        {
            self.tally.equal += BLOCK;
            return Ok(number + 1);
        }
        if next == u32::MAX - 1 {
            return Err(io::Error::other(
                "the images have too many different blocks",
            ));
        }
        self.tally.different += BLOCK;
        self.pending.extend_from_slice(block);
        if self.pending.len() as u64 >= CHUNK {
            self.flush()?;
        }
        Ok(next + 1)
    }

    fn get(&self, number: u32) -> io::Result<[u8; BLOCK_SIZE]> {
        let mut block = ZEROES;
        if let Some(index) = number.checked_sub(self.written) {
            let from = index as usize * BLOCK_SIZE;
            block.copy_from_slice(&self.pending[from..from + BLOCK_SIZE]);
        } else {
            let from = self.start + u64::from(number) * BLOCK;
            self.out.read_exact_at(&mut block, from)?;
        }
        Ok(block)
    }

    fn flush(&mut self) -> io::Result<()> {
        let to = self.start + u64::from(self.written) * BLOCK;
        self.out.write_all_at(&self.pending, to)?;
        self.written += (self.pending.len() / BLOCK_SIZE) as u32;
        self.pending.clear();
        Ok(())
    }
}

/// The parts of a file's first `size` bytes that are no holes, in their order.
pub fn data_runs(file: &File, size: u64) -> impl Iterator<Item = io::Result<Range<u64>>> {
    use rustix::{
        fs::{SeekFrom, seek},
        io::Errno,
    };
    let mut position = 0;
    std::iter::from_fn(move || {
        let start = match seek(file, SeekFrom::Data(position)) {
            _ if position >= size => return None,
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => return None,
            Err(_) => position, // a file system that knows no holes
        };
        let hole = seek(file, SeekFrom::Hole(start)).unwrap_or(size);
        if hole <= start {
            return Some(Err(shrunk(io::ErrorKind::UnexpectedEof.into())));
        }
        position = hole.min(size);
        Some(Ok(start..position))
    })
}

/// The error of a file that ends before its size.
pub fn shrunk(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::other("a source became shorter while it was copied")
        }
        _ => error,
    }
}
