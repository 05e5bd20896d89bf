//! A node's free frames: a buddy allocator whose lists run through the frame table.

use model_addr::{FrameRange, Mfn, NodeId};

use crate::entry::{NO_SLOT, Slot};
use crate::map::MemoryRange;
use crate::{
    Contents, Event, FrameEntry, FrameState, MemoryMap, Origin, Owner, Refused, Use, after,
};

/// log2 of the frames in the largest block: 2 MiB.
pub const MAX_ORDER: u8 = 9;
/// What it costs to take a reserved chunk back, in looks at one, less the look itself.
const TAKEN_COSTS: usize = 15;
/// Frames are reserved, taken by guests and reclaimed in aligned chunks of this many: 64 KiB.
pub const CHUNK_FRAMES: u64 = 1 << CHUNK_ORDER;
/// log2 of [`CHUNK_FRAMES`].
pub const CHUNK_ORDER: u8 = 4;
/// The list of zeroed blocks of [`MAX_ORDER`], after a list for each order.
const ZEROED: u8 = MAX_ORDER + 1;
const LISTS: usize = ZEROED as usize + 1;

/// What frames are allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The hypervisor itself.
    Hypervisor,
    /// Translation tables and pmap nodes.
    Table,
    /// The memory of a guest frame and those after it.
    Private(Owner),
    /// To be the memory of a guest frame and those after it, when they are touched: whole chunks.
    Reserved(Owner),
    /// A node's copies of the frames behind a guest frame and those after it.
    Replica(Owner),
}

impl Purpose {
    fn event(self) -> Event {
        match self {
            Self::Hypervisor => Event::Grant,
            Self::Table => Event::Tabulate,
            Self::Private(_) => Event::Assign,
            Self::Reserved(_) => Event::Reserve,
            Self::Replica(_) => Event::Replicate,
        }
    }

    /// Whose frames they are; a guest's are freed one by one.
    fn owner(self) -> Option<Owner> {
        match self {
            Self::Hypervisor | Self::Table => None,
            Self::Private(owner) | Self::Reserved(owner) | Self::Replica(owner) => Some(owner),
        }
    }
}

/// A pool's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Frames that are free now.
    pub free: u64,
    /// Free blocks of each order, the smallest first; last, those of [`MAX_ORDER`] that are zeroed.
    pub blocks: [u64; LISTS],
    /// Frames ever given to the pool's own node.
    pub given_local: u64,
    /// Frames ever given to other nodes.
    pub given_remote: u64,
    /// Of both, frames reserved from zeroed blocks, with their contents known.
    pub given_zeroed: u64,
}

impl PoolCounts {
    /// Free frames that are known to be zeroed.
    pub const fn zeroed(&self) -> u64 {
        self.blocks[ZEROED as usize] << MAX_ORDER
    }
}

/// The free frames of one node. The caller holds a lock around it and passes the same map at
/// every call.
#[derive(Debug)]
pub struct Pool {
    node: NodeId,
    heads: [Slot; LISTS],
    counts: PoolCounts,
    /// Where the next reclaim looks.
    hand: Mfn,
    /// How often the hand went round without finding anything, since frames were last reserved.
    rounds_in_vain: u8,
    /// How many zeroed blocks it keeps ready.
    reserve: u64,
    /// Whether blocks are being zeroed: from when few are left until there are as many as wanted.
    refills: bool,
    /// The free block that is being zeroed, and how many of its frames are.
    zeroing: Option<(Mfn, u64)>,
}

impl Pool {
    /// A pool of `node` without frames.
    pub const fn new(node: NodeId) -> Self {
        let counts = PoolCounts {
            free: 0,
            blocks: [0; LISTS],
            given_local: 0,
            given_remote: 0,
            given_zeroed: 0,
        };
        Self {
            node,
            heads: [NO_SLOT; LISTS],
            counts,
            hand: Mfn(0),
            rounds_in_vain: 0,
            reserve: 0,
            refills: false,
            zeroing: None,
        }
    }

    /// The node.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The numbers.
    pub const fn counts(&self) -> PoolCounts {
        self.counts
    }

    /// Adds frames that no pool has: at boot, or when OS-0 lends them.
    ///
    /// # Errors
    /// [`Refused::NotHere`] where they are not of one range of this node, [`Refused::Step`] where
    /// one is in use or in a pool. Nothing was added.
    pub fn add(
        &mut self,
        map: &MemoryMap<'_>,
        frames: FrameRange,
        origin: Origin,
    ) -> Result<(), Refused> {
        let (slot, range) = self.range(map, frames.start)?;
        let entries = range
            .run(frames.start, frames.count)
            .ok_or(Refused::NotHere)?;
        let is_new = |entry: &FrameEntry| {
            let state = entry.state();
            state.usage == Use::Free && !state.listed
        };
        let held = range.is_reserved(frames.start) || in_free_block(range, frames.start);
        if held || !entries.iter().all(is_new) {
            return Err(Refused::Step(Use::Free, Event::Release));
        }
        for entry in entries {
            entry.set_state(FrameState {
                origin,
                node: self.node,
                ..FrameState::default()
            });
        }
        let mut at = frames.start;
        while at < frames.end() {
            let left = frames.end().0 - at.0;
            let order =
                at.0.trailing_zeros()
                    .min(left.ilog2())
                    .min(MAX_ORDER.into()) as u8;
            self.put(map, slot, range, at, order);
            at = at.add(1 << order);
        }
        Ok(())
    }

