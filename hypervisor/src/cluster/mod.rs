//! The machine as a host of the cluster that its bundle names: frames of the link from and to the card, time, and what
//! is told of it. [`model_cluster`] decides all else.
//!
//! The card's interrupt copies frames into the [`room::Inbox`]; all work is done by housekeeping ([`pass`]), in pieces between which
//! interrupts are taken. One lock holds all of it.

pub mod calls;
mod cipher;
pub mod messages;
#[cfg(not(target_os = "none"))]
pub mod outside;
mod room;
pub mod span;

use crate::drivers::nic::{self, Arrived};
use crate::drivers::requests::{self, Incoming};
use crate::machine::{self, cpu, due, entropy, give_up, stretch};
use abi::Text;
use abi::bundle::{Bundle, BundleError, ClusterRecord};
use abi::cluster::{ANSWERED, ASKED, DESCRIPTION, Description, Errand};
use abi::cluster::{FEATURES_MAX, HOSTS_MAX, PROTOCOL};
use abi::control::{FrameHeader, HostStatus, ProbeRequest, code, host, news, trace};
use abi::link::{BODY_AT, PARTS_MAX};
use abi::span::Kind;
use abi::state::Vcpu;
use alloc::{boxed::Box, vec::Vec};
use arch::{cache, features, timer};
use cipher::Sealer;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use messages::{Call, Calls, States};
use model_addr::FRAME_SIZE;
use model_cluster::{Cluster, News, Owner, Peer, Probes};
use model_control::Refusal;
use model_id_registers::{HostIdRegisters, registers};
use model_link::{Lane, Nonce, Refused, Suite, WINDOW};
use model_membership::{Change, Settings, Standing};
use room::{Inbox, Messages};
use span::Memory;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Pieces of work in one pass; vCPUs come before the rest.
const PIECES_AT_ONCE: usize = 16;

type Names = [Text<24>; HOSTS_MAX];

/// Reason why this machine is in no cluster, though its bundle names one.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Unable {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("OS-0 owns the network cards of this machine: boot Underpin without OS-0")]
    Os0,
    #[error("this machine has no network card that Underpin drives (virtio-net)")]
    NoCard,
    #[error(
        "no source of random bits: give the machine rng-seed in its device tree, RNDR, or firmware with TRNG"
    )]
    NoRandomBits,
    #[error("no memory is left for links to the other hosts")]
    NoMemory,
}

struct State {
    cluster: Cluster<'static, Sealer, &'static mut [u8], WINDOW>,
    inbox: Inbox,
    /// Where a frame is written before the card copies it.
    out: &'static mut [u8],
    names: Names,
    hosts: u8,
    /// 1: frames are neither secret nor authentic.
    is_open: u8,
    /// The VM that spans hosts.
    span: Option<Box<Memory>>,
    /// Messages about a VM that spans hosts, oldest first: from whom.
    calls: Calls,
    /// Those of this host that have not left: to whom.
    said: Calls,
    states: Box<States>,
    /// Requests of other hosts' VMs, and answers to this one's.
    errands: Messages,
}

static STATE: Once<SpinLock<Box<State>>> = Once::new();
static UNABLE: Once<Unable> = Once::new();
/// Counts that CPUs have worked for the cluster.
static WORKED: AtomicU64 = AtomicU64::new(0);

/// Joins the cluster that the bundle names, if it names one; says why where that is impossible.
pub fn init() {
    let record = machine::get().bundle.as_ref().map(Bundle::cluster);
    let state = match record {
        None | Some(Ok(None)) => return,
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Some(record))) => State::new(&record),
    };
    match state {
        Ok(state) => {
            let own = state.cluster.membership().host();
            log::info!(
                "cluster: this machine is {}, one of {} hosts",
                state.names[usize::from(own)],
                state.hosts
            );
            let _ = STATE.set(SpinLock::new(Rank::Switch, state));
            let _ = nic::LINK.set(arrive);
            due::request();
        }
        Err(why) => {
            log::warn!("cluster: this machine does not join: {why}");
            let _ = UNABLE.set(why);
        }
    }
}

/// A frame of the link has come; it is copied, and waits for the next pass.
fn arrive(frame: Arrived) {
    let Some(state) = STATE.get() else { return };
    let [is_kept, is_worth] = worked(|| state.lock().keep(frame));
    if is_kept {
        due::request();
        cpu::this().reschedule.store(true, Ordering::Relaxed);
    } else if !is_worth {
        nic::rest();
    }
}

