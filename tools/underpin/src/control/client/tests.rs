//! Answers of a hypervisor, also such as make no sense.

use super::*;
use abi::control::page;
use std::thread;

/// A client, and a hypervisor that gives these bodies, of records of that size, one after the
/// other; then none.
fn answered(record: usize, bodies: Vec<Vec<u8>>) -> Client {
    answered_and(record, bodies.into_iter().map(|body| (body, 0)).collect())
}

/// As [`answered`], with a number in each answer's header.
fn answered_and(record: usize, bodies: Vec<(Vec<u8>, u64)>) -> Client {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        let mut codec = Codec::default();
        let mut bodies = bodies.into_iter();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = theirs.read(&mut buffer) {
            codec.push(&buffer[..n]);
            while let Some(frame) = codec.next_frame() {
                let (body, value) = bodies.next().unwrap_or_default();
                let mut header = ReplyHeader::new_zeroed();
                (header.count, header.value) = ((body.len() / record) as u32, value);
                let parts = [header.as_bytes(), &body];
                let bytes = encode(frame.kind | REPLY, frame.tag, &parts);
                theirs.write_all(&bytes).unwrap();
            }
        }
    });
    Client::new(ours)
}

/// What is made of parts, each of pages and where to go on.
fn pages(parts: &[(&[u64], u64)]) -> Result<Vec<PageStatus>> {
    let page = |gfn: &u64| PageStatus {
        address: (gfn * PAGE) | page::SHARED,
        hash: *gfn,
    };
    let body = |(part, next): &(&[u64], u64)| {
        let pages: Vec<PageStatus> = part.iter().map(page).collect();
        (pages.as_bytes().to_vec(), next * PAGE)
    };
    let bodies = parts.iter().map(body).collect();
    answered_and(size_of::<PageStatus>(), bodies).pages("web1")
}

#[test]
fn pages_come_in_parts_that_rise() {
    let gfns = |parts| {
        let pages = pages(parts).map_err(|failure| failure.code())?;
        Ok(pages.iter().map(|page| page.hash).collect::<Vec<_>>())
    };
    assert_eq!(gfns(&[]), Ok(vec![]));
    let parts: [(&[u64], u64); 4] = [(&[1, 5], 6), (&[], 8), (&[8], 9), (&[9], 0)];
    assert_eq!(gfns(&parts), Ok(vec![1, 5, 8, 9]));
    let wrong: [&[(&[u64], u64)]; 5] = [
        &[(&[5, 1], 0)],
        &[(&[1, 1], 0)],
        &[(&[1, 5], 6), (&[5], 0)],
        // It does not go on.
        &[(&[1], 6), (&[6], 6)],
        &[(&[1], 6), (&[6], 5)],
    ];
    for parts in wrong {
        assert_eq!(gfns(parts), Err(exit::FAILED), "{parts:?}");
    }
}

#[test]
fn parts_of_a_vms_memory_are_added_up() {
    let mut counts = PageCounts::new_zeroed();
    (counts.private[1], counts.no_twin, counts.shared) = (3, 5, u64::MAX - 1);
    counts.nodes[2] = 1;
    let parts = [PAGE, 0].map(|next| (counts.as_bytes().to_vec(), next));
    let sum = answered_and(1, parts.into()).page_counts("web1").unwrap();
    let found = (sum.private[1], sum.no_twin, sum.shared, sum.nodes[2]);
    assert_eq!(found, (6, 10, u64::MAX, 2));
}

#[test]
fn events_are_as_many_as_their_numbers_say() {
    let answer = |next, lost, count| {
        let header = EventsHeader { next, lost };
        let events = vec![TraceEvent::new_zeroed(); count];
        let body = [header.as_bytes(), events.as_bytes()].concat();
        let events = answered(1, vec![body]).events(0, 7);
        events.map(|(_, events)| events.len()).ok()
    };
    assert_eq!(answer(7, 0, 0), Some(0));
    assert_eq!(answer(12, 3, 2), Some(2));
    for (next, lost, count) in [(8, 0, 0), (12, 3, 3), (6, 0, 0), (6, u64::MAX, 0)] {
        assert_eq!(answer(next, lost, count), None, "{next} {lost} {count}");
    }
    assert!(answered(1, vec![vec![0; 15]]).events(0, 0).is_err());
    assert!(answered(1, vec![vec![0; 17]]).events(0, 0).is_err());
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let whole = PageCounts::new_zeroed();
    let size = size_of::<PageCounts>();
    let body = whole.as_bytes().to_vec();
    let (good, short) = (vec![body.clone()], vec![body[1..].to_vec()]);
    assert!(answered(size, good).why("web1").is_ok());
    assert!(answered(size, short).why("web1").is_err());
    let vms = vec![RawVm::new_zeroed().as_bytes()[1..].to_vec()];
    assert!(answered(1, vms).list().is_err());
    assert_eq!(
        answered(1, vec![]).list().map(|vms| vms.len()).ok(),
        Some(0)
    );
    assert!(answered(1, vec![]).show("web1").is_err());
}
