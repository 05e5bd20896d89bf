//! Window of counters, by which each frame of a session serves once.

use abi::link::SLOTS_MAX;

/// Counters that a window has bits for.
const BITS: u64 = 1024;
/// A frame so far behind the highest that has come may have come, too. Those of both windows are in flight at once, and
/// acknowledgements.
const BEHIND_MAX: u64 = BITS - 64;
const _: () = assert!(BEHIND_MAX >= 3 * SLOTS_MAX as u64);

/// Which counters have come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    /// The highest.
    pub(crate) highest: u64,
    /// Bit `n % BITS` says that counter `n` has come, of the last [`BEHIND_MAX`].
    words: [u64; BITS as usize / 64],
}

impl Window {
    /// Returns whether a counter has not come, as far as the window tells.
    pub(crate) const fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = place(counter);
        let is_kept = self.highest.saturating_sub(counter) < BEHIND_MAX;
        counter > self.highest || is_kept && self.words[word] >> bit & 1 == 0
    }

    /// Notes that a counter has come.
    pub(crate) fn mark(&mut self, counter: u64) {
        for word in (self.highest / 64 + 1..=counter / 64).take(self.words.len()) {
            self.words[word as usize % self.words.len()] = 0;
        }
        self.highest = self.highest.max(counter);
        let (word, bit) = place(counter);
        self.words[word] |= 1 << bit;
    }
}

/// Word and bit of a counter.
const fn place(counter: u64) -> (usize, u64) {
    ((counter % BITS) as usize / 64, counter % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, vec::Vec};
    use proptest::prelude::*;

    /// Counters that come, each so far from the highest before.
    fn counters() -> impl Strategy<Value = Vec<i64>> {
        let near = prop_oneof![-2..=2_i64, -70..70_i64, -1100..1100_i64];
        let edge = (-2..=2_i64).prop_map(|off| -(BEHIND_MAX as i64) + off);
        let far = prop_oneof![Just(BITS as i64), 1000..5000_i64];
        prop::collection::vec(prop_oneof![4 => near, 2 => edge, 1 => far], 1..300)
    }

    proptest! {
        /// A counter is new once, as long as fewer than so many have overtaken it.
        #[test]
        fn counters_are_new_once(steps in counters()) {
            let mut window = Window::default();
            let mut come = BTreeSet::new();
            for step in steps {
                let counter = window.highest.saturating_add_signed(step);
                let is_kept = window.highest < counter + BEHIND_MAX;
                prop_assert_eq!(window.is_new(counter), is_kept && !come.contains(&counter));
                if window.is_new(counter) {
                    window.mark(counter);
                    come.insert(counter);
                }
            }
        }
    }
}
