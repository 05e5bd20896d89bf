//! A spin lock.

use core::cell::UnsafeCell;
use core::fmt;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::rank::{RankEvent, track};
use crate::{Once, Rank};

/// Looks at a held lock after which a CPU has waited long: some 300 instructions.
const PATIENCE: u64 = 64;

static RELAX: Once<fn()> = Once::new();

/// Installs what a CPU does between two looks at a lock that another CPU holds. Without it, it
/// is [`core::hint::spin_loop`]. Called once at boot; later calls change nothing.
///
/// EL2 executes YIELD here: a simulator that runs the CPUs in turn then goes on to the holder.
pub fn set_relax(relax: fn()) {
    // The first one stays.
    let _ = RELAX.set(relax);
}

/// A value for one CPU at a time: a test-and-test-and-set lock. Taking a free one is a single
/// atomic swap (LSE `SWPA`), and giving it back a store-release.
///
/// CPUs that wait are not queued. A queue would hand the lock to a CPU that may not be running
/// (EL2 itself under a simulator or another hypervisor) while all others wait for it. But a lock that
/// `PROMISES` is promised to one of those that have waited long: nobody else takes it before that one had it, but for
/// one that comes by as it is promised. So a CPU waits for those that were promised it before, in no order, and not for as
/// long as others come by. To give such a lock back takes a load more.
pub struct SpinLock<T: ?Sized, const PROMISES: bool = false> {
    raw: Raw,
    rank: Rank,
    value: UnsafeCell<T>,
}

/// Nobody has the lock.
const FREE: u8 = 0;
/// A CPU has it, or is about to find that it is promised.
const HELD: u8 = 1;
/// Nobody has it, and only the CPU that it is promised may take it.
const PROMISED: u8 = 2;

/// Whose a lock is.
struct Raw {
    /// Any of the three.
    state: AtomicU8,
    /// What whoever gives it back leaves: [`FREE`], or [`PROMISED`] once a CPU has waited long.
    next: AtomicU8,
}

impl Raw {
    /// What the lock was: this CPU took it where that is [`FREE`], and is to [`Self::give_back`] or
    /// [`Self::wait`] else.
    #[inline]
    fn swap(&self) -> u8 {
        self.state.swap(HELD, Ordering::Acquire)
    }

    /// Leaves a lock as [`Self::swap`] found it, which was not free.
    #[cold]
    #[inline(never)]
    fn give_back(&self, found: u8) {
        if found == PROMISED {
            // Released: the one that takes it sees what the last one did.
            self.state.store(PROMISED, Ordering::Release);
        }
    }

    /// Waits until this CPU took the lock, in which [`Self::swap`] found that.
    // Kept out of line, so that taking a free lock needs no stack frame.
    #[cold]
    #[inline(never)]
    fn wait(&self, found: u8, promises: bool) {
        self.give_back(found);
        let relax = RELAX.get().copied().unwrap_or(hint::spin_loop);
        // Looking only reads, so the line stays shared between the CPUs that wait.
        let state = || self.state.load(Ordering::Relaxed);
        let looks = if promises { PATIENCE } else { u64::MAX };
        for _ in 0..looks {
            if state() == FREE {
                match self.swap() {
                    FREE => return,
                    found => self.give_back(found),
                }
            }
            relax();
        }
        // One is promised it at a time; the others try to be the next.
        let is_promised = || self.next.load(Ordering::Relaxed) == PROMISED;
        while is_promised() || self.next.swap(PROMISED, Ordering::Relaxed) == PROMISED {
            relax();
        }
        while state() == HELD || self.swap() == HELD {
            relax();
        }
        self.next.store(FREE, Ordering::Relaxed);
    }
}

// SAFETY: the lock hands the value to one thread at a time, so sharing the lock only ever moves
// the value's use between threads: `T: Send` is what that takes.
unsafe impl<T: ?Sized + Send, const PROMISES: bool> Sync for SpinLock<T, PROMISES> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: ?Sized + Send, const PROMISES: bool> Send for SpinLock<T, PROMISES> {}

impl<T> SpinLock<T> {
    /// A free lock around `value`, to be taken in the order `rank` says.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::free(rank, value)
    }
}

impl<T> SpinLock<T, true> {
    /// The same, which is promised to CPUs that wait long: for what many CPUs want.
    pub const fn promising(rank: Rank, value: T) -> Self {
        Self::free(rank, value)
    }
}

impl<T, const PROMISES: bool> SpinLock<T, PROMISES> {
    const fn free(rank: Rank, value: T) -> Self {
        let raw = Raw {
            state: AtomicU8::new(FREE),
            next: AtomicU8::new(FREE),
        };
        Self {
            raw,
            rank,
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized, const PROMISES: bool> SpinLock<T, PROMISES> {
    /// Waits for the value.
    ///
    /// # Panics
    /// In debug builds, where the order of [`Rank`] forbids waiting for this lock now.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T, PROMISES> {
        self.lock_as(RankEvent::Lock)
    }

    #[inline]
    fn lock_as(&self, event: RankEvent) -> SpinGuard<'_, T, PROMISES> {
        track(self.rank, event);
        let found = self.raw.swap();
        if found != FREE {
            self.raw.wait(found, PROMISES);
        }
        SpinGuard { lock: self }
    }

    /// The value, if it is free at this moment, and promised to nobody.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T, PROMISES>> {
        let found = self.raw.swap();
        if found != FREE {
            self.raw.give_back(found);
            return None;
        }
        track(self.rank, RankEvent::TryLock);
        Some(SpinGuard { lock: self })
    }

