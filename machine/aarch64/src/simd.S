// simd_call(x0 = argument, x1 = function): calls a function that uses the SIMD registers, whosever they are: they are put
// aside on the stack and brought back. What SVE has beyond their 128 bits is lost.
    .arch_extension fp
    .arch_extension simd
    .global simd_call
simd_call:
    mrs     x2, cptr_el2
    stp     x2, x30, [sp, #-16]!
    bic     x2, x2, #1 << 10        // TFP: no trap
    msr     cptr_el2, x2
    isb
    stp     q0, q1, [sp, #-512]!
    stp     q2, q3, [sp, #32]
    stp     q4, q5, [sp, #64]
    stp     q6, q7, [sp, #96]
    stp     q8, q9, [sp, #128]
    stp     q10, q11, [sp, #160]
    stp     q12, q13, [sp, #192]
    stp     q14, q15, [sp, #224]
    stp     q16, q17, [sp, #256]
    stp     q18, q19, [sp, #288]
    stp     q20, q21, [sp, #320]
    stp     q22, q23, [sp, #352]
    stp     q24, q25, [sp, #384]
    stp     q26, q27, [sp, #416]
    stp     q28, q29, [sp, #448]
    stp     q30, q31, [sp, #480]
    blr     x1
    ldp     q2, q3, [sp, #32]
    ldp     q4, q5, [sp, #64]
    ldp     q6, q7, [sp, #96]
    ldp     q8, q9, [sp, #128]
    ldp     q10, q11, [sp, #160]
    ldp     q12, q13, [sp, #192]
    ldp     q14, q15, [sp, #224]
    ldp     q16, q17, [sp, #256]
    ldp     q18, q19, [sp, #288]
    ldp     q20, q21, [sp, #320]
    ldp     q22, q23, [sp, #352]
    ldp     q24, q25, [sp, #384]
    ldp     q26, q27, [sp, #416]
    ldp     q28, q29, [sp, #448]
    ldp     q30, q31, [sp, #480]
    ldp     q0, q1, [sp], #512
    ldp     x2, x30, [sp], #16
    msr     cptr_el2, x2
    isb
    ret
    .arch_extension nosimd
    .arch_extension nofp
