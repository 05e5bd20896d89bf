//! Disks that OS-0 serves (`abi::served`): who has which slot, and what of the shared page is believed.
//!
//! [`Slots`] is EL2's side. It remembers what it asked for by itself; of what the page says it uses
//! one word, a slot's answer, and that only where it is the answer to the ticket the slot has. So
//! whatever is written there, a request ends once, and no other ends. [`offers`] checks what is
//! offered, once. The server's side is `tools_abi::served`.
#![no_std]
#![forbid(unsafe_code)]

use abi::served::{OFFERS_AT, OFFERS_MAX, Offer, SECTORS_MAX, SLOTS, answer};
use zerocopy::FromBytes as _;

/// Whose a slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    Free,
    /// Somebody at EL2 fills or reads it.
    Claimed,
    /// OS-0 has it, under this ticket.
    Asked(u64),
}

/// EL2's slots: at first all free, and no ticket given out.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    slots: [Slot; SLOTS],
    /// The last ticket.
    ticket: u64,
}

impl Slots {
    /// How many are free.
    pub fn free(&self) -> usize {
        let is_free = |slot: &&Slot| **slot == Slot::Free;
        self.slots.iter().filter(is_free).count()
    }

    /// Takes a free slot, to be asked of OS-0 or released.
    pub fn claim(&mut self) -> Option<usize> {
        let slot = self.slots.iter().position(|slot| *slot == Slot::Free)?;
        self.slots[slot] = Slot::Claimed;
        Some(slot)
    }

    /// Gives back a claimed slot.
    pub fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot)
            && *slot == Slot::Claimed
        {
            *slot = Slot::Free;
        }
    }

    /// OS-0 has a claimed slot from now on; gives the ticket that is to be written last. `None` where
    /// nobody has claimed it.
    pub fn ask(&mut self, slot: usize) -> Option<u64> {
        let slot = self.slots.get_mut(slot)?;
        if *slot != Slot::Claimed {
            return None;
        }
        self.ticket += 1;
        *slot = Slot::Asked(self.ticket);
        Some(self.ticket)
    }

    /// A slot that is answered, claimed from now on, and whether what was asked is done; `answer_of`
    /// reads a slot's answer, once.
    pub fn take_answered(&mut self, answer_of: impl Fn(usize) -> u64) -> Option<(usize, bool)> {
        let answers = |(n, slot): (usize, &Slot)| {
            let Slot::Asked(ticket) = *slot else {
                return None;
            };
            let given = answer_of(n);
            let done = given == answer(ticket, true);
            (done || given == answer(ticket, false)).then_some((n, done))
        };
        let found = self.slots.iter().enumerate().find_map(answers)?;
        self.slots[found.0] = Slot::Claimed;
        Some(found)
    }
}

/// The disks that the area's first page offers, as far as they make sense: names in UTF-8, each once,
/// and a size.
pub fn offers(head: &[u8]) -> heapless::Vec<Offer, OFFERS_MAX> {
    let mut found = heapless::Vec::<Offer, OFFERS_MAX>::new();
    let table = head.get(OFFERS_AT as usize..).unwrap_or_default();
    for bytes in table.chunks_exact(size_of::<Offer>()).take(OFFERS_MAX) {
        let Ok(offer) = Offer::read_from_bytes(bytes) else {
            break;
        };
        let has_name = offer.name.as_str().is_some_and(|name| !name.is_empty());
        let is_new = found.iter().all(|known| known.name != offer.name);
        let has_size = (1..=SECTORS_MAX).contains(&offer.sectors);
        // Numbers are places in the table: behind one that is wrong no other is known by its own.
        if !(has_name && is_new && has_size) || found.push(offer).is_err() {
            break;
        }
    }
    found
}
