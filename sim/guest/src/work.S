// Parameters, 64-bit words at PARAMETERS, which the test has QEMU write there:
//   0x00 CPUs   0x08 array of CPU 0   0x10 bytes of each array, a multiple of 64
//   0x18 passes over it   0x20 from one CPU's array to the next
//   0x28 blocks of 64 instructions after that
//   0x30 the counter window, or 0   0x38 the threshold to write there
// Results: 0x80 the word of the window at 0x88, read after the work.
// 0x400, 0x800: flags of the CPUs that are ready and done, on a line each. 0xc00: "go".
.equ PARAMETERS, 0x40300000
.equ THRESHOLD, 4 * 8

.section .text.start, "ax"
.global start
start:
    ldr     x19, =PARAMETERS
    ldr     x24, [x19]
    mov     x25, #0
    ldr     x0, [x19, #0x30]
    cbz     x0, 0f
    ldr     x1, [x19, #0x38]
    str     w1, [x0, #THRESHOLD]
0:  mov     x26, #1                 // PSCI CPU_ON for each other CPU
1:  cmp     x26, x24
    b.hs    2f
    ldr     x0, =0xc4000003
    mov     x1, x26
    adr     x2, secondary
    mov     x3, x26
    hvc     #0
    add     x26, x26, #1
    b       1b
2:  mov     x27, #0x400
    bl      wait_for_others
    mov     x0, #0                  // region 0 begins
    hint    #96
    mov     x1, #1
    str     x1, [x19, #0xc00]
    bl      work
    mov     x27, #0x800
    bl      wait_for_others
    mov     x0, #0
    hint    #97
    ldr     x1, [x19, #0x88]
    cbz     x1, 3f
    ldr     w2, [x1]
    str     x2, [x19, #0x80]
3:  ldr     x0, =0x84000008         // PSCI SYSTEM_OFF
    hvc     #0
4:  b       4b

secondary:
    mov     x25, x0
    ldr     x19, =PARAMETERS
    mov     x1, #1
    add     x28, x19, x25, lsl #6
    str     x1, [x28, #0x400]
1:  ldr     x2, [x19, #0xc00]
    cbz     x2, 1b
    bl      work
    mov     x1, #1
    str     x1, [x28, #0x800]
2:  wfi
    b       2b

// Waits until the flags at x27 of all other CPUs are set.
wait_for_others:
    mov     x1, #1
1:  cmp     x1, x24
    b.hs    3f
    add     x2, x19, x1, lsl #6
    add     x2, x2, x27
2:  ldr     x3, [x2]
    cbz     x3, 2b
    add     x1, x1, #1
    b       1b
3:  ret

// The work of CPU x25.
work:
    ldp     x20, x21, [x19, #0x08]
    ldp     x22, x23, [x19, #0x18]
    madd    x20, x25, x23, x20
    ldr     x23, [x19, #0x28]
    add     x2, x20, x21
    cbz     x22, 3f
1:  mov     x1, x20
2:  ldr     x3, [x1]
    add     x1, x1, #64
    cmp     x1, x2
    b.lo    2b
    subs    x22, x22, #1
    b.ne    1b
3:  cbz     x23, 5f
4:  .rept 62
    nop
    .endr
    subs    x23, x23, #1
    b.ne    4b
5:  ret
