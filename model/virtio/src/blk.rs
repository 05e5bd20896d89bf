//! The block device (virtio 5.2).
//!
//! A chain is decoded and checked as a whole: what the owner sees as a [`Request`] lies within the
//! disk and has data of the right shape. Everything else (a read beyond the end, an unknown type)
//! is answered here with the status that virtio 5.2.6.2 gives it.

use crate::{Chain, Device, QueueError, Segment, Transport};
use heapless::Vec;
use machine_contract::GuestMemory;
use model_addr::{Gfn, Ipa};

/// Bytes of a sector, the unit of addresses and capacities whatever the block size.
pub const SECTOR_SIZE: u64 = 512;
/// Most data segments of a request: what a chain holds beside header and status.
pub const SEG_MAX: u32 = crate::MAX_SEGMENTS as u32 - 2;
/// Most ranges in a discard or write-zeroes request.
pub const MAX_RANGES: usize = 16;
/// Most sectors in one such range: 1 GiB.
pub const MAX_RANGE_SECTORS: u32 = 1 << 21;
/// Bytes of the identification string.
pub const ID_BYTES: usize = 20;

const REQUESTS: usize = 0;

/// Feature bits (virtio 5.2.3).
mod feature {
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Request types (virtio 5.2.6).
mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// How a request ended (virtio 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// `VIRTIO_BLK_S_OK`: done.
    Ok = 0,
    /// `VIRTIO_BLK_S_IOERR`: failed, or asked of sectors that cannot be had. Also what a full
    /// overlay answers: virtio-blk has no status for "no space".
    IoError = 1,
    /// `VIRTIO_BLK_S_UNSUPP`: a type or flag this device does not know.
    Unsupported = 2,
}

/// The unit that a driver must address and align its data to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes.
    #[default]
    B512,
    /// 4 KiB.
    B4096,
}

impl BlockSize {
    /// Sectors of a block.
    pub const fn sectors(self) -> u64 {
        match self {
            Self::B512 => 1,
            Self::B4096 => 8,
        }
    }
}

/// What a disk is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Sectors; a rest that fills no block is not usable.
    pub capacity: u64,
    /// The unit of access.
    pub block_size: BlockSize,
    /// Writes are refused.
    pub read_only: bool,
    /// Discard and write-zeroes are offered.
    pub discard: bool,
    /// The identification string, padded with zeroes.
    pub id: [u8; ID_BYTES],
}

/// A disk as its driver sees it. The data are its owner's.
#[derive(Clone, Debug)]
pub struct Blk {
    options: Options,
    config: [u8; CONFIG_BYTES],
}

const CONFIG_BYTES: usize = 60;

impl Blk {
    /// A disk with `options`. Its topology says 4 KiB whatever the block size, since overlays and
    /// caches work in frames.
    pub fn new(mut options: Options) -> Self {
        let block = options.block_size.sectors();
        options.capacity -= options.capacity % block;
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        // struct virtio_blk_config, virtio 5.2.4.
        put(0, &options.capacity.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &(block as u32 * SECTOR_SIZE as u32).to_le_bytes());
        let blocks_per_frame = 8 / block as u16;
        put(24, &[blocks_per_frame.trailing_zeros() as u8]);
        put(26, &blocks_per_frame.to_le_bytes());
        if options.discard {
            put(36, &MAX_RANGE_SECTORS.to_le_bytes());
            put(40, &(MAX_RANGES as u32).to_le_bytes());
            put(44, &8u32.to_le_bytes());
            put(48, &MAX_RANGE_SECTORS.to_le_bytes());
            put(52, &(MAX_RANGES as u32).to_le_bytes());
            put(56, &[1]);
        }
        Self { options, config }
    }

    /// Whether `count` sectors from `sector` are whole blocks of the disk; none are not.
    fn holds(&self, sector: u64, count: u64) -> bool {
        let block = self.options.block_size.sectors();
        let end = sector.checked_add(count);
        count > 0
            && sector.is_multiple_of(block)
            && count.is_multiple_of(block)
            && end.is_some_and(|end| end <= self.options.capacity)
    }
}

impl Device for Blk {
    const ID: u32 = 2;
    const QUEUE_SIZES: &'static [u16] = &[256];

