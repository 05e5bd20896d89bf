//! What a request of a VM's disk does on a physical one, in a buffer of EL2's own.

use crate::devices::block::{State, extent, fail, follow, park_until_freed, pass};
use crate::drivers::{Buffer, Io, Job, Part, disk::JOBS_FOR_PAGES, jobs::Filling};
use crate::guest::Guest;
use alloc::boxed::Box;
use model_disk::{Budget, Loaded, Side, Turn, fill};

/// What a transfer brought before, and its buffer where that is another.
type Brought = (Loaded, Option<Buffer>);

/// Gives a part of a request to a physical disk, or parks it until there is a buffer: `false`.
pub(super) fn begin(
    state: &mut State,
    vm: &Guest,
    mut part: Box<Part>,
    (side, io): (Side, Io),
    budget: &mut Budget,
) -> bool {
    let Some(partition) = extent(&state.backing, side) else {
        fail(state, vm, part);
        return true;
    };
    let came = part.came.take();
    let loaded = came.as_ref().map(|(_, loaded)| *loaded);
    // What came stays until it was used, where it is another disk's.
    let (buffer, kept) = match came {
        Some((buffer, _)) if partition.fits(&buffer) => (Some(buffer), None),
        came => (partition.buffer(JOBS_FOR_PAGES), came),
    };
    let Some(buffer) = buffer else {
        return park_until_freed(state, vm, part);
    };
    let kept = kept.map(|(buffer, _)| buffer);
    let brought = loaded.map(|loaded| (loaded, kept));
    fill_buffer(state, vm, part, ((buffer, side, io), brought), budget)
}

/// Fills a buffer with what a physical disk is to write, as far as the pass goes, and gives it to the disk;
/// `false` where the request was parked.
pub(super) fn fill_buffer(
    state: &mut State,
    vm: &Guest,
    mut part: Box<Part>,
    ((buffer, side, io), brought): (Filling, Option<Brought>),
    budget: &mut Budget,
) -> bool {
    let loaded = brought.as_ref().map(|(loaded, _)| *loaded);
    let Part {
        request, progress, ..
    } = &mut *part;
    let (mut pass, into) = (pass(vm, budget), (io, buffer.data()));
    let filled = fill(
        &mut pass,
        &mut state.backing,
        (request, progress),
        into,
        loaded,
    );
    drop(brought);
    let io = match filled {
        Ok(io) => io,
        Err(turn) => {
            if turn == Turn::More {
                part.filling = Some((buffer, side, io));
            } else {
                drop(buffer);
            }
            return follow(state, vm, (part, turn), budget);
        }
    };
    let Some(partition) = extent(&state.backing, side) else {
        fail(state, vm, part);
        return true;
    };
    part.side = side;
    match partition.begin(buffer, io, Job::Request(part)) {
        Ok(()) => state.under_way += 1,
        Err(Job::Request(part)) => fail(state, vm, part),
        Err(Job::Page(_)) => {}
    }
    true
}
