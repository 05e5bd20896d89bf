//! Memory of the VM that spans hosts: what [`model_coherence`] decides is done to stage 2 and to frames, and what vCPUs and
//! devices miss is told to it. One lock, that of the cluster, holds all of it.
//!
//! ```text
//!  Held ──► fault ──► Event::Fault ──► Hands::send ──► backlog ──► Cluster::send
//!                                                                        │
//!  attention::PAGE ◄── Hands::resume ◄── Event::Message ◄── inbox ◄── Owner::message
//! ```
//!
//! A page that is not written here has [`Reasons::COHERENT`], and one that is not read here [`Reasons::HIDDEN`], so that a
//! fault ends as `Filled::Held`. All pages have both as they get frames, as no message asks for that of untouched ones.

mod hands;
pub mod leaving;

use super::{STATE, State, room};
use crate::machine::{self, cpu, due};
use crate::memory::AddressSpace;
use crate::vcpu::{Vcpu, attention, sched};
use abi::Text;
use abi::bundle::VmRecord;
use abi::coherence::{Form, WITHOUT};
use abi::control::code;
use abi::span::HOSTS_MAX as HOSTS;
use alloc::{boxed::Box, sync::Arc};
use arch::{timer, tlb};
use core::fmt;
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hands::{Backlog, Behind, Hands, Seats};
use heapless::{Deque, Vec};
use model_addr::{FRAME_SIZE, Gfn, VmId};
use model_coherence::{
    Access, Actions, Broken, EARLY_MAX, Event, Host, Message, NO_PAGE, Page, Settings, Switches,
    changes::Words,
    earlier::{Earlier, words},
    held_max,
};
use model_control::Refusal;
use model_link::Refused;
use model_span::{Layout, OWN_MAX};
use room::{Messages, Pages};
use zerocopy::IntoBytes;

/// The slot of the VM's devices, behind those of vCPUs.
const DEVICES: usize = OWN_MAX;
/// Transactions of a host: one for each vCPU that it can have, one for the devices, and those of prefetches.
const SLOTS: usize = DEVICES + 1 + EARLY_MAX;
/// The longest that a page is kept for an instruction, and the shortest that one which bounces is kept.
const LEASE_NS: u64 = 400_000;
const HOLD_NS: u64 = 50_000;
/// How long a page that others had read is its writer's alone before they are given it again.
const QUIET_NS: u64 = 30_000;
/// Pages that can be within that time.
const WRITTEN_MAX: usize = 16;

/// Kinds from here on are not `abi::coherence`'s.
const KINDS_END: u8 = 0x40;

/// When the VM must not run on, in counts.
static RUNS_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Its devices have waited for a page.
static DEVICES_WAITED: AtomicBool = AtomicBool::new(false);

/// A VM, as its memory knows it.
pub trait Spanned: Send + Sync {
    /// Which it is.
    fn id(&self) -> VmId;
    /// The number of its life.
    fn life(&self) -> u32;
    /// What its counter shows.
    fn count(&self) -> u64;
    /// Its counter shows that much or more; whether no vCPU reads less. `None` where that is further ahead than clocks drift.
    fn reaches(&self, count: u64) -> Option<bool>;
    /// Its memory.
    fn space(&self) -> &AddressSpace;
    /// Its vCPUs, also those that other hosts have.
    fn vcpus(&self) -> &[Vcpu];
    /// Whether another host has that vCPU.
    fn is_elsewhere(&self, vcpu: usize) -> bool;
    /// Its devices try again.
    fn put_off_device_work(&self);
    /// Ends it.
    fn end(&self, why: fmt::Arguments<'_>);
    /// It goes on without this host.
    fn part(&self);
}

/// Why the VM cannot go on.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Why {
    #[error("host {0} is lost")]
    Lost(Text<24>),
    #[error("the clock of host {0} is far ahead")]
    Ahead(Text<24>),
    #[error("its hosts disagree: {0}")]
    Broken(Broken),
    #[error("the machine has no memory left for it")]
    NoMemory,
}

/// The VM's hosts as [`model_coherence`] numbers them: number in the cluster, and name.
type Members = Vec<(u8, Text<24>), HOSTS>;

/// The VM's memory on this host.
pub struct Memory {
    coherence: Host<Pages, HOSTS, SLOTS>,
    hands: Option<Hands>,
    /// Until there are hands: room for what the link has not taken, and for pages as they were.
    backlog: Backlog,
    earlier: Option<Earlier>,
    inbox: Messages,
    /// Where a page is read to before the link copies it.
    page: Box<Words>,
    /// Where each vCPU of this host was that missed.
    pcs: [u64; SLOTS],
    members: Members,
    runs: bool,
    /// Until when it may run, as [`RUNS_UNTIL`] has it, in nanoseconds.
    until: u64,
    why: Option<Why>,
}

