//! Frames that follow each other into buffers of all sizes, which come back in any order.

use super::{RX, device, writable};
use crate::driver::{Driver, Shape, ram, start};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::net::{Offload, Received};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Bytes of the largest buffer.
const MOST: u64 = 2000;
const SIZE: u16 = 32;

/// What a buffer's pieces are, of its chain in the queue.
type Pieces = Vec<usize>;

fn pieces() -> impl Strategy<Value = Pieces> {
    prop_oneof![
        6 => (60..MOST as usize).prop_map(|bytes| vec![bytes]),
        1 => (60..500_usize, 60..500_usize).prop_map(|(one, two)| vec![one, two]),
    ]
}

/// A buffer that the driver gave: its head, its pieces, and the places of these.
type Given = (u16, Pieces, u64);

/// Gives the driver's next buffer, at a place of its own.
fn give(guest: &FakeGuest, driver: &mut Driver, pieces: &Pieces, place: u64) -> Option<Given> {
    let at = RX.0 + place % 64 * MOST;
    let mut next = at;
    let buffers: Vec<_> = pieces
        .iter()
        .map(|bytes| {
            next += *bytes as u64;
            writable(Ipa(next - *bytes as u64), *bytes)
        })
        .collect();
    let head = driver.add(guest, &buffers, Shape::Direct)?;
    driver.publish(guest);
    Some((head, pieces.clone(), at))
}

proptest! {
    #![proptest_config(crate::cases(200))]

    /// Each frame takes the driver's next buffers, as few as hold it, and gives them back in their order.
    #[test]
    fn each_frame_takes_the_next_buffers(
        sizes in prop::collection::vec(pieces(), 40..80),
        frames in prop::collection::vec((14..6000_u32, any::<bool>()), 1..30),
    ) {
        let guest = ram();
        let (mut net, mut drivers) = start(device(true), 0, SIZE);
        let mut sizes = sizes.iter().cycle().zip(0..);
        let mut waiting = VecDeque::<Given>::new();
        for (bytes, is_exact) in frames {
            while waiting.len() < 20
                && let Some((pieces, place)) = sizes.next()
                && let Some(given) = give(&guest, &mut drivers[0], pieces, place)
            {
                waiting.push_back(given);
            }
            // One that just fills what it takes takes no more.
            let first: usize = waiting.iter().take(2).flat_map(|it| &it.1).sum();
            let bytes = if is_exact { first as u32 - 12 } else { bytes };
            let mut filled = 0_u64;
            let received = net.receive(&guest, (bytes, Offload::default(), 0), |runs| {
                while let Some(run) = runs.front() {
                    let fill: Vec<u8> = (filled..filled + u64::from(run.len)).map(|n| (n % 251) as u8).collect();
                    guest.put(run.ipa, &fill);
                    filled += u64::from(run.len);
                    runs.advance(run.len);
                }
                Ok(())
            });
            let (mut left, mut found) = (bytes as usize + 12, Vec::new());
            let room: usize = waiting.iter().flat_map(|it| &it.1).sum();
            if room < left {
                prop_assert_eq!(received, Received::NoBuffers);
                continue;
            }
            prop_assert_eq!(received, Received::Done);
            while left > 0 {
                let (head, pieces, at) = waiting.pop_front().unwrap();
                let used = left.min(pieces.iter().sum());
                prop_assert_eq!(drivers[0].reap(&guest), Some((head, used as u32)));
                found.extend(guest.get(Ipa(at), used));
                left -= used;
            }
            prop_assert!(drivers[0].reap(&guest).is_none());
            let is_whole = found[12..].iter().zip(0..).all(|(byte, n): (&u8, u64)| u64::from(*byte) == n % 251);
            prop_assert!(is_whole && filled == u64::from(bytes));
        }
    }
}

/// What lies behind the table is no buffer, whatever it looks like; those before it are.
#[test]
fn a_buffer_behind_the_table_breaks_the_device() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, SIZE);
    let driver = &mut drivers[0];
    for place in 0..2 {
        give(&guest, driver, &vec![500], place).unwrap();
    }
    for n in 0..4 {
        let behind = driver.setup.descriptors + 16 * u64::from(SIZE + n);
        Driver::write_descriptor(&guest, behind, writable(RX, 500), 2, 0);
    }
    guest.put(Ipa(driver.setup.driver + 4 + 4), &SIZE.to_le_bytes());
    driver.next_avail += 1;
    driver.publish(&guest);
    let mut receive = || net.receive(&guest, (400, Offload::default(), 0), |_| Ok(()));
    assert_eq!([receive(), receive()], [Received::Done; 2]);
    assert_eq!(receive(), Received::NoDriver);
    assert!(!net.is_live());
}
