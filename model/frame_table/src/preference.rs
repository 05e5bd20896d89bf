//! Which node to ask for memory, and in which order.

use core::ops::Index;
use model_addr::NodeId;

/// How many nodes a machine may have.
pub const MAX_NODES: usize = 64;

/// One value for each node, in the order of their numbers. Memory and CPUs of nodes from [`MAX_NODES`] on are not used,
/// so that no such number ever comes here; it would mean the node whose number has the same low bits.
#[derive(Debug)]
pub struct PerNode<T>(pub [T; MAX_NODES]);

impl<T: Default> Default for PerNode<T> {
    fn default() -> Self {
        Self(core::array::from_fn(|_| T::default()))
    }
}

impl<T> Index<NodeId> for PerNode<T> {
    type Output = T;

    #[inline]
    fn index(&self, node: NodeId) -> &T {
        &self.0[usize::from(node.0) % MAX_NODES]
    }
}

/// For each node, all nodes by distance: the node itself first, equal distances by number.
#[derive(Clone, Copy, Debug)]
pub struct PreferenceOrder {
    orders: [[NodeId; MAX_NODES]; MAX_NODES],
    nodes: usize,
}

impl PreferenceOrder {
    /// The orders of nodes 0 to `nodes` - 1 (of no more than [`MAX_NODES`]) for these distances,
    /// as the device tree's distance-map gives them: from the first to the second.
    pub fn new(nodes: usize, distance: impl Fn(NodeId, NodeId) -> u32) -> Self {
        let nodes = nodes.min(MAX_NODES);
        let mut all = [NodeId(0); MAX_NODES];
        for (node, number) in all.iter_mut().zip(0..) {
            *node = NodeId(number);
        }
        let mut orders = [all; MAX_NODES];
        for (order, home) in orders.iter_mut().zip(all) {
            let near = |node: &NodeId| (*node != home, distance(home, *node), *node);
            order[..nodes].sort_unstable_by_key(near);
        }
        Self { orders, nodes }
    }

    /// All nodes by their distance from `home`; none where there is no such node.
    pub fn from(&self, home: NodeId) -> &[NodeId] {
        let order = self
            .orders
            .get(..self.nodes)
            .and_then(|known| known.get(usize::from(home.0)));
        order
            .and_then(|order| order.get(..self.nodes))
            .unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_value() {
        let values = PerNode(core::array::from_fn::<_, MAX_NODES, _>(|n| n));
        assert!((0..MAX_NODES).all(|n| values[NodeId(n as u8)] == n));
    }

    #[test]
    fn home_first_then_by_distance_then_by_number() {
        let ring = |a: NodeId, b: NodeId| match a.0.abs_diff(b.0) {
            0 => 10,
            1 | 3 => 20,
            _ => 30,
        };
        let preference = PreferenceOrder::new(4, ring);
        assert_eq!(preference.from(NodeId(2)), [2, 1, 3, 0].map(NodeId));
        assert_eq!(preference.from(NodeId(0)), [0, 1, 3, 2].map(NodeId));
        assert!(preference.from(NodeId(4)).is_empty());
        assert_eq!(
            PreferenceOrder::new(99, ring).from(NodeId(63)).len(),
            MAX_NODES
        );
    }

    #[test]
    fn home_is_first_whatever_the_firmware_says() {
        let preference = PreferenceOrder::new(3, |a, b| u32::from(a == b));
        assert_eq!(preference.from(NodeId(1)), [1, 0, 2].map(NodeId));
    }
}
