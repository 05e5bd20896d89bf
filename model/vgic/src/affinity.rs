//! vCPUs by number, by affinity and in sets.

use crate::MAX_VCPUS;

/// The affinity of vCPU `index` as `Aff3.Aff2.Aff1.Aff0`, a byte each: 16 vCPUs per Aff1, so that
/// one SGI target list reaches a whole cluster without a range selector.
pub const fn affinity_of(index: usize) -> u32 {
    ((index as u32 >> 4) << 8) | (index as u32 & 0xf)
}

/// The vCPU that [`affinity_of`] gave `affinity`, of a VM with `vcpus` vCPUs.
pub const fn vcpu_at(affinity: u32, vcpus: usize) -> Option<usize> {
    let index = ((affinity >> 8) * 16 + (affinity & 0xf)) as usize;
    if affinity & 0xffff_00f0 == 0 && index < vcpus {
        Some(index)
    } else {
        None
    }
}

/// A set of vCPUs of one VM: bit n is vCPU n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuSet(pub u64);

impl VcpuSet {
    /// Nobody.
    pub const NONE: Self = Self(0);

    /// The first `vcpus` vCPUs.
    pub const fn first(vcpus: usize) -> Self {
        if vcpus >= MAX_VCPUS {
            Self(u64::MAX)
        } else {
            Self((1 << vcpus) - 1)
        }
    }

    /// vCPU `index` alone; nobody where there can be no such vCPU.
    pub const fn only(index: usize) -> Self {
        if index < MAX_VCPUS {
            Self(1 << index)
        } else {
            Self::NONE
        }
    }

    /// Whether `index` is in the set.
    pub const fn contains(self, index: usize) -> bool {
        self.0 & Self::only(index).0 != 0
    }

    /// Whether nobody is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those in either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The members, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        bits(self.0).map(|bit| bit as usize)
    }
}

/// The set bits of `word`, lowest first.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros();
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_and_indices_are_inverse() {
        for index in 0..MAX_VCPUS {
            assert_eq!(vcpu_at(affinity_of(index), MAX_VCPUS), Some(index));
            assert_eq!(vcpu_at(affinity_of(index), index), None);
        }
        for odd in [0x10, 0x400, 0x1_0000, 0x100_0000, u32::MAX] {
            assert_eq!(vcpu_at(odd, MAX_VCPUS), None);
        }
    }

    #[test]
    fn sets_have_edges() {
        assert_eq!(VcpuSet::first(0), VcpuSet::NONE);
        assert_eq!(VcpuSet::first(64).0, u64::MAX);
        assert!(VcpuSet::only(64).is_empty());
        assert!(VcpuSet::first(3).iter().eq(0..3));
    }
}
