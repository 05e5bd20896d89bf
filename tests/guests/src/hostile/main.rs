//! Guests that misbehave, one case each, chosen by `do=<case>` on the command line.
//!
//! A case that survives says `ok`. The cases named "ends badly" never do: they say `begins`, and
//! what follows is the hypervisor's to bound. Storms last `seconds=N` (1) of the guest's time.
//! `plain` accepts what QEMU's machine does without a hypervisor.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod faults;
mod frames;
mod registers;
mod resets;
mod storms;
mod sweep;
mod transfers;
mod virtio;

use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, fail};
use machine_bare::{image, println};

image!("hostile", main);

/// A case: its name, and what it does.
type Case = (&'static str, fn(&'static Machine) -> Verdict);

const CASES: [Case; 27] = [
    ("unmapped", faults::unmapped),
    ("unmapped_exec", faults::unmapped_exec),
    ("own_vector_abort", faults::own_vector_abort), // ends badly
    ("aarch32", faults::aarch32),                   // ends badly
    ("exception_loop", faults::exception_loop),     // ends badly
    ("counted", faults::counted),
    ("mmio_nosyndrome", faults::mmio_without_syndrome),
    ("self_modifying", faults::self_modifying),
    ("unknown_sysreg", registers::unknown),
    ("registers", sweep::write),
    ("registers_read", sweep::read),
    ("console_flood", storms::console),
    ("sgi_storm", storms::sgis),
    ("wfi_storm", storms::wfi),
    ("hvc_storm", storms::hvc),
    ("timer_storm", storms::timer),
    ("touch_all", storms::touch_all),
    ("spin", storms::spin),
    ("bad_virtio", virtio::malformed),
    ("notify_storm", virtio::notify_storm),
    ("resets", resets::under_way),
    ("transfers", transfers::any),
    ("bad_frames", frames::malformed),
    ("frame_storm", frames::storm),
    ("segment_storm", frames::segments),
    ("deaf", frames::deaf),
    ("gaps", storms::gaps),
];

fn main(machine: &'static Machine) -> Verdict {
    let wanted = machine.option("do").unwrap_or("");
    if let Some((_, case)) = CASES.iter().find(|(name, _)| *name == wanted) {
        return case(machine);
    }
    for (name, _) in CASES {
        println!("hostile: do={name}");
    }
    fail("no such case")
}
