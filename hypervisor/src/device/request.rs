//! How the data of a disk's request are moved: as far as they are at hand, and from there on when
//! the physical disk has brought more.

use super::block::{Backing, Part};
use super::exchange::{self, Outcome, Pages};
use super::overlay::{Base, CowDisk, Piece};
use crate::physical::disk::{self, DATA_AT_ONCE, Io};
use crate::vm::{Access, Instance};
use crate::{frames, sharing};
use abi::bundle::{Image, Place};
use model_addr::{FRAME_SIZE, Ipa, Mfn};
use model_disk_overlay::{OverlayError, Turn as Write};
use model_virtio::blk::{Operation, Request, SECTOR_SIZE, SectorRange, Status};

/// Blocks of a transfer.
const BLOCKS_AT_ONCE: u64 = DATA_AT_ONCE / FRAME_SIZE;
/// Table entries that one go of a discard looks at.
const ZERO_BUDGET: u32 = 4096;

/// What becomes of a request.
#[derive(Clone, Copy)]
pub enum Turn {
    /// It has ended so.
    Done(Status),
    /// A physical disk must do this first.
    Needs(Side, Io),
    /// It cannot go on now.
    Later,
}

/// Which of a disk's partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// That of its base, or the only one.
    #[default]
    Base,
    /// That of its overlay.
    Overlay,
}

/// What a transfer brought: blocks of a partition, in frames from `page` on.
#[derive(Clone, Copy)]
pub struct Loaded {
    /// The first frame.
    pub page: Mfn,
    /// Of which partition.
    pub side: Side,
    /// What was read.
    pub io: Io,
}

impl Loaded {
    /// The frame that holds the block of byte `at` of a partition, if it was read.
    fn block(&self, side: Side, at: u64) -> Option<Mfn> {
        let skipped = (at & !(FRAME_SIZE - 1)).checked_sub(self.io.sector * SECTOR_SIZE)?;
        let is_in = self.io.operation == disk::Operation::Read && skipped < self.io.bytes;
        (is_in && side == self.side).then(|| self.page.add(skipped / FRAME_SIZE))
    }
}

/// Bytes of a request that nobody of the group has read of an image before.
pub fn first_read(backing: &Backing, request: &Request) -> u64 {
    let image = match backing {
        Backing::Cow(disk) => match disk.base {
            Base::Image(image) => image,
            Base::Partition(_) => return 0,
        },
        Backing::ReadOnly(image, _) => *image,
        Backing::Partition(_) => return 0,
    };
    let is_stored = matches!(backing, Backing::Cow(disk) if disk.store().is_some());
    let Operation::Read { sector } = request.operation() else {
        // What is written to a partition is counted there.
        return if is_stored {
            0
        } else {
            request.data_bytes().into()
        };
    };
    let mut bytes = 0;
    transfer(request, sector, 0, |at, _, len| {
        let own = match backing {
            Backing::Cow(disk) => !matches!(disk.locate(at), Piece::Base),
            _ => false,
        };
        if let Place::Page(page, _) = image.block(at / FRAME_SIZE)
            && !own
            && sharing::is_first_use(sharing::frame_of(page))
        {
            bytes += len as u64;
        }
        Outcome::Done
    });
    bytes
}

