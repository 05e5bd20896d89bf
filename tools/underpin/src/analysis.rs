//! What VMs could share, for how long, and what they do share: from snapshots of all their pages.
//!
//! The questions are those of Satori (section 6): how much could be shared by rank (table 1), how
//! long each opportunity lasted (figures 4 and 5), and which part was exploited (figure 8). Pages
//! of zeroes are counted apart, as there.
//!
//! ```text
//!  a content with n pages:   n - 1 could be saved
//!    = apart       copies that share groups keep: one less than groups that have it
//!    + across      in each group, one less than its VMs that have it
//!    + within      in each VM, one less than its pages of it
//!    = apart + exploited + missed
//! ```
//!
//! A snapshot does not tell frames apart: all shared pages of one content and group are taken for
//! one frame. That is so unless more than 64 use it, or two frames were filled at the same time.

use abi::control::{PageStatus, page};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

mod page_flags;
pub mod plot;

pub use page_flags::PageFlags;

/// All pages of one VM at one time.
#[derive(Clone, Debug)]
pub struct VmPages {
    /// A number for the VM, the same in all snapshots.
    pub vm: u16,
    /// A number for its share group, the same in all snapshots.
    pub group: u16,
    /// Its pages.
    pub pages: Vec<PageStatus>,
    /// What its guest uses them for, where that is known.
    pub flags: Option<PageFlags>,
}

/// What could be saved in one snapshot, in pages; zeroes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savings {
    /// Everything: for each content, its pages but one.
    pub possible: u64,
    /// Of it, what sharing between VMs of one group saves.
    pub across: u64,
    /// Of it, what sharing within VMs saves.
    pub within: u64,
    /// Of it, what share groups keep apart.
    pub apart: u64,
    /// Of `across` and `within`, what is shared.
    pub exploited: u64,
    /// Of them, what is not, though the page lies in a frame that others may use.
    pub missed_alone: u64,
    /// Of them, what is not because the page is private.
    pub missed_private: u64,
}

impl Savings {
    /// What share groups allow to save.
    pub fn allowed(&self) -> u64 {
        self.across + self.within
    }

    /// All of it, by name.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("possible", self.possible),
            ("across", self.across),
            ("within", self.within),
            ("apart", self.apart),
            ("exploited", self.exploited),
            ("missed_alone", self.missed_alone),
            ("missed_private", self.missed_private),
        ]
    }

    /// Adds a content: its pages, of which there is one at least, sorted.
    fn add(&mut self, same: &[Page]) {
        self.possible += same.len() as u64 - 1;
        let groups = same.chunk_by(|a, b| a.group == b.group);
        self.apart += groups.clone().count() as u64 - 1;
        for group in groups {
            let vms = group.chunk_by(|a, b| a.vm == b.vm).count() as u64;
            self.across += vms - 1;
            self.within += group.len() as u64 - vms;
            let of = |state| group.iter().filter(|page| page.state == state).count() as u64;
            let (shared, alone, private) = (of(page::SHARED), of(page::ALONE), of(page::PRIVATE));
            self.exploited += shared.saturating_sub(1);
            // One page stays where nothing is shared: best one that others could join.
            let stays_alone = shared == 0 && alone > 0;
            let stays_private = shared == 0 && alone == 0;
            self.missed_alone += alone - u64::from(stays_alone);
            self.missed_private += private - u64::from(stays_private);
        }
    }
}

/// What was found in one snapshot, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// When it was taken, since the first.
    pub at: Duration,
    /// All pages that something is behind.
    pub pages: u64,
    /// Of them, those that are zero.
    pub zero: u64,
    /// Of the others, those that equal a page of another VM.
    pub equal_across: u64,
    /// Of the others, those that equal pages of their own VM only.
    pub equal_within: u64,
    /// Contents that two pages or more have (Satori: unique shared pages).
    pub contents: u64,
    /// What could be saved.
    pub all: Savings,
    /// The same of pages in their guests' page caches, where all that is known.
    pub cache: Option<Savings>,
    /// What could be saved by rank: how many pages have the same content.
    pub ranks: BTreeMap<u64, u64>,
}

