//! The virtio-mmio front, version 2 (virtio 4.2): a window of registers.

use crate::transport::{Causes, DeviceCore, Effect};

const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "UNDP": virtio leaves the vendor to itself.
const VENDOR: u32 = 0x5044_4e55;

/// Registers of this front alone (virtio 4.2.2).
mod own {
    pub const MAGIC_VALUE: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const VENDOR_ID: u64 = 0x00c;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const SHM_LEN_LOW: u64 = 0x0b0;
    pub const SHM_BASE_HIGH: u64 = 0x0bc;
    pub const CONFIG: u64 = 0x100;
}

/// A device behind a window of registers.
pub trait Window: DeviceCore {
    /// A load of `size` bytes at `offset` into the register window. Registers are 32 bits wide,
    /// the configuration space is read by any width; anything else reads as zero.
    #[inline]
    fn read(&self, offset: u64, size: usize) -> u64 {
        if let Some(at) = offset.checked_sub(own::CONFIG) {
            let mut bytes = [0; 8];
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let config = self.config().get(at..).unwrap_or_default();
            let n = size.min(bytes.len()).min(config.len());
            bytes[..n].copy_from_slice(&config[..n]);
            return u64::from_le_bytes(bytes);
        }
        u64::from(match offset {
            _ if size != 4 => 0,
            own::MAGIC_VALUE => MAGIC,
            own::VERSION => VERSION,
            own::VENDOR_ID => VENDOR,
            own::INTERRUPT_STATUS => self.causes().difference(Causes::QUEUES).bits(),
            // No shared memory region exists: each has length and base -1 (virtio 4.2.2.1).
            own::SHM_LEN_LOW..=own::SHM_BASE_HIGH => u32::MAX,
            _ => self.load(offset),
        })
    }

    /// A store of `size` bytes of `value` at `offset` into the register window. What is not a
    /// 32-bit store to a writable register, or one of 32 bits or less to the configuration space,
    /// is ignored.
    #[inline]
    fn write(&mut self, offset: u64, size: usize, value: u64) -> Effect {
        if let Some(at) = offset.checked_sub(own::CONFIG) {
            if let (Ok(at), 1 | 2 | 4) = (usize::try_from(at), size) {
                self.write_config(at, &value.to_le_bytes()[..size]);
            }
        } else if size == 4 && offset == own::INTERRUPT_ACK {
            self.acknowledge(Causes::from_bits_truncate(value as u32));
        } else if size == 4 {
            return self.store(offset, value as u32);
        }
        Effect::None
    }
}

impl<C: DeviceCore + ?Sized> Window for C {}
