//! Tokens of frames: each goes back where it came from once its frame has opened, and no other does.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::SEALED;
use model_cluster::{NAMED_MAX, STRANGE_MAX, TICK_NS, Token};
use world::{Host, MS, World};

/// A frame of somebody who knows no session.
const STRANGER: [u8; 80] = [0; 80];

/// Takes so many tokens of a budget, by a frame.
fn take(host: &mut Host, now: u64, count: u64, frame: &[u8], token: Token) {
    for _ in 0..count {
        assert_eq!(host.node.admit(now, frame), Some(token));
    }
}

/// Lets a host take a frame, if there is one, and do all that is due; gives the frames that it sends.
fn take_and_work(host: &mut Host, now: u64, frame: Option<Vec<u8>>) -> Vec<Vec<u8>> {
    let Host { node, said, .. } = host;
    if let Some(mut frame) = frame {
        node.frame(now, (&mut frame, Token::Named), said);
    }
    while node.work(now, said) {}
    std::mem::take(&mut said.frames)
}

#[test]
fn a_frame_gives_back_one_token_to_its_budget() {
    let mut world = World::of(2);
    world.run(520 * MS);
    let now = world.now;
    let node = &mut world.hosts[1].node;
    node.send(0, [&[0x50], &[0; 39]]).unwrap();
    let mut frame = take_and_work(&mut world.hosts[1], now, None).pop().unwrap();
    let named = frame.clone();
    take(&mut world.hosts[0], now, NAMED_MAX, &named, Token::Named);
    take(
        &mut world.hosts[0],
        now,
        STRANGE_MAX,
        &STRANGER,
        Token::Stranger,
    );
    let Host { node, said, .. } = &mut world.hosts[0];
    node.frame(now, (&mut frame, Token::Named), said);
    assert_eq!(node.admit(now, &named), Some(Token::Named));
    assert_eq!(node.admit(now, &named), None);
    assert_eq!(node.admit(now, &STRANGER), None);
}

/// The first of them brings the session up that the others name.
#[test]
fn frames_that_waited_for_a_session_give_their_tokens_back() {
    let count = 5;
    let mut world = World::of(2);
    let (mut now, mut kept) = (0, Vec::new());
    while kept.len() < count {
        now += MS;
        for from in 0..2 {
            let Host { node, said, .. } = &mut world.hosts[from];
            while node.work(now, said) {}
            let frames = std::mem::take(&mut said.frames);
            let Host { node, said, .. } = &mut world.hosts[1 - from];
            for mut frame in frames {
                if from == 1 && frame[15] == SEALED {
                    kept.push(frame);
                } else {
                    node.frame(now, (&mut frame, Token::Stranger), said);
                }
            }
        }
    }
    now += 1_000 * MS;
    let others = STRANGE_MAX - kept.len() as u64;
    let host = &mut world.hosts[0];
    take(host, now, others, &STRANGER, Token::Stranger);
    for frame in &kept {
        take(host, now, 1, frame, Token::Stranger);
    }
    assert_eq!(host.node.admit(now, &STRANGER), None);
    let (before, count) = (host.node.peers()[0].link.counters.opened, kept.len() as u64);
    for mut frame in kept {
        let Host { node, said, .. } = &mut *host;
        node.frame(now, (&mut frame, Token::Stranger), said);
    }
    assert_eq!(host.node.peers()[0].link.counters.opened - before, count);
    take(host, now, count, &STRANGER, Token::Stranger);
    assert_eq!(host.node.admit(now, &STRANGER), None);
}

#[test]
fn a_frame_of_no_peer_is_counted() {
    let mut world = World::of(2);
    world.run(520 * MS);
    let now = world.now;
    let Host { node, said, .. } = &mut world.hosts[0];
    for (mut frame, unheard) in [(STRANGER.to_vec(), 1), (vec![1; 5], 2), (Vec::new(), 3)] {
        node.frame(now, (&mut frame, Token::Stranger), said);
        assert_eq!(node.unheard, unheard);
    }
}

/// A report alone asks for no answer; that it came is news of its host.
#[test]
fn the_membership_hears_of_each_frame_that_opens() {
    let mut world = World::of(2);
    world.run(520 * MS);
    let now = world.now;
    let node = &mut world.hosts[1].node;
    node.send(0, [&[0x50], &[0; 39]]).unwrap();
    let message = take_and_work(&mut world.hosts[1], now, None).pop();
    take_and_work(&mut world.hosts[0], now, message);
    let now = now + MS;
    let mut report = take_and_work(&mut world.hosts[0], now, None).remove(0);
    take_and_work(&mut world.hosts[1], now, None);
    let Host { node, said, .. } = &mut world.hosts[1];
    assert!(node.deadline() > now + TICK_NS);
    node.frame(now, (&mut report, Token::Named), said);
    assert!(node.deadline() <= now + TICK_NS);
}
