//! Copies of pages that several nodes read: each such node has a root of its own.
//!
//! Without copies, all CPUs walk from one root. A node that gets its first copy gets a root, which
//! faults fill from the pmap as they do the first one, with the node's copy where it has one. All
//! roots are of one translation: whoever takes a leaf out takes it out of all of them, and pays one
//! debt, since TLBs know them by one VMID. A page with copies has [`Reasons::REPLICA`], so nobody
//! writes it or its copies: a write, and whatever else changes what is behind the page, gives the
//! copies back first.

use crate::{Frames, Maps, Translation};
use heapless::Vec;
use model_addr::{Gfn, Ipa, IpaRange, Mfn, NodeId};
use model_frame_table::CHUNK_FRAMES;
use model_pmap::{Entry, Pmap, Reasons};
use model_stage2::{FlushDebt, IpaSize, Size, Stage2};

/// The most guest frames that one call of [`Maps::give_copies_back`] looks at.
pub const GIVE_BACK_AT_ONCE: usize = 64;

/// What a page has that is not to be written as long as other frames are to hold the same.
pub(crate) const GUARDED: Reasons = Reasons::REPLICA.union(Reasons::IN_FLIGHT);

/// None: stands for nodes without copies.
pub(crate) const NO_NODE: NodeId = NodeId(u8::MAX);

/// A node with copies.
#[derive(Debug)]
pub(crate) struct NodeRoot {
    pub(crate) stage2: Stage2,
    /// The node's copies, by guest frame.
    pub(crate) copies: Pmap,
}

impl<T: Translation> Maps<T> {
    /// The frame that `VTTBR_EL2` names on the CPUs of `node`.
    pub fn root_on(&self, node: NodeId) -> Mfn {
        let own = self.own_root(node).and_then(|at| self.roots.get(at));
        own.map_or(self.stage2.root(), |root| root.stage2.root())
    }

    /// Which of the nodes' own roots is that of `node`.
    fn own_root(&self, node: NodeId) -> Option<usize> {
        self.own.iter().position(|own| *own == node)
    }

    /// How many copies there are of its pages.
    pub fn copies(&self) -> u64 {
        let counts = self.roots.iter().map(|root| root.copies.counts().private);
        counts.sum()
    }

    /// The copy of a page that `node` has.
    pub fn copy_on(&self, node: NodeId, gfn: Gfn) -> Option<Mfn> {
        let own = self.roots.get(self.own_root(node)?)?;
        own.copies.lookup(&self.tables, gfn).ok()?.frame()
    }

    /// What the CPUs of `node` walk, and the memory it stands in.
    pub(crate) fn walked_on(&mut self, node: NodeId) -> (&mut Stage2, &mut T) {
        let own = self.own_root(node).and_then(|at| self.roots.get_mut(at));
        let stage2 = own.map_or(&mut self.stage2, |root| &mut root.stage2);
        (stage2, &mut self.tables)
    }

    /// Changes the roots of nodes that have one of their own; the debt for all of them.
    pub(crate) fn in_own_roots(
        &mut self,
        mut change: impl FnMut(&mut Stage2, &mut T) -> FlushDebt,
    ) -> FlushDebt {
        let mut debt = FlushDebt::none();
        for root in &mut self.roots {
            debt = debt.and(change(&mut root.stage2, &mut self.tables));
        }
        debt
    }

    /// Changes all roots; the debt for all of them.
    #[inline]
    fn in_all_roots(
        &mut self,
        mut change: impl FnMut(&mut Stage2, &mut T) -> FlushDebt,
    ) -> FlushDebt {
        let debt = change(&mut self.stage2, &mut self.tables);
        debt.and(self.in_own_roots(change))
    }

    /// Takes the leaves of `pages` pages out of all roots; see [`Stage2::unmap`].
    pub(crate) fn unmap(&mut self, ipa: Ipa, pages: u64) -> FlushDebt {
        self.in_all_roots(|stage2, tables| stage2.unmap(tables, ipa, pages))
    }

    /// Leaves the leaves of a page the rights that `entry` has, which are fewer than they had.
    pub(crate) fn narrow(&mut self, gfn: Gfn, entry: Entry) -> FlushDebt {
        let (ipa, rights) = (gfn.address(), entry.rights());
        self.in_all_roots(|stage2, tables| match rights {
            Some(rights) => stage2.protect(tables, ipa, 1, rights),
            None => stage2.unmap(tables, ipa, 1),
        })
    }

    /// The root of `node`, made where there is none; `None` where there is no memory for it.
    pub(crate) fn root_for(&mut self, node: NodeId, ram: IpaRange) -> Option<usize> {
        if let Some(at) = self.own_root(node) {
            return Some(at);
        }
        if self.roots.is_full() {
            return None;
        }
        let table = self.tables.allocate_table()?;
        let Ok(copies) = Pmap::new(&mut self.tables, &[ram]) else {
            self.tables.free_table(table);
            return None;
        };
        let root = NodeRoot {
            stage2: Stage2::new(table, IpaSize::ONE_TABLE),
            copies,
        };
        self.tables.use_root(node, table);
        // They are not full.
        let _ = self.roots.push(root);
        let _ = self.own.push(node);
        Some(self.roots.len() - 1)
    }

