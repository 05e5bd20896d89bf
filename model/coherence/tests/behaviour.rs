//! What each switch saves, when leases and holds end, and what becomes of a peer that breaks the protocol.

#![allow(clippy::unwrap_used)]

mod world;

use abi::coherence::{Access, Form, Kind, Message};
use model_coherence::{Broken, Event, NEVER, State, Switches};
use world::line::{IVY, Line};
use world::{Doing, HOLD_NS, LEASE_NS, LIFE, Op, WORDS, WRITTEN, Word};
use zerocopy::IntoBytes;

const X: Word = (0, 0);
const Y: Word = (1, 0);

#[test]
fn equal_versions_send_no_bytes() {
    let scripts: [(usize, &[Op]); 1] = [(1, &[Op::Load(X), Op::Store(X, 5)])];
    let forms = |switches| {
        let data = Line::<2>::new(&scripts, &[0], switches).run_all(0, Kind::Data);
        data.iter().map(|message| message.form).collect::<Vec<_>>()
    };
    assert_eq!(forms(IVY), [Form::Full, Form::Full]);
    let versions = true;
    assert_eq!(
        forms(Switches { versions, ..IVY }),
        [Form::Full, Form::None]
    );
}

#[test]
fn hosts_with_an_earlier_version_are_sent_what_changed() {
    let scripts: [(usize, &[Op]); 2] = [
        (1, &[Op::Load(X), Op::Load(X), Op::Add(X)]),
        (0, &[Op::Store(X, 7), Op::Load(X)]),
    ];
    let forms = |switches| {
        let mut line = Line::<2>::new(&scripts, &[0], switches);
        // Read by the one, written by the other, read and written by the one, read by the other.
        for vcpu in [0, 1, 0, 0, 1] {
            line.run(vcpu);
        }
        let data = line.sent.iter().filter(|it| it.kind == Kind::Data);
        let forms: Vec<_> = data.map(|message| message.form).collect();
        assert_eq!(line.world.vcpus[0].registers, [1, 7, 7]);
        assert_eq!(line.world.vcpus[1].registers, [8]);
        forms
    };
    let versions = true;
    let without = Switches { versions, ..IVY };
    let [full, none, changed] = [Form::Full, Form::None, Form::Changes];
    assert_eq!(forms(without), [full, full, none, full]);
    let changes = true;
    let with = Switches { changes, ..without };
    assert_eq!(forms(with), [full, changed, none, changed]);
}

#[test]
fn zeroes_are_not_sent() {
    let scripts: [(usize, &[Op]); 2] = [(1, &[Op::Zero(0)]), (0, &[Op::Load(X)])];
    let mut line = Line::<2>::new(&scripts, &[0], Switches { zero: true, ..IVY });
    assert_eq!(line.run_all(0, Kind::Data)[0].form, Form::None);
    assert_eq!(line.run_all(1, Kind::Data)[0].form, Form::Zero);
    let mut line = Line::<2>::new(&scripts, &[0], IVY);
    assert_eq!(line.run_all(0, Kind::Data)[0].form, Form::Full);
    assert_eq!(line.run_all(1, Kind::Data)[0].form, Form::Full);
}

#[test]
fn a_sequence_is_fetched_in_bursts() {
    let script: Vec<Op> = (0..30).map(|page| Op::Load((page, 0))).collect();
    let scripts: [(usize, &[Op]); 1] = [(1, &script)];
    let faults = |switches| {
        let mut line = Line::<2>::new(&scripts, &[0; 30], switches);
        let gets = line.run_all(0, Kind::Get);
        let early = gets.iter().filter(|get| get.since == u64::MAX);
        (gets.len() - early.clone().count(), early.count())
    };
    assert_eq!(faults(IVY), (30, 0));
    // Two misses, then bursts of four, eight and as many as may be under way early, which are five.
    let (misses, early) = faults(Switches { burst: true, ..IVY });
    assert_eq!(misses + early, 30);
    assert!(misses < 12, "{misses} misses");
}