    /// Wants `blocks` blocks of 2 MiB zeroed ahead, and again whenever a quarter of them is left.
    pub const fn keep_zeroed(&mut self, blocks: u64) {
        self.reserve = blocks;
        self.refills = true;
    }

    /// Whether a block is to be zeroed, and there is one.
    pub const fn wants_zeroing(&self) -> bool {
        let [.., ordinary, zeroed] = self.counts.blocks;
        self.refills && zeroed < self.reserve && ordinary > 0
    }

    /// Lets `zero` zero one frame ahead, where that is wanted. It stays in the pool, whose lock is
    /// held; when its block is all zeroed, reservations take that first.
    pub fn zero_ahead(&mut self, map: &MemoryMap<'_>, zero: impl FnOnce(Mfn)) -> Option<()> {
        if !self.wants_zeroing() {
            return None;
        }
        let [.., head, _] = self.heads;
        let begun = || Some((map.by_slot(head)?.0, 0));
        let (first, done) = self.zeroing.or_else(begun)?;
        zero(first.add(done));
        let done = done + 1;
        self.zeroing = Some((first, done));
        if done == 1 << MAX_ORDER {
            let (slot, range) = map.range(first)?;
            self.unlist(map, range, first, MAX_ORDER)?;
            self.list(map, slot, range, first, ZEROED)?;
            self.refills = self.counts.zeroed() < self.reserve << MAX_ORDER;
        }
        Some(())
    }

    /// A block of 2^`order` frames, aligned to its size, on behalf of a CPU of node `home`;
    /// `None` where the pool has none, or less than a chunk were to be reserved. Zeroed blocks are
    /// the first that are reserved whole, and the last for all else.
    pub fn allocate(
        &mut self,
        map: &MemoryMap<'_>,
        order: u8,
        purpose: Purpose,
        home: NodeId,
    ) -> Option<Mfn> {
        if matches!(purpose, Purpose::Reserved(_)) {
            if order < CHUNK_ORDER {
                return None;
            }
            self.rounds_in_vain = 0;
        }
        let mut lists = order..=ZEROED;
        let has_blocks = |list: &u8| self.counts.blocks[usize::from(*list)] > 0;
        let wants_zeroes = matches!(purpose, Purpose::Reserved(_)) && order == MAX_ORDER;
        let found = if wants_zeroes {
            lists.rfind(has_blocks)
        } else {
            lists.find(has_blocks)
        }?;
        let (first, _) = map.by_slot(self.heads[usize::from(found)])?;
        let (slot, range) = map.range(first)?;
        let entries = range.run(first, 1 << order)?;
        self.unlist(map, range, first, found)?;
        for half in (order..found.min(MAX_ORDER)).rev() {
            self.list(map, slot, range, first.add(1 << half), half)?;
        }
        if found == ZEROED {
            self.refills |= self.counts.zeroed() <= self.reserve << MAX_ORDER >> 2;
        }
        let frames = 1 << order;
        let contents = if wants_zeroes && found == ZEROED {
            self.counts.given_zeroed += frames;
            Contents::Zeroes
        } else {
            Contents::Unknown
        };
        give(entries, order, purpose, contents)?;
        self.counts.free -= frames;
        if home == self.node {
            self.counts.given_local += frames;
        } else {
            self.counts.given_remote += frames;
        }
        Some(first)
    }

    /// Takes back 2^`order` frames from `first`: a block as it was allocated, or any aligned run
    /// of a guest's frames. All debts to TLBs are paid.
    ///
    /// # Errors
    /// Any [`Refused`] of one of the frames; none was freed then.
    pub fn free(&mut self, map: &MemoryMap<'_>, first: Mfn, order: u8) -> Result<(), Refused> {
        if order > MAX_ORDER || !first.is_aligned(1 << order) {
            return Err(Refused::Order);
        }
        let (slot, range) = self.range(map, first)?;
        let entries = range.run(first, 1 << order).ok_or(Refused::NotHere)?;
        lock_block(entries, order)?;
        for entry in entries {
            entry.set_state(entry.state().freed());
        }
        self.put(map, slot, range, first, order);
        Ok(())
    }

