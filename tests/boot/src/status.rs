//! What `underpin -o json` says.

use crate::{Outcome, because};
use serde::{Deserialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// A VM, as `underpin list` and `underpin show` tell it.
#[derive(Clone, Debug, Deserialize)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// Its kernel's name in the bundle.
    pub kernel: String,
    /// `defined`, `running`, `paused`, `ending` or `ended`.
    pub state: String,
    /// Why it ended; empty while it has not.
    #[serde(default)]
    pub reason: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Bytes of memory given.
    pub memory: u64,
    /// Bytes of it that a frame of the machine is behind.
    pub touched: u64,
    /// Bytes of memory in its overlays.
    #[serde(default)]
    pub overlay: u64,
    /// Bytes that its overlays have on partitions.
    #[serde(default)]
    pub stored: u64,
    /// Nanoseconds that its vCPUs ran.
    pub run_ns: u64,
    /// Nanoseconds that they could have run and did not.
    pub steal_ns: u64,
    /// Nanoseconds that EL2 worked for it.
    #[serde(default)]
    pub hypervisor_ns: u64,
    /// Nanoseconds that they waited for something to do.
    #[serde(default)]
    pub idle_ns: u64,
    /// Exits by class.
    #[serde(default)]
    pub exits: BTreeMap<String, u64>,
    /// Nanoseconds at EL2 that they took.
    #[serde(default)]
    pub exit_ns: BTreeMap<String, u64>,
    /// How often TLBs were told of changes, by how many.
    #[serde(default)]
    pub invalidations: BTreeMap<String, u64>,
    /// What its guest did that was wrong, by kind.
    #[serde(default)]
    pub oddities: BTreeMap<String, u64>,
    /// What its network devices did.
    #[serde(default)]
    pub net: NetStatus,
    /// How often it was started.
    #[serde(default)]
    pub starts: u32,
}

/// A host of a cluster, as `underpin cluster` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// `own`, `in`, `joining`, `unfit` or `away`.
    pub state: String,
    /// Why it is not in.
    pub why: Option<String>,
    /// The membership of the host that was asked.
    pub epoch: u64,
    /// Cipher of the session.
    pub cipher: Option<String>,
    /// Nanoseconds of a round trip.
    pub round_trip_ns: u64,
    /// Pieces sent again.
    pub resent: u64,
    /// Frames dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Nanoseconds that CPUs of the host that was asked have worked for the cluster; of itself only.
    pub work_ns: Option<u64>,
}

/// A vCPU, as `underpin show` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct VcpuStatus {
    /// The pCPU that it runs on, or ran on last.
    #[serde(default)]
    pub cpu: u32,
    /// Nanoseconds it ran.
    pub run_ns: u64,
}

/// What `underpin show` tells beside a VM's status.
#[derive(Clone, Debug, Deserialize)]
pub struct VmDetails {
    /// Each vCPU.
    pub vcpu: Vec<VcpuStatus>,
}

/// What a VM's network devices did.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NetStatus {
    /// Frames it sent.
    pub frames_sent: u64,
    /// Frames it got.
    pub frames_received: u64,
    /// Frames that went nowhere, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// How many of those it sent took how long.
    pub latency: Vec<Bucket>,
}

/// A part of a histogram, as `underpin show` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct Bucket {
    /// How many there are.
    pub count: u64,
}

/// A VM's memory, in bytes, as `underpin mem` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct MemStatus {
    /// Its name.
    pub name: String,
    /// Its share group.
    pub group: String,
    /// What it is sure of.
    pub base: u64,
    /// The most it can have.
    pub max: u64,
    /// Guest memory with a frame behind it.
    pub resident: u64,
    /// Of it, frames that nobody else can use.
    pub private: u64,
    /// Of it, frames that others use or could use.
    pub shared: u64,
    /// What it is charged.
    pub charge: u64,
    /// What sharing saves on its account.
    pub entitlement: u64,
    /// What it has to give back.
    pub owed: u64,
    /// What was counted since it started.
    pub events: BTreeMap<String, u64>,
}

