//! The machine's frames: pools of free ones per node, and access to their contents.

use crate::machine::{self, cpu};
use crate::memory::{hiding, sharing, vmids};
use crate::vcpu::sched;
use arch::frames::{self as metal, Ram, Table};
use arch::tlb::{self, Reaches};
use arch::{cache, guest, timer};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_contract::TableMemory;
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{FRAME_SIZE, Mfn, NodeId, Pa};
use model_address_space::{Access, Frames, Translation};
use model_frame_table::{
    CHUNK_FRAMES, MAX_NODES, MAX_ORDER, MemoryMap, Origin, Owner, PerNode, Pool, PoolCounts,
    Purpose, Use,
};
use model_paging::{Store, Token};
use model_pmap::Why;
use model_stage2::Invalidation;

static POOLS: PerNode<SpinLock<Pool, true>> = {
    let (mut pools, mut node) = ([const { pool(0) }; MAX_NODES], 1);
    while node < MAX_NODES {
        pools[node] = pool(node as u8);
        node += 1;
    }
    PerNode(pools)
};

const fn pool(node: u8) -> SpinLock<Pool, true> {
    SpinLock::promising(Rank::NodePool, Pool::new(NodeId(node)))
}

/// Chunks of reserved frames of a node that an allocation looks at, at some 40 instructions each, and those after which
/// it gives the pool back and tries again.
const RECLAIM_BUDGET: usize = 1024;
const RECLAIM_TOGETHER: usize = 64;

/// Whether a node's reserve of zeroed blocks lacks any, so that idle CPUs need not lock the pool
/// to know. Taken by the one that zeroes; written under the pool's lock otherwise.
static LACKS_ZEROED: PerNode<AtomicBool> = PerNode([const { AtomicBool::new(false) }; MAX_NODES]);

/// Frames beyond the reserve below which a node has few.
const FEW: u64 = 64;

/// Whether a node has few frames for guests, so that devices need not lock the pool to know. Written
/// under the pool's lock.
static LOW: PerNode<AtomicBool> = PerNode([const { AtomicBool::new(false) }; MAX_NODES]);

/// Does something with a node's pool.
pub fn with_pool<T>(node: NodeId, action: impl FnOnce(&mut Pool) -> T) -> T {
    let mut pool = POOLS[node].lock();
    let done = action(&mut pool);
    LACKS_ZEROED[node].store(pool.wants_zeroing(), Ordering::Relaxed);
    let is_low = pool.counts().free < reserve(node) + FEW;
    LOW[node].store(is_low, Ordering::Relaxed);
    done
}

/// Whether an idle CPU of `node` may [`zero_ahead`].
pub fn lacks_zeroed(node: NodeId) -> bool {
    LACKS_ZEROED[node].load(Ordering::Relaxed)
}

/// Zeroes one frame of `node` for its reserve, unless another CPU is at it. The pool is locked so
/// long: nobody else has the frame, and whoever needs the pool waits for one frame at most.
#[cold]
pub fn zero_ahead(node: NodeId) {
    if LACKS_ZEROED[node].swap(false, Ordering::Relaxed) {
        // SAFETY: the frame is free and its pool is locked, so nobody uses it.
        let zero = |frame| unsafe { metal::zero_frames_for_guest(frame, 1) };
        with_pool(node, |pool| pool.zero_ahead(&machine::get().map, zero));
    }
}

/// Free frames of all nodes when the pools were filled.
static FREE_AT_FIRST: AtomicU64 = AtomicU64::new(0);

fn free_frames() -> u64 {
    let free = |node| counts(node).free;
    machine::get().node_ids().map(free).sum()
}

/// Notes how many frames there are, once the pools are full.
pub fn count() {
    FREE_AT_FIRST.store(free_frames(), Ordering::Relaxed);
}