/// The home of a sequence that another host has written asks itself for all of a burst.
#[test]
fn a_home_fetches_its_own_pages_in_bursts() {
    let writes: Vec<Op> = (0..30).map(|page| Op::Store((page, 0), 7)).collect();
    let reads: Vec<Op> = (0..30).map(|page| Op::Load((page, 0))).collect();
    let scripts: [(usize, &[Op]); 2] = [(1, &writes), (0, &reads)];
    let mut line = Line::<2>::new(&scripts, &[0; 30], Switches { burst: true, ..IVY });
    line.run_all(0, Kind::Get);
    line.run_all(1, Kind::Get);
    assert_eq!(line.world.vcpus[1].registers, [7; 30]);
}

#[test]
fn a_lock_brings_what_it_protects() {
    let script = [Op::Add(X), Op::Add(Y)];
    let scripts: [(usize, &[Op]); 3] = [(1, &script), (0, &script), (1, &script)];
    let companions = true;
    let mut line = Line::<2>::new(&scripts, &[0, 0], Switches { companions, ..IVY });
    line.run_all(0, Kind::Get);
    line.run_all(1, Kind::Get);
    // Long after, the vCPU that knows them asks for both at once.
    line.now += 1_000_000;
    line.world.vcpus[0].at = 0;
    line.sent.clear();
    line.run(0);
    let asks = |message: &&Message| message.kind == Kind::Get;
    let pages: Vec<u32> = line
        .sent
        .iter()
        .filter(asks)
        .map(|m| m.page.get())
        .collect();
    assert_eq!(pages, [0, 1]);
    assert_eq!(line.run_all(0, Kind::Get), []);
}

const MIGRATORY: Switches = Switches {
    migratory: true,
    ..IVY
};

/// Two hosts read and then write a page in turns: once that is known, they ask for it once each.
#[test]
fn a_page_that_migrates_is_given_whole() {
    let twice = [Op::Load(X), Op::Store(X, 5), Op::Load(X), Op::Store(X, 7)];
    let scripts: [(usize, &[Op]); 2] = [(1, &twice), (2, &twice)];
    for (switches, misses) in [(IVY, 8), (MIGRATORY, 5)] {
        let mut line = Line::<3>::new(&scripts, &[0], switches);
        for vcpu in [0, 0, 1, 1, 0, 0, 1, 1] {
            line.run(vcpu);
        }
        let gets = line.sent.iter().filter(|it| it.kind == Kind::Get);
        assert_eq!(gets.count(), misses);
        assert_eq!(line.world.vcpus[0].registers, [1, 5]);
        assert_eq!(line.world.vcpus[1].registers, [5, 7]);
    }
}

/// Whoever reads such a page and leaves it at that keeps a copy when others read it.
#[test]
fn a_page_that_is_read_migrates_no_longer() {
    let writes = [Op::Load(X), Op::Store(X, 5), Op::Load(X), Op::Load(X)];
    let reads = [Op::Load(X), Op::Load(X)];
    let scripts: [(usize, &[Op]); 3] = [(1, &writes), (2, &reads), (0, &reads)];
    let mut line = Line::<3>::new(&scripts, &[0], MIGRATORY);
    let state = |line: &Line<3>, host: usize| line.world.nodes[host].core.state(0);
    for vcpu in [0, 0, 1] {
        line.run(vcpu);
    }
    assert_eq!(state(&line, 2), State::Exclusive);
    for vcpu in [0, 1, 2] {
        line.run(vcpu);
    }
    let states = [0, 1, 2].map(|host| state(&line, host));
    assert_eq!(states, [State::Shared, State::Shared, State::Owned]);
}

/// A page that one host writes and another reads was taken for one that migrates, and is not again.
#[test]
fn a_page_of_one_writer_does_not_migrate() {
    let writes = [Op::Load(X), Op::Store(X, 5), Op::Load(X), Op::Store(X, 7)];
    let reads = [Op::Load(X), Op::Load(X)];
    let scripts: [(usize, &[Op]); 2] = [(1, &writes), (2, &reads)];
    let mut line = Line::<3>::new(&scripts, &[0], MIGRATORY);
    for vcpu in [0, 0, 1, 0, 0, 1] {
        line.run(vcpu);
    }
    let states = [1, 2].map(|host| line.world.nodes[host].core.state(0));
    assert_eq!(states, [State::Owned, State::Shared]);
}

