//! A guest's rings and register writes against each virtio device.
//!
//! The bytes are a program: what it stores, where, and when the device is served.

use crate::input::Input;
use machine_contract::GuestMemory;
use machine_fake::FakeGuest;
use model_addr::{FRAME_SIZE, Ipa, IpaRange};
use model_virtio::balloon::{Balloon, MAX_RUNS};
use model_virtio::blk::{Blk, BlockSize, Next, Options, Request, Status};
use model_virtio::console::Console;
use model_virtio::net::wire::Pieces;
use model_virtio::net::{self, Frame, Net, Offload, Received};
use model_virtio::port::Port;
use model_virtio::rng::Rng;
use model_virtio::{Device, Transport, Window as _};

const RAM: Ipa = Ipa(0x4000_0000);
const RAM_SIZE: usize = 0x1_0000;
const HOLE: IpaRange = IpaRange {
    start: Ipa(RAM.0 + 0xf000),
    size: 0x800,
};
/// The rings of queue n are at this times n, where the driver had no say.
const RINGS: u64 = 0x4000;
/// Most accesses of guest memory that one bounded call may take.
const MOST_ACCESSES: usize = 256 * (130 + 16);
const CAPACITY: u64 = 1000;

/// Requests against a disk of 512-byte or 4 KiB blocks.
pub fn blk(data: &[u8]) {
    let large = data.first().is_some_and(|byte| byte & 2 != 0);
    let block_size = if large {
        BlockSize::B4096
    } else {
        BlockSize::B512
    };
    let options = Options {
        capacity: CAPACITY,
        block_size,
        discard: true,
        ..Options::default()
    };
    let mut request = Request::default();
    drive(data, Blk::new(options), |blk, guest| {
        for _ in 0..64 {
            match blk.next_request(guest, &mut request) {
                Next::Empty => break,
                Next::Answered => {}
                Next::Request => {
                    check(&request, guest);
                    blk.complete(guest, &request, Status::Ok);
                }
            }
        }
    });
}

/// What an owner relies on.
fn check(request: &Request, guest: &FakeGuest) {
    let mut sum = 0;
    for segment in request.data() {
        assert!(guest.contains(segment.ipa, u64::from(segment.len)));
        sum += u64::from(segment.len);
    }
    assert_eq!(sum, u64::from(request.data_bytes()));
    for range in request.ranges() {
        assert!(range.sector + u64::from(range.count) <= CAPACITY);
    }
}

/// Console output and input.
pub fn console(data: &[u8]) {
    drive(data, Console::default(), |console, guest| {
        let mut out = 0;
        console.transmit(guest, 4096, |bytes| out += bytes.len());
        assert!(out <= 4096);
        assert!(console.receive(guest, b"typed by somebody") <= 17);
    });
}

/// A port of its own, and what is said of it.
pub fn port(data: &[u8]) {
    drive(data, Port::new("org.underpin.control"), |port, guest| {
        port.converse(guest);
        let mut out = 0;
        port.transmit(guest, 4096, |bytes| out += bytes.len());
        assert!(out <= 4096);
        assert!(port.receive(guest, b"an answer to somebody") <= 21);
    });
}

/// Requests for entropy.
pub fn rng(data: &[u8]) {
    drive(data, Rng::default(), fill);
}

fn fill(rng: &mut Transport<Rng>, guest: &FakeGuest) {
    let mut given = 0;
    rng.fill(guest, 4096, |bytes| given += bytes.len());
    assert!(given <= 4096);
}

/// The same from any state.
pub fn rng_goes_on(mut rng: Transport<Rng>, mut input: Input<'_>) {
    let guest = FakeGuest::new(RAM, RAM_SIZE).with_hole(HOLE);
    while step(&mut input, &mut rng, &guest, &mut fill).is_some() {}
    fill(&mut rng, &guest);
}

/// Pages given, taken back and reported, and a clock that reports wait for.
pub fn balloon(data: &[u8]) {
    const BUDGET: u64 = 300;
    let mut now = 0;
    drive(data, Balloon::default(), |balloon, guest| {
        now += 1;
        balloon.set_hold(now % 3);
        balloon.set_target(now as u32);
        let mut pages = 0;
        balloon.serve(
            guest,
            now,
            BUDGET,
            |gfn| gfn.0 & 512 == 0,
            |_, runs| {
                assert!((1..=MAX_RUNS).contains(&runs.len()));
                for run in runs {
                    assert!(guest.contains(run.first.address(), run.count * FRAME_SIZE));
                    pages += run.count;
                }
            },
        );
        assert!(pages < BUDGET + 512);
    });
}

/// Frames out, cut for a wire, and in, and commands.
pub fn net(data: &[u8]) {
    let has = |bit: u8| data.first().is_some_and(|byte| byte & bit != 0);
    let device = net_device(!has(2), if has(4) { 3 } else { 1 });
    let mut frame = Frame::default();
    drive(data, device, |net, guest| {
        exchange(net, guest, &mut frame, has(8));
    });
}

