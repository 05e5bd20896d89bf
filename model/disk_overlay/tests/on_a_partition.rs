//! Disks whose overlays are on one partition each, with transfers that take their time and fail, against
//! disks that are vectors.
#![allow(clippy::unwrap_used)]

use machine_contract::{FrameSource, TableMemory};
use machine_fake::FakeTables;
use model_addr::{FRAME_SIZE, Mfn};
use model_disk_overlay::{Block, Overlay, OverlayError, Turn};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SECTOR: u64 = 512;
const SECTORS: usize = (FRAME_SIZE / SECTOR) as usize;
/// The tests keep one byte per sector: what is true of one byte is of all.
type Contents = [u8; SECTORS];
const BLOCKS: u64 = 40;
/// Blocks of a transfer.
const MOST: u64 = 4;
/// What a partition holds that nobody of this test wrote: another VM did.
const FOREIGN: u8 = 0xee;
/// Slots that are looked at for a free one.
const LOOKED_AT: u64 = 3;

/// Slots of a partition, what is in them, and what should be; tables apart.
struct Memory {
    tables: FakeTables,
    fails: Option<u32>,
    slots: Vec<Contents>,
    expected: Vec<Option<Contents>>,
    taken: BTreeSet<u64>,
    hand: u64,
}

impl TableMemory for Memory {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if let Some(left) = &mut self.fails {
            *left = left.checked_sub(1)?;
        }
        self.tables.allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.tables.free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
    }
}

impl FrameSource for Memory {
    fn allocate_frame(&mut self) -> Option<Mfn> {
        for _ in 0..LOOKED_AT {
            let slot = self.hand;
            self.hand = (slot + 1) % self.slots.len() as u64;
            if self.taken.insert(slot) {
                self.expected[slot as usize] = None;
                return Some(Mfn(slot));
            }
        }
        None
    }
    fn free_frame(&mut self, slot: Mfn) {
        assert!(self.taken.remove(&slot.0), "{slot} freed twice");
    }
}

/// A transfer that a disk waits for: it has no other.
enum Waits {
    Read {
        slot: u64,
    },
    Write {
        slot: u64,
        blocks: u64,
        data: Vec<Contents>,
    },
}

struct Request {
    /// Where it is, and ends, in bytes; what it writes or has read.
    at: u64,
    end: u64,
    begin: u64,
    data: Option<Vec<u8>>,
    read: Vec<u8>,
    /// What it has read to write a part of it.
    old: Option<Contents>,
}

/// The owner of an overlay, as the hypervisor is.
struct Disk {
    base: Vec<u8>,
    overlay: Overlay,
    memory: Memory,
    request: Option<Request>,
    waits: Option<Waits>,
    /// What the disk holds; `None`: that is not known, for a write failed.
    plain: Vec<Option<u8>>,
}

impl Disk {
    fn new(base_blocks: u64, slots: usize, limit: u64) -> Self {
        let base: Vec<u8> = (0..base_blocks as usize * SECTORS)
            .map(|n| (n % 200) as u8 + 1)
            .collect();
        let mut plain: Vec<_> = base.iter().copied().map(Some).collect();
        plain.resize(BLOCKS as usize * SECTORS, Some(0));
        Self {
            base,
            overlay: Overlay::new(BLOCKS, base_blocks, limit.min(slots as u64)).unwrap(),
            memory: Memory {
                tables: FakeTables::new(),
                fails: None,
                slots: vec![[FOREIGN; SECTORS]; slots],
                expected: vec![None; slots],
                taken: BTreeSet::new(),
                hand: 0,
            },
            request: None,
            waits: None,
            plain,
        }
    }

    /// What the block of byte `at` holds, if that is in memory; otherwise its slot.
    fn at_hand(&self, at: u64) -> Result<Contents, u64> {
        let block = at / FRAME_SIZE;
        match self.overlay.lookup(&self.memory, block) {
            Block::Zero => Ok([0; SECTORS]),
            Block::Base => {
                let from = block as usize * SECTORS;
                Ok(self.base[from..from + SECTORS].try_into().unwrap())
            }
            Block::Data(slot) => Err(slot.0),
        }
    }

    fn begin(&mut self, sector: u64, sectors: u64, data: Option<Vec<u8>>) {
        self.request = Some(Request {
            at: sector * SECTOR,
            begin: sector * SECTOR,
            end: (sector + sectors) * SECTOR,
            data,
            read: Vec::new(),
            old: None,
        });
        self.go_on(None);
    }

