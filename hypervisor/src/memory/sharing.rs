//! The machine side of sharing: the index, the records of users, the accounts, and share groups.

use crate::machine::{self, entropy, stretch};
use crate::memory::frames::{self, Metal};
use abi::bundle::{ENTRIES_MAX, Place, kind};
use abi::{Text, state::run};
use arch::cache;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use machine_contract::TableMemory;
use machine_locks::{Once, Rank, SpinGuard, SpinLock};
use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId, Pa};
use model_address_space::Frames;
use model_frame_table::{
    CacheKey, FrameEntry, MAX_NODES, MAX_ORDER, MemoryMap, Origin, Owner, PerNode, Purpose, Use,
};
use model_pmap::Why;
use model_sharing::{
    ACCOUNTS, Accounts, Clock, Expect, Ground, Index, Joined, NotJoined, RecordId, STRIPES, Size,
    Slab,
};
use xxhash_rust::xxh64::Xxh64;
use zerocopy::IntoBytes;

static ACCOUNTS_OF_VMS: Accounts = Accounts::zero();
static INDEX: Once<Index<'static>> = Once::new();
static FINGERPRINT_KEY: Once<u64> = Once::new();
static NO_INDEX: Index<'static> = Index::new(&[], 0);
static STRIPE_LOCKS: [SpinLock<()>; STRIPES] = [const { SpinLock::new(Rank::Index, ()) }; STRIPES];
static SLABS: PerNode<SpinLock<Slab>> =
    PerNode([const { SpinLock::new(Rank::Slab, Slab::new()) }; MAX_NODES]);
/// The share group of the VM in each slot.
static GROUPS_OF_VMS: [AtomicU16; ACCOUNTS] = [const { AtomicU16::new(0) }; ACCOUNTS];
/// Entries of the bundle that are a group's.
static ADOPTED: [AtomicBool; ENTRIES_MAX as usize] =
    [const { AtomicBool::new(false) }; ENTRIES_MAX as usize];
const PAGE: usize = FRAME_SIZE as usize;
/// The groups' names; the number of a group is its place, from 1 on.
static GROUP_NAMES: SpinLock<heapless::Vec<Text<24>, ACCOUNTS>> =
    SpinLock::new(Rank::Vm, heapless::Vec::new());

/// The frames that records lie in: of one node and no other, so that a record's frame tells whose
/// slab it is of.
struct RecordFrames(NodeId);

impl TableMemory for RecordFrames {
    fn allocate_table(&mut self) -> Option<Mfn> {
        // Under the lock of a stripe: nothing can be evicted for it.
        let frame = Metal.allocate_local(self.0, 0, Purpose::Table)?;
        frames::ram(frame, 1).zero(0, FRAME_SIZE as usize);
        Some(frame)
    }

    fn free_table(&mut self, table: Mfn) {
        frames::free(table, 0);
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        frames::word(table, index)
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        frames::set_word(table, index, value);
    }
}

/// Makes the index, and the bundle's pages frames that guests may use. Before any VM is described.
pub fn init() {
    let machine = machine::get();
    frames::keep_reserves();
    let frames: u64 = machine
        .map
        .ranges()
        .iter()
        .map(|range| range.frames.count)
        .sum();
    // One head for four frames, of each of two tables, up to a block.
    let bytes = (frames / 4 * 2 * size_of::<AtomicU32>() as u64).next_power_of_two();
    let order = (bytes / FRAME_SIZE).max(1).ilog2().min(MAX_ORDER.into()) as u8;
    // Beneath OS-0 frames are lent and go back, so nothing is remembered of what they hold. Without random bits
    // there is no key that guests do not know.
    let keys = entropy::words().filter(|_| !machine::os0::is_here());
    // Beneath OS-0 hashes of pages go over to the next image with parked VMs, so they have a key that all images know.
    if let Some([key, _]) = keys {
        let _ = FINGERPRINT_KEY.set(key);
    }
    let heads = keys.and_then(|_| frames::take_for_el2(NodeId(0), order));
    if let (Some(heads), Some([_, key])) = (heads, keys) {
        let count = (FRAME_SIZE as usize) << order >> 2;
        let pointer = core::ptr::with_exposed_provenance::<AtomicU32>(heads.address().0 as usize);
        // SAFETY: frames of EL2's own, full of zeroes, for ever.
        let heads = unsafe { core::slice::from_raw_parts(pointer, count) };
        let _ = INDEX.set(Index::new(heads, key));
    }
    let (Some(bundle), Some(range)) = (&machine.bundle, machine.bundle_at) else {
        return;
    };
    for pages in bundle.pages() {
        let aside = machine.map.set_aside_image(FrameRange::of(
            range.start.frame().add(pages.start as u64 / FRAME_SIZE),
            pages.len() as u64 / FRAME_SIZE,
        ));
        if let Err(refused) = aside {
            log::warn!("pages of the bundle cannot be shared: {refused}");
        }
    }
    // From now on nobody executes anything there but what the boot loader left.
    cache::drop_all_instructions();
}

