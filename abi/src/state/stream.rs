//! Where items go to and come from; and both for whoever has the frames that they name.

use super::{Header, MAGIC, OLDEST, Runs, VERSION, kind};
use crate::upgrade::checksum;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const HEAD: usize = size_of::<Header>();
/// Bytes before an item's: its kind and its length, 32 bits each.
const ITEM: usize = 8;

/// Of the bytes behind the header, and how many they are: zeroes at their end count.
fn sum(rest: &[u8]) -> u64 {
    checksum(rest) ^ rest.len() as u64
}

/// Why records cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// They are none, or not all of them, or were changed.
    Damaged,
    /// They are of a version that this source does not read.
    Version,
    /// They end before their end is said.
    Cut,
    /// An item of this kind is said to be longer than any may be.
    TooLong(u32),
    /// An item of this kind was expected, and is not there or has another length.
    Item(u32),
}

/// Where the state of VMs goes to: items, each of parts. What a sink has no room for is counted, and told at its end.
pub trait Sink {
    /// Whoever reads has the frames and the disks that records name; else pages go over with what is in them.
    const KEEPS_FRAMES: bool;

    /// Begins an item of parts, behind which are no others until the next begins.
    fn begin(&mut self, kind: u32);

    /// The place of the next `len` bytes of the item that was begun last, to be filled; `None`: there is no room.
    fn part(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Adds a part to the item that was begun last.
    fn add<T: IntoBytes + Immutable + ?Sized>(&mut self, part: &T) {
        if let Some(place) = self.part(size_of_val(part)) {
            place.copy_from_slice(part.as_bytes());
        }
    }

    /// Adds an item.
    fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, kind: u32, item: &T) {
        self.begin(kind);
        self.add(item);
    }
}

/// Where the state of VMs comes from: items in the order in which they were written.
pub trait Source {
    /// As [`Sink::KEEPS_FRAMES`] of whoever wrote it.
    const KEEPS_FRAMES: bool;

    /// The kind of the next item; `None` where there is none, or it cannot be read.
    fn peek(&mut self) -> Option<u32>;

    /// The bytes of the next item, which must be of this kind.
    ///
    /// # Errors
    /// [`Unreadable::Item`], or what the source itself has found.
    fn bytes(&mut self, kind: u32) -> Result<&[u8], Unreadable>;

    /// The next item, one record of this kind.
    ///
    /// # Errors
    /// [`Unreadable::Item`].
    fn one<T: FromBytes>(&mut self, kind: u32) -> Result<T, Unreadable> {
        T::read_from_bytes(self.bytes(kind)?).map_err(|_| Unreadable::Item(kind))
    }

    /// The next item, records of this kind.
    ///
    /// # Errors
    /// [`Unreadable::Item`].
    fn all<T: FromBytes>(
        &mut self,
        kind: u32,
    ) -> Result<impl ExactSizeIterator<Item = T> + Clone, Unreadable> {
        let bytes = self.bytes(kind)?;
        if !bytes.len().is_multiple_of(size_of::<T>()) {
            return Err(Unreadable::Item(kind));
        }
        let chunks = bytes.chunks_exact(size_of::<T>());
        // Each chunk is as long as a record.
        Ok(chunks.map(|chunk| T::read_from_bytes(chunk).unwrap_or_else(|_| T::new_zeroed())))
    }

    /// The next item, runs and what is behind each.
    ///
    /// # Errors
    /// [`Unreadable::Item`].
    fn runs(&mut self, kind: u32) -> Result<Runs<'_>, Unreadable> {
        Runs::of(self.bytes(kind)?).ok_or(Unreadable::Item(kind))
    }

    /// The next item, one record, if it is of this kind.
    ///
    /// # Errors
    /// [`Unreadable::Item`], where it is, and has another length.
    fn one_if<T: FromBytes>(&mut self, kind: u32) -> Result<Option<T>, Unreadable> {
        match self.peek() {
            Some(next) if next == kind => self.one(kind).map(Some),
            _ => Ok(None),
        }
    }

    /// All was read.
    ///
    /// # Errors
    /// [`Unreadable::Item`].
    fn end(&mut self) -> Result<(), Unreadable> {
        let is_end = self.bytes(kind::END)?.is_empty();
        is_end.then_some(()).ok_or(Unreadable::Item(kind::END))
    }
}

