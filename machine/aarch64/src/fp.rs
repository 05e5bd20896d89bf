//! Floating-point, SIMD and SVE registers, into memory and out of it.

use crate::guest::FpState;
use crate::native::SVE_BYTES;
use core::arch::global_asm;

global_asm!(include_str!("fp.S"));

unsafe extern "C" {
    pub(crate) fn fp_save(state: *mut FpState);
    pub(crate) fn fp_load(state: *const FpState);
    pub(crate) fn sve_save(vectors: *mut [u8; SVE_BYTES]);
    pub(crate) fn sve_load(vectors: *const [u8; SVE_BYTES]);
}
