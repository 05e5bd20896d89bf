//! What a VM may have: from what it was promised, what it holds, and what sharing saves on its
//! account (Satori 4.2, "sharing entitlements").
//!
//! A VM is sure of its *base*. Where its description claims so, it may *grow* beyond it by what
//! sharing saves, as long as EL2 could take as much away from it again at that moment: a promise that
//! can be paid back without the guest's help. When sharing breaks, what the VM is charged grows and
//! what it may have shrinks; the difference is *owed*.
//!
//! All amounts are frames unless a name says units. A frame that n use costs each of them [`UNIT`]/n.
#![no_std]
#![forbid(unsafe_code)]

mod debtor;

pub use debtor::{Debtor, Go, HELP, News, PATIENCE, REQUEST_FAULTS, SLACK, call_in, in_order};

use abi::bundle::{VmRecord, claim};
use model_addr::FRAME_SIZE;
use model_sharing::UNIT;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What becomes of what sharing saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: it is free for whoever comes.
    #[default]
    None,
    /// The VMs that share grow by it.
    Grow,
    /// More VMs of the group start with it.
    Start,
}

impl Claim {
    /// As descriptions have it ([`claim`]).
    pub const fn of(number: u8) -> Self {
        match number {
            claim::GROW => Self::Grow,
            claim::START => Self::Start,
            _ => Self::None,
        }
    }
}

/// What a VM was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What it is sure of.
    pub base: u64,
    /// The most it can have: what its guest sees.
    pub max: u64,
    /// What its overlays may take beyond that, as far as it was said, with what finds their blocks.
    pub overlays: u64,
    /// What becomes of its savings.
    pub claim: Claim,
}

/// What a VM holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Holding {
    /// Guest frames with a frame of their own.
    pub private: u64,
    /// Guest frames with a frame that others may use.
    pub shared: u64,
    /// Its users of shared frames: those, and blocks of its overlays.
    pub users: u64,
    /// What they are charged, in units.
    pub units: u64,
    /// Frames of its overlays that nobody else may use.
    pub overlay: u64,
    /// Frames of its tables.
    pub tables: u64,
    /// Frames that EL2 could take from it now, without the guest's help and without loss.
    pub takeable: u64,
}

impl Terms {
    /// What a description promises.
    pub fn of(record: &VmRecord) -> Self {
        let disks = record.disks.iter().filter(|disk| disk.overlay_max > 0);
        let overlays = disks.map(|disk| {
            // More fits nowhere.
            let blocks = disk.overlay_max.min(1 << 46) / FRAME_SIZE;
            Self::overlay(blocks, disk.overlay_on.is_empty())
        });
        Self {
            base: record.base / FRAME_SIZE,
            max: record.memory / FRAME_SIZE,
            overlays: overlays.fold(0, u64::saturating_add),
            claim: Claim::of(record.claim),
        }
    }

    /// Frames that it may take of the machine: its base, what its guest may have beyond that and that EL2
    /// could not take, its overlays, and tables for all that its guest sees, of 8 bytes for each frame
    /// in its pmap and in its translation, and those above.
    pub const fn promised(self) -> u64 {
        self.sure()
            .saturating_add(self.beyond() + self.max / 256 + 4)
    }

    /// Frames for its memory and its overlays.
    const fn sure(self) -> u64 {
        self.base.saturating_add(self.overlays)
    }

    /// Frames for an overlay of so many blocks, which are in memory or on a partition: for those that are
    /// there, and for what finds them, of 16 bytes for each.
    pub const fn overlay(blocks: u64, in_memory: bool) -> u64 {
        let kept = if in_memory { blocks } else { 0 };
        kept.saturating_add(blocks / 256 + 8)
    }

    /// The most pages beyond its base that its guest may have and that EL2 could not take.
    pub const fn beyond(self) -> u64 {
        if self.base < self.max {
            SLACK + HELP
        } else {
            0
        }
    }
}

