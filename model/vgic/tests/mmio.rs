//! The frames as a guest's driver probes and programs them.

use abi::state::{Interrupts, Private, Spis};
use machine_contract::ListRegisters;
use machine_fake::{FakeListRegisters, ListState};
use model_vgic::{Distributor, Groups, ListFile, Redistributor, VcpuSet};
use proptest::prelude::*;
use zerocopy::FromBytes;

const GICD_CTLR: u32 = 0x0;
const SGI: u32 = 0x1_0000;
const ALL: VcpuSet = VcpuSet(u64::MAX);

fn read(dist: &Distributor, offset: u32, size: u32) -> u64 {
    dist.read(offset, size, ALL).unwrap_or(u64::MAX)
}

/// A distributor and a redistributor with everything let through in group 1, priority 0xa0.
fn booted(vcpus: usize) -> (Distributor, Redistributor) {
    let mut dist = Distributor::new(64, vcpus);
    let mut redist = Redistributor::new(0, vcpus);
    let effects = dist.write(GICD_CTLR, 4, 0x32);
    redist.set_groups(effects.groups.unwrap_or_default());
    for bank in 1..3 {
        let _ = dist.write(0x080 + 4 * bank, 4, 0xffff_ffff);
        let _ = dist.write(0x100 + 4 * bank, 4, 0xffff_ffff);
    }
    redist.write(SGI + 0x080, 4, 0xffff_ffff);
    redist.write(SGI + 0x100, 4, 0xffff_ffff);
    for intid in 0..32 {
        redist.write(SGI + 0x400 + intid, 1, 0xa0);
    }
    (dist, redist)
}

#[test]
fn the_distributor_identifies_itself() {
    let dist = Distributor::new(200, 4);
    assert_eq!(
        read(&dist, 0x4, 4),
        7 | 9 << 19 | 1 << 25,
        "224 SPIs, 10 bits, no 1 of N"
    );
    assert_eq!(read(&dist, 0xffe8, 4) >> 4 & 0xf, 3, "GICv3");
    assert_eq!(read(&dist, GICD_CTLR, 4), 0x50, "DS and ARE");
    for (offset, size) in [
        (0x4, 8),
        (0x5, 1),
        (0x10, 4),
        (0xf00, 4),
        (0x100, 4),
        (0x11c + 4, 4),
        (0xd04, 4),
    ] {
        assert_eq!(read(&dist, offset, size), 0, "{offset:#x}");
    }
}

#[test]
fn groups_are_told_to_redistributors() {
    let mut dist = Distributor::new(32, 1);
    assert_eq!(dist.write(GICD_CTLR, 4, 0x12).groups, Some(Groups::GROUP1));
    assert_eq!(read(&dist, GICD_CTLR, 4), 0x52);
    assert_eq!(dist.write(GICD_CTLR, 4, 0x2).groups, None, "no change");
}

#[test]
fn a_redistributor_says_who_it_is() {
    let mut redist = Redistributor::new(17, 18);
    assert_eq!(
        redist.read(0x8, 8, true),
        Ok(0x101 << 32 | 17 << 8 | 1 << 4)
    );
    assert_eq!(redist.read(0x8, 4, true), Ok(17 << 8 | 1 << 4));
    assert_eq!(redist.read(0xc, 4, true), Ok(0x101));
    assert_eq!(Redistributor::new(16, 18).read(0x8, 4, true), Ok(16 << 8));
    assert_eq!(redist.read(0xffe8, 4, true), Ok(0x3b));
    assert_eq!(redist.read(0x14, 4, true), Ok(6), "asleep");
    redist.write(0x14, 4, 0);
    assert_eq!(redist.read(0x14, 4, true), Ok(0), "awake");
}

