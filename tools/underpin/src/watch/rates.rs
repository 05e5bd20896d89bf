//! What happened between two samples: differences of counters, per second.
//!
//! A VM's counters begin at zero when it starts, so a VM that is new or was started again counts from
//! zero. One that has gone is not told of. Percent are of one CPU: a VM of four vCPUs can run at 400.

use super::{Sample, VmSample};
use abi::control::EXIT_CLASS_COUNT;
use tools_abi::MEM_EVENT_COUNT;
use tools_abi::status::{VcpuStatus, VmStatus};

/// How CPU time was spent, in percent of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// vCPUs ran.
    pub run: f64,
    /// EL2 worked for them.
    pub hypervisor: f64,
    /// They could have run and did not.
    pub steal: f64,
    /// They had nothing to do.
    pub idle: f64,
}

/// Exits per second, by `tools_abi::EXIT_CLASSES`.
pub type Exits = [f64; EXIT_CLASS_COUNT];

/// A vCPU between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VcpuRates {
    /// Its time.
    pub shares: Shares,
    /// Its exits.
    pub exits: Exits,
}

/// A VM between two samples; all are per second but [`VmRates::shares`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmRates {
    /// The time of all its vCPUs.
    pub shares: Shares,
    /// The exits of all its vCPUs.
    pub exits: Exits,
    /// Bytes read from disks.
    pub read: f64,
    /// Bytes written to disks.
    pub written: f64,
    /// Bytes sent to networks.
    pub sent: f64,
    /// Bytes received from networks.
    pub received: f64,
    /// What happened to its memory, by `tools_abi::MEM_EVENTS`.
    pub events: [f64; MEM_EVENT_COUNT],
    /// Its vCPUs; none where either sample lacks them.
    pub vcpus: Vec<VcpuRates>,
}

impl VmRates {
    /// Exits of all classes.
    pub fn all_exits(&self) -> f64 {
        self.exits.iter().sum()
    }
}

/// A machine between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Seconds between the samples, by the machine's clock.
    pub seconds: f64,
    /// Each VM of the later sample, in its order.
    pub vms: Vec<VmRates>,
    /// CPUs that OS-0 had, and that were stolen from it, where there is one.
    pub os0: Option<[f64; 2]>,
}

impl Rates {
    /// What happened from one sample to a later one; `None` where no time has passed, or the
    /// machine is another.
    pub fn between(before: &Sample, after: &Sample) -> Option<Self> {
        let (from, to) = (before.machine.uptime_ns, after.machine.uptime_ns);
        let ns = to.checked_sub(from).filter(|ns| *ns > 0)?;
        let span = Span { ns: ns as f64 };
        let vms = after.vms.iter().map(|vm| span.vm(before.vm(&vm.name), vm));
        Some(Self {
            seconds: span.ns / 1e9,
            vms: vms.collect(),
            os0: after.os0_times().map(|after| {
                let before = before.os0_times();
                span.all(before.as_ref(), &after).map(|rate| rate / 1e9)
            }),
        })
    }

    /// How many CPUs were busy with VMs and what EL2 did for them.
    pub fn busy(&self) -> f64 {
        let busy = |vm: &VmRates| vm.shares.run + vm.shares.hypervisor;
        self.vms.iter().map(busy).sum::<f64>() / 100.0
    }
}

/// The time between two samples.
#[derive(Clone, Copy)]
struct Span {
    ns: f64,
}

impl Span {
    /// A counter's growth per second. One that is smaller than before has begun anew.
    fn rate(self, before: u64, after: u64) -> f64 {
        after.checked_sub(before).unwrap_or(after) as f64 * 1e9 / self.ns
    }

    fn all<const N: usize>(self, before: Option<&[u64; N]>, after: &[u64; N]) -> [f64; N] {
        let before = before.unwrap_or(&[0; N]);
        std::array::from_fn(|n| self.rate(before[n], after[n]))
    }

