//! Devices whose driver is gone: from here on they neither write memory nor raise interrupts.

use crate::mmio::{self, Register};
use model_addr::PaRange;

/// Bytes of a function's configuration space, and functions of a device and of a bus.
const FUNCTION: u64 = 4096;
const FUNCTIONS: u64 = 8;
const BUS: u64 = 256;
/// Bit 2 of the command register: the function may write memory, and so send messages.
const MASTER: u16 = 1 << 2;
/// Where a virtio-mmio transport says what it is, and where its status is.
const MAGIC_VALUE: u32 = 0x7472_6976;
const STATUS: u64 = 0x70;

fn register<T>(window: PaRange, at: u64) -> Register<T> {
    mmio::register(window.start, at as usize)
}

/// Takes the mastery of the bus from all functions of a PCI host, with configuration space `ecam`.
///
/// # Safety
///
/// EL2 has mapped it as Device memory, and no driver uses those functions any more.
pub unsafe fn silence_pci(ecam: PaRange) {
    let mut is_bus = [false; 256];
    is_bus[0] = true;
    for bus in 0..(ecam.size / (BUS * FUNCTION)).min(256) {
        let mut functions = if is_bus[bus as usize] { 0..BUS } else { 0..0 };
        while let Some(function) = functions.next() {
            let at = (bus * BUS + function) * FUNCTION;
            // SAFETY: registers of the configuration space (PCI 3.0, 6.1 and 6.2), by the caller's promise.
            let (id, kind) = unsafe {
                let kind = register::<u8>(ecam, at + 0xe).read_volatile();
                (register::<u16>(ecam, at).read_volatile(), kind)
            };
            let is_first = function % FUNCTIONS == 0;
            if is_first && (id == u16::MAX || kind & 0x80 == 0) {
                // There are no other functions in this device.
                functions.start = function + FUNCTIONS;
            }
            if id == u16::MAX {
                continue;
            }
            // SAFETY: as above.
            unsafe {
                let command = register::<u16>(ecam, at + 4);
                command.write_volatile(command.read_volatile() & !MASTER);
                if kind & 0x7f == 1 {
                    let behind = register::<u8>(ecam, at + 0x19).read_volatile();
                    is_bus[usize::from(behind)] = true;
                }
            }
        }
    }
}

/// Resets the device behind a virtio-mmio transport, if there is one (virtio 4.2.2).
///
/// # Safety
///
/// As [`silence_pci`].
pub unsafe fn silence_virtio(transport: PaRange) {
    // SAFETY: the caller's promise.
    unsafe {
        if register::<u32>(transport, 0).read_volatile() == MAGIC_VALUE {
            register::<u32>(transport, STATUS).write_volatile(0);
        }
    }
}
