extern crate std;

use super::*;
use crate::state::{Reader, Run, Uart, Writer, run};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

const PAGE: usize = 4096;

fn room() -> Box<[u8; ROOM]> {
    vec![0xa5; ROOM].into_boxed_slice().try_into().unwrap()
}

fn content(gfn: u64, count: u32) -> Run {
    Run {
        gfn,
        count,
        kind: run::CONTENT,
        ..Run::ZERO
    }
}

/// Writes some records, and `pages` pages, as much of each at a time as a whole run takes.
fn write(to: &mut impl Sink, pages: u64) {
    to.put(kind::TREE, &b"seven b"[..]);
    to.begin(kind::RUNS);
    for gfn in 0..pages {
        let place = to.part(size_of::<Run>() + PAGE);
        let (head, page) = place.unwrap().split_at_mut(size_of::<Run>());
        head.copy_from_slice(content(gfn, 1).as_bytes());
        page.fill(gfn as u8);
    }
    let received = 3;
    to.put(
        kind::UART,
        &Uart {
            received,
            ..Uart::ZERO
        },
    );
}

/// How many pages there were.
fn read(from: &mut impl Source) -> Result<u64, Unreadable> {
    assert_eq!(from.one_if::<u64>(kind::ENDED)?, None);
    if from.bytes(kind::TREE)? != b"seven b" {
        return Err(Unreadable::Item(kind::TREE));
    }
    let mut pages = 0;
    while from.peek() == Some(kind::RUNS) {
        for (run, behind) in from.runs(kind::RUNS)? {
            assert_eq!(run, content(pages, 1));
            assert!(behind.iter().all(|byte| *byte == pages as u8));
            pages += 1;
        }
    }
    let uart: Uart = from.one(kind::UART)?;
    assert_eq!(uart.received, 3);
    from.end().map(|()| pages)
}

fn saved(with: impl FnOnce(&mut ByteSink<'_, &mut dyn FnMut(&[u8]) -> bool>)) -> Vec<u8> {
    let (mut room, mut bytes) = (room(), Vec::new());
    let mut out = |part: &[u8]| {
        bytes.extend(part);
        true
    };
    let mut sink = ByteSink::new(&mut room, &mut out as &mut dyn FnMut(&[u8]) -> bool);
    with(&mut sink);
    let count = sink.finish();
    assert_eq!(count, Some(bytes.len() as u64));
    bytes
}

fn load<T>(
    mut bytes: &[u8],
    with: impl FnOnce(&mut dyn FnMut(&mut [u8]) -> bool) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    with(&mut |into: &mut [u8]| {
        let part = bytes.split_off(..into.len());
        part.map(|part| into.copy_from_slice(part)).is_some()
    })
}

fn restored(bytes: &[u8]) -> Result<u64, Unreadable> {
    load(bytes, |input| {
        read(&mut ByteSource::new(&mut room(), input)?)
    })
}

#[test]
fn both_kinds_of_sink_give_what_they_were_given() {
    for pages in [0, 1, 31, 32, 100] {
        let bytes = saved(|sink| write(sink, pages));
        assert_eq!(restored(&bytes), Ok(pages));
        let mut frames = vec![0; 1 << 20];
        let mut writer = Writer::new(&mut frames);
        write(&mut writer, pages);
        let whole = writer.finish().unwrap() as usize;
        assert_eq!(read(&mut Reader::new(&frames[..whole]).unwrap()), Ok(pages));
    }
}

#[test]
fn every_cut_and_every_byte_that_changes_is_refused_by_name() {
    let whole = saved(|sink| write(sink, 1));
    for cut in 0..whole.len() {
        assert_eq!(restored(&whole[..cut]), Err(Unreadable::Cut), "{cut}");
    }
    // Behind its end begins something else.
    assert_eq!(restored(&[&whole[..], &[7]].concat()), Ok(1));
    for at in 0..whole.len() {
        // All of the pages' bytes are one case.
        let inside = (300..4300).contains(&at) && at % 97 != 0;
        for by in [1, 0x80, 0xff].into_iter().filter(|_| !inside) {
            let mut other = whole.clone();
            other[at] ^= by;
            let is_right = match restored(&other) {
                Err(Unreadable::Version) => (8..12).contains(&at),
                // The length of a section is needed before its sum.
                Err(Unreadable::Damaged) => !(8..12).contains(&at),
                Err(Unreadable::TooLong(_) | Unreadable::Cut) => at >= 16,
                _ => false,
            };
            assert!(is_right, "byte {at} by {by:#x}: {:?}", restored(&other));
        }
    }
}

#[test]
fn sections_are_in_their_places() {
    let whole = saved(|sink| write(sink, 40));
    // The preamble, and a section for each item: the pages take two.
    let mut ends = vec![16];
    while let Some(head) = whole
        .get(ends[ends.len() - 1]..)
        .filter(|it| !it.is_empty())
    {
        let section = Section::read_from_prefix(head).unwrap().0;
        ends.push(ends[ends.len() - 1] + HEAD + section.length as usize);
    }
    assert_eq!(ends.len(), 6);
    let section = |n: usize| &whole[ends[n]..ends[n + 1]];
    let of = |order: &[usize]| -> Vec<u8> {
        let sections = order.iter().flat_map(|n| section(*n));
        whole[..16].iter().chain(sections).copied().collect()
    };
    assert_eq!(restored(&of(&[0, 1, 2, 3, 4])), Ok(40));
    for order in [
        &[0, 2, 1, 3, 4][..],
        &[0, 1, 3, 4],
        &[0, 1, 1, 2, 3, 4],
        &[1, 2, 3, 4],
    ] {
        assert_eq!(restored(&of(order)), Err(Unreadable::Damaged), "{order:?}");
    }
}

#[test]
fn what_is_too_long_or_not_taken_is_said() {
    let finish = |bytes: usize, mut parts: u32| {
        let mut room = room();
        let mut sink = ByteSink::new(&mut room, |_| {
            parts = parts.saturating_sub(1);
            parts > 0
        });
        sink.put(kind::TEXT, vec![0_u8; bytes].as_slice());
        sink.finish()
    };
    assert!(finish(ROOM - HEAD, 9).is_some());
    assert_eq!(finish(ROOM - HEAD + 1, 9), None);
    assert_eq!(finish(usize::MAX >> 40, 9), None);
    for parts in 0..=3 {
        assert_eq!(finish(7, parts), None);
    }
}

/// Sums are right, and what they are of is not.
#[test]
fn counts_out_of_range_are_refused() {
    for count in [2, 3, u32::MAX] {
        for kind in [run::CONTENT, run::STORED, run::BASE] {
            let bytes = saved(|sink| {
                sink.put(
                    kind::RUNS,
                    &Run {
                        kind,
                        ..content(0, count)
                    },
                );
                sink.add(&[0_u8; 8]);
            });
            let runs = load(&bytes, |input| {
                let mut room = room();
                let mut source = ByteSource::new(&mut room, input)?;
                source.runs(kind::RUNS).map(Iterator::count)
            });
            assert_eq!(runs, Err(Unreadable::Item(kind::RUNS)));
        }
    }
    let bytes = saved(|sink| sink.put(kind::UART, &[0_u8; size_of::<Uart>() + 1]));
    let uart = load(&bytes, |input| {
        ByteSource::new(&mut room(), input)?.one::<Uart>(kind::UART)
    });
    assert_eq!(uart, Err(Unreadable::Item(kind::UART)));
}
