//! One frame's entry: four words, shared by all CPUs.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use model_addr::{Gfn, VmId};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::{Chain, Contents, Event, FrameState, Refused, Use};

/// The guest frame that a machine frame belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The VM.
    pub vm: VmId,
    /// Its frame, below 2^32 (44 bits of address).
    pub gfn: Gfn,
}

impl Owner {
    /// Guest frame `gfn` of `vm`.
    pub const fn of(vm: VmId, gfn: Gfn) -> Self {
        Self { vm, gfn }
    }

    /// The owner of the machine frame that is `n` further on.
    pub(crate) const fn add(self, n: u64) -> Self {
        Self {
            vm: self.vm,
            gfn: self.gfn.add(n),
        }
    }

    /// One word; the next guest frame's is the next number.
    pub const fn encode(self) -> u64 {
        (self.vm.index as u64) << 48 | (self.vm.generation as u64) << 32 | self.gfn.0 & 0xffff_ffff
    }

    /// What [`Self::encode`] made the word of.
    pub const fn decode(word: u64) -> Self {
        let vm = VmId {
            index: (word >> 48) as u16,
            generation: (word >> 32) as u16,
        };
        Self {
            vm,
            gfn: Gfn(word & 0xffff_ffff),
        }
    }
}

/// What is known of the contents of a frame that guests share. It does not change while the frame
/// is shared or kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheKey {
    /// The share group: only its VMs may use the frame.
    pub group: u16,
    /// The disk; zero where the frame holds no disk's block.
    pub disk: u8,
    /// The 4 KiB block, below 2^[`Self::BLOCK_BITS`].
    pub block: u64,
}

impl CacheKey {
    /// Bits of a block's number: 4 PiB of disk.
    pub const BLOCK_BITS: u32 = 40;

    /// The key of contents that are no disk's block.
    pub const fn of_content(group: u16) -> Self {
        Self {
            group,
            disk: 0,
            block: 0,
        }
    }

    /// One word, another one for each key.
    pub const fn encode(self) -> u64 {
        let block = self.block & ((1 << Self::BLOCK_BITS) - 1);
        (self.group as u64) << 48 | (self.disk as u64) << Self::BLOCK_BITS | block
    }

    const fn decode(word: u64) -> Self {
        Self {
            group: (word >> 48) as u16,
            disk: (word >> Self::BLOCK_BITS) as u8,
            block: word & ((1 << Self::BLOCK_BITS) - 1),
        }
    }
}

/// A frame's entry. All zeroes is a free frame that no pool has yet.
#[derive(Debug, Default, FromBytes, IntoBytes, KnownLayout)]
#[repr(C, align(32))]
pub struct FrameEntry {
    state: AtomicU64,
    owner: AtomicU64,
    key: AtomicU64,
    /// Of a free frame, previous and next in a pool's list, under the pool's lock. Of a shared or
    /// kept one, the next in each [`Chain`] of the index, under that chain's lock.
    links: [AtomicU32; 2],
}

const _: () = assert!(size_of::<FrameEntry>() == 32);

/// A place in a list: the frame's position among all entries of the [`crate::MemoryMap`].
pub(crate) type Slot = u32;
/// No frame.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

impl FrameEntry {
    /// The state at some moment.
    pub fn state(&self) -> FrameState {
        FrameState::decode(self.state.load(Ordering::Acquire))
    }

    /// Whether it is private memory of `owner`, at some moment.
    pub fn is_private_of(&self, owner: Owner) -> bool {
        self.state().usage == Use::Private && self.owner.load(Ordering::Relaxed) == owner.encode()
    }

