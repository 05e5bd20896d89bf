//! The way to and from the `underpin` command: a virtio console of the machine.

use crate::drivers::channel;
use crate::drivers::queue::{BufferQueue, Transport, begin};
use crate::drivers::requests::{Incoming, RESERVE, next, ring};
use abi::control::FrameHeader;
use machine_locks::{Once, Rank, SpinLock};
use model_addr::FRAME_SIZE;
use model_control::Inbox;
use virtio_drivers::Error;
use virtio_drivers::transport::{DeviceStatus, Transport as _};
use zerocopy::IntoBytes;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const SLOTS: usize = 16;
/// A reply's header and the largest payload, in frames as an order.
const TRANSMIT_ORDER: u8 = 3;
const HEADER: usize = size_of::<FrameHeader>();
/// Buffers that console output leaves to replies.
pub const SLOTS_FOR_REPLIES: usize = 4;

struct Port {
    transport: Transport,
    receive: BufferQueue<32, SLOTS>,
    transmit: BufferQueue<32, SLOTS>,
    received: Inbox,
}

static PORT: Once<SpinLock<Port>> = Once::new();

/// Starts the port.
pub fn start(mut transport: Transport) -> Result<(), Error> {
    begin(&mut transport, 0);
    let mut receive = BufferQueue::new(&mut transport, RECEIVE, 0, 0)?;
    let transmit = BufferQueue::new(&mut transport, TRANSMIT, TRANSMIT_ORDER, 0)?;
    transport.finish_init();
    while let Some((slot, buffer)) = receive.claim() {
        receive.lend(&mut transport, slot, 0, buffer.size() as u32)?;
    }
    let port = Port {
        transport,
        receive,
        transmit,
        received: Inbox::default(),
    };
    PORT.set(SpinLock::new(Rank::PhysicalDevice, port))
        .map_err(|_| Error::AlreadyUsed)
}

/// The port's interrupt: housekeeping looks at it.
pub fn acknowledge() {
    if let Some(port) = PORT.get() {
        port.lock().transport.ack_interrupt();
    }
    ring();
}

/// The next complete frame. Bytes that begin no frame are skipped.
pub fn receive() -> Option<Incoming> {
    let Some(port) = PORT.get() else {
        return channel::receive();
    };
    let mut port = port.lock();
    loop {
        if port.received.has_frame() {
            return next(&mut port.received);
        }
        let Port {
            transport,
            receive,
            received,
            ..
        } = &mut *port;
        let (slot, buffer, len) = receive.take_back()?;
        // A buffer is smaller than what is left of the largest frame, or a frame is complete.
        let mut bytes = [0; FRAME_SIZE as usize];
        let (size, some) = (buffer.size() as u32, (len as usize).min(bytes.len()));
        buffer.read(0, &mut bytes[..some]);
        received.push(&bytes[..some]);
        if receive.lend(transport, slot, 0, size).is_err() {
            receive.release(slot);
        }
    }
}

/// What has become of a frame.
#[derive(PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Yes,
    /// There is no room now.
    NoRoom,
    /// It cannot go: it is too long, nobody listens, or the device is broken.
    Never,
}

/// Sends a frame made of `parts`.
pub fn send(kind: u32, tag: u32, parts: &[&[u8]]) -> Sent {
    send_leaving(0, kind, tag, parts)
}

/// Sends a frame made of `parts`, where so many buffers are left to others.
pub fn send_leaving(reserve: usize, kind: u32, tag: u32, parts: &[&[u8]]) -> Sent {
    let Some(header) = FrameHeader::of(kind, tag, parts) else {
        return Sent::Never;
    };
    let Some(port) = PORT.get() else {
        let reserve = if reserve > 0 { RESERVE } else { 0 };
        let mut all = heapless::Vec::<&[u8], 4>::new();
        let fits = all.push(header.as_bytes()).is_ok() && all.extend_from_slice(parts).is_ok();
        return match fits && channel::is_open() {
            true if channel::send(reserve, &all) => Sent::Yes,
            true => Sent::NoRoom,
            false => Sent::Never,
        };
    };
    let mut port = port.lock();
    let Port {
        transport,
        transmit,
        ..
    } = &mut *port;
    while let Some((slot, ..)) = transmit.take_back() {
        transmit.release(slot);
    }
    let claimed = (transmit.free() > reserve).then(|| transmit.claim());
    let Some((slot, buffer)) = claimed.flatten() else {
        let status = transport.get_status();
        let is_broken = status.contains(DeviceStatus::DEVICE_NEEDS_RESET);
        return if is_broken { Sent::Never } else { Sent::NoRoom };
    };
    buffer.write(0, header.as_bytes());
    let mut at = HEADER as u64;
    for part in parts {
        buffer.write(at, part);
        at += part.len() as u64;
    }
    if transmit.lend(transport, slot, at as u32, 0).is_ok() {
        return Sent::Yes;
    }
    transmit.release(slot);
    Sent::Never
}
