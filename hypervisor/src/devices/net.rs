//! A VM's network device: frames go from its transmit queue straight into the receive buffers of
//! whoever the switch names, copied once.
//!
//! No lock of two devices is held at a time: a frame is taken out of the sender's queue, and
//! travels without its lock. A receiver without buffers lets the sender wait for it a while, and is
//! then passed over until it takes something again.

mod bring;
mod copies;
pub mod frame;

use crate::devices::net::frame::{Accepted, Incoming};
use crate::devices::network::{self, Cable, End, Route};
use crate::devices::register::RegisterAccess;
use crate::devices::virtio::{VirtualDevice, show_line};
use crate::guest::Guest;
use crate::machine::{self, due, stretch};
use crate::vcpu::sched;
use abi::control::{count, latency_bucket};
use abi::state;
use alloc::boxed::Box;
use arch::timer;
use bring::bring;
use copies::fill;
use core::sync::atomic::Ordering;
use machine_locks::{Rank, SpinLock};
use model_addr::Gfn;
use model_ethernet::{PortSet, Why};
use model_virtio::net::{self, Frame, Next, Received, Role};
use model_virtio::{Effect, MAX_QUEUE_SIZE, Transport};

/// Frames, and bytes of them, that are sent in one go.
const FRAMES_AT_ONCE: u32 = 64;
const BYTES_AT_ONCE: u64 = 1 << 20;
/// Commands done in one go.
const COMMANDS_AT_ONCE: usize = 16;
/// How long a sender waits for a receiver without buffers: 1/20 of a second.
const PATIENCE_PARTS: u64 = 20;
/// A frame that waits until then waits for nobody, but for the next stretch.
const NEXT_STRETCH: u64 = u64::MAX;
/// Stretches in which a frame comes no further before it is lost: its longest is in 17 pages.
const TRIES_MAX: u32 = 32;
/// So many frames that were sent are told to a driver that has other things to do.
const UNTOLD_MAX: u16 = 64;

/// What became of a frame for its sender.
enum Sent {
    /// It is over, and whether it was cut into pieces.
    Over(bool),
    /// The same of one receiver, and others are yet to have it.
    GoesOn(bool),
    /// It waits for the receiver at this port.
    Waits(u8),
    /// It goes in pieces to the receiver at this port; piece so many is next.
    Pieces(u8, u32),
}

/// A frame on its way.
#[derive(Default)]
struct Sending {
    frame: Frame,
    /// When it was taken from the ring.
    since: u64,
    /// The port that it waits for, and how long.
    waits: Option<(u8, u64)>,
    /// Ports that are yet to have it; it waits for the first of them meanwhile.
    flood: PortSet,
    /// How many pieces of it the receiver has that it waits for.
    pieces: u32,
    /// Stretches in which not all memory was at hand.
    tries: u32,
}

impl Sending {
    /// Leaves it for another stretch, from piece `next` on; `false` where it has come no further in too many.
    fn is_left(&mut self, waits: (u8, u64), next: u32) -> bool {
        self.tries = if next == self.pieces {
            self.tries + 1
        } else {
            0
        };
        (self.waits, self.pieces) = (Some(waits), next);
        self.tries < TRIES_MAX
    }
}

struct State {
    transport: Transport<net::Net>,
    /// Where the next frame is taken to; whoever has it sends.
    sending: Option<Box<Sending>>,
    /// Somebody came to send meanwhile.
    again: bool,
    /// Ports of senders that wait for buffers here.
    waiters: PortSet,
    /// It was waited for in vain.
    is_stuck: bool,
}

/// A network device.
pub struct Net {
    state: SpinLock<State>,
    /// Its place among the VM's devices.
    window: usize,
    cable: Cable,
}

impl Net {
    /// A device that looks like `device`, at that place among the VM's, at the end of `cable`, which is pulled where the
    /// link is not `up`.
    pub fn new(device: net::Net, window: usize, cable: Cable, up: bool) -> Self {
        let mut transport = Transport::new(device);
        transport.set_link(up);
        let state = State {
            transport,
            sending: Some(Box::default()),
            again: false,
            waiters: PortSet::default(),
            is_stuck: false,
        };
        Self {
            state: SpinLock::new(Rank::Device, state),
            window,
            cable,
        }
    }

    /// Its cable.
    pub fn cable(&self) -> &Cable {
        &self.cable
    }

