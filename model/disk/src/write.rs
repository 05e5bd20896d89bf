//! What writes do: to blocks in memory at once, to partitions by a buffer that is filled first.

use crate::cow::{CowDisk, Piece};
use crate::pages::Outcome;
use crate::request::{BLOCKS_AT_ONCE, Pass, blocks_at, ended, pieces};
use crate::{Backing, Bytes, Guest, Io, Loaded, Machine, Progress, Side, Store, Transfer, Turn};
use model_addr::{FRAME_SIZE, Ipa, Mfn};
use model_disk_overlay::{OverlayError, Turn as Write};
use model_virtio::blk::{Operation, Request, SECTOR_SIZE, SectorRange};

/// Writes a piece to an overlay in memory.
pub(crate) fn write_piece<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &mut CowDisk<M>,
    (at, (ipa, len)): (u64, (Ipa, usize)),
    loaded: Option<Loaded>,
) -> Outcome {
    let (machine, guest) = (pass.machine, pass.guest);
    pass.budget.wrote();
    let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE) && guest.contains(ipa);
    let share = is_page && !guest.is_never_shared(ipa.frame());
    let mut compares = 0;
    let is_equal =
        share && guest.look(ipa, |page| disk.write_equal(at, page, &mut compares)) == Ok(true);
    pass.budget.compared(compares);
    if is_equal {
        return Outcome::Done;
    }
    let loaded = loaded.and_then(|loaded| loaded.block(Side::Base, at));
    let written = disk.write((at, len as u64), loaded, share, |to| {
        copy_from(machine, guest, (ipa, len), to).ok_or(OverlayError::NoMemory)
    });
    match written {
        Ok(outcome) => outcome,
        Err(error) => {
            guest.complain(at, error);
            Outcome::Failed
        }
    }
}

/// Copies a guest's bytes to where they are to be.
fn copy_from<M: Machine, G: Guest>(
    machine: M,
    guest: &G,
    (ipa, len): (Ipa, usize),
    to: Bytes,
) -> Option<()> {
    let mut fits = true;
    let copied = guest.pieces(ipa, len, false, |from, part| {
        match to.part(part.start as u64, from.len()) {
            Some(to) => machine.copy(to, from),
            None => fits = false,
        }
    });
    (copied.is_ok() && fits).then_some(())
}

/// Zeroes what is left of these ranges; where it came to.
pub(crate) fn zero_ranges<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &mut CowDisk<M>,
    ranges: &[SectorRange],
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> (Outcome, u64) {
    let mut before = 0;
    for range in ranges {
        let start = range.sector * SECTOR_SIZE;
        let len = u64::from(range.count) * SECTOR_SIZE;
        let mut at = start + progress.done.saturating_sub(before).min(len);
        while at < start + len {
            let step = zero_some(pass, disk, (at, start + len), loaded);
            match step {
                Ok(bytes) => at += bytes,
                Err(outcome) => {
                    progress.done = before + (at - start);
                    return (outcome, at);
                }
            }
        }
        before += len;
    }
    (Outcome::Done, 0)
}

/// Zeroes some of the bytes from `at` to `end`: whole blocks by leaving them out, the rest by writing. How
/// many.
fn zero_some<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &mut CowDisk<M>,
    (at, end): (u64, u64),
    loaded: Option<Loaded>,
) -> Result<u64, Outcome> {
    if pass.budget.is_spent() {
        return Err(Outcome::Spent);
    }
    let offset = at % FRAME_SIZE;
    if offset == 0 && end - at >= FRAME_SIZE {
        let whole = (end - at) & !(FRAME_SIZE - 1);
        let zeroed = pass.budget.look(|entries| disk.zero(at, whole, entries));
        return match zeroed {
            Ok(0) => Err(Outcome::Spent),
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(Outcome::Failed),
        };
    }
    let len = (end - at).min(FRAME_SIZE - offset);
    if disk.store().is_some() {
        // Only a discard comes here, which is a hint.
        return Ok(len);
    }
    pass.budget.wrote();
    let machine = pass.machine;
    let loaded = loaded.and_then(|loaded| loaded.block(Side::Base, at));
    let written = disk.write((at, len), loaded, true, |bytes| {
        machine.zero(bytes);
        Ok(())
    });
    match written {
        Ok(Outcome::Done) => Ok(len),
        Ok(outcome) => Err(outcome),
        Err(_) => Err(Outcome::Failed),
    }
}

