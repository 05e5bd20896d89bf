//! What a seed makes of a machine: its parts, the VMs that live on it, what is asked of it and what goes wrong.

use crate::bundle::{Backing, Vm};
use crate::program::Plan;
use crate::wire::Net;
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
    #[arg(long, default_value_t = 4)]
    pub cpus: u64,
    /// The most VMs.
    #[arg(long, default_value_t = 8)]
    pub vms: u64,
    /// The most vCPUs of a VM.
    #[arg(long, default_value_t = 4)]
    pub vcpus: u64,
    /// The most steps of a vCPU.
    #[arg(long, default_value_t = 128)]
    pub steps: u64,
    /// The most requests to the control port; 0: it has none.
    #[arg(long, default_value_t = 64)]
    pub requests: u64,
    /// Whether things may go wrong: 0 or 1.
    #[arg(long, default_value_t = 1)]
    pub faults: u64,
}

impl Limits {
    /// The arguments that say the same.
    pub fn arguments(&self) -> [String; 6] {
        [
            format!("--cpus={}", self.cpus),
            format!("--vms={}", self.vms),
            format!("--vcpus={}", self.vcpus),
            format!("--steps={}", self.steps),
            format!("--requests={}", self.requests),
            format!("--faults={}", self.faults),
        ]
    }
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
    /// The guests' programs, by VM.
    pub plans: Vec<Plan>,
    /// The VMs, by number.
    pub vms: Vec<Vm>,
    /// How many of them are in the bundle; a request creates each other.
    pub in_bundle: usize,
    /// Requests to the control port; `None`: there is no such port.
    pub requests: Option<u64>,
    /// Whoever asks takes no answers now and then.
    pub naps: bool,
    /// It has a network card.
    pub has_card: bool,
    /// What goes wrong once it has booted.
    pub faults: Faults,
}

impl Scene {
    /// The scene of a seed, as far as the limits go.
    pub fn new(seed: u64, limits: Limits) -> Self {
        let mut rng = Rng::new(seed);
        let cpus = 1 + rng.below(3);
        let mut config = Config {
            seed: rng.next(),
            cpus: cpus.min(limits.cpus).max(1) as usize,
            memory: MEMORY,
            pause_every: 2 + rng.below(30),
            refused: 0,
            silent: 0,
            works_in_time: seed % 8 == 3,
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
        let (mut vms, mut plans) = (Vec::new(), Vec::new());
        let has_card = rng.below(2) == 0;
        let count = (in_bundle + created) as u64;
        for number in 0..in_bundle + created {
            let net = match rng.below(4) {
                0 => None,
                1 => Some(("dmz", false)),
                _ => Some(("lan", has_card)),
            };
            let net = net.map(|(switch, has_uplink)| Net { switch, has_uplink });
            let plan = Plan {
                peers: if net.is_some() { count } else { 0 },
                vm: number as u64,
                vcpus: (1 + rng.below(3)).min(limits.vcpus).max(1),
                steps: (20 + rng.below(100)).min(limits.steps),
                seed: rng.next(),
                data_seed: rng.below(2),
            };
            vms.push(vm((plan, net), &mut rng));
            plans.push(plan);
        }
        vms.truncate(limits.vms.max(1) as usize);
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
            has_card,
            plans,
            vms,
            requests: (requests > 0).then_some(requests),
            naps: limits.faults > 0 && seed % 8 == 3,
            faults: if limits.faults == 0 {
                Faults::default()
            } else {
                faults
            },
        }
    }
}

impl Scene {
    /// What there is and what guests do, a line each.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:?}, {} nodes, {:?}, {:?}",
            self.config, self.nodes, self.command_line, self.faults
        )];
        for (number, (vm, plan)) in self.vms.iter().zip(&self.plans).enumerate() {
            let place = if number < self.in_bundle {
                "in the bundle"
            } else {
                "for who creates it"
            };
            let rest = Vm {
                kernel: Vec::new(),
                ..vm.clone()
            };
            let kernel = vm.kernel.len();
            lines.push(format!(
                "{place}, with a kernel of {kernel} bytes: {rest:?}"
            ));
            lines.extend(crate::program::describe(*plan));
        }
        lines
    }
}

fn vm((plan, net): (Plan, Option<Net>), rng: &mut Rng) -> Vm {
    // Apart, so that lives of known seeds stay what they were in all else.
    let mut more = Rng::new(plan.seed);
    let mut vm = Vm {
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
        number: plan.vm as u8,
        net,
        disk: match rng.below(4) {
            0 => Backing::Own,
            1 => Backing::Partition,
            _ => Backing::Memory,
        },
        disk_limit: disk_limit(&mut more),
        overlay_max: match more.below(4) {
            // What is written beyond that fails.
            0 => 4096 * (4 << more.below(4)),
            _ => 0,
        },
        disk_never_shares: more.below(6) == 0,
        weight: [64, 256, 256, 1024][more.below(4) as usize],
        swaps: rng.below(5) == 0,
    };
    if vm.disk == Backing::Own {
        // It has no overlay.
        vm.overlay_max = 0;
    }
    vm
}

/// A third of the disks are so slow that answers are held: a block takes 60 to 500 us.
fn disk_limit(rng: &mut Rng) -> u64 {
    match rng.below(3) {
        0 => (8 << 20) << rng.below(4),
        _ => 0,
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
