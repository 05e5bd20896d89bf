//! What a VM's memory is from the start.

use crate::{Frames, Run};
use core::sync::atomic::{AtomicU8, Ordering};
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange, Mfn, VmId};
use model_frame_table::Contents;

/// How many sources a VM may have: kernel, initial RAM disk, device tree.
pub const SOURCES: usize = 3;

/// Bytes that are in a VM's memory from the start.
#[derive(Clone, Debug)]
pub struct Source<B> {
    /// Where the guest finds them.
    pub at: Ipa,
    /// The bytes.
    pub bytes: B,
    /// The frame of the first byte, where all bytes are in frames that many VMs may use: whole
    /// pages, zeroes behind the last byte.
    pub frames: Option<Mfn>,
}

impl<B: AsRef<[u8]>> Source<B> {
    /// The address after the last byte.
    fn end(&self) -> u64 {
        let len = self.bytes.as_ref().len() as u64;
        self.at.0.saturating_add(len)
    }
}

/// What a VM shares, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether it uses frames that others use.
    pub share: bool,
    /// Whether 2 MiB blocks stay whole, so that nothing in them is shared.
    pub keep_blocks: bool,
    /// Whether every first write to a page that was read takes the same way, shared or not.
    pub hide: bool,
}

impl Policy {
    const fn bits(self) -> u8 {
        self.share as u8 | (self.keep_blocks as u8) << 1 | (self.hide as u8) << 2
    }

    const fn of_bits(bits: u8) -> Self {
        Self {
            share: bits & 1 != 0,
            keep_blocks: bits & 2 != 0,
            hide: bits & 4 != 0,
        }
    }
}

/// A VM's RAM and what is in it before it is touched: the sources' bytes, zeroes elsewhere.
#[derive(Debug)]
pub struct GuestRam<B> {
    /// Whose it is.
    pub vm: VmId,
    /// Where it is.
    pub range: IpaRange,
    /// What it shares: the only thing here that changes.
    policy: AtomicU8,
    /// Where two overlap, the later one counts.
    sources: [Option<Source<B>>; SOURCES],
    /// The address after the last source's last byte: most memory lies behind it.
    sources_end: u64,
    /// The address after the last page that may be an image's; zero where there is none.
    images_end: u64,
}

impl<B> GuestRam<B> {
    /// What it shares.
    #[inline]
    pub fn policy(&self) -> Policy {
        Policy::of_bits(self.policy.load(Ordering::Relaxed))
    }

    /// Changes what it shares from now on. What is shared stays so until somebody writes it. Whether
    /// it hides stays as it is, too: pages that were mapped for writing would tell.
    pub fn set_policy(&self, policy: Policy) {
        let hide = self.policy().hide;
        let policy = Policy { hide, ..policy };
        self.policy.store(policy.bits(), Ordering::Relaxed);
    }
}

impl<B: AsRef<[u8]>> GuestRam<B> {
    /// The RAM `range` of `vm` with `sources` in it; where two overlap, the later one counts.
    pub fn new(
        vm: VmId,
        range: IpaRange,
        sources: [Option<Source<B>>; SOURCES],
        policy: Policy,
    ) -> Self {
        let ends = sources.iter().flatten().map(Source::end);
        let sources_end = ends.max().unwrap_or(0);
        let in_frames = |source: &&Source<B>| policy.share && source.frames.is_some();
        let images = sources.iter().flatten().filter(in_frames);
        let images_end = images.map(Source::end).max().unwrap_or(0);
        Self {
            vm,
            range,
            policy: AtomicU8::new(policy.bits()),
            sources,
            sources_end,
            images_end,
        }
    }

    /// Whether the guest frame may have a page of an image from the start.
    #[inline]
    pub(crate) fn may_be_image(&self, gfn: Gfn) -> bool {
        gfn.address().0 < self.images_end
    }

    /// The image's frame that holds what is in the guest frame from the start, if one does.
    pub(crate) fn image_behind(&self, gfn: Gfn) -> Option<Mfn> {
        let mut there = self.sources_in(gfn, 1);
        let (Some(source), None) = (there.next(), there.next()) else {
            return None;
        };
        let skipped = gfn.address().0.checked_sub(source.at.0)?;
        let first = source.frames.filter(|_| source.at.is_aligned(FRAME_SIZE))?;
        Some(first.add(skipped / FRAME_SIZE))
    }

    /// Whether any bytes are in these guest frames from the start.
    #[inline]
    pub fn has_sources(&self, first: Gfn, count: u64) -> bool {
        first.address().0 < self.sources_end && self.sources_in(first, count).next().is_some()
    }

    fn sources_in(&self, first: Gfn, count: u64) -> impl Iterator<Item = &Source<B>> {
        let (start, end) = (first.address().0, first.add(count).address().0);
        self.sources()
            .filter(move |source| source.at.0 < end && source.end() > start)
    }

    /// What is in it from the start.
    pub fn sources(&self) -> impl Iterator<Item = &Source<B>> {
        self.sources.iter().flatten()
    }

    /// Gives frames that nobody sees yet the contents of the guest frames they are for.
    #[inline]
    pub(crate) fn write(&self, frames: &impl Frames, run: Run) {
        if run.contents == Contents::Unknown {
            frames.zero(run.frame, run.count);
        }
        frames.drop_code(run.frame, run.count);
        if !run.sources {
            return;
        }
        let start = run.first.address().0;
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

#[cfg(test)]
mod tests {
    use super::*;
    use model_addr::IpaRange;

    #[test]
    fn what_is_shared_can_change_and_what_is_hidden_cannot() {
        let policies = (0..8).map(Policy::of_bits);
        assert!(
            policies
                .enumerate()
                .all(|(bits, policy)| policy.bits() as usize == bits)
        );
        let range = IpaRange {
            start: Ipa(0),
            size: FRAME_SIZE,
        };
        let vm = VmId {
            index: 0,
            generation: 0,
        };
        let ram = GuestRam::<&[u8]>::new(vm, range, [const { None }; SOURCES], Policy::default());
        ram.set_policy(Policy {
            share: true,
            keep_blocks: true,
            hide: true,
        });
        let expected = Policy {
            share: true,
            keep_blocks: true,
            hide: false,
        };
        assert_eq!(ram.policy(), expected);
    }
}
