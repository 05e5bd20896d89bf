//! The way to and from the `underpin` command: a virtio console of the machine.

use crate::physical::queue::{BufferQueue, Transport, begin};
use abi::Text;
use abi::control::{FrameHeader, MAGIC, PAYLOAD_MAX, event};
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use virtio_drivers::Error;
use virtio_drivers::transport::Transport as _;
use zerocopy::IntoBytes;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const SLOTS: usize = 16;
/// A reply's header and the largest payload, in frames as an order.
const TRANSMIT_ORDER: u8 = 3;
const HEADER: usize = size_of::<FrameHeader>();
/// Bytes of console output in one frame.
const OUTPUT_AT_ONCE: usize = 2048;
/// Buffers that console output leaves to replies.
const SLOTS_FOR_REPLIES: usize = 4;

struct Port {
    transport: Transport,
    receive: BufferQueue<32, SLOTS>,
    transmit: BufferQueue<32, SLOTS>,
    received: Inbox,
}

static PORT: Once<SpinLock<Port>> = Once::new();
static RING: AtomicBool = AtomicBool::new(false);

/// Bytes of a frame that is not complete yet. Aligned, so that records in it can be referred to.
#[repr(C, align(8))]
struct Inbox {
    bytes: [u8; HEADER + PAYLOAD_MAX],
    len: usize,
}

/// Starts the port.
#[expect(
    clippy::large_stack_arrays,
    reason = "once, while the CPU does nothing else"
)]
pub fn start(mut transport: Transport) -> Result<(), Error> {
    begin(&mut transport, 0);
    let mut receive = BufferQueue::new(&mut transport, RECEIVE, 0, 0)?;
    let transmit = BufferQueue::new(&mut transport, TRANSMIT, TRANSMIT_ORDER, 0)?;
    transport.finish_init();
    while let Some((slot, buffer)) = receive.claim() {
        receive.lend(&mut transport, slot, 0, buffer.size() as u32)?;
    }
    let received = Inbox {
        bytes: [0; HEADER + PAYLOAD_MAX],
        len: 0,
    };
    let port = Port {
        transport,
        receive,
        transmit,
        received,
    };
    PORT.set(SpinLock::new(Rank::PhysicalDevice, port))
        .map_err(|_| Error::AlreadyUsed)
}

/// The port's interrupt: housekeeping looks at it.
pub fn acknowledge() {
    if let Some(port) = PORT.get() {
        port.lock().transport.ack_interrupt();
    }
    RING.store(true, Ordering::Release);
    crate::housekeeping::request();
}

/// Whether the port has rung since this was asked.
pub fn has_rung() -> bool {
    RING.swap(false, Ordering::AcqRel)
}

/// A frame that has come in.
pub struct Incoming {
    /// Its header.
    pub header: FrameHeader,
    /// What followed. Aligned to 8 bytes.
    pub payload: alloc::boxed::Box<Payload>,
}

/// A payload, aligned so that records in it can be referred to.
#[repr(C, align(8))]
pub struct Payload {
    bytes: [u8; PAYLOAD_MAX],
    len: usize,
}

impl Payload {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The next complete frame. Bytes that begin no frame are skipped.
pub fn receive() -> Option<Incoming> {
    let mut port = PORT.get()?.lock();
    loop {
        if let Some(frame) = port.received.take() {
            return Some(frame);
        }
        let Port {
            transport,
            receive,
            received,
            ..
        } = &mut *port;
        let (slot, buffer, len) = receive.take_back()?;
        let room = received.bytes.len() - received.len;
        // A buffer is smaller than what is left of the largest frame, or a frame is complete.
        let taken = (len as usize).min(room);
        buffer.read(0, &mut received.bytes[received.len..received.len + taken]);
        received.len += taken;
        let size = buffer.size() as u32;
        if receive.lend(transport, slot, 0, size).is_err() {
            receive.release(slot);
        }
    }
}

impl Inbox {
    fn take(&mut self) -> Option<Incoming> {
        use zerocopy::FromBytes;
        loop {
            let (header, _) = FrameHeader::read_from_prefix(&self.bytes[..self.len]).ok()?;
            if header.magic != MAGIC || header.length as usize > PAYLOAD_MAX {
                self.drop_front(1);
                continue;
            }
            let len = header.length as usize;
            let payload = self.bytes[..self.len].get(HEADER..HEADER + len)?;
            let mut copy = alloc::boxed::Box::new(Payload {
                bytes: [0; PAYLOAD_MAX],
                len,
            });
            copy.bytes[..len].copy_from_slice(payload);
            self.drop_front(HEADER + len);
            return Some(Incoming {
                header,
                payload: copy,
            });
        }
    }

    fn drop_front(&mut self, count: usize) {
        self.bytes.copy_within(count..self.len, 0);
        self.len -= count;
    }
}

/// Sends a frame made of `parts`; `false` where there is no room now, or none at all.
pub fn send(kind: u32, tag: u32, parts: &[&[u8]]) -> bool {
    send_leaving(0, kind, tag, parts)
}

/// Sends what a VM wrote to its console; how many of the bytes went out.
pub fn console_output(name: Text<32>, bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(OUTPUT_AT_ONCE)];
    if PORT.get().is_none() {
        // Nobody listens: output is lost, as on a line that is not plugged in.
        return bytes.len();
    }
    let sent = send_leaving(
        SLOTS_FOR_REPLIES,
        event::CONSOLE_OUTPUT,
        0,
        &[name.as_bytes(), bytes],
    );
    if sent { bytes.len() } else { 0 }
}

fn send_leaving(reserve: usize, kind: u32, tag: u32, parts: &[&[u8]]) -> bool {
    let Some(port) = PORT.get() else { return false };
    let mut port = port.lock();
    let Port {
        transport,
        transmit,
        ..
    } = &mut *port;
    while let Some((slot, ..)) = transmit.take_back() {
        transmit.release(slot);
    }
    if transmit.free() <= reserve {
        return false;
    }
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let Some((slot, buffer)) = transmit.claim() else {
        return false;
    };
    if length > PAYLOAD_MAX {
        transmit.release(slot);
        return false;
    }
    let header = FrameHeader {
        magic: MAGIC,
        kind,
        tag,
        length: length as u32,
    };
    buffer.write(0, header.as_bytes());
    let mut at = HEADER as u64;
    for part in parts {
        buffer.write(at, part);
        at += part.len() as u64;
    }
    let lent = transmit.lend(transport, slot, at as u32, 0);
    if lent.is_err() {
        transmit.release(slot);
    }
    lent.is_ok()
}
