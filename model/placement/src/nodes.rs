//! Sets of nodes.

use model_addr::NodeId;

/// The most nodes that a set can hold.
pub const NODES_MAX: usize = 64;

/// Some nodes, numbered below [`NODES_MAX`]; others are never in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(u64);

impl NodeSet {
    /// None.
    pub const NONE: Self = Self(0);

    /// Those whose bits are set.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether `node` is in it.
    pub const fn contains(self, node: NodeId) -> bool {
        self.0 & bit(node) != 0
    }

    /// With `node`.
    #[must_use]
    pub const fn with(self, node: NodeId) -> Self {
        Self(self.0 | bit(node))
    }

    /// Without the `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// All of them, by number.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let first = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (first < u64::BITS).then_some(NodeId(first as u8))
        })
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::NONE, Self::with)
    }
}

const fn bit(node: NodeId) -> u64 {
    if (node.0 as usize) < NODES_MAX {
        1 << node.0
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let set: NodeSet = [3, 63, 0].map(NodeId).into_iter().collect();
        assert!(set.iter().eq([0, 3, 63].map(NodeId)));
        assert_eq!(set.len(), 3);
        assert!(!set.contains(NodeId(1)) && !set.with(NodeId(64)).contains(NodeId(64)));
        assert!(set.without(set).is_empty());
        assert_eq!(set.and(NodeSet::NONE.with(NodeId(5))).len(), 4);
    }
}