    /// Goes on with the request, with what came, until it waits or has ended.
    fn go_on(&mut self, mut came: Option<Contents>) {
        while let Some(mut request) = self.request.take() {
            if request.at >= request.end {
                return self.end(&request, Ok(()));
            }
            let ended = if request.data.is_some() {
                request.old = request.old.or(came.take());
                self.write_more(&request)
            } else {
                self.read_more(&mut request, came.take());
                Ok(())
            };
            let waits = self.waits.is_some();
            match ended {
                Err(OverlayError::NoMemory) => {
                    // It is tried again later.
                    self.memory.fails = None;
                    self.request = Some(request);
                }
                Err(error) => return self.end(&request, Err(error)),
                Ok(()) => self.request = Some(request),
            }
            if waits {
                return;
            }
        }
    }

    fn read_more(&mut self, request: &mut Request, came: Option<Contents>) {
        let turn = Turn::new(request.at, request.end, 1);
        let contents = match (self.at_hand(request.at), came) {
            (Ok(contents), _) | (Err(_), Some(contents)) => contents,
            (Err(slot), None) => {
                self.waits = Some(Waits::Read { slot });
                return;
            }
        };
        let from = (turn.offset / SECTOR) as usize;
        let count = (turn.bytes / SECTOR) as usize;
        request
            .read
            .extend_from_slice(&contents[from..from + count]);
        request.at += turn.bytes;
    }

    fn write_more(&mut self, request: &Request) -> Result<(), OverlayError> {
        let turn = Turn::new(request.at, request.end, MOST);
        let mut contents = vec![[0; SECTORS]; turn.blocks() as usize];
        if !turn.is_whole() {
            match (self.at_hand(request.at), request.old) {
                (Ok(old), _) | (Err(_), Some(old)) => contents[0] = old,
                (Err(slot), None) => {
                    self.waits = Some(Waits::Read { slot });
                    return Ok(());
                }
            }
        }
        let skipped = (request.at - request.begin) / SECTOR;
        let data = &request.data.as_ref().unwrap()[skipped as usize..];
        let offset = (turn.offset / SECTOR) as usize;
        for n in 0..(turn.bytes / SECTOR) as usize {
            contents[(offset + n) / SECTORS][(offset + n) % SECTORS] = data[n];
        }
        let (slot, blocks) = self
            .overlay
            .place(&mut self.memory, turn.block, turn.blocks())?;
        contents.truncate(blocks as usize);
        for (n, contents) in contents.iter().enumerate() {
            self.memory.expected[slot.0 as usize + n] = Some(*contents);
        }
        let (slot, data) = (slot.0, contents);
        self.waits = Some(Waits::Write { slot, blocks, data });
        Ok(())
    }

    /// The transfer ends, well or not.
    fn transferred(&mut self, done: bool) {
        let Some(mut request) = self.request.take() else {
            return;
        };
        match self.waits.take() {
            None => self.request = Some(request),
            Some(_) if !done => self.end(&request, Err(OverlayError::Conflict)),
            Some(Waits::Read { slot }) => {
                let found = self.memory.slots[slot as usize];
                if self.memory.expected[slot as usize] == Some(found) {
                    self.request = Some(request);
                    self.go_on(Some(found));
                } else {
                    self.end(&request, Err(OverlayError::Conflict));
                }
            }
            Some(Waits::Write { slot, blocks, data }) => {
                let slot = slot as usize;
                self.memory.slots[slot..slot + data.len()].copy_from_slice(&data);
                request.at += Turn::new(request.at, request.end, MOST).done(blocks);
                request.old = None;
                self.request = Some(request);
                self.go_on(None);
            }
        }
    }

    fn end(&mut self, request: &Request, how: Result<(), OverlayError>) {
        let first = (request.begin / SECTOR) as usize;
        match (&request.data, how) {
            (Some(data), Ok(())) => {
                for (n, byte) in data.iter().enumerate() {
                    self.plain[first + n] = Some(*byte);
                }
            }
            (Some(data), Err(error)) => {
                if error == OverlayError::Full {
                    assert_eq!(self.overlay.data_blocks(), self.memory.taken.len() as u64);
                }
                // Whole blocks of it are as they were, or new, or cannot be read.
                let end = (first + data.len()).next_multiple_of(SECTORS);
                self.plain[first / SECTORS * SECTORS..end].fill(None);
            }
            (None, Ok(())) => {
                let seen = request.read.iter().zip(&self.plain[first..]);
                for (seen, plain) in seen {
                    assert!(*seen != FOREIGN, "what another VM wrote was read");
                    assert!(
                        plain.is_none_or(|plain| plain == *seen),
                        "{seen} is not {plain:?}"
                    );
                }
                assert_eq!(
                    request.read.len() as u64,
                    (request.end - request.begin) / SECTOR
                );
            }
            (None, Err(_)) => {}
        }
    }

