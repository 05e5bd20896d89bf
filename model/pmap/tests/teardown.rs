//! The end of a map, in steps of bounded work.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeTables;
use model_addr::{Gfn, IpaRange, Mfn};
use model_pmap::{GivenBack, Pmap, REGION_FRAMES};

/// A reserved run is as much work as the entries of its region: a step gives back one where the region has no leaf
/// table, whose entries would take several.
#[test]
fn a_step_gives_back_one_reserved_run_at_most() {
    const REGIONS: u64 = 300;
    let (mut tables, first) = (FakeTables::new(), Gfn(0x4_0000));
    let ram = IpaRange {
        start: first.address(),
        size: (REGIONS * REGION_FRAMES) << 12,
    };
    let mut pmap = Pmap::new(&mut tables, &[ram]).unwrap();
    for n in 0..REGIONS {
        let (gfn, base) = (first.add(n * REGION_FRAMES), Mfn((n + 1) * REGION_FRAMES));
        pmap.set_base(&mut tables, gfn, Some(base)).unwrap();
    }
    let (mut teardown, mut all) = (pmap.teardown(), 0);
    loop {
        let mut runs = 0;
        let done = teardown.step(&mut tables, 192, |given| {
            assert!(matches!(given, GivenBack::Reservation(..)));
            runs += 1;
        });
        assert!(runs <= 1, "{runs} runs in a step");
        all += runs;
        if done {
            break;
        }
    }
    assert_eq!((all, tables.in_use()), (REGIONS, 0));
}
