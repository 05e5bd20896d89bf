//! Pages that a guest gives back, through the balloon's queues: they read as zeroes from then on,
//! all others keep what they hold, and at the end no frame is left or given back twice.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use model_virtio::balloon::Balloon;
use model_virtio::{Effect, Transport, Window as _};
use proptest::prelude::*;
use tests_request_path::Guest;

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x40_0000,
};
const PAGES: u64 = RAM.size / FRAME_SIZE;
/// The first pages hold the rings and the numbers.
const OWN: u64 = 16;
const NUMBERS: u64 = RAM.start.0 + 0xc000;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 4 * 512,
}];
const INFLATE: u64 = 0;
const REPORT: u64 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// The guest stores to these pages.
    Touch(u64, u64),
    /// The driver puts these into the balloon; some are no memory, or twice.
    Inflate(Vec<u32>),
    /// The driver reports pages free: the first, and how many.
    Report(Vec<(u64, u64)>),
}

fn steps() -> impl Strategy<Value = Step> {
    let number = prop_oneof![8 => OWN..PAGES, 1 => PAGES..PAGES + 9, 1 => OWN..OWN + 8];
    let number = number.prop_map(|page| (RAM.start.0 / FRAME_SIZE + page) as u32);
    let range = (OWN..PAGES, 0..=10u32).prop_map(|(page, order)| {
        let page = page >> order << order;
        (page.max(OWN), (page + (1 << order)).min(PAGES))
    });
    let range = range.prop_filter_map("empty", |(at, end)| (at < end).then(|| (at, end - at)));
    prop_oneof![
        2 => (OWN..PAGES, 1..300u64).prop_map(|(page, n)| Step::Touch(page, n.min(PAGES - page))),
        1 => prop::collection::vec(number, 1..300).prop_map(Step::Inflate),
        1 => prop::collection::vec(range, 1..8).prop_map(Step::Report),
    ]
}

struct World<'a> {
    guest: Guest<'a>,
    balloon: Transport<Balloon>,
    sent: [u16; 3],
    /// What each page holds.
    expected: Vec<u8>,
}

impl<'a> World<'a> {
    /// A driver that wants reports and no statistics, with 8 entries in a queue.
    fn new(frames: &'a FakeFrames) -> Self {
        let guest = Guest::new(frames, VmId::default(), RAM, Policy::default());
        assert!(guest.put(RAM.start, &vec![0; 0x1_0000]));
        let mut balloon = Transport::new(Balloon::default());
        let mut write = |register, value| balloon.write(register, 4, value);
        write(0x070, 3);
        write(0x020, 1 << 5);
        write(0x024, 1);
        write(0x020, 1);
        write(0x070, 0xb);
        for queue in [INFLATE, REPORT] {
            let rings = rings(queue);
            write(0x030, queue);
            write(0x038, 8);
            for (register, at) in [
                (0x080, rings),
                (0x090, rings + 0x400),
                (0x0a0, rings + 0x800),
            ] {
                write(register, at);
            }
            write(0x044, 1);
        }
        assert_eq!(write(0x070, 0xf), Effect::Live);
        Self {
            guest,
            balloon,
            sent: [0; 3],
            expected: vec![0; PAGES as usize],
        }
    }

    fn step(&mut self, step: &Step, seed: u8) {
        match step {
            Step::Touch(page, count) => {
                for page in *page..page + count {
                    assert!(self.guest.put(at(page), &[seed; FRAME_SIZE as usize]));
                    self.expected[page as usize] = seed;
                }
            }
            Step::Inflate(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                assert!(self.guest.put(Ipa(NUMBERS), &bytes));
                self.submit(INFLATE, &[(NUMBERS, bytes.len() as u64)]);
                for number in numbers {
                    let page = u64::from(*number) - RAM.start.0 / FRAME_SIZE;
                    if let Some(expected) = self.expected.get_mut(page as usize) {
                        *expected = 0;
                    }
                }
            }
            Step::Report(ranges) => {
                let buffers = ranges.iter().map(|(page, n)| (at(*page).0, n * FRAME_SIZE));
                self.submit(REPORT, &buffers.collect::<Vec<_>>());
                for (page, count) in ranges {
                    self.expected[*page as usize..(page + count) as usize].fill(0);
                }
            }
        }
    }

    /// Sends one chain and waits until it is back.
    fn submit(&mut self, queue: u64, buffers: &[(u64, u64)]) {
        let rings = rings(queue);
        let sent = &mut self.sent[queue as usize];
        *sent = sent.wrapping_add(1);
        let mut table = Vec::new();
        for (n, (ipa, len)) in (1_u16..).zip(buffers) {
            let flags = u16::from(usize::from(n) < buffers.len()) | u16::from(queue == REPORT) << 1;
            table.extend(ipa.to_le_bytes());
            table.extend((*len as u32).to_le_bytes());
            table.extend(flags.to_le_bytes());
            table.extend(n.to_le_bytes());
        }
        assert!(self.guest.put(Ipa(rings), &table));
        assert!(self.guest.put(Ipa(rings + 0x402), &sent.to_le_bytes()));
        let effect = self.balloon.write(0x050, 4, queue);
        assert_eq!(effect, Effect::Notify(queue as u16));
        let guest = &self.guest;
        let serve = |balloon: &mut Transport<Balloon>| {
            balloon.serve(
                guest,
                0,
                512,
                |gfn| gfn.0 & 512 == 0,
                |_, runs| {
                    for run in runs {
                        guest.release(run.first, run.count);
                    }
                },
            )
        };
        while serve(&mut self.balloon) {}
        assert_eq!(self.guest.get(Ipa(rings + 0x802), 2), sent.to_le_bytes());
    }
}

fn rings(queue: u64) -> u64 {
    RAM.start.0 + queue * 0x1000
}

fn at(page: u64) -> Ipa {
    Ipa(RAM.start.0 + page * FRAME_SIZE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_is_given_back_reads_as_zeroes(steps in prop::collection::vec(steps(), 1..10)) {
        let frames = FakeFrames::new(&NODES);
        let free = frames.counts()[0].free;
        let mut world = World::new(&frames);
        for (step, seed) in steps.iter().zip(1..) {
            world.step(step, seed);
        }
        for page in OWN..PAGES {
            let bytes = world.guest.get(at(page), FRAME_SIZE as usize);
            let expected = world.expected[page as usize];
            prop_assert!(bytes.iter().all(|byte| *byte == expected), "page {page}");
        }
        prop_assert_eq!(world.guest.end(), 0, "tables are left");
        prop_assert_eq!(frames.counts()[0].free, free, "frames are left");
    }
}
