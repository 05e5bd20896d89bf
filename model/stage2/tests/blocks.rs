//! Blocks of all sizes, at the ends of what the tables reach.

#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::{FakeMmu, FakeTables, Walker};
use model_addr::{Ipa, Pa};
use model_stage2::{
    Invalidation, IpaSize, MapError, Overtaken, Rights, Size, Stage2, VmidBits, vtcr,
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const ALL: Rights = Rights::ALL;

fn world(bits: u32) -> (FakeMmu, Stage2) {
    let size = IpaSize::new(bits).unwrap();
    let mut tables = FakeTables::new();
    let root = tables.allocate_root(size.root_tables());
    let walker = Walker::new(vtcr(size, 48, VmidBits::Sixteen), root);
    (FakeMmu::new(tables, walker), Stage2::new(root, size))
}

fn invalidate(mmu: &mut FakeMmu, what: Invalidation) {
    match what {
        Invalidation::Nothing => {}
        Invalidation::Run(run) => mmu.invalidate(run.addresses()),
        Invalidation::All => mmu.invalidate_all(),
    }
}

fn split(mmu: &mut FakeMmu, stage2: &mut Stage2, ipa: Ipa) {
    let ready = stage2.begin_split(mmu, ipa).unwrap().pay(mmu, invalidate);
    stage2.make(mmu, ready).unwrap();
}

#[test]
fn a_gib_is_split_twice_and_merged_twice() {
    let (mut mmu, mut stage2) = world(43);
    let (ipa, pa) = (Ipa((1 << 43) - GIB), Pa(5 * GIB));
    let seen = |mmu: &FakeMmu, ipa| mmu.translate(ipa).map(|t| (t.pa, t.leaf.size)).unwrap();
    let inside = Ipa(ipa.0 + 7 * MIB + 0x1234);
    let wanted = Pa(pa.0 + 7 * MIB + 0x1234);

    stage2.map(&mut mmu, ipa, pa, Size::Block1G, ALL).unwrap();
    assert_eq!(seen(&mmu, inside), (wanted, GIB));
    split(&mut mmu, &mut stage2, inside);
    assert_eq!(seen(&mmu, inside), (wanted, 2 * MIB));
    split(&mut mmu, &mut stage2, inside);
    assert_eq!(seen(&mmu, inside), (wanted, 0x1000));
    assert_eq!(stage2.tables(), 2);

    let early = stage2.begin_merge(&mut mmu, ipa, pa, Size::Block1G, ALL);
    assert!(
        matches!(early, Err(MapError::Occupied)),
        "there are pages below"
    );
    for (start, size) in [
        (inside.align_down(2 * MIB), Size::Block2M),
        (ipa, Size::Block1G),
    ] {
        let pa = Pa(pa.0 + (start.0 - ipa.0));
        let broken = stage2.begin_merge(&mut mmu, start, pa, size, ALL).unwrap();
        let whole = stage2.begin_merge(&mut mmu, ipa, pa, Size::Block1G, ALL);
        assert!(whole.is_err(), "busy");
        let ready = broken.pay(&mut mmu, invalidate);
        stage2.make(&mut mmu, ready).unwrap();
        assert_eq!(seen(&mmu, inside), (wanted, size.bytes()));
    }
    assert_eq!(stage2.tables(), 0);
    assert_eq!(mmu.tables().in_use(), 16);
}

#[test]
fn an_unmap_wins_over_a_split_and_leaks_nothing() {
    let (mut mmu, mut stage2) = world(39);
    stage2
        .map(&mut mmu, Ipa(0), Pa(GIB), Size::Block2M, ALL)
        .unwrap();
    let broken = stage2.begin_split(&mut mmu, Ipa(0)).unwrap();
    stage2.unmap(&mut mmu, Ipa(0x5000), 1).pay(|what| {
        assert_eq!(what, Invalidation::All, "the split has not paid yet");
        mmu.invalidate_all();
    });
    assert!(!mmu.reaches(Pa(GIB).frame()));
    let mapped = stage2.map(&mut mmu, Ipa(0), Pa(GIB), Size::Page, ALL);
    assert_eq!(mapped, Err(MapError::Busy));
    let ready = broken.pay(&mut mmu, invalidate);
    assert_eq!(stage2.make(&mut mmu, ready), Err(Overtaken));
    assert_eq!(
        (mmu.tables().in_use(), stage2.tables()),
        (2, 1),
        "root and level 2"
    );
    stage2
        .map(&mut mmu, Ipa(0), Pa(GIB), Size::Page, ALL)
        .unwrap();
}

#[test]
fn a_failed_split_changes_nothing() {
    let (mut mmu, mut stage2) = world(39);
    stage2
        .map(&mut mmu, Ipa(0), Pa(GIB), Size::Block2M, ALL)
        .unwrap();
    mmu.tables().fail_after(Some(0));
    assert!(matches!(
        stage2.begin_split(&mut mmu, Ipa(0)),
        Err(MapError::NoMemory)
    ));
    assert!(mmu.translate(Ipa(0)).is_ok());
    assert_eq!(stage2.tables(), 1);
}

#[test]
fn what_is_out_of_range_is_refused() {
    let (mut mmu, mut stage2) = world(31);
    let end = Ipa(1 << 31);
    let mut map = |ipa, pa, size| stage2.map(&mut mmu, ipa, pa, size, ALL);
    assert_eq!(map(end, Pa(0), Size::Page), Err(MapError::OutOfRange));
    assert_eq!(
        map(Ipa(0), Pa(1 << 48), Size::Page),
        Err(MapError::Misaligned)
    );
    assert_eq!(
        map(Ipa(0x1000), Pa(0), Size::Block2M),
        Err(MapError::Misaligned)
    );
    assert_eq!(
        map(Ipa(0), Pa(0x1000), Size::Block2M),
        Err(MapError::Misaligned)
    );
    let last = Pa((1 << 48) - 0x1000);
    let beyond = stage2.map_chunk::<2>(&mut mmu, Ipa(0), (last, ALL), false);
    assert_eq!(beyond, Err(MapError::Misaligned));
    for odd in [
        stage2.map_chunk::<1024>(&mut mmu, Ipa(0), (Pa(0), ALL), false),
        stage2.map_chunk::<3>(&mut mmu, Ipa(0), (Pa(0), ALL), false),
        stage2.map_chunk::<2>(&mut mmu, Ipa(0x1000), (Pa(0), ALL), false),
    ] {
        assert_eq!(odd, Err(MapError::Misaligned));
    }
    assert!(stage2.unmap(&mut mmu, Ipa(u64::MAX), u64::MAX).is_none());
    assert!(stage2.unmap(&mut mmu, Ipa(0), u64::MAX).is_none());
    assert_eq!(stage2.translate(&mmu, end), None);
    assert_eq!(stage2.tables(), 0);
}
