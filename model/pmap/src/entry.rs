//! What is known of one guest frame.

use bitflags::bitflags;
use model_addr::{FRAME_SHIFT, Mfn};
use model_stage2::Rights;

bitflags! {
    /// Why a guest may not write, or not see, a frame that backs its memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Reasons: u8 {
        /// Others use the frame, or its contents are kept: a write gets a copy. Not writable.
        const COPY_ON_WRITE = 1 << 0;
        /// It is known to equal a disk block; a write ends that. Not writable.
        const MAPPER = 1 << 1;
        /// The first write is to be noted. Not writable.
        const DIRTY_LOG = 1 << 2;
        /// Some nodes read copies of it. Not writable.
        const REPLICA = 1 << 3;
        /// The next access is to be noted. Not present.
        const ACCESS_SAMPLE = 1 << 4;
    }
}

impl Reasons {
    /// Those that keep the frame out of the stage-2 tables; all others keep it from being written.
    const NOT_PRESENT: Self = Self::ACCESS_SAMPLE;
}

/// What holds the contents of a guest frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: reads as zero, or, where nothing ever was, as what a VM's memory is from the start.
    #[default]
    Absent,
    /// A frame of its own.
    Private(Mfn),
    /// A frame that others may use too; always read-only.
    Shared(Mfn),
    /// A disk's block, below 2^52 as the disk layer numbers it; read again when touched.
    Discarded(u64),
}

/// Why a private frame is nobody else's too: what happened to it last. A closed list, so that the
/// private frames of a VM can be told by it (`underpin mem why`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// It never came from a disk: the guest made it.
    #[default]
    NotFromDisk = 0,
    /// It was shared, and the guest wrote it.
    Dirtied = 1,
    /// Its bytes came from a disk, but not as one whole aligned block.
    Unaligned = 2,
    /// The disk, the VM or the range is never shared.
    Never = 3,
    /// The block belongs to another share group.
    OtherGroup = 4,
    /// Its frame had as many users as one may have, or no memory was left to note one more.
    Full = 5,
    /// It lies in a 2 MiB block that was to be kept whole.
    KeptBlock = 6,
    /// It was taken from the guest and read again.
    Evicted = 7,
    /// Something changed while it was compared.
    LostRace = 8,
}

impl Why {
    /// All of them, by their number.
    pub const ALL: [Self; 9] = [
        Self::NotFromDisk,
        Self::Dirtied,
        Self::Unaligned,
        Self::Never,
        Self::OtherGroup,
        Self::Full,
        Self::KeptBlock,
        Self::Evicted,
        Self::LostRace,
    ];

    const fn decode(word: u64) -> Self {
        let number = (word >> WHY_SHIFT & 0xf) as usize;
        if number < Self::ALL.len() {
            Self::ALL[number]
        } else {
            Self::NotFromDisk
        }
    }
}

/// What is known of one guest frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What holds its contents.
    pub backing: Backing,
    /// Why the guest may not write or see it.
    pub reasons: Reasons,
    /// Its contents must not be shared with others, whatever they are.
    pub never_share: bool,
    /// Why it is private, where it is.
    pub why: Why,
}

/// The backing's kind.
pub(crate) const KIND: u64 = 3;
pub(crate) const ABSENT: u64 = 0;
pub(crate) const PRIVATE: u64 = 1;
pub(crate) const SHARED: u64 = 2;
pub(crate) const DISCARDED: u64 = 3;
pub(crate) const NEVER_SHARE: u64 = 1 << 2;
/// Nothing is behind it any more: it was made to read as zeroes.
pub(crate) const EMPTIED: u64 = 1 << PAYLOAD_SHIFT;
const REASONS_SHIFT: u32 = 3;
const WHY_SHIFT: u32 = 8;
const WHY: u64 = 0xf << WHY_SHIFT;
/// The frame, or the block, stands above.
pub(crate) const PAYLOAD_SHIFT: u32 = FRAME_SHIFT;

impl Entry {
    /// A frame of the guest's own, without restrictions.
    pub const fn private(frame: Mfn) -> Self {
        Self {
            backing: Backing::Private(frame),
            reasons: Reasons::empty(),
            never_share: false,
            why: Why::NotFromDisk,
        }
    }

