//! Sampled pages against a list of everything that was touched.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_addr::{Mfn, NodeId};
use model_placement::{
    Decision, FOLLOWED, LOOKS, MissSource, NodeSet, PATIENCE, Past, Samples, Sight, Stays,
    Thresholds, decide,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NODES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Touch(u64, u8, bool),
    Turn,
    Take,
}

/// What is remembered of a page: who touched it, whether to write it, and turns since.
#[derive(Clone, Debug, Default)]
struct Naive {
    by: Vec<u8>,
    written: bool,
    quiet: u8,
}

/// A frame's own node.
fn home(frame: u64) -> NodeId {
    NodeId((frame % NODES as u64) as u8)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => (0..200_u64, 0..NODES as u8, any::<bool>()).prop_map(|(f, n, w)| Step::Touch(f, n, w)),
        30 => (0..4_u64, 0..NODES as u8, any::<bool>()).prop_map(|(f, n, w)| Step::Touch(f, n, w)),
        4 => Just(Step::Turn),
        3 => Just(Step::Take),
    ];
    prop::collection::vec(step, 1..900)
}

proptest! {
    #[test]
    fn touches_are_counted_of_pages_that_others_touch(steps in steps()) {
        let mut samples: Samples<u64> = Samples::new(128);
        let mut naive: BTreeMap<u64, Naive> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Touch(frame, node, writes) => {
                    samples.touched((Mfn(frame), frame), home(frame), NodeId(node), writes);
                    let is_known = naive.contains_key(&frame);
                    if is_known || NodeId(node) != home(frame) && naive.len() < FOLLOWED {
                        let page = naive.entry(frame).or_default();
                        if page.by.len() < LOOKS {
                            page.by.push(node);
                            page.written |= writes;
                            page.quiet = 0;
                        }
                    }
                }
                Step::Turn => {
                    for page in naive.values_mut().filter(|page| page.by.len() < LOOKS) {
                        page.quiet += 1;
                    }
                    naive.retain(|_, page| page.quiet < PATIENCE);
                    let mut again: Vec<u64> = samples.turn().collect();
                    again.sort_unstable();
                    let open = naive.iter().filter(|(_, page)| page.by.len() < LOOKS);
                    prop_assert!(open.map(|(frame, _)| *frame).eq(again));
                }
                Step::Take => {
                    let hot = samples.next_hot();
                    let judged = naive.values().filter(|page| page.by.len() == LOOKS);
                    let count = judged.count();
                    prop_assert_eq!(samples.hot() as usize, count);
                    prop_assert_eq!(hot.is_some(), count > 0);
                    if let Some(frame) = hot {
                        let page = naive.remove(&frame.0).unwrap();
                        let mut misses = [9; NODES];
                        prop_assert_eq!(samples.take(frame, &mut misses), page.written);
                        for (node, misses) in (0..).zip(misses) {
                            let touches: u32 = page.by.iter().map(|by| u32::from(*by == node)).sum();
                            prop_assert_eq!(misses, 64 * touches);
                        }
                        prop_assert!(!samples.take(frame, &mut misses) && misses == [0; NODES]);
                    }
                }
            }
        }
    }
}

/// What becomes of a page of node 0 that was touched by these nodes.
fn judged(by: [u8; LOOKS], written: bool) -> Decision {
    let limits = Thresholds::DEFAULT;
    let mut samples: Samples<()> = Samples::new(limits.trigger);
    for node in by {
        samples.touched((Mfn(1), ()), NodeId(0), NodeId(node), written);
    }
    let mut misses = [0; NODES];
    let hot = samples.next_hot().unwrap();
    let written = samples.take(hot, &mut misses);
    let sight = Sight {
        home: NodeId(0),
        replicas: NodeSet::NONE,
        misses: &misses,
        written,
    };
    decide(sight, Past::default(), NodeSet::NONE, &limits)
}

/// A page that was touched by one node, as often as makes it hot and no more.
#[test]
fn half_of_the_touches_make_a_page_hot_for_any_trigger() {
    for trigger in [1, 2, 127, 128, u32::MAX / 2] {
        let mut samples: Samples<()> = Samples::new(trigger);
        for node in [2, 2, 1, 0] {
            samples.touched((Mfn(1), ()), NodeId(0), NodeId(node), false);
        }
        let mut misses = [0; NODES];
        samples.take(Mfn(1), &mut misses);
        assert!(misses[2] >= trigger, "{misses:?}");
        assert!(misses[1] < trigger || trigger == 1, "{misses:?}");
    }
}

/// A page that moved for another reason is taken before enough is known of it.
#[test]
fn a_page_is_taken_with_the_touches_that_it_has() {
    let mut samples: Samples<()> = Samples::new(128);
    for (node, writes) in [(2, true), (3, false)] {
        samples.touched((Mfn(1), ()), NodeId(0), NodeId(node), writes);
    }
    assert_eq!((samples.hot(), samples.next_hot()), (0, None));
    let mut misses = [9; NODES];
    assert!(samples.take(Mfn(1), &mut misses));
    assert_eq!(misses, [0, 0, 64, 64]);
    assert_eq!(samples.turn().count(), 0);
}

#[test]
fn a_page_goes_to_the_only_node_that_touches_it() {
    for written in [false, true] {
        assert_eq!(judged([2; LOOKS], written), Decision::Migrate(NodeId(2)));
    }
    let copies = NodeSet::NONE.with(NodeId(2));
    for by in [[2, 0, 0, 0], [2, 0, 2, 0], [2, 2, 2, 0]] {
        assert_eq!(judged(by, false), Decision::Replicate(copies));
        assert_eq!(judged(by, true), Decision::Leave(Stays::WriteShared));
    }
}
