//! What each VM is charged for the frames it shares.

use core::sync::atomic::{AtomicU64, Ordering};

/// What one whole frame is charged: a user of a frame with n users is charged `UNIT / n`, rounded
/// down.
pub const UNIT: u64 = 1 << 20;

/// VM slots that have an account.
pub const ACCOUNTS: usize = 64;

/// One VM's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its guest frames, and overlay blocks, that a shared frame is behind.
    pub users: u64,
    /// The sum of `UNIT / n` over them, n being how many users the frame of each has.
    pub units: u64,
}

impl Account {
    /// What sharing saves the VM, in units: the sum of (n - 1)/n.
    pub const fn entitlement(self) -> u64 {
        (self.users * UNIT).saturating_sub(self.units)
    }

    /// Frames that it is charged for what it shares, rounded down.
    pub const fn charge(self) -> u64 {
        self.units / UNIT
    }
}

/// A line of the cache, so that CPUs that run different VMs do not share one.
#[derive(Debug)]
#[repr(align(64))]
struct Line {
    users: AtomicU64,
    units: AtomicU64,
}

impl Line {
    const fn new() -> Self {
        Self {
            users: AtomicU64::new(0),
            units: AtomicU64::new(0),
        }
    }
}

/// The accounts of all VMs, by their slots. They change while the frame is locked whose users do,
/// so they are exact: nothing is queued.
///
/// An account is of a slot, not of an instance: a slot's next VM starts with a zero account only
/// if all users of the one before have left.
#[derive(Debug)]
pub struct Accounts {
    lines: [Line; ACCOUNTS],
    /// Units that all are charged, in two's complement; its users are not used.
    all: Line,
    cached: AtomicU64,
}

impl Accounts {
    /// All zero.
    pub const fn zero() -> Self {
        Self {
            lines: [const { Line::new() }; ACCOUNTS],
            all: Line::new(),
            cached: AtomicU64::new(0),
        }
    }

    /// The account of `slot`; zero where there is no such slot. While users come and go, the two
    /// numbers may be of slightly different moments.
    pub fn get(&self, slot: u16) -> Account {
        let line = self.lines.get(usize::from(slot));
        line.map_or(Account::default(), |line| {
            let units = [line, &self.all].map(|line| line.units.load(Ordering::Relaxed));
            Account {
                users: line.users.load(Ordering::Relaxed),
                // Below zero where one of the two has changed in between.
                units: units[0].wrapping_add(units[1]).cast_signed().max(0) as u64,
            }
        })
    }

    /// How many frames are kept that nobody uses, those of images not counted: what a [`Clock`]
    /// may find.
    ///
    /// [`Clock`]: crate::Clock
    pub fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    /// The VM in `slot` has so many more users, and is charged so many more units; in two's complement.
    pub(crate) fn change(&self, slot: u16, users: u64, units: u64) {
        if let Some(line) = self.lines.get(usize::from(slot)) {
            if users != 0 {
                line.users.fetch_add(users, Ordering::Relaxed);
            }
            line.units.fetch_add(units, Ordering::Relaxed);
        }
    }

    /// Each VM in a set of slots, bit n being slot n, is charged so many units more; in two's complement.
    pub(crate) fn charge_set(&self, set: u64, units: u64) {
        let (mut rest, mut units) = (set, units);
        if set.count_ones() > ACCOUNTS as u32 / 2 {
            // All are, and those that are not get it back: so at most half of the accounts change.
            self.all.units.fetch_add(units, Ordering::Relaxed);
            (rest, units) = (!set, units.wrapping_neg());
        }
        while rest != 0 {
            if let Some(line) = self.lines.get(rest.trailing_zeros() as usize) {
                line.units.fetch_add(units, Ordering::Relaxed);
            }
            rest &= rest - 1;
        }
    }

    /// `count` frames more are kept for nobody, in two's complement.
    pub(crate) fn change_cached(&self, count: i64) {
        self.cached.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// What each of `users` is charged.
pub(crate) const fn share(users: u32) -> u64 {
    match UNIT.checked_div(users as u64) {
        Some(units) => units,
        None => 0,
    }
}
