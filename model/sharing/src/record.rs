//! The records that a shared frame's users stand in, and the slab that they come from.

use core::{array, num::NonZeroU64};

use machine_contract::TableMemory;
use model_addr::Mfn;
use model_frame_table::Owner;

/// Words in a frame of records; those where a record might be at its beginning are the frame's own.
const WORDS: usize = 512;

/// How large a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Two words: one user.
    One = 0,
    /// A line of the cache: five users.
    Line = 1,
}

impl Size {
    /// Its words.
    pub const fn words(self) -> usize {
        match self {
            Self::One => 2,
            Self::Line => 8,
        }
    }

    /// Its words, two by two.
    const fn pairs(self) -> u64 {
        self.words() as u64 / 2
    }

    /// How many lie in a frame.
    pub const fn in_frame(self) -> u64 {
        (WORDS / self.words() - 1) as u64
    }
}

/// Where a record is: the frame, and its first two words there, numbered from 1 to 255; and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(NonZeroU64);

impl RecordId {
    fn new(frame: Mfn, number: u64, size: Size) -> Option<Self> {
        NonZeroU64::new(frame.0 << 9 | number << 1 | size as u64).map(Self)
    }

    /// The frame it lies in, one of those that the slab allocated.
    pub const fn frame(self) -> Mfn {
        Mfn(self.0.get() >> 9)
    }

    /// Its size.
    pub const fn size(self) -> Size {
        if self.0.get() & 1 == 0 {
            Size::One
        } else {
            Size::Line
        }
    }

    const fn number(self) -> u64 {
        self.0.get() >> 1 & 0xff
    }

    /// The first of its words in [`Self::frame`].
    const fn word(self) -> usize {
        (self.0.get() & 0x1fe) as usize
    }

    /// The first words of the record, which a slab gave; it has at least so many.
    #[inline]
    pub fn read<const N: usize>(self, memory: &impl TableMemory) -> [u64; N] {
        array::from_fn(|n| memory.read(self.frame(), self.word() + n))
    }

    /// Sets word `n` of the record.
    #[inline]
    pub fn write(self, memory: &mut impl TableMemory, n: usize, word: u64) {
        memory.write(self.frame(), self.word() + n, word);
    }
}

/// What a frame's entry, or a record, leads to. The first user of a frame stands in the link itself: so
/// a frame with a single user takes no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No user: the frame is kept.
    Nobody,
    /// This user, and nobody after it. Slots of VMs are below 2^15.
    Last(Owner),
    /// A record.
    Record(RecordId),
}

impl Link {
    const LAST: u64 = 1 << 63;

    /// One word; zero for nobody.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Last(user) => Self::last(user.encode()),
            Self::Record(record) => record.0.get(),
        }
    }

    /// [`Self::Last`], as a word, of a user's word.
    pub(crate) const fn last(user: u64) -> u64 {
        user | Self::LAST
    }

    /// The user in the word of a [`Self::Last`], as a word.
    pub(crate) fn user(word: u64) -> Option<u64> {
        (word & Self::LAST != 0).then_some(word & !Self::LAST)
    }

    /// What [`Self::encode`] made the word of.
    pub const fn decode(word: u64) -> Self {
        if word & Self::LAST != 0 {
            return Self::Last(Owner::decode(word & !Self::LAST));
        }
        match NonZeroU64::new(word) {
            Some(record) => Self::Record(RecordId(record)),
            None => Self::Nobody,
        }
    }
}

/// Records, 255 small or 63 large ones to a frame, taken and given back in constant time. Frames without any go back.
/// The caller holds a lock around it, and passes the same memory at every call.
///
/// A frame's first word holds its neighbour before in the list of frames with a free record, and
/// how many of its records are taken; the second the neighbour after, and its first free record.
/// A free record's first word is the distance to the next free one, less what it is to the one behind it: a frame
/// full of zeroes is a list of all its records.
#[derive(Debug, Default)]
pub struct Slab {
    /// The first frame with a free record, of each size.
    open: [Option<Mfn>; 2],
    frames: u64,
}

/// A header's word: a frame, if any, and a number below 256.
fn link(frame: Option<Mfn>, number: u64) -> u64 {
    frame.map_or(0, |frame| frame.0 + 1) << 8 | number
}

fn unlink(word: u64) -> (Option<Mfn>, u64) {
    ((word >> 8).checked_sub(1).map(Mfn), word & 0xff)
}

impl Slab {
    /// No record, no frame.
    pub const fn new() -> Self {
        Self {
            open: [None; 2],
            frames: 0,
        }
    }

    /// How many frames it has.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// A record with unspecified contents; `None` where there is no memory left.
    pub fn take(&mut self, memory: &mut impl TableMemory, size: Size) -> Option<RecordId> {
        let frame = match self.open[size as usize] {
            Some(frame) => frame,
            None => self.grow(memory, size)?,
        };
        let (before, taken) = unlink(memory.read(frame, 0));
        let (after, free) = unlink(memory.read(frame, 1));
        let record = RecordId::new(frame, free, size)?;
        let next = (free + memory.read(frame, record.word()) + size.pairs()) & 0xff;
        memory.write(frame, 0, link(before, taken + 1));
        memory.write(frame, 1, link(after, next));
        if taken + 1 == size.in_frame() {
            self.close(memory, frame, size);
        }
        Some(record)
    }

    /// Takes back a record that [`Self::take`] gave.
    pub fn give(&mut self, memory: &mut impl TableMemory, record: RecordId) {
        let (frame, size) = (record.frame(), record.size());
        let (before, taken) = unlink(memory.read(frame, 0));
        let (after, free) = unlink(memory.read(frame, 1));
        let distance = free.wrapping_sub(record.number() + size.pairs()) & 0xff;
        memory.write(frame, record.word(), distance);
        memory.write(frame, 0, link(before, taken - 1));
        memory.write(frame, 1, link(after, record.number()));
        if taken == size.in_frame() {
            self.open(memory, frame, size);
        }
        if taken == 1 {
            self.close(memory, frame, size);
            memory.free_table(frame);
            self.frames -= 1;
        }
    }

    fn grow(&mut self, memory: &mut impl TableMemory, size: Size) -> Option<Mfn> {
        let frame = memory.allocate_table()?;
        memory.write(frame, 1, link(None, size.pairs()));
        self.open[size as usize] = Some(frame);
        self.frames += 1;
        Some(frame)
    }

    /// Makes `frame`, in no list, the first with a free record.
    fn open(&mut self, memory: &mut impl TableMemory, frame: Mfn, size: Size) {
        let open = &mut self.open[size as usize];
        if let Some(first) = *open {
            set_neighbour(memory, first, 0, Some(frame));
        }
        set_neighbour(memory, frame, 0, None);
        set_neighbour(memory, frame, 1, *open);
        *open = Some(frame);
    }

    /// Takes `frame` out of the list of those with a free record.
    fn close(&mut self, memory: &mut impl TableMemory, frame: Mfn, size: Size) {
        let (before, _) = unlink(memory.read(frame, 0));
        let (after, _) = unlink(memory.read(frame, 1));
        match before {
            Some(before) => set_neighbour(memory, before, 1, after),
            None => self.open[size as usize] = after,
        }
        if let Some(after) = after {
            set_neighbour(memory, after, 0, before);
        }
    }
}

/// Sets a neighbour of `frame`: the one before (0) or after (1).
fn set_neighbour(memory: &mut impl TableMemory, frame: Mfn, side: usize, other: Option<Mfn>) {
    let (_, number) = unlink(memory.read(frame, side));
    memory.write(frame, side, link(other, number));
}
