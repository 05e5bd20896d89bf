// Bulk work on frames. EL2 leaves the guest's SIMD registers alone, but for bytes_copy_wide, which
// leaves them as they were.

// frame_zero_clean(x0 = first byte, x1 = frames)
// DC ZVA zeroes a block (DCZID_EL0.BS), DC CIVAC cleans each cache line of it to the point of
// coherency. The common case of 64-byte blocks and lines is unrolled to four frames.
    .global frame_zero_clean
frame_zero_clean:
    cbz     x1, 9f
    mrs     x2, dczid_el0
    mrs     x3, ctr_el0
    ubfx    x3, x3, #16, #4
    and     w4, w2, #0x1f
    cmp     w4, #4                  // DZP clear and 64-byte blocks
    ccmp    w3, #4, #0, eq          // 64-byte lines
    b.ne    5f
    .macro zero_clean_lines count
    .rept \count
    dc      zva, x0
    dc      civac, x0
    add     x0, x0, #64
    .endr
    .endm
    tbz     x1, #0, 2f
    zero_clean_lines 64
    subs    x1, x1, #1
    b.eq    4f
2:  tbz     x1, #1, 3f
    zero_clean_lines 128
    subs    x1, x1, #2
    b.eq    4f
3:  zero_clean_lines 256            // four frames
    subs    x1, x1, #4
    b.ne    3b
4:  dsb     ish
    ret
5:  // Any block and line size: stores, then cleaning by lines.
    mov     x5, #4
    lsl     x5, x5, x3              // line size in bytes
    add     x6, x0, x1, lsl #12     // end
    mov     x7, x0
6:  stp     xzr, xzr, [x7], #16
    cmp     x7, x6
    b.lo    6b
7:  dc      civac, x0
    add     x0, x0, x5
    cmp     x0, x6
    b.lo    7b
    dsb     ish
9:  ret

// memcpy and bytes_copy(x0 = to, x1 = from, x2 = bytes): memory of any alignment, apart; x0 stays. The compiler's own
// builds each word of an odd place from two. While the MMU is off, all memory is Device memory, which refuses odd accesses.
    .global memcpy
    .global bytes_copy
memcpy:
bytes_copy:
    orr     x3, x0, x1
    mov     x11, x0
    tst     x3, #7
    b.ne    9f
1:  subs    x2, x2, #64
    b.lo    3f
