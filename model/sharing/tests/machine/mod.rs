//! A small machine: frames that hold one word each, pools, records, an index and its locks.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a test's; not every one needs all"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use machine_contract::TableMemory;
use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{FrameEntry, MemoryMap, MemoryRange, Origin, Owner, Pool, Purpose};
use model_sharing::{Accounts, Ground, Index, RecordId, STRIPES, Size, Slab};

/// The first frame of the pools; far from zero, so that a slot is no frame number.
pub const FIRST: u64 = 0x8_0003;
/// The first frame of the image.
pub const IMAGE: u64 = 0x1_0001;
const NODE: NodeId = NodeId(0);

/// Frames for records. Touching one that is not allocated fails the test.
#[derive(Debug, Default)]
pub struct Tables {
    allocated: BTreeMap<Mfn, Box<[u64; 512]>>,
    next: u64,
    /// So many more can be allocated.
    left: Option<u64>,
}

impl Tables {
    pub fn in_use(&self) -> usize {
        self.allocated.len()
    }

    pub fn limit(&mut self, left: Option<u64>) {
        self.left = left;
    }
}

impl TableMemory for Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        // The machine's very first frame may hold records too.
        let table = Mfn(self.next);
        self.next += 37;
        self.allocated.insert(table, Box::new([0; 512]));
        Some(table)
    }

    fn free_table(&mut self, table: Mfn) {
        assert!(self.allocated.remove(&table).is_some(), "freed twice");
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.allocated[&table][index]
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.allocated.get_mut(&table).unwrap()[index] = value;
    }
}

pub struct Machine {
    map: MemoryMap<'static>,
    accounts: Accounts,
    index: Index<'static>,
    stripes: Vec<Mutex<()>>,
    pub pool: Mutex<Pool>,
    pub slab: Mutex<(Slab, Tables)>,
    /// Records in use of each size, and the frames that they take.
    records: [[AtomicU64; 2]; 2],
    /// Pages that were compared.
    pub compares: AtomicU64,
    contents: Vec<AtomicU64>,
    /// What another CPU does once, before the next record is taken.
    meanwhile: Mutex<Option<fn(&Self)>>,
}

impl Machine {
    /// A machine with `frames` frames in its pool and `images` frames of an image; the index has
    /// `buckets` buckets for each chain.
    pub fn new(frames: u64, images: u64, buckets: usize) -> Self {
        let [kept, pooled] = [(IMAGE, images), (FIRST, frames)].map(|(start, count)| {
            let entries: Vec<_> = (0..count).map(|_| FrameEntry::default()).collect();
            MemoryRange {
                frames: FrameRange {
                    start: Mfn(start),
                    count,
                },
                node: NODE,
                // Few and small: they live until the end.
                entries: entries.leak(),
            }
        });
        let ranges = [kept, pooled];
        let map = MemoryMap::new(&ranges[usize::from(images == 0)..]).unwrap();
        let mut pool = Pool::new(NODE);
        pool.add(&map, pooled.frames, Origin::Machine).unwrap();
        if images > 0 {
            map.set_aside_image(kept.frames).unwrap();
        }
        let heads: Vec<_> = (0..2 * buckets).map(|_| AtomicU32::new(0)).collect();
        Self {
            map,
            accounts: Accounts::zero(),
            index: Index::new(heads.leak(), 0x5eed),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            pool: Mutex::new(pool),
            slab: Mutex::default(),
            records: Default::default(),
            compares: AtomicU64::new(0),
            contents: (0..frames + images).map(|_| AtomicU64::new(0)).collect(),
            meanwhile: Mutex::default(),
        }
    }

    /// Lets another CPU do this before the next record is taken; whether what was to be done before is done.
    pub fn meanwhile(&self, deed: Option<fn(&Self)>) -> bool {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        std::mem::replace(&mut *meanwhile, deed).is_none()
    }