/// The first who reads what nobody has touched may write it, too.
#[test]
fn an_untouched_page_is_given_whole() {
    let script = [Op::Load(X), Op::Store(X, 5)];
    let scripts: [(usize, &[Op]); 1] = [(1, &script)];
    for (word, switches, misses) in [(0, IVY, 2), (1, MIGRATORY, 2), (0, MIGRATORY, 1)] {
        let mut line = Line::<2>::with(word, &scripts, &[0], switches);
        assert_eq!(line.run_all(0, Kind::Get).len(), misses);
    }
}

#[test]
fn readers_get_a_page_that_was_written() {
    let scripts: [(usize, &[Op]); 3] = [
        (1, &[Op::Load(X), Op::Load(X)]),
        (2, &[Op::Load(X), Op::Load(X)]),
        (0, &[Op::Store(X, 7)]),
    ];
    for (push, misses) in [(false, 1), (true, 0)] {
        let mut line = Line::<3>::new(&scripts, &[0], Switches { push, ..IVY });
        line.run(0);
        line.run(1);
        WRITTEN.set(None);
        line.run_all(2, Kind::Get);
        assert_eq!(WRITTEN.take(), push.then_some(0));
        line.event(0, Event::Quiet(0));
        assert_eq!(line.run_all(0, Kind::Get).len(), misses);
        assert_eq!(line.run_all(1, Kind::Get).len(), misses);
        assert_eq!(line.world.vcpus[1].registers, [1, 7]);
    }
}

#[test]
fn the_home_gives_on_what_another_host_wrote() {
    let scripts: [(usize, &[Op]); 2] = [(2, &[Op::Load(X), Op::Load(X)]), (1, &[Op::Store(X, 7)])];
    let mut line = Line::<3>::new(&scripts, &[0], Switches { push: true, ..IVY });
    line.run(0);
    WRITTEN.set(None);
    line.run_all(1, Kind::Get);
    assert_eq!(WRITTEN.get(), None, "another wrote it before");
    line.event(2, Event::Quiet(0));
    assert_eq!(
        line.world.nodes[2].core.state(0),
        State::Invalid,
        "neither home nor owner"
    );
    line.event(0, Event::Quiet(0));
    assert_eq!(line.run_all(0, Kind::Get), []);
    assert_eq!(line.world.vcpus[0].registers, [1, 7]);
}

#[test]
fn a_reader_is_pushed_one_page_at_a_time() {
    let scripts: [(usize, &[Op]); 2] = [
        (1, &[Op::Load(X), Op::Load(Y)]),
        (0, &[Op::Store(X, 7), Op::Store(Y, 7)]),
    ];
    let mut line = Line::<2>::new(&scripts, &[0, 0], Switches { push: true, ..IVY });
    line.run_all(0, Kind::Get);
    line.run_all(1, Kind::Get);
    let first = line.world.step(0, 0, Event::Quiet(0));
    assert_eq!(first.len(), 1);
    assert_eq!(line.world.step(0, 0, Event::Quiet(1)), []);
    line.carry(0, first);
    assert_eq!(line.world.step(0, 0, Event::Quiet(1)).len(), 1);
}

#[test]
fn a_page_that_bounces_is_held() {
    let script = [Op::Add(X); 8];
    let scripts: [(usize, &[Op]); 2] = [(0, &script), (1, &script)];
    let mut line = Line::<2>::new(&scripts, &[0], Switches { hold: true, ..IVY });
    for n in 0..8 {
        line.run(n % 2);
        assert_eq!(line.world.vcpus[n % 2].doing, Doing::Runs);
    }
    line.run(0);
    assert_eq!(
        line.world.vcpus[0].doing,
        Doing::Waits,
        "the other holds the page"
    );
    assert_eq!(line.world.nodes[1].core.deadline(), HOLD_NS);
    line.now = HOLD_NS;
    line.event(1, Event::Tick);
    assert_eq!(line.world.vcpus[0].doing, Doing::Runs);
    // The longest hold is a quarter of a lease.
    for _ in 0..6 {
        line.run(0);
        line.run(1);
        let deadlines = line.world.nodes.iter().map(|node| node.core.deadline());
        let deadline = deadlines.min().unwrap();
        if deadline != NEVER {
            assert!(deadline <= line.now + LEASE_NS / 4);
            line.now = deadline;
            line.event(0, Event::Tick);
            line.event(1, Event::Tick);
        }
    }
}