/// Goes on with a request from byte `done` of its data on, with what was `loaded` for it.
pub fn execute(
    backing: &mut Backing,
    request: &Request,
    done: &mut u64,
    loaded: Option<Loaded>,
    vm: &Instance,
) -> Turn {
    match (request.operation(), backing) {
        (Operation::Read { sector }, Backing::Cow(disk)) => {
            read(disk, (request, sector), done, loaded, vm)
        }
        (Operation::Read { sector }, Backing::ReadOnly(image, share)) => {
            let mut pages = Pages::new(vm, *share);
            let outcome = transfer(request, sector, 0, |at, ipa, len| {
                pages.read(image_block(*image, at), at % FRAME_SIZE, ipa, len)
            });
            ended(outcome.1 == Outcome::Done && pages.finish() == Outcome::Done)
        }
        (Operation::Write { sector }, Backing::Cow(disk)) if disk.store().is_some() => {
            write_on(request, sector, done, loaded)
        }
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            let (reached, outcome) = transfer(request, sector, *done, |at, ipa, len| {
                write_piece(disk, vm, (at, ipa, len), loaded)
            });
            *done = reached;
            resolve(outcome, sector * SECTOR_SIZE + reached)
        }
        (Operation::WriteZeroes, Backing::Cow(disk)) if !can_zero(disk, request.ranges()) => {
            Turn::Done(Status::Unsupported)
        }
        (Operation::Discard | Operation::WriteZeroes, Backing::Cow(disk)) => {
            for range in request.ranges() {
                match zero_range(disk, *range, loaded) {
                    (Outcome::Done, _) => {}
                    (outcome, at) => return resolve(outcome, at),
                }
            }
            ended(true)
        }
        (operation, Backing::Partition(_)) => pass_on(request, operation, done, loaded, vm),
        // What is written lives as long as the VM: there is nothing to make durable.
        (Operation::Flush, _) => ended(true),
        _ => ended(false),
    }
}

fn ended(done: bool) -> Turn {
    Turn::Done(if done { Status::Ok } else { Status::IoError })
}

/// What follows when a request came as far as byte `at` of the disk.
fn resolve(outcome: Outcome, at: u64) -> Turn {
    match outcome {
        Outcome::Missing => Turn::Needs(Side::Base, blocks_at(at, 1)),
        outcome => ended(outcome == Outcome::Done),
    }
}

/// The reading of whole blocks from the one of byte `at` on.
fn blocks_at(at: u64, count: u64) -> Io {
    Io {
        operation: disk::Operation::Read,
        sector: at / FRAME_SIZE * (FRAME_SIZE / SECTOR_SIZE),
        bytes: count * FRAME_SIZE,
    }
}

/// Reads from a copy-on-write disk as far as its blocks are at hand.
fn read(
    disk: &CowDisk,
    (request, sector): (&Request, u64),
    done: &mut u64,
    loaded: Option<Loaded>,
    vm: &Instance,
) -> Turn {
    let mut pages = Pages::new(vm, disk.share);
    let (reached, outcome) = transfer(request, sector, *done, |at, ipa, len| {
        let block = match (disk.locate(at), disk.key(at), &disk.base) {
            (Piece::Frame(frame), ..) => exchange::Block::Own(frame),
            (Piece::Stored(slot), ..) => match stored(disk, slot, loaded) {
                Ok(page) => exchange::Block::Buffer(page, 0),
                Err(outcome) => return outcome,
            },
            (Piece::Zero, ..) => exchange::Block::Zero,
            (Piece::Base, _, Base::Image(image)) => image_block(*image, at),
            (Piece::Base, Some(key), Base::Partition(partition)) => {
                match loaded.and_then(|loaded| loaded.block(Side::Base, at)) {
                    Some(page) if !partition.check(key.block, page) => return Outcome::Failed,
                    Some(page) => exchange::Block::Loaded(page, key),
                    None if disk.share => exchange::Block::Cached(key),
                    None => return Outcome::Missing,
                }
            }
            (Piece::Base, None, Base::Partition(_)) => return Outcome::Failed,
        };
        pages.read(block, at % FRAME_SIZE, ipa, len)
    });
    *done = reached;
    let outcome = outcome.and(pages.finish());
    if outcome != Outcome::Missing {
        return ended(outcome == Outcome::Done);
    }
    if let Some(block) = pages.lost() {
        // Its frame was taken while its page was about to get it: all from there on is read again.
        *done = (block * FRAME_SIZE).saturating_sub(sector * SECTOR_SIZE);
        return Turn::Needs(Side::Base, blocks_at(block * FRAME_SIZE, 1));
    }
    let at = sector * SECTOR_SIZE + reached;
    let end = sector * SECTOR_SIZE + u64::from(request.data_bytes());
    if let Piece::Stored(slot) = disk.locate(at) {
        let most = (end.div_ceil(FRAME_SIZE) - at / FRAME_SIZE).min(BLOCKS_AT_ONCE);
        let count = disk.run(at, slot, most);
        return Turn::Needs(Side::Overlay, blocks_at(slot * FRAME_SIZE, count));
    }
    let is_missing = |n: &u64| {
        let at = (at / FRAME_SIZE + n) * FRAME_SIZE;
        let has = || disk.key(at).is_some_and(sharing::has_block);
        at < end && matches!(disk.locate(at), Piece::Base) && !(disk.share && has())
    };
    let run = (1..BLOCKS_AT_ONCE).take_while(is_missing);
    Turn::Needs(Side::Base, blocks_at(at, 1 + run.count() as u64))
}

