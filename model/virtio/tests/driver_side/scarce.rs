//! Pages that get frames one at a time, as a machine without memory has them: no device breaks, and each does what it was
//! asked for once.

use crate::driver::{Buffer, DATA, Driver, Shape, ram, set_up_queue, start};
use core::cell::{Cell, RefCell};
use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::FakeGuest;
use model_addr::{FRAME_SIZE, Gfn, Ipa};
use model_virtio::balloon::Balloon;
use model_virtio::blk::{Blk, Next, Options, Request, Status};
use model_virtio::console::Console;
use model_virtio::net::{self, Frame, Net};
use model_virtio::port::Port;
use model_virtio::rng::Rng;
use model_virtio::{Device, Transport, Window as _};
use std::collections::BTreeSet;

/// Goes that any of these takes: one for each page of rings and buffers, and some.
const GOES: u32 = 40;

/// Memory whose pages get frames as they are touched, as long as there are some.
struct Scarce<'a> {
    guest: &'a FakeGuest,
    frames: RefCell<BTreeSet<Gfn>>,
    left: Cell<u32>,
}

impl Scarce<'_> {
    /// The first byte that has no frame, and gets none.
    fn lacks(&self, ipa: Ipa, len: u64) -> Option<Ipa> {
        let pages = ipa.0 / FRAME_SIZE..(ipa.0 + len).div_ceil(FRAME_SIZE);
        let mut frames = self.frames.borrow_mut();
        let lacks = pages.map(Gfn).find(|page| {
            let gets = !frames.contains(page) && self.left.get() > 0;
            if gets {
                frames.insert(*page);
                self.left.set(self.left.get() - 1);
            }
            !frames.contains(page)
        });
        lacks.map(|page| Ipa(page.address().0.max(ipa.0)))
    }

    fn frame(&self, ipa: Ipa, len: usize) -> Result<(), GuestMemoryError> {
        let lacks = self.lacks(ipa, len as u64).map(GuestMemoryError::NoFrame);
        lacks.map_or(Ok(()), Err)
    }
}

impl GuestMemory for Scarce<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.frame(ipa, into.len())?;
        self.guest.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.frame(ipa, from.len())?;
        self.guest.write(ipa, from)
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.guest.contains(ipa, len)
    }
    fn touch(&self, ipa: Ipa, len: u64, _: bool, _: bool) -> u64 {
        self.lacks(ipa, len).map_or(len, |at| at.0 - ipa.0)
    }
}

/// `len` bytes from a place in page `n` of the data on.
fn at(n: u64, place: u64, len: u32, writable: bool) -> Buffer {
    Buffer {
        ipa: Ipa(DATA.0 + FRAME_SIZE * n + place),
        len,
        writable,
    }
}

fn offer(guest: &FakeGuest, driver: &mut Driver, buffers: &[Buffer]) {
    driver.add(guest, buffers, Shape::Direct).unwrap();
    driver.publish(guest);
}

