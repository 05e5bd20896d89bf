//! Pages that are asked for before a vCPU needs them. No vCPU waits for them, so they are younger than all that one does.

use crate::{Access, Actions, Broken, Host, Page, State};
use core::ops::IndexMut;

/// The most pages of a burst.
const BURST_MAX: u32 = 16;
/// The most pages that are under way before they are needed. With eight, times differ no more than between images
/// (docs/decisions/0116).
pub const EARLY_MAX: usize = 5;
/// Pages whose companions are known at a time.
pub(crate) const LOCKS: usize = 8;
/// The most companions of a page.
const COMPANIONS: usize = 4;
/// How long after a page was granted misses count as its companions, in nanoseconds.
const COMPANION_NS: u64 = 200_000;
/// No page.
const NO_PAGE: u32 = u32::MAX;

/// A page, and those that were written right after it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lock {
    page: u32,
    companions: [u32; COMPANIONS],
    /// Which of them is forgotten next.
    next: u8,
}

impl Default for Lock {
    fn default() -> Self {
        Self {
            page: NO_PAGE,
            companions: [NO_PAGE; COMPANIONS],
            next: 0,
        }
    }
}

/// What a vCPU missed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Misses {
    /// The page behind the last burst, and its length.
    expected: u32,
    burst: u32,
    /// The page that was asked for last to be written while no other was fresh, and when.
    lock: u32,
    lock_at_ns: u64,
}

impl Misses {
    pub(crate) const NEW: Self = Self {
        expected: NO_PAGE,
        burst: 0,
        lock: NO_PAGE,
        lock_at_ns: 0,
    };

    /// Notes a miss; returns how many pages behind it are asked for.
    fn sequence(&mut self, page: u32) -> u32 {
        let goes_on = page == self.expected;
        self.burst = match self.burst {
            _ if !goes_on => 0,
            0 => 4,
            burst => (2 * burst).min(BURST_MAX),
        };
        self.expected = page.saturating_add(1 + self.burst);
        self.burst
    }
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Asks for pages that a vCPU which misses this one may need next.
    pub(crate) fn prefetch(
        &mut self,
        now_ns: u64,
        vcpu: usize,
        page: u32,
        access: Access,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        if usize::from(self.settings.vcpus) == SLOTS {
            return Ok(());
        }
        // What is overwritten with zeroes must not be so before its time.
        let behind = self.vcpus[vcpu].misses.sequence(page);
        if self.settings.switches.burst && access != Access::Zero {
            for next in (page..u32::MAX).skip(1).take(behind as usize) {
                self.ask_early(next, access, actions)?;
            }
        }
        if self.settings.switches.companions && access == Access::Write {
            let misses = &mut self.vcpus[vcpu].misses;
            let is_fresh = now_ns.saturating_sub(misses.lock_at_ns) < COMPANION_NS;
            if is_fresh && misses.lock != NO_PAGE && misses.lock != page {
                let lock = misses.lock;
                self.locks[lock as usize % LOCKS].add(lock, page);
            } else {
                (misses.lock, misses.lock_at_ns) = (page, now_ns);
                let lock = self.locks[page as usize % LOCKS];
                for companion in lock.companions.into_iter().filter(|_| lock.page == page) {
                    self.ask_early(companion, Access::Write, actions)?;
                }
            }
        }
        Ok(())
    }

    /// Asks for a page, if it exists, is not here or asked for, and a transaction is left.
    pub(crate) fn ask_early(
        &mut self,
        page: u32,
        access: Access,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let first = usize::from(self.settings.vcpus);
        let mut slots = (first..SLOTS).take(EARLY_MAX);
        let free = slots.find(|slot| self.open[*slot].is_none());
        let is_missing = page < self.settings.pages
            && !self.is_held(page)
            && !self.page(page).state.allows(access)
            && self.page(page).state != State::Exclusive
            && self.page(page).slot == u8::MAX;
        match free.filter(|_| is_missing) {
            Some(slot) => self.request(slot, page, access, (u64::MAX, u16::MAX), actions),
            None => Ok(()),
        }
    }
}

impl Lock {
    fn add(&mut self, page: u32, companion: u32) {
        if self.page != page {
            *self = Self {
                page,
                ..Self::default()
            };
        }
        if !self.companions.contains(&companion) {
            self.companions[usize::from(self.next)] = companion;
            self.next = (self.next + 1) % COMPANIONS as u8;
        }
    }
}
