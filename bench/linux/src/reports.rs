//! What it costs that free memory is reported and given away, and is wanted again.

use crate::{clock, memory};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// The argument that asks for it.
pub const REPORTS: &str = "reports";
/// Bytes that are used and given back again and again.
const SIZE: usize = 64 << 20;
/// How often.
const ROUNDS: u32 = 8;
/// How often between two of them somebody looks, and how long it is from one look to the next.
const LOOKS: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(1000);
/// How long a look is waited for, without sleep: so it is not long by the clock of whoever looks.
const LOOK: Duration = Duration::from_millis(150);

/// Uses memory, gives it back and waits, again and again. Says `bench: look` when it is to be seen how
/// much is bound, and at the end what a page cost that was touched. Then it stays.
pub fn measure() {
    let mut touching = 0.0;
    for round in 0..=ROUNDS {
        let start = clock::since_start();
        memory::map_and_touch(SIZE);
        // The first time, the memory was nobody's before.
        if round > 0 {
            touching += clock::since_start() - start;
        }
        for _ in 0..LOOKS {
            sleep(BETWEEN - LOOK);
            println!("bench: look");
            let until = Instant::now() + LOOK;
            while Instant::now() < until {}
        }
    }
    let pages = f64::from(ROUNDS) * (SIZE >> 12) as f64;
    clock::report("touch_page", touching / pages);
    println!("bench: done");
    loop {
        sleep(Duration::MAX);
    }
}