/// Gives pools all that no record named, which was the last image's, and notes how many frames there will
/// be when all VMs have ended: all but `aside`.
pub fn take_over(aside: u64) {
    let map = &machine::get().map;
    let mut from = Mfn(0);
    while let Some((node, run)) = map.next_unlent(from) {
        let added = with_pool(node, |pool| pool.add(map, run, Origin::Lent));
        assert!(added.is_ok(), "pool of {node}: {added:?}");
        from = run.end();
    }
    let all: u64 = map.ranges().iter().map(|range| range.frames.count).sum();
    FREE_AT_FIRST.store(all - aside, Ordering::Relaxed);
    keep_reserves();
}

/// Forgets all frames; `false` where some are in use, and nothing is forgotten. No VM is left.
pub fn forget() -> bool {
    if free_frames() != FREE_AT_FIRST.load(Ordering::Relaxed) {
        return false;
    }
    for (node, pool) in (0..).zip(&POOLS.0) {
        *pool.lock() = Pool::new(NodeId(node));
    }
    true
}

/// A node's numbers.
pub fn counts(node: NodeId) -> PoolCounts {
    with_pool(node, |pool| pool.counts())
}

/// What each node keeps of its memory for [`allocate_from_reserve`]: one frame of so many. Half of it
/// is for [`allocate_urgently`], too.
const RESERVE_SHARE: u64 = 256;
static RESERVES: PerNode<AtomicU64> = PerNode([const { AtomicU64::new(0) }; MAX_NODES]);

/// Frames of a node that are kept for guests that write what they share.
pub fn reserve(node: NodeId) -> u64 {
    RESERVES[node].load(Ordering::Relaxed)
}

/// Sets the reserves aside, once the pools are full.
pub fn keep_reserves() {
    leave_code();
    for (node, kept) in (0..).zip(&RESERVES.0) {
        let free = counts(NodeId(node)).free;
        kept.store(free / RESERVE_SHARE, Ordering::Relaxed);
    }
}

/// A block of 2^`order` frames as near to `home` as there is one. Only where no node has any are
/// frames that were set aside for guests taken back. A guest gets none of the reserve.
pub fn allocate(home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
    let is_guests = matches!(purpose, Purpose::Private(_) | Purpose::Reserved(_));
    let kept = if is_guests { reserve } else { |_| 0 };
    allocate_above(home, order, purpose, kept)
}

/// A frame for a guest's device that has begun with something, or for a guest that must run to give
/// memory back.
pub fn allocate_urgently(home: NodeId, purpose: Purpose) -> Option<Mfn> {
    allocate_above(home, 0, purpose, |node| reserve(node) / 2)
}

/// Whether every node has few frames for guests, or none.
pub fn are_few() -> bool {
    let mut nodes = machine::get().node_ids();
    nodes.all(|node| LOW[node].load(Ordering::Relaxed))
}

/// A frame for a guest that writes what it shares with others: it never waits for them.
pub fn allocate_from_reserve(home: NodeId, purpose: Purpose) -> Option<Mfn> {
    allocate_above(home, 0, purpose, |_| 0)
}

fn allocate_above(
    home: NodeId,
    order: u8,
    purpose: Purpose,
    kept: fn(NodeId) -> u64,
) -> Option<Mfn> {
    #[cfg(not(target_os = "none"))]
    if arch::faults::allocation_fails() {
        return None;
    }
    let what = (order, purpose, kept);
    take(home, what).or_else(|| take_reclaimed(home, what))
}

/// A block of that order above what nodes keep, for that purpose.
type Wanted = (u8, Purpose, fn(NodeId) -> u64);

// Inlined where there is enough: out of line, writes of 16 pages took 4 % more.
#[inline]
fn take(home: NodeId, (order, purpose, kept): Wanted) -> Option<Mfn> {
    let machine = machine::get();
    let mut nodes = machine.preference.from(home).iter();
    nodes.find_map(|&node| {
        let kept = kept(node);
        with_pool(node, |pool| {
            let is_enough = pool.counts().free >= kept + (1 << order);
            let allocate = || pool.allocate(&machine.map, order, purpose, home);
            is_enough.then(allocate).flatten()
        })
    })
}

