//! Pages on their way to nodes: by a CPU of the node where they go, one that is idle if there is one,
//! some pages of a VM at a time. The VM's memory is locked while they begin and while they come to
//! their end, and not while they are copied.

use crate::machine::{self, Cpu, stretch};
use crate::memory::Metal;
use crate::placement::{Watch, leave, note_time, page};
use crate::vcpu::sched;
use crate::vms::{self, Instance};
use abi::control::left;
use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use arch::timer;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{Mfn, NodeId};
use model_address_space::{Flight, Frames, Moved};
use model_frame_table::{CHUNK_ORDER, Owner, Purpose};
use model_placement::{MissSource, NodeSet};

/// Pages that move under one debt. The CPUs of a machine with as many nodes as there may be can all be
/// at it for one VM.
pub const BATCH: usize = 16;
/// Batches that a CPU moves in one go, so that what it runs does not wait long.
const BATCHES: usize = 16;
/// Pages that wait to go to a node. Those that find no place come back when they are hot again.
const WAITING: usize = 1024;

/// CPUs that are called, a bit for each.
static CALLED: AtomicU64 = AtomicU64::new(0);

const fn bit(cpu: &Cpu) -> u64 {
    1 << (cpu.id.0 % 64)
}

/// Whether this CPU was called.
#[inline]
pub fn is_called(cpu: &Cpu) -> bool {
    CALLED.load(Ordering::Relaxed) & bit(cpu) != 0
}

/// It comes.
pub fn answer(cpu: &Cpu) {
    stretch::look(stretch::Kind::Numa);
    CALLED.fetch_and(!bit(cpu), Ordering::Relaxed);
}

/// Calls a CPU to look at what there is to do.
pub fn call(cpu: &Cpu) {
    CALLED.fetch_or(bit(cpu), Ordering::Relaxed);
    cpu.poke();
}

/// A page that is to go to a node, or to be copied there.
#[derive(Clone, Copy)]
pub struct Job {
    pub owner: Owner,
    pub frame: Mfn,
    pub copies: bool,
}

/// What is to go to each node.
pub struct Jobs {
    waiting: Vec<Waiting>,
    /// Nodes that something waits for, a bit for each.
    nodes: AtomicU64,
}

struct Waiting {
    jobs: SpinLock<VecDeque<Job>>,
    /// Whose turn it is of the node's CPUs, where none is idle.
    next: AtomicUsize,
}

impl Jobs {
    /// Nothing, on so many nodes.
    pub fn new(nodes: usize) -> Self {
        let waiting = || Waiting {
            jobs: SpinLock::new(Rank::PhysicalDevice, VecDeque::with_capacity(WAITING)),
            next: AtomicUsize::new(0),
        };
        Self {
            waiting: (0..nodes).map(|_| waiting()).collect(),
            nodes: AtomicU64::new(0),
        }
    }

    fn of(&self, node: NodeId) -> Option<&Waiting> {
        self.waiting.get(usize::from(node.0))
    }

    /// A page is to go to a node.
    pub fn add(&self, node: NodeId, job: Job) {
        if let Some(waiting) = self.of(node) {
            let mut jobs = waiting.jobs.lock();
            if jobs.is_empty() {
                self.nodes.fetch_or(1 << node.0, Ordering::Relaxed);
            }
            if jobs.len() < WAITING {
                jobs.push_back(job);
            }
        }
    }

    /// Calls a CPU of each node that pages are to go to, where none of it was called and is still to come.
    pub fn rouse(&self) {
        let nodes = NodeSet::from_bits(self.nodes.load(Ordering::Relaxed));
        for node in nodes.iter() {
            let Some(waiting) = self.of(node) else { break };
            let its = machine::cpu_bits(node);
            if CALLED.load(Ordering::Relaxed) & its != 0 {
                continue;
            }
            let next = || {
                let next = waiting.next.fetch_add(1, Ordering::Relaxed);
                machine::cpus_of(node).nth(next % its.count_ones().max(1) as usize)
            };
            if let Some(cpu) = sched::idle_cpu_of(node).or_else(next) {
                call(cpu);
            }
        }
    }

