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

/// The most starts in a row of which each ended soon.
pub const STARTS_MAX: u32 = 3;
/// What is soon after a start, in seconds.
pub const SOON: u64 = 300;

/// How often such a system was started, each time soon after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Starts {
    in_a_row: u32,
    /// When the last one was, in seconds.
    last: u64,
}

impl Starts {
    /// It never was.
    pub const NONE: Self = Self {
        in_a_row: 0,
        last: 0,
    };

    fn is_soon(self, now: u64) -> bool {
        self.in_a_row > 0 && now.saturating_sub(self.last) < SOON
    }

    /// Whether it is worth another start `now`, in seconds.
    pub fn are_worth_another(self, now: u64) -> bool {
        self.in_a_row < STARTS_MAX || !self.is_soon(now)
    }

    /// It starts `now`.
    pub fn note(&mut self, now: u64) {
        let before = if self.is_soon(now) { self.in_a_row } else { 0 };
        *self = Self {
            in_a_row: before + 1,
            last: now,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_always_ends_soon_is_given_up() {
        let mut starts = Starts::NONE;
        for n in 0..u64::from(STARTS_MAX) {
            assert!(starts.are_worth_another(n * (SOON - 1)));
            starts.note(n * (SOON - 1));
        }
        let last = u64::from(STARTS_MAX - 1) * (SOON - 1);
        assert!(!starts.are_worth_another(last + SOON - 1));
        assert!(starts.are_worth_another(last + SOON));
        starts.note(last + SOON);
        assert!(starts.are_worth_another(last + SOON + 1));
    }

    #[test]
    fn what_runs_for_long_may_always_start_anew() {
        let mut starts = Starts::NONE;
        for n in 0..10 * u64::from(STARTS_MAX) {
            assert!(starts.are_worth_another(n * SOON));
            starts.note(n * SOON);
        }
    }
}
