//! The word that all CPUs share.

use core::num::NonZeroU16;
use core::sync::atomic::{AtomicU64, Ordering};

/// Why a meeting failed: a number of the caller's.
pub type Reason = NonZeroU16;

/// A meeting of CPUs. One after the other may be held; it is empty between them.
#[derive(Debug, Default)]
pub struct Meeting(AtomicU64);

/// The word's fields: how many are expected, have come, have voted, have left; why it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    expected: u8,
    arrived: u8,
    voted: u8,
    left: u8,
    reason: u16,
}

impl Fields {
    const fn unpack(word: u64) -> Self {
        Self {
            expected: word as u8,
            arrived: (word >> 8) as u8,
            voted: (word >> 16) as u8,
            left: (word >> 24) as u8,
            reason: (word >> 32) as u16,
        }
    }

    const fn pack(self) -> u64 {
        self.expected as u64
            | (self.arrived as u64) << 8
            | (self.voted as u64) << 16
            | (self.left as u64) << 24
            | (self.reason as u64) << 32
    }

    const fn is_past_return(self) -> bool {
        self.reason == 0 && self.voted == self.expected
    }
}

/// How a meeting stands for one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Votes are missing.
    Open,
    /// Everybody voted: it is done.
    Agreed,
    /// It failed.
    Failed(Reason),
}

impl Meeting {
    /// A meeting that nobody has come to.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn change(&self, change: impl Fn(Fields) -> Option<Fields>) -> Option<Fields> {
        let update = |word| change(Fields::unpack(word)).map(Fields::pack);
        let before = self
            .0
            .try_update(Ordering::AcqRel, Ordering::Acquire, update);
        before.ok().map(Fields::unpack)
    }

    /// Comes to the meeting of `expected` CPUs. `false` where another meeting is being held: the
    /// one before is not over, or somebody named another number.
    pub(crate) fn arrive(&self, expected: u8) -> bool {
        let arrival = |fields: Fields| {
            let is_first = fields == Fields::default();
            let fits = is_first || fields.expected == expected && fields.arrived < expected;
            fits.then_some(Fields {
                expected,
                arrived: fields.arrived + 1,
                ..fields
            })
        };
        expected > 0 && self.change(arrival).is_some()
    }

    /// Votes for it.
    pub(crate) fn vote(&self) {
        self.change(|fields| {
            Some(Fields {
                voted: fields.voted.saturating_add(1),
                ..fields
            })
        });
    }

    /// Fails it, unless it is past the point of no return or has failed already.
    pub(crate) fn fail(&self, reason: Reason) {
        self.change(|fields| {
            let can_fail = fields.reason == 0 && !fields.is_past_return();
            can_fail.then_some(Fields {
                reason: reason.get(),
                ..fields
            })
        });
    }

    pub(crate) fn standing(&self) -> Standing {
        let fields = Fields::unpack(self.0.load(Ordering::Acquire));
        match Reason::new(fields.reason) {
            Some(reason) => Standing::Failed(reason),
            None if fields.is_past_return() => Standing::Agreed,
            None => Standing::Open,
        }
    }

    /// Leaves it; the last of those who came empties it.
    pub(crate) fn leave(&self) {
        self.change(|fields| {
            let left = fields.left.saturating_add(1);
            Some(if left >= fields.arrived {
                Fields::default()
            } else {
                Fields { left, ..fields }
            })
        });
    }

    /// Whether nobody is there.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// The word, for tests that keep all states they have seen.
    #[doc(hidden)]
    pub fn word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// A meeting that stands as `word` says, for such tests.
    #[doc(hidden)]
    pub const fn from_word(word: u64) -> Self {
        Self(AtomicU64::new(word))
    }
}