/// The frame to which a slot of the disk's overlay was read.
fn stored(disk: &CowDisk, slot: u64, loaded: Option<Loaded>) -> Result<Mfn, Outcome> {
    let page = loaded.and_then(|loaded| loaded.block(Side::Overlay, slot * FRAME_SIZE));
    let page = page.ok_or(Outcome::Missing)?;
    let is_it = disk.store().is_some_and(|store| store.check(slot, page));
    is_it.then_some(page).ok_or(Outcome::Failed)
}

/// Goes on with a write to an overlay on a partition: a turn was `loaded`, and there may be another.
fn write_on(request: &Request, sector: u64, done: &mut u64, loaded: Option<Loaded>) -> Turn {
    let (start, end) = range(request, sector);
    if let Some(Loaded { io, .. }) = loaded
        && io.operation == disk::Operation::Write
    {
        *done += Write::new(start + *done, end, BLOCKS_AT_ONCE).done(io.bytes / FRAME_SIZE);
    }
    if start + *done >= end {
        return ended(true);
    }
    // Which slots these are is settled when there is a buffer to fill.
    let io = Io {
        operation: disk::Operation::Write,
        sector: 0,
        bytes: 0,
    };
    Turn::Needs(Side::Overlay, io)
}

/// The bytes of the disk that a request is about.
fn range(request: &Request, sector: u64) -> (u64, u64) {
    let start = sector * SECTOR_SIZE;
    (start, start + u64::from(request.data_bytes()))
}

/// Fills frames from `page` on with what the next turn of a write to an overlay on a partition puts there,
/// of which a part may have been `loaded` before: that turn, or what is to be done first.
fn store(
    disk: &mut CowDisk,
    (part, sector): (&Part, u64),
    page: Mfn,
    loaded: Option<Loaded>,
    vm: &Instance,
) -> Result<Io, Turn> {
    let (start, end) = range(&part.request, sector);
    let at = start + part.done;
    let write = Write::new(at, end, BLOCKS_AT_ONCE);
    if !write.is_whole() {
        let (side, from) = match disk.locate(at) {
            Piece::Stored(slot) => (Side::Overlay, slot * FRAME_SIZE),
            _ => (Side::Base, at),
        };
        let found = loaded.and_then(|loaded| loaded.block(side, from));
        if let (Side::Overlay, Some(found), Some(store)) = (side, found, disk.store())
            && !store.check(from / FRAME_SIZE, found)
        {
            return Err(ended(false));
        }
        if !disk.fetch(at, page, found) {
            return Err(Turn::Needs(side, blocks_at(from, 1)));
        }
    }
    if !gather((part, sector), (at, write.bytes), (page, write.offset), vm) {
        return Err(ended(false));
    }
    match disk.place(at, page, write.blocks()) {
        Ok((slot, blocks)) => Ok(Io {
            operation: disk::Operation::Write,
            ..blocks_at(slot * FRAME_SIZE, blocks)
        }),
        // There is a slot, or will be memory.
        Err(OverlayError::NoMemory) => Err(Turn::Later),
        Err(error) => {
            refused(vm, at, error);
            Err(ended(false))
        }
    }
}