    /// Pulls the cable, or plugs it in again, and lets the guest see that.
    pub fn set_link(&self, vm: &Guest, up: bool) {
        let mut state = self.state.lock();
        state.transport.set_link(up);
        show_line(vm, self.window, &mut state.transport);
        drop(state);
        self.cable.set_link(up);
    }

    /// Tells the driver what was sent; or, where it has just asked for that, notes that it is to be told: with
    /// the next frame that it gets, or when one of its vCPUs waits or leaves its CPU.
    fn finish(&self, state: &mut State, vm: &Guest) {
        let waits = (1..UNTOLD_MAX).contains(&state.transport.untold());
        if waits && sched::is_patient() && !state.transport.irq_level() {
            return vm.has_untold.store(true, Ordering::Relaxed);
        }
        state.transport.signal_sent(&vm.memory());
        show_line(vm, self.window, &mut state.transport);
    }

    /// Lets those send that wait for buffers of this device.
    fn wake_senders(&self, vm: &Guest) {
        let mut waiters = core::mem::take(&mut self.state.lock().waiters);
        for port in waiters.iter() {
            if stretch::is_long() {
                self.state.lock().waiters.0 |= waiters.0;
                return vm.put_off_work_of(1 << self.window);
            }
            waiters.0 &= !(1 << port);
            if let Some(End::Vm(vm, window)) = self.cable.lan().end(port) {
                vm.send(window);
            }
        }
    }

    /// Sends frames, as many as one go allows; vCPU 0 comes back for the rest. Then the driver is told.
    pub fn send(&self, vm: &Guest) {
        let mut bytes = 0;
        for _ in 0..FRAMES_AT_ONCE {
            let Some(mut sending) = self.next(vm) else {
                return;
            };
            let sent = self.deliver(vm, &mut sending);
            bytes += u64::from(sending.frame.bytes());
            let mut state = self.state.lock();
            if let Sent::Waits(_) = sent {
                state.sending = Some(sending);
                // Who woke it while nobody had it found nothing to do.
                if core::mem::take(&mut state.again) {
                    continue;
                }
                return self.finish(&mut state, vm);
            }
            if matches!(sent, Sent::Over(_)) {
                sending.waits = None;
                state.transport.sent(&vm.memory(), &sending.frame);
            }
            state.sending = Some(sending);
            let is_whole = matches!(sent, Sent::Over(false) | Sent::GoesOn(false));
            if bytes >= BYTES_AT_ONCE || !is_whole || stretch::is_long() {
                break;
            }
        }
        // The driver is told when all is sent, or a ring full: by the time that a vCPU waits or leaves its CPU.
        let mut state = self.state.lock();
        if state.transport.untold() >= MAX_QUEUE_SIZE {
            self.finish(&mut state, vm);
        }
        drop(state);
        vm.has_untold.store(true, Ordering::Relaxed);
        vm.put_off_work_of(1 << self.window);
    }

    /// The frame that waits, or the next one of the queue; `None` where there is none, or somebody
    /// else sends.
    fn next(&self, vm: &Guest) -> Option<Box<Sending>> {
        let mut state = self.state.lock();
        let Some(mut sending) = state.sending.take() else {
            state.again = true;
            return None;
        };
        state.again = false;
        if sending.waits.is_some() && state.transport.awaits(&sending.frame) {
            return Some(sending);
        }
        (sending.waits, sending.flood) = (None, PortSet::default());
        (sending.pieces, sending.tries) = (0, 0);
        let will_look = sched::leaves_soon();
        for _ in 0..FRAMES_AT_ONCE {
            match state
                .transport
                .next_frame(&vm.memory(), &mut sending.frame, will_look)
            {
                Next::Frame => return Some(sending),
                Next::Refused => {
                    lose(vm, Why::Malformed);
                    if stretch::is_long() {
                        break;
                    }
                }
                Next::Empty => {
                    state.sending = Some(sending);
                    vm.has_untold.fetch_or(will_look, Ordering::Relaxed);
                    if stretch::is_long() {
                        vm.put_off_work_of(1 << self.window);
                    }
                    self.finish(&mut state, vm);
                    return None;
                }
            }
        }
        state.sending = Some(sending);
        self.finish(&mut state, vm);
        vm.put_off_work_of(1 << self.window);
        None
    }

