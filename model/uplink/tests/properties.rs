//! Frames against two plain queues, and against an OS-0 that writes anything anywhere.
#![expect(clippy::unwrap_used, reason = "a test")]

use abi::uplink::{AREA_BYTES, FRAME_AT, FRAME_MAX, FRAME_MIN, HEAD_BYTES, SLOT_BYTES, SLOTS};
use model_uplink::{Next, Uplink};
use proptest::prelude::*;
use std::collections::VecDeque;

struct Area(Vec<u8>);

impl Area {
    fn new() -> Self {
        Self(vec![0; AREA_BYTES as usize])
    }

    fn word(&self, at: u64) -> u16 {
        let at = at as usize;
        u16::from_le_bytes(self.0[at..at + 2].try_into().unwrap())
    }

    fn set_word(&mut self, at: u64, word: u16) {
        let at = at as usize;
        self.0[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }

    /// As a writer does: the frame, and its word after that.
    fn put(&mut self, at: u64, frame: &[u8]) {
        let from = (at + FRAME_AT) as usize;
        self.0[from..from + frame.len()].copy_from_slice(frame);
        self.set_word(at, frame.len() as u16);
    }

    /// As a reader does: the frame, and then the slot is empty.
    fn get(&mut self, at: u64, bytes: usize) -> Vec<u8> {
        let from = (at + FRAME_AT) as usize;
        let frame = self.0[from..from + bytes].to_vec();
        self.set_word(at, 0);
        frame
    }
}

/// OS-0's side, as linux/module/net.c has it.
#[derive(Default)]
struct Module {
    received: usize,
    sent: usize,
}

impl Module {
    fn send(&mut self, area: &mut Area, frame: &[u8]) -> bool {
        let at = HEAD_BYTES + (SLOTS + self.sent) as u64 * SLOT_BYTES;
        if area.word(at) != 0 {
            return false;
        }
        area.put(at, frame);
        self.sent = (self.sent + 1) % SLOTS;
        true
    }

    fn receive(&mut self, area: &mut Area) -> Option<Vec<u8>> {
        let at = HEAD_BYTES + self.received as u64 * SLOT_BYTES;
        let bytes = area.word(at) as usize;
        if bytes == 0 {
            return None;
        }
        self.received = (self.received + 1) % SLOTS;
        Some(area.get(at, bytes))
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// So many frames of that length go to OS-0, or from it.
    Send(bool, usize, usize),
    /// So many are taken, from OS-0 or by it.
    Take(bool, usize),
    /// Another image goes on in EL2's place.
    GoOver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = FRAME_MIN..=FRAME_MAX;
    let step = prop_oneof![
        (any::<bool>(), 1..200_usize, bytes).prop_map(|(out, n, bytes)| Step::Send(out, n, bytes)),
        (any::<bool>(), 1..200_usize).prop_map(|(out, n)| Step::Take(out, n)),
        Just(Step::GoOver),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames come in order, each once and as it was sent, and a way holds as many as it has slots.
    #[test]
    fn frames_come_as_they_were_sent(steps in steps()) {
        let (mut area, mut el2, mut module) = (Area::new(), Uplink::new(), Module::default());
        let mut under_way = [VecDeque::new(), VecDeque::new()];
        let mut number = 0_u32;
        for step in steps {
            match step {
                Step::Send(out, count, bytes) => for _ in 0..count {
                    number += 1;
                    let mut frame = vec![number as u8; bytes];
                    frame[..4].copy_from_slice(&number.to_le_bytes());
                    let sent = if out {
                        let at = el2.fill(bytes, |at| area.word(at));
                        at.inspect(|at| area.put(*at, &frame)).is_some()
                    } else {
                        module.send(&mut area, &frame)
                    };
                    let queue = &mut under_way[usize::from(out)];
                    prop_assert_eq!(sent, queue.len() < SLOTS);
                    if sent {
                        queue.push_back(frame);
                    }
                },
                Step::GoOver => el2 = Uplink::at(el2.next()).unwrap(),
                Step::Take(out, count) => for _ in 0..count {
                    let taken = if out {
                        module.receive(&mut area)
                    } else {
                        match el2.take(|at| area.word(at)) {
                            Next::Nothing => None,
                            Next::Frame { at, bytes } => Some(area.get(at, bytes)),
                            Next::Nonsense(_) => return Err(TestCaseError::fail("nonsense")),
                        }
                    };
                    prop_assert_eq!(taken, under_way[usize::from(out)].pop_front());
                },
            }
        }
    }

    /// A record of a slot that there is not is refused.
    #[test]
    fn only_slots_are_gone_on_with(next in any::<[u64; 2]>()) {
        let next = next.map(|slot| slot % (2 * SLOTS as u64));
        let is_there = next.iter().all(|slot| *slot < SLOTS as u64);
        prop_assert_eq!(Uplink::at(next).map(|el2| el2.next()), is_there.then_some(next));
    }

    /// Whatever words are there, EL2 stays in the slot that is next, and no frame is longer or shorter than
    /// frames are.
    #[test]
    fn lies_lead_nowhere(words in prop::collection::vec((any::<bool>(), any::<u16>(), 0..2000_u16), 1..1000)) {
        let mut el2 = Uplink::new();
        let (mut filled, mut taken) = (0, 0);
        for (out, noise, length) in words {
            let word = if noise % 3 == 0 { noise } else { length };
            let slot = |n: usize| HEAD_BYTES + n as u64 * SLOT_BYTES;
            if out {
                let at = el2.fill(usize::from(length), |_| noise % 2);
                let is_frame = (FRAME_MIN..=FRAME_MAX).contains(&usize::from(length));
                prop_assert_eq!(at, (is_frame && noise % 2 == 0).then(|| slot(filled % SLOTS)));
                filled += usize::from(at.is_some());
                continue;
            }
            let expected = slot(SLOTS + taken % SLOTS);
            match el2.take(|_| word) {
                Next::Nothing => prop_assert_eq!(word, 0),
                Next::Nonsense(at) => prop_assert_eq!(at, expected),
                Next::Frame { at, bytes } => {
                    prop_assert!((FRAME_MIN..=FRAME_MAX).contains(&bytes));
                    prop_assert_eq!((at, bytes), (expected, usize::from(word)));
                    prop_assert!(at + FRAME_AT + bytes as u64 <= AREA_BYTES);
                }
            }
            taken += usize::from(word != 0);
        }
    }
}
