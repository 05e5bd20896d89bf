// In and out of a guest, and EL2's vectors.
//
// guest_enter(x0 = &mut GuestContext) -> u64
// Runs the guest whose general registers are in the context until it leaves; returns why:
// 0 synchronous, 1 IRQ, 2 FIQ, 3 SError, 4 from AArch32. The stack then holds EL2's callee-saved
// registers and, at its very end, the context's address, where the vectors find it.

    .equ    CTX_PC,     248         // GuestContext.pc; .pstate follows
    .equ    FRAME,      112

    .section .text
    .global guest_enter
    .balign 64
guest_enter:
    stp     x29, x30, [sp, #-FRAME]!
    stp     x27, x28, [sp, #16]
    stp     x25, x26, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x21, x22, [sp, #64]
    stp     x19, x20, [sp, #80]
    str     x0, [sp, #-16]!
    ldp     x2, x3, [x0, #CTX_PC]
    msr     elr_el2, x2
    msr     spsr_el2, x3
    ldp     x2, x3, [x0, #16]
    ldp     x4, x5, [x0, #32]
    ldp     x6, x7, [x0, #48]
    ldp     x8, x9, [x0, #64]
    ldp     x10, x11, [x0, #80]
    ldp     x12, x13, [x0, #96]
    ldp     x14, x15, [x0, #112]
    ldp     x16, x17, [x0, #128]
    ldp     x18, x19, [x0, #144]
    ldp     x20, x21, [x0, #160]
    ldp     x22, x23, [x0, #176]
    ldp     x24, x25, [x0, #192]
    ldp     x26, x27, [x0, #208]
    ldp     x28, x29, [x0, #224]
    ldr     x30, [x0, #240]
    ldp     x0, x1, [x0]
    eret
    dsb     nsh                     // no speculation past the return
    isb

// guest_exit: the guest has left for reason \code.
    .macro guest_exit code
    stp     x0, x1, [sp, #-16]!
    ldr     x0, [sp, #16]
    stp     x2, x3, [x0, #16]
    mov     x1, #\code
    b       guest_leave
    .endm

// guest_exit_mitigated: as guest_exit, on a CPU whose branch history EL2 must not inherit from a
// guest (CVE-2022-23960): so many taken branches push the guest's out.
    .macro guest_exit_mitigated code
    stp     x0, x1, [sp, #-16]!
    ldr     x0, [sp, #16]
    stp     x2, x3, [x0, #16]
    mov     x1, #\code
    b       forget_branches
    .endm

forget_branches:
    adrp    x2, branch_history
    ldr     w2, [x2, :lo12:branch_history]
1:  b       2f
2:  subs    w2, w2, #1
    b.ne    1b
    dsb     nsh
    isb
    b       guest_leave

    .balign 64
guest_leave:
    stp     x4, x5, [x0, #32]
    stp     x6, x7, [x0, #48]
    stp     x8, x9, [x0, #64]
    stp     x10, x11, [x0, #80]
    stp     x12, x13, [x0, #96]
    stp     x14, x15, [x0, #112]
    stp     x16, x17, [x0, #128]
    stp     x18, x19, [x0, #144]
    stp     x20, x21, [x0, #160]
    stp     x22, x23, [x0, #176]
    stp     x24, x25, [x0, #192]
    stp     x26, x27, [x0, #208]
    stp     x28, x29, [x0, #224]
    str     x30, [x0, #240]
    ldp     x2, x3, [sp], #32       // the guest's x0 and x1, and the context's address
    stp     x2, x3, [x0]
    mrs     x2, elr_el2
    mrs     x3, spsr_el2
    stp     x2, x3, [x0, #CTX_PC]
    mov     x0, x1
    ldp     x19, x20, [sp, #80]
    ldp     x21, x22, [sp, #64]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #32]
    ldp     x27, x28, [sp, #16]
    ldp     x29, x30, [sp], #FRAME
    ret

// hypervisor_fault: EL2 itself took an exception; \code says which vector. The registers go on
// the stack of the CPU as they were. Where the stack itself is at fault (its guard page), the
// second fault finds ELR inside this code and uses the emergency stack.
    .macro hypervisor_fault code
    msr     tpidr_el0, x0           // the guest's, which is lost: nothing returns from here
    mov     x0, sp
    tst     x0, #15
    b.ne    emergency\@
    mrs     x0, far_el2
    sub     x0, sp, x0
    cmp     x0, #8192               // near the stack pointer: most likely its guard
    b.lo    emergency\@
    mrs     x0, tpidr_el0
    b       2f
emergency\@:
    adrp    x0, __emergency_stack_top
    mov     sp, x0
    mrs     x0, tpidr_el0
2:  sub     sp, sp, #272
    stp     x0, x1, [sp]
    mov     x0, #\code
    b       hypervisor_fault_dump
    .endm

hypervisor_fault_dump:
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x19, [sp, #144]
    stp     x20, x21, [sp, #160]
    stp     x22, x23, [sp, #176]
    stp     x24, x25, [sp, #192]
    stp     x26, x27, [sp, #208]
    stp     x28, x29, [sp, #224]
    mrs     x2, elr_el2
    stp     x30, x2, [sp, #240]
    mrs     x2, spsr_el2
    str     x2, [sp, #256]
    mov     x1, sp
    b       hypervisor_fault_report // (vector, &GuestContext) -> !

    .macro vector kind, code
    .balign 128
    \kind   \code
    .endm

    .macro vectors exit
    vector  hypervisor_fault 0      // current EL, SP_EL0
    vector  hypervisor_fault 1
    vector  hypervisor_fault 2
    vector  hypervisor_fault 3
    vector  hypervisor_fault 4      // current EL, SP_EL2
    vector  hypervisor_fault 5
    vector  hypervisor_fault 6
    vector  hypervisor_fault 7
    vector  \exit 0                 // lower EL, AArch64
    vector  \exit 1
    vector  \exit 2
    vector  \exit 3
    vector  \exit 4                 // lower EL, AArch32
    vector  \exit 4
    vector  \exit 4
    vector  \exit 4
    .endm

    .section .text.vectors, "ax"
    .balign 2048
    .global el2_vectors
el2_vectors:
    vectors guest_exit
    .balign 2048
    .global el2_vectors_mitigated
el2_vectors_mitigated:
    vectors guest_exit_mitigated

    .section .data
    .balign 4
branch_history:
    .word   0                       // branches that guest_exit_mitigated takes
    .global branch_history
    .text
