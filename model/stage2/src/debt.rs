//! What the TLBs may still remember, as a value.

use model_addr::Ipa;

use crate::Size;

/// A debt of more invalidations by address than this becomes one of the whole translation: each
/// is a broadcast to all CPUs, and beyond some number a full refill is cheaper.
pub const MOST_ADDRESSES: u64 = 64;

/// A run of leaves to invalidate: TLBI IPAS2E1IS for each of its addresses, DSB, then TLBI
/// VMALLE1IS and DSB, since stage-1 results are cached combined with stage 2 (Arm ARM D8.17.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    start: Ipa,
    size: u64,
    /// The smallest leaf in it: one invalidation drops a whole leaf.
    stride: u64,
}

impl Run {
    /// The addresses to invalidate, at most [`MOST_ADDRESSES`].
    pub fn addresses(self) -> impl Iterator<Item = Ipa> {
        (0..self.count()).map(move |n| Ipa(self.start.0 + n * self.stride))
    }

    fn count(self) -> u64 {
        self.size / self.stride
    }

    fn hull(self, other: Self) -> Self {
        let start = self.start.min(other.start);
        let end = (self.start.0 + self.size).max(other.start.0 + other.size);
        Self {
            start,
            size: end - start.0,
            stride: self.stride.min(other.stride),
        }
    }
}

/// What the machine must invalidate, for all CPUs that may have it, in the VMID of the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Nothing valid was changed.
    Nothing,
    /// A few leaves.
    Run(Run),
    /// All of the translation (TLBI VMALLS12E1IS, DSB).
    All,
}

impl Invalidation {
    /// The leaf of `size` at `start`.
    pub(crate) fn leaf(start: Ipa, size: Size) -> Self {
        Self::Run(Run {
            start,
            size: size.bytes(),
            stride: size.bytes(),
        })
    }

    /// One that does both.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Run(a), Self::Run(b)) if a.hull(b).count() <= MOST_ADDRESSES => {
                Self::Run(a.hull(b))
            }
            _ => Self::All,
        }
    }
}

/// Translations were taken out or reduced and TLBs may still hold them: until the debt is paid,
/// the guest may use the old ones, so their frames are not free.
///
/// It covers what the call that returned it changed, and nothing another call did.
#[must_use = "the frames are not free until the debt is paid"]
#[derive(Debug, PartialEq, Eq)]
pub struct FlushDebt(Invalidation);

impl FlushDebt {
    /// No debt; a start for [`Self::and`].
    pub const fn none() -> Self {
        Self(Invalidation::Nothing)
    }

    pub(crate) const fn new(what: Invalidation) -> Self {
        Self(what)
    }

    /// Both debts as one, to be paid with one flush. Both must be of the same translation.
    #[expect(clippy::needless_pass_by_value, reason = "both debts become one")]
    pub fn and(self, other: Self) -> Self {
        Self(self.0.and(other.0))
    }

    /// Whether there is nothing to pay.
    pub const fn is_none(&self) -> bool {
        matches!(self.0, Invalidation::Nothing)
    }

    /// Pays: calls `invalidate`, which returns when no TLB of any CPU holds what it names.
    pub fn pay(self, invalidate: impl FnOnce(Invalidation)) {
        if !self.is_none() {
            invalidate(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> Invalidation {
        Invalidation::leaf(Ipa(n << 12), Size::Page)
    }

    #[test]
    fn neighbours_join_and_strangers_become_all() {
        let Invalidation::Run(run) = page(1).and(page(2)) else {
            unreachable!()
        };
        assert!(run.addresses().eq([Ipa(0x1000), Ipa(0x2000)]));
        assert_eq!(page(0).and(page(MOST_ADDRESSES)), Invalidation::All);
        assert_eq!(page(0).and(Invalidation::Nothing), page(0));
        assert_eq!(Invalidation::All.and(page(0)), Invalidation::All);
    }

    #[test]
    fn a_block_is_one_address_until_a_page_joins() {
        let block = Invalidation::leaf(Ipa(0), Size::Block2M);
        let Invalidation::Run(run) = block else {
            unreachable!()
        };
        assert_eq!(run.addresses().count(), 1);
        assert_eq!(block.and(page(512)), Invalidation::All);
    }

    #[test]
    fn nothing_is_not_flushed() {
        FlushDebt::none().pay(|_| unreachable!());
        let mut paid = 0;
        FlushDebt::new(page(0))
            .and(FlushDebt::new(page(1)))
            .pay(|_| paid += 1);
        assert_eq!(paid, 1);
    }
}
