//! What it costs to wake a thread that sleeps on another CPU.

use crate::{Outcome, clock, pin};
use std::thread::{self, Thread};

/// Round trips that are averaged.
const ROUNDS: u32 = 1000;

/// Two threads on two CPUs wake each other in turn by a futex; half a round is one wake.
pub fn measure() -> Outcome {
    let first = thread::current();
    let second = thread::spawn(move || {
        pin(1)?;
        // One round warms up.
        for _ in 0..=ROUNDS {
            thread::park();
            first.unpark();
        }
        rustix::io::Result::Ok(())
    });
    let round = |other: &Thread| {
        other.unpark();
        thread::park();
    };
    let ns = clock::average(ROUNDS, || round(second.thread()));
    clock::report("futex_wake", ns / 2.0);
    second.join().map_err(|_| "the second thread died")??;
    Ok(())
}