    /// Moves some pages to `node`.
    pub fn do_some(&self, watch: &Watch, node: NodeId) {
        let Some(waiting) = self.of(node) else { return };
        // Neighbours have their entries and tables in the same cache lines.
        let place = |job: &Job| (job.owner.vm.index, job.owner.gfn);
        let mut jobs = waiting.jobs.lock();
        jobs.make_contiguous().sort_unstable_by_key(place);
        drop(jobs);
        let mut known: Option<Arc<Instance>> = None;
        for _ in 0..BATCHES {
            let batch = self.take(waiting, node);
            let Some(vm) = batch.first().map(|job| job.owner.vm) else {
                break;
            };
            if known.as_ref().is_none_or(|known| known.id != vm) {
                known = vms::instance(vm);
            }
            let Some(instance) = known.as_ref().filter(|instance| !instance.is_ending()) else {
                continue;
            };
            let begun = timer::now();
            let done = carry(instance, &batch, node);
            watch.note(instance, &done);
            note_time(instance, 0, begun);
        }
    }

    /// Some pages of one VM.
    fn take(&self, waiting: &Waiting, node: NodeId) -> heapless::Vec<Job, BATCH> {
        let mut jobs = waiting.jobs.lock();
        let mut batch = heapless::Vec::<Job, BATCH>::new();
        while let Some(job) = jobs.front()
            && batch
                .first()
                .is_none_or(|first| first.owner.vm == job.owner.vm)
            && batch.push(*job).is_ok()
        {
            jobs.pop_front();
        }
        if jobs.is_empty() {
            self.nodes.fetch_and(!(1 << node.0), Ordering::Relaxed);
        }
        batch
    }
}

/// Frames of a node, and the power of two that they are: for a page, and for those of its neighbours behind it
/// that make an aligned run with it. The pool's lists change once for all of them.
fn take_frames(first: &Job, others: &[Job], node: NodeId) -> Option<(Mfn, u8)> {
    let gfn = first.owner.gfn;
    let aligned = gfn.0.trailing_zeros().min(CHUNK_ORDER.into());
    let follows =
        |(n, job): &(u64, &Job)| job.owner.gfn == gfn.add(*n) && job.copies == first.copies;
    let following = (1..1 << aligned).zip(others).take_while(follows).count();
    let purpose = if first.copies {
        Purpose::Replica(first.owner)
    } else {
        Purpose::Private(first.owner)
    };
    let orders = [(following as u32 + 1).ilog2() as u8, 0];
    orders.into_iter().find_map(|order| {
        let new = Metal.allocate_local(node, order, purpose)?;
        Some((new, order))
    })
}

/// Moves pages of a VM to a node, at most [`BATCH`], or gives the node copies.
pub fn carry(instance: &Instance, jobs: &[Job], node: NodeId) -> heapless::Vec<Flight, BATCH> {
    let mut flights = heapless::Vec::<Flight, BATCH>::new();
    let mut rest = jobs.get(..BATCH).unwrap_or(jobs);
    while let Some((first, others)) = rest.split_first() {
        let Some((new, order)) = take_frames(first, others, node) else {
            leave(instance, left::NO_MEMORY);
            rest = others;
            continue;
        };
        for (job, n) in rest.iter().zip(0..1 << order) {
            // There is room for so many jobs.
            let _ = flights.push(Flight {
                gfn: job.owner.gfn,
                old: job.frame,
                new: new.add(n),
                node,
                copies: job.copies,
                state: Moved::Gone,
            });
        }
        rest = rest.get(1 << order..).unwrap_or_default();
    }
    instance.space.take_off(&mut flights);
    let begun = timer::now();
    for flight in &flights {
        if flight.state == Moved::Begun {
            Metal.relocate(flight.old, flight.new);
        }
    }
    note_time(instance, 1, begun);
    instance.space.land(&mut flights);
    for flight in &flights {
        match flight.state {
            Moved::Done => {}
            Moved::Held | Moved::Begun => leave(instance, left::HELD),
            Moved::Gone | Moved::Lost => leave(instance, left::GONE),
        }
    }
    flights
}

impl Watch {
    /// Remembers what came of pages.
    fn note(&self, instance: &Instance, flights: &[Flight]) {
        let mut seen = self.seen.lock();
        let now = seen.interval;
        for flight in flights {
            let page = page(Owner::of(instance.id, flight.gfn));
            match (flight.state, flight.copies) {
                (Moved::Done, true) => {
                    let nodes = NodeSet::NONE.with(flight.node);
                    seen.placement.replicated(page, nodes, now);
                }
                // Who writes while pages are copied makes as much work.
                (Moved::Done, false) | (Moved::Lost, _) => seen.placement.moved(page, now),
                _ => continue,
            }
            // What was counted of the frame before was another page's.
            seen.source.take(flight.new, &mut []);
        }
    }
}
