// Floating-point and SIMD registers of a guest. The assembler is told of them here only: EL2 is
// built without.

    .arch_extension fp
    .arch_extension simd

// fp_save(x0 = &mut FpState)
    .global fp_save
fp_save:
    stp     q0, q1, [x0, #0]
    stp     q2, q3, [x0, #32]
    stp     q4, q5, [x0, #64]
    stp     q6, q7, [x0, #96]
    stp     q8, q9, [x0, #128]
    stp     q10, q11, [x0, #160]
    stp     q12, q13, [x0, #192]
    stp     q14, q15, [x0, #224]
    stp     q16, q17, [x0, #256]
    stp     q18, q19, [x0, #288]
    stp     q20, q21, [x0, #320]
    stp     q22, q23, [x0, #352]
    stp     q24, q25, [x0, #384]
    stp     q26, q27, [x0, #416]
    stp     q28, q29, [x0, #448]
    stp     q30, q31, [x0, #480]
    mrs     x1, fpsr
    mrs     x2, fpcr
    str     x1, [x0, #512]
    str     x2, [x0, #520]
    ret

// fp_load(x0 = &FpState)
    .global fp_load
fp_load:
    ldp     q0, q1, [x0, #0]
    ldp     q2, q3, [x0, #32]
    ldp     q4, q5, [x0, #64]
    ldp     q6, q7, [x0, #96]
    ldp     q8, q9, [x0, #128]
    ldp     q10, q11, [x0, #160]
    ldp     q12, q13, [x0, #192]
    ldp     q14, q15, [x0, #224]
    ldp     q16, q17, [x0, #256]
    ldp     q18, q19, [x0, #288]
    ldp     q20, q21, [x0, #320]
    ldp     q22, q23, [x0, #352]
    ldp     q24, q25, [x0, #384]
    ldp     q26, q27, [x0, #416]
    ldp     q28, q29, [x0, #448]
    ldp     q30, q31, [x0, #480]
    ldr     x1, [x0, #512]
    ldr     x2, [x0, #520]
    msr     fpsr, x1
    msr     fpcr, x2
    ret

    .arch_extension sve

// sve_save(x0 = room for z0 to z31, p0 to p15 and FFR)
    .global sve_save
sve_save:
    str     z0, [x0, #0, mul vl]
    str     z1, [x0, #1, mul vl]
    str     z2, [x0, #2, mul vl]
    str     z3, [x0, #3, mul vl]
    str     z4, [x0, #4, mul vl]
    str     z5, [x0, #5, mul vl]
    str     z6, [x0, #6, mul vl]
    str     z7, [x0, #7, mul vl]
    str     z8, [x0, #8, mul vl]
    str     z9, [x0, #9, mul vl]
    str     z10, [x0, #10, mul vl]
    str     z11, [x0, #11, mul vl]
    str     z12, [x0, #12, mul vl]
    str     z13, [x0, #13, mul vl]
    str     z14, [x0, #14, mul vl]
    str     z15, [x0, #15, mul vl]
    str     z16, [x0, #16, mul vl]
    str     z17, [x0, #17, mul vl]
    str     z18, [x0, #18, mul vl]
    str     z19, [x0, #19, mul vl]
    str     z20, [x0, #20, mul vl]
    str     z21, [x0, #21, mul vl]
    str     z22, [x0, #22, mul vl]
    str     z23, [x0, #23, mul vl]
    str     z24, [x0, #24, mul vl]
    str     z25, [x0, #25, mul vl]
    str     z26, [x0, #26, mul vl]
    str     z27, [x0, #27, mul vl]
    str     z28, [x0, #28, mul vl]
    str     z29, [x0, #29, mul vl]
    str     z30, [x0, #30, mul vl]
    str     z31, [x0, #31, mul vl]
    addvl   x1, x0, #16
    addvl   x1, x1, #16
    str     p0, [x1, #0, mul vl]
    str     p1, [x1, #1, mul vl]
    str     p2, [x1, #2, mul vl]
    str     p3, [x1, #3, mul vl]
    str     p4, [x1, #4, mul vl]
    str     p5, [x1, #5, mul vl]
    str     p6, [x1, #6, mul vl]
    str     p7, [x1, #7, mul vl]
    str     p8, [x1, #8, mul vl]
    str     p9, [x1, #9, mul vl]
    str     p10, [x1, #10, mul vl]
    str     p11, [x1, #11, mul vl]
    str     p12, [x1, #12, mul vl]
    str     p13, [x1, #13, mul vl]
    str     p14, [x1, #14, mul vl]
    str     p15, [x1, #15, mul vl]
    rdffr   p0.b
    str     p0, [x1, #16, mul vl]
    ldr     p0, [x1, #0, mul vl]
    ret

// sve_load(x0 = what sve_save filled)
    .global sve_load
sve_load:
    addvl   x1, x0, #16
    addvl   x1, x1, #16
    ldr     p0, [x1, #16, mul vl]
    wrffr   p0.b
    ldr     p0, [x1, #0, mul vl]
    ldr     p1, [x1, #1, mul vl]
    ldr     p2, [x1, #2, mul vl]
    ldr     p3, [x1, #3, mul vl]
    ldr     p4, [x1, #4, mul vl]
    ldr     p5, [x1, #5, mul vl]
    ldr     p6, [x1, #6, mul vl]
    ldr     p7, [x1, #7, mul vl]
    ldr     p8, [x1, #8, mul vl]
    ldr     p9, [x1, #9, mul vl]
    ldr     p10, [x1, #10, mul vl]
    ldr     p11, [x1, #11, mul vl]
    ldr     p12, [x1, #12, mul vl]
    ldr     p13, [x1, #13, mul vl]
    ldr     p14, [x1, #14, mul vl]
    ldr     p15, [x1, #15, mul vl]
    ldr     z0, [x0, #0, mul vl]
    ldr     z1, [x0, #1, mul vl]
    ldr     z2, [x0, #2, mul vl]
    ldr     z3, [x0, #3, mul vl]
    ldr     z4, [x0, #4, mul vl]
    ldr     z5, [x0, #5, mul vl]
    ldr     z6, [x0, #6, mul vl]
    ldr     z7, [x0, #7, mul vl]
    ldr     z8, [x0, #8, mul vl]
    ldr     z9, [x0, #9, mul vl]
    ldr     z10, [x0, #10, mul vl]
    ldr     z11, [x0, #11, mul vl]
    ldr     z12, [x0, #12, mul vl]
    ldr     z13, [x0, #13, mul vl]
    ldr     z14, [x0, #14, mul vl]
    ldr     z15, [x0, #15, mul vl]
    ldr     z16, [x0, #16, mul vl]
    ldr     z17, [x0, #17, mul vl]
    ldr     z18, [x0, #18, mul vl]
    ldr     z19, [x0, #19, mul vl]
    ldr     z20, [x0, #20, mul vl]
    ldr     z21, [x0, #21, mul vl]
    ldr     z22, [x0, #22, mul vl]
    ldr     z23, [x0, #23, mul vl]
    ldr     z24, [x0, #24, mul vl]
    ldr     z25, [x0, #25, mul vl]
    ldr     z26, [x0, #26, mul vl]
    ldr     z27, [x0, #27, mul vl]
    ldr     z28, [x0, #28, mul vl]
    ldr     z29, [x0, #29, mul vl]
    ldr     z30, [x0, #30, mul vl]
    ldr     z31, [x0, #31, mul vl]
    ret

    .arch_extension nosve
    .arch_extension nosimd
    .arch_extension nofp
