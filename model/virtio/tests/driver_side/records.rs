//! Records of devices: what arrives is refused, or is what the device then is.

use crate::driver::{DATA, ram, start};
use abi::state;
use model_addr::Gfn;
use model_virtio::balloon::Balloon;
use model_virtio::console::Console;
use model_virtio::net::{Net, Options};
use model_virtio::port::Port;
use model_virtio::rng::Rng;
use model_virtio::{Device, Transport, Window as _};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a record that are others: where, and what.
type Changes = Vec<(usize, u8)>;

/// Whether it was taken. The driver goes on with a device that was.
fn arrives<D: Device + Clone>(device: &D, changes: &Changes) -> Result<bool, TestCaseError> {
    let guest = ram();
    let (mut transport, _) = start(device.clone(), 0, 16);
    let mut bytes = transport.record().as_bytes().to_vec();
    for (at, byte) in changes {
        let at = at % bytes.len();
        bytes[at] = *byte;
    }
    let record = state::Device::read_from_bytes(&bytes).unwrap();
    let mut other = Transport::new(device.clone());
    if !other.restore(&record) {
        return Ok(false);
    }
    prop_assert_eq!(other.record(), record);
    // Wherever its queues are.
    let _ = other.uses(DATA.frame()) || other.uses(Gfn(u64::MAX >> 12));
    let of_device = u64::from(D::ID);
    prop_assert_eq!(other.read(0x008, 4), of_device);
    for offset in (0..0x120).step_by(4) {
        other.read(offset, 4);
    }
    for queue in 0..9 {
        other.write(0x050, 4, queue);
    }
    drop(guest);
    // A driver that starts over finds the device as a new one.
    other.write(0x070, 4, 0);
    prop_assert_eq!((other.read(0x070, 4), other.read(0x060, 4)), (0, 0));
    Ok(true)
}

proptest! {
    #![proptest_config(crate::cases(150))]

    #[test]
    fn a_record_is_refused_or_taken_as_it_is(
        changes in prop::collection::vec((0..416_usize, prop::sample::select(vec![0, 1, 2, 8, 0x40, 0xff])), 0..4),
    ) {
        let options = Options { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, offloads: true, pairs: 4 };
        let taken = [
            arrives(&Console::default(), &changes)?,
            arrives(&Port::new("org.underpin.control"), &changes)?,
            arrives(&Rng::default(), &changes)?,
            arrives(&Balloon::default(), &changes)?,
            arrives(&Net::new(options), &changes)?,
        ];
        prop_assert!(!changes.is_empty() || taken == [true; 5]);
    }

    #[test]
    fn a_record_of_any_bytes_is_refused_or_taken_as_it_is(
        bytes in prop::collection::vec(any::<u8>(), 416),
    ) {
        let changes = bytes.into_iter().enumerate().collect();
        arrives(&Rng::default(), &changes)?;
        arrives(&Balloon::default(), &changes)?;
    }
}
