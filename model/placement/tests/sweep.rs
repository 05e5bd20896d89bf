//! Why the thresholds are what they are: the time of five kinds of pages under others, on a
//! machine with 300 ns and 900 ns. `cargo test -p model_placement --test sweep -- --nocapture`
//! prints it as CSV, `xtask bench-numa thresholds` draws it.

use model_addr::NodeId;
use model_placement::{Decision, NodeSet, Page, Placement, Set, Sight, Thresholds};

const NODES: usize = 8;
const LOCAL_NS: u64 = 300;
const REMOTE_NS: u64 = 900;
/// A copy reads 64 lines here and writes 64 there; the rest is EL2's work and the invalidation.
const COPY_NS: u64 = 64 * (LOCAL_NS + REMOTE_NS) + 3_000;
const INTERVALS: u32 = 256;

/// Who misses how often on a page in an interval, and whether it is written.
type Use = fn(u32) -> ([u32; NODES], bool);

const USES: [(&str, Use); 5] = [
    // Its process moves to another node midway.
    ("moves once", |now| one(usize::from(now >= 128), 60)),
    // Few misses, always from one node: worth a copy all the same.
    ("remote, cool", |_| one(3, 4)),
    ("read by all", |_| ([25; NODES], false)),
    ("written by all", |now| {
        let mut misses = [20; NODES];
        misses[now as usize % NODES] = 60;
        (misses, true)
    }),
    // One node after the other, for a moment each: nothing can be gained.
    ("handed round", |now| one(now as usize % NODES, 70)),
];

fn one(node: usize, count: u32) -> ([u32; NODES], bool) {
    let mut misses = [0; NODES];
    misses[node] = count;
    (misses, true)
}

/// Nanoseconds that misses and copies take.
fn time(usage: Use, limits: Thresholds) -> u64 {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, limits);
    let (mut home, mut replicas, mut seen, mut written) =
        (NodeId(0), NodeSet::NONE, [0; NODES], false);
    let mut ns = 0;
    for now in 0..INTERVALS {
        let (misses, is_written) = usage(now);
        written |= is_written;
        if is_written && !replicas.is_empty() {
            replicas = NodeSet::NONE;
        }
        for ((node, count), seen) in (0..).map(NodeId).zip(misses).zip(&mut seen) {
            let is_local = node == home || replicas.contains(node);
            ns += u64::from(count) * if is_local { LOCAL_NS } else { REMOTE_NS };
            *seen += count;
        }
        let sight = Sight {
            home,
            replicas,
            misses: &seen,
            written,
        };
        if seen.iter().all(|count| *count < limits.trigger) {
            continue;
        }
        match placement.look(Page(0), sight, NodeSet::NONE, now) {
            Decision::Migrate(to) => {
                home = to;
                placement.moved(Page(0), now);
                ns += COPY_NS;
            }
            Decision::Replicate(nodes) => {
                placement.replicated(Page(0), nodes, now);
                replicas = replicas.and(nodes);
                ns += COPY_NS * u64::from(nodes.len());
            }
            Decision::Leave(_) => {}
        }
        (seen, written) = ([0; NODES], false);
    }
    ns
}

#[test]
fn the_defaults_are_near_the_best() {
    let triggers = [16, 32, 64, 128, 256, 512, 1024, u32::MAX];
    println!("use,trigger,microseconds");
    let times = USES.map(|(name, usage)| {
        triggers.map(|trigger| {
            let limits = Thresholds {
                trigger,
                sharing: trigger / 4,
                ..Thresholds::DEFAULT
            };
            let ns = time(usage, limits);
            println!("{name},{trigger},{}", ns / 1000);
            ns
        })
    });
    let all = |n: usize| times.iter().map(|times| times[n]).sum::<u64>();
    let (own, best) = (all(3), (0..triggers.len()).map(all).min());
    assert_eq!(triggers[3], Thresholds::DEFAULT.trigger);
    // None is best for every use: those that move are better moved at once, and others never.
    assert!(
        best.is_some_and(|best| own * 100 <= best * 105),
        "{own} ns, and {best:?} is possible"
    );
    for ((name, _), times) in USES.iter().zip(times) {
        let best = times.iter().min().copied().unwrap_or(0);
        assert!(
            times[3] < best * 2,
            "{name}: {} ns, and {best} is possible",
            times[3]
        );
    }
}

#[test]
fn what_moves_often_is_left() {
    let (_, handed_round) = USES[4];
    let never = Thresholds {
        trigger: u32::MAX,
        ..Thresholds::DEFAULT
    };
    let always = Thresholds {
        trigger: 64,
        sharing: 16,
        moves: u8::MAX,
        ..Thresholds::DEFAULT
    };
    let limited = Thresholds { moves: 4, ..always };
    let [never, always, limited] =
        [never, always, limited].map(|limits| time(handed_round, limits));
    assert!(
        always > never * 2 && limited * 100 < never * 115,
        "{never} {limited} {always}"
    );
}
