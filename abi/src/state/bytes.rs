//! A VM's state as bytes: a sink and a source that have no frame in common. A [`Preamble`], then sections, each with its
//! number, length and checksum, the last of kind [`kind::END`].

use super::{OLDEST, Preamble, SAVED, Section, Sink, Source, Unreadable, VERSION, kind};
use crate::upgrade::checksum;
use zerocopy::{FromBytes, IntoBytes};

#[cfg(test)]
mod tests;

/// Bytes of the longest section, its head included: each side has room for one.
pub const ROOM: usize = 128 << 10;
const HEAD: usize = size_of::<Section>();
/// The checksum, which does not count itself.
const SUM: usize = size_of::<u64>();

/// A sink whose bytes go to `out`, which says whether it took them.
pub struct ByteSink<'a, O> {
    room: &'a mut [u8; ROOM],
    /// The section that is being written, and its bytes so far; 0: there is none.
    section: Section,
    at: usize,
    bytes: u64,
    is_whole: bool,
    out: O,
}

impl<'a, O: FnMut(&[u8]) -> bool> ByteSink<'a, O> {
    /// By way of `room`.
    pub fn new(room: &'a mut [u8; ROOM], mut out: O) -> Self {
        let (magic, version) = (SAVED, VERSION);
        let preamble = Preamble {
            magic,
            version,
            reserved: 0,
        };
        Self {
            room,
            section: Section::ZERO,
            at: 0,
            bytes: size_of_val(&preamble) as u64,
            is_whole: out(preamble.as_bytes()),
            out,
        }
    }

    /// The section that was begun is complete.
    fn close(&mut self) {
        let Some(section) = self.room.get_mut(..self.at).filter(|it| !it.is_empty()) else {
            return;
        };
        self.section.length = (self.at - HEAD) as u32;
        section[..HEAD].copy_from_slice(self.section.as_bytes());
        let sum = checksum(&section[SUM..]);
        section[..SUM].copy_from_slice(&sum.to_le_bytes());
        self.is_whole &= (self.out)(section);
        self.bytes += self.at as u64;
        self.section.number += 1;
    }

    /// All was written: how many bytes, or `None` where some were not taken, or an item was too long.
    pub fn finish(mut self) -> Option<u64> {
        self.begin(kind::END);
        self.close();
        self.is_whole.then_some(self.bytes)
    }
}

impl<O: FnMut(&[u8]) -> bool> Sink for ByteSink<'_, O> {
    const KEEPS_FRAMES: bool = false;

    fn begin(&mut self, kind: u32) {
        self.close();
        (self.section.kind, self.at) = (kind, HEAD);
    }

    /// Runs that are more than one section has room for go on in another.
    fn part(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > ROOM - self.at && matches!(self.section.kind, kind::RUNS | kind::OVERLAY) {
            self.begin(self.section.kind);
        }
        let end = self.at.checked_add(len).filter(|end| *end <= ROOM);
        self.is_whole &= end.is_some();
        let at = core::mem::replace(&mut self.at, end?);
        Some(&mut self.room[at..self.at])
    }
}

/// A source whose bytes come from `input`, which fills what it is given, or says that there are no more.
pub struct ByteSource<'a, I> {
    room: &'a mut [u8; ROOM],
    /// The kind and the length of the section that is in `room`, if one was read ahead.
    next: Option<Result<Section, Unreadable>>,
    number: u64,
    input: I,
}

impl<'a, I: FnMut(&mut [u8]) -> bool> ByteSource<'a, I> {
    /// By way of `room`.
    ///
    /// # Errors
    /// [`Unreadable::Cut`], [`Unreadable::Damaged`] where it is no such stream, [`Unreadable::Version`].
    pub fn new(room: &'a mut [u8; ROOM], mut input: I) -> Result<Self, Unreadable> {
        let mut preamble = Preamble::ZERO;
        if !input(preamble.as_mut_bytes()) {
            return Err(Unreadable::Cut);
        }
        if preamble.magic != SAVED || preamble.reserved != 0 {
            return Err(Unreadable::Damaged);
        }
        if !(OLDEST..=VERSION).contains(&preamble.version) {
            return Err(Unreadable::Version);
        }
        Ok(Self {
            room,
            next: None,
            number: 0,
            input,
        })
    }

    /// Reads a section into `room`: nothing of it is believed before its checksum is right, but that it is not longer
    /// than that.
    fn load(&mut self) -> Result<Section, Unreadable> {
        let (head, rest) = self.room.split_at_mut(HEAD);
        if !(self.input)(head) {
            return Err(Unreadable::Cut);
        }
        let section = Section::read_from_bytes(head).map_err(|_| Unreadable::Damaged)?;
        let length = section.length as usize;
        let rest = rest.get_mut(..length);
        if !(self.input)(rest.ok_or(Unreadable::TooLong(section.kind))?) {
            return Err(Unreadable::Cut);
        }
        let sum = checksum(&self.room[SUM..HEAD + length]);
        if sum != section.checksum || section.number != self.number {
            return Err(Unreadable::Damaged);
        }
        self.number += 1;
        Ok(section)
    }

    fn ahead(&mut self) -> Result<Section, Unreadable> {
        let next = self.next.take().unwrap_or_else(|| self.load());
        self.next = Some(next);
        next
    }
}

impl<I: FnMut(&mut [u8]) -> bool> Source for ByteSource<'_, I> {
    const KEEPS_FRAMES: bool = false;

    fn peek(&mut self) -> Option<u32> {
        self.ahead().ok().map(|section| section.kind)
    }

    fn bytes(&mut self, kind: u32) -> Result<&[u8], Unreadable> {
        let section = self.ahead()?;
        if section.kind != kind {
            return Err(Unreadable::Item(kind));
        }
        self.next = None;
        Ok(&self.room[HEAD..HEAD + section.length as usize])
    }
}
