//! What frames that guests share stand on: the index, the records, the accounts.

use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model_addr::{FRAME_SIZE, Mfn, NodeId};
use model_address_space::Frames;
use model_frame_table::{MemoryMap, Owner};
use model_sharing::{Accounts, Ground, Index, RecordId, STRIPES, Size, Slab, join_equal};

use crate::frames::bad;
use crate::{FakeFrames, FakeTables};

/// So few that contents meet in one bucket.
static HEADS: usize = 16;
const KEY: u64 = 0x5eed;

/// The machine side of sharing; its index belongs to one machine.
pub(crate) struct Sharing {
    accounts: Accounts,
    index: Index<'static>,
    stripes: [Mutex<()>; STRIPES],
    slab: Mutex<(Slab, FakeTables)>,
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing")
            .field("accounts", &self.accounts)
            .finish_non_exhaustive()
    }
}

impl Default for Sharing {
    fn default() -> Self {
        let heads: Vec<AtomicU32> = (0..HEADS).map(|_| AtomicU32::new(0)).collect();
        Self {
            accounts: Accounts::zero(),
            // The tests' machines are few and small: they live until the end.
            index: Index::new(heads.leak(), KEY),
            stripes: [const { Mutex::new(()) }; STRIPES],
            slab: Mutex::default(),
        }
    }
}

impl Sharing {
    fn slab(&self) -> MutexGuard<'_, (Slab, FakeTables)> {
        self.slab.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeFrames {
    /// Frames in use for records.
    pub fn record_frames(&self) -> u64 {
        self.sharing.slab().0.frames()
    }

    /// Adds `user` to a frame that is found to hold what `page` holds.
    pub fn join_equal(&self, page: Mfn, user: Owner, left: &mut u32) -> Option<Mfn> {
        join_equal(self, page, user, 0, left)
    }
}

impl Ground for FakeFrames {
    fn map(&self) -> &MemoryMap<'_> {
        Frames::map(self)
    }

    fn accounts(&self) -> &Accounts {
        &self.sharing.accounts
    }

    fn index(&self) -> &Index<'_> {
        &self.sharing.index
    }

    fn lock_stripe(&self, stripe: usize) -> impl Sized {
        let lock = self.sharing.stripes[stripe].try_lock();
        lock.unwrap_or_else(|_| bad(&"a stripe is locked twice"))
    }

    fn word(&self, frame: Mfn, n: usize) -> u64 {
        let mut bytes = [0; 8];
        assert!(n < FRAME_SIZE as usize / bytes.len());
        self.load(frame, n as u64 * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn is_equal(&self, frame: Mfn, page: Mfn) -> bool {
        self.contents(frame) == self.contents(page)
    }

    fn clean(&self, frame: Mfn) {
        self.clean_frame(frame);
    }

    fn drop_instructions(&self, frame: Mfn) {
        self.drop_code(frame, 1);
    }

    fn take_record(&self, _: NodeId, size: Size) -> Option<RecordId> {
        if self.record_fails() {
            return None;
        }
        let (slab, tables) = &mut *self.sharing.slab();
        slab.take(tables, size)
    }

    fn give_record(&self, record: RecordId) {
        let (slab, tables) = &mut *self.sharing.slab();
        slab.give(tables, record);
    }

    fn read<const N: usize>(&self, record: RecordId) -> [u64; N] {
        record.read(&self.sharing.slab().1)
    }

    fn write(&self, record: RecordId, n: usize, word: u64) {
        record.write(&mut self.sharing.slab().1, n, word);
    }

    fn free(&self, frame: Mfn) {
        Frames::free(self, frame, 0);
    }
}
