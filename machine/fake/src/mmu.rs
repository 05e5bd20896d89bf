//! A stage-2 MMU with the most inconvenient TLB that the architecture allows.

use std::collections::BTreeMap;

use machine_contract::TableMemory;
use model_addr::{Ipa, Mfn};

use crate::walk::{Descriptor, decode};
use crate::{FakeTables, Fault, Leaf, Translation, Walker};

/// Where a table stands in the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    level: u32,
    ipa: Ipa,
}

impl Place {
    fn entry_size(self) -> u64 {
        1 << (12 + 9 * (3 - self.level))
    }

    fn entry(self, index: usize) -> Ipa {
        Ipa(self.ipa.0 + index as u64 * self.entry_size())
    }

    fn covers(self, ipa: Ipa) -> bool {
        ipa >= self.ipa && ipa.0 - self.ipa.0 < 512 * self.entry_size()
    }
}

/// Table memory that one stage-2 translation walks, all the time: from one root, or from several by
/// CPUs of their own ([`Self::add_root`]), whose TLBs are apart.
///
/// A TLB loads every translation the moment it becomes reachable and keeps it, like the tables
/// on the way, until an invalidation names it. Three things fail the test at once:
/// - a valid translation is replaced by one with another address, size or memory type and no
///   invalidation lies between (Arm ARM D8.17, break-before-make);
/// - a table is freed that a walker could still reach;
/// - two valid translations of one address.
#[derive(Debug)]
pub struct FakeMmu {
    tables: FakeTables,
    live: bool,
    /// By root, in the order in which they came.
    views: Vec<View>,
}

/// What CPUs see that walk from one root.
#[derive(Debug)]
struct View {
    walker: Walker,
    /// By the first address; no two overlap.
    cached: BTreeMap<u64, Leaf>,
    walked: BTreeMap<Mfn, Place>,
}

impl FakeMmu {
    /// An MMU with these tables, whose root is empty, in use from now on.
    pub fn new(tables: FakeTables, walker: Walker) -> Self {
        Self {
            tables,
            live: true,
            views: vec![View::new(walker)],
        }
    }

    /// Other CPUs walk from another root, which is empty.
    pub fn add_root(&mut self, walker: Walker) {
        self.views.push(View::new(walker));
    }

    /// The table memory.
    pub fn tables(&mut self) -> &mut FakeTables {
        &mut self.tables
    }

    /// How many tables are allocated now.
    pub fn tables_in_use(&self) -> usize {
        self.tables.in_use()
    }

    /// What a CPU that walks from the first root may see now: the stale translation where there is
    /// one, else what the tables say.
    pub fn translate(&self, ipa: Ipa) -> Result<Translation, Fault> {
        self.translate_from(0, ipa)
    }

    /// As [`Self::translate`], from root number `root`.
    pub fn translate_from(&self, root: usize, ipa: Ipa) -> Result<Translation, Fault> {
        let view = &self.views[root];
        let before = view.cached.range(..=ipa.0).next_back();
        match before.filter(|(_, leaf)| leaf.covers(ipa)) {
            Some((_, leaf)) => Ok(leaf.translate(ipa)),
            None if self.live => view.walker.walk(&self.tables, ipa),
            None => Err(Fault::Translation(0)),
        }
    }

