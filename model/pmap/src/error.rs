//! Why the pmap refuses.

use model_addr::Gfn;

/// Why a pmap refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmapError {
    /// The RAM of a VM: 1 to [`MAX_RAM_RANGES`] ranges of whole frames below 512 GiB, apart.
    #[error("RAM is 1 to 4 separate ranges of frames below 512 GiB")]
    Ram,
    /// A guest frame is not RAM.
    #[error("guest frame {0} is not RAM")]
    NotRam(Gfn),
    /// A run leaves its region, or is empty; or a base is not aligned to 2 MiB.
    #[error("the run is not inside one 2 MiB region")]
    Run,
    /// Something is behind one of the guest frames already.
    #[error("something is behind a guest frame already")]
    Present,
    /// No table could be had. Nothing was changed.
    #[error("no memory for a table")]
    NoMemory,
}
