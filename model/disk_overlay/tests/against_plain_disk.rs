//! An overlay with its owner against a disk that is a vector.
#![allow(clippy::unwrap_used)]

use machine_contract::{FrameSource, TableMemory};
use machine_fake::FakeTables;
use model_addr::Mfn;
use model_disk_overlay::{Block, Fill, Overlay, OverlayError, WritePlan};
use proptest::prelude::*;
use std::collections::HashMap;

const SECTOR: usize = 512;
/// Sectors of a block. The tests keep one byte per sector: what is true of one byte is of all.
const SECTORS: usize = 4096 / SECTOR;
type Contents = [u8; SECTORS];

/// Table memory and frames that fail on demand; frames have contents.
#[derive(Default)]
struct Memory {
    tables: FakeTables,
    frames: HashMap<Mfn, Contents>,
    next: u64,
    left: Option<u64>,
}

impl Memory {
    fn take(&mut self) -> bool {
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return false;
            }
            *left -= 1;
        }
        true
    }
}

impl TableMemory for Memory {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if self.take() {
            self.tables.allocate_table()
        } else {
            None
        }
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
        if !self.take() {
            return None;
        }
        self.next += 3;
        self.frames.insert(Mfn(self.next), [0xdb; SECTORS]);
        Some(Mfn(self.next))
    }
    fn free_frame(&mut self, frame: Mfn) {
        assert!(self.frames.remove(&frame).is_some(), "{frame} freed twice");
    }
}

/// The owner: a base, an overlay, and the moves between them.
struct Disk {
    base: Vec<u8>,
    overlay: Overlay,
    memory: Memory,
}

impl Disk {
    fn new(blocks: u64, base_blocks: u64, limit: u64) -> Self {
        let base = (0..base_blocks as usize * SECTORS)
            .map(|n| (n % 250) as u8 + 1)
            .collect();
        let overlay = Overlay::new(blocks, base_blocks, limit).unwrap();
        Self {
            base,
            overlay,
            memory: Memory::default(),
        }
    }

    fn base_block(&self, block: u64) -> Contents {
        let at = block as usize * SECTORS;
        self.base[at..at + SECTORS].try_into().unwrap()
    }

    fn read(&self, block: u64) -> Contents {
        match self.overlay.lookup(&self.memory, block) {
            Block::Base => self.base_block(block),
            Block::Data(frame) => self.memory.frames[&frame],
            Block::Zero => [0; SECTORS],
        }
    }

    fn write(&mut self, block: u64, from: usize, bytes: &[u8]) -> Result<(), OverlayError> {
        let whole = bytes.len() == SECTORS;
        let plan = self.overlay.prepare_write(&mut self.memory, block, whole)?;
        let frame = match &plan {
            WritePlan::InPlace(frame) => *frame,
            WritePlan::New(new) => {
                let filled = match new.fill() {
                    Fill::Nothing => self.memory.frames[&new.frame()],
                    Fill::Zeroes => [0; SECTORS],
                    Fill::Base => self.base_block(block),
                };
                self.memory.frames.insert(new.frame(), filled);
                new.frame()
            }
        };
        let contents = self.memory.frames.get_mut(&frame).unwrap();
        contents[from..from + bytes.len()].copy_from_slice(bytes);
        match plan {
            WritePlan::InPlace(_) => Ok(()),
            WritePlan::New(new) => self.overlay.commit(&mut self.memory, new),
        }
    }

    /// What is made of what was changed has the same behind each of these blocks.
    fn gone_over(&self, (blocks, base_blocks, limit): (u64, u64, u64), seen: &[u64]) {
        let mut other = Overlay::new(blocks, base_blocks, limit).unwrap();
        let (mut memory, mut end) = (Memory::default(), 0);
        self.overlay.changed(&self.memory, |block, what, count| {
            assert!(block >= end && count > 0, "not in order");
            end = block + count;
            match what {
                Block::Data(frame) => assert_eq!(other.put(&mut memory, block, frame), Ok(None)),
                Block::Zero => assert_eq!(
                    other.zero(&mut memory, block..end, &mut { u32::MAX }),
                    Ok(end)
                ),
                Block::Base => assert_ne!(what, Block::Base),
            }
        });
        assert!(end <= blocks);
        assert_eq!(other.data_blocks(), self.overlay.data_blocks());
        for block in seen
            .iter()
            .flat_map(|block| block.saturating_sub(1)..block + 2)
        {
            let same = self.overlay.lookup(&self.memory, block);
            assert_eq!(other.lookup(&memory, block), same, "block {block}");
        }
    }

