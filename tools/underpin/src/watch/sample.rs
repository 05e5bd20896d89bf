//! What a machine says of itself at one time.

use crate::{
    control::{Client, runs},
    failure::{Failure, Result},
    order::natural,
};
use abi::control::{CpuStatus, HostStatus, MachineStatus, NodeStatus, code, state};
use std::time::Duration;
use tools_abi::status::{MachineMem, MemStatus, VcpuStatus, VmStatus};

/// How long the hypervisor may take for its first answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// What OS-0 had of all these pCPUs beside VMs: nanoseconds that it ran, and that were stolen from it; `None` where
/// it had nothing.
pub fn os0_times(cpus: &[CpuStatus]) -> Option<[u64; 2]> {
    let sum = |of: fn(&CpuStatus) -> u64| cpus.iter().map(of).fold(0, u64::saturating_add);
    let times = [sum(|cpu| cpu.os0_run_ns), sum(|cpu| cpu.os0_steal_ns)];
    (times != [0; 2]).then_some(times)
}

/// A machine and its VMs at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The machine; its `uptime_ns` is the time of the sample.
    pub machine: MachineStatus,
    /// The machine's memory.
    pub memory: MachineMem,
    /// Its pCPUs.
    pub cpus: Vec<CpuStatus>,
    /// Its nodes, by their numbers.
    pub nodes: Vec<NodeStatus>,
    /// Hosts of its cluster, itself among them; none where it is in none, or whoever asks may not know them.
    pub hosts: Vec<HostStatus>,
    /// Its VMs in the order of their names, each name once.
    pub vms: Vec<VmSample>,
}

/// A VM at one time.
#[derive(Clone, Debug)]
pub struct VmSample {
    /// Its name, as it was told: any text.
    pub name: String,
    /// What is counted of it.
    pub status: VmStatus,
    /// Its memory; `None` where it does not run.
    pub memory: Option<MemStatus>,
    /// Its vCPUs; `None` where they were not asked for, or the VM has gone meanwhile.
    pub vcpus: Option<Vec<VcpuStatus>>,
}

impl Sample {
    /// Nanoseconds that OS-0 ran on all pCPUs beside VMs, and could have and did not; `None` where there is none.
    pub fn os0_times(&self) -> Option<[u64; 2]> {
        os0_times(&self.cpus)
    }

    /// Asks the hypervisor; for vCPUs of those VMs only that `wanted` names.
    ///
    /// # Errors
    /// The machine is gone, or its answers make no sense.
    pub fn take(client: &mut Client, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let machine = client.hello(ANSWER_TIME)?;
        let mut vms = Vec::new();
        let nodes = client.nodes()?;
        for raw in client.vms()? {
            let name = raw.name.to_string();
            let shown = if wanted(&name) {
                shown(client.show(&name))?
            } else {
                None
            };
            // Of one time, where there are vCPUs.
            let (status, vcpus) = match shown {
                Some((status, vcpus)) => (status, Some(vcpus)),
                None => (VmStatus::from(&raw), None),
            };
            vms.push(VmSample {
                memory: runs(&raw).then(|| MemStatus::of(&raw, &machine)),
                name,
                status,
                vcpus,
            });
        }
        vms.sort_by(|a, b| natural(&a.name, &b.name));
        vms.dedup_by(|a, b| a.name == b.name);
        Ok(Self {
            memory: MachineMem::of(&machine, &nodes),
            machine,
            cpus: client.cpus()?,
            nodes,
            hosts: hosts(client.hosts())?,
            vms,
        })
    }

    /// The VM of that name.
    pub fn vm(&self, name: &str) -> Option<&VmSample> {
        let found = self.vms.binary_search_by(|vm| natural(&vm.name, name));
        found.ok().and_then(|n| self.vms.get(n))
    }

    /// Bytes of the machine's memory that somebody uses.
    pub fn memory_used(&self) -> u64 {
        let machine = &self.machine;
        machine.memory.saturating_sub(machine.memory_free)
    }

    /// How many VMs run.
    pub fn running(&self) -> usize {
        let running = |vm: &&VmSample| vm.status.state == state::RUNNING;
        self.vms.iter().filter(running).count()
    }
}

/// Hosts of a cluster; none where the machine cannot join its own, or may not tell.
fn hosts(answer: Result<Vec<HostStatus>>) -> Result<Vec<HostStatus>> {
    match answer {
        Err(failure) if [code::IMPOSSIBLE, code::NOT_ALLOWED].contains(&failure.code().into()) => {
            Ok(Vec::new())
        }
        hosts => hosts,
    }
}

/// A VM in full; none where it has gone since it was listed.
fn shown(
    answer: Result<(VmStatus, Vec<VcpuStatus>)>,
) -> Result<Option<(VmStatus, Vec<VcpuStatus>)>> {
    let gone = |failure: &Failure| u32::from(failure.code()) == code::NO_SUCH_VM;
    match answer {
        Ok(shown) => Ok(Some(shown)),
        Err(failure) if gone(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}