/// Whether ranges can be zeroed without writing parts of blocks, where those are on a partition. Linux
/// writes zeroes itself where it is told that they cannot.
fn can_zero(disk: &CowDisk, ranges: &[SectorRange]) -> bool {
    let is_whole = |range: &SectorRange| (range.sector | u64::from(range.count)).is_multiple_of(8);
    disk.store().is_none() || ranges.iter().all(is_whole)
}

/// Passes a request on to the partition behind a persistent disk, a part at a time.
fn pass_on(
    request: &Request,
    operation: Operation,
    done: &mut u64,
    loaded: Option<Loaded>,
    vm: &Instance,
) -> Turn {
    let (operation, sector) = match operation {
        Operation::Read { sector } => (disk::Operation::Read, sector),
        Operation::Write { sector } => (disk::Operation::Write, sector),
        Operation::Flush => (disk::Operation::Flush, 0),
        Operation::Discard | Operation::WriteZeroes => return Turn::Done(Status::Unsupported),
    };
    let total = u64::from(request.data_bytes());
    if let Some(Loaded { page, io, .. }) = loaded {
        let end = (*done + io.bytes).min(total);
        if operation == disk::Operation::Read && !take(request, sector, *done..end, page, vm) {
            return ended(false);
        }
        *done = end;
        if end == total {
            return ended(true);
        }
    }
    let io = Io {
        operation,
        sector: sector + *done / SECTOR_SIZE,
        bytes: (total - *done).min(DATA_AT_ONCE),
    };
    Turn::Needs(Side::Base, io)
}

/// Takes these bytes of a request's data from the frames from `page` on.
fn take(
    request: &Request,
    sector: u64,
    bytes: core::ops::Range<u64>,
    page: Mfn,
    vm: &Instance,
) -> bool {
    let first = sector * SECTOR_SIZE + bytes.start;
    let end = sector * SECTOR_SIZE + bytes.end;
    let mut pages = Pages::new(vm, true);
    let (_, outcome) = transfer(request, sector, bytes.start, |at, ipa, len| {
        if at >= end {
            return Outcome::Missing;
        }
        let skipped = at - first;
        let (frame, offset) = (page.add(skipped / FRAME_SIZE), skipped % FRAME_SIZE);
        pages.read(exchange::Block::Buffer(frame, offset), 0, ipa, len)
    });
    pages.finish() == Outcome::Done && outcome != Outcome::Failed
}

/// Puts the data of a part into the frames from `page` on, where blocks may have been `loaded`: what is to
/// be done then, or first.
pub fn fill(
    backing: &mut Backing,
    part: &Part,
    (io, page): (Io, Mfn),
    loaded: Option<Loaded>,
    vm: &Instance,
) -> Result<Io, Turn> {
    match (part.request.operation(), backing) {
        _ if io.operation != disk::Operation::Write => Ok(io),
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            store(disk, (part, sector), page, loaded, vm)
        }
        (Operation::Write { sector }, _) => {
            let bytes = (io.sector * SECTOR_SIZE, io.bytes);
            let is_filled = gather((part, sector), bytes, (page, 0), vm);
            is_filled.then_some(io).ok_or(ended(false))
        }
        _ => Err(ended(false)),
    }
}

/// Copies the data of a part, of which those `bytes` are the next, into the frames from `page` on, from that
/// offset on.
fn gather(
    (part, sector): (&Part, u64),
    (first, bytes): (u64, u64),
    (page, offset): (Mfn, u64),
    vm: &Instance,
) -> bool {
    let to = frames::ram(page, DATA_AT_ONCE / FRAME_SIZE);
    let (_, outcome) = transfer(&part.request, sector, part.done, |at, ipa, len| {
        let skipped = at - first;
        if skipped >= bytes {
            return Outcome::Missing;
        }
        let copied = vm.memory().pieces(ipa, len, false, |from, begin, bytes| {
            let at = offset + skipped + bytes.start as u64;
            to.copy_from(at, frames::ram(from, 1), begin, bytes.len());
        });
        Outcome::of(copied.is_ok())
    });
    outcome != Outcome::Failed
}

