//! What becomes of a VM that owes memory: pages are taken from it, it is slowed, and it is paused
//! where nothing more can be had of it.
//!
//! ```text
//!            owes more than a little            nothing left to take, and no better for a while
//!  even ────────────────────────────► slowed ────────────────────────────────────► paused
//!    ▲                                  │                                             │
//!    └────────── repaid ◄───────────────┴─────────────────────────────────────────────┘
//! ```
//!
//! A guest never has more than its base, what EL2 could take from it, and a little, which was promised with
//! its base ([`Terms::promised`](crate::Terms::promised)). So whoever waits for a frame that it was promised
//! gets it, whatever guests do: somebody has pages that can be taken.
//!
//! Pages are taken in the order of what they cost: frames that its guest reported free; then pages
//! that a partition holds anyway, by second chance; then, when two turns of the clock have found no
//! more of those, pages that must be written to its swap.

use crate::Standing;

/// Pages that a VM may owe before it is slowed, where the machine is not short of memory: a balloon gives
/// that back in a moment.
pub const SLACK: u64 = 256;
/// Pages that its guest may have beyond that so that its balloon driver can run.
pub const HELP: u64 = 512;
/// The most pages that a fault fills: a chunk.
const FAULT_PAGES: u64 = 16;
/// The most pages that a device's request fills, as a rule: it counts as [`REQUEST_FAULTS`] faults.
const REQUEST_PAGES: u64 = FAULT_PAGES * REQUEST_FAULTS as u64;
/// As so many faults a device's request counts.
pub const REQUEST_FAULTS: u32 = 4;
/// Faults that a VM that owes may have filled between two goes while as much can be taken from it.
const ALLOWANCE: u64 = 8;
/// Faults beyond these between two goes for the guest of a VM that owes and has a balloon driver.
const EMERGENCY: u32 = 4;
/// After so many goes in which a VM that owes got no better it is paused.
pub const PATIENCE: u32 = 500;
/// Turns of the clock after which a page that was touched once and never again has been taken.
const TURNS: u64 = 2;

/// What happened to a VM that owes, for the log and for those who pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It owes more than a little.
    Owes,
    /// It owes little again.
    Repaid,
    /// It is to be paused.
    Pause,
    /// It was paused for what it owed, and may go on.
    GoOn,
}

/// What one go found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Go {
    /// Pages that it owes.
    pub owed: u64,
    /// Pages that it may owe before it is slowed.
    pub slack: u64,
    /// Pages that could be taken from it.
    pub takeable: u64,
    /// Pages that were taken in this go.
    pub taken: u64,
}

/// A VM as one that may owe; at first nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debtor {
    owed: u64,
    is_slowed: bool,
    /// Goes without progress, and what it owed at the last progress.
    strikes: u32,
    least: u64,
    is_paused: bool,
    /// Guest frames that the clock has passed since it took one that a partition holds.
    barren: u64,
    /// The same since it took any: what could go is touched again and again.
    busy: u64,
    /// That were two turns of the clock.
    is_worn: bool,
}

impl Debtor {
    /// What it owed last.
    pub const fn owed(&self) -> u64 {
        self.owed
    }

    /// One that is paused for what it owes.
    pub fn paused(owed: u64) -> Self {
        Self {
            owed,
            is_paused: true,
            ..Self::default()
        }
    }

    /// Whether it is paused for what it owes.
    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// What follows from a go.
    pub fn turn(&mut self, go: Go) -> Option<News> {
        let before = core::mem::replace(&mut self.owed, go.owed);
        let was_slowed = core::mem::replace(&mut self.is_slowed, go.owed > go.slack);
        if !self.is_slowed {
            let was_paused = core::mem::take(&mut self.is_paused);
            (self.strikes, self.barren, self.busy) = (0, 0, 0);
            self.is_worn = false;
            return match (was_paused, before > SLACK && go.owed <= SLACK) {
                (true, _) => Some(News::GoOn),
                (false, true) => Some(News::Repaid),
                (false, false) => None,
            };
        }
        let is_better = go.owed < self.least || go.taken > 0 || go.takeable > 0 && !self.is_worn;
        if is_better || !was_slowed {
            self.least = go.owed;
        }
        self.strikes = if is_better { 0 } else { self.strikes + 1 };
        if self.strikes >= PATIENCE && !self.is_paused {
            self.is_paused = true;
            return Some(News::Pause);
        }
        (before <= SLACK && go.owed > SLACK).then_some(News::Owes)
    }

    /// Somebody lets it go on all the same: it has its time again.
    pub fn forgive(&mut self) {
        self.strikes = 0;
        self.is_paused = false;
    }

    /// Whether its faults are slowed.
    pub const fn is_slowed(&self) -> bool {
        self.is_slowed
    }

