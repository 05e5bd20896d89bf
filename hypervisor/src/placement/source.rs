//! Where misses come from: counted by a simulated machine (`sim/`), or sampled.

use abi::control::misses;
use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicUsize, Ordering};
use model_addr::{Gfn, Mfn, NodeId, PaRange};
use model_address_space::{AGE_AT_ONCE, Access};
use model_frame_table::Owner;
use model_machine_tree::Machine;
use model_miss_window::{MissWindow, Words};
use model_placement::{FOLLOWED, MissSource, NodeSet, Samples, Thresholds};

use crate::guest::layout::RAM_START;
use crate::machine;
use crate::placement::{Watch, node_of, nodes_of, short_nodes};
use crate::vms::{self, Instance};

/// The counters of a simulated machine: memory that belongs to no pool.
pub struct Counters(PaRange);

impl Counters {
    fn pointer(&self, at: usize) -> *mut u32 {
        assert!(at < self.count());
        core::ptr::with_exposed_provenance_mut((self.0.start.0 as usize) + 4 * at)
    }
}

impl Words for Counters {
    fn count(&self) -> usize {
        (self.0.size / 4) as usize
    }

    fn get(&self, at: usize) -> u32 {
        // SAFETY: RAM that is mapped one to one and no pool's; it was checked to lie inside. The
        // machine changes it at any moment, and no reference to it is formed.
        unsafe { self.pointer(at).read_volatile() }
    }

    fn set(&mut self, at: usize, value: u32) {
        // SAFETY: as above.
        unsafe { self.pointer(at).write_volatile(value) }
    }
}

/// Something that knows on which pages nodes miss.
pub enum Source {
    /// The machine counts misses.
    Counted(MissWindow<Counters>),
    /// Some pages fault when they are touched next.
    Sampled(Box<Samples<Owner>>),
}

/// Shortest and longest time between two looks, and the part by which one in vain makes it longer.
pub struct Pace {
    pub least_ns: u64,
    pub most_ns: u64,
    pub slower: u64,
}

impl Pace {
    /// By a clock that counts the instructions of all CPUs and not the time that they wait for memory:
    /// where they do, the shortest is 5 ms or more of the machine's time.
    const COUNTED: Self = Self {
        least_ns: 250_000,
        most_ns: 2_000_000,
        slower: 1,
    };
    /// A page is followed for four looks until something comes of it.
    const SAMPLED: Self = Self {
        least_ns: 2_000_000,
        most_ns: 64_000_000,
        slower: 4,
    };
}

impl Source {
    /// What counts on this machine, or what samples where that is asked for; none where all memory is near.
    pub fn find(machine: &machine::Machine, samples: bool) -> Option<Self> {
        if samples {
            let trigger = Thresholds::DEFAULT.trigger;
            let sampled = || Self::Sampled(Box::new(Samples::new(trigger)));
            return (machine.nodes() > 1).then(sampled);
        }
        let window = open(machine.tree, machine.counters?, machine.nodes())?;
        Some(Self::Counted(window))
    }

    /// How often is looked.
    pub fn pace(&self) -> Pace {
        match self {
            Self::Counted(_) => Pace::COUNTED,
            Self::Sampled(_) => Pace::SAMPLED,
        }
    }

    /// One of [`misses`].
    pub fn code(&self) -> u64 {
        match self {
            Self::Counted(_) => misses::COUNTED,
            Self::Sampled(_) => misses::SAMPLED,
        }
    }
}

impl MissSource for Source {
    fn hot(&self) -> u32 {
        match self {
            Self::Counted(window) => window.hot(),
            Self::Sampled(samples) => samples.hot(),
        }
    }

    fn next_hot(&mut self) -> Option<Mfn> {
        match self {
            Self::Counted(window) => window.next_hot(),
            Self::Sampled(samples) => samples.next_hot(),
        }
    }

    fn take(&mut self, frame: Mfn, misses: &mut [u32]) -> bool {
        match self {
            Self::Counted(window) => window.take(frame, misses),
            Self::Sampled(samples) => samples.take(frame, misses),
        }
    }
}

