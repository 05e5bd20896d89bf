//! Any interleaving of the operations, with a TLB that is as stale as it may be, against a plain
//! map from page to (frame, rights, leaf).

use std::collections::{BTreeMap, BTreeSet};

use machine_fake::{FakeMmu, FakeTables, Walker};
use model_addr::{Ipa, Pa};
use model_stage2::{
    Broken, FlushDebt, Invalidation, IpaSize, MapError, Ready, Rights, Size, Stage2, VmidBits, vtcr,
};
use proptest::prelude::*;

/// The pages in play: four 2 MiB regions on both sides of the border of two root tables.
const FIRST: u64 = 0x800_0000 - 1024;
const PAGES: u64 = 2048;
const REGION: u64 = 512;
/// Pages that are mapped with one call.
const CHUNK: u64 = 16;
/// Two root tables.
const SIZE: IpaSize = match IpaSize::new(40) {
    Some(size) => size,
    None => IpaSize::ONE_TABLE,
};

#[derive(Clone, Debug)]
enum Step {
    Map {
        page: u64,
        frame: u64,
        rights: Rights,
    },
    MapChunk {
        page: u64,
        frame: u64,
        rights: Rights,
    },
    MapBlock {
        region: u64,
        frame: u64,
        rights: Rights,
    },
    Unmap {
        page: u64,
        pages: u64,
    },
    Protect {
        page: u64,
        pages: u64,
        rights: Rights,
    },
    Merge {
        region: u64,
        frame: u64,
        rights: Rights,
    },
    Split {
        page: u64,
    },
    PayReplacement,
    Make,
    FailAllocations(Option<u64>),
}

fn rights() -> impl Strategy<Value = Rights> {
    (any::<bool>(), any::<bool>()).prop_map(|(write, execute)| Rights { write, execute })
}

fn step() -> impl Strategy<Value = Step> {
    let page = || 0..PAGES;
    let region = || 0..PAGES / REGION;
    // Few frames, so that what is mapped alike already is met too.
    let frame = || 0..4_u64;
    prop_oneof![
        (page(), frame(), rights()).prop_map(|(page, frame, rights)| Step::Map {
            page,
            frame,
            rights
        }),
        (page(), frame(), any::<bool>(), rights()).prop_map(|(page, frame, aligned, rights)| {
            Step::MapChunk {
                page: if aligned { page - page % CHUNK } else { page },
                frame,
                rights,
            }
        }),
        (region(), frame(), rights()).prop_map(|(region, frame, rights)| Step::MapBlock {
            region,
            frame,
            rights
        }),
        (page(), 0..700_u64).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        (page(), 0..700_u64, rights()).prop_map(|(page, pages, rights)| Step::Protect {
            page,
            pages,
            rights
        }),
        (region(), frame(), rights()).prop_map(|(region, frame, rights)| Step::Merge {
            region,
            frame,
            rights
        }),
        page().prop_map(|page| Step::Split { page }),
        Just(Step::PayReplacement),
        Just(Step::Make),
        prop::option::of(0..3_u64).prop_map(Step::FailAllocations),
    ]
}

/// A page's translation, and how many pages its leaf has.
type Page = (u64, Rights, u64);

/// What is under way in a region.
enum Motion {
    Broken(Broken, After),
    Ready(Ready, After),
}

/// What a region becomes.
struct After {
    region: u64,
    pages: Vec<Page>,
    overtaken: bool,
}

struct World {
    mmu: FakeMmu,
    stage2: Stage2,
    model: BTreeMap<u64, Page>,
    /// Pages that were ever mapped.
    ever: BTreeSet<u64>,
    motion: Option<Motion>,
}

fn invalidate(mmu: &mut FakeMmu, what: Invalidation) {
    match what {
        Invalidation::Nothing => {}
        Invalidation::Run(run) => mmu.invalidate(run.addresses()),
        Invalidation::All => mmu.invalidate_all(),
    }
}

fn ipa(page: u64) -> Ipa {
    Ipa((FIRST + page) << 12)
}

fn pa(frame: u64) -> Pa {
    Pa(frame << 12)
}

/// The frame that run `n` maps page 0 to, so that equal runs map equal pages alike.
fn base(n: u64) -> u64 {
    0x10_0000 + n * 0x4000
}

impl World {
    fn new() -> Self {
        let size = SIZE;
        let mut tables = FakeTables::new();
        let root = tables.allocate_root(size.root_tables());
        let walker = Walker::new(vtcr(size, 44, VmidBits::Sixteen), root);
        let (mmu, stage2) = (FakeMmu::new(tables, walker), Stage2::new(root, size));
        Self {
            mmu,
            stage2,
            model: BTreeMap::new(),
            ever: BTreeSet::new(),
            motion: None,
        }
    }

