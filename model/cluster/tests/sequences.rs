//! What hosts say and refuse, in an order that they seldom bring about.
#![allow(clippy::unwrap_used)]
mod world;
use abi::cluster::{PROPOSE, Propose};
use model_cluster::{Change, News, Owner, TICK_NS};
use model_link::{Actions, Down, Event, Lane, Nonce};
use model_membership::Standing;
use world::{MS, Said, World, link};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// A host that leaves has no session with anybody.
#[test]
fn a_host_that_leaves_has_no_session() {
    let mut world = World::of(2);
    world.run(500 * MS);
    world.dead = Some(1);
    world.run(2_200 * MS);
    assert_eq!(world.news(0).last(), Some(&News::Changed(Change::Lost(1))));
    assert_eq!(world.hosts[0].node.standing(1), (Standing::Away, false));
}

/// What an owner refused is offered again by itself, soon.
#[test]
fn what_is_refused_is_offered_again_soon() {
    let mut world = World::of(2);
    world.run(520 * MS);
    world.hosts[1].said.takes_nothing = true;
    world.hosts[0].node.send(1, [&[0x50], &[0; 39]]).unwrap();
    world.run(5 * MS);
    let host = &mut world.hosts[1];
    while host.node.work(world.now, &mut host.said) {}
    assert!(host.node.deadline() <= world.now + TICK_NS);
    host.said.takes_nothing = false;
    world.run(MS);
    assert_eq!(world.hosts[1].said.messages.len(), 1);
}

/// The other end of host 0's link, which says what it likes.
struct Other(Said);

impl Actions for Other {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        self.0.transmit(fill)
    }

    fn deliver(&mut self, _: Lane, _: &[u8]) -> bool {
        true
    }

    fn nonce(&mut self) -> Nonce {
        self.0.nonce()
    }

    fn up(&mut self) {}

    fn down(&mut self, _: Down) {}
}

/// Gives host 0 of a world after a host of that protocol said these messages.
fn hears(protocol: u8, messages: &[(Lane, &[u8])]) -> World {
    let mut world = World::of(2);
    let mut owner = Other(Said {
        nonces: 0x80,
        ..Said::default()
    });
    let mut link = link([1, 0], 5, owner.nonce());
    let (mut now, mut said) = (0, 0);
    for _ in 0..100 {
        now += MS;
        if said == 0 && link.session().is_some() {
            let theirs = model_membership::Description {
                protocol,
                life: 77.into(),
                ..*world.hosts[0].node.own()
            };
            link.send(Lane::Urgent, [theirs.as_bytes(), &[]]).unwrap();
        }
        if let (true, Some((lane, message))) = (link.session().is_some(), messages.get(said)) {
            link.send(*lane, [message, &[]]).unwrap();
            said += 1;
        }
        link.step(now, Event::Tick, &mut owner).unwrap();
        let host = &mut world.hosts[0];
        for mut frame in owner.0.frames.drain(..) {
            host.node.frame(now, &mut frame, &mut host.said);
        }
        while host.node.work(now, &mut host.said) {}
        for mut frame in host.said.frames.drain(..) {
            link.step(now, Event::Frame(&mut frame), &mut owner)
                .unwrap();
        }
    }
    assert_eq!(said, messages.len());
    world
}

/// A proposal of host 1 to host 0 of a world.
fn proposal() -> Vec<u8> {
    let mut lives = [U64::ZERO; abi::cluster::HOSTS_MAX];
    (lives[0], lives[1]) = (World::of(2).hosts[0].node.own().life, 77.into());
    let proposal = Propose {
        kind: PROPOSE,
        zeroes: [0; 7],
        id: 0xff01.into(),
        lives,
    };
    proposal.as_bytes().to_vec()
}

/// Only hosts with which this one shares, or is about to, are heard by the owner.
#[test]
fn a_host_that_is_no_member_says_nothing_to_the_owner() {
    let proposal = proposal();
    let messages: [(Lane, &[u8]); 2] = [(Lane::Urgent, &proposal), (Lane::Urgent, &[0x50, 1])];
    let with = hears(abi::cluster::PROTOCOL, &messages);
    assert_eq!(with.hosts[0].said.messages, [(1, vec![0x50, 1])]);
    let fit = hears(abi::cluster::PROTOCOL, &messages[1..]);
    assert_eq!(fit.hosts[0].node.standing(1).0, Standing::Fit);
    assert!(fit.hosts[0].said.messages.is_empty());
    let unfit = hears(abi::cluster::PROTOCOL + 1, &messages);
    assert!(matches!(
        unfit.hosts[0].node.standing(1).0,
        Standing::Unfit(_)
    ));
    assert!(unfit.hosts[0].said.messages.is_empty());
    // The membership listens to the urgent lane alone.
    let beat = (Lane::Bulk, &[abi::cluster::BEAT; 28][..]);
    let beat = [messages[0], beat];
    let bulk = hears(abi::cluster::PROTOCOL, &beat);
    assert_eq!(bulk.hosts[0].said.messages.len(), 1);
}