/// What `underpin mem why` tells.
#[derive(Clone, Debug, Deserialize)]
pub struct Why {
    /// All that is private.
    pub private: Amount,
    /// By reason.
    pub reasons: BTreeMap<String, Amount>,
    /// All that could be shared and has one user.
    pub no_second_user: Amount,
    /// All that has two users or more.
    pub shared: Amount,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
}

/// What `underpin mem fit` tells.
#[derive(Clone, Debug, Deserialize)]
pub struct Fit {
    /// How many more would start.
    pub fits: u64,
    /// What binds then.
    pub binds: String,
}

/// What `underpin mem` tells.
#[derive(Clone, Debug, Deserialize)]
pub struct Memory {
    /// The VMs that run.
    pub vms: Vec<MemStatus>,
}

/// The machine, as `underpin machine` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct MachineStatus {
    /// Nanoseconds since EL2 started.
    #[serde(default)]
    pub uptime_ns: u64,
    /// Bytes of RAM.
    pub memory: u64,
    /// Bytes that no one uses.
    pub memory_free: u64,
    /// Bytes of the EL2 image.
    pub image: u64,
    /// Bytes of the frame table.
    pub frame_table: u64,
    /// Bytes of EL2's heap in use.
    pub heap: u64,
    /// Bytes of the bundle.
    pub bundle: u64,
    /// Of each pCPU, its longest stretches.
    pub stretches: Vec<Stretches>,
}

/// How long a pCPU worked without a look at its interrupts, at most.
#[derive(Clone, Debug, Deserialize)]
pub struct Stretches {
    /// The pCPU.
    pub cpu: u32,
    /// Nanoseconds, by the kind of work.
    pub longest_ns: BTreeMap<String, u64>,
}

/// A node, as `underpin nodes` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeStatus {
    /// Bytes that its pool manages.
    pub memory: u64,
    /// Bytes free.
    pub free: u64,
    /// Its pCPUs.
    pub cpus: u32,
}

/// Where a VM's memory is, as `underpin numa` tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct NumaStatus {
    /// Pages that moved by themselves.
    pub moved: u64,
    /// Bytes of memory on each node.
    pub memory: Vec<u64>,
    /// How it is known where they should be.
    pub misses: String,
    /// How often pages were left where they are, by why.
    pub left: BTreeMap<String, u64>,
    /// All of it is on its way to a node.
    pub moving: bool,
    /// Nanoseconds of CPUs for moving and copying pages, beside the bytes.
    pub moving_ns: u64,
    /// Nanoseconds of CPUs for the bytes.
    pub copying_ns: u64,
}

/// What `underpin numa move --wait` tells.
#[derive(Clone, Debug, Deserialize)]
pub struct MoveStatus {
    /// Before.
    pub forecast: Forecast,
    /// What came of it.
    pub gain: Option<Gain>,
}

/// What a move would do.
#[derive(Clone, Debug, Deserialize)]
pub struct Forecast {
    /// Bytes on other nodes.
    pub elsewhere: u64,
    /// Misses on hot pages that went to other nodes, in percent, where they are known.
    pub remote_percent: Option<u64>,
}

/// What a move did.
#[derive(Clone, Debug, Deserialize)]
pub struct Gain {
    /// Bytes that came.
    pub came: u64,
    /// The local share of misses on hot pages, in percent, where they are known.
    pub local_percent_before: Option<u64>,
    /// The same, after.
    pub local_percent_after: Option<u64>,
}

/// Reads what a verb printed with `-o json`.
pub fn parse<T: DeserializeOwned>(verb: &str, text: &str) -> Outcome<T> {
    serde_json::from_str(text).map_err(because(format!(
        "cannot read what 'underpin {verb} -o json' printed"
    )))
}
