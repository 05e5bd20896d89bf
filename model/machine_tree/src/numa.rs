//! NUMA nodes and the distances between them.

use dtoolkit::fdt::FdtNode;
use heapless::Vec;
use model_addr::NodeId;

use crate::node::{Result, cells, error};
use crate::{MAX_NODES, Problem, TreeError};

/// The distance of a node to itself (binding `numa-distance-map-v1`).
const LOCAL: u8 = 10;
/// The distance between two nodes of which the tree says nothing.
const REMOTE: u8 = 20;

/// The machine's NUMA nodes and how far they are from each other: 10 is local, 20 costs twice
/// as much.
///
/// Nodes are numbered from 0 by ascending `numa-node-id`; ids that no CPU and no memory carries
/// do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distances {
    ids: Vec<u32, MAX_NODES>,
    matrix: [[u8; MAX_NODES]; MAX_NODES],
}

impl Distances {
    /// How many nodes there are; at least one.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.ids.len()).map(|index| NodeId(index as u8))
    }

    /// The `numa-node-id` the tree gives `node`; `None` where there is no such node.
    pub fn id(&self, node: NodeId) -> Option<u32> {
        self.ids.get(usize::from(node.0)).copied()
    }

    /// The distance that `from` sees to `to`. Nodes that are not there are remote.
    pub fn between(&self, from: NodeId, to: NodeId) -> u8 {
        let row = self.matrix.get(usize::from(from.0));
        row.and_then(|row| row.get(usize::from(to.0)))
            .copied()
            .unwrap_or(REMOTE)
    }

    /// The node the tree calls `id`.
    pub(crate) fn node(&self, id: u32) -> Option<NodeId> {
        self.ids
            .binary_search(&id)
            .ok()
            .map(|index| NodeId(index as u8))
    }

    /// The nodes that `ids` name, at the distances that hold without a map.
    pub(crate) fn new(ids: impl Iterator<Item = u32>) -> Result<Self> {
        let mut sorted: Vec<u32, MAX_NODES> = Vec::new();
        for id in ids {
            if let Err(index) = sorted.binary_search(&id) {
                let too_many = |_| TreeError::new("", Problem::TooMany("NUMA nodes", MAX_NODES));
                sorted.insert(index, id).map_err(too_many)?;
            }
        }
        let mut matrix = [[REMOTE; MAX_NODES]; MAX_NODES];
        for (index, row) in matrix.iter_mut().enumerate() {
            row[index] = LOCAL;
        }
        Ok(Self {
            ids: sorted,
            matrix,
        })
    }

    /// Takes the distances of `map` (triples of node, node and distance). A pair given in one
    /// direction holds for both.
    pub(crate) fn apply(&mut self, map: &FdtNode<'_>) -> Result<()> {
        const NAME: &str = "distance-matrix";
        let cells = cells(map, NAME)?.ok_or_else(|| error(map, Problem::Missing(NAME)))?;
        let triples = || {
            let mut cells = cells.clone();
            core::iter::from_fn(move || Some((cells.next()?, cells.next()?, cells.next()?)))
        };
        // First all pairs in both directions, then what each direction says of itself.
        for reversed in [true, false] {
            for (from, to, distance) in triples() {
                let valid = u8::try_from(distance)
                    .ok()
                    .filter(|distance| *distance >= LOCAL);
                let valid = valid.filter(|distance| from != to || *distance == LOCAL);
                let bad = || error(map, Problem::Value(NAME, distance.into()));
                let distance = valid.ok_or_else(bad)?;
                if let (Some(from), Some(to)) = (self.node(from), self.node(to)) {
                    let (row, column) = if reversed { (to, from) } else { (from, to) };
                    self.matrix[usize::from(row.0)][usize::from(column.0)] = distance;
                }
            }
        }
        Ok(())
    }
}
