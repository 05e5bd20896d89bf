//! Every order of few accesses: what the vCPUs see is what a single machine could show, and every access completes.

#![allow(clippy::unwrap_used)]

mod world;

use tests_explorer::explore;
use world::net::{BOTH, Left, Net, STATES_MAX, is_soak, scenario, search};
use world::{Op, Scenario, WORDS, Word, entry_to};

const X: Word = (0, 0);
const Y: Word = (1, 0);

/// Each litmus test, by name: a script for each vCPU.
fn litmus() -> Vec<(&'static str, Vec<Vec<Op>>)> {
    use Op::{Load, Store};
    vec![
        (
            "MP",
            vec![vec![Store(X, 1), Store(Y, 1)], vec![Load(Y), Load(X)]],
        ),
        (
            "SB",
            vec![vec![Store(X, 1), Load(Y)], vec![Store(Y, 1), Load(X)]],
        ),
        (
            "LB",
            vec![vec![Load(X), Store(Y, 1)], vec![Load(Y), Store(X, 1)]],
        ),
        ("CoRR", vec![vec![Store(X, 1)], vec![Load(X), Load(X)]]),
        (
            "2+2W",
            vec![
                vec![Store(X, 1), Store(Y, 2)],
                vec![Store(Y, 1), Store(X, 2)],
            ],
        ),
        (
            "WRC",
            vec![
                vec![Store(X, 1)],
                vec![Load(X), Store(Y, 1)],
                vec![Load(Y), Load(X)],
            ],
        ),
    ]
}

#[test]
fn litmus_tests_on_two_and_three_hosts() {
    for (name, scripts) in litmus() {
        let hosts = scripts.len();
        let scripts: Vec<_> = scripts.iter().map(Vec::as_slice).enumerate().collect();
        for (homes, switches) in [([0, 1], BOTH[0]), ([0, 0], BOTH[0]), ([0, 1], BOTH[1])] {
            let scenario = Scenario {
                switches,
                ..scenario(&scripts, &homes)
            };
            let ages = [0, 1, 2];
            match hosts {
                2 => search::<2, 1>(name, &scenario, &ages, Left::default()),
                _ => search::<3, 1>(name, &scenario, &ages, Left::default()),
            };
        }
    }
}

#[test]
fn independent_reads_of_independent_writes() {
    use Op::{Load, Store};
    let readers: [&[Op]; 2] = [&[Load(X), Load(Y)], &[Load(Y), Load(X)]];
    let scripts: [(usize, &[Op]); 4] = [
        (0, &[Store(X, 1)]),
        (0, &[Store(Y, 1)]),
        (1, readers[0]),
        (2, readers[1]),
    ];
    let scenario = scenario(&scripts, &[1, 2]);
    search::<3, 2>("IRIW", &scenario, &[0, 1, 2, 3], Left::default());
}

/// Instructions that need two pages, each of which another wants.
const CROSSED: [&[Op]; 3] = [
    &[Op::Copy(X, Y), Op::Add(X)],
    &[Op::Copy(Y, X), Op::Add(Y)],
    &[Op::Copy(X, Y)],
];

#[test]
fn instructions_that_need_two_pages_complete() {
    let crossed = scenario(&[(0, CROSSED[0]), (1, CROSSED[1])], &[0, 1]);
    for ages in [[0, 1], [1, 0]] {
        let left = Left {
            aways: 1,
            ticks: 1,
            ..Left::default()
        };
        search::<2, 1>("two pages at once", &crossed, &ages, left);
    }
    let three = [(0, CROSSED[2]), (1, CROSSED[1]), (2, CROSSED[2])];
    let three = scenario(&three, &[0, 1]);
    for ages in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let name = "two pages at once, three hosts";
        search::<3, 1>(name, &three, &ages, Left::default());
    }
}

#[test]
fn long_scripts_on_three_hosts() {
    use Op::{Add, Copy, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Add(X), Copy(X, Y)]),
        (1, &[Copy(Y, X), Add(Y)]),
        (2, &[Load(X), Store(Y, 9)]),
    ];
    if is_soak() {
        let left = Left {
            aways: 1,
            ..Left::default()
        };
        let scenario = scenario(&scripts, &[0, 1]);
        search::<3, 1>("long scripts", &scenario, &[2, 1, 0], left);
    }
}

#[test]
fn without_leases_two_pages_can_be_missed_for_ever() {
    let mut crossed = scenario(&[(0, CROSSED[0]), (1, CROSSED[1])], &[0, 1]);
    crossed.lease_ns = 0;
    let found = explore(
        Net::<2, 1>::new(&crossed, &[0, 1], Left::default()),
        STATES_MAX,
    );
    println!("without leases: {found:?}");
    assert!(!found.terminates);
}

#[test]
fn vcpus_of_a_host_share_its_pages() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Load(X), Op::Copy(X, Y)]),
        (0, &[Op::Add(X)]),
        (1, &[Op::Add(X), Op::Copy(Y, X)]),
    ];
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    for ages in &orders[..if is_soak() { 3 } else { 1 }] {
        let left = Left {
            aways: 1,
            ..Left::default()
        };
        search::<2, 2>("several vCPUs", &scenario(&scripts, &[0, 1]), ages, left);
    }
}

