//! A bounded ring of events: one writer that never waits, readers that never disturb it.
//!
//! A full ring overwrites its oldest events. A reader says which event it wants next, by number, and
//! learns how many it came too late for; nothing is taken out, so that any number may read.
//!
//! The writer announces the event that it is about to overwrite, writes, and then publishes the new
//! one (a sequence lock in which every slot has its number by its place; Boehm, "Can seqlocks get
//! along with programming language memory models?", MSPC 2012). What a reader copied from a slot
//! that was announced meanwhile is thrown away and counted as lost.
#![no_std]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of an event.
pub const WORDS: usize = 4;

/// Room for an event.
pub type Slot = [AtomicU64; WORDS];

/// A slot that holds nothing yet.
pub const fn empty() -> Slot {
    [const { AtomicU64::new(0) }; WORDS]
}

/// A ring over as many slots as `S` has; at least one, or nothing is ever kept.
pub struct Ring<S> {
    /// Events that were begun, ever.
    begun: AtomicU64,
    /// Events that can be read, or could be.
    done: AtomicU64,
    slots: S,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The number of the event to ask for next.
    pub next: u64,
    /// How many events between the one asked for and the first that was brought are gone.
    pub lost: u64,
}

impl<S: AsRef<[Slot]>> Ring<S> {
    /// An empty ring.
    pub const fn new(slots: S) -> Self {
        Self {
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            slots,
        }
    }

    /// How many events it holds at most.
    pub fn capacity(&self) -> u64 {
        self.slots.as_ref().len() as u64
    }

    /// Adds an event. Called by the ring's one writer only.
    #[inline]
    pub fn push(&self, event: [u64; WORDS]) {
        let number = self.done.load(Ordering::Relaxed);
        let Some(slot) = self.slot(number) else {
            return;
        };
        self.begun.store(number + 1, Ordering::Relaxed);
        // Who sees a word of this event also sees that it was begun.
        fence(Ordering::Release);
        for (place, word) in slot.iter().zip(event) {
            place.store(word, Ordering::Relaxed);
        }
        self.done.store(number + 1, Ordering::Release);
    }

    /// The number that the next event will have.
    pub fn next(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Gives the events from number `from` on to `give`, in order, until it says `false` (it did not
    /// take that one) or there are no more. Where `from` is no number yet, nothing is given.
    pub fn read(&self, from: u64, mut give: impl FnMut([u64; WORDS]) -> bool) -> Read {
        let done = self.done.load(Ordering::Acquire);
        let mut next = from.max(done.saturating_sub(self.capacity()));
        let mut lost = next - from;
        while next < done {
            match self.copy(next) {
                Some(event) if give(event) => next += 1,
                // Overwritten meanwhile, as all before it.
                None if lost == next - from => {
                    next += 1;
                    lost += 1;
                }
                // Not taken; or a gap after events that were given, which the next read tells of.
                _ => break,
            }
        }
        Read { next, lost }
    }

    /// The event of that number; `None` where a later one has, or may have, overwritten it.
    fn copy(&self, number: u64) -> Option<[u64; WORDS]> {
        let slot = self.slot(number)?;
        let event = core::array::from_fn(|n| slot[n].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Relaxed);
        (begun <= number + self.capacity()).then_some(event)
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        let slots = self.slots.as_ref();
        slots.get(number.checked_rem(slots.len() as u64)? as usize)
    }
}
