//! Every order of few steps of CPUs that run a VM and change its tables, beside TLBs that walk whenever they like.
#![allow(clippy::panic)]

use model_vmid::Reach;
use std::collections::HashSet;

const CPUS: usize = 3;
const VMID: u16 = 1;
const STAYS: u16 = 2;

/// How far a CPU is with running the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Run {
    Elsewhere,
    /// It has said so, and is yet to drop all entries where it was told to.
    Begins(bool),
    Runs,
}

/// How far a CPU is with a change of the page's entry in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    None,
    Written,
    /// It knows whether to drop entries on this CPU alone.
    Looked(bool),
}

/// The page's entry in the tables is `version`; all that is older than `paid` must be out of use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    version: u8,
    paid: u8,
    tlbs: [Option<u8>; CPUS],
    runs: [Run; CPUS],
    /// One CPU at a time changes tables: that is what the VM's memory lock is for.
    change: (usize, Change),
    /// The CPUs that said they run it, in order, and whether entries were dropped since: what the holder comes from.
    said: (Vec<usize>, bool),
    /// The CPU that ran a VM with one vCPU last while it was several CPUs', and how often in a row.
    streak: (usize, u16),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(usize),
    Drop(usize),
    Leave(usize),
    Walk(usize),
    Change(usize),
}

impl World {
    fn new() -> Self {
        Self {
            version: 0,
            paid: 0,
            tlbs: [None; CPUS],
            runs: [Run::Elsewhere; CPUS],
            change: (0, Change::None),
            said: (Vec::new(), false),
            streak: (0, 0),
        }
    }

    /// The state of the code under test.
    fn reach(&self, alone: bool) -> Reach<2, STAYS> {
        let reach = Reach::empty();
        for &cpu in &self.said.0 {
            let _ = reach.run_on(VMID, cpu as u16, alone);
        }
        if self.said.1 {
            reach.dropped(VMID);
        }
        for _ in 0..self.streak.1 {
            assert!(!reach.run_on(VMID, self.streak.0 as u16, alone));
        }
        reach
    }

    /// A CPU says that it is about to run the VM.
    fn begun(&self, cpu: usize, vcpus: usize) -> Option<Self> {
        let (mut next, alone) = (self.clone(), vcpus == 1);
        let loaded = self
            .runs
            .iter()
            .filter(|run| **run != Run::Elsewhere)
            .count();
        if self.runs[cpu] != Run::Elsewhere || loaded == vcpus {
            return None;
        }
        let before = self.reach(alone);
        let drops = before.run_on(VMID, cpu as u16, alone);
        next.runs[cpu] = Run::Begins(drops);
        if drops {
            next.streak = (0, 0);
            next.said.0 = shortest(&before);
            next.said.1 = false;
        } else if alone && (0..CPUS).all(|cpu| !before.is_only(VMID, cpu as u16)) {
            let times = if self.streak.0 == cpu {
                self.streak.1
            } else {
                0
            };
            next.streak = (cpu, times + 1);
        }
        Some(next)
    }

    /// What the step leads to; `None` where it cannot be done.
    fn after(&self, step: Step, vcpus: usize, versions: u8) -> Option<Self> {
        let mut next = self.clone();
        let alone = vcpus == 1;
        match step {
            Step::Begin(cpu) => return self.begun(cpu, vcpus),
            Step::Drop(cpu) => {
                let Run::Begins(drops) = self.runs[cpu] else {
                    return None;
                };
                if drops {
                    next.tlbs = [None; CPUS];
                    next.said.1 = true;
                }
                next.runs[cpu] = Run::Runs;
            }
            Step::Leave(cpu) => {
                if self.runs[cpu] != Run::Runs {
                    return None;
                }
                next.runs[cpu] = Run::Elsewhere;
            }
            Step::Walk(cpu) => next.tlbs[cpu] = Some(self.version),
            Step::Change(cpu) => match self.change {
                (_, Change::None) => {
                    if self.version == versions {
                        return None;
                    }
                    next.version += 1;
                    next.change = (cpu, Change::Written);
                }
                (by, Change::Written) if by == cpu => {
                    let only = self.reach(alone).is_only(VMID, cpu as u16);
                    next.change = (cpu, Change::Looked(only));
                }
                (by, Change::Looked(only)) if by == cpu => {
                    for (other, entry) in next.tlbs.iter_mut().enumerate() {
                        if !only || other == cpu {
                            *entry = None;
                        }
                    }
                    next.paid = self.version;
                    next.change = (0, Change::None);
                }
                _ => return None,
            },
        }
        Some(next)
    }

