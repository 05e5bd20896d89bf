//! Hosts that leave: every order of few accesses, and what is left of them at the end.

#![allow(clippy::unwrap_used)]

mod world;

use world::net::{BOTH, Left, scenario, search};
use world::{Op, Scenario, WORDS, Word, entry_to};

const X: Word = (0, 0);
const Y: Word = (1, 0);

const ONE: Left = Left {
    aways: 0,
    ticks: 0,
    deaths: 0,
    quiets: 0,
    leaves: 1,
};

/// The home leaves, while others use its page.
#[test]
fn a_home_leaves() {
    use Op::{Add, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Load(X), Store(X, 5)]),
        (1, &[Add(X), Load(X)]),
        (2, &[Add(X)]),
    ];
    for switches in BOTH {
        for initial in [[0; WORDS], [3; WORDS]] {
            let scenario = Scenario {
                switches,
                initial: vec![initial],
                ..scenario(&scripts, &[2])
            };
            search::<3, 2>("a home leaves", &scenario, &[0, 1, 2], ONE);
        }
    }
}

/// The leaver owns pages of another home, and has copies.
#[test]
fn an_owner_leaves() {
    use Op::{Add, Copy, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Load(X), Add(X)]),
        (1, &[Store(Y, 5)]),
        (2, &[Copy(X, Y)]),
    ];
    for homes in [[0, 1], [1, 2], [0, 2]] {
        let scenario = scenario(&scripts, &homes);
        search::<3, 2>("an owner leaves", &scenario, &[0, 1, 2], ONE);
    }
}

/// Two hosts leave, at once or one after the other, and have pages of each other.
#[test]
fn two_hosts_leave() {
    use Op::{Add, Load};
    let scripts: [(usize, &[Op]); 3] = [(0, &[Add(X), Load(Y)]), (1, &[Add(Y)]), (2, &[Add(X)])];
    for homes in [[1, 2], [1, 1]] {
        let left = Left { leaves: 2, ..ONE };
        let scenario = scenario(&scripts, &homes);
        search::<3, 2>("two hosts leave", &scenario, &[0, 1, 2], left);
    }
}

/// The home of a page with readers leaves while it gives them the page again.
#[test]
fn a_home_that_pushes_leaves() {
    use Op::{Load, Store};
    let scripts: [(usize, &[Op]); 3] = [(0, &[Load(X), Load(X)]), (1, &[Store(X, 2)]), (2, &[])];
    let left = Left { quiets: 2, ..ONE };
    let scenario = scenario(&scripts, &[2]);
    search::<3, 2>("a home that pushes leaves", &scenario, &[0, 1, 2], left);
}

/// Invalidations of TLB entries do not wait for who has left, and what follows them does not overtake them.
#[test]
fn a_host_leaves_between_invalidations() {
    use Op::{Load, LoadVia, Store, Tlbi};
    const ENTRY: Word = (1, 0);
    const FLAG: Word = (1, 1);
    let change = Store(ENTRY, entry_to((0, 1)));
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[change, Tlbi(ENTRY), Store(FLAG, 1)]),
        (1, &[LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)]),
        (2, &[]),
    ];
    for switches in BOTH {
        let scenario = Scenario {
            switches,
            initial: vec![[5, 7], [0; WORDS]],
            ..scenario(&scripts, &[1, 2])
        };
        search::<3, 2>("invalidations", &scenario, &[0, 1, 2], ONE);
    }
}

/// A host that dies while it leaves ends the session, and shows nothing old.
#[test]
fn a_host_dies_while_it_leaves() {
    use Op::{Add, Load};
    let scripts: [(usize, &[Op]); 2] = [(0, &[Add(X), Load(X)]), (1, &[Add(X)])];
    let left = Left { deaths: 1, ..ONE };
    let scenario = scenario(&scripts, &[1]);
    search::<2, 2>("a death", &scenario, &[0, 1], left);
}