/// The block of an image that byte `at` lies in.
fn image_block(image: Image<'static>, at: u64) -> exchange::Block {
    match image.block(at / FRAME_SIZE) {
        Place::Page(page, _) => exchange::Block::Image(sharing::frame_of(page)),
        Place::Zero => exchange::Block::Zero,
    }
}

/// Goes through a request's segments from byte `from` of its data on, in pieces that lie in one 4 KiB
/// block of the disk, as long as they are done: how far it came.
fn transfer(
    request: &Request,
    sector: u64,
    from: u64,
    mut each: impl FnMut(u64, Ipa, usize) -> Outcome,
) -> (u64, Outcome) {
    let (mut reached, mut skip) = (from, from);
    for segment in request.data() {
        let mut done = skip.min(u64::from(segment.len));
        skip -= done;
        while done < u64::from(segment.len) {
            let at = sector * SECTOR_SIZE + reached;
            let piece = (u64::from(segment.len) - done).min(FRAME_SIZE - at % FRAME_SIZE);
            match each(at, Ipa(segment.ipa.0 + done), piece as usize) {
                Outcome::Done => {}
                other => return (reached, other),
            }
            done += piece;
            reached += piece;
        }
    }
    (reached, Outcome::Done)
}

fn write_piece(
    disk: &mut CowDisk,
    vm: &Instance,
    (at, ipa, len): (u64, Ipa, usize),
    loaded: Option<Loaded>,
) -> Outcome {
    let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE) && vm.space.contains(ipa);
    let memory = vm.memory();
    let share = is_page && !vm.space.is_never_shared(ipa.frame());
    if share && memory.with(ipa, Access::Read, |page| disk.write_equal(at, page)) == Ok(true) {
        return Outcome::Done;
    }
    let loaded = loaded.and_then(|loaded| loaded.block(Side::Base, at));
    let written = disk.write((at, len as u64), loaded, share, |frame, offset| {
        let to = frames::ram(frame, 1);
        let copied = memory.pieces(ipa, len, false, |from, from_offset, part| {
            let source = frames::ram(from, 1);
            to.copy_from(offset + part.start as u64, source, from_offset, part.len());
        });
        copied.map_err(|_| OverlayError::NoMemory)
    });
    match written {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Missing,
        Err(error) => {
            refused(vm, at, error);
            Outcome::Failed
        }
    }
}

fn refused(vm: &Instance, at: u64, error: OverlayError) {
    let name = vm.name();
    log::warn!("{name}: write at byte {at:#x} of a disk refused: {error}");
}

/// Zeroes a range of sectors: whole blocks by leaving them out, the rest by writing. How far it came.
fn zero_range(disk: &mut CowDisk, range: SectorRange, loaded: Option<Loaded>) -> (Outcome, u64) {
    let (mut at, end) = (
        range.sector * SECTOR_SIZE,
        (range.sector + u64::from(range.count)) * SECTOR_SIZE,
    );
    while at < end {
        let offset = at % FRAME_SIZE;
        let advanced = if offset == 0 && end - at >= FRAME_SIZE {
            disk.zero(at, (end - at) & !(FRAME_SIZE - 1), ZERO_BUDGET)
        } else {
            let len = (end - at).min(FRAME_SIZE - offset);
            if disk.store().is_some() {
                // Only a discard comes here, which is a hint.
                at += len;
                continue;
            }
            let zero = |frame, offset| {
                frames::ram(frame, 1).zero(offset, len as usize);
                Ok(())
            };
            let loaded = loaded.and_then(|loaded| loaded.block(Side::Base, at));
            match disk.write((at, len), loaded, true, zero) {
                Ok(false) => return (Outcome::Missing, at),
                written => written.map(|_| len),
            }
        };
        match advanced {
            Ok(bytes) if bytes > 0 => at += bytes,
            _ => return (Outcome::Failed, at),
        }
    }
    (Outcome::Done, at)
}
