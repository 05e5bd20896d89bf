//! Transfers by [`Lane`]s of two made-up kinds, against a plain map of what was asked: one answers in order by a status
//! behind the data, as virtio-blk does, and one in any order by a queue of completions, as NVMe does.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_addr::{Gfn, VmId};
use model_disk::{DATA_AT_ONCE, Io, Job, Jobs, Lane, Place, Transfer, UnderWay};
use model_virtio::blk::{Request, SECTOR_SIZE};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BUFFERS: usize = 6;

/// Nothing but pages goes through these lanes.
#[derive(Debug)]
enum Nobody {}

impl UnderWay for Nobody {
    fn vm(&self) -> VmId {
        match *self {}
    }

    fn request(&self) -> &Request {
        match *self {}
    }
}

/// What a device was asked: buffer, first sector on the disk, and bytes.
type Command = (usize, u64, u64);

#[derive(Default)]
struct Fake {
    claimed: [bool; BUFFERS],
    at_work: Vec<Command>,
    asked: Vec<Command>,
    /// Takes no command.
    is_full: bool,
}

impl Fake {
    fn claim(&mut self, kept: usize) -> Option<(usize, u8)> {
        let free = self.claimed.iter().filter(|claimed| !**claimed).count();
        let buffer = self
            .claimed
            .iter()
            .position(|claimed| !claimed)
            .filter(|_| free > kept)?;
        self.claimed[buffer] = true;
        Some((buffer, buffer as u8))
    }

    fn ask(&mut self, buffer: usize, place: &Place, io: Io) -> bool {
        assert!(self.claimed[buffer], "buffer {buffer} was not claimed");
        if !self.is_full {
            let command = (buffer, place.first + io.sector, io.bytes);
            self.at_work.push(command);
            self.asked.push(command);
        }
        !self.is_full
    }
}

/// Its status is where the data end, which only they know who asked.
#[derive(Default)]
struct InOrder(Fake);

/// Completions come as they like: the last command first.
#[derive(Default)]
struct AnyOrder(Fake, u32);

impl Lane for InOrder {
    type Buffer = u8;

    fn claim(&mut self, kept: usize) -> Option<(usize, u8)> {
        self.0.claim(kept)
    }

    fn release(&mut self, buffer: usize) {
        self.0.claimed[buffer] = false;
    }

    fn ask(&mut self, buffer: usize, place: &Place, io: Io) -> bool {
        self.0.ask(buffer, place, io)
    }

    fn take_back(&mut self, io_of: &dyn Fn(usize) -> Option<Io>) -> Option<(usize, u8, bool)> {
        let (buffer, _, bytes) = (!self.0.at_work.is_empty()).then(|| self.0.at_work.remove(0))?;
        assert_eq!(io_of(buffer).unwrap().bytes, bytes);
        Some((buffer, buffer as u8, bytes % 3 != 0))
    }
}

impl Lane for AnyOrder {
    type Buffer = u8;

    fn claim(&mut self, kept: usize) -> Option<(usize, u8)> {
        self.0.claim(kept)
    }

    fn release(&mut self, buffer: usize) {
        self.0.claimed[buffer] = false;
    }

    fn ask(&mut self, buffer: usize, place: &Place, io: Io) -> bool {
        self.0.ask(buffer, place, io)
    }

    fn take_back(&mut self, _: &dyn Fn(usize) -> Option<Io>) -> Option<(usize, u8, bool)> {
        let (buffer, _, bytes) = self.0.at_work.pop()?;
        Some((buffer, buffer as u8, bytes % 3 != 0))
    }

