//! Time by the guest's own counter, which begins when its machine does.

use aarch64_cpu::registers::{CNTFRQ_EL0, CNTVCT_EL0, Readable};
use std::{thread::sleep, time::Duration};

/// Nanoseconds since the machine was started.
pub fn since_start() -> f64 {
    CNTVCT_EL0.get() as f64 * 1e9 / CNTFRQ_EL0.get() as f64
}

/// Prints a figure.
pub fn report(key: &str, ns: f64) {
    println!("bench: {key} {ns:.1}");
}

/// The average time of `count` operations, after one that warms up.
pub fn average(count: u32, mut operate: impl FnMut()) -> f64 {
    operate();
    let start = since_start();
    for _ in 0..count {
        operate();
    }
    (since_start() - start) / f64::from(count)
}

/// Prints the average time of `count` operations.
pub fn measure(key: &str, count: u32, operate: impl FnMut()) {
    report(key, average(count, operate));
}

/// As [`measure`], for operations that can fail; the first failure is given.
pub fn try_measure<E>(
    key: &str,
    count: u32,
    mut operate: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut failure = None;
    let ns = average(count, || failure = failure.take().or(operate().err()));
    failure.map_or_else(
        || {
            report(key, ns);
            Ok(())
        },
        Err,
    )
}

/// Prints by how much `count` sleeps of `time` were too long, on average.
pub fn overshoot(key: &str, count: u32, time: Duration) {
    report(key, average(count, || sleep(time)) - time.as_nanos() as f64);
}
