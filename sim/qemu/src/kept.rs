//! What a plugin keeps for its callbacks.

use crate::refuse;
use std::cell::UnsafeCell;

/// State for callbacks that come from one thread and neither overlap nor nest.
pub struct Kept<T>(UnsafeCell<Option<T>>);

// SAFETY: who calls its functions promises that no two threads use it at once.
unsafe impl<T> Sync for Kept<T> {}

impl<T> Kept<T> {
    /// Nothing yet.
    pub const fn nothing() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Keeps that.
    ///
    /// # Safety
    /// QEMU has no thread for CPUs yet, and no callback was registered.
    pub unsafe fn set(&self, value: T) {
        // SAFETY: as the caller promises, nobody else uses it.
        unsafe { *self.0.get() = Some(value) };
    }

    #[inline]
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises that nobody else has it"
    )]
    /// It, for the time of one callback. QEMU ends where there is nothing.
    ///
    /// # Safety
    /// Callbacks come from one thread, each asks once and lets go before it returns, and they neither overlap nor nest.
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: as the caller promises, nobody else uses it.
        match unsafe { &mut *self.0.get() } {
            Some(value) => value,
            None => refuse("QEMU called the plugin before it was installed"),
        }
    }
}
