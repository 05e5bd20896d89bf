//! CPUs: their index and affinity, starting them, waiting and masking.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::boot;
use crate::memory;
use crate::psci;

/// CPUs a guest can use; link.ld has a stack for each.
pub const MAX_CPUS: usize = 8;

unsafe extern "C" {
    static bare_secondary_entry: u8;
}

static WORK: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// Index of this CPU: 0 is the boot CPU, the others follow as in the device tree.
#[inline]
pub fn index() -> usize {
    let index: usize;
    // SAFETY: reads the register that boot set and nothing else writes.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) index, options(nomem, nostack)) };
    index
}

/// Affinity of this CPU: MPIDR_EL1 without its flags.
pub fn affinity() -> u64 {
    let mpidr: u64;
    // SAFETY: reads an identification register.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) mpidr, options(nomem, nostack)) };
    mpidr & 0xff_00ff_ffff
}

/// Reads ID_AA64PFR0_EL1, which a hypervisor traps (HCR_EL2.TID3).
#[inline]
pub fn read_id_register() -> u64 {
    let value: u64;
    // SAFETY: reads an identification register.
    unsafe { asm!("mrs {}, id_aa64pfr0_el1", out(reg) value, options(nomem, nostack)) };
    value
}

/// Runs `work` with its index on the CPU `index`, with the MMU on and interrupts masked. When it
/// returns, the CPU turns itself off.
///
/// # Errors
/// What PSCI CPU_ON says.
pub fn start(index: usize, work: fn(usize)) -> Result<(), psci::Error> {
    let affinity = boot::machine().cpus()[index];
    WORK[index].store(work as usize, Ordering::Release);
    memory::clean_line((&raw const WORK[index]).addr());
    psci::cpu_on(affinity, secondary_entry(), index as u64)
}

/// Runs `work` on every CPU but this.
///
/// # Errors
/// The first refusal of PSCI CPU_ON.
pub fn start_others(work: fn(usize)) -> Result<(), psci::Error> {
    (1..boot::machine().cpus().len()).try_for_each(|index| start(index, work))
}

/// Physical address where started CPUs enter.
pub fn secondary_entry() -> u64 {
    (&raw const bare_secondary_entry).addr() as u64
}

pub(crate) fn run_started(index: usize) -> ! {
    let work = WORK[index].load(Ordering::Acquire);
    // SAFETY: `start` stored a `fn(usize)` there before it turned this CPU on.
    let work: fn(usize) = unsafe { core::mem::transmute(work) };
    work(index);
    psci::cpu_off();
    loop {
        wait_for_interrupt();
    }
}

/// WFI: until an interrupt is pending, masked or not.
#[inline]
pub fn wait_for_interrupt() {
    // SAFETY: waits.
    unsafe { asm!("dsb sy", "wfi", options(nostack)) };
}

/// YIELD: lets another thread run where a hypervisor looks at it.
#[inline]
pub fn yield_now() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack)) };
}

/// Lets IRQ and FIQ come.
#[inline]
pub fn unmask() {
    // SAFETY: handlers are installed before any guest code runs.
    unsafe { asm!("msr daifclr, #3", options(nostack)) };
}

/// Holds IRQ and FIQ back.
#[inline]
pub fn mask() {
    // SAFETY: changes only when interrupts are taken.
    unsafe { asm!("msr daifset, #3", options(nostack)) };
}

/// Executes `turns` times two instructions.
#[inline]
pub fn spin(turns: u64) {
    // SAFETY: counts a register down; zero turns are one.
    unsafe {
        asm!("1: subs {0}, {0}, #1", "b.hi 1b", inout(reg) turns => _, options(nomem, nostack));
    }
}