/// The counters' memory: that of the last node, where it has no CPUs and what stands there describes
/// this machine. It is nobody's memory then.
pub fn find_counters(tree: &Machine) -> Option<PaRange> {
    let nodes = tree.distances.count().checked_sub(1)?;
    let last = NodeId(nodes as u8);
    let is_its = |node: NodeId| node == last;
    let mut its = tree.memory.iter().filter(|memory| is_its(memory.node));
    let (Some(memory), None) = (its.next(), its.next()) else {
        return None;
    };
    if tree.cpus.iter().any(|cpu| is_its(cpu.node)) {
        return None;
    }
    open(tree, memory.range, nodes).map(|_| memory.range)
}

fn open(tree: &Machine, range: PaRange, nodes: usize) -> Option<MissWindow<Counters>> {
    let first = tree.memory.iter().map(|memory| memory.range.start).min()?;
    let in_order = |n| tree.distances.id(NodeId(n)) == Some(n.into());
    let trigger = Thresholds::DEFAULT.trigger;
    let window = MissWindow::open(Counters(range), nodes, first.frame(), trigger)?;
    (0..nodes as u8).all(in_order).then_some(window)
}

/// Guest frames that are looked at in one go for some that are worth a sample.
const SEARCHED: usize = 8 * AGE_AT_ONCE;

/// Where nothing counts: has some pages of a VM fault at their next touch, and those again that are
/// followed. Who owes memory is left alone, as are all while memory is short: there, pages that are not
/// touched go to disks.
pub fn sample_some(watch: &Watch) {
    let again: heapless::Vec<Owner, FOLLOWED> = match &mut watch.seen.lock().source {
        Source::Sampled(samples) => samples.turn().collect(),
        Source::Counted(_) => return,
    };
    if !short_nodes().is_empty() || crate::memory::shortage::somebody_owes() {
        return;
    }
    for pages in again.chunk_by(|one, next| one.vm == next.vm) {
        let running = pages.first().and_then(|page| vms::instance(page.vm));
        let Some(instance) = running.filter(|instance| !instance.is_ending()) else {
            continue;
        };
        for some in pages.chunks(AGE_AT_ONCE) {
            let some: heapless::Vec<Gfn, AGE_AT_ONCE> = some.iter().map(|page| page.gfn).collect();
            instance.space.sample(&some);
        }
    }
    if let Some(instance) = next_vm() {
        sample_next(&instance);
    }
}

/// Whose turn it is. Who must not tell a shared page by the time of a touch has none.
fn next_vm() -> Option<Arc<Instance>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let vms = vms::all();
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % vms.len().max(1);
    let running = vms.get(next).and_then(|vm| vm.live());
    running.filter(|vm| !vm.space.policy().hide)
}

/// Goes on with a VM's pages: those are worth a sample that are far from one of its vCPUs.
fn sample_next(instance: &Instance) {
    let nodes = nodes_of(instance);
    let is_far = |home: NodeId| !nodes.without(NodeSet::NONE.with(home)).is_empty();
    let hand = &instance.numa.sampled;
    let mut at = Some(Gfn(hand.load(Ordering::Relaxed)).max(RAM_START.frame()));
    let mut far = heapless::Vec::<Gfn, AGE_AT_ONCE>::new();
    for _ in 0..SEARCHED / AGE_AT_ONCE {
        let Some(from) = at.filter(|_| far.is_empty()) else {
            break;
        };
        at = instance.space.visit(from, AGE_AT_ONCE, |gfn, entry| {
            if entry.reasons.is_empty() && entry.frame().and_then(node_of).is_some_and(is_far) {
                // There is room for all that are looked at.
                let _ = far.push(gfn);
            }
        });
    }
    hand.store(at.map_or(0, |at| at.0), Ordering::Relaxed);
    instance.space.sample(&far);
}

/// A sampled page was touched by a CPU of `node`.
pub fn touched(watch: &Watch, frame: Mfn, page: Owner, (node, access): (NodeId, Access)) {
    let Some(home) = node_of(frame) else { return };
    if let Source::Sampled(samples) = &mut watch.seen.lock().source {
        samples.touched((frame, page), home, node, access.writes());
    }
}