    fn features(&self) -> u64 {
        let mut features =
            feature::SEG_MAX | feature::BLK_SIZE | feature::FLUSH | feature::TOPOLOGY;
        if self.options.read_only {
            features |= feature::RO;
        } else if self.options.discard {
            features |= feature::DISCARD | feature::WRITE_ZEROES;
        }
        features
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {}
}

/// What a request wants done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Fill [`Request::data`] from the disk, from this sector on.
    Read {
        /// The first sector.
        sector: u64,
    },
    /// Store [`Request::data`] on the disk, from this sector on.
    Write {
        /// The first sector.
        sector: u64,
    },
    /// Make durable all writes completed so far.
    #[default]
    Flush,
    /// The contents of [`Request::ranges`] are not needed any more.
    Discard,
    /// [`Request::ranges`] shall read as zeroes.
    WriteZeroes,
}

/// A run of sectors on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    /// The first sector.
    pub sector: u64,
    /// How many.
    pub count: u32,
}

/// A checked request. About 2.5 KiB: make one per request in flight, and refill it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    chain: Chain,
    operation: Operation,
    ranges: Vec<SectorRange, MAX_RANGES>,
    status: Ipa,
    resets: u32,
}

impl Request {
    /// What is to be done.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The memory that a read fills or a write stores, in order; no segment is empty, and only
    /// their sum is sure to be a multiple of the block size. Empty for other operations.
    pub fn data(&self) -> &[Segment] {
        match self.operation {
            Operation::Read { .. } => self.chain.writable(),
            Operation::Write { .. } => self.chain.readable(),
            _ => &[],
        }
    }

    /// Bytes in [`Self::data`].
    pub fn data_bytes(&self) -> u32 {
        match self.operation {
            Operation::Read { .. } => self.chain.writable_bytes(),
            Operation::Write { .. } => self.chain.readable_bytes(),
            _ => 0,
        }
    }

    /// Whether its data or its status are in this guest frame.
    pub fn uses(&self, gfn: Gfn) -> bool {
        let covers = |segment: &Segment| {
            let last = segment.ipa.0 + u64::from(segment.len.max(1)) - 1;
            (segment.ipa.frame()..=Ipa(last).frame()).contains(&gfn)
        };
        self.is_told_in(gfn) || self.data().iter().any(covers)
    }

    /// Whether its status is in this guest frame: all that is used of one that is done.
    pub fn is_told_in(&self, gfn: Gfn) -> bool {
        self.status.frame() == gfn
    }

    /// The sectors of a discard or write-zeroes, each range within the disk; they may overlap.
    /// Empty for other operations.
    pub fn ranges(&self) -> &[SectorRange] {
        &self.ranges
    }
}

/// What [`Transport::next_request`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A request that the owner must [`Transport::complete`].
    Request,
    /// One that needed no owner (refused, or the identification): ask again.
    Answered,
    /// Nothing: a notification will come when there is more.
    Empty,
}

impl Transport<Blk> {
    /// Takes the next request into `request`. The work is bounded; the owner bounds how often it
    /// asks.
    pub fn next_request(&mut self, memory: &impl GuestMemory, request: &mut Request) -> Next {
        if !self.is_live() {
            return Next::Empty;
        }
        let popped = self.queues[REQUESTS].pop(memory, &mut request.chain);
        if self.settle(popped) != Some(true) {
            return Next::Empty;
        }
        request.resets = self.resets();
        let decoded = match self.decode(memory, request) {
            Ok(None) => return Next::Request,
            Ok(Some(answer)) => self.answer(memory, request, answer),
            Err(error) => Err(error),
        };
        if self.settle_chain(REQUESTS, decoded).is_none() {
            return Next::Empty;
        }
        self.signal(memory, REQUESTS);
        Next::Answered
    }

    /// Whether the driver that made a request is still there. Where it has reset the device, the memory that the
    /// request names is not the device's any more (virtio 2.4): nothing is read from it, or written to it.
    pub fn awaits(&self, request: &Request) -> bool {
        request.resets == self.resets() && self.is_live()
    }

    /// Tells the driver how `request` ended; `false` where the frame to tell it in is to come first: try again. Whatever
    /// a read brought must be in its memory. A request from before the last reset is dropped: its driver is gone.
    pub fn complete(
        &mut self,
        memory: &impl GuestMemory,
        request: &Request,
        status: Status,
    ) -> bool {
        if !self.awaits(request) {
            return true;
        }
        let data = match request.operation {
            Operation::Read { .. } if status == Status::Ok => request.data_bytes(),
            _ => 0,
        };
        let answered = self.answer(memory, request, (status, data));
        if answered.is_err_and(|error| error.is_want_of_memory()) {
            return false;
        }
        self.settle(answered);
        self.signal(memory, REQUESTS);
        true
    }

