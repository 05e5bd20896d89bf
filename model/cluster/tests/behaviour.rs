//! Hosts that join, do not fit, do not know the key, die and come back.

#![allow(clippy::unwrap_used)]

mod world;

use abi::cluster::PROTOCOL;
use abi::link::{BULK_MAX, URGENT_MAX};
use model_cluster::{Change, MESSAGES_AT_ONCE, News};
use model_link::Refused;
use model_membership::Unfit;
use world::{Host, MS, Plan, World};

#[test]
fn hosts_join() {
    for hosts in [2, 3, 4] {
        let mut world = World::of(hosts);
        world.run(500 * MS);
        for host in 0..hosts {
            let others = (0..hosts).filter(|other| *other != host);
            for other in others {
                assert!(world.is_in(usize::from(host), other), "{host} and {other}");
            }
            let node = &world.hosts[usize::from(host)].node;
            assert!(node.membership().runs_until() > world.now);
            let is_described = |host| node.membership().description(host).is_some();
            assert!((0..hosts).all(|other| other == host || is_described(other)));
            assert!(
                node.peers()
                    .iter()
                    .all(|peer| peer.bytes[0] > 0 && peer.bytes[1] > 0)
            );
        }
    }
}

#[test]
fn a_host_with_another_key_stays_out() {
    let other = Plan {
        key: 6,
        ..Plan::of(2)
    };
    let mut world = World::new(vec![Plan::of(2).make(0), other.make(1)]);
    world.run(2_000 * MS);
    assert!(!world.is_in(0, 1) && !world.is_in(1, 0));
    assert!(world.news(0).is_empty() && world.news(1).is_empty());
    let counters = &world.hosts[0].node.peers()[0].link.counters;
    assert!(counters.dropped[model_link::Dropped::Forged as usize] > 0);
}

#[test]
fn a_host_of_another_version_is_named_once() {
    let other = Plan {
        version: 0x101,
        ..Plan::of(2)
    };
    let mut world = World::new(vec![Plan::of(2).make(0), other.make(1)]);
    world.run(2_000 * MS);
    let unfit = News::Unfit(1, Unfit::Version(0x101, 0x100));
    assert_eq!(world.news(0), [News::Up(1), unfit]);
    assert!(!world.is_in(0, 1));
    assert_eq!(world.send(0, 1, 40, 0), Err(Refused::NoSession));
}

/// Hosts of one build alone are in the boot tests, so these two fields differ here: over sealed links, by the code that EL2
/// runs.
#[test]
fn another_protocol_or_page_size_keeps_a_host_out_by_name() {
    let fits = Plan::of(3);
    let protocol = Plan {
        protocol: PROTOCOL + 1,
        ..fits
    };
    let pages = Plan {
        page_log2: 16,
        ..fits
    };
    let why = format!("its protocol has version {}, here {PROTOCOL}", PROTOCOL + 1);
    let of_pages = "its pages have 2^16 bytes, here 2^12";
    for (other, why) in [(protocol, why.as_str()), (pages, of_pages)] {
        let hosts = vec![fits.make(0), fits.make(1), other.make(2)];
        let mut world = World::new(hosts);
        world.run(2_000 * MS);
        for host in [0, 1] {
            let named = world.news(host).iter().filter_map(|news| match news {
                News::Unfit(from, why) => Some((*from, why.to_string())),
                _ => None,
            });
            let named: Vec<_> = named.collect();
            let [(2, said)] = &named[..] else {
                panic!("host {host}: {named:?}");
            };
            assert!(said.starts_with(why), "{said}");
            assert!(world.is_in(host, 1 - host as u8) && !world.is_in(host, 2));
        }
        assert!(!world.is_in(2, 0) && !world.is_in(2, 1));
        assert_eq!(world.send(0, 2, 40, 0), Err(Refused::NoSession));
    }
}

#[test]
fn a_dead_host_is_declared_and_comes_back_as_a_new_one() {
    let mut world = World::of(3);
    world.run(500 * MS);
    world.dead = Some(2);
    world.run(1_000 * MS);
    assert!(world.is_in(0, 2), "declared dead too early");
    world.run(1_700 * MS);
    // The survivors leave that membership, restart their links, and have one of their own.
    for host in [0, 1] {
        assert!(!world.is_in(host, 2) && world.is_in(host, 1 - host as u8));
        let news = world.news(host);
        let stopped = news
            .iter()
            .position(|it| *it == News::Changed(Change::Stopped));
        let lost = |it: &News| matches!(it, News::Changed(Change::Lost(_)));
        assert!(stopped.unwrap() < news.iter().position(lost).unwrap());
        let sessions = world.hosts[host].node.peers().iter();
        assert!(sessions.map(|peer| peer.link.counters.sessions).max() >= Some(2));
    }
    world.dead = None;
    let again = Plan {
        start: 2,
        ..Plan::of(3)
    };
    world.hosts[2] = again.make(2);
    world.run(3_000 * MS);
    assert!(world.is_in(0, 2) && world.is_in(1, 2) && world.is_in(2, 0));
}