    /// The region being replaced, while it is.
    fn busy(&self) -> Option<u64> {
        match self.motion.as_ref()? {
            Motion::Broken(_, after) | Motion::Ready(_, after) => Some(after.region),
        }
    }

    /// Pays with all TLBs.
    fn pay(&mut self, debt: FlushDebt) {
        debt.pay(|what| invalidate(&mut self.mmu, what));
    }

    /// What mapping these pages must answer.
    fn expected(&self, page: u64, pages: u64, new: impl Fn(u64) -> Page) -> Result<(), MapError> {
        for at in page..page + pages {
            if self.busy() == Some(at / REGION) {
                return Err(MapError::Busy);
            }
            let (frame, rights, _) = new(at);
            let occupied = |old: &Page| (old.0, old.1) != (frame, rights);
            if self.model.get(&at).is_some_and(occupied) {
                return Err(MapError::Occupied);
            }
        }
        Ok(())
    }

    fn map(&mut self, page: u64, frame: u64, count: u64, rights: Rights) {
        let new = |at: u64| (base(frame) + at, rights, 1);
        let (ipa, pa) = (ipa(page), pa(base(frame) + page));
        let result = if count == 1 {
            self.stage2.map(&mut self.mmu, ipa, pa, Size::Page, rights)
        } else {
            let is_new = self.ever.range(page..page + count).next().is_none();
            let mmu = &mut self.mmu;
            self.stage2
                .map_chunk::<{ CHUNK as usize }>(mmu, ipa, (pa, rights), is_new)
        };
        if !page.is_multiple_of(count) {
            assert_eq!(result, Err(MapError::Misaligned));
            return;
        }
        if result == Err(MapError::NoMemory) {
            return;
        }
        assert_eq!(result, self.expected(page, count, new));
        for at in page..page + count {
            if self.expected(at, 1, new).is_err() {
                break;
            }
            self.model.entry(at).or_insert(new(at));
        }
    }

    fn block(frame: u64, region: u64, rights: Rights) -> impl Fn(u64) -> Page {
        let first = base(frame) + region * REGION;
        move |at| (first + at % REGION, rights, REGION)
    }

    fn map_block(&mut self, region: u64, frame: u64, rights: Rights) {
        let new = Self::block(frame, region, rights);
        let pa = pa(base(frame) + region * REGION);
        let ipa = ipa(region * REGION);
        let result = self
            .stage2
            .map(&mut self.mmu, ipa, pa, Size::Block2M, rights);
        let pages = region * REGION..(region + 1) * REGION;
        match result {
            Ok(()) => {
                for at in pages {
                    let old = self.model.insert(at, new(at));
                    assert!(
                        old.is_none_or(|old| old == new(at)),
                        "a block over page {at}"
                    );
                }
            }
            Err(MapError::Busy) => assert_eq!(self.busy(), Some(region)),
            // Occupied also by an empty table: the model does not know of it.
            Err(error) => assert!(matches!(error, MapError::Occupied | MapError::NoMemory)),
        }
    }

    fn edit(&mut self, page: u64, pages: u64, rights: Option<Rights>) {
        let end = (page + pages).min(PAGES);
        let (at, count) = (ipa(page), end - page);
        let before = self.model.clone();
        let debt = match rights {
            Some(rights) => self.stage2.protect(&mut self.mmu, at, count, rights),
            None => self.stage2.unmap(&mut self.mmu, at, count),
        };
        for at in page..end {
            let Some(&(frame, _, leaf)) = before.get(&at) else {
                continue;
            };
            let start = at - at % leaf;
            let whole = start >= page && start + leaf <= end;
            match rights.filter(|_| whole) {
                Some(rights) => drop(self.model.insert(at, (frame, rights, leaf))),
                None => self
                    .model
                    .retain(|at, _| !(start..start + leaf).contains(at)),
            }
        }
        if let Some(Motion::Broken(_, after) | Motion::Ready(_, after)) = &mut self.motion {
            let region = after.region * REGION..(after.region + 1) * REGION;
            after.overtaken |= page < end && page < region.end && end > region.start;
        }
        // Until the debt is paid, whatever was taken out may still be in use.
        for (at, (frame, ..)) in before.iter().filter(|(at, _)| !self.model.contains_key(at)) {
            let seen = self.mmu.translate(ipa(*at)).map(|seen| seen.pa);
            assert_eq!(seen, Ok(pa(*frame)));
        }
        self.pay(debt);
    }

    fn begin(&mut self, result: Result<Broken, MapError>, after: After) {
        match result {
            Ok(broken) => {
                let pages = after.region * REGION..(after.region + 1) * REGION;
                self.model.retain(|at, _| !pages.contains(at));
                assert!(self.motion.is_none());
                self.motion = Some(Motion::Broken(broken, after));
            }
            Err(MapError::Busy) => assert_eq!(self.busy(), Some(after.region)),
            Err(error) => assert!(matches!(error, MapError::Occupied | MapError::NoMemory)),
        }
    }

