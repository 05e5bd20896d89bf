//! A server of disks that says what it likes, and a page of requests that anybody wrote.

use crate::input::Input;
use abi::served::{DATA_BYTES, HEAD_BYTES, Record, SLOTS, answer};
use model_served::{Slots, offers};
use tools_abi::served::{asked, unanswered};

/// EL2's slots against answers; then what is left of the bytes as the shared page.
pub fn served(data: &[u8]) {
    let mut input = Input(data);
    let (mut slots, mut tickets, mut last) = (Slots::default(), [None; SLOTS], 0);
    let steps = input.u8().unwrap_or(0);
    for _ in 0..steps {
        let Some(step) = input.u8() else { break };
        match step % 4 {
            0 => {
                if let Some(slot) = slots.claim()
                    && let Some(ticket) = slots.ask(slot)
                {
                    assert!(ticket > last && tickets[slot].is_none());
                    (last, tickets[slot]) = (ticket, Some(ticket));
                }
            }
            1 => slots.release(usize::from(step >> 2)),
            _ => {
                let (chosen, noise) = (usize::from(step >> 2) % SLOTS, input.u64().unwrap_or(0));
                let given = |slot: usize| if slot == chosen { noise } else { 0 };
                if let Some((slot, done)) = slots.take_answered(given) {
                    assert_eq!(
                        tickets[slot].take().map(|t| answer(t, done)),
                        Some(given(slot))
                    );
                    slots.release(slot);
                }
            }
        }
        assert_eq!(slots.free(), tickets.iter().filter(|t| t.is_none()).count());
    }
    page(input.bytes(HEAD_BYTES as usize));
}

fn page(head: &[u8]) {
    for slot in unanswered(head) {
        let record = head.chunks_exact(size_of::<Record>()).nth(slot);
        if let Some(todo) = record.and_then(|record| asked(slot, record)) {
            assert!(todo.slot < SLOTS && todo.bytes <= DATA_BYTES);
            assert!(todo.at.checked_add(todo.bytes).is_some());
        }
    }
    for offer in &offers(head) {
        assert!(offer.sectors > 0 && offer.name.as_str().is_some());
    }
}
