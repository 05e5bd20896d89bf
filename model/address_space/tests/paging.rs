//! Pages that go to a disk and come back, while the guest reads and writes them, against a plain
//! array.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, FrameRange, Gfn, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Access, Filled, Frames, GuestRam, Maps, Policy};
use model_frame_table::{Owner, Purpose};
use model_pmap::{Backing, Entry, REGION_FRAMES, Why};
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
}

impl World {
    fn new() -> Self {
        let range = IpaRange {
            start: RAM.address(),
            size: RAM_FRAMES * FRAME_SIZE,
        };
        Self {
            frames: FakeFrames::new(&NODES),
            ram: GuestRam::new(VM, range, [const { None }; 3], Policy::default()),
            maps: Mutex::new(Maps::new(FakeTranslation::new(), range).unwrap()),
            model: BTreeMap::new(),
            swap: BTreeMap::new(),
            leaving: Vec::new(),
            hand: RAM,
            next: 1,
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
        for _ in 0..4 {
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
        assert_eq!(away.is_some(), was_away && !overwrites);
        match away {
            Some(token) => self.bring(gfn, token),
            None if was_away => drop(self.model.remove(&gfn)),
            None => {}
        }
        let lock = || self.maps();
        let at = (gfn.address(), Access::Read);
        let found = self
            .ram
            .with_frame(at, NODE, &self.frames, &lock, |frame| self.word(frame));
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
                self.maps().release(&self.ram, gfn, 1, &self.frames);
                self.model.remove(&gfn);
            }
        }
    }
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
    fn what_comes_back_is_what_went(steps in steps()) {
        let mut world = World::new();
        let fresh: u64 = world.frames.counts().iter().map(|counts| counts.free).sum();
        for step in &steps {
            world.step(step);
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
