//! What befalls frames and hosts, by seed and by plan.

use crate::frame::Head;

/// Two hosts do not reach each other for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The two.
    pub between: [usize; 2],
    /// When it begins.
    pub from_ns: i64,
    /// When it is over.
    pub until_ns: i64,
}

impl Cut {
    /// Whether a frame is lost by it: some moment of its way lies within.
    fn hits(&self, from: usize, to: usize, head: &Head) -> bool {
        let [a, b] = self.between;
        ((a, b) == (from, to) || (a, b) == (to, from))
            && head.start_ns < self.until_ns
            && head.arrival_ns >= self.from_ns
    }
}

/// A host's CPUs stand still for a time, while its devices work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The host.
    pub host: usize,
    /// When it begins.
    pub from_ns: i64,
    /// How long it lasts.
    pub ns: i64,
}

/// What befalls frames. Each of the shares is of a million frames and receivers, independent of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// What is chosen follows from this number, sender, receiver and number of the frame: not from when anybody asks.
    pub seed: u64,
    /// So many are lost.
    pub lost: u32,
    /// So many arrive twice.
    pub repeated: u32,
    /// So many arrive late, so that others overtake them.
    pub late: u32,
    /// So many have a wrong bit.
    pub corrupt: u32,
    /// How much later late ones and second ones arrive at most; at least 1.
    pub spread_ns: i64,
    /// Cuts.
    pub cuts: Vec<Cut>,
}

/// What becomes of a frame at one receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The line was cut.
    pub cut: bool,
    /// It was lost by chance.
    pub lost: bool,
    /// How much later it arrives.
    pub late_ns: i64,
    /// How much later than the first a second one arrives, if there is one.
    pub again_ns: Option<i64>,
    /// A number that says which bit is wrong, if one is: the rest of its division by the frame's bits.
    pub wrong_bit: Option<u64>,
}

/// What a draw is for.
#[derive(Clone, Copy)]
enum Draw {
    Lost = 1,
    Repeated,
    Late,
    Corrupt,
    AgainBy,
    LateBy,
    Bit,
}

impl Faults {
    /// Nothing befalls frames.
    pub const NONE: Self = Self {
        seed: 1,
        lost: 0,
        repeated: 0,
        late: 0,
        corrupt: 0,
        spread_ns: 1,
        cuts: Vec::new(),
    };

    /// What becomes of a frame from one host to another.
    pub fn fate(&self, head: &Head, from: usize, to: usize) -> Fate {
        let draw = |what: Draw| {
            let lanes = (from as u64) << 16 | (to as u64) << 8 | what as u64;
            mix(mix(self.seed ^ lanes).wrapping_add(head.number))
        };
        let happens = |share: u32, what| draw(what) % 1_000_000 < u64::from(share);
        let later = |what| 1 + (draw(what) % self.spread_ns.max(1) as u64) as i64;
        Fate {
            cut: self.cuts.iter().any(|cut| cut.hits(from, to, head)),
            lost: happens(self.lost, Draw::Lost),
            late_ns: if happens(self.late, Draw::Late) {
                later(Draw::LateBy)
            } else {
                0
            },
            again_ns: happens(self.repeated, Draw::Repeated).then(|| later(Draw::AgainBy)),
            wrong_bit: happens(self.corrupt, Draw::Corrupt).then(|| draw(Draw::Bit)),
        }
    }
}

/// `SplitMix64` (Steele, Lea, Flood, 2014): spreads a number over all bits.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: u64) -> Head {
        Head {
            start_ns: 1_000,
            arrival_ns: 2_000,
            number,
            receivers: 2,
        }
    }

    #[test]
    fn draws_are_known() {
        // The first of SplitMix64 from seed 0, as published with the algorithm.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn shares_are_kept_and_independent() {
        let faults = Faults {
            lost: 100_000,
            repeated: 50_000,
            late: 200_000,
            corrupt: 10_000,
            spread_ns: 500,
            ..Faults::NONE
        };
        let fates: Vec<Fate> = (0..100_000).map(|n| faults.fate(&head(n), 0, 1)).collect();
        let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count() as u64;
        for (found, expected) in [
            (count(|fate| fate.lost), 10_000),
            (count(|fate| fate.again_ns.is_some()), 5_000),
            (count(|fate| fate.late_ns > 0), 20_000),
            (count(|fate| fate.wrong_bit.is_some()), 1_000),
            (count(|fate| fate.lost && fate.late_ns > 0), 2_000),
        ] {
            // Five standard deviations at most.
            assert!(
                found.abs_diff(expected).pow(2) < 25 * expected,
                "{found}, {expected}"
            );
        }
        let within = |ns: i64| (0..=500).contains(&ns);
        assert!(
            fates
                .iter()
                .all(|fate| within(fate.late_ns) && fate.again_ns.is_none_or(within))
        );
    }

    #[test]
    fn seeds_and_ways_differ() {
        let lost = |seed, from, to| -> Vec<bool> {
            let faults = Faults {
                seed,
                lost: 500_000,
                ..Faults::NONE
            };
            (0..64)
                .map(|n| faults.fate(&head(n), from, to).lost)
                .collect()
        };
        let one = lost(1, 0, 1);
        assert_eq!(one, lost(1, 0, 1));
        for other in [lost(2, 0, 1), lost(1, 1, 0), lost(1, 0, 2)] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_cut_hits_what_is_on_its_way() {
        let hits = |from_ns, until_ns, from, to| {
            let cuts = vec![Cut {
                between: [0, 1],
                from_ns,
                until_ns,
            }];
            Faults {
                cuts,
                ..Faults::NONE
            }
            .fate(&head(0), from, to)
            .cut
        };
        assert!(hits(1_500, 1_600, 0, 1) && hits(1_500, 1_600, 1, 0));
        assert!(hits(2_000, 9_000, 0, 1) && !hits(2_001, 9_000, 0, 1));
        assert!(hits(0, 1_001, 0, 1) && !hits(0, 1_000, 0, 1));
        assert!(!hits(0, 9_000, 0, 2) && !hits(0, 9_000, 2, 1));
    }
}
