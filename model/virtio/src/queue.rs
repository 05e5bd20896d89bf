//! The device side of a split virtqueue (virtio 2.7), with event indices and indirect
//! descriptors.
//!
//! Indices are read once and checked; a chain is copied out of the rings before anybody looks at
//! it. What the driver cannot be forgiven is a [`QueueError`], upon which the transport breaks the
//! device.

mod buffers;

use crate::{Chain, MAX_SEGMENTS, QueueError, Segment};
use abi::state::{
    self,
    queue::{EVENT_IDX, FLAGS, INDIRECT, MUTED, READY},
};
pub(crate) use buffers::Scratch;
use core::sync::atomic::{Ordering, fence};
use machine_contract::GuestMemory;
use model_addr::{Gfn, Ipa};
use zerocopy::IntoBytes as _;

/// Largest queue that any device here offers.
pub const MAX_QUEUE_SIZE: u16 = 256;

/// Bytes of a descriptor (virtio 2.7.5).
const DESCRIPTOR_BYTES: u64 = 16;
/// The descriptor's `next` field is valid.
const DESC_NEXT: u16 = 1;
/// The device writes the buffer; otherwise it reads it.
const DESC_WRITE: u16 = 2;
/// The buffer holds a table of descriptors.
const DESC_INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`: the other side is not to be told.
const NO_NOTIFY: u16 = 1;
/// Bytes before the entries of both rings: flags and index.
const RING_HEADER: u64 = 4;
/// Bytes of an element of the used ring (virtio 2.7.8).
const USED_BYTES: u64 = 8;
/// Segments shorter than this are short. A header in more short ones than these would take a frame for each, all at
/// once, when it is read: they get theirs before.
const SHORT: u32 = 512;
const SHORT_MAX: usize = 4;
/// Entries of a ring, and descriptors, that are read or written at once where there are so many.
const ENTRIES_AT_ONCE: usize = 32;
const DESCRIPTORS_AT_ONCE: u16 = 8;

/// The device side of one split virtqueue. The default is a queue that is not ready: it yields
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// What a record has of it. Until it is ready, where a driver says that it is, unchecked.
    pub(crate) state: state::Queue,
    /// The driver's index as last read: entries before it are ours to take.
    seen_avail: u16,
    /// Bytes of the next chain whose memory is at hand, and stays so: [`Self::uses`].
    at_hand: u64,
    heads: Heads,
    /// Descriptors that were read after those heads: what they lead to stays as it is until it is given
    /// back.
    ahead: Ahead,
    /// The driver was asked to kick for the entry at `next_avail`.
    armed: bool,
    /// The used ring has its frames. They stay, as the queue uses them, so that what was taken can be given back.
    can_answer: bool,
}

/// One entry of a descriptor table (virtio 2.7.5).
struct Descriptor {
    segment: Segment,
    flags: u16,
    next: u16,
}

/// Available entries that were read: all are ours to take.
#[derive(Clone, Copy, Debug, Default)]
struct Heads {
    first: u16,
    count: u16,
    entries: [u16; ENTRIES_AT_ONCE],
}

/// A descriptor table: the queue's own or an indirect one.
#[derive(Clone, Copy)]
struct Table {
    start: Ipa,
    entries: u16,
}

/// Descriptors from `first` on, as they lie in memory.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    first: u16,
    count: u16,
    raw: [u128; DESCRIPTORS_AT_ONCE as usize],
}

impl Descriptor {
    #[inline]
    const fn decode(raw: u128) -> Self {
        let segment = Segment {
            ipa: Ipa(raw as u64),
            len: (raw >> 64) as u32,
        };
        Self {
            segment,
            flags: (raw >> 96) as u16,
            next: (raw >> 112) as u16,
        }
    }
}

impl Ahead {
    /// Descriptor `index` of the table that all of this is of.
    #[inline]
    fn read(
        &mut self,
        memory: &impl GuestMemory,
        table: Table,
        index: u16,
    ) -> Result<Descriptor, QueueError> {
        if let Some(descriptor) = self.get(index) {
            return Ok(descriptor);
        }
        self.fill(memory, table, index)?;
        self.get(index).ok_or(QueueError::NoSuchDescriptor)
    }

    /// The same, where it was read before.
    #[inline]
    fn get(&self, index: u16) -> Option<Descriptor> {
        let place = index.wrapping_sub(self.first);
        if place >= self.count {
            return None;
        }
        let raw = self.raw.get(usize::from(place))?;
        Some(Descriptor::decode(u128::from_le(*raw)))
    }

    fn fill(
        &mut self,
        memory: &impl GuestMemory,
        table: Table,
        index: u16,
    ) -> Result<(), QueueError> {
        if index >= table.entries {
            return Err(QueueError::NoSuchDescriptor);
        }
        // Drivers use them upwards or downwards.
        let first = index - index % DESCRIPTORS_AT_ONCE;
        let count = (table.entries - first).min(DESCRIPTORS_AT_ONCE);
        let at = Ipa(table.start.0 + DESCRIPTOR_BYTES * u64::from(first));
        self.count = 0;
        memory.read(at, self.raw[..usize::from(count)].as_mut_bytes())?;
        (self.first, self.count) = (first, count);
        Ok(())
    }
}

impl Table {
    /// The table that `descriptor` points at, of [`MAX_QUEUE_SIZE`] entries at most.
    fn indirect(descriptor: &Descriptor) -> Result<Self, QueueError> {
        let Segment { ipa, len } = descriptor.segment;
        let entries = u64::from(len) / DESCRIPTOR_BYTES;
        let whole = u64::from(len).is_multiple_of(DESCRIPTOR_BYTES);
        let wraps = ipa.checked_add(u64::from(len)).is_none();
        if !whole || wraps || entries == 0 || entries > u64::from(MAX_QUEUE_SIZE) {
            return Err(QueueError::Indirect);
        }
        Ok(Self {
            start: ipa,
            entries: entries as u16,
        })
    }
}

impl Queue {
    /// As a record has it, or a driver that sets it up, with at most `max` entries. It looks at its rings anew.
    pub fn of(state: state::Queue, max: u16) -> Result<Self, QueueError> {
        let entries = u64::from(state.size);
        if state.flags & READY == 0 {
            let is_valid = state == Self::stopped(&state).state;
            return is_valid
                .then_some(Self {
                    state,
                    ..Self::default()
                })
                .ok_or(QueueError::Layout);
        }
        let fits = state.size.is_power_of_two() && state.size <= max.min(MAX_QUEUE_SIZE).into();
        if !fits || state.flags & !FLAGS != 0 || state.reserved != 0 {
            return Err(QueueError::Layout);
        }
        area(state.descriptors, 16, DESCRIPTOR_BYTES * entries)?;
        area(state.driver, 2, RING_HEADER + 2 * entries + 2)?;
        area(state.device, 4, RING_HEADER + 8 * entries + 2)?;
        Ok(Self {
            seen_avail: state.next_avail,
            state,
            ..Self::default()
        })
    }

    /// A queue that its driver has stopped, or not set up yet: what it said of it stays.
    pub(crate) fn stopped(state: &state::Queue) -> Self {
        Self {
            state: state::Queue {
                flags: 0,
                next_avail: 0,
                next_used: 0,
                signalled: 0,
                reserved: 0,
                ..*state
            },
            ..Self::default()
        }
    }

    /// Whether the driver has set the queue up.
    #[inline]
    pub const fn is_ready(&self) -> bool {
        self.has(READY)
    }

    #[inline]
    const fn has(&self, flag: u32) -> bool {
        self.state.flags & flag != 0
    }

    /// Whether its rings, or its table, lie in this guest frame; yes for all while a chain comes to be at hand.
    pub fn uses(&self, gfn: Gfn) -> bool {
        let entries = u64::from(self.state.size);
        let areas = [
            (self.state.descriptors, DESCRIPTOR_BYTES * entries),
            (self.state.driver, RING_HEADER + 2 * entries + 2),
            (self.state.device, RING_HEADER + 8 * entries + 2),
        ];
        let covers = |(start, bytes): (u64, u64)| {
            (Ipa(start).frame()..=Ipa(start + bytes - 1).frame()).contains(&gfn)
        };
        self.at_hand > 0 || self.is_ready() && areas.into_iter().any(covers)
    }

    /// What came to be at hand of the next chain is to be asked for again.
    pub(crate) fn let_go(&mut self) {
        self.at_hand = 0;
    }

    /// Entries; of a queue that is ready.
    #[inline]
    pub const fn size(&self) -> u16 {
        self.state.size as u16
    }

    /// Takes the next chain that the driver made available into `chain`; `false` if there is none,
    /// or not yet all that it names is at hand, and then the driver has been asked to kick when there is. While the queue yields chains the
    /// driver is asked not to kick.
    pub fn pop(
        &mut self,
        memory: &impl GuestMemory,
        chain: &mut Chain,
    ) -> Result<bool, QueueError> {
        let popped = self.pop_next(memory, chain);
        match popped {
            // A ring or a table gets its frame later.
            Err(error) if error.is_want_of_memory() => return Ok(false),
            Err(_) => self.at_hand = 0,
            Ok(_) => {}
        }
        popped
    }

    /// As [`Self::pop`], but a chain that `may_wait` stays where the owner's time is over.
    pub(crate) fn pop_in_time(
        &mut self,
        memory: &impl GuestMemory,
        chain: &mut Chain,
        may_wait: impl FnOnce(&Chain) -> bool,
    ) -> Result<bool, QueueError> {
        if !self.pop(memory, chain)? {
            return Ok(false);
        }
        let mut segments = chain.readable().iter().chain(chain.writable());
        if let Some(first) = segments.next()
            && may_wait(chain)
            && memory.touch(first.ipa, 1, false, true) == 0
        {
            self.put_back(1);
            return Ok(false);
        }
        Ok(true)
    }

    fn pop_next(
        &mut self,
        memory: &impl GuestMemory,
        chain: &mut Chain,
    ) -> Result<bool, QueueError> {
        if !self.is_ready() || !self.has_available(memory)? {
            return Ok(false);
        }
        self.mute_kicks(memory)?;
        let head = self.head(memory)?;
        self.walk(memory, head, chain)?;
        // What is not at hand is taken later.
        if !self.can_answer(memory) || !self.is_at_hand(memory, chain) {
            return Ok(false);
        }
        self.take_next(1);
        Ok(true)
    }

    fn can_answer(&mut self, memory: &impl GuestMemory) -> bool {
        if !self.can_answer {
            let bytes = RING_HEADER + USED_BYTES * u64::from(self.size()) + 2;
            let touched = memory.touch(Ipa(self.state.device), bytes, true, false);
            self.can_answer = touched == bytes;
        }
        self.can_answer
    }

    fn take_next(&mut self, count: u16) {
        self.state.next_avail = self.state.next_avail.wrapping_add(count);
        self.at_hand = 0;
    }

    /// Whether all memory that the next chain names is; goes on from where it came before.
    fn is_at_hand(&mut self, memory: &impl GuestMemory, chain: &Chain) -> bool {
        let (mut before, mut short) = (self.at_hand, 0);
        let known = self.at_hand;
        for (segments, write) in [(chain.readable(), false), (chain.writable(), true)] {
            for Segment { ipa, len } in segments {
                let done = before.min(u64::from(*len));
                before -= done;
                let (at, rest) = (Ipa(ipa.0 + done), u64::from(*len) - done);
                short += usize::from(*len < SHORT);
                let ready = match rest {
                    0 => 0,
                    _ if *len < SHORT && short > SHORT_MAX => {
                        memory.touch(at, rest, write, self.at_hand > known)
                    }
                    _ => memory.ready(at, rest, write),
                };
                self.at_hand += ready;
                if ready < rest {
                    return false;
                }
            }
        }
        true
    }

    /// Gives the chain of `head` back to the driver, `len` bytes of it written from the front.
    pub fn push_used(
        &mut self,
        memory: &impl GuestMemory,
        head: u16,
        len: u32,
    ) -> Result<(), QueueError> {
        self.push_all(memory, &[(head, len)])
    }

    /// Gives several chains back at once, each by its head and the bytes written; to nobody where the driver
    /// has stopped the queue meanwhile (`QueueReady`, virtio 4.2.2).
    pub(crate) fn push_all(
        &mut self,
        memory: &impl GuestMemory,
        mut chains: &[(u16, u32)],
    ) -> Result<(), QueueError> {
        if !self.is_ready() {
            return Ok(());
        }
        let mut next = self.state.next_used;
        while !chains.is_empty() {
            let slot = next & (self.size() - 1);
            let room = usize::from(self.size() - slot).min(ENTRIES_AT_ONCE);
            let (now, later) = chains.split_at(room.min(chains.len()));
            let element =
                |(head, len): &(u16, u32)| (u64::from(*len) << 32 | u64::from(*head)).to_le();
            let elements: heapless::Vec<u64, ENTRIES_AT_ONCE> = now.iter().map(element).collect();
            let at = Ipa(self.state.device + RING_HEADER + USED_BYTES * u64::from(slot));
            memory.write(at, elements.as_slice().as_bytes())?;
            next = next.wrapping_add(now.len() as u16);
            chains = later;
        }
        // The index makes the driver look at them.
        fence(Ordering::Release);
        memory.write_u16(Ipa(self.state.device + 2), next)?;
        self.state.next_used = next;
        Ok(())
    }

    /// Takes back that the last `count` chains were taken: they are the next ones again, unless the driver has stopped
    /// the queue.
    pub(crate) fn put_back(&mut self, count: u16) {
        if self.is_ready() {
            self.state.next_avail = self.state.next_avail.wrapping_sub(count);
            self.at_hand = 0;
        }
    }

    /// Whether the driver wants an interrupt for what was pushed since this was last asked
    /// (virtio 2.7.7.2). May be asked once for a batch.
    pub fn needs_interrupt(&mut self, memory: &impl GuestMemory) -> Result<bool, QueueError> {
        let before = core::mem::replace(&mut self.state.signalled, self.state.next_used);
        let pushed = self.state.next_used.wrapping_sub(before);
        if pushed == 0 {
            return Ok(false);
        }
        // The used index must be visible before the driver's wish is read, or both sides sleep.
        fence(Ordering::SeqCst);
        if !self.has(EVENT_IDX) {
            return Ok(memory.read_u16(Ipa(self.state.driver))? & NO_NOTIFY == 0);
        }
        let used_event = Ipa(self.state.driver + RING_HEADER + 2 * u64::from(self.size()));
        let event = memory.read_u16(used_event)?;
        Ok(self.state.next_used.wrapping_sub(event).wrapping_sub(1) < pushed)
    }

    /// How many chains were given back since [`Self::needs_interrupt`] was last asked.
    pub(crate) fn unsignalled(&self) -> u16 {
        self.state.next_used.wrapping_sub(self.state.signalled)
    }

    /// Whether there is an entry to take now; nobody is asked to kick when there is one.
    #[inline]
    pub(crate) fn has_more(&mut self, memory: &impl GuestMemory) -> Result<bool, QueueError> {
        Ok(self.is_ready() && (self.state.next_avail != self.seen_avail || self.look(memory)?))
    }

    /// Whether there is an entry to take; asks for a kick and looks again before it says no.
    fn has_available(&mut self, memory: &impl GuestMemory) -> Result<bool, QueueError> {
        if self.has_more(memory)? {
            return Ok(true);
        }
        if self.armed {
            return Ok(false);
        }
        if self.has(EVENT_IDX) {
            let avail_event = Ipa(self.state.device + RING_HEADER + 8 * u64::from(self.size()));
            memory.write_u16(avail_event, self.state.next_avail)?;
        } else if self.has(MUTED) {
            memory.write_u16(Ipa(self.state.device), 0)?;
            self.state.flags &= !MUTED;
        }
        self.armed = true;
        // The wish must be visible before the index is read again, or both sides sleep.
        fence(Ordering::SeqCst);
        self.look(memory)
    }

    /// The head at `next_avail`, which the driver has made available.
    fn head(&mut self, memory: &impl GuestMemory) -> Result<u16, QueueError> {
        let ahead = self.state.next_avail.wrapping_sub(self.heads.first);
        if ahead < self.heads.count {
            return Ok(self.heads.entries[usize::from(ahead)]);
        }
        let slot = self.state.next_avail & (self.size() - 1);
        let available = self.seen_avail.wrapping_sub(self.state.next_avail);
        let count = usize::from(available.min(self.size() - slot)).min(ENTRIES_AT_ONCE);
        (self.heads.count, self.ahead.count) = (0, 0);
        let at = Ipa(self.state.driver + RING_HEADER + 2 * u64::from(slot));
        memory.read(at, self.heads.entries[..count].as_mut_bytes())?;
        for entry in &mut self.heads.entries[..count] {
            *entry = u16::from_le(*entry);
        }
        (self.heads.first, self.heads.count) = (self.state.next_avail, count as u16);
        Ok(self.heads.entries[0])
    }

    /// Reads the driver's index.
    fn look(&mut self, memory: &impl GuestMemory) -> Result<bool, QueueError> {
        let index = memory.read_u16(Ipa(self.state.driver + 2))?;
        let ahead = index.wrapping_sub(self.state.next_avail);
        if ahead > self.size() {
            return Err(QueueError::Overrun);
        }
        // Entries are read after the index that covers them.
        fence(Ordering::Acquire);
        self.seen_avail = index;
        Ok(ahead > 0)
    }

    /// Asks the driver not to kick. With event indices the passed event says so by itself.
    fn mute_kicks(&mut self, memory: &impl GuestMemory) -> Result<(), QueueError> {
        self.armed = false;
        if !self.has(EVENT_IDX) && !self.has(MUTED) {
            memory.write_u16(Ipa(self.state.device), NO_NOTIFY)?;
            self.state.flags |= MUTED;
        }
        Ok(())
    }

    /// Copies the chain that starts at descriptor `head` into `chain`.
    ///
    /// Ends: every turn either fills one of [`MAX_SEGMENTS`] places or enters an indirect table,
    /// which happens once.
    fn walk(
        &mut self,
        memory: &impl GuestMemory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), QueueError> {
        chain.restart(head);
        let own = self.own_table();
        let mut index = head;
        loop {
            let descriptor = self.ahead.read(memory, own, index)?;
            if descriptor.flags & DESC_INDIRECT != 0 {
                if !self.has(INDIRECT) || descriptor.flags & DESC_NEXT != 0 {
                    return Err(QueueError::Indirect);
                }
                return self.enter(memory, Table::indirect(&descriptor)?, chain);
            }
            match add(memory, &descriptor, chain)? {
                Some(next) => index = next,
                None => return Ok(()),
            }
        }
    }

    fn own_table(&self) -> Table {
        Table {
            start: Ipa(self.state.descriptors),
            entries: self.size(),
        }
    }

    /// Copies the rest of a chain, which is in an indirect table.
    fn enter(
        &mut self,
        memory: &impl GuestMemory,
        table: Table,
        chain: &mut Chain,
    ) -> Result<(), QueueError> {
        self.ahead.count = 0;
        let mut index = 0;
        let done = loop {
            let descriptor = match self.ahead.read(memory, table, index) {
                Ok(descriptor) if descriptor.flags & DESC_INDIRECT == 0 => descriptor,
                Ok(_) => break Err(QueueError::Indirect),
                Err(error) => break Err(error),
            };
            match add(memory, &descriptor, chain) {
                Ok(Some(next)) => index = next,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // What was read is of another table.
        self.ahead.count = 0;
        done
    }
}

/// Adds a descriptor to a chain; which one is next.
#[inline]
fn add(
    memory: &impl GuestMemory,
    descriptor: &Descriptor,
    chain: &mut Chain,
) -> Result<Option<u16>, QueueError> {
    let is_written = descriptor.flags & DESC_WRITE != 0;
    chain.push(memory, descriptor.segment, is_written)?;
    let goes_on = descriptor.flags & DESC_NEXT != 0;
    Ok(goes_on.then_some(descriptor.next))
}

/// Whether `address` is aligned and `bytes` from there do not wrap. Whether there is memory is
/// checked at every access.
fn area(address: u64, align: u64, bytes: u64) -> Result<(), QueueError> {
    let fits = address.is_multiple_of(align) && address.checked_add(bytes).is_some();
    fits.then_some(()).ok_or(QueueError::Layout)
}

const _: () = assert!(MAX_SEGMENTS <= MAX_QUEUE_SIZE as usize);
