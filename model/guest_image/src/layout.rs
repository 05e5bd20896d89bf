//! Where kernel, device tree and initrd go.
//!
//! ```text
//! ram: | text_offset | kernel ... bss | to 2 MiB | device tree | to 4 KiB | initrd | free | stolen times
//! ```
//! The tree has a 2 MiB block to itself as far as the kernel goes, so it crosses no 2 MiB
//! boundary (booting.rst), and a flat image, which cannot say how much memory it uses behind its
//! end, has at least up to the next such boundary.

use model_addr::{Ipa, IpaRange};

use crate::{ImageHeader, MAX_VCPUS};

const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// Bytes kept for the device tree.
pub const TREE_ROOM: u64 = 64 << 10;

/// Bytes of a vCPU's stolen-time structure and what keeps it apart from the next (DEN0057A, 3.2.2).
const STOLEN_TIME_SIZE: u64 = 64;

/// Bytes kept for the stolen-time structures of as many vCPUs as there can be.
pub const STOLEN_TIMES_ROOM: u64 = (STOLEN_TIME_SIZE * MAX_VCPUS as u64).next_multiple_of(PAGE);

/// What is kept for stolen-time structures: the end of a guest's memory `ram`. The device tree says
/// that it is reserved, and not `no-map`: Linux reaches it as it reaches all its memory.
pub const fn stolen_times(ram: IpaRange) -> IpaRange {
    IpaRange::of(
        Ipa(ram.end().0.saturating_sub(STOLEN_TIMES_ROOM)),
        STOLEN_TIMES_ROOM,
    )
}

/// Where the stolen-time structure of vCPU `index`, below [`MAX_VCPUS`], is.
pub const fn stolen_time(ram: IpaRange, index: u16) -> Ipa {
    Ipa(stolen_times(ram).start.0 + STOLEN_TIME_SIZE * (index % MAX_VCPUS) as u64)
}

/// What to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// A Linux `Image`.
    Linux(ImageHeader),
    /// An image without a header, entered at its first byte, which is the first byte of memory.
    Flat,
}

/// Where everything goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where the kernel's file goes, and as much memory behind it as the kernel asks for.
    pub kernel: IpaRange,
    /// The first instruction; x0 holds [`Self::tree`].
    pub entry: Ipa,
    /// Room for the device tree.
    pub tree: IpaRange,
    /// Where the initrd goes, if there is one.
    pub initrd: Option<IpaRange>,
}

/// What does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There is nothing to start.
    #[error("the kernel is empty")]
    EmptyKernel,
    /// Memory does not begin at a 2 MiB boundary.
    #[error("memory begins at {0}, not at a 2 MiB boundary")]
    Unaligned(Ipa),
    /// This much memory, in bytes, would be needed.
    #[error("kernel, device tree and initrd need {needed} bytes of memory, the VM has {given}")]
    TooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        given: u64,
    },
}

/// Lays out a guest's memory `ram` for a kernel file of `kernel_size` bytes and an initrd of
/// `initrd_size` bytes (0: none).
///
/// # Errors
/// Where the kernel is empty, or memory is misaligned or too small.
pub fn layout(
    ram: IpaRange,
    kernel: Kernel,
    kernel_size: u64,
    initrd_size: u64,
) -> Result<Layout, LayoutError> {
    if kernel_size == 0 {
        return Err(LayoutError::EmptyKernel);
    }
    if !ram.start.is_aligned(BLOCK) {
        return Err(LayoutError::Unaligned(ram.start));
    }
    let (offset, size) = match kernel {
        Kernel::Linux(header) => (header.text_offset, header.image_size.max(kernel_size)),
        Kernel::Flat => (0, kernel_size),
    };
    // Offsets from the start of memory; whatever overflows is too large for any memory.
    let place = |from: u64, align: u64, size: u64| {
        let start = from.checked_next_multiple_of(align)?;
        Some((start, start.checked_add(size)?))
    };
    let placed = (|| {
        let kernel_end = offset.checked_add(size)?;
        let (tree, tree_end) = place(kernel_end, BLOCK, TREE_ROOM)?;
        let (initrd, end) = place(tree_end, PAGE, initrd_size)?;
        Some((tree, initrd, end))
    })();
    let (tree, initrd, end) = placed.unwrap_or((0, 0, u64::MAX));
    let needed = end.saturating_add(STOLEN_TIMES_ROOM);
    if needed > ram.size {
        return Err(LayoutError::TooSmall {
            needed,
            given: ram.size,
        });
    }
    // All of it lies within `ram`, so nothing below can wrap around.
    let at = |offset: u64, size: u64| IpaRange::of(Ipa(ram.start.0 + offset), size);
    Ok(Layout {
        kernel: at(offset, size),
        entry: at(offset, size).start,
        tree: at(tree, TREE_ROOM),
        initrd: (initrd_size > 0).then(|| at(initrd, initrd_size)),
    })
}
