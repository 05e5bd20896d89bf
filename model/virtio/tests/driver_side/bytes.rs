//! Console and entropy: bytes arrive once and in order, whatever the budgets.

use crate::driver::{Buffer, DATA, Shape, ram, start};
use model_addr::Ipa;
use model_virtio::console::Console;
use model_virtio::rng::Rng;
use model_virtio::{Transport, Window as _};
use proptest::prelude::*;

fn lens() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(1..700u32, 1..5), 1..12)
}

/// Buffers one after the other from [`DATA`], for each chain.
fn lay_out(chains: &[Vec<u32>], writable: bool) -> Vec<Vec<Buffer>> {
    let mut at = DATA;
    let mut place = |&len: &u32| {
        let buffer = Buffer {
            ipa: at,
            len,
            writable,
        };
        at = Ipa(at.0 + u64::from(len));
        buffer
    };
    chains
        .iter()
        .map(|chain| chain.iter().map(&mut place).collect())
        .collect()
}

/// The device that a record makes.
fn gone_over(mut console: Transport<Console>) -> Transport<Console> {
    let mut other = Transport::new(Console::default());
    assert!(other.restore(&console.record()));
    assert_eq!(other.record(), console.record());
    other
}

/// What no driver could have come to makes no device.
#[test]
fn a_record_of_nonsense_is_refused() {
    let (mut console, _) = start(Console::default(), 0, 64);
    let record = console.record();
    let refused = |change: fn(&mut abi::state::Device)| {
        let mut record = record;
        change(&mut record);
        !Transport::new(Console::default()).restore(&record)
    };
    assert!(!refused(|_| {}));
    assert!(refused(|record| record.queues[0].size = 128));
    assert!(refused(|record| record.queues[0].size = 3));
    assert!(refused(|record| record.queues[1].descriptors = u64::MAX));
    assert!(refused(|record| record.queues[2].flags = 1));
    assert!(refused(|record| record.registers.driver_features |= 1 << 50));
    assert!(refused(
        |record| record.registers.driver_features &= !(1 << 32)
    ));
    assert!(refused(|record| record.registers.status &= !8));
    assert!(refused(|record| record.registers.interrupt |= 4));
    assert!(refused(|record| record.kind = 4));
    assert!(refused(|record| record.own[1] = 1));
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn what_the_guest_writes_comes_out(
        chains in lens(), budgets in prop::collection::vec(1..1500usize, 1..10),
    ) {
        let guest = ram();
        let (mut console, mut drivers) = start(Console::default(), 0, 64);
        let total: u32 = chains.iter().flatten().sum();
        let sent: Vec<u8> = (0..total).map(|n| (n ^ n >> 8) as u8).collect();
        guest.put(DATA, &sent);
        for chain in lay_out(&chains, false) {
            drivers[1].add(&guest, &chain, Shape::Direct).unwrap();
        }
        drivers[1].publish(&guest);
        let mut out = Vec::new();
        for (pass, budget) in budgets.iter().cycle().enumerate() {
            let before = out.len();
            let progress = console.transmit(&guest, *budget, |bytes| out.extend_from_slice(bytes));
            prop_assert_eq!(progress.bytes, out.len() - before);
            prop_assert!(progress.bytes <= *budget);
            if !progress.more {
                break;
            }
            // To take a buffer anew can cost all of a small budget.
            if pass % 3 == 0 {
                console = gone_over(console);
            }
        }
        prop_assert_eq!(out, sent);
        prop_assert!(console.irq_level());
        let used = std::iter::from_fn(|| drivers[1].reap(&guest)).collect::<Vec<_>>();
        prop_assert_eq!(used.len(), chains.len());
        prop_assert!(used.iter().all(|&(_, len)| len == 0));
    }

    #[test]
    fn what_comes_in_reaches_the_guest(chains in lens(), pieces in prop::collection::vec(0..900usize, 1..20)) {
        let guest = ram();
        let (mut console, mut drivers) = start(Console::default(), 0, 64);
        let chains = lay_out(&chains, true);
        let mut starts = std::collections::BTreeMap::new();
        for chain in &chains {
            let head = drivers[0].add(&guest, chain, Shape::Direct).unwrap();
            starts.insert(head, chain[0].ipa);
        }
        drivers[0].publish(&guest);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for piece in pieces {
            let bytes: Vec<u8> = (0..piece).map(|n| (n + sent.len()) as u8).collect();
            let accepted = console.receive(&guest, &bytes);
            sent.extend_from_slice(&bytes[..accepted]);
            while let Some((head, len)) = drivers[0].reap(&guest) {
                prop_assert!(len > 0);
                got.extend(guest.get(starts[&head], len as usize));
            }
            if accepted < bytes.len() {
                prop_assert_eq!(drivers[0].next_avail, drivers[0].last_used);
                break;
            }
        }
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn entropy_fills_every_buffer(chains in lens(), budget in 1..2000usize) {
        let guest = ram();
        let (mut rng, mut drivers) = start(Rng::default(), 0, 64);
        let chains = lay_out(&chains, true);
        let mut starts = std::collections::BTreeMap::new();
        for chain in &chains {
            let head = drivers[0].add(&guest, chain, Shape::Indirect).unwrap();
            let len: u32 = chain.iter().map(|buffer| buffer.len).sum();
            starts.insert(head, (chain[0].ipa, len));
        }
        drivers[0].publish(&guest);
        let mut next = 0u8;
        let mut random = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| {
            next = next % 251 + 1;
            *byte = next;
        });
        loop {
            let progress = rng.fill(&guest, budget, &mut random);
            prop_assert!(progress.bytes <= budget);
            if !progress.more {
                break;
            }
        }
        let mut seen = 0;
        let mut expected = 0u8;
        while let Some((head, len)) = drivers[0].reap(&guest) {
            let (at, room) = starts[&head];
            prop_assert!(len >= 1 && len <= room && (len == room || len as usize <= budget));
            for byte in guest.get(at, len as usize) {
                expected = expected % 251 + 1;
                prop_assert_eq!(byte, expected);
            }
            seen += 1;
        }
        prop_assert_eq!(seen, chains.len());
    }
}

#[test]
fn nothing_moves_before_the_driver_is_ready_or_after_a_reset() {
    let guest = ram();
    let (mut console, mut drivers) = start(Console::default(), 0, 64);
    let buffers = lay_out(&[vec![5]], false);
    drivers[1].add(&guest, &buffers[0], Shape::Direct).unwrap();
    drivers[1].publish(&guest);
    console.write(0x070, 4, 0);
    guest.take_log();
    assert_eq!(console.transmit(&guest, 100, |_| ()).bytes, 0);
    assert_eq!(console.receive(&guest, b"lost?"), 0);
    assert_eq!(guest.take_log(), []);
}
