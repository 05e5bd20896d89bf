//! Which of OS-0's memory is lent to EL2, for VMs: whole blocks of 2 MiB, and pages of others
//! ([`Scattered`]), which OS-0's stage 2 leaves out as long.
//!
//! What OS-0 says is checked here: a page is lent once, is memory, and is not EL2's or reserved by
//! the firmware. A run goes back as it came, block by block ([`Loans::next_returned`]), each zeroed
//! before the next is asked for; what is lent of a block goes back at once. One list has what is lent
//! to VMs and what is staged, so that nothing can be both, nor while it is on its way back. Who may lend,
//! use it, leave and take it back, and when, [`Lending`] decides.
#![no_std]
#![forbid(unsafe_code)]

mod lending;

pub use lending::{Lending, Made};

use abi::os0::Refusal;
use heapless::Vec;
use model_addr::{FRAME_SIZE, Pa, PaRange};

/// What a run consists of.
pub const BLOCK: u64 = 2 << 20;
/// The most runs that are lent at a time.
pub const LOANS_MAX: usize = 16;
/// The most blocks of which pages are lent at a time.
pub const SCATTERED_MAX: usize = 48;

/// For whom a run is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Borrower {
    /// VMs; [`LOANS_MAX`] runs at most.
    Vms,
    /// The OS-0 that starts when this one has ended; one run.
    Successor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Loan {
    run: PaRange,
    borrower: Borrower,
    /// Bytes from its start that are given back.
    returned: u64,
}

/// A block of which pages are lent; all others are OS-0's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scattered {
    /// Where the block begins.
    pub start: Pa,
    /// A bit for each page, lowest first: it is lent.
    pub pages: [u64; 8],
}

impl Scattered {
    /// All of the block.
    pub const fn block(&self) -> PaRange {
        PaRange::of(self.start, BLOCK)
    }

    /// Runs of pages that are all lent, or all not, and which: in order, all of the block.
    pub fn runs(&self) -> impl Iterator<Item = (PaRange, bool)> {
        let is_lent = |page: u64| {
            let word = self.pages.get((page / 64) as usize);
            word.is_some_and(|word| word >> (page % 64) & 1 == 1)
        };
        let mut next = 0;
        core::iter::from_fn(move || {
            let (first, lent) = (next, is_lent(next));
            while next < BLOCK / FRAME_SIZE && is_lent(next) == lent {
                next += 1;
            }
            let run = PaRange::of(
                Pa(self.start.0 + first * FRAME_SIZE),
                (next - first) * FRAME_SIZE,
            );
            (run.size > 0).then_some((run, lent))
        })
    }

    /// Runs of pages that are lent.
    pub fn lent(&self) -> impl Iterator<Item = PaRange> {
        self.runs().filter_map(|(run, lent)| lent.then_some(run))
    }

    /// Whether a page with some of `run` is lent.
    pub fn overlaps(&self, run: PaRange) -> bool {
        self.block().overlaps(run) && self.lent().any(|lent| lent.overlaps(run))
    }

    /// Bytes that are lent.
    pub fn bytes(&self) -> u64 {
        let pages = self.pages.iter().map(|word| u64::from(word.count_ones()));
        pages.sum::<u64>() * FRAME_SIZE
    }
}

/// What is lent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loans {
    loans: Vec<Loan, { LOANS_MAX + 1 }>,
    scattered: Vec<Scattered, SCATTERED_MAX>,
}

/// What is to be done next to give a run back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// This block is to be zeroed and given back.
    Block(PaRange),
    /// What is lent of this block is to be zeroed and given back, and then all of it is back.
    Pages(Scattered),
    /// All of it is back.
    All,
}

impl Loans {
    /// Nothing is lent.
    pub const fn new() -> Self {
        Self {
            loans: Vec::new(),
            scattered: Vec::new(),
        }
    }

    /// Takes a run of `memory` that is none of `kept`.
    ///
    /// # Errors
    /// What stands against it.
    pub fn lend(
        &mut self,
        borrower: Borrower,
        run: PaRange,
        mut memory: impl Iterator<Item = PaRange>,
        mut kept: impl Iterator<Item = PaRange>,
    ) -> Result<(), Refusal> {
        let is_whole = run.start.is_aligned(BLOCK) && run.size.is_multiple_of(BLOCK);
        if run.size == 0 || !is_whole || run.start.checked_add(run.size).is_none() {
            return Err(Refusal::NoBlocks);
        }
        if !memory.any(|memory| memory.contains_run(run.start, run.size)) {
            return Err(Refusal::NoMemory);
        }
        if kept.any(|kept| kept.overlaps(run)) {
            return Err(Refusal::NoMemory);
        }
        if self.overlaps(run) {
            return Err(Refusal::LentAlready);
        }
        let most = match borrower {
            Borrower::Vms => LOANS_MAX,
            Borrower::Successor => 1,
        };
        if self.of(borrower).count() >= most {
            return Err(Refusal::TooManyLoans);
        }
        let loan = Loan {
            run,
            borrower,
            returned: 0,
        };
        self.loans.push(loan).map_err(|_| Refusal::TooManyLoans)
    }

