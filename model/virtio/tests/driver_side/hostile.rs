//! Any memory and any register writes: every call ends, stays within the guest and within bounds.

use crate::driver::{RAM, RAM_SIZE, ram, start};
use machine_contract::GuestMemory;
use machine_fake::FakeGuest;
use model_addr::{FRAME_SIZE, Ipa};
use model_virtio::balloon::{Balloon, MAX_RUNS};
use model_virtio::blk::{Blk, Next, Options, Request, Status};
use model_virtio::console::Console;
use model_virtio::net::{self, Frame, HEAD_MAX, Net, Offload, Received};
use model_virtio::rng::Rng;
use model_virtio::{Device, Transport, Window as _};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Register {
        at: u64,
        size: usize,
        value: u64,
    },
    Ring {
        at: u64,
        value: u16,
    },
    Descriptor {
        index: u64,
        ipa: u64,
        len: u32,
        flags: u16,
        next: u16,
    },
    Serve,
}

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..260u64,
        3 => RAM.0..RAM.0 + 0x6000,
        1 => Just(RAM.0 + RAM_SIZE as u64 - 1),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let size = prop_oneof![8 => Just(4usize), 1 => Just(1), 1 => Just(8)];
    let at = prop_oneof![(0..0x80u64).prop_map(|n| n * 4), 0..0x400u64];
    let len = prop_oneof![0..64u32, any::<u32>(), (0..300u32).prop_map(|n| n * 16)];
    prop_oneof![
        1 => (at, size, numbers()).prop_map(|(at, size, value)| Step::Register { at, size, value }),
        3 => (prop_oneof![Just(2u64), 0..0x300u64], 0..4u8, 0..300u16)
            .prop_map(|(at, queue, value)| {
                Step::Ring { at: 0x1000 + at + u64::from(queue) * 0x4000, value }
            }),
        8 => (0..32u64, numbers(), len, 0..8u16, 0..20u16).prop_map(
            |(index, ipa, len, flags, next)| Step::Descriptor { index, ipa, len, flags, next }
        ),
        4 => Just(Step::Serve),
    ]
}

/// Most accesses that one served call may make: a ring of chains, each a ring of descriptors.
const MOST_ACCESSES: usize = 256 * (130 + 16);

fn run<D: Device>(
    device: D,
    steps: Vec<Step>,
    mut serve: impl FnMut(&mut Transport<D>, &FakeGuest),
) {
    let guest = ram();
    let (mut transport, _) = start(device, 0, 16);
    for step in steps {
        match step {
            Step::Register { at, size, value } => {
                transport.read(at, size);
                transport.write(at, size, value);
            }
            Step::Ring { at, value } => guest.put(Ipa(RAM.0 + at), &value.to_le_bytes()),
            Step::Descriptor {
                index,
                ipa,
                len,
                flags,
                next,
            } => {
                let raw = u128::from(ipa)
                    | u128::from(len) << 64
                    | u128::from(flags) << 96
                    | u128::from(next) << 112;
                for queue in [0, 0x4000, 0x8000, 0xc000] {
                    guest.put(Ipa(RAM.0 + queue + 16 * index), &raw.to_le_bytes());
                }
            }
            Step::Serve => {
                guest.take_log();
                serve(&mut transport, &guest);
                assert!(guest.take_log().len() <= MOST_ACCESSES);
            }
        }
    }
}

fn serve_blk(blk: &mut Transport<Blk>, guest: &FakeGuest) {
    let mut request = Request::default();
    for _ in 0..64 {
        match blk.next_request(guest, &mut request) {
            Next::Empty => return,
            Next::Answered => {}
            Next::Request => {
                for segment in request.data() {
                    assert!(guest.contains(segment.ipa, u64::from(segment.len)));
                }
                let sum: u64 = request.data().iter().map(|s| u64::from(s.len)).sum();
                assert_eq!(sum, u64::from(request.data_bytes()));
                for range in request.ranges() {
                    assert!(range.sector + u64::from(range.count) <= 1000);
                }
                blk.complete(guest, &request, Status::Ok);
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn blk_survives(steps in prop::collection::vec(steps(), 1..150)) {
        let options = Options { capacity: 1000, discard: true, ..Options::default() };
        run(Blk::new(options), steps, serve_blk);
    }

    #[test]
    fn console_survives(steps in prop::collection::vec(steps(), 1..150)) {
        run(Console::default(), steps, |console, guest| {
            let mut out = 0;
            let progress = console.transmit(guest, 5000, |bytes| out += bytes.len());
            assert!(out <= 5000 && progress.bytes <= out);
            assert!(console.receive(guest, &[7; 300]) <= 300);
        });
    }

    #[test]
    fn rng_survives(steps in prop::collection::vec(steps(), 1..150)) {
        run(Rng::default(), steps, |rng, guest| {
            let mut asked = 0;
            rng.fill(guest, 5000, |bytes| asked += bytes.len());
            assert!(asked <= 5000);
        });
    }

    #[test]
    fn balloon_survives(steps in prop::collection::vec(steps(), 1..150)) {
        run(Balloon::default(), steps, |balloon, guest| {
            let mut pages = 0;
            balloon.serve(guest, 0, 300, |gfn| gfn.0 & 512 == 0, |_, runs| {
                assert!((1..=MAX_RUNS).contains(&runs.len()));
                for run in runs {
                    assert!(guest.contains(run.first.address(), run.count * FRAME_SIZE));
                    pages += run.count;
                }
            });
            assert!(pages < 300 + 512);
        });
    }

    #[test]
    fn net_survives(steps in prop::collection::vec(steps(), 1..150)) {
        let (mac, mtu) = ([2, 0, 0, 0, 0, 1], 1500);
        let mut frame = Frame::default();
        run(Net::new(net::Options { mac, mtu, offloads: true, pairs: 1 }), steps, |net, guest| {
            serve_net(net, guest, &mut frame);
        });
    }
}

fn serve_net(net: &mut Transport<Net>, guest: &FakeGuest, frame: &mut Frame) {
    for n in 0..32 {
        match net.next_frame(guest, frame, n % 2 > 0) {
            net::Next::Empty => break,
            net::Next::Refused => {}
            net::Next::Frame => {
                let rest: u64 = frame.rest().iter().map(|s| u64::from(s.len)).sum();
                assert_eq!(rest + frame.head().len() as u64, u64::from(frame.bytes()));
                assert!((14..=net::FRAME_MAX).contains(&frame.bytes()));
                assert!(frame.head().len() <= HEAD_MAX);
                for segment in frame.rest() {
                    assert!(guest.contains(segment.ipa, u64::from(segment.len)));
                }
                net.sent(guest, frame);
            }
        }
    }
    net.signal_sent(guest);
    net.control(guest, 16);
    for bytes in [60, 1500, 65_000] {
        let mut filled = 0;
        let received = net.receive(guest, (bytes, Offload::default(), bytes), |runs| {
            while let Some(run) = runs.front() {
                assert!(guest.contains(run.ipa, u64::from(run.len)));
                filled += run.len;
                runs.advance(run.len);
            }
            Ok(())
        });
        assert!(received != Received::Done || filled == bytes);
    }
}
