//! Waiting for the counter to change.

use core::arch::asm;

/// Returns when [`crate::timer::now`] has reached `at`, always as long after the edge at which the counter changed
/// next: the instruction at which it was called does not show in the one at which it returns.
///
/// Eight reads see one edge, for a counter that changes with every eight instructions (62.5 MHz, as
/// QEMU's `-icount shift=1` has it): how many of them came before it are waited for again. Where the
/// counter is slower or faster than that, what is left is the time of one loop.
#[inline(never)] // The compiler takes what is repeated for one turn of it where it sees how far branches reach.
pub fn wait_for_edge(at: u64) {
    // SAFETY: reads of a counter, and a jump within this code to one of the `nop`s at its end.
    unsafe {
        asm!(
            "2: mrs {first}, cntpct_el0",
            "cmp {first}, {at}",
            "b.lo 2b",
            "mrs {first}, cntpct_el0",
            ".irp later, {r1}, {r2}, {r3}, {r4}, {r5}, {r6}, {r7}",
            "mrs \\later, cntpct_el0",
            ".endr",
            // Reads before the edge, beside the first.
            "mov {at}, xzr",
            ".irp later, {r1}, {r2}, {r3}, {r4}, {r5}, {r6}, {r7}",
            "cmp \\later, {first}",
            "cinc {at}, {at}, eq",
            ".endr",
            // So many `nop`s are done: the later the edge came, the more.
            "adr {r1}, 3f",
            "sub {r1}, {r1}, {at}, lsl #2",
            "br {r1}",
            ".rept 7",
            "nop",
            ".endr",
            "3:",
            at = inout(reg) at => _,
            first = out(reg) _,
            r1 = out(reg) _,
            r2 = out(reg) _,
            r3 = out(reg) _,
            r4 = out(reg) _,
            r5 = out(reg) _,
            r6 = out(reg) _,
            r7 = out(reg) _,
            options(nomem, nostack)
        );
    }
}
