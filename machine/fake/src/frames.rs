//! The frames of a small NUMA machine, and tables that one VM's MMU walks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine_contract::TableMemory;
use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId};
use model_address_space::{Frames, Translation};
use model_frame_table::{
    FrameEntry, MAX_ORDER, MemoryMap, MemoryRange, Origin, Owner, Pool, PoolCounts,
    PreferenceOrder, Purpose,
};
use model_stage2::{Invalidation, IpaSize, VmidBits, vtcr};

use crate::{FakeMmu, FakeTables, Walker};

/// What a frame that nobody has zeroed yet contains.
const POISON: u8 = 0xa5;

/// Chunks that a reclaim looks at: more than a test's machine has.
const ALL: usize = 1 << 12;

type Page = Box<[u8; FRAME_SIZE as usize]>;

/// The machine's frames with their contents: pools per node, allocations that fail on demand.
///
/// What a frame holds is poison until it is zeroed. Freeing a frame forgets its contents, and
/// zeroing it a second time before that fails the test: somebody may see it already.
#[derive(Debug)]
pub struct FakeFrames {
    map: MemoryMap<'static>,
    preference: PreferenceOrder,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pools: Vec<Pool>,
    contents: BTreeMap<Mfn, Page>,
    fail_after: Option<u64>,
}

impl Inner {
    /// Counts an allocation; whether it is to fail.
    fn fails(&mut self) -> bool {
        match &mut self.fail_after {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}

impl FakeFrames {
    /// A machine with these frames, one run for each node, all of them in its pools.
    pub fn new(nodes: &[FrameRange]) -> Self {
        let ranges = (0..).zip(nodes).map(|(node, frames)| range(node, *frames));
        let ranges: Vec<_> = ranges.collect();
        let map = MemoryMap::new(&ranges).unwrap_or_else(|error| bad(&error));
        let mut pools = Vec::new();
        for range in map.ranges() {
            let mut pool = Pool::new(range.node);
            let added = pool.add(&map, range.frames, Origin::Machine);
            added.unwrap_or_else(|error| bad(&error));
            pools.push(pool);
        }
        pools.sort_by_key(Pool::node);
        let preference = PreferenceOrder::new(nodes.len(), |a, b| 10 + u32::from(a != b));
        let inner = Inner {
            pools,
            contents: BTreeMap::new(),
            fail_after: None,
        };
        Self {
            map,
            preference,
            inner: Mutex::new(inner),
        }
    }

    /// Lets the allocation after `successes` more fail, and all that follow, until it is called
    /// with `None`.
    pub fn fail_after(&self, successes: Option<u64>) {
        self.inner().fail_after = successes;
    }

    /// The numbers of each node's pool.
    pub fn counts(&self) -> Vec<PoolCounts> {
        self.inner().pools.iter().map(Pool::counts).collect()
    }

    /// Takes reserved frames of `node` back, as another VM's need does; how many.
    pub fn reclaim(&self, node: NodeId, budget: usize) -> u64 {
        self.inner().pools[usize::from(node.0)].reclaim_reserved(&self.map, budget)
    }

    /// What a frame holds; `None` where it was not zeroed since it was last free.
    pub fn contents(&self, frame: Mfn) -> Option<Vec<u8>> {
        let inner = self.inner();
        inner.contents.get(&frame).map(|page| page.to_vec())
    }

    /// Copies bytes out of a frame; poison where it was not zeroed.
    pub fn load(&self, frame: Mfn, offset: u64, into: &mut [u8]) {
        match self.inner().contents.get(&frame) {
            Some(page) => into.copy_from_slice(&page[offset as usize..][..into.len()]),
            None => into.fill(POISON),
        }
    }

    /// Stores bytes into a frame that was zeroed.
    pub fn store(&self, frame: Mfn, offset: u64, bytes: &[u8]) {
        let mut inner = self.inner();
        let page = inner.contents.get_mut(&frame);
        let page = page.unwrap_or_else(|| bad(&format_args!("{frame} was never zeroed")));
        page[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn range(node: u8, frames: FrameRange) -> MemoryRange<'static> {
    // The tests' machines are few and small: their tables live until the end.
    let entries: Vec<_> = (0..frames.count).map(|_| FrameEntry::default()).collect();
    MemoryRange {
        frames,
        node: NodeId(node),
        entries: entries.leak(),
    }
}

#[allow(clippy::panic, reason = "it is there to fail the test")]
fn bad(why: &dyn std::fmt::Display) -> ! {
    panic!("{why}")
}

impl Frames for FakeFrames {
    fn map(&self) -> &MemoryMap<'_> {
        &self.map
    }

    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        let mut inner = self.inner();
        if inner.fails() {
            return None;
        }
        let nodes = self.preference.from(home);
        let mut take = |reclaim: bool| {
            nodes.iter().find_map(|node| {
                let pool = &mut inner.pools[usize::from(node.0)];
                if reclaim {
                    pool.reclaim_reserved(&self.map, ALL);
                }
                pool.allocate(&self.map, order, purpose, home)
            })
        };
        take(false).or_else(|| take(true))
    }

    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        let mut inner = self.inner();
        if inner.fails() {
            return None;
        }
        inner.pools[usize::from(home.0)].allocate(&self.map, order, purpose, home)
    }

    fn free(&self, first: Mfn, order: u8) {
        let mut inner = self.inner();
        for n in 0..1 << order {
            inner.contents.remove(&first.add(n));
        }
        let entry = self.map.entry(first);
        let node = entry
            .unwrap_or_else(|| bad(&format_args!("no frame {first}")))
            .state()
            .node;
        let freed = inner.pools[usize::from(node.0)].free(&self.map, first, order);
        freed.unwrap_or_else(|error| bad(&error));
    }

    fn free_reserved(&self, first: Mfn, owner: Owner) {
        let node = self
            .map
            .entry(first)
            .map_or(NodeId(0), |entry| entry.state().node);
        let pool = &mut self.inner().pools[usize::from(node.0)];
        pool.free_reserved(&self.map, first, 1 << MAX_ORDER, owner);
    }

    fn zero(&self, first: Mfn, count: u64) {
        let mut inner = self.inner();
        for n in 0..count {
            let frame = first.add(n);
            let old = inner
                .contents
                .insert(frame, Box::new([0; FRAME_SIZE as usize]));
            assert!(old.is_none(), "{frame} is in use already");
        }
    }

    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]) {
        for (n, byte) in (offset..).zip(bytes) {
            self.store(first.add(n / FRAME_SIZE), n % FRAME_SIZE, &[*byte]);
        }
    }
}