    /// Faults that may be filled until the next go, a fault filling [`FAULT_PAGES`] at most: where it is
    /// slowed, few, and none beyond what can be taken; else as many as it takes to fill its room.
    pub fn allowance(&self, standing: &Standing) -> u32 {
        let faults = if self.is_slowed {
            (standing.spare / FAULT_PAGES).min(ALLOWANCE)
        } else {
            standing.room / FAULT_PAGES + 1
        };
        u32::try_from(faults).unwrap_or(u32::MAX)
    }

    /// Faults beyond the allowance until the next go, where its guest has a balloon driver, which must run
    /// to give anything back.
    pub fn emergency(&self, standing: &Standing) -> u32 {
        if self.is_slowed && standing.help >= REQUEST_PAGES {
            EMERGENCY
        } else {
            0
        }
    }

    /// The clock has passed so many guest frames of a VM of `frames`, and took so many that a
    /// partition holds, and so many in all.
    pub fn passed(&mut self, looked: u64, frames: u64, mappers: u64, all: u64) {
        let most = frames.saturating_mul(TURNS);
        let since = |before, taken| if taken > 0 { 0 } else { before };
        self.barren = (since(self.barren, mappers) + looked).min(most);
        self.busy = (since(self.busy, all) + looked).min(most);
        self.is_worn = self.busy == most;
    }

    /// Whether pages may be written to swap: nothing cheaper is left of a VM of `frames`, of which
    /// partitions hold `mappers` pages.
    pub fn may_swap(&self, frames: u64, mappers: u64) -> bool {
        mappers == 0 || self.barren >= frames.saturating_mul(TURNS)
    }
}

/// Lets those owe with whose savings others were started, `lent` pages in all, the first of them first:
/// sharing has broken since, and the machine is short of memory.
pub fn call_in<T>(payers: &mut [(Standing, T)], mut lent: u64) {
    for (standing, _) in payers {
        let part = standing.lent.min(lent);
        standing.owed = standing.owed.max(part);
        lent -= part;
    }
}

