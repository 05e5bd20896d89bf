//! The radix against a plain map, with allocations that fail at any point.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use machine_fake::FakeTables;
use model_addr::{Gfn, Ipa, IpaRange, Mfn};
use model_pmap::{
    Backing, Counts, Entry, GivenBack, Pmap, PmapError, REGION_FRAMES, Reasons, Region, Why,
};
use proptest::prelude::*;

/// RAM on both sides of the border between the two roots, and a piece with ragged ends below.
const LOW: (u64, u64) = (0x4_0000 - 3, 1200);
const HIGH: (u64, u64) = ((1 << 26) - 700, 1500);

/// Guest frames that are filled with one call.
const CHUNK: u64 = 16;

fn ram() -> [IpaRange; 2] {
    [LOW, HIGH].map(|(first, count)| IpaRange {
        start: Gfn(first).address(),
        size: count << 12,
    })
}

fn is_ram(gfn: u64) -> bool {
    [LOW, HIGH]
        .iter()
        .any(|(first, count)| (*first..first + count).contains(&gfn))
}

fn all_ram() -> impl Iterator<Item = u64> {
    (LOW.0..LOW.0 + LOW.1).chain(HIGH.0..HIGH.0 + HIGH.1)
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        gfn: u64,
        count: u64,
        entry: Entry,
    },
    /// As the fault path does: the frames of the region's own run.
    Fill {
        gfn: u64,
        whole: bool,
    },
    SetInPlace {
        gfn: u64,
        count: u64,
    },
    Clear {
        gfn: u64,
        count: u64,
    },
    Change {
        gfn: u64,
        count: u64,
        add: Reasons,
        remove: Reasons,
    },
    NeverShare {
        gfn: u64,
        count: u64,
        never: bool,
    },
    SetBase {
        gfn: u64,
        base: Option<u64>,
    },
    /// What entries that are made have from now on.
    Stand(Reasons),
    Why {
        gfn: u64,
        why: Why,
    },
    FailAllocations(Option<u64>),
}

fn gfn() -> impl Strategy<Value = u64> {
    prop_oneof![
        LOW.0 - 5..LOW.0 + LOW.1 + 5,
        HIGH.0 - 5..HIGH.0 + HIGH.1 + 5
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(16), 0..520_u64]
}

