//! Which VM has which VMID, the number that tags a VM's entries in every TLB (Arm ARM D8.16).
//!
//! There are 255 or 65,535 numbers beside 0, which is nobody's. A VM keeps its number from
//! [`Vmids::take`] at its start to [`Vmids::release`] after its end (decision 19); Underpin's EL2, with
//! 64 VMs, never runs out of them. A [`Tag`] names one assignment of a number and thus tells by itself
//! whether it still holds.
//!
//! All CPUs see a VM under one number, and hardware may walk its tables ahead of need whether or not a
//! CPU is in the guest: so a number is released only when no CPU has the VM loaded and no TLB has an
//! entry of it.
#![no_std]
#![forbid(unsafe_code)]

mod last_run;
mod reach;

pub use last_run::{Drops, LastRun};
pub use reach::Reach;

/// In the table of holders: nobody has the number.
const NOBODY: u64 = 0;

/// One assignment of a VMID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    vmid: u16,
    /// Which assignment of any VMID it was, from 1.
    serial: u64,
}

impl Tag {
    /// The number, for `VTTBR_EL2.VMID`.
    pub const fn vmid(self) -> u16 {
        self.vmid
    }
}

/// The VMIDs below `N`: 256 for 8 bits, 65,536 for 16, or fewer.
pub struct Vmids<const N: usize> {
    /// The serial number of the assignment that holds, for each VMID.
    holders: [u64; N],
    /// The VMID that was handed out last: a number rests as long as possible.
    last: usize,
    /// The latest assignment.
    serial: u64,
}

impl<const N: usize> Vmids<N> {
    /// All numbers free and no TLB with an entry of any.
    pub const fn empty() -> Self {
        const {
            assert!(
                N >= 2 && N <= 1 << 16,
                "VMIDs have 16 bits, and 0 is nobody's"
            );
        }
        Self {
            holders: [NOBODY; N],
            last: 0,
            serial: 0,
        }
    }

    /// Whether the VM with that tag still has the number.
    pub fn is_valid(&self, tag: Tag) -> bool {
        self.holders[usize::from(tag.vmid) % N] == tag.serial
    }

    /// Gives a VM a free number; `None` where there is none.
    pub fn take(&mut self) -> Option<Tag> {
        let vmid = (1..=N)
            .map(|step| (self.last + step) % N)
            .find(|&vmid| vmid != 0 && self.holders[vmid] == NOBODY)?;
        self.last = vmid;
        // 63 bits do not run out.
        self.serial += 1;
        self.holders[vmid] = self.serial;
        Some(Tag {
            vmid: vmid as u16,
            serial: self.serial,
        })
    }

    /// Takes back the number of a VM that has ended. No CPU has the VM loaded, and no TLB has an
    /// entry of it any more: the number may be another VM's at once. A tag that does not hold
    /// changes nothing.
    pub fn release(&mut self, tag: Tag) {
        if self.is_valid(tag) {
            self.holders[usize::from(tag.vmid) % N] = NOBODY;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_number_but_0_is_given_once() {
        let mut vmids = Vmids::<16>::empty();
        let mut given = [false; 16];
        while let Some(tag) = vmids.take() {
            assert!(!core::mem::replace(
                &mut given[usize::from(tag.vmid())],
                true
            ));
        }
        assert_eq!(given.iter().position(|&is_given| !is_given), Some(0));
        assert_eq!(given.iter().filter(|&&is_given| is_given).count(), 15);
    }

    #[test]
    fn a_released_number_rests_until_the_others_were_used() {
        let mut vmids = Vmids::<4>::empty();
        let first = vmids.take().unwrap();
        vmids.release(first);
        let next: [u16; 3] = core::array::from_fn(|_| vmids.take().unwrap().vmid());
        assert_eq!(next, [2, 3, 1]);
        assert_eq!(vmids.take(), None);
    }

    #[test]
    fn a_tag_that_holds_no_more_releases_nothing() {
        let mut vmids = Vmids::<2>::empty();
        let old = vmids.take().unwrap();
        vmids.release(old);
        let new = vmids.take().unwrap();
        assert_eq!(old.vmid(), new.vmid());
        vmids.release(old);
        assert!(vmids.is_valid(new) && !vmids.is_valid(old));
    }
}