    /// Lets the CPUs of a node with a root of its own see the whole chunk of `gfn`: who touches one of its
    /// pages is about to touch others, and each would fault on each node.
    #[cold]
    pub(crate) fn show_around(&mut self, node: NodeId, gfn: Gfn) {
        let Some(at) = self.own_root(node) else {
            return;
        };
        let first = gfn.align_down(CHUNK_FRAMES);
        for gfn in (0..CHUNK_FRAMES).map(|n| first.add(n)) {
            let entry = self.entry(gfn);
            let (Some(frame), Some(rights)) = (entry.frame(), entry.rights()) else {
                continue;
            };
            let may_be_copied = entry.reasons.contains(Reasons::REPLICA);
            let copy = may_be_copied.then(|| self.copy_on(node, gfn)).flatten();
            let (ipa, pa) = (gfn.address(), copy.unwrap_or(frame).address());
            let stage2 = &mut self.roots[at].stage2;
            // What is there already stays; what the root lacks, a fault fills.
            let _ = stage2.map(&mut self.tables, ipa, pa, Size::Page, rights);
        }
    }

    /// Gives all copies of a page back, before something else is done with it; one that is on its way
    /// stays where it is. No CPU sees it then.
    #[inline]
    pub(crate) fn collapse(&mut self, gfn: Gfn, frames: &impl Frames) {
        if !self.roots.is_empty() || !self.flights.is_empty() {
            self.collapse_copies(gfn, frames);
        }
    }

    #[cold]
    fn collapse_copies(&mut self, gfn: Gfn, frames: &impl Frames) {
        if !self.entry(gfn).reasons.intersects(GUARDED) {
            return;
        }
        self.events.collapsed += u64::from(self.has_copies(gfn));
        self.flights.retain(|flying| flying.gfn != gfn);
        self.lift(gfn, GUARDED);
        let debt = self.unmap(gfn.address(), 1);
        debt.pay(|what| self.tables.invalidate(what));
        for at in 0..self.roots.len() {
            self.free_copy(at, gfn, frames);
        }
    }

    /// Which nodes have copies of a page.
    pub fn copied_on(&self, gfn: Gfn) -> impl Iterator<Item = NodeId> {
        let nodes = self.own.iter().copied();
        nodes.filter(move |node| self.copy_on(*node, gfn).is_some())
    }

    fn has_copies(&self, gfn: Gfn) -> bool {
        self.copied_on(gfn).next().is_some()
    }

    /// Gives a page the reasons that it has by its copies, and by flights.
    pub(crate) fn guard(&mut self, gfn: Gfn) {
        let is_flying = self.flights.iter().any(|flying| flying.gfn == gfn);
        let mut guards = Reasons::empty();
        guards.set(Reasons::REPLICA, self.has_copies(gfn));
        guards.set(Reasons::IN_FLIGHT, is_flying);
        self.set_reasons(gfn, guards, GUARDED.difference(guards));
    }

    /// Gives a copy back that no TLB reaches any more.
    fn free_copy(&mut self, at: usize, gfn: Gfn, frames: &impl Frames) {
        let copies = &mut self.roots[at].copies;
        let copy = copies.lookup(&self.tables, gfn).unwrap_or_default();
        if let Some(frame) = copy.frame()
            && copies.clear(&mut self.tables, gfn, 1).is_ok()
        {
            frames.free(frame, 0);
        }
    }

    /// `node` is short of memory: gives some of its copies back, from `from` on. How many, and where
    /// to go on, `None` at the end.
    pub fn give_copies_back(
        &mut self,
        node: NodeId,
        from: Gfn,
        frames: &impl Frames,
    ) -> (u64, Option<Gfn>) {
        let Some(at) = self.own_root(node) else {
            return (0, None);
        };
        let (mut found, budget) = (Vec::<Gfn, GIVE_BACK_AT_ONCE>::new(), GIVE_BACK_AT_ONCE);
        let copies = &self.roots[at].copies;
        let next = copies.visit(&self.tables, from, budget, |gfn, _| {
            // There is room for all that are looked at.
            let _ = found.push(gfn);
        });
        let mut debt = FlushDebt::none();
        for gfn in &found {
            let stage2 = &mut self.roots[at].stage2;
            debt = debt.and(stage2.unmap(&mut self.tables, gfn.address(), 1));
        }
        debt.pay(|what| self.tables.invalidate(what));
        for gfn in &found {
            self.free_copy(at, *gfn, frames);
            self.guard(*gfn);
        }
        (found.len() as u64, next)
    }
}
