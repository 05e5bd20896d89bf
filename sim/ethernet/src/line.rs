//! The line of a host: how long a frame takes to leave and to arrive.

/// What a frame has on the line beside its bytes: preamble 7, delimiter 1, check sequence 4, gap 12 (IEEE 802.3).
const AROUND_BYTES: u64 = 24;
/// The shortest frame, without its check sequence (IEEE 802.3); shorter ones are padded.
const FRAME_BYTES_MIN: u64 = 60;
/// How much may wait for the line in the card, in bytes of line time. Beyond that the card's driver waits.
const WAITING_BYTES: u64 = 64 << 10;
const PS_PER_NS: i128 = 1_000;
const PS_PER_S: u128 = 1_000_000_000_000;

/// A line between a card and the switch, and the way from there to the receiver's card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// From the last bit's leaving to the frame's arrival, in nanoseconds; at least 1.
    pub latency_ns: i64,
    /// The rate.
    pub bits_per_second: u64,
    /// What the sending card takes for each frame in addition, whatever its length, in nanoseconds.
    pub frame_ns: i64,
}

/// A named line.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// The round trip from card to card, without the time of the bits.
    pub name: &'static str,
    /// The line.
    pub line: Line,
}

const fn class(name: &'static str, round_trip_us: i64, gigabits: u64) -> Class {
    Class {
        name,
        line: Line {
            latency_ns: round_trip_us * 500,
            bits_per_second: gigabits * 1_000_000_000,
            frame_ns: 0,
        },
    }
}

/// All named lines.
pub const CLASSES: [Class; 5] = [
    class("4us", 4, 100),
    class("20us", 20, 25),
    class("60us", 60, 10),
    class("200us", 200, 1),
    class("1ms", 1_000, 1),
];

impl Line {
    /// How long so many bytes take on the line, in picoseconds, rounded up.
    fn bytes_ps(&self, bytes: u64) -> i128 {
        let bits = u128::from(bytes) * 8;
        (bits * PS_PER_S).div_ceil(u128::from(self.bits_per_second)) as i128
    }

    fn frame_ps(&self, bytes: usize) -> i128 {
        let on_the_line = (bytes as u64).max(FRAME_BYTES_MIN) + AROUND_BYTES;
        self.bytes_ps(on_the_line) + i128::from(self.frame_ns) * PS_PER_NS
    }

    /// The most bytes of frames that a card hands over between two meetings, their heads in shared memory included.
    pub fn bytes_between_meetings(&self) -> u64 {
        let bits =
            u128::from(self.bits_per_second) * self.latency_ns.max(0) as u128 / 1_000_000_000;
        let sent = u64::try_from(bits / 8).unwrap_or(u64::MAX);
        // A head takes more than what is around a frame on the line: for the shortest frame, 40 bytes instead of 24.
        sent.saturating_add(2 * WAITING_BYTES).saturating_mul(5) / 4
    }
}

/// The sending end of a host's line.
#[derive(Clone, Debug)]
pub struct Sender {
    line: Line,
    /// When the line is free, in picoseconds: rounding must not add up.
    free_ps: i128,
}

/// When a frame is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its first bit leaves.
    pub start_ns: i64,
    /// It is there, all of it.
    pub arrival_ns: i64,
}

impl Sender {
    /// The end of a line that was never used.
    pub fn new(line: Line) -> Self {
        Self { line, free_ps: 0 }
    }

    /// Sends a frame that the card hands over at `now`.
    pub fn send(&mut self, now: i64, bytes: usize) -> Sent {
        let start = self.free_ps.max(i128::from(now) * PS_PER_NS);
        self.free_ps = start + self.line.frame_ps(bytes);
        let ns = |ps: i128| ((ps + PS_PER_NS - 1) / PS_PER_NS) as i64;
        Sent {
            start_ns: (start / PS_PER_NS) as i64,
            arrival_ns: ns(self.free_ps) + self.line.latency_ns,
        }
    }

    /// When the card may hand over the next frame, if that is after `now`: not before what waits is little enough.
    pub fn busy_until(&self, now: i64) -> Option<i64> {
        let from = self.free_ps - self.line.bytes_ps(WAITING_BYTES);
        let from = ((from + PS_PER_NS - 1) / PS_PER_NS) as i64;
        (from > now).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Line = Line {
        latency_ns: 10_000,
        bits_per_second: 10_000_000_000,
        frame_ns: 0,
    };

    #[test]
    fn a_frame_takes_its_bits_and_the_latency() {
        let mut sender = Sender::new(TEN);
        // 1,024 bytes at 0.8 ns: 819.2 ns; the second waits for the first, and roundings do not add up.
        let first = sender.send(100, 1_000);
        assert_eq!((first.start_ns, first.arrival_ns), (100, 10_920));
        let second = sender.send(100, 1_000);
        assert_eq!((second.start_ns, second.arrival_ns), (919, 11_739));
        let later = sender.send(50_000, 1_000);
        assert_eq!((later.start_ns, later.arrival_ns), (50_000, 60_820));
    }

    #[test]
    fn short_frames_are_padded_and_each_frame_costs() {
        let mut sender = Sender::new(Line {
            frame_ns: 300,
            ..TEN
        });
        // 84 bytes.
        assert_eq!(sender.send(0, 1).arrival_ns, 10_000 + 300 + 68);
        assert_eq!(sender.send(0, 60).arrival_ns, 10_000 + 600 + 135);
    }

    #[test]
    fn a_card_waits_when_64_kib_wait() {
        let mut sender = Sender::new(TEN);
        let mut frames = 0;
        while sender.busy_until(0).is_none() {
            sender.send(0, 1_476);
            frames += 1;
        }
        // 1,500 bytes each: 43 of them are less than 65,536.
        assert_eq!(frames, 44);
        // 464 bytes too many.
        assert_eq!(sender.busy_until(0), Some(372));
        assert_eq!(sender.busy_until(372), None);
    }

    #[test]
    fn classes_are_as_published() {
        let named = CLASSES.map(|class| {
            let Line {
                latency_ns,
                bits_per_second,
                ..
            } = class.line;
            (class.name, latency_ns, bits_per_second / 1_000_000_000)
        });
        assert_eq!(
            named,
            [
                ("4us", 2_000, 100),
                ("20us", 10_000, 25),
                ("60us", 30_000, 10),
                ("200us", 100_000, 1),
                ("1ms", 500_000, 1)
            ]
        );
    }
}
