//! Frames on their way to one host, in the order of their arrival.

use crate::{Digest, faults::Faults, frame::Head};
use std::collections::BTreeMap;

/// Frames that a host has yet to get.
#[derive(Debug)]
pub struct Inbox {
    me: usize,
    faults: Faults,
    frames: BTreeMap<Key, Vec<u8>>,
    tally: Tally,
    digest: Digest,
}

/// The order of arrivals: it never depends on which host was asked first.
type Key = (i64, usize, u64, bool);

/// What befell frames to this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that arrived.
    pub received: u64,
    /// Lost because the line was cut.
    pub cut: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Second ones.
    pub repeated: u64,
    /// Late ones.
    pub late: u64,
    /// With a wrong bit.
    pub corrupt: u64,
}

/// A frame arrived before its receiver learnt of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past;

/// A frame that arrives.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub from: usize,
    /// The sender's number for it.
    pub number: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Inbox {
    /// That of host `me`.
    pub fn new(me: usize, faults: Faults) -> Self {
        Self {
            me,
            faults,
            frames: BTreeMap::new(),
            tally: Tally::default(),
            digest: Digest::default(),
        }
    }

    /// Takes at `now` a frame that another host has sent, if it is for this one.
    ///
    /// # Errors
    /// It has arrived by now, for whomever it is: time cannot be turned back.
    pub fn take(&mut self, now: i64, from: usize, head: &Head, bytes: &[u8]) -> Result<(), Past> {
        if head.arrival_ns <= now {
            return Err(Past);
        }
        if head.receivers >> self.me & 1 == 1 {
            self.accept(from, head, bytes);
        }
        Ok(())
    }

    fn accept(&mut self, from: usize, head: &Head, bytes: &[u8]) {
        let fate = self.faults.fate(head, from, self.me);
        if fate.cut || fate.lost {
            self.tally.cut += u64::from(fate.cut);
            self.tally.lost += u64::from(!fate.cut);
            return;
        }
        let mut first = bytes.to_vec();
        if let Some(bit) = fate.wrong_bit
            && let Some(bit) = bit.checked_rem(8 * bytes.len() as u64)
            && let Some(byte) = first.get_mut((bit / 8) as usize)
        {
            *byte ^= 1 << (bit % 8);
            self.tally.corrupt += 1;
        }
        self.tally.late += u64::from(fate.late_ns > 0);
        let at = head.arrival_ns + fate.late_ns;
        self.frames.insert((at, from, head.number, false), first);
        if let Some(later) = fate.again_ns {
            self.tally.repeated += 1;
            self.frames
                .insert((at + later, from, head.number, true), bytes.to_vec());
        }
    }

    /// When the next frame arrives.
    pub fn next_ns(&self) -> Option<i64> {
        self.frames.first_key_value().map(|((at, ..), _)| *at)
    }

    /// The next frame, if it has arrived by now.
    pub fn arrived(&mut self, now: i64) -> Option<Arrival> {
        let first = self.frames.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let ((_, from, number, _), bytes) = first.remove_entry();
        self.tally.received += 1;
        self.digest.add_number(now as u64);
        self.digest.add_number(bytes.len() as u64);
        self.digest.add(&bytes);
        Some(Arrival {
            from,
            number,
            bytes,
        })
    }

    /// What befell frames so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Stands for the times, lengths and bytes of all that arrived.
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(arrival_ns: i64, number: u64, receivers: u32) -> Head {
        Head {
            start_ns: 1,
            arrival_ns,
            number,
            receivers,
        }
    }

    fn all(inbox: &mut Inbox) -> Vec<(i64, usize, u64)> {
        let mut seen = Vec::new();
        while let Some(at) = inbox.next_ns() {
            assert!(inbox.arrived(at - 1).is_none());
            let arrival = inbox.arrived(at).unwrap();
            seen.push((at, arrival.from, arrival.number));
        }
        seen
    }

    #[test]
    fn arrivals_are_by_time_sender_and_number() {
        let mut inbox = Inbox::new(1, Faults::NONE);
        inbox.take(2, 2, &head(50, 4, 2), b"c").unwrap();
        inbox.take(2, 0, &head(50, 9, 2), b"b").unwrap();
        inbox.take(2, 0, &head(50, 8, 2), b"a").unwrap();
        inbox.take(2, 0, &head(40, 10, 3), b"first").unwrap();
        inbox.take(2, 0, &head(30, 7, 1), b"another's").unwrap();
        assert_eq!(
            all(&mut inbox),
            [(40, 0, 10), (50, 0, 8), (50, 0, 9), (50, 2, 4)]
        );
        assert_eq!(inbox.tally().received, 4);
    }

    #[test]
    fn a_frame_of_the_past_is_refused() {
        let mut inbox = Inbox::new(1, Faults::NONE);
        assert_eq!(inbox.take(50, 0, &head(50, 0, 2), b"a"), Err(Past));
        assert_eq!(inbox.take(50, 0, &head(50, 0, 4), b"b"), Err(Past));
        assert_eq!(inbox.take(50, 0, &head(51, 1, 2), b"c"), Ok(()));
        assert_eq!(all(&mut inbox), [(51, 0, 1)]);
    }

    #[test]
    fn the_digest_is_of_times_and_bytes() {
        let digest = |at, bytes: &[u8]| {
            let mut inbox = Inbox::new(0, Faults::NONE);
            inbox.take(2, 1, &head(at, 0, 1), bytes).unwrap();
            all(&mut inbox);
            inbox.digest()
        };
        assert_eq!(digest(50, b"a"), digest(50, b"a"));
        assert_ne!(digest(50, b"a"), digest(51, b"a"));
        assert_ne!(digest(50, b"a"), digest(50, b"b"));
    }

    #[test]
    fn faults_do_what_they_say() {
        let full = 1_000_000;
        let arrivals = |faults: Faults| {
            let mut inbox = Inbox::new(0, faults);
            inbox.take(2, 1, &head(50, 0, 1), &[0; 8]).unwrap();
            let at = inbox.next_ns();
            let first = at.and_then(|at| inbox.arrived(at));
            let ones = first.map(|f| f.bytes.iter().map(|b| b.count_ones()).sum::<u32>());
            let again = inbox.next_ns();
            (at, ones, again, inbox.tally())
        };
        let one = Tally {
            received: 1,
            ..Tally::default()
        };
        let none = Faults {
            spread_ns: 1,
            ..Faults::NONE
        };
        assert_eq!(arrivals(none.clone()), (Some(50), Some(0), None, one));
        let lost = Faults {
            lost: full,
            ..none.clone()
        };
        assert_eq!(
            arrivals(lost),
            (
                None,
                None,
                None,
                Tally {
                    lost: 1,
                    ..Tally::default()
                }
            )
        );
        let late = Faults {
            late: full,
            ..none.clone()
        };
        assert_eq!(
            arrivals(late),
            (Some(51), Some(0), None, Tally { late: 1, ..one })
        );
        let twice = Faults {
            repeated: full,
            ..none.clone()
        };
        assert_eq!(
            arrivals(twice),
            (Some(50), Some(0), Some(51), Tally { repeated: 1, ..one })
        );
        let wrong = Faults {
            corrupt: full,
            ..none
        };
        assert_eq!(
            arrivals(wrong),
            (Some(50), Some(1), None, Tally { corrupt: 1, ..one })
        );
    }
}
