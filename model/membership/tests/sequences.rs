//! Single messages, in an order that hosts seldom bring about: promises, lives, proposals.
#![allow(clippy::unwrap_used)]
mod world;
use abi::cluster::{BEAT, Beat, FAREWELL, Farewell, HOSTS_MAX, PROPOSE, Propose};
use model_membership::{Change, Event, Membership, NEVER, Settings, Standing, Unfit};
use world::{Said, description};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// A host, and what it has said.
struct Own<const HOSTS: usize> {
    membership: Membership<HOSTS>,
    said: Said,
}

impl<const HOSTS: usize> Own<HOSTS> {
    fn new(host: u8, life: u64) -> Self {
        Self {
            membership: Membership::new(Settings::new(host), description(life)).unwrap(),
            said: Said::default(),
        }
    }

    /// Host 0, to which hosts of these lives have said what they are, after its first tick, at 0.
    fn among(lives: &[u64]) -> Self {
        let mut own = Self::new(0, 10);
        for (host, life) in (1..).zip(lives) {
            own.meets(0, host, *life);
            assert_eq!(own.membership.standing(host), Standing::Fit);
        }
        own.tick(0);
        own
    }

    fn tick(&mut self, now: u64) {
        self.membership.step(now, Event::Tick, &mut self.said);
    }

    fn hears(&mut self, now: u64, from: u8, message: &[u8]) {
        let event = Event::Message(from, message);
        self.membership.step(now, event, &mut self.said);
    }

    /// A session with a host of that life is up, and it says what it is.
    fn meets(&mut self, now: u64, host: u8, life: u64) {
        self.membership.step(now, Event::Up(host), &mut self.said);
        self.hears(now, host, description(life).as_bytes());
    }

    /// The beats that it has said, and to whom.
    fn beats(&self) -> impl DoubleEndedIterator<Item = (usize, Beat)> {
        let messages = self.said.messages.iter();
        messages.filter_map(|(to, message)| Some((*to, Beat::read_from_bytes(message).ok()?)))
    }

    /// The number of the latest beat to a host that is to be answered.
    fn asked(&self, host: u8) -> u32 {
        let mut beats = self.beats();
        let beat = beats.rfind(|(to, beat)| *to == usize::from(host) && beat.number.get() != 0);
        beat.unwrap().1.number.get()
    }

    fn has_proposed(&self) -> bool {
        self.said
            .messages
            .iter()
            .any(|(_, message)| message[0] == PROPOSE)
    }
}

fn beat(number: u32, echo: u32, with: u8, accepted: u64, life: u64) -> Beat {
    Beat {
        kind: BEAT,
        with,
        zeroes: [0; 2],
        number: number.into(),
        echo: echo.into(),
        accepted: accepted.into(),
        life: life.into(),
    }
}

/// A membership of hosts with these numbers and lives.
fn proposal<const N: usize>(id: u64, hosts: [(usize, u64); N]) -> Propose {
    let mut lives = [U64::ZERO; HOSTS_MAX];
    for (host, life) in hosts {
        lives[host] = life.into();
    }
    Propose {
        kind: PROPOSE,
        zeroes: [0; 7],
        id: id.into(),
        lives,
    }
}

/// Host 0, which has proposed a membership with host 1, of life 20; it is 0.1 s.
fn proposed() -> Own<2> {
    let mut own = Own::among(&[20]);
    own.hears(1_000, 1, beat(0, own.asked(1), 1, 0, 20).as_bytes());
    own.tick(100_000_000);
    assert!(own.has_proposed());
    own
}

/// The two in one membership, in which host 0 has just given a promise; the time.
fn entered() -> (Own<2>, u64) {
    let mut own = proposed();
    own.hears(
        100_001_000,
        1,
        beat(5, own.asked(1), 1, 1 << 8, 20).as_bytes(),
    );
    assert_eq!(own.membership.view().id, 1 << 8);
    own.tick(100_002_000);
    (own, 100_002_000)
}

#[test]
fn an_answer_to_a_host_that_is_not_with_this_one_promises_nothing() {
    let mut own = Own::<2>::among(&[20]);
    own.hears(1_000, 1, beat(7, 0, 0, 0, 20).as_bytes());
    own.tick(1_000);
    assert!(own.beats().any(|(_, beat)| beat.echo.get() == 7));
    assert_eq!(own.membership.owes_until(), 0);
}

#[test]
fn a_promise_that_is_too_old_lets_nobody_enter() {
    let mut own = proposed();
    own.hears(1_500_000_000, 1, beat(0, 0, 1, 1 << 8, 20).as_bytes());
    let id = own.membership.view().id;
    assert_eq!(id, 0, "entered by a promise of T_stop ago");
}