/// What a host is, it says once in a session.
#[test]
fn a_second_description_changes_nothing() {
    let mut other = *World::of(2).hosts[0].node.own();
    other.clock_hz = 1.into();
    let world = hears(abi::cluster::PROTOCOL, &[(Lane::Urgent, other.as_bytes())]);
    let description = world.hosts[0].node.membership().description(1);
    assert_ne!(description.unwrap().clock_hz.get(), 1);
}

#[test]
fn credit_whose_report_is_lost_is_asked_for() {
    let mut world = World::of(2);
    // Between two beats, so that only the messages' own frames go.
    world.run(520 * MS);
    world.hosts[1].said.takes_nothing = true;
    let mut sent = 0_u8;
    let mut send = |world: &mut World| {
        let page = [sent; 1000];
        let done = world.hosts[0].node.send(1, [&[0x50], &page]);
        sent += u8::from(done.is_ok());
    };
    for _ in 0..32 {
        send(&mut world);
    }
    // All have come and none was taken: nothing is in flight, and no credit is left.
    world.run(10 * MS);
    world.hosts[1].said.takes_nothing = false;
    // All are taken, and the frames that tell of the new credit are lost.
    let end = world.now + 5 * MS;
    while world.now < end {
        world.step(end, &mut |from, _, frame| {
            if from == 1 {
                Vec::new()
            } else {
                vec![(0, frame.to_vec())]
            }
        });
    }
    let taken = |world: &World| {
        world.hosts[1]
            .said
            .messages
            .iter()
            .filter(|it| it.1[0] == 0x50)
            .count()
    };
    assert_eq!(taken(&world), 32);
    send(&mut world);
    let began = world.now;
    while taken(&world) < 33 && world.now < began + 1_000 * MS {
        world.run(MS / 10);
    }
    let took = world.now - began;
    assert!(took < 20 * MS, "the message waited for {took} ns");
}

#[test]
fn two_lost_reports_of_credit_do_not_end_a_membership() {
    let mut world = World::of(2);
    world.run(520 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
    for host in &mut world.hosts {
        host.said.takes_nothing = true;
    }
    for _ in 0..32 {
        for host in [0, 1] {
            let _ = world.hosts[host]
                .node
                .send(1 - host as u8, [&[0x50], &[9; 39]]);
        }
    }
    world.run(10 * MS);
    for host in &mut world.hosts {
        host.said.takes_nothing = false;
    }
    // The owners take all; what tells of the new credit is lost. After that, the network is good.
    let end = world.now + 5 * MS;
    while world.now < end {
        world.step(end, &mut |_, _, _| Vec::new());
    }
    world.run(3_000 * MS);
    for host in [0, 1] {
        let sessions = world.hosts[host].node.peers()[0].link.counters.sessions;
        assert_eq!(sessions, 1, "the session of host {host} ended");
    }
}

/// A link of which much is queued leaves others their turns, also where each frame is a piece of work.
#[test]
fn links_take_turns() {
    let mut world = World::of(3);
    world.run(520 * MS);
    let host = &mut world.hosts[0];
    host.said.is_late = true;
    for other in [1, 2] {
        for _ in 0..8 {
            host.node.send(other, [&[0x50], &[0; 999]]).unwrap();
        }
    }
    while host.node.work(world.now, &mut host.said) {}
    let receivers: Vec<u8> = host.said.frames.iter().map(|frame| frame[17]).collect();
    let take_turns = receivers
        .chunks(2)
        .all(|two| two.contains(&1) && two.contains(&2));
    assert!(receivers.len() >= 16 && take_turns, "{receivers:?}");
}

/// A host whose link is never done says all the same that it is there, and its links have turns where its pieces take long.
#[test]
fn who_always_has_more_to_send_stays_a_member() {
    let (short, long) = (MS / 20, 2 * TICK_NS);
    for (other, bytes, piece) in [(1, 999, short), (2, 999, short), (1, 99, long)] {
        let mut world = World::of(3);
        world.run(600 * MS);
        world.hosts[0].said.is_late = true;
        world.pace = (1, piece);
        let end = world.now + 5_000 * MS;
        while world.now < end {
            while world.hosts[0]
                .node
                .send(other, [&[0x50], &[0; 999][..bytes]])
                .is_ok()
            {}
            let step = world.now + piece;
            world.step(step, &mut |_, _, frame| vec![(0, frame.to_vec())]);
        }
        for (host, other) in [(0, other), (usize::from(other), 0)] {
            let is_lost = |news: &News| matches!(news, News::Changed(Change::Lost(_)));
            assert!(!world.news(host).iter().any(is_lost), "host {host}");
            assert!(world.is_in(host, other), "host {host}");
        }
    }
}
