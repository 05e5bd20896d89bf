//! One request, a pass at a time: as far as its data are at hand, and from there on when a physical disk
//! has brought more.

use crate::cow::{Base, CowDisk, Piece};
use crate::pages::{Block, Outcome, Pages};
use crate::write::{self, write_piece, zero_ranges};
use crate::{Bytes, DATA_AT_ONCE, Guest, Image, Io, Machine, Store, Transfer};
use core::ops::Range;
use model_addr::{FRAME_SIZE, Ipa, Mfn};
use model_virtio::blk::{Operation, Request, SECTOR_SIZE, SectorRange, Status};

/// Blocks of a transfer.
pub(crate) const BLOCKS_AT_ONCE: u64 = DATA_AT_ONCE / FRAME_SIZE;

/// What holds a disk's data.
pub enum Backing<M: Machine> {
    /// A base and a private overlay.
    Cow(CowDisk<M>),
    /// A base image that cannot be written, and whether others may use what is read of it.
    ReadOnly(M::Image, bool),
    /// A partition of a physical disk.
    Partition(M::Store),
}

impl<M: Machine> Backing<M> {
    /// The partition of that side, if there is one.
    pub fn partition(&self, side: Side) -> Option<&M::Store> {
        match (self, side) {
            (Self::Partition(partition), Side::Base) => Some(partition),
            (Self::Cow(disk), Side::Overlay) => disk.store(),
            (Self::Cow(disk), Side::Base) => match &disk.base {
                Base::Partition(partition) => Some(partition),
                Base::Image(_) => None,
            },
            _ => None,
        }
    }

    /// Whether it does one request after the other: a block may not be read while it is written.
    pub fn is_single(&self) -> bool {
        self.partition(Side::Overlay).is_some()
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It has ended so.
    Done(Status),
    /// A physical disk must do this first.
    Needs(Side, Io),
    /// It cannot go on now.
    Later,
    /// The pass is over, and it can go on in the next one.
    More,
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
#[derive(Clone, Copy, Debug)]
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
    pub(crate) fn block(&self, side: Side, at: u64) -> Option<Mfn> {
        let skipped = (at & !(FRAME_SIZE - 1)).checked_sub(self.io.sector * SECTOR_SIZE)?;
        let is_in = self.io.operation == Transfer::Read && skipped < self.io.bytes;
        (is_in && side == self.side).then(|| self.page.add(skipped / FRAME_SIZE))
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes of its data, or of its ranges, that are done.
    pub done: u64,
    /// Bytes that were really read or written for it, where the disk's rate is limited.
    pub moved: Option<u64>,
    /// How far the buffer of its next transfer is filled.
    pub(crate) filled: Filled,
}

/// How far the buffer of a write is filled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filled {
    /// What its first block was before is there, where a part of that stays.
    pub(crate) has_rest: bool,
    /// Bytes of data in it.
    pub(crate) bytes: u64,
    /// The first blocks in it of which [`Self::words`] tell.
    pub(crate) blocks: usize,
    /// [`Store::word_of`] of each.
    pub(crate) words: [u64; BLOCKS_AT_ONCE as usize],
}

impl Progress {
    /// Nothing is done yet; bytes that are really read or written are counted, or not.
    pub fn new(counts: bool) -> Self {
        Self {
            moved: counts.then_some(0),
            ..Self::default()
        }
    }

    /// Counts bytes that were really read or written.
    pub fn moves(&mut self, bytes: u64) {
        self.moved = self.moved.map(|moved| moved.saturating_add(bytes));
    }
}

/// What one pass at EL2 may still do. A unit is about the work of mapping half a page: some hundreds of
/// instructions where pages lie close together. How long a piece really takes only a clock tells: a pass ends
/// when its units are spent, or when it has taken too long, whichever is first.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u32,
    pages: u32,
    is_past: fn(tenths: u32) -> bool,
}

impl Default for Budget {
    /// That of a whole pass, however long it takes.
    fn default() -> Self {
        Self::until(|_| false)
    }
}

impl Budget {
    /// The units of a whole pass.
    const WHOLE: u32 = 128;
    /// Entries of an overlay that are looked at for one unit.
    const ENTRIES: u32 = 16;
    /// Units of that before a look at the clock: a frame that goes back takes one, and 1,000 instructions or more.
    const UNITS_AT_ONCE: u32 = 8;

    /// Frames that are compared with a page where half of the time has passed: each takes 1,000 instructions. Before,
    /// they are as many as [`Machine::join_equal`] finds.
    const COMPARES_LATE: u32 = 8;

