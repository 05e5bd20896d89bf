//! The devices against a guest driver written from the specification, good and bad.
#![allow(clippy::unwrap_used)]

mod balloon;
mod blk;
mod bytes;
mod driver;
mod fronts;
mod hostile;
mod mmio;
mod net;
mod port;
mod queue;
mod races;
mod records;
mod scarce;
mod time;
mod wire;

use proptest::test_runner::Config;

/// So many cases; failures are printed, not kept in files.
fn cases(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    }
}