    /// Takes back guests' frames as [`Self::free`] does, aligned runs of up to [`CHUNK_FRAMES`] of
    /// them together: their lists change once for all. How many of the first ones were taken back: it stops at one
    /// that is refused, and after a run of some 130 instructions where others want the pool by then.
    pub fn free_each(
        &mut self,
        map: &MemoryMap<'_>,
        frames: &[Mfn],
        is_wanted: impl Fn() -> bool,
    ) -> usize {
        let mut freed = 0;
        while let Some((first, others)) = frames.get(freed..).and_then(<[Mfn]>::split_first) {
            let aligned = first.0.trailing_zeros().min(CHUNK_ORDER.into());
            let follows = |(n, frame): &(u64, &Mfn)| **frame == first.add(*n);
            let following = (1..1 << aligned).zip(others).take_while(follows).count();
            let order = (following as u32 + 1).ilog2() as u8;
            // One of a run may be refused that the others are not.
            let taken = (0..=order)
                .rev()
                .find(|order| self.free(map, *first, *order).is_ok());
            let Some(order) = taken else { break };
            freed += 1 << order;
            if is_wanted() {
                break;
            }
        }
        freed
    }

    /// Takes back those chunks of the `count` frames from `first`, the first of a chunk, that are
    /// still reserved for `owner` and the guest frames after it; returns how many frames.
    pub fn free_reserved(
        &mut self,
        map: &MemoryMap<'_>,
        first: Mfn,
        count: u64,
        owner: Owner,
    ) -> u64 {
        let chunks = (0..count / CHUNK_FRAMES).map(|n| n * CHUNK_FRAMES);
        chunks
            .map(|n| self.take_back(map, first.add(n), Some(owner.add(n))))
            .sum()
    }

    /// Under memory pressure: takes reserved frames back, looking at `budget` chunks of
    /// [`CHUNK_FRAMES`] from where the last call stopped, round and round. One that is taken costs as much as
    /// sixteen that are not. Returns how many frames became free.
    pub fn reclaim_reserved(&mut self, map: &MemoryMap<'_>, budget: usize) -> u64 {
        let (mut freed, mut left) = (0, budget);
        while left > 0 && !self.has_nothing_reserved() {
            left -= 1;
            let Some((range, at)) = map.next_on(self.node, self.hand) else {
                self.hand = Mfn(0);
                self.rounds_in_vain += 1;
                continue;
            };
            let chunk = at.align_down(CHUNK_FRAMES);
            self.hand = chunk.add(CHUNK_FRAMES).min(range.frames.end());
            let taken = self.take_back(map, chunk, None);
            if taken > 0 {
                self.rounds_in_vain = 0;
                left = left.saturating_sub(TAKEN_COSTS);
            }
            freed += taken;
        }
        freed
    }

    /// Whether [`Self::reclaim_reserved`] went all round in vain since it found something and since anything was
    /// reserved, which may have been behind it in the first round.
    pub const fn has_nothing_reserved(&self) -> bool {
        self.rounds_in_vain > 1
    }

    /// Frees the chunk at `first` where it is reserved, for `wanted` if that names an owner.
    fn take_back(&mut self, map: &MemoryMap<'_>, first: Mfn, wanted: Option<Owner>) -> u64 {
        let Ok((slot, range)) = self.range(map, first) else {
            return 0;
        };
        let is_reserved = |entry: &&FrameEntry| entry.state().usage == Use::Reserved;
        let Some(entry) = range.entry(first).filter(is_reserved) else {
            return 0;
        };
        // A chunk that is locked is being taken.
        let Ok(head) = entry.try_lock() else {
            return 0;
        };
        let is_wanted = wanted.is_none_or(|owner| head.owner() == owner);
        if head.state().usage != Use::Reserved || !is_wanted || head.release().is_err() {
            return 0;
        }
        self.put(map, slot, range, first, CHUNK_ORDER);
        CHUNK_FRAMES
    }

    /// Puts a free block into the lists, joined with its free buddies of the same origin.
    fn put(
        &mut self,
        map: &MemoryMap<'_>,
        slot: Slot,
        range: &MemoryRange<'_>,
        first: Mfn,
        order: u8,
    ) {
        self.counts.free += 1 << order;
        let (mut at, mut order) = (first, order);
        let origin = range
            .entry(first)
            .map_or(Origin::Machine, |entry| entry.state().origin);
        while order < MAX_ORDER {
            let buddy = Mfn(at.0 ^ 1 << order);
            if !heads_block(range, buddy, order, Some(origin))
                || self.unlist(map, range, buddy, order).is_none()
            {
                break;
            }
            at = at.min(buddy);
            order += 1;
        }
        // It is one of the range's frames, so this cannot fail.
        let _ = self.list(map, slot, range, at, order);
    }

