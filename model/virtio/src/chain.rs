//! Descriptor chains: the buffers of one request, as checked segments.

use crate::QueueError;
use heapless::Vec;
use machine_contract::{GuestMemory, GuestMemoryError};
use model_addr::Ipa;

/// Most segments in a chain: 128 of data, a header and a status (virtio-blk with `seg_max` 128).
pub const MAX_SEGMENTS: usize = 130;

/// A run of guest memory that the driver gave to the device; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first byte.
    pub ipa: Ipa,
    /// Bytes.
    pub len: u32,
}

impl Segment {
    /// What is behind its first `n` bytes, of which it has as many.
    pub(crate) fn behind(self, n: u32) -> Self {
        Self {
            ipa: Ipa(self.ipa.0 + u64::from(n)),
            len: self.len - n,
        }
    }
}

/// Runs of guest memory that are used up from the front.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    front: Segment,
    rest: &'a [Segment],
    /// Bytes of the rest that count.
    left: u32,
}

impl<'a> Runs<'a> {
    /// All of them, up to so many bytes.
    pub fn new(rest: &'a [Segment], left: u32) -> Self {
        let front = Segment {
            ipa: Ipa(0),
            len: 0,
        };
        Self { front, rest, left }
    }

    /// What is left of the first one that is not used up.
    #[inline]
    pub fn front(&mut self) -> Option<Segment> {
        while self.front.len == 0 {
            let (first, rest) = self.rest.split_first().filter(|_| self.left > 0)?;
            (self.front, self.rest) = (*first, rest);
            self.front.len = first.len.min(self.left);
            self.left -= self.front.len;
        }
        Some(self.front)
    }

    /// Stores `bytes` where they begin, as far as they go, and uses that.
    pub fn put(
        &mut self,
        memory: &impl GuestMemory,
        mut bytes: &[u8],
    ) -> Result<(), GuestMemoryError> {
        while !bytes.is_empty()
            && let Some(into) = self.front()
        {
            let (part, later) = bytes.split_at(bytes.len().min(into.len as usize));
            memory.write(into.ipa, part)?;
            self.advance(part.len() as u32);
            bytes = later;
        }
        Ok(())
    }

    /// Loads `bytes` from where they begin, as far as they go, and uses that.
    pub fn get(
        &mut self,
        memory: &impl GuestMemory,
        mut bytes: &mut [u8],
    ) -> Result<(), GuestMemoryError> {
        while !bytes.is_empty()
            && let Some(from) = self.front()
        {
            let (part, later) = bytes.split_at_mut(bytes.len().min(from.len as usize));
            memory.read(from.ipa, part)?;
            self.advance(part.len() as u32);
            bytes = later;
        }
        Ok(())
    }

    /// Uses `n` bytes unseen, or all that there are.
    pub fn skip(&mut self, mut n: u32) {
        while n > 0
            && let Some(front) = self.front()
        {
            let part = front.len.min(n);
            self.advance(part);
            n -= part;
        }
    }

    /// Uses `n` bytes of [`Self::front`]; it has as many.
    #[inline]
    pub fn advance(&mut self, n: u32) {
        self.front = self.front.behind(n.min(self.front.len));
    }
}

/// The buffers of one request: first those the device reads, then those it writes
/// (virtio 2.7.4.2). Drivers may cut the bytes of a request into segments as they like
/// (virtio 2.7.4), so headers are taken off by byte count, not by segment.
///
/// About 2 KiB: make one, and let [`crate::Queue::pop`] refill it.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    head: u16,
    readable: Part,
    writable: Part,
    segments: Vec<Segment, MAX_SEGMENTS>,
}

/// The segments of one direction that are not consumed yet: `segments[next..end]`.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    next: usize,
    end: usize,
    bytes: u32,
}

impl Part {
    /// Drops `n` bytes from the front; `n` is at most the first segment's length.
    fn advance(&mut self, segments: &mut [Segment], n: u32) {
        self.bytes -= n;
        let first = &mut segments[self.next];
        *first = first.behind(n);
        if first.len == 0 {
            self.next += 1;
        }
    }
}

impl Chain {
    /// The index of its first descriptor: what the used ring names the chain by.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// What the device may read and has not consumed.
    #[inline]
    pub fn readable(&self) -> &[Segment] {
        &self.segments[self.readable.next..self.readable.end]
    }

