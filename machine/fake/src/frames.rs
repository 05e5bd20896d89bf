//! The frames of a small NUMA machine, and tables that one VM's MMU walks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine_contract::TableMemory;
use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId};
use model_address_space::{Frames, Translation};
use model_frame_table::{
    CHUNK_FRAMES, CacheKey, Contents, FrameEntry, FrameState, MAX_NODES, MAX_ORDER, MAX_RANGES,
    MemoryMap, MemoryRange, Origin, Owner, Pool, PoolCounts, PreferenceOrder, Purpose, Use,
};
use model_pmap::Why;
use model_sharing::{Expect, NotJoined};
use model_stage2::{Invalidation, IpaSize, VmidBits, vtcr};
use zerocopy::{FromBytes, IntoBytes};

use crate::sharing::Sharing;
use crate::views::Views;
use crate::{FakeMmu, FakeTables, Walker};

/// Frames of 2 MiB.
const BLOCK: u64 = 1 << MAX_ORDER;

/// Chunks that a reclaim looks at: more than a test's machine has.
const ALL: usize = 1 << 12;

/// How many frames are used for what, of `count` frames from `first`: indexed by [`Use`]. Frames that
/// the machine does not have are not counted.
pub fn census(map: &MemoryMap<'_>, first: Mfn, count: u64) -> [u64; Use::ALL.len()] {
    let mut counts = [0; Use::ALL.len()];
    let usage = |frame| map.entry(frame).map(|entry| entry.state().usage);
    for frame in (0..count).map(|n| first.add(n)) {
        let chunk = frame.align_down(CHUNK_FRAMES);
        match usage(frame) {
            Some(Use::Free) if usage(chunk) == Some(Use::Reserved) => {
                counts[Use::Reserved as usize] += 1;
            }
            Some(usage) => counts[usage as usize] += 1,
            None => {}
        }
    }
    counts
}

/// The machine's frames with their contents: pools per node, allocations that fail on demand.
///
/// What a frame holds is poison until it is zeroed. Freeing a frame forgets its contents, and so
/// does allocating it, but for those that are reserved as zeroes. Zeroing it a second time before
/// that fails the test: somebody may see it already.
///
/// What is stored is in caches until the frame is cleaned; memory, and instruction caches, still hold what was
/// there before. [`Self::check_shown`] is for frames that guests have.
#[derive(Debug)]
pub struct FakeFrames {
    map: MemoryMap<'static>,
    preference: PreferenceOrder,
    inner: Mutex<Inner>,
    pub(crate) sharing: Sharing,
}

#[derive(Debug)]
struct Inner {
    pools: Vec<Pool>,
    contents: BTreeMap<Mfn, Views>,
    fail_after: Option<u64>,
    /// Frames that are kept for emergencies.
    kept: u64,
    fail_records_after: Option<u64>,
}

/// Counts an allocation; whether it is to fail.
fn fails(after: &mut Option<u64>) -> bool {
    match after {
        None => false,
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
    }
}

impl Inner {
    /// Forgets what new frames held, but for chunks that are reserved as zeroes.
    fn forget(&mut self, map: &MemoryMap<'_>, first: Mfn, order: u8) {
        for frame in (0..1 << order).map(|n| first.add(n)) {
            let chunk = map
                .entry(frame.align_down(CHUNK_FRAMES))
                .map(FrameEntry::state);
            let is_kept = |state: FrameState| {
                state.usage == Use::Reserved && state.contents == Contents::Zeroes
            };
            if !chunk.is_some_and(is_kept) {
                self.at(frame).forget();
            }
        }
    }

    fn at(&mut self, frame: Mfn) -> &mut Views {
        self.contents.entry(frame).or_default()
    }
}

impl FakeFrames {
    /// A machine with these frames, one run for each node, all of them in its pools.
    pub fn new(nodes: &[FrameRange]) -> Self {
        Self::with_image(nodes, Mfn(0), &[])
    }

