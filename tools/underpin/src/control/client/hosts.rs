//! Requests about the hosts of a cluster.

use super::{Client, vm_name};
use crate::failure::Result;
use abi::control::{HostStatus, ProbeRequest, SpanMoveRequest, VmName, request};
use zerocopy::IntoBytes;

impl Client {
    /// The hosts of the machine's cluster; none where it is in none.
    pub fn hosts(&mut self) -> Result<Vec<HostStatus>> {
        self.read(request::HOSTS, VmName::default())
    }

    /// Begins a probe of the link to a host.
    pub fn probe(&mut self, asked: &ProbeRequest) -> Result<()> {
        self.request(request::PROBE, &[asked.as_bytes()]).map(drop)
    }

    /// Begins to move a vCPU of a VM to another of its hosts.
    pub fn span_move(&mut self, vm: &str, vcpu: u32, host: u32) -> Result<()> {
        let name = vm_name(vm)?;
        let asked = SpanMoveRequest { name, vcpu, host };
        self.request(request::SPAN_MOVE, &[asked.as_bytes()])
            .map(drop)
    }

    /// Lets a machine leave a VM that goes on, or go on with that: the pages at which it has not looked, of how many.
    pub fn span_leave(&mut self, vm: &str) -> Result<[u64; 2]> {
        let reply = self.request(request::SPAN_LEAVE, &[vm_name(vm)?.as_bytes()])?;
        Ok(reply.first()?.0)
    }

    /// Lets a machine leave its cluster; whether all members go on without it.
    pub fn cluster_leave(&mut self) -> Result<bool> {
        let reply = self.request(request::CLUSTER_LEAVE, &[])?;
        Ok(reply.first::<u64>()?.0 == 1)
    }
}
