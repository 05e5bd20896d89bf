//! VMs that write all that they share at once, and what faults take in one that shares nothing with them.

use core::sync::atomic::AtomicU32;

use machine_bare::memory::PAGE_SIZE;
use machine_bare::timer;
use machine_bare::verdict::{Verdict, check};
use machine_bare::{measure, psci};

use crate::{BINS, BLOCKS, EMPTY, GROUP, Guest, HISTOGRAM, Histogram};

/// Faults in whose time this guest had to wait for its CPU.
static INTERRUPTED: Histogram = Histogram([const { AtomicU32::new(0) }; BINS]);
/// Where a record of stolen time has the nanoseconds.
const STOLEN: u64 = 8;

impl Guest {
    /// Reads blocks that others read, too, and writes each of their pages; for ever.
    pub fn storm(&mut self) -> Verdict {
        loop {
            for page in (0..BLOCKS).step_by(GROUP as usize) {
                self.read(page, page, GROUP)?;
            }
            for page in 0..BLOCKS {
                self.memory.write(page * PAGE_SIZE, 1);
            }
        }
    }

    /// Stores to `count` pages that have no frame, one word each: blocks of zeroes were read into them.
    /// What was stolen meanwhile does not count. Each is region 1 of the measuring machine; where something was
    /// stolen, a region 2 comes after it.
    pub fn faults(&mut self, count: u64) -> Verdict {
        let record = psci::stolen_time().unwrap_or(0);
        let offset = record.wrapping_sub(self.memory.base());
        check(
            offset < self.memory.size(),
            "there is no record of stolen time",
        )?;
        let memory = self.memory;
        let stolen = || memory.read(offset + STOLEN);
        for first in (0..count).step_by(GROUP as usize) {
            self.read(EMPTY, 0, GROUP)?;
            for page in 0..GROUP.min(count - first) {
                let (before, start) = (stolen(), timer::now());
                measure::begin(1);
                memory.write(page * PAGE_SIZE, 1);
                measure::end(1);
                let (took, after) = (timer::now() - start, stolen());
                let away = u128::from(after - before) * u128::from(timer::frequency());
                let away = (away / 1_000_000_000) as u64;
                let times = if away == 0 {
                    &HISTOGRAM
                } else {
                    measure::begin(2);
                    measure::end(2);
                    &INTERRUPTED
                };
                times.add(took.saturating_sub(away));
            }
        }
        HISTOGRAM.print("store");
        INTERRUPTED.print("interrupted");
        Ok(())
    }
}