/// The same, while others give frames back.
#[cold]
#[inline(never)]
fn take_reclaimed(home: NodeId, what: Wanted) -> Option<Mfn> {
    let again = || take(home, what);
    let mut nodes = machine::get().preference.from(home).iter();
    let reclaimed = nodes.find_map(|&node| reclaimed(node).find_map(|_| again()));
    let is_evicted = || what.0 == 0 && sharing::evict_some(home);
    reclaimed.or_else(|| is_evicted().then(again)?)
}

/// Takes frames of `node` back that were set aside for guests, a piece at a time: how many, where there were some.
fn reclaimed(node: NodeId) -> impl Iterator<Item = u64> {
    let map = &machine::get().map;
    let piece = move |pool: &mut Pool| {
        (!pool.has_nothing_reserved()).then(|| pool.reclaim_reserved(map, RECLAIM_TOGETHER))
    };
    let pieces = (0..RECLAIM_BUDGET).step_by(RECLAIM_TOGETHER);
    let freed = pieces.map_while(move |_| with_pool(node, piece));
    freed.filter(|freed| *freed > 0)
}

/// Whether frames may be reserved, or hold blocks that nobody uses, that [`allocate`] has not come to yet: who found
/// none tries again.
pub fn may_be_reserved() -> bool {
    let mut nodes = machine::get().node_ids();
    sharing::accounts().cached() > 0
        || nodes.any(|node| with_pool(node, |pool| !pool.has_nothing_reserved()))
}

/// Gives back what [`allocate`] gave.
pub fn free(first: Mfn, order: u8) {
    let machine = machine::get();
    let Some(entry) = machine.map.entry(first) else {
        return;
    };
    if entry.state().usage != Use::Table {
        leave_code();
    }
    let freed = with_pool(entry.state().node, |pool| {
        pool.free(&machine.map, first, order)
    });
    if let Err(refused) = freed {
        // A bug of EL2's own: the frame is lost, which harms nobody but the count.
        log::error!("frame {first} could not be freed: {refused:?}");
    }
}

/// Whether instruction caches may hold code of frames that were freed, if no CPU empties them.
static CODE_IS_LEFT: AtomicBool = AtomicBool::new(true);
/// When they may be emptied again, in counts; `u64::MAX` while a CPU is at it.
static EMPTY_AT: AtomicU64 = AtomicU64::new(0);
/// All CPUs lose what they have cached: for a few frames that is not done more often.
const EMPTY_EVERY_NS: u64 = 20_000_000;

/// Frames that were cleaned to be shared, and how often all instruction caches were emptied.
pub static CLEANED: AtomicU64 = AtomicU64::new(0);
pub static EMPTIED: AtomicU64 = AtomicU64::new(0);

/// Frames are about to be freed, or are new, and no TLB knows them: caches may hold code of them.
fn leave_code() {
    if !CODE_IS_LEFT.load(Ordering::SeqCst) {
        CODE_IS_LEFT.store(true, Ordering::SeqCst);
    }
}

/// Empties all instruction caches where they were not of late, or for so many frames that all are emptied anyhow;
/// else it drops the lines of these frames.
#[cold]
fn drop_code(first: Mfn, count: u64) {
    let order = Ordering::SeqCst;
    let (now, at, bytes) = (timer::now(), EMPTY_AT.load(order), count * FRAME_SIZE);
    let may_empty = now >= at || at != u64::MAX && cache::drops_all_instructions(bytes);
    if !may_empty || { EMPTY_AT.compare_exchange(at, u64::MAX, order, order) }.is_err() {
        return cache::drop_instructions(first.address(), bytes);
    }
    // Whoever sees this sees that a CPU is at it, too; what is freed from now on leaves code again.
    CODE_IS_LEFT.store(false, order);
    cache::drop_all_instructions();
    EMPTIED.fetch_add(1, Ordering::Relaxed);
    // Many frames put off nothing: those that are filled one by one would lose all their lines until then.
    let next = if now < at {
        at
    } else {
        now + machine::counts(EMPTY_EVERY_NS)
    };
    EMPTY_AT.store(next, order);
}

