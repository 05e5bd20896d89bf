//! A disk of the machine: virtio-blk (virtio 1.2, 5.2), with one queue. A request is done some time after it was made, in
//! no order but the seed's; some fail, wholly or halfway, and some take long.

use crate::ram::Ram;
use crate::rng::Rng;
use crate::virtio::{Model, Part, Queue};
use model_addr::Pa;

const SECTOR: u64 = 512;
/// Counts that a request takes at most, and one that is delayed.
const SLOWEST: u64 = 4000;
/// See [`SLOWEST`].
const DELAY: u64 = 400_000;
/// What a request is (virtio 5.2.6), and what becomes of it.
const IN: u64 = 0;
const OUT: u64 = 1;
const FLUSHES: u64 = 4;
const IOERR: u64 = 1;
const UNSUPPORTED: u64 = 2;

/// How often a disk goes wrong: one request in so many; 0: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// It fails, and nothing was done.
    pub fails: u64,
    /// It fails after some of its sectors.
    pub tears: u64,
    /// It takes long.
    pub delays: u64,
}

/// A request under way.
#[derive(Debug)]
struct Request {
    head: u16,
    due: u64,
}

/// The disk.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) content: Vec<u8>,
    /// How it goes wrong from now on.
    pub(crate) faults: DiskFaults,
    under_way: Vec<Request>,
}

/// Whether it is time for what happens once in `often`.
fn comes(rng: &mut Rng, often: u64) -> bool {
    often > 0 && rng.below(often) == 0
}

impl Disk {
    pub(crate) const fn new(content: Vec<u8>) -> Self {
        Self {
            content,
            faults: DiskFaults {
                fails: 0,
                tears: 0,
                delays: 0,
            },
            under_way: Vec::new(),
        }
    }

    /// Does a request; how many bytes were written.
    fn request(&mut self, queue: &Queue, ram: &mut Ram, head: u16, rng: &mut Rng) -> Option<u64> {
        let (mut read, mut written) = queue.parts(ram, head)?;
        let (header, length) = *read.first()?;
        // The driver may have the header before the data, and the status behind them, in one part.
        read[0] = (header + 16, length.checked_sub(16)?);
        let (last, length) = written.pop()?;
        written.push((last, length.checked_sub(1)?));
        let (kind, sector) = (ram.read(Pa(header), 4)?, ram.read(Pa(header + 8), 8)?);
        let fails = comes(rng, self.faults.fails);
        let (answer, bytes) = match kind {
            _ if fails => (IOERR, 0),
            IN => self.transfer(&written, sector, ram, rng, true)?,
            OUT => self.transfer(&read, sector, ram, rng, false)?,
            FLUSHES => (0, 0),
            _ => (UNSUPPORTED, 0),
        };
        ram.write(Pa(last + length - 1), 1, answer)?;
        Some(1 + if kind == IN { bytes } else { 0 })
    }

    /// Moves data; the answer, and how many bytes.
    fn transfer(
        &mut self,
        parts: &[Part],
        sector: u64,
        ram: &mut Ram,
        rng: &mut Rng,
        reads: bool,
    ) -> Option<(u64, u64)> {
        let whole: u64 = parts.iter().map(|(_, length)| length).sum();
        let tears = comes(rng, self.faults.tears) && whole > SECTOR;
        let mut left = if tears {
            SECTOR * (1 + rng.below(whole / SECTOR - 1))
        } else {
            whole
        };
        let (mut place, mut moved) = ((sector * SECTOR) as usize, 0);
        for (at, length) in parts {
            let length = (*length).min(left);
            let Some(part) = self.content.get_mut(place..place + length as usize) else {
                return Some((IOERR, moved));
            };
            if reads {
                ram.fill(Pa(*at), part)?;
            } else {
                ram.copy_out(Pa(*at), part)?;
            }
            (place, moved, left) = (place + length as usize, moved + length, left - length);
        }
        Some((if tears { IOERR } else { 0 }, moved))
    }
}

impl Model for Disk {
    const ID: u64 = 2;
    const QUEUES: usize = 1;
    const FEATURES: u64 = 1 << 9;

    fn configuration(&self) -> u64 {
        self.content.len() as u64 / SECTOR
    }

    fn notice(&mut self, queues: &mut [Queue], _: usize, ram: &Ram, now: u64, rng: &mut Rng) {
        while let Some(head) = queues[0].take(ram) {
            let slowest = if comes(rng, self.faults.delays) {
                DELAY
            } else {
                SLOWEST
            };
            let due = now + 1 + rng.below(slowest);
            self.under_way.push(Request { head, due });
        }
    }

    fn work(&mut self, queues: &mut [Queue], ram: &mut Ram, now: u64, rng: &mut Rng) -> bool {
        let mut worked = false;
        while let Some(place) = self.under_way.iter().position(|it| it.due <= now) {
            let head = self.under_way.swap_remove(place).head;
            let written = self.request(&queues[0], ram, head, rng).unwrap_or(0);
            queues[0].give_back(ram, head, written);
            worked = true;
        }
        worked
    }

    fn next(&self) -> Option<u64> {
        self.under_way.iter().map(|request| request.due).min()
    }

    fn reset(&mut self) {
        self.under_way.clear();
    }
}
