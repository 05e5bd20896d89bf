//! Where guest memory lies in QEMU: instructions are known by their address there.

use std::path::Path;

/// The nodes' memory in QEMU's address space.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ram {
    /// First address, address after the last, guest physical address of the first.
    ranges: Vec<(u64, u64, u64)>,
}

impl Ram {
    /// Finds the mappings of `directory/node0.ram` and so on in the text of `/proc/self/maps`.
    pub fn find(maps: &str, directory: &Path, nodes: usize, base: u64, node_bytes: u64) -> Self {
        let mut ranges = Vec::new();
        for node in 0..nodes {
            let file = directory.join(format!("node{node}.ram"));
            let begins = base + node as u64 * node_bytes;
            let lines = maps.lines().filter_map(mapping);
            let own = lines.filter(|(_, _, _, path)| Path::new(path) == file);
            ranges.extend(own.map(|(first, end, offset, _)| (first, end, begins + offset)));
        }
        Self { ranges }
    }

    /// The guest physical address of what QEMU has at an address.
    pub fn physical(&self, host: u64) -> Option<u64> {
        let found = self
            .ranges
            .iter()
            .find(|(first, end, _)| (*first..*end).contains(&host));
        found.map(|(first, _, physical)| physical + (host - first))
    }

    /// Whether no memory was found.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// First and end address, offset in the file and path of one line.
fn mapping(line: &str) -> Option<(u64, u64, u64, &str)> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(word)
    };
    let range = word()?;
    let (_, offset, _, _) = (word()?, word()?, word()?, word()?);
    let (first, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(first)?, number(end)?, number(offset)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_by_its_files() {
        let maps = "\
7f0000000000-7f0000002000 rw-s 00000000 00:2e 12      /a b/node1.ram
7f0000010000-7f0000011000 rw-s 00001000 00:2e 11      /a b/node0.ram
7f0000020000-7f0000021000 rw-s 00000000 00:2e 13      /a b/window
7f0000030000-7f0000031000 rw-p 00000000 00:00 0
nonsense";
        let ram = Ram::find(maps, Path::new("/a b"), 2, 0x4000_0000, 0x2000);
        assert_eq!(ram.physical(0x7f00_0000_0010), Some(0x4000_2010));
        assert_eq!(ram.physical(0x7f00_0001_0004), Some(0x4000_1004));
        for elsewhere in [0, 0x7f00_0000_2000, 0x7f00_0002_0000, 0x7f00_0003_0000] {
            assert_eq!(ram.physical(elsewhere), None);
        }
        assert!(Ram::find("", Path::new("/a"), 2, 0, 4096).is_empty());
    }
}