/// A network device, with offloads or without, of so many pairs of queues.
pub fn net_device(offloads: bool, pairs: u16) -> Net {
    Net::new(net::Options {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads,
        pairs,
    })
}

/// As [`net`], from any state.
pub fn net_goes_on(mut net: Transport<Net>, mut input: Input<'_>) {
    let guest = FakeGuest::new(RAM, RAM_SIZE).with_hole(HOLE);
    let mut frame = Frame::default();
    let mut serve = |net: &mut _, guest: &_| exchange(net, guest, &mut frame, false);
    while step(&mut input, &mut net, &guest, &mut serve).is_some() {}
    serve(&mut net, &guest);
}

fn exchange(net: &mut Transport<Net>, guest: &FakeGuest, frame: &mut Frame, will_look: bool) {
    let mtu = net.device().options().mtu;
    for _ in 0..32 {
        match net.next_frame(guest, frame, will_look) {
            net::Next::Empty => break,
            net::Next::Refused => {}
            net::Next::Frame => {
                cut(frame, guest, mtu);
                net.sent(guest, frame);
            }
        }
    }
    net.signal_sent(guest);
    net.control(guest, 8);
    for bytes in [60, 9000] {
        let mut filled = 0;
        let received = net.receive(guest, (bytes, Offload::default(), bytes), |runs| {
            while let Some(run) = runs.front() {
                assert!(guest.contains(run.ipa, run.len.into()));
                filled += run.len;
                runs.advance(run.len);
            }
            Ok(())
        });
        assert!(received != Received::Done || filled == bytes);
    }
}

/// What goes over a wire for a frame, however its headers lie.
fn cut(frame: &Frame, guest: &FakeGuest, mtu: u16) {
    let mut bytes = frame.head().to_vec();
    for segment in frame.rest() {
        bytes.extend(guest.get(segment.ipa, segment.len as usize));
    }
    assert_eq!(bytes.len(), frame.bytes() as usize);
    let offload = frame.offload();
    let most = offload.gso.map_or(usize::from(mtu) + 18, |gso| {
        usize::from(gso.payload) + usize::from(gso.size)
    });
    let Ok(pieces) = Pieces::of(frame.head(), frame.bytes(), offload) else {
        return;
    };
    let mut at = offload.gso.map_or(0, |gso| usize::from(gso.payload));
    for n in 0..pieces.count() {
        let range = pieces.payload(n);
        assert_eq!(range.start, at);
        at = range.end;
        let payload = &mut bytes[range];
        let head = pieces.complete(n, payload);
        assert!(head.len() + payload.len() <= most);
    }
    assert_eq!(at, frame.bytes() as usize);
}

fn drive<D: Device>(data: &[u8], device: D, mut serve: impl FnMut(&mut Transport<D>, &FakeGuest)) {
    let guest = FakeGuest::new(RAM, RAM_SIZE).with_hole(HOLE);
    let mut input = Input(data);
    let mut transport = Transport::new(device);
    if input.u8().unwrap_or(0) & 1 == 1 {
        start(&mut transport, RAM.0);
    }
    while step(&mut input, &mut transport, &guest, &mut serve).is_some() {}
    serve(&mut transport, &guest);
}

fn step<D: Device>(
    input: &mut Input<'_>,
    transport: &mut Transport<D>,
    guest: &FakeGuest,
    serve: &mut impl FnMut(&mut Transport<D>, &FakeGuest),
) -> Option<()> {
    match input.u8()? % 4 {
        0 => {
            let (offset, value) = (u64::from(input.u16()?), u64::from(input.u32()?));
            let size = 1 << (offset >> 12 & 3);
            transport.read(offset & 0xfff, size);
            transport.write(offset & 0xffc, 4, value);
        }
        1 | 2 => {
            let (offset, len) = (u64::from(input.u16()?), usize::from(input.u8()?));
            let bytes = input.bytes(len);
            let at = Ipa(RAM.0 + offset);
            if guest.contains(at, bytes.len() as u64) {
                guest.put(at, bytes);
            }
        }
        _ => {
            guest.take_log();
            serve(transport, guest);
            assert!(guest.take_log().len() <= MOST_ACCESSES, "unbounded work");
        }
    }
    Some(())
}

/// Does what a good driver does first: all features, 16 entries per queue, whose rings are from `rings` on.
pub fn start<D: Device>(transport: &mut Transport<D>, rings: u64) {
    for half in 0..2 {
        transport.write(0x014, 4, half);
        let offered = transport.read(0x010, 4);
        transport.write(0x024, 4, half);
        transport.write(0x020, 4, offered);
    }
    transport.write(0x070, 4, 0xb);
    for queue in 0..transport.device().queue_sizes().len() as u64 {
        transport.write(0x030, 4, queue);
        transport.write(0x038, 4, 16);
        for (register, area) in [(0x080, 0), (0x090, 0x1000), (0x0a0, 0x2000)] {
            transport.write(register, 4, rings + queue * RINGS + area);
        }
        transport.write(0x044, 4, 1);
    }
    transport.write(0x070, 4, 0xf);
}
