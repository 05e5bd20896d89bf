//! A cell that is set once and then read without a lock.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

const EMPTY: u8 = 0;
const BEING_SET: u8 = 1;
const SET: u8 = 2;

/// A value that is given once and is there for ever after. Reading it costs one load and one
/// compare.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: `set` moves a `T` in from one thread (`Send`) and `get` gives `&T` to all (`Sync`).
unsafe impl<T: Send + Sync> Sync for Once<T> {}
// SAFETY: moving the cell moves the value.
unsafe impl<T: Send> Send for Once<T> {}

impl<T> Once<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Gives `value` back where another was set, or is being set, before.
    pub fn set(&self, value: T) -> Result<(), T> {
        let first =
            self.state
                .compare_exchange(EMPTY, BEING_SET, Ordering::Acquire, Ordering::Relaxed);
        if first.is_err() {
            return Err(value);
        }
        // SAFETY: only the one caller that took the state from EMPTY to BEING_SET comes here,
        // and readers stay away until it is SET.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(SET, Ordering::Release);
        Ok(())
    }

    /// Forgets the value: the cell is empty again, and another can be set.
    ///
    /// # Safety
    /// No reference that [`Self::get`] gave is used any more, and nobody sets a value meanwhile.
    pub unsafe fn clear(&self) {
        if self.state.swap(BEING_SET, Ordering::Acquire) == SET {
            // SAFETY: SET says that the value is there, and the caller that nobody refers to it.
            unsafe { (*self.value.get()).assume_init_drop() };
        }
        self.state.store(EMPTY, Ordering::Release);
    }

    /// The value, once it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: SET is stored after the value was written, and the value is never changed or
        // dropped again while `self` is shared.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == SET {
            // SAFETY: SET says that the value is there; it is dropped here and only here.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::sync::Arc;

    #[test]
    fn the_first_value_stays() {
        let cell = Once::new();
        assert_eq!(cell.get(), None);
        assert_eq!(cell.set("one".to_string()), Ok(()));
        assert_eq!(cell.set("two".to_string()), Err("two".to_string()));
        assert_eq!(cell.get().map(String::as_str), Some("one"));
    }

    #[test]
    fn the_value_is_dropped_once() {
        let value = Arc::new(());
        let cell = Once::new();
        cell.set(value.clone()).unwrap();
        assert_eq!(Arc::strong_count(&value), 2);
        drop(cell);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(Once::<Arc<()>>::new());
    }

    #[test]
    fn a_cell_that_was_cleared_takes_another_value() {
        let value = Arc::new(());
        let cell = Once::new();
        // SAFETY: no reference to what is in the cell is used.
        unsafe { cell.clear() };
        assert!(cell.set(value.clone()).is_ok());
        // SAFETY: as above.
        unsafe { cell.clear() };
        assert_eq!((Arc::strong_count(&value), cell.get()), (1, None));
        assert!(cell.set(value).is_ok());
    }
}
