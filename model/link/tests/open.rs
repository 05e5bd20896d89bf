//! Links whose owner has turned authentication off: no cipher is made, and no sealed link talks to them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod world;

use abi::link::{FRAME_STANDARD, Sealed, TAG_BYTES};
use model_link::{Cipher, Dropped, Event, Iv, KEY_BYTES, Lane, Link, Settings, Suite, Tag};
use world::{KEY, Owner, Said, Toy, link, settings};
use zerocopy::FromBytes;

/// The cipher of a CPU that has none.
#[derive(Clone, Copy, Debug)]
struct Missing;

impl Cipher for Missing {
    const FRAMES_PER_KEY_LOG2: u32 = 5;

    fn new(_: Suite, _: &[u8; KEY_BYTES]) -> Self {
        panic!("a cipher was made")
    }

    fn seal(&self, _: &Iv, _: &[u8], _: &mut [u8]) -> Tag {
        panic!("a frame was sealed")
    }

    fn open(&self, _: &Iv, _: &[u8], _: &mut [u8], _: &Tag) -> bool {
        panic!("a frame was opened")
    }
}

type Host<C> = (Link<C, Vec<u8>, 8>, Owner);

fn host<C: Cipher>(host: u8, is_open: bool) -> Host<C> {
    let mut owner = Owner::new(host.into(), FRAME_STANDARD);
    let settings = Settings {
        is_open,
        ..settings(host, FRAME_STANDARD)
    };
    (link(settings, KEY, &mut owner), owner)
}

/// Gives the frames that a host has to send at a time.
fn tick<C: Cipher>((link, owner): &mut Host<C>, now: u64) -> Vec<Vec<u8>> {
    link.step(now, Event::Tick, owner).unwrap();
    std::mem::take(&mut owner.sent)
}

fn take<C: Cipher>((link, owner): &mut Host<C>, now: u64, frames: &mut [Vec<u8>]) {
    for frame in frames {
        link.step(now, Event::Frame(frame), owner).unwrap();
    }
}

/// Lets two hosts exchange all they have to say, for some time.
fn talk<A: Cipher, B: Cipher>(one: &mut Host<A>, other: &mut Host<B>, since: u64) {
    for round in 0..40 {
        let now = since + round * 1_000_000;
        let mut frames = tick(one, now);
        take(other, now, &mut frames);
        let mut frames = tick(other, now);
        take(one, now, &mut frames);
    }
}

#[test]
fn open_links_need_no_cipher() {
    let (mut left, mut right) = (host::<Missing>(0, true), host::<Missing>(1, true));
    talk(&mut left, &mut right, 0);
    assert_eq!((&*left.1.said, left.0.suite()), (&[Said::Up][..], None));
    let message = b"for all to read";
    let (mut now, later) = (100_000_000, 200_000_000);
    // More frames than one key seals.
    for _ in 0..40 {
        left.0.send(Lane::Urgent, [message, &[]]).unwrap();
        now += 1_000_000;
        let mut frames = tick(&mut left, now);
        let [frame] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert!(frame.windows(message.len()).any(|it| it == message));
        assert!(frame.ends_with(&[0; TAG_BYTES]));
        // A counter of no key that is known would leave all others behind.
        let mut far = frame.clone();
        Sealed::mut_from_prefix(&mut far).unwrap().0.counter += 2 << Missing::FRAMES_PER_KEY_LOG2;
        let answers = [&far, frame, frame].map(|it| right.0.admit(it));
        assert_eq!(answers, [Some(false), Some(true), Some(false)]);
        take(&mut right, now, &mut frames);
        let mut answers = tick(&mut right, now);
        take(&mut left, now, &mut answers);
    }
    talk(&mut left, &mut right, later);
    let came = Said::Deliver(Lane::Urgent, message.to_vec());
    assert_eq!(right.1.said.iter().filter(|it| **it == came).count(), 40);
}

#[test]
fn open_and_sealed_links_do_not_talk() {
    let (mut open, mut sealed) = (host::<Missing>(0, true), host::<Toy>(1, false));
    talk(&mut open, &mut sealed, 0);
    assert_eq!((open.1.said, sealed.1.said), (Vec::new(), Vec::new()));
    for counters in [open.0.counters, sealed.0.counters] {
        let dropped: u64 = counters.dropped.iter().sum();
        assert!(dropped > 0);
        assert_eq!(counters.dropped[Dropped::Open as usize], dropped);
    }
}
