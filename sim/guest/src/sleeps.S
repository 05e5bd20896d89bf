// Sleeps until the virtual timer, whose interrupt is never taken: it is pending, which ends a WFI, until the timer is
// set to a later time. The GIC is a GICv3 without security extensions (QEMU's virt).
.equ SLEEPS, 20000
.equ UART, 0x09000000
.equ GICD, 0x08000000
.equ GICR, 0x080a0000
.equ PPI, 0x08000000                // bit 27

.section .text.start, "ax"
.global start
start:
    ldr     x0, =GICD
    mov     w1, #0x12               // ARE, group 1
    str     w1, [x0]
    ldr     x0, =GICR
    str     wzr, [x0, #0x14]        // GICR_WAKER: awake
1:  ldr     w1, [x0, #0x14]
    tbnz    w1, #2, 1b
    add     x0, x0, #0x10, lsl #12  // the frame of SGIs and PPIs
    ldr     w1, =PPI
    str     w1, [x0, #0x80]         // GICR_IGROUPR0
    str     w1, [x0, #0x100]        // GICR_ISENABLER0
    mov     x1, #7
    msr     S3_0_C12_C12_5, x1      // ICC_SRE_EL1
    isb
    mov     x1, #0xff
    msr     S3_0_C4_C6_0, x1        // ICC_PMR_EL1
    mov     x1, #1
    msr     S3_0_C12_C12_7, x1      // ICC_IGRPEN1_EL1
    isb
    ldr     x19, =SLEEPS
    mov     x20, #12345             // chance
    mov     x21, #0                 // the sum
    ldr     x22, =6364136223846793005
    ldr     x23, =1442695040888963407
2:  madd    x20, x20, x22, x23
    lsr     x1, x20, #57            // up to 127 turns
3:  subs    x1, x1, #1
    b.pl    3b
    ubfx    x1, x20, #40, #8        // up to 255 counts of the counter, and 50
    add     x1, x1, #50
    msr     cntv_tval_el0, x1
    mov     x1, #1
    msr     cntv_ctl_el0, x1
    isb
    wfi
    mrs     x1, cntvct_el0
    madd    x21, x21, x22, x1
    subs    x19, x19, #1
    b.ne    2b
    ldr     x0, =UART
    mov     x3, #60
4:  lsr     x1, x21, x3             // the sum, in hexadecimal
    and     w1, w1, #15
    add     w1, w1, #'0'
    cmp     w1, #'9'
    b.ls    5f
    add     w1, w1, #('a' - '9' - 1)
5:  str     w1, [x0]
    subs    x3, x3, #4
    b.pl    4b
    ldr     x0, =0x84000008         // PSCI SYSTEM_OFF
    hvc     #0
6:  b       6b
