//! What writes do: to blocks in memory at once, to partitions by a buffer that is filled first.

use crate::cow::{CowDisk, Piece};
use crate::pages::Outcome;
use crate::request::{BLOCKS_AT_ONCE, Filled, Pass, blocks_at, ended, pieces};
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
    let mut write_equal =
        |left: &mut u32| guest.look(ipa, |page| disk.write_equal(at, page, left)) == Ok(true);
    if share && pass.budget.compare(&mut write_equal) {
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

/// Puts the data of a request from where it is on into the frames from `page` on, where blocks may have been
/// `loaded`.
///
/// # Errors
/// What is to be done first, or how the request ended. After [`Turn::More`] it goes on in the next pass, with
/// the same frames, which stay as they are until then.
pub fn fill<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    backing: &mut Backing<M>,
    (request, progress): (&Request, &mut Progress),
    (io, page): (Io, Mfn),
    loaded: Option<Loaded>,
) -> Result<Io, Turn> {
    let filled = match (request.operation(), backing) {
        _ if io.operation != Transfer::Write => Ok(io),
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            store(pass, disk, (request, sector), (progress, page), loaded)
        }
        (Operation::Write { sector }, _) => {
            let to = (page, 0, io.bytes);
            gather(pass, (request, sector), progress, to).map(|()| io)
        }
        _ => Err(ended(false)),
    };
    if filled != Err(Turn::More) {
        progress.filled = Filled::default();
    }
    filled
}

/// Fills frames from `page` on with what the next turn of a write to an overlay on a partition puts there,
/// of which a part may have been `loaded` before: that turn, or what is to be done first.
///
/// The disk stays as it was until all is there: a request may come to an end before.
fn store<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    disk: &mut CowDisk<M>,
    (request, sector): (&Request, u64),
    (progress, page): (&mut Progress, Mfn),
    loaded: Option<Loaded>,
) -> Result<Io, Turn> {
    let (start, end) = range(request, sector);
    let at = start + progress.done;
    let mut write = Write::new(at, end, BLOCKS_AT_ONCE);
    write = Write::new(at, end, disk.fitting(at, write.blocks()));
    if !write.is_whole() && !progress.filled.has_rest {
        fetch(disk, at, page, loaded)?;
        progress.filled.has_rest = true;
    }
    let to = (page, write.offset, write.bytes);
    gather(pass, (request, sector), progress, to)?;
    let filled = &mut progress.filled;
    for n in filled.blocks..write.blocks() as usize {
        if pass.budget.is_spent() {
            return Err(Turn::More);
        }
        pass.budget.hashed();
        if let (Some(store), Some(word)) = (disk.store(), filled.words.get_mut(n)) {
            *word = store.word_of(page.add(n as u64));
        }
        filled.blocks = n + 1;
    }
    match disk.place(at, &filled.words[..filled.blocks]) {
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

/// Puts the block of byte `at` into a frame, as it is before a part of it is written.
fn fetch<M: Machine>(
    disk: &CowDisk<M>,
    at: u64,
    page: Mfn,
    loaded: Option<Loaded>,
) -> Result<(), Turn> {
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
        Outcome::Done => Ok(()),
        Outcome::Missing => Err(Turn::Needs(side, blocks_at(from, 1))),
        _ => Err(ended(false)),
    }
}

/// Copies `len` bytes of a request's data, at most what a transfer moves, into the frames from `page` on, from
/// that offset on.
fn gather<M: Machine, G: Guest>(
    pass: &mut Pass<'_, M, G>,
    (request, sector): (&Request, u64),
    progress: &mut Progress,
    (page, offset, len): (Mfn, u64, u64),
) -> Result<(), Turn> {
    let buffer = Bytes::frames(page, BLOCKS_AT_ONCE);
    let (start, end) = (progress.done, progress.done + len);
    let first = sector * SECTOR_SIZE + start;
    let rest = start + progress.filled.bytes..end;
    let (reached, outcome) = pieces(request, sector, rest, |at, (ipa, piece)| {
        if pass.budget.is_spent() {
            return Outcome::Spent;
        }
        pass.budget.copied(piece);
        let to = buffer.part(offset + (at - first), piece as u64);
        let copied = to.and_then(|to| copy_from(pass.machine, pass.guest, (ipa, piece), to));
        Outcome::of(copied.is_some())
    });
    progress.filled.bytes = reached - start;
    match outcome {
        Outcome::Spent => Err(Turn::More),
        Outcome::Done if reached == end => Ok(()),
        _ => Err(ended(false)),
    }
}
