//! The machine's network card: virtio-net driven at EL2, for switches with a way out.
//!
//! Frames go through buffers of EL2's own, so that a guest's memory is never in the
//! card's hands. It is asked for no offloads: what goes out is cut and summed before. Beside OS-0, whose
//! cards all are, a network device of OS-0's takes its place ([`crate::drivers::uplink`]).

use crate::drivers::queue::{BufferQueue, Transport, begin};
use crate::drivers::uplink;
use crate::machine::{self, Kind, due, stretch};
use abi::bundle::Bundle;
use abi::link::{ETHERNET_BYTES, ETHERTYPE};
use alloc::boxed::Box;
use arch::{frames::Ram, timer};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::FRAME_SIZE;
use virtio_drivers::{Error, transport::Transport as _};

const QUEUE: usize = 256;
const BUFFERS: usize = 128;
/// `struct virtio_net_hdr_v1`, all zero: nothing is left to do with a frame.
const HEADER_BYTES: usize = 12;
/// The longest frame from and to VMs: 1500 bytes, an Ethernet header, a VLAN tag.
const FRAME_MAX: usize = 1518;
/// Frames taken in one go, if it does not get long before: a full one takes some 2,300 instructions, a stretch has 100,000.
const FRAMES_AT_ONCE: u32 = 32;
/// What passes after frames that the link dropped unread, in nanoseconds: a flood of them has no more of a CPU than
/// [`FRAMES_AT_ONCE`] in that time. The card has no room for more than [`BUFFERS`] meanwhile, and raises no interrupt. No
/// timeout of a link (2 ms, doubled) is a multiple, so what is sent again does not meet each rest at the same place.
const REST_NS: u64 = 270_000;

struct Hardware {
    transport: Transport,
    receive: Box<BufferQueue<QUEUE, BUFFERS>>,
    send: Box<BufferQueue<QUEUE, BUFFERS>>,
    /// The longest frame, of VMs or of the link.
    longest: usize,
}

/// A frame that has come, in a buffer of the card that is claimed.
#[derive(Clone, Copy)]
pub struct Arrived {
    buffer: Ram,
    /// Its length.
    pub bytes: usize,
}

impl Arrived {
    /// Copies its first bytes, of which there are as many.
    pub fn read(self, into: &mut [u8]) {
        self.buffer.read(HEADER_BYTES as u64, into);
    }
}

static CARD: Once<SpinLock<Hardware>> = Once::new();
/// Frames that have come were left for later, or the card rests and its interrupt is off.
static LEFT: AtomicBool = AtomicBool::new(false);
/// When frames are taken again, in counts.
static REST_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Takes each frame of the link between hosts, where the machine is one of a cluster: given at boot.
pub static LINK: Once<fn(Arrived)> = Once::new();

/// Whether a frame in two parts is of the link between hosts, which a VM must not send to them.
pub fn is_of_link(head: &[u8], rest: &[u8]) -> bool {
    LINK.get().is_some() && model_ethernet::is_of(ETHERTYPE, [head, rest])
}

/// Starts the card. Not inlined, as its queues pass through the stack.
#[inline(never)]
pub fn start(mut transport: Transport) -> Result<(), Error> {
    begin(&mut transport, 0);
    let cluster = machine::get().bundle.as_ref().map(Bundle::cluster);
    let of_link = cluster.and_then(Result::ok).flatten();
    let longest = of_link.map_or(0, |it| it.frame_bytes()).max(FRAME_MAX);
    let room = HEADER_BYTES + longest;
    let order = room
        .div_ceil(FRAME_SIZE as usize)
        .next_power_of_two()
        .ilog2() as u8;
    let mut receive = Box::new(BufferQueue::new(&mut transport, 0, order, 0)?);
    let send = Box::new(BufferQueue::new(&mut transport, 1, order, 0)?);
    transport.finish_init();
    while let Some((slot, _)) = receive.claim() {
        receive.lend(&mut transport, slot, 0, room as u32)?;
    }
    let hardware = Hardware {
        transport,
        receive,
        send,
        longest,
    };
    let card = SpinLock::new(Rank::PhysicalDevice, hardware);
    CARD.set(card).map_err(|_| Error::AlreadyUsed)
}

/// A switch is to have a way out: whether there is one.
pub fn plug() -> bool {
    if machine::os0::is_here() {
        uplink::set_plugged(true);
        return true;
    }
    CARD.get().is_some()
}

/// Whether the card takes a frame now.
pub fn has_room() -> bool {
    CARD.get().is_some_and(|card| {
        let mut card = card.lock();
        card.take_back_sent();
        card.send.free() > 0
    })
}