    /// What the TLBs hold.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.views.iter().flat_map(|view| view.cached.values())
    }

    /// Whether any address may still be translated to `frame`.
    pub fn reaches(&self, frame: Mfn) -> bool {
        let pa = frame.address().0;
        let mut leaves = self.leaves();
        leaves.any(|leaf| pa >= leaf.pa.0 && pa - leaf.pa.0 < leaf.size)
    }

    /// Drops what is cached of each address, leaves and the tables on the way (TLBI IPAS2E1IS
    /// each, DSB, TLBI VMALLE1IS, DSB), in all TLBs.
    pub fn invalidate(&mut self, addresses: impl IntoIterator<Item = Ipa>) {
        for ipa in addresses {
            self.views.iter_mut().for_each(|view| view.forget(ipa));
        }
        self.load_all();
    }

    /// Drops all that is cached (TLBI VMALLS12E1IS, DSB).
    pub fn invalidate_all(&mut self) {
        for view in &mut self.views {
            view.cached.clear();
            view.walked.clear();
        }
        self.load_all();
    }

    /// No CPU uses the translation any more. What is cached stays so until it is invalidated.
    pub fn switch_off(&mut self) {
        self.live = false;
    }

    fn load_all(&mut self) {
        if self.live {
            for view in &mut self.views {
                let roots: Vec<_> = view.walker.roots().collect();
                for (table, level, ipa) in roots {
                    view.load_table(&self.tables, table, Place { level, ipa });
                }
            }
        }
    }
}

impl View {
    fn new(walker: Walker) -> Self {
        let place = |(table, level, ipa)| (table, Place { level, ipa });
        let walked = walker.roots().map(place).collect();
        Self {
            walker,
            cached: BTreeMap::new(),
            walked,
        }
    }

    fn forget(&mut self, ipa: Ipa) {
        let before = self.cached.range(..=ipa.0).next_back();
        if let Some((&start, _)) = before.filter(|(_, leaf)| leaf.covers(ipa)) {
            self.cached.remove(&start);
        }
        let roots: Vec<_> = self.walker.roots().map(|(table, ..)| table).collect();
        self.walked
            .retain(|table, place| roots.contains(table) || !place.covers(ipa));
    }

    fn load_table(&mut self, tables: &FakeTables, table: Mfn, place: Place) {
        self.walked.insert(table, place);
        for index in 0..512 {
            self.load_entry(tables, table, index, place);
        }
    }

    /// Loads entry `index` of `table` as a walk may do at any moment.
    fn load_entry(&mut self, tables: &FakeTables, table: Mfn, index: usize, place: Place) {
        let ipa = place.entry(index);
        let child = Place {
            level: place.level + 1,
            ipa,
        };
        let end = Ipa(ipa.0 + place.entry_size());
        match decode(tables.read(table, index), place.level, ipa) {
            Descriptor::Invalid => {}
            Descriptor::Leaf(leaf) => {
                let stale = self.walked.values().any(|walked| *walked == child);
                assert!(
                    !stale,
                    "{ipa}: a table became a block without break-before-make"
                );
                self.load_leaf(leaf, end);
            }
            Descriptor::Table(next) => {
                let other = self
                    .walked
                    .iter()
                    .any(|(t, walked)| *walked == child && *t != next);
                assert!(
                    !other,
                    "{ipa}: a table replaced another without break-before-make"
                );
                let block = self
                    .cached
                    .get(&ipa.0)
                    .is_some_and(|l| l.size == place.entry_size());
                assert!(
                    !block,
                    "{ipa}: a block became a table without break-before-make"
                );
                if self.walked.get(&next) != Some(&child) {
                    self.load_table(tables, next, child);
                }
            }
        }
    }

    fn load_leaf(&mut self, leaf: Leaf, end: Ipa) {
        let before = self.cached.range(..end.0).next_back();
        let Some((_, old)) = before.filter(|(_, old)| old.ipa.0 + old.size > leaf.ipa.0) else {
            self.cached.insert(leaf.ipa.0, leaf);
            return;
        };
        let same = (old.ipa, old.pa, old.size, old.attributes)
            == (leaf.ipa, leaf.pa, leaf.size, leaf.attributes);
        assert!(same, "{leaf:?} replaced {old:?} without break-before-make");
    }
}