/// Takes what a VM of that layout needs on this host, where it is not there already for another. Gives the host's number.
///
/// # Errors
/// Why the VM cannot span these hosts.
pub fn reserve(layout: &Layout, record: &VmRecord) -> Result<u8, Refusal> {
    let Some(state) = STATE.get() else {
        let what = format_args!("this machine is in no cluster: build its bundle with --cluster");
        return Err(Refusal::new(code::IMPOSSIBLE, 0, what));
    };
    let (own, names) = {
        let state = state.lock();
        if state.span.as_ref().is_some_and(|it| it.is_taken()) {
            let what = format_args!("another VM spans hosts already (limit 1)");
            return Err(Refusal::new(code::BUSY, 1, what));
        }
        (state.cluster.membership().host(), state.names)
    };
    let count = layout.hosts().count();
    if count > HOSTS {
        let what = format_args!("{count} hosts: a VM spans at most {HOSTS}");
        return Err(Refusal::new(code::IMPOSSIBLE, count as u64, what));
    }
    let members = layout.hosts().map(|host| (host, names[usize::from(host)]));
    let members: Members = members.collect();
    let Some(host) = members.iter().position(|it| it.0 == own) else {
        let what = format_args!("this machine is none of the hosts that the VM spans");
        return Err(Refusal::new(code::IMPOSSIBLE, own.into(), what));
    };
    let mut first_pages = [NO_PAGE; HOSTS];
    for (first, (host, _)) in first_pages.iter_mut().zip(&members) {
        *first = (layout.memory_of(*host).start / FRAME_SIZE) as u32;
    }
    let settings = Settings {
        host: host as u8,
        vcpus: DEVICES as u8 + 1,
        first_pages,
        pages: (record.memory / FRAME_SIZE) as u32,
        page_bytes: FRAME_SIZE as usize,
        lease_ns: LEASE_NS,
        hold_ns: HOLD_NS,
        switches: Switches::without(record.switched ^ WITHOUT),
    };
    // One that was taken for a VM which then could not be made.
    let unused = state.lock().span.take();
    drop(unused);
    let memory = Memory::new(settings, members).ok_or_else(|| {
        let bytes = u64::from(settings.pages) * size_of::<Page>() as u64;
        let what = format_args!("no {bytes} bytes for the states of its pages");
        Refusal::new(code::NO_MEMORY, bytes, what)
    })?;
    state.lock().span = Some(memory);
    Ok(own)
}

/// The VM is there and waits for the other hosts.
pub fn enter(vm: Arc<dyn Spanned>) {
    if let Some(memory) = lock().as_mut().and_then(|state| state.span.as_mut()) {
        memory.hands = Some(Hands {
            first: vm.space().range().start.frame(),
            seats: Seats::of(&*vm),
            vm,
            earlier: memory.earlier.take(),
            backlog: mem::take(&mut memory.backlog),
            operations: Vec::new(),
            written: Deque::new(),
            resumed: 0,
            has_failed: false,
        });
    }
    due::request();
}

/// A VM has ended here, be it that it spans hosts.
pub fn leave(id: VmId) {
    let is_its = |it: &mut Box<Memory>| it.hands.as_ref().is_some_and(|it| it.vm.id() == id);
    let mut state = lock();
    let memory = state.as_mut().and_then(|state| state.span.take_if(is_its));
    if memory.is_some() {
        RUNS_UNTIL.store(0, Ordering::Relaxed);
    }
    // Not what it frees under the lock.
    drop(state);
}

fn lock() -> Option<machine_locks::SpinGuard<'static, Box<State>>> {
    STATE.get().map(|state| state.lock())
}

/// Whether the VM may run: all its hosts are there and answer.
pub fn may_run() -> bool {
    timer::now() < RUNS_UNTIL.load(Ordering::Relaxed)
}

/// A vCPU misses a page at `pc`; whether it can try again now. Otherwise it is called.
pub fn fault(vcpu: u16, gfn: Gfn, writes: bool, pc: u64) -> bool {
    let resumed = with(|memory| Some(memory.fault(memory.slot(vcpu)?, gfn, writes, pc)));
    resumed.flatten() == Some(true)
}

/// The VM's devices miss a page, and try again as soon as it is there.
pub fn device_fault(gfn: Gfn, writes: bool) {
    DEVICES_WAITED.store(true, Ordering::Relaxed);
    with(|memory| memory.fault(DEVICES, gfn, writes, 0));
}

/// Its devices wait for nothing.
pub fn devices_went_on() {
    if DEVICES_WAITED.swap(false, Ordering::Relaxed) {
        with(|memory| memory.step(Event::Retired(DEVICES)));
    }
}