/// Frames for EL2 itself, zeroed in memory, too: guests may look at some of them.
pub fn take_for_el2(home: NodeId, order: u8) -> Option<Mfn> {
    let first = allocate(home, order, Purpose::Hypervisor)?;
    Metal.zero(first, 1 << order);
    Some(first)
}

/// The contents of frames that pools gave out. Frames of EL2's own heap are not for this.
pub fn ram(first: Mfn, count: u64) -> Ram {
    debug_assert!(machine::try_get().is_none_or(|machine| machine.map.run(first, count).is_some()));
    // SAFETY: frame numbers come from the pools, which hold RAM alone; what callers reach so is
    // never memory that Rust has references to: tables, guests' frames, overlays.
    unsafe { Ram::frames(first, count) }
}

/// Table frames of one VM: taken from the pools, counted, zeroed.
pub struct Tables {
    node: NodeId,
    vmid: u16,
    count: u64,
    /// Invalidations that this CPU, and that all CPUs took part in.
    invalidations: [u64; 2],
}

impl Tables {
    /// Tables as near to `node` as there is memory, of the translation that TLBs know as `vmid`
    /// (zero, which no VM has, for tables that no CPU walks).
    pub const fn new(node: NodeId, vmid: u16) -> Self {
        Self {
            node,
            vmid,
            count: 0,
            invalidations: [0; 2],
        }
    }

    /// Frames in use.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// How often the TLB of one CPU, and those of all, were told of changes.
    pub const fn invalidations(&self) -> [u64; 2] {
        self.invalidations
    }
}

impl TableMemory for Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        let table = allocate(self.node, 0, Purpose::Table)?;
        // SAFETY: the pools gave the frame to nobody else.
        unsafe { metal::zero_frames_for_guest(table, 1) }
        self.count += 1;
        Some(table)
    }

    fn free_table(&mut self, table: Mfn) {
        free(table, 0);
        self.count -= 1;
    }

    #[inline]
    fn read(&self, table: Mfn, index: usize) -> u64 {
        view(table).read(index)
    }

    #[inline]
    fn read_together<const N: usize>(&self, table: Mfn, index: usize) -> u64 {
        view(table).read_together::<N>(index)
    }

    #[inline]
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        view(table).write(index, value);
    }

    #[inline]
    fn write_series<const N: usize>(&mut self, table: Mfn, index: usize, first: u64, step: u64) {
        view(table).write_series::<N>(index, first, step);
    }
}

/// Word `n` of what a frame holds.
#[inline]
pub fn word(frame: Mfn, n: usize) -> u64 {
    view(frame).read(n)
}

/// Sets word `n` of a frame of EL2's own.
pub fn set_word(frame: Mfn, n: usize, value: u64) {
    view(frame).write(n, value);
}

#[inline]
fn view(table: Mfn) -> Table {
    // SAFETY: as in `ram`: tables come from the pools.
    unsafe { Table::new(table) }
}

/// Who is told of what becomes of pages: given at boot.
pub struct Told {
    /// A page that is sampled was accessed, from that node and so.
    pub touched: fn(Mfn, Owner, (NodeId, Access)),
    /// Nobody needs that block of what VMs swapped to a partition any more.
    pub forget: fn(u8, u64),
}

/// As they were given.
pub static TOLD: Once<Told> = Once::new();

/// The machine, as VMs' memory uses it.
#[derive(Clone, Copy)]
pub struct Metal;

