//! What is made of loans, and how many CPUs run it.

use crate::{Borrower, Loans};
use abi::os0::Refusal;

/// What is made of what VMs are lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Made {
    /// Nothing: it can go back.
    #[default]
    Nothing,
    /// A CPU makes pools and VMs of it, or undoes them: nobody else lends, stages, shares or takes back.
    Changing,
    /// Pools and VMs.
    Vms,
}

/// Loans, what is made of them and who runs it: all by which it is decided who may lend, make, share, leave and
/// take back. Under one lock, so that no CPU leaves between another's question and its deed.
///
/// Whoever leaves OS-0's stage 2 asks [`Self::are_in_use`] and leaves under the same lock. What asks whether EL2
/// is beneath all CPUs is told by the caller, who has asked under the lock, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lending {
    loans: Loans,
    made: Made,
    sharing: u32,
}

impl Lending {
    /// Nothing is lent.
    pub const fn new() -> Self {
        Self {
            loans: Loans::new(),
            made: Made::Nothing,
            sharing: 0,
        }
    }

    /// What is lent.
    pub const fn loans(&self) -> &Loans {
        &self.loans
    }

    /// What is lent, for a borrower's to go back: VMs' while nothing is made of it, a successor's while nothing is being
    /// made, as areas of OS-0's are looked for then.
    ///
    /// # Errors
    /// [`Refusal::InUse`].
    pub fn to_return(&mut self, borrower: Borrower) -> Result<&mut Loans, Refusal> {
        match (borrower, self.made) {
            (_, Made::Changing) | (Borrower::Vms, Made::Vms) => Err(Refusal::InUse),
            _ => Ok(&mut self.loans),
        }
    }

    /// What is lent, for more: only where EL2 is beneath all CPUs, since others reach all memory.
    ///
    /// # Errors
    /// [`Refusal::InUse`], [`Refusal::NotAttached`].
    pub fn to_lend(&mut self, borrower: Borrower, attached: bool) -> Result<&mut Loans, Refusal> {
        let loans = self.to_return(borrower)?;
        attached.then_some(loans).ok_or(Refusal::NotAttached)
    }

    /// Begins to make something of what is lent; [`Self::settle`] follows.
    ///
    /// # Errors
    /// As [`Self::to_lend`].
    pub fn open(&mut self, attached: bool) -> Result<(), Refusal> {
        self.to_lend(Borrower::Vms, attached)?;
        self.made = Made::Changing;
        Ok(())
    }

    /// Begins to undo what is made, which no CPU runs; [`Self::settle`] follows.
    ///
    /// # Errors
    /// [`Refusal::NotOpen`], [`Refusal::InUse`].
    pub fn close(&mut self) -> Result<(), Refusal> {
        match (self.made, self.sharing) {
            (Made::Vms, 0) => self.made = Made::Changing,
            (Made::Vms, _) => return Err(Refusal::InUse),
            _ => return Err(Refusal::NotOpen),
        }
        Ok(())
    }

    /// Says what has become of what was being changed.
    pub const fn settle(&mut self, made: Made) {
        self.made = made;
    }

    /// Counts a CPU that is about to run VMs.
    ///
    /// # Errors
    /// [`Refusal::NotOpen`]; [`Refusal::NotAttached`] where OS-0 reaches VMs' memory from any CPU.
    pub fn share(&mut self, attached: bool) -> Result<(), Refusal> {
        if self.made != Made::Vms {
            return Err(Refusal::NotOpen);
        }
        self.sharing += u32::from(attached);
        attached.then_some(()).ok_or(Refusal::NotAttached)
    }

    /// A CPU that was counted runs no VM any more.
    pub const fn unshare(&mut self) {
        self.sharing = self.sharing.saturating_sub(1);
    }

    /// Whether any CPU runs VMs.
    pub const fn is_shared(&self) -> bool {
        self.sharing > 0
    }

    /// Whether VMs are there and no CPU runs them.
    pub fn are_parked(&self) -> bool {
        self.made == Made::Vms && self.sharing == 0
    }

    /// Whether VMs have memory that OS-0 must not reach: they are not parked.
    pub fn are_in_use(&self) -> bool {
        !self.are_parked() && !self.loans.is_empty(Borrower::Vms)
    }
}
