//! Checked access to device registers.

use core::arch::asm;

/// The registers of one device: `size` bytes from `base`, never memory.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    base: usize,
    size: usize,
}

impl Device {
    /// No device: every access to it panics.
    pub const NONE: Self = Self { base: 0, size: 0 };

    /// A device at a physical address.
    ///
    /// # Safety
    /// The range is mapped as device memory and no Rust object lies in it.
    pub const unsafe fn at(base: usize, size: usize) -> Self {
        Self { base, size }
    }

    /// Physical address of the first register.
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Bytes of registers.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The part of `size` bytes at `offset`.
    #[must_use]
    pub fn part(&self, offset: usize, size: usize) -> Self {
        assert!(
            offset.saturating_add(size) <= self.size,
            "beyond the device"
        );
        Self {
            base: self.base + offset,
            size,
        }
    }

    #[inline]
    fn address(&self, offset: usize, size: usize) -> usize {
        assert!(
            offset.saturating_add(size) <= self.size && offset.is_multiple_of(size),
            "no register at this offset"
        );
        self.base + offset
    }

    // The accesses are asm because a hypervisor decodes them: the compiler must not choose a form
    // without a syndrome (Arm ARM, ESR_EL2.ISV).

    /// Reads an 8-bit register.
    #[inline]
    pub fn read8(&self, offset: usize) -> u8 {
        let address = self.address(offset, 1);
        let value: u32;
        // SAFETY: a device register, by the contract of `at`.
        unsafe { asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
        value as u8
    }

    /// Reads a 32-bit register.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        let address = self.address(offset, 4);
        let value: u32;
        // SAFETY: a device register, by the contract of `at`.
        unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
        value
    }

    /// Reads a 64-bit register.
    #[inline]
    pub fn read64(&self, offset: usize) -> u64 {
        let address = self.address(offset, 8);
        let value: u64;
        // SAFETY: a device register, by the contract of `at`.
        unsafe { asm!("ldr {}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
        value
    }

    /// Writes an 8-bit register.
    #[inline]
    pub fn write8(&self, offset: usize, value: u8) {
        let address = self.address(offset, 1);
        // SAFETY: a device register, by the contract of `at`.
        unsafe {
            asm!("strb {:w}, [{}]", in(reg) u32::from(value), in(reg) address, options(nostack));
        }
    }

    /// Writes a 32-bit register.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        let address = self.address(offset, 4);
        // SAFETY: a device register, by the contract of `at`.
        unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack)) };
    }

    /// Writes a 64-bit register.
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        let address = self.address(offset, 8);
        // SAFETY: a device register, by the contract of `at`.
        unsafe { asm!("str {}, [{}]", in(reg) value, in(reg) address, options(nostack)) };
    }

    /// Reads two 32-bit registers by one `ldp`, which gives a hypervisor no syndrome.
    pub fn read_pair(&self, offset: usize) -> (u32, u32) {
        let address = self.address(offset, 8);
        let (low, high): (u32, u32);
        // SAFETY: two device registers, by the contract of `at`. The marks are what stays in the
        // registers when the access aborts and is skipped.
        unsafe {
            asm!("ldp {:w}, {:w}, [{}]", inout(reg) !0 => low, inout(reg) !0 => high,
                in(reg) address, options(nostack));
        }
        (low, high)
    }

    /// Reads a 32-bit register by `ldr` with post-index; gives the value and how far the base
    /// register moved (4, or 0 after an abort).
    pub fn read_post_index(&self, offset: usize) -> (u32, usize) {
        let address = self.address(offset, 4);
        let mut moved = address;
        let value: u32;
        // SAFETY: a device register, by the contract of `at`.
        unsafe {
            asm!("ldr {:w}, [{}], #4", inout(reg) !0 => value, inout(reg) moved, options(nostack));
        }
        (value, moved.wrapping_sub(address))
    }

    /// Writes a 32-bit register by `str` with post-index; gives how far the base register moved.
    pub fn write_post_index(&self, offset: usize, value: u32) -> usize {
        let address = self.address(offset, 4);
        let mut moved = address;
        // SAFETY: a device register, by the contract of `at`.
        unsafe {
            asm!("str {:w}, [{}], #4", in(reg) value, inout(reg) moved, options(nostack));
        }
        moved.wrapping_sub(address)
    }
}
