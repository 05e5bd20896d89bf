//! Pages that go to a disk and come back, while the guest reads and writes them, against a plain
//! array.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, FrameRange, Gfn, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Access, Filled, Frames, GuestRam, Maps, Policy};
use model_frame_table::{Owner, Purpose};
use model_pmap::{Backing, Entry, REGION_FRAMES, Reasons, Why};
use proptest::prelude::*;

const RAM: Gfn = Gfn(0x4_0000);
/// A region that can be a block, and a few more pages.
const RAM_FRAMES: u64 = REGION_FRAMES + 20;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0003),
    count: 2 * 512,
}];
const NODE: NodeId = NodeId(0);
const VM: VmId = VmId {
    index: 1,
    generation: 2,
};

#[derive(Clone, Debug)]
enum Step {
    Load(u64),
    Store(u64),
    /// A whole region, so that it is a block.
    Fill,
    /// So many turns of the clock.
    Age(u8),
    /// The oldest page on its way out arrives, or cannot be written.
    Arrive(bool),
    /// A device is about to read a page, or to write all of it.
    Device(u64, bool),
    Release(u64),
}

/// A page on its way out: where from, where to, and what it held.
struct Leaving {
    gfn: Gfn,
    frame: Mfn,
    token: u64,
    word: u64,
}

struct World {
    frames: FakeFrames,
    ram: GuestRam<Vec<u8>>,
    maps: Mutex<Maps<FakeTranslation>>,
    /// What the guest stored last, by guest frame.
    model: BTreeMap<Gfn, u64>,
    swap: BTreeMap<u64, u64>,
    leaving: Vec<Leaving>,
    hand: Gfn,
    next: u64,
    /// A reason that all pages have, or none; and those of which it was lifted, with what was behind them then.
    standing: Reasons,
    lifted: RefCell<BTreeMap<Gfn, Backing>>,
}

impl World {
    fn new(standing: Reasons) -> Self {
        let range = IpaRange {
            start: RAM.address(),
            size: RAM_FRAMES * FRAME_SIZE,
        };
        let mut maps = Maps::new(FakeTranslation::new(), range).unwrap();
        maps.set_standing(standing);
        Self {
            frames: FakeFrames::new(&NODES),
            ram: GuestRam::new(VM, range, [const { None }; 3], Policy::default()),
            maps: Mutex::new(maps),
            model: BTreeMap::new(),
            swap: BTreeMap::new(),
            leaving: Vec::new(),
            hand: RAM,
            next: 1,
            standing,
            lifted: RefCell::default(),
        }
    }

    /// Whoever keeps a page from being used lets it go.
    fn lift(&self, gfn: Gfn, reasons: Reasons) {
        assert!(!self.standing.is_empty() && reasons.contains(self.standing));
        let backing = self.maps().entry(gfn).backing;
        self.maps().lift(gfn, self.standing);
        self.lifted.borrow_mut().insert(gfn, backing);
    }

    /// Pages have the reason of all, unless it was lifted; and the hardware knows.
    fn check(&self) {
        let mut maps = self.maps();
        let mut lifted = self.lifted.borrow_mut();
        lifted.retain(|gfn, backing| {
            let entry = maps.entry(*gfn);
            entry.backing == *backing && !entry.reasons.contains(self.standing)
        });
        for gfn in (0..RAM_FRAMES).map(|n| RAM.add(n)) {
            let entry = maps.entry(gfn);
            let has_it = entry.reasons.contains(self.standing) || entry.frame().is_none();
            assert!(has_it || lifted.contains_key(&gfn), "{gfn}: {entry:?}");
            if let Ok(seen) = maps.tables_mut().mmu.translate(gfn.address()) {
                assert_eq!(entry.usable(seen.leaf.write), Some(seen.pa.frame()));
            }
        }
    }