    fn zero(&mut self, from: u64, to: u64, budget: u32) -> Result<(), OverlayError> {
        let mut at = from;
        while at < to {
            let next = self
                .overlay
                .zero(&mut self.memory, at..to, &mut { budget })?;
            assert!(next > at, "no progress");
            at = next;
        }
        Ok(())
    }

    /// Frees all, `budget` entries at a time.
    fn tear_down(mut self, budget: u32) {
        let mut teardown = self.overlay.into_teardown();
        while !teardown.step(&mut self.memory, budget) {}
        assert_eq!(
            (self.memory.frames.len(), self.memory.tables.in_use()),
            (0, 0)
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        block: u64,
        from: usize,
        bytes: Vec<u8>,
    },
    Zero {
        from: u64,
        len: u64,
        budget: u32,
    },
    Abandon {
        block: u64,
    },
    FailAfter {
        successes: Option<u64>,
    },
}

/// Disks of one, two and three levels, with interesting blocks around the tables' borders.
fn disks() -> impl Strategy<Value = (u64, u64, u64)> {
    let blocks = prop_oneof![Just(1u64), 2..40u64, 500..1100u64, 262_100..262_700u64];
    (
        blocks,
        0..3u64,
        prop_oneof![4 => Just(u64::MAX), 1 => 1..20u64],
    )
        .prop_map(|(blocks, base, limit)| {
            (
                blocks,
                if base == 0 {
                    blocks
                } else {
                    blocks / (base + 1)
                },
                limit,
            )
        })
}

fn places(blocks: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0..10u64,
        505..520u64,
        0..blocks,
        blocks.saturating_sub(10)..blocks
    ]
    .prop_map(move |block| block % blocks)
}

fn steps(blocks: u64) -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..5u64, 500..1100u64, Just(blocks)];
    let range = (places(blocks), len, 1..600u32);
    prop_oneof![
        6 => (places(blocks), 0..SECTORS, prop::collection::vec(any::<u8>(), 1..=SECTORS), any::<bool>())
            .prop_map(|(block, from, mut bytes, whole)| {
                if whole {
                    bytes.resize(SECTORS, 7);
                    return Step::Write { block, from: 0, bytes };
                }
                bytes.truncate(SECTORS - from);
                Step::Write { block, from, bytes }
            }),
        3 => range.prop_map(|(from, len, budget)| Step::Zero { from, len, budget }),
        1 => places(blocks).prop_map(|block| Step::Abandon { block }),
        1 => prop_oneof![Just(None), (0..3u64).prop_map(Some)]
            .prop_map(|successes| Step::FailAfter { successes }),
    ]
}

