// The image's first bytes (Linux, Documentation/arch/arm64/booting.rst), and where CPUs start.

    .section .text.head, "ax"
    .global _start
_start:
    b       primary_start           // code0
    .long   0                       // code1
    .quad   0x200000                // text_offset
    .quad   __image_size            // image_size, zeroed data included
    .quad   0xa                     // flags: little-endian, 4 KiB pages, anywhere in memory
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .long   0
    .ascii  "UNDERPIN"              // abi::upgrade::Mark, filled in when the image is made
    .fill   56, 1, 0

    .section .text.boot, "ax"
// x0 = device tree, x1 = 0; or what abi::upgrade says. MMU off, EL2 (anything else: sleep for ever, there
// is nobody to tell).
primary_start:
    msr     daifset, #0xf
    mov     x20, x1
    mrs     x1, CurrentEL
    cmp     x1, #(2 << 2)
    b.ne    hang
    mov     x19, x0
    adrp    x1, __boot_stack_top
    mov     sp, x1
    bl      early_state
    // The image is linked at 0 and may lie anywhere: apply its relative relocations.
    adrp    x0, __image_start
    adrp    x1, __rela_start
    add     x1, x1, :lo12:__rela_start
    adrp    x2, __rela_end
    add     x2, x2, :lo12:__rela_end
1:  cmp     x1, x2
    b.hs    2f
    ldp     x3, x4, [x1], #16       // offset, info (always R_AARCH64_RELATIVE)
    ldr     x5, [x1], #8            // addend
    add     x5, x5, x0
    str     x5, [x0, x3]
    b       1b
2:  adrp    x1, __bss_start
    adrp    x2, __bss_end
3:  cmp     x1, x2
    b.hs    4f
    stp     xzr, xzr, [x1], #16
    b       3b
4:  mov     x0, x19
    mov     x1, x20
    mov     x29, xzr
    mov     x30, xzr
    bl      primary_main
hang:
    wfi
    b       hang

// A CPU started through PSCI. x0 = its SecondaryRecord. MMU off, EL2.
    .global secondary_start
secondary_start:
    msr     daifset, #0xf
    // The record is read and the MMU turned on without touching a stack: with caches off a push
    // would go past what other CPUs have cached.
    ldr     x22, [x0]
    ldr     x20, [x0, #8]
    ldr     x21, [x0, #16]
    bl      early_state
    msr     tpidr_el2, x21
    mov     x0, x20
    bl      enable_mmu
    mov     sp, x22
    mov     x29, xzr
    mov     x30, xzr
    bl      secondary_main
    b       hang

// enable_mmu(x0 = root table): EL2 translation and caches on. Touches no memory but x0's tree.
// MAIR: attribute 0 Normal write-back, 1 Device-nGnRE. TCR: 48 bits, walks cacheable and inner
// shareable, PS as the CPU has it (at most 48 bits). SCTLR: RES1, I, SA, C, M; alignment is not
// checked, since guests' bytes are copied wherever they lie. The map itself is W^X.
    .global enable_mmu
enable_mmu:
    ldr     x1, =0x04ff
    msr     mair_el2, x1
    mrs     x2, id_aa64mmfr0_el1
    and     x2, x2, #0xf
    cmp     x2, #5
    mov     x3, #5
    csel    x2, x2, x3, lo
    ldr     x1, =(1 << 31 | 1 << 23 | 3 << 12 | 1 << 10 | 1 << 8 | 16)
    orr     x1, x1, x2, lsl #16
    msr     tcr_el2, x1
    msr     ttbr0_el2, x0
    isb
    tlbi    alle2
    dsb     nsh
    ic      iallu
    dsb     nsh
    isb
    ldr     x1, =(0x30c50830 | 1 << 12 | 1 << 3 | 1 << 2 | 1)
    msr     sctlr_el2, x1
    isb
    ret

// What must be known before anything else happens: vectors, no traps, no MMU.
early_state:
    adrp    x1, el2_vectors
    add     x1, x1, :lo12:el2_vectors
    msr     vbar_el2, x1
    ldr     x1, =0x30c50830
    msr     sctlr_el2, x1
    mov     x1, #(1 << 31)          // HCR_EL2.RW; E2H clear
    msr     hcr_el2, x1
    msr     cnthp_ctl_el2, xzr
    isb
    ret
    .ltorg
