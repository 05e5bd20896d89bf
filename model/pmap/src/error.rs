//! Why the pmap refuses.

use model_addr::Gfn;

/// Why a pmap refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmapError {
    /// The RAM of a VM: 1 to [`MAX_RAM_RANGES`] ranges of whole frames below 512 GiB, apart.
    Ram,
    /// A guest frame is not RAM.
    NotRam(Gfn),
    /// A run leaves its region, or is empty; or a base is not aligned to 2 MiB.
    Run,
    /// Something is behind one of the guest frames already.
    Present,
    /// No table could be had. Nothing was changed.
    NoMemory,
}
