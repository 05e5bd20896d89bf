//! A network that does what it likes, hosts that restart, and strangers: whatever they do, in whatever order.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::FRAME_STANDARD;
use model_link::{ChaCha, Cipher, Event, Lane};
use proptest::prelude::*;
use world::{Pair, Watched, forget_nonces};

/// What the network and the hosts do; numbers choose among what is there.
#[derive(Clone, Debug)]
enum Op {
    Send(bool, bool, u16),
    Tick(bool),
    Wait(u32),
    Frame(u16),
    Repeat(u16),
    Lose(u16),
    Flip(u16, u16),
    Cut(u16, u16),
    /// A frame of any time comes again, at either host.
    Replay(u16, bool),
    Stranger(Vec<u8>, bool),
    Refuse(bool, bool),
    Restart(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (any::<bool>(), any::<bool>(), any::<u16>()).prop_map(|(a, b, c)| Op::Send(a, b, c)),
        16 => any::<bool>().prop_map(Op::Tick),
        4 => (0..200_000u32).prop_map(Op::Wait),
        1 => (0..50_000_000u32).prop_map(Op::Wait),
        24 => any::<u16>().prop_map(Op::Frame),
        4 => any::<u16>().prop_map(Op::Repeat),
        4 => any::<u16>().prop_map(Op::Lose),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Op::Flip(a, b)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Op::Cut(a, b)),
        4 => (any::<u16>(), any::<bool>()).prop_map(|(a, b)| Op::Replay(a, b)),
        1 => (prop::collection::vec(any::<u8>(), 0..120), any::<bool>())
            .prop_map(|(a, b)| Op::Stranger(a, b)),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(a, b)| Op::Refuse(a, b)),
        1 => any::<bool>().prop_map(Op::Restart),
    ];
    prop::collection::vec(op, 0..400)
}

/// The two hosts, the frames under way, and all frames that ever were.
struct Net<C, const SLOTS: usize> {
    pair: Pair<C, SLOTS>,
    flight: Vec<(usize, Vec<u8>)>,
    past: Vec<Vec<u8>>,
    now: u64,
    sent: u64,
}

impl<C: Cipher + Clone, const SLOTS: usize> Net<C, SLOTS> {
    fn step(&mut self, host: usize, event: Event<'_>) {
        for frame in self.pair.step(host, self.now, event) {
            self.past.push(frame.clone());
            self.flight.push((1 - host, frame));
        }
    }

    fn pick(&self, n: u16) -> Option<usize> {
        let count = self.flight.len();
        (count > 0).then(|| usize::from(n) % count.max(1))
    }

    fn send(&mut self, host: usize, is_urgent: bool, n: u16) {
        let (lane, most) = if is_urgent {
            (Lane::Urgent, 100)
        } else {
            (Lane::Bulk, 4128)
        };
        self.sent += 1;
        let mut message = vec![n as u8; usize::from(n) % (most + 1)];
        for (byte, of_number) in message.iter_mut().zip(self.sent.to_le_bytes()) {
            *byte = of_number;
        }
        let (head, body) = message.split_at(message.len() / 3);
        self.step(host, Event::Send(lane, [head, body]));
    }

    /// A frame comes that no host sent so: nothing comes of it.
    fn forged(&mut self, host: usize, mut frame: Vec<u8>) {
        let before = self.pair.hosts[host].link.clone();
        self.step(host, Event::Frame(&mut frame));
        let link = &self.pair.hosts[host].link;
        assert_eq!(link.session(), before.session());
        assert_eq!(link.counters.opened, before.counters.opened);
        assert_eq!(link.deadline(), before.deadline());
    }

    fn play(&mut self, op: Op) {
        self.now += 50;
        match op {
            Op::Send(host, is_urgent, n) => self.send(host.into(), is_urgent, n),
            Op::Tick(host) => self.step(host.into(), Event::Tick),
            Op::Wait(ns) => self.now += u64::from(ns),
            Op::Frame(n) => {
                if let Some(at) = self.pick(n) {
                    let (to, mut frame) = self.flight.remove(at);
                    self.step(to, Event::Frame(&mut frame));
                }
            }
            Op::Repeat(n) => {
                if let Some(at) = self.pick(n) {
                    let (to, mut frame) = self.flight[at].clone();
                    self.step(to, Event::Frame(&mut frame));
                }
            }
            Op::Lose(n) => {
                if let Some(at) = self.pick(n) {
                    self.flight.remove(at);
                }
            }
            Op::Flip(n, bit) => {
                if let Some(at) = self.pick(n) {
                    let (to, mut frame) = self.flight[at].clone();
                    let bit = usize::from(bit) % (8 * frame.len());
                    frame[bit / 8] ^= 1 << (bit % 8);
                    self.forged(to, frame);
                }
            }
            Op::Cut(n, bytes) => {
                if let Some(at) = self.pick(n) {
                    let (to, mut frame) = self.flight[at].clone();
                    frame.truncate(usize::from(bytes) % frame.len());
                    self.forged(to, frame);
                }
            }
            Op::Replay(n, host) => {
                let count = self.past.len();
                if count > 0 {
                    let mut frame = self.past[usize::from(n) % count].clone();
                    self.step(host.into(), Event::Frame(&mut frame));
                }
            }
            Op::Stranger(bytes, host) => self.forged(host.into(), bytes),
            Op::Refuse(host, refuses) => {
                self.pair.hosts[usize::from(host)].owner.refuses = refuses;
            }
            Op::Restart(host) => self.pair.restart(host.into()),
        }
    }
}

/// Plays `ops` between hosts that have just joined; whatever they were, all is well after them.
fn play<C: Cipher + Clone, const SLOTS: usize>(ops: Vec<Op>, frame_bytes: usize) {
    forget_nonces();
    let mut pair = Pair::<C, SLOTS>::new(frame_bytes);
    let now = pair.settle(0, Vec::new());
    let mut net = Net {
        pair,
        flight: Vec::new(),
        past: Vec::new(),
        now,
        sent: 0,
    };
    for op in ops {
        net.play(op);
    }
    net.pair.settle(net.now, net.flight);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_repeated_or_forged(ops in ops()) {
        play::<Watched, 8>(ops, FRAME_STANDARD);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_with_the_true_cipher_either(ops in ops()) {
        play::<ChaCha, 4>(ops, FRAME_STANDARD);
    }
}
