//! Requests against a plain disk, with servers that end anywhere, and with a page that lies.
#![expect(clippy::unwrap_used, reason = "a test")]

use abi::served::{HEAD_BYTES, OFFERS_AT, Offer, Record, SECTOR_BYTES, SLOTS, answer, operation};
use model_served::{Slots, offers};
use proptest::prelude::*;
use std::collections::HashMap;
use tools_abi::served::{Asked, asked, unanswered};
use zerocopy::{FromBytes, IntoBytes};

/// Sectors of the disk; each request is of one.
const SECTORS: u64 = 6;
type Sector = [u8; SECTOR_BYTES as usize];

/// The shared area, with a sector of data for each slot.
struct Area {
    head: Vec<u8>,
    data: [Sector; SLOTS],
}

impl Area {
    fn record(&mut self, slot: usize, change: impl FnOnce(&mut Record)) {
        let size = size_of::<Record>();
        let bytes = &mut self.head[slot * size..(slot + 1) * size];
        let mut record = Record::read_from_bytes(bytes).unwrap();
        change(&mut record);
        bytes.copy_from_slice(record.as_bytes());
    }

    fn bytes(&self, slot: usize) -> &[u8] {
        let size = size_of::<Record>();
        &self.head[slot * size..(slot + 1) * size]
    }

    fn answer_of(&self, slot: usize) -> u64 {
        Record::read_from_bytes(self.bytes(slot)).unwrap().answer
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// EL2 asks: a sector, to be written with that or read.
    Ask(u64, Option<u8>),
    /// EL2 looks for answers.
    Look,
    /// The server takes up what is asked first, and comes so far: 0 to before anything was done, 1 to
    /// half of the data, 2 to all of it, 3 to the answer.
    Serve(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..SECTORS, any::<Option<u8>>()).prop_map(|(sector, value)| Step::Ask(sector, value)),
        Just(Step::Look),
        (0..4_u8).prop_map(Step::Serve),
    ];
    prop::collection::vec(step, 1..200)
}

/// Serves as far as it comes; what it did stays.
fn serve(area: &mut Area, disk: &mut [Sector], todo: Asked, far: u8) {
    let half = SECTOR_BYTES as usize / 2;
    let sector = &mut disk[(todo.at / SECTOR_BYTES) as usize];
    let data = &mut area.data[todo.slot];
    let bytes = match far {
        0 => 0,
        1 => half,
        _ => 2 * half,
    };
    if todo.operation == operation::WRITE {
        sector[..bytes].copy_from_slice(&data[..bytes]);
    } else {
        data[..bytes].copy_from_slice(&sector[..bytes]);
    }
    if far == 3 {
        area.record(todo.slot, |record| {
            record.answer = answer(todo.ticket, true);
        });
    }
}

