//! Coherence of the pages of one VM that runs on several hosts: a page has one writer or many readers, and every access
//! sees what was written last.
//!
//! ```text
//!  requester                     home                        owner, sharers
//!      │ Get ───────────────────► │ one transaction a page,      │
//!      │                          │ the others wait by age       │
//!      │                          ├── Forward ──────────────────►│ owner: protect, then
//!      │                          ├── Invalidate ───────────────►│ sharers: unmap, then
//!      │ ◄──────────────────────────────────────── Data, Ack ────┤
//!      │ map, resume              │                              │
//!      │ Done ──────────────────► │ new owner or sharer; next    │
//! ```
//!
//! A [`Host`] is one host's part. It has no clock, allocates only when it is made, and has no randomness: [`Host::step`] takes the time
//! and an [`Event`], all output goes through [`Actions`], and a step's work is bounded by hosts, vCPUs and transactions.
//! Messages between two hosts must come exactly once; those of at most [`abi::link::URGENT_MAX`] bytes in order among
//! themselves. `model/link` does this.
//!
//! **Strict single writer.** A requester writes only after all copies are gone. A write that is performed before would be
//! seen out of order, as DMB and DSB do not trap.
//!
//! **Progress.** An instruction can need several pages at once. Those that a vCPU was granted are *leased* to it until
//! the instruction has retired ([`Event::Retired`]), unless an older instruction asks (wound-wait), the vCPU loses its CPU
//! ([`Event::Away`]) or the lease ends ([`Settings::lease_ns`]). The oldest instruction of all waits for nobody's lease, so
//! it retires, and then another is the oldest.
//!
//! **TLB.** With [`Switches::lazy_tlbi`], a vCPU that invalidates TLB entries goes on at once. No other message leaves its
//! host before all hosts have answered, so nobody can know of anything that followed and use an entry that preceded.
//!
//! **Fail-stop.** A peer that is lost or breaks the protocol ends the session: every later step fails, no page is granted.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod changes;
pub mod earlier;
mod holder;
mod home;
pub mod intent;
mod leave;
mod page;
mod prefetch;
mod push;
mod requester;
mod tlb;

pub use abi::coherence::{Access, Form, Kind, Message, Operation};
pub use page::{Page, State};
pub use prefetch::EARLY_MAX;

use abi::coherence::{Entry, PAGE_BYTES};
use core::ops::IndexMut;
use heapless::Vec;
use holder::{Deferred, Vcpu};
use home::Request;
use leave::Leavers;
use prefetch::{LOCKS, Lock};
use requester::Open;
use tlb::Tlb;

/// A time that does not come.
pub const NEVER: u64 = u64::MAX;
/// The most hosts of a VM.
pub const HOSTS_MAX: usize = 16;
/// First page of a host that is not there.
pub const NO_PAGE: u32 = u32::MAX;
/// Messages of a host to itself: it asks itself for a page in each slot, and each leads to two at most.
const LOCAL_MAX: usize = 32;
/// Slot of a transaction that the home began for a reader.
const PUSH: u8 = u8::MAX;
/// No transaction, where one is named by a number.
const NONE: u16 = u16::MAX;

/// Set of hosts.
type Hosts = u16;

const fn bit(host: u8) -> Hosts {
    1 << host
}

fn members(hosts: Hosts) -> impl Iterator<Item = u8> {
    (0..HOSTS_MAX as u8).filter(move |host| hosts & bit(*host) != 0)
}

/// Reason why the session ended. Hosts are named by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Broken {
    /// A message is no message, or names a host, page or transaction that does not exist.
    #[error("host {0} sent a malformed message")]
    Malformed(u8),
    /// A message must not come from this host, or not to this one.
    #[error("host {0} sent a {1:?} that it must not send")]
    Misdirected(u8, Kind),
    /// A message does not fit the state of its page.
    #[error("host {0} sent a {1:?} that nothing led to")]
    Unexpected(u8, Kind),
    /// The hosts have more transactions open than they may have.
    #[error("more than {0} messages are held: too many transactions are open")]
    Full(usize),
    /// The host is lost.
    #[error("host {0} is lost")]
    Lost(u8),
}

