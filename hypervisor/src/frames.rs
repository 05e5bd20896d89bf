//! The machine's frames: pools of free ones per node, and access to their contents.

use crate::host;
use machine_aarch64::cache::{self, Duty};
use machine_aarch64::frames::{self as metal, Ram, Table};
use machine_aarch64::guest;
use machine_aarch64::tlb;
use machine_contract::TableMemory;
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Mfn, NodeId, Pa};
use model_address_space::{Frames, Translation};
use model_frame_table::{
    CHUNK_FRAMES, MAX_NODES, MAX_ORDER, MemoryMap, Owner, Pool, PoolCounts, Purpose,
};
use model_stage2::Invalidation;

static POOLS: [SpinLock<Pool>; MAX_NODES] = [
    pool(0),
    pool(1),
    pool(2),
    pool(3),
    pool(4),
    pool(5),
    pool(6),
    pool(7),
];

const fn pool(node: u8) -> SpinLock<Pool> {
    SpinLock::new(Rank::NodePool, Pool::new(NodeId(node)))
}

/// Chunks of reserved frames that are looked at before an allocation is tried again.
const RECLAIM_BUDGET: usize = 4096;

/// Does something with a node's pool.
pub fn with_pool<T>(node: NodeId, action: impl FnOnce(&mut Pool) -> T) -> Option<T> {
    POOLS
        .get(usize::from(node.0))
        .map(|pool| action(&mut pool.lock()))
}

/// A node's numbers.
pub fn counts(node: NodeId) -> PoolCounts {
    with_pool(node, |pool| pool.counts()).unwrap_or_default()
}

/// A block of 2^`order` frames as near to `home` as there is one. Only where no node has any are
/// frames that were set aside for guests taken back.
pub fn allocate(home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
    let host = host::get();
    let take = || {
        let mut nodes = host.preference.from(home).iter();
        nodes.find_map(|&node| {
            with_pool(node, |pool| pool.allocate(&host.map, order, purpose, home)).flatten()
        })
    };
    take().or_else(|| {
        let freed = host.preference.from(home).iter().any(|&node| {
            with_pool(node, |pool| {
                pool.reclaim_reserved(&host.map, RECLAIM_BUDGET)
            })
            .unwrap_or(0)
                > 0
        });
        if freed { take() } else { None }
    })
}

/// Gives back what [`allocate`] gave.
pub fn free(first: Mfn, order: u8) {
    let host = host::get();
    let Some(entry) = host.map.entry(first) else {
        return;
    };
    let freed = with_pool(entry.state().node, |pool| {
        pool.free(&host.map, first, order)
    });
    if let Some(Err(refused)) = freed {
        // A bug of EL2's own: the frame is lost, which harms nobody but the count.
        log::error!("frame {first} could not be freed: {refused:?}");
    }
}

/// Frames for EL2 itself, zeroed.
pub fn take_for_el2(home: NodeId, order: u8) -> Option<Mfn> {
    let first = allocate(home, order, Purpose::Hypervisor)?;
    ram(first, 1 << order).zero(0, (FRAME_SIZE as usize) << order);
    Some(first)
}

/// Whether `pa` is memory of the machine that the frame table knows.
pub fn is_memory(pa: Pa) -> bool {
    host::get().map.entry(pa.frame()).is_some()
}

/// The contents of frames that pools gave out. Frames of EL2's own heap are not for this.
pub fn ram(first: Mfn, count: u64) -> Ram {
    debug_assert!(host::try_get().is_none_or(|host| host.map.run(first, count).is_some()));
    // SAFETY: frame numbers come from the pools, which hold RAM alone; what callers reach so is
    // never memory that Rust has references to: tables, guests' frames, overlays.
    unsafe { Ram::frames(first, count) }
}

/// Table frames of one VM: taken from the pools, counted, zeroed.
pub struct Tables {
    node: NodeId,
    vmid: u16,
    count: u64,
}

impl Tables {
    /// Tables as near to `node` as there is memory, of the translation that TLBs know as `vmid`
    /// (zero, which no VM has, for tables that no CPU walks).
    pub const fn new(node: NodeId, vmid: u16) -> Self {
        Self {
            node,
            vmid,
            count: 0,
        }
    }

    /// Frames in use.
    pub const fn count(&self) -> u64 {
        self.count
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
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        view(table).write(index, value);
    }
}

#[inline]
fn view(table: Mfn) -> Table {
    // SAFETY: as in `ram`: tables come from the pools.
    unsafe { Table::new(table) }
}

/// The machine, as VMs' memory uses it.
#[derive(Clone, Copy)]
pub struct Metal;

impl Frames for Metal {
    #[inline]
    fn map(&self) -> &MemoryMap<'_> {
        &host::get().map
    }

    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        allocate(home, order, purpose)
    }

    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        with_pool(home, |pool| pool.allocate(self.map(), order, purpose, home)).flatten()
    }

    fn free(&self, first: Mfn, order: u8) {
        free(first, order);
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

    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]) {
        ram(first, CHUNK_FRAMES).write(offset, bytes);
        cache::publish(
            Pa(first.address().0 + offset),
            bytes.len() as u64,
            Duty::Guest,
        );
    }
}

impl Translation for Tables {
    fn invalidate(&mut self, what: Invalidation) {
        // The CPU may have another VM loaded: a device fills memory wherever its interrupt goes.
        guest::with_vmid(self.vmid, || match what {
            Invalidation::Nothing => {}
            Invalidation::Run(run) => {
                tlb::begin_stage2();
                run.addresses().for_each(tlb::flush_stage2_page);
                tlb::finish_stage2();
            }
            Invalidation::All => tlb::flush_vmid(),
        });
    }
}
