//! How much memory one, two, four and eight VMs take that do the same work (Disco, figure 7): gcc
//! compiles.

use super::{
    Found,
    crowd::{Crowd, Memory, Work, mib, names, vm},
    plot::Plot,
    plot_of,
};
use crate::step::{Outcome, Step};
use tests_boot::status::MachineStatus;

/// How many VMs there are.
const COUNTS: [usize; 4] = [1, 2, 4, 8];
/// Memory of the machine, and of each VM.
const MACHINE: &str = "1536M";
const MEMORY: &str = "128MiB";
/// Of what n VMs that do the same have and others may use, the machine holds one of n parts: the least that is saved
/// of the rest, in percent.
const SAVED_MIN: u64 = 90;
/// What the plot's parts are.
const PARTS: [&str; 5] = ["private", "kernel", "page cache", "overlays", "hypervisor"];
const HEAD: [&str; 9] = [
    "MiB, when the guests have most",
    "virtual",
    "machine",
    "saved",
    "private",
    "kernel, virtual / machine",
    "page cache, virtual / machine",
    "overlays",
    "hypervisor",
];

/// Bytes at one moment, in the order of [`PARTS`].
#[derive(Clone, Copy, Default)]
struct Footprint {
    /// What the guests have, each frame counted for each; of the hypervisor's the same as below.
    virtual_: [u64; PARTS.len()],
    /// What the machine has for it.
    machine: [u64; PARTS.len()],
}

impl Footprint {
    /// What the guests have.
    fn guests(&self) -> u64 {
        self.virtual_[..3].iter().sum()
    }

    fn saved(&self) -> u64 {
        let machine: u64 = self.machine[..3].iter().sum();
        self.guests().saturating_sub(machine)
    }

    /// What others may use, counted for each guest.
    fn in_common(&self) -> u64 {
        self.virtual_[1] + self.virtual_[2]
    }

    /// `before` is from when the guests had read nothing from their disks: what they shared then is
    /// kernel and initrd.
    fn new(now: &Memory, before: &Memory, hypervisor: u64) -> Self {
        let kernel = before.sum(|vm| vm.shared).min(now.sum(|vm| vm.shared));
        let kernel_once = before.machine.shared.min(now.machine.shared);
        let hypervisor = hypervisor + now.machine.records + now.sum(|vm| vm.tables);
        let (private, overlay) = (now.sum(|vm| vm.private), now.sum(|vm| vm.overlay));
        let cache = now.sum(|vm| vm.shared) - kernel;
        let cache_once = now.machine.shared - kernel_once;
        Self {
            virtual_: [private, kernel, cache, overlay, hypervisor],
            machine: [private, kernel_once, cache_once, overlay, hypervisor],
        }
    }

    fn row(&self, count: usize) -> Vec<String> {
        let both = |part: usize| {
            let [all, once] = [self.virtual_[part], self.machine[part]].map(mib);
            format!("{all} / {once}")
        };
        let [private, _, _, overlays, hypervisor] = self.machine.map(mib);
        let sums = [&self.virtual_, &self.machine].map(|parts| mib(parts.iter().sum()));
        let [virtual_, machine] = sums;
        let (vms, saved) = (format!("{count} VMs"), mib(self.saved()));
        let (kernel, cache) = (both(1), both(2));
        vec![
            vms, virtual_, machine, saved, private, kernel, cache, overlays, hypervisor,
        ]
    }

    fn bars(&self, count: usize) -> [(String, Vec<f64>); 2] {
        let bar = |what: &str, parts: [u64; PARTS.len()]| {
            let mib = parts.map(|bytes| bytes as f64 / f64::from(1 << 20));
            (format!("{count}, {what}"), mib.to_vec())
        };
        [bar("virtual", self.virtual_), bar("machine", self.machine)]
    }
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let mut found = Found {
        name: "footprint",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    let mut bars = Vec::new();
    for count in COUNTS {
        step.doing(&format!("{count} VMs compile"));
        let most = measure(count)?;
        let (saved, common) = (most.saved(), most.in_common());
        let least = common / count as u64 * (count as u64 - 1) / 100 * SAVED_MIN;
        if saved < least {
            found.wrong.push(format!(
                "{count} VMs save {} MiB of {} that they have, aim {}",
                mib(saved),
                mib(common),
                mib(least)
            ));
        }
        found.rows.push(most.row(count));
        bars.extend(most.bars(count));
    }
    let plot = Plot {
        title: "Memory of VMs that compile, in MiB: as the guests see it, and the machine's",
        parts: &PARTS,
        bars,
    };
    plot.write(&plot_of("footprint")?)?;
    found.notes.push(format!(
        "each VM has {MEMORY}, one vCPU, and Debian on a partition; hypervisor: image, frame table of a machine \
         with {MACHINE}, heap, tables and records"
    ));
    Ok(found)
}

/// The moment at which the guests have most.
fn measure(count: usize) -> Outcome<Footprint> {
    let vms: Vec<_> = (1..=count).map(|n| vm(n, MEMORY)).collect();
    let names = names(count);
    let mut crowd = Crowd::start(&format!("footprint-{count}"), MACHINE, &vms)?;
    for vm in &names {
        crowd.await_boot(vm)?;
    }
    let before = crowd.memory()?;
    for vm in &names {
        crowd.begin(vm, Work::Compile)?;
    }
    let mut most = Footprint::default();
    crowd.await_work(&names, Work::Compile, |crowd| {
        let status: MachineStatus = crowd.machine().status()?;
        let hypervisor = status.image + status.frame_table + status.heap;
        let now = Footprint::new(&crowd.memory()?, &before, hypervisor);
        if now.guests() > most.guests() {
            most = now;
        }
        Ok(())
    })?;
    crowd.shut_down()?;
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_sharing::crowd::{MachineMemory, VmMemory};
    use serde::de::{Deserialize as _, IntoDeserializer as _, value::Error};
    use std::collections::BTreeMap;

    fn memory(private: u64, shared: u64, once: u64) -> Memory {
        let of = |names: &[(&'static str, u64)]| {
            let all = [
                "resident", "overlay", "tables", "free", "reserve", "bases", "saved", "cached",
                "images", "records",
            ];
            let mut map: BTreeMap<&str, u64> = all.map(|name| (name, 0)).into();
            map.extend(names.iter().copied());
            map
        };
        let vm = of(&[("private", private), ("shared", shared), ("tables", 1)]);
        let vm = || VmMemory::deserialize(vm.clone().into_deserializer()).map_err(|e: Error| e);
        let machine = of(&[("shared", once), ("records", 3)]);
        let machine: Result<_, Error> = MachineMemory::deserialize(machine.into_deserializer());
        Memory {
            vms: vec![vm().unwrap(), vm().unwrap()],
            machine: machine.unwrap(),
        }
    }

    #[test]
    fn what_was_shared_before_the_work_is_the_kernel() {
        let footprint = Footprint::new(&memory(100, 50, 50), &memory(80, 20, 20), 7);
        assert_eq!(footprint.virtual_, [200, 40, 60, 0, 12]);
        assert_eq!(footprint.machine, [200, 20, 30, 0, 12]);
        assert_eq!((footprint.guests(), footprint.saved()), (300, 50));
    }
}
