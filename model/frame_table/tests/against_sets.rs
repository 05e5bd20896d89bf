//! Pools of several nodes and ranges against plain sets of frames.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ops::Range;

use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{
    CHUNK_FRAMES, CHUNK_ORDER, Event, FrameEntry, MAX_ORDER, MapError, MemoryMap, MemoryRange,
    Origin, Owner, Pool, PoolCounts, PreferenceOrder, Purpose, Refused, Use, entries_bytes,
};
use proptest::prelude::*;

/// Two nodes with uneven ranges, a hole, and neighbours of another node at an odd border.
const RANGES: [(u64, u64, u8); 4] = [
    (0x1_0003, 1500, 0),
    (0x1_05df, 700, 1),
    (0x8_0000, 1024, 0),
    (0x9_01ff, 33, 1),
];
const NODES: usize = 2;

struct Machine {
    entries: Vec<Vec<FrameEntry>>,
}

impl Machine {
    fn new() -> Self {
        let fresh = |(_, count, _): (u64, u64, u8)| (0..count).map(|_| FrameEntry::default());
        Self {
            entries: RANGES.map(|range| fresh(range).collect()).into(),
        }
    }

    fn map(&self) -> MemoryMap<'_> {
        let mut ranges = Vec::new();
        for ((start, count, node), entries) in RANGES.into_iter().zip(&self.entries) {
            let frames = FrameRange {
                start: Mfn(start),
                count,
            };
            // Not in order: the map sorts.
            ranges.insert(
                0,
                MemoryRange {
                    frames,
                    node: NodeId(node),
                    entries,
                },
            );
        }
        MemoryMap::new(&ranges).unwrap()
    }
}

fn filled(map: &MemoryMap<'_>) -> [Pool; NODES] {
    let mut pools = [Pool::new(NodeId(0)), Pool::new(NodeId(1))];
    for range in map.ranges() {
        let pool = &mut pools[usize::from(range.node.0)];
        pool.add(map, range.frames, Origin::Machine).unwrap();
        let again = pool.add(map, range.frames, Origin::Machine);
        assert!(again.is_err(), "added twice");
    }
    pools
}

fn owner(vm: u16, gfn: u64) -> Owner {
    Owner {
        vm: VmId {
            index: vm,
            generation: 1,
        },
        gfn: Gfn(gfn),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        home: u8,
        order: u8,
        purpose: u8,
    },
    Free {
        which: prop::sample::Index,
    },
    FreeWrongly {
        frame: prop::sample::Index,
        order: u8,
    },
    Take {
        which: prop::sample::Index,
        chunk: u64,
    },
    Reclaim {
        node: u8,
        budget: usize,
    },
    GiveUpReserved {
        which: prop::sample::Index,
    },
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        4 => (0..2_u8, 0..=MAX_ORDER, 0..5_u8)
            .prop_map(|(home, order, purpose)| Step::Allocate { home, order, purpose }),
        3 => any::<Index>().prop_map(|which| Step::Free { which }),
        1 => (any::<Index>(), 0..=MAX_ORDER + 1)
            .prop_map(|(frame, order)| Step::FreeWrongly { frame, order }),
        2 => (any::<Index>(), 0..32_u64).prop_map(|(which, chunk)| Step::Take { which, chunk }),
        1 => (0..2_u8, 0..200_usize).prop_map(|(node, budget)| Step::Reclaim { node, budget }),
        1 => any::<Index>().prop_map(|which| Step::GiveUpReserved { which }),
    ]
}

/// A block as it was allocated.
#[derive(Clone, Copy)]
struct Block {
    first: u64,
    order: u8,
    owner: Owner,
    /// Whether its frames are each a block of their own.
    of_guest: bool,
}

/// What the pools should hold: for every frame that is not free, its use and its block.
struct World<'a> {
    map: &'a MemoryMap<'a>,
    pools: [Pool; NODES],
    used: BTreeMap<u64, (Use, usize)>,
    /// By number; those that are gone have no frame.
    blocks: Vec<Block>,
    given: [[u64; NODES]; NODES],
}

impl Block {
    fn frames(self) -> Range<u64> {
        self.first..self.first + (1 << self.order)
    }
}