    /// As [`Self::new`], with the pages of an image in frames apart, from `first` on.
    pub fn with_image(nodes: &[FrameRange], first: Mfn, pages: &[Vec<u8>]) -> Self {
        let ranges = (0..).zip(nodes).map(|(node, frames)| range(node, *frames));
        let mut ranges: Vec<_> = ranges.collect();
        let image = FrameRange {
            start: first,
            count: pages.len() as u64,
        };
        if image.count > 0 {
            ranges.push(range(0, image));
        }
        let map = MemoryMap::new(&ranges).unwrap_or_else(|error| bad(&error));
        let mut pools = Vec::new();
        for range in &ranges[..nodes.len()] {
            let mut pool = Pool::new(range.node);
            let added = pool.add(&map, range.frames, Origin::Machine);
            added.unwrap_or_else(|error| bad(&error));
            pools.push(pool);
        }
        if image.count > 0 {
            let aside = map.set_aside_image(image);
            aside.unwrap_or_else(|error| bad(&error));
        }
        let mut contents = BTreeMap::new();
        for (n, bytes) in (0..).zip(pages) {
            contents.insert(first.add(n), Views::written(bytes));
        }
        Self::of(map, pools, contents)
    }

    /// A machine of `frames` frames on `nodes` nodes, of which each pool has `blocks` of 2 MiB, far from each
    /// other; the others are nobody's. Entries that are not touched take no memory of the host's.
    pub fn sparse(frames: u64, nodes: usize, blocks: u64) -> Self {
        let nodes = nodes.min(MAX_NODES);
        let count = (frames / MAX_RANGES as u64).next_multiple_of(BLOCK) - BLOCK;
        let ranges = (0..MAX_RANGES as u64).map(|n| MemoryRange {
            frames: FrameRange {
                start: Mfn(n * count),
                count,
            },
            node: NodeId((n as usize % nodes) as u8),
            entries: untouched(count),
        });
        let ranges: Vec<_> = ranges.collect();
        let map = MemoryMap::new(&ranges).unwrap_or_else(|error| bad(&error));
        let mut pools: Vec<Pool> = (0..nodes as u8)
            .map(|node| Pool::new(NodeId(node)))
            .collect();
        let (each, step) = (blocks * nodes as u64 / MAX_RANGES as u64, count / BLOCK);
        for range in &ranges {
            let pool = &mut pools[usize::from(range.node.0)];
            for n in 0..each {
                let start = range.frames.start.add(n * step / each * BLOCK);
                let block = FrameRange {
                    start,
                    count: BLOCK,
                };
                let added = pool.add(&map, block, Origin::Machine);
                added.unwrap_or_else(|error| bad(&error));
            }
        }
        Self::of(map, pools, BTreeMap::new())
    }

    fn of(map: MemoryMap<'static>, mut pools: Vec<Pool>, contents: BTreeMap<Mfn, Views>) -> Self {
        pools.sort_by_key(Pool::node);
        let preference = PreferenceOrder::new(pools.len(), |a, b| 10 + u32::from(a != b));
        let inner = Inner {
            pools,
            contents,
            fail_after: None,
            kept: 0,
            fail_records_after: None,
        };
        Self {
            map,
            preference,
            inner: Mutex::new(inner),
            sharing: Sharing::default(),
        }
    }

    /// Lets the allocation after `successes` more fail, and all that follow, until it is called
    /// with `None`.
    pub fn fail_after(&self, successes: Option<u64>) {
        self.inner().fail_after = successes;
    }

    /// Lets so many urgent allocations succeed while all others fail.
    pub fn keep_for_emergencies(&self, frames: u64) {
        self.inner().kept = frames;
    }

    /// As [`Self::fail_after`], for the records of users.
    pub fn fail_records_after(&self, successes: Option<u64>) {
        self.inner().fail_records_after = successes;
    }

    pub(crate) fn record_fails(&self) -> bool {
        fails(&mut self.inner().fail_records_after)
    }

    /// The numbers of each node's pool.
    pub fn counts(&self) -> Vec<PoolCounts> {
        self.inner().pools.iter().map(Pool::counts).collect()
    }