#[test]
fn fields_keep_what_is_implemented() {
    let (mut dist, mut redist) = booted(2);
    let _ = dist.write(0x424, 4, 0xff_7f_0f_07);
    assert_eq!(read(&dist, 0x424, 4), 0xf8_78_08_00);
    assert_eq!(read(&dist, 0x427, 1), 0xf8);
    let _ = dist.write(0xc08, 4, 0xffff_ffff);
    assert_eq!(
        read(&dist, 0xc08, 4),
        0xaaaa_aaaa,
        "edge, and the low bits are reserved"
    );
    redist.write(SGI + 0xc00, 4, 0);
    assert_eq!(
        redist.read(SGI + 0xc00, 4, true),
        Ok(0xaaaa_aaaa),
        "SGIs are edges"
    );
    let _ = dist.write(0x180 + 4, 4, 0xf0);
    assert_eq!(read(&dist, 0x104, 4), 0xffff_ff0f);
    assert_eq!(read(&dist, 0x184, 4), 0xffff_ff0f);
}

#[test]
fn routes_are_read_and_written_whole_and_in_halves() {
    let (mut dist, _) = booted(2);
    let at = 0x6000 + 8 * 40;
    let _ = dist.write(at, 8, u64::MAX);
    assert_eq!(
        read(&dist, at, 8),
        0xff_00ff_ffff,
        "no interrupt routing mode"
    );
    let _ = dist.write(at + 4, 4, 0);
    let _ = dist.write(at, 4, 1);
    assert_eq!((read(&dist, at, 8), read(&dist, at + 4, 4)), (1, 0));
    assert_eq!(dist.set_pending(40), VcpuSet::only(1));
    for (offset, size) in [
        (0x6000 + 8 * 31, 8),
        (0x6000 + 8 * 96, 8),
        (at + 4, 8),
        (0x7ffc, 4),
    ] {
        let _ = dist.write(offset, size, u64::MAX);
        assert_eq!(read(&dist, offset, size), 0, "{offset:#x}");
    }
}

#[test]
fn what_is_routed_to_another_host_comes_to_vcpu_0() {
    let (mut dist, _) = booted(3);
    dist.keep_at(VcpuSet::first(2));
    let at = 0x6000 + 8 * 40;
    for (route, vcpu) in [(2, 0), (1, 1), (0, 0)] {
        let _ = dist.write(at, 8, route);
        assert_eq!(read(&dist, at, 8), route);
        assert_eq!(dist.set_pending(40), VcpuSet::only(vcpu), "{route}");
        let _ = dist.clear_pending(40);
    }
    let _ = dist.write(at, 8, 3);
    assert_eq!(dist.set_pending(40), VcpuSet::NONE, "nobody has it");
}

#[test]
fn a_vcpu_that_goes_to_another_host_leaves_its_spis_to_vcpu_0() {
    let (mut dist, _) = booted(2);
    let mut redist = Redistributor::new(1, 2);
    redist.set_groups(dist.groups());
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    for intid in [40, 90] {
        let _ = dist.write(0x6000 + 8 * intid, 8, 1);
        assert_eq!(dist.set_pending(intid), VcpuSet::only(1));
    }
    let mut leave = |dist: &mut Distributor, ends: bool| {
        file.deliver(&mut redist, Some(dist), &mut lrs);
        if ends {
            lrs.guest_end(40);
        } else {
            assert_eq!(lrs.guest_acknowledge(), Some(40));
        }
        file.save(&mut redist, Some(dist), &mut lrs);
        file.give_back(&mut redist, Some(dist));
        dist.give_away(1)
    };
    assert_eq!(leave(&mut dist, false), None, "it is handling one");
    assert_eq!(dist.write(0x6000 + 8 * 90, 8, 1).deliver, VcpuSet::only(1));
    assert_eq!(leave(&mut dist, true), Some(true));
    assert_eq!(
        read(&dist, 0x6000 + 8 * 90, 8),
        1,
        "the guest reads what it wrote"
    );
    assert_eq!(dist.set_pending(40), VcpuSet::only(0));
    assert_eq!(dist.write(0x6000 + 8 * 90, 8, 1).deliver, VcpuSet::only(0));
    assert_eq!(dist.give_away(1), Some(false), "it had no more");
}

