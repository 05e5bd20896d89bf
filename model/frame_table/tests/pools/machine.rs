//! A machine of two nodes with uneven ranges and a hole.

use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{FrameEntry, MemoryMap, MemoryRange, Origin, Owner, Pool};

/// Two nodes with uneven ranges, a hole, and neighbours of another node at an odd border.
pub const RANGES: [(u64, u64, u8); 4] = [
    (0x1_0003, 1500, 0),
    (0x1_05df, 700, 1),
    (0x8_0000, 1024, 0),
    (0x9_01ff, 33, 1),
];
pub const NODES: usize = 2;
/// Zeroed blocks that each pool wants; node 0 has three blocks of that size, node 1 one.
pub const RESERVE: u64 = 2;

pub struct Machine {
    pub entries: Vec<Vec<FrameEntry>>,
}

impl Machine {
    pub fn new() -> Self {
        let fresh = |(_, count, _): (u64, u64, u8)| (0..count).map(|_| FrameEntry::default());
        Self {
            entries: RANGES.map(|range| fresh(range).collect()).into(),
        }
    }

    pub fn map(&self) -> MemoryMap<'_> {
        let mut ranges = Vec::new();
        for ((start, count, node), entries) in RANGES.into_iter().zip(&self.entries) {
            let frames = FrameRange {
                start: Mfn(start),
                count,
            };
            // Not in order: the map sorts.
            ranges.insert(
                0,
                MemoryRange {
                    frames,
                    node: NodeId(node),
                    entries,
                },
            );
        }
        MemoryMap::new(&ranges).unwrap()
    }
}

pub fn filled(map: &MemoryMap<'_>) -> [Pool; NODES] {
    let mut pools = [Pool::new(NodeId(0)), Pool::new(NodeId(1))];
    for range in map.ranges() {
        let pool = &mut pools[usize::from(range.node.0)];
        pool.keep_zeroed(RESERVE);
        pool.add(map, range.frames, Origin::Machine).unwrap();
        let again = pool.add(map, range.frames, Origin::Machine);
        assert!(again.is_err(), "added twice");
    }
    pools
}

pub fn owner(vm: u16, gfn: u64) -> Owner {
    Owner {
        vm: VmId {
            index: vm,
            generation: 1,
        },
        gfn: Gfn(gfn),
    }
}
