//! Figures of known words.

use super::*;
use zerocopy::FromZeros as _;

#[test]
fn exits_take_no_more_than_the_hypervisor_worked() {
    let mut used = [0; abi::control::WORK];
    used[work::HYPERVISOR] = 1000;
    (used[work::EXITS], used[work::EXITS + 1]) = (10, 30);
    (used[work::TIMED], used[work::TIMED_NS]) = (2, 100);
    assert_eq!(exit_ns(&used)[..2], [500, 0]);
    (used[work::TIMED + 1], used[work::TIMED_NS + 1]) = (1, 50);
    assert_eq!(exit_ns(&used)[..2], [333, 666]);
}

#[test]
fn figures_come_from_their_places() {
    let mut raw = RawVm::new_zeroed();
    raw.terms = [1000, 1500, 0];
    raw.claim = abi::bundle::claim::GROW.into();
    raw.holding = [800, 200, 200, 200 * UNIT / 2, 5, 7, 1000];
    (raw.events[1], raw.counts[count::SHARING]) = (30, 10);
    raw.counts[count::SHARING + 1] = 6;
    (raw.waits[3], raw.counts[count::ODDITIES + 2]) = (4, 3);
    raw.counts[count::NET_LATENCY + LATENCY_BUCKETS - 1] = 9;
    let mut machine = MachineStatus::new_zeroed();
    let mem = MemStatus::of(&raw, &machine);
    assert_eq!((mem.limit, mem.charge), (1100 * FRAME, 912 * FRAME));
    assert_eq!((mem.events[0], mem.events[1], mem.events[19]), (20, 10, 4));
    assert_eq!((mem.events[8], mem.events[9]), (6, 0));
    let vm = VmStatus::from(&raw);
    assert_eq!((vm.touched, vm.overhead), (1000 * FRAME, 7 * FRAME));
    assert_eq!(
        (vm.oddities[3], vm.net_latency[LATENCY_BUCKETS - 1]),
        (3, 9)
    );
    (machine.capacity, machine.promised) = (50_000, 2000);
    (machine.vms_left, machine.vcpus_left) = (99, 99);
    raw.vcpus = 1;
    let fits = FitStatus::of(&Needs::from(&raw), &machine);
    let promised = terms(&raw).promised();
    assert_eq!((fits.count, fits.binds), (48_000 / promised, fit::MEMORY));
    raw.is_alone = 1;
    let fits = FitStatus::of(&Needs::from(&raw), &machine);
    assert_eq!((fits.count, fits.binds), (1, fit::DISK));
}

#[test]
fn any_numbers_make_figures() {
    let raw = RawVm::read_from_bytes(&[0xff; size_of::<RawVm>()]).unwrap();
    let machine = MachineStatus::read_from_bytes(&[0xff; size_of::<MachineStatus>()]).unwrap();
    let pages = PageCounts::read_from_bytes(&[0xff; size_of::<PageCounts>()]).unwrap();
    let node = NodeStatus::read_from_bytes(&[0xff; size_of::<NodeStatus>()]).unwrap();
    let _ = (VmStatus::from(&raw), MemStatus::of(&raw, &machine));
    let _ = (
        NumaStatus::of(&raw, &pages, &machine),
        MachineMem::of(&machine, &[node; 3]),
    );
    let _ = FitStatus::of(&Needs::from(&raw), &machine);
}
