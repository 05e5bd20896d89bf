//! Every order of a few turns of vCPUs on one CPU, whose TLB keeps whatever nobody drops.

use model_vmid::{Drops, LastRun};
use std::collections::HashMap;

const TURNS: u32 = 6;

/// A turn: which VM, which of its roots, and which vCPU.
type Turn = (u16, u64, u16);

/// Two VMs of two vCPUs; the second gets another root for the CPU's node at some time, and keeps it.
const WHO: [Turn; 6] = [
    (1, 0, 0),
    (1, 0, 1),
    (2, 0, 0),
    (2, 0, 1),
    (2, 1, 0),
    (2, 1, 1),
];

/// A TLB whose entries are tagged as the architecture has it: with the VMID, and not with the vCPU or the root.
#[derive(Default)]
struct Tlb {
    /// By VMID: the vCPU whose tables an entry of stage 1 came from.
    stage1: HashMap<u16, u16>,
    /// By VMID: the root that an entry of stage 2 came from.
    stage2: HashMap<u16, u64>,
}

impl Tlb {
    fn drop_of(&mut self, vmid: u16, drops: Drops) {
        if drops != Drops::Nothing {
            self.stage1.remove(&vmid);
        }
        if drops == Drops::Both {
            self.stage2.remove(&vmid);
        }
    }

    /// A guest touches memory: what it gets is its own.
    fn touch(&mut self, (vmid, root, vcpu): Turn) -> bool {
        *self.stage1.entry(vmid).or_insert(vcpu) == vcpu
            && *self.stage2.entry(vmid).or_insert(root) == root
    }
}

fn run_of((vmid, root, vcpu): Turn) -> LastRun {
    LastRun {
        vttbr: u64::from(vmid) << 48 | (root + 1) << 12,
        vcpu,
    }
}

#[test]
fn no_vcpu_runs_on_what_another_left() {
    let all = (WHO.len()).pow(TURNS);
    for order in 0..all {
        let turn = |n| WHO[order / WHO.len().pow(n) % WHO.len()];
        let roots = (0..TURNS)
            .map(turn)
            .filter(|turn| turn.0 == 2)
            .map(|turn| turn.1);
        if !roots.is_sorted() {
            continue;
        }
        let (mut tlb, mut last) = (Tlb::default(), LastRun::default());
        for next in (0..TURNS).map(turn) {
            let drops = last.drops_before(run_of(next), next.1 > 0);
            tlb.drop_of(next.0, drops);
            assert!(
                tlb.touch(next),
                "{next:?} of {:?}",
                (0..TURNS).map(turn).collect::<Vec<_>>()
            );
            last = run_of(next);
        }
    }
}

#[test]
fn a_vcpu_that_comes_again_keeps_what_it_left() {
    for turn in WHO {
        let run = run_of(turn);
        assert_eq!(run.drops_before(run, turn.1 > 0), Drops::Nothing);
    }
}
