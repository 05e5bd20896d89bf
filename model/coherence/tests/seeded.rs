//! Scripted guests on two to eight hosts over a bad network, by seed. A seed that fails is made small and printed.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cluster;
mod world;

use cluster::plan::Plan;
use std::collections::BTreeMap;

/// Seeds: a thousand, or five for each case that property tests are asked for.
fn seeds() -> u64 {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse::<u64>().ok());
    cases.map_or(1000, |cases| 5 * cases)
}

#[test]
fn scripts_on_a_bad_network() {
    let mut messages = BTreeMap::<String, u64>::new();
    let (mut instructions, mut frames, mut lost) = (0, 0, 0);
    for seed in 0..seeds() {
        let plan = Plan::new(seed);
        let counts = std::panic::catch_unwind(|| plan.run(false)).unwrap_or_else(|_| {
            let small = plan.shrink(Plan::fails, 3000);
            println!("seed {seed}, made small: {small:#?}");
            small.run(true);
            panic!("seed {seed} failed, and its small form did not fail again");
        });
        for (kind, count) in counts.messages {
            *messages.entry(kind).or_default() += count;
        }
        instructions += counts.instructions;
        frames += counts.frames;
        lost += counts.lost;
    }
    println!("{instructions} instructions, {frames} frames, {lost} lost: {messages:?}");
    assert!(instructions > 0 && lost > 0);
}

#[test]
fn a_failing_plan_is_made_small() {
    use world::Op;
    let has_both = |plan: &Plan| {
        let all = plan.scenario.scripts.iter().flat_map(|(_, script)| script);
        let count = |is: fn(&Op) -> bool| all.clone().filter(|op| is(op)).count();
        count(|op| matches!(op, Op::Zero(_))) > 0 && count(|op| matches!(op, Op::Add(_))) > 1
    };
    let plan = (0..1000).map(Plan::new).find(has_both).unwrap();
    let small = plan.shrink(has_both, 10_000);
    let ops: usize = small.scenario.scripts.iter().map(|(_, s)| s.len()).sum();
    assert_eq!(ops, 3);
    assert_eq!(
        (small.loss_permille, small.cut, small.death),
        (0, None, None)
    );
}