proptest! {
    /// Whatever servers come to, each request ends once, a read brings what was last written, and
    /// what was acknowledged is on the disk.
    #[test]
    fn nothing_acknowledged_is_lost(steps in steps()) {
        let mut area = Area { head: vec![0; HEAD_BYTES as usize], data: [[0; 512]; SLOTS] };
        let mut disk = vec![[0; 512]; SECTORS as usize];
        // What is acknowledged, and what is under way by slot.
        let mut known = vec![0_u8; SECTORS as usize];
        let mut under_way: HashMap<usize, (u64, Option<u8>)> = HashMap::new();
        let mut slots = Slots::default();
        // In the end a server does all there is.
        let rest = (0..SLOTS).flat_map(|_| [Step::Serve(3), Step::Look]);
        for step in steps.into_iter().chain(rest) {
            match step {
                // A guest has one request for a sector under way.
                Step::Ask(sector, _) if under_way.values().any(|(busy, _)| *busy == sector) => {}
                Step::Ask(sector, value) => {
                    let slot = slots.claim().unwrap();
                    let ticket = slots.ask(slot).unwrap();
                    if let Some(value) = value {
                        area.data[slot] = [value; 512];
                    }
                    area.record(slot, |record| {
                        record.operation = if value.is_some() { operation::WRITE } else { operation::READ };
                        record.sector = sector;
                        record.bytes = SECTOR_BYTES;
                        record.ticket = ticket;
                    });
                    under_way.insert(slot, (sector, value));
                }
                Step::Look => {
                    while let Some((slot, done)) = slots.take_answered(|slot| area.answer_of(slot)) {
                        prop_assert!(done);
                        let (sector, value) = under_way.remove(&slot).unwrap();
                        let sector = sector as usize;
                        if let Some(value) = value {
                            known[sector] = value;
                        } else {
                            prop_assert_eq!(area.data[slot], [known[sector]; 512]);
                        }
                        prop_assert_eq!(disk[sector], [known[sector]; 512]);
                        slots.release(slot);
                    }
                }
                Step::Serve(far) => {
                    let slot = unanswered(&area.head).next();
                    if let Some(slot) = slot {
                        let todo = asked(slot, area.bytes(slot)).unwrap();
                        serve(&mut area, &mut disk, todo, far);
                    }
                }
            }
        }
        prop_assert!(under_way.is_empty());
        prop_assert_eq!(slots.free(), SLOTS);
    }

    /// Whatever the page says: what ends was asked, and each ticket ends once.
    #[test]
    fn lies_end_nothing_else(answers in prop::collection::vec((0..SLOTS, any::<u64>(), 0..40_u64, any::<bool>()), 0..100)) {
        let mut slots = Slots::default();
        let mut given = [0_u64; SLOTS];
        let mut asked = HashMap::new();
        for (slot, noise, ticket, ask) in answers {
            if ask && let Some(slot) = slots.claim() {
                asked.insert(slot, slots.ask(slot).unwrap());
            }
            given[slot] = if noise % 2 == 0 { noise } else { answer(ticket, noise % 3 == 0) };
            while let Some((slot, done)) = slots.take_answered(|slot| given[slot]) {
                let ticket = asked.remove(&slot);
                prop_assert_eq!(Some(given[slot]), ticket.map(|ticket| answer(ticket, done)));
                slots.release(slot);
            }
            prop_assert_eq!(slots.free() + asked.len(), SLOTS);
        }
    }

    /// What a server makes of any page lies within its slots and its numbers.
    #[test]
    fn a_server_reads_any_page(head in prop::collection::vec(any::<u8>(), 0..=HEAD_BYTES as usize)) {
        for slot in unanswered(&head) {
            prop_assert!(slot < SLOTS);
            let record = &head[slot * size_of::<Record>()..][..size_of::<Record>()];
            let todo = asked(slot, record);
            prop_assert!(todo.is_none_or(|todo| todo.at.checked_add(todo.bytes).is_some()));
        }
        prop_assert!(offers(&head).iter().all(|offer| offer.name.as_str().is_some()));
    }
}

#[test]
fn offers_end_with_the_first_that_makes_no_sense() {
    let offer = |name: &str, sectors| Offer {
        name: abi::Text::cut(name),
        sectors,
        ..Offer::default()
    };
    let names = |table: &[Offer]| {
        let mut head = vec![0; HEAD_BYTES as usize];
        head[OFFERS_AT as usize..][..size_of_val(table)].copy_from_slice(table.as_bytes());
        offers(&head)
            .iter()
            .map(|offer| offer.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[offer("a", 1), offer("b", 2)]), ["a", "b"]);
    assert_eq!(names(&[offer("a", 1), offer("a", 2), offer("b", 2)]), ["a"]);
    assert_eq!(names(&[offer("a", 0), offer("b", 2)]), [""; 0]);
    assert_eq!(names(&[offer("a", u64::MAX)]), [""; 0]);
}

#[test]
fn a_slot_that_nobody_claimed_is_not_asked() {
    let mut slots = Slots::default();
    assert_eq!(slots.ask(0), None);
    let slot = slots.claim().unwrap();
    assert_eq!(slots.ask(slot), Some(1));
    // It is OS-0's now.
    slots.release(slot);
    assert_eq!(slots.free(), SLOTS - 1);
    assert_eq!(slots.ask(SLOTS), None);
}
