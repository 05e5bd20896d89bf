//! A named port: what Linux' driver and the device tell each other before bytes go through it.

use crate::driver::{Buffer, DATA, Shape, ram, start};
use machine_contract::GuestMemory;
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::Transport;
use model_virtio::port::Port;
use std::collections::BTreeMap;

use crate::driver::Driver;

const NAME: &str = "org.underpin.control";

struct World {
    guest: FakeGuest,
    port: Transport<Port>,
    drivers: Vec<Driver>,
    /// Where the buffers are that the device may write, by their heads.
    lent: BTreeMap<u16, Ipa>,
}

impl World {
    fn new() -> Self {
        let guest = ram();
        let (port, drivers) = start(Port::new(NAME), 0, 16);
        let mut world = Self {
            guest,
            port,
            drivers,
            lent: BTreeMap::new(),
        };
        for n in 0..4 {
            world.offer(n);
        }
        world
    }

    /// Lends the device a buffer for what it says.
    fn offer(&mut self, n: u64) {
        let buffer = Buffer {
            ipa: Ipa(DATA.0 + 0x100 * n),
            len: 64,
            writable: true,
        };
        let head = self.drivers[2].add(&self.guest, &[buffer], Shape::Direct);
        self.lent.insert(head.unwrap(), buffer.ipa);
        self.drivers[2].publish(&self.guest);
    }

    /// The driver says something; gives what the device says then, as event and what follows it.
    fn say(&mut self, port: u32, event: u16, value: u16) -> Vec<(u16, Vec<u8>)> {
        let at = Ipa(DATA.0 + 0x800);
        let message = [
            &port.to_le_bytes()[..],
            &event.to_le_bytes(),
            &value.to_le_bytes(),
        ];
        self.guest.put(at, &message.concat());
        let buffer = Buffer {
            ipa: at,
            len: 8,
            writable: false,
        };
        self.drivers[3]
            .add(&self.guest, &[buffer], Shape::Direct)
            .unwrap();
        self.drivers[3].publish(&self.guest);
        assert!(!self.port.converse(&self.guest));
        assert!(self.drivers[3].reap(&self.guest).is_some());
        let mut heard = Vec::new();
        while let Some((head, len)) = self.drivers[2].reap(&self.guest) {
            let mut bytes = vec![0; len as usize];
            self.guest.read(self.lent[&head], &mut bytes).unwrap();
            assert_eq!(bytes[..4], [0; 4], "of port 0");
            assert_eq!(bytes[6..8], [1, 0]);
            heard.push((
                u16::from_le_bytes([bytes[4], bytes[5]]),
                bytes[8..].to_vec(),
            ));
        }
        heard
    }
}

#[test]
fn a_port_has_a_name_before_it_is_open() {
    let mut world = World::new();
    assert_eq!(world.say(u32::MAX, 0, 1), [(1, vec![])], "DEVICE_ADD");
    let told = world.say(0, 3, 1);
    assert_eq!(told, [(7, NAME.as_bytes().to_vec()), (6, vec![])]);
    assert!(!world.port.device().is_open());
    assert_eq!(world.say(0, 6, 1), []);
    assert!(world.port.device().is_open());
    // Of what there is not, and of a driver that failed: nothing.
    assert_eq!(world.say(1, 6, 0), []);
    assert_eq!(world.say(0, 3, 0), []);
    assert_eq!(world.say(0, 99, 7), []);
    assert!(world.port.device().is_open());
    world.say(0, 6, 0);
    assert!(!world.port.device().is_open());
}

#[test]
fn a_driver_without_room_is_told_later() {
    let mut world = World::new();
    world.say(u32::MAX, 0, 1);
    // One of its buffers is used, three are left: of four messages the last one waits.
    assert_eq!(world.say(0, 3, 1).len(), 2);
    assert_eq!(world.say(0, 3, 1).len(), 1);
    world.offer(4);
    assert!(!world.port.converse(&world.guest));
    assert!(world.drivers[2].reap(&world.guest).is_some());
}
