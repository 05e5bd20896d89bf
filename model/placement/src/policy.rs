//! What becomes of one hot page.

use crate::{NODES_MAX, NodeSet, Past};
use model_addr::NodeId;

/// From where on something is done. The defaults are those of Verghese et al. (1996, section 4);
/// `tests/sweep.rs` shows what others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Misses of one node on a page, since the page was last decided on, that make it hot. A copy
    /// takes about as long as this many misses lose by being remote (64 lines read at 900 ns and
    /// written at 300 ns, against 600 ns each): who waits for that never loses more than twice what
    /// the best choice would.
    pub trigger: u32,
    /// Misses of a node that make it one of those that share the page: a quarter of the above.
    pub sharing: u32,
    /// How often a page may be moved, or collapse, each time less than a [`Self::span`] after the last.
    /// Then it is left alone for a span; for two, four and so on where it goes on as before.
    pub moves: u8,
    /// How many intervals a page must stay for a move not to count.
    pub span: u32,
}

impl Thresholds {
    /// Those that are used.
    pub const DEFAULT: Self = Self {
        trigger: 128,
        sharing: 32,
        moves: 4,
        span: 64,
    };
}

/// What was seen of a page since it was last decided on.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Where it is.
    pub home: NodeId,
    /// Nodes with copies of it.
    pub replicas: NodeSet,
    /// Misses of each node, by number, on the page and its replicas together. Those beyond
    /// [`NODES_MAX`] do not count.
    pub misses: &'a [u32],
    /// Whether anybody wrote it.
    pub written: bool,
}

/// What becomes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It moves to this node.
    Migrate(NodeId),
    /// These nodes, which have none, get a copy.
    Replicate(NodeSet),
    /// It stays.
    Leave(Stays),
}

/// Why a page stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stays {
    /// No node has missed often enough.
    NotHot,
    /// Who misses often has it at hand, and nobody else has a share of the misses.
    AtHome,
    /// Several nodes use it and somebody writes it.
    WriteShared,
    /// It was moved, or its copies collapsed, too often of late.
    MovedOften,
    /// The node that would get it is short of memory.
    NoMemory,
}

impl Stays {
    /// All of them, by their number.
    pub const ALL: [Self; 5] = [
        Self::NotHot,
        Self::AtHome,
        Self::WriteShared,
        Self::MovedOften,
        Self::NoMemory,
    ];
}

/// Decides what becomes of a page with this `past`; nodes that are `short` of memory get nothing.
/// The work is one look at each node's misses.
pub fn decide(sight: Sight<'_>, past: Past, short: NodeSet, limits: &Thresholds) -> Decision {
    let here = sight.replicas.with(sight.home);
    let (mut hot, mut sharers) = (NodeSet::NONE, NodeSet::NONE);
    let mut most = (0, sight.home);
    for (number, &misses) in sight.misses.iter().take(NODES_MAX).enumerate() {
        let node = NodeId(number as u8);
        if misses >= limits.sharing.max(1) {
            sharers = sharers.with(node);
        }
        if misses >= limits.trigger.max(1) {
            hot = hot.with(node);
        }
        if misses > most.0 {
            most = (misses, node);
        }
    }
    if hot.is_empty() {
        return Decision::Leave(Stays::NotHot);
    }
    let wanting = hot.and(sharers).without(here);
    if wanting.is_empty() {
        return Decision::Leave(Stays::AtHome);
    }
    let (_, heaviest) = most;
    let is_alone = hot.and(sharers).len() == 1 && sight.replicas.is_empty();
    if !is_alone && sight.written {
        return Decision::Leave(Stays::WriteShared);
    }
    if past.moves >= limits.moves {
        return Decision::Leave(Stays::MovedOften);
    }
    let rich = wanting.without(short);
    if is_alone && rich.contains(heaviest) {
        Decision::Migrate(heaviest)
    } else if is_alone || rich.is_empty() {
        Decision::Leave(Stays::NoMemory)
    } else {
        Decision::Replicate(rich)
    }
}
