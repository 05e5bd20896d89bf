//! What it takes to find whose a hot page is, and to move it to another node or copy it there, beside the size of
//! the frame table: `cargo bench -p model_address_space`. A VM of 1 GiB has a chunk in each of its 512 regions, which
//! lie far from each other in a machine of 8 or 64 nodes; its chunks go from node to node, eight of them. Bytes are not copied,
//! locks have no other taker, and invalidations go to no CPU.
#![allow(clippy::unwrap_used, reason = "it only measures")]

use machine_contract::TableMemory;
use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, Gfn, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{
    Access, Filled, Flight, Frames, GuestRam, Maps, Moved, Policy, SOURCES, Translation,
};
use model_frame_table::{CHUNK_FRAMES, CHUNK_ORDER, Owner, Purpose};
use model_stage2::Invalidation;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const RAM: Gfn = Gfn(0x4_0000);
const REGIONS: u64 = 512;
const REGION_FRAMES: u64 = 512;
/// Nodes that the VM is on.
const NODES: u8 = 8;
const ROUNDS: u8 = 32;
/// Blocks of 2 MiB that each node's pool has: enough for all regions.
const BLOCKS: u64 = 640;
const VM: VmId = VmId {
    index: 0,
    generation: 1,
};

/// Tables one after the other; no CPU walks them.
#[derive(Default)]
struct Tables {
    words: Vec<[u64; 512]>,
    free: Vec<Mfn>,
}

impl TableMemory for Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if let Some(table) = self.free.pop() {
            self.words[table.0 as usize] = [0; 512];
            return Some(table);
        }
        self.words.push([0; 512]);
        Some(Mfn(self.words.len() as u64 - 1))
    }

    fn free_table(&mut self, table: Mfn) {
        self.free.push(table);
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.words[table.0 as usize][index]
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.words[table.0 as usize][index] = value;
    }
}

impl Translation for Tables {
    fn invalidate(&mut self, what: Invalidation) {
        black_box(what);
    }

    fn use_root(&mut self, node: NodeId, root: Mfn) {
        black_box((node, root));
    }
}

struct Machine {
    frames: FakeFrames,
    ram: GuestRam<Vec<u8>>,
    maps: Mutex<Maps<Tables>>,
    nodes: u8,
}

/// Time for looks at pages, for moving them, and for copying them.
#[derive(Clone, Copy)]
struct Times {
    look: Duration,
    moved: Duration,
    copied: Duration,
}

impl Machine {
    fn new(frames: u64, nodes: u8) -> Self {
        let range = IpaRange {
            start: RAM.address(),
            size: REGIONS * REGION_FRAMES * FRAME_SIZE,
        };
        let tables = Tables::default();
        Self {
            frames: FakeFrames::sparse(frames, nodes.into(), BLOCKS),
            ram: GuestRam::new(VM, range, [const { None }; SOURCES], Policy::default()),
            maps: Mutex::new(Maps::new(tables, range).unwrap()),
            nodes,
        }
    }

    /// The first page of a chunk of each region.
    fn chunks() -> impl Iterator<Item = Gfn> {
        (0..REGIONS).map(|n| RAM.add(n * REGION_FRAMES))
    }

    fn touch_all(&self) {
        for chunk in Self::chunks() {
            let (ipa, lock) = (chunk.address(), || self.maps.lock().unwrap());
            let filled = { &self.ram }.fill(ipa, NodeId(0), Access::Write, &self.frames, &lock);
            assert_eq!(filled, Filled::Done);
        }
    }

    /// Whose a page is, and which nodes have copies.
    fn look(&self, gfn: Gfn) -> Mfn {
        let maps = self.maps.lock().unwrap();
        let frame = maps.entry(gfn).frame().unwrap();
        let entry = self.frames.map().entry(frame).unwrap();
        assert_eq!(entry.lock().unwrap().owner().gfn, gfn);
        black_box(maps.copied_on(gfn).count());
        frame
    }

    /// All pages of a chunk go to a node, or it gets copies.
    fn carry(&self, chunk: Gfn, node: NodeId, copies: bool) {
        let owner = Owner { vm: VM, gfn: chunk };
        let purpose = if copies {
            Purpose::Replica(owner)
        } else {
            Purpose::Private(owner)
        };
        let new = self.frames.allocate_local(node, CHUNK_ORDER, purpose);
        let new = new.unwrap();
        let flight = |n| {
            let gfn = chunk.add(n);
            Flight {
                gfn,
                old: self.maps.lock().unwrap().entry(gfn).frame().unwrap(),
                new: new.add(n),
                node,
                copies,
                state: Moved::Gone,
            }
        };
        let mut flights: Vec<Flight> = (0..CHUNK_FRAMES).map(flight).collect();
        self.maps.lock().unwrap().begin(&self.ram, &mut flights);
        let mut maps = self.maps.lock().unwrap();
        maps.commit(&self.ram, &mut flights, &self.frames);
        assert!(flights.iter().all(|flight| flight.state == Moved::Done));
    }

    /// The VM's nodes lie far from each other.
    fn node(&self, n: u8) -> NodeId {
        NodeId(n % NODES * (self.nodes / NODES))
    }

    fn run(&self) -> Times {
        let timed = |work: &dyn Fn()| {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        let moved = timed(&|| {
            for node in (1..=ROUNDS).map(|round| self.node(round)) {
                Self::chunks().for_each(|chunk| self.carry(chunk, node, false));
            }
        });
        let copied = timed(&|| {
            for node in (1..NODES).map(|n| self.node(n)) {
                Self::chunks().for_each(|chunk| self.carry(chunk, node, true));
            }
        });
        let look = timed(&|| {
            for _ in 0..ROUNDS {
                Self::chunks().for_each(|chunk| {
                    black_box(self.look(chunk));
                });
            }
        });
        Times {
            look,
            moved,
            copied,
        }
    }
}

/// The best of three runs, in nanoseconds for a page.
fn best(frames: u64, nodes: u8) -> [f64; 3] {
    let pages = (REGIONS * CHUNK_FRAMES) as f64;
    let run = || {
        let machine = Machine::new(frames, nodes);
        machine.touch_all();
        let times = machine.run();
        let ns = |time: Duration, count: f64| time.as_nanos() as f64 / count;
        [
            ns(times.look, REGIONS as f64 * f64::from(ROUNDS)),
            ns(times.moved, pages * f64::from(ROUNDS)),
            ns(times.copied, pages * f64::from(NODES - 1)),
        ]
    };
    let runs = [run(), run(), run()];
    [0, 1, 2].map(|of| runs.iter().map(|run| run[of]).fold(f64::MAX, f64::min))
}

fn main() {
    println!("memory_gib,nodes,look_ns,moved_ns,copied_ns");
    for (gib, nodes) in [128_u64, 1 << 10, 16 << 10]
        .into_iter()
        .flat_map(|gib| [(gib, 8), (gib, 64)])
    {
        let [look, moved, copied] = best(gib << 18, nodes);
        println!("{gib},{nodes},{look:.0},{moved:.0},{copied:.0}");
    }
}
