//! Where a system goes that is started in the place of an OS-0 that has ended (`abi::stage`).

use abi::stage::{ALIGN, Head, MAGIC, PAYLOAD_AT, RESERVATION_BYTES};
use model_addr::{Pa, PaRange};

/// Whether a run of `bytes` bytes that begins with `head` can be started: all that is to be read or
/// written of it lies in it.
pub fn is_startable(head: &Head, bytes: u64) -> bool {
    let has = |at: u64, size: Option<u64>, align: u64| {
        let end = size.and_then(|size| at.checked_add(size));
        at.is_multiple_of(align) && end.is_some_and(|end| end <= head.bytes)
    };
    let [reservations, count] = head.reservations;
    let fits = bytes.checked_sub(PAYLOAD_AT);
    head.magic == MAGIC
        && fits.is_some_and(|fits| head.bytes <= fits)
        && (head.bytes..1 << 40).contains(&head.room)
        && has(head.tree, Some(8), 8)
        && head.initrd.iter().all(|at| has(*at, Some(8), 4))
        && count > 0
        && has(reservations, count.checked_mul(RESERVATION_BYTES), 8)
}

/// The lowest place for `room` bytes in memory that nobody has.
pub fn place(memory: &[PaRange], taken: &[PaRange], room: u64) -> Option<Pa> {
    let starts = memory.iter().map(|run| run.start);
    let edges = starts.chain(taken.iter().map(|run| run.end()));
    let is_free = |start: &Pa| {
        let run = PaRange::new(*start, room);
        let has = |run: PaRange| {
            memory
                .iter()
                .any(|memory| memory.contains_run(run.start, room))
        };
        run.is_some_and(|run| has(run) && !taken.iter().any(|other| other.overlaps(run)))
    };
    edges
        .filter_map(|edge| edge.align_up(ALIGN))
        .filter(is_free)
        .min()
}