#[test]
fn leases_end_by_time() {
    let scripts: [(usize, &[Op]); 2] = [(1, &[Op::Add(X)]), (0, &[Op::Add(X)])];
    let mut line = Line::<2>::new(&scripts, &[0], IVY);
    let sent = line.world.run(0, 0);
    line.carry(1, sent);
    assert_eq!(line.world.nodes[1].core.state(0), State::Modified);
    // The vCPU does not get on, and an instruction that began later waits until its lease has ended.
    line.now = 10;
    line.run(1);
    assert_eq!(line.world.vcpus[1].doing, Doing::Waits);
    assert_eq!(line.world.nodes[1].core.deadline(), LEASE_NS);
    line.now = LEASE_NS;
    line.event(1, Event::Tick);
    assert_eq!(line.world.vcpus[1].doing, Doing::Runs);
    assert_eq!(line.world.nodes[1].core.state(0), State::Invalid);
}

#[test]
fn many_invalidations_become_one() {
    let script: Vec<Op> = (0..100).map(|_| Op::Tlbi(X)).chain([Op::Load(Y)]).collect();
    let scripts: [(usize, &[Op]); 1] = [(0, &script)];
    let tlbis = |lazy_tlbi| {
        let mut line = Line::<2>::new(&scripts, &[0, 1], Switches { lazy_tlbi, ..IVY });
        line.run_all(0, Kind::Tlbi).len()
    };
    assert_eq!((tlbis(false), tlbis(true)), (100, 1));
}

/// Host 1's answer to a message of host 0, which is home of page 0 while host 1 is home of page 1.
fn told(message: Message, tail: &[u8]) -> Result<(), Broken> {
    answered(message, tail).0
}

/// Two older vCPUs wait for what a third has asked for, while messages of the home wait: it passes the oldest age on.
#[test]
fn hurries_of_many_vcpus_become_one() {
    let lazy_tlbi = true;
    let scripts: [(usize, &[Op]); 4] = [(1, &[]), (1, &[]), (1, &[]), (2, &[Op::Load(X)])];
    let mut line = Line::<3>::new(&scripts, &[0, 1], Switches { lazy_tlbi, ..IVY });
    line.run_all(3, Kind::Get);
    let mut step = |host: usize, now, event: Event<'_>| {
        let node = &mut line.world.nodes[host];
        node.core.step(now, event, &mut node.machine).unwrap();
        core::mem::take(&mut node.machine.sent)
    };
    let fault = |vcpu, page| {
        let access = Access::Write;
        Event::Fault { vcpu, page, access }
    };
    for vcpu in [0, 1] {
        step(1, 1 + vcpu as u64, fault(vcpu, 1));
    }
    step(0, 3, Event::Tlbi(0, 1));
    step(0, 3, Event::Flush);
    for (now, vcpu) in [(4, 2), (5, 1), (6, 0)] {
        let asked = step(1, now, fault(vcpu, 0));
        assert_eq!(asked.len(), 1);
        assert_eq!(step(0, now, Event::Message(1, &asked[0].1)).len(), 0);
    }
    let done = message(Kind::TlbiDone, 0, 0);
    let let_go = [1, 2].map(|host| step(0, 7, Event::Message(host, done.as_bytes())));
    let let_go = let_go.concat().into_iter();
    let let_go = let_go.map(|(to, bytes)| (to, Message::parse(&bytes).unwrap().0));
    let yields: Vec<_> = let_go.filter(|it| it.1.kind == Kind::Yield).collect();
    assert_eq!(yields.len(), 1);
    assert_eq!((yields[0].0, yields[0].1.since.get()), (2, 1));
}