/// How long opportunities lasted, by intervals between the first and the last snapshot that shows
/// them: from this number on.
pub const LASTED: [usize; 4] = [0, 1, 4, 16];

/// Opportunities by how long they lasted, in the order of [`LASTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// All of them.
    pub count: [u64; LASTED.len()],
    /// Of them, those that were there in the last snapshot: they may have lasted longer.
    pub left: [u64; LASTED.len()],
}

/// What a run of snapshots shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Each snapshot.
    pub found: Vec<Found>,
    /// How long contents had two pages or more.
    pub contents: Durations,
    /// How long pages were zero.
    pub zero: Durations,
    /// For each snapshot, its contents with two pages or more by how long they lasted in all
    /// (Satori, figure 4).
    pub lasting: Vec<[u64; LASTED.len()]>,
}

/// Takes snapshots one after the other and keeps what the report needs of them.
#[derive(Debug, Default)]
pub struct Analysis {
    found: Vec<Found>,
    contents: Spans<u64>,
    zero: Spans<(u16, u64)>,
}

/// A page of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Page {
    hash: u64,
    group: u16,
    vm: u16,
    state: u64,
    cached: bool,
}

impl Analysis {
    /// Takes a snapshot; gives what is in it.
    pub fn take(&mut self, at: Duration, vms: &[VmPages]) -> &Found {
        let number = self.found.len();
        let mut found = Found {
            at,
            ..Found::default()
        };
        let mut pages = Vec::new();
        for vm in vms {
            found.pages += vm.pages.len() as u64;
            for status in &vm.pages {
                let (gfn, state) = (status.address / 4096, status.address % 4096);
                if status.hash == 0 {
                    found.zero += 1;
                    self.zero.see((vm.vm, gfn), number);
                    continue;
                }
                pages.push(Page {
                    hash: status.hash,
                    group: vm.group,
                    vm: vm.vm,
                    state,
                    cached: vm.flags.as_ref().is_some_and(|f| f.is_page_cache(gfn)),
                });
            }
        }
        pages.sort_unstable();
        for same in pages.chunk_by(|a, b| a.hash == b.hash) {
            let rank = same.len() as u64;
            if rank < 2 {
                continue;
            }
            self.contents.see(same[0].hash, number);
            found.contents += 1;
            *found.ranks.entry(rank).or_default() += rank - 1;
            if same.iter().any(|page| page.vm != same[0].vm) {
                found.equal_across += rank;
            } else {
                found.equal_within += rank;
            }
            found.all.add(same);
        }
        if !vms.is_empty() && vms.iter().all(|vm| vm.flags.is_some()) {
            let mut savings = Savings::default();
            pages.retain(|page| page.cached);
            for same in pages.chunk_by(|a, b| a.hash == b.hash) {
                savings.add(same);
            }
            found.cache = Some(savings);
        }
        self.contents.close_before(number);
        self.zero.close_before(number);
        self.found.push(found);
        &self.found[number]
    }

    /// What all snapshots show together.
    pub fn report(mut self) -> Report {
        let snapshots = self.found.len();
        let lasting = self.contents.end(snapshots);
        self.zero.end(snapshots);
        Report {
            found: self.found,
            contents: self.contents.durations,
            zero: self.zero.durations,
            lasting,
        }
    }
}

/// In how many snapshots without a gap something was seen.
#[derive(Debug)]
struct Spans<K> {
    /// The first and the last snapshot of what is still there.
    open: HashMap<K, (usize, usize)>,
    durations: Durations,
    /// What began less what ended at each snapshot, by how long it lasted in all.
    steps: Vec<[i64; LASTED.len()]>,
}

impl<K> Default for Spans<K> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            durations: Durations::default(),
            steps: Vec::new(),
        }
    }
}

