//! Prints its line and resets the machine: the host counts the lines. A reset machine starts
//! anew, so this guest cannot know how often it did.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use machine_bare::machine::Machine;
use machine_bare::verdict::{self, Verdict, equal};
use machine_bare::{image, psci, timer};

image!("reset", main);

const MARK: u64 = 0x5eed_0f0f_a5a5_0001;

fn main(machine: &'static Machine) -> Verdict {
    equal("entry after reset: level", machine.entry.exception_level, 1)?;
    // A VM gets new memory; a `plain` machine keeps what it had.
    if !machine.flag("plain") {
        equal("memory after reset", machine.scratch().read(0), 0)?;
        machine.scratch().write(0, MARK);
    }
    verdict::announce(format_args!("boots"));
    timer::wait_until(100_000, || false);
    psci::system_reset()
}
