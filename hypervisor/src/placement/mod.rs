//! Pages go where they are used: misses are counted by the machine or sampled, what is to be done is
//! decided in [`model_placement`], and done under the memory lock of the VM it is done to.

mod moving;
mod source;

use crate::guest::{layout::RAM_START, tally::IS_ON};
use crate::machine::{self, Cpu, due};
use crate::memory::{Metal, frames, hooks};
use crate::vcpu::sched;
use crate::vms::{self, Instance};
use abi::control::{count, left, misses};
use alloc::{sync::Arc, vec};
use arch::timer;
use core::cell::OnceCell;
use core::sync::atomic::{AtomicU16, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{Gfn, Mfn, NodeId, VmId};
use model_address_space::Access;
use model_frame_table::{MAX_NODES, Owner, Use};
use model_placement::{
    Decision, MissSource, NodeSet, Page, Past, Placement, Set, Sight, Stays, Thresholds, decide,
};
use model_pmap::Backing;
use moving::{Job, Jobs};
use source::Source;
pub use source::find_counters;

/// How often VMs that move as a whole are looked at: 2 ms.
const MOVE_EVERY_NS: u64 = 2_000_000;
/// After how many looks copies are given back where memory is short.
const GIVE_BACK_EVERY: u32 = 8;
/// Hot pages that are looked at in one go, so that nobody waits long for the CPU that does it.
const AT_ONCE: usize = 256;
/// Misses of a node without which nothing becomes of a page.
const LEAST: u32 = Thresholds::DEFAULT.sharing;
/// Hot pages that are worth a look at once.
const ENOUGH: u32 = 32;
/// Intervals after which fewer are.
const PATIENCE: u32 = 8;
/// Guest frames that are looked at in one go while all of a VM moves.
const MOVED_AT_ONCE: usize = 64;
/// Sets of pages that are remembered.
const SETS: usize = 512;

/// What counts misses, and what is known of hot pages.
struct Seen {
    source: Source,
    placement: Placement<'static>,
    interval: u32,
    /// Nodes that were short of memory when the interval began.
    short: NodeSet,
    /// When the next look is: later and later while nothing is hot, or samples are in vain.
    rest_ns: u64,
    /// The interval of the last look.
    looked: u32,
    /// Something was to be done with a page since the interval began.
    gained: bool,
}

impl Seen {
    /// An interval begins: how long it is, its number, and whether a CPU is to look.
    fn begin_interval(&mut self) -> (u64, u32, bool) {
        self.interval += 1;
        let gained = core::mem::take(&mut self.gained);
        let pace = self.source.pace();
        let (is_busy, looks) = match &self.source {
            Source::Counted(window) => (window.hot() > 0, self.is_worth_a_look()),
            Source::Sampled(_) => (gained, true),
        };
        self.rest_ns = if is_busy {
            pace.least_ns
        } else {
            let longer = self.rest_ns + self.rest_ns / pace.slower;
            longer.clamp(pace.least_ns, pace.most_ns)
        };
        if looks {
            self.looked = self.interval;
        }
        (self.rest_ns, self.interval, looks)
    }

    /// Whether so many pages are hot that what a look costs beside them is little, or some are for long.
    fn is_worth_a_look(&self) -> bool {
        let (hot, waited) = (self.source.hot(), self.interval.wrapping_sub(self.looked));
        hot >= ENOUGH || hot > 0 && waited >= PATIENCE
    }

    /// A hot page, each node's misses on it, and whether it was written.
    fn next_hot(&mut self, misses: &mut [u32]) -> Option<(Mfn, bool)> {
        let frame = self.source.next_hot()?;
        Some((frame, self.source.take(frame, misses)))
    }
}

/// That, and what is to be done.
struct Watch {
    seen: SpinLock<Seen>,
    jobs: Jobs,
}

static WATCH: Once<Watch> = Once::new();
/// The CPU that is to look at hot pages.
static LOOKER: AtomicU16 = AtomicU16::new(NOBODY);
const NOBODY: u16 = u16::MAX;

/// Begins to look at the counters, where there are some.
pub fn init() {
    let machine = machine::get();
    let how = machine.tree.option("numa=");
    let off = hooks::goes_round(how) || how == Some("off");
    let Some(source) = Source::find(machine, how == Some("sample")).filter(|_| !off) else {
        return;
    };
    let how = match &source {
        Source::Counted(_) => "the machine counts misses",
        Source::Sampled(_) => "some pages are sampled",
    };
    let seen = Seen {
        source,
        placement: Placement::new(vec![Set::EMPTY; SETS].leak(), Thresholds::DEFAULT),
        interval: 0,
        short: NodeSet::NONE,
        rest_ns: 0,
        looked: 0,
        gained: false,
    };
    let watch = Watch {
        seen: SpinLock::new(Rank::PhysicalDevice, seen),
        jobs: Jobs::new(machine.nodes()),
    };
    if WATCH.set(watch).is_ok() {
        IS_ON.store(true, Ordering::Release);
        log::info!("{how}: pages go where they are used");
        due::LOOK_AT.store(timer::now(), Ordering::Relaxed);
        due::tick_at(timer::now());
    }
}

/// Lets CPUs look at hot pages where it is time and there are some. In an interrupt, so that no more is
/// done where there are none.
#[inline]
pub fn notice(now: u64) {
    if now >= due::LOOK_AT.load(Ordering::Relaxed) {
        begin_interval(now);
    }
}

#[cold]
fn begin_interval(now: u64) {
    let Some(watch) = WATCH.get() else { return };
    let (wait, interval, looks) = watch.seen.lock().begin_interval();
    due::LOOK_AT.store(now + machine::counts(wait), Ordering::Relaxed);
    if looks {
        let short = short_nodes();
        watch.seen.lock().short = short;
        pass_turn();
    }
    watch.jobs.rouse();
    if interval.is_multiple_of(GIVE_BACK_EVERY) {
        due::tick_at(now);
    }
}

/// Gives copies back where memory is short, and looks at VMs that move.
pub fn tick() {
    short_nodes().iter().for_each(|node| {
        give_copies_back(node);
    });
    if move_vms() {
        due::tick_at(timer::now() + machine::counts(MOVE_EVERY_NS));
    }
}

/// Lets an idle CPU look at hot pages, or one after the other: it takes time, which no vCPU is to lose
/// alone.
fn pass_turn() {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let next = || {
        let count = machine::cpus().count().max(1);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        machine::cpus().nth(usize::from(next) % count)
    };
    if let Some(cpu) = sched::idle_cpu().or_else(next) {
        LOOKER.store(cpu.id.0, Ordering::Relaxed);
        moving::call(cpu);
    }
}

/// Looks at some hot pages and moves some, where this CPU was called for it.
#[inline]
pub fn take_turn(cpu: &Cpu) {
    if moving::is_called(cpu) {
        work(cpu);
    }
}

#[cold]
fn work(cpu: &Cpu) {
    moving::answer(cpu);
    let Some(watch) = WATCH.get() else { return };
    // Where another is named at this moment, it has no turn now; the next interval names one again.
    if LOOKER.load(Ordering::Relaxed) == cpu.id.0 {
        LOOKER.store(NOBODY, Ordering::Relaxed);
        look_at_some(watch);
        source::sample_some(watch);
        watch.jobs.rouse();
        if watch.seen.lock().source.hot() >= ENOUGH {
            pass_turn();
        }
    }
    watch.jobs.do_some(watch, cpu.node);
}

fn look_at_some(watch: &Watch) {
    let mut subject = None;
    for _ in 0..AT_ONCE {
        let mut misses = [0; MAX_NODES];
        let hot = watch.seen.lock().next_hot(&mut misses);
        let Some((frame, written)) = hot else { break };
        // Two nodes may have reported it, and it was looked at for one.
        if misses.iter().any(|count| *count >= LEAST) {
            look(watch, &mut subject, frame, (&misses, written));
        }
    }
}

/// Nodes with so little memory left that no page moves there.
fn short_nodes() -> NodeSet {
    let is_short = |node: &NodeId| {
        let kept = 2 * frames::reserve(*node) + AT_ONCE as u64;
        frames::counts(*node).free < kept
    };
    machine::get().node_ids().filter(is_short).collect()
}

/// Gives copies that nodes have of pages back, some of each VM; how many. Memory for copies is only lent.
pub fn give_copies_back(node: NodeId) -> u64 {
    let mut given = 0;
    for vm in vms::all() {
        let Some(instance) = vm.instance() else {
            continue;
        };
        let hand = &instance.numa.back[node];
        let from = Gfn(hand.load(Ordering::Relaxed));
        let (some, next) = instance.space.give_copies_back(node, from);
        hand.store(next.map_or(0, |next| next.0), Ordering::Relaxed);
        given += some;
    }
    given
}

/// No frame is left: gives copies back until there is one; whether there is.
#[cold]
pub fn give_a_copy_back() -> bool {
    let copies = |vm: &Arc<vms::Vm>| vm.instance().map_or(0, |instance| instance.space.copies());
    while vms::all().iter().any(|vm| copies(vm) > 0) {
        let mut nodes = machine::get().node_ids();
        if nodes.any(|node| give_copies_back(node) > 0) {
            return true;
        }
    }
    false
}

/// Users of a shared frame that are looked at: others see to theirs when they miss on it.
const USERS: usize = 8;

/// Whose memory a frame is, and whether it is a copy.
fn users(frame: Mfn) -> Option<(heapless::Vec<Owner, USERS>, NodeId, bool)> {
    let entry = machine::get().map.entry(frame)?;
    let mut users = heapless::Vec::new();
    let state = entry.state();
    match state.usage {
        Use::Private | Use::Replica => {
            let locked = entry.lock()?;
            if locked.state().usage != state.usage {
                return None;
            }
            let _ = users.push(locked.owner());
        }
        Use::Shared => model_sharing::users(&Metal, frame, |user| {
            let _ = users.push(user);
        }),
        _ => return None,
    }
    Some((users, state.node, state.usage == Use::Replica))
}

/// A VM of which pages are looked at, one after the other: what others change as well is read and written once.
struct Subject {
    instance: Arc<Instance>,
    runs_on: OnceCell<NodeSet>,
    local: u64,
    remote: u64,
}

impl Subject {
    fn new(vm: VmId) -> Option<Self> {
        let instance = vms::instance(vm)?;
        Some(Self {
            instance,
            runs_on: OnceCell::new(),
            local: 0,
            remote: 0,
        })
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.instance.count(count::HOT_MISSES, self.local);
        self.instance.count(count::HOT_MISSES + 1, self.remote);
    }
}

/// Decides what becomes of a hot page; `subject` is the VM whose the last one was.
fn look(watch: &Watch, subject: &mut Option<Subject>, frame: Mfn, seen: (&[u32], bool)) {
    // A frame of EL2's own is not a VM's affair.
    let Some((users, home, is_copy)) = users(frame) else {
        return;
    };
    for owner in users {
        if { subject.as_ref() }.is_none_or(|subject| subject.instance.id != owner.vm) {
            *subject = Subject::new(owner.vm);
        }
        let running = subject.as_mut().filter(|vm| !vm.instance.is_ending());
        let Some(subject) = running else { continue };
        for (node, count) in (0..).zip(seen.0) {
            let share = if NodeId(node) == home {
                &mut subject.local
            } else {
                &mut subject.remote
            };
            *share += u64::from(*count);
        }
        if is_copy {
            // Nobody else reaches it.
            leave(&subject.instance, left::AT_HOME);
        } else {
            place(watch, subject, (owner, frame), home, seen);
        }
    }
}

/// Decides what becomes of a VM's page, and has it done on the nodes where it goes.
fn place(
    watch: &Watch,
    vm: &Subject,
    (owner, frame): (Owner, Mfn),
    home: NodeId,
    (misses, written): (&[u32], bool),
) {
    let mut sight = Sight {
        home,
        replicas: NodeSet::NONE,
        misses,
        written,
    };
    // Most that are hot are written by several, and stay, whatever else is known of them.
    if written
        && let Decision::Leave(why) =
            decide(sight, Past::default(), NodeSet::NONE, &Thresholds::DEFAULT)
    {
        return leave(&vm.instance, reason(why));
    }
    let (backing, replicas) = vm.instance.space.seat(owner.gfn);
    sight.replicas = replicas;
    let decision = {
        let mut seen = watch.seen.lock();
        let (now, short) = (seen.interval, seen.short);
        let decision = seen.placement.look(page(owner), sight, short, now);
        seen.gained |= !matches!(decision, Decision::Leave(_));
        decision
    };
    let (nodes, copies) = match decision {
        // Others may use it where it is.
        Decision::Migrate(to) => (
            NodeSet::NONE.with(to),
            !matches!(backing, Backing::Private(_)),
        ),
        Decision::Replicate(nodes) => (nodes, true),
        Decision::Leave(why) => return leave(&vm.instance, reason(why)),
    };
    for node in nodes.iter() {
        let runs_on = || vm.runs_on.get_or_init(|| nodes_of(&vm.instance));
        if !copies || runs_on().contains(node) {
            let job = Job {
                owner,
                frame,
                copies,
            };
            watch.jobs.add(node, job);
        }
    }
}

/// Nodes where the VM's vCPUs run, or ran last.
fn nodes_of(instance: &Instance) -> NodeSet {
    let cpus = instance
        .vcpus
        .iter()
        .map(|vcpu| vcpu.stats.last_cpu.load(Ordering::Relaxed));
    cpus.filter_map(|cpu| machine::cpu(u16::try_from(cpu).ok()?))
        .map(|cpu| cpu.node)
        .collect()
}

/// A page's number, of this start of its VM: guest frames are numbered below 2^28.
fn page(owner: Owner) -> Page {
    let vm = u64::from(owner.vm.generation) << 16 | u64::from(owner.vm.index);
    Page((vm & 0x7fff_ffff) << 32 | owner.gfn.0)
}

const fn reason(why: Stays) -> usize {
    match why {
        Stays::NotHot => left::NOT_HOT,
        Stays::AtHome => left::AT_HOME,
        Stays::WriteShared => left::WRITE_SHARED,
        Stays::MovedOften => left::MOVED_OFTEN,
        Stays::NoMemory => left::NO_MEMORY,
    }
}

/// All of a VM's memory is to move to a node, in pieces.
pub fn move_vm(instance: &Instance, to: NodeId) {
    let tally = &instance.numa;
    tally.hand.store(RAM_START.frame().0, Ordering::Relaxed);
    tally.wanted.store(u64::from(to.0) + 1, Ordering::Release);
    due::tick_at(timer::now());
}

/// Moves some pages of each VM that moves; whether one has more.
fn move_vms() -> bool {
    let mut more = false;
    for vm in vms::all() {
        let Some(instance) = vm.live() else { continue };
        let wanted = instance.numa.wanted.load(Ordering::Acquire);
        if let Some(to) = wanted.checked_sub(1) {
            more |= move_some(&instance, NodeId(to as u8));
        }
    }
    more
}

fn move_some(instance: &Arc<Instance>, to: NodeId) -> bool {
    let tally = &instance.numa;
    let from = Gfn(tally.hand.load(Ordering::Relaxed));
    let mut found = heapless::Vec::<Job, MOVED_AT_ONCE>::new();
    let next = instance.space.visit(from, MOVED_AT_ONCE, |gfn, entry| {
        if let Backing::Private(frame) = entry.backing
            && node_of(frame) != Some(to)
        {
            // There is room for all that are looked at.
            let _ = found.push(Job {
                owner: Owner::of(instance.id, gfn),
                frame,
                copies: false,
            });
        }
    });
    for some in found.chunks(moving::BATCH) {
        if short_nodes().contains(to) {
            for _ in some {
                leave(instance, left::NO_MEMORY);
            }
        } else {
            let begun = timer::now();
            moving::carry(instance, some, to);
            note_time(instance, 0, begun);
        }
    }
    match next {
        Some(next) => tally.hand.store(next.0, Ordering::Relaxed),
        None => tally.wanted.store(0, Ordering::Release),
    }
    next.is_some()
}

/// A sampled page was touched by a CPU of a node, or one got a far frame at a disk read.
pub fn touched(frame: Mfn, page: Owner, by: (NodeId, Access)) {
    if let Some(watch) = WATCH.get() {
        source::touched(watch, frame, page, by);
    }
}

/// Of which node a frame is.
pub fn node_of(frame: Mfn) -> Option<NodeId> {
    let entry = machine::get().map.entry(frame)?;
    Some(entry.state().node)
}

/// A hot page stays where it is.
fn leave(instance: &Instance, why: usize) {
    instance.count(count::LEFT + why, 1);
}

/// Counts the time since `begun` that went into moving pages (0), or into their bytes (1).
fn note_time(instance: &Instance, what: usize, begun: u64) {
    instance.count(
        count::MOVING_NS + what,
        machine::nanoseconds(timer::now() - begun),
    );
}

/// How misses are known: one of [`misses`].
pub fn source() -> u64 {
    let watch = WATCH.get();
    watch.map_or(misses::UNKNOWN, |watch| watch.seen.lock().source.code())
}
