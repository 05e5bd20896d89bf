//! Why the pmap refuses.

use core::fmt;
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

impl fmt::Display for PmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram => f.write_str("RAM is 1 to 4 separate ranges of frames below 512 GiB"),
            Self::NotRam(gfn) => write!(f, "guest frame {gfn} is not RAM"),
            Self::Run => f.write_str("the run is not inside one 2 MiB region"),
            Self::Present => f.write_str("something is behind a guest frame already"),
            Self::NoMemory => f.write_str("no memory for a table"),
        }
    }
}

impl core::error::Error for PmapError {}