/// What is done beyond IVY's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Switches {
    /// Bytes are not sent to a host that has those of the same version.
    pub versions: bool,
    /// Bytes are not sent if all are zero, or if the requester overwrites them with zeroes.
    pub zero: bool,
    /// TLB invalidations are sent before the next message, and answers are not waited for by the vCPU.
    pub lazy_tlbi: bool,
    /// A miss behind the one before brings pages that follow.
    pub burst: bool,
    /// A page brings those that were written right after it when it was last here: what its lock protects.
    pub companions: bool,
    /// Pages that bounce are kept for a while.
    pub hold: bool,
    /// A page that its owner has done with is given to those that read it before ([`Event::Quiet`]).
    pub push: bool,
    /// A host that has an earlier version is sent what changed since.
    pub changes: bool,
    /// Who reads a page that each host reads and then writes is given the only copy, so that it need not ask again. So is the first
    /// who reads one that nobody has touched.
    pub migratory: bool,
}

impl Switches {
    /// All of them.
    pub const ALL: Self = Self::without(0);

    /// Returns all but those of these bits, by their places in [`abi::coherence::SWITCHES`].
    pub const fn without(bits: u16) -> Self {
        Self {
            versions: bits & 1 == 0,
            zero: bits & 1 << 1 == 0,
            lazy_tlbi: bits & 1 << 2 == 0,
            burst: bits & 1 << 3 == 0,
            companions: bits & 1 << 4 == 0,
            hold: bits & 1 << 5 == 0,
            push: bits & 1 << 6 == 0,
            changes: bits & 1 << 7 == 0,
            migratory: bits & 1 << 8 == 0,
        }
    }

    /// Returns whether pages are remembered: without versions, requests do not say what their hosts have.
    pub const fn remembers(&self) -> bool {
        self.changes && self.versions
    }
}

/// Parameters of a host's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings<const HOSTS: usize> {
    /// Number of this host.
    pub host: u8,
    /// vCPUs of this host, at most one for each transaction. The transactions that are left are for prefetches.
    pub vcpus: u8,
    /// First page of each host's range, ascending from 0; of those that are not there [`NO_PAGE`]. A host is home and first
    /// owner of the pages of its range.
    pub first_pages: [u32; HOSTS],
    /// Pages of the VM.
    pub pages: u32,
    /// Bytes of a page: [`PAGE_BYTES`], or fewer in tests.
    pub page_bytes: usize,
    /// The longest that pages are kept for a vCPU after its last grant, in nanoseconds; 0 keeps none.
    pub lease_ns: u64,
    /// The shortest that a page which bounces is kept, in nanoseconds: about a round trip. It doubles up to a quarter of a
    /// lease.
    pub hold_ns: u64,
    /// What is done beyond IVY's protocol, the same at all hosts.
    pub switches: Switches,
}

