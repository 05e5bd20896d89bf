//! Single rules of the link: layouts, order of lanes, credits, timeouts, keys, budgets, malformed frames.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{
    BODY_AT, BULK_MAX, FRAME_JUMBO, FRAME_STANDARD, HELLO_BYTES, Report, Sealed, URGENT_MAX,
};
use model_link::{
    Actions, ChaCha, Cipher, Counters, Down, Dropped, Event, HELLO_EVERY_NS, HELLOS_MAX, Lane,
    Link, NEVER, Refused, Secret, Settings, Suite,
};
use world::clear::{Clear, OPENED, pieces};
use world::{KEY, Owner, Pair, Said, Toy, link, rounds, send, settings};
use zerocopy::FromBytes;

const SLOTS: usize = 8;

fn joined<C: Cipher + Clone>(frame_bytes: usize) -> (Pair<C, SLOTS>, u64) {
    world::joined(frame_bytes)
}

fn dropped(counters: &Counters, why: Dropped) -> u64 {
    counters.dropped[why as usize]
}

#[test]
fn chacha_gives_known_answers() {
    // RFC 8439, section 2.8.2.
    let hex = |text: &str| -> Vec<u8> {
        let byte = |n| u8::from_str_radix(&text[n..n + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let key = std::array::from_fn(|n| 0x80 + n as u8);
    let nonce = hex("070000004041424344454647").try_into().unwrap();
    let head = hex("50515253c0c1c2c3c4c5c6c7");
    let plain = b"Ladies and Gentlemen of the class of '99: \
        If I could offer you only one tip for the future, sunscreen would be it.";
    let cipher = ChaCha::new(Suite::ChaCha, &key);
    let mut body = plain.to_vec();
    let tag = cipher.seal(&nonce, &head, &mut body);
    assert_eq!(tag.to_vec(), hex("1ae10b594f09e26a7e902ecbd0600691"));
    assert_eq!(body[..8], hex("d31a8d34648e60db"));
    assert!(cipher.open(&nonce, &head, &mut body.clone(), &tag));
    assert!(!cipher.open(&nonce, &head[1..], &mut body.clone(), &tag));
    assert!(cipher.open(&nonce, &head, &mut body, &tag));
    assert_eq!(body, plain);
}

#[test]
fn messages_cannot_be_read_on_the_wire() {
    let (mut pair, now) = joined::<ChaCha>(FRAME_STANDARD);
    let secret = [0x5a; 100];
    send(&mut pair, Lane::Bulk, &secret);
    let frames = pair.step(0, now, Event::Tick);
    let shows = |frame: &Vec<u8>| frame.windows(8).any(|part| part == &secret[..8]);
    assert!(!frames.is_empty() && !frames.iter().any(shows));
}

#[test]
fn a_page_takes_three_standard_frames_or_half_a_jumbo() {
    let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
    send(&mut pair, Lane::Bulk, &[7; BULK_MAX]);
    let frames = pair.step(0, now, Event::Tick);
    let found = pieces(&frames);
    assert_eq!(found, [[(1, 1380)], [(1, 1380)], [(1, 1376)]]);
    let (mut pair, now) = joined::<Clear>(FRAME_JUMBO);
    send(&mut pair, Lane::Bulk, &[7; BULK_MAX]);
    send(&mut pair, Lane::Bulk, &[8; BULK_MAX]);
    let frames = pair.step(0, now, Event::Tick);
    assert_eq!(pieces(&frames), [[(1, BULK_MAX); 2]]);
}

#[test]
fn urgent_pieces_leave_first() {
    let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
    send(&mut pair, Lane::Bulk, &[7; 1380]);
    send(&mut pair, Lane::Bulk, &[8; 700]);
    send(&mut pair, Lane::Urgent, &[9; 20]);
    send(&mut pair, Lane::Urgent, &[9; URGENT_MAX]);
    let found = pieces(&pair.step(0, now, Event::Tick));
    assert_eq!(found[0][..2], [(0, 20), (0, URGENT_MAX)]);
    assert_eq!(found[1..], [vec![(1, 1380)], vec![(1, 700)]]);
}

#[test]
fn messages_without_room_or_session_are_refused() {
    let (mut pair, now) = joined::<Toy>(FRAME_STANDARD);
    let host = &mut pair.hosts[0];
    let long = [0; BULK_MAX + 1];
    let mut try_to = |lane, message: &[u8]| {
        let event = Event::Send(lane, [message, &[]]);
        host.link.step(now, event, &mut host.owner)
    };
    let too_long = |bytes, most| Err(Refused::TooLong(bytes, most));
    assert_eq!(try_to(Lane::Bulk, &long), too_long(BULK_MAX + 1, BULK_MAX));
    let urgent = try_to(Lane::Urgent, &long[..=URGENT_MAX]);
    assert_eq!(urgent, too_long(URGENT_MAX + 1, URGENT_MAX));
    for _ in 0..SLOTS {
        assert_eq!(try_to(Lane::Urgent, b"x"), Ok(()));
    }
    assert_eq!(try_to(Lane::Urgent, b"x"), Err(Refused::Full));
    assert_eq!(try_to(Lane::Bulk, b"x"), Ok(()));
    pair.restart(0);
    let host = &mut pair.hosts[0];
    let event = Event::Send(Lane::Bulk, [b"x", b""]);
    let refused = host.link.step(now, event, &mut host.owner);
    assert_eq!(refused, Err(Refused::NoSession));
}

#[test]
fn a_receiver_is_never_sent_more_than_its_credit() {
    let (mut pair, mut now) = joined::<Toy>(FRAME_STANDARD);
    pair.hosts[1].owner.refuses = true;
    let mut queued = 0;
    for _ in 0..10 {
        while pair.hosts[0].link.room(Lane::Bulk) > 0 {
            send(&mut pair, Lane::Bulk, &[queued; 1000]);
            queued += 1;
        }
        rounds(&mut pair, &mut now, 3);
    }
    // What the receiver keeps, and what the sender keeps.
    assert_eq!(usize::from(queued), 2 * SLOTS);
    assert_eq!(dropped(&pair.hosts[1].link.counters, Dropped::Malformed), 0);
    // The urgent lane is not held up.
    pair.hosts[1].owner.refuses = false;
    send(&mut pair, Lane::Urgent, b"now");
    pair.settle(now, Vec::new());
}

#[test]
fn a_gap_is_filled_without_a_timeout() {
    let (mut pair, now) = joined::<Toy>(FRAME_STANDARD);
    for n in 0..6 {
        send(&mut pair, Lane::Bulk, &[n; 1380]);
    }
    let frames = pair.step(0, now, Event::Tick);
    assert_eq!(frames.len(), 6);
    for mut frame in frames.into_iter().skip(1) {
        pair.step(1, now, Event::Frame(&mut frame));
        for mut report in pair.step(1, now, Event::Tick) {
            pair.step(0, now, Event::Frame(&mut report));
        }
    }
    let again = pair.step(0, now, Event::Tick);
    assert_eq!(again.len(), 1);
    for mut frame in again {
        pair.step(1, now, Event::Frame(&mut frame));
    }
    assert!(pair.is_done());
    assert_eq!(pair.hosts[0].link.counters.resent, 1);
    assert_eq!(pair.hosts[0].link.counters.timeouts, 0);
}

#[test]
fn an_idle_link_is_silent() {
    let (mut pair, mut now) = joined::<Toy>(FRAME_STANDARD);
    assert_eq!(rounds(&mut pair, &mut now, 100), 0);
    assert_eq!(
        pair.hosts.each_ref().map(|host| host.link.deadline()),
        [NEVER; 2]
    );
}

/// Two links that do not belong together, made to talk for long; what each counted.
fn talk(hosts: [(Settings, Secret); 2]) -> [Counters; 2] {
    let mut owners = [5, 6].map(|host| Owner::new(host, FRAME_STANDARD));
    let mut links: [Link<Toy, Vec<u8>, SLOTS>; 2] = hosts.map(|(settings, key)| {
        let owner = &mut owners[usize::from(settings.host)];
        link(settings, key, owner)
    });
    for round in 0..300 {
        let now = round * 1_000_000;
        for host in 0..2 {
            links[host]
                .step(now, Event::Tick, &mut owners[host])
                .unwrap();
            for mut frame in std::mem::take(&mut owners[host].sent) {
                let peer = &mut owners[1 - host];
                links[1 - host]
                    .step(now, Event::Frame(&mut frame), peer)
                    .unwrap();
            }
        }
    }
    assert!(owners.iter().all(|owner| owner.said.is_empty()));
    links.map(|link| link.counters)
}

#[test]
fn hosts_of_another_key_or_epoch_do_not_join() {
    let of = |host| settings(host, FRAME_STANDARD);
    let [a, b] = talk([(of(0), KEY), (of(1), Secret([8; 32]))]);
    assert!(
        [a, b].iter().all(|it| dropped(it, Dropped::Forged) > 0),
        "{a:?} {b:?}"
    );
    let answers = [a, b].map(|it| dropped(&it, Dropped::Unproved));
    assert_eq!(answers, [0; 2], "they are not answered");
    let later = Settings { epoch: 4, ..of(1) };
    let [a, b] = talk([(of(0), KEY), (later, KEY)]);
    assert!(
        [a, b].iter().all(|it| dropped(it, Dropped::Epoch) > 0),
        "{a:?} {b:?}"
    );
}

#[test]
fn frames_of_before_a_restart_do_nothing() {
    let (mut pair, now) = joined::<Toy>(FRAME_STANDARD);
    send(&mut pair, Lane::Bulk, b"old");
    let old = pair.step(0, now, Event::Tick);
    pair.restart(0);
    let now = pair.settle(now, Vec::new());
    for mut frame in old {
        pair.step(1, now, Event::Frame(&mut frame));
    }
    assert_eq!(dropped(&pair.hosts[1].link.counters, Dropped::Session), 1);
    assert!(pair.is_done());
}

#[test]
fn replayed_frames_are_not_opened() {
    let (mut pair, now) = joined::<Toy>(FRAME_STANDARD);
    let mut frames = Vec::new();
    for n in 0..5 {
        send(&mut pair, Lane::Bulk, &[n; 100]);
        frames.extend(pair.step(0, now, Event::Tick));
    }
    for at in [2, 0, 4, 1] {
        pair.step(1, now, Event::Frame(&mut frames[at].clone()));
    }
    let opened = pair.hosts[1].link.counters.opened;
    for at in [4, 0, 1, 2] {
        pair.step(1, now, Event::Frame(&mut frames[at].clone()));
    }
    let counters = pair.hosts[1].link.counters;
    assert_eq!(counters.opened, opened);
    assert_eq!(dropped(&counters, Dropped::Replayed), 4);
    pair.step(1, now, Event::Frame(&mut frames[3]));
    assert!(pair.is_done());
}

/// Not one without the peer's stamp, nor with that of another frame or of the receiver's own.
#[test]
fn frames_are_admitted_only_with_their_stamp() {
    let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
    let mut sent = |host: usize| {
        let event = Event::Send(Lane::Bulk, [&[7; 100], &[]]);
        pair.step(host, now, event);
        pair.step(host, now, Event::Tick).remove(0)
    };
    let number = |frame: &[u8]| Sealed::ref_from_prefix(frame).unwrap().0.counter;
    let (frame, mut next, mut back) = (sent(0), sent(0), sent(1));
    while number(&next) != number(&back) {
        if number(&next) < number(&back) {
            next = sent(0);
        } else {
            back = sent(1);
        }
    }
    let with_stamp_of = |other: &[u8]| {
        let (mut forged, (other, _)) = (next.clone(), Sealed::ref_from_prefix(other).unwrap());
        Sealed::mut_from_prefix(&mut forged).unwrap().0.stamp = other.stamp;
        forged
    };
    let zeroes = [0; BODY_AT];
    let link = &mut pair.hosts[1].link;
    for other in [&frame[..], &back[..], &zeroes[..]] {
        let forged = with_stamp_of(other);
        assert!((0..1000).all(|_| link.admit(&forged) == Some(false)));
    }
    for frame in [&next, &frame] {
        assert_eq!([0, 1].map(|_| link.admit(frame)), [Some(true), Some(false)]);
    }
    let counts = [Dropped::Forged, Dropped::Replayed].map(|why| dropped(&link.counters, why));
    assert_eq!(counts, [3000, 2]);
    assert!([0, 41].map(|bytes| link.admit(&frame[..bytes])) == [None; 2]);
}

/// A stamp lets one frame in, so what has it uses its counter up, however it was changed or cut.
#[test]
fn a_stamp_serves_once_however_its_frame_is_changed() {
    let (mut pair, now) = joined::<ChaCha>(FRAME_STANDARD);
    send(&mut pair, Lane::Bulk, &[7; 100]);
    let frame = pair.step(0, now, Event::Tick).remove(0);
    let changed = (0..8 * BODY_AT).map(|bit| {
        let mut frame = frame.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        frame
    });
    let cut = (0..frame.len()).map(|bytes| frame[..bytes].to_vec());
    let mut let_in = 0;
    for other in changed.chain(cut) {
        let mut link = pair.hosts[1].link.clone();
        let is_let_in = link.admit(&other) == Some(true);
        let_in += usize::from(is_let_in);
        assert_eq!(link.admit(&frame), Some(!is_let_in), "{other:?}");
        assert_ne!(link.admit(&other), Some(true), "{other:?}");
    }
    // Those with another MAC address or no AES, and those that have all bytes before the body.
    assert_eq!(let_in, 8 * 12 + 1 + frame.len() - BODY_AT);
}

/// Copies have a frame's stamp: one of them is opened, and the frame itself counts as lost if it comes later.
#[test]
fn forgers_have_one_frame_opened_for_each_of_the_peers() {
    let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
    let before = pair.hosts[1].link.counters.opened;
    OPENED.set(0);
    for n in 0..6 {
        send(&mut pair, Lane::Bulk, &[n; 100]);
        let frame = pair.step(0, now, Event::Tick).remove(0);
        let mut forged = frame.clone();
        *forged.last_mut().unwrap() ^= 1;
        let copies = core::iter::repeat_n(forged, 1000).chain([frame]);
        for mut copy in copies.collect::<Vec<_>>() {
            if pair.hosts[1].link.admit(&copy) == Some(true) {
                pair.step(1, now, Event::Frame(&mut copy));
            }
        }
    }
    let counters = pair.hosts[1].link.counters;
    let counts = [Dropped::Forged, Dropped::Replayed].map(|why| dropped(&counters, why));
    assert_eq!((OPENED.get(), counts), (6, [6, 6 * 1000]));
    assert_eq!(counters.opened, before);
    // The peer sends them again.
    pair.settle(now, Vec::new());
}

#[test]
fn a_flood_of_hellos_costs_a_bounded_number_of_answers() {
    let (mut pair, now) = joined::<Toy>(FRAME_STANDARD);
    pair.restart(0);
    let hello = pair.step(0, now, Event::Tick).remove(0);
    assert_eq!(hello.len(), HELLO_BYTES);
    let now = now + 100 * HELLO_EVERY_NS;
    let before = pair.hosts[1].link.counters;
    for _ in 0..1000 {
        pair.step(1, now, Event::Frame(&mut hello.clone()));
    }
    let after = pair.hosts[1].link.counters;
    let more = |why| dropped(&after, why) - dropped(&before, why);
    assert_eq!(more(Dropped::Unproved), HELLOS_MAX);
    assert_eq!(more(Dropped::Unopened), 1000 - HELLOS_MAX);
    // All are answered by one challenge.
    assert_eq!(pair.step(1, now, Event::Tick).len(), 1);
    pair.settle(now, Vec::new());
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_its_session() {
    type Change = fn(&mut Vec<u8>);
    const PIECE_AT: usize = BODY_AT + size_of::<Report>();
    let changes: [(&str, Change); 9] = [
        ("reports what was not sent", |f| f[BODY_AT + 8] = 9),
        ("has seen what was not sent", |f| f[BODY_AT] = 99),
        ("counts too many words", |f| f[BODY_AT + 14] = 2),
        ("counts too many pieces", |f| f[BODY_AT + 23] = 2),
        ("counts too few pieces", |f| f[BODY_AT + 23] = 0),
        ("names a lane that is not there", |f| f[PIECE_AT + 11] = 2),
        ("sends beyond its credit", |f| f[PIECE_AT] = SLOTS as u8),
        ("sends a part of no message", |f| f[PIECE_AT + 10] = 0x11),
        ("sends a short part", |f| f[PIECE_AT + 10] = 0x02),
    ];
    for (what, change) in changes {
        let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
        send(&mut pair, Lane::Bulk, &[7; 100]);
        let mut frame = pair.step(0, now, Event::Tick).remove(0);
        change(&mut frame);
        let host = &mut pair.hosts[1];
        let event = Event::Frame(&mut frame);
        host.link.step(now, event, &mut host.owner).unwrap();
        let last = host.owner.said.last();
        assert_eq!(last, Some(&Said::Down(Down::Malformed)), "{what}");
        assert_eq!(dropped(&host.link.counters, Dropped::Malformed), 1);
    }
}

#[test]
fn a_message_of_parts_that_do_not_belong_together_ends_the_session() {
    let (mut pair, now) = joined::<Clear>(FRAME_STANDARD);
    send(&mut pair, Lane::Bulk, &[7; 2000]);
    let mut frames = pair.step(0, now, Event::Tick);
    send(&mut pair, Lane::Bulk, &[7; 1]);
    let next = pair.step(0, now, Event::Tick).remove(0);
    // The first says that it is the first of three, the second that it is the second of two.
    frames[0][BODY_AT + size_of::<Report>() + 10] = 0x03;
    let mut third = frames[1].clone();
    third[..BODY_AT].copy_from_slice(&next[..BODY_AT]);
    third[BODY_AT + size_of::<Report>()] += 1;
    frames.push(third);
    let host = &mut pair.hosts[1];
    for frame in &mut frames {
        host.link
            .step(now, Event::Frame(frame), &mut host.owner)
            .unwrap();
    }
    assert_eq!(host.owner.said, [Said::Down(Down::Malformed)]);
}

#[test]
fn keys_are_changed_while_frames_flow() {
    let (mut pair, mut now) = joined::<Toy>(FRAME_STANDARD);
    for n in 0..200u8 {
        send(&mut pair, Lane::Bulk, &[n; 50]);
        rounds(&mut pair, &mut now, 1);
    }
    pair.settle(now, Vec::new());
    assert!(pair.hosts[0].link.counters.sent > 4 << Toy::FRAMES_PER_KEY_LOG2);
    assert_eq!(pair.hosts[0].link.counters.resent, 0);
}

#[test]
fn short_buffers_and_frames_are_refused() {
    let mut owner = Owner::new(0, FRAME_STANDARD);
    let mut make = |settings: Settings, short: usize| {
        let bytes = |lane: Lane| {
            let bytes = lane.buffer_bytes(SLOTS, settings.frame_bytes);
            vec![0; bytes.saturating_sub(short)]
        };
        let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
        Link::<Toy, _, SLOTS>::new(settings, KEY, buffers, owner.nonce()).is_some()
    };
    let sound = settings(0, FRAME_STANDARD);
    assert!(make(sound, 0));
    assert!(!make(sound, 1));
    assert!(!make(Settings { peer: 0, ..sound }, 0));
    assert!(!make(settings(0, 100), 0));
}