    fn maps(&self) -> MutexGuard<'_, Maps<FakeTranslation>> {
        self.maps.try_lock().unwrap()
    }

    fn word(&self, frame: Mfn) -> u64 {
        let mut bytes = [0; 8];
        self.frames.load(frame, 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Brings a page back from the swap.
    fn bring(&self, gfn: Gfn, token: u64) {
        let owner = Owner { vm: VM, gfn };
        let frame = self.frames.allocate(NODE, 0, Purpose::Private(owner));
        let frame = frame.unwrap();
        self.frames.zero(frame, 1);
        self.frames
            .store(frame, 8, &self.swap[&token].to_le_bytes());
        let entry = Entry {
            why: Why::Evicted,
            ..Entry::private(frame)
        };
        assert!(!self.maps().restore(gfn, token + 1, entry));
        assert!(self.maps().restore(gfn, token, entry));
    }

    /// The frame that the hardware lets the guest use so, after as many faults as it takes.
    fn touch(&self, gfn: Gfn, access: Access) -> Mfn {
        for _ in 0..6 {
            let seen = self.maps().tables_mut().mmu.translate(gfn.address());
            if let Ok(seen) = seen
                && (!access.writes() || seen.leaf.write)
            {
                return seen.pa.frame();
            }
            let lock = || self.maps();
            match self
                .ram
                .fill(gfn.address(), NODE, access, &self.frames, &lock)
            {
                Filled::Away(token) => self.bring(gfn, token),
                Filled::Held(reasons) => self.lift(gfn, reasons),
                filled => assert_eq!(filled, Filled::Done),
            }
        }
        panic!("{gfn} is never there");
    }

    fn load(&self, gfn: Gfn) {
        let frame = self.touch(gfn, Access::Read);
        let expected = self.model.get(&gfn).copied().unwrap_or(0);
        assert_eq!(self.word(frame), expected, "{gfn}");
    }

    fn age(&mut self) {
        let mut old = heapless::Vec::new();
        let next = self.maps().age(self.hand, |_, _| true, &mut old);
        self.hand = next.unwrap_or(RAM);
        for (gfn, entry) in old {
            if self.leaving.iter().any(|leaving| leaving.gfn == gfn) {
                continue;
            }
            assert!(
                self.maps()
                    .tables_mut()
                    .mmu
                    .translate(gfn.address())
                    .is_err()
            );
            let mut word = 0;
            assert!(self.maps().begin_out(gfn, |frame| word = self.word(frame)));
            assert!(!self.maps().begin_out(gfn, |_| ()), "it leaves once");
            self.leaving.push(Leaving {
                gfn,
                frame: entry.frame().unwrap(),
                token: self.next,
                word,
            });
            self.next += 2;
        }
    }

    fn arrive(&mut self, written: bool) {
        if self.leaving.is_empty() {
            return;
        }
        let Leaving {
            gfn,
            frame,
            token,
            word,
        } = self.leaving.remove(0);
        if !written {
            return self.maps().cancel_out(gfn);
        }
        if self
            .maps()
            .discard(&self.ram, gfn, frame, token, &self.frames)
        {
            self.swap.insert(token, word);
        }
    }

    fn device(&mut self, gfn: Gfn, overwrites: bool) {
        let was_away = matches!(self.maps().entry(gfn).backing, Backing::Discarded(_));
        let away = self.maps().ready(gfn, overwrites, &self.frames);
        let must_come = !overwrites || !self.standing.is_empty();
        assert_eq!(away.is_some(), was_away && must_come);
        match away {
            Some(token) => self.bring(gfn, token),
            None if was_away => drop(self.model.remove(&gfn)),
            None => {}
        }
        let lock = || self.maps();
        let at = (gfn.address(), Access::Read);
        let load = || {
            let word = |frame| self.word(frame);
            { &self.ram }.with_frame(at, NODE, &self.frames, &lock, word)
        };
        let mut found = load();
        if let Err(Filled::Held(reasons)) = found {
            self.lift(gfn, reasons);
            found = load();
        }
        assert_eq!(found, Ok(self.model.get(&gfn).copied().unwrap_or(0)));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Load(n) => self.load(RAM.add(n)),
            Step::Store(n) => {
                let frame = self.touch(RAM.add(n), Access::Write);
                self.next += 2;
                self.frames.store(frame, 8, &self.next.to_le_bytes());
                self.model.insert(RAM.add(n), self.next);
            }
            Step::Fill => {
                for n in (0..REGION_FRAMES).step_by(16) {
                    self.load(RAM.add(n));
                }
            }
            Step::Age(turns) => (0..turns).for_each(|_| self.age()),
            Step::Arrive(written) => self.arrive(written),
            Step::Device(n, overwrites) => self.device(RAM.add(n), overwrites),
            Step::Release(n) => {
                let gfn = RAM.add(n);
                let before = self.maps().entry(gfn);
                let held = before.frame().map_or(self.standing, |_| before.reasons);
                let is_held = held.intersects(self.standing);
                self.maps().release(&self.ram, gfn, 1, &self.frames);
                if is_held {
                    assert_eq!(self.maps().entry(gfn), before);
                } else {
                    self.model.remove(&gfn);
                }
            }
        }
    }
}

fn standing() -> impl Strategy<Value = Reasons> {
    prop::sample::select(vec![0, 1 << 11, 1 << 15]).prop_map(Reasons::from_bits_retain)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gfn = || prop_oneof![0..20_u64, 500..RAM_FRAMES];
    let step = prop_oneof![
        6 => gfn().prop_map(Step::Load),
        6 => gfn().prop_map(Step::Store),
        1 => Just(Step::Fill),
        4 => (1..20_u8).prop_map(Step::Age),
        6 => prop::bool::weighted(0.8).prop_map(Step::Arrive),
        2 => (gfn(), any::<bool>()).prop_map(|(n, all)| Step::Device(n, all)),
        1 => gfn().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_comes_back_is_what_went(steps in steps(), standing in standing()) {
        let mut world = World::new(standing);
        let fresh: u64 = world.frames.counts().iter().map(|counts| counts.free).sum();
        for step in &steps {
            world.step(step);
            world.check();
        }
        for n in 0..RAM_FRAMES {
            world.load(RAM.add(n));
        }
        let World { frames, maps, .. } = world;
        let mut maps = maps.into_inner().unwrap();
        maps.tables_mut().mmu.switch_off();
        let mut dismantling = maps.dismantle(VM);
        while !dismantling.step(&frames, 1000) {}
        let free: u64 = frames.counts().iter().map(|counts| counts.free).sum();
        prop_assert_eq!(free, fresh);
    }
}
