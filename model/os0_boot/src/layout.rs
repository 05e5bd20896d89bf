//! Which memory EL2 keeps, and where OS-0's kernel runs.

use model_addr::{FRAME_SIZE, Pa, PaRange};
use model_guest_image::ImageHeader;

/// EL2 keeps whole blocks, so that stage 2 can leave them out without tables of pages; and kernels
/// start at a multiple of this (Linux: `booting.rst`).
const BLOCK: u64 = 2 << 20;

/// Bytes by which another image, and what it needs, may be larger.
const GROWTH: u64 = 256 << 10;

/// What the boot loader left where.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The machine's memory, by ascending address.
    pub memory: &'a [PaRange],
    /// What must stay as it is: device tree, ramdisk, the firmware's reservations.
    pub kept: &'a [PaRange],
    /// EL2's image, zeroed data included.
    pub image: PaRange,
    /// Bytes that EL2 needs beside its image.
    pub arena: u64,
    /// The kernel's file.
    pub kernel: PaRange,
    /// What its header says.
    pub header: ImageHeader,
}

/// Who has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What OS-0 never sees: twice as many blocks of 2 MiB as the image and its arena take.
    pub hidden: PaRange,
    /// The part of its first half behind the image, which is EL2's to use.
    pub arena: PaRange,
    /// Its second half, for the image that takes this one's place.
    pub spare: PaRange,
    /// The kernel's first byte and instruction. Where this is not where the file lies, it is to be
    /// copied; the two do not overlap.
    pub kernel: Pa,
}

/// Why OS-0 cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// What EL2 would keep is no memory, or not one run of it.
    #[error("the machine has no memory for the hypervisor at {} to {}", .0.start, .0.end())]
    NoMemory(PaRange),
    /// Something lies where EL2's own memory must be.
    #[error(
        "what the boot loader put at {} ({:#x} bytes) lies in the hypervisor's memory, {} to {}: load it elsewhere",
        .other.start, .other.size, .hidden.start, .hidden.end()
    )]
    InTheWay {
        /// What EL2 keeps.
        hidden: PaRange,
        /// What lies there.
        other: PaRange,
    },
    /// There is no room for the kernel: so many bytes.
    #[error("no run of {0:#x} bytes is free for OS-0's kernel")]
    NoRoom(u64),
}

/// Says who has what.
///
/// # Errors
/// What EL2 needs is taken, or the kernel fits nowhere.
pub fn lay_out(given: &Given<'_>) -> Result<Layout, LayoutError> {
    let half = half(given.image, given.arena);
    let hidden = PaRange {
        size: half.size * 2,
        ..half
    };
    if !given.memory.iter().any(|run| holds(*run, hidden)) {
        return Err(LayoutError::NoMemory(hidden));
    }
    let mut others = given.kept.iter().chain([&given.kernel]);
    if let Some(other) = others.find(|other| other.overlaps(hidden)) {
        return Err(LayoutError::InTheWay {
            hidden,
            other: *other,
        });
    }
    let start = given.image.end().align_up(FRAME_SIZE);
    let start = start.unwrap_or(half.end()).min(half.end());
    Ok(Layout {
        hidden,
        arena: PaRange::of(start, half.end().0 - start.0),
        spare: PaRange {
            start: half.end(),
            ..half
        },
        kernel: place_kernel(given, hidden)?,
    })
}

/// Whole blocks from the image's first to the arena's last.
fn half(image: PaRange, arena: u64) -> PaRange {
    let start = image.start.align_down(BLOCK);
    let size = (image.end().0 - start.0)
        .saturating_add(GROWTH)
        .saturating_add(arena)
        .min(u64::MAX / 8)
        .next_multiple_of(BLOCK);
    // A run that would wrap around is in no memory either.
    PaRange::new(start, size).unwrap_or(PaRange { start, size: 0 })
}

fn holds(outer: PaRange, inner: PaRange) -> bool {
    inner.size > 0 && outer.contains_run(inner.start, inner.size)
}

/// The kernel stays where it lies, if it can run there; or else it goes to the lowest run that is
/// free.
fn place_kernel(given: &Given<'_>, hidden: PaRange) -> Result<Pa, LayoutError> {
    let size = given.header.image_size.max(given.kernel.size);
    let offset = given.header.text_offset;
    let is_free = |start: Pa, with_file: bool| {
        let Some(run) = PaRange::new(start, size) else {
            return false;
        };
        let is_taken = hidden.overlaps(run)
            || given.kept.iter().any(|kept| kept.overlaps(run))
            || with_file && given.kernel.overlaps(run);
        given.memory.iter().any(|memory| holds(*memory, run)) && !is_taken
    };
    let own = given.kernel.start;
    let is_aligned = own
        .0
        .checked_sub(offset)
        .is_some_and(|base| base % BLOCK == 0);
    if is_aligned && is_free(own, false) {
        return Ok(own);
    }
    // The lowest free place begins where memory does or where something else ends.
    let ends = given.kept.iter().chain([&given.kernel, &hidden]);
    let edges = given
        .memory
        .iter()
        .map(|run| run.start)
        .chain(ends.map(|run| run.end()));
    edges
        .filter_map(|edge| edge.align_up(BLOCK)?.checked_add(offset))
        .filter(|start| is_free(*start, true))
        .min()
        .ok_or(LayoutError::NoRoom(size))
}
