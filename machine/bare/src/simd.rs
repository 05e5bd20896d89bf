//! Patterns in the FP and SIMD registers. The compiler uses none of them (soft-float target), so
//! a pattern stays until someone else loses it.

use core::arch::global_asm;

global_asm!(
    r#"
    .arch_extension fp
    .arch_extension simd
    .text
    // x0 = pattern: vN = (pattern + N, its complement), and its low bits in FPCR and FPSR.
bare_simd_fill:
    and     x1, x0, #0xf
    lsl     x1, x1, #22
    msr     fpcr, x1
    and     x1, x0, #0x1f
    msr     fpsr, x1
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    add     x1, x0, #\n
    mvn     x2, x1
    mov     v\n\().d[0], x1
    mov     v\n\().d[1], x2
    .endr
    ret

    // x0 = pattern; gives how many registers differ.
bare_simd_check:
    mov     x3, #0
    and     x1, x0, #0xf
    lsl     x1, x1, #22
    mrs     x2, fpcr
    cmp     x1, x2
    cinc    x3, x3, ne
    and     x1, x0, #0x1f
    mrs     x2, fpsr
    cmp     x1, x2
    cinc    x3, x3, ne
    .irp    n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    add     x1, x0, #\n
    mvn     x2, x1
    mov     x4, v\n\().d[0]
    mov     x5, v\n\().d[1]
    cmp     x1, x4
    ccmp    x2, x5, #0, eq
    cinc    x3, x3, ne
    .endr
    mov     x0, x3
    ret
"#
);

unsafe extern "C" {
    fn bare_simd_fill(pattern: u64);
    fn bare_simd_check(pattern: u64) -> u64;
}

/// Fills v0 to v31, FPCR (rounding, flush to zero, default NaN) and FPSR (flags) of this CPU with
/// what follows from `pattern`.
pub fn fill(pattern: u64) {
    // SAFETY: no compiled code uses these registers.
    unsafe { bare_simd_fill(pattern) };
}

/// How many of the 34 registers do not hold what [`fill`] put there.
pub fn lost(pattern: u64) -> u64 {
    // SAFETY: reads registers.
    unsafe { bare_simd_check(pattern) }
}

/// Calls a routine that uses the SIMD registers, which nobody else uses here.
///
/// # Safety
/// The routine may be called with the argument.
pub(crate) unsafe fn call<A>(routine: unsafe extern "C" fn(*mut u8), argument: &mut A) {
    // SAFETY: the caller's promise.
    unsafe { routine(core::ptr::from_mut(argument).cast()) }
}