impl Holding {
    /// What it is charged for guest memory and blocks that are shared.
    const fn memory(self) -> u64 {
        self.private + self.units.div_ceil(UNIT)
    }

    /// What it is charged in all.
    pub const fn charge(self) -> u64 {
        self.memory() + self.overlay + self.tables
    }

    /// What sharing saves on its account: the sum of (n - 1)/n.
    pub const fn entitlement(self) -> u64 {
        (self.users * UNIT).saturating_sub(self.units) / UNIT
    }

    /// Guest frames with a frame behind them.
    pub const fn resident(self) -> u64 {
        self.private + self.shared
    }
}

/// How a VM stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The most that its guest may have now.
    pub limit: u64,
    /// What its guest has beyond its base.
    pub drawn: u64,
    /// Its entitlement less what it has drawn.
    pub balance: i64,
    /// What its guest has beyond the limit.
    pub owed: u64,
    /// What it may owe before it is slowed.
    pub slack: u64,
    /// What its guest may have more until it owes more than that.
    pub room: u64,
    /// What its guest may have more, though it owes, of what EL2 could take from it.
    pub spare: u64,
    /// What it may have more so that it can give something back.
    pub help: u64,
    /// Pages that others may have been started with.
    pub lent: u64,
}

impl Standing {
    /// Of one that can have no more than its base, where the machine is not short of memory.
    pub const EVEN: Self = Self {
        limit: u64::MAX,
        drawn: 0,
        balance: 0,
        owed: 0,
        slack: SLACK,
        room: u64::MAX,
        spare: 0,
        help: 0,
        lent: 0,
    };
}

/// How a VM with these terms stands. A guest that keeps to its limit is charged its base at most, for the
/// limit is beyond the base by no more than what it saves; so where the machine is `short` of memory,
/// somebody has more than that. Then what a VM is charged beyond its base and what its overlays were promised
/// is owed too, and nobody may owe a little.
pub fn stand(terms: Terms, holding: Holding, short: bool) -> Standing {
    let entitlement = holding.entitlement();
    let allowance = match terms.claim {
        Claim::Grow => entitlement.min(holding.takeable),
        Claim::None | Claim::Start => 0,
    };
    let limit = terms
        .base
        .saturating_add(allowance)
        .min(terms.max.max(terms.base));
    let resident = holding.resident();
    let drawn = resident.saturating_sub(terms.base);
    let (slack, charged) = if short {
        (0, holding.memory() + holding.overlay)
    } else {
        (SLACK, 0)
    };
    let owed = resident.saturating_sub(limit);
    let bound = terms.base + holding.takeable + SLACK;
    // What has all that it can have owes nothing of that.
    let is_bound = terms.base < terms.max || short;
    Standing {
        limit,
        drawn,
        balance: entitlement as i64 - drawn as i64,
        owed: owed.max(charged.saturating_sub(terms.sure())),
        slack,
        room: if is_bound {
            (limit + slack).saturating_sub(resident)
        } else {
            u64::MAX
        },
        spare: bound.saturating_sub(resident),
        help: (bound + HELP).saturating_sub(resident),
        lent: match terms.claim {
            Claim::Start => resident,
            Claim::None | Claim::Grow => 0,
        },
    }
}

/// What more VMs may start with, beyond the machine's own memory: what those hold whose savings go
/// there, as far as it could be taken back.
pub fn pool(vms: impl Iterator<Item = (Terms, Holding)>) -> u64 {
    let saved = |(terms, holding): (Terms, Holding)| match terms.claim {
        Claim::Start => holding.entitlement().min(holding.takeable),
        Claim::None | Claim::Grow => 0,
    };
    vms.map(saved).sum()
}