#[test]
fn a_new_life_has_heard_nobody() {
    let mut own = Own::<3>::among(&[20, 30]);
    for (now, accepted, tick) in [(1_000, 0, 100_000_000), (100_001_000, 1 << 8, 200_000_000)] {
        for (host, life) in [(1, 20), (2, 30)] {
            let answer = beat(0, own.asked(host), 1, accepted, life);
            own.hears(now, host, answer.as_bytes());
        }
        own.tick(tick);
    }
    assert_eq!(own.membership.view().id, 1 << 8);
    // Host 2 has a new life: this host leaves, and what it heard of host 1 was an answer to another life.
    own.hears(200_001_000, 2, beat(1, 0, 0, 0, 31).as_bytes());
    own.said.messages.clear();
    own.tick(300_000_000);
    assert_eq!(own.said.changes.last(), Some(&Change::Lost(2)));
    assert!(
        !own.has_proposed(),
        "proposes by what it heard in another life"
    );
}

#[test]
fn a_beat_that_answers_nothing_proves_nothing() {
    let mut own = Own::<2>::new(0, 10);
    own.meets(1_000, 1, 20);
    // Before this host has asked anything: 0 is no number.
    own.hears(1_000, 1, beat(1, 0, 1, 0, 20).as_bytes());
    own.tick(1_000);
    own.tick(150_000_000);
    assert!(!own.has_proposed());
}

#[test]
fn proposals_that_make_no_sense_are_dropped() {
    // Good; another leader's id; another life of this host; a host beyond the last.
    let cases = [
        (proposal(0x101, [(0, 10), (1, 20)]), 0x101),
        (proposal(0x100, [(0, 10), (1, 20)]), 0),
        (proposal(0x101, [(0, 9), (1, 20)]), 0),
        (proposal(0x101, [(0, 10), (1, 20), (9, 1)]), 0),
    ];
    for (proposal, expected) in cases {
        let mut own = Own::<2>::among(&[20]);
        own.hears(1_000, 1, proposal.as_bytes());
        own.said.messages.clear();
        own.hears(2_000, 1, beat(9, 0, 0, 0, 20).as_bytes());
        own.tick(2_000);
        let (_, latest) = own.beats().next_back().unwrap();
        assert_eq!(latest.accepted.get(), expected);
    }
}

/// Ids are used up by no message, and by none with many others after it.
#[test]
fn a_lie_about_ids_keeps_nobody_from_joining() {
    let far = [((1 << 40) + 1) << 8 | 2, u64::MAX << 8 | 2, u64::MAX];
    for id in far {
        let mut own = Own::<3>::among(&[20, 30]);
        let lie = proposal(id & !0xff | 2, [(0, 10), (1, 20), (2, 30)]);
        own.hears(1_000, 2, lie.as_bytes());
        own.hears(1_000, 2, beat(0, 0, 0, id, 30).as_bytes());
        own.hears(1_000, 1, beat(0, own.asked(1), 0, 0, 20).as_bytes());
        own.tick(200_000_000);
        let ids = own.said.messages.iter();
        let ids = ids.filter_map(|(_, message)| Propose::read_from_bytes(message).ok());
        let ids: Vec<u64> = ids.map(|it| it.id.get()).collect();
        assert_eq!(ids, [0x100], "{id:#x}");
    }
    // A host that has just begun joins an old cluster, and one that has been there for long goes on.
    for (accepted, next) in [(0, 1 << 40), (1 << 40, (1 << 40) + (1 << 24)), (0, 1)] {
        let mut own = Own::<2>::among(&[20]);
        for epoch in [accepted, next] {
            let proposal = proposal(epoch << 8 | 1, [(0, 10), (1, 20)]);
            own.hears(1_000, 1, proposal.as_bytes());
        }
        own.hears(2_000, 1, beat(9, 0, 0, 0, 20).as_bytes());
        own.tick(2_000);
        let (_, latest) = own.beats().next_back().unwrap();
        assert_eq!(latest.accepted.get(), next << 8 | 1);
    }
}

/// A description of another protocol, which says more or less.
#[test]
fn a_host_of_another_protocol_is_refused_by_it() {
    let mut theirs = description(20).as_bytes().to_vec();
    theirs[1] += 1;
    let protocol = abi::cluster::PROTOCOL;
    let unfit = Standing::Unfit(Unfit::Protocol(protocol + 1, protocol));
    for len in [2, theirs.len() - 1, theirs.len() + 8] {
        let mut own = Own::<2>::new(0, 10);
        own.membership.step(0, Event::Up(1), &mut own.said);
        let mut message = theirs.clone();
        message.resize(len, 0);
        own.hears(0, 1, &message);
        assert_eq!(own.membership.standing(1), unfit, "{len}");
        // One of this protocol has one length.
        own.membership.step(0, Event::Up(1), &mut own.said);
        message[1] = protocol;
        own.hears(0, 1, &message);
        assert_eq!(own.membership.standing(1), Standing::Unknown, "{len}");
    }
}

