//! One CPU's cache: tags only.

use crate::Bad;

/// How a cache is built; all in powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    bytes: u64,
    ways: u64,
    line: u64,
}

impl Geometry {
    /// A cache of so many bytes in lines of `line` bytes, `ways` to a set.
    ///
    /// # Errors
    /// Something is no power of two, a line has not 16 to 4096 bytes, or there is not one whole set.
    pub fn new(bytes: u64, ways: u64, line: u64) -> Result<Self, Bad> {
        let all_powers = [bytes, ways, line].iter().all(|n| n.is_power_of_two());
        if !all_powers || !(16..=4096).contains(&line) || bytes >> 32 != 0 || ways > bytes / line {
            return Err(Bad::Cache { bytes, ways, line });
        }
        Ok(Self { bytes, ways, line })
    }

    /// How far an address is shifted to give its line.
    pub fn line_shift(self) -> u32 {
        self.line.trailing_zeros()
    }

    /// Sets of the cache.
    pub fn sets(self) -> u64 {
        self.bytes / self.line / self.ways
    }

    /// Lines of each set.
    pub fn ways(self) -> u64 {
        self.ways
    }
}

/// A line that is held, and whether it was stored to; 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Entry(u64);

impl Entry {
    fn new(line: u64, dirty: bool) -> Self {
        Self((line + 1) << 1 | u64::from(dirty))
    }

    fn line(self) -> Option<u64> {
        (self.0 >> 1).checked_sub(1)
    }

    fn is_dirty(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The tags of a set-associative cache. Lines are physical addresses without the offset; each set
/// is kept with the line used last in front.
#[derive(Debug)]
pub struct Cache {
    set_mask: u64,
    ways: usize,
    entries: Vec<Entry>,
}

impl Cache {
    /// An empty cache.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            set_mask: geometry.sets() - 1,
            ways: geometry.ways as usize,
            entries: vec![Entry::default(); (geometry.sets() * geometry.ways) as usize],
        }
    }

    fn set(&mut self, line: u64) -> &mut [Entry] {
        let first = (line & self.set_mask) as usize * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// Uses a line, and makes it dirty for a store. Gives whether it was dirty before, or `None`
    /// where the line is not held.
    #[inline]
    pub fn touch(&mut self, line: u64, store: bool) -> Option<bool> {
        let set = self.set(line);
        let way = set.iter().position(|entry| entry.line() == Some(line))?;
        let dirty = set[way].is_dirty();
        set[..=way].rotate_right(1);
        set[0] = Entry::new(line, dirty || store);
        Some(dirty)
    }

    /// Takes a line in that is not held; gives the line that has to go for it.
    pub fn insert(&mut self, line: u64, dirty: bool) -> Option<u64> {
        let set = self.set(line);
        set.rotate_right(1);
        let victim = set[0].line();
        set[0] = Entry::new(line, dirty);
        victim
    }

    /// Another CPU stores to the line: it goes, if it is held.
    pub fn invalidate(&mut self, line: u64) {
        let set = self.set(line);
        if let Some(way) = set.iter().position(|entry| entry.line() == Some(line)) {
            set[way..].rotate_left(1);
            if let Some(last) = set.last_mut() {
                *last = Entry::default();
            }
        }
    }

    /// Another CPU loads the line: it stays, but the next store must ask again.
    pub fn clean(&mut self, line: u64) {
        let set = self.set(line);
        if let Some(entry) = set.iter_mut().find(|entry| entry.line() == Some(line)) {
            *entry = Entry::new(line, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        assert_eq!(Geometry::new(1 << 20, 2, 64).unwrap().sets(), 8192);
        for (bytes, ways, line) in [
            (3, 1, 64),
            (1 << 20, 3, 64),
            (1 << 20, 2, 8),
            (64, 2, 64),
            (0, 1, 64),
            (1 << 20, 0, 64),
            (1 << 33, 2, 64),
        ] {
            assert!(Geometry::new(bytes, ways, line).is_err());
        }
    }

    #[test]
    fn the_least_recently_used_way_goes() {
        let mut cache = Cache::new(Geometry::new(256, 2, 64).unwrap());
        assert_eq!(cache.insert(0, false), None);
        assert_eq!(cache.insert(2, false), None);
        assert_eq!(cache.touch(0, true), Some(false));
        assert_eq!(cache.insert(4, false), Some(2));
        assert_eq!(cache.touch(0, false), Some(true));
        cache.clean(0);
        assert_eq!(cache.touch(0, false), Some(false));
        cache.invalidate(0);
        assert_eq!(cache.touch(0, false), None);
        assert_eq!(cache.insert(6, false), None, "the place of line 0 is free");
        assert_eq!(cache.touch(1, false), None, "the other set is empty");
    }
}