    /// A frame that others may use too.
    pub const fn shared(frame: Mfn) -> Self {
        Self {
            backing: Backing::Shared(frame),
            ..Self::private(frame)
        }
    }

    /// The frame behind it, if there is one.
    pub const fn frame(self) -> Option<Mfn> {
        match self.backing {
            Backing::Private(frame) | Backing::Shared(frame) => Some(frame),
            Backing::Absent | Backing::Discarded(_) => None,
        }
    }

    /// What the stage-2 leaf of this guest frame may allow; `None` where there must be none.
    pub fn rights(self) -> Option<Rights> {
        let private = match self.backing {
            Backing::Private(_) => true,
            Backing::Shared(_) => false,
            Backing::Absent | Backing::Discarded(_) => return None,
        };
        if self.reasons.intersects(Reasons::NOT_PRESENT) {
            return None;
        }
        Some(Rights {
            write: private && self.reasons.is_empty(),
            execute: true,
        })
    }

    #[expect(
        clippy::inline_always,
        reason = "on the way of every first touch, where most of it is known: 20 instructions less"
    )]
    #[inline(always)]
    pub(crate) fn encode(self) -> u64 {
        let (kind, payload) = match self.backing {
            Backing::Absent => (ABSENT, EMPTIED >> PAYLOAD_SHIFT),
            Backing::Private(frame) => (PRIVATE, frame.0),
            Backing::Shared(frame) => (SHARED, frame.0),
            Backing::Discarded(block) => (DISCARDED, block),
        };
        let never_share = if self.never_share { NEVER_SHARE } else { 0 };
        let why = (self.why as u64) << WHY_SHIFT;
        payload << PAYLOAD_SHIFT | why | reason_bits(self.reasons) | never_share | kind
    }

    pub(crate) fn decode(word: u64) -> Self {
        let payload = word >> PAYLOAD_SHIFT;
        let backing = match word & KIND {
            PRIVATE => Backing::Private(Mfn(payload)),
            SHARED => Backing::Shared(Mfn(payload)),
            DISCARDED => Backing::Discarded(payload),
            _ => Backing::Absent,
        };
        let reasons = Reasons::from_bits_truncate((word >> REASONS_SHIFT) as u8);
        Self {
            backing,
            reasons,
            never_share: word & NEVER_SHARE != 0,
            why: Why::decode(word),
        }
    }
}

/// The bits of an entry's word that stand for `reasons`.
pub(crate) fn reason_bits(reasons: Reasons) -> u64 {
    u64::from(reasons.bits()) << REASONS_SHIFT
}

/// Whether `word` is a private frame, without restrictions, at `frame`.
pub(crate) fn is_plain(word: u64, frame: Mfn) -> bool {
    word & !(NEVER_SHARE | WHY) == frame.0 << PAYLOAD_SHIFT | PRIVATE
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKINGS: [Backing; 4] = [
        Backing::Absent,
        Backing::Private(Mfn(0xf_ffff_fffe)),
        Backing::Shared(Mfn(1)),
        Backing::Discarded((1 << 52) - 1),
    ];

    #[test]
    fn entries_survive_their_word() {
        for backing in BACKINGS {
            for bits in 0..=Reasons::all().bits() {
                for (never_share, why) in [false, true]
                    .into_iter()
                    .flat_map(|never| Why::ALL.map(|why| (never, why)))
                {
                    let reasons = Reasons::from_bits_truncate(bits);
                    let entry = Entry {
                        backing,
                        reasons,
                        never_share,
                        why,
                    };
                    assert_eq!(Entry::decode(entry.encode()), entry);
                }
            }
        }
        assert_eq!(Entry::decode(0), Entry::default());
    }

    #[test]
    fn every_reason_takes_a_right() {
        assert_eq!(Entry::private(Mfn(1)).rights(), Some(Rights::ALL));
        for reason in Reasons::all() {
            let private = Entry {
                reasons: reason,
                ..Entry::private(Mfn(1))
            };
            let left = (reason != Reasons::ACCESS_SAMPLE).then_some(Rights::READ_EXECUTE);
            assert_eq!(private.rights(), left);
        }
        let backed = BACKINGS.map(|backing| {
            Entry {
                backing,
                ..Entry::default()
            }
            .rights()
        });
        let read = Some(Rights::READ_EXECUTE);
        assert_eq!(backed, [None, Some(Rights::ALL), read, None]);
    }
}