    /// Makes a block the first of a list: that of its order, or [`ZEROED`].
    fn list(
        &mut self,
        map: &MemoryMap<'_>,
        slot: Slot,
        range: &MemoryRange<'_>,
        first: Mfn,
        list: u8,
    ) -> Option<()> {
        let entry = range.entry(first)?;
        let own = slot + (first.0 - range.frames.start.0) as Slot;
        let head = self.heads.get_mut(usize::from(list))?;
        if let Some((_, next)) = map.by_slot(*head) {
            next.set_links(own, next.links().1);
        }
        entry.set_links(NO_SLOT, *head);
        entry.set_state(FrameState {
            order: list.min(MAX_ORDER),
            listed: true,
            ..entry.state()
        });
        *head = own;
        self.counts.blocks[usize::from(list)] += 1;
        Some(())
    }

    /// Takes a block out of the list that it is in; what was zeroed of it is forgotten.
    fn unlist(
        &mut self,
        map: &MemoryMap<'_>,
        range: &MemoryRange<'_>,
        first: Mfn,
        list: u8,
    ) -> Option<()> {
        self.zeroing.take_if(|(block, _)| *block == first);
        let entry = range.entry(first)?;
        let (previous, next) = entry.links();
        if let Some((_, entry)) = map.by_slot(next) {
            entry.set_links(previous, entry.links().1);
        }
        match map.by_slot(previous) {
            Some((_, entry)) => entry.set_links(entry.links().0, next),
            None => *self.heads.get_mut(usize::from(list))? = next,
        }
        entry.set_state(FrameState {
            order: 0,
            listed: false,
            ..entry.state()
        });
        self.counts.blocks[usize::from(list)] -= 1;
        Some(())
    }

    fn range<'m, 'a>(
        &self,
        map: &'m MemoryMap<'a>,
        frame: Mfn,
    ) -> Result<(Slot, &'m MemoryRange<'a>), Refused> {
        map.range(frame)
            .filter(|(_, range)| range.node == self.node)
            .ok_or(Refused::NotHere)
    }
}

/// Makes a free block of `order`, in no list, what `purpose` says.
fn give(entries: &[FrameEntry], order: u8, purpose: Purpose, contents: Contents) -> Option<()> {
    let usage = after(Use::Free, purpose.event())?;
    let references = purpose.event().references();
    // All frames of a block have its origin and node.
    let free = entries.first()?.state().freed();
    let state = |order| FrameState {
        usage,
        order,
        references,
        contents,
        ..free
    };
    let mut owner = purpose.owner().unwrap_or_default().encode();
    let (head, body, stride) = match purpose {
        Purpose::Hypervisor | Purpose::Table => (state(order), state(FrameState::BODY), 1),
        Purpose::Private(_) | Purpose::Replica(_) => (state(0), state(0), 1),
        Purpose::Reserved(_) => (
            state(CHUNK_ORDER),
            state(CHUNK_ORDER),
            CHUNK_FRAMES as usize,
        ),
    };
    let mut given = head.encode();
    let body = body.encode();
    for entry in entries.iter().step_by(stride) {
        entry.give(given, owner);
        given = body;
        owner = owner.wrapping_add(stride as u64);
    }
    Some(())
}

/// Whether a free block of `order` begins at `first`, of `origin` if that is given.
fn heads_block(range: &MemoryRange<'_>, first: Mfn, order: u8, origin: Option<Origin>) -> bool {
    range.entry(first).is_some_and(|entry| {
        let state = entry.state();
        let is_alike = origin.is_none_or(|origin| state.origin == origin);
        state.listed && state.order == order && is_alike
    })
}

/// Whether `frame` lies in a free block.
fn in_free_block(range: &MemoryRange<'_>, frame: Mfn) -> bool {
    let mut orders = 0..=MAX_ORDER;
    orders.any(|order| heads_block(range, frame.align_down(1 << order), order, None))
}

/// Locks the frames of a block that may be freed as one; all of them, or none.
fn lock_block(entries: &[FrameEntry], order: u8) -> Result<(), Refused> {
    let head_order = entries.first().map_or(0, |entry| entry.state().order);
    // Frames of guests, and other single ones, make a block of any order.
    let body_order = if head_order == 0 { 0 } else { FrameState::BODY };
    for (n, entry) in entries.iter().enumerate() {
        let frame = entry.try_lock().and_then(|frame| {
            let fits = match n {
                0 => [0, order].contains(&frame.state().order),
                _ => frame.state().order == body_order,
            };
            frame.check_release()?;
            if fits { Ok(frame) } else { Err(Refused::Order) }
        });
        match frame {
            Ok(frame) => frame.stay_locked(),
            Err(refused) => {
                entries.iter().take(n).for_each(FrameEntry::unlock);
                return Err(refused);
            }
        }
    }
    Ok(())
}
