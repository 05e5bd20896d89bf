//! All memory of the machine: from frame number to entry.

use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId};

use crate::entry::Slot;
use crate::{
    CHUNK_FRAMES, Contents, Event, FrameEntry, FrameState, MAX_NODES, Origin, Owner, Refused, Use,
};

/// How many ranges a machine may have.
pub const MAX_RANGES: usize = 64;

/// Bytes that the entries of `frames` frames take, in whole frames.
pub const fn entries_bytes(frames: u64) -> u64 {
    (frames * size_of::<FrameEntry>() as u64).next_multiple_of(FRAME_SIZE)
}

/// Frames of one node that follow each other, with their entries in the same order.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange<'a> {
    /// The frames.
    pub frames: FrameRange,
    /// Their node.
    pub node: NodeId,
    /// One for each frame. All zeroes at first.
    pub entries: &'a [FrameEntry],
}

impl<'a> MemoryRange<'a> {
    const NONE: Self = Self {
        frames: FrameRange::of(Mfn(0), 0),
        node: NodeId(0),
        entries: &[],
    };

    pub(crate) fn entry(&self, frame: Mfn) -> Option<&'a FrameEntry> {
        self.entries
            .get(frame.0.checked_sub(self.frames.start.0)? as usize)
    }

    /// Whether `frame` lies in a reserved chunk.
    pub(crate) fn is_reserved(&self, frame: Mfn) -> bool {
        let head = self.entry(frame.align_down(CHUNK_FRAMES));
        head.is_some_and(|head| head.state().usage == Use::Reserved)
    }

    #[inline]
    pub(crate) fn run(&self, first: Mfn, count: u64) -> Option<&'a [FrameEntry]> {
        let at = first.0.checked_sub(self.frames.start.0)?;
        let end = at.checked_add(count)?;
        self.entries
            .get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
    }
}

/// Why ranges do not make a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// More than [`MAX_RANGES`] ranges.
    #[error("more than {MAX_RANGES} ranges of memory")]
    Ranges,
    /// 2^32 - 1 frames (16 TiB) or more.
    #[error("more than 16 TiB of memory")]
    Frames,
    /// A range is empty, wraps around, or has not one entry for each frame.
    #[error("the range at frame {0} lacks entries")]
    Entries(Mfn),
    /// Two ranges share this frame.
    #[error("two ranges of memory share frame {0}")]
    Overlap(Mfn),
    /// A node number of [`MAX_NODES`] or above.
    #[error("{0}: there are at most {MAX_NODES} nodes")]
    Node(NodeId),
}

/// The frame table: all ranges of the machine's memory, holes between them.
#[derive(Debug)]
pub struct MemoryMap<'a> {
    /// By frame number; the first `count` are in use.
    ranges: [MemoryRange<'a>; MAX_RANGES],
    /// The slot of each range's first frame.
    slots: [Slot; MAX_RANGES],
    count: usize,
}

impl<'a> MemoryMap<'a> {
    /// The map of these ranges, in any order.
    pub fn new(ranges: &[MemoryRange<'a>]) -> Result<Self, MapError> {
        let count = ranges.len();
        let mut map = Self {
            ranges: [MemoryRange::NONE; MAX_RANGES],
            slots: [0; MAX_RANGES],
            count,
        };
        let sorted = map.ranges.get_mut(..count).ok_or(MapError::Ranges)?;
        sorted.copy_from_slice(ranges);
        sorted.sort_unstable_by_key(|range| range.frames.start);
        let mut frames: u64 = 0;
        let mut end = Mfn(0);
        for (range, slot) in sorted.iter().zip(&mut map.slots) {
            let FrameRange { start, count } = range.frames;
            let wraps = start.0.checked_add(count).is_none();
            if count == 0 || wraps || range.entries.len() as u64 != count {
                return Err(MapError::Entries(start));
            }
            if start < end {
                return Err(MapError::Overlap(start));
            }
            if usize::from(range.node.0) >= MAX_NODES {
                return Err(MapError::Node(range.node));
            }
            *slot = Slot::try_from(frames).map_err(|_| MapError::Frames)?;
            frames = frames.checked_add(count).ok_or(MapError::Frames)?;
            end = range.frames.end();
        }
        if frames >= u64::from(Slot::MAX) {
            Err(MapError::Frames)
        } else {
            Ok(map)
        }
    }

    /// The ranges, by frame number.
    pub fn ranges(&self) -> &[MemoryRange<'a>] {
        self.ranges.get(..self.count).unwrap_or(&[])
    }

    /// The entry of `frame`; `None` where the machine has no such frame.
    pub fn entry(&self, frame: Mfn) -> Option<&'a FrameEntry> {
        self.range(frame)?.1.entry(frame)
    }

    /// The node of `frame`; `None` where the machine has no such frame.
    pub fn node_of(&self, frame: Mfn) -> Option<NodeId> {
        let (_, range) = self.range(frame)?;
        range.entry(frame).map(|_| range.node)
    }

