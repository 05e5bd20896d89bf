// AES-128-GCM (NIST SP 800-38D) by FEAT_AES and FEAT_PMULL. All SIMD registers are used; whoever calls has put them aside.
//
// v16-v26 round keys; v10-v13 powers of H, from the first; v14, v15 both halves of each power added; v27 counter, its
// words in the order of the CPU; v28 one; v29 polynomial, in both halves; v30 hash; v31 zero; v0-v3 data.
// With the bits of each byte reversed, bit n of a block is the coefficient of x^n.

    .arch_extension fp
    .arch_extension simd
    .arch_extension crypto

// Puts the counter's block to \to, and counts on.
    .macro next_counter to
    rev32   v\to\().16b, v27.16b
    add     v27.4s, v27.4s, v28.4s
    .endm

    .macro round key, block
    aese    v\block\().16b, v\key\().16b
    aesmc   v\block\().16b, v\block\().16b
    .endm

    .macro last_round block
    aese    v\block\().16b, v25.16b
    eor     v\block\().16b, v\block\().16b, v26.16b
    .endm

    .macro rounds block
    round   16, \block
    round   17, \block
    round   18, \block
    round   19, \block
    round   20, \block
    round   21, \block
    round   22, \block
    round   23, \block
    round   24, \block
    last_round \block
    .endm

    .macro four_rounds key
    round   \key, 4
    round   \key, 5
    round   \key, 6
    round   \key, 7
    .endm

// Multiplies v7 by a power of H (Karatsuba), and adds the product to v4 (low), v5 (middle), v6 (high).
    .macro multiply h, sum, half
    ext     v8.16b, v7.16b, v7.16b, #8
    eor     v8.16b, v8.16b, v7.16b
    pmull   v9.1q, v7.1d, v\h\().1d
    eor     v4.16b, v4.16b, v9.16b
    pmull2  v9.1q, v7.2d, v\h\().2d
    eor     v6.16b, v6.16b, v9.16b
    .ifc \half, low
    pmull   v9.1q, v8.1d, v\sum\().1d
    .else
    pmull2  v9.1q, v8.2d, v\sum\().2d
    .endif
    eor     v5.16b, v5.16b, v9.16b
    .endm

// As multiply, for the first of several.
    .macro multiply_first h, sum, half
    ext     v8.16b, v7.16b, v7.16b, #8
    eor     v8.16b, v8.16b, v7.16b
    pmull   v4.1q, v7.1d, v\h\().1d
    pmull2  v6.1q, v7.2d, v\h\().2d
    .ifc \half, low
    pmull   v5.1q, v8.1d, v\sum\().1d
    .else
    pmull2  v5.1q, v8.2d, v\sum\().2d
    .endif
    .endm

// The sum of products modulo x^128 + x^7 + x^2 + x + 1, to v30.
    .macro reduce
    eor     v5.16b, v5.16b, v4.16b
    eor     v5.16b, v5.16b, v6.16b
    ext     v8.16b, v31.16b, v5.16b, #8
    ext     v9.16b, v5.16b, v31.16b, #8
    eor     v4.16b, v4.16b, v8.16b
    eor     v6.16b, v6.16b, v9.16b
    pmull2  v7.1q, v6.2d, v29.2d
    ext     v8.16b, v31.16b, v7.16b, #8
    ext     v9.16b, v7.16b, v31.16b, #8
    eor     v4.16b, v4.16b, v8.16b
    eor     v6.16b, v6.16b, v9.16b
    pmull   v7.1q, v6.1d, v29.1d
    eor     v30.16b, v4.16b, v7.16b
    .endm

    .macro hash_one block
    rbit    v7.16b, v\block\().16b
    eor     v7.16b, v7.16b, v30.16b
    multiply_first 10, 14, low
    reduce
    .endm

    .macro hash_four
    rbit    v7.16b, v0.16b
    eor     v7.16b, v7.16b, v30.16b
    multiply_first 13, 15, high
    rbit    v7.16b, v1.16b
    multiply 12, 15, low
    rbit    v7.16b, v2.16b
    multiply 11, 14, high
    rbit    v7.16b, v3.16b
    multiply 10, 14, low
    reduce
    .endm

    .macro crypt_four
    next_counter 4
    next_counter 5
    next_counter 6
    next_counter 7
    four_rounds 16
    four_rounds 17
    four_rounds 18
    four_rounds 19
    four_rounds 20
    four_rounds 21
    four_rounds 22
    four_rounds 23
    four_rounds 24
    last_round 4
    last_round 5
    last_round 6
    last_round 7
    eor     v0.16b, v0.16b, v4.16b
    eor     v1.16b, v1.16b, v5.16b
    eor     v2.16b, v2.16b, v6.16b
    eor     v3.16b, v3.16b, v7.16b
    .endm

    .macro load_round_keys from
    ld1     {v16.16b - v19.16b}, [\from], #64
    ld1     {v20.16b - v23.16b}, [\from], #64
    ld1     {v24.16b - v26.16b}, [\from], #48
    .endm

    .macro load_constants
    movi    v31.16b, #0
    mov     x9, #0x87
    dup     v29.2d, x9
    .endm

