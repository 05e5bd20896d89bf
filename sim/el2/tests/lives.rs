//! Lives of many seeds, each in a process of its own.

#![allow(clippy::panic)]

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_sim_el2"))
        .args(arguments)
        .output();
    output.unwrap_or_else(|error| panic!("sim_el2 does not start: {error}"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn lives_go_well() {
    let output = sim(&["--seed", "1", "--lives", "100", "--first"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// For kept faults that fewer lives do not find.
#[test]
#[ignore = "takes a minute"]
fn more_lives_go_well() {
    let output = sim(&["--seed", "1", "--lives", "1000", "--first", "--as-is"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Steps, accesses and a sum of all times are the same, and another seed's are not.
#[test]
fn a_seed_repeats_its_life() {
    let [first, again, other] = ["7", "7", "8"].map(|seed| text(&sim(&["--seed", seed])));
    assert_eq!(first, again);
    let behind_seed = |text: &str| text.split_once(':').map(|(_, rest)| rest.to_owned());
    assert_ne!(behind_seed(&first), behind_seed(&other));
}
