//! Waiting for the counter to change.

use core::arch::asm;

/// Returns when [`crate::timer::now`] has reached `at`, always as long after the edge at which the counter changed
/// next: the instruction at which it was called does not show in the one at which it returns.
///
/// Eight reads see one edge, for a counter that changes with every eight instructions (62.5 MHz, as
/// QEMU's `-icount shift=1` has it): how many of them came before it are waited for again. Where the
/// counter is slower or faster than that, what is left is the time of one loop.
pub fn wait_for_edge(at: u64) {
    // SAFETY: reads of a counter, and a jump within this code to one of the `nop`s at its end.
    unsafe {
        asm!(
            "2: mrs {first}, cntpct_el0",
            "cmp {first}, {at}",
            "b.lo 2b",
            "mrs {first}, cntpct_el0",
            "mrs {r1}, cntpct_el0",
            "mrs {r2}, cntpct_el0",
            "mrs {r3}, cntpct_el0",
            "mrs {r4}, cntpct_el0",
            "mrs {r5}, cntpct_el0",
            "mrs {r6}, cntpct_el0",
            "mrs {r7}, cntpct_el0",
            // Reads before the edge, beside the first.
            "mov {at}, xzr",
            "cmp {r1}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r2}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r3}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r4}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r5}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r6}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r7}, {first}",
            "cinc {at}, {at}, eq",
            // So many `nop`s are done: the later the edge came, the more.
            "adr {r1}, 3f",
            "sub {r1}, {r1}, {at}, lsl #2",
            "br {r1}",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
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
