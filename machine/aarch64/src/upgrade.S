// From one image to the next, and back.

    .section .text, "ax"

// hand_over(x0 = a Handover, which begins with the way back, x1 = the new image, x2 = a mark): the image's
// first instruction with the MMU off, x0 as it is and x1 = the mark. Returns what the image goes back with.
    .global hand_over
hand_over:
    stp     x29, x30, [sp, #-96]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    adr     x9, come_back
    mov     x10, sp
    stp     x9, x10, [x0]
    mrs     x9, ttbr0_el2
    mrs     x10, tpidr_el2
    stp     x9, x10, [x0, #16]
    mrs     x9, vbar_el2
    str     x9, [x0, #32]
    dc      civac, x0               // the way back is one line
    dsb     sy
    mov     x9, x1
    mov     x1, x2
    mov     x2, x9
    b       leave_image

// x0 = the Handover, x1 = the answer; MMU off.
come_back:
    mov     x19, x0
    mov     x20, x1
    bl      early_state
    ldr     x0, [x19, #16]
    bl      enable_mmu
    ldp     x9, x10, [x19, #24]
    msr     tpidr_el2, x9
    msr     vbar_el2, x10
    ldr     x9, [x19, #8]
    mov     sp, x9
    mov     x0, x20
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #96
    ret

// go_back(x0 = the Handover, x1 = the answer): the old image's come_back.
    .global go_back
go_back:
    ldr     x2, [x0]

// leave_image(x0, x1, x2 = an instruction): there, with the MMU off. EL2's code is mapped one to one.
    .global leave_image
leave_image:
    ldr     x9, =0x30c50830         // SCTLR_EL2, as early_state has it
    msr     sctlr_el2, x9
    isb
    ic      iallu
    dsb     nsh
    isb
    br      x2
    .ltorg
