//! Which of OS-0's memory is lent to EL2, for VMs: whole blocks of 2 MiB, which OS-0's stage 2 leaves
//! out as long.
//!
//! What OS-0 says is checked here: a run is lent once, is memory, and nothing of it is EL2's or
//! reserved by the firmware. A run goes back as it came, block by block ([`Loans::next_returned`]),
//! each zeroed before the next is asked for.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use heapless::Vec;
use model_addr::PaRange;

/// What a run consists of.
pub const BLOCK: u64 = 2 << 20;
/// The most runs that are lent at a time.
pub const LOANS_MAX: usize = 16;

/// Why a run is not lent, or not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is empty, or not in whole blocks.
    Blocks,
    /// Not all of it is memory of the machine, in one run.
    NoMemory,
    /// Some of it is EL2's, or reserved.
    Kept,
    /// Some of it is lent already.
    Lent,
    /// There are [`LOANS_MAX`] runs already.
    TooMany,
    /// No run that is lent begins there.
    NotLent,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blocks => "it is not in whole blocks of 2 MiB",
            Self::NoMemory => "not all of it is memory",
            Self::Kept => "some of it is reserved",
            Self::Lent => "some of it is lent already",
            Self::TooMany => "there are as many loans as there can be",
            Self::NotLent => "no loan begins there",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loan {
    run: PaRange,
    /// Bytes from its start that are given back.
    returned: u64,
}

/// The runs that are lent.
#[derive(Debug, Default)]
pub struct Loans {
    loans: Vec<Loan, LOANS_MAX>,
}

/// What is to be done next to give a run back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// This block is to be zeroed and given back.
    Block(PaRange),
    /// All of it is back.
    All,
}

impl Loans {
    /// Nothing is lent.
    pub const fn new() -> Self {
        Self { loans: Vec::new() }
    }

    /// Takes a run of `memory` that is none of `kept`.
    ///
    /// # Errors
    /// What stands against it.
    pub fn lend(
        &mut self,
        run: PaRange,
        mut memory: impl Iterator<Item = PaRange>,
        mut kept: impl Iterator<Item = PaRange>,
    ) -> Result<(), Refused> {
        let is_whole = run.start.is_aligned(BLOCK) && run.size.is_multiple_of(BLOCK);
        if run.size == 0 || !is_whole || run.start.checked_add(run.size).is_none() {
            return Err(Refused::Blocks);
        }
        if !memory.any(|memory| memory.contains_run(run.start, run.size)) {
            return Err(Refused::NoMemory);
        }
        if kept.any(|kept| kept.overlaps(run)) {
            return Err(Refused::Kept);
        }
        if self.overlaps(run) {
            return Err(Refused::Lent);
        }
        let loan = Loan { run, returned: 0 };
        self.loans.push(loan).map_err(|_| Refused::TooMany)
    }

    /// The next block of the run that begins at `start`, which is back when this is called again.
    ///
    /// # Errors
    /// [`Refused::NotLent`].
    pub fn next_returned(&mut self, start: model_addr::Pa) -> Result<Returned, Refused> {
        let place = self.loans.iter().position(|loan| loan.run.start == start);
        let place = place.ok_or(Refused::NotLent)?;
        let Some(loan) = self.loans.get_mut(place) else {
            return Err(Refused::NotLent);
        };
        let Some(at) = loan.run.start.checked_add(loan.returned) else {
            return Err(Refused::NotLent);
        };
        if at == loan.run.end() {
            self.loans.swap_remove(place);
            return Ok(Returned::All);
        }
        loan.returned += BLOCK;
        Ok(Returned::Block(PaRange {
            start: at,
            size: BLOCK,
        }))
    }

    /// Whether any of `run` is lent, be it on its way back.
    pub fn overlaps(&self, run: PaRange) -> bool {
        self.loans.iter().any(|loan| loan.run.overlaps(run))
    }

    /// Whether all of `run` lies in one loan of which nothing is back yet.
    pub fn contains(&self, run: PaRange) -> bool {
        let whole = self.whole();
        let mut whole = whole.into_iter();
        whole.any(|loan| loan.contains_run(run.start, run.size))
    }

    /// The runs of which nothing is back yet.
    pub fn whole(&self) -> Vec<PaRange, LOANS_MAX> {
        let whole = self.loans.iter().filter(|loan| loan.returned == 0);
        whole.map(|loan| loan.run).collect()
    }

    /// Bytes that are lent and not back.
    pub fn bytes(&self) -> u64 {
        let left = |loan: &Loan| loan.run.size - loan.returned;
        self.loans.iter().map(left).sum()
    }

    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }
}
