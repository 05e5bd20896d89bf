//! Pages that a disk reads into and writes from, and what must be in them: every step is done
//! twice, once by disk and page loops on the pages, once by plain loads and stores on a copy of
//! pages and disk that no disk ever touches.

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Failure, Verdict, check, equal};

use tests_guests::base::image_word;
use tests_guests::disk::{Disk, PIECES, SECTOR};

/// Pages that are read into.
pub const PAGES: u64 = 64;
/// Blocks of 4 KiB on the image.
pub const BLOCKS: u64 = 1024;
/// Words of a page.
pub const WORDS: u64 = PAGE_SIZE / 8;

/// The pages, the disk, and their mirror.
pub struct Mirror {
    disk: Disk,
    /// What is tested.
    pub pages: Scratch,
    expected: Scratch,
    expected_disk: Scratch,
}

impl Mirror {
    /// All pages zero, the disk as its image.
    pub fn new(machine: &Machine) -> Result<Self, Failure> {
        let memory = machine.scratch();
        let (pages, disk) = (PAGES * PAGE_SIZE, BLOCKS * PAGE_SIZE);
        let mirror = Self {
            disk: Disk::open(machine, memory.part(0, PAGE_SIZE))?,
            pages: memory.part(PAGE_SIZE, pages),
            expected: memory.part(PAGE_SIZE + pages, pages),
            expected_disk: memory.part(PAGE_SIZE + 2 * pages, disk),
        };
        equal("sectors of the disk", mirror.disk.capacity(), disk / SECTOR)?;
        for word in 0..PAGES * WORDS {
            mirror.pages.write(8 * word, 0);
            mirror.expected.write(8 * word, 0);
        }
        for word in 0..BLOCKS * WORDS {
            let value = image_word(word / WORDS, word % WORDS);
            mirror.expected_disk.write(8 * word, value);
        }
        Ok(mirror)
    }

    /// Reads sectors into the memory at `offset`, a multiple of 8, in pieces that end at `cuts`.
    pub fn read(&mut self, sector: u64, sectors: u64, offset: u64, cuts: &[u64]) -> Verdict {
        let (pieces, count) = self.pieces(offset, sectors * SECTOR, cuts);
        self.disk.read(sector, &pieces[..count])?;
        let from = sector * SECTOR;
        copy(
            &self.expected,
            offset,
            &self.expected_disk,
            from,
            sectors * SECTOR,
        );
        self.verify(offset, sectors * SECTOR)
    }

    /// Writes sectors from the memory at `offset`.
    pub fn write(&mut self, sector: u64, sectors: u64, offset: u64, cuts: &[u64]) -> Verdict {
        let (pieces, count) = self.pieces(offset, sectors * SECTOR, cuts);
        self.disk.write(sector, &pieces[..count])?;
        let to = sector * SECTOR;
        copy(
            &self.expected_disk,
            to,
            &self.expected,
            offset,
            sectors * SECTOR,
        );
        self.verify(offset, sectors * SECTOR)
    }

    /// Reads block `block` into page `page`.
    pub fn read_block(&mut self, block: u64, page: u64) -> Verdict {
        self.read(
            block * PAGE_SIZE / SECTOR,
            PAGE_SIZE / SECTOR,
            page * PAGE_SIZE,
            &[],
        )
    }

    /// Writes page `page` to block `block`.
    pub fn write_block(&mut self, block: u64, page: u64) -> Verdict {
        self.write(
            block * PAGE_SIZE / SECTOR,
            PAGE_SIZE / SECTOR,
            page * PAGE_SIZE,
            &[],
        )
    }

    /// Stores a word.
    pub fn store(&self, offset: u64, value: u64) -> Verdict {
        self.pages.write(offset, value);
        self.expected.write(offset, value);
        self.verify(offset, 8)
    }

    /// Clears the first bytes of a page, as a memset does.
    pub fn clear_blocks(&self, page: u64, bytes: u64) -> Verdict {
        self.pages.clear_blocks(page, bytes);
        self.fill(page * PAGE_SIZE, bytes, |_| 0);
        self.verify(page * PAGE_SIZE, bytes)
    }

    /// Clears a page.
    pub fn clear_page(&self, page: u64) -> Verdict {
        self.pages.clear_page(page);
        self.fill(page * PAGE_SIZE, PAGE_SIZE, |_| 0);
        self.verify(page * PAGE_SIZE, PAGE_SIZE)
    }

    /// Copies a page.
    pub fn copy_page(&self, to: u64, from: u64) -> Verdict {
        self.pages.copy_page(to, from);
        let (to, from) = (to * PAGE_SIZE, from * PAGE_SIZE);
        copy(&self.expected, to, &self.expected, from, PAGE_SIZE);
        self.verify(from, PAGE_SIZE)?;
        self.verify(to, PAGE_SIZE)
    }

    /// Compares all pages.
    pub fn verify_all(&self) -> Verdict {
        self.verify(0, PAGES * PAGE_SIZE)
    }

    /// Compares the pages that `bytes` from `offset` touch, all of them.
    fn verify(&self, offset: u64, bytes: u64) -> Verdict {
        let end = (offset + bytes).next_multiple_of(PAGE_SIZE);
        for at in (offset / PAGE_SIZE * PAGE_SIZE..end).step_by(8) {
            equal("a word", self.pages.read(at), self.expected.read(at))?;
        }
        Ok(())
    }

    fn fill(&self, offset: u64, bytes: u64, value: impl Fn(u64) -> u64) {
        for at in (offset..offset + bytes).step_by(8) {
            self.expected.write(at, value(at));
        }
    }

    /// The memory from `offset` on as a request names it.
    fn pieces(&self, offset: u64, bytes: u64, cuts: &[u64]) -> ([(u64, u64); PIECES], usize) {
        let mut pieces = [(0, 0); PIECES];
        let (mut start, mut count) = (0, 0);
        for &end in cuts.iter().chain([&bytes]) {
            if start < end && end <= bytes {
                pieces[count] = (self.pages.base() + offset + start, end - start);
                (start, count) = (end, count + 1);
            }
        }
        (pieces, count)
    }
}

fn copy(to: &Scratch, to_offset: u64, from: &Scratch, from_offset: u64, bytes: u64) {
    for at in (0..bytes).step_by(8) {
        to.write(to_offset + at, from.read(from_offset + at));
    }
}

/// Fails where the device tree gives too little memory.
pub fn check_memory(machine: &Machine) -> Verdict {
    let needed = (1 + 2 * PAGES + BLOCKS) * PAGE_SIZE;
    check(machine.scratch().size() >= needed, "too little memory")
}
