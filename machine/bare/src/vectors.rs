//! Exception vectors at EL1 and what they call.
//!
//! A handler is a plain function: it runs on the stack of what it interrupted, with interrupts
//! masked, and may unmask them to be interrupted itself.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu;
use crate::probe;
use crate::psci;
use crate::verdict;

/// The interrupted registers that an exception handler may not lose.
#[repr(C)]
pub struct Frame {
    /// x0 to x18.
    pub x: [u64; 19],
    /// x30.
    pub link: u64,
    /// Where it was interrupted.
    pub elr: u64,
    /// The interrupted PSTATE.
    pub spsr: u64,
}

global_asm!(
    r#"
    .macro SAVE
    sub     sp, sp, #176
    stp     x0, x1, [sp]
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x30, [sp, #144]
    mrs     x0, elr_el1
    mrs     x1, spsr_el1
    stp     x0, x1, [sp, #160]
    mov     x0, sp
    .endm

    .macro VECTOR handler
    .balign 128
    SAVE
    bl      \handler
    b       bare_return
    .endm

    .macro UNEXPECTED kind
    .balign 128
    mov     x0, #\kind
    b       bare_unexpected
    .endm

    .text
    .balign 2048
    .global bare_vectors
bare_vectors:
    UNEXPECTED 0
    UNEXPECTED 1
    UNEXPECTED 2
    UNEXPECTED 3
    VECTOR  bare_sync
    VECTOR  bare_irq
    VECTOR  bare_fiq
    UNEXPECTED 7
    UNEXPECTED 8
    UNEXPECTED 9
    UNEXPECTED 10
    UNEXPECTED 11
    UNEXPECTED 12
    UNEXPECTED 13
    UNEXPECTED 14
    UNEXPECTED 15

bare_return:
    ldp     x0, x1, [sp, #160]
    msr     elr_el1, x0
    msr     spsr_el1, x1
    ldp     x18, x30, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp]
    add     sp, sp, #176
    eret
"#
);

/// Handles one IRQ or FIQ.
pub type Handler = fn(&mut Frame);

static IRQ: AtomicUsize = AtomicUsize::new(0);
static FIQ: AtomicUsize = AtomicUsize::new(0);

/// Sets what all CPUs do on an IRQ. Without it an IRQ ends the guest.
pub fn set_irq_handler(handler: Handler) {
    IRQ.store(handler as usize, Ordering::Release);
}

/// Sets what all CPUs do on an FIQ. Without it an FIQ ends the guest.
pub fn set_fiq_handler(handler: Handler) {
    FIQ.store(handler as usize, Ordering::Release);
}

fn run(slot: &AtomicUsize, frame: &mut Frame) {
    let handler = slot.load(Ordering::Acquire);
    assert!(handler != 0, "an interrupt that nobody asked for");
    // SAFETY: the setters store nothing but a `Handler`.
    let handler: Handler = unsafe { core::mem::transmute(handler) };
    handler(frame);
}

#[unsafe(no_mangle)]
extern "C" fn bare_irq(frame: &mut Frame) {
    run(&IRQ, frame);
}

#[unsafe(no_mangle)]
extern "C" fn bare_fiq(frame: &mut Frame) {
    run(&FIQ, frame);
}

#[unsafe(no_mangle)]
extern "C" fn bare_sync(frame: &mut Frame) {
    let (esr, far): (u64, u64);
    // SAFETY: reads the syndrome of the exception being handled.
    unsafe {
        asm!("mrs {}, esr_el1", "mrs {}, far_el1", out(reg) esr, out(reg) far,
            options(nomem, nostack));
    }
    let fault = probe::Fault {
        esr,
        far,
        elr: frame.elr,
    };
    if !probe::record(fault) {
        report(fault);
    }
    frame.elr = if fault.is_instruction_abort() {
        frame.link
    } else {
        frame.elr.wrapping_add(4)
    };
}

fn report(fault: probe::Fault) -> ! {
    verdict::announce(format_args!(
        "FAILED on cpu {}: exception esr={:#x} far={:#x} elr={:#x}",
        cpu::index(),
        fault.esr,
        fault.far,
        fault.elr
    ));
    psci::system_off()
}

#[unsafe(no_mangle)]
extern "C" fn bare_unexpected(kind: u64) -> ! {
    verdict::announce(format_args!(
        "FAILED on cpu {}: exception by vector {kind}",
        cpu::index()
    ));
    psci::system_off()
}

/// Runs what is at `base` as A32 code of EL0, with the MMU off and WFI untrapped, for guests that want to end
/// badly. It does not come back.
pub fn go_to_aarch32(base: u64) -> ! {
    // SCTLR_EL1: nTWI, and what is RES1 without the MMU; SPSR_EL1: User mode, interrupts masked.
    let (control, status) = (0x30d1_0800_u64, 0x1d0_u64);
    // SAFETY: nothing of this program runs on this CPU afterwards.
    unsafe {
        asm!(
            "msr elr_el1, {at}", "dc civac, {at}", "msr spsr_el1, {}", "dsb sy", "msr sctlr_el1, {}", "ic iallu", "dsb sy",
            "isb", "eret", in(reg) status, in(reg) control, at = in(reg) base, options(noreturn)
        )
    }
}

/// Points VBAR_EL1 of this CPU at `base`, for guests that want to end badly, and executes an
/// undefined instruction. Whatever is at `base` never comes back here.
pub fn fault_with_vectors_at(base: u64) -> ! {
    // SAFETY: nothing of this program runs on this CPU afterwards, except if `base` holds it.
    unsafe { asm!("msr vbar_el1, {}", "isb", "2: udf #0", "b 2b", in(reg) base, options(noreturn)) }
}