/// Does some of what is due; whether more is.
pub fn pass() -> bool {
    let is_more = STATE.get().is_some_and(pieces);
    span::end_or_part();
    is_more
}

fn pieces(state: &SpinLock<Box<State>>) -> bool {
    for _ in 0..PIECES_AT_ONCE {
        stretch::look(machine::Kind::Tick);
        let wait_until = worked(|| state.lock().piece(now_ns()));
        if let Some(at) = wait_until {
            due::request_at(machine::counts(at).saturating_add(1));
            return false;
        }
    }
    true
}

/// Does work for the cluster, and counts its time.
fn worked<R>(work: impl FnOnce() -> R) -> R {
    let began = timer::now();
    let result = work();
    WORKED.fetch_add(timer::now() - began, Ordering::Relaxed);
    result
}

/// What is counted of each host.
///
/// # Errors
/// The bundle names a cluster which this machine does not join.
pub fn statuses() -> Result<Vec<HostStatus>, Refusal> {
    if let Some(why) = UNABLE.get() {
        let what = format_args!("this machine does not join its cluster: {why}");
        return Err(Refusal::new(code::IMPOSSIBLE, 0, what));
    }
    let state = STATE.get().map(SpinLock::lock);
    let status = state
        .iter()
        .flat_map(|state| (0..state.hosts).map(|host| state.status(host)));
    Ok(status.collect())
}

/// Queues a message to a member; `false` where that is none, or the link has no room. The executing CPU sends it soon.
pub fn send(host: u8, message: [&[u8]; 2]) -> bool {
    queue(|state| state.cluster.send(host, message).is_ok())
}

/// Queues a message about a VM that spans hosts, which leaves when there is room for it, and after what its vCPUs have
/// invalidated; `false` where too many wait.
pub fn say(host: u8, call: Call) -> bool {
    queue(|state| state.said.push(host, call))
}

fn queue(add: impl FnOnce(&mut State) -> bool) -> bool {
    let state = STATE.get();
    let added = state.is_some_and(|state| worked(|| add(&mut state.lock())));
    due::request();
    cpu::this().reschedule.store(true, Ordering::Relaxed);
    added
}

/// Keeps the state of a vCPU for the message of [`Kind::State`] that follows. The one before has been sent: hosts have answered
/// since that they hold this one.
pub fn depart(state: &Vcpu) {
    if let Some(it) = STATE.get() {
        it.lock().states.leaves = *state;
    }
}

/// Returns the state behind the message of a vCPU that has come.
pub fn arrival() -> Option<Vcpu> {
    STATE.get()?.lock().states.come()
}

/// Returns a message about a VM that spans hosts, with its sender; 0 is the oldest.
pub fn call(number: usize) -> Option<(u8, Call)> {
    STATE.get()?.lock().calls.get(number)
}

/// Forgets a message that was acted upon.
pub fn forget_call(number: usize) {
    if let Some(state) = STATE.get() {
        let state = &mut *state.lock();
        if let Some(call) = state.calls.remove(number) {
            state.states.forget(&call);
        }
    }
}

/// Takes the oldest request of another host's VM, if requests are taken, or answer to this one's: from whom, and what follows.
/// It stays where there is no memory for it, or no room for an answer.
pub fn errand(takes_requests: bool) -> Option<(u8, Errand, Incoming)> {
    let state = &mut *STATE.get()?.lock();
    let (&from, message) = state.errands.first()?.split_first()?;
    let (errand, rest) = Errand::read_from_prefix(message).ok()?;
    let mut peers = state.cluster.peers().iter();
    let peer = peers.find(|peer| peer.host == from)?;
    if errand.kind == ASKED && !(takes_requests && peer.link.room(Lane::Bulk) >= PARTS_MAX) {
        requests::ring_later();
        return None;
    }
    let incoming = requests::take(|bytes| {
        bytes.get_mut(..rest.len())?.copy_from_slice(rest);
        FrameHeader::of(errand.request.get(), errand.number.get(), &[rest])
    })?;
    state.errands.pop();
    Some((from, errand, incoming))
}

/// Returns the host of that name, if errands to it are secret and authentic.
pub fn find(name: &str) -> Option<u8> {
    let state = STATE.get()?.lock();
    let mut names = state.names.iter();
    let found = names.position(|it| it.as_str() == Some(name))?;
    (state.is_open == 0).then_some(found as u8)
}

