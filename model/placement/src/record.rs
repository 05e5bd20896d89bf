//! What is remembered of pages that were moved or have replicas.

use crate::{Decision, NodeSet, Sight, Thresholds, decide};

/// Records that a page may be in: it is looked for in no others.
pub const WAYS: usize = 8;

/// A page is left alone for 2^22 intervals at most with the default span: some 17 minutes to 2 hours.
const RELAPSES_MAX: u8 = 16;

/// A page, by a number that the caller understands; not `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page(pub u64);

/// One page's record.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Nodes that had copies of it when it was last looked at.
    replicas: NodeSet,
    /// The interval of the last move.
    moved: u32,
    /// The interval in which something was last done with it.
    last: u32,
    /// Moves that count: each came less than a span after the one before.
    moves: u8,
    /// How often it was left alone, and went on as before when it no longer was.
    relapses: u8,
}

impl Record {
    /// Nothing is known.
    const EMPTY: Self = Self {
        replicas: NodeSet::NONE,
        moved: 0,
        last: 0,
        moves: 0,
        relapses: 0,
    };

    /// For how many intervals its moves count, or it is left alone.
    fn rest(&self, limits: &Thresholds) -> u32 {
        let is_left = self.moves >= limits.moves;
        limits.span << if is_left { self.relapses } else { 0 }
    }

    fn past(&self, now: u32, limits: &Thresholds) -> Past {
        let is_over = now.wrapping_sub(self.moved) >= self.rest(limits);
        Past {
            moves: if is_over { 0 } else { self.moves },
        }
    }

    /// It moved. Who moves again as soon as it may is left alone twice as long the next time; who
    /// stayed for as long again begins anew.
    fn count_move(&mut self, now: u32, limits: &Thresholds) {
        let (stay, rest) = (now.wrapping_sub(self.moved), self.rest(limits));
        if stay / 2 >= rest {
            self.relapses = 0;
        } else if stay >= rest && self.moves >= limits.moves {
            self.relapses = (self.relapses + 1).min(RELAPSES_MAX);
        }
        self.moves = self.past(now, limits).moves.saturating_add(1);
        self.moved = now;
    }
}

/// Records of some pages. Whether a page's is there, one cache line tells.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The pages' numbers plus one; zero: none.
    keys: [u64; WAYS],
    records: [Record; WAYS],
}

impl Set {
    /// Of no pages.
    pub const EMPTY: Self = Self {
        keys: [0; WAYS],
        records: [Record::EMPTY; WAYS],
    };

    fn place(&self, page: Page) -> Option<usize> {
        self.keys.iter().position(|own| *own == key(page))
    }

    /// Whose record a new page gets: a free one, or that of who was quiet for longest.
    fn victim(&self, now: u32) -> usize {
        let quiet = |n: &usize| match self.keys[*n] {
            0 => u32::MAX,
            _ => now.wrapping_sub(self.records[*n].last),
        };
        (0..WAYS).max_by_key(quiet).unwrap_or(0)
    }
}

/// What is remembered of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// How often it moved, or its copies went, of late.
    pub moves: u8,
}

/// The pages that were moved or replicated last, and the rules.
#[derive(Debug)]
pub struct Placement<'a> {
    sets: &'a mut [Set],
    limits: Thresholds,
}

impl<'a> Placement<'a> {
    /// Rules with room for as many pages as `sets` has records.
    pub fn new(sets: &'a mut [Set], limits: Thresholds) -> Self {
        Self { sets, limits }
    }

    /// Decides what becomes of a page in interval `now`. Where copies of it went since it was last
    /// looked at, somebody wrote it, or its node needed the memory: that counts as a move.
    pub fn look(&mut self, page: Page, sight: Sight<'_>, short: NodeSet, now: u32) -> Decision {
        let limits = self.limits;
        let set = self.set_of(page);
        let set = self.sets.get_mut(set);
        let known = set.and_then(|set| Some(&mut set.records[set.place(page)?]));
        let past = known.map_or(Past::default(), |record| {
            if !record.replicas.without(sight.replicas).is_empty() {
                record.count_move(now, &limits);
            }
            record.replicas = sight.replicas;
            record.past(now, &limits)
        });
        decide(sight, past, short, &self.limits)
    }

    /// A page was moved.
    pub fn moved(&mut self, page: Page, now: u32) {
        let limits = self.limits;
        self.change(page, now, |record| record.count_move(now, &limits));
    }

    /// These nodes have copies of a page, too.
    pub fn replicated(&mut self, page: Page, nodes: NodeSet, now: u32) {
        self.change(page, now, |record| {
            record.replicas = record.replicas.and(nodes);
        });
    }

    /// Changes a page's record, which is taken from the page that was quiet for longest where it
    /// has none.
    fn change(&mut self, page: Page, now: u32, change: impl FnOnce(&mut Record)) {
        let set = self.set_of(page);
        let Some(set) = self.sets.get_mut(set) else {
            return;
        };
        let at = set.place(page).unwrap_or_else(|| {
            let at = set.victim(now);
            set.keys[at] = key(page);
            set.records[at] = Record {
                moved: now,
                ..Record::EMPTY
            };
            at
        });
        let record = &mut set.records[at];
        change(record);
        record.last = now;
    }

    /// Fibonacci hashing: neighbours go to sets far apart.
    fn set_of(&self, page: Page) -> usize {
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let scaled = u128::from(hash) * self.sets.len() as u128;
        (scaled >> 64) as usize
    }
}

fn key(page: Page) -> u64 {
    page.0.wrapping_add(1)
}