fn reasons() -> impl Strategy<Value = Reasons> {
    prop_oneof![
        Just(Reasons::empty()),
        any::<u16>().prop_map(Reasons::from_bits_retain)
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let backing = prop_oneof![
        Just(Backing::Absent),
        (0..4_u64).prop_map(|n| Backing::Private(Mfn(n << 9))),
        (0..1_u64 << 39).prop_map(|n| Backing::Shared(Mfn(n))),
        (0..1_u64 << 55).prop_map(Backing::Discarded),
    ];
    let why = prop::sample::select(&Why::ALL);
    let parts = (backing, reasons(), any::<bool>(), why);
    parts.prop_map(|(backing, reasons, never_share, why)| Entry {
        backing,
        reasons,
        never_share,
        why,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (gfn(), count(), entry())
            .prop_map(|(gfn, count, entry)| Step::Set { gfn, count, entry }),
        3 => (gfn(), any::<bool>()).prop_map(|(gfn, whole)| Step::Fill { gfn, whole }),
        2 => (gfn(), count()).prop_map(|(gfn, count)| Step::SetInPlace { gfn, count }),
        2 => (gfn(), count()).prop_map(|(gfn, count)| Step::Clear { gfn, count }),
        1 => (gfn(), count(), reasons(), reasons())
            .prop_map(|(gfn, count, add, remove)| Step::Change { gfn, count, add, remove }),
        1 => (gfn(), count(), any::<bool>())
            .prop_map(|(gfn, count, never)| Step::NeverShare { gfn, count, never }),
        2 => (gfn(), prop::option::of(0..3_u64))
            .prop_map(|(gfn, base)| Step::SetBase { gfn, base }),
        1 => reasons().prop_map(Step::Stand),
        1 => (gfn(), prop::sample::select(&Why::ALL)).prop_map(|(gfn, why)| Step::Why { gfn, why }),
        1 => prop::option::of(0..3_u64).prop_map(Step::FailAllocations),
    ]
}

struct World {
    tables: FakeTables,
    pmap: Pmap,
    entries: BTreeMap<u64, Entry>,
    bases: BTreeMap<u64, Mfn>,
    mixed: BTreeSet<u64>,
    touched: BTreeSet<u64>,
    standing: Reasons,
}

fn region_of(gfn: u64) -> u64 {
    gfn - gfn % REGION_FRAMES
}

/// The entry `n` further on in a run that begins with `first`.
fn nth(first: Entry, n: u64) -> Entry {
    let backing = match first.backing {
        Backing::Absent => Backing::Absent,
        Backing::Private(frame) => Backing::Private(frame.add(n)),
        Backing::Shared(frame) => Backing::Shared(frame.add(n)),
        Backing::Discarded(block) => Backing::Discarded(block + n),
    };
    Entry { backing, ..first }
}

impl World {
    fn new() -> Self {
        let mut tables = FakeTables::new();
        let pmap = Pmap::new(&mut tables, &ram()).unwrap();
        Self {
            tables,
            pmap,
            entries: BTreeMap::new(),
            bases: BTreeMap::new(),
            mixed: BTreeSet::new(),
            touched: BTreeSet::new(),
            standing: Reasons::empty(),
        }
    }

    /// An entry as it is behind a guest frame.
    fn made(&self, entry: Entry) -> Entry {
        let reasons = match entry.backing {
            Backing::Private(_) | Backing::Shared(_) => entry.reasons | self.standing,
            Backing::Absent | Backing::Discarded(_) => Reasons::empty(),
        };
        Entry { reasons, ..entry }
    }

    fn entry(&self, gfn: u64) -> Entry {
        self.entries.get(&gfn).copied().unwrap_or_default()
    }

    fn is_anything(&self, gfn: u64, count: u64) -> bool {
        (gfn..gfn + count).any(|gfn| self.entry(gfn).backing != Backing::Absent)
    }

    /// What any operation on a run must answer, memory permitting.
    fn expected(gfn: u64, count: u64) -> Result<(), PmapError> {
        if count == 0 || gfn % REGION_FRAMES + count > REGION_FRAMES {
            return Err(PmapError::Run);
        }
        let all = (gfn..gfn + count).all(is_ram);
        if all {
            Ok(())
        } else {
            Err(PmapError::NotRam(Gfn(gfn)))
        }
    }

    fn set(&mut self, gfn: u64, count: u64, entry: Entry) {
        let result = if count == 1 && gfn.is_multiple_of(2) {
            let replaced = self.pmap.replace(&mut self.tables, Gfn(gfn), entry);
            replaced.map(|old| assert_eq!(old.backing, self.entry(gfn).backing))
        } else {
            assert_eq!(self.pmap.made(entry), self.made(entry));
            self.pmap.set_run(&mut self.tables, Gfn(gfn), count, entry)
        };
        let entry = self.made(entry);
        if result == Err(PmapError::NoMemory) {
            return;
        }
        assert_eq!(result, Self::expected(gfn, count));
        if result.is_ok() {
            if !matches!(entry.backing, Backing::Private(_)) {
                self.mixed.insert(region_of(gfn));
            }
            self.touched.extend(gfn..gfn + count);
            self.entries
                .extend((0..count).map(|n| (gfn + n, nth(entry, n))));
        }
    }

    fn fill<const N: usize>(&mut self, gfn: u64) {
        let base = self.bases.get(&region_of(gfn)).copied();
        let first = Entry::private(base.unwrap_or(Mfn(512)).add(gfn % REGION_FRAMES));
        let (first, frame) = (self.made(first), first.frame().unwrap());
        let result = self.pmap.fill::<N>(&mut self.tables, Gfn(gfn), frame);
        let run = gfn..gfn + N as u64;
        let is_absent = |gfn| self.entry(gfn).backing == Backing::Absent;
        match result {
            Err(PmapError::NoMemory) => {}
            Err(PmapError::Present) => assert!(!run.clone().all(is_absent)),
            Err(error) => assert_eq!(Self::expected(gfn, N as u64), Err(error)),
            Ok((filled, is_new)) => {
                assert!(run.clone().all(is_absent));
                let is_plain = |gfn| !self.touched.contains(&gfn) && !self.entry(gfn).never_share;
                assert_eq!(is_new, run.clone().all(is_plain));
                self.touched.extend(run.clone());
                for (n, gfn) in (0..).zip(run) {
                    let never_share = self.entry(gfn).never_share;
                    let entry = Entry {
                        never_share,
                        ..nth(first, n)
                    };
                    self.entries.insert(gfn, entry);
                }
                assert_eq!(filled.region, self.expected_region(gfn));
                assert_eq!(filled.entry, first);
            }
        }
    }

    fn change(&mut self, (gfn, count): (u64, u64), add: Reasons, remove: Reasons) {
        let tables = &mut self.tables;
        let result = self
            .pmap
            .change_reasons(tables, Gfn(gfn), count, add, remove);
        assert_eq!(result, Self::expected(gfn, count));
        for gfn in gfn..gfn + if result.is_ok() { count } else { 0 } {
            let old = self.entry(gfn);
            if old.frame().is_some() {
                let reasons = (old.reasons - remove) | add;
                self.entries.insert(gfn, Entry { reasons, ..old });
            }
        }
    }

    fn never_share(&mut self, gfn: u64, count: u64, never: bool) {
        let tables = &mut self.tables;
        let result = self.pmap.set_never_share(tables, Gfn(gfn), count, never);
        if result != Err(PmapError::NoMemory) {
            assert_eq!(result, Self::expected(gfn, count));
        }
        for gfn in gfn..gfn + if result.is_ok() { count } else { 0 } {
            let entry = Entry {
                never_share: never,
                ..self.entry(gfn)
            };
            self.entries.insert(gfn, entry);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Set { gfn, count, entry } => self.set(gfn, count, entry),
            Step::Fill { gfn, whole } => {
                if whole {
                    self.fill::<{ CHUNK as usize }>(gfn - gfn % CHUNK);
                } else {
                    self.fill::<1>(gfn);
                }
            }
            Step::SetInPlace { gfn, count } => {
                let base = self.bases.get(&region_of(gfn)).copied().unwrap_or(Mfn(512));
                self.set(gfn, count, Entry::private(base.add(gfn % REGION_FRAMES)));
            }
            Step::Clear { gfn, count } => {
                let result = self.pmap.clear(&mut self.tables, Gfn(gfn), count);
                assert_eq!(result, Self::expected(gfn, count));
                if result.is_ok() && self.is_anything(gfn, count) {
                    self.mixed.insert(region_of(gfn));
                }
                for gfn in gfn..gfn + if result.is_ok() { count } else { 0 } {
                    let never_share = self.entry(gfn).never_share;
                    self.entries.insert(
                        gfn,
                        Entry {
                            never_share,
                            ..Entry::default()
                        },
                    );
                }
            }
            Step::Change {
                gfn,
                count,
                add,
                remove,
            } => self.change((gfn, count), add, remove),
            Step::NeverShare { gfn, count, never } => self.never_share(gfn, count, never),
            Step::SetBase { gfn, base } => {
                let base = base.map(|n| Mfn(n << 9));
                let result = self.pmap.set_base(&mut self.tables, Gfn(gfn), base);
                match result {
                    Ok(()) => {
                        self.bases.remove(&region_of(gfn));
                        self.bases.extend(base.map(|base| (region_of(gfn), base)));
                    }
                    Err(error) => assert!(error == PmapError::NoMemory || !is_ram(gfn)),
                }
            }
            Step::Stand(reasons) => {
                self.pmap.set_standing(reasons);
                self.standing = reasons;
            }
            Step::Why { gfn, why } => {
                let result = self.pmap.set_why(&mut self.tables, Gfn(gfn), why);
                assert_eq!(result, Self::expected(gfn, 1));
                let old = self.entry(gfn);
                if matches!(old.backing, Backing::Private(_)) {
                    self.entries.insert(gfn, Entry { why, ..old });
                }
            }
            Step::FailAllocations(after) => self.tables.fail_after(after),
        }
    }

    fn expected_counts(&self) -> Counts {
        let mut counts = Counts::default();
        for gfn in all_ram() {
            *match self.entry(gfn).backing {
                Backing::Absent => &mut counts.absent,
                Backing::Private(_) => &mut counts.private,
                Backing::Shared(_) => &mut counts.shared,
                Backing::Discarded(_) => &mut counts.discarded,
            } += 1;
        }
        counts
    }

    fn expected_region(&self, gfn: u64) -> Region {
        let first = region_of(gfn);
        let base = self.bases.get(&first).copied();
        let in_place = |n: &u64| {
            let entry = self.entry(first + n);
            let is_there = Some(entry.backing) == base.map(|base| Backing::Private(base.add(*n)));
            is_there && entry.reasons.is_empty()
        };
        Region {
            base,
            in_place: (0..REGION_FRAMES).filter(in_place).count() as u64,
            mixed: self.mixed.contains(&first),
        }
    }

    /// What may be used as it is is said to be, with so many frames after it as do follow; what was found
    /// before may be less than there is now.
    fn check_near(&self, gfn: u64) {
        for write in [false, true] {
            let usable = |gfn: u64| {
                let entry = self.entry(gfn);
                let rights = entry.rights().filter(|rights| rights.write || !write);
                rights.and(entry.frame())
            };
            let found = self.pmap.near(&self.tables, Gfn(gfn), write);
            assert_eq!(found.map(|(frame, _)| frame), usable(gfn));
            let Some((frame, count)) = found else {
                continue;
            };
            assert!((1..=16 - gfn % 16).contains(&count));
            for n in 0..count {
                assert_eq!(usable(gfn + n), Some(frame.add(n)));
            }
        }
    }

    fn check(&self) {
        // Those that were looked at after the step before, of which some are remembered, then all.
        all_ram()
            .step_by(97)
            .chain(all_ram())
            .chain(all_ram().step_by(97))
            .for_each(|gfn| self.check_near(gfn));
        for gfn in all_ram() {
            assert_eq!(
                self.pmap.lookup(&self.tables, Gfn(gfn)),
                Ok(self.entry(gfn))
            );
        }
        for gfn in all_ram().step_by(101) {
            let region = self.pmap.region(&self.tables, Gfn(gfn));
            assert_eq!(region, self.expected_region(gfn));
            let survey = self.pmap.survey(&self.tables, Gfn(gfn)).unwrap();
            assert_eq!((survey.entry, survey.region), (self.entry(gfn), region));
            let end = region_of(gfn) + REGION_FRAMES;
            let untouched = (gfn..end)
                .take(40)
                .filter(|gfn| !self.touched.contains(gfn));
            let untouched = untouched.count() as u64;
            let count = (end - gfn).min(40);
            assert_eq!(
                self.pmap.untouched(&self.tables, Gfn(gfn), count),
                untouched
            );
            let is_absent = |gfn: &u64| {
                is_ram(*gfn) && *gfn < end && self.entry(*gfn).backing == Backing::Absent
            };
            let run = (gfn..).take(40).take_while(is_absent).count() as u64;
            assert_eq!(self.pmap.absent_run(&self.tables, Gfn(gfn), 40), run);
        }
        let firsts: BTreeSet<u64> = all_ram().map(region_of).collect();
        let blocks = firsts
            .iter()
            .filter(|gfn| self.expected_region(**gfn).block().is_some());
        assert_eq!(self.pmap.blocks(), blocks.count() as u64);
        assert_eq!(self.pmap.counts(), self.expected_counts());
        assert_eq!(self.pmap.tables(), self.tables.in_use() as u64);
    }

    fn present(&self) -> Vec<(u64, Entry)> {
        let all = self.entries.iter().map(|(gfn, entry)| (*gfn, *entry));
        all.filter(|(_, entry)| entry.backing != Backing::Absent)
            .collect()
    }

    fn finish(mut self, budget: usize) {
        let mut visited = Vec::new();
        let mut next = Some(Gfn(0));
        while let Some(from) = next {
            let visit = |gfn: Gfn, entry| visited.push((gfn.0, entry));
            next = self.pmap.visit(&self.tables, from, budget, visit);
        }
        assert_eq!(visited, self.present());
        let present = self.present();
        let mut teardown = self.pmap.teardown();
        let (mut entries, mut bases) = (Vec::new(), BTreeMap::new());
        let mut done = false;
        while !done {
            let mut seen = 0;
            done = teardown.step(&mut self.tables, budget, |given| match given {
                GivenBack::Entry(gfn, entry) => {
                    seen += 1;
                    entries.push((gfn.0, entry));
                }
                GivenBack::Reservation(gfn, base) => drop(bases.insert(gfn.0, base)),
            });
            assert!(seen <= budget);
        }
        assert_eq!(entries, present);
        assert_eq!(bases, self.bases);
        assert_eq!(self.tables.in_use(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_is_a_map(steps in prop::collection::vec(step(), 1..40), budget in 1..700_usize) {
        let mut world = World::new();
        for step in steps {
            world.step(&step);
            world.check();
        }
        world.finish(budget);
    }
}

/// What was found near each other is looked for again once a part of it has changed.
#[test]
fn what_is_remembered_goes_with_a_change() {
    let (mut tables, first) = (FakeTables::new(), Gfn(0x4_0000));
    let mut pmap = Pmap::new(&mut tables, &ram()).unwrap();
    let all = Some((Mfn(800), 8));
    let change = |pmap: &mut Pmap, tables: &mut _, change: u32| match change {
        0 => pmap
            .replace(tables, first.add(3), Entry::shared(Mfn(9)))
            .map(drop),
        1 => pmap.set_run(tables, first.add(3), 1, Entry::shared(Mfn(9))),
        _ => pmap.change_reasons(tables, first.add(3), 1, Reasons::MAPPER, Reasons::empty()),
    };
    for n in 0..3 {
        let entry = Entry::private(Mfn(800));
        pmap.set_run(&mut tables, first, 8, entry).unwrap();
        assert_eq!(pmap.near(&tables, first, true), all);
        change(&mut pmap, &mut tables, n).unwrap();
        assert_eq!(pmap.near(&tables, first.add(3), true), None);
        assert_eq!(pmap.near(&tables, first, true), Some((Mfn(800), 3)));
    }
}

/// The map of one region of RAM, and its first guest frame.
fn one_region(tables: &mut FakeTables) -> (Pmap, Gfn) {
    let range = IpaRange {
        start: Ipa(0x4000_0000),
        size: 0x20_0000,
    };
    (Pmap::new(tables, &[range]).unwrap(), Gfn(0x4_0000))
}

#[test]
fn only_what_nothing_ever_was_behind_is_new() {
    let mut tables = FakeTables::new();
    let (mut pmap, first) = one_region(&mut tables);
    let fill = |pmap: &mut Pmap, tables: &mut FakeTables, n| {
        let filled = pmap.fill::<16>(tables, first.add(n), Mfn(n));
        filled.unwrap().1
    };
    assert!(fill(&mut pmap, &mut tables, 0));
    pmap.clear(&mut tables, first, 1).unwrap();
    pmap.clear(&mut tables, first.add(1), 15).unwrap();
    assert!(!fill(&mut pmap, &mut tables, 0));
    pmap.set_never_share(&mut tables, first.add(31), 1, true)
        .unwrap();
    assert!(!fill(&mut pmap, &mut tables, 16));
    assert!(fill(&mut pmap, &mut tables, 32));
}

#[test]
fn a_full_region_is_a_block() {
    let mut tables = FakeTables::new();
    let (mut pmap, first) = one_region(&mut tables);
    let base = Mfn(0x80_0000);
    pmap.set_base(&mut tables, first, Some(base)).unwrap();
    assert_eq!(
        pmap.set_base(&mut tables, first, Some(base.add(1))),
        Err(PmapError::Run)
    );
    for n in (0..512).step_by(16) {
        assert_eq!(pmap.region(&tables, first).block(), None);
        assert_eq!(pmap.absent_run(&tables, first.add(n), 16), 16);
        pmap.fill::<16>(&mut tables, first.add(n), base.add(n))
            .unwrap();
    }
    assert_eq!(pmap.region(&tables, first).block(), Some(base));
    assert_eq!(pmap.blocks(), 1);
    assert_eq!(pmap.counts().present(), 512);
    let log = Reasons::DIRTY_LOG;
    pmap.change_reasons(&mut tables, first.add(7), 1, log, Reasons::empty())
        .unwrap();
    assert_eq!(pmap.region(&tables, first).block(), None);
    assert_eq!(pmap.blocks(), 0);
    pmap.change_reasons(&mut tables, first, 512, Reasons::empty(), log)
        .unwrap();
    assert_eq!(pmap.region(&tables, first).block(), Some(base));
}

#[test]
fn what_must_not_be_shared_stays_so() {
    let mut tables = FakeTables::new();
    let mut pmap = Pmap::new(&mut tables, &ram()).unwrap();
    let secret = Entry {
        never_share: true,
        ..Entry::private(Mfn(7))
    };
    pmap.set_run(&mut tables, Gfn(LOW.0), 1, secret).unwrap();
    pmap.clear(&mut tables, Gfn(LOW.0), 1).unwrap();
    let left = pmap.lookup(&tables, Gfn(LOW.0)).unwrap();
    assert_eq!(
        left,
        Entry {
            never_share: true,
            ..Entry::default()
        }
    );
}