#[test]
fn pages_overwritten_with_zeroes() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Store(X, 1), Op::Load(X)]),
        (1, &[Op::Load(X), Op::Zero(0), Op::Load(X)]),
        (2, &[Op::Add(X)]),
    ];
    for home in 0..2 {
        search::<3, 1>(
            "zeroes",
            &scenario(&scripts, &[home]),
            &[0, 1, 2],
            Left::default(),
        );
    }
}

#[test]
fn a_death_stops_all_and_shows_nothing_old() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Store(X, 1), Op::Load(Y)]),
        (1, &[Op::Store(Y, 1), Op::Load(X)]),
        (2, if is_soak() { &[Op::Copy(X, Y)] } else { &[] }),
    ];
    let left = Left {
        deaths: 1,
        ..Left::default()
    };
    let scenario = scenario(&scripts, &[0, 1]);
    search::<3, 1>("a death", &scenario, &[0, 1, 2], left);
}

/// A page-table entry, and the words that it translates to, before and after.
const ENTRY: Word = (1, 0);
const OLD: Word = (0, 0);
const NEW: Word = (0, 1);
const FLAG: Word = (1, 1);
const SEEN: Word = (2, 0);

/// TLB invalidations, by name: a script for each host.
fn invalidations() -> Vec<(&'static str, Vec<Vec<Op>>)> {
    use Op::{Load, LoadVia, Store, StoreVia, Tlbi};
    let change = Store(ENTRY, entry_to(NEW));
    assert_eq!(entry_to(OLD), 0, "what an entry is at first");
    let publish = vec![change, Tlbi(ENTRY), Store(FLAG, 1)];
    let reads = vec![LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)];
    let writes = vec![LoadVia(ENTRY), Load(FLAG), StoreVia(ENTRY, 3)];
    let both_publish = vec![
        LoadVia(ENTRY),
        change,
        Tlbi(ENTRY),
        Load(FLAG),
        LoadVia(ENTRY),
    ];
    let tells = vec![Load(FLAG), Store(SEEN, 1)];
    let hears = vec![LoadVia(ENTRY), Load(SEEN), LoadVia(ENTRY)];
    vec![
        ("stale read", vec![publish.clone(), reads]),
        ("stale write", vec![publish.clone(), writes]),
        (
            "mutual",
            vec![
                [publish.clone(), vec![LoadVia(ENTRY)]].concat(),
                both_publish,
            ],
        ),
        ("by a third", vec![publish, tells, hears]),
    ]
}

#[test]
fn lazy_invalidations_are_seen_in_time() {
    for (name, scripts) in invalidations() {
        let scripts: Vec<_> = scripts.iter().map(Vec::as_slice).enumerate().collect();
        for switches in BOTH {
            let scenario = Scenario {
                switches,
                initial: vec![[5, 7], [0; WORDS], [0; WORDS]],
                ..scenario(&scripts, &[0, 1, 1])
            };
            let (ages, left) = ([0, 1, 2], Left::default());
            match scripts.len() {
                2 => search::<2, 1>(name, &scenario, &ages, left),
                _ => search::<3, 1>(name, &scenario, &ages, left),
            };
        }
    }
}

#[test]
fn messages_wait_for_the_batch_that_precedes_them() {
    use Op::{Load, LoadVia, Store, Tlbi};
    // The first vCPU's request is behind its invalidation, and the flag behind that of the second.
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Tlbi((2, 1)), Load(SEEN)]),
        (
            0,
            &[Store(ENTRY, entry_to(NEW)), Tlbi(ENTRY), Store(FLAG, 1)],
        ),
        (1, &[LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)]),
    ];
    let scenario = Scenario {
        initial: vec![[5, 7], [0; WORDS], [0; WORDS]],
        ..scenario(&scripts, &[0, 1, 1])
    };
    search::<2, 2>("two batches", &scenario, &[0, 1, 2], Left::default());
}

#[test]
fn pages_that_come_early() {
    use Op::{Add, Copy, Load, Store};
    const Z: Word = (2, 0);
    // The first vCPU misses in sequence, and then gets what follows before it asks.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Load(X), Load(Y), Load(Z)]),
        (1, &[Store(Z, 1), Add(Y), Store(Z, 2)]),
    ];
    search::<2, 2>(
        "burst",
        &scenario(&scripts, &[1, 1, 1]),
        &[0, 1],
        Left::default(),
    );
    // Pages are cleared in sequence, and the next one is not to be.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Op::Zero(0), Op::Zero(1), Add(X)]),
        (1, &[Store(Z, 1), Load(Z)]),
    ];
    search::<2, 2>(
        "clearing in sequence",
        &scenario(&scripts, &[1, 1, 1]),
        &[0, 1],
        Left::default(),
    );
    // A lock and what it protects.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Add(X), Add(Y), Add(X)]),
        (1, &[Add(X), Add(Y), Copy(X, Y)]),
    ];
    for ages in [[0, 1], [1, 0]] {
        search::<2, 2>(
            "companions",
            &scenario(&scripts, &[0, 1]),
            &ages,
            Left::default(),
        );
    }
}

#[test]
fn pages_pushed_to_readers() {
    use Op::{Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Store(X, 1), Store(X, 2)]),
        (1, &[Load(X), Load(X)]),
        (2, &[Load(X), Store(X, 3)]),
    ];
    for home in 0..if is_soak() { 2 } else { 1 } {
        let left = Left {
            quiets: 1,
            ..Left::default()
        };
        search::<3, 1>("push", &scenario(&scripts, &[home]), &[0, 1, 2], left);
    }
}
