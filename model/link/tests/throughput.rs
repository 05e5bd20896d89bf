//! Throughput with and without loss, over networks of five speeds in virtual time.

#![allow(clippy::unwrap_used, clippy::panic)]

mod world;

use abi::link::{FRAME_JUMBO, FRAME_STANDARD};
use model_link::{
    Actions, Cipher, Down, Event, Iv, KEY_BYTES, Lane, Link, NEVER, Nonce, Settings, Suite, Tag,
    WINDOW,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use world::{KEY, Owner, link, settings};

/// A cipher that costs nothing: what is measured is the link.
#[derive(Clone, Copy, Debug)]
struct Plain;

impl Cipher for Plain {
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(_: Suite, _: &[u8; KEY_BYTES]) -> Self {
        Self
    }

    fn seal(&self, _: &Iv, _: &[u8], _: &mut [u8]) -> Tag {
        Tag::default()
    }

    fn open(&self, _: &Iv, _: &[u8], _: &mut [u8], _: &Tag) -> bool {
        true
    }
}

/// A network: round trip of a short frame, bits in a nanosecond, frames of a hundred that are lost.
#[derive(Clone, Copy, Debug)]
struct Network {
    round_trip_ns: u64,
    gbit: u64,
    lost: u64,
}

/// A page with what is said of it.
const MESSAGE: [u8; 4128] = [5; 4128];
/// Frames that a network card holds.
const CARD_FRAMES: u64 = 32;
/// Bytes on the wire around a frame: preamble, checksum, gap.
const AROUND: u64 = 24;
const SLOTS: usize = WINDOW;
/// Messages of a measurement.
const PAGES: u64 = 3000;

/// One host with its network card.
struct Host {
    link: Link<Plain, Vec<u8>, SLOTS>,
    card: Card,
}

/// The way out of a host: when it is free again, and what is on it.
struct Card {
    network: Network,
    frame_bytes: usize,
    now: u64,
    free_at: u64,
    random: u64,
    sent: Vec<(u64, Vec<u8>)>,
    delivered: u64,
    nonces: Owner,
}

impl Card {
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn wire_ns(&self, bytes: u64) -> u64 {
        (bytes + AROUND) * 8 / self.network.gbit
    }

    /// When a full card has room again.
    fn room_at(&self) -> u64 {
        self.free_at
            .saturating_sub(CARD_FRAMES * self.wire_ns(self.frame_bytes as u64))
    }
}

impl Actions for Card {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.room_at() > self.now {
            return false;
        }
        let mut frame = vec![0; self.frame_bytes];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        self.free_at = self.now.max(self.free_at) + self.wire_ns(bytes as u64);
        if self.random() % 100 >= self.network.lost {
            let arrival = self.free_at + self.network.round_trip_ns / 2;
            self.sent.push((arrival, frame));
        }
        true
    }

    fn deliver(&mut self, _: Lane, message: &[u8]) -> bool {
        assert_eq!(message.len(), MESSAGE.len());
        self.delivered += 1;
        true
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces.nonce()
    }

    fn up(&mut self) {}

    fn down(&mut self, why: Down) {
        panic!("{why:?}");
    }
}

/// What happens: when, in which order, at which host, a frame or a tick.
type Happening = Reverse<(u64, u64, usize, Option<Vec<u8>>)>;

/// Both hosts, and what is to happen.
struct World {
    hosts: [Host; 2],
    events: BinaryHeap<Happening>,
    order: u64,
    ticks_at: [u64; 2],
}

impl World {
    fn new(network: Network, frame_bytes: usize) -> Self {
        let hosts = [0, 1].map(|host: u8| {
            let mut nonces = Owner::new(host.into(), frame_bytes);
            let settings = Settings {
                timeout_floor_ns: 2_000,
                delay_ns: 2_000,
                ..settings(host, frame_bytes)
            };
            Host {
                link: link(settings, KEY, &mut nonces),
                card: Card {
                    network,
                    frame_bytes,
                    now: 0,
                    free_at: 0,
                    random: 0x1234_5678_9abc_def1 + u64::from(host),
                    sent: Vec::new(),
                    delivered: 0,
                    nonces,
                },
            }
        });
        let events = [0, 1].map(|host| Reverse((0, host as u64, host, None)));
        Self {
            hosts,
            events: events.into(),
            order: 2,
            ticks_at: [0; 2],
        }
    }

    fn at(&mut self, now: u64, host: usize, frame: Option<Vec<u8>>) {
        self.events.push(Reverse((now, self.order, host, frame)));
        self.order += 1;
    }

    /// The next event; host 0 always has pages to send. Gives the time.
    fn next(&mut self) -> u64 {
        let Reverse((now, _, host, frame)) = self.events.pop().unwrap();
        let is_tick = frame.is_none();
        if is_tick && now != self.ticks_at[host] {
            return now;
        }
        let Host { link, card } = &mut self.hosts[host];
        card.now = now;
        if let Some(mut frame) = frame {
            link.step(now, Event::Frame(&mut frame), card).unwrap();
        }
        while host == 0
            && link
                .step(now, Event::Send(Lane::Bulk, [&MESSAGE, &[]]), card)
                .is_ok()
        {}
        link.step(now, Event::Tick, card).unwrap();
        let tick_at = match link.deadline() {
            at if at <= now => card.room_at().max(now + 1),
            at => at,
        };
        let sent = std::mem::take(&mut card.sent);
        if tick_at != NEVER && (is_tick || self.ticks_at[host] != tick_at) {
            self.ticks_at[host] = tick_at;
            self.at(tick_at, host, None);
        }
        for (arrival, frame) in sent {
            self.at(arrival, 1 - host, Some(frame));
        }
        now
    }

    fn delivered(&self) -> u64 {
        self.hosts[1].card.delivered
    }
}

/// The part of the wire's bits that are bits of messages, from the hundredth message on.
fn throughput(network: Network, frame_bytes: usize) -> f64 {
    let mut world = World::new(network, frame_bytes);
    let mut from = None;
    loop {
        let now = world.next();
        assert!(now < 60_000_000_000, "it stands still: {network:?}");
        let delivered = world.delivered();
        match from {
            None if delivered >= 100 => from = Some((now, delivered)),
            Some((then, before)) if delivered >= before + PAGES => {
                let bits = (delivered - before) * MESSAGE.len() as u64 * 8;
                return bits as f64 / ((now - then) * network.gbit) as f64;
            }
            _ => {}
        }
    }
}

#[test]
fn loss_costs_less_than_a_third() {
    for (round_trip_ns, gbit) in [
        (4_000, 100),
        (20_000, 25),
        (60_000, 10),
        (200_000, 1),
        (1_000_000, 1),
    ] {
        for frame_bytes in [FRAME_STANDARD, FRAME_JUMBO] {
            let [whole, lossy] = [0, 5].map(|lost| {
                let network = Network {
                    round_trip_ns,
                    gbit,
                    lost,
                };
                throughput(network, frame_bytes)
            });
            println!(
                "{:4} us, {gbit:3} Gbit/s, frames of {frame_bytes}: {:.1} % of the wire, {:.1} % at 5 % loss: {:.1} %",
                round_trip_ns / 1000,
                100.0 * whole,
                100.0 * lossy,
                100.0 * lossy / whole
            );
            assert!(lossy >= 0.7 * whole);
        }
    }
}