impl TableMemory for FakeMmu {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.tables.allocate_table()
    }

    fn free_table(&mut self, table: Mfn) {
        let is_walked = |view: &View| view.walked.contains_key(&table);
        assert!(
            !self.views.iter().any(is_walked),
            "table {table} may still be walked"
        );
        self.tables.free_table(table);
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
        for view in self.views.iter_mut().filter(|_| self.live) {
            if let Some(place) = view.walked.get(&table).copied() {
                view.load_entry(&self.tables, table, index, place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VTCR: u64 = 1 << 31 | 4 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 1 << 6 | 0x19;
    const PAGE: u64 = 0x8877_6000 | 0x7ff;
    const BLOCK: u64 = 0x8860_0000 | 0x7fd;

    /// An MMU that translates page 0; its root, middle and leaf table.
    fn mmu() -> (FakeMmu, [Mfn; 3]) {
        let mut tables = FakeTables::new();
        let root = tables.allocate_root(1);
        let mut mmu = FakeMmu::new(tables, Walker::new(VTCR, root));
        let [middle, leaf] = [(); 2].map(|()| mmu.allocate_table().unwrap());
        mmu.write(leaf, 0, PAGE);
        mmu.write(middle, 0, leaf.address().0 | 3);
        mmu.write(root, 0, middle.address().0 | 3);
        (mmu, [root, middle, leaf])
    }

    #[test]
    fn translations_stay_until_invalidated() {
        let (mut mmu, [_, _, leaf]) = mmu();
        mmu.write(leaf, 0, 0);
        assert_eq!(
            mmu.translate(Ipa(0x10)).unwrap().pa,
            Mfn(0x88776).address().checked_add(0x10).unwrap()
        );
        assert!(mmu.reaches(Mfn(0x88776)));
        mmu.invalidate([Ipa(0)]);
        assert_eq!(mmu.translate(Ipa(0x10)), Err(Fault::Translation(3)));
        assert!(!mmu.reaches(Mfn(0x88776)));
    }

    #[test]
    fn lesser_rights_are_seen_after_an_invalidation() {
        let (mut mmu, [_, _, leaf]) = mmu();
        mmu.write(leaf, 0, PAGE & !0x80);
        assert!(mmu.translate(Ipa(0)).unwrap().leaf.write);
        mmu.invalidate_all();
        assert!(!mmu.translate(Ipa(0)).unwrap().leaf.write);
    }

    #[test]
    fn break_before_make_is_accepted() {
        let (mut mmu, [_, middle, leaf]) = mmu();
        mmu.write(middle, 0, 0);
        mmu.invalidate([Ipa(0)]);
        mmu.free_table(leaf);
        mmu.write(middle, 0, BLOCK);
        assert_eq!(mmu.translate(Ipa(0x1000)).unwrap().pa.0, 0x8860_1000);
    }

    #[test]
    #[should_panic(expected = "without break-before-make")]
    fn a_changed_address_is_refused() {
        let (mut mmu, [_, _, leaf]) = mmu();
        mmu.write(leaf, 0, 0);
        mmu.write(leaf, 0, PAGE + 0x1000);
    }

    #[test]
    #[should_panic(expected = "a table became a block")]
    fn a_block_over_a_stale_table_is_refused() {
        let (mut mmu, [_, middle, leaf]) = mmu();
        mmu.write(leaf, 0, 0);
        mmu.invalidate([Ipa(0)]);
        mmu.write(middle, 0, BLOCK);
    }

    #[test]
    #[should_panic(expected = "may still be walked")]
    fn a_table_that_may_be_walked_is_not_freed() {
        let (mut mmu, [_, middle, leaf]) = mmu();
        mmu.write(middle, 0, 0);
        mmu.free_table(leaf);
    }

    #[test]
    fn a_dead_translation_keeps_nothing_once_invalidated() {
        let (mut mmu, [_, middle, leaf]) = mmu();
        mmu.switch_off();
        assert!(mmu.translate(Ipa(0)).is_ok());
        mmu.invalidate_all();
        assert!(mmu.translate(Ipa(0)).is_err());
        mmu.free_table(leaf);
        mmu.free_table(middle);
    }
}