    /// Locks the frame; `None` where it is free, for a free frame is its pool's. Spins while
    /// another CPU has it locked, which is a few instructions long.
    pub fn lock(&self) -> Option<LockedFrame<'_>> {
        self.lock_if(|usage| usage != Use::Free)
    }

    /// Locks the frame where it is shared or kept, as [`Self::lock`] does. In any other use it is
    /// not locked even for a moment: whoever frees it meanwhile is not in its way.
    pub fn lock_shared(&self) -> Option<LockedFrame<'_>> {
        self.lock_if(|usage| matches!(usage, Use::Shared | Use::CachedOnly))
    }

    fn lock_if(&self, wanted: impl Fn(Use) -> bool) -> Option<LockedFrame<'_>> {
        loop {
            match self.try_lock_if(&wanted) {
                Err(Refused::Locked) => spin_loop(),
                result => return result.ok(),
            }
        }
    }

    /// Locks the frame if no other CPU has.
    ///
    /// # Errors
    /// [`Refused::Locked`], or [`Refused::PoolOnly`] where it is free.
    pub fn try_lock(&self) -> Result<LockedFrame<'_>, Refused> {
        self.try_lock_if(|usage| usage != Use::Free)
    }

    fn try_lock_if(&self, wanted: impl Fn(Use) -> bool) -> Result<LockedFrame<'_>, Refused> {
        let word = self.state.load(Ordering::Relaxed);
        if FrameState::is_locked(word) {
            return Err(Refused::Locked);
        }
        let state = FrameState::decode(word);
        if !wanted(state.usage) {
            return Err(Refused::PoolOnly);
        }
        let locked = FrameState::locked(word);
        self.state
            .compare_exchange(word, locked, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| Refused::Locked)?;
        Ok(LockedFrame { entry: self, state })
    }

    /// Takes the chunk that this entry is the first of, and `body` the others, where it is
    /// reserved for `owner` and the guest frames after it; says what is in them.
    #[inline]
    pub(crate) fn take_chunk(&self, body: &[Self], owner: Owner) -> Option<Contents> {
        loop {
            let word = self.state.load(Ordering::Relaxed);
            let taken = FrameState::take(word)?;
            let locked = FrameState::locked(word);
            let exchange = |from| {
                let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
                self.state.compare_exchange(from, locked, success, failure)
            };
            if FrameState::is_locked(word) || exchange(word).is_err() {
                spin_loop();
                continue;
            }
            // While it is locked and reserved, its owner does not change, nor do the others. They
            // were one block with it, so their node and origin are its.
            let is_owner = self.owner.load(Ordering::Relaxed) == owner.encode();
            if is_owner {
                for (n, entry) in (1..).zip(body) {
                    entry.owner.store(owner.encode() + n, Ordering::Relaxed);
                }
                // One barrier for all of them: whoever sees a state sees its owner.
                fence(Ordering::Release);
                for entry in body {
                    entry.state.store(taken, Ordering::Relaxed);
                }
            }
            self.state
                .store(if is_owner { taken } else { word }, Ordering::Release);
            return is_owner.then(|| FrameState::contents(word));
        }
    }

    /// Ends what [`LockedFrame::stay_locked`] began, with nothing changed.
    pub(crate) fn unlock(&self) {
        self.state.store(self.state().encode(), Ordering::Release);
    }

    /// Sets the state of a frame that is free, or locked to become so; the pool's lock is held.
    pub(crate) fn set_state(&self, state: FrameState) {
        self.state.store(state.encode(), Ordering::Release);
    }

    /// Makes a free frame what `given`, an encoded state, says, of an encoded `owner`; the pool's
    /// lock is held.
    pub(crate) fn give(&self, given: u64, owner: u64) {
        self.owner.store(owner, Ordering::Relaxed);
        self.state.store(given, Ordering::Release);
    }

    pub(crate) fn links(&self) -> (Slot, Slot) {
        let [previous, next] = &self.links;
        (
            previous.load(Ordering::Relaxed),
            next.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn set_links(&self, previous: Slot, next: Slot) {
        self.links[0].store(previous, Ordering::Relaxed);
        self.links[1].store(next, Ordering::Relaxed);
    }

    /// The next frame in `chain`, as [`crate::MemoryMap::linked`] takes it. The frame is in that
    /// chain, and the chain's lock is held.
    pub fn next_in(&self, chain: Chain) -> u32 {
        self.links[chain as usize].load(Ordering::Relaxed)
    }

    /// Sets what [`Self::next_in`] returns; as there, or the frame is about to be in the chain.
    pub fn set_next_in(&self, chain: Chain, link: u32) {
        self.links[chain as usize].store(link, Ordering::Relaxed);
    }

    /// What is known of the contents. It stays so while the frame cannot leave its use: the frame
    /// is in the index and the lock of one of its chains is held, or the frame is locked.
    pub fn cache_key(&self) -> CacheKey {
        CacheKey::decode(self.key.load(Ordering::Relaxed))
    }
}

/// A frame in use that this CPU has locked, until it is dropped.
#[must_use = "the lock is released at once"]
#[derive(Debug)]
pub struct LockedFrame<'a> {
    entry: &'a FrameEntry,
    /// What the unlock will publish.
    state: FrameState,
}