/// Messages, each with its receiver.
type Sent = Vec<(u8, Vec<u8>)>;

/// As [`told`], with what host 1 then sends.
fn answered(message: Message, tail: &[u8]) -> (Result<(), Broken>, Sent) {
    let scripts: [(usize, &[Op]); 2] = [(0, &[]), (1, &[Op::Store(X, 1)])];
    let mut line = Line::<2>::new(&scripts, &[0, 1], Switches::ALL);
    // Its request for page 0 is open, in slot 0.
    line.world.run(1, 0);
    let bytes = [message.as_bytes(), tail].concat();
    let node = &mut line.world.nodes[1];
    node.machine.sent.clear();
    let event = Event::Message(0, &bytes);
    let done = node.core.step(0, event, &mut node.machine);
    if let Err(why) = done {
        let again = node.core.step(1, Event::Tick, &mut node.machine);
        assert_eq!(again, Err(why), "the session has ended");
    }
    (done, core::mem::take(&mut node.machine.sent))
}

const MALFORMED: Result<(), Broken> = Err(Broken::Malformed(0));

const fn misdirected(kind: Kind) -> Result<(), Broken> {
    Err(Broken::Misdirected(0, kind))
}

const fn unexpected(kind: Kind) -> Result<(), Broken> {
    Err(Broken::Unexpected(0, kind))
}

fn message(kind: Kind, host: u8, page: u32) -> Message {
    Message {
        access: Access::Write,
        life: LIFE.into(),
        page: page.into(),
        ..Message::plain(kind, host)
    }
}

fn with_slot(slot: u8, message: Message) -> Message {
    Message { slot, ..message }
}

#[test]
fn messages_that_no_host_sends_end_the_session() {
    let none = Message {
        access: Access::None,
        ..message(Kind::Get, 0, 1)
    };
    for (message, answer) in [
        (message(Kind::Get, 0, 1), Ok(())),
        (message(Kind::Get, 0, 2), MALFORMED),
        (message(Kind::Get, 2, 1), MALFORMED),
        (with_slot(10, message(Kind::Get, 0, 1)), MALFORMED),
        (with_slot(u8::MAX, message(Kind::Get, 0, 1)), MALFORMED),
        (none, MALFORMED),
        (message(Kind::Get, 0, 0), misdirected(Kind::Get)),
        (message(Kind::Get, 1, 1), misdirected(Kind::Get)),
        (message(Kind::Done, 0, 1), unexpected(Kind::Done)),
        (message(Kind::Hurry, 0, 1), unexpected(Kind::Hurry)),
        (message(Kind::Forward, 0, 1), misdirected(Kind::Forward)),
        (message(Kind::Forward, 0, 0), unexpected(Kind::Forward)),
        (
            message(Kind::Invalidate, 0, 1),
            misdirected(Kind::Invalidate),
        ),
        (message(Kind::Grant, 1, 0), unexpected(Kind::Grant)),
        (
            with_slot(1, message(Kind::Ack, 1, 0)),
            unexpected(Kind::Ack),
        ),
        (message(Kind::TlbiDone, 0, 0), unexpected(Kind::TlbiDone)),
    ] {
        assert_eq!(told(message, &[]), answer, "{message:?}");
    }
    assert_eq!(told(message(Kind::Tlbi, 0, 0), &[0; 7]), MALFORMED);
}

/// Only who asked to read is given the only copy instead, and says so at the end.
#[test]
fn nobody_else_is_given_the_only_copy() {
    let any = |message| Message {
        access: Access::Any,
        ..message
    };
    let data = any(Message {
        form: Form::Full,
        version: 2.into(),
        ..message(Kind::Data, 1, 0)
    });
    assert_eq!(told(data, &[0; WORDS]), unexpected(Kind::Data));
    assert_eq!(told(any(message(Kind::Get, 0, 1)), &[]), MALFORMED);
    let mut line = Line::<2>::new(&[(0, &[])], &[0, 1], Switches::ALL);
    let node = &mut line.world.nodes[1];
    for (message, answer) in [
        (message(Kind::Get, 0, 1), Ok(())),
        (any(message(Kind::Done, 0, 1)), unexpected(Kind::Done)),
    ] {
        let event = Event::Message(0, message.as_bytes());
        assert_eq!(node.core.step(0, event, &mut node.machine), answer);
    }
}

