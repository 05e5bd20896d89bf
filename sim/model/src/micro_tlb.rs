//! Translations that a CPU used lately: asking QEMU for each costs more than all the rest.

const ENTRIES: usize = 512;

/// A direct-mapped cache of one CPU's translations. It is exact if it is emptied wherever one may
/// change.
#[derive(Debug)]
pub struct MicroTlb {
    generation: u64,
    entries: Box<[Entry; ENTRIES]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    generation: u64,
    page: u64,
    regime: u32,
    frame: u64,
}

impl Default for MicroTlb {
    fn default() -> Self {
        Self {
            generation: 1,
            entries: Box::new([Entry::default(); ENTRIES]),
        }
    }
}

impl MicroTlb {
    fn index(page: u64, regime: u32) -> usize {
        (page ^ u64::from(regime) << 5) as usize % ENTRIES
    }

    /// The frame of a virtual page in a translation regime, if it is known.
    #[inline]
    pub fn get(&self, page: u64, regime: u32) -> Option<u64> {
        let entry = &self.entries[Self::index(page, regime)];
        (entry.generation == self.generation && entry.page == page && entry.regime == regime)
            .then_some(entry.frame)
    }

    /// Remembers a frame.
    pub fn put(&mut self, page: u64, regime: u32, frame: u64) {
        self.entries[Self::index(page, regime)] = Entry {
            generation: self.generation,
            page,
            regime,
            frame,
        };
    }

    /// Forgets all.
    pub fn flush(&mut self) {
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_exact() {
        let mut tlb = MicroTlb::default();
        assert_eq!(tlb.get(0, 0), None);
        tlb.put(1, 2, 7);
        assert_eq!(tlb.get(1, 2), Some(7));
        assert_eq!(tlb.get(1, 3), None);
        assert_eq!(tlb.get(1 + ENTRIES as u64, 2), None);
        tlb.flush();
        assert_eq!(tlb.get(1, 2), None);
    }
}
