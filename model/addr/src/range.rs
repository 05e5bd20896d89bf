//! Half-open runs of addresses and frames.

use crate::{FRAME_SHIFT, Ipa, Mfn, Pa};

macro_rules! address_range {
    ($(#[$doc:meta])* $range:ident, $address:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $range {
            /// The first byte.
            pub start: $address,
            /// Bytes.
            pub size: u64,
        }

        impl $range {
            /// The run of `size` bytes from `start`, which does not wrap around.
            pub const fn of(start: $address, size: u64) -> Self {
                Self { start, size }
            }

            /// The run of `size` bytes from `start`; `None` where it would wrap around.
            pub const fn new(start: $address, size: u64) -> Option<Self> {
                match start.0.checked_add(size) {
                    Some(_) => Some(Self { start, size }),
                    None => None,
                }
            }

            /// The address after the last byte.
            pub const fn end(self) -> $address {
                $address(self.start.0 + self.size)
            }

            /// Whether `address` lies inside.
            pub const fn contains(self, address: $address) -> bool {
                address.0 >= self.start.0 && address.0 - self.start.0 < self.size
            }

            /// Whether all `len` bytes from `address` lie inside.
            pub const fn contains_run(self, address: $address, len: u64) -> bool {
                address.0 >= self.start.0
                    && address.0 - self.start.0 <= self.size
                    && len <= self.size - (address.0 - self.start.0)
            }

            /// Whether the two have a byte in common.
            pub const fn overlaps(self, other: Self) -> bool {
                self.start.0 < other.end().0 && other.start.0 < self.end().0
            }
        }
    };
}

address_range!(
    /// A run of machine memory.
    PaRange,
    Pa
);
address_range!(
    /// A run of guest-physical memory.
    IpaRange,
    Ipa
);

/// A run of machine frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameRange {
    /// The first frame.
    pub start: Mfn,
    /// How many.
    pub count: u64,
}

impl FrameRange {
    /// The `count` frames from `start`, whose numbers do not wrap around.
    pub const fn of(start: Mfn, count: u64) -> Self {
        Self { start, count }
    }

    /// The frame after the last.
    pub const fn end(self) -> Mfn {
        Mfn(self.start.0 + self.count)
    }

    /// Whether `frame` is one of them.
    pub const fn contains(self, frame: Mfn) -> bool {
        frame.0 >= self.start.0 && frame.0 - self.start.0 < self.count
    }
}

impl PaRange {
    /// The whole frames inside the run; what is left over at either end is dropped.
    pub const fn whole_frames(self) -> FrameRange {
        let first = self.start.0.div_ceil(1 << FRAME_SHIFT);
        let end = self.end().0 >> FRAME_SHIFT;
        FrameRange::of(Mfn(first), end.saturating_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_wrap() {
        assert!(PaRange::new(Pa(u64::MAX), 2).is_none());
        let r = IpaRange {
            start: Ipa(0x1000),
            size: 0x1000,
        };
        assert!(r.contains(Ipa(0x1fff)) && !r.contains(Ipa(0x2000)));
        assert!(r.contains_run(Ipa(0x1ff0), 0x10) && !r.contains_run(Ipa(0x1ff0), 0x11));
        assert!(!r.contains_run(Ipa(0x1800), u64::MAX));
    }

    #[test]
    fn only_whole_frames_count() {
        let r = PaRange {
            start: Pa(0x1001),
            size: 0x2fff,
        };
        assert_eq!(
            r.whole_frames(),
            FrameRange {
                start: Mfn(2),
                count: 2
            }
        );
        let none = PaRange {
            start: Pa(0x1001),
            size: 0x10,
        };
        assert_eq!(none.whole_frames().count, 0);
    }
}