    /// Brings a frame to where the switch says; no lock is held.
    fn deliver(&self, vm: &Guest, sending: &mut Sending) -> Sent {
        let frame = &sending.frame;
        let (lan, port) = (self.cable.lan(), self.cable.port());
        let incoming = Incoming::of_guest(vm, frame);
        let sent = if sending.flood.0 != 0 {
            Sent::GoesOn(false)
        } else if let Some((to, until)) = sending.waits {
            self.retry(vm, (to, until), incoming, sending.pieces)
        } else {
            sending.since = timer::now();
            let bytes = frame.bytes();
            match lan.route(port, frame.source(), frame.destination(), bytes) {
                Route::Drop(why) => {
                    lose(vm, why);
                    return Sent::Over(false);
                }
                Route::To(to, end) => {
                    note(vm, 0, bytes);
                    bring(&end, to, incoming, (Some(port), 0))
                }
                Route::Flood(ports) => {
                    note(vm, 0, bytes);
                    sending.flood = ports;
                    Sent::Over(false)
                }
            }
        };
        let sent = match sending.flood.iter().next() {
            Some(to) => {
                let end = lan.end(to);
                let sent = end.map(|end| bring(&end, to, incoming, (None, sending.pieces)));
                if let Some(Sent::Pieces(_, next)) = sent {
                    if sending.is_left((to, 0), next) {
                        return Sent::GoesOn(true);
                    }
                    lose(vm, Why::NoMemory);
                }
                let is_cut = matches!(sent, Some(Sent::Over(true)));
                sending.flood.0 &= !(1 << to);
                (sending.pieces, sending.tries) = (0, 0);
                sending.waits = sending.flood.iter().next().map(|next| (next, 0));
                match sending.waits {
                    Some(_) => Sent::GoesOn(is_cut),
                    None => Sent::Over(is_cut),
                }
            }
            None => sent,
        };
        match (&sent, sending.waits) {
            (Sent::Over(_), _) => time(vm, sending.since),
            (Sent::Pieces(to, next), _) => {
                if !sending.is_left((*to, NEXT_STRETCH), *next) {
                    lose(vm, Why::NoMemory);
                    return Sent::Over(true);
                }
            }
            (Sent::Waits(to), None | Some((_, NEXT_STRETCH))) => {
                let until = timer::now() + timer::frequency() / PATIENCE_PARTS;
                sending.waits = Some((*to, until));
                due::tick_at(until);
            }
            // Who tries before its time asks for that again, as what was due may be forgotten by then; who tries
            // later, once more.
            (Sent::Waits(_), Some((_, until))) if due::has_come(until) => {
                vm.put_off_work_of(1 << self.window);
            }
            _ => {}
        }
        sent
    }

    /// Tries again to bring a frame that waits.
    fn retry(
        &self,
        vm: &Guest,
        (to, until): (u8, u64),
        incoming: Incoming<'_>,
        pieces: u32,
    ) -> Sent {
        let Some(end) = self.cable.lan().end(to) else {
            lose(vm, Why::Nowhere);
            return Sent::Over(false);
        };
        if timer::now() >= until
            && let End::Vm(vm, window) = &end
        {
            vm.pass_over(*window);
        }
        bring(&end, to, incoming, (Some(self.cable.port()), pieces))
    }

    /// It was waited for in vain: it is passed over until it takes something again.
    pub fn pass_over(&self) {
        self.state.lock().is_stuck = true;
    }

    /// Takes a frame that is for this device; the sender at port `waiter` can wait for buffers.
    pub fn take(&self, vm: &Guest, incoming: Incoming<'_>, waiter: Option<u8>) -> Accepted {
        let mut state = self.state.lock();
        let transport = &mut state.transport;
        if transport.is_live() && !incoming.offload.fits(transport.takes()) {
            return Accepted::NeedsPieces;
        }
        let memory = vm.memory();
        let what = (incoming.bytes, incoming.offload, incoming.flow);
        let received = transport.receive(&memory, what, |runs| fill(&memory, runs, incoming.body));
        match received {
            Received::Done => {
                if transport.irq_level() {
                    // One interrupt is for both.
                    transport.signal_sent(&memory);
                }
                state.is_stuck = false;
                note(vm, 1, incoming.bytes);
            }
            Received::NoBuffers => {
                if let (Some(port), false) = (waiter, state.is_stuck) {
                    state.waiters.0 |= 1 << port;
                    return Accepted::Full;
                }
                lose(vm, Why::NoRoom);
            }
            Received::TooLong | Received::NoDriver => lose(vm, Why::NoRoom),
            Received::Lost => lose(vm, Why::NoMemory),
            Received::Away => return Accepted::Away,
        }
        show_line(vm, self.window, &mut state.transport);
        Accepted::Over
    }
}