/// Sends a frame that is in two parts; `false` where it is lost.
pub fn send(head: &[u8], rest: &[u8]) -> bool {
    let sent = match CARD.get() {
        Some(card) => card.lock().send(head, rest),
        None => uplink::send(head, rest),
    };
    uplink::count(if sent { 1 } else { 2 });
    sent
}

impl Hardware {
    fn take_back_sent(&mut self) {
        while let Some((slot, ..)) = self.send.take_back() {
            self.send.release(slot);
        }
    }

    fn send(&mut self, head: &[u8], rest: &[u8]) -> bool {
        let most = if is_of_link(head, rest) {
            self.longest
        } else {
            FRAME_MAX
        };
        if head.len() + rest.len() > most {
            return false;
        }
        self.take_back_sent();
        let Some((slot, buffer)) = self.send.claim() else {
            return false;
        };
        let rest_at = HEADER_BYTES + head.len();
        buffer.write(0, &[0; HEADER_BYTES]);
        buffer.write(HEADER_BYTES as u64, head);
        buffer.write(rest_at as u64, rest);
        let bytes = (rest_at + rest.len()) as u32;
        let lent = self.send.lend(&mut self.transport, slot, bytes, 0);
        if lent.is_err() {
            self.send.release(slot);
        }
        lent.is_ok()
    }

    /// Takes the next frame that came; its buffer goes back by [`Self::give_back`].
    fn receive(&mut self) -> Option<(usize, Arrived)> {
        let (slot, buffer, written) = self.receive.take_back()?;
        let bytes = written.saturating_sub(HEADER_BYTES as u32) as usize;
        Some((slot, Arrived { buffer, bytes }))
    }

    fn give_back(&mut self, slot: usize) {
        let room = (HEADER_BYTES + self.longest) as u32;
        let lent = self.receive.lend(&mut self.transport, slot, 0, room);
        if lent.is_err() {
            self.receive.release(slot);
        }
    }
}

/// Hands a frame to the link between hosts, or to VMs. Room is cleared for the first of these.
fn hand_in(frame: Arrived, room: &mut Option<[u8; FRAME_MAX]>) {
    let mut head = [0; ETHERNET_BYTES];
    let head = &mut head[..frame.bytes.min(ETHERNET_BYTES)];
    frame.read(head);
    match LINK.get() {
        Some(take) if head.get(12..) == Some(&ETHERTYPE) => take(frame),
        _ => {
            let room = room.get_or_insert([0; FRAME_MAX]);
            if let Some(into) = room.get_mut(..frame.bytes) {
                frame.read(into);
                uplink::hand_in(into);
            }
        }
    }
}

/// The card says that something has come or gone; whether some of that is left for [`go_on`].
pub fn interrupt() -> bool {
    CARD.get().is_some_and(|card| {
        card.lock().transport.ack_interrupt();
        take_some(card)
    })
}

/// Takes frames that were left; whether there are more.
pub fn go_on() -> bool {
    LEFT.swap(false, Ordering::Relaxed) && {
        stretch::look(Kind::Device);
        CARD.get().is_some_and(take_some)
    }
}

/// A frame was dropped unread, as too many were of no use: no other is taken for a while, beyond the present batch.
pub fn rest() {
    let until = timer::now() + machine::counts(REST_NS);
    REST_UNTIL.store(until, Ordering::Relaxed);
    if let Some(card) = CARD.get() {
        card.lock().receive.queue.set_dev_notify(false);
    }
    // It is off, also where the rest is over before this batch is: the card is looked at then. Not said before it is off, as
    // another CPU that finds the last rest over may turn it on.
    LEFT.store(true, Ordering::Release);
    due::request_at(until);
}

/// Whether the card rests. What comes meanwhile is left.
fn rests() -> bool {
    let until = REST_UNTIL.load(Ordering::Relaxed);
    let rests = timer::now() < until;
    if rests {
        due::request_at(until);
    }
    LEFT.store(rests, Ordering::Relaxed);
    rests
}

fn take_some(card: &SpinLock<Hardware>) -> bool {
    if rests() {
        return false;
    }
    card.lock().receive.queue.set_dev_notify(true);
    let mut room = None;
    for n in 0..FRAMES_AT_ONCE {
        if n > 0 && stretch::is_long() {
            break;
        }
        let Some((slot, frame)) = card.lock().receive() else {
            return false;
        };
        uplink::count(0);
        hand_in(frame, &mut room);
        card.lock().give_back(slot);
    }
    LEFT.store(true, Ordering::Relaxed);
    true
}
