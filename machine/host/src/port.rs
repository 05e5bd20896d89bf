//! A console port of the machine (virtio 1.2, 5.3), by which the command talks to the hypervisor, and its network card
//! (5.1): buffers that the machine's outside fills, and bytes that it is sent.

use crate::ram::Ram;
use crate::rng::Rng;
use crate::virtio::{Model, Part, Queue};
use model_addr::Pa;
use std::collections::VecDeque;

const RECEIVE: usize = 0;
const SEND: usize = 1;
/// Counts until a buffer is looked at, at most.
const SLOWEST: u64 = 3000;

/// A device with a queue for each direction, each buffer of which is a message. `ID` is virtio's number of it.
#[derive(Debug, Default)]
pub(crate) struct Line<const ID: u64> {
    /// Messages that have come for the machine.
    pub(crate) incoming: VecDeque<Vec<u8>>,
    /// Messages of the machine.
    pub(crate) outgoing: VecDeque<Vec<u8>>,
    /// Until then nobody takes what the machine sends.
    pub(crate) deaf_until: u64,
    /// When the queues are looked at.
    due: Option<u64>,
    is_ready: bool,
}

/// The console port.
pub(crate) type Port = Line<3>;
/// The network card.
pub(crate) type Card = Line<1>;

impl<const ID: u64> Line<ID> {
    /// A message for the machine has come at `now`.
    pub(crate) fn push(&mut self, message: Vec<u8>, now: u64) {
        self.incoming.push_back(message);
        if self.is_ready {
            self.due.get_or_insert(now + 1);
        }
    }
}

/// Fills parts of a buffer from the first on; how many bytes.
fn fill(ram: &mut Ram, parts: &[Part], mut bytes: &[u8]) -> u64 {
    let mut filled = 0;
    for (at, length) in parts {
        let (some, rest) = bytes.split_at(bytes.len().min(*length as usize));
        let _ = ram.fill(Pa(*at), some);
        (filled, bytes) = (filled + some.len() as u64, rest);
    }
    filled
}

fn gather(ram: &Ram, parts: &[Part]) -> Vec<u8> {
    let mut all = Vec::new();
    for (at, length) in parts {
        let start = all.len();
        all.resize(start + *length as usize, 0);
        let _ = ram.copy_out(Pa(*at), &mut all[start..]);
    }
    all
}

impl<const ID: u64> Model for Line<ID> {
    const ID: u64 = ID;
    const QUEUES: usize = 2;
    const FEATURES: u64 = 0;

    fn notice(&mut self, _: &mut [Queue], which: usize, _: &Ram, now: u64, rng: &mut Rng) {
        self.is_ready = true;
        if which == SEND || !self.incoming.is_empty() {
            let due = now + 1 + rng.below(SLOWEST);
            self.due = Some(self.due.map_or(due, |other| due.min(other)));
        }
    }

    fn work(&mut self, queues: &mut [Queue], ram: &mut Ram, now: u64, _: &mut Rng) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        let hears = self.deaf_until <= now;
        self.due = (!hears).then_some(self.deaf_until);
        let mut worked = false;
        while hears && let Some(head) = queues[SEND].take(ram) {
            let parts = queues[SEND].parts(ram, head);
            let (read, _) = parts.unwrap_or_default();
            self.outgoing.push_back(gather(ram, &read));
            queues[SEND].give_back(ram, head, 0);
            worked = true;
        }
        while !self.incoming.is_empty() {
            let Some(head) = queues[RECEIVE].take(ram) else {
                break;
            };
            let message = self.incoming.pop_front().unwrap_or_default();
            let (_, written) = queues[RECEIVE].parts(ram, head).unwrap_or_default();
            let filled = fill(ram, &written, &message);
            // Of a console, what does not fit goes into the next buffer.
            let left = &message[filled as usize..];
            if ID == Port::ID && !left.is_empty() {
                self.incoming.push_front(left.to_vec());
            }
            queues[RECEIVE].give_back(ram, head, filled);
            worked = true;
        }
        worked
    }

    fn next(&self) -> Option<u64> {
        self.due
    }

    fn reset(&mut self) {
        (self.due, self.is_ready) = (None, false);
    }
}
