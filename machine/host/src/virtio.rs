//! A disk of the machine: virtio-blk over virtio-mmio (virtio 1.2, 4.2 and 5.2), with one queue. A request is done some
//! time after it was made, in no order but the seed's.

use crate::ram::Ram;
use crate::rng::Rng;
use model_addr::Pa;

/// Where the first device is, and bytes of its window.
pub const WINDOW: u64 = 0x0a00_0000;
/// See [`WINDOW`].
pub const WINDOW_SIZE: u64 = 0x200;
/// Its interrupt, a level.
pub const INTERRUPT: u32 = 48;
const SECTOR: u64 = 512;
const VERSION_1: u32 = 1;
const FLUSH: u32 = 1 << 9;
const NEXT: u64 = 1;
const WRITE: u64 = 2;
/// Counts that a request takes at most.
const SLOWEST: u64 = 4000;
/// What a request is (virtio 5.2.6), and what becomes of it.
const IN: u64 = 0;
const OUT: u64 = 1;
const FLUSHES: u64 = 4;
const IOERR: u64 = 1;
const UNSUPPORTED: u64 = 2;

/// A request under way.
#[derive(Debug)]
struct Request {
    head: u16,
    due: u64,
}

/// The disk.
#[derive(Debug)]
pub(crate) struct Disk {
    content: Vec<u8>,
    features_page: u64,
    status: u64,
    queue_size: u64,
    ready: u64,
    descriptors: u64,
    available: u64,
    used: u64,
    seen: u16,
    done: u16,
    interrupt: u64,
    under_way: Vec<Request>,
}

impl Disk {
    pub(crate) fn new(content: Vec<u8>) -> Self {
        Self {
            content,
            features_page: 0,
            status: 0,
            queue_size: 0,
            ready: 0,
            descriptors: 0,
            available: 0,
            used: 0,
            seen: 0,
            done: 0,
            interrupt: 0,
            under_way: Vec::new(),
        }
    }

    /// Whether its interrupt's line is high.
    pub(crate) const fn line(&self) -> bool {
        self.interrupt != 0
    }

    /// When the next request is done.
    pub(crate) fn next(&self) -> Option<u64> {
        self.under_way.iter().map(|request| request.due).min()
    }

    pub(crate) fn read(&self, offset: u64, size: usize) -> u64 {
        match offset {
            0x00 => 0x7472_6976,
            0x04 | 0x08 => 2,
            0x10 if self.features_page == 0 => FLUSH.into(),
            0x10 => u64::from(VERSION_1),
            0x34 => 256,
            0x44 => self.ready,
            0x60 => self.interrupt,
            0x70 => self.status,
            0x100.. => {
                let capacity = self.content.len() as u64 / SECTOR;
                let shifted = capacity
                    .checked_shr(8 * (offset - 0x100) as u32)
                    .unwrap_or(0);
                shifted & (u64::MAX >> (64 - 8 * size))
            }
            _ => 0,
        }
    }

    pub(crate) fn write(&mut self, offset: u64, value: u64, ram: &Ram, now: u64, rng: &mut Rng) {
        let set_half = |place: &mut u64, high: bool| {
            let shift = 32 * u32::from(high);
            *place = *place & !(0xffff_ffff << shift) | value << shift;
        };
        match offset {
            0x14 => self.features_page = value,
            0x38 => self.queue_size = value,
            0x44 => self.ready = value,
            0x50 => self.notice(ram, now, rng),
            0x64 => self.interrupt &= !value,
            0x70 if value == 0 => {
                let content = std::mem::take(&mut self.content);
                *self = Self::new(content);
            }
            0x70 => self.status = value,
            0x80 | 0x84 => set_half(&mut self.descriptors, offset == 0x84),
            0x90 | 0x94 => set_half(&mut self.available, offset == 0x94),
            0xa0 | 0xa4 => set_half(&mut self.used, offset == 0xa4),
            _ => {}
        }
    }

    /// Takes what the driver has made available.
    fn notice(&mut self, ram: &Ram, now: u64, rng: &mut Rng) {
        let word = |at: u64| ram.read(Pa(at), 2).unwrap_or(0);
        let available = word(self.available + 2) as u16;
        while self.ready == 1 && self.seen != available {
            let slot = u64::from(self.seen) % self.queue_size.max(1);
            let head = word(self.available + 4 + 2 * slot) as u16;
            let due = now + 1 + rng.below(SLOWEST);
            self.under_way.push(Request { head, due });
            self.seen = self.seen.wrapping_add(1);
        }
    }

    /// Does the requests whose time has come.
    pub(crate) fn work(&mut self, ram: &mut Ram, now: u64) {
        while let Some(place) = self.under_way.iter().position(|it| it.due <= now) {
            let head = self.under_way.swap_remove(place).head;
            let written = self.request(ram, head).unwrap_or(0);
            let slot = u64::from(self.done) % self.queue_size.max(1);
            let at = self.used + 4 + 8 * slot;
            let _ = ram.write(Pa(at), 8, u64::from(head) | written << 32);
            self.done = self.done.wrapping_add(1);
            let _ = ram.write(Pa(self.used + 2), 2, self.done.into());
            self.interrupt |= 1;
        }
    }

    /// Does a request; how many bytes were written.
    fn request(&mut self, ram: &mut Ram, head: u16) -> Option<u64> {
        let chain = self.chain(ram, head)?;
        let [(header, ..), middle @ .., (status, ..)] = chain.as_slice() else {
            return None;
        };
        // The driver may have the status in the last bytes of the data.
        let (kind, sector) = (ram.read(Pa(*header), 4)?, ram.read(Pa(*header + 8), 8)?);
        let (last, mut data) = match middle {
            [] => {
                let (at, length, _) = *chain.last()?;
                (at + length - 1, vec![(at, length - 1)])
            }
            _ => (
                *status,
                middle
                    .iter()
                    .map(|(at, length, _)| (*at, *length))
                    .collect(),
            ),
        };
        let mut place = (sector * SECTOR) as usize;
        let mut answer = if [IN, OUT, FLUSHES].contains(&kind) {
            0
        } else {
            UNSUPPORTED
        };
        let mut written = 1;
        for (at, length) in data.drain(..).filter(|_| kind == IN || kind == OUT) {
            let Some(part) = self.content.get_mut(place..place + length as usize) else {
                answer = IOERR;
                break;
            };
            if kind == IN {
                ram.fill(Pa(at), part)?;
                written += length;
            } else {
                ram.copy_out(Pa(at), part)?;
            }
            place += length as usize;
        }
        ram.write(Pa(last), 1, answer)?;
        Some(written)
    }

    /// Descriptors from `head` on: address, length, whether the device writes.
    fn chain(&self, ram: &Ram, head: u16) -> Option<Vec<(u64, u64, bool)>> {
        let mut chain = Vec::new();
        let mut number = u64::from(head);
        while chain.len() < 256 {
            let at = self.descriptors + 16 * number;
            let (address, word) = (ram.read(Pa(at), 8)?, ram.read(Pa(at + 8), 8)?);
            let flags = word >> 32 & 0xffff;
            chain.push((address, word & 0xffff_ffff, flags & WRITE != 0));
            if flags & NEXT == 0 {
                break;
            }
            number = word >> 48;
        }
        Some(chain)
    }
}