// gcm_key(x0 = Key that begins with the key): round keys, powers of H, their halves added.
    .global gcm_key
gcm_key:
    load_constants
    ldp     w2, w3, [x0]
    ldp     w4, w5, [x0, #8]
    mov     w6, #1
    mov     w7, #10
    mov     x8, x0
1:  stp     w2, w3, [x8], #16
    stp     w4, w5, [x8, #-8]
    cbz     w7, 2f
    dup     v0.4s, w5
    aese    v0.16b, v31.16b         // equal columns, so that only bytes are substituted
    mov     w9, v0.s[0]
    eor     w9, w6, w9, ror #8
    eor     w2, w2, w9
    eor     w3, w3, w2
    eor     w4, w4, w3
    eor     w5, w5, w4
    lsl     w6, w6, #1
    mov     w9, #0x11b
    eor     w9, w6, w9
    tst     w6, #0x100
    csel    w6, w6, w9, eq
    sub     w7, w7, #1
    b       1b
2:  load_round_keys x0
    movi    v0.16b, #0
    rounds  0
    rbit    v10.16b, v0.16b
    ext     v14.16b, v10.16b, v10.16b, #8
    eor     v14.16b, v14.16b, v10.16b
    mov     v30.16b, v10.16b
    .macro next_power to
    mov     v7.16b, v30.16b
    multiply_first 10, 14, low
    reduce
    mov     v\to\().16b, v30.16b
    .endm
    next_power 11
    next_power 12
    next_power 13
    .macro add_halves to, one, other
    ext     v0.16b, v\one\().16b, v\one\().16b, #8
    eor     v\to\().16b, v0.16b, v\one\().16b
    ext     v0.16b, v\other\().16b, v\other\().16b, #8
    eor     v0.16b, v0.16b, v\other\().16b
    mov     v\to\().d[1], v0.d[1]
    .endm
    add_halves 14, 10, 11
    add_halves 15, 12, 13
    st1     {v10.16b - v13.16b}, [x0], #64
    st1     {v14.16b - v15.16b}, [x0]
    ret

// gcm_run(x0 = job): see Job in gcm.rs.
    .global gcm_run
gcm_run:
    load_constants
    ldp     x1, x2, [x0]            // key, associated data
    ldp     x3, x4, [x0, #16]       // its blocks, body
    ldp     x5, x6, [x0, #32]       // whole blocks of the body, whether to open
    load_round_keys x1
    ld1     {v10.16b - v13.16b}, [x1], #64
    ld1     {v14.16b - v15.16b}, [x1]
    movi    v30.16b, #0
    mov     w9, #1
    movi    v28.16b, #0
    mov     v28.s[3], w9
    ldr     q27, [x0, #96]
    rev32   v27.16b, v27.16b
    add     v27.4s, v27.4s, v28.4s  // the first counter is for the tag
1:  cbz     x3, 2f
    ldr     q0, [x2], #16
    hash_one 0
    sub     x3, x3, #1
    b       1b
2:  cbnz    x6, 5f
3:  subs    x5, x5, #4              // seal
    b.lo    4f
    ld1     {v0.16b - v3.16b}, [x4]
    crypt_four
    st1     {v0.16b - v3.16b}, [x4], #64
    hash_four
    b       3b
5:  subs    x5, x5, #4              // open
    b.lo    4f
    ld1     {v0.16b - v3.16b}, [x4]
    hash_four
    crypt_four
    st1     {v0.16b - v3.16b}, [x4], #64
    b       5b
4:  add     x5, x5, #4
6:  cbz     x5, 7f
    ldr     q0, [x4]
    next_counter 1
    rounds  1
    eor     v1.16b, v1.16b, v0.16b
    str     q1, [x4], #16
    cbnz    x6, 8f
    mov     v0.16b, v1.16b
8:  hash_one 0
    sub     x5, x5, #1
    b       6b
7:  ldr     x7, [x0, #128]
    cbz     x7, 9f
    ldp     q0, q2, [x0, #48]       // tail and its mask
    next_counter 1
    rounds  1
    eor     v1.16b, v1.16b, v0.16b
    and     v1.16b, v1.16b, v2.16b
    str     q1, [x0, #48]
    cbnz    x6, 8f
    mov     v0.16b, v1.16b
8:  hash_one 0
9:  ldr     q0, [x0, #80]           // lengths
    hash_one 0
    rbit    v30.16b, v30.16b
    ldr     q1, [x0, #96]
    rounds  1
    eor     v1.16b, v1.16b, v30.16b
    str     q1, [x0, #112]
    ret
    .arch_extension nocrypto
    .arch_extension nosimd
    .arch_extension nofp
