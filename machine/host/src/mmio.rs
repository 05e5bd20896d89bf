//! Registers of devices: accesses go to the models in [`crate::machine`].

use crate::machine;
use core::marker::PhantomData;
use model_addr::Pa;
use safe_mmio::{MmioOps, set_mmio_ops};

/// A register of `T`, with the methods of a raw pointer that the drivers use.
pub(crate) struct Register<T> {
    at: u64,
    kind: PhantomData<T>,
}

impl<T> Clone for Register<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Register<T> {}

/// The register that is `offset` bytes behind the first one of a frame.
pub(crate) fn register<T>(frame: Pa, offset: usize) -> Register<T> {
    Register {
        at: frame.0 + offset as u64,
        kind: PhantomData,
    }
}

/// An unsigned integer of a register's size.
pub(crate) trait Word: Copy {
    fn of(value: u64) -> Self;
    fn value(self) -> u64;
}

macro_rules! words {
    ($($kind:ty),*) => { $(
        impl Word for $kind {
            fn of(value: u64) -> Self {
                value as $kind
            }
            fn value(self) -> u64 {
                self as u64
            }
        }
    )* };
}
words!(u8, u16, u32, u64);

impl<T> Register<T> {
    /// The same place as a register of `U`.
    pub(crate) const fn cast<U>(self) -> Register<U> {
        Register {
            at: self.at,
            kind: PhantomData,
        }
    }

    /// The register that is `count` of `T` behind.
    ///
    /// # Safety
    /// As of a pointer; here nothing can go wrong.
    pub(crate) const unsafe fn add(self, count: usize) -> Self {
        Self {
            at: self.at + (count * size_of::<T>()) as u64,
            kind: PhantomData,
        }
    }
}

impl<T: Word> Register<T> {
    /// Reads it.
    ///
    /// # Safety
    /// As of a pointer; here nothing can go wrong.
    pub(crate) unsafe fn read_volatile(self) -> T {
        T::of(read(self.at, size_of::<T>()))
    }

    /// Writes it.
    ///
    /// # Safety
    /// As of a pointer; here nothing can go wrong.
    pub(crate) unsafe fn write_volatile(self, value: T) {
        write(self.at, size_of::<T>(), value.value());
    }
}

fn read(at: u64, size: usize) -> u64 {
    machine::step();
    machine::with(|machine| machine.read_device(at, size))
}

fn write(at: u64, size: usize, value: u64) {
    machine::step();
    machine::with(|machine| machine.write_device(at, size, value));
}

/// The accesses of `virtio-drivers`.
struct Devices;

impl MmioOps for Devices {
    unsafe fn read_u8(from: *const u8) -> u8 {
        read(from.addr() as u64, 1) as u8
    }
    unsafe fn read_u16(from: *const u16) -> u16 {
        read(from.addr() as u64, 2) as u16
    }
    unsafe fn read_u32(from: *const u32) -> u32 {
        read(from.addr() as u64, 4) as u32
    }
    unsafe fn read_u64(from: *const u64) -> u64 {
        read(from.addr() as u64, 8)
    }
    unsafe fn write_u8(to: *mut u8, value: u8) {
        write(to.addr() as u64, 1, value.into());
    }
    unsafe fn write_u16(to: *mut u16, value: u16) {
        write(to.addr() as u64, 2, value.into());
    }
    unsafe fn write_u32(to: *mut u32, value: u32) {
        write(to.addr() as u64, 4, value.into());
    }
    unsafe fn write_u64(to: *mut u64, value: u64) {
        write(to.addr() as u64, 8, value);
    }
}

set_mmio_ops!(Devices);