    fn acknowledge(&mut self) {
        self.1 += 1;
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Begin a transfer on that partition.
    Begin {
        kept: usize,
        place: usize,
        sector: u64,
        bytes: u64,
    },
    /// The device has an answer.
    Answer,
    /// The device takes no command from now on, or takes them again.
    Full(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let sector = prop_oneof![0..40_u64, Just(u64::MAX), any::<u64>()];
    let bytes = prop_oneof![
        0..5000_u64,
        Just(DATA_AT_ONCE),
        Just(DATA_AT_ONCE + 1),
        any::<u64>()
    ];
    prop_oneof![
        6 => (0..3_usize, 0..PLACES.len(), sector, bytes)
            .prop_map(|(kept, place, sector, bytes)| Step::Begin { kept, place, sector, bytes }),
        4 => Just(Step::Answer),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

const PLACES: [Place; 3] = [
    Place::new(1, 0, 20),
    Place::new(2, 2048, 200),
    Place::new(19, 1 << 40, 1),
];

/// Plays steps with a lane that keeps its commands in what `fake` gives.
fn play<L: Lane<Buffer = u8>>(
    mut lane: L,
    fake: fn(&mut L) -> &mut Fake,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut jobs = Jobs::<Nobody, Gfn, BUFFERS>::default();
    let mut under_way = BTreeMap::<usize, (u64, Io, u8)>::new();
    let mut expected = Vec::new();
    for (name, step) in (0..).zip(steps) {
        match *step {
            Step::Full(is_full) => fake(&mut lane).is_full = is_full,
            Step::Begin {
                kept,
                place,
                sector,
                bytes,
            } => {
                let claimed = lane.claim(kept);
                prop_assert_eq!(claimed.is_some(), BUFFERS - under_way.len() > kept);
                let Some((buffer, _)) = claimed else { continue };
                let (io, place) = (
                    Io {
                        operation: Transfer::Read,
                        sector,
                        bytes,
                    },
                    &PLACES[place],
                );
                let sectors = u128::from(sector) + u128::from(bytes.div_ceil(SECTOR_SIZE));
                let is_within = bytes <= DATA_AT_ONCE && sectors <= u128::from(place.sectors);
                let begun = jobs.begin(&mut lane, (buffer, place), io, Job::Page(Gfn(name)));
                if is_within && !fake(&mut lane).is_full {
                    prop_assert!(begun.is_ok());
                    under_way.insert(buffer, (name, io, place.number));
                    expected.push((buffer, place.first + sector, bytes));
                } else {
                    let is_back = matches!(begun, Err(Job::Page(Gfn(job))) if job == name);
                    prop_assert!(is_back, "a job that did not begin comes back");
                    lane.release(buffer);
                }
            }
            Step::Answer => {
                lane.acknowledge();
                let answer = lane.take_back(&|buffer| jobs.io(buffer));
                prop_assert_eq!(answer.is_some(), !under_way.is_empty());
                let Some((buffer, _, done)) = answer else {
                    continue;
                };
                let lent = jobs.take(buffer).unwrap();
                let (name, io, number) = under_way.remove(&buffer).unwrap();
                prop_assert_eq!(
                    (lent.io, lent.partition, done),
                    (io, number, io.bytes % 3 != 0)
                );
                prop_assert!(matches!(lent.job, Job::Page(Gfn(job)) if job == name));
                lane.release(buffer);
            }
        }
        prop_assert_eq!(jobs.is_empty(), under_way.is_empty());
        for place in &PLACES {
            let is_at_work = under_way
                .values()
                .any(|(.., number)| *number == place.number);
            prop_assert_eq!(jobs.has_of(place.number), is_at_work);
        }
    }
    // Nothing beyond a partition, and nothing longer than a buffer, reaches a device.
    prop_assert_eq!(&fake(&mut lane).asked, &expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_job_comes_back_once(steps in prop::collection::vec(step(), 0..60)) {
        play(InOrder::default(), |lane| &mut lane.0, &steps)?;
        play(AnyOrder::default(), |lane| &mut lane.0, &steps)?;
    }
}

/// A disk has whichever lane it has, and one that must be known is found.
#[test]
fn lanes_of_two_kinds_are_behind_one_trait() {
    let lanes: [Box<dyn Lane<Buffer = u8>>; 2] =
        [Box::<InOrder>::default(), Box::<AnyOrder>::default()];
    let kinds = lanes.map(|mut lane| {
        lane.acknowledge();
        let lane: &mut dyn std::any::Any = &mut *lane;
        lane.downcast_mut::<AnyOrder>().map(|lane| lane.1)
    });
    assert_eq!(kinds, [None, Some(1)]);
}
