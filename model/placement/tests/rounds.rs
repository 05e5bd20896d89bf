//! A page that is written by one node after the other: how often it moves, and what that costs beside
//! leaving it where it is.

use model_addr::NodeId;
use model_placement::{Decision, NodeSet, Page, Placement, Set, Sight, Stays, Thresholds, WAYS};
use proptest::prelude::*;

const NODES: usize = 8;
const LOCAL_NS: u64 = 300;
const REMOTE_NS: u64 = 900;
/// As in `sweep.rs`.
const COPY_NS: u64 = 64 * (LOCAL_NS + REMOTE_NS) + 3_000;

/// Somebody has the page: who, how often it misses on it, and for how many intervals.
type Turn = (usize, u32, u32);

/// What came of a page.
struct Outcome {
    moves: u64,
    ns: u64,
    /// The same where it stays on node 0.
    left_ns: u64,
}

/// Each turn's misses come in its first interval, in pieces as they are looked at.
fn play(turns: impl IntoIterator<Item = Turn>, limits: Thresholds) -> Outcome {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, limits);
    let (mut home, mut now, mut seen) = (NodeId(0), 0, [0; NODES]);
    let mut outcome = Outcome {
        moves: 0,
        ns: 0,
        left_ns: 0,
    };
    let cost = |is_local: bool| if is_local { LOCAL_NS } else { REMOTE_NS };
    for (node, misses, intervals) in turns {
        for _ in 0..misses {
            outcome.ns += cost(home == NodeId(node as u8));
            outcome.left_ns += cost(node == 0);
            seen[node] += 1;
            if seen[node] < limits.trigger {
                continue;
            }
            let sight = Sight {
                home,
                replicas: NodeSet::NONE,
                misses: &seen,
                written: true,
            };
            if let Decision::Migrate(to) = placement.look(Page(7), sight, NodeSet::NONE, now) {
                placement.moved(Page(7), now);
                home = to;
                outcome.moves += 1;
                outcome.ns += COPY_NS;
            }
            seen = [0; NODES];
        }
        now += intervals;
    }
    outcome
}

/// The most moves in so many intervals of who never stays for a span: four, and again after one span, two, four.
fn bound(limits: &Thresholds, intervals: u32) -> u64 {
    let spans = u64::from(intervals / limits.span) + 1;
    u64::from(limits.moves) * u64::from(spans.ilog2() + 1)
}

/// The node where the page lay first has it every second time.
fn whose() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..4_usize]
}

proptest! {
    /// However it goes round: the time is at most three times that of leaving it, which is what a page
    /// costs that lies on another node.
    #[test]
    fn no_round_costs_much_more_than_leaving(
        turns in (1..400_u32).prop_flat_map(|most| {
            let misses = (most / 2)..=most;
            prop::collection::vec((whose(), misses, 0..200_u32), 1..400)
        }),
    ) {
        let outcome = play(turns, Thresholds::DEFAULT);
        prop_assert!(outcome.ns <= 3 * outcome.left_ns, "{} {}", outcome.ns, outcome.left_ns);
    }

    /// Who never stays for a span moves a bounded number of times, also where it goes round slowly. That a turn
    /// is the one of the node where it was left is a turn without a move: so, half a span at most.
    #[test]
    fn who_never_stays_is_left_alone(
        turns in prop::collection::vec((1..NODES, 300..500_u32, 1..32_u32), 1..600),
    ) {
        let mut node = 0;
        let turns = turns.into_iter().map(|(step, misses, intervals)| {
            node = (node + step) % NODES;
            (node, misses, intervals)
        });
        let turns: Vec<Turn> = turns.collect();
        let limits = Thresholds::DEFAULT;
        let intervals = turns.iter().map(|(_, _, intervals)| intervals).sum();
        let outcome = play(turns, limits);
        let bound = bound(&limits, intervals);
        prop_assert!(outcome.moves <= bound, "{} moves, {bound} in {intervals}", outcome.moves);
    }
}

/// Half an hour and more: each node has it for 20 intervals.
#[test]
fn a_slow_round_for_long() {
    let limits = Thresholds::DEFAULT;
    let turns = (0..100_000).map(|turn| (turn % NODES, 300, 20));
    let outcome = play(turns, limits);
    assert!(
        outcome.moves <= bound(&limits, 2_000_000),
        "{}",
        outcome.moves
    );
    assert!(
        outcome.ns * 100 <= outcome.left_ns * 113,
        "{} {}",
        outcome.ns,
        outcome.left_ns
    );
}

/// Who stays for long each time goes along each time, which pays.
#[test]
fn who_stays_goes_along() {
    let turns = (0..40).map(|turn| (turn % NODES, 5_000, 200));
    let outcome = play(turns, Thresholds::DEFAULT);
    assert!(
        outcome.moves == 39 && outcome.ns * 2 < outcome.left_ns,
        "{} {}",
        outcome.moves,
        outcome.ns
    );
}

/// Whether a page that another node alone misses on is left alone all the same.
fn is_left(placement: &mut Placement<'_>, page: Page, now: u32) -> bool {
    let sight = Sight {
        home: NodeId(0),
        replicas: NodeSet::NONE,
        misses: &[0, Thresholds::DEFAULT.trigger],
        written: true,
    };
    let decision = placement.look(page, sight, NodeSet::NONE, now);
    decision == Decision::Leave(Stays::MovedOften)
}

fn move_often(placement: &mut Placement<'_>, page: Page, now: u32) {
    for _ in 0..Thresholds::DEFAULT.moves {
        placement.moved(page, now);
    }
}

/// Who moves again as soon as it may rests twice as long each time, but not for ever.
#[test]
fn a_rest_has_a_bound() {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, Thresholds::DEFAULT);
    let mut now = 0;
    for times in 0..19 {
        move_often(&mut placement, Page(7), now);
        let rest = Thresholds::DEFAULT.span << times.min(16);
        assert!(is_left(&mut placement, Page(7), now + rest - 1));
        assert!(!is_left(&mut placement, Page(7), now + rest));
        now += rest;
    }
}

/// It is left alone again after one move.
#[test]
fn after_a_rest_a_page_moves_once() {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, Thresholds::DEFAULT);
    let mut now = 0;
    move_often(&mut placement, Page(7), now);
    for times in 0..4 {
        now += Thresholds::DEFAULT.span << times;
        assert!(!is_left(&mut placement, Page(7), now));
        placement.moved(Page(7), now);
        assert!(is_left(&mut placement, Page(7), now));
    }
}

/// Moves that do not count make no rest longer.
#[test]
fn who_moved_at_leisure_rests_as_others_do() {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, Thresholds::DEFAULT);
    let span = Thresholds::DEFAULT.span;
    let mut now = 0;
    for _ in 0..6 {
        placement.moved(Page(7), now);
        now += span + span / 2;
    }
    move_often(&mut placement, Page(7), now);
    assert!(is_left(&mut placement, Page(7), now + span - 1));
    assert!(!is_left(&mut placement, Page(7), now + span));
}

/// The page that was quiet for longest is forgotten for a new one.
#[test]
fn the_quietest_page_is_forgotten() {
    let mut sets = [Set::EMPTY];
    let mut placement = Placement::new(&mut sets, Thresholds::DEFAULT);
    let new = WAYS as u64;
    for (page, now) in (0..new).chain([0, new]).zip(0..) {
        move_often(&mut placement, Page(page), now);
    }
    let now = WAYS as u32 + 1;
    let left = (0..=new).filter(|page| is_left(&mut placement, Page(*page), now));
    assert!(left.eq((0..=new).filter(|page| *page != 1)));
}