/// The tables of a VM as its MMU walks them, from the first table that is allocated: the root.
#[derive(Debug)]
pub struct FakeTranslation {
    /// The MMU.
    pub mmu: FakeMmu,
    root: Option<Mfn>,
}

impl Default for FakeTranslation {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeTranslation {
    /// Tables with a root and nothing else.
    pub fn new() -> Self {
        let mut tables = FakeTables::new();
        let root = tables.allocate_root(1);
        let walker = Walker::new(vtcr(IpaSize::ONE_TABLE, 48, VmidBits::Eight), root);
        Self {
            mmu: FakeMmu::new(tables, walker),
            root: Some(root),
        }
    }

    /// How many tables are allocated now, the root included.
    pub fn tables_in_use(&self) -> usize {
        self.mmu.tables_in_use()
    }
}

impl TableMemory for FakeTranslation {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.root.take().or_else(|| self.mmu.allocate_table())
    }

    fn free_table(&mut self, table: Mfn) {
        self.mmu.free_table(table);
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.mmu.read(table, index)
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.mmu.write(table, index, value);
    }
}

impl Translation for FakeTranslation {
    fn invalidate(&mut self, what: Invalidation) {
        match what {
            Invalidation::Nothing => {}
            Invalidation::Run(run) => self.mmu.invalidate(run.addresses()),
            Invalidation::All => self.mmu.invalidate_all(),
        }
    }
}
