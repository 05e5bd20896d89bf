//! What a VM's memory is from the start, and never changes.

use crate::{Frames, Run};
use model_addr::{FRAME_SIZE, Ipa, IpaRange, VmId};

/// How many sources a VM may have: kernel, initial RAM disk, device tree.
pub const SOURCES: usize = 3;

/// Bytes that are in a VM's memory from the start.
#[derive(Clone, Debug)]
pub struct Source<B> {
    /// Where the guest finds them.
    pub at: Ipa,
    /// The bytes.
    pub bytes: B,
}

/// A VM's RAM and what is in it before it is touched: the sources' bytes, zeroes elsewhere.
#[derive(Clone, Debug)]
pub struct GuestRam<B> {
    /// Whose it is.
    pub vm: VmId,
    /// Where it is.
    pub range: IpaRange,
    /// Where two overlap, the later one counts.
    sources: [Option<Source<B>>; SOURCES],
    /// The address after the last source's last byte: most memory lies behind it.
    sources_end: u64,
}

impl<B: AsRef<[u8]>> GuestRam<B> {
    /// The RAM `range` of `vm` with `sources` in it; where two overlap, the later one counts.
    pub fn new(vm: VmId, range: IpaRange, sources: [Option<Source<B>>; SOURCES]) -> Self {
        let end = |source: &Source<B>| {
            source
                .at
                .0
                .saturating_add(source.bytes.as_ref().len() as u64)
        };
        let sources_end = sources.iter().flatten().map(end).max().unwrap_or(0);
        Self {
            vm,
            range,
            sources,
            sources_end,
        }
    }

    /// What is in it from the start.
    pub fn sources(&self) -> impl Iterator<Item = &Source<B>> {
        self.sources.iter().flatten()
    }

    /// Gives frames that nobody sees yet the contents of the guest frames they are for.
    #[inline]
    pub(crate) fn write(&self, frames: &impl Frames, run: Run) {
        frames.zero(run.frame, run.count);
        let start = run.first.address().0;
        if start >= self.sources_end {
            return;
        }
        let end = start + run.count * FRAME_SIZE;
        for source in self.sources() {
            let bytes = source.bytes.as_ref();
            let skipped = start.saturating_sub(source.at.0);
            if source.at.0 < end && skipped < bytes.len() as u64 {
                let (_, left) = bytes.split_at(skipped as usize);
                let at = source.at.0.max(start);
                let room = (end - at) as usize;
                frames.write(run.frame, at - start, left.get(..room).unwrap_or(left));
            }
        }
    }
}
