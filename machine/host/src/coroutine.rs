//! CPUs as coroutines on the thread of whoever runs the machine.

use crate::machine::{self, Entries, Pause, Progress, State};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr;

/// Bytes of a CPU's stack: the unoptimized hypervisor needs more than EL2 has.
const STACK: usize = 1 << 20;

type Body = Coroutine<(), Pause, ()>;

thread_local! {
    /// The executing CPU's way back to whoever runs the machine; none where no CPU executes.
    static WAY_BACK: Cell<*const Yielder<(), Pause>> = const { Cell::new(ptr::null()) };
}

/// Leaves the executing CPU for another one, and comes back when the seed says so.
pub(crate) fn leave(why: Pause) {
    let way = WAY_BACK.get();
    // SAFETY: `Runner::resume` sets it to the yielder of the coroutine that executes, which lives on that
    // coroutine's stack until it ends, and clears it when that coroutine is left.
    if let Some(yielder) = unsafe { way.as_ref() } {
        yielder.suspend(why);
        WAY_BACK.set(way);
    }
}

/// The CPUs of a machine.
pub(crate) struct Runner {
    entries: Entries,
    /// By CPU; of one that was never started, none.
    bodies: Vec<Option<Body>>,
}

impl Runner {
    pub(crate) fn new(entries: Entries, cpus: usize) -> Self {
        Self {
            entries,
            bodies: (0..cpus).map(|_| None).collect(),
        }
    }

    /// Lets one CPU go on until it is left.
    pub(crate) fn advance(&mut self) -> Progress {
        let Some(cpu) = machine::with(machine::Machine::choose) else {
            return machine::with(machine::Machine::pass_time);
        };
        let entries = self.entries;
        let body = self.bodies[cpu].get_or_insert_with(|| body_of(entries, cpu));
        machine::with(|machine| machine.current = Some(cpu));
        let left = body.resume(());
        WAY_BACK.set(ptr::null());
        machine::with(|machine| {
            machine.current = None;
            machine.cpus[cpu].state = match left {
                CoroutineResult::Yield(Pause::Goes) => State::Ready,
                CoroutineResult::Yield(Pause::Sleeps) => State::Asleep,
                CoroutineResult::Yield(Pause::Halted) | CoroutineResult::Return(()) => {
                    State::Halted
                }
            };
            if machine.is_off {
                Progress::Off
            } else {
                Progress::Went
            }
        })
    }
}

impl Drop for Runner {
    /// A CPU never ends, so its stack is not unwound: what lies there belongs to the machine, which ends with it.
    fn drop(&mut self) {
        for body in self.bodies.drain(..).flatten() {
            std::mem::forget(body);
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "a process without memory for a stack runs no machine"
)]
fn body_of(entries: Entries, cpu: usize) -> Body {
    let stack = DefaultStack::new(STACK).expect("memory for a CPU's stack");
    Coroutine::with_stack(stack, move |yielder, ()| {
        WAY_BACK.set(yielder);
        match machine::with(|machine| machine.cpus[cpu].starts_as) {
            machine::Start::First(tree) => (entries.first)(tree),
            machine::Start::Other => (entries.other)(),
        }
    })
}
