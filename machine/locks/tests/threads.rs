//! Several threads on one lock and one cell.

use std::sync::Barrier;
use std::thread;

use machine_locks::{Once, Rank, SpinLock, lock_pair, set_relax};

const THREADS: usize = 4;
const ROUNDS: usize = 20_000;

#[test]
fn no_increment_is_lost() {
    set_relax(thread::yield_now);
    let counter = SpinLock::new(Rank::Device, 0_usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let counter = &counter;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if (thread + round) % 7 == 0
                        && let Some(mut value) = counter.try_lock()
                    {
                        *value += 1;
                        continue;
                    }
                    let mut value = counter.lock();
                    *value += 1;
                }
            });
        }
    });
    assert_eq!(*counter.lock(), THREADS * ROUNDS);
}

#[test]
fn pairs_in_either_order_do_not_deadlock() {
    set_relax(thread::yield_now);
    let queues = [
        SpinLock::new(Rank::Scheduler, 0_i64),
        SpinLock::new(Rank::Scheduler, 0_i64),
    ];
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let queues = &queues;
            scope.spawn(move || {
                let (from, to) = if thread % 2 == 0 { (0, 1) } else { (1, 0) };
                for _ in 0..ROUNDS / 4 {
                    let (mut from, mut to) = lock_pair(&queues[from], &queues[to]).unwrap();
                    *from -= 1;
                    *to += 1;
                }
            });
        }
    });
    assert_eq!(*queues[0].lock() + *queues[1].lock(), 0);
}

#[test]
fn one_of_many_sets_the_cell() {
    let cell = Once::new();
    let start = Barrier::new(THREADS);
    let winners = SpinLock::new(Rank::Console, 0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cell, start, winners) = (&cell, &start, &winners);
            scope.spawn(move || {
                start.wait();
                if cell.set([thread; 8]).is_ok() {
                    *winners.lock() += 1;
                }
                if let Some(seen) = cell.get() {
                    assert!(seen.iter().all(|part| *part == seen[0]));
                }
            });
        }
    });
    assert_eq!(*winners.lock(), 1);
    assert!(cell.get().is_some());
}
