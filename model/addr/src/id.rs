//! Who is meant: nodes, CPUs, VMs and their vCPUs.

use core::fmt;

/// A NUMA node of the machine, numbered densely from 0 in the order the device tree names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// A physical CPU (pCPU), numbered densely from 0 in device-tree order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u16);

/// A VM: its slot, and which of the slot's occupants is meant. A stale id names nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId {
    /// The slot in the VM table.
    pub index: u16,
    /// Counts the slot's occupants.
    pub generation: u16,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu {}", self.0)
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vm {}.{}", self.index, self.generation)
    }
}
