//! Hosts that leave: every order of few accesses, and what is left of them at the end.

#![allow(clippy::unwrap_used)]

mod world;

use abi::coherence::{Entry, Kind, Message};
use model_coherence::{Broken, Event, NEVER, State, Switches};
use std::collections::VecDeque;
use world::line::{IVY, Line};
use world::net::{BOTH, Left, is_soak, scenario, search};
use world::{Doing, LEASE_NS, LIFE, Op, Scenario, WORDS, Word, World, entry_to};
use zerocopy::IntoBytes;

const X: Word = (0, 0);
const Y: Word = (1, 0);

const ONE: Left = Left {
    aways: 0,
    ticks: 0,
    deaths: 0,
    quiets: 0,
    leaves: 1,
};

/// The home leaves, while others use its page.
#[test]
fn a_home_leaves() {
    use Op::{Add, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Load(X), Store(X, 5)]),
        (1, &[Add(X), Load(X)]),
        (2, &[Add(X)]),
    ];
    let all = [
        (BOTH[0], [0; WORDS]),
        (BOTH[1], [3; WORDS]),
        (BOTH[0], [3; WORDS]),
        (BOTH[1], [0; WORDS]),
    ];
    for (switches, initial) in &all[..if is_soak() { 4 } else { 2 }] {
        let scenario = Scenario {
            switches: *switches,
            initial: vec![*initial],
            ..scenario(&scripts, &[2])
        };
        search::<3, 2>("a home leaves", &scenario, &[0, 1, 2], ONE);
    }
}

/// The leaver owns pages of another home, and has copies.
#[test]
fn an_owner_leaves() {
    use Op::{Add, Copy, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Load(X), Add(X)]),
        (1, &[Store(Y, 5)]),
        (2, &[Copy(X, Y)]),
    ];
    for homes in [[0, 1], [1, 2], [0, 2]] {
        let scenario = scenario(&scripts, &homes);
        search::<3, 2>("an owner leaves", &scenario, &[0, 1, 2], ONE);
    }
}

/// Two hosts leave, at once or one after the other, and have pages of each other.
#[test]
fn two_hosts_leave() {
    use Op::{Add, Load};
    let scripts: [(usize, &[Op]); 3] = [(0, &[Add(X), Load(Y)]), (1, &[Add(Y)]), (2, &[Add(X)])];
    let all = [[1, 1], [1, 2]];
    for homes in &all[..if is_soak() { 2 } else { 1 }] {
        let left = Left { leaves: 2, ..ONE };
        let scenario = scenario(&scripts, homes);
        search::<3, 2>("two hosts leave", &scenario, &[0, 1, 2], left);
    }
}

/// The home of a page with readers leaves while it gives them the page again.
#[test]
fn a_home_that_pushes_leaves() {
    use Op::{Load, Store};
    let scripts: [(usize, &[Op]); 3] = [(0, &[Load(X), Load(X)]), (1, &[Store(X, 2)]), (2, &[])];
    let left = Left { quiets: 2, ..ONE };
    let scenario = scenario(&scripts, &[2]);
    search::<3, 2>("a home that pushes leaves", &scenario, &[0, 1, 2], left);
}

/// Invalidations of TLB entries do not wait for who has left, and what follows them does not overtake them.
#[test]
fn a_host_leaves_between_invalidations() {
    use Op::{Load, LoadVia, Store, Tlbi};
    const ENTRY: Word = (1, 0);
    const FLAG: Word = (1, 1);
    let change = Store(ENTRY, entry_to((0, 1)));
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[change, Tlbi(ENTRY), Store(FLAG, 1)]),
        (1, &[LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)]),
        (2, &[]),
    ];
    for switches in BOTH {
        let scenario = Scenario {
            switches,
            initial: vec![[5, 7], [0; WORDS]],
            ..scenario(&scripts, &[1, 2])
        };
        search::<3, 2>("invalidations", &scenario, &[0, 1, 2], ONE);
    }
}

/// A host that dies while it leaves ends the session, and shows nothing old.
#[test]
fn a_host_dies_while_it_leaves() {
    use Op::{Add, Load};
    let scripts: [(usize, &[Op]); 2] = [(0, &[Add(X), Load(X)]), (1, &[Add(X)])];
    let left = Left { deaths: 1, ..ONE };
    let scenario = scenario(&scripts, &[1]);
    search::<2, 2>("a death", &scenario, &[0, 1], left);
}

/// Its bytes are zero, and were not when another host read it.
#[test]
fn a_page_that_was_touched_is_not_taken_for_untouched() {
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Op::Load(X), Op::Load(X), Op::Store(X, 1)]),
        (1, &[Op::Store(X, 0)]),
    ];
    for switches in [Switches::ALL, IVY] {
        let mut line = Line::<2>::new(&scripts, &[1], switches);
        line.world.nodes[1].machine.memory[0] = [1, 0];
        line.world.truth[0] = [1, 0];
        line.run(0);
        line.run(1);
        line.event(1, Event::Leave);
        line.world.check_left(1);
        line.run(0);
        line.run(0);
        assert_eq!(line.world.vcpus[0].registers, [1, 0]);
    }
}