    /// That of a pass that ends after the piece of work that found that ten tenths of its time have passed: each
    /// pass does one, so that every request comes to an end.
    pub fn until(is_past: fn(tenths: u32) -> bool) -> Self {
        Self {
            left: Self::WHOLE,
            pages: 0,
            is_past,
        }
    }

    /// Whether the pass is over.
    pub fn is_spent(&self) -> bool {
        self.left == 0 || self.left < Self::WHOLE && (self.is_past)(10)
    }

    /// How many pages may have got a frame so far.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    fn spend(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    /// A request was taken, and will be answered.
    pub fn began(&mut self) {
        self.spend(4);
    }

    /// A page gets a frame that is there.
    pub(crate) fn mapped(&mut self) {
        self.spend(2);
    }

    /// Bytes of a block were copied to or from a page, for which it may have got a frame.
    pub(crate) fn copied(&mut self, len: usize) {
        self.pages += 1;
        self.spend(1 + (len / 1024) as u32);
    }

    /// Whether half of the time has passed.
    pub(crate) fn is_late(&self) -> bool {
        (self.is_past)(5)
    }

    /// Lets `step` compare frames with a page, and pays for those that it did; what is done with the page pays for
    /// one.
    pub(crate) fn compare<T>(&mut self, step: impl FnOnce(&mut u32) -> T) -> T {
        let most = if self.is_late() {
            Self::COMPARES_LATE
        } else {
            u32::MAX
        };
        let mut left = most;
        let done = step(&mut left);
        let compared = most.saturating_sub(left);
        self.spend(2 * compared.saturating_sub(1));
        done
    }

    /// What a block holds was hashed.
    pub(crate) fn hashed(&mut self) {
        self.spend(16);
    }

    /// A piece was written to an overlay.
    pub(crate) fn wrote(&mut self) {
        self.pages += 1;
        self.spend(6);
    }

    /// Lets `step` look at entries of an overlay, and pays for those that it did.
    pub(crate) fn look<T>(&mut self, step: impl FnOnce(&mut u32) -> T) -> T {
        let before = self.left.min(Self::UNITS_AT_ONCE) * Self::ENTRIES;
        let mut entries = before;
        let done = step(&mut entries);
        self.spend(before.saturating_sub(entries).div_ceil(Self::ENTRIES));
        done
    }
}

/// What a pass works with.
pub struct Pass<'a, M: Machine, G: Guest> {
    /// The machine.
    pub machine: M,
    /// The VM.
    pub guest: &'a G,
    /// What it may still do.
    pub budget: &'a mut Budget,
}

/// Goes on with a request, with what was `loaded` for it.
pub fn execute<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    backing: &mut Backing<M>,
    request: &Request,
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> Turn {
    match (request.operation(), backing) {
        (Operation::Read { sector }, Backing::Cow(disk)) => {
            read(pass, disk, (request, sector), progress, loaded)
        }
        (Operation::Read { sector }, Backing::ReadOnly(image, share)) => {
            let mut pages = Pages::new(pass.machine, pass.guest, *share);
            let (reached, outcome) = pieces(request, sector, rest(request, progress), |at, to| {
                if pass.budget.is_spent() {
                    return Outcome::Spent;
                }
                let block = image_block(pass.machine, image, (at, to.1), progress);
                pages.read(block, at % FRAME_SIZE, to, pass.budget)
            });
            progress.done = reached;
            resolve(outcome.and(pages.finish()), 0)
        }
        (Operation::Write { sector }, Backing::Cow(disk)) if disk.store().is_some() => {
            write::next_turn(request, sector, progress, loaded)
        }
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            let (reached, outcome) =
                pieces(request, sector, rest(request, progress), |at, from| {
                    if pass.budget.is_spent() {
                        return Outcome::Spent;
                    }
                    progress.moves(from.1 as u64);
                    write_piece(pass, disk, (at, from), loaded)
                });
            progress.done = reached;
            resolve(outcome, sector * SECTOR_SIZE + reached)
        }
        (Operation::WriteZeroes, Backing::Cow(disk)) if !can_zero(disk, request.ranges()) => {
            Turn::Done(Status::Unsupported)
        }
        (Operation::Discard | Operation::WriteZeroes, Backing::Cow(disk)) => {
            let (outcome, at) = zero_ranges(pass, disk, request.ranges(), progress, loaded);
            resolve(outcome, at)
        }
        (operation, Backing::Partition(_)) => pass_on(pass, request, operation, progress, loaded),
        // What is written lives as long as the VM: there is nothing to make durable.
        (Operation::Flush, _) => ended(true),
        _ => ended(false),
    }
}

