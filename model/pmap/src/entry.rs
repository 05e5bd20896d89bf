//! What is known of one guest frame.

use bitflags::bitflags;
use model_addr::Mfn;
use model_stage2::Rights;

bitflags! {
    /// Why a guest may not write, or not see, a frame that backs its memory. Each bit takes a right, whether it
    /// has a name here or not: bits 0 to 11 that of writing, bits 12 to 15 all of them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Reasons: u16 {
        /// Others use the frame, or its contents are kept: a write gets a copy. Not writable.
        const COPY_ON_WRITE = 1 << 0;
        /// It is known to equal a disk block; a write ends that. Not writable.
        const MAPPER = 1 << 1;
        /// The first write since the log began is to be noted. Not writable.
        const DIRTY_LOG = 1 << 2;
        /// Some nodes read copies of it; a write gives them back. Not writable.
        const REPLICA = 1 << 3;
        /// It is being moved to another frame, or copied for a node; a write cancels that. Not writable.
        const IN_FLIGHT = 1 << 4;
        /// It is being written to a disk that will have it instead; a touch cancels that. Not writable.
        const LEAVING = 1 << 5;
        /// Other hosts may read copies of it: they give them up before it is written. Not writable.
        const COHERENT = 1 << 6;
        /// The next access is to be noted. Not present.
        const ACCESS_SAMPLE = 1 << 12;
        /// The frame does not hold what the guest is to see: another host writes the page, or its bytes have not
        /// arrived. Not present.
        const HIDDEN = 1 << 13;
        const _ = !0;
    }
}

impl Reasons {
    /// Those that keep the frame out of the stage-2 tables; all others keep it from being written.
    const NOT_PRESENT: Self = Self::from_bits_retain(0xf << 12);
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
    /// A page in a store: a number below 2^56 that says where; read again when touched.
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
    /// Why the guest may not write or see the frame; none where there is no frame.
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
const WHY_SHIFT: u32 = 3;
const WHY: u64 = 0xf << WHY_SHIFT;
/// The frame stands above, in 40 bits; or the number of a page in a store, in all 56.
pub(crate) const PAYLOAD_SHIFT: u32 = 8;
/// The highest frame of a physical address of 52 bits.
const FRAME: u64 = (1 << 40) - 1;
/// Of an entry with a frame: reasons, above it.
const REASONS_SHIFT: u32 = 48;
/// Nothing is behind it any more: it was made to read as zeroes.
pub(crate) const EMPTIED: u64 = 1 << PAYLOAD_SHIFT;

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

    /// What a guest may do with the frame, and a device or EL2 on its behalf: all that the stage-2 leaf may allow.
    /// `None` where there must be none. No other code makes the rights of a guest's memory.
    #[inline]
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

    /// The frame, where the rights let it be read, or also written.
    #[inline]
    pub fn usable(self, write: bool) -> Option<Mfn> {
        let may = self.rights().is_some_and(|rights| rights.write || !write);
        self.frame().filter(|_| may)
    }

    #[expect(
        clippy::inline_always,
        reason = "on the way of every first touch, where most of it is known: 20 instructions less"
    )]
    #[inline(always)]
    pub(crate) fn encode(self) -> u64 {
        let framed = |frame: Mfn| {
            frame.0 & FRAME | u64::from(self.reasons.bits()) << (REASONS_SHIFT - PAYLOAD_SHIFT)
        };
        let (kind, payload) = match self.backing {
            Backing::Absent => (ABSENT, EMPTIED >> PAYLOAD_SHIFT),
            Backing::Private(frame) => (PRIVATE, framed(frame)),
            Backing::Shared(frame) => (SHARED, framed(frame)),
            Backing::Discarded(page) => (DISCARDED, page),
        };
        let never_share = if self.never_share { NEVER_SHARE } else { 0 };
        payload << PAYLOAD_SHIFT | (self.why as u64) << WHY_SHIFT | never_share | kind
    }

    pub(crate) fn decode(word: u64) -> Self {
        let backing = match word & KIND {
            PRIVATE => Backing::Private(frame_of(word)),
            SHARED => Backing::Shared(frame_of(word)),
            DISCARDED => Backing::Discarded(word >> PAYLOAD_SHIFT),
            _ => Backing::Absent,
        };
        let reasons = if is_present(word) {
            word >> REASONS_SHIFT
        } else {
            0
        };
        Self {
            backing,
            reasons: Reasons::from_bits_retain(reasons as u16),
            never_share: word & NEVER_SHARE != 0,
            why: Why::decode(word),
        }
    }
}

/// The bits of an entry's word that stand for `reasons`, where there is a frame.
pub(crate) fn reason_bits(reasons: Reasons) -> u64 {
    u64::from(reasons.bits()) << REASONS_SHIFT
}

/// An entry's word with another `why`.
pub(crate) const fn with_why(word: u64, why: Why) -> u64 {
    word & !WHY | (why as u64) << WHY_SHIFT
}

/// The frame of an entry's word that has one.
pub(crate) fn frame_of(word: u64) -> Mfn {
    Mfn(word >> PAYLOAD_SHIFT & FRAME)
}

pub(crate) fn is_present(word: u64) -> bool {
    matches!(word & KIND, PRIVATE | SHARED)
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
        Backing::Private(Mfn((1 << 40) - 2)),
        Backing::Shared(Mfn(1)),
        Backing::Discarded((1 << 56) - 1),
    ];

    /// All that there may be, one by one.
    fn each() -> impl Iterator<Item = Reasons> {
        (0..16).map(|bit| Reasons::from_bits_retain(1 << bit))
    }

    #[test]
    fn entries_survive_their_word() {
        for backing in BACKINGS {
            for reasons in each().chain([Reasons::empty(), Reasons::all()]) {
                for (never_share, why) in [false, true]
                    .into_iter()
                    .flat_map(|never| Why::ALL.map(|why| (never, why)))
                {
                    let entry = Entry {
                        backing,
                        reasons,
                        never_share,
                        why,
                    };
                    // Without a frame there is nothing to keep from the guest.
                    let has_frame = entry.frame().is_some();
                    let reasons = if has_frame { reasons } else { Reasons::empty() };
                    assert_eq!(Entry::decode(entry.encode()), Entry { reasons, ..entry });
                }
            }
        }
        assert_eq!(Entry::decode(0), Entry::default());
    }

    #[test]
    fn every_reason_takes_a_right() {
        assert_eq!(Entry::private(Mfn(1)).rights(), Some(Rights::ALL));
        assert_eq!(Entry::private(Mfn(1)).usable(true), Some(Mfn(1)));
        let unseen = Reasons::ACCESS_SAMPLE | Reasons::HIDDEN | Reasons::from_bits_retain(3 << 14);
        for reasons in each() {
            let private = Entry {
                reasons,
                ..Entry::private(Mfn(1))
            };
            let is_seen = !unseen.contains(reasons);
            assert_eq!(
                private.rights(),
                is_seen.then_some(Rights::READ_EXECUTE),
                "{reasons:?}"
            );
            assert_eq!(private.usable(false), is_seen.then_some(Mfn(1)));
            assert_eq!(private.usable(true), None);
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