#[test]
fn the_last_host_waits_for_nobody() {
    use Op::{Load, Tlbi};
    let scripts: [(usize, &[Op]); 1] = [(0, &[Tlbi(X), Tlbi(X), Load(X)])];
    for switches in [Switches::ALL, IVY] {
        let mut line = Line::<2>::new(&scripts, &[1], switches);
        line.run(0);
        line.event(1, Event::Leave);
        line.world.check_left(1);
        (0..2).for_each(|_| line.run(0));
        assert!(line.world.vcpus[0].is_done());
        assert!(!line.world.nodes[0].core.holds_messages());
    }
}

/// A leaver of five pages behind one of the heir, which has heard its word.
fn leaver() -> Line<2> {
    let mut line = Line::<2>::new(&[(0, &[Op::Load(Y)])], &[0, 1, 1, 1, 1, 1], Switches::ALL);
    line.run(0);
    let sent = line.world.step(1, 0, Event::Leave);
    let held = line.world.step(0, 0, Event::Message(1, &sent[0].1));
    assert_eq!(Message::parse(&held[0].1).unwrap().0.kind, Kind::Held);
    line
}

/// Gives the heir entries from that page on; what it says of it.
fn hand_over<const HOSTS: usize>(
    line: &mut Line<HOSTS>,
    page: u32,
    entries: &[Entry],
) -> Option<Broken> {
    let message = Message {
        page: page.into(),
        life: LIFE.into(),
        ..Message::plain(Kind::Entries, 1)
    };
    let bytes = [message.as_bytes(), entries.as_bytes()].concat();
    line.world.step(0, 0, Event::Message(1, &bytes));
    line.world.nodes[0].broken
}

/// What a leaver says of four pages that it owns.
fn good() -> Entry {
    Entry {
        owner: 1,
        writer: 1,
        sharers: 0.into(),
        readers: 0.into(),
        pages: 4,
        flags: 0,
    }
}

#[test]
fn what_is_no_entry_ends_the_session() {
    let good = good();
    // The heir has a copy of page 1.
    let shared = Entry {
        sharers: 1.into(),
        pages: 1,
        ..good
    };
    assert_eq!(hand_over(&mut leaver(), 1, &[shared, good]), None);
    let bad = |page, change: &dyn Fn(&mut Entry)| {
        let mut entry = good;
        change(&mut entry);
        let entries = [shared, entry];
        let entries = if page == 1 {
            &entries[..]
        } else {
            &entries[1..]
        };
        hand_over(&mut leaver(), page, entries)
    };
    let unexpected = Some(Broken::Unexpected(1, Kind::Entries));
    let none = bad(2, &|_| ());
    assert_eq!(none, None, "it goes on behind");
    assert_eq!(bad(1, &|it| it.pages = 5), unexpected, "more pages");
    assert_eq!(bad(2, &|it| it.pages = 0), unexpected, "of no page");
    assert_eq!(bad(1, &|it| it.owner = 2), unexpected, "no such owner");
    assert_eq!(bad(1, &|it| it.writer = 2), unexpected, "no such writer");
    assert_eq!(
        bad(1, &|it| it.readers = 4.into()),
        unexpected,
        "no such reader"
    );
    assert_eq!(
        bad(1, &|it| it.sharers = 2.into()),
        unexpected,
        "the owner shares"
    );
    assert_eq!(
        bad(1, &|it| it.sharers = 1.into()),
        unexpected,
        "it has no copy"
    );
    assert_eq!(bad(1, &|it| it.owner = 0), unexpected, "it is no owner");
    let untouched = |it: &mut Entry| (it.flags, it.owner) = (Entry::UNTOUCHED, 0);
    assert_eq!(bad(1, &untouched), unexpected, "its own");
}