impl VirtualDevice for Net {
    fn access(&self, vm: &Guest, access: RegisterAccess) -> u64 {
        let mut state = self.state.lock();
        let (read, effect) = access.on(&mut state.transport);
        let role = match effect {
            Effect::Notify(queue) => Some(state.transport.role(queue)),
            _ => None,
        };
        if role == Some(Role::Control) {
            control(&mut state, vm);
        }
        state.is_stuck &= !matches!(effect, Effect::Live | Effect::Reset);
        show_line(vm, self.window, &mut state.transport);
        drop(state);
        // A frame travels without the lock: before the driver goes on, nobody reads its memory any longer.
        while effect == Effect::Reset && self.state.lock().sending.is_none() {
            arch::cpu::relax();
        }
        match (effect, role) {
            (_, Some(Role::Receive)) | (Effect::Reset, _) => self.wake_senders(vm),
            (_, Some(Role::Transmit)) => sched::patiently(|| self.send(vm)),
            (Effect::Live, _) => self.proceed(vm),
            _ => {}
        }
        read
    }

    fn proceed(&self, vm: &Guest) {
        control(&mut self.state.lock(), vm);
        self.wake_senders(vm);
        if stretch::is_long() {
            return vm.put_off_work_of(1 << self.window);
        }
        sched::patiently(|| self.send(vm));
    }

    fn uses(&self, gfn: Gfn) -> bool {
        self.state.try_lock().is_none_or(|state| {
            let sending = state.sending.as_ref();
            let travels = sending.is_none_or(|it| it.waits.is_some() && it.frame.uses(gfn));
            travels || state.transport.uses(gfn)
        })
    }

    fn let_go(&self) {
        self.state.lock().transport.let_go();
    }

    fn is_due(&self) -> bool {
        // Where a frame travels, too: nobody can tell yet when it is due.
        self.state.try_lock().is_none_or(|state| {
            let has_come = |(_, until)| due::has_come(until);
            let sending = state.sending.as_ref();
            sending.is_none_or(|it| it.waits.is_some_and(has_come))
        })
    }

    fn frames(&self) -> u64 {
        0
    }

    fn errors(&self) -> u64 {
        self.state.lock().transport.errors().0.into()
    }

    /// A frame that waits for its receiver is in its queue again.
    fn record(&self) -> Result<state::Device, &'static str> {
        let state = &mut *self.state.lock();
        let sending = state.sending.as_mut().ok_or("a frame that travels")?;
        if sending.waits.take().is_some() {
            state.transport.unsend(&sending.frame);
        }
        Ok(state.transport.record())
    }

    fn restore(&self, record: &state::Device) -> bool {
        let mut state = self.state.lock();
        let is_restored = state.transport.restore(record);
        self.cable.set_link(state.transport.link());
        is_restored
    }
}

fn lose(vm: &Guest, why: Why) {
    vm.count(count::NET_DROPS + why as usize, 1);
}

/// Counts a frame that was sent (0) or received (1).
fn note(vm: &Guest, received: usize, bytes: u32) {
    vm.count(count::NET_FRAMES + received, 1);
    vm.count(count::NET_BYTES + received, bytes.into());
}

/// Counts how long a frame took that is where it goes, or was lost there.
fn time(vm: &Guest, since: u64) {
    let took = machine::nanoseconds(timer::now().saturating_sub(since));
    vm.count(count::NET_NS, took);
    vm.count(count::NET_LATENCY + latency_bucket(took), 1);
}

fn control(state: &mut State, vm: &Guest) {
    if state.transport.control(&vm.memory(), COMMANDS_AT_ONCE) {
        vm.put_off_device_work();
    }
}

/// A frame has come from outside: to every switch that has a way there.
pub fn from_outside(frame: &[u8]) {
    let addresses = frame.split_first_chunk::<6>();
    let Some((to, Some(from))) = addresses.map(|(to, rest)| (to, rest.first_chunk())) else {
        return;
    };
    let incoming = Incoming::own(frame, &[]);
    for (lan, port) in network::ways_out() {
        match lan.route(port, *from, *to, frame.len() as u32) {
            Route::To(_, end) => take(&end, incoming),
            Route::Flood(ports) => {
                for end in ports.iter().filter_map(|port| lan.end(port)) {
                    take(&end, incoming);
                }
            }
            Route::Drop(_) => {}
        }
    }
}

fn take(end: &End, incoming: Incoming<'_>) {
    if let End::Vm(vm, window) = end {
        let _ = vm.take(*window, incoming, None);
    }
}
