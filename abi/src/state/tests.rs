extern crate std;

use super::*;
use std::vec;
use std::vec::Vec;
use zerocopy::{FromBytes, IntoBytes};

fn runs(count: u64) -> Vec<Run> {
    let run = |n| Run {
        gfn: n,
        frame: n * 7,
        count: 1,
        kind: run::PRIVATE,
        why: 0,
        never_share: 0,
        disk: 0,
    };
    (0..count).map(run).collect()
}

fn write(writer: &mut Writer<'_>, count: u64, queue: &Queue) {
    writer.put(kind::TREE, &b"seven b"[..]);
    writer.begin(kind::RUNS);
    for run in runs(count) {
        writer.add(&run);
    }
    writer.put(kind::DEVICES, queue);
}

fn written(count: u64) -> Vec<u8> {
    let mut room = vec![0xa5; 4096];
    let mut writer = Writer::new(&mut room);
    let queue = Queue::read_from_bytes(&[3; 40]).unwrap();
    write(&mut writer, count, &queue);
    let bytes = writer.finish().unwrap() as usize;
    room.truncate(bytes);
    room
}

fn read(bytes: &[u8]) -> Result<Vec<Run>, Unreadable> {
    let mut reader = Reader::new(bytes)?;
    assert_eq!(reader.one_if::<u64>(kind::ENDED)?, None);
    assert_eq!(reader.bytes(kind::TREE)?, b"seven b");
    let found = reader.all(kind::RUNS)?.collect();
    let queue: Queue = reader.one(kind::DEVICES)?;
    assert_eq!(queue.as_bytes(), [3; 40]);
    reader.end().map(|()| found)
}

#[test]
fn what_is_written_is_read() {
    for count in [0, 1, 100] {
        assert_eq!(read(&written(count)), Ok(runs(count)));
    }
    let mut longer = written(5);
    longer.extend([1; 100]);
    assert_eq!(read(&longer), Ok(runs(5)));
}

#[test]
fn every_cut_and_every_bit_that_flips_is_seen() {
    let whole = written(9);
    for cut in 0..whole.len() {
        assert_eq!(Reader::new(&whole[..cut]).err(), Some(Unreadable::Damaged));
    }
    for bit in 0..whole.len() * 8 {
        let mut other = whole.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        let version = (64..96).contains(&bit);
        let wanted = if version {
            Unreadable::Version
        } else {
            Unreadable::Damaged
        };
        assert_eq!(Reader::new(&other).err(), Some(wanted), "bit {bit}");
    }
}

/// With a checksum that is right, whatever stands there is read or refused, and nothing panics.
#[test]
fn nonsense_with_a_right_checksum_is_refused_item_by_item() {
    let whole = written(9);
    for at in 32..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut other = whole.clone();
            other[at] = value;
            let sum = crate::upgrade::checksum(&other[32..]) ^ (other.len() as u64 - 32);
            other[24..32].copy_from_slice(&sum.to_le_bytes());
            let mut reader = Reader::new(&other).unwrap();
            let read = reader.bytes(kind::TREE).map(drop).and_then(|()| {
                let runs = reader.all::<Run>(kind::RUNS)?.count();
                let _: Queue = reader.one(kind::DEVICES)?;
                reader.end().map(|()| runs)
            });
            assert!(read.is_err() || read == Ok(9), "{at} {read:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_said() {
    for size in 0..written(9).len() {
        let mut room = vec![0; size];
        let mut writer = Writer::new(&mut room);
        write(&mut writer, 9, &Queue::read_from_bytes(&[3; 40]).unwrap());
        assert_eq!(writer.finish(), None, "{size}");
    }
}
