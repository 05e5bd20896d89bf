//! Which VM has which VMID, the number that tags a VM's entries in every TLB (Arm ARM D8.16).
//!
//! There are 255 or 65,535 numbers beside 0, which is nobody's, and over time more VMs than that.
//! As kernels do with ASIDs, numbers are handed out until none is left; then all VMs that no CPU
//! has loaded lose theirs at once, every TLB is flushed once, and each VM gets a number again when
//! it is next loaded. A [`Tag`] names one assignment of a number and thus tells by itself whether
//! it still holds.
//!
//! All CPUs see a VM under one number at a time: a VM has one tag, and its number can change only
//! while no CPU has it loaded. *Loaded* means that `VTTBR_EL2` holds the VM's number, whether or
//! not the CPU is in the guest: hardware may walk tables ahead of need.
//!
//! A machine whose VMs never outnumber the VMIDs needs none of this at run time: it calls
//! [`Vmids::take`] when a VM starts and [`Vmids::release`] after its end, and no VM ever loses its
//! number. Underpin's EL2, with 64 VMs, does so. [`Vmids::assign`] is for more VMs than that.
#![no_std]
#![forbid(unsafe_code)]

mod reach;

pub use reach::Reach;

/// In the table of holders: nobody has the number.
const NOBODY: u64 = 0;
/// In the table of holders, while numbers are taken away: this one stays.
const KEPT: u64 = 1 << 63;

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

/// What [`Vmids::assign`] decided.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The VM's tag from now on.
    pub tag: Tag,
    /// Every CPU's TLB must drop the entries of all VMs before anything else is asked of the
    /// [`Vmids`]: numbers were taken from VMs that left entries behind.
    pub flush: bool,
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

impl<const N: usize> Default for Vmids<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Vmids<N> {
    /// All numbers free and no TLB with an entry of any.
    pub const fn new() -> Self {
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

    /// A CPU is about to load a VM that has `tag`, if it has any: the tag by which to load it.
    /// `loaded` are the tags of all VMs that any CPU has loaded; it is asked only when numbers
    /// have run out. `None` where all of them are loaded: more CPUs than VMIDs.
    ///
    /// The caller keeps the machine still from here until it has paid the flush, noted the VM's
    /// tag and noted that this CPU has it loaded: one lock for all three.
    pub fn assign(
        &mut self,
        tag: Option<Tag>,
        loaded: impl IntoIterator<Item = Tag>,
    ) -> Option<Assigned> {
        let kept = tag
            .filter(|&tag| self.is_valid(tag))
            .or_else(|| self.take());
        if let Some(tag) = kept {
            return Some(Assigned { tag, flush: false });
        }
        self.forget_all_but(loaded);
        self.take().map(|tag| Assigned { tag, flush: true })
    }

    /// Takes back the number of a VM that has ended. No CPU has the VM loaded, and no TLB has an
    /// entry of it any more: the number may be another VM's at once. A tag that does not hold
    /// changes nothing.
    pub fn release(&mut self, tag: Tag) {
        if self.is_valid(tag) {
            self.holders[usize::from(tag.vmid) % N] = NOBODY;
        }
    }

    /// Takes the number of every VM that is not loaded.
    fn forget_all_but(&mut self, loaded: impl IntoIterator<Item = Tag>) {
        for tag in loaded {
            if self.is_valid(tag) {
                self.holders[usize::from(tag.vmid) % N] |= KEPT;
            }
        }
        for holder in &mut self.holders {
            *holder = if *holder & KEPT == 0 {
                NOBODY
            } else {
                *holder & !KEPT
            };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use core::iter::empty;

    #[test]
    fn every_number_but_0_is_given_once() {
        let mut vmids = Vmids::<16>::new();
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
        let mut vmids = Vmids::<4>::new();
        let first = vmids.take().unwrap();
        vmids.release(first);
        let next: [u16; 3] = core::array::from_fn(|_| vmids.take().unwrap().vmid());
        assert_eq!(next, [2, 3, 1]);
        assert_eq!(vmids.take(), None);
    }

    #[test]
    fn a_tag_that_holds_no_more_releases_nothing() {
        let mut vmids = Vmids::<2>::new();
        let old = vmids.take().unwrap();
        vmids.release(old);
        let new = vmids.take().unwrap();
        assert_eq!(old.vmid(), new.vmid());
        vmids.release(old);
        assert!(vmids.is_valid(new) && !vmids.is_valid(old));
    }

    #[test]
    fn who_is_loaded_keeps_its_number_and_who_is_not_loses_it() {
        let mut vmids = Vmids::<4>::new();
        let tags: [Tag; 3] = core::array::from_fn(|_| vmids.take().unwrap());
        // The first runs on two CPUs.
        let assigned = vmids.assign(None, [tags[0], tags[0]]).unwrap();
        assert!(assigned.flush && assigned.tag.vmid() != tags[0].vmid());
        assert_eq!(tags.map(|tag| vmids.is_valid(tag)), [true, false, false]);
        let kept = vmids.assign(Some(tags[0]), empty()).unwrap();
        assert_eq!(
            kept,
            Assigned {
                tag: tags[0],
                flush: false
            }
        );
    }

    #[test]
    fn with_all_numbers_loaded_there_is_none() {
        let mut vmids = Vmids::<3>::new();
        let tags: [Tag; 2] = core::array::from_fn(|_| vmids.take().unwrap());
        assert_eq!(vmids.assign(None, tags), None);
        assert!(tags.iter().all(|&tag| vmids.is_valid(tag)));
    }
}