/// Lets a device go on, with one frame more each time, until the driver has so many of its chains back; the bytes written
/// to each.
fn until_back<D: Device>(
    device: &mut Transport<D>,
    (guest, driver, chains): (&FakeGuest, &mut Driver, usize),
    mut go: impl FnMut(&mut Transport<D>, &Scarce<'_>),
) -> Vec<u32> {
    let memory = Scarce {
        guest,
        frames: RefCell::default(),
        left: Cell::new(0),
    };
    let mut back = Vec::new();
    for _ in 0..GOES {
        go(device, &memory);
        assert_eq!(device.read(0x070, 4), 0xf, "the device is broken");
        back.extend(core::iter::from_fn(|| driver.reap(guest)).map(|(_, len)| len));
        memory.left.set(1);
    }
    assert_eq!(back.len(), chains);
    back
}

/// The status is in a page of the header; no frame is left when the request is done.
#[test]
fn a_disk_request_waits_for_the_frames_of_its_header() {
    let options = Options {
        capacity: 64,
        discard: true,
        ..Options::default()
    };
    // A read, a flush, the identification, and a discard: its range and the header cross into another page.
    for (kind, data, written) in [
        (0, at(2, 0, 512, true), 513),
        (4, at(2, 0, 16, false), 1),
        (8, at(2, 0, 20, true), 21),
        (11, at(2, 4088, 16, false), 1),
    ] {
        let guest = ram();
        let (mut device, mut drivers) = start(Blk::new(options), 0, 16);
        guest.put(Ipa(DATA.0 + 4088), &[kind, 0, 0, 0, 0, 0, 0, 0]);
        guest.put(Ipa(DATA.0 + 2 * FRAME_SIZE + 4096), &[8]);
        guest.put(DATA, &[0xee]);
        let buffers = [at(0, 4088, 16, false), data, at(0, 0, 1, true)];
        offer(&guest, &mut drivers[0], &buffers);
        let (mut request, mut taken) = (Request::default(), 0);
        let back = until_back(
            &mut device,
            (&guest, &mut drivers[0], 1),
            |device, memory| {
                while device.next_request(memory, &mut request) == Next::Request {
                    taken += 1;
                    memory.left.set(0);
                    device.complete(memory, &request, Status::Ok);
                }
            },
        );
        assert_eq!((back, taken), (vec![written], u32::from(kind != 8)));
        assert_eq!(guest.get(DATA, 1), [0]);
    }
}

/// The status is in a page of its own, and the used ring crosses into another: both lose their frames once a request is
/// taken, as pages do that a driver gives to its balloon. Each is answered once.
#[test]
fn an_answer_waits_for_the_frames_of_status_and_ring() {
    let options = Options {
        capacity: 64,
        ..Options::default()
    };
    // A read, the identification, a request of no known kind, and a read beyond the end.
    for (kind, sector, status, written) in
        [(0, 0, 0, 513), (8, 0, 0, 21), (99, 0, 2, 1), (0, 64, 1, 1)]
    {
        let guest = ram();
        let (mut device, mut drivers) = start(Blk::new(options), 0, 16);
        drivers[0].setup.device += FRAME_SIZE - 4;
        device.write(0x044, 4, 0);
        set_up_queue(&mut device, 0, &drivers[0].setup);
        guest.put(DATA, &[kind, 0, 0, 0, 0, 0, 0, 0, sector]);
        let data = at(2, 0, if kind == 8 { 20 } else { 512 }, true);
        let buffers = [at(0, 0, 16, false), data, at(4, 0, 1, true)];
        guest.put(buffers[2].ipa, &[0xee]);
        offer(&guest, &mut drivers[0], &buffers);
        let (mut request, mut next, mut refused) = (Request::default(), Next::Empty, 0);
        let back = until_back(
            &mut device,
            (&guest, &mut drivers[0], 1),
            |device, memory| {
                if next != Next::Request {
                    next = device.next_request(memory, &mut request);
                    if next == Next::Request {
                        memory.frames.borrow_mut().clear();
                        memory.left.set(0);
                    }
                }
                if next == Next::Request && device.complete(memory, &request, Status::Ok) {
                    next = Next::Empty;
                } else if next == Next::Request {
                    refused += 1;
                }
            },
        );
        assert_eq!(
            (back, guest.get(buffers[2].ipa, 1)),
            (vec![written], vec![status])
        );
        // The status, an element and the index have a page each.
        assert_eq!(refused, if status == 0 && kind == 0 { 3 } else { 0 });
    }
}

#[test]
fn random_bytes_wait_for_frames() {
    let guest = ram();
    let (mut device, mut drivers) = start(Rng::default(), 0, 16);
    let buffers = [at(0, 4000, 300, true), at(7, 0, 50, true)];
    offer(&guest, &mut drivers[0], &buffers);
    let back = until_back(
        &mut device,
        (&guest, &mut drivers[0], 1),
        |device, memory| {
            device.fill(memory, 4096, |bytes| bytes.fill(7));
        },
    );
    assert_eq!(back, [350]);
    assert_eq!(guest.get(Ipa(DATA.0 + 4000), 300), [7; 300]);
    assert_eq!(guest.get(Ipa(DATA.0 + 7 * FRAME_SIZE), 50), [7; 50]);
}

/// Each byte goes out once, also where a chain has to wait in its midst.
#[test]
fn bytes_go_out_once() {
    let guest = ram();
    let (mut device, mut drivers) = start(Console::default(), 0, 16);
    let said: Vec<u8> = (0..3 * FRAME_SIZE).map(|n| (n / 13) as u8).collect();
    guest.put(DATA, &said);
    for chain in [vec![at(0, 0, 5000, false)], vec![at(1, 904, 7288, false)]] {
        offer(&guest, &mut drivers[1], &chain);
    }
    let mut out = Vec::new();
    let back = until_back(
        &mut device,
        (&guest, &mut drivers[1], 2),
        |device, memory| {
            device.transmit(memory, 1 << 16, |bytes| out.extend_from_slice(bytes));
        },
    );
    assert_eq!(back, [0, 0]);
    assert!(out == said, "{} bytes of {}", out.len(), said.len());
}

/// Each byte that somebody types comes once.
#[test]
fn bytes_come_in_once() {
    let guest = ram();
    let (mut device, mut drivers) = start(Console::default(), 0, 16);
    for page in 0..4 {
        offer(&guest, &mut drivers[0], &[at(page, 4095, 2, true)]);
    }
    let mut typed = &b"abcdefgh"[..];
    let back = until_back(
        &mut device,
        (&guest, &mut drivers[0], 4),
        |device, memory| {
            typed = &typed[device.receive(memory, typed)..];
        },
    );
    assert_eq!((back, typed), (vec![2; 4], &[][..]));
    let seen = (0..4).flat_map(|page| guest.get(Ipa(DATA.0 + FRAME_SIZE * page + 4095), 2));
    assert_eq!(seen.collect::<Vec<_>>(), b"abcdefgh");
}

#[test]
fn messages_of_a_port_wait_for_frames() {
    let guest = ram();
    let (mut port, mut drivers) = start(Port::new("a"), 0, 16);
    // The device is ready: it says that there is a port.
    guest.put(Ipa(DATA.0 + 4092), &[0, 0, 0, 0, 0, 0, 1, 0]);
    offer(&guest, &mut drivers[3], &[at(0, 4092, 8, false)]);
    offer(&guest, &mut drivers[2], &[at(3, 4092, 64, true)]);
    let go = |port: &mut Transport<Port>, memory: &Scarce<'_>| _ = port.converse(memory);
    let back = until_back(&mut port, (&guest, &mut drivers[3], 1), go);
    assert_eq!(back, [0]);
    assert_eq!(drivers[2].reap(&guest).map(|(_, len)| len), Some(8));
}

#[test]
fn commands_and_frames_wait_for_frames() {
    let options = net::Options {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: true,
        pairs: 1,
    };
    let guest = ram();
    let (mut device, mut drivers) = start(Net::new(options), 0, 16);
    // An announcement was seen.
    guest.put(Ipa(DATA.0 + 4095), &[3, 0]);
    let announced = [at(0, 4095, 2, false), at(2, 0, 1, true)];
    guest.put(Ipa(DATA.0 + 2 * FRAME_SIZE), &[0xee]);
    offer(&guest, &mut drivers[2], &announced);
    let control = |device: &mut Transport<Net>, memory: &Scarce<'_>| {
        device.control(memory, 8);
    };
    let back = until_back(&mut device, (&guest, &mut drivers[2], 1), control);
    assert_eq!(
        (back, guest.get(Ipa(DATA.0 + 2 * FRAME_SIZE), 1)),
        (vec![1], vec![0])
    );

    offer(&guest, &mut drivers[1], &[at(10, 4086, 12 + 60, false)]);
    let (mut frame, mut sent) = (Frame::default(), 0);
    let send = |device: &mut Transport<Net>, memory: &Scarce<'_>| {
        while device.next_frame(memory, &mut frame, false) == net::Next::Frame {
            sent += 1;
            device.sent(memory, &frame);
        }
    };
    until_back(&mut device, (&guest, &mut drivers[1], 1), send);
    assert_eq!(sent, 1);
}

#[test]
fn numbers_of_pages_wait_for_frames() {
    let guest = ram();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 16);
    let first = (DATA.0 / FRAME_SIZE) as u32 + 64;
    let numbers = (0..1500_u32).flat_map(|n| (first + n % 64).to_le_bytes());
    guest.put(DATA, &numbers.collect::<Vec<_>>());
    offer(&guest, &mut drivers[0], &[at(0, 0, 6000, false)]);
    let mut pages = BTreeSet::new();
    let serve = |balloon: &mut Transport<Balloon>, memory: &Scarce<'_>| {
        balloon.serve(
            memory,
            0,
            4000,
            |_| false,
            |_, runs| {
                pages.extend(
                    runs.iter()
                        .flat_map(|run| (0..run.count).map(|n| run.first.add(n))),
                );
            },
        );
    };
    let back = until_back(&mut balloon, (&guest, &mut drivers[0], 1), serve);
    assert_eq!((back, pages.len()), (vec![0], 64));
}
