//! A host that leaves a VM which goes on.

use super::{Memory, lock, with};
use model_coherence::Event;

/// Lets the VM's memory here go to its other hosts.
pub fn hand_over() {
    with(|memory| memory.step(Event::Leave));
}

/// Returns the pages at which a host that leaves has not looked, of how many; it looks at each twice.
pub fn pages_left() -> Option<[u64; 2]> {
    let state = lock()?;
    let coherence = &state.span.as_ref()?.coherence;
    let all = 2 * u64::from(coherence.pages());
    Some([coherence.pages_left(), all])
}

impl Memory {
    /// Whether the VM's memory has gone, and all that was said of it has left.
    pub(super) fn has_gone(&self) -> bool {
        let is_said = |hands: &super::Hands| hands.backlog.is_empty();
        self.coherence.has_left() && self.hands.as_ref().is_some_and(is_said)
    }
}