#[test]
fn a_disabled_interrupt_is_pulled_back() {
    let (mut dist, mut redist) = booted(1);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    assert!(redist.set_pending(5));
    assert!(
        file.deliver(&mut redist, Some(&mut dist), &mut lrs)
            .is_empty()
    );
    assert_eq!(lrs.guest_signalled(), Some(5));
    assert!(redist.write(SGI + 0x180, 4, 1 << 5));
    file.deliver(&mut redist, None, &mut lrs);
    assert_eq!(lrs.listed().count(), 0);
    assert_eq!(redist.read(SGI + 0x200, 4, true), Ok(1 << 5));
    assert!(!file.has_deliverable(&redist, None, 0xff));
}

#[test]
fn the_timer_takes_the_short_way() {
    let (_, mut redist) = booted(1);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    for _ in 0..3 {
        lrs.activate_physical(30);
        assert!(file.inject_hw_ppi(&mut redist, &mut lrs, 27, 30));
        assert_eq!(redist.hw_active(), 1 << 30);
        let listed = lrs.listed().next().unwrap();
        assert_eq!(
            (listed.physical, listed.state),
            (Some(30), ListState::Pending)
        );
        assert_eq!(
            (lrs.guest_acknowledge(), lrs.listed().count()),
            (Some(27), 1)
        );
        lrs.guest_end(27);
        assert!(!lrs.physical_is_active(30));
    }
}

#[test]
fn more_than_fits_asks_for_underflow() {
    let (mut dist, mut redist) = booted(1);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(2));
    for intid in 0..4 {
        redist.set_pending(intid);
    }
    file.deliver(&mut redist, None, &mut lrs);
    assert!(lrs.underflow_interrupt() && file.needs_distributor());
    assert_eq!(lrs.listed().count(), 2);
    file.save(&mut redist, None, &mut lrs);
    assert!(!lrs.underflow_interrupt());
    file.load(&mut lrs);
    assert!(lrs.underflow_interrupt());
    for intid in 0..2 {
        assert_eq!(lrs.guest_acknowledge(), Some(intid));
        lrs.guest_end(intid);
    }
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    assert!(!lrs.underflow_interrupt());
}

#[test]
fn state_that_another_vcpu_holds_must_be_published() {
    let (mut dist, mut redist) = booted(2);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    assert_eq!(dist.set_pending(33), VcpuSet::only(0));
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    assert_eq!(lrs.guest_acknowledge(), Some(33));
    let sync = dist.read(0x304, 4, VcpuSet::only(1)).unwrap_err();
    assert_eq!(sync.0, VcpuSet::only(0));
    file.publish(&mut redist, Some(&mut dist), &mut lrs);
    assert_eq!(dist.read(0x304, 4, VcpuSet::only(0)), Ok(2));
    assert_eq!(dist.read(0x204, 4, VcpuSet::only(0)), Ok(0));
    assert_eq!(
        dist.read(0x104, 4, VcpuSet::NONE),
        Ok(0xffff_ffff),
        "no state"
    );
}

#[test]
fn a_vcpu_turned_off_gives_its_interrupts_back() {
    let (mut dist, mut redist) = booted(2);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    let _ = dist.set_pending(33);
    lrs.activate_physical(27);
    file.inject_hw_ppi(&mut redist, &mut lrs, 27, 27);
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    file.save(&mut redist, Some(&mut dist), &mut lrs);
    assert_eq!(redist.hw_active(), 1 << 27);
    file.turn_off(&mut redist, Some(&mut dist));
    assert_eq!(redist.hw_active(), 0);
    file.load(&mut lrs);
    assert_eq!(lrs.listed().count(), 0);
    // Routed elsewhere, the interrupt is there for the other.
    assert_eq!(dist.write(0x6000 + 8 * 33, 8, 1).deliver, VcpuSet::only(1));
}

