//! A disk whose driver is OS-0: requests go through an area that OS-0 gives (`abi::served`), and it
//! is told of them by an interrupt of its own.

use crate::drivers::disk::DATA_AT;
use crate::machine;
use crate::memory::frames;
use abi::served::{ANSWER_AT, AREA_BYTES, DATA_BYTES, HEAD_BYTES, OFFERS_AT, Offer, Record, SLOTS};
use arch::{cpu::dsb_sy, frames::Ram};
use model_addr::NodeId;
use model_disk::{Io, Lane, Place, Transfer};
use model_served::Slots;
use zerocopy::IntoBytes;

/// Frames for an area of EL2's own, as a power of two.
const AREA_ORDER: u8 = 9;

/// The slots, each with a buffer of EL2's own: what OS-0 can change is copied once.
pub struct Ring {
    area: Ram,
    slots: Slots,
    buffers: [Ram; SLOTS],
    /// The interrupt that tells OS-0.
    bell: u32,
    /// An area for times when nobody serves.
    own: Ram,
}

/// What is offered in an area that OS-0 gives.
pub fn offers(area: Ram) -> heapless::Vec<Offer, { abi::served::OFFERS_MAX }> {
    let mut head = [0; HEAD_BYTES as usize];
    area.read(0, &mut head);
    model_served::offers(&head)
}

impl Ring {
    /// Over an area of [`AREA_BYTES`] of OS-0's memory; `None` without memory for buffers of 2^`order`
    /// frames.
    pub fn new(area: Ram, bell: u32, order: u8) -> Option<Self> {
        debug_assert!(area.size() == AREA_BYTES);
        let mut ring = Self {
            area,
            slots: Slots::default(),
            buffers: [Ram::EMPTY; SLOTS],
            bell,
            own: frames::ram(
                frames::take_for_el2(NodeId(0), AREA_ORDER)?,
                1 << AREA_ORDER,
            ),
        };
        for buffer in &mut ring.buffers {
            *buffer = frames::ram(frames::take_for_el2(NodeId(0), order)?, 1 << order);
        }
        // No answer of before is one of now.
        area.zero(0, OFFERS_AT as usize);
        Some(ring)
    }

    /// The area's memory goes to somebody else: all that is in it is taken over.
    pub fn keep(&mut self) {
        if !self.is_kept() {
            self.own.copy_from(0, self.area, 0, AREA_BYTES as usize);
            self.area = self.own;
        }
    }

    fn is_kept(&self) -> bool {
        self.area.start() == self.own.start()
    }

    /// Gives all that [`Self::keep`] has kept to whoever serves now; `false` where somebody does.
    pub fn go_on(&mut self, area: Ram, bell: u32) -> bool {
        if !self.is_kept() {
            return false;
        }
        area.copy_from(0, self.own, 0, AREA_BYTES as usize);
        (self.area, self.bell) = (area, bell);
        true
    }

    /// The area, if it is OS-0's, and the interrupt.
    pub fn given(&self) -> Option<(Ram, u32)> {
        (!self.is_kept()).then_some((self.area, self.bell))
    }
}

impl Lane for Ring {
    type Buffer = Ram;

    fn claim(&mut self, kept: usize) -> Option<(usize, Ram)> {
        let slot = (self.slots.free() > kept).then(|| self.slots.claim())??;
        Some((slot, self.buffers[slot]))
    }

    fn release(&mut self, slot: usize) {
        self.slots.release(slot);
    }

    fn ask(&mut self, slot: usize, place: &Place, io: Io) -> bool {
        let Some(ticket) = self.slots.ask(slot) else {
            return false;
        };
        if io.operation == Transfer::Write {
            let data = data_at(slot);
            self.area
                .copy_from(data, self.buffers[slot], DATA_AT, io.bytes as usize);
        }
        let record = Record {
            ticket,
            operation: io.operation as u32,
            // OS-0 numbers its disks from 0 on.
            disk: u32::from(place.number) - 1,
            sector: io.sector,
            bytes: io.bytes,
            ..Record::default()
        };
        let (ticket, request) = record.as_bytes()[..ANSWER_AT as usize].split_at(size_of::<u64>());
        let at = record_at(slot);
        self.area.write(at + ticket.len() as u64, request);
        dsb_sy();
        self.area.write(at, ticket);
        dsb_sy();
        machine::os0::interrupt(self.bell);
        true
    }

    fn take_back(&mut self, io_of: &dyn Fn(usize) -> Option<Io>) -> Option<(usize, Ram, bool)> {
        let area = self.area;
        let (slot, done) = self.slots.take_answered(|slot| {
            let mut answer = [0; size_of::<u64>()];
            area.read(record_at(slot) + ANSWER_AT, &mut answer);
            u64::from_le_bytes(answer)
        })?;
        // The data are read after the answer.
        dsb_sy();
        let buffer = self.buffers[slot];
        if let Some(io) = io_of(slot)
            && io.operation == Transfer::Read
        {
            buffer.copy_from(DATA_AT, area, data_at(slot), io.bytes as usize);
        }
        Some((slot, buffer, done))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let all = self.buffers.iter().chain([&self.own]);
        for buffer in all.filter(|buffer| buffer.size() > 0) {
            let frames = buffer.size() / model_addr::FRAME_SIZE;
            frames::free(buffer.start().frame(), frames.ilog2() as u8);
        }
    }
}

fn record_at(slot: usize) -> u64 {
    (slot * size_of::<Record>()) as u64
}

fn data_at(slot: usize) -> u64 {
    HEAD_BYTES + slot as u64 * DATA_BYTES
}