#[test]
fn a_member_is_owed_nothing_beyond_its_membership_nor_a_new_life() {
    let (mut own, now) = entered();
    assert_eq!(own.membership.owes_until(), 0);
    own.hears(now, 1, beat(6, 0, 0, 0, 21).as_bytes());
    own.tick(now);
    assert_eq!(own.said.changes.last(), Some(&Change::Lost(1)));
    assert_eq!(own.membership.owes_until(), 0);
}

#[test]
fn a_host_that_has_stopped_waits() {
    let (mut own, now) = entered();
    let now = now + 1_500_000_000;
    own.tick(now);
    own.tick(now);
    assert_eq!(own.said.changes.last(), Some(&Change::Stopped));
    assert!(own.membership.deadline() > now);
}

#[test]
fn another_life_of_a_host_enters_nothing() {
    let mut own = proposed();
    // It answers the next beat as another, which has accepted another membership of that id.
    let answer = beat(0, own.asked(1), 1, 1 << 8, 21);
    own.hears(100_001_000, 1, answer.as_bytes());
    assert_eq!(own.membership.view().id, 0);
}

fn farewell(life: u64) -> Farewell {
    Farewell {
        kind: FAREWELL,
        zeroes: [0; 7],
        life: life.into(),
    }
}

#[test]
fn a_member_that_says_farewell_stops_nobody() {
    let (mut own, now) = entered();
    own.said.messages.clear();
    own.hears(now, 1, farewell(20).as_bytes());
    assert_eq!(own.said.changes.last(), Some(&Change::Left(1)));
    assert_eq!(own.membership.view().lives, [10, 0]);
    assert_eq!(own.membership.runs_until(), NEVER);
    own.tick(now);
    own.tick(now + 1_000_000);
    let answer = (1, farewell(20).as_bytes().to_vec());
    assert_eq!(own.said.messages, [answer], "it answers once");
    // Neither its silence nor the end of its session is a loss, and it joins again as it restarts.
    own.membership.step(now, Event::Down(1), &mut own.said);
    own.tick(now + 9_000_000_000);
    assert_eq!(own.said.changes.last(), Some(&Change::Left(1)));
    own.meets(now, 1, 21);
    assert_eq!(own.membership.standing(1), Standing::Fit);
}

#[test]
fn a_farewell_of_another_life_is_none_of_this_one() {
    let (mut own, now) = entered();
    own.hears(now, 1, farewell(19).as_bytes());
    assert_eq!(own.membership.view().lives, [10, 20]);
    own.tick(now + 2_000_000_000);
    assert_eq!(own.said.changes.last(), Some(&Change::Lost(1)));
}

#[test]
fn a_host_that_leaves_falls_silent_once_it_is_heard() {
    let (mut own, now) = entered();
    own.said.messages.clear();
    own.membership.retire();
    own.hears(now, 1, beat(9, 0, 1, 1 << 8, 20).as_bytes());
    own.tick(now);
    own.tick(now);
    assert_eq!(own.said.messages, [(1, farewell(10).as_bytes().to_vec())]);
    assert_eq!(own.membership.view().lives, [11, 0]);
    assert!(!own.membership.has_left());
    own.hears(now, 1, farewell(10).as_bytes());
    assert!(own.membership.has_left());
    assert_eq!(own.membership.deadline(), NEVER);
    // Whoever comes later is told as well.
    own.meets(now, 1, 21);
    own.tick(now);
    assert_eq!(own.said.messages.len(), 2);
}

/// A proposal names a host that has not yet said what it is.
#[test]
fn a_tick_does_all_that_is_due() {
    // Host 1 of three: host 0 leads, and host 2 has a session with this one, but its description is late.
    let mut own = Own::<3>::new(1, 11);
    own.meets(1_000, 0, 10);
    own.membership.step(1_000, Event::Up(2), &mut own.said);
    own.tick(1_000);
    let proposal = proposal(1 << 8, [(0, 10), (1, 11), (2, 12)]);
    own.hears(2_000, 0, proposal.as_bytes());
    own.tick(3_000);
    let (mut now, mut ticks) = (3_000, 0);
    // 50 ms: the next beats are due after 100 ms.
    while now < 50_000_000 && ticks < 1000 {
        now = own.membership.deadline().max(now + 100_000);
        own.tick(now);
        ticks += 1;
    }
    assert!(ticks < 10, "{ticks} ticks, the last at {now}");
}
