//! A guest that writes, reads and discards at random on a disk whose overlay is on a partition, where transfers
//! fail, and where somebody else writes: what it reads is what it wrote, or an error, and no slot is lost.

use crate::input::Input;
use machine_contract::{FrameSource, TableMemory};
use machine_fake::FakeTables;
use model_addr::{FRAME_SIZE, Mfn};
use model_disk_overlay::{Block, Overlay, OverlayError, Turn};
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u64 = 600;
/// Blocks of the base; behind those are zeroes.
const BASE: u64 = 520;
/// Slots of the partition, and blocks that the overlay may keep.
const SLOTS: u64 = 64;
const LIMIT: u64 = 48;
/// Blocks of a transfer.
const MOST: u64 = 16;
/// What a slot holds that nobody of this disk wrote.
const FOREIGN: u8 = 0xee;
/// Blocks that a discard looks at in one go.
const BUDGET: u32 = 100;

/// Slots by what is in them, one byte for each, and what it should be.
#[derive(Default)]
struct Partition {
    tables: FakeTables,
    /// How many tables there may be more.
    left: Option<u8>,
    slots: BTreeMap<u64, u8>,
    known: BTreeMap<u64, u8>,
    taken: BTreeSet<u64>,
}

impl TableMemory for Partition {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if let Some(left) = &mut self.left {
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

impl FrameSource for Partition {
    fn allocate_frame(&mut self) -> Option<Mfn> {
        let slot = (0..SLOTS).find(|slot| !self.taken.contains(slot))?;
        self.taken.insert(slot);
        Some(Mfn(slot))
    }
    fn free_frame(&mut self, slot: Mfn) {
        assert!(self.taken.remove(&slot.0), "slot {} is free", slot.0);
        self.known.remove(&slot.0);
    }
}

/// A disk whose blocks are a byte each.
struct Disk {
    overlay: Overlay,
    partition: Partition,
    /// What each block holds, where that is known.
    plain: Vec<Option<u8>>,
}

const fn base(block: u64) -> u8 {
    if block < BASE { block as u8 | 1 } else { 0 }
}

/// Writes, reads, discards, failures and strangers.
pub fn overlay(data: &[u8]) {
    let Ok(overlay) = Overlay::new(BLOCKS, BASE, LIMIT) else {
        unreachable!("a disk that can be");
    };
    let mut disk = Disk {
        overlay,
        partition: Partition::default(),
        plain: (0..BLOCKS).map(|block| Some(base(block))).collect(),
    };
    let mut input = Input(data);
    while disk.step(&mut input).is_some() {
        let kept = disk.partition.taken.len() as u64;
        assert!(kept <= LIMIT && kept == disk.overlay.data_blocks());
    }
    for block in 0..BLOCKS {
        disk.read(block);
    }
    let Disk {
        overlay,
        mut partition,
        ..
    } = disk;
    let mut teardown = overlay.into_teardown();
    while !teardown.step(&mut partition, BUDGET) {}
    assert!(partition.taken.is_empty(), "slots are lost");
    assert_eq!(partition.tables.in_use(), 0, "tables are lost");
}

impl Disk {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.u8()? % 6 {
            0 | 1 => {
                let at = u64::from(input.u32()?) % (BLOCKS * FRAME_SIZE);
                let end = (at + u64::from(input.u16()?)).min(BLOCKS * FRAME_SIZE);
                let (byte, fails) = (input.u8()?, input.u8()?);
                self.write((at, end), byte, fails);
            }
            2 => self.read(u64::from(input.u16()?) % BLOCKS),
            3 => {
                let from = u64::from(input.u16()?) % BLOCKS;
                let to = (from + u64::from(input.u16()?)).min(BLOCKS);
                self.discard(from, to);
            }
            4 => {
                self.partition
                    .slots
                    .insert(u64::from(input.u8()?) % SLOTS, FOREIGN);
            }
            _ => {
                let left = input.u8()?;
                self.partition.left = (left < 8).then_some(left);
            }
        }
        Some(())
    }

    /// What the slot of a block holds, unless somebody else wrote it, or what the base holds.
    fn fetch(&self, block: u64) -> Option<u8> {
        match self.overlay.lookup(&self.partition, block) {
            Block::Base => Some(base(block)),
            Block::Zero => Some(0),
            Block::Data(slot) => {
                let found = self.partition.slots.get(&slot.0);
                found
                    .copied()
                    .filter(|found| self.partition.known.get(&slot.0) == Some(found))
            }
        }
    }

    /// By turns, as a request is done; the one of number `fails` does not come to its slots.
    fn write(&mut self, (mut at, end): (u64, u64), byte: u8, fails: u8) {
        for n in 0_u64.. {
            if at >= end {
                break;
            }
            let turn = Turn::new(at, end, MOST);
            assert!(turn.bytes > 0 && turn.blocks() <= MOST);
            // A part is written with the rest of its block, which is read before.
            let before = self.fetch(turn.block);
            if !turn.is_whole() && before.is_none() {
                return;
            }
            let placed = self
                .overlay
                .place(&mut self.partition, turn.block, turn.blocks());
            let (slot, count) = match placed {
                Ok(placed) => placed,
                Err(error) => {
                    assert!(matches!(error, OverlayError::Full | OverlayError::NoMemory));
                    return;
                }
            };
            assert!(count > 0 && count <= turn.blocks());
            let has_failed = n == u64::from(fails);
            for k in 0..count {
                let byte = match before {
                    Some(before) if !turn.is_whole() => byte ^ before,
                    _ => byte,
                };
                let block = (turn.block + k) as usize;
                self.partition.known.insert(slot.0 + k, byte);
                if has_failed {
                    self.partition.slots.insert(slot.0 + k, FOREIGN);
                } else {
                    self.partition.slots.insert(slot.0 + k, byte);
                }
                self.plain[block] = (!has_failed).then_some(byte);
            }
            if has_failed {
                return;
            }
            at += turn.done(count);
        }
    }

    /// What was written, or an error: where a transfer failed, or somebody else wrote to the slot.
    fn read(&self, block: u64) {
        if let (Some(found), Some(wanted)) = (self.fetch(block), self.plain[block as usize]) {
            assert_eq!(found, wanted, "block {block}");
        }
        if let Block::Data(slot) = self.overlay.lookup(&self.partition, block) {
            let run = self.overlay.run(&self.partition, block, slot, MOST);
            assert!((1..=MOST).contains(&run));
            assert!(self.partition.taken.contains(&slot.0), "a slot of nobody's");
        }
    }

    fn discard(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let zeroed = self
                .overlay
                .zero(&mut self.partition, at..to, &mut { BUDGET });
            let Ok(next) = zeroed else {
                // What was not reached may be zeroed or not.
                (at..to).for_each(|block| self.plain[block as usize] = None);
                return;
            };
            assert!(next > at, "no progress");
            (at..next.min(to)).for_each(|block| self.plain[block as usize] = Some(0));
            at = next;
        }
    }
}
