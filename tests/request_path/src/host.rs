//! The machine under a disk: the fake machine's frames, and partitions that are bytes on the host.

use crate::{Guest, Image};
use machine_contract::{GuestMemoryError, TableMemory};
use machine_fake::{FakeFrames, FakeTables};
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn, NodeId, VmId};
use model_address_space::{Access, Frames, Gets};
use model_disk::{Bytes, Machine, Store};
use model_disk_overlay::OverlayError;
use model_frame_table::{CacheKey, Owner, Purpose, Use};
use model_pmap::Why;
use model_sharing::{Expect, Ground, NotJoined};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const NODE: NodeId = NodeId(0);
const PAGE: usize = FRAME_SIZE as usize;
/// What a frame holds that its last owner left.
const LEFT_BEHIND: [u8; PAGE] = [0xa5; PAGE];

/// The machine, as disks use it.
#[derive(Clone, Copy)]
pub struct Host<'a>(pub &'a FakeFrames);

impl model_disk::Image for &Image {
    fn size(&self) -> u64 {
        self.blocks() * FRAME_SIZE
    }
    fn block(&self, block: u64) -> Option<Mfn> {
        self.frame(block)
    }
}

/// Tables that can be made to fail while a disk has them.
#[derive(Clone, Default)]
pub struct Tables(Rc<RefCell<FakeTables>>);

impl Tables {
    pub(crate) fn fail_after(&self, successes: Option<u64>) {
        self.0.borrow_mut().fail_after(successes);
    }
    pub(crate) fn in_use(&self) -> usize {
        self.0.borrow().in_use()
    }
}

impl TableMemory for Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.0.borrow_mut().allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.0.borrow_mut().free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.0.borrow().read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.0.borrow_mut().write(table, index, value);
    }
}

/// What holds a partition's bytes.
pub trait Medium {
    /// Reads from byte `at` on.
    fn load(&self, at: usize, into: &mut [u8]);
    /// Writes from byte `at` on.
    fn store(&self, at: usize, bytes: &[u8]);
    /// What was written outlives a loss of power.
    fn flush(&self) {}
}

impl Medium for RefCell<Vec<u8>> {
    fn load(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.borrow()[at..at + into.len()]);
    }
    fn store(&self, at: usize, bytes: &[u8]) {
        self.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

struct Plate {
    number: u8,
    size: usize,
    /// What is known of each block: 0 where nothing is, 1 where it is taken, else a hash.
    known: Vec<u64>,
    /// Transfers that succeed before all fail.
    fails_after: Option<u32>,
}

/// A partition of a physical disk. Clones are the same one.
#[derive(Clone)]
pub struct Partition<'a> {
    frames: &'a FakeFrames,
    plate: Rc<RefCell<Plate>>,
    medium: Rc<dyn Medium + 'a>,
}

impl<'a> Partition<'a> {
    /// A partition with that number and these bytes, whole sectors.
    pub fn new(frames: &'a FakeFrames, number: u8, bytes: &[u8]) -> Self {
        let medium = RefCell::new(bytes.to_vec());
        Self::on(frames, number, bytes.len(), Rc::new(medium))
    }