/// A sink for whoever has the frames that are named: an image that takes this one's place.
#[derive(Debug)]
pub struct Writer<'a> {
    room: &'a mut [u8],
    at: usize,
    /// Where the item begins that is being written.
    item: usize,
}

impl<'a> Writer<'a> {
    /// Into `room`.
    pub const fn new(room: &'a mut [u8]) -> Self {
        Self {
            room,
            at: HEAD,
            item: HEAD,
        }
    }

    /// All was written: its bytes, or `None` where they did not fit.
    pub fn finish(mut self) -> Option<u64> {
        self.begin(kind::END);
        let (head, rest) = self.room.get_mut(..self.at)?.split_at_mut(HEAD);
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            reserved: 0,
            bytes: self.at as u64,
            checksum: sum(rest),
        };
        head.copy_from_slice(header.as_bytes());
        Some(self.at as u64)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let room = self.room.get_mut(at..).unwrap_or_default();
        if let Some(place) = room.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

impl Sink for Writer<'_> {
    const KEEPS_FRAMES: bool = true;

    fn begin(&mut self, kind: u32) {
        self.item = self.at;
        self.write(self.at, [kind, 0].map(u32::to_le).as_bytes());
        self.at += ITEM;
    }

    fn part(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.at;
        self.at = at.saturating_add(len);
        let length = (self.at - self.item - ITEM) as u32;
        self.write(self.item + 4, &length.to_le_bytes());
        self.room.get_mut(at..self.at)
    }
}

/// A source of what a [`Writer`] has written.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Over `bytes`, which begin with records and may go on behind them.
    ///
    /// # Errors
    /// [`Unreadable::Damaged`], [`Unreadable::Version`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let (header, _) = Header::read_from_prefix(bytes).map_err(|_| Unreadable::Damaged)?;
        if header.magic != MAGIC {
            return Err(Unreadable::Damaged);
        }
        if !(OLDEST..=VERSION).contains(&header.version) {
            return Err(Unreadable::Version);
        }
        let whole = usize::try_from(header.bytes).ok();
        let rest = whole.and_then(|whole| bytes.get(HEAD..whole));
        let is_its = |rest: &&[u8]| header.reserved == 0 && sum(rest) == header.checksum;
        let rest = rest.filter(is_its).ok_or(Unreadable::Damaged)?;
        Ok(Self { rest })
    }

    fn next(&self) -> Option<(u32, &'a [u8], &'a [u8])> {
        let (head, rest) = self.rest.split_at_checked(ITEM)?;
        let [kind, length] = <[u32; 2]>::read_from_bytes(head).ok()?;
        let (item, rest) = rest.split_at_checked(length as usize)?;
        Some((kind, item, rest))
    }
}

impl Source for Reader<'_> {
    const KEEPS_FRAMES: bool = true;

    fn peek(&mut self) -> Option<u32> {
        self.next().map(|(kind, ..)| kind)
    }

    fn bytes(&mut self, kind: u32) -> Result<&[u8], Unreadable> {
        let next = self.next().filter(|(of_kind, ..)| *of_kind == kind);
        let (_, item, rest) = next.ok_or(Unreadable::Item(kind))?;
        self.rest = rest;
        Ok(item)
    }

    fn end(&mut self) -> Result<(), Unreadable> {
        let is_end = self.bytes(kind::END)?.is_empty() && self.rest.is_empty();
        is_end.then_some(()).ok_or(Unreadable::Item(kind::END))
    }
}