    /// Writes the status and hands the chain back. `used.len` counts the data and the status byte.
    fn answer(
        &mut self,
        memory: &impl GuestMemory,
        request: &Request,
        (status, data): Answer,
    ) -> Result<(), QueueError> {
        memory.write(request.status, &[status as u8])?;
        self.queues[REQUESTS].push_used(memory, request.chain.head(), data.saturating_add(1))
    }

    /// Takes header and status off the chain and checks what is left: gives the answer, where the owner is not to see it.
    fn decode(
        &self,
        memory: &impl GuestMemory,
        request: &mut Request,
    ) -> Result<Option<Answer>, QueueError> {
        let chain = &mut request.chain;
        request.status = chain.take_last_writable().ok_or(QueueError::Truncated)?;
        // struct virtio_blk_req: le32 type, le32 reserved, le64 sector.
        let mut header = [0; 16];
        if chain.read(memory, &mut header)? != header.len() {
            return Err(QueueError::Truncated);
        }
        let header = u128::from_le_bytes(header);
        let (kind, sector) = (header as u32, (header >> 64) as u64);
        request.ranges.clear();
        request.operation = match kind {
            kind::IN => Operation::Read { sector },
            kind::OUT => Operation::Write { sector },
            kind::FLUSH => Operation::Flush,
            kind::DISCARD => Operation::Discard,
            kind::WRITE_ZEROES => Operation::WriteZeroes,
            kind::GET_ID => {
                let data = chain.write(memory, &self.device.options.id)? as u32;
                return Ok(Some((Status::Ok, data)));
            }
            _ => return Ok(Some((Status::Unsupported, 0))),
        };
        match request.operation {
            Operation::Read { sector } | Operation::Write { sector } => {
                Ok(self.check_transfer(request, sector))
            }
            Operation::Discard => self.take_ranges(memory, request, feature::DISCARD, 0),
            Operation::WriteZeroes => {
                self.take_ranges(memory, request, feature::WRITE_ZEROES, FLAG_UNMAP)
            }
            Operation::Flush => Ok(None),
        }
    }

    fn check_transfer(&self, request: &Request, sector: u64) -> Option<Answer> {
        let bytes = u64::from(request.data_bytes());
        let write = matches!(request.operation, Operation::Write { .. });
        let refused = write && self.device.options.read_only;
        let whole = bytes.is_multiple_of(SECTOR_SIZE);
        if refused || !whole || !self.device.holds(sector, bytes / SECTOR_SIZE) {
            return Some((Status::IoError, 0));
        }
        None
    }

    /// Decodes `struct virtio_blk_discard_write_zeroes[]`: le64 sector, le32 count, le32 flags.
    fn take_ranges(
        &self,
        memory: &impl GuestMemory,
        request: &mut Request,
        feature: u64,
        known_flags: u32,
    ) -> Result<Option<Answer>, QueueError> {
        const RANGE_BYTES: usize = 16;
        if self.device.options.read_only {
            return Ok(Some((Status::IoError, 0)));
        }
        if !self.has_negotiated(feature) {
            return Ok(Some((Status::Unsupported, 0)));
        }
        let bytes = request.chain.readable_bytes() as usize;
        if bytes == 0 || !bytes.is_multiple_of(RANGE_BYTES) || bytes / RANGE_BYTES > MAX_RANGES {
            return Ok(Some((Status::IoError, 0)));
        }
        let mut raw = [0; RANGE_BYTES];
        while request.chain.read(memory, &mut raw)? == RANGE_BYTES {
            let word = u128::from_le_bytes(raw);
            let (sector, count, flags) = (word as u64, (word >> 64) as u32, (word >> 96) as u32);
            if flags & !known_flags != 0 {
                return Ok(Some((Status::Unsupported, 0)));
            }
            if count > MAX_RANGE_SECTORS || !self.device.holds(sector, u64::from(count)) {
                return Ok(Some((Status::IoError, 0)));
            }
            let range = SectorRange { sector, count };
            if request.ranges.push(range).is_err() {
                return Ok(Some((Status::IoError, 0)));
            }
        }
        Ok(None)
    }
}

/// `VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP`.
const FLAG_UNMAP: u32 = 1;

/// What the driver is told of a request, and bytes of data written before the status byte.
type Answer = (Status, u32);
