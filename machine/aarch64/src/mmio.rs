//! Registers of devices, which EL2 has mapped one to one.

use core::ptr;
use model_addr::Pa;

/// A register of `T`; it is read and written volatile.
pub(crate) type Register<T> = *mut T;

/// The register that is `offset` bytes behind the first one of a frame.
pub(crate) fn register<T>(frame: Pa, offset: usize) -> Register<T> {
    ptr::with_exposed_provenance_mut(frame.0 as usize + offset)
}