impl World<'_> {
    fn node_of(frame: u64) -> usize {
        let range = RANGES
            .iter()
            .find(|r| (r.0..r.0 + r.1).contains(&frame))
            .unwrap();
        usize::from(range.2)
    }

    /// Whether an aligned block of free frames of `order` exists on `node`, by brute force.
    fn could_give(&self, node: usize, order: u8) -> bool {
        let size = 1_u64 << order;
        RANGES.iter().filter(|r| usize::from(r.2) == node).any(|r| {
            let mut at = r.0.next_multiple_of(size);
            while at + size <= r.0 + r.1 {
                let Some((taken, _)) = self.used.range(at..at + size).next_back() else {
                    return true;
                };
                at = (taken + 1).next_multiple_of(size);
            }
            false
        })
    }

    fn allocate(&mut self, home: u8, order: u8, purpose: u8) {
        let id = self.blocks.len();
        let owner = owner(u16::from(purpose), 512 * id as u64);
        let (purpose, usage) = match purpose {
            0 => (Purpose::Hypervisor, Use::Hypervisor),
            1 => (Purpose::Table, Use::Table),
            2 => (Purpose::Private(owner), Use::Private),
            3 => (Purpose::Reserved(owner), Use::Reserved),
            _ => (Purpose::Replica(owner), Use::Replica),
        };
        let of_guest = ![Use::Hypervisor, Use::Table].contains(&usage);
        let preference = PreferenceOrder::new(NODES, |a, b| 10 + u32::from(a != b));
        let home = NodeId(home);
        let nodes = preference.from(home);
        let wanted = nodes
            .iter()
            .find(|node| self.could_give(usize::from(node.0), order));
        let mut asked = nodes.iter().map(|node| usize::from(node.0));
        let got = asked.find_map(|n| self.pools[n].allocate(self.map, order, purpose, home));
        if usage == Use::Reserved && order < CHUNK_ORDER {
            assert_eq!(got, None);
            return;
        }
        assert_eq!(got.is_some(), wanted.is_some());
        let Some(first) = got else { return };
        let node = Self::node_of(first.0);
        assert_eq!(wanted, Some(&NodeId(node as u8)), "nearest first");
        assert!(first.is_aligned(1 << order));
        self.given[node][usize::from(home.0)] += 1 << order;
        let block = Block {
            first: first.0,
            order,
            owner,
            of_guest,
        };
        for frame in block.frames() {
            assert_eq!(Self::node_of(frame), node);
            assert_eq!(self.used.insert(frame, (usage, id)), None, "given twice");
            let entry = self.map.entry(Mfn(frame)).unwrap();
            if usage == Use::Reserved && !Mfn(frame).is_aligned(CHUNK_FRAMES) {
                assert!(entry.lock().is_none(), "it is its chunk's");
                continue;
            }
            let entry = entry.lock().unwrap();
            assert_eq!(
                (entry.state().node, entry.state().pins),
                (NodeId(node as u8), 0)
            );
            if of_guest {
                assert_eq!(entry.owner().gfn, owner.gfn.add(frame - first.0));
            }
        }
        self.blocks.push(block);
    }

    /// The frames that block `id` still has.
    fn held(&self, id: usize) -> Vec<u64> {
        let frames = self.used.range(self.blocks[id].frames());
        frames
            .filter(|(_, (_, of))| *of == id)
            .map(|(frame, _)| *frame)
            .collect()
    }

    fn free(&mut self, id: usize) {
        let block = self.blocks[id];
        self.give_up_reserved(id);
        let held = self.held(id);
        let pool = &mut self.pools[Self::node_of(block.first)];
        if held.len() == 1 << block.order {
            assert_eq!(pool.free(self.map, Mfn(block.first), block.order), Ok(()));
        } else {
            // It is gone, or a part was reclaimed: the rest goes one by one.
            for frame in &held {
                assert_eq!(pool.free(self.map, Mfn(*frame), 0), Ok(()));
            }
        }
        self.used.retain(|_, (_, of)| *of != id);
    }

    /// Tries to free a run that is no block: all must stay as it is.
    fn free_wrongly(&mut self, frame: prop::sample::Index, order: u8) {
        let range = RANGES[frame.index(RANGES.len())];
        let first = range.0 + frame.index(range.1 as usize) as u64;
        let is_single = |frame| {
            let id = self.used.get(&frame).map(|(_, id)| *id);
            let is_taken = self.used.get(&frame).map(|(usage, _)| *usage) != Some(Use::Reserved);
            let is_single = |id: usize| self.blocks[id].of_guest || self.blocks[id].order == 0;
            is_taken && id.is_some_and(is_single)
        };
        let head = self.used.get(&first).map(|(_, id)| self.blocks[*id]);
        let is_block = head.is_some_and(|block| (block.first, block.order) == (first, order))
            && self.used[&first].0 != Use::Reserved;
        let right = Self::node_of(first);
        if !is_block && !(first..first + (1 << order)).all(is_single) {
            assert!(self.pools[right].free(self.map, Mfn(first), order).is_err());
        }
        assert!(
            self.pools[1 - right]
                .free(self.map, Mfn(first), order)
                .is_err()
        );
    }

    fn take(&mut self, id: usize, chunk: u64) {
        let block = self.blocks[id];
        let at = CHUNK_FRAMES * chunk % (1 << block.order);
        let first = block.first + at;
        let expected = self.used.get(&first) == Some(&(Use::Reserved, id));
        let owner = Owner {
            gfn: block.owner.gfn.add(at),
            ..block.owner
        };
        let stranger = Owner {
            gfn: owner.gfn.add(1),
            ..owner
        };
        assert!(!self.map.take_reserved(Mfn(first), stranger));
        assert!(!self.map.take_reserved(Mfn(first + 1), owner));
        assert_eq!(self.map.take_reserved(Mfn(first), owner), expected);
        for frame in (first..first + CHUNK_FRAMES).filter(|_| expected) {
            self.used.insert(frame, (Use::Private, id));
            let entry = self.map.entry(Mfn(frame)).unwrap().lock().unwrap();
            assert_eq!(entry.owner().gfn, owner.gfn.add(frame - first));
        }
    }

    fn reclaim(&mut self, node: usize, budget: usize) {
        let before = self.used.len();
        let freed = self.pools[node].reclaim_reserved(self.map, budget);
        self.forget_freed();
        assert_eq!(before - self.used.len(), freed as usize);
        // No node has more chunks than this: once round, nothing is left.
        if budget >= 180 {
            let of_node = |(frame, _): &(&u64, _)| Self::node_of(**frame) == node;
            let mut left = self.used.iter().filter(of_node);
            assert!(left.all(|(_, (usage, _))| *usage != Use::Reserved));
        }
    }

    fn give_up_reserved(&mut self, id: usize) {
        let block = self.blocks[id];
        let pool = &mut self.pools[Self::node_of(block.first)];
        let mut free =
            || pool.free_reserved(self.map, Mfn(block.first), 1 << block.order, block.owner);
        let freed = free();
        assert_eq!(free(), 0, "once");
        let before = self.used.len();
        self.used.retain(|_, held| *held != (Use::Reserved, id));
        assert_eq!(before - self.used.len(), freed as usize);
    }

    /// Only reserved frames may have become free.
    fn forget_freed(&mut self) {
        let map = self.map;
        self.used.retain(|frame, (usage, _)| {
            let is_free = map.census(Mfn(*frame), 1)[Use::Free as usize] == 1;
            assert!(!is_free || *usage == Use::Reserved);
            !is_free
        });
    }

    fn step(&mut self, step: &Step) {
        let count = self.blocks.len();
        match step {
            Step::Allocate {
                home,
                order,
                purpose,
            } => self.allocate(*home, *order, *purpose),
            Step::FreeWrongly { frame, order } => self.free_wrongly(*frame, *order),
            Step::Reclaim { node, budget } => self.reclaim(usize::from(*node), *budget),
            _ if count == 0 => {}
            Step::Free { which } => self.free(which.index(count)),
            Step::Take { which, chunk } => self.take(which.index(count), *chunk),
            Step::GiveUpReserved { which } => self.give_up_reserved(which.index(count)),
        }
    }

    fn check(&self) {
        for (node, pool) in self.pools.iter().enumerate() {
            let ranges = RANGES.iter().filter(|r| usize::from(r.2) == node);
            let mut free = 0;
            for frame in ranges.flat_map(|r| r.0..r.0 + r.1) {
                let census = self.map.census(Mfn(frame), 1);
                let wanted = self.used.get(&frame).map(|(usage, _)| *usage);
                assert_eq!(census[wanted.unwrap_or_default() as usize], 1);
                free += census[Use::Free as usize];
            }
            let counts = pool.counts();
            let in_blocks: u64 = (0..).zip(counts.blocks).map(|(order, n)| n << order).sum();
            assert_eq!((counts.free, in_blocks), (free, free));
            assert_eq!(counts.given_local, self.given[node][node]);
            assert_eq!(counts.given_remote, self.given[node][1 - node]);
        }
    }
}

