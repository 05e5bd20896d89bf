//! When hosts meet.

/// A time that does not come.
pub const NEVER: i64 = i64::MAX;
/// How long hosts run where none of them has anything to do, ever.
pub const LOOK_AGAIN_NS: i64 = 100_000_000;

/// What a host says at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The earliest time at which it can do anything that others may notice.
    pub next_ns: i64,
}

impl Said {
    /// Of a host at `now`: whether its CPUs sleep, its next timer, and the earliest arrival of the frames that it has sent
    /// since the last meeting, whose receivers may then act.
    pub fn of(now: i64, asleep: bool, timer: Option<i64>, first_arrival: i64) -> Self {
        let own = if asleep { timer.unwrap_or(NEVER) } else { now };
        Self {
            next_ns: own.max(now).min(first_arrival),
        }
    }
}

/// How long a host had nothing to do, by what was seen when it had met the others: its CPUs slept, and no timer was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    until_ns: i64,
}

impl Rest {
    /// Of a host at `now`: whether its CPUs sleep, and its next timer.
    pub fn of(now: i64, asleep: bool, timer: Option<i64>) -> Self {
        let until = timer.unwrap_or(NEVER).max(now);
        Self {
            until_ns: if asleep { until } else { 0 },
        }
    }

    /// Until when the others believe the host asleep whose CPUs act at `now`, though no timer of its own has come: they were
    /// woken from outside. A frame that it sends from then on arrives after the next meeting.
    pub fn woken_early(&self, now: i64, meetings: &Meetings) -> Option<i64> {
        let until = self.until_ns.min(meetings.at_ns - meetings.latency_ns);
        (now < until).then_some(until)
    }
}

/// The meetings of all hosts.
#[derive(Clone, Debug)]
pub struct Meetings {
    latency_ns: i64,
    number: u32,
    at_ns: i64,
}

impl Meetings {
    /// The first is when the first frame can arrive.
    pub fn new(latency_ns: i64) -> Self {
        Self {
            latency_ns,
            number: 1,
            at_ns: latency_ns,
        }
    }

    /// The number of the next meeting: 1, 2 and so on; it wraps.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The time of the next meeting.
    pub fn at_ns(&self) -> i64 {
        self.at_ns
    }

    /// Arranges the meeting after this one, from what all have said that came.
    pub fn arrange(&mut self, said: impl IntoIterator<Item = Said>) {
        let first = said.into_iter().map(|said| said.next_ns).min();
        let first = first.filter(|first| *first != NEVER);
        // What was said lies not before this meeting: else time would stand still.
        let first = first.unwrap_or(self.at_ns + LOOK_AGAIN_NS).max(self.at_ns);
        self.at_ns = first.saturating_add(self.latency_ns);
        self.number = self.number.wrapping_add(1);
    }

    /// Whether somebody who has come to meeting `arrived` has come to the next one.
    pub fn has_come(&self, arrived: u32) -> bool {
        arrived.wrapping_sub(self.number) as i32 >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_can_act_when_it_wakes_or_when_its_frame_arrives() {
        let next = |asleep, timer, arrival| Said::of(100, asleep, timer, arrival).next_ns;
        assert_eq!(next(false, Some(150), 120), 100);
        assert_eq!(next(true, Some(150), NEVER), 150);
        assert_eq!(next(true, Some(150), 120), 120);
        assert_eq!(next(true, None, 120), 120);
        assert_eq!(next(true, None, NEVER), NEVER);
        assert_eq!(next(true, Some(90), NEVER), 100, "due by now");
    }

    #[test]
    fn a_host_that_is_woken_from_outside_is_to_sleep_on() {
        let mut meetings = Meetings::new(10);
        meetings.arrange([Said { next_ns: 600 }]);
        assert_eq!(meetings.at_ns(), 610);
        let early = |rest: Rest, now| rest.woken_early(now, &meetings);
        let rest = Rest::of(100, true, Some(500));
        assert_eq!(early(rest, 100), Some(500), "its own timer");
        assert_eq!(early(rest, 499), Some(500));
        assert_eq!(early(rest, 500), None);
        let rest = Rest::of(100, true, None);
        assert_eq!(early(rest, 100), Some(600), "another host's");
        assert_eq!(early(rest, 600), None);
        let rest = Rest::of(100, false, Some(500));
        assert_eq!(early(rest, 120), None, "its CPUs worked");
        assert_eq!(early(Rest::default(), 0), None);
    }

    #[test]
    fn meetings_leap_over_idle_time() {
        let said = |next_ns| Said { next_ns };
        let mut meetings = Meetings::new(10);
        assert_eq!((meetings.number(), meetings.at_ns()), (1, 10));
        meetings.arrange([said(10), said(NEVER)]);
        assert_eq!((meetings.number(), meetings.at_ns()), (2, 20));
        meetings.arrange([said(5_000), said(4_000)]);
        assert_eq!(meetings.at_ns(), 4_010);
        meetings.arrange([said(NEVER), said(NEVER)]);
        assert_eq!(meetings.at_ns(), 4_010 + LOOK_AGAIN_NS + 10);
        // Somebody lies.
        meetings.arrange([said(0)]);
        assert_eq!(meetings.at_ns(), 4_010 + LOOK_AGAIN_NS + 20);
    }

    #[test]
    fn numbers_of_meetings_wrap() {
        let mut meetings = Meetings::new(10);
        meetings.number = u32::MAX;
        assert!(meetings.has_come(u32::MAX) && meetings.has_come(0));
        assert!(!meetings.has_come(u32::MAX - 1));
        meetings.arrange([]);
        assert_eq!(meetings.number(), 0);
        assert!(!meetings.has_come(u32::MAX));
    }
}