impl LockedFrame<'_> {
    /// The state.
    pub fn state(&self) -> FrameState {
        self.state
    }

    /// Moves the frame through the transition table.
    ///
    /// # Errors
    /// [`Refused::Step`], [`Refused::References`], [`Refused::Indexed`], [`Refused::Image`];
    /// [`Refused::PoolOnly`] for a release, which is [`crate::Pool::free`]'s, for a reserved frame,
    /// which is one of a chunk, and for [`crate::MemoryMap::set_aside_image`]'s step.
    pub fn step(&mut self, event: Event) -> Result<Use, Refused> {
        let state = self.state.step(event)?;
        let is_ours = event != Event::Keep && self.state.usage != Use::Reserved;
        if state.usage == Use::Free || !is_ours {
            return Err(Refused::PoolOnly);
        }
        self.state = state;
        Ok(state.usage)
    }

    /// Adds a user to a shared frame.
    ///
    /// # Errors
    /// [`Refused::References`] where the frame is not shared, [`Refused::Overflow`].
    pub fn add_reference(&mut self) -> Result<(), Refused> {
        self.count_references(|references| references.checked_add(1))
    }

    /// Takes a user from a shared frame; the frame is to be retired when none is left.
    ///
    /// # Errors
    /// As [`Self::add_reference`].
    pub fn drop_reference(&mut self) -> Result<u16, Refused> {
        self.count_references(|references| references.checked_sub(1))?;
        Ok(self.state.references)
    }

    fn count_references(&mut self, count: impl FnOnce(u16) -> Option<u16>) -> Result<(), Refused> {
        if self.state.usage != Use::Shared {
            return Err(Refused::References(self.state.references));
        }
        self.state.references = count(self.state.references).ok_or(Refused::Overflow)?;
        Ok(())
    }

    /// How many use it.
    pub fn users(&self) -> u32 {
        self.state.references.into()
    }

    /// Notes that a shared or kept frame is in `chain` of the index, or no longer. The chain's
    /// lock is held.
    ///
    /// # Errors
    /// [`Refused::Indexed`] where it is in the chain already, or not; [`Refused::Step`] where it
    /// is neither shared nor kept.
    pub fn set_indexed(&mut self, chain: Chain, indexed: bool) -> Result<(), Refused> {
        if !matches!(self.state.usage, Use::Shared | Use::CachedOnly) {
            return Err(Refused::Step(self.state.usage, Event::Share));
        }
        if (self.state.chains & chain.bit() != 0) == indexed {
            return Err(Refused::Indexed);
        }
        self.state.chains ^= chain.bit();
        Ok(())
    }

    /// Sets [`FrameState::recent`].
    pub fn set_recent(&mut self, recent: bool) {
        self.state.recent = recent;
    }

    /// The first of the records of a shared frame's users, which takes the place of the owner: a
    /// word that whoever keeps the records understands.
    pub fn first_record(&self) -> u64 {
        self.entry.owner.load(Ordering::Relaxed)
    }

    /// Sets [`Self::first_record`].
    pub fn set_first_record(&mut self, record: u64) {
        self.entry.owner.store(record, Ordering::Relaxed);
    }

    /// The guest frame it belongs to, or was set aside for. Not for a shared or kept frame.
    pub fn owner(&self) -> Owner {
        Owner::decode(self.entry.owner.load(Ordering::Relaxed))
    }

    /// Sets the guest frame it belongs to.
    pub fn set_owner(&mut self, owner: Owner) {
        self.entry.owner.store(owner.encode(), Ordering::Relaxed);
    }

    /// What is known of its contents, as last set; meaningless where it was not set since it was
    /// allocated.
    pub fn cache_key(&self) -> CacheKey {
        self.entry.cache_key()
    }

    /// Sets what is known of its contents, before others find it.
    pub fn set_cache_key(&mut self, key: CacheKey) {
        self.entry.key.store(key.encode(), Ordering::Relaxed);
    }

    /// Whether the frame could be freed now.
    pub(crate) fn check_release(&self) -> Result<(), Refused> {
        self.state.step(Event::Release).map(|_| ())
    }

    /// Frees it; the pool's lock is held.
    pub(crate) fn release(mut self) -> Result<(), Refused> {
        self.check_release()?;
        self.state = self.state.freed();
        Ok(())
    }

    /// Leaves the frame locked, for [`FrameEntry::set_state`] or [`FrameEntry::unlock`] to end.
    pub(crate) fn stay_locked(self) {
        core::mem::forget(self);
    }
}