fn without_given(counts: PoolCounts) -> PoolCounts {
    PoolCounts {
        given_local: 0,
        given_remote: 0,
        ..counts
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_frame_is_given_twice_or_lost(steps in prop::collection::vec(step(), 1..80)) {
        let machine = Machine::new();
        let map = machine.map();
        let pools = filled(&map);
        let fresh = pools.each_ref().map(|pool| without_given(pool.counts()));
        let mut world = World {
            map: &map,
            pools,
            used: BTreeMap::new(),
            blocks: Vec::new(),
            given: [[0; NODES]; NODES],
        };
        for step in steps {
            world.step(&step);
            world.check();
        }
        for id in 0..world.blocks.len() {
            world.free(id);
        }
        prop_assert!(world.used.is_empty());
        world.check();
        let now = world.pools.each_ref().map(|pool| without_given(pool.counts()));
        prop_assert_eq!(now, fresh, "blocks join again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Long lists, cut anywhere.
    #[test]
    fn frames_freed_in_any_order_join_again(
        order in Just((0..1024).collect::<Vec<u64>>()).prop_shuffle(),
        kept in 0..1024_usize,
    ) {
        let machine = Machine::new();
        let map = machine.map();
        let [mut pool, _] = filled(&map);
        let fresh = without_given(pool.counts());
        let mut all = Vec::new();
        while let Some(at) = pool.allocate(&map, 0, Purpose::Table, NodeId(0)) {
            all.push(at);
        }
        prop_assert_eq!(all.len(), 1500 + 1024);
        let (late, early) = all.split_at(1500);
        for n in &order[..kept] {
            pool.free(&map, early[*n as usize], 0).unwrap();
        }
        for _ in 0..kept {
            prop_assert!(pool.allocate(&map, 0, Purpose::Table, NodeId(0)).is_some());
        }
        prop_assert_eq!(pool.counts().free, 0);
        for at in order.iter().map(|n| &early[*n as usize]).chain(late) {
            prop_assert_eq!(pool.free(&map, *at, 0), Ok(()));
        }
        prop_assert_eq!(without_given(pool.counts()), fresh);
    }
}

#[test]
fn a_run_that_cuts_a_block_is_refused() {
    let entries: Vec<_> = (0..4).map(|_| FrameEntry::default()).collect();
    let frames = FrameRange {
        start: Mfn(4),
        count: 4,
    };
    let range = MemoryRange {
        frames,
        node: NodeId(0),
        entries: &entries,
    };
    let map = MemoryMap::new(&[range]).unwrap();
    let mut pool = Pool::new(NodeId(0));
    pool.add(&map, frames, Origin::Machine).unwrap();
    let guest = Purpose::Private(owner(1, 0));
    let singles = [(); 2].map(|()| pool.allocate(&map, 0, guest, NodeId(0)).unwrap());
    let pair = pool
        .allocate(&map, 1, Purpose::Hypervisor, NodeId(0))
        .unwrap();
    assert_eq!((singles, pair), ([Mfn(4), Mfn(5)], Mfn(6)));
    assert_eq!(pool.free(&map, Mfn(4), 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, pair, 1), Ok(()));
    assert_eq!(pool.free(&map, singles[0], 1), Ok(()));
    assert_eq!(pool.counts().blocks[2], 1);
}

#[test]
fn wrong_frees_are_refused() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, mut other] = filled(&map);
    let block = pool
        .allocate(&map, 3, Purpose::Hypervisor, NodeId(0))
        .unwrap();
    assert_eq!(other.free(&map, block, 3), Err(Refused::NotHere));
    assert_eq!(pool.free(&map, block, 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, block.add(4), 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, block.add(1), 3), Err(Refused::Order));
    let frame = map.entry(block.add(5)).unwrap();
    let guard = frame.lock().unwrap();
    assert_eq!(pool.free(&map, block, 3), Err(Refused::Locked));
    drop(guard);
    frame.lock().unwrap().pin().unwrap();
    assert_eq!(pool.free(&map, block, 3), Err(Refused::Pinned));
    frame.lock().unwrap().unpin().unwrap();
    assert_eq!(pool.free(&map, block, 3), Ok(()));
    assert_eq!(pool.free(&map, block, 3), Err(Refused::PoolOnly));
    assert_eq!(pool.free(&map, Mfn(0), 0), Err(Refused::NotHere));
}

#[test]
fn a_shared_frame_is_freed_when_nobody_uses_it() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let at = pool
        .allocate(&map, 0, Purpose::Private(owner(1, 7)), NodeId(0))
        .unwrap();
    let entry = map.entry(at).unwrap();
    let mut frame = entry.lock().unwrap();
    frame.step(Event::Share).unwrap();
    drop(frame);
    assert_eq!(pool.free(&map, at, 0), Err(Refused::References(1)));
    let mut frame = entry.lock().unwrap();
    assert_eq!(frame.drop_reference(), Ok(0));
    frame.step(Event::Retire).unwrap();
    drop(frame);
    assert_eq!(pool.free(&map, at, 0), Ok(()));
}

