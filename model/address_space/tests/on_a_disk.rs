//! Records of guest frames that are on a disk, or never shared (`abi::state`).
#![allow(clippy::unwrap_used, reason = "a test")]

use abi::state::{Run, run};
use machine_fake::FakeTranslation;
use model_addr::{FRAME_SIZE, Gfn, IpaRange};
use model_address_space::Maps;
use model_pmap::Backing;

const RAM: Gfn = Gfn(0x4_0000);
const RAM_FRAMES: u64 = 600;

fn maps() -> Maps<FakeTranslation> {
    let range = IpaRange {
        start: RAM.address(),
        size: RAM_FRAMES * FRAME_SIZE,
    };
    Maps::new(FakeTranslation::new(), range).unwrap()
}

/// What is on a disk goes over with where it is there.
#[test]
fn what_is_on_a_disk_stays_there() {
    let stored = Run {
        gfn: RAM.0 + 5,
        frame: 77,
        count: 3,
        kind: run::STORED,
        why: 0,
        never_share: 0,
        disk: 0,
    };
    let mut own = maps();
    assert!(own.adopt(&stored, 77));
    for n in 0..3 {
        let backing = own.entry(RAM.add(5 + n)).backing;
        assert_eq!(backing, Backing::Discarded(77 + n));
    }
    let place = |backing| match backing {
        Backing::Discarded(token) => (run::STORED, 0, token),
        _ => (0, 0, 0),
    };
    let mut found = Vec::new();
    own.records(place, |run| found.push(run));
    assert_eq!(found, [stored]);
    // What goes beyond memory, and what is no kind.
    let last = RAM.0 + RAM_FRAMES - 2;
    assert!(!maps().adopt(
        &Run {
            gfn: last,
            ..stored
        },
        77
    ));
    assert!(!maps().adopt(&Run { kind: 99, ..stored }, 77));
}

/// What is never shared stays so, whatever is behind it, and records of it say so again.
#[test]
fn what_is_never_shared_stays_so() {
    for kind in [run::PRIVATE, run::STORED, run::EMPTY] {
        let never = Run {
            gfn: RAM.0 + 5,
            frame: 77,
            count: 3,
            kind,
            why: 0,
            never_share: 1,
            disk: 0,
        };
        let mut own = maps();
        assert!(own.adopt(&never, 77));
        for n in 0..3 {
            assert!(own.entry(RAM.add(5 + n)).never_share, "of kind {kind}");
        }
        let place = |backing| match backing {
            Backing::Discarded(token) => (run::STORED, 0, token),
            _ => (run::EMPTY, 0, 0),
        };
        let mut found = Vec::new();
        own.records(place, |run| found.push(run.never_share));
        assert_eq!(found, [1], "of kind {kind}");
    }
}