/// Forgets all that was learnt of VMs, beneath OS-0. None is left, and there was no index.
pub fn forget() {
    for seen in &ADOPTED {
        seen.store(false, Ordering::Relaxed);
    }
    GROUP_NAMES.lock().clear();
}

/// The number of the share group of that name; `None` where there are as many as there can be.
pub fn group(name: Text<24>) -> Option<u16> {
    let mut names = GROUP_NAMES.lock();
    let place = names.iter().position(|known| *known == name);
    let place = if let Some(place) = place {
        place
    } else {
        names.push(name).ok()?;
        names.len() - 1
    };
    Some(place as u16 + 1)
}

/// Frames of a node that are looked at for one to evict before a look at the clock, and such looks in one go.
const EVICTION_BUDGET: u64 = 1 << 10;
const LOOKS: u32 = 1 << 11;
/// How many are evicted in one go.
const EVICT_AT_ONCE: usize = 32;
static CLOCKS: PerNode<SpinLock<Clock>> = {
    let (mut clocks, mut node) = ([const { clock(0) }; MAX_NODES], 1);
    while node < MAX_NODES {
        clocks[node] = clock(node as u8);
        node += 1;
    }
    PerNode(clocks)
};

const fn clock(node: u8) -> SpinLock<Clock> {
    SpinLock::new(Rank::Blocks, Clock::new(NodeId(node)))
}

/// Gives frames back that hold a disk's block and that nobody uses, those of `home` first; whether
/// any. The hand stays where it is as the stretch gets long: who got none has it go on the next time.
#[cold]
pub fn evict_some(home: NodeId) -> bool {
    let mut evicted = 0;
    for &node in machine::get().preference.from(home) {
        let Some(mut clock) = CLOCKS[node].try_lock() else {
            continue;
        };
        // The hand passes a frame that was in use twice.
        for look in 0..LOOKS {
            let is_enough = evicted == EVICT_AT_ONCE || look > 0 && stretch::is_long();
            if ACCOUNTS_OF_VMS.cached() == 0 || is_enough {
                return evicted > 0;
            }
            if let Some(frame) = clock.next_cached(&machine::get().map, EVICTION_BUDGET) {
                evicted += usize::from(model_sharing::evict(&Metal, frame));
            }
        }
    }
    evicted > 0
}

/// The VM in `slot` is of `group` from now on.
pub fn enter_group(slot: u16, group: u16) {
    if let Some(of_vm) = GROUPS_OF_VMS.get(usize::from(slot)) {
        of_vm.store(group, Ordering::Relaxed);
    }
}

/// The share group of a user.
pub fn group_of(user: Owner) -> u16 {
    let group = GROUPS_OF_VMS.get(usize::from(user.vm.index));
    group.map_or(0, |group| group.load(Ordering::Relaxed))
}

/// The accounts of all VMs.
pub fn accounts() -> &'static Accounts {
    &ACCOUNTS_OF_VMS
}

/// The bundle's pages that VMs may use.
pub fn image_frames() -> u64 {
    let bundle = machine::get().bundle.as_ref();
    let bytes: usize = bundle.map_or(0, |bundle| bundle.pages().map(|pages| pages.len()).sum());
    bytes as u64 / FRAME_SIZE
}

/// Whether [`fingerprint`] has its key: a machine without random bits has none. Beneath OS-0 it is one that all know.
pub fn has_fingerprints() -> bool {
    machine::os0::is_here() || FINGERPRINT_KEY.get().is_some()
}

/// A hash of what a frame holds, with a key of this boot; 0 for zeroes. For reports: nothing is
/// shared because of it.
pub fn fingerprint(frame: Mfn) -> u64 {
    const PIECE: usize = 64;
    let key = FINGERPRINT_KEY.get().copied().unwrap_or_default();
    let (mut hasher, page) = (Xxh64::new(key), frames::ram(frame, 1));
    let (mut all, mut words) = (0, [0_u64; PIECE]);
    for first in (0..PAGE).step_by(PIECE * 8) {
        page.read(first as u64, words.as_mut_bytes());
        all |= words.iter().fold(0, |all, word| all | word);
        hasher.update(words.as_bytes());
    }
    if all == 0 { 0 } else { hasher.digest().max(1) }
}