/// Neither what would be granted nor what would end the session, be it of a life before or of none.
#[test]
fn messages_of_another_life_mean_nothing() {
    for life in [0, LIFE - 1] {
        for page in [1, 2] {
            let get = Message {
                life: life.into(),
                ..message(Kind::Get, 0, page)
            };
            let (answer, sent) = answered(get, &[]);
            assert_eq!((answer, sent.len()), (Ok(()), 0), "{get:?}");
        }
    }
    let (answer, sent) = answered(message(Kind::Get, 0, 1), &[]);
    assert_eq!(answer, Ok(()));
    let lives = sent
        .iter()
        .map(|(_, bytes)| Message::parse(bytes).unwrap().0.life.get());
    assert!(!sent.is_empty() && lives.eq(sent.iter().map(|_| LIFE)));
}

#[test]
fn bytes_that_nobody_asked_for_end_the_session() {
    let data = Message {
        form: Form::Full,
        version: 1.into(),
        ..message(Kind::Data, 1, 0)
    };
    assert_eq!(told(data, &[0; WORDS]), Ok(()));
    assert_eq!(told(data, &[0; WORDS + 1]), unexpected(Kind::Data));
    let none = Message {
        form: Form::None,
        ..data
    };
    for (message, answer) in [
        (message(Kind::Data, 1, 1), unexpected(Kind::Data)),
        (message(Kind::Data, 0, 0), misdirected(Kind::Data)),
        (with_slot(1, data), unexpected(Kind::Data)),
        (with_slot(u8::MAX, data), unexpected(Kind::Data)),
        (data, unexpected(Kind::Data)),
        (none, unexpected(Kind::Data)),
    ] {
        assert_eq!(told(message, &[]), answer, "{message:?}");
    }
}

/// What changed is of use to whoever has the version that it follows.
#[test]
fn changes_of_another_version_end_the_session() {
    let scripts: [(usize, &[Op]); 2] = [(1, &[Op::Load(X), Op::Load(X)]), (0, &[Op::Store(X, 7)])];
    for (since, bytes, answer) in [
        (1, 2 * WORDS, Ok(())),
        (1, 2 * WORDS - 1, unexpected(Kind::Data)),
        (0, 2 * WORDS, unexpected(Kind::Data)),
        (2, 2 * WORDS, unexpected(Kind::Data)),
    ] {
        let mut line = Line::<2>::new(&scripts, &[0], Switches::ALL);
        line.run(0);
        line.run(1);
        // Its request is open, and it keeps the first version.
        line.world.run(0, 0);
        let node = &mut line.world.nodes[1];
        assert_eq!(node.core.version(0), 1);
        let changes = Message {
            form: Form::Changes,
            access: Access::Read,
            version: 2.into(),
            since: since.into(),
            ..message(Kind::Data, 1, 0)
        };
        let tail = [[1; WORDS], [7; WORDS]].concat();
        let bytes = [changes.as_bytes(), &tail[..bytes]].concat();
        let event = Event::Message(0, &bytes);
        assert_eq!(node.core.step(0, event, &mut node.machine), answer);
    }
    let pushed = Message {
        form: Form::Changes,
        access: Access::Read,
        ..with_slot(u8::MAX, message(Kind::Data, 1, 0))
    };
    assert_eq!(told(pushed, &[]), unexpected(Kind::Data));
    // Nothing is kept, which no version names.
    let first = Message {
        form: Form::Changes,
        version: 1.into(),
        since: 0.into(),
        ..message(Kind::Data, 1, 0)
    };
    assert_eq!(told(first, &[0; 2 * WORDS]), unexpected(Kind::Data));
}
