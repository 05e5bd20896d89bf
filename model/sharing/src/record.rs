//! The records of a shared frame's users, and the slab that they come from.

use core::num::NonZeroU64;

use machine_contract::TableMemory;
use model_addr::Mfn;
use model_frame_table::Owner;

/// Words in a frame of records; a record has two, and the first two are the frame's own.
const WORDS: usize = 512;
const RECORDS: u64 = WORDS as u64 / 2 - 1;

/// Where a record is: the frame, and its number in it, 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(NonZeroU64);

impl RecordId {
    fn new(frame: Mfn, number: u64) -> Option<Self> {
        NonZeroU64::new(frame.0 << 8 | number).map(Self)
    }

    /// The frame it lies in, one of those that the slab allocated.
    pub const fn frame(self) -> Mfn {
        Mfn(self.0.get() >> 8)
    }

    const fn number(self) -> u64 {
        self.0.get() & 0xff
    }

    /// The first of its two words in [`Self::frame`].
    const fn word(self) -> usize {
        self.number() as usize * 2
    }
}

/// What a frame's entry, or a record, leads to. The last user of a list stands in the link itself: so
/// a frame with n users takes n - 1 records, and one with a single user none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No user: the frame is kept.
    Nobody,
    /// This user, and nobody after it. Slots of VMs are below 2^15.
    Last(Owner),
    /// A record, and who follows it; and whether all from there on are known to be of one VM.
    Record(RecordId, bool),
}

impl Link {
    /// Bits that a record's number, of 52 bits, leaves: what tells both apart, and all of one VM.
    const LAST: u64 = 1 << 63;
    const ALIKE: u64 = 1 << 62;

    /// One word; zero for nobody.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Last(user) => user.encode() | Self::LAST,
            Self::Record(record, alike) => record.0.get() | if alike { Self::ALIKE } else { 0 },
        }
    }

    /// What [`Self::encode`] made the word of.
    pub const fn decode(word: u64) -> Self {
        if word & Self::LAST != 0 {
            return Self::Last(Owner::decode(word & !Self::LAST));
        }
        match NonZeroU64::new(word & !Self::ALIKE) {
            Some(record) => Self::Record(RecordId(record), word & Self::ALIKE != 0),
            None => Self::Nobody,
        }
    }
}

/// A user of a shared frame that is not the last of its list. The list begins in the frame's entry;
/// the frame's lock protects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The user.
    pub user: Owner,
    /// Who follows.
    pub next: Link,
}

impl Record {
    /// The record at `id`, which a slab gave.
    pub fn read(memory: &impl TableMemory, id: RecordId) -> Self {
        Self {
            user: Owner::decode(memory.read(id.frame(), id.word())),
            next: Link::decode(memory.read(id.frame(), id.word() + 1)),
        }
    }

    /// Makes the record at `id` this one.
    pub fn write(self, memory: &mut impl TableMemory, id: RecordId) {
        memory.write(id.frame(), id.word(), self.user.encode());
        Self::set_next(memory, id, self.next);
    }

    /// Sets who follows the record at `id`.
    pub fn set_next(memory: &mut impl TableMemory, id: RecordId, next: Link) {
        memory.write(id.frame(), id.word() + 1, next.encode());
    }
}

/// Records, 255 to a frame, taken and given back in constant time. Frames without any go back.
/// The caller holds a lock around it, and passes the same memory at every call.
///
/// A frame's first word holds its neighbour before in the list of frames with a free record, and
/// how many of its records are taken; the second the neighbour after, and its first free record.
/// A free record's first word is the distance to the next free one, less one: a frame full of
/// zeroes is a list of all its records.
#[derive(Debug, Default)]
pub struct Slab {
    /// The first frame with a free record.
    open: Option<Mfn>,
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
            open: None,
            frames: 0,
        }
    }

    /// How many frames it has.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// A record with unspecified contents; `None` where there is no memory left.
    pub fn take(&mut self, memory: &mut impl TableMemory) -> Option<RecordId> {
        let frame = match self.open {
            Some(frame) => frame,
            None => self.grow(memory)?,
        };
        let (before, taken) = unlink(memory.read(frame, 0));
        let (after, free) = unlink(memory.read(frame, 1));
        let record = RecordId::new(frame, free)?;
        let next = (free + memory.read(frame, record.word()) + 1) & 0xff;
        memory.write(frame, 0, link(before, taken + 1));
        memory.write(frame, 1, link(after, next));
        if taken + 1 == RECORDS {
            self.close(memory, frame);
        }
        Some(record)
    }

    /// Takes back a record that [`Self::take`] gave.
    pub fn give(&mut self, memory: &mut impl TableMemory, record: RecordId) {
        let frame = record.frame();
        let (before, taken) = unlink(memory.read(frame, 0));
        let (after, free) = unlink(memory.read(frame, 1));
        let distance = free.wrapping_sub(record.number() + 1) & 0xff;
        memory.write(frame, record.word(), distance);
        memory.write(frame, 0, link(before, taken - 1));
        memory.write(frame, 1, link(after, record.number()));
        if taken == RECORDS {
            self.open(memory, frame);
        }
        if taken == 1 {
            self.close(memory, frame);
            memory.free_table(frame);
            self.frames -= 1;
        }
    }

    fn grow(&mut self, memory: &mut impl TableMemory) -> Option<Mfn> {
        let frame = memory.allocate_table()?;
        memory.write(frame, 1, link(None, 1));
        self.open = Some(frame);
        self.frames += 1;
        Some(frame)
    }

    /// Makes `frame`, in no list, the first with a free record.
    fn open(&mut self, memory: &mut impl TableMemory, frame: Mfn) {
        if let Some(first) = self.open {
            set_neighbour(memory, first, 0, Some(frame));
        }
        set_neighbour(memory, frame, 0, None);
        set_neighbour(memory, frame, 1, self.open);
        self.open = Some(frame);
    }

    /// Takes `frame` out of the list of those with a free record.
    fn close(&mut self, memory: &mut impl TableMemory, frame: Mfn) {
        let (before, _) = unlink(memory.read(frame, 0));
        let (after, _) = unlink(memory.read(frame, 1));
        match before {
            Some(before) => set_neighbour(memory, before, 1, after),
            None => self.open = after,
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
