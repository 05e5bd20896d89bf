//! Where misses come from.

use model_addr::Mfn;

/// Something that counts misses by frame and node.
pub trait MissSource {
    /// How many frames [`Self::next_hot`] has to look at.
    fn hot(&self) -> u32;
    /// A frame on which a node has missed often since it was last taken, if there is one. `None`
    /// may also mean that what was looked at is not hot: the caller asks again later. Bounded work.
    fn next_hot(&mut self) -> Option<Mfn>;
    /// The misses of each node on a frame since they were last taken, by number, and whether it
    /// was written. From now on they count anew. Of frames that are not counted there are none.
    fn take(&mut self, frame: Mfn, misses: &mut [u32]) -> bool;
}
