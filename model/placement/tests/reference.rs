//! The rules against a naive reading of them, over random misses, moves and collapses.
#![allow(clippy::unwrap_used, reason = "tests")]

use model_addr::NodeId;
use model_placement::{
    Decision, NODES_MAX, NodeSet, Page, Placement, Set, Sight, Stays, Thresholds, WAYS, decide,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: usize = 5;

/// A page as one would keep it with memory to waste.
#[derive(Clone, Debug, Default)]
struct Naive {
    replicas: BTreeSet<u8>,
    /// Some of them went since it was last looked at.
    lost: bool,
    /// When it moved: each time less than a span after the last.
    moves: Vec<u32>,
    /// How long it is left alone once it moved too often, in spans; zero: one.
    spans: u32,
}

impl Naive {
    fn moves(&self, now: u32, limits: &Thresholds) -> usize {
        let (count, spans) = (self.moves.len(), self.spans.max(1));
        let spans = if count < usize::from(limits.moves) {
            1
        } else {
            spans
        };
        match self.moves.last() {
            Some(last) if now - last < spans * limits.span => count,
            _ => 0,
        }
    }

    fn note_move(&mut self, now: u32, limits: &Thresholds) {
        if self.moves(now, limits) == 0 {
            let was_left = self.moves.len() >= usize::from(limits.moves);
            let stayed = self.moves.last().map_or(0, |last| now - last);
            let rest = limits.span * if was_left { self.spans.max(1) } else { 1 };
            let goes_on = was_left && stayed < 2 * rest;
            if goes_on {
                // It is left alone again after this move.
                self.spans = 2 * self.spans.max(1);
            } else {
                self.moves.clear();
            }
            if stayed >= 2 * rest {
                self.spans = 1;
            }
        }
        self.moves.push(now);
    }

    /// The sentences of the crate's documentation, one after the other.
    fn decide(&self, sight: &Sight<'_>, short: NodeSet, now: u32, limits: &Thresholds) -> Decision {
        let misses = |node: &u8| sight.misses[usize::from(*node)];
        let nodes = || 0..sight.misses.len() as u8;
        let has_copy = |node: &u8| NodeId(*node) == sight.home || self.replicas.contains(node);
        if !nodes().any(|node| misses(&node) >= limits.trigger) {
            return Decision::Leave(Stays::NotHot);
        }
        let sharers: Vec<u8> = nodes()
            .filter(|node| misses(node) >= limits.sharing.min(limits.trigger))
            .collect();
        if sharers.iter().all(has_copy) {
            return Decision::Leave(Stays::AtHome);
        }
        let is_shared = sharers.len() > 1 || !self.replicas.is_empty();
        if is_shared && sight.written {
            return Decision::Leave(Stays::WriteShared);
        }
        if self.moves(now, limits) >= usize::from(limits.moves) {
            return Decision::Leave(Stays::MovedOften);
        }
        let takers: Vec<NodeId> = sharers
            .into_iter()
            .filter(|node| !has_copy(node))
            .map(NodeId)
            .filter(|node| !short.contains(*node))
            .collect();
        match takers[..] {
            [] => Decision::Leave(Stays::NoMemory),
            [to] if !is_shared => Decision::Migrate(to),
            _ => Decision::Replicate(takers.into_iter().collect()),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Look([u32; NODES], bool, u8, u8),
    Write,
    Press(u8),
    Later(u32),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let misses = prop::array::uniform5(prop_oneof![0..40_u32, 100..140_u32]);
    let step = prop_oneof![
        8 => (misses, any::<bool>(), 0..NODES as u8, any::<u8>())
            .prop_map(|(misses, written, home, short)| Step::Look(misses, written, home, short & 3)),
        2 => Just(Step::Write),
        1 => (0..NODES as u8).prop_map(Step::Press),
        2 => prop_oneof![1..40_u32, 60..300_u32].prop_map(Step::Later),
    ];
    prop::collection::vec((0..WAYS as u64, step), 1..200)
}

fn set(bits: u8) -> NodeSet {
    (0..8).filter(|n| bits & 1 << n != 0).map(NodeId).collect()
}

proptest! {
    /// As many pages as fit into one set: nothing is ever forgotten, so both must agree always.
    #[test]
    fn decisions_are_those_of_the_rules(steps in steps()) {
        let mut sets = [Set::EMPTY];
        let limits = Thresholds::DEFAULT;
        let mut placement = Placement::new(&mut sets, limits);
        let mut naive: BTreeMap<u64, Naive> = BTreeMap::new();
        let mut now = 0;
        for (number, step) in steps {
            let page = Page(number);
            let known = naive.entry(number).or_default();
            let replicas: NodeSet = known.replicas.iter().copied().map(NodeId).collect();
            match step {
                Step::Look(misses, written, home, short) => {
                    let home = NodeId(home);
                    if known.replicas.contains(&home.0) {
                        continue;
                    }
                    if std::mem::take(&mut known.lost) {
                        known.note_move(now, &limits);
                    }
                    let sight = Sight { home, replicas, misses: &misses, written };
                    let decision = placement.look(page, sight, set(short), now);
                    prop_assert_eq!(decision, known.decide(&sight, set(short), now, &limits));
                    match decision {
                        Decision::Migrate(to) => {
                            prop_assert!(to != home && !set(short).contains(to));
                            placement.moved(page, now);
                            known.note_move(now, &limits);
                        }
                        Decision::Replicate(nodes) => {
                            placement.replicated(page, nodes, now);
                            known.replicas.extend(nodes.iter().map(|node| node.0));
                        }
                        Decision::Leave(_) => {}
                    }
                }
                Step::Write => {
                    known.lost |= !known.replicas.is_empty();
                    known.replicas.clear();
                }
                Step::Press(node) => {
                    for page in naive.values_mut() {
                        page.lost |= page.replicas.remove(&node);
                    }
                }
                Step::Later(time) => now += time,
            }
        }
    }
}

#[test]
fn a_page_that_is_written_from_everywhere_is_left_alone() {
    let mut sets = [Set::EMPTY];
    let limits = Thresholds::DEFAULT;
    let mut placement = Placement::new(&mut sets, limits);
    let (mut home, mut moves) = (NodeId(0), 0);
    // One node after the other writes it for one interval.
    for now in 0..limits.span {
        let mut misses = [0; 4];
        misses[now as usize % 4] = 1000;
        let sight = Sight {
            home,
            replicas: NodeSet::NONE,
            misses: &misses,
            written: true,
        };
        if let Decision::Migrate(to) = placement.look(Page(7), sight, NodeSet::NONE, now) {
            placement.moved(Page(7), now);
            (home, moves) = (to, moves + 1);
        }
    }
    assert_eq!(moves, limits.moves);
}

#[test]
fn the_last_node_counts_as_the_first_does() {
    let mut misses = [0; NODES_MAX + 1];
    misses[NODES_MAX - 1] = 128;
    misses[NODES_MAX] = 5000;
    let sight = Sight {
        home: NodeId(0),
        replicas: NodeSet::NONE,
        misses: &misses,
        written: true,
    };
    let past = model_placement::Past::default();
    let decision = decide(sight, past, NodeSet::NONE, &Thresholds::DEFAULT);
    assert_eq!(decision, Decision::Migrate(NodeId(NODES_MAX as u8 - 1)));
}