/// Returns this host's number, and the ID registers that all members have in common.
pub fn own() -> Option<(u8, HostIdRegisters)> {
    let state = STATE.get()?.lock();
    let membership = state.cluster.membership();
    let features = membership.features();
    let find = |crm, op2| {
        let mut all = registers().iter().zip(&features);
        let found = all.find(|(it, _)| (it.crm, it.op2) == (crm, op2));
        found.map_or(0, |(_, value)| value.get())
    };
    Some((membership.host(), HostIdRegisters::new(find)))
}

/// Returns whether a host is in this one's membership, be it this one.
pub fn has(host: u8) -> bool {
    let state = STATE.get().map(SpinLock::lock);
    state.is_some_and(|state| state.cluster.standing(host).1)
}

/// Begins a probe of the link to a host.
///
/// # Errors
/// There is no session with it.
pub fn probe(asked: &ProbeRequest) -> Result<(), Refusal> {
    let lane = Lane::ALL[usize::from(asked.has_pages == 1)];
    let state = STATE.get().map(SpinLock::lock);
    let begins = state.map(|mut it| it.cluster.probe(asked.host, asked.messages, lane));
    if begins != Some(true) {
        let what = format_args!("there is no session with host {}", asked.host);
        return Err(Refusal::new(code::WRONG_STATE, asked.host.into(), what));
    }
    due::request();
    Ok(())
}

/// Leaves the cluster for good. Returns whether all members go on without this machine.
///
/// # Errors
/// The machine is in no cluster, or a VM that spans hosts is here.
pub fn retire() -> Result<bool, Refusal> {
    let Some(state) = STATE.get() else {
        let what = format_args!("this machine is in no cluster");
        return Err(Refusal::new(code::WRONG_STATE, 0, what));
    };
    let state = &mut *state.lock();
    if state.span.as_ref().is_some_and(|span| span.is_taken()) {
        let what = format_args!("a VM that spans hosts runs on this one");
        return Err(Refusal::new(code::WRONG_STATE, 0, what));
    }
    state.cluster.retire();
    due::request();
    Ok(state.cluster.membership().has_left())
}

fn now_ns() -> u64 {
    machine::nanoseconds(timer::now())
}

/// What this machine is.
fn description(life: u64, frame_bytes: usize) -> Description {
    let parts = env!("CARGO_PKG_VERSION").split('.');
    let parts = parts.map(|part| part.parse::<u32>().unwrap_or(0) & 0xff);
    let mut words = [U64::ZERO; FEATURES_MAX];
    for (word, register) in words.iter_mut().zip(registers()) {
        *word = machine::guest_id(register.crm, register.op2).into();
    }
    Description {
        kind: DESCRIPTION,
        protocol: PROTOCOL,
        page_log2: FRAME_SIZE.ilog2() as u8,
        zva_log2: features::zeroed_block_log2(),
        version: parts.fold(0, |all, part| all << 8 | part).into(),
        clock_hz: (timer::frequency() as u32).into(),
        frame_bytes: (frame_bytes as u64).into(),
        cache_lines: cache::lines().into(),
        life: life.into(),
        features: words,
    }
}

/// Makes the links to the other hosts: not in [`State::new`], whose frame holds the state.
#[inline(never)]
fn peers(record: &ClusterRecord) -> Option<Vec<Peer<Sealer, &'static mut [u8], WINDOW>>> {
    let mut peers = Vec::new();
    peers.try_reserve_exact(record.hosts.into()).ok()?;
    for host in (0..record.hosts).filter(|host| *host != record.host) {
        peers.push(Peer {
            host,
            link: room::link(record, host, nonce())?,
            bytes: [0; 2],
            probes: Probes::default(),
        });
    }
    Some(peers)
}