    /// Whether a CPU has waited long for it: who has it may give it back midway.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.raw.next.load(Ordering::Relaxed) == PROMISED
    }

    /// The value, out of its lock.
    pub fn into_inner(self) -> T
    where
        T: Sized,
    {
        self.value.into_inner()
    }
}

/// Takes two locks of one rank in ascending order of address, which every CPU does alike. Gives
/// the guards in the order of the arguments; `None` where both are the same lock.
pub fn lock_pair<'a, T>(
    a: &'a SpinLock<T>,
    b: &'a SpinLock<T>,
) -> Option<(SpinGuard<'a, T>, SpinGuard<'a, T>)> {
    if ptr::eq(a, b) {
        return None;
    }
    if ptr::from_ref(a) < ptr::from_ref(b) {
        let first = a.lock();
        let second = b.lock_as(RankEvent::LockSecond);
        Some((first, second))
    } else {
        let first = b.lock();
        let second = a.lock_as(RankEvent::LockSecond);
        Some((second, first))
    }
}

impl<T: ?Sized + fmt::Debug, const PROMISES: bool> fmt::Debug for SpinLock<T, PROMISES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => write!(f, "SpinLock({:?}, {:?})", self.rank, &*value),
            None => write!(f, "SpinLock({:?}, held)", self.rank),
        }
    }
}

/// The value of a [`SpinLock`], given back when this is dropped.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct SpinGuard<'a, T: ?Sized, const PROMISES: bool = false> {
    lock: &'a SpinLock<T, PROMISES>,
}

// SAFETY: sharing a guard shares `&T` and nothing else. (Its `Send` follows from `SpinLock`'s
// `Sync`; a guard that another thread drops gives the lock back all the same.)
unsafe impl<T: ?Sized + Sync, const PROMISES: bool> Sync for SpinGuard<'_, T, PROMISES> {}

impl<T: ?Sized, const PROMISES: bool> Deref for SpinGuard<'_, T, PROMISES> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard is made only by the CPU whose swap found the lock free, so for as long
        // as it lives no other guard exists and nobody else reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized, const PROMISES: bool> DerefMut for SpinGuard<'_, T, PROMISES> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` excludes other references through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized, const PROMISES: bool> Drop for SpinGuard<'_, T, PROMISES> {
    #[inline]
    fn drop(&mut self) {
        track(self.lock.rank, RankEvent::Unlock);
        let raw = &self.lock.raw;
        let next = if PROMISES {
            raw.next.load(Ordering::Relaxed)
        } else {
            FREE
        };
        raw.state.store(next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_held_lock_cannot_be_tried() {
        let lock = SpinLock::new(Rank::Device, 1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(*lock.lock(), 2);
    }

    /// One that waited long has the lock before whoever comes by.
    #[test]
    fn a_lock_is_for_the_one_that_waited_long() {
        let lock = SpinLock::promising(Rank::Device, 0);
        for round in 0..100 {
            let guard = lock.lock();
            thread::scope(|scope| {
                scope.spawn(|| *lock.lock() += 1);
                while !lock.is_wanted() {
                    thread::yield_now();
                }
                assert_eq!(*guard, round);
                drop(guard);
                let mut found = lock.try_lock();
                while found.is_none() {
                    thread::yield_now();
                    found = lock.try_lock();
                }
                assert_eq!(found.as_deref(), Some(&(round + 1)));
                drop(found);
                assert_eq!(*lock.lock(), round + 1);
            });
            assert!(!lock.is_wanted());
        }
    }

    #[test]
    fn a_pair_is_taken_once_and_in_the_order_asked() {
        let locks = [
            SpinLock::new(Rank::Scheduler, 'a'),
            SpinLock::new(Rank::Scheduler, 'b'),
        ];
        for (x, y) in [(0, 1), (1, 0)] {
            let (first, second) = lock_pair(&locks[x], &locks[y]).unwrap();
            assert_eq!(
                (*first, *second),
                (
                    if x == 0 { 'a' } else { 'b' },
                    if y == 0 { 'a' } else { 'b' }
                )
            );
        }
        assert!(lock_pair(&locks[0], &locks[0]).is_none());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: VmMemory taken")]
    fn the_order_is_checked() {
        let pool = SpinLock::new(Rank::NodePool, ());
        let memory = SpinLock::new(Rank::VmMemory, ());
        let _pool = pool.lock();
        let _memory = memory.lock();
    }
}