/// How many VMs of this base start in a machine of `memory` frames where VMs with `bases` in all run,
/// and `pool` was saved.
pub fn fit(base: u64, memory: u64, bases: u64, pool: u64) -> u64 {
    let there = memory.saturating_add(pool).saturating_sub(bases);
    there.checked_div(base).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        base: 1000,
        max: 1500,
        overlays: 0,
        claim: Claim::Grow,
    };

    /// 800 private frames, and 200 that two VMs use each.
    const HOLDING: Holding = Holding {
        private: 800,
        shared: 200,
        users: 200,
        units: 200 * UNIT / 2,
        overlay: 5,
        tables: 7,
        takeable: 1000,
    };

    #[test]
    fn a_vm_grows_by_what_sharing_saves() {
        assert_eq!(HOLDING.charge(), 800 + 100 + 5 + 7);
        assert_eq!(HOLDING.entitlement(), 100);
        let standing = stand(TERMS, HOLDING, false);
        assert_eq!((standing.limit, standing.drawn), (1100, 0));
        assert_eq!((standing.balance, standing.owed), (100, 0));
    }

    #[test]
    fn it_does_not_grow_by_what_could_not_be_taken_back() {
        let holding = Holding {
            takeable: 30,
            ..HOLDING
        };
        assert_eq!(stand(TERMS, holding, false).limit, 1030);
        let never = Terms {
            claim: Claim::None,
            ..TERMS
        };
        assert_eq!(stand(never, HOLDING, false).limit, 1000);
    }

    /// A VM can be given more than its guest sees, or all of it: there is nothing beyond then.
    #[test]
    fn what_is_promised_covers_what_a_guest_may_have_beyond_its_base() {
        let beyond = |base| Terms { base, ..TERMS }.beyond();
        assert_eq!([1499, 1500, 1501].map(beyond), [SLACK + HELP, 0, 0]);
        let promised = |base| Terms { base, ..TERMS }.promised();
        let tables = 1500 / 256 + 4;
        assert_eq!(promised(2000), 2000 + tables);
        assert_eq!(promised(1000), 1000 + SLACK + HELP + tables);
    }

    #[test]
    fn what_breaks_is_owed() {
        // It grew to 1100 and then wrote all that it shared.
        let broken = Holding {
            private: 1100,
            shared: 0,
            users: 0,
            units: 0,
            ..HOLDING
        };
        let standing = stand(TERMS, broken, false);
        assert_eq!((standing.limit, standing.owed), (1000, 100));
        assert_eq!((standing.drawn, standing.balance), (100, -100));
        assert_eq!(standing.room, SLACK - 100);
        assert_eq!(standing.spare, 1000 + SLACK - 100);
        assert_eq!(standing.help, standing.spare + HELP);
        let short = stand(TERMS, broken, true);
        assert_eq!((short.owed, short.slack, short.room), (100 + 5, 0, 0));
    }

    #[test]
    fn the_pool_is_what_can_be_taken_back() {
        let start = Terms {
            claim: Claim::Start,
            ..TERMS
        };
        let vms = [(start, HOLDING), (TERMS, HOLDING)];
        assert_eq!(pool(vms.into_iter()), 100);
        let takeable = |takeable| {
            let holding = Holding {
                takeable,
                ..HOLDING
            };
            (start, holding)
        };
        let vms = [takeable(30), takeable(0), takeable(100)];
        assert_eq!(pool(vms.into_iter()), 30 + 100);
        assert_eq!(fit(1000, 3000, 2000, 0), 1);
        assert_eq!(fit(1000, 2900, 2000, 100), 1);
        assert_eq!(fit(1000, 2900, 2000, 99), 0);
        assert_eq!(fit(0, 2900, 2000, 99), 0);
    }

    /// Such a VM owes nothing, and has room for all of its memory; but where memory is short, for no more than that.
    #[test]
    fn who_was_promised_all_has_room() {
        let all = Terms {
            base: 1500,
            ..TERMS
        };
        assert_eq!(stand(all, HOLDING, false).room, u64::MAX);
        assert_eq!(stand(all, HOLDING, true).room, 500);
    }

    #[test]
    fn the_limit_is_between_base_and_max() {
        let holding = Holding {
            users: 9000,
            takeable: 9000,
            ..HOLDING
        };
        assert_eq!(stand(TERMS, holding, false).limit, 1500);
    }
}