    /// Times in nanoseconds: run, hypervisor, steal, idle.
    fn shares(self, before: Option<[u64; 4]>, after: [u64; 4]) -> Shares {
        let [run, hypervisor, steal, idle] = self
            .all(before.as_ref(), &after)
            .map(|ns_per_second| ns_per_second / 1e7);
        Shares {
            run,
            hypervisor,
            steal,
            idle,
        }
    }

    fn vm(self, before: Option<&VmSample>, after: &VmSample) -> VmRates {
        let before = before.filter(|before| before.status.starts == after.status.starts);
        let status = before.map(|before| &before.status);
        let now = &after.status;
        let [read, written] = self.all(status.map(|vm| &vm.disk_bytes), &now.disk_bytes);
        let [sent, received] = self.all(status.map(|vm| &vm.net_bytes), &now.net_bytes);
        let events = after.memory.map(|memory| {
            let before = before.and_then(|before| before.memory.as_ref());
            self.all(before.map(|memory| &memory.events), &memory.events)
        });
        VmRates {
            shares: self.shares(status.map(vm_times), vm_times(now)),
            exits: self.all(status.map(|vm| &vm.exits), &now.exits),
            read,
            written,
            sent,
            received,
            events: events.unwrap_or_default(),
            vcpus: self.vcpus(before, after),
        }
    }

    fn vcpus(self, before: Option<&VmSample>, after: &VmSample) -> Vec<VcpuRates> {
        let before = before.and_then(|before| before.vcpus.as_deref());
        let after = after.vcpus.as_deref();
        let pairs = before
            .into_iter()
            .flatten()
            .zip(after.into_iter().flatten());
        let vcpu = |(before, after): (&VcpuStatus, &VcpuStatus)| VcpuRates {
            shares: self.shares(Some(vcpu_times(before)), vcpu_times(after)),
            exits: self.all(Some(&before.exits), &after.exits),
        };
        pairs.map(vcpu).collect()
    }
}

fn vm_times(vm: &VmStatus) -> [u64; 4] {
    [vm.run_ns, vm.hypervisor_ns, vm.steal_ns, vm.idle_ns]
}