/// Every register that shows state.
fn shown(dist: &Distributor, redist: &Redistributor) -> Vec<u64> {
    let banks = [0x080, 0x100, 0x200, 0x300, 0xc00, 0xc04];
    let own = banks.map(|at| redist.read(SGI + at, 4, true));
    let priorities = (0..8).map(|n| redist.read(SGI + 0x400 + 4 * n, 4, true));
    let own = own
        .into_iter()
        .chain(priorities)
        .map(Result::unwrap_or_default);
    let shared = (1..3).flat_map(|n| [0x080, 0x100, 0x200, 0x300].map(|at| at + 4 * n));
    let routes = (32..96).map(|n| (0x6000 + 8 * n, 8));
    let shared = shared.map(|at| (at, 4)).chain(routes);
    let dist = shared.map(|(at, size)| read(dist, at, size));
    own.chain(dist).collect()
}

/// A timer's interrupt and a shared one that the guest handles, one that waits behind each, one that is
/// pending, and one that is not let through: all of them come, in the same order, from what records make.
#[test]
fn all_of_it_goes_over_in_records() {
    let (mut dist, mut redist) = booted(2);
    let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
    file.inject_hw_ppi(&mut redist, &mut lrs, 27, 27);
    let _ = dist.set_level(40, true);
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    let handled = [lrs.guest_acknowledge(), lrs.guest_acknowledge()];
    assert!(handled.contains(&Some(27)) || handled.contains(&Some(40)));
    redist.set_pending(3);
    let _ = dist.set_pending(41);
    let _ = dist.write(0x6000 + 8 * 41, 8, 1);
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    file.save(&mut redist, Some(&mut dist), &mut lrs);
    let before = shown(&dist, &redist);
    file.give_back(&mut redist, Some(&mut dist));
    assert_eq!(shown(&dist, &redist), before);

    let (mut new_dist, mut new_redist) = (Distributor::new(64, 2), Redistributor::new(0, 2));
    let spis: Vec<_> = dist.records().collect();
    assert!(new_dist.restore(spis.clone().into_iter(), dist.groups().bits()));
    assert!(new_redist.restore(&redist.record(), dist.groups()));
    assert_eq!(shown(&new_dist, &new_redist), before);
    assert_eq!(new_redist.hw_active(), redist.hw_active());
    let mut new_lrs = FakeListRegisters::new(4);
    let mut new_file = ListFile::new();
    new_file.deliver(&mut new_redist, Some(&mut new_dist), &mut new_lrs);
    file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    let all = |lrs: &FakeListRegisters| {
        let mut listed: Vec<_> = lrs.listed().map(|it| format!("{it:?}")).collect();
        listed.sort();
        listed
    };
    assert_eq!(all(&new_lrs), all(&lrs));

    // One that is active on a vCPU that there is not, and too few.
    let mut wrong = spis.clone();
    wrong[0].interrupts.active |= 1;
    wrong[0].holders[0] = 2;
    assert!(!new_dist.restore(wrong.into_iter(), 3));
    assert!(!new_dist.restore(spis.into_iter().take(1).collect::<Vec<_>>().into_iter(), 3));
    // What is active physically, and is none of a CPU's PPIs.
    assert_eq!(redist.record().local.physical_active, 1 << 27);
    for (intid, physical) in [(27, 32), (27, 15), (5, 27)] {
        let mut wrong = redist.record();
        wrong.local.physical_active |= 1 << intid;
        wrong.local.physical[intid] = physical;
        assert!(!new_redist.restore(&wrong, dist.groups()));
    }
}

#[test]
fn what_names_nothing_concerns_nobody() {
    let (mut dist, mut redist) = booted(1);
    assert!(dist.set_pending(96).is_empty() && dist.set_level(u32::MAX, true).is_empty());
    assert!(!redist.set_pending(32) && !redist.set_level(1023, true));
}

/// A record of any bytes, but for what is nearly always wrong in those.
fn any_record<T: FromBytes + std::fmt::Debug>() -> impl Strategy<Value = T> {
    let bytes = prop::collection::vec(any::<u8>(), size_of::<T>());
    bytes.prop_map(|bytes| T::read_from_bytes(&bytes).unwrap_or_else(|_| T::new_zeroed()))
}