pub(crate) fn ended(done: bool) -> Turn {
    Turn::Done(if done { Status::Ok } else { Status::IoError })
}

/// What follows when a request came as far as byte `at` of the disk.
fn resolve(outcome: Outcome, at: u64) -> Turn {
    match outcome {
        Outcome::Missing => Turn::Needs(Side::Base, blocks_at(at, 1)),
        Outcome::Spent => Turn::More,
        outcome => ended(outcome == Outcome::Done),
    }
}

/// The reading of whole blocks from the one of byte `at` on.
pub(crate) fn blocks_at(at: u64, count: u64) -> Io {
    Io {
        operation: Transfer::Read,
        sector: at / FRAME_SIZE * (FRAME_SIZE / SECTOR_SIZE),
        bytes: count * FRAME_SIZE,
    }
}

/// The bytes of a request's data that are left to do.
fn rest(request: &Request, progress: &Progress) -> Range<u64> {
    progress.done..request.data_bytes().into()
}

/// Goes through these bytes of a request's data, in pieces that lie in one 4 KiB block of the disk, as long
/// as they are done: how far it came. A piece is told by its place on the disk, and in the guest's memory.
pub(crate) fn pieces(
    request: &Request,
    sector: u64,
    bytes: Range<u64>,
    mut each: impl FnMut(u64, (Ipa, usize)) -> Outcome,
) -> (u64, Outcome) {
    let (mut reached, mut skip) = (bytes.start, bytes.start);
    for segment in request.data() {
        let len = u64::from(segment.len);
        let mut done = skip.min(len);
        skip -= done;
        while done < len && reached < bytes.end {
            let at = sector * SECTOR_SIZE + reached;
            let piece = (len - done)
                .min(FRAME_SIZE - at % FRAME_SIZE)
                .min(bytes.end - reached);
            match each(at, (Ipa(segment.ipa.0 + done), piece as usize)) {
                Outcome::Done => {}
                other => return (reached, other),
            }
            done += piece;
            reached += piece;
        }
    }
    (reached, Outcome::Done)
}

/// Reads from a copy-on-write disk as far as its blocks are at hand.
fn read<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &CowDisk<M>,
    (request, sector): (&Request, u64),
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> Turn {
    let mut pages = Pages::new(pass.machine, pass.guest, disk.share);
    let (reached, outcome) = pieces(request, sector, rest(request, progress), |at, to| {
        if pass.budget.is_spent() {
            return Outcome::Spent;
        }
        match find(pass, disk, (at, to.1), progress, loaded) {
            Ok(block) => pages.read(block, at % FRAME_SIZE, to, pass.budget),
            Err(outcome) => outcome,
        }
    });
    progress.done = reached;
    let outcome = outcome.and(pages.finish());
    if outcome != Outcome::Missing {
        return resolve(outcome, 0);
    }
    if let Some(block) = pages.lost() {
        // Its frame was taken while its page was about to get it: all from there on is read again.
        progress.done = (block * FRAME_SIZE).saturating_sub(sector * SECTOR_SIZE);
        return Turn::Needs(Side::Base, blocks_at(block * FRAME_SIZE, 1));
    }
    let start = sector * SECTOR_SIZE;
    let (at, end) = (start + reached, start + u64::from(request.data_bytes()));
    needed(pass.machine, disk, at..end)
}

/// Where the block of a piece at byte `at` is.
fn find<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &CowDisk<M>,
    (at, len): (u64, usize),
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> Result<Block, Outcome> {
    match (disk.locate(at), disk.key(at), &disk.base) {
        (Piece::Frame(frame), ..) => Ok(Block::Own(frame)),
        (Piece::Stored(slot), ..) => {
            pass.budget.hashed();
            let page = stored(disk, slot, loaded)?;
            Ok(Block::Buffer(Bytes::frames(page, 1)))
        }
        (Piece::Zero, ..) => Ok(Block::Zero),
        (Piece::Base, _, Base::Image(image)) => {
            Ok(image_block(pass.machine, image, (at, len), progress))
        }
        (Piece::Base, Some(key), Base::Partition(partition)) => {
            let loaded = loaded.and_then(|loaded| loaded.block(Side::Base, at));
            if loaded.is_some() {
                pass.budget.hashed();
            }
            match loaded {
                Some(page) if !partition.check(key.block, page) => Err(Outcome::Failed),
                Some(page) => Ok(Block::Loaded(page, key)),
                None if disk.share => Ok(Block::Cached(key)),
                None => Err(Outcome::Missing),
            }
        }
        (Piece::Base, None, Base::Partition(_)) => Err(Outcome::Failed),
    }
}

