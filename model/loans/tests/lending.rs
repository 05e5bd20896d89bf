//! Every order in which three CPUs lend, make, share, leave and take back. What EL2 does under its lock is one step.
#![allow(clippy::unwrap_used)]

use model_addr::{Pa, PaRange};
use model_loans::{BLOCK, Borrower, Lending, Made, Returned};
use std::collections::HashSet;

const CPUS: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Cpu {
    attached: bool,
    shares: bool,
    /// It has begun to make something, or to undo it, and will say what became of it.
    changes: Option<Made>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine {
    lending: Lending,
    cpus: [Cpu; CPUS],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Attach,
    Detach,
    Lend,
    Repay,
    Stage,
    Unstage,
    Open,
    Close,
    Done(Made),
    Share,
    Unshare,
}

const STEPS: [Step; 12] = [
    Step::Attach,
    Step::Detach,
    Step::Lend,
    Step::Repay,
    Step::Stage,
    Step::Unstage,
    Step::Open,
    Step::Close,
    Step::Done(Made::Nothing),
    Step::Done(Made::Vms),
    Step::Share,
    Step::Unshare,
];

fn run(borrower: Borrower) -> PaRange {
    let first = if borrower == Borrower::Vms { 4 } else { 8 };
    PaRange {
        start: Pa(first * BLOCK),
        size: BLOCK,
    }
}

impl Machine {
    fn is_attached(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.attached)
    }

    fn lend(&mut self, borrower: Borrower) -> bool {
        let memory = PaRange {
            start: Pa(0),
            size: 16 * BLOCK,
        };
        let attached = self.is_attached();
        let loans = self.lending.to_lend(borrower, attached);
        loans
            .and_then(|loans| {
                loans.lend(
                    borrower,
                    run(borrower),
                    [memory].into_iter(),
                    [].into_iter(),
                )
            })
            .is_ok()
    }

    fn repay(&mut self, borrower: Borrower) -> bool {
        let loans = self.lending.to_return(borrower);
        let next = loans.and_then(|loans| loans.next_returned(borrower, run(borrower).start));
        matches!(next, Ok(Returned::Block(_) | Returned::All))
    }

    /// What EL2 does for a CPU that asks; `false` where it refuses.
    fn take(&mut self, n: usize, step: Step) -> bool {
        let attached = self.is_attached();
        let cpu = self.cpus[n];
        let own = &mut self.cpus[n];
        match step {
            // A CPU is in its call until what it changes is done.
            Step::Done(made) => match own.changes.take() {
                // What is undone may stay as it was; what is made always is.
                Some(begun) if begun == Made::Nothing || made == Made::Vms => {
                    self.lending.settle(made);
                }
                _ => return false,
            },
            _ if cpu.changes.is_some() => return false,
            Step::Attach => own.attached = true,
            Step::Detach if self.lending.are_in_use() => return false,
            Step::Detach => own.attached = false,
            Step::Lend => return self.lend(Borrower::Vms),
            Step::Repay => return self.repay(Borrower::Vms),
            Step::Stage => return self.lend(Borrower::Successor),
            Step::Unstage => return self.repay(Borrower::Successor),
            Step::Open if self.lending.loans().whole(Borrower::Vms).next().is_none() => {
                return false;
            }
            Step::Open if self.lending.open(attached).is_err() => return false,
            Step::Open => own.changes = Some(Made::Vms),
            Step::Close if self.lending.close().is_err() => return false,
            Step::Close => own.changes = Some(Made::Nothing),
            Step::Share if cpu.shares || self.lending.share(attached).is_err() => return false,
            Step::Share => own.shares = true,
            Step::Unshare if !cpu.shares => return false,
            Step::Unshare => {
                own.shares = false;
                self.lending.unshare();
            }
        }
        true
    }

    /// What must hold whatever came before.
    fn check(&self) {
        let shares = self.cpus.iter().any(|cpu| cpu.shares);
        let mut changing = self.cpus.iter().filter_map(|cpu| cpu.changes);
        let (change, second) = (changing.next(), changing.next());
        assert_eq!(shares, self.lending.is_shared());
        assert_eq!(second, None, "two CPUs change what is made: {self:?}");
        assert!(
            !shares || change.is_none(),
            "VMs run in what is being changed: {self:?}"
        );
        let is_hidden = shares || change == Some(Made::Vms);
        assert!(
            !is_hidden || self.is_attached(),
            "OS-0 reaches VMs' memory: {self:?}"
        );
        let is_lent = self.lending.loans().whole(Borrower::Vms).next().is_some();
        assert!(
            !is_hidden || is_lent,
            "VMs are in what has gone back: {self:?}"
        );
    }
}

/// All that can be reached, each once.
fn explore() -> HashSet<Machine> {
    let mut seen = HashSet::new();
    let mut stack = vec![Machine {
        lending: Lending::new(),
        cpus: [Cpu::default(); CPUS],
    }];
    while let Some(machine) = stack.pop() {
        machine.check();
        if !seen.insert(machine.clone()) {
            continue;
        }
        for (n, step) in (0..CPUS).flat_map(|n| STEPS.map(|step| (n, step))) {
            let mut next = machine.clone();
            if next.take(n, step) {
                let leaves = matches!(step, Step::Detach);
                let was_in_use = machine.lending.are_in_use();
                assert!(
                    !leaves || !was_in_use,
                    "it left what is in use: {machine:?}"
                );
                let lends = matches!(step, Step::Lend | Step::Repay | Step::Stage | Step::Unstage);
                let changes = machine.cpus.iter().any(|cpu| cpu.changes.is_some());
                assert!(
                    !lends || !changes,
                    "memory went while VMs are made: {machine:?}"
                );
                stack.push(next);
            }
        }
    }
    seen
}

#[test]
fn no_order_shows_vms_to_os0() {
    let seen = explore();
    let reaches = |what: &dyn Fn(&Machine) -> bool| seen.iter().any(what);
    assert!(reaches(&|machine| machine
        .cpus
        .iter()
        .all(|cpu| cpu.shares)));
    assert!(reaches(
        &|machine| machine.lending.are_parked() && machine.cpus.iter().all(|cpu| !cpu.attached)
    ));
    assert!(reaches(&|machine| machine.lending.are_parked()
        && machine.cpus[0].attached
        && !machine.cpus[1].attached));
    assert!(seen.len() > 300, "{} states", seen.len());
}

/// A CPU that was refused does not run VMs: it is in nobody's way when they end.
#[test]
fn a_cpu_that_was_refused_is_not_counted() {
    let mut lending = Lending::new();
    lending.open(true).unwrap();
    lending.settle(Made::Vms);
    assert_eq!(lending.share(false), Err(abi::os0::Refusal::NotAttached));
    assert!(!lending.is_shared() && lending.are_parked());
    assert_eq!(lending.close(), Ok(()));
}
