//! The memory that tests may use as they like.

use core::arch::asm;
use core::slice;

use crate::device_tree;

/// Bytes in a page.
pub const PAGE_SIZE: u64 = 4096;

/// A range of physical addresses.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

impl Range {
    /// The first address behind it.
    pub const fn end(&self) -> u64 {
        self.base.saturating_add(self.size)
    }

    /// Whether `address` lies in it.
    pub const fn contains(&self, address: u64) -> bool {
        address >= self.base && address - self.base < self.size
    }
}

/// Memory that holds no Rust object, mapped to its physical addresses. All accesses are volatile,
/// so that CPUs and devices may share it.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    range: Range,
}

impl Scratch {
    /// # Safety
    /// The range is mapped memory, page aligned, and no Rust object is ever in it.
    pub(crate) const unsafe fn at(range: Range) -> Self {
        Self { range }
    }

    /// Physical address of its first byte; page aligned.
    pub const fn base(&self) -> u64 {
        self.range.base
    }

    /// Bytes.
    pub const fn size(&self) -> u64 {
        self.range.size
    }

    /// The part of `size` bytes at `offset`; both are multiples of a page.
    #[must_use]
    pub fn part(&self, offset: u64, size: u64) -> Self {
        assert!(
            offset.saturating_add(size) <= self.size() && (offset | size).is_multiple_of(PAGE_SIZE),
            "not a part of the scratch memory"
        );
        let base = self.base() + offset;
        Self {
            range: Range { base, size },
        }
    }

    #[inline]
    fn address(&self, offset: u64, size: u64) -> usize {
        assert!(
            offset.saturating_add(size) <= self.size() && offset.is_multiple_of(size),
            "beyond the scratch memory"
        );
        (self.base() + offset) as usize
    }

    /// Reads the 64-bit word at `offset`.
    #[inline]
    pub fn read(&self, offset: u64) -> u64 {
        let address = self.address(offset, 8) as *const u64;
        // SAFETY: mapped, aligned memory by the contract of `at`.
        unsafe { address.read_volatile() }
    }

    /// Writes the 64-bit word at `offset`.
    #[inline]
    pub fn write(&self, offset: u64, value: u64) {
        let address = self.address(offset, 8) as *mut u64;
        // SAFETY: mapped, aligned memory without Rust objects by the contract of `at`.
        unsafe { address.write_volatile(value) }
    }

    /// Writes the 32-bit word at `offset`.
    pub fn write32(&self, offset: u64, value: u32) {
        let address = self.address(offset, 4) as *mut u32;
        // SAFETY: as in `write`.
        unsafe { address.write_volatile(value) }
    }

    /// Writes the 16-bit word at `offset`.
    pub fn write16(&self, offset: u64, value: u16) {
        let address = self.address(offset, 2) as *mut u16;
        // SAFETY: as in `write`.
        unsafe { address.write_volatile(value) }
    }
}

/// The device tree blob at `address`, if there is one.
///
/// # Safety
/// `address` is readable memory that nothing writes while the slice is in use.
pub(crate) unsafe fn device_tree(address: u64) -> Option<&'static [u8]> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    let blob = address as *const u8;
    // SAFETY: the caller promises readable memory; a header takes 8 bytes and more.
    let header = unsafe { slice::from_raw_parts(blob, 8) };
    let size = device_tree::stated_size(header)?;
    // SAFETY: the caller promises the whole blob.
    Some(unsafe { slice::from_raw_parts(blob, size) })
}

/// Cleans the line of `address` to the point of coherency, for a reader whose caches are off.
pub(crate) fn clean_line(address: usize) {
    // SAFETY: cache maintenance of a mapped address changes no value.
    unsafe { asm!("dc cvac, {}", "dsb sy", in(reg) address, options(nostack)) };
}
