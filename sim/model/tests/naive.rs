//! The machine against one so simple that it is plainly right: each cache is a list of lines in the
//! order of use, and who holds what is found by looking into all of them.
#![allow(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;
use sim_model::{Access, Geometry, Level, Machine, PAGE_SHIFT, Regions, Topology, Window, offset};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const CPUS: usize = 4;
const NODES: usize = 2;
const BASE: u64 = 0x4000_0000;
const NODE_BYTES: u64 = 4 << PAGE_SHIFT;
const SLICE_NS: u64 = 1000;

#[derive(Default)]
struct Naive {
    sets: u64,
    ways: usize,
    line: u64,
    /// Lines with whether they are dirty, the one used last at the end.
    caches: [Vec<(u64, bool)>; CPUS],
    misses: [u64; CPUS],
    upgrades: [u64; CPUS],
    stall: [u64; CPUS],
    pages: Vec<[u32; NODES]>,
    written: Vec<bool>,
}

impl Naive {
    fn access(&mut self, cpu: usize, address: u64, access: Access) {
        let end = BASE + NODE_BYTES * NODES as u64;
        if !(BASE..end).contains(&address) {
            return;
        }
        let (line, store) = (address / self.line, access == Access::Store);
        let page = ((address - BASE) >> PAGE_SHIFT) as usize;
        let held = |cache: &Vec<(u64, bool)>| cache.iter().position(|entry| entry.0 == line);
        let by_others = (0..CPUS).any(|other| other != cpu && held(&self.caches[other]).is_some());
        let own = held(&self.caches[cpu]).map(|at| self.caches[cpu].remove(at));
        self.written[page] |= store && !own.is_some_and(|(_, dirty)| dirty);
        let waits = own.is_none() || (store && by_others);
        self.misses[cpu] += u64::from(own.is_none());
        self.upgrades[cpu] += u64::from(own.is_some() && store && by_others);
        if waits {
            let node = cpu / (CPUS / NODES);
            let home = ((address - BASE) / NODE_BYTES) as usize;
            self.stall[cpu] += if node == home { 300 } else { 900 };
            self.pages[page][node] += 1;
        }
        for other in (0..CPUS).filter(|other| *other != cpu) {
            if store {
                self.caches[other].retain(|entry| entry.0 != line);
            } else if own.is_none() {
                let entries = self.caches[other].iter_mut();
                entries.filter(|e| e.0 == line).for_each(|e| e.1 = false);
            }
        }
        let cache = &mut self.caches[cpu];
        cache.push((line, store || own.is_some_and(|(_, dirty)| dirty)));
        let set = |entry: &(u64, bool)| entry.0 % self.sets == line % self.sets;
        if cache.iter().filter(|entry| set(entry)).count() > self.ways
            && let Some(oldest) = cache.iter().position(set)
        {
            cache.remove(oldest);
        }
    }
}

fn accesses() -> impl Strategy<Value = Vec<(usize, u64, Access)>> {
    let kind = prop_oneof![
        3 => Just(Access::Load),
        2 => Just(Access::Store),
        1 => Just(Access::Fetch),
    ];
    // Beyond the memory on both sides, too.
    let address = BASE - 128..BASE + NODE_BYTES * NODES as u64 + 128;
    prop::collection::vec((0..CPUS, address, kind), 1..600)
}

fn topology() -> Topology {
    let latencies = Topology::two_latencies(NODES, 300, 900);
    Topology::new(CPUS, NODES, BASE, NODE_BYTES, latencies).unwrap()
}

