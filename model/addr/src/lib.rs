//! Addresses, frames and identities, each a type of its own, so that a guest's number can never
//! be taken for the machine's.
//!
//! [`Pa`] and [`Mfn`] are the machine's; [`Ipa`] and [`Gfn`] are a guest's (Arm ARM: intermediate
//! physical address). Frames are 4 KiB everywhere.
#![no_std]
#![forbid(unsafe_code)]

mod id;
mod range;

pub use id::{CpuId, NodeId, VmId};
pub use range::{FrameRange, IpaRange, PaRange};

use core::fmt;

/// Bytes in a frame: the 4 KiB granule.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;
/// log2 of [`FRAME_SIZE`].
pub const FRAME_SHIFT: u32 = 12;

/// What addresses and numbers of frames have in common.
macro_rules! number {
    ($(#[$doc:meta])* $number:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $number(pub u64);

        impl $number {
            /// Whether the number is a multiple of `align`, a power of two.
            pub const fn is_aligned(self, align: u64) -> bool {
                self.0 & (align - 1) == 0
            }

            /// The number rounded down to a multiple of `align`, a power of two.
            #[must_use]
            pub const fn align_down(self, align: u64) -> Self {
                Self(self.0 & !(align - 1))
            }
        }

        impl fmt::Debug for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($number), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

macro_rules! address {
    ($(#[$doc:meta])* $address:ident, $(#[$frame_doc:meta])* $frame:ident) => {
        number!($(#[$doc])* $address);

        impl $address {
            /// The frame this address lies in.
            pub const fn frame(self) -> $frame {
                $frame(self.0 >> FRAME_SHIFT)
            }

            /// The byte within its frame.
            pub const fn offset(self) -> u64 {
                self.0 & (FRAME_SIZE - 1)
            }

            /// The address rounded up to a multiple of `align`, a power of two; `None` where
            /// that is past the last address.
            #[must_use]
            pub const fn align_up(self, align: u64) -> Option<Self> {
                match self.0.checked_add(align - 1) {
                    Some(sum) => Some(Self(sum & !(align - 1))),
                    None => None,
                }
            }

            /// The address `bytes` further on; `None` where that is past the last address.
            #[must_use]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        number!($(#[$frame_doc])* $frame);

        impl $frame {
            /// The address of the frame's first byte.
            pub const fn address(self) -> $address {
                $address(self.0 << FRAME_SHIFT)
            }

            /// The frame `frames` further on. Frame numbers have 52 bits: callers add what a
            /// table of theirs covers, which cannot overflow.
            #[must_use]
            pub const fn add(self, frames: u64) -> Self {
                Self(self.0.wrapping_add(frames))
            }
        }
    };
}

address!(
    /// An address of the machine's physical memory.
    Pa,
    /// A machine frame number.
    Mfn
);
address!(
    /// An address of a guest's physical memory (Arm ARM: IPA).
    Ipa,
    /// A guest frame number.
    Gfn
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_addresses_agree() {
        assert_eq!(Pa(0x1234_5678).frame(), Mfn(0x12345));
        assert_eq!(Pa(0x1234_5678).offset(), 0x678);
        assert_eq!(Gfn(3).address(), Ipa(0x3000));
        assert_eq!(Ipa(0x1fff).align_down(0x1000), Ipa(0x1000));
        assert_eq!(Ipa(0x1001).align_up(0x1000), Some(Ipa(0x2000)));
        assert_eq!(Ipa(u64::MAX).align_up(0x1000), None);
    }
}