#[test]
fn a_cut_of_less_than_the_patience_is_survived() {
    for shift in 0..20 {
        let mut world = World::of(2);
        world.run(500 * MS + 7 * MS * shift);
        let view = *world.hosts[0].node.membership().view();
        assert!(world.is_in(0, 1));
        let end = world.now + 1_800 * MS;
        while world.now < end {
            world.step(end, &mut |_, _, _| Vec::new());
        }
        world.run(1_000 * MS);
        assert!(world.is_in(0, 1) && world.is_in(1, 0), "{shift}");
        assert_eq!(*world.hosts[0].node.membership().view(), view, "{shift}");
    }
}

#[test]
fn a_full_card_is_tried_again_later() {
    let mut world = World::of(2);
    world.hosts[0].said.has_no_room = true;
    world.run(300 * MS);
    assert!(!world.is_in(0, 1));
    let Host { node, said, .. } = &mut world.hosts[0];
    while node.work(world.now, said) {}
    assert!(node.deadline() > world.now);
    said.has_no_room = false;
    world.run(1_500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
}

/// Kind of a message that is nobody's here.
const KIND: u8 = 0x50;

impl World {
    fn send(&mut self, from: usize, to: u8, bytes: usize, number: u8) -> Result<(), Refused> {
        let message = vec![number; bytes - 1];
        let node = &mut self.hosts[from].node;
        node.send(to, [&[KIND], &message])
    }

    /// Bytes and number of each message that a host has taken of another.
    fn taken(&self, host: usize, of: u8) -> Vec<(usize, u8)> {
        let all = self.hosts[host].said.messages.iter();
        let of = all.filter(|(from, message)| *from == of && message[0] == KIND);
        of.map(|(_, message)| (message.len(), message[1])).collect()
    }
}

#[test]
fn members_get_each_message_once_in_the_order_of_its_lane() {
    let mut world = World::of(3);
    assert_eq!(world.send(0, 1, 40, 0), Err(Refused::NoSession));
    world.run(500 * MS);
    let sent = [(URGENT_MAX, 1), (BULK_MAX, 2), (URGENT_MAX + 1, 3), (2, 4)];
    for (bytes, number) in sent {
        assert_eq!(world.send(0, 1, bytes, number), Ok(()));
        assert_eq!(world.send(1, 2, bytes, number), Ok(()));
    }
    let too_long = Refused::TooLong(BULK_MAX + 1, BULK_MAX);
    assert_eq!(world.send(0, 1, BULK_MAX + 1, 0), Err(too_long));
    assert_eq!(world.send(0, 9, 40, 0), Err(Refused::NoSession));
    // One that is refused is offered again, and nothing behind it is lost.
    world.hosts[2].said.takes_nothing = true;
    world.run(100 * MS);
    assert!(world.taken(2, 1).is_empty());
    world.hosts[2].said.takes_nothing = false;
    world.run(MS);
    for (host, of) in [(1, 0), (2, 1)] {
        let mut taken = world.taken(host, of);
        let order: Vec<u8> = taken.iter().map(|it| it.1).collect();
        let place = |number| order.iter().position(|it| *it == number);
        assert!(place(1) < place(4) && place(2) < place(3), "{order:?}");
        taken.sort_by_key(|it| it.1);
        assert_eq!(taken, sent);
    }
    assert!(world.taken(0, 1).is_empty() && world.taken(2, 0).is_empty());
}

#[test]
fn no_message_of_a_membership_that_has_ended_comes() {
    let mut world = World::of(3);
    world.run(500 * MS);
    assert_eq!(world.send(0, 1, 40, 1), Ok(()));
    assert_eq!(world.send(0, 1, 4000, 2), Ok(()));
    (world.dead, world.hosts[1].said.takes_nothing) = (Some(2), true);
    world.run(2_200 * MS);
    assert_eq!(world.send(0, 2, 40, 3), Err(Refused::NoSession));
    world.hosts[1].said.takes_nothing = false;
    world.run(1_500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
    assert!(world.hosts[1].said.messages.is_empty());
    assert_eq!(world.send(0, 1, 40, 4), Ok(()));
    world.run(MS);
    assert_eq!(world.taken(1, 0), [(40, 4)]);
}

#[test]
fn a_frame_that_fills_a_gap_brings_few_messages_at_once() {
    let mut world = World::of(2);
    world.run(500 * MS);
    for number in 0..20 {
        assert_eq!(world.send(0, 1, 1000, number), Ok(()));
    }
    let (end, mut is_first) = (world.now + 50 * MS, true);
    while world.now < end {
        world.step(end, &mut |from, _, frame| {
            let is_lost = from == 0 && std::mem::take(&mut is_first);
            if is_lost {
                Vec::new()
            } else {
                vec![(0, frame.to_vec())]
            }
        });
    }
    let taken: Vec<u8> = world.taken(1, 0).iter().map(|it| it.1).collect();
    assert_eq!(taken, (0..20).collect::<Vec<u8>>());
    assert_eq!(world.most_at_once, MESSAGES_AT_ONCE as usize);
}
