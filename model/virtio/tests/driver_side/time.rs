//! What is left for later where the owner's time is over: chains behind the first, and frames for a header in many pieces.

use crate::driver::{Buffer, DATA, Driver, Shape, ram, start};
use core::cell::Cell;
use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::Transport;
use model_virtio::net::{Net, Offload, Options, Received};
use model_virtio::port::Port;

/// Memory of an owner whose time is over, and how often it was touched all the same.
struct Over<'a>(&'a FakeGuest, Cell<u32>);

impl GuestMemory for Over<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.0.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.0.write(ipa, from)
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.0.contains(ipa, len)
    }
    fn touch(&self, _: Ipa, len: u64, _: bool, may_stop: bool) -> u64 {
        if may_stop {
            return 0;
        }
        self.1.set(self.1.get() + 1);
        len
    }
}

fn over(guest: &FakeGuest) -> Over<'_> {
    Over(guest, Cell::new(0))
}

fn net() -> Net {
    Net::new(Options {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: true,
        pairs: 1,
    })
}

fn at(n: u64, len: u32, writable: bool) -> Buffer {
    Buffer {
        ipa: Ipa(DATA.0 + 0x1000 * n),
        len,
        writable,
    }
}

/// Publishes `chains` of these buffers.
fn offer(guest: &FakeGuest, driver: &mut Driver, chains: u64, buffers: &[Buffer]) {
    for _ in 0..chains {
        driver.add(guest, buffers, Shape::Direct).unwrap();
    }
    driver.publish(guest);
}

/// One chain goes back in each of three goes.
fn goes_one_by_one(guest: &FakeGuest, driver: &mut Driver, mut go: impl FnMut(&Over<'_>)) {
    for _ in 0..3 {
        go(&over(guest));
        assert!(driver.reap(guest).is_some());
        assert!(driver.reap(guest).is_none());
    }
}

#[test]
fn messages_of_a_port_go_one_by_one() {
    let guest = ram();
    let (mut port, mut drivers) = start(Port::new("a"), 0, 16);
    offer(&guest, &mut drivers[3], 3, &[at(0, 8, false)]);
    goes_one_by_one(&guest, &mut drivers[3], |memory| _ = port.converse(memory));
}

#[test]
fn buffers_without_room_go_one_by_one() {
    let guest = ram();
    let (mut port, mut drivers) = start(Port::new("a"), 0, 16);
    offer(&guest, &mut drivers[0], 3, &[at(0, 8, false)]);
    goes_one_by_one(&guest, &mut drivers[0], |memory| {
        assert_eq!(port.receive(memory, b"typed"), 0);
    });
}

#[test]
fn commands_go_one_by_one() {
    let guest = ram();
    let (mut device, mut drivers) = start(net(), 0, 16);
    let announced = [at(0, 2, false), at(1, 1, true)];
    offer(&guest, &mut drivers[2], 3, &announced);
    let go = |memory: &Over<'_>| assert!(!device.control(memory, 8));
    goes_one_by_one(&guest, &mut drivers[2], go);
}

/// A frame's header in pages of its own gets one frame, and waits.
#[test]
fn a_header_in_many_pieces_gets_a_frame_at_a_time() {
    let guest = ram();
    let (mut device, mut drivers) = start(net(), 0, 32);
    let receive = |device: &mut Transport<Net>, memory: &Over<'_>| {
        device.receive(memory, (14, Offload::default(), 0), |_| Ok(()))
    };
    offer(&guest, &mut drivers[0], 1, &[at(0, 26, true)]);
    let memory = over(&guest);
    assert_eq!(receive(&mut device, &memory), Received::Done);
    // The used ring.
    assert_eq!(memory.1.get(), 1);
    for n in 0..26 {
        offer(&guest, &mut drivers[0], 1, &[at(n, 1, true)]);
    }
    let memory = over(&guest);
    assert_eq!(receive(&mut device, &memory), Received::Away);
    assert_eq!(memory.1.get(), 1);
    let all = device.receive(&guest, (14, Offload::default(), 0), |_| Ok(()));
    assert_eq!(all, Received::Done);
}