/// Frames in use for records.
pub fn record_frames() -> u64 {
    SLABS.0.iter().map(|slab| slab.lock().frames()).sum()
}

/// Whether a page of the bundle is used for the first time by whoever asks now.
pub fn is_first_use(frame: Mfn) -> bool {
    let entry = machine::get().map.entry(frame);
    let locked = entry.and_then(FrameEntry::lock_shared);
    locked.is_none_or(|mut frame| {
        let is_first = !frame.state().recent;
        frame.set_recent(true);
        is_first
    })
}

/// The frame of a page of the bundle.
pub fn frame_of(page: &'static [u8]) -> Mfn {
    Pa(page.as_ptr().expose_provenance() as u64).frame()
}

/// Gives what VMs may use of these entries of the bundle to `group`, those that are no other's yet.
/// Whose they are is decided by what is described and not by what runs, so that no VM can learn of
/// it from others.
pub fn adopt(entries: impl Iterator<Item = u32>, group: u16) {
    let Some(bundle) = &machine::get().bundle else {
        return;
    };
    for number in entries {
        let seen = ADOPTED.get(number as usize);
        if seen.is_none_or(|seen| seen.swap(true, Ordering::Relaxed)) {
            continue;
        }
        for kind in [kind::KERNEL, kind::INITRD] {
            let pages = bundle.content_of(number, kind).unwrap_or_default();
            pages.chunks(PAGE).for_each(|page| adopt_page(page, group));
        }
        if let Some(image) = bundle.image(number) {
            for block in 0..image.blocks() {
                if let Place::Page(page, _) = image.block(block) {
                    adopt_page(page, group);
                }
            }
        }
    }
}

fn adopt_page(page: &'static [u8], group: u16) {
    let entry = machine::get().map.entry(frame_of(page));
    if let Some(entry) = entry.filter(|entry| entry.cache_key().group == 0)
        && let Some(mut locked) = entry.lock()
    {
        locked.set_cache_key(CacheKey::of_content(group));
    }
}

/// Adds `user` to a page of an image.
///
/// # Errors
/// Why it must have a copy.
pub fn join_image(frame: Mfn, user: Owner) -> Result<Joined, Why> {
    let entry = machine::get().map.entry(frame).ok_or(Why::LostRace)?;
    if entry.cache_key().group != group_of(user) {
        return Err(Why::OtherGroup);
    }
    model_sharing::join(&Metal, frame, user, Expect::Image).map_err(why)
}

/// What a record says of a frame that a VM or a disk has (`abi::state::run`), where so many users share one.
pub fn kind_of(frame: Mfn, sharers: u16) -> u8 {
    let state = machine::get().map.entry(frame).map(FrameEntry::state);
    let state = state.unwrap_or_default();
    match (state.origin, state.usage) {
        (Origin::Image, _) => run::SHARED,
        (_, Use::Shared) if state.references >= sharers => run::JOINED,
        // Whoever uses it alone may have it alone.
        _ => run::PRIVATE,
    }
}

/// Makes `user` one of those who have a frame, as a record of that kind says: one of a kind that is the user's
/// own is so already.
pub fn take_over(kind: u8, frame: Mfn, user: Owner) -> bool {
    let group = Expect::Group(group_of(user));
    match kind {
        run::PRIVATE => true,
        run::SHARED => join_image(frame, user).is_ok(),
        run::JOINED => {
            publish(frame, user) || model_sharing::join(&Metal, frame, user, group).is_ok()
        }
        _ => false,
    }
}

/// Does something with a frame that holds a block of a disk, while it stays so.
fn with_block<T>(key: CacheKey, mut with: impl FnMut(Mfn) -> Option<T>) -> Option<T> {
    let metal = Metal;
    let bucket = metal.index().block_bucket(key);
    let _guard = metal.lock_stripe(bucket.stripe());
    let mut done = None;
    metal
        .index()
        .find(&machine::get().map, bucket, |frame, entry| {
            if entry.cache_key() == key {
                done = with(frame);
            }
            done.is_some()
        });
    done
}

/// Adds `user` to a frame that holds a block of a disk; `None` where there is none.
///
/// # Errors
/// Why it must have a copy.
pub fn join_block(key: CacheKey, user: Owner) -> Option<Result<Mfn, Why>> {
    with_block(key, |frame| {
        let joined = model_sharing::join(&Metal, frame, user, Expect::Block(key));
        match joined.map_err(why) {
            Ok(_) => Some(Ok(frame)),
            Err(Why::LostRace) => None,
            Err(why) => Some(Err(why)),
        }
    })
}