    /// Takes reserved frames of `node` back, as another VM's need does; how many.
    pub fn reclaim(&self, node: NodeId, budget: usize) -> u64 {
        self.inner().pools[usize::from(node.0)].reclaim_reserved(&self.map, budget)
    }

    /// Zeroes up to `count` frames of `node` ahead, of the `blocks` blocks that it wants zeroed.
    pub fn zero_ahead(&self, node: NodeId, blocks: u64, count: u64) {
        let mut inner = self.inner();
        let Inner {
            pools, contents, ..
        } = &mut *inner;
        let pool = &mut pools[usize::from(node.0)];
        pool.keep_zeroed(blocks);
        for _ in 0..count {
            let _ = pool.zero_ahead(&self.map, |frame| {
                let is_free = census(&self.map, frame, 1)[Use::Free as usize] == 1;
                assert!(is_free, "{frame} is somebody's");
                contents.entry(frame).or_default().zero();
            });
        }
    }

    /// What a frame holds; `None` where it was not zeroed since it was last free.
    pub fn contents(&self, frame: Mfn) -> Option<Vec<u8>> {
        let inner = self.inner();
        let page = inner.contents.get(&frame).and_then(Views::cached);
        page.map(|page| page.to_vec())
    }

    /// Copies bytes out of a frame; poison where it was not zeroed.
    pub fn load(&self, frame: Mfn, offset: u64, into: &mut [u8]) {
        self.inner().at(frame).load(offset, into);
    }

    /// As [`Self::load`], as a guest whose caches are off: what memory holds.
    pub fn load_uncached(&self, frame: Mfn, offset: u64, into: &mut [u8]) {
        self.inner().at(frame).load_uncached(offset, into);
    }

    /// Stores bytes into a frame that was zeroed.
    pub fn store(&self, frame: Mfn, offset: u64, bytes: &[u8]) {
        self.inner().at(frame).store(frame, offset, bytes);
    }

    /// As [`Self::store`], as a guest whose caches are off: caches may still give what was there before.
    pub fn store_uncached(&self, frame: Mfn, offset: u64, bytes: &[u8]) {
        self.inner().at(frame).store_uncached(offset, bytes);
    }

    /// Stores all of a frame, whatever it held.
    pub fn fill(&self, frame: Mfn, bytes: &[u8; FRAME_SIZE as usize]) {
        self.inner().at(frame).fill(frame, bytes);
    }

    /// Fails the test where a guest that has `frame` could find more in it than what caches give: data or
    /// instructions of who had it before, or of its own where others use it, too.
    pub fn check_shown(&self, frame: Mfn) {
        let usage = self.map.entry(frame).map(|entry| entry.state().usage);
        let fault = self.inner().at(frame).fault(usage == Some(Use::Shared));
        if let Some(fault) = fault {
            bad(&format_args!("{frame} is shown to a guest, and {fault}"));
        }
    }

