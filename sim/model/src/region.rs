//! Regions of interest: what happened between two marks in the guest's code.

use crate::{Counts, Machine};
use std::fmt::Write as _;

/// How many regions there may be; others are left out.
pub const REGIONS: usize = 64;

/// The first line of the results. Times are nanoseconds; `clock_ns` is the parallel clock.
pub const CSV_HEADER: &str = "region,visit,cpu,node,instructions,accesses,fetch_local,fetch_remote,data_local,data_remote,upgrades,stall_ns,local_ns,clock_ns,user_ns,kernel_ns,hypervisor_ns\n";

#[derive(Clone, Debug)]
struct Snapshot {
    counts: Vec<Counts>,
    local_ns: Vec<u64>,
    level_ns: Vec<[u64; 3]>,
    clock_ns: u64,
}

impl Snapshot {
    fn take(machine: &Machine<'_>) -> Self {
        let cpus = 0..machine.topology().cpus();
        Self {
            counts: machine.counts().to_vec(),
            local_ns: cpus.map(|cpu| machine.clock().local_ns(cpu)).collect(),
            level_ns: (0..machine.topology().cpus())
                .map(|cpu| machine.level_ns(cpu))
                .collect(),
            clock_ns: machine.clock().now_ns(),
        }
    }
}

/// The regions that were entered, and how often each was left.
#[derive(Debug)]
pub struct Regions {
    open: Vec<Option<Snapshot>>,
    visits: Vec<u64>,
}

impl Default for Regions {
    fn default() -> Self {
        Self {
            open: vec![None; REGIONS],
            visits: vec![0; REGIONS],
        }
    }
}

impl Regions {
    /// A region begins, or begins anew.
    pub fn begin(&mut self, region: u64, machine: &Machine<'_>) {
        if let Some(open) = self.slot(region) {
            self.open[open] = Some(Snapshot::take(machine));
        }
    }

    /// A region ends: gives its lines of the results, one for each CPU. There are none where it did
    /// not begin.
    pub fn end(&mut self, region: u64, machine: &Machine<'_>) -> String {
        let mut lines = String::new();
        let Some(slot) = self.slot(region) else {
            return lines;
        };
        let Some(before) = self.open[slot].take() else {
            return lines;
        };
        let after = Snapshot::take(machine);
        let visit = self.visits[slot];
        self.visits[slot] += 1;
        let clock = after.clock_ns - before.clock_ns;
        for cpu in 0..after.counts.len() {
            let node = machine.topology().node_of_cpu(cpu);
            let (a, b) = (&after.counts[cpu], &before.counts[cpu]);
            let local = after.local_ns[cpu] - before.local_ns[cpu];
            let [user, kernel, hypervisor] =
                [0, 1, 2].map(|n| after.level_ns[cpu][n] - before.level_ns[cpu][n]);
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "{region},{visit},{cpu},{node},{},{},{},{},{},{},{},{},{local},{clock},{user},{kernel},{hypervisor}",
                a.instructions - b.instructions,
                a.accesses - b.accesses,
                a.fetch_local - b.fetch_local,
                a.fetch_remote - b.fetch_remote,
                a.data_local - b.data_local,
                a.data_remote - b.data_remote,
                a.upgrades - b.upgrades,
                a.stall_ns - b.stall_ns,
            );
        }
        lines
    }

    fn slot(&self, region: u64) -> Option<usize> {
        usize::try_from(region)
            .ok()
            .filter(|slot| *slot < self.open.len())
    }
}