/// Somebody waits for what a vCPU keeps, which is at `pc` by now; or it has `left` its CPU.
pub fn let_go(vcpu: u16, pc: u64, left: bool) {
    with(|memory| match (memory.slot(vcpu), left) {
        (Some(slot), true) => memory.step(Event::Away(slot)),
        (Some(slot), false) if memory.pcs[slot] != pc => memory.step(Event::Retired(slot)),
        _ => {}
    });
}

/// A vCPU has come to this host, or leaves it and keeps nothing.
pub fn seat(vcpu: u16, is_here: bool) {
    with(|memory| {
        if let Some(slot) = memory.slot(vcpu) {
            memory.step(Event::Away(slot));
        }
        if let Some(hands) = &mut memory.hands {
            hands.seats.set(vcpu, is_here);
        }
    });
}

/// A vCPU invalidates TLB entries: all of its VM, here at once, and on other hosts before the next message leaves. Returns
/// whether it can go on; otherwise it is called. If it goes on before, by an interrupt, nobody learns of what it does until all
/// hosts have answered.
pub fn tlbi(vcpu: u16) -> bool {
    tlb::flush_vmid(tlb::Reaches::AllCpus);
    let mut state = lock();
    let memory = state.as_mut().and_then(|state| state.span.as_mut());
    let Some((slot, memory)) = memory.and_then(|it| Some((it.slot(vcpu)?, it))) else {
        return true;
    };
    let goes_on = memory.resumes(slot, Event::Tlbi(slot, 0));
    drop(state);
    if !goes_on {
        due::request();
    }
    goes_on
}

fn with<R>(act: impl FnOnce(&mut Memory) -> R) -> Option<R> {
    let result = lock()?.span.as_mut().map(|memory| act(memory));
    // What is to be sent is, as soon as this CPU can.
    due::request();
    cpu::this().reschedule.store(true, Ordering::Relaxed);
    result
}

/// Ends the VM if it cannot go on, or goes on without this host.
pub(super) fn end_or_part() {
    let ends = lock().and_then(|state| {
        let memory = state.span.as_ref()?;
        let vm = &memory.hands.as_ref()?.vm;
        let ends = memory.why.is_some() || memory.has_gone();
        ends.then(|| (Arc::clone(vm), memory.why))
    });
    match ends {
        Some((vm, Some(why))) => vm.end(format_args!("{why}")),
        Some((vm, None)) => vm.part(),
        None => {}
    }
}

impl Memory {
    /// Makes one without a VM. On the heap, and apart, as it passes through the stack.
    #[inline(never)]
    fn new(settings: Settings<HOSTS>, members: Members) -> Option<Box<Self>> {
        let pages = Pages::new(settings.pages as usize, |n| Page::first(&settings, n))?;
        let inbox = room::messages()?;
        let page = words()?;
        let mut backlog = Backlog::new();
        // Each of 16 vCPUs can make a transaction older.
        let most = 4 * held_max(members.len(), SLOTS);
        backlog.try_reserve_exact(most).ok()?;
        Some(Box::new(Self {
            coherence: Host::of(settings, pages)?,
            hands: None,
            backlog,
            // Without it, all of each page is sent.
            earlier: settings.switches.remembers().then(Earlier::new).flatten(),
            inbox,
            page,
            pcs: [0; SLOTS],
            members,
            runs: false,
            until: 0,
            why: None,
        }))
    }

    /// Whether it is a VM's.
    pub(super) fn is_taken(&self) -> bool {
        self.hands.is_some()
    }

    /// The slot of one of this host's vCPUs, by its number in the VM.
    fn slot(&self, vcpu: u16) -> Option<usize> {
        self.hands.as_ref()?.seats.slot(vcpu)
    }

    fn step(&mut self, event: Event<'_>) {
        if let (Some(hands), None) = (&mut self.hands, self.why) {
            let done = self.coherence.step(super::now_ns(), event, hands);
            self.why = hands.why(done);
        }
    }

    fn fault(&mut self, vcpu: usize, gfn: Gfn, writes: bool, pc: u64) -> bool {
        let Some(hands) = &self.hands else {
            return false;
        };
        let page = (gfn.0 - hands.first.0) as u32;
        let access = if writes { Access::Write } else { Access::Read };
        self.pcs[vcpu] = pc;
        let goes_on = self.resumes(vcpu, Event::Fault { vcpu, page, access });
        let allowed = self.coherence.state(page).access();
        if let Some(hands) = self.hands.as_mut().filter(|_| goes_on) {
            hands.protect(page, allowed);
        }
        goes_on
    }