#[test]
fn memory_set_aside_is_in_no_pool() {
    let machine = Machine::new();
    let map = machine.map();
    let kept = FrameRange {
        start: Mfn(0x8_0000),
        count: 512,
    };
    map.set_aside(kept).unwrap();
    assert!(map.set_aside(kept).is_err());
    let mut pool = Pool::new(NodeId(0));
    let whole = FrameRange {
        start: Mfn(0x8_0000),
        count: 1024,
    };
    assert!(pool.add(&map, whole, Origin::Machine).is_err());
    let rest = FrameRange {
        start: Mfn(0x8_0200),
        count: 512,
    };
    pool.add(&map, rest, Origin::Lent).unwrap();
    let block = pool.allocate(&map, 9, Purpose::Table, NodeId(0)).unwrap();
    assert_eq!(block, rest.start);
    assert_eq!(map.entry(block).unwrap().state().origin, Origin::Lent);
    assert_eq!(
        map.census(whole.start, whole.count)[Use::Hypervisor as usize],
        512
    );
    assert_eq!(entries_bytes(1024), 0x8000);
    assert_eq!(entries_bytes(1), 0x1000);
}

#[test]
fn bad_maps_are_refused() {
    let entries: Vec<_> = (0..4).map(|_| FrameEntry::default()).collect();
    let range = |start, count, node| MemoryRange {
        frames: FrameRange {
            start: Mfn(start),
            count,
        },
        node: NodeId(node),
        entries: &entries,
    };
    let error = |ranges: &[_]| MemoryMap::new(ranges).map(|_| ()).unwrap_err();
    assert_eq!(error(&[range(0, 5, 0)]), MapError::Entries(Mfn(0)));
    assert_eq!(
        error(&[range(u64::MAX, 4, 0)]),
        MapError::Entries(Mfn(u64::MAX))
    );
    assert_eq!(
        error(&[range(8, 4, 0), range(5, 4, 0)]),
        MapError::Overlap(Mfn(8))
    );
    assert_eq!(error(&[range(0, 4, 8)]), MapError::Node(NodeId(8)));
    assert_eq!(error(&[range(0, 4, 0); 65]), MapError::Ranges);
    let map = MemoryMap::new(&[range(4, 4, 0), range(12, 4, 0)]).unwrap();
    assert!(map.entry(Mfn(3)).is_none() && map.entry(Mfn(8)).is_none());
    assert!(map.run(Mfn(6), 3).is_none() && map.run(Mfn(6), u64::MAX).is_none());
    assert_eq!(map.run(Mfn(6), 2).unwrap().len(), 2);
}
