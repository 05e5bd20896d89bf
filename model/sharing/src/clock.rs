//! Which of the kept frames to give up first.

use model_addr::{Mfn, NodeId};
use model_frame_table::{FrameEntry, MemoryMap, Origin, Use};

/// A node's hand, going round over its frames. A kept frame gets a second chance: it is found when
/// the hand passes for the second time since it was in use (the clock algorithm, Corbató 1968).
#[derive(Debug)]
pub struct Clock {
    node: NodeId,
    hand: Mfn,
}

impl Clock {
    /// A hand at the node's first frame.
    pub const fn new(node: NodeId) -> Self {
        Self { node, hand: Mfn(0) }
    }

    /// The next frame to [`crate::evict`], looking at `budget` frames from where the last call
    /// stopped. An image's are never found.
    pub fn next_cached(&mut self, map: &MemoryMap<'_>, budget: u64) -> Option<Mfn> {
        let mut left = budget;
        while left > 0 {
            let next = map.next_on(self.node, self.hand);
            let (range, at) = next.or_else(|| map.next_on(self.node, Mfn(0)))?;
            let count = left.min(range.frames.end().0 - at.0);
            let entries = map.run(at, count)?;
            if let Some(n) = entries.iter().position(may_go) {
                let found = at.add(n as u64);
                self.hand = found.add(1);
                return Some(found);
            }
            self.hand = at.add(count);
            left -= count;
        }
        None
    }
}

/// Whether a frame may go now. One that was in use since may go the next time.
fn may_go(entry: &FrameEntry) -> bool {
    let state = entry.state();
    if state.usage != Use::CachedOnly || state.origin == Origin::Image {
        return false;
    }
    if state.recent
        && let Some(mut frame) = entry.lock_shared()
    {
        frame.set_recent(false);
    }
    !state.recent
}