impl<K: Eq + std::hash::Hash> Spans<K> {
    fn see(&mut self, what: K, snapshot: usize) {
        self.open.entry(what).or_insert((snapshot, snapshot)).1 = snapshot;
    }

    /// Ends those that this snapshot does not show.
    fn close_before(&mut self, snapshot: usize) {
        self.steps.resize(snapshot + 2, [0; LASTED.len()]);
        let (durations, steps) = (&mut self.durations, &mut self.steps);
        self.open.retain(|_, (first, last)| {
            if *last < snapshot {
                durations.count[close(steps, *first, *last)] += 1;
            }
            *last == snapshot
        });
    }

    /// Ends all; gives how many each of `snapshots` shows, by how long they lasted.
    fn end(&mut self, snapshots: usize) -> Vec<[u64; LASTED.len()]> {
        for (_, (first, last)) in self.open.drain() {
            let range = close(&mut self.steps, first, last);
            self.durations.count[range] += 1;
            self.durations.left[range] += 1;
        }
        let mut now = [0; LASTED.len()];
        let at = |steps: &[i64; LASTED.len()]| {
            now = std::array::from_fn(|range| now[range] + steps[range]);
            now.map(|n| n as u64)
        };
        self.steps.iter().take(snapshots).map(at).collect()
    }
}

/// Notes something that lasted from one snapshot to another; gives the range of [`LASTED`].
fn close(steps: &mut [[i64; LASTED.len()]], first: usize, last: usize) -> usize {
    let range = LASTED
        .iter()
        .rposition(|from| last - first >= *from)
        .unwrap_or(0);
    steps[first][range] += 1;
    steps[last + 1][range] -= 1;
    range
}

impl Report {
    /// What could be saved by rank, in all snapshots together (Satori, table 1).
    pub fn ranks(&self) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for (rank, saved) in self.found.iter().flat_map(|found| &found.ranks) {
            *sums.entry(*rank).or_default() += saved;
        }
        sums
    }

    /// A line of comma-separated values for each snapshot, below their names: pages where nothing
    /// else is said. What is not known is left empty.
    pub fn csv(&self) -> String {
        let unknown = Savings::default().named();
        let (all, cache) = (
            unknown.map(|(name, _)| format!("all_{name}")),
            unknown.map(|(name, _)| format!("cache_{name}")),
        );
        let lasting = LASTED.map(|from| format!("contents_lasting_{from}"));
        let first = [
            "seconds",
            "pages",
            "zero",
            "equal_across",
            "equal_within",
            "contents",
        ];
        let ranks = ["2", "3", "4", "5_up"].map(|rank| format!("saved_rank_{rank}"));
        let mut lines = vec![
            [
                &first.map(str::to_owned)[..],
                &all,
                &cache,
                &lasting,
                &ranks,
            ]
            .concat(),
        ];
        for (found, lasting) in self.found.iter().zip(&self.lasting) {
            let text = |n: u64| n.to_string();
            let seconds = format!("{:.3}", found.at.as_secs_f64());
            let first = [
                found.pages,
                found.zero,
                found.equal_across,
                found.equal_within,
                found.contents,
            ];
            let all = found.all.named().map(|(_, n)| text(n));
            let cache = found.cache.map(|cache| cache.named().map(|(_, n)| text(n)));
            let rank = |(from, to)| text(found.ranks.range(from..to).map(|(_, n)| *n).sum());
            let ranks = [(2, 3), (3, 4), (4, 5), (5, u64::MAX)].map(rank);
            let cells = [
                &first.map(text)[..],
                &all,
                &cache.unwrap_or_default(),
                &lasting.map(text),
                &ranks,
            ];
            lines.push([vec![seconds], cells.concat()].concat());
        }
        lines.iter().map(|cells| cells.join(",") + "\n").collect()
    }
}

#[cfg(test)]
mod tests;