/// Puts those that pay in order: the most negative balance first.
pub fn in_order<T>(payers: &mut [(Standing, T)]) {
    payers.sort_unstable_by_key(|(standing, _)| standing.balance);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Standing;

    const OWES: Go = Go {
        owed: 1000,
        slack: SLACK,
        takeable: 0,
        taken: 0,
    };

    fn spare(spare: u64) -> Standing {
        Standing {
            spare,
            help: spare + HELP,
            ..Standing::default()
        }
    }

    #[test]
    fn who_cannot_pay_is_slowed_and_then_paused() {
        let mut debtor = Debtor::default();
        assert!(!debtor.is_slowed());
        assert_eq!(debtor.turn(OWES), Some(News::Owes));
        assert!(debtor.is_slowed());
        assert_eq!(debtor.allowance(&spare(15)), 0);
        assert_eq!(debtor.allowance(&spare(16)), 1);
        assert_eq!(debtor.allowance(&spare(1600)), 8);
        assert_eq!(debtor.emergency(&spare(0)), EMERGENCY);
        assert_eq!(debtor.emergency(&Standing::default()), 0);
        for _ in 2..PATIENCE {
            assert_eq!(debtor.turn(OWES), None);
        }
        assert_eq!(debtor.turn(OWES), Some(News::Pause));
        assert_eq!(debtor.turn(OWES), None, "it is paused once");
        assert_eq!(
            debtor.turn(Go {
                owed: SLACK,
                ..OWES
            }),
            Some(News::GoOn)
        );
        assert!(!debtor.is_slowed());
        assert_eq!(debtor.turn(Go::default()), None);
    }

    #[test]
    fn who_was_paused_before_is_paused_once_and_goes_on() {
        let mut debtor = Debtor::paused(1000);
        assert_eq!((debtor.is_paused(), debtor.owed()), (true, 1000));
        for _ in 0..2 * PATIENCE {
            assert_eq!(debtor.turn(OWES), None);
        }
        assert_eq!(debtor.turn(Go::default()), Some(News::GoOn));
        assert!(!debtor.is_paused());
    }

    #[test]
    fn who_pays_at_all_has_time() {
        let mut debtor = Debtor::default();
        let steps = [
            Go { owed: 999, ..OWES },
            Go {
                takeable: 1,
                ..OWES
            },
            Go { taken: 1, ..OWES },
        ];
        for step in steps {
            for _ in 0..PATIENCE - 1 {
                assert_ne!(debtor.turn(OWES), Some(News::Pause));
            }
            assert_ne!(debtor.turn(step), Some(News::Pause));
        }
        for _ in 0..PATIENCE - 1 {
            assert_ne!(debtor.turn(OWES), Some(News::Pause));
        }
        assert_eq!(debtor.turn(Go::default()), Some(News::Repaid));
    }

    #[test]
    fn who_touches_all_that_could_be_taken_is_paused_too() {
        let mut debtor = Debtor::default();
        let go = Go {
            takeable: 10,
            ..OWES
        };
        let mut turns = |looked| {
            let paused = |n: &u32| {
                debtor.passed(looked, 1000, 0, 0);
                // It owes now a little more, now a little less.
                let owed = OWES.owed + u64::from(n % 2);
                debtor.turn(Go { owed, ..go }) == Some(News::Pause)
            };
            (0..3 * PATIENCE).find(paused)
        };
        assert_eq!(turns(0), None, "the clock has not been round twice");
        let paused = turns(1000).unwrap();
        assert!((PATIENCE..PATIENCE + 4).contains(&paused), "{paused}");
    }

    #[test]
    fn who_is_forgiven_is_paused_again_where_nothing_changes() {
        let mut debtor = Debtor::default();
        for _ in 0..2 {
            let paused = (1..=PATIENCE).find(|_| debtor.turn(OWES) == Some(News::Pause));
            assert_eq!(paused, Some(PATIENCE), "it has its time");
            assert_eq!(debtor.turn(OWES), None);
            debtor.forgive();
        }
    }

    /// What the clock found before a VM repaid does not count when it owes again.
    #[test]
    fn who_repaid_begins_anew() {
        for (before, after) in [(1999, Some(1)), (2000, None)] {
            let mut debtor = Debtor::default();
            debtor.passed(before, 1000, 0, 0);
            assert_eq!(debtor.turn(OWES), Some(News::Owes));
            assert_eq!(debtor.turn(Go::default()), Some(News::Repaid));
            if let Some(looked) = after {
                debtor.passed(looked, 1000, 0, 0);
            }
            assert!(!debtor.may_swap(1000, 1));
            let takeable = Go {
                takeable: 10,
                ..OWES
            };
            let is_paused = |_| debtor.turn(takeable) == Some(News::Pause);
            assert!(!(0..2 * PATIENCE).any(is_paused));
        }
    }

    #[test]
    fn a_little_is_no_debt() {
        let mut debtor = Debtor::default();
        for _ in 0..2 * PATIENCE {
            assert_eq!(
                debtor.turn(Go {
                    owed: SLACK,
                    ..OWES
                }),
                None
            );
            assert!(!debtor.is_slowed());
        }
        let room = |room| Standing {
            room,
            ..Standing::EVEN
        };
        assert_eq!(debtor.allowance(&room(0)), 1);
        assert_eq!(debtor.allowance(&room(1600)), 101);
        assert_eq!(debtor.allowance(&Standing::EVEN), u32::MAX);
        assert_eq!(debtor.emergency(&spare(0)), 0);
    }

    #[test]
    fn where_memory_is_short_a_little_is_a_debt() {
        let mut debtor = Debtor::default();
        let go = Go {
            owed: 1,
            slack: 0,
            ..OWES
        };
        let paused = |_: &u32| debtor.turn(go) == Some(News::Pause);
        assert_eq!((0..2 * PATIENCE).find(paused), Some(PATIENCE - 1));
        let eased = Go { slack: SLACK, ..go };
        assert_eq!(debtor.turn(eased), Some(News::GoOn));
    }

    #[test]
    fn those_with_whose_savings_others_were_started_pay_in_their_order() {
        let with = |lent, owed| {
            let standing = Standing {
                owed,
                lent,
                ..Standing::default()
            };
            (standing, ())
        };
        let mut payers = [with(30, 0), with(0, 5), with(30, 25), with(30, 7)];
        call_in(&mut payers, 50);
        assert_eq!(payers.map(|(standing, ())| standing.owed), [30, 5, 25, 7]);
    }

    #[test]
    fn what_a_partition_holds_goes_before_what_must_be_written() {
        let mut debtor = Debtor::default();
        assert!(debtor.may_swap(1000, 0), "there is nothing else");
        assert!(!debtor.may_swap(1000, 1));
        debtor.passed(1999, 1000, 0, 0);
        assert!(!debtor.may_swap(1000, 1));
        debtor.passed(1, 1000, 1, 1);
        debtor.passed(1998, 1000, 0, 1);
        assert!(!debtor.may_swap(1000, 1), "one was found in between");
        debtor.passed(1, 1000, 0, 0);
        assert!(debtor.may_swap(1000, 1));
    }

    #[test]
    fn the_most_negative_balance_pays_first() {
        let with = |balance| {
            let standing = Standing {
                balance,
                ..Standing::default()
            };
            (standing, balance)
        };
        let mut payers = [with(3), with(-7), with(0), with(-8)];
        in_order(&mut payers);
        assert_eq!(payers.map(|(_, balance)| balance), [-8, -7, 0, 3]);
    }
}