/// Whether a frame holds that block of a disk.
pub fn has_block(key: CacheKey) -> bool {
    with_block(key, Some).is_some()
}

/// Copies `len` bytes of a block of a disk, from `offset` on, to byte `to` of a frame; `false` where
/// no frame holds it.
pub fn copy_block(key: CacheKey, offset: u64, into: Mfn, to: u64, len: usize) -> bool {
    let copied = with_block(key, |frame| {
        frames::ram(into, 1).copy_from(to, frames::ram(frame, 1), offset, len);
        Some(())
    });
    copied.is_some()
}

/// The block that the user of a frame may find on a disk.
pub fn key_of(user: Owner, disk: u8, block: u64) -> CacheKey {
    let group = group_of(user);
    CacheKey { group, disk, block }
}

/// Nobody has a partition as a base any more: what frames hold is no block of it.
pub fn forget_disk(disk: u8) {
    for range in machine::get().map.ranges() {
        for n in 0..range.frames.count {
            let frame = range.frames.start.add(n);
            let is_of = |entry: &&FrameEntry| {
                matches!(entry.state().usage, Use::CachedOnly | Use::Shared)
                    && entry.cache_key().disk == disk
            };
            if let Some(entry) = machine::get().map.entry(frame).filter(is_of)
                && !model_sharing::evict(&Metal, frame)
            {
                let key = entry.cache_key();
                let bucket = Metal.index().block_bucket(key);
                let _guard = Metal.lock_stripe(bucket.stripe());
                Metal.index().remove(&machine::get().map, bucket, frame);
                if let Some(mut locked) = entry.lock_shared() {
                    locked.set_cache_key(CacheKey::of_content(key.group));
                }
            }
        }
    }
}

/// Makes a private frame one that others of the group may use; whether it did.
pub fn publish(frame: Mfn, user: Owner) -> bool {
    let key = CacheKey::of_content(group_of(user));
    model_sharing::publish(&Metal, frame, user, key).is_ok()
}

fn why(refused: NotJoined) -> Why {
    match refused {
        NotJoined::Gone => Why::LostRace,
        NotJoined::OtherGroup => Why::OtherGroup,
        NotJoined::Full | NotJoined::NoMemory => Why::Full,
    }
}

impl Ground for Metal {
    fn map(&self) -> &MemoryMap<'_> {
        &machine::get().map
    }

    fn accounts(&self) -> &Accounts {
        &ACCOUNTS_OF_VMS
    }

    fn index(&self) -> &Index<'_> {
        INDEX.get().unwrap_or(&NO_INDEX)
    }

    fn lock_stripe(&self, stripe: usize) -> impl Sized {
        let lock: Option<SpinGuard<'_, ()>> = STRIPE_LOCKS.get(stripe).map(SpinLock::lock);
        lock
    }

    #[inline]
    fn word(&self, frame: Mfn, n: usize) -> u64 {
        frames::word(frame, n)
    }

    fn is_equal(&self, frame: Mfn, page: Mfn) -> bool {
        frames::ram(frame, 1).equals(frames::ram(page, 1))
    }

    fn clean(&self, frame: Mfn) {
        frames::CLEANED.fetch_add(1, Ordering::Relaxed);
        cache::clean_to_coherency(frame.address(), FRAME_SIZE);
    }

    fn drop_instructions(&self, frame: Mfn) {
        cache::drop_instructions(frame.address(), FRAME_SIZE);
    }

    fn take_record(&self, near: NodeId, size: Size) -> Option<RecordId> {
        machine::get()
            .preference
            .from(near)
            .iter()
            .find_map(|&node| SLABS[node].lock().take(&mut RecordFrames(node), size))
    }

    fn give_record(&self, record: RecordId) {
        let entry = machine::get().map.entry(record.frame());
        let node = entry.map_or(NodeId(0), |entry| entry.state().node);
        SLABS[node].lock().give(&mut RecordFrames(node), record);
    }

    fn read<const N: usize>(&self, record: RecordId) -> [u64; N] {
        record.read(&RecordFrames(NodeId(0)))
    }

    fn write(&self, record: RecordId, n: usize, word: u64) {
        record.write(&mut RecordFrames(NodeId(0)), n, word);
    }

    fn free(&self, frame: Mfn) {
        frames::free(frame, 0);
    }
}