impl State {
    fn new(record: &ClusterRecord) -> Result<Box<Self>, Unable> {
        // The cipher uses SIMD registers, which beside OS-0 may be wider than what is put aside (docs/decisions/0092).
        if machine::os0::is_here() {
            return Err(Unable::Os0);
        }
        if !nic::plug() {
            return Err(Unable::NoCard);
        }
        if record.is_open == 0 && room::suite(record) == Suite::ChaCha {
            log::info!(
                "cluster: frames are sealed by ChaCha20-Poly1305, as without AES in all CPUs"
            );
        }
        let [life] = entropy::words().ok_or(Unable::NoRandomBits)?;
        let peers = peers(record).ok_or(Unable::NoMemory)?;
        let (inbox, out) = room::inbox().ok_or(Unable::NoMemory)?;
        // Half of all lives are left, so that none after it overflows.
        let own = description((life >> 1).max(1), record.frame_bytes());
        #[cfg(not(target_os = "none"))]
        let own = outside::told(own);
        let cluster = Cluster::new(Settings::new(record.host), own, peers.leak());
        Ok(Box::new(Self {
            cluster: cluster.ok_or(Unable::NoMemory)?,
            inbox,
            out,
            names: record.names,
            hosts: record.hosts,
            is_open: record.is_open,
            span: None,
            calls: Calls::new().ok_or(Unable::NoMemory)?,
            said: Calls::new().ok_or(Unable::NoMemory)?,
            states: Box::new(States::NONE),
            errands: room::messages().ok_or(Unable::NoMemory)?,
        }))
    }

    /// Keeps a frame for the next pass if there is room. Returns whether it is let in, and whether others like it are worth a look.
    fn keep(&mut self, frame: Arrived) -> [bool; 2] {
        let mut head = [0; BODY_AT];
        let head = &mut head[..frame.bytes.min(BODY_AT)];
        frame.read(head);
        let admitted = self.cluster.admit(now_ns(), head);
        let is_lost = admitted[0] && {
            let place = self.inbox.place(frame.bytes);
            place.map(|place| frame.read(place)).is_none()
        };
        self.cluster.unheard += u64::from(is_lost);
        admitted
    }

    /// Does a piece of work; gives the time until which there is none.
    fn piece(&mut self, now_ns: u64) -> Option<u64> {
        self.send_said();
        self.serve_span(now_ns);
        let before = self.cluster.membership().view().id;
        let mut card = Card {
            out: &mut *self.out,
            names: &self.names,
            span: &mut self.span,
            calls: &mut self.calls,
            states: &mut self.states,
            errands: (self.is_open == 0).then_some(&mut self.errands),
        };
        let is_done = if card.span.as_mut().is_some_and(|span| span.work(now_ns)) {
            true
        } else {
            let frame = self.inbox.first();
            let [is_taken, is_done] = self.cluster.piece(now_ns, frame, &mut card);
            if is_taken {
                self.inbox.pop();
            }
            is_done
        };
        let after = self.cluster.membership().view().id;
        if after != before && after != 0 {
            self.say_members();
        }
        let span = self.span.as_ref().map_or(u64::MAX, |span| span.deadline());
        (!is_done).then(|| self.cluster.deadline().min(span))
    }

    /// Sends what was said of a VM that spans hosts, in order, also of one that has ended.
    fn send_said(&mut self) {
        while let Some((host, call)) = self.said.get(0) {
            let is_held = |span: &mut Box<Memory>| !span.is_flushed();
            if self.span.as_mut().is_some_and(is_held) {
                return;
            }
            // One that is no member needs to know nothing.
            if let Err(Refused::Full) = self.cluster.send(host, [&call, self.states.behind(&call)])
            {
                return;
            }
            self.said.remove(0);
        }
    }

    fn say_members(&self) {
        let view = self.cluster.membership().view();
        let mut names = heapless::String::<{ 26 * HOSTS_MAX }>::new();
        for (name, _) in self.names.iter().zip(view.lives).filter(|it| it.1 != 0) {
            let _ = fmt::write(&mut names, format_args!(" {name}"));
        }
        log::info!("cluster: epoch {} has{names}", view.epoch());
    }

