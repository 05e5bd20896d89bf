//! The hosts that a VM spans.

use super::{Backing, Memory, VmFile, decode::Decoder, section::Section};
use crate::{
    failure::{Failure, Result, exit},
    units,
};
use abi::{
    bundle::{ClusterRecord, control_rights},
    coherence::{SWITCHES, WITHOUT},
    span::HOSTS_MAX,
};
use model_span::MEMORY_STEP;

/// The hosts of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// The machine alone.
    #[default]
    One,
    /// The first so many of the cluster.
    First(u32),
    /// Those of these names.
    Named(Vec<String>),
}

impl Decoder<'_> {
    /// `hosts = 2` or `hosts = ["left", "right"]`.
    pub fn hosts(&self, root: &Section<'_, '_>, cpus: u32, memory: Option<&Memory>) -> Hosts {
        let Some(span) = root.has("hosts") else {
            return Hosts::One;
        };
        let hosts = if root.is_array("hosts") {
            let names = root.texts("hosts", "[\"left\", \"right\"]");
            Hosts::Named(names.unwrap_or_default())
        } else {
            Hosts::First(root.number("hosts", 2..HOSTS_MAX as u32 + 1, 2))
        };
        let problem = |message: String, help: &str| self.problems.add(&span, message, help);
        let count = match &hosts {
            Hosts::One => 1,
            Hosts::First(count) => *count,
            Hosts::Named(names) => names.len() as u32,
        };
        if let Hosts::Named(names) = &hosts
            && let Some(twice) = (1..names.len()).find(|n| names[..*n].contains(&names[*n]))
        {
            problem(
                format!("'hosts' names {} twice", names[twice]),
                "name each host once",
            );
        }
        if !(2..=HOSTS_MAX as u32).contains(&count) {
            let message = format!("'hosts' names {count} hosts, and a VM spans 2 to {HOSTS_MAX}");
            problem(message, "name as many, or leave 'hosts' out");
        } else if cpus < count {
            let message = format!("{cpus} vCPUs are fewer than the {count} hosts");
            problem(message, "give the VM at least one vCPU for each host: cpus");
        }
        let step = u64::from(count.max(1)) * MEMORY_STEP;
        if let Some(memory) = memory.filter(|it| !it.max.is_multiple_of(step)) {
            let message = format!(
                "{} of memory do not make {count} shares of whole 2 MiB",
                units::size(memory.max)
            );
            problem(message, &format!("use a multiple of {}", units::size(step)));
        }
        hosts
    }
}

impl Decoder<'_> {
    /// `coherence = "best"`, `"all"`, `"ivy"`, or what is done beyond IVY's protocol, as in `["versions", "burst"]`.
    pub fn without(&self, root: &Section<'_, '_>) -> u16 {
        const ALL: u16 = u16::MAX >> (16 - SWITCHES.len());
        let Some(span) = root.has("coherence") else {
            return WITHOUT;
        };
        if root.has("hosts").is_none() {
            let message =
                "'coherence' is about pages of several hosts, and the VM is one machine's";
            let help = "name its hosts, as in hosts = 2, or leave 'coherence' out";
            self.problems.add(&span, message.to_owned(), help);
        }
        if !root.is_array("coherence") {
            return match root.choice("coherence", &["best", "all", "ivy"]) {
                "all" => 0,
                "ivy" => ALL,
                _ => WITHOUT,
            };
        }
        let mut without = ALL;
        for name in root
            .texts("coherence", "[\"versions\", \"burst\"]")
            .unwrap_or_default()
        {
            if let Some(place) = SWITCHES.iter().position(|it| *it == name) {
                without &= !(1 << place);
            } else {
                let message = format!("'coherence' has no '{name}'");
                let help = format!("use some of {}", SWITCHES.join(", "));
                self.problems.add(&span, message, &help);
            }
        }
        without
    }

    /// Tells what a VM that spans hosts must not have.
    pub fn spans(&self, root: &Section<'_, '_>, vm: &VmFile) {
        let Some(span) = root.has("hosts") else {
            return;
        };
        for (what, help) in obstacles(vm) {
            let message = format!("a VM that spans hosts cannot have {what} yet");
            self.problems.add(&span, message, help);
        }
    }
}

/// A combination that is not there, and what to do.
type Obstacle = (&'static str, &'static str);

/// Returns what a VM that spans hosts must not have beside it.
fn obstacles(vm: &VmFile) -> impl Iterator<Item = Obstacle> {
    let is_shared = vm.sharing.claim != 0 || vm.sharing.hide;
    let has_disks = vm.disks.iter().any(|disk| match &disk.backing {
        Backing::ReadOnly(_) => false,
        Backing::CopyOnWrite(base, overlay) => {
            !matches!(base, super::Base::Image(_)) || overlay.on.is_some()
        }
        Backing::Partition(_) | Backing::File(_) => true,
    });
    [
        (
            vm.memory.base != vm.memory.max,
            "memory that grows and shrinks",
            "write memory = \"...\", the same for base and max",
        ),
        (
            vm.memory.swap.is_some(),
            "a swap partition",
            "leave 'swap' out",
        ),
        (
            is_shared,
            "memory shared with other VMs",
            "leave 'claim' and 'hide' out",
        ),
        (
            !vm.regions.is_empty(),
            "shared regions",
            "leave 'regions' out",
        ),
        (vm.nodes != 0, "a choice of nodes", "leave 'nodes' out"),
        (
            vm.control != control_rights::NONE,
            "a control port",
            "leave 'control' out",
        ),
        (
            has_disks,
            "disks on partitions or files",
            "use images of the bundle",
        ),
    ]
    .into_iter()
    .filter_map(|(is_there, what, help)| is_there.then_some((what, help)))
}

impl VmFile {
    /// Returns the hosts of the VM as a description has them, in a bundle for that machine of a cluster. `None` if the VM
    /// spans other hosts only.
    ///
    /// # Errors
    /// There is no cluster, or none with these hosts.
    pub fn hosts_in(&self, cluster: Option<&ClusterRecord>) -> Result<Option<u16>> {
        if self.hosts == Hosts::One {
            return Ok(Some(0));
        }
        let failure = |message: String, help: String| {
            let place = self.path.display();
            Err(Failure::new(exit::FILE, format!("{place}: {message}")).help(help))
        };
        let Some(cluster) = cluster else {
            let help = "build a bundle for each host: underpin bundle --cluster FILE --as NAME; or \
                        start simulated ones: underpin sim --hosts N --cluster FILE";
            let message = format!("{} spans hosts, and the bundle has no cluster", self.name);
            return failure(message, help.to_owned());
        };
        let count = usize::from(cluster.hosts);
        let names = cluster.names.iter().take(count);
        let names: Vec<&str> = names.filter_map(|name| name.as_str()).collect();
        let mut hosts = 0_u16;
        match &self.hosts {
            Hosts::One => {}
            Hosts::First(wanted) if *wanted as usize > count => {
                let message = format!("'hosts' is {wanted}, and the cluster has {count}");
                return failure(message, "use fewer, or a larger cluster".to_owned());
            }
            Hosts::First(wanted) => hosts = u16::MAX >> (16 - *wanted),
            Hosts::Named(wanted) => {
                for name in wanted {
                    let Some(place) = names.iter().position(|it| it == name) else {
                        let message = format!("no host of the cluster has the name '{name}'");
                        return failure(message, format!("use some of {}", names.join(", ")));
                    };
                    hosts |= 1 << place;
                }
            }
        }
        Ok((hosts >> cluster.host & 1 != 0).then_some(hosts))
    }
}