    fn is_right(&self) -> bool {
        let stale = |(run, entry): (&Run, &Option<u8>)| {
            *run == Run::Runs && entry.is_some_and(|version| version < self.paid)
        };
        !self.runs.iter().zip(&self.tlbs).any(stale)
    }
}

/// The fewest CPUs that lead to the same holder, so that there are few states.
fn shortest(reach: &Reach<2, STAYS>) -> Vec<usize> {
    let only: Vec<_> = (0..CPUS)
        .filter(|cpu| reach.is_only(VMID, *cpu as u16))
        .collect();
    match only[..] {
        [cpu] => vec![cpu],
        [] => vec![0, 1],
        _ => panic!("no holder after somebody ran it"),
    }
}

fn all_orders(vcpus: usize, versions: u8) -> usize {
    let mut known = HashSet::from([World::new()]);
    let mut todo = vec![World::new()];
    while let Some(world) = todo.pop() {
        let each = |cpu| {
            [
                Step::Begin(cpu),
                Step::Drop(cpu),
                Step::Leave(cpu),
                Step::Walk(cpu),
                Step::Change(cpu),
            ]
        };
        for step in (0..CPUS).flat_map(each) {
            if let Some(next) = world.after(step, vcpus, versions) {
                assert!(next.is_right(), "{step:?} leads from {world:?} to {next:?}");
                if known.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
    }
    known.len()
}

#[test]
fn no_cpu_runs_a_vm_with_an_entry_that_was_dropped() {
    for vcpus in 1..=CPUS {
        assert!(all_orders(vcpus, 3) > 1000);
    }
}

#[test]
fn who_runs_a_vm_alone_disturbs_nobody_else() {
    let reach = Reach::<2, STAYS>::empty();
    assert!(reach.is_only(VMID, 7), "nobody has run it");
    assert!(reach.run_on(VMID, 4, true) && !reach.run_on(VMID, 4, true));
    assert!(reach.is_only(VMID, 4) && !reach.is_only(VMID, 7));
    assert!(reach.run_on(VMID, 7, true), "it has moved");
    reach.dropped(VMID);
    for cpu in [4, 7, 4, 7] {
        assert!(!reach.run_on(VMID, cpu, true), "it goes round");
        assert!(!reach.is_only(VMID, 7) && !reach.is_only(VMID, 4));
    }
    assert!(reach.run_on(VMID, 7, true), "it has stayed");
    assert!(reach.is_only(VMID, 7) && !reach.is_only(VMID, 4));
    reach.forget(VMID);
    assert!(reach.is_only(VMID, 4));
}

#[test]
fn a_vm_that_ran_on_two_cpus_is_everywhere() {
    let reach = Reach::<2, STAYS>::empty();
    assert!(reach.run_on(VMID, 0, false) && reach.is_only(VMID, 0));
    assert!(reach.run_on(VMID, 1, false), "it joins");
    assert!(
        reach.run_on(VMID, 2, false),
        "nobody has dropped anything yet"
    );
    reach.dropped(VMID);
    assert!(!reach.run_on(VMID, 2, false) && !reach.run_on(VMID, 0, false));
    for cpu in 0..3 {
        assert!(!reach.is_only(VMID, cpu));
    }
}
