//! Where CPUs and memory are, and how long a miss takes from one to the other.

use std::fmt;

/// The most CPUs: a line's holders are one word.
pub const CPUS_MAX: usize = 32;
/// The most nodes.
pub const NODES_MAX: usize = 32;
/// Pages of 4 KiB are counted.
pub const PAGE_SHIFT: u32 = 12;

/// Why a machine cannot be modelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bad {
    /// No cache is like this.
    Cache {
        /// Size asked for.
        bytes: u64,
        /// Ways asked for.
        ways: u64,
        /// Bytes of a line asked for.
        line: u64,
    },
    /// CPUs do not spread evenly over nodes, or there are too many of either.
    Shape {
        /// CPUs asked for.
        cpus: usize,
        /// Nodes asked for.
        nodes: usize,
    },
    /// The memory of a node is not whole pages, or all of it is more than 1 TiB.
    Memory {
        /// Bytes of a node asked for.
        bytes: u64,
    },
    /// The latencies are not one for each pair of nodes.
    Latencies {
        /// How many there are.
        found: usize,
        /// How many there must be.
        expected: usize,
    },
    /// The window is too small for the counters.
    Window {
        /// Its bytes.
        bytes: usize,
        /// The bytes that it must have.
        needed: usize,
    },
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache { bytes, ways, line } => write!(
                f,
                "there is no cache of {bytes} bytes with {ways} ways and lines of {line} bytes; all must be powers of two, lines of 16 to 4096 bytes"
            ),
            Self::Shape { cpus, nodes } => write!(
                f,
                "{cpus} CPUs cannot be spread over {nodes} nodes; give as many to each, at most {CPUS_MAX} CPUs and {NODES_MAX} nodes"
            ),
            Self::Memory { bytes } => write!(
                f,
                "a node cannot have {bytes} bytes of memory; give it whole pages, at most 1 TiB together"
            ),
            Self::Latencies { found, expected } => {
                write!(f, "{found} latencies are given, but {expected} are needed")
            }
            Self::Window { bytes, needed } => write!(
                f,
                "the window has {bytes} bytes, but the counters need {needed}"
            ),
        }
    }
}

impl std::error::Error for Bad {}

/// CPUs and memory, both spread evenly over nodes in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cpus: usize,
    nodes: usize,
    base: u64,
    node_bytes: u64,
    latency_ns: Vec<u64>,
}

impl Topology {
    /// A machine whose memory begins at the address `base` with node 0's, and in which a miss takes
    /// `latency_ns[from * nodes + to]`.
    ///
    /// # Errors
    /// CPUs, nodes, memory or latencies do not fit together.
    pub fn new(
        cpus: usize,
        nodes: usize,
        base: u64,
        node_bytes: u64,
        latency_ns: Vec<u64>,
    ) -> Result<Self, Bad> {
        if nodes == 0
            || nodes > NODES_MAX
            || cpus == 0
            || cpus > CPUS_MAX
            || !cpus.is_multiple_of(nodes)
        {
            return Err(Bad::Shape { cpus, nodes });
        }
        let page = 1 << PAGE_SHIFT;
        if node_bytes == 0
            || !(node_bytes | base).is_multiple_of(page)
            || node_bytes > (1 << 40) / nodes as u64
            || base >> 48 != 0
        {
            return Err(Bad::Memory { bytes: node_bytes });
        }
        let expected = nodes * nodes;
        if latency_ns.len() != expected {
            let found = latency_ns.len();
            return Err(Bad::Latencies { found, expected });
        }
        Ok(Self {
            cpus,
            nodes,
            base,
            node_bytes,
            latency_ns,
        })
    }

    /// Latencies for [`Topology::new`] where all other nodes are equally far.
    pub fn two_latencies(nodes: usize, local_ns: u64, remote_ns: u64) -> Vec<u64> {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        pairs
            .map(|(from, to)| if from == to { local_ns } else { remote_ns })
            .collect()
    }

    /// How many CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// How many nodes that have memory and CPUs.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The address of the first byte of memory.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of memory of all nodes.
    pub fn bytes(&self) -> u64 {
        self.node_bytes * self.nodes as u64
    }

    /// Bytes of memory of each node.
    pub fn node_bytes(&self) -> u64 {
        self.node_bytes
    }

    /// The node of a CPU.
    pub fn node_of_cpu(&self, cpu: usize) -> usize {
        cpu / (self.cpus / self.nodes)
    }

    /// How far into the memory an address is, if it is memory of a node.
    #[inline]
    pub fn offset(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset < self.bytes()).then_some(offset)
    }

    /// The node whose memory is at such an offset.
    pub fn home(&self, offset: u64) -> usize {
        (offset / self.node_bytes) as usize
    }

    /// How long a CPU of one node waits for memory of another, in nanoseconds.
    pub fn latency_ns(&self, from: usize, to: usize) -> u64 {
        self.latency_ns[from * self.nodes + to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flash(cpus: usize, nodes: usize, bytes: u64) -> Result<Topology, Bad> {
        Topology::new(
            cpus,
            nodes,
            0x4000_0000,
            bytes,
            Topology::two_latencies(nodes, 300, 900),
        )
    }

    #[test]
    fn homes_and_latencies() {
        let machine = flash(8, 4, 1 << 20).unwrap();
        assert_eq!(machine.node_of_cpu(7), 3);
        assert_eq!(machine.offset(0x3fff_ffff), None);
        assert_eq!(machine.offset(0x4040_0000), None);
        let last = machine.offset(0x403f_ffff).unwrap();
        assert_eq!(machine.home(last), 3);
        assert_eq!(machine.latency_ns(3, 3), 300);
        assert_eq!(machine.latency_ns(2, 3), 900);
    }

    #[test]
    fn bad_machines_are_refused() {
        for (cpus, nodes, bytes) in [
            (0, 1, 4096),
            (1, 0, 4096),
            (3, 2, 4096),
            (33, 1, 4096),
            (64, 64, 4096),
            (2, 2, 0),
            (2, 2, 4097),
            (2, 2, 1 << 40),
        ] {
            assert!(flash(cpus, nodes, bytes).is_err(), "{cpus} {nodes} {bytes}");
        }
        let bad = Topology::new(2, 2, 0, 4096, vec![300]).unwrap_err();
        assert_eq!(bad.to_string(), "1 latencies are given, but 4 are needed");
    }
}