impl Drop for LockedFrame<'_> {
    fn drop(&mut self) {
        self.entry
            .state
            .store(self.state.encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn shared() -> FrameEntry {
        let entry = FrameEntry::default();
        let state = FrameState {
            usage: Use::Shared,
            references: 1,
            ..FrameState::default()
        };
        let owner = Owner {
            vm: VmId {
                index: 7,
                generation: 9,
            },
            gfn: Gfn(0xffff_fffe),
        };
        entry.give(state.encode(), owner.encode());
        entry
    }

    #[test]
    fn a_free_frame_is_its_pools() {
        let entry = FrameEntry::default();
        assert!(entry.lock().is_none());
        assert_eq!(entry.try_lock().map(|_| ()), Err(Refused::PoolOnly));
    }

    #[test]
    fn a_locked_frame_is_locked_until_dropped() {
        let entry = shared();
        let mut frame = entry.lock().unwrap();
        assert_eq!(entry.try_lock().map(|_| ()), Err(Refused::Locked));
        frame.add_reference().unwrap();
        assert_eq!(frame.step(Event::Claim), Err(Refused::References(2)));
        assert_eq!(frame.drop_reference(), Ok(1));
        assert_eq!(frame.step(Event::Claim), Ok(Use::Private));
        assert_eq!(frame.step(Event::Release), Err(Refused::PoolOnly));
        assert_eq!(frame.add_reference(), Err(Refused::References(1)));
        assert_eq!(entry.state().usage, Use::Shared, "not published yet");
        drop(frame);
        assert_eq!(entry.state().usage, Use::Private);
    }

    #[test]
    fn a_frame_enters_and_leaves_a_chain_once() {
        let entry = shared();
        let mut frame = entry.lock().unwrap();
        assert_eq!(
            frame.set_indexed(Chain::Block, false),
            Err(Refused::Indexed)
        );
        frame.set_indexed(Chain::Block, true).unwrap();
        frame.set_indexed(Chain::Content, true).unwrap();
        assert_eq!(frame.set_indexed(Chain::Block, true), Err(Refused::Indexed));
        frame.set_indexed(Chain::Content, false).unwrap();
        assert_eq!(frame.step(Event::Claim), Err(Refused::Indexed));
        frame.set_indexed(Chain::Block, false).unwrap();
        assert_eq!(frame.step(Event::Claim), Ok(Use::Private));
        assert!(frame.set_indexed(Chain::Block, true).is_err());
        drop(frame);
        assert!(entry.lock_shared().is_none() && entry.lock().is_some());
    }

    #[test]
    fn counts_do_not_wrap() {
        let entry = shared();
        let mut frame = entry.lock().unwrap();
        frame.state.references = u16::MAX;
        assert_eq!(frame.add_reference(), Err(Refused::Overflow));
        frame.state.references = 0;
        assert_eq!(frame.drop_reference(), Err(Refused::Overflow));
    }

    #[test]
    fn words_are_kept_whole() {
        let entry = shared();
        let mut frame = entry.lock().unwrap();
        let owner = frame.owner();
        assert_eq!(
            (owner.vm.index, owner.vm.generation, owner.gfn),
            (7, 9, Gfn(0xffff_fffe))
        );
        let key = CacheKey {
            group: 0xfffd,
            disk: 0xfe,
            block: 0xff_ffff_fffe,
        };
        frame.set_cache_key(key);
        assert_eq!((frame.cache_key(), entry.cache_key()), (key, key));
        frame.set_first_record(u64::MAX - 1);
        assert_eq!(frame.first_record(), u64::MAX - 1);
        entry.set_links(1, NO_SLOT);
        assert_eq!(entry.links(), (1, NO_SLOT));
        entry.set_next_in(Chain::Block, 7);
        assert_eq!(entry.links(), (1, 7));
        assert_eq!(entry.next_in(Chain::Content), 1);
    }

    #[test]
    fn only_the_owner_takes_a_reserved_chunk_and_once() {
        let (entry, body) = (
            FrameEntry::default(),
            [(); 15].map(|()| FrameEntry::default()),
        );
        let owner = Owner {
            vm: VmId {
                index: 1,
                generation: 2,
            },
            gfn: Gfn(3),
        };
        let state = FrameState {
            usage: Use::Reserved,
            contents: Contents::Zeroes,
            ..FrameState::default()
        };
        entry.give(state.encode(), owner.encode());
        assert_eq!(entry.take_chunk(&body, owner.add(1)), None);
        let late = VmId {
            index: 1,
            generation: 3,
        };
        let late = Owner { vm: late, ..owner };
        assert_eq!(entry.take_chunk(&body, late), None);
        assert_eq!(body[3].state().usage, Use::Free);
        let step = entry.lock().unwrap().step(Event::Take);
        assert_eq!(step, Err(Refused::PoolOnly), "a chunk is taken as a whole");
        assert_eq!(entry.take_chunk(&body, owner), Some(Contents::Zeroes));
        assert_eq!(entry.take_chunk(&body, owner), None);
        for (n, entry) in std::iter::once(&entry).chain(&body).enumerate() {
            let state = entry.state();
            assert_eq!((state.usage, state.references), (Use::Private, 1));
            assert_eq!(
                state.contents,
                Contents::Unknown,
                "the mark is for one fault"
            );
            assert_eq!(entry.lock().unwrap().owner(), owner.add(n as u64));
        }
    }
}