    /// A private frame of `user` that holds `content`.
    pub fn allocate(&self, user: Owner, content: u64) -> Option<Mfn> {
        let mut pool = self.pool.lock().unwrap();
        let frame = pool.allocate(&self.map, 0, Purpose::Private(user), NODE)?;
        self.store(frame, content);
        Some(frame)
    }

    pub fn store(&self, frame: Mfn, content: u64) {
        let at = self.map.link(frame).unwrap() as usize - 1;
        self.contents[at].store(content, Ordering::Relaxed);
    }

    /// Zero where the machine has no such frame.
    pub fn load(&self, frame: Mfn) -> u64 {
        let at = self.map.link(frame).map(|link| link as usize - 1);
        at.map_or(0, |at| self.contents[at].load(Ordering::Relaxed))
    }

    pub fn free_frames(&self) -> u64 {
        self.pool.lock().unwrap().counts().free
    }

    /// Records in use of a size, and the frames that they take.
    pub fn records(&self, size: Size) -> (u64, u64) {
        let slab = self.slab.lock().unwrap();
        assert_eq!(slab.0.frames(), slab.1.in_use() as u64);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let frames: u64 = self.records.iter().map(|[_, frames]| count(frames)).sum();
        assert_eq!(slab.0.frames(), frames);
        let [records, frames] = &self.records[size as usize];
        (count(records), count(frames))
    }
}

impl Ground for Machine {
    fn map(&self) -> &MemoryMap<'_> {
        &self.map
    }

    fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn index(&self) -> &Index<'_> {
        &self.index
    }

    fn lock_stripe(&self, stripe: usize) -> impl Sized {
        self.stripes[stripe].lock().unwrap()
    }

    fn word(&self, frame: Mfn, _: usize) -> u64 {
        self.load(frame)
    }

    fn is_equal(&self, frame: Mfn, page: Mfn) -> bool {
        self.compares.fetch_add(1, Ordering::Relaxed);
        self.load(frame) == self.load(page)
    }

    fn clean(&self, _: Mfn) {}
    fn drop_instructions(&self, _: Mfn) {}

    fn take_record(&self, _: NodeId, size: Size) -> Option<RecordId> {
        let deed = self.meanwhile.lock().unwrap().take();
        if let Some(deed) = deed {
            deed(self);
        }
        let (slab, tables) = &mut *self.slab.lock().unwrap();
        let frames = slab.frames();
        let id = slab.take(tables, size)?;
        // What it holds is unspecified.
        (0..size.words()).for_each(|n| id.write(tables, n, 0x5eed_5eed_5eed_5eed));
        let [records, of_size] = &self.records[size as usize];
        records.fetch_add(1, Ordering::Relaxed);
        of_size.fetch_add(slab.frames() - frames, Ordering::Relaxed);
        Some(id)
    }

    fn give_record(&self, record: RecordId) {
        let (slab, tables) = &mut *self.slab.lock().unwrap();
        let frames = slab.frames();
        slab.give(tables, record);
        let [records, of_size] = &self.records[record.size() as usize];
        records.fetch_sub(1, Ordering::Relaxed);
        of_size.fetch_sub(frames - slab.frames(), Ordering::Relaxed);
    }

    fn read<const N: usize>(&self, record: RecordId) -> [u64; N] {
        assert!(N <= record.size().words());
        record.read(&self.slab.lock().unwrap().1)
    }

    fn write(&self, record: RecordId, n: usize, word: u64) {
        assert!(n < record.size().words());
        record.write(&mut self.slab.lock().unwrap().1, n, word);
    }

    fn free(&self, frame: Mfn) {
        let mut pool = self.pool.lock().unwrap();
        pool.free(&self.map, frame, 0).unwrap();
    }
}

pub fn user(vm: u16, gfn: u64) -> Owner {
    Owner {
        vm: VmId {
            index: vm,
            generation: 0xff00 + vm,
        },
        gfn: Gfn(gfn),
    }
}