    /// A partition with that number, whose bytes the medium holds: so many, whole sectors.
    pub fn on(
        frames: &'a FakeFrames,
        number: u8,
        size: usize,
        medium: Rc<dyn Medium + 'a>,
    ) -> Self {
        let plate = Plate {
            number,
            size,
            known: vec![0; size / PAGE],
            fails_after: None,
        };
        Self {
            frames,
            plate: Rc::new(RefCell::new(plate)),
            medium,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.medium.load(0, &mut bytes);
        bytes
    }

    /// Changes a byte, as no VM does.
    pub fn corrupt(&self, at: usize) {
        let mut byte = [0];
        self.medium.load(at, &mut byte);
        self.medium.store(at, &[byte[0] ^ 1]);
    }

    /// Lets the transfer after so many more fail, and all that follow, until it is called with `None`.
    pub fn fail_after(&self, transfers: Option<u32>) {
        self.plate.borrow_mut().fails_after = transfers;
    }

    /// Whether the next transfer is done.
    pub(crate) fn works(&self) -> bool {
        match &mut self.plate.borrow_mut().fails_after {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    pub(crate) fn load(&self, at: usize, into: &mut [u8]) {
        self.medium.load(at, into);
    }

    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        self.medium.store(at, bytes);
    }

    pub(crate) fn flush(&self) {
        self.medium.flush();
    }

    pub(crate) fn len(&self) -> usize {
        self.plate.borrow().size
    }

    fn hash(&self, page: Mfn) -> u64 {
        let bytes = self.frames.contents(page).unwrap();
        let mix = |hash: u64, byte: &u8| hash.rotate_left(5) ^ u64::from(*byte) ^ hash >> 3;
        bytes.iter().fold(0x5eed, mix).max(2)
    }

    fn known(&self, block: u64) -> u64 {
        self.plate.borrow().known[block as usize]
    }

    fn know(&self, block: u64, word: u64) {
        self.plate.borrow_mut().known[block as usize] = word;
    }
}

impl Store for Partition<'_> {
    fn number(&self) -> u8 {
        self.plate.borrow().number
    }
    fn size(&self) -> u64 {
        self.len() as u64 & !(FRAME_SIZE - 1)
    }
    fn check(&self, block: u64, page: Mfn) -> bool {
        let hash = self.hash(page);
        if self.known(block) == 0 {
            self.know(block, hash);
        }
        self.known(block) == hash
    }
    fn reserve(&self) -> Option<u64> {
        let known = &mut self.plate.borrow_mut().known;
        let free = known.iter().position(|word| *word == 0)?;
        known[free] = 1;
        Some(free as u64)
    }
    fn word_of(&self, page: Mfn) -> u64 {
        self.hash(page)
    }
    fn remember(&self, block: u64, word: u64) {
        self.know(block, word);
    }
    fn forget(&self, block: u64) {
        self.know(block, 0);
    }
    fn word(&self, block: u64) -> u64 {
        self.known(block)
    }
    fn adopt(&self, block: u64, word: u64, _alone: bool) -> bool {
        self.know(block, word);
        true
    }
    fn tables(&self) -> u64 {
        0
    }
}

/// The pieces of a run that lie in one frame each: the frame, where in it, and which bytes of the run.
fn in_frames(bytes: Bytes) -> impl Iterator<Item = (Mfn, u64, Range<usize>)> {
    let start = Ipa(bytes.start().0);
    let pieces = crate::guest::pieces(start, bytes.len() as usize);
    pieces.map(|(at, part)| (Mfn(at.frame().0), at.offset(), part))
}

impl Host<'_> {
    pub(crate) fn load(self, bytes: Bytes) -> Vec<u8> {
        let mut loaded = vec![0; bytes.len() as usize];
        for (frame, at, part) in in_frames(bytes) {
            self.0.load(frame, at, &mut loaded[part]);
        }
        loaded
    }

    pub(crate) fn store(self, bytes: Bytes, from: &[u8]) {
        for (frame, at, part) in in_frames(bytes) {
            self.0.store(frame, at, &from[part]);
        }
    }

    fn find(self, key: CacheKey) -> Option<Mfn> {
        let index = Ground::index(self.0);
        let bucket = index.block_bucket(key);
        let _guard = self.0.lock_stripe(bucket.stripe());
        let found = index.find(Ground::map(self.0), bucket, |_, entry| {
            entry.cache_key() == key
        });
        found.map(|(frame, _)| frame)
    }

    fn state(self, frame: Mfn) -> Use {
        Frames::map(self.0).entry(frame).unwrap().state().usage
    }

    /// Gives back what is only kept since it holds a block.
    pub fn evict_all(self, frames: impl Iterator<Item = Mfn>) {
        for frame in frames {
            if self.state(frame) == Use::CachedOnly {
                model_sharing::evict(self.0, frame);
            }
        }
    }
}

impl<'a> Machine for Host<'a> {
    type Image = &'a Image;
    type Store = Box<Partition<'a>>;
    type Tables = Tables;

