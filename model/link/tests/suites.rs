//! A session has the cipher that both hosts have, and nobody on the wire can choose another.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{BODY_AT, FRAME_STANDARD, NO_AES, Prefix};
use model_link::{Dropped, Event, Lane, Link, Settings, Suite};
use std::mem::{offset_of, take};
use world::{KEY, Owner, Said, Toy, link, settings};

type Host = (Link<Toy, Vec<u8>, 8>, Owner);

fn host(host: u8, suite: Suite) -> Host {
    let mut owner = Owner::new(host.into(), FRAME_STANDARD);
    let settings = Settings {
        suite,
        ..settings(host, FRAME_STANDARD)
    };
    (link(settings, KEY, &mut owner), owner)
}

/// Lets hosts exchange all they have to say for a second; `change` is what the wire does to frames.
fn talk(hosts: &mut [Host; 2], since: u64, change: fn(&mut [u8])) {
    for round in 0..1_000 {
        let now = since + round * 1_000_000;
        for from in [0, 1] {
            let (link, owner) = &mut hosts[from];
            link.step(now, Event::Tick, owner).unwrap();
            for mut frame in take(&mut owner.sent) {
                change(&mut frame);
                let (link, owner) = &mut hosts[1 - from];
                link.step(now, Event::Frame(&mut frame), owner).unwrap();
            }
        }
    }
}

#[test]
fn a_session_has_aes_if_both_hosts_do() {
    let both = [Suite::Aes, Suite::ChaCha];
    for (left, right) in both
        .into_iter()
        .flat_map(|left| both.map(|right| (left, right)))
    {
        let mut hosts = [host(0, left), host(1, right)];
        talk(&mut hosts, 0, |_| ());
        let is_aes = (left, right) == (Suite::Aes, Suite::Aes);
        let expected = if is_aes { Suite::Aes } else { Suite::ChaCha };
        assert_eq!([0, 1].map(|n| hosts[n].0.suite()), [Some(expected); 2]);
        for (link, _) in &mut hosts {
            link.send(Lane::Urgent, [b"hello", &[]]).unwrap();
        }
        talk(&mut hosts, 2_000_000_000, |_| ());
        for (link, owner) in &hosts {
            let came = Said::Deliver(Lane::Urgent, b"hello".to_vec());
            assert_eq!(owner.said, [Said::Up, came]);
            assert_eq!(link.counters.dropped[Dropped::Forged as usize], 0);
        }
    }
}

/// Turns the suite of each hello around.
fn turn(frame: &mut [u8]) {
    if frame.len() > BODY_AT {
        frame[offset_of!(Prefix, version)] ^= NO_AES;
    }
}

#[test]
fn the_wire_cannot_choose_the_suite() {
    for suite in [Suite::Aes, Suite::ChaCha] {
        let mut hosts = [host(0, suite), host(1, suite)];
        talk(&mut hosts, 0, turn);
        for (link, owner) in &hosts {
            assert_eq!((link.suite(), owner.said.len()), (None, 0));
            assert!(link.counters.dropped[Dropped::Forged as usize] > 0);
        }
    }
}
