//! Who has what of a VM: vCPUs and memory in equal shares, by the order of hosts in their cluster.

use crate::{HOSTS_MAX, Hosts, bit};
use core::ops::Range;

/// Memory is shared out in units of so many bytes: a block of stage 2.
pub const MEMORY_STEP: u64 = 2 << 20;

/// Reason why a VM cannot span these hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is one host, or none.
    #[error("a VM that spans hosts needs at least 2 of them; it has {0}")]
    Hosts(u32),
    /// A host would have no vCPU.
    #[error("{0} vCPUs on {1} hosts: each host needs at least one vCPU")]
    Vcpus(u8, u32),
    /// A host would have no whole share.
    #[error("{0} bytes of memory on {1} hosts: it must be a multiple of 2 MiB for each host")]
    Memory(u64, u32),
}

/// The shares of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    hosts: Hosts,
    vcpus: u8,
    memory: u64,
}

impl Layout {
    /// Shares out `vcpus` vCPUs, at most [`crate::VCPUS_MAX`], and `memory` bytes.
    ///
    /// # Errors
    /// A host would have no vCPU, or no equal share of memory in whole blocks.
    pub fn new(hosts: Hosts, vcpus: u8, memory: u64) -> Result<Self, Unfit> {
        let count = hosts.count_ones();
        let step = MEMORY_STEP * u64::from(count.max(1));
        if count < 2 {
            return Err(Unfit::Hosts(count));
        }
        if u32::from(vcpus) < count || usize::from(vcpus) > crate::VCPUS_MAX {
            return Err(Unfit::Vcpus(vcpus, count));
        }
        if memory == 0 || !memory.is_multiple_of(step) {
            return Err(Unfit::Memory(memory, count));
        }
        Ok(Self {
            hosts,
            vcpus,
            memory,
        })
    }

    /// Returns its hosts by number, ascending.
    pub fn hosts(&self) -> impl Iterator<Item = u8> + use<> {
        let hosts = self.hosts;
        (0..HOSTS_MAX as u8).filter(move |host| hosts & bit(*host) != 0)
    }

    /// Returns whether a host has a share.
    pub const fn has(&self, host: u8) -> bool {
        (host as usize) < HOSTS_MAX && self.hosts & bit(host) != 0
    }

    /// Returns the host that has the devices and vCPU 0.
    pub const fn first(&self) -> u8 {
        self.hosts.trailing_zeros() as u8
    }

    /// Returns a host's vCPUs.
    pub fn vcpus_of(&self, host: u8) -> Range<u8> {
        let Range { start, end } = self.share(host, self.vcpus.into());
        start as u8..end as u8
    }

    /// Returns a host's vCPUs, a bit each.
    pub fn bits_of(&self, host: u8) -> u64 {
        self.vcpus_of(host).fold(0, |set, vcpu| set | 1 << vcpu)
    }

    /// Returns a host's memory, in bytes from the start of the VM's.
    pub fn memory_of(&self, host: u8) -> Range<u64> {
        let Range { start, end } = self.share(host, self.memory / MEMORY_STEP);
        start * MEMORY_STEP..end * MEMORY_STEP
    }

    /// Returns the host of a vCPU, if there is such a vCPU.
    pub fn host_of(&self, vcpu: u8) -> Option<u8> {
        self.hosts()
            .find(|host| self.vcpus_of(*host).contains(&vcpu))
    }

    fn share(&self, host: u8, of: u64) -> Range<u64> {
        let before = (self.hosts & (bit(host) - 1)).count_ones();
        let end = |n: u32| of * u64::from(n) / u64::from(self.hosts.count_ones());
        end(before)..end(before + 1)
    }
}
