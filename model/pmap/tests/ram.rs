//! Which RAM a VM may have.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeTables;
use model_addr::{Gfn, Ipa, IpaRange};
use model_pmap::{MAX_RAM_RANGES, Pmap, PmapError};

#[test]
fn only_sound_ram_is_accepted() {
    let mut tables = FakeTables::new();
    let range = |start, size| IpaRange {
        start: Ipa(start),
        size,
    };
    let end = 1 << 39;
    for ram in [
        vec![],
        vec![range(0, 0)],
        vec![range(0x800, 0x1000)],
        vec![range(0, 0x800)],
        vec![range(end - 0x1000, 0x2000)],
        vec![range(u64::MAX - 0xfff, 0x1000)],
        vec![range(0, 0x2000), range(0x1000, 0x2000)],
        (0..=MAX_RAM_RANGES as u64)
            .map(|n| range(n << 20, 0x1000))
            .collect(),
    ] {
        assert_eq!(
            Pmap::new(&mut tables, &ram).map(|_| ()),
            Err(PmapError::Ram),
            "{ram:?}"
        );
    }
    let both = [range(end - 0x1000, 0x1000), range(0, 0x1000)];
    for allocations in 0..2 {
        tables.fail_after(Some(allocations));
        assert_eq!(
            Pmap::new(&mut tables, &both).map(|_| ()),
            Err(PmapError::NoMemory)
        );
        assert_eq!(tables.in_use(), 0);
    }
    tables.fail_after(None);
    let pmap = Pmap::new(&mut tables, &both).unwrap();
    assert_eq!(pmap.ram().count(), 2);
    assert!(!pmap.contains(Gfn(u64::MAX), 1) && !pmap.contains(Gfn(0), u64::MAX));
    assert!(
        !pmap.contains(Gfn(1 << 60), 1),
        "the address would wrap to 0"
    );
    assert_eq!(
        pmap.lookup(&tables, Gfn(1 << 60)),
        Err(PmapError::NotRam(Gfn(1 << 60)))
    );
    assert_eq!(pmap.absent_run(&tables, Gfn(1 << 60), 1), 0);
}