fn mostly_valid(interrupts: &mut Interrupts, mask: u8) {
    interrupts.priority = interrupts.priority.map(|priority| priority & mask);
}

#[derive(Clone, Copy, Debug)]
enum Access {
    Dist,
    Redist,
    Interrupt,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// A record of any bytes is refused, or says what the redistributor and the distributor are then, and still are
    /// after all of it was in list registers and came back.
    #[test]
    fn a_record_is_refused_or_taken_as_it_is(
        mut private in any_record::<Private>(),
        mut spis in any_record::<Spis>(),
        masks in prop::array::uniform2(prop::sample::select(vec![0xf8, 0xf8, 0xf8, 0xff])),
        ppis in any::<bool>(),
        edges in any::<bool>(),
    ) {
        mostly_valid(&mut private.interrupts, masks[0]);
        mostly_valid(&mut spis.interrupts, masks[1]);
        if ppis {
            private.local.asleep &= 1;
            private.local.physical_active &= 0xffff_0000;
            private.local.physical = private.local.physical.map(|intid| 16 + intid % 16);
            spis.holders = spis.holders.map(|holder| holder % 2);
        }
        private.interrupts.edge = private.interrupts.edge & 0xffff_0000 | if edges { 0xffff } else { 0xfffe };
        let (mut dist, mut redist) = (Distributor::new(32, 2), Redistributor::new(0, 2));
        let is_taken = [
            dist.restore([spis].into_iter(), 3),
            redist.restore(&private, Groups::all()),
        ];
        prop_assert_eq!(is_taken, [ppis && masks[1] == 0xf8, ppis && edges && masks[0] == 0xf8]);
        if is_taken != [true; 2] {
            return Ok(());
        }
        prop_assert_eq!(redist.record(), private);
        prop_assert_eq!(redist.hw_active() & 0xffff, 0);
        prop_assert_eq!(dist.records().collect::<Vec<_>>(), [spis]);
        let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
        let _ = file.deliver(&mut redist, Some(&mut dist), &mut lrs);
        let _ = file.save(&mut redist, Some(&mut dist), &mut lrs);
        let _ = file.give_back(&mut redist, Some(&mut dist));
        prop_assert_eq!(redist.record().interrupts, private.interrupts);
        let after: Vec<_> = dist.records().map(|spis| spis.interrupts).collect();
        prop_assert_eq!(after, [spis.interrupts]);
    }

    /// Whatever is accessed, and whichever interrupts are named.
    #[test]
    fn no_access_panics(accesses in prop::collection::vec((
        prop::sample::select(vec![Access::Dist, Access::Redist, Access::Interrupt]),
        prop_oneof![0u32..0x1000, 0x1_0000u32..0x1_1000, 0x6000u32..0x8000, any::<u32>()],
        prop_oneof![Just(4u32), Just(8), Just(1), any::<u32>()],
        any::<u64>(),
    ), 0..200)) {
        let (mut dist, mut redist) = booted(1);
        let (mut file, mut lrs) = (ListFile::new(), FakeListRegisters::new(4));
        for (kind, offset, size, value) in accesses {
            match kind {
                Access::Dist => {
                    if let Some(groups) = dist.write(offset, size, value).groups {
                        redist.set_groups(groups);
                    }
                    prop_assert!(dist.read(offset, size, ALL).is_ok());
                }
                Access::Redist => {
                    redist.write(offset, size, value);
                    prop_assert!(redist.read(offset, size, true).is_ok());
                }
                Access::Interrupt => {
                    let intid = offset % 300;
                    let _ = dist.set_level(intid, value & 1 != 0);
                    redist.set_level(intid, value & 1 != 0);
                }
            }
            file.deliver(&mut redist, Some(&mut dist), &mut lrs);
            prop_assert!(lrs.listed().count() <= lrs.count());
            if let Some(intid) = lrs.guest_acknowledge() {
                lrs.guest_end(intid);
            }
        }
    }
}