    fn count(tables: &Tables) -> u64 {
        tables.in_use() as u64
    }
    fn copy(&self, to: Bytes, from: Bytes) {
        assert_eq!(to.len(), from.len());
        self.store(to, &self.load(from));
    }
    fn zero(&self, bytes: Bytes) {
        self.store(bytes, &vec![0; bytes.len() as usize]);
    }
    fn allocate(&self, owner: Owner) -> Option<Mfn> {
        let frame = self.0.allocate(NODE, 0, Purpose::Private(owner))?;
        self.0.fill(frame, &LEFT_BEHIND);
        Some(frame)
    }
    fn free(&self, frame: Mfn) {
        Frames::free(self.0, frame, 0);
    }
    fn is_shared(&self, frame: Mfn) -> bool {
        self.state(frame) == Use::Shared
    }
    fn share(&self, frame: Mfn, owner: Owner) -> bool {
        let is_published = self.0.publish(frame, owner);
        if is_published {
            self.0.enlist(frame);
        }
        is_published
    }
    fn claim(&self, frame: Mfn, user: Owner) -> bool {
        Frames::claim(self.0, frame, user)
    }
    fn leave(&self, frame: Mfn, user: Owner) {
        let left = model_sharing::leave(self.0, frame, user, false);
        assert!(left.is_some(), "{user:?} was no user of {frame}");
    }
    fn join_image(&self, frame: Mfn, user: Owner) -> Result<(), Why> {
        Frames::join(self.0, frame, user)
    }
    fn join_own(&self, frame: Mfn, user: Owner) -> bool {
        model_sharing::join(self.0, frame, user, Expect::Group(0)).is_ok()
    }
    fn join_equal(&self, page: Mfn, user: Owner, left: &mut u32) -> Option<Mfn> {
        self.0.join_equal(page, user, left)
    }
    fn is_first_use(&self, frame: Mfn) -> bool {
        self.state(frame) == Use::CachedOnly
    }
    fn key(&self, _: Owner, partition: u8, block: u64) -> CacheKey {
        CacheKey {
            group: 0,
            disk: partition,
            block,
        }
    }
    fn has_block(&self, key: CacheKey) -> bool {
        self.find(key).is_some()
    }
    fn join_block(&self, key: CacheKey, user: Owner) -> Option<Result<Mfn, Why>> {
        let frame = self.find(key)?;
        match model_sharing::join(self.0, frame, user, Expect::Block(key)) {
            Ok(_) => Some(Ok(frame)),
            Err(NotJoined::Gone) => None,
            Err(_) => Some(Err(Why::Full)),
        }
    }
    fn copy_block(&self, key: CacheKey, from: u64, to: Bytes) -> bool {
        let Some(frame) = self.find(key) else {
            return false;
        };
        let from = Bytes::frames(frame, 1).part(from, to.len()).unwrap();
        self.copy(to, from);
        true
    }
    fn enter_block(&self, page: Mfn, key: CacheKey, user: Owner) -> Option<Mfn> {
        let frame = self.0.allocate(NODE, 0, Purpose::Private(user))?;
        let bytes = self.0.contents(page).unwrap();
        self.0.fill(frame, bytes.as_slice().try_into().unwrap());
        model_sharing::publish(self.0, frame, user, key).unwrap();
        self.0.enlist(frame);
        Some(frame)
    }
    fn kind_of(&self, _: Mfn) -> u8 {
        0
    }
    fn take_over(&self, _: u8, _: Mfn, _: Owner) -> bool {
        false
    }
}

impl model_disk::Guest for Guest<'_> {
    fn id(&self) -> VmId {
        self.user(Gfn(0)).vm
    }
    fn shares(&self) -> bool {
        self.policy().share
    }
    fn contains(&self, ipa: Ipa) -> bool {
        // Once for each piece of a request.
        self.others_act();
        machine_contract::GuestMemory::contains(self, ipa, 1)
    }
    fn keeps_blocks(&self) -> bool {
        self.policy().keep_blocks
    }
    fn is_never_shared(&self, gfn: Gfn) -> bool {
        self.never_shares(gfn)
    }
    fn pieces(
        &self,
        ipa: Ipa,
        len: usize,
        write: bool,
        mut each: impl FnMut(Bytes, Range<usize>),
    ) -> Result<(), GuestMemoryError> {
        for (at, part) in crate::guest::pieces(ipa, len) {
            let access = match (write, part.len() as u64) {
                (false, _) => Access::Read,
                (true, FRAME_SIZE) => Access::Overwrite,
                (true, _) => Access::Write,
            };
            self.with_frame(at, access, |frame| {
                let bytes = Bytes::frames(frame, 1).part(at.offset(), part.len() as u64);
                each(bytes.unwrap(), part);
            })?;
            self.others_act();
        }
        Ok(())
    }
    fn look(&self, ipa: Ipa, with: impl FnOnce(Mfn) -> bool) -> Result<bool, GuestMemoryError> {
        self.with_frame(ipa, Access::Read, with)
    }
    fn exchange(&self, pages: &[(Gfn, Gets)]) -> u64 {
        self.others_act();
        let done = self.exchange_now(pages);
        self.others_act();
        done
    }
    fn refused(&self, _: Why) {}
    fn found_equal(&self) {}
    fn complain(&self, _: u64, _: OverlayError) {}
}