    /// The entries of `count` frames from `first`; `None` where they are not all in one range.
    pub fn run(&self, first: Mfn, count: u64) -> Option<&'a [FrameEntry]> {
        self.range(first)?.1.run(first, count)
    }

    /// Takes the [`CHUNK_FRAMES`] frames from `first` where they are reserved for `owner` and the
    /// guest frames after it: from now on they are its private memory, which holds what is said.
    /// `None` where they are not reserved for it, or no longer.
    #[inline]
    pub fn take_reserved(&self, first: Mfn, owner: Owner) -> Option<Contents> {
        let (head, body) = self.run(first, CHUNK_FRAMES)?.split_first()?;
        head.take_chunk(body, owner)
    }

    /// Marks frames that no pool was given as the hypervisor's own: its image, the entries
    /// themselves, what firmware keeps. Before any pool is filled.
    ///
    /// # Errors
    /// [`Refused::NotHere`], or [`Refused::Step`] where one is in use; those before it are marked.
    pub fn set_aside(&self, frames: FrameRange) -> Result<(), Refused> {
        self.mark(frames, Event::Grant, Origin::Machine)
    }

    /// Marks frames that no pool was given as a disk image's: kept for guests to read, for ever.
    /// Before any guest runs, and before or after [`Self::set_aside`].
    ///
    /// # Errors
    /// As [`Self::set_aside`].
    pub fn set_aside_image(&self, frames: FrameRange) -> Result<(), Refused> {
        self.mark(frames, Event::Keep, Origin::Image)
    }

    /// Marks frames that no pool was given as the hypervisor's, to be freed some day as blocks of any order: those that
    /// were its own before this map. Before any pool is filled with what is left.
    ///
    /// # Errors
    /// As [`Self::set_aside`].
    pub fn adopt_own(&self, frames: FrameRange) -> Result<(), Refused> {
        self.mark(frames, Event::Grant, Origin::Lent)
    }

    /// Marks frames that no pool was given as private memory of `owner` and the guest frames after it, of
    /// a VM that was there before this map. Before any pool is filled with what is left.
    ///
    /// # Errors
    /// As [`Self::set_aside`]: so no frame is two guest frames' private memory.
    pub fn adopt(&self, frames: FrameRange, owner: Owner) -> Result<(), Refused> {
        self.mark(frames, Event::Assign, Origin::Lent)?;
        for n in 0..frames.count {
            let entry = self.entry(frames.start.add(n)).ok_or(Refused::NotHere)?;
            entry
                .lock()
                .ok_or(Refused::NotHere)?
                .set_owner(owner.add(n));
        }
        Ok(())
    }

    /// The first run at or after `from` that no pool was ever given and nobody has, where all that pools
    /// were given, and what is anybody's, was lent; with its node.
    pub fn next_unlent(&self, from: Mfn) -> Option<(NodeId, FrameRange)> {
        let after = |range: &&MemoryRange<'_>| range.frames.end() > from;
        for range in self.ranges().iter().filter(after) {
            let nobodys = |frame: &Mfn| {
                range.entry(*frame).is_some_and(|entry| {
                    let state = entry.state();
                    state.usage == Use::Free && state.origin == Origin::Machine
                })
            };
            let (first, end) = (from.max(range.frames.start), range.frames.end());
            let mut frames = (first.0..end.0).map(Mfn);
            if let Some(start) = frames.find(nobodys) {
                let count = 1 + frames.take_while(nobodys).count() as u64;
                return Some((range.node, FrameRange { start, count }));
            }
        }
        None
    }

    fn mark(&self, frames: FrameRange, event: Event, origin: Origin) -> Result<(), Refused> {
        let (_, range) = self.range(frames.start).ok_or(Refused::NotHere)?;
        let entries = range
            .run(frames.start, frames.count)
            .ok_or(Refused::NotHere)?;
        for entry in entries {
            let own = entry.state().step(event)?;
            entry.set_state(FrameState {
                node: range.node,
                origin,
                ..own
            });
        }
        Ok(())
    }

    /// `frame` as a word of a list, which zero is not; `None` where the machine has no such frame.
    pub fn link(&self, frame: Mfn) -> Option<u32> {
        let (slot, range) = self.range(frame)?;
        range.entry(frame)?;
        Some(slot + (frame.0 - range.frames.start.0) as Slot + 1)
    }

    /// The frame that [`Self::link`] made the word of; `None` for zero.
    pub fn linked(&self, link: u32) -> Option<(Mfn, &'a FrameEntry)> {
        self.by_slot(link.checked_sub(1)?)
    }

    /// The first frame at or after `from` on `node`, with its range.
    pub fn next_on(&self, node: NodeId, from: Mfn) -> Option<(&MemoryRange<'a>, Mfn)> {
        let mut ranges = self.ranges().iter();
        let range = ranges.find(|r| r.node == node && r.frames.end() > from)?;
        Some((range, from.max(range.frames.start)))
    }

    #[inline]
    pub(crate) fn range(&self, frame: Mfn) -> Option<(Slot, &MemoryRange<'a>)> {
        let after = self
            .ranges()
            .partition_point(|range| range.frames.start <= frame);
        let index = after.checked_sub(1)?;
        Some((*self.slots.get(index)?, self.ranges.get(index)?))
    }

    /// The frame in `slot`.
    pub(crate) fn by_slot(&self, slot: Slot) -> Option<(Mfn, &'a FrameEntry)> {
        let slots = self.slots.get(..self.count)?;
        let index = slots
            .partition_point(|first| *first <= slot)
            .checked_sub(1)?;
        let range = self.ranges.get(index)?;
        let offset = slot - slots.get(index)?;
        Some((
            range.frames.start.add(offset.into()),
            range.entries.get(offset as usize)?,
        ))
    }
}