/// The block of an image that a piece at byte `at` lies in. A rate counts what nobody has read before.
fn image_block<M: Machine>(
    machine: M,
    image: &M::Image,
    (at, len): (u64, usize),
    progress: &mut Progress,
) -> Block {
    let Some(frame) = image.block(at / FRAME_SIZE) else {
        return Block::Zero;
    };
    if progress.moved.is_some() && machine.is_first_use(frame) {
        progress.moves(len as u64);
    }
    Block::Image(frame)
}

/// The transfer that brings the block of the first of these bytes, and those after it that are not at hand.
fn needed<M: Machine>(machine: M, disk: &CowDisk<M>, bytes: Range<u64>) -> Turn {
    let (at, end) = (bytes.start, bytes.end);
    if let Piece::Stored(slot) = disk.locate(at) {
        let most = (end.div_ceil(FRAME_SIZE) - at / FRAME_SIZE).min(BLOCKS_AT_ONCE);
        let count = disk.run(at, slot, most);
        return Turn::Needs(Side::Overlay, blocks_at(slot * FRAME_SIZE, count));
    }
    let is_missing = |n: &u64| {
        let at = (at / FRAME_SIZE + n) * FRAME_SIZE;
        let has = || disk.key(at).is_some_and(|key| machine.has_block(key));
        at < end && matches!(disk.locate(at), Piece::Base) && !(disk.share && has())
    };
    let run = (1..BLOCKS_AT_ONCE).take_while(is_missing);
    Turn::Needs(Side::Base, blocks_at(at, 1 + run.count() as u64))
}

/// The frame to which a slot of the disk's overlay was read.
fn stored<M: Machine>(
    disk: &CowDisk<M>,
    slot: u64,
    loaded: Option<Loaded>,
) -> Result<Mfn, Outcome> {
    let page = loaded.and_then(|loaded| loaded.block(Side::Overlay, slot * FRAME_SIZE));
    let page = page.ok_or(Outcome::Missing)?;
    let is_it = disk.store().is_some_and(|store| store.check(slot, page));
    is_it.then_some(page).ok_or(Outcome::Failed)
}

/// Whether ranges can be zeroed without writing parts of blocks, where those are on a partition. Linux
/// writes zeroes itself where it is told that they cannot.
fn can_zero<M: Machine>(disk: &CowDisk<M>, ranges: &[SectorRange]) -> bool {
    let is_whole = |range: &SectorRange| (range.sector | u64::from(range.count)).is_multiple_of(8);
    disk.store().is_none() || ranges.iter().all(is_whole)
}

/// Passes a request on to the partition behind a persistent disk, a part at a time.
fn pass_on<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    request: &Request,
    operation: Operation,
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> Turn {
    let (operation, sector) = match operation {
        Operation::Read { sector } => (Transfer::Read, sector),
        Operation::Write { sector } => (Transfer::Write, sector),
        Operation::Flush => (Transfer::Flush, 0),
        Operation::Discard | Operation::WriteZeroes => return Turn::Done(Status::Unsupported),
    };
    let total = u64::from(request.data_bytes());
    if let Some(Loaded { page, io, .. }) = loaded {
        let start = io.sector.saturating_sub(sector) * SECTOR_SIZE;
        let end = (start + io.bytes).min(total);
        if operation == Transfer::Read {
            let (reached, outcome) = take(pass, request, (sector, progress.done..end), (page, io));
            progress.done = reached;
            if outcome != Outcome::Done {
                return resolve(outcome, 0);
            }
        }
        progress.done = end;
        if end == total {
            return ended(true);
        }
    }
    let io = Io {
        operation,
        sector: sector + progress.done / SECTOR_SIZE,
        bytes: (total - progress.done).min(DATA_AT_ONCE),
    };
    Turn::Needs(Side::Base, io)
}

/// Takes these bytes of a request's data from the frames from `page` on, to which a transfer brought them and
/// others before: how far it came.
fn take<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    request: &Request,
    (sector, bytes): (u64, Range<u64>),
    (page, io): (Mfn, Io),
) -> (u64, Outcome) {
    let buffer = Bytes::frames(page, BLOCKS_AT_ONCE);
    let first = io.sector * SECTOR_SIZE;
    let mut pages = Pages::new(pass.machine, pass.guest, true);
    let (reached, outcome) = pieces(request, sector, bytes, |at, to| {
        if pass.budget.is_spent() {
            return Outcome::Spent;
        }
        match buffer.part(at - first, to.1 as u64) {
            Some(part) => pages.read(Block::Buffer(part), 0, to, pass.budget),
            None => Outcome::Failed,
        }
    });
    (reached, outcome.and(pages.finish()))
}