impl<const HOSTS: usize> Settings<HOSTS> {
    /// Returns the first home of a page.
    pub fn home(&self, page: u32) -> u8 {
        let ranges = self.first_pages.iter();
        ranges.take_while(|first| **first <= page).count() as u8 - 1
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> u8 {
        self.home(NO_PAGE - 1) + 1
    }

    fn are_sound(&self) -> bool {
        self.first_pages[0] == 0 && self.host < self.hosts() && self.first_pages.is_sorted()
    }
}

const _: () = assert!(size_of::<Page>() <= 32);
const _: () = assert!(PAGE_BYTES.is_power_of_two());

/// Input of a host's part.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A vCPU cannot access a page. It runs again when [`Actions::resume`] says so.
    Fault {
        /// Number of the vCPU at this host.
        vcpu: usize,
        /// Page.
        page: u32,
        /// Access that the instruction needs in the end, as decoded.
        access: Access,
    },
    /// The instruction of the vCPU that faulted has retired.
    Retired(usize),
    /// The vCPU has lost its CPU: its pages may go.
    Away(usize),
    /// A page was written, and will not be for a while: its vCPU waits, or has told others. A hint that nothing answers, so
    /// its sender looks that the link has room.
    Quiet(u32),
    /// A vCPU has invalidated TLB entries, on the CPUs of this host already; it runs again after [`Actions::resume`].
    Tlbi(usize, u64),
    /// A message came from that host.
    Message(u8, &'a [u8]),
    /// Something other than a message is about to leave (an interrupt, a device's output): invalidations go before it,
    /// and it waits while [`Host::holds_messages`].
    Flush,
    /// Time has passed: to be sent at [`Host::deadline`].
    Tick,
    /// That host is lost, or its session has ended.
    Lost(u8),
    /// This host, which has no vCPU any more, leaves: what it is home of and what it owns goes to others, until
    /// [`Host::has_left`]. Host 0 does not leave.
    Leave,
}

/// Bytes that follow a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail<'a> {
    /// None.
    None,
    /// The bytes of that page.
    Page(u32),
    /// What changed in that page since it had that version.
    Changes(u32, u64),
    /// Operations of a [`Kind::Tlbi`].
    Operations(&'a [Operation]),
    /// What a leaver knows of pages, of which it sends no more until these are taken.
    Entries(&'a [Entry]),
}

/// Output of a host's part.
pub trait Actions {
    /// Allows vCPUs no more than `access`, or allows it. Returns when no CPU of the host can do more, and whether the page
    /// may have been written since writes were last allowed.
    fn protect(&mut self, page: u32, access: Access) -> bool;
    /// Replaces the bytes of a page, by zeroes if there are none. No vCPU can write it then.
    fn fill(&mut self, page: u32, bytes: Option<&[u8]>);
    /// A page of that version is about to be written here: what it is now may be remembered, for [`Tail::Changes`].
    fn remember(&mut self, _page: u32, _version: u64) {}
    /// Replaces those bytes of a page that changed; `false` if `changes` are no such thing. No vCPU can write it then.
    fn change(&mut self, _page: u32, _changes: &[u8]) -> bool {
        false
    }
    /// Returns whether all bytes of the page are zero. No vCPU can write it then.
    fn is_zero(&mut self, page: u32) -> bool;
    /// Returns whether nothing has ever touched the page, so that its bytes are zero. What is touched before [`Actions::protect`]
    /// returns is written, as that says.
    fn is_untouched(&self, _page: u32) -> bool {
        false
    }
    /// Returns the number of the VM's life, by which messages of another are known. 0 is none.
    fn life(&self) -> u32;
    /// Queues a message for that host. A link with room for as many messages as there can be never refuses. Who does not
    /// remember the version of [`Tail::Changes`] sends the page, with [`Form::Full`].
    fn send(&mut self, to: u8, message: &Message, tail: Tail<'_>);
    /// Lets a vCPU go on. `is_zeroed` says that its page was overwritten with zeroes, so its instructions that do this
    /// are to be skipped; otherwise the access is tried again.
    fn resume(&mut self, vcpu: usize, is_zeroed: bool);
    /// The page, of which this host is the home, is being written again by the host that wrote it before, and others had read
    /// it: [`Event::Quiet`] as soon as the writer may have done with it.
    fn written(&mut self, _page: u32) {}

    /// Asks for [`Event::Retired`] of that vCPU as soon as may be: somebody waits for its pages.
    fn kick(&mut self, vcpu: usize);
    /// Invalidates TLB entries on all CPUs of this host before it returns; all entries if `operations` is empty.
    fn invalidate(&mut self, operations: &[Operation]);
}

/// One host's part. `P` is the memory of its pages, by number. Of each of `HOSTS`, at most `SLOTS` transactions are open at a time:
/// one of each vCPU, and prefetches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host<P, const HOSTS: usize, const SLOTS: usize> {
    settings: Settings<HOSTS>,
    pages: P,
    vcpus: [Vcpu; SLOTS],
    locks: [Lock; LOCKS],
    open: [Option<Open>; SLOTS],
    /// Of the home: transactions of its pages, by requester and slot.
    requests: [[Option<Request>; SLOTS]; HOSTS],
    /// Of the owner or sharer: messages that wait for a lease to end, at most one of each requester and slot.
    deferred: alloc::vec::Vec<Deferred>,
    /// Of the home: hosts that a page is being pushed to.
    pushing: Hosts,
    leavers: Leavers<HOSTS>,
    tlb: Tlb,
    /// Messages from this host to itself, empty between steps.
    local: Vec<Message, LOCAL_MAX>,
    broken: Option<Broken>,
}

/// Returns how many messages of a host can wait for the answers to a TLB invalidation. Meanwhile no transaction of this home ends, so
/// each vCPU or prefetch can have sent one [`Kind::Get`], and each older vCPU a [`Kind::Hurry`], of which the oldest is kept: both lead
/// to at most one message to each host, and to one answer. Beside those are the messages of this host's own transactions, pushes, and
/// what is said to leavers, or by one.
pub const fn held_max(hosts: usize, slots: usize) -> usize {
    let of_leavers = hosts * (leave::GIVEN_MAX + 4) + leave::GIVEN_MAX;
    hosts * slots * (2 * hosts + 1) + 3 * slots + 2 * hosts + 1 + of_leavers
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Makes a host's part, which owns the pages of its range. `None` if the settings are out of range, or there are more
    /// hosts than can be numbered. `pages` has as many as the settings say.
    pub fn new(settings: Settings<HOSTS>, mut pages: P) -> Option<Self> {
        if settings.are_sound() {
            for n in 0..settings.pages {
                pages[n as usize] = Page::first(&settings, n);
            }
        }
        Self::of(settings, pages)
    }

    /// As [`Self::new`], with pages that [`Page::first`] made: for an owner that makes them in pieces. Also `None` without memory
    /// for messages that wait.
    #[expect(clippy::inline_always, reason = "it passes through the stack else")]
    #[inline(always)]
    pub fn of(settings: Settings<HOSTS>, pages: P) -> Option<Self> {
        const { assert!(2 * SLOTS <= LOCAL_MAX) };
        let is_sound = HOSTS <= HOSTS_MAX
            && SLOTS < usize::from(u8::MAX)
            && settings.are_sound()
            && usize::from(settings.vcpus) <= SLOTS;
        if !is_sound {
            return None;
        }
        let hosts = settings.hosts().into();
        let mut deferred = alloc::vec::Vec::new();
        deferred.try_reserve_exact(hosts * SLOTS).ok()?;
        Some(Self {
            settings,
            pages,
            vcpus: [const { Vcpu::NEW }; SLOTS],
            locks: [Lock::default(); LOCKS],
            open: [None; SLOTS],
            requests: [[None; SLOTS]; HOSTS],
            deferred,
            pushing: 0,
            leavers: Leavers::none(settings.hosts()),
            tlb: Tlb::new(held_max(hosts, SLOTS))?,
            local: Vec::new(),
            broken: None,
        })
    }

    /// Applies an event. Events may come in any order; those that `Actions` lead to, after the step only.
    ///
    /// # Errors
    /// The session has ended, now or before: no vCPU may run on.
    pub fn step(
        &mut self,
        now_ns: u64,
        event: Event<'_>,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        self.broken.map_or(Ok(()), Err)?;
        let mut done = self.apply(now_ns, event, actions);
        while done.is_ok() {
            if self.local.is_empty() {
                done = self.go_on(actions);
                if self.local.is_empty() {
                    break;
                }
            }
            let message = self.local.remove(0);
            done = done
                .and_then(|()| self.receive(now_ns, self.settings.host, &message, &[], actions));
        }
        done.map_err(|why| *self.broken.insert(why))
    }

    fn apply(
        &mut self,
        now_ns: u64,
        event: Event<'_>,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        match event {
            Event::Fault { vcpu, page, access } => self.fault(now_ns, vcpu, page, access, actions),
            Event::Retired(vcpu) => {
                self.vcpus[vcpu].retire();
                self.reconsider(now_ns, actions)
            }
            Event::Away(vcpu) => {
                self.vcpus[vcpu].lease.clear();
                self.reconsider(now_ns, actions)
            }
            Event::Tlbi(vcpu, operation) => {
                self.tlbi(vcpu, operation, actions);
                Ok(())
            }
            Event::Message(from, bytes) => {
                let (message, tail) = Message::parse(bytes).ok_or(Broken::Malformed(from))?;
                let is_other = from < self.settings.hosts() && from != self.settings.host;
                let error = Broken::Misdirected(from, message.kind);
                is_other.then_some(()).ok_or(error)?;
                // What another life of the VM was about means nothing.
                if message.life.get() != actions.life() {
                    return Ok(());
                }
                self.receive(now_ns, from, &message, tail, actions)
            }
            Event::Quiet(page) => self.quiet(page, actions),
            Event::Flush => {
                self.flush(actions);
                Ok(())
            }
            Event::Tick => self.reconsider(now_ns, actions),
            Event::Lost(host) => Err(Broken::Lost(host)),
            Event::Leave => self.leave(actions),
        }
    }

    /// Applies a message of another host, or of this one.
    fn receive(
        &mut self,
        now_ns: u64,
        from: u8,
        message: &Message,
        tail: &[u8],
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let m = message;
        let is_sound = number(m) < self.settings.pages
            && m.host < self.settings.hosts()
            && (usize::from(m.slot) < SLOTS || m.slot == PUSH && can_be_pushed(m.kind))
            && m.access != Access::None
            && (m.access != Access::Any || self.settings.switches.migratory && can_be_any(m.kind));
        is_sound.then_some(()).ok_or(Broken::Malformed(from))?;
        let home = self.home(number(m));
        let me = self.settings.host;
        let is_allowed = match m.kind {
            Kind::Get => home == me && m.host == from && self.is_present(from),
            Kind::Done | Kind::Hurry | Kind::Push => home == me && m.host == from,
            Kind::Forward | Kind::Invalidate | Kind::Yield => {
                (home == from || self.may_inherit(from, home)) && m.host != me
            }
            Kind::Grant => home == from && m.host == me,
            Kind::Data | Kind::Ack => m.host == me,
            Kind::Tlbi | Kind::TlbiDone | Kind::Leave | Kind::Held | Kind::Taken => from != me,
            Kind::Entries => home == from && from != me,
            Kind::Give => (home == me || self.leaves()) && from != me,
        };
        let error = Broken::Misdirected(from, m.kind);
        is_allowed.then_some(()).ok_or(error)?;
        let is_known = match m.kind {
            Kind::Get => self.get(m, actions),
            Kind::Done => self.done(m, actions),
            Kind::Hurry => self.hurry(m, actions),
            Kind::Push => self.push(m, actions).map(|()| true),
            Kind::Forward | Kind::Invalidate => self.asked(now_ns, m, actions),
            Kind::Yield => self.make_older(now_ns, m, actions),
            Kind::Data if m.slot == PUSH => self.pushed(m, tail, actions),
            Kind::Grant | Kind::Data => self.data(now_ns, m, tail, actions),
            Kind::Ack => self.ack(now_ns, m, actions),
            Kind::Tlbi => self.invalidate(from, tail, actions),
            Kind::TlbiDone => Ok(self.invalidated(from, actions)),
            Kind::Leave => self.left(from, m, actions),
            Kind::Held => Ok(self.held(from, m)),
            Kind::Entries => self.take_over(from, (m, tail), actions),
            Kind::Taken => self.taken(from, m, actions),
            Kind::Give => Ok(self.given(from, m)),
        }?;
        let error = Broken::Unexpected(from, m.kind);
        is_known.then_some(()).ok_or(error)
    }

    /// Returns the home of a page.
    pub fn home(&self, page: u32) -> u8 {
        self.leavers.homes[usize::from(self.settings.home(page))]
    }

    /// Returns the number of pages.
    pub const fn pages(&self) -> u32 {
        self.settings.pages
    }

    /// Returns the number of this host among those of the VM.
    pub const fn host(&self) -> u8 {
        self.settings.host
    }

    /// Returns the state of this host's copy of a page.
    pub fn state(&self, page: u32) -> State {
        self.pages[page as usize].state
    }

    /// Returns the version of the bytes of a page that this host keeps.
    pub fn version(&self, page: u32) -> u64 {
        self.pages[page as usize].version
    }

    /// Returns when the next [`Event::Tick`] is due, or [`NEVER`].
    pub fn deadline(&self) -> u64 {
        if self.is_busy() {
            return 0;
        }
        let until = self.deferred.iter().map(|it| it.until_ns);
        until.min().unwrap_or(NEVER)
    }

    /// Returns a message about a page that belongs to no transaction.
    fn about(&self, kind: Kind, page: u32) -> Message {
        Message {
            page: page.into(),
            ..Message::plain(kind, self.settings.host)
        }
    }

    fn page(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize]
    }
}

/// Returns whether messages of this kind can belong to a transaction that the home began.
const fn can_be_pushed(kind: Kind) -> bool {
    matches!(kind, Kind::Forward | Kind::Data | Kind::Done)
}

/// Returns whether messages of this kind can be about [`Access::Any`].
const fn can_be_any(kind: Kind) -> bool {
    matches!(kind, Kind::Forward | Kind::Yield | Kind::Data | Kind::Done)
}

/// Returns the page of a message.
const fn number(message: &Message) -> u32 {
    message.page.get()
}

/// Age of an instruction or a transaction; the older is less.
type Age = (u64, u16);

const fn age(message: &Message) -> Age {
    (message.since.get(), message.vcpu.get())
}

fn set_age(message: &mut Message, age: Age) {
    (message.since, message.vcpu) = (age.0.into(), age.1.into());
}