proptest! {
    #[test]
    fn like_the_naive_machine(accesses in accesses(), ways in 0u32..3, line in 5u32..8) {
        let (ways, line) = (1u64 << ways, 1u64 << line);
        let geometry = Geometry::new(1024, ways, line).unwrap();
        let words: Vec<AtomicU32> =
            (0..Window::words_for(&topology())).map(|_| AtomicU32::new(0)).collect();
        let window = Window::new(&words, &topology()).unwrap();
        let mut machine = Machine::new(topology(), geometry, SLICE_NS, window);
        let pages = (NODE_BYTES >> PAGE_SHIFT) as usize * NODES;
        let mut naive = Naive {
            sets: geometry.sets(),
            ways: ways as usize,
            line,
            pages: vec![[0; NODES]; pages],
            written: vec![false; pages],
            ..Naive::default()
        };
        for (cpu, address, access) in accesses {
            match access {
                Access::Fetch => machine.fetch(cpu, address, 1),
                _ => machine.access(cpu, address, 1, access),
            }
            naive.access(cpu, address, access);
        }
        for (cpu, counts) in machine.counts().iter().enumerate() {
            let misses = counts.data_local + counts.data_remote + counts.fetch_local + counts.fetch_remote;
            prop_assert_eq!(misses, naive.misses[cpu]);
            prop_assert_eq!(counts.upgrades, naive.upgrades[cpu]);
            prop_assert_eq!(counts.stall_ns, naive.stall[cpu]);
            prop_assert_eq!(machine.clock().local_ns(cpu), naive.stall[cpu]);
        }
        for page in 0..pages {
            let record = &words[offset::HEADER_END + page * (NODES + 1)..][..=NODES];
            for (word, misses) in record.iter().zip(naive.pages[page]) {
                prop_assert_eq!(word.load(Relaxed), misses);
            }
            prop_assert_eq!(record[NODES].load(Relaxed) != 0, naive.written[page]);
        }
    }

    /// The parallel clock is never behind any CPU's own, never ahead of all together, and the same
    /// turns in parallel take as long as one of them.
    #[test]
    fn the_clock_is_between_longest_and_sum(turns in prop::collection::vec((0..CPUS, 1u64..3000), 1..200)) {
        let mut clock = sim_model::Clock::new(CPUS, SLICE_NS);
        let mut last = 0;
        for (cpu, ns) in turns {
            clock.run(cpu);
            clock.spend(cpu, ns);
            clock.turn_is_over();
            prop_assert!(clock.now_ns() >= last);
            last = clock.now_ns();
        }
        let local: Vec<u64> = (0..CPUS).map(|cpu| clock.local_ns(cpu)).collect();
        prop_assert!(last >= local.iter().copied().max().unwrap());
        prop_assert!(last <= local.iter().sum());
    }
}

#[test]
fn regions_give_differences() {
    let words: Vec<AtomicU32> = (0..Window::words_for(&topology()))
        .map(|_| AtomicU32::new(0))
        .collect();
    let window = Window::new(&words, &topology()).unwrap();
    let geometry = Geometry::new(1024, 2, 64).unwrap();
    let mut machine = Machine::new(topology(), geometry, SLICE_NS, window);
    let mut regions = Regions::default();
    assert_eq!(
        regions.end(3, &machine),
        "",
        "what did not begin does not end"
    );
    assert_eq!(regions.end(u64::MAX, &machine), "");
    machine.access(0, BASE, 8, Access::Load);
    regions.begin(3, &machine);
    machine.set_level(1, Level::User);
    assert!(!machine.execute(1, 10));
    // Two lines, of which the second is on a page that may be anywhere.
    machine.access(1, BASE + 4092, 8, Access::Store);
    machine.access(1, BASE + 60, 8, Access::Load);
    machine.set_level(1, Level::Kernel);
    machine.fetch(1, BASE + NODE_BYTES, 2);
    let lines = regions.end(3, &machine);
    // CPU 1 began where CPU 0 was after its 300 ns.
    assert_eq!(
        lines.lines().nth(1),
        Some("3,0,1,0,10,3,0,2,3,0,0,2700,2710,2710,910,1800,0")
    );
    assert_eq!(
        lines.lines().next(),
        Some("3,0,0,0,0,0,0,0,0,0,0,0,0,2710,0,0,0")
    );
    assert_eq!(lines.lines().count(), CPUS);
}