    /// Applies an event of a vCPU; whether it can go on at once.
    fn resumes(&mut self, vcpu: usize, event: Event<'_>) -> bool {
        if let Some(hands) = &mut self.hands {
            hands.resumed = 0;
        }
        self.step(event);
        let hands = self.hands.as_ref();
        hands.is_some_and(|hands| hands.resumed >> vcpu & 1 != 0)
    }

    /// Keeps a message of a host for the next piece of work; `false` where there is no room.
    pub(super) fn keep(&mut self, from: u8, message: &[u8]) -> bool {
        let member = self.members.iter().position(|it| it.0 == from);
        match (message.first(), member) {
            // One that has ended takes none: beats would wait behind them.
            (Some(..KINDS_END), Some(member)) if self.why.is_none() => {
                self.inbox.push(member as u8, message)
            }
            _ => true,
        }
    }

    fn end(&mut self, why: Why) {
        self.why.get_or_insert(why);
    }

    /// A host is lost, and with it what was shared with any.
    pub(super) fn lose(&mut self, host: Text<24>) {
        self.end(Why::Lost(host));
    }

    /// Returns whether messages that are not about pages may leave: none precedes an invalidation of TLB entries.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.step(Event::Flush);
        self.why.is_some() || !self.coherence.holds_messages()
    }

    /// Returns when it has work next.
    pub(super) fn deadline(&self) -> u64 {
        let written = self.hands.as_ref().and_then(|hands| hands.written.front());
        let quiet = written.map_or(u64::MAX, |written| written.1);
        self.coherence.deadline().min(quiet)
    }

    /// Does a piece of what is due; whether there was any.
    pub(super) fn work(&mut self, now_ns: u64) -> bool {
        let (Some(hands), None) = (&mut self.hands, self.why) else {
            return false;
        };
        let done = if let Some((from, message)) = self.inbox.first().and_then(|it| it.split_first())
        {
            match hands.reaches(message) {
                Some(true) => {}
                Some(false) => return false,
                None => {
                    self.why = Some(Why::Ahead(self.members[usize::from(*from)].1));
                    return true;
                }
            }
            let event = Event::Message(*from, message);
            let done = self.coherence.step(now_ns, event, hands);
            self.inbox.pop();
            done
        } else if self.coherence.deadline() <= now_ns {
            self.coherence.step(now_ns, Event::Tick, hands)
        } else if let Some((page, _)) = hands.written.front().filter(|it| it.1 <= now_ns).copied() {
            hands.written.pop_front();
            self.coherence.step(now_ns, Event::Quiet(page), hands)
        } else {
            return false;
        };
        self.why = hands.why(done);
        true
    }
}

impl State {
    /// Sends what the VM that spans hosts has to say, and lets its vCPUs run as long as its hosts promise.
    pub(super) fn serve_span(&mut self, now_ns: u64) {
        let (cluster, Some(memory)) = (&mut self.cluster, &mut self.span) else {
            return;
        };
        let Some(hands) = &mut memory.hands else {
            return;
        };
        while let (None, Some((to, message, behind))) = (memory.why, hands.backlog.front()) {
            let count = hands.vm.count().into();
            let mut message = Message { count, ..*message };
            let (to, behind) = (*to, *behind);
            if let Behind::Page(page) | Behind::Changes(page, _) = behind
                && !hands.read(page, memory.page.as_mut_bytes())
            {
                return memory.end(Why::NoMemory);
            }
            let tail = match behind {
                Behind::Nothing => &[],
                Behind::Page(_) => memory.page.as_bytes(),
                Behind::Changes(page, since) => {
                    let earlier = hands.earlier.as_mut();
                    let changes = earlier.and_then(|it| it.changes(page, since, &memory.page));
                    changes.unwrap_or_else(|| {
                        message.form = Form::Full;
                        memory.page.as_bytes()
                    })
                }
                Behind::Operations => hands.operations.as_bytes(),
            };
            let (host, name) = memory.members[usize::from(to)];
            match cluster.send(host, [message.as_bytes(), tail]) {
                Ok(()) => _ = hands.backlog.pop_front(),
                Err(Refused::Full) => break,
                Err(_) => memory.why = Some(Why::Lost(name)),
            }
        }
        let until = match memory.why {
            None => cluster.membership().runs_until(),
            Some(_) => 0,
        };
        if mem::replace(&mut memory.until, until) != until {
            RUNS_UNTIL.store(machine::counts(until), Ordering::Relaxed);
        }
        if mem::replace(&mut memory.runs, now_ns < until) == (now_ns < until) {
            return;
        }
        if let Some(hands) = &memory.hands {
            for vcpu in hands.seats.all().filter_map(|it| hands.vm.vcpus().get(it)) {
                vcpu.call(attention::PAGE);
                sched::wake(vcpu.entity);
            }
        }
    }
}
