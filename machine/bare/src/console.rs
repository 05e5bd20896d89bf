//! PL011 output (Arm DDI 0183). A line of one CPU is never mixed with another's.

use core::fmt::{self, Write};
use core::hint;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::Device;
use crate::timer;

/// Offset of the data register.
pub const DATA: usize = 0x00;
/// Offset of the flag register.
pub const FLAGS: usize = 0x18;
/// Flag register: the transmit FIFO is full.
pub const TRANSMIT_FULL: u32 = 1 << 5;

/// Microseconds that last words wait for another CPU's line.
const PATIENCE: u64 = 200_000;

/// QEMU `virt`'s place, until the device tree is read.
static BASE: AtomicUsize = AtomicUsize::new(0x0900_0000);
static LOCK: AtomicBool = AtomicBool::new(false);

struct Pl011(Device);

impl Write for Pl011 {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if byte == b'\n' {
                transmit(&self.0, b'\r');
            }
            transmit(&self.0, byte);
        }
        Ok(())
    }
}

/// The UART in use.
pub fn uart() -> Device {
    // SAFETY: the PL011 of the layout, or of the device tree; not memory.
    unsafe { Device::at(BASE.load(Ordering::Relaxed), 0x1000) }
}

/// Sends one byte once the transmit FIFO has room.
#[inline]
pub fn transmit(uart: &Device, byte: u8) {
    while uart.read32(FLAGS) & TRANSMIT_FULL != 0 {
        hint::spin_loop();
    }
    uart.write32(DATA, u32::from(byte));
}

pub(crate) fn set_uart(base: usize) {
    BASE.store(base, Ordering::Relaxed);
}

/// Prints one whole line for [`println!`](crate::println). Not for interrupt handlers.
pub fn print_line(line: fmt::Arguments) {
    while LOCK.swap(true, Ordering::Acquire) {
        hint::spin_loop();
    }
    print(line);
    LOCK.store(false, Ordering::Release);
}

/// Prints although another line may never end, because its CPU faulted in it: for the last words
/// of a guest, which wait only a while.
pub(crate) fn print_last(line: fmt::Arguments) {
    let ours = timer::wait_until(PATIENCE, || !LOCK.swap(true, Ordering::Acquire));
    print(line);
    if ours {
        LOCK.store(false, Ordering::Release);
    }
}

fn print(line: fmt::Arguments) {
    // Writing to the UART cannot fail.
    let _ = Pl011(uart()).write_fmt(format_args!("{line}\n"));
}

/// Prints a line on the UART.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print_line(format_args!($($arg)*)) };
}
