//! What requests cost where all blocks are equal, or all differ.

use core::hint::black_box;

use machine_bare::memory::PAGE_SIZE;
use machine_bare::verdict::{Verdict, check};
use machine_bare::{println, timer};

use crate::{GROUP, Guest, JUNK, SECTORS};

/// Blocks that are read, or written: 96 MiB.
const ALL: u64 = (96 << 20) / PAGE_SIZE;
/// How often all are read.
const PASSES: u64 = 3;
/// Pages by which the blocks of a pass lie further than those of the pass before: none finds what it holds.
const SHIFT: u64 = 64 * GROUP;

impl Guest {
    /// Reads all blocks into as many pages, three times. What this costs EL2 is in its account of this VM, whose CPU
    /// this guest keeps busy from now on.
    pub fn read_all(&mut self) -> Verdict {
        check(
            self.memory.size() >= ALL * PAGE_SIZE,
            "the memory is too small",
        )?;
        for pass in 0..PASSES {
            for block in (0..ALL).step_by(GROUP as usize) {
                self.read(block, (block + pass * SHIFT) % ALL, GROUP)?;
            }
        }
        println!("timing: done");
        loop {
            black_box(timer::now());
        }
    }

    /// Writes all blocks, what is written being composed in the same pages again and again; prints what the requests
    /// take.
    pub fn write_all(&mut self, equal: bool) -> Verdict {
        let mut ticks = 0;
        for block in (0..ALL).step_by(GROUP as usize) {
            for page in 0..GROUP {
                let name = if equal { 0 } else { block + page };
                self.compose(page, JUNK + name);
            }
            let start = timer::now();
            self.write(block, 0, GROUP)?;
            ticks += timer::now() - start;
        }
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(timer::frequency());
        let ns = ns as u64 / ALL;
        println!("timing: write_all {ns} {}", ns / 2);
        Ok(())
    }

    /// Whether the disk has all blocks.
    pub fn has_all(&self) -> Verdict {
        check(
            self.disk.capacity() >= ALL * SECTORS,
            "the disk is too small",
        )
    }
}