fn runs() -> impl Strategy<Value = ((u64, u64, u64), Vec<Step>)> {
    disks().prop_flat_map(|disk| (Just(disk), prop::collection::vec(steps(disk.0), 1..60)))
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_disk_is_what_was_written(
        ((blocks, base_blocks, limit), steps) in runs(), budget in 1..2000u32,
    ) {
        let mut disk = Disk::new(blocks, base_blocks, limit);
        let mut plain = disk.base.clone();
        plain.resize(blocks as usize * SECTORS, 0);
        let mut touched = vec![0, blocks - 1, base_blocks.min(blocks - 1)];
        for step in steps {
            match step {
                Step::Write { block, from, bytes } => {
                    touched.push(block);
                    match disk.write(block, from, &bytes) {
                        Ok(()) => {
                            let at = block as usize * SECTORS + from;
                            plain[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                        Err(OverlayError::Full) => prop_assert!(disk.memory.frames.len() as u64 == limit),
                        Err(error) => {
                            prop_assert_eq!(error, OverlayError::NoMemory);
                            prop_assert_eq!(disk.memory.left, Some(0));
                        }
                    }
                }
                Step::Zero { from, len, budget } => {
                    let to = (from + len).min(blocks);
                    touched.extend([from, from + len / 2, to.saturating_sub(1), to]);
                    if disk.zero(from, to, budget).is_err() {
                        // What was not reached is as it was: say it again with memory.
                        prop_assert_eq!(disk.memory.left.take(), Some(0));
                        disk.zero(from, to, budget).unwrap();
                    }
                    plain[from as usize * SECTORS..to as usize * SECTORS].fill(0);
                }
                Step::Abandon { block } => {
                    if let Ok(WritePlan::New(new)) =
                        disk.overlay.prepare_write(&mut disk.memory, block, true)
                    {
                        disk.overlay.abandon(&mut disk.memory, new);
                    }
                }
                Step::FailAfter { successes } => disk.memory.left = successes,
            }
            prop_assert_eq!(disk.overlay.data_blocks(), disk.memory.frames.len() as u64);
            prop_assert!(disk.overlay.data_blocks() <= limit);
            for &block in touched.iter().filter(|&&block| block < blocks) {
                let at = block as usize * SECTORS;
                prop_assert_eq!(&disk.read(block)[..], &plain[at..at + SECTORS], "block {}", block);
            }
        }
        disk.gone_over((blocks, base_blocks, limit), &touched);
        if blocks < 2000 {
            for block in 0..blocks {
                let at = block as usize * SECTORS;
                prop_assert_eq!(&disk.read(block)[..], &plain[at..at + SECTORS], "block {}", block);
            }
        }
        disk.tear_down(budget);
    }
}

#[test]
fn discarding_everything_costs_no_table() {
    let mut disk = Disk::new(1 << 20, 1 << 18, u64::MAX);
    disk.zero(0, 1 << 20, 1).unwrap();
    assert_eq!(disk.memory.tables.in_use(), 0);
    assert_eq!(disk.read(0), [0; SECTORS]);
    disk.write(5, 0, &[9; SECTORS]).unwrap();
    assert_eq!((disk.read(5), disk.read(6)), ([9; SECTORS], [0; SECTORS]));
    disk.tear_down(1);
}

#[test]
fn a_discarded_table_is_given_back() {
    let mut disk = Disk::new(2048, 2048, u64::MAX);
    for block in 0..2048 {
        disk.write(block, 3, &[1]).unwrap();
    }
    assert_eq!(disk.memory.tables.in_use(), 5);
    disk.zero(512, 1536, 100).unwrap();
    assert_eq!(
        (disk.memory.tables.in_use(), disk.memory.frames.len()),
        (3, 1024)
    );
    disk.tear_down(7);
}

#[test]
fn two_writers_of_a_block_do_not_lose_data() {
    let mut disk = Disk::new(16, 16, u64::MAX);
    let mut prepare = || match disk.overlay.prepare_write(&mut disk.memory, 3, false) {
        Ok(WritePlan::New(new)) => new,
        other => panic!("{other:?}"),
    };
    let (first, second) = (prepare(), prepare());
    let kept = first.frame();
    assert_eq!(disk.overlay.commit(&mut disk.memory, first), Ok(()));
    assert_eq!(
        disk.overlay.commit(&mut disk.memory, second),
        Err(OverlayError::Conflict)
    );
    assert_eq!(disk.overlay.lookup(&disk.memory, 3), Block::Data(kept));
    disk.tear_down(100);
}

#[test]
fn nothing_is_beyond_the_end() {
    let mut disk = Disk::new(16, 16, u64::MAX);
    assert_eq!(disk.overlay.lookup(&disk.memory, 16), Block::Zero);
    assert_eq!(disk.overlay.lookup(&disk.memory, u64::MAX), Block::Zero);
    let beyond = disk.overlay.prepare_write(&mut disk.memory, 16, true);
    assert_eq!(beyond, Err(OverlayError::Beyond));
    assert_eq!(
        disk.overlay.zero(&mut disk.memory, 20..u64::MAX, &mut 1),
        Ok(u64::MAX)
    );
    assert!(Overlay::new(u64::MAX, 0, 0).is_err());
    assert!(Overlay::new(1 << 52, 0, 0).is_ok());
}

#[test]
fn a_call_gives_back_what_its_budget_says() {
    let mut disk = Disk::new(1024, 1024, u64::MAX);
    for block in 0..600 {
        disk.write(block, 3, &[1]).unwrap();
    }
    let (mut at, mut calls) = (0, 0);
    while at < 1024 {
        let before = disk.memory.frames.len();
        let mut budget = 4 * model_disk_overlay::FRAME_COST;
        let reached = disk.overlay.zero(&mut disk.memory, at..1024, &mut budget);
        assert!(before - disk.memory.frames.len() <= 4);
        at = reached.unwrap();
        calls += 1;
    }
    // The root of the tree is left.
    assert_eq!(
        (disk.memory.frames.len(), disk.memory.tables.in_use()),
        (0, 1)
    );
    assert!(calls >= 150);
    disk.tear_down(7);
}

/// A table is looked through for what is left in it when its last leaf was zeroed, and a new one is filled: both
/// are paid for, however small the range is.
#[test]
fn looking_through_a_table_is_paid_for() {
    let mut disk = Disk::new(1024, 1024, u64::MAX);
    let all = 10_000;
    let cost = |disk: &mut Disk, block| {
        let mut budget = all;
        disk.overlay
            .zero(&mut disk.memory, block..block + 1, &mut budget)
            .unwrap();
        all - budget
    };
    assert!(
        cost(&mut disk, 3) > 2 * model_disk_overlay::FRAME_COST,
        "tables are made"
    );
    disk.write(510, 3, &[1]).unwrap();
    for block in 0..510 {
        cost(&mut disk, block);
    }
    assert!(cost(&mut disk, 511) > 510);
    disk.tear_down(7);
}
