//! What is remembered of pages that were moved or have replicas.

use crate::{Decision, NodeSet, Sight, Thresholds, decide};

/// Records that a page may be in: it is looked for in no others.
pub const WAYS: usize = 8;

/// A page, by a number that the caller understands; not `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page(pub u64);

/// One page's record; an empty one is [`Record::EMPTY`].
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The page's number plus one; zero: none.
    key: u64,
    /// Nodes that had copies of it when it was last looked at.
    replicas: NodeSet,
    /// The interval in which it moved first, of those moves that count.
    since: u32,
    /// The interval in which something was last done with it.
    last: u32,
    moves: u8,
}

impl Record {
    /// No page's.
    pub const EMPTY: Self = Self {
        key: 0,
        replicas: NodeSet::NONE,
        since: 0,
        last: 0,
        moves: 0,
    };

    fn past(&self, now: u32, span: u32) -> Past {
        let is_over = now.wrapping_sub(self.since) >= span;
        Past {
            moves: if is_over { 0 } else { self.moves },
        }
    }
}

/// What is remembered of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// How often it moved, or its copies went, within the span that counts.
    pub moves: u8,
}

/// The pages that were moved or replicated last, and the rules.
#[derive(Debug)]
pub struct Placement<'a> {
    sets: &'a mut [[Record; WAYS]],
    limits: Thresholds,
}

impl<'a> Placement<'a> {
    /// Rules with room for as many pages as `sets` has records.
    pub fn new(sets: &'a mut [[Record; WAYS]], limits: Thresholds) -> Self {
        Self { sets, limits }
    }

    /// The rules.
    pub fn limits(&self) -> &Thresholds {
        &self.limits
    }

    /// Decides what becomes of a page in interval `now`. Where copies of it went since it was last
    /// looked at, somebody wrote it, or its node needed the memory: that counts as a move.
    pub fn look(&mut self, page: Page, sight: Sight<'_>, short: NodeSet, now: u32) -> Decision {
        let span = self.limits.span;
        let set = self.set_of(page);
        let records = self.sets.get_mut(set).into_iter().flatten();
        let known = { records }.find(|record| record.key == key(page));
        let past = known.map_or(Past::default(), |record| {
            if !record.replicas.without(sight.replicas).is_empty() {
                count_move(record, now, span);
            }
            record.replicas = sight.replicas;
            record.past(now, span)
        });
        decide(sight, past, short, &self.limits)
    }

    /// A page was moved.
    pub fn moved(&mut self, page: Page, now: u32) {
        let span = self.limits.span;
        self.change(page, now, |record| count_move(record, now, span));
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
        let own = set.iter().position(|record| record.key == key(page));
        let at = own.unwrap_or_else(|| victim(set, now));
        if own.is_none() {
            set[at] = Record {
                key: key(page),
                since: now,
                ..Record::EMPTY
            };
        }
        change(&mut set[at]);
        set[at].last = now;
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

/// Whose record a new page gets: a free one, or that of who was quiet for longest.
fn victim(set: &[Record; WAYS], now: u32) -> usize {
    let quiet = |n: &usize| match set[*n] {
        Record { key: 0, .. } => u32::MAX,
        record => now.wrapping_sub(record.last),
    };
    (0..WAYS).max_by_key(quiet).unwrap_or(0)
}

fn count_move(record: &mut Record, now: u32, span: u32) {
    if record.moves == 0 || now.wrapping_sub(record.since) >= span {
        (record.since, record.moves) = (now, 0);
    }
    record.moves = record.moves.saturating_add(1);
}