/// Goes on with a write to an overlay on a partition: a turn was `loaded`, and there may be another.
pub(crate) fn next_turn(
    request: &Request,
    sector: u64,
    progress: &mut Progress,
    loaded: Option<Loaded>,
) -> Turn {
    let (start, end) = range(request, sector);
    if let Some(Loaded { io, .. }) = loaded
        && io.operation == Transfer::Write
    {
        let turn = Write::new(start + progress.done, end, BLOCKS_AT_ONCE);
        progress.done += turn.done(io.bytes / FRAME_SIZE);
    }
    if start + progress.done >= end {
        return ended(true);
    }
    // Which slots these are is settled when there is a buffer to fill.
    let io = Io {
        operation: Transfer::Write,
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

/// Puts the data of a request from `done` on into the frames from `page` on, where blocks may have been
/// `loaded`.
///
/// # Errors
/// What is to be done first, or how the request ended.
pub fn fill<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    backing: &mut Backing<M>,
    (request, done): (&Request, u64),
    (io, page): (Io, Mfn),
    loaded: Option<Loaded>,
) -> Result<Io, Turn> {
    match (request.operation(), backing) {
        _ if io.operation != Transfer::Write => Ok(io),
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            store(pass, disk, (request, sector, done), page, loaded)
        }
        (Operation::Write { sector }, _) => {
            let next = (sector, (done, io.bytes));
            gather(pass, request, next, (page, 0))
                .then_some(io)
                .ok_or(ended(false))
        }
        _ => Err(ended(false)),
    }
}

/// Fills frames from `page` on with what the next turn of a write to an overlay on a partition puts there,
/// of which a part may have been `loaded` before: that turn, or what is to be done first.
fn store<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &mut CowDisk<M>,
    (request, sector, done): (&Request, u64, u64),
    page: Mfn,
    loaded: Option<Loaded>,
) -> Result<Io, Turn> {
    let (start, end) = range(request, sector);
    let at = start + done;
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
        match disk.fetch(at, page, found) {
            Outcome::Done => {}
            Outcome::Missing => return Err(Turn::Needs(side, blocks_at(from, 1))),
            _ => return Err(ended(false)),
        }
    }
    let next = (sector, (done, write.bytes));
    if !gather(pass, request, next, (page, write.offset)) {
        return Err(ended(false));
    }
    match disk.place(at, page, write.blocks()) {
        Ok((slot, blocks)) => Ok(Io {
            operation: Transfer::Write,
            ..blocks_at(slot * FRAME_SIZE, blocks)
        }),
        // There is a slot, or will be memory.
        Err(OverlayError::NoMemory) => Err(Turn::Later),
        Err(error) => {
            pass.guest.complain(at, error);
            Err(ended(false))
        }
    }
}

/// Copies `len` bytes of a request's data from byte `done` on, at most what a transfer moves, into the
/// frames from `page` on, from that offset on.
fn gather<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    request: &Request,
    (sector, (done, len)): (u64, (u64, u64)),
    (page, offset): (Mfn, u64),
) -> bool {
    let buffer = Bytes::frames(page, BLOCKS_AT_ONCE);
    let first = sector * SECTOR_SIZE + done;
    let (reached, outcome) = pieces(request, sector, done..done + len, |at, (ipa, piece)| {
        pass.budget.copied(piece);
        let to = buffer.part(offset + (at - first), piece as u64);
        let copied = to.and_then(|to| copy_from(pass.machine, pass.guest, (ipa, piece), to));
        Outcome::of(copied.is_some())
    });
    outcome == Outcome::Done && reached == done + len
}
