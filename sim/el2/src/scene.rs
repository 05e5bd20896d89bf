//! What a seed makes of a machine: its parts, the VMs that live on it, what is asked of it and what goes wrong.

use crate::bundle::Vm;
use crate::program::Plan;
use machine_host::faults::{DiskFaults, Faults};
use machine_host::machine::Config;
use machine_host::rng::Rng;

/// Bytes of the machine's memory, and of a VM's.
const MEMORY: usize = 48 << 20;
const VM_MEMORY: u64 = 4 << 20;

/// How much of a scene there is at most: what shrinking makes smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Limits {
    /// The most CPUs.
    #[arg(long, default_value_t = 16)]
    pub cpus: usize,
    /// The most VMs.
    #[arg(long, default_value_t = 16)]
    pub vms: usize,
    /// The most vCPUs of a VM.
    #[arg(long, default_value_t = 16)]
    pub vcpus: u64,
    /// The most steps of a vCPU.
    #[arg(long, default_value_t = 1000)]
    pub steps: u64,
    /// The most requests to the control port; 0: it has none.
    #[arg(long, default_value_t = 1000)]
    pub requests: u64,
    /// What may go wrong: 0 nothing, 1 what the seed says.
    #[arg(long, default_value_t = 1)]
    pub faults: u64,
}

/// A machine and what happens on it.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The machine.
    pub config: Config,
    /// Its NUMA nodes.
    pub nodes: usize,
    /// EL2's command line.
    pub command_line: String,
    /// The VMs, by number.
    pub vms: Vec<Vm>,
    /// How many of them are in the bundle; a request creates each other.
    pub in_bundle: usize,
    /// Requests to the control port; `None`: there is no such port.
    pub requests: Option<u64>,
    /// What goes wrong once it has booted.
    pub faults: Faults,
}

impl Scene {
    /// The scene of a seed, as far as the limits go.
    pub fn new(seed: u64, limits: Limits) -> Self {
        let mut rng = Rng::new(seed);
        let cpus = 1 + rng.below(3) as usize;
        let mut config = Config {
            seed: rng.next(),
            cpus: cpus.min(limits.cpus),
            memory: MEMORY,
            pause_every: 2 + rng.below(30),
            refused: 0,
            silent: 0,
        };
        let requests = match rng.below(4) {
            0 => 0,
            _ => 4 + rng.below(30),
        }
        .min(limits.requests);
        let in_bundle = 1 + rng.below(3) as usize;
        let created = if requests > 0 {
            rng.below(3) as usize
        } else {
            0
        };
        let mut vms = Vec::new();
        for number in 0..in_bundle + created {
            let plan = Plan {
                vm: number as u64,
                vcpus: (1 + rng.below(3)).min(limits.vcpus),
                steps: (20 + rng.below(100)).min(limits.steps),
                seed: rng.next(),
                data_seed: rng.below(2),
            };
            vms.push(vm(plan, &mut rng));
        }
        vms.truncate(limits.vms.max(1));
        let nodes = 1 + usize::from(rng.below(3) == 0);
        let zeroed = ["zeroed=off", "zeroed=off", "zeroed=4M"][rng.below(3) as usize];
        let traced = ["", " trace=all"][usize::from(rng.below(8) == 0)];
        let faults = faults(&mut rng, &mut config);
        if limits.faults == 0 {
            (config.refused, config.silent) = (0, 0);
        }
        Self {
            config,
            nodes,
            command_line: format!("{zeroed}{traced}"),
            in_bundle: in_bundle.min(vms.len()),
            vms,
            requests: (requests > 0).then_some(requests),
            faults: if limits.faults == 0 {
                Faults::default()
            } else {
                faults
            },
        }
    }
}

fn vm(plan: Plan, rng: &mut Rng) -> Vm {
    Vm {
        name: format!("vm{}", plan.vm),
        group: ["all", "all", "others"][rng.below(3) as usize].into(),
        vcpus: plan.vcpus as u32,
        memory: VM_MEMORY,
        kernel: crate::program::kernel(plan),
        cap: [0, 0, 0, 60][rng.below(4) as usize],
        restarts: rng.below(2) == 0,
        keeps_blocks: rng.below(4) == 0,
        hides: rng.below(6) == 0,
        never_shares: rng.below(8) == 0,
    }
}

/// What goes wrong: nothing in a third of all lives.
fn faults(rng: &mut Rng, config: &mut Config) -> Faults {
    let is_well = rng.below(3) == 0;
    let mut often = |one_in: u64, least: u64, most: u64| {
        let (comes, often) = (rng.below(one_in) == 0, least + rng.below(most - least));
        if comes && !is_well { often } else { 0 }
    };
    let faults = Faults {
        disk: DiskFaults {
            fails: often(6, 2, 40),
            tears: often(6, 2, 40),
            delays: often(6, 2, 40),
        },
        allocations: often(4, 2, 300),
        interrupts: often(4, 20, 2000),
    };
    let others = config.cpus.saturating_sub(1) as u64;
    if others > 0 {
        config.refused = 1 << often(8, 1, 1 + others);
        config.refused &= !1;
        let is_silent = often(40, 1, 2) > 0;
        config.silent = u16::from(is_silent) << (config.cpus - 1) & !config.refused;
    }
    faults
}
