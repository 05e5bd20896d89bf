//! No notification is lost, wherever the driver runs between two accesses of the device.

use crate::driver::QueueFeatures;
use crate::driver::{Buffer, DATA, Driver, Shape, ram};
use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::{Chain, Queue};
use proptest::prelude::*;
use std::cell::RefCell;

/// What the driver does next; each step is at most one access that the device can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Submit,
    Kick,
    Reap,
    EnableInterrupt,
    LookAgain,
    Asleep,
}

struct Actor {
    driver: Driver,
    next: Next,
    to_submit: u32,
    outstanding: u32,
    kicked: bool,
    /// How many chains it submits before it looks at the used ring.
    burst: u32,
}

impl Actor {
    fn step(&mut self, guest: &FakeGuest) {
        self.next = match self.next {
            Next::Submit => self.submit(guest),
            Next::Kick => {
                self.kicked |= self.driver.wants_kick(guest);
                Next::Submit
            }
            Next::Reap => {
                if self.driver.reap(guest).is_some() {
                    self.outstanding -= 1;
                    Next::Reap
                } else if self.to_submit > 0 {
                    self.burst = 3;
                    Next::Submit
                } else {
                    Next::EnableInterrupt
                }
            }
            Next::EnableInterrupt => {
                self.driver.set_interrupts(guest, true);
                Next::LookAgain
            }
            Next::LookAgain if self.driver.has_used(guest) => {
                self.driver.set_interrupts(guest, false);
                Next::Reap
            }
            Next::LookAgain | Next::Asleep => Next::Asleep,
        };
    }

    fn submit(&mut self, guest: &FakeGuest) -> Next {
        let buffer = [Buffer {
            ipa: DATA,
            len: 8,
            writable: true,
        }];
        if self.to_submit == 0
            || self.burst == 0
            || self.driver.add(guest, &buffer, Shape::Direct).is_none()
        {
            return if self.outstanding > 0 {
                Next::EnableInterrupt
            } else {
                Next::Reap
            };
        }
        self.to_submit -= 1;
        self.burst -= 1;
        self.outstanding += 1;
        self.driver.publish(guest);
        Next::Kick
    }
}

/// Memory in which the driver may take steps before each access of the device.
struct Racing<'a> {
    guest: &'a FakeGuest,
    actor: &'a RefCell<Actor>,
    script: RefCell<std::vec::IntoIter<u8>>,
}

impl Racing<'_> {
    fn turn(&self) {
        for _ in 0..self.script.borrow_mut().next().unwrap_or(0) {
            self.actor.borrow_mut().step(self.guest);
        }
    }
}

impl GuestMemory for Racing<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.turn();
        self.guest.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.turn();
        self.guest.write(ipa, from)
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.guest.contains(ipa, len)
    }
}

/// Runs both until both sleep; how many chains were never reaped.
fn run(log_size: u32, event_idx: bool, script: Vec<u8>, batch: u32) -> u32 {
    let guest = ram();
    let features = QueueFeatures {
        event_idx,
        indirect: false,
    };
    let driver = Driver::new(0, 1 << log_size, features);
    let mut queue = Queue::of(driver.setup, 256).unwrap();
    let actor = RefCell::new(Actor {
        driver,
        next: Next::Submit,
        to_submit: 40,
        outstanding: 0,
        kicked: true,
        burst: 3,
    });
    let memory = Racing {
        guest: &guest,
        actor: &actor,
        script: RefCell::new(script.into_iter()),
    };
    let mut chain = Chain::default();
    loop {
        let mut idle = true;
        if std::mem::take(&mut actor.borrow_mut().kicked) {
            idle = false;
            let mut left = batch;
            while queue.pop(&memory, &mut chain).unwrap() {
                queue.push_used(&memory, chain.head(), 8).unwrap();
                left -= 1;
                if left == 0 {
                    // The owner's budget: it comes back without a kick.
                    actor.borrow_mut().kicked = true;
                    break;
                }
            }
            let wanted = queue.needs_interrupt(&memory).unwrap();
            let mut actor = actor.borrow_mut();
            if wanted && actor.next == Next::Asleep {
                actor.driver.set_interrupts(&guest, false);
                actor.next = Next::Reap;
            } else if wanted {
                // The handler runs at once: it reaps, then the driver goes on.
                while actor.driver.reap(&guest).is_some() {
                    actor.outstanding -= 1;
                }
                if matches!(actor.next, Next::EnableInterrupt | Next::LookAgain) {
                    actor.next = Next::Reap;
                }
            }
        }
        let mut actor = actor.borrow_mut();
        while actor.next != Next::Asleep && !actor.kicked {
            actor.step(&guest);
            idle = false;
        }
        if idle {
            return actor.outstanding + actor.to_submit;
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(500))]

    #[test]
    fn nobody_sleeps_on_work(
        log_size in 0..5u32, event_idx: bool, batch in 1..10u32,
        script in prop::collection::vec(0..4u8, 0..400),
    ) {
        prop_assert_eq!(run(log_size, event_idx, script, batch), 0);
    }
}
