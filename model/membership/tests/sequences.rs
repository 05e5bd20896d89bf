//! Single messages, in an order that hosts seldom bring about: promises, lives, proposals.
#![allow(clippy::unwrap_used)]
mod world;
use abi::cluster::{BEAT, Beat, PROPOSE};
use model_membership::{Actions, Change, Event, Membership, Settings, Standing};
use world::description;
use zerocopy::{FromBytes, IntoBytes};

#[derive(Default)]
struct Out(Vec<(u8, Vec<u8>)>, Vec<Change>);
impl Actions for Out {
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        self.0.push((host, message.to_vec()));
        true
    }
    fn changed(&mut self, change: Change) {
        self.1.push(change);
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

/// Host 0, to which hosts of these lives have said what they are, and what it said at its first tick, at 0.
fn own<const HOSTS: usize>(lives: &[u64]) -> (Membership<HOSTS>, Out) {
    let mut out = Out::default();
    let mut own = Membership::new(Settings::new(0), description(10)).unwrap();
    for (host, life) in (1_u8..).zip(lives) {
        own.step(0, Event::Up(host), &mut out);
        own.step(
            0,
            Event::Message(host, description(*life).as_bytes()),
            &mut out,
        );
        assert_eq!(own.standing(host), Standing::Fit);
    }
    own.step(0, Event::Tick, &mut out);
    (own, out)
}

/// The number of the latest beat to a host that is to be answered.
fn asked(out: &Out, host: u8) -> u32 {
    let beats = out
        .0
        .iter()
        .filter(|(to, message)| *to == host && message[0] == BEAT);
    let mut numbers =
        beats.map(|(_, message)| Beat::read_from_bytes(message).unwrap().number.get());
    numbers.rfind(|number| *number != 0).unwrap()
}

#[test]
fn an_answer_to_a_host_that_is_not_with_this_one_promises_nothing() {
    let (mut own, mut out) = own::<2>(&[20]);
    own.step(
        1_000,
        Event::Message(1, beat(7, 0, 0, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(1_000, Event::Tick, &mut out);
    let echo = |(_, message): &(u8, Vec<u8>)| {
        Beat::read_from_bytes(message).is_ok_and(|it| it.echo.get() == 7)
    };
    assert!(out.0.iter().any(echo));
    assert_eq!(own.owes_until(), 0);
}

#[test]
fn a_promise_that_is_too_old_lets_nobody_enter() {
    let (mut own, mut out) = own::<2>(&[20]);
    let number = asked(&out, 1);
    own.step(
        1_000,
        Event::Message(1, beat(0, number, 1, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(100_000_000, Event::Tick, &mut out);
    assert!(out.0.iter().any(|(_, message)| message[0] == PROPOSE));
    own.step(
        1_500_000_000,
        Event::Message(1, beat(0, 0, 1, 1 << 8, 20).as_bytes()),
        &mut out,
    );
    assert_eq!(own.view().id, 0, "entered by a promise of T_stop ago");
}

#[test]
fn a_new_life_has_heard_nobody() {
    let (mut own, mut out) = own::<3>(&[20, 30]);
    for host in [1, 2] {
        let number = asked(&out, host);
        let life = 10 + 10 * u64::from(host);
        own.step(
            1_000,
            Event::Message(host, beat(0, number, 1, 0, life).as_bytes()),
            &mut out,
        );
    }
    own.step(100_000_000, Event::Tick, &mut out);
    for host in [1, 2] {
        let life = 10 + 10 * u64::from(host);
        own.step(
            100_001_000,
            Event::Message(host, beat(0, asked(&out, host), 1, 1 << 8, life).as_bytes()),
            &mut out,
        );
    }
    assert_eq!(own.view().id, 1 << 8);
    own.step(200_000_000, Event::Tick, &mut out);
    // Host 2 has a new life: this host leaves, and what it heard of host 1 was an answer to another life.
    own.step(
        200_001_000,
        Event::Message(2, beat(1, 0, 0, 0, 31).as_bytes()),
        &mut out,
    );
    out.0.clear();
    own.step(300_000_000, Event::Tick, &mut out);
    assert_eq!(out.1.last(), Some(&Change::Lost(2)));
    assert!(
        out.0.iter().all(|(_, message)| message[0] != PROPOSE),
        "proposes by what it heard in another life"
    );
}

#[test]
fn a_beat_that_answers_nothing_proves_nothing() {
    let mut out = Out::default();
    let mut own = Membership::<2>::new(Settings::new(0), description(10)).unwrap();
    own.step(1_000, Event::Up(1), &mut out);
    own.step(
        1_000,
        Event::Message(1, description(20).as_bytes()),
        &mut out,
    );
    // Before this host has asked anything: 0 is no number.
    own.step(
        1_000,
        Event::Message(1, beat(1, 0, 1, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(1_000, Event::Tick, &mut out);
    own.step(150_000_000, Event::Tick, &mut out);
    assert!(out.0.iter().all(|(_, message)| message[0] != PROPOSE));
}

/// What this host has accepted, as its latest beat says.
fn accepted(own: &mut Membership<2>, now: u64) -> u64 {
    let mut out = Out::default();
    own.step(
        now,
        Event::Message(1, beat(9, 0, 0, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(now, Event::Tick, &mut out);
    let mut beats = out
        .0
        .iter()
        .filter_map(|(_, message)| Beat::read_from_bytes(message).ok());
    beats.next_back().unwrap().accepted.get()
}

#[test]
fn proposals_that_make_no_sense_are_dropped() {
    let proposal = |id: u64, own: u64, theirs: u64, beyond: u64| {
        let mut lives = [zerocopy::little_endian::U64::ZERO; abi::cluster::HOSTS_MAX];
        (lives[0], lives[1], lives[9]) = (own.into(), theirs.into(), beyond.into());
        abi::cluster::Propose {
            kind: PROPOSE,
            zeroes: [0; 7],
            id: id.into(),
            lives,
        }
    };
    // Good; another leader's id; another life of this host; a host beyond the last.
    let cases = [
        (proposal(0x101, 10, 20, 0), 0x101),
        (proposal(0x100, 10, 20, 0), 0),
        (proposal(0x101, 9, 20, 0), 0),
        (proposal(0x101, 10, 20, 1), 0),
    ];
    for (proposal, expected) in cases {
        let (mut own, mut out) = own::<2>(&[20]);
        own.step(1_000, Event::Message(1, proposal.as_bytes()), &mut out);
        assert_eq!(accepted(&mut own, 2_000), expected);
    }
}

/// Two hosts in one membership, in which this one has just given a promise; the time.
fn entered() -> (Membership<2>, Out, u64) {
    let (mut own, mut out) = own::<2>(&[20]);
    let number = asked(&out, 1);
    own.step(
        1_000,
        Event::Message(1, beat(0, number, 1, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(100_000_000, Event::Tick, &mut out);
    own.step(
        100_001_000,
        Event::Message(1, beat(5, asked(&out, 1), 1, 1 << 8, 20).as_bytes()),
        &mut out,
    );
    assert_eq!(own.view().id, 1 << 8);
    own.step(100_002_000, Event::Tick, &mut out);
    (own, out, 100_002_000)
}

#[test]
fn a_member_is_owed_nothing_beyond_its_membership_nor_a_new_life() {
    let (mut own, mut out, now) = entered();
    assert_eq!(own.owes_until(), 0);
    own.step(
        now,
        Event::Message(1, beat(6, 0, 0, 0, 21).as_bytes()),
        &mut out,
    );
    own.step(now, Event::Tick, &mut out);
    assert_eq!(out.1.last(), Some(&Change::Lost(1)));
    assert_eq!(own.owes_until(), 0);
}

#[test]
fn a_host_that_has_stopped_waits() {
    let (mut own, mut out, now) = entered();
    let now = now + 1_500_000_000;
    own.step(now, Event::Tick, &mut out);
    own.step(now, Event::Tick, &mut out);
    assert_eq!(out.1.last(), Some(&Change::Stopped));
    assert!(own.deadline() > now);
}

#[test]
fn another_life_of_a_host_enters_nothing() {
    let (mut own, mut out) = own::<2>(&[20]);
    let number = asked(&out, 1);
    own.step(
        1_000,
        Event::Message(1, beat(0, number, 1, 0, 20).as_bytes()),
        &mut out,
    );
    own.step(100_000_000, Event::Tick, &mut out);
    // It answers the next beat as another, which has accepted another membership of that id.
    own.step(
        100_001_000,
        Event::Message(1, beat(0, asked(&out, 1), 1, 1 << 8, 21).as_bytes()),
        &mut out,
    );
    assert_eq!(own.view().id, 0);
}

/// A proposal names a host that has not yet said what it is.
#[test]
fn a_tick_does_all_that_is_due() {
    let mut out = Out::default();
    // Host 1 of three: host 0 leads, and host 2 has a session with this one, but its description is late.
    let mut own = Membership::<3>::new(Settings::new(1), description(11)).unwrap();
    own.step(1_000, Event::Up(0), &mut out);
    own.step(
        1_000,
        Event::Message(0, description(10).as_bytes()),
        &mut out,
    );
    own.step(1_000, Event::Up(2), &mut out);
    own.step(1_000, Event::Tick, &mut out);
    let mut lives = [zerocopy::little_endian::U64::ZERO; abi::cluster::HOSTS_MAX];
    (lives[0], lives[1], lives[2]) = (10.into(), 11.into(), 12.into());
    let proposal = abi::cluster::Propose {
        kind: PROPOSE,
        zeroes: [0; 7],
        id: (1 << 8).into(),
        lives,
    };
    own.step(2_000, Event::Message(0, proposal.as_bytes()), &mut out);
    own.step(3_000, Event::Tick, &mut out);
    out.0.clear();
    let mut now = 3_000;
    let mut ticks = 0;
    // 50 ms: the next beats are due after 100 ms.
    while now < 50_000_000 && ticks < 1000 {
        now = own.deadline().max(now + 100_000);
        own.step(now, Event::Tick, &mut out);
        ticks += 1;
    }
    assert!(
        ticks < 10,
        "{ticks} ticks, the last at {now}, of which {} sent anything",
        out.0.len()
    );
}