    /// Takes pages of a block that is all `memory`; none of them is any of `kept`.
    ///
    /// # Errors
    /// What stands against it.
    pub fn lend_pages(
        &mut self,
        pages: Scattered,
        mut memory: impl Iterator<Item = PaRange>,
        mut kept: impl Iterator<Item = PaRange>,
    ) -> Result<(), Refusal> {
        let block = pages.block();
        let is_block = block.start.is_aligned(BLOCK) && block.start.checked_add(BLOCK).is_some();
        if !is_block || pages.bytes() == 0 {
            return Err(Refusal::NoBlocks);
        }
        if !memory.any(|memory| memory.contains_run(block.start, block.size)) {
            return Err(Refusal::NoMemory);
        }
        if kept.any(|kept| pages.overlaps(kept)) {
            return Err(Refusal::NoMemory);
        }
        // A block is described once.
        if self.overlaps(block) {
            return Err(Refusal::LentAlready);
        }
        self.scattered
            .push(pages)
            .map_err(|_| Refusal::TooManyLoans)
    }

    /// The next block of the borrower's run that begins at `start`, which is back when this is called again;
    /// or what VMs have of that block, which is back then.
    ///
    /// # Errors
    /// [`Refusal::NotLent`].
    pub fn next_returned(&mut self, borrower: Borrower, start: Pa) -> Result<Returned, Refusal> {
        let mut scattered = self.scattered.iter();
        let place = scattered.position(|pages| pages.start == start);
        if let Some(place) = place.filter(|_| borrower == Borrower::Vms) {
            return Ok(Returned::Pages(self.scattered.swap_remove(place)));
        }
        let mut loans = self.loans.iter();
        let place = loans.position(|loan| loan.borrower == borrower && loan.run.start == start);
        let place = place.ok_or(Refusal::NotLent)?;
        let loan = self.loans.get_mut(place).ok_or(Refusal::NotLent)?;
        let at = loan.run.start.checked_add(loan.returned);
        let at = at.ok_or(Refusal::NotLent)?;
        if at == loan.run.end() {
            self.loans.swap_remove(place);
            return Ok(Returned::All);
        }
        loan.returned += BLOCK;
        Ok(Returned::Block(PaRange::of(at, BLOCK)))
    }

    /// Whether any of `run` is lent, be it on its way back.
    pub fn overlaps(&self, run: PaRange) -> bool {
        let mut runs = self.loans.iter();
        runs.any(|loan| loan.run.overlaps(run))
            || self.scattered.iter().any(|pages| pages.overlaps(run))
    }

    /// Whether all of `run` lies in one loan of VMs', of which nothing is back yet.
    pub fn contains(&self, run: PaRange) -> bool {
        let mut whole = self.whole(Borrower::Vms);
        whole.any(|loan| loan.contains_run(run.start, run.size))
    }

    /// The borrower's runs, as they came, be they on their way back.
    pub fn runs(&self, borrower: Borrower) -> impl Iterator<Item = PaRange> {
        self.of(borrower).map(|loan| loan.run)
    }

    /// The borrower's runs of which nothing is back yet.
    pub fn whole(&self, borrower: Borrower) -> impl Iterator<Item = PaRange> {
        let whole = self.of(borrower).filter(|loan| loan.returned == 0);
        whole.map(|loan| loan.run)
    }

    /// Blocks of which pages are lent to VMs.
    pub fn scattered(&self) -> &[Scattered] {
        &self.scattered
    }

    /// Bytes that are lent and not back.
    pub fn bytes(&self) -> u64 {
        let left = |loan: &Loan| loan.run.size - loan.returned;
        let pages = self.scattered.iter().map(Scattered::bytes);
        self.loans.iter().map(left).sum::<u64>() + pages.sum::<u64>()
    }

    /// Whether nothing is lent to this borrower.
    pub fn is_empty(&self, borrower: Borrower) -> bool {
        let has_pages = borrower == Borrower::Vms && !self.scattered.is_empty();
        !has_pages && self.of(borrower).next().is_none()
    }

    fn of(&self, borrower: Borrower) -> impl Iterator<Item = &Loan> {
        { self.loans.iter() }.filter(move |loan| loan.borrower == borrower)
    }
}