2:  ldp     x3, x4, [x1], #64
    ldp     x5, x6, [x1, #-48]
    ldp     x7, x8, [x1, #-32]
    ldp     x9, x10, [x1, #-16]
    stp     x3, x4, [x11], #64
    stp     x5, x6, [x11, #-48]
    stp     x7, x8, [x11, #-32]
    stp     x9, x10, [x11, #-16]
    subs    x2, x2, #64
    b.hs    2b
3:  tbz     x2, #5, 4f
    ldp     x3, x4, [x1], #32
    ldp     x5, x6, [x1, #-16]
    stp     x3, x4, [x11], #32
    stp     x5, x6, [x11, #-16]
4:  tbz     x2, #4, 5f
    ldp     x3, x4, [x1], #16
    stp     x3, x4, [x11], #16
5:  tbz     x2, #3, 6f
    ldr     x3, [x1], #8
    str     x3, [x11], #8
6:  tbz     x2, #2, 7f
    ldr     w3, [x1], #4
    str     w3, [x11], #4
7:  tbz     x2, #1, 8f
    ldrh    w3, [x1], #2
    strh    w3, [x11], #2
8:  tbz     x2, #0, 11f
    ldrb    w3, [x1]
    strb    w3, [x11]
    ret
9:  mrs     x3, sctlr_el2
    tbnz    x3, #0, 1b
    cbz     x2, 11f
10: ldrb    w3, [x1], #1
    strb    w3, [x11], #1
    subs    x2, x2, #1
    b.ne    10b
11: ret

// memset(x0 = to, w1 = byte, x2 = bytes): as memcpy.
    .global memset
memset:
    and     x1, x1, #0xff
    orr     x1, x1, x1, lsl #8
    orr     x1, x1, x1, lsl #16
    orr     x1, x1, x1, lsl #32
    mov     x11, x0
    tst     x0, #7
    b.ne    8f
1:  subs    x2, x2, #64
    b.lo    3f
2:  stp     x1, x1, [x11], #64
    stp     x1, x1, [x11, #-48]
    stp     x1, x1, [x11, #-32]
    stp     x1, x1, [x11, #-16]
    subs    x2, x2, #64
    b.hs    2b
3:  tbz     x2, #5, 4f
    stp     x1, x1, [x11], #32
    stp     x1, x1, [x11, #-16]
4:  tbz     x2, #4, 5f
    stp     x1, x1, [x11], #16
5:  tbz     x2, #3, 6f
    str     x1, [x11], #8
6:  tbz     x2, #2, 7f
    str     w1, [x11], #4
7:  tbz     x2, #1, 12f
    strh    w1, [x11], #2
12: tbz     x2, #0, 10f
    strb    w1, [x11]
    ret
8:  mrs     x3, sctlr_el2
    tbnz    x3, #0, 1b
    cbz     x2, 10f
9:  strb    w1, [x11], #1
    subs    x2, x2, #1
    b.ne    9b
10: ret

// bytes_copy_wide(x0 = to, x1 = from, x2 = bytes): the same by SIMD registers, whosever they are: they
// are put aside on the stack and brought back. What SVE has beyond their 128 bits is lost.
    .arch_extension fp
    .arch_extension simd
    .global bytes_copy_wide
bytes_copy_wide:
    subs    x2, x2, #512
    b.lo    2f
    mrs     x3, cptr_el2
    bic     x4, x3, #1 << 10        // TFP: no trap
    msr     cptr_el2, x4
    isb
    stp     q0, q1, [sp, #-128]!
    stp     q2, q3, [sp, #32]
    stp     q4, q5, [sp, #64]
    stp     q6, q7, [sp, #96]
    // Both pointers are moved first; the pieces are at these offsets from there.
    .macro copy_128 at
    ldp     q2, q3, [x1, #\at + 32]
    ldp     q4, q5, [x1, #\at + 64]
    ldp     q6, q7, [x1, #\at + 96]
    stp     q2, q3, [x0, #\at + 32]
    stp     q4, q5, [x0, #\at + 64]
    stp     q6, q7, [x0, #\at + 96]
    .endm
1:  ldp     q0, q1, [x1], #512
    stp     q0, q1, [x0], #512
    copy_128 -512
    .irp at, -384, -256, -128
    ldp     q0, q1, [x1, #\at]
    stp     q0, q1, [x0, #\at]
    copy_128 \at
    .endr
    subs    x2, x2, #512
    b.hs    1b
    adds    x2, x2, #512 - 64
    b.lo    4f
3:  ldp     q0, q1, [x1], #64
    ldp     q2, q3, [x1, #-32]
    stp     q0, q1, [x0], #64
    stp     q2, q3, [x0, #-32]
    subs    x2, x2, #64
    b.hs    3b
4:  add     x2, x2, #64
    ldp     q2, q3, [sp, #32]
    ldp     q4, q5, [sp, #64]
    ldp     q6, q7, [sp, #96]
    ldp     q0, q1, [sp], #128
    msr     cptr_el2, x3
    isb
    b       bytes_copy
2:  add     x2, x2, #512
    b       bytes_copy
    .arch_extension nosimd
    .arch_extension nofp

// frame_copy(x0 = to, x1 = from): one frame, in one go.
    .global frame_copy
frame_copy:
    add     x2, x0, #4096
1:  ldp     x3, x4, [x1], #64
    ldp     x5, x6, [x1, #-48]
    ldp     x7, x8, [x1, #-32]
    ldp     x9, x10, [x1, #-16]
    stp     x3, x4, [x0], #64
    stp     x5, x6, [x0, #-48]
    stp     x7, x8, [x0, #-32]
    stp     x9, x10, [x0, #-16]
    cmp     x0, x2
    b.ne    1b
    ret

// frame_equal(x0, x1): whether two frames hold the same, 1 or 0.
    .global frame_equal
frame_equal:
    add     x2, x0, #4096
1:  ldp     x3, x4, [x0], #128
    ldp     x5, x6, [x0, #-112]
    ldp     x7, x8, [x0, #-96]
    ldp     x9, x10, [x0, #-80]
    ldp     x11, x12, [x1], #128
    ldp     x13, x14, [x1, #-112]
    cmp     x3, x11
    ccmp    x4, x12, #0, eq
    ccmp    x5, x13, #0, eq
    ccmp    x6, x14, #0, eq
    ldp     x11, x12, [x1, #-96]
    ldp     x13, x14, [x1, #-80]
    ccmp    x7, x11, #0, eq
    ccmp    x8, x12, #0, eq
    ccmp    x9, x13, #0, eq
    ccmp    x10, x14, #0, eq
    ldp     x3, x4, [x0, #-64]
    ldp     x5, x6, [x0, #-48]
    ldp     x7, x8, [x0, #-32]
    ldp     x9, x10, [x0, #-16]
    ldp     x11, x12, [x1, #-64]
    ldp     x13, x14, [x1, #-48]
    ccmp    x3, x11, #0, eq
    ccmp    x4, x12, #0, eq
    ccmp    x5, x13, #0, eq
    ccmp    x6, x14, #0, eq
    ldp     x11, x12, [x1, #-32]
    ldp     x13, x14, [x1, #-16]
    ccmp    x7, x11, #0, eq
    ccmp    x8, x12, #0, eq
    ccmp    x9, x13, #0, eq
    ccmp    x10, x14, #0, eq
    b.ne    2f
    cmp     x0, x2
    b.ne    1b
2:  cset    w0, eq
    ret
