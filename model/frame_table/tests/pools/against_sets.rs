//! Pools of several nodes and ranges against plain sets of frames.

use crate::machine::{Machine, NODES, RANGES, RESERVE, filled, owner};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use machine_fake::census;
use model_addr::{Mfn, NodeId};
use model_frame_table::{
    CHUNK_FRAMES, CHUNK_ORDER, Contents, MAX_ORDER, MemoryMap, Owner, Pool, PoolCounts,
    PreferenceOrder, Purpose, Use,
};
use proptest::prelude::*;

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
    /// An idle CPU zeroes until it is wanted elsewhere.
    ZeroAhead {
        node: u8,
        frames: usize,
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
        2 => (0..2_u8, 0..700_usize).prop_map(|(node, frames)| Step::ZeroAhead { node, frames }),
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
    /// Frames that hold zeroes: nobody may have written them since.
    zeroes: BTreeSet<u64>,
    /// Blocks that were reserved when there were zeroed ones.
    reserved_zeroed: BTreeSet<usize>,
    /// Pools that have as many zeroed blocks as they want, or had and do not want more yet.
    full: [bool; NODES],
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
        let zeroed = self.pools.each_ref().map(|pool| pool.counts().zeroed());
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
        if usage == Use::Reserved && order == MAX_ORDER && zeroed[node] > 0 {
            self.reserved_zeroed.insert(id);
        }
        let block = Block {
            first: first.0,
            order,
            owner,
            of_guest,
        };
        for frame in block.frames() {
            assert_eq!(Self::node_of(frame), node);
            assert_eq!(self.used.insert(frame, (usage, id)), None, "given twice");
            if usage != Use::Reserved {
                self.zeroes.remove(&frame);
            }
            let entry = self.map.entry(Mfn(frame)).unwrap();
            if usage == Use::Reserved && !Mfn(frame).is_aligned(CHUNK_FRAMES) {
                assert!(entry.lock().is_none(), "it is its chunk's");
                continue;
            }
            let entry = entry.lock().unwrap();
            assert_eq!(entry.state().node, NodeId(node as u8));
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
            // It is gone, or a part was reclaimed: the rest goes in the runs that are left.
            let held: Vec<Mfn> = held.into_iter().map(Mfn).collect();
            let nobody = || false;
            assert_eq!(pool.free_each(self.map, &held, nobody), held.len());
            assert_eq!(pool.free_each(self.map, &held, nobody), 0);
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
        assert_eq!(self.map.take_reserved(Mfn(first), stranger), None);
        assert_eq!(self.map.take_reserved(Mfn(first + 1), owner), None);
        let contents = self.map.take_reserved(Mfn(first), owner);
        let is_zeroed = self.reserved_zeroed.contains(&id);
        let wanted = [Contents::Unknown, Contents::Zeroes][usize::from(is_zeroed)];
        assert_eq!(contents, expected.then_some(wanted));
        for frame in (first..first + CHUNK_FRAMES).filter(|_| expected) {
            self.used.insert(frame, (Use::Private, id));
            let was_zero = self.zeroes.remove(&frame);
            assert!(was_zero || !is_zeroed, "a frame marked clean is not");
            let entry = self.map.entry(Mfn(frame)).unwrap().lock().unwrap();
            assert_eq!(entry.owner().gfn, owner.gfn.add(frame - first));
        }
    }

    fn reclaim(&mut self, node: usize, budget: usize) {
        let before = self.used.len();
        // Sixteen for each chunk, as many as one costs that is taken.
        let freed = self.pools[node].reclaim_reserved(self.map, 16 * budget);
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

    fn zero_ahead(&mut self, node: usize, frames: usize) {
        for _ in 0..frames {
            let pool = &mut self.pools[node];
            let counts = pool.counts();
            let has_block = counts.blocks[usize::from(MAX_ORDER)] > 0;
            // A quarter of two blocks is none.
            let is_full = counts.zeroed() == RESERVE << MAX_ORDER;
            self.full[node] = is_full || self.full[node] && counts.zeroed() > 0;
            let is_wanted = has_block && !self.full[node];
            assert_eq!(pool.wants_zeroing(), is_wanted);
            let zeroed = pool.zero_ahead(self.map, |frame| {
                assert!(!self.used.contains_key(&frame.0), "it is somebody's");
                self.zeroes.insert(frame.0);
            });
            assert_eq!(zeroed.is_some(), is_wanted);
        }
    }

    /// Only reserved frames may have become free.
    fn forget_freed(&mut self) {
        let map = self.map;
        self.used.retain(|frame, (usage, _)| {
            let is_free = census(map, Mfn(*frame), 1)[Use::Free as usize] == 1;
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
            Step::ZeroAhead { node, frames } => self.zero_ahead(usize::from(*node), *frames),
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
                let census = census(self.map, Mfn(frame), 1);
                let wanted = self.used.get(&frame).map(|(usage, _)| *usage);
                assert_eq!(census[wanted.unwrap_or_default() as usize], 1);
                free += census[Use::Free as usize];
            }
            let counts = pool.counts();
            let order = |list: u8| list.min(MAX_ORDER);
            let blocks = (0..).zip(counts.blocks);
            let in_blocks: u64 = blocks.map(|(list, n)| n << order(list)).sum();
            assert_eq!((counts.free, in_blocks), (free, free));
            assert_eq!(counts.given_local, self.given[node][node]);
            assert_eq!(counts.given_remote, self.given[node][1 - node]);
            let of_node = |id: &&usize| Self::node_of(self.blocks[**id].first) == node;
            let zeroed = self.reserved_zeroed.iter().filter(of_node).count() as u64;
            assert_eq!(counts.given_zeroed, zeroed << MAX_ORDER);
        }
    }
}

/// The free blocks, whether they are zeroed or not.
fn without_given(counts: PoolCounts) -> PoolCounts {
    let mut blocks = counts.blocks;
    let largest = usize::from(MAX_ORDER);
    blocks[largest] += core::mem::take(&mut blocks[largest + 1]);
    PoolCounts {
        free: counts.free,
        blocks,
        ..PoolCounts::default()
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
            zeroes: BTreeSet::new(),
            reserved_zeroed: BTreeSet::new(),
            full: [false; NODES],
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