fn vcpu_times(vcpu: &VcpuStatus) -> [u64; 4] {
    [vcpu.run_ns, vcpu.hypervisor_ns, vcpu.steal_ns, vcpu.idle_ns]
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these quotients are exact")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros as _;

    const SECOND: u64 = 1_000_000_000;

    fn vm(name: &str, starts: u32, run_ns: u64) -> VmSample {
        let mut status = VmStatus::new_zeroed();
        (status.starts, status.run_ns) = (starts, run_ns);
        status.exits[6] = run_ns / 1_000_000;
        status.disk_bytes = [run_ns / 1_000, 0];
        status.net_bytes = [run_ns / 2_000, run_ns / 4_000];
        VmSample {
            name: name.to_owned(),
            status,
            memory: None,
            vcpus: None,
        }
    }

    fn sample(uptime_ns: u64, vms: Vec<VmSample>) -> Sample {
        let mut machine = abi::control::MachineStatus::new_zeroed();
        machine.uptime_ns = uptime_ns;
        Sample {
            machine,
            memory: tools_abi::status::MachineMem::new_zeroed(),
            cpus: Vec::new(),
            nodes: Vec::new(),
            hosts: Vec::new(),
            vms,
        }
    }

    fn runs(before: Vec<VmSample>, after: Vec<VmSample>) -> Vec<f64> {
        let (before, after) = (sample(SECOND, before), sample(3 * SECOND, after));
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!(rates.seconds, 2.0);
        rates.vms.iter().map(|vm| vm.shares.run).collect()
    }

    #[test]
    fn counters_are_divided_by_the_time_between() {
        let before = sample(SECOND, vec![vm("a", 1, SECOND)]);
        let after = sample(3 * SECOND, vec![vm("a", 1, 2 * SECOND)]);
        let rates = Rates::between(&before, &after).unwrap();
        let vm = &rates.vms[0];
        assert_eq!((vm.shares.run, vm.exits[6]), (50.0, 500.0));
        assert_eq!((vm.read, vm.written), (500_000.0, 0.0));
        assert_eq!((vm.sent, vm.received), (250_000.0, 125_000.0));
        assert_eq!((vm.all_exits(), rates.busy()), (500.0, 0.5));
    }

    #[test]
    fn vms_that_start_again_count_from_zero() {
        // Started again, and already past where it was.
        let again = runs(vec![vm("a", 1, SECOND)], vec![vm("a", 2, 2 * SECOND)]);
        assert_eq!(again, [100.0]);
        // A counter that fell although no start was counted.
        let fell = runs(vec![vm("a", 1, 2 * SECOND)], vec![vm("a", 1, SECOND)]);
        assert_eq!(fell, [50.0]);
    }

    #[test]
    fn os0_has_cpus_where_there_is_one() {
        let with = |at, os0_run_ns, os0_steal_ns| {
            let mut cpu = abi::control::CpuStatus::new_zeroed();
            (cpu.os0_run_ns, cpu.os0_steal_ns) = (os0_run_ns, os0_steal_ns);
            let mut sample = sample(at, Vec::new());
            sample.cpus = vec![cpu; 2];
            sample
        };
        let os0 = |before, after| Rates::between(&before, &after).unwrap().os0;
        assert_eq!(os0(with(0, 0, 0), with(SECOND, 0, 0)), None);
        let shared = os0(with(SECOND, 0, 0), with(3 * SECOND, SECOND, SECOND / 2));
        assert_eq!(shared, Some([1.0, 0.5]));
    }

    #[test]
    fn vms_come_and_go() {
        let before = vec![vm("a", 1, SECOND), vm("b", 1, SECOND)];
        let after = vec![vm("b", 1, SECOND), vm("c", 1, SECOND)];
        assert_eq!(runs(before, after), [0.0, 50.0]);
    }

    #[test]
    fn there_is_nothing_to_tell_without_time_between() {
        let at = |ns| sample(ns, vec![vm("a", 1, 5)]);
        assert_eq!(Rates::between(&at(7), &at(7)), None);
        // The machine was started again.
        assert_eq!(Rates::between(&at(7), &at(6)), None);
    }

    #[test]
    fn vcpus_have_rates_where_both_samples_know_them() {
        let with = |run_ns, starts| {
            let mut vm = vm("a", starts, run_ns);
            let mut vcpu = VcpuStatus::new_zeroed();
            (vcpu.run_ns, vcpu.exits[0]) = (run_ns, run_ns / SECOND);
            vm.vcpus = Some(vec![vcpu; 2]);
            vm
        };
        let vcpus = |before, after| {
            let rates = Rates::between(&sample(0, vec![before]), &sample(SECOND, vec![after]));
            rates.unwrap().vms.remove(0).vcpus
        };
        let both = vcpus(with(0, 1), with(SECOND, 1));
        assert_eq!(
            (both.len(), both[1].shares.run, both[1].exits[0]),
            (2, 100.0, 1.0)
        );
        assert!(vcpus(vm("a", 1, 0), with(SECOND, 1)).is_empty());
        assert!(vcpus(with(0, 1), with(SECOND, 2)).is_empty());
    }

    proptest! {
        #[test]
        fn any_counters_give_rates_that_are_numbers(
            (from, to) in any::<(u64, u64)>(),
            (before, after) in any::<(u64, u64)>(),
            (first, second) in (0u32..2, 0u32..2),
        ) {
            let rates = Rates::between(
                &sample(from, vec![vm("a", first, before)]),
                &sample(to, vec![vm("a", second, after)]),
            );
            prop_assert_eq!(rates.is_some(), to > from);
            let shares = rates.map(|rates| rates.vms[0].shares.run);
            prop_assert!(shares.is_none_or(|run| run.is_finite() && run >= 0.0));
        }
    }
}
