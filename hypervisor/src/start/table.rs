//! The frame table's entries, and what pools get of the memory that they describe.

use crate::machine::{self, give_up};
use crate::memory::frames;
use crate::start::InUse;
use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId, Pa, PaRange};
use model_frame_table::{FrameEntry, MAX_NODES, MAX_ORDER, MemoryRange, Origin, entries_bytes};
use model_loans::{SCATTERED_MAX, Scattered};
use model_machine_tree::Machine;

/// The ranges of blocks of which there are pages.
pub(super) fn scattered_ranges(
    tree: &Machine,
    blocks: &[Scattered],
    ranges: &[MemoryRange<'static>],
    in_use: &mut InUse,
) -> heapless::Vec<MemoryRange<'static>, SCATTERED_MAX> {
    let (Some(first), false) = (ranges.first(), blocks.is_empty()) else {
        return heapless::Vec::new();
    };
    let each = 1 << MAX_ORDER;
    let entries = carve_entries(first.frames, blocks.len() as u64 * each, in_use);
    let entries = entries.chunks(each as usize);
    let node = |block: PaRange| {
        let mut memory = tree.memory.iter();
        let node = memory.find(|memory| memory.range.overlaps(block))?.node;
        (usize::from(node.0) < MAX_NODES).then_some(node)
    };
    let range = |(block, entries): (&Scattered, &'static [FrameEntry])| MemoryRange {
        frames: block.block().whole_frames(),
        node: node(block.block()).unwrap_or(first.node),
        entries,
    };
    blocks.iter().zip(entries).map(range).collect()
}

/// Takes room for `count` entries from `frames`.
pub(super) fn carve_entries(
    frames: FrameRange,
    count: u64,
    in_use: &mut InUse,
) -> &'static [FrameEntry] {
    let bytes = entries_bytes(count);
    let (start, end) = (frames.start.address(), frames.end().address());
    let mut at = start;
    while let Some(taken) = in_use
        .iter()
        .find(|run| run.overlaps(PaRange::of(at, bytes)))
    {
        at = taken.end().align_up(FRAME_SIZE).unwrap_or(end);
    }
    let room = PaRange::of(at, bytes);
    if room.end() > end {
        give_up(format_args!(
            "no room for {bytes} bytes of frame table at {start}"
        ));
    }
    if in_use.push(room).is_err() {
        give_up(format_args!("too many runs of memory"));
    }
    entries_at(at, count)
}

/// Entries of `count` frames in RAM that nobody uses.
pub fn entries_at(at: Pa, count: u64) -> &'static [FrameEntry] {
    let pointer = core::ptr::with_exposed_provenance_mut::<FrameEntry>(at.0 as usize);
    // SAFETY: RAM that nobody uses; entries are valid when all zero, and shared from now on.
    unsafe {
        core::ptr::write_bytes(pointer, 0, count as usize);
        core::slice::from_raw_parts(pointer, count as usize)
    }
}

/// Gives the pool of `node` those of `frames` that nobody uses, and marks the others.
pub(super) fn fill_pool(frames: FrameRange, node: NodeId, in_use: &mut InUse) {
    in_use.sort_unstable_by_key(|run| run.start);
    let mut next = frames.start;
    let between = |start: Mfn, end: Mfn| FrameRange::of(start, end.0.saturating_sub(start.0));
    for run in in_use.iter() {
        let first = run.start.frame().max(next);
        let end = run
            .end()
            .align_up(FRAME_SIZE)
            .unwrap_or(run.end())
            .frame()
            .min(frames.end());
        if first >= end || !frames.contains(first) {
            continue;
        }
        fill(between(first, end), node, false);
        fill(between(next, first), node, true);
        next = end;
    }
    fill(between(next, frames.end()), node, true);
}

/// Gives frames to the pool of `node`, or marks them as in use.
pub(super) fn fill(frames: FrameRange, node: NodeId, are_free: bool) {
    let map = &machine::get().map;
    let done = if frames.count == 0 {
        Ok(())
    } else if are_free {
        frames::with_pool(node, |pool| pool.add(map, frames, Origin::Machine))
    } else {
        map.set_aside(frames)
    };
    assert!(done.is_ok(), "frames at {}: {done:?}", frames.start);
}
