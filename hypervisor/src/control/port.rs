//! The way to and from the `underpin` command: a virtio console of the machine.

use super::channel;
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
/// Bytes of the largest frame.
pub const RESERVE: usize = HEADER + PAYLOAD_MAX;
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
pub struct Inbox {
    bytes: [u8; RESERVE],
    len: usize,
}

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
        received: Inbox::new(),
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

/// There may be a request: housekeeping looks.
pub fn ring() {
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
    let Some(port) = PORT.get() else {
        return channel::receive();
    };
    let mut port = port.lock();
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
        // A buffer is smaller than what is left of the largest frame, or a frame is complete.
        let taken = (len as usize).min(received.room());
        buffer.read(0, &mut received.bytes[received.len..received.len + taken]);
        received.len += taken;
        let size = buffer.size() as u32;
        if receive.lend(transport, slot, 0, size).is_err() {
            receive.release(slot);
        }
    }
}

impl Inbox {
    /// Nothing has come.
    #[expect(clippy::large_stack_arrays, reason = "at most once for each way")]
    pub const fn new() -> Self {
        Self {
            bytes: [0; RESERVE],
            len: 0,
        }
    }

    /// Forgets what has come.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    const fn room(&self) -> usize {
        RESERVE - self.len
    }

    /// Adds bytes; how many there was room for.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// The next complete frame.
    pub fn take(&mut self) -> Option<Incoming> {
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
    if PORT.get().is_none() && !channel::is_open() {
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
    let length: usize = parts.iter().map(|part| part.len()).sum();
    if length > PAYLOAD_MAX {
        return false;
    }
    let header = FrameHeader {
        magic: MAGIC,
        kind,
        tag,
        length: length as u32,
    };
    let Some(port) = PORT.get() else {
        let reserve = if reserve > 0 { RESERVE } else { 0 };
        let mut all = heapless::Vec::<&[u8], 4>::new();
        let fits = all.push(header.as_bytes()).is_ok() && all.extend_from_slice(parts).is_ok();
        return fits && channel::send(reserve, &all);
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
    if transmit.free() <= reserve {
        return false;
    }
    let Some((slot, buffer)) = transmit.claim() else {
        return false;
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