    /// Bytes in [`Self::readable`].
    #[inline]
    pub fn readable_bytes(&self) -> u32 {
        self.readable.bytes
    }

    /// What the device may write and has not consumed.
    #[inline]
    pub fn writable(&self) -> &[Segment] {
        &self.segments[self.writable.next..self.writable.end]
    }

    /// Bytes in [`Self::writable`].
    #[inline]
    pub fn writable_bytes(&self) -> u32 {
        self.writable.bytes
    }

    /// Consumes readable bytes into `into`; how many there were.
    pub fn read(
        &mut self,
        memory: &impl GuestMemory,
        into: &mut [u8],
    ) -> Result<usize, GuestMemoryError> {
        let mut done = 0;
        while done < into.len()
            && let Some(first) = self.readable().first().copied()
        {
            let n = (into.len() - done).min(first.len as usize);
            memory.read(first.ipa, &mut into[done..done + n])?;
            self.readable.advance(&mut self.segments, n as u32);
            done += n;
        }
        Ok(done)
    }

    /// Stores `from` into writable bytes and consumes them; how many fitted.
    pub fn write(
        &mut self,
        memory: &impl GuestMemory,
        from: &[u8],
    ) -> Result<usize, GuestMemoryError> {
        let mut done = 0;
        while done < from.len()
            && let Some(first) = self.writable().first().copied()
        {
            let n = (from.len() - done).min(first.len as usize);
            memory.write(first.ipa, &from[done..done + n])?;
            self.writable.advance(&mut self.segments, n as u32);
            done += n;
        }
        Ok(done)
    }

    /// Takes the very last writable byte off the chain: where many devices put a status.
    pub fn take_last_writable(&mut self) -> Option<Ipa> {
        let last = self.segments[self.writable.next..self.writable.end].last_mut()?;
        last.len -= 1;
        let at = Ipa(last.ipa.0 + u64::from(last.len));
        if last.len == 0 {
            self.writable.end -= 1;
        }
        self.writable.bytes -= 1;
        Some(at)
    }

    /// Consumes up to `n` readable bytes without reading them.
    pub(crate) fn skip_readable(&mut self, mut n: u64) {
        while n > 0
            && let Some(first) = self.readable().first()
        {
            let piece = n.min(first.len.into());
            self.readable.advance(&mut self.segments, piece as u32);
            n -= piece;
        }
    }

    /// Consumes up to `n` bytes of the first writable segment without storing anything.
    pub(crate) fn skip_writable(&mut self, n: u32) {
        if let Some(first) = self.writable().first() {
            let n = n.min(first.len);
            self.writable.advance(&mut self.segments, n);
        }
    }

    /// How many segments the chain came with.
    pub(crate) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Starts over as the empty chain of descriptor `head`.
    pub(crate) fn restart(&mut self, head: u16) {
        self.head = head;
        self.readable = Part::default();
        self.writable = Part::default();
        self.segments.clear();
    }

    /// Adds the next segment of the chain, checked.
    pub(crate) fn push(
        &mut self,
        memory: &impl GuestMemory,
        segment: Segment,
        writable: bool,
    ) -> Result<(), QueueError> {
        let Segment { ipa, len } = segment;
        if len == 0 {
            return Err(QueueError::EmptyDescriptor);
        }
        if !writable && self.writable.bytes > 0 {
            return Err(QueueError::ReadableAfterWritable);
        }
        let total = self.readable.bytes.checked_add(self.writable.bytes);
        if total.and_then(|sum| sum.checked_add(len)).is_none() {
            return Err(QueueError::TooManyBytes);
        }
        if ipa.checked_add(u64::from(len)).is_none() || !memory.contains(ipa, u64::from(len)) {
            return Err(QueueError::Memory(GuestMemoryError::NotMemory(ipa)));
        }
        self.segments
            .push(segment)
            .map_err(|_| QueueError::TooManySegments)?;
        let end = self.segments.len();
        if writable {
            self.writable.end = end;
            self.writable.bytes += len;
        } else {
            self.readable.end = end;
            self.readable.bytes += len;
            self.writable = Part {
                next: end,
                end,
                bytes: 0,
            };
        }
        Ok(())
    }
}
