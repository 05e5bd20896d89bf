//! What is remembered of pages that were moved or have replicas.

use crate::{Decision, NodeSet, Sight, Stays, Thresholds, decide};
use model_addr::NodeId;

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
            replicas: self.replicas,
        }
    }
}

/// What is remembered of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// How often it moved, or collapsed, within the span that counts.
    pub moves: u8,
    /// Nodes with copies of it.
    pub replicas: NodeSet,
}

/// The pages that were moved or replicated last, and the rules.
#[derive(Debug)]
pub struct Placement<'a> {
    sets: &'a mut [[Record; WAYS]],
    limits: Thresholds,
    /// Where [`Self::press`] goes on.
    hand: usize,
}

impl<'a> Placement<'a> {
    /// Rules with room for as many pages as `sets` has records.
    pub fn new(sets: &'a mut [[Record; WAYS]], limits: Thresholds) -> Self {
        Self {
            sets,
            limits,
            hand: 0,
        }
    }

    /// The rules.
    pub fn limits(&self) -> &Thresholds {
        &self.limits
    }

    /// What is remembered of a page, in interval `now`.
    pub fn past(&self, page: Page, now: u32) -> Past {
        let set = self.sets.get(self.set_of(page));
        let record = set.and_then(|set| set.iter().find(|record| record.key == key(page)));
        record.map_or(Past::default(), |record| record.past(now, self.limits.span))
    }

    /// Decides what becomes of a page in interval `now`, of which its own record says where the
    /// replicas are. Nothing changes until [`Self::moved`] or [`Self::replicated`] says so.
    pub fn look(&self, page: Page, sight: Sight<'_>, short: NodeSet, now: u32) -> Decision {
        let past = self.past(page, now);
        let sight = Sight {
            replicas: past.replicas,
            ..sight
        };
        match decide(sight, past, short, &self.limits) {
            Decision::Replicate(_) if !self.has_room(page) => Decision::Leave(Stays::NoMemory),
            decision => decision,
        }
    }

    /// A page was moved. `false` where it could not be noted, since all records it may be in are
    /// those of pages with replicas.
    pub fn moved(&mut self, page: Page, now: u32) -> bool {
        let span = self.limits.span;
        self.change(page, now, |record| count_move(record, now, span))
    }

    /// These nodes have copies of a page, too. Where this is `false`, they must not.
    #[must_use = "copies of which nobody knows are never given back"]
    pub fn replicated(&mut self, page: Page, nodes: NodeSet, now: u32) -> bool {
        self.change(page, now, |record| {
            record.replicas = record.replicas.and(nodes);
        })
    }

    /// A page with replicas is written: these nodes' copies go.
    pub fn collapsed(&mut self, page: Page, now: u32) -> NodeSet {
        let replicas = self.past(page, now).replicas;
        let span = self.limits.span;
        if !replicas.is_empty() {
            self.change(page, now, |record| {
                record.replicas = NodeSet::NONE;
                count_move(record, now, span);
            });
        }
        replicas
    }

    /// A page is gone, or is another one: these nodes' copies go.
    pub fn forget(&mut self, page: Page) -> NodeSet {
        let set = self.set_of(page);
        let records = self.sets.get_mut(set).into_iter().flatten();
        let mut found = records.filter(|record| record.key == key(page));
        found.next().map_or(NodeSet::NONE, |record| {
            core::mem::replace(record, Record::EMPTY).replicas
        })
    }

    /// `node` is short of memory: a page whose copy there is to be given back, and is not noted
    /// any more. Looks at `budget` sets from where it stopped, round and round.
    pub fn press(&mut self, node: NodeId, budget: usize) -> Option<Page> {
        for _ in 0..budget.min(self.sets.len()) {
            self.hand %= self.sets.len();
            let mut records = self.sets.get_mut(self.hand)?.iter_mut();
            if let Some(record) = records.find(|record| record.replicas.contains(node)) {
                record.replicas = record.replicas.without(NodeSet::NONE.with(node));
                return Some(Page(record.key - 1));
            }
            self.hand += 1;
        }
        None
    }

    /// Whether a page's replicas can be noted.
    fn has_room(&self, page: Page) -> bool {
        let set = self.sets.get(self.set_of(page));
        set.is_some_and(|set| {
            let mut records = set.iter();
            records.any(|record| record.key == key(page) || record.replicas.is_empty())
        })
    }

    /// Changes a page's record, which is taken from the page that was quiet for longest where it
    /// has none; never from one with replicas.
    fn change(&mut self, page: Page, now: u32, change: impl FnOnce(&mut Record)) -> bool {
        let set = self.set_of(page);
        let Some(set) = self.sets.get_mut(set) else {
            return false;
        };
        let own = set.iter().position(|record| record.key == key(page));
        let Some(at) = own.or_else(|| victim(set, now)) else {
            return false;
        };
        if own.is_none() {
            set[at] = Record {
                key: key(page),
                since: now,
                ..Record::EMPTY
            };
        }
        change(&mut set[at]);
        set[at].last = now;
        true
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

/// Whose record a new page gets.
fn victim(set: &[Record; WAYS], now: u32) -> Option<usize> {
    let free = set.iter().position(|record| record.key == 0);
    let quiet = |record: &Record| now.wrapping_sub(record.last);
    let evictable = (0..WAYS).filter(|n| set[*n].replicas.is_empty());
    free.or_else(|| evictable.max_by_key(|n| quiet(&set[*n])))
}

fn count_move(record: &mut Record, now: u32, span: u32) {
    if now.wrapping_sub(record.since) >= span {
        (record.since, record.moves) = (now, 0);
    }
    record.moves = record.moves.saturating_add(1);
}