    pub(crate) fn clean_frame(&self, frame: Mfn) {
        self.inner().at(frame).clean();
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

/// So many entries in memory that the host gives when it is touched: zeroes of words with a smaller alignment than
/// an entry's are not written.
fn untouched(count: u64) -> &'static [FrameEntry] {
    const WORDS: usize = size_of::<FrameEntry>() / size_of::<u64>();
    let words = vec![0_u64; (count as usize + 1) * WORDS].leak();
    let skipped = words.as_ptr().align_offset(align_of::<FrameEntry>());
    let words = &mut words[skipped..][..count as usize * WORDS];
    let entries = <[FrameEntry]>::mut_from_bytes(words.as_mut_bytes());
    entries.unwrap_or_else(|error| bad(&error))
}

#[allow(clippy::panic, reason = "it is there to fail the test")]
pub(crate) fn bad(why: &dyn std::fmt::Display) -> ! {
    panic!("{why}")
}

impl Frames for FakeFrames {
    fn map(&self) -> &MemoryMap<'_> {
        &self.map
    }

    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        let mut inner = self.inner();
        if fails(&mut inner.fail_after) {
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
        let first = take(false).or_else(|| take(true))?;
        inner.forget(&self.map, first, order);
        Some(first)
    }

    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        let mut inner = self.inner();
        if fails(&mut inner.fail_after) {
            return None;
        }
        let pool = &mut inner.pools[usize::from(home.0)];
        let first = pool.allocate(&self.map, order, purpose, home)?;
        inner.forget(&self.map, first, order);
        Some(first)
    }

    fn free(&self, first: Mfn, order: u8) {
        let mut inner = self.inner();
        for n in 0..1 << order {
            inner.at(first.add(n)).forget();
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
            let was_used = inner.at(frame).zero();
            assert!(!was_used, "{frame} is in use already");
        }
    }

    fn drop_code(&self, first: Mfn, count: u64) {
        let mut inner = self.inner();
        for n in 0..count {
            inner.at(first.add(n)).drop_code();
        }
    }

    fn allocate_for_break(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        Frames::allocate(self, home, 0, Purpose::Private(owner))
    }

    fn allocate_urgently(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        let failing = {
            let mut inner = self.inner();
            inner.kept = inner.kept.checked_sub(1)?;
            inner.fail_after.take()
        };
        let frame = Frames::allocate(self, home, 0, Purpose::Private(owner));
        self.inner().fail_after = failing;
        frame
    }

    fn copy(&self, from: Mfn, to: Mfn) {
        let page = self.contents(from);
        let page = page.unwrap_or_else(|| bad(&format_args!("{from} was never zeroed")));
        self.zero(to, 1);
        self.store(to, 0, &page);
        self.clean_frame(to);
        self.drop_code(to, 1);
    }

    fn relocate(&self, from: Mfn, to: Mfn) {
        self.clean_frame(from);
        self.copy(from, to);
    }

    fn join(&self, frame: Mfn, user: Owner) -> Result<(), Why> {
        match model_sharing::join(self, frame, user, Expect::Image) {
            Ok(_) => Ok(()),
            Err(NotJoined::OtherGroup) => Err(Why::OtherGroup),
            Err(NotJoined::Gone) => Err(Why::LostRace),
            Err(NotJoined::Full | NotJoined::NoMemory) => Err(Why::Full),
        }
    }

    fn leave(&self, frame: Mfn, user: Owner) {
        let left = model_sharing::leave(self, frame, user, true);
        assert!(left.is_some(), "{user:?} was no user of {frame}");
    }

    fn leave_hidden(&self, frame: Mfn, user: Owner) {
        Frames::leave(self, frame, user);
    }

    fn claim(&self, frame: Mfn, user: Owner) -> bool {
        model_sharing::claim(self, frame, user)
    }

    fn publish(&self, frame: Mfn, user: Owner) -> bool {
        model_sharing::publish(self, frame, user, CacheKey::of_content(0)).is_ok()
    }

    fn enlist(&self, frame: Mfn) {
        model_sharing::enlist(self, frame);
    }

    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]) {
        let mut inner = self.inner();
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let room = (FRAME_SIZE - at % FRAME_SIZE).min(left.len() as u64);
            let (piece, rest) = left.split_at(room as usize);
            let frame = first.add(at / FRAME_SIZE);
            inner.at(frame).write(frame, at % FRAME_SIZE, piece);
            (at, left) = (at + room, rest);
        }
    }
}

/// The tables of a VM as its MMU walks them, from the first table that is allocated: the root.
#[derive(Debug)]
pub struct FakeTranslation {
    /// The MMU.
    pub mmu: FakeMmu,
    root: Option<Mfn>,
    /// Nodes whose CPUs walk from a root of their own, in the order of those.
    nodes: Vec<NodeId>,
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
            nodes: Vec::new(),
        }
    }

    /// The number of the root from which CPUs of `node` walk.
    pub fn root_on(&self, node: NodeId) -> usize {
        let own = self.nodes.iter().position(|own| *own == node);
        own.map_or(0, |own| own + 1)
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

    fn use_root(&mut self, node: NodeId, root: Mfn) {
        self.nodes.push(node);
        let vtcr = vtcr(IpaSize::ONE_TABLE, 48, VmidBits::Eight);
        self.mmu.add_root(Walker::new(vtcr, root));
    }
}