    fn zero(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            match self.overlay.zero(&mut self.memory, at..to, &mut 5) {
                Ok(next) => at = next,
                Err(_) => self.memory.fails = None,
            }
        }
        self.plain[from as usize * SECTORS..to as usize * SECTORS].fill(Some(0));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, u64),
    Write(u64, u64, u8),
    Zero(u64, u64),
    Transferred(bool),
    NoTables(u32),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let sectors = BLOCKS * SECTORS as u64;
    let range = (0..sectors, prop_oneof![Just(8u64), 1..60u64]).prop_map(move |(at, count)| {
        let at = if count == 8 { at / 8 * 8 } else { at };
        (at, count.min(sectors - at))
    });
    let step = prop_oneof![
        4 => range.clone().prop_map(|(at, count)| Step::Read(at, count)),
        5 => (range, 1..0xe0u8).prop_map(|((at, count), byte)| Step::Write(at, count, byte)),
        1 => (0..BLOCKS, 0..BLOCKS).prop_map(|(a, b)| Step::Zero(a.min(b), a.max(b))),
        9 => Just(Step::Transferred(true)),
        1 => Just(Step::Transferred(false)),
        1 => (0..2u32).prop_map(Step::NoTables),
    ];
    prop::collection::vec((0..2usize, step), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Each disk does one request after the other, as the hypervisor lets it; the two interleave.
    #[test]
    fn disks_are_what_was_written(
        base in 0..=BLOCKS, slots in 1..60usize, limit in 1..60u64, steps in steps(),
    ) {
        let mut disks = [Disk::new(base, slots, limit), Disk::new(BLOCKS, 60, 60)];
        for (n, step) in steps {
            let disk = &mut disks[n];
            match step {
                Step::Transferred(done) => disk.transferred(done),
                Step::NoTables(left) => disk.memory.fails = Some(left),
                _ if disk.request.is_some() => {}
                Step::Read(at, count) => disk.begin(at, count, None),
                Step::Write(at, count, byte) => {
                    let data = (0..count).map(|n| byte.wrapping_add(n as u8) % 0xe0).collect();
                    disk.begin(at, count, Some(data));
                }
                Step::Zero(from, to) => disk.zero(from, to),
            }
            prop_assert_eq!(disk.overlay.data_blocks(), disk.memory.taken.len() as u64);
            prop_assert!(disk.overlay.data_blocks() <= limit.min(slots as u64).max(60 * n as u64));
        }
        for mut disk in disks {
            while disk.request.is_some() {
                disk.transferred(true);
            }
            for at in (0..BLOCKS * SECTORS as u64).step_by(16) {
                disk.begin(at, 16, None);
                while disk.request.is_some() {
                    disk.transferred(true);
                }
            }
            let (mut teardown, mut memory) = (disk.overlay.into_teardown(), disk.memory);
            while !teardown.step(&mut memory, 7) {}
            prop_assert_eq!((memory.taken.len(), memory.tables.in_use()), (0, 0));
        }
    }

    #[test]
    fn turns_cover_a_write(at in 0..100_000u64, len in 1..100_000u64, most in 1..20u64) {
        let end = at + len;
        let mut reached = at;
        while reached < end {
            let turn = Turn::new(reached, end, most);
            prop_assert_eq!(turn.block * FRAME_SIZE + turn.offset, reached);
            prop_assert!(turn.bytes > 0 && turn.blocks() <= most);
            prop_assert!(turn.is_whole() && turn.offset == 0 || turn.blocks() == 1);
            prop_assert_eq!(turn.done(turn.blocks()), turn.bytes);
            reached += turn.bytes;
        }
        prop_assert_eq!(reached, end);
    }
}

#[test]
fn slots_in_a_row_are_one_transfer() {
    let mut disk = Disk::new(BLOCKS, 60, 60);
    let memory = &mut disk.memory;
    assert_eq!(disk.overlay.place(memory, 3, 4), Ok((Mfn(0), 4)));
    assert_eq!(disk.overlay.place(memory, 3, 6), Ok((Mfn(0), 6)));
    assert_eq!(disk.overlay.run(memory, 4, Mfn(1), 9), 5);
    // What comes before has other slots, and ends where these begin.
    assert_eq!(disk.overlay.place(memory, 1, 4), Ok((Mfn(6), 2)));
    assert_eq!(disk.overlay.data_blocks(), 8);
    assert_eq!(disk.overlay.place(memory, 1, 4), Ok((Mfn(6), 2)));
}