    fn status(&self, number: u8) -> HostStatus {
        let (cluster, membership) = (&self.cluster, self.cluster.membership());
        let (standing, is_in) = cluster.standing(number);
        let mut status = HostStatus::new_zeroed();
        status.name = self.names[usize::from(number)];
        status.number = number.into();
        status.flags = u32::from(is_in) * host::IN;
        status.flags |= u32::from(self.is_open) * host::OPEN;
        status.flags |= u32::from(standing == Standing::Left) * host::LEFT;
        status.epoch = membership.view().epoch();
        status.runs_ns = membership.runs_until().saturating_sub(now_ns());
        let Some(peer) = cluster.peers().iter().find(|peer| peer.host == number) else {
            status.flags |= host::OWN;
            status.flags |= u32::from(membership.is_retired()) * host::LEFT;
            status.dropped[0] = cluster.unheard;
            status.work_ns = machine::nanoseconds(WORKED.load(Ordering::Relaxed));
            status.description = *cluster.own();
            return status;
        };
        let (link, counters) = (&peer.link, &peer.link.counters);
        status.flags |= u32::from(standing != Standing::Away) * host::SESSION;
        status.flags |= u32::from(link.suite() == Some(Suite::ChaCha)) * host::CHACHA;
        status.round_trip_ns = link.round_trip_ns();
        status.frames = [counters.sent, counters.opened];
        status.bytes = peer.bytes;
        status.resent = counters.resent;
        status.timeouts = counters.timeouts;
        status.sessions = counters.sessions;
        status.repeated = counters.repeated;
        status.dropped = counters.dropped;
        let ([began, ended], probes) = (peer.probes.times, &peer.probes);
        status.probe = [probes.left.into(), began, ended, probes.is_whole.into()];
        let description = membership.description(number);
        status.description = description.copied().unwrap_or(status.description);
        status
    }
}

fn nonce() -> Nonce {
    let Some(words) = entropy::words::<2>() else {
        give_up(format_args!("a source of random bits has none left"))
    };
    let mut nonce = Nonce::default();
    nonce.copy_from_slice(words.as_bytes());
    nonce
}

/// The card of the link, and who is told of what happens.
struct Card<'a> {
    out: &'a mut [u8],
    names: &'a Names,
    span: &'a mut Option<Box<Memory>>,
    calls: &'a mut Calls,
    states: &'a mut States,
    /// `None` where they could be anybody's.
    errands: Option<&'a mut Messages>,
}

impl Card<'_> {
    fn name(&self, host: u8) -> Text<24> {
        let name = self.names.get(usize::from(host));
        name.copied().unwrap_or_default()
    }
}

impl Owner for Card<'_> {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if !nic::has_room() {
            return false;
        }
        let bytes = fill(self.out);
        // A frame that goes nowhere is sent again.
        nic::send(self.out.get(..bytes).unwrap_or_default(), &[]);
        true
    }

    fn nonce(&mut self) -> Nonce {
        nonce()
    }

    fn is_late(&self) -> bool {
        stretch::is_long()
    }

    fn told(&mut self, news: News) {
        let (detail, about) = match news {
            News::Up(host) => (news::UP, host),
            News::Down(host, _) => (news::DOWN, host),
            News::Unfit(host, _) => (news::UNFIT, host),
            News::Changed(Change::Grown) => (news::GROWN, 0),
            News::Changed(Change::Stopped) => (news::STOPPED, 0),
            News::Changed(Change::Resumed) => (news::RESUMED, 0),
            News::Changed(Change::Lost(host)) => (news::LOST, host),
            News::Changed(Change::Left(host)) => (news::LEFT, host),
        };
        let trace = &cpu::this().trace;
        trace.note((trace::HOST, detail), None, timer::now(), about.into());
        let name = self.name(about);
        match news {
            News::Up(_) => log::info!("cluster: the link to {name} is up"),
            News::Down(_, why) => log::info!("cluster: the link to {name} is down: {why}"),
            News::Unfit(_, why) => log::warn!("cluster: {name} cannot join: {why}"),
            News::Changed(Change::Grown) => calls::grown(),
            News::Changed(Change::Stopped) => {
                log::warn!("cluster: a member is silent: what is shared has stopped");
            }
            News::Changed(Change::Resumed) => log::info!("cluster: all members answer again"),
            News::Changed(Change::Left(_)) => log::info!("cluster: {name} has left"),
            News::Changed(Change::Lost(_)) => {
                log::warn!("cluster: {name} is lost: this machine has left the membership");
                if let Some(span) = self.span {
                    span.lose(name);
                }
            }
        }
    }

    fn message(&mut self, from: u8, message: &[u8]) -> bool {
        let span = self.span.as_mut();
        match message.first() {
            Some(&(ASKED | ANSWERED)) => {
                requests::ring();
                let is_whole = message.len() >= size_of::<Errand>();
                let errands = self.errands.as_mut().filter(|_| is_whole);
                // Without room it is lost, as beats would wait behind it: who asked gives up in time.
                let _ = errands.map(|it| it.push(from, message));
                true
            }
            Some(&kind) if kind >= Kind::Offer as u8 => self.states.keep(self.calls, from, message),
            _ => span.is_none_or(|span| span.keep(from, message)),
        }
    }
}