    fn merge(&mut self, region: u64, frame: u64, rights: Rights) {
        if self.busy().is_some_and(|busy| busy != region) {
            return;
        }
        let new = Self::block(frame, region, rights);
        let pa = pa(base(frame) + region * REGION);
        let ipa = ipa(region * REGION);
        let result = self
            .stage2
            .begin_merge(&mut self.mmu, ipa, pa, Size::Block2M, rights);
        let pages = (0..REGION).map(new).collect();
        self.begin(
            result,
            After {
                region,
                pages,
                overtaken: false,
            },
        );
    }

    fn split(&mut self, page: u64) {
        let region = page / REGION;
        if self.busy().is_some() {
            return;
        }
        let result = self.stage2.begin_split(&mut self.mmu, ipa(page));
        let is_block = self
            .model
            .get(&page)
            .is_some_and(|(.., leaf)| *leaf == REGION);
        assert_eq!(
            result.is_ok() || matches!(result, Err(MapError::NoMemory)),
            is_block
        );
        let page_of = |at| {
            self.model
                .get(&at)
                .map(|(frame, rights, _)| (*frame, *rights, 1))
        };
        let pages = (region * REGION..(region + 1) * REGION)
            .filter_map(page_of)
            .collect();
        self.begin(
            result,
            After {
                region,
                pages,
                overtaken: false,
            },
        );
    }

    fn advance(&mut self, to_made: bool) {
        match self.motion.take() {
            Some(Motion::Broken(broken, after)) => {
                let ready = broken.pay(&mut self.mmu, invalidate);
                self.motion = Some(Motion::Ready(ready, after));
            }
            Some(Motion::Ready(ready, after)) if to_made => {
                let made = self.stage2.make(&mut self.mmu, ready);
                assert_eq!(made.is_err(), after.overtaken);
                if made.is_ok() {
                    let pages = after.pages.into_iter().enumerate();
                    self.model
                        .extend(pages.map(|(n, p)| (after.region * REGION + n as u64, p)));
                }
            }
            other => self.motion = other,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Map {
                page,
                frame,
                rights,
            } => self.map(page, frame, 1, rights),
            Step::MapChunk {
                page,
                frame,
                rights,
            } => self.map(page, frame, CHUNK, rights),
            Step::MapBlock {
                region,
                frame,
                rights,
            } => self.map_block(region, frame, rights),
            Step::Unmap { page, pages } => self.edit(page, pages, None),
            Step::Protect {
                page,
                pages,
                rights,
            } => self.edit(page, pages, Some(rights)),
            Step::Merge {
                region,
                frame,
                rights,
            } => self.merge(region, frame, rights),
            Step::Split { page } => self.split(page),
            Step::PayReplacement => self.advance(false),
            Step::Make => self.advance(true),
            Step::FailAllocations(after) => self.mmu.tables().fail_after(after),
        }
    }

    /// All debts are paid, but for a replacement's: the MMU and the tables agree with the model.
    fn check(&self) {
        let broken = match &self.motion {
            Some(Motion::Broken(_, after)) => Some(after.region),
            _ => None,
        };
        for page in (0..PAGES).filter(|page| broken != Some(page / REGION)) {
            let seen = self.mmu.translate(ipa(page)).ok();
            let seen = seen.map(|t| {
                (
                    t.pa.0 >> 12,
                    t.leaf.write,
                    t.leaf.execute,
                    t.leaf.size >> 12,
                )
            });
            let wanted = self.model.get(&page);
            assert_eq!(
                seen,
                wanted.map(|(f, r, leaf)| (*f, r.write, r.execute, *leaf))
            );
            let own = self.stage2.translate(&self.mmu, ipa(page));
            let own = own.map(|m| (m.pa.frame().0, m.rights, m.size.frames()));
            assert_eq!(own, wanted.copied());
        }
    }

    /// Tears all down in small steps; only the root is left.
    fn finish(mut self) {
        self.mmu.tables().fail_after(None);
        self.advance(true);
        self.advance(true);
        assert_eq!(self.mmu.tables().in_use() as u64, self.stage2.tables() + 2);
        self.mmu.switch_off();
        let mut teardown = self
            .stage2
            .retire()
            .pay(|what| invalidate(&mut self.mmu, what));
        let mut steps = 0;
        while !teardown.step(&mut self.mmu, 100) {
            steps += 1;
            assert!(steps <= 2 * 512 * 512 / 100, "teardown is bounded");
        }
        assert_eq!(self.mmu.tables().in_use(), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_mmu_sees_what_the_model_says(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        for step in steps {
            world.step(&step);
            world.ever.extend(world.model.keys());
            world.check();
        }
        world.finish();
    }
}