#[test]
fn entries_of_others_end_the_session() {
    let good = good();
    let unexpected = Some(Broken::Unexpected(1, Kind::Entries));
    // Behind the leaver's last page is one of a third host.
    let mut line = Line::<3>::new(&[], &[1, 2], Switches::ALL);
    let sent = line.world.step(1, 0, Event::Leave);
    line.world.step(0, 0, Event::Message(1, &sent[0].1));
    assert_eq!(
        hand_over(&mut line, 0, &[Entry { pages: 2, ..good }]),
        unexpected
    );
    // More than are looked at in a step, and before this heir has said that it asks for nothing.
    let pages = [0; 1].into_iter().chain([1; 200]).collect::<Vec<_>>();
    let mut line = Line::<2>::new(&[], &pages, Switches::ALL);
    let sent = line.world.step(1, 0, Event::Leave);
    line.world.step(0, 0, Event::Message(1, &sent[0].1));
    assert_eq!(
        hand_over(&mut line, 1, &[Entry { pages: 129, ..good }]),
        unexpected
    );
    let mut line = Line::<2>::new(&[(0, &[Op::Load(X)])], &[1], Switches::ALL);
    let get = line.world.run(0, 0);
    let sent = line.world.step(1, 0, Event::Leave);
    let held = line.world.step(0, 0, Event::Message(1, &sent[0].1));
    assert_eq!((get.len(), held.len()), (1, 0));
    assert_eq!(
        hand_over(&mut line, 0, &[Entry { pages: 1, ..good }]),
        unexpected
    );
    // Of another home, of none that leaves, and less than an entry.
    let foreign = Entry {
        owner: 0,
        pages: 1,
        ..good
    };
    let misdirected = Some(Broken::Misdirected(1, Kind::Entries));
    assert_eq!(hand_over(&mut leaver(), 0, &[foreign]), misdirected);
    let mut stays = Line::<2>::new(&[], &[1], Switches::ALL);
    assert_eq!(
        hand_over(&mut stays, 0, &[Entry { pages: 1, ..good }]),
        unexpected
    );
    let mut line = leaver();
    assert_eq!(hand_over(&mut line, 1, &[]), unexpected);
}

/// Hosts whose messages come when they are let.
struct Slow {
    world: World<3, 10>,
    wires: [[VecDeque<Vec<u8>>; 3]; 3],
    now: u64,
}

impl Slow {
    fn put(&mut self, from: usize, sent: Vec<(u8, Vec<u8>)>) {
        for (to, bytes) in sent {
            self.wires[from][usize::from(to)].push_back(bytes);
        }
    }

    /// Delivers all but from where a leaver says that it is empty to host 0, if that is late.
    fn flow(&mut self, is_late: bool) {
        let ways = || (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
        let next = |wires: &[[VecDeque<Vec<u8>>; 3]; 3]| {
            let mut ways = ways();
            ways.find(|(from, to)| {
                let message = wires[*from][*to].front();
                let message = message.map(|bytes| Message::parse(bytes).unwrap().0);
                let is_empty = |m: &Message| m.kind == Kind::Leave && m.acks == 2 && *to == 0;
                message.is_some_and(|it| !(is_late && is_empty(&it)))
            })
        };
        while let Some((from, to)) = next(&self.wires) {
            let bytes = self.wires[from][to].pop_front().unwrap();
            let event = Event::Message(from as u8, &bytes);
            let sent = self.world.step(to, self.now, event);
            self.put(to, sent);
        }
    }

    /// Lets a vCPU do an instruction; what is held meanwhile is let go.
    fn run(&mut self, vcpu: usize) {
        let (at, host) = (self.world.vcpus[vcpu].at, self.world.vcpus[vcpu].host);
        while self.world.vcpus[vcpu].at == at {
            if self.world.vcpus[vcpu].doing == Doing::Runs {
                let sent = self.world.run(vcpu, self.now);
                self.put(host, sent);
            }
            self.flow(false);
            self.tick();
        }
        let sent = self.world.retire(vcpu, self.now);
        self.put(host, sent);
    }

    fn tick(&mut self) {
        for host in 0..3 {
            let deadline = self.world.nodes[host].core.deadline();
            if deadline != NEVER {
                self.now = self.now.max(deadline);
                let sent = self.world.step(host, self.now, Event::Tick);
                self.put(host, sent);
                self.flow(false);
            }
        }
    }
}

/// It had a copy of a page that bounces, which a home that has not heard of it asks back.
#[test]
fn a_leaver_that_holds_an_answer_has_not_left() {
    let adds = vec![Op::Add(X); 12];
    let mut last = adds[..11].to_vec();
    last.push(Op::Load(X));
    let scenario = Scenario {
        scripts: vec![(0, adds), (1, vec![Op::Store(X, 99)]), (2, last)],
        initial: vec![[1; WORDS]; 2],
        homes: vec![0, 1],
        switches: Switches { hold: true, ..IVY },
        lease_ns: LEASE_NS,
    };
    let mut slow = Slow {
        world: World::new(&scenario),
        wires: Default::default(),
        now: 0,
    };
    for _ in 0..12 {
        slow.run(0);
        slow.run(2);
    }
    assert_eq!(slow.world.nodes[2].core.state(0), State::Shared);
    let sent = slow.world.step(2, slow.now, Event::Leave);
    slow.put(2, sent);
    slow.flow(true);
    let sent = slow.world.run(1, slow.now);
    slow.put(1, sent);
    slow.flow(true);
    slow.flow(false);
    let leaver = &slow.world.nodes[2].core;
    assert_ne!(leaver.deadline(), NEVER, "it holds an answer");
    assert!(!leaver.has_left());
    slow.tick();
    slow.flow(false);
    slow.world.check_left(2);
    assert_eq!(slow.world.vcpus[1].doing, Doing::Runs);
}