impl Frames for Metal {
    #[inline]
    fn map(&self) -> &MemoryMap<'_> {
        &machine::get().map
    }

    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        allocate(home, order, purpose)
    }

    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        let (first, lacks_now) = with_pool(home, |pool| {
            let lacked = pool.wants_zeroing();
            let first = pool.allocate(self.map(), order, purpose, home);
            (first, !lacked && pool.wants_zeroing())
        });
        if lacks_now {
            sched::rouse(home);
        }
        first
    }

    fn free(&self, first: Mfn, order: u8) {
        free(first, order);
    }

    fn free_each(&self, frames: &[Mfn]) {
        leave_code();
        let mut rest = frames;
        while let Some((first, others)) = rest.split_first() {
            let node = self.map().entry(*first).map(|entry| entry.state().node);
            let freed = node.map_or(0, |node| {
                let is_wanted = || POOLS[node].is_wanted();
                with_pool(node, |pool| pool.free_each(self.map(), rest, is_wanted))
            });
            rest = if freed > 0 {
                rest.get(freed..).unwrap_or_default()
            } else {
                // It says why.
                free(*first, 0);
                others
            };
        }
    }

    fn free_reserved(&self, first: Mfn, owner: Owner) {
        let node = self
            .map()
            .entry(first)
            .map_or(NodeId(0), |entry| entry.state().node);
        with_pool(node, |pool| {
            pool.free_reserved(self.map(), first, 1 << MAX_ORDER, owner)
        });
    }

    #[inline]
    fn zero(&self, first: Mfn, count: u64) {
        // SAFETY: the frames are one VM's, and nobody sees them yet.
        unsafe { metal::zero_frames_for_guest(first, count) }
    }

    #[inline]
    fn drop_code(&self, first: Mfn, count: u64) {
        let order = Ordering::SeqCst;
        if CODE_IS_LEFT.load(order) || EMPTY_AT.load(order) == u64::MAX {
            drop_code(first, count);
        }
    }

    fn allocate_for_break(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        allocate_from_reserve(home, Purpose::Private(owner))
    }

    fn allocate_hidden(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        hiding::take(home, owner)
    }

    fn allocate_urgently(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        allocate_urgently(home, Purpose::Private(owner))
    }

    fn copy(&self, from: Mfn, to: Mfn) {
        ram(to, 1).copy_from(0, ram(from, 1), 0, FRAME_SIZE as usize);
        cache::clean_to_coherency(to.address(), FRAME_SIZE);
        self.drop_code(to, 1);
    }

    fn relocate(&self, from: Mfn, to: Mfn) {
        // What the guest wrote with its caches off is in memory, and stale lines may be in caches.
        cache::clean_to_coherency(from.address(), FRAME_SIZE);
        self.copy(from, to);
    }

    fn join(&self, frame: Mfn, user: Owner) -> Result<(), Why> {
        sharing::join_image(frame, user).map(|_| ())
    }

    fn leave(&self, frame: Mfn, user: Owner) {
        model_sharing::leave(self, frame, user, true);
    }

    fn leave_hidden(&self, frame: Mfn, user: Owner) {
        hiding::leave(frame, user);
    }

    fn claim(&self, frame: Mfn, user: Owner) -> bool {
        model_sharing::claim(self, frame, user)
    }

    fn publish(&self, frame: Mfn, user: Owner) -> bool {
        sharing::publish(frame, user)
    }

    fn touched(&self, frame: Mfn, page: Owner, by: (NodeId, Access)) {
        if let Some(told) = TOLD.get() {
            (told.touched)(frame, page, by);
        }
    }

    fn forget(&self, token: u64) {
        let Token { store, disk, block } = Token::decode(token);
        if store == Store::Swap
            && let Some(told) = TOLD.get()
        {
            (told.forget)(disk, block);
        }
    }

    fn enlist(&self, frame: Mfn) {
        model_sharing::enlist(self, frame);
    }

    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]) {
        ram(first, CHUNK_FRAMES).write(offset, bytes);
        let at = Pa(first.address().0 + offset);
        cache::clean_to_coherency(at, bytes.len() as u64);
    }
}

impl Translation for Tables {
    fn invalidate(&mut self, what: Invalidation) {
        if what == Invalidation::Nothing {
            return;
        }
        let reaches = vmids::reach(self.vmid, cpu::this().id);
        let [here, all] = &mut self.invalidations;
        *if reaches == Reaches::Here { here } else { all } += 1;
        // The CPU may have another VM loaded: a device fills memory wherever its interrupt goes.
        guest::with_vmid(self.vmid, || match what {
            Invalidation::Nothing => {}
            Invalidation::Run(run) => tlb::flush_stage2(run.addresses(), reaches),
            Invalidation::All => tlb::flush_vmid(reaches),
        });
    }
}
