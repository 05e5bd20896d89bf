//! A console device whose one port is no console: a named stream of bytes for programs (virtio 5.3,
//! `VIRTIO_CONSOLE_F_MULTIPORT`), which Linux shows as `/dev/virtio-ports/NAME`.
//!
//! ```text
//!  driver: DEVICE_READY ──► DEVICE_ADD ──► PORT_READY ──► PORT_NAME, PORT_OPEN ──► ... PORT_OPEN 1, 0
//!          (control queues)                                              a program opens and closes it
//! ```

use crate::stream::{Bytes, Stream};
use crate::{Chain, Device, Queue, QueueError, Transport};
use machine_contract::GuestMemory;

const CONTROL_RECEIVE: usize = 2;
const CONTROL_TRANSMIT: usize = 3;

/// `VIRTIO_CONSOLE_F_MULTIPORT`.
const F_MULTIPORT: u64 = 1 << 1;
/// The most bytes of a port's name.
pub const NAME_MAX: usize = 32;
/// Bytes of `struct virtio_console_control` (virtio 5.3.6.2): port, event, value.
const MESSAGE: usize = 8;
/// Messages that one call looks at.
const MESSAGES_AT_ONCE: u32 = 64;

/// What a message says (virtio 5.3.6.2).
mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const DEVICE_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const PORT_OPEN: u16 = 6;
    pub const PORT_NAME: u16 = 7;
}

/// What a driver is told.
const TOLD: u16 = 1 << event::DEVICE_ADD | 1 << event::PORT_NAME | 1 << event::PORT_OPEN;

/// The device: its port 0.
#[derive(Clone, Debug)]
pub struct Port {
    /// `struct virtio_console_config` (virtio 5.3.4): one port.
    config: [u8; 12],
    name: &'static str,
    bytes: Bytes,
    message: Chain,
    /// Messages that the driver is still to be told: bit n is event n.
    to_tell: u16,
    /// Whether a program of the guest has it open.
    is_open: bool,
}

impl Port {
    /// A port of that name, which is cut to [`NAME_MAX`] bytes.
    pub fn new(name: &'static str) -> Self {
        let mut config = [0; 12];
        config[4] = 1;
        Self {
            config,
            name: name.get(..NAME_MAX).unwrap_or(name),
            bytes: Bytes::default(),
            message: Chain::default(),
            to_tell: 0,
            is_open: false,
        }
    }

    /// Whether a program of the guest has it open.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The driver said something of the port, or of the device.
    fn told(&mut self, message: [u8; MESSAGE]) {
        let port = u32::from_le_bytes([message[0], message[1], message[2], message[3]]);
        let event = u16::from_le_bytes([message[4], message[5]]);
        let value = u16::from_le_bytes([message[6], message[7]]);
        match (event, port) {
            (event::DEVICE_READY, _) if value == 1 => self.to_tell = 1 << event::DEVICE_ADD,
            (event::PORT_READY, 0) if value == 1 => {
                self.to_tell |= 1 << event::PORT_NAME | 1 << event::PORT_OPEN;
            }
            (event::PORT_OPEN, 0) => self.is_open = value == 1,
            // It failed to make the port, or speaks of what there is not.
            _ => {}
        }
    }

    /// Takes what the driver says; whether there may be more.
    fn listen(&mut self, queue: &mut Queue, memory: &impl GuestMemory) -> Result<bool, QueueError> {
        for n in 0..MESSAGES_AT_ONCE {
            if !queue.pop_in_time(memory, &mut self.message, |_| n > 0)? {
                return Ok(false);
            }
            let mut message = [0; MESSAGE];
            if self.message.read(memory, &mut message)? == MESSAGE {
                self.told(message);
            }
            queue.push_used(memory, self.message.head(), 0)?;
        }
        Ok(true)
    }

    /// Tells the driver what it is still to be told, as far as it has room.
    fn tell(&mut self, queue: &mut Queue, memory: &impl GuestMemory) -> Result<(), QueueError> {
        // The name comes before the port is used.
        for event in [event::DEVICE_ADD, event::PORT_NAME, event::PORT_OPEN] {
            if self.to_tell & 1 << event == 0 {
                continue;
            }
            if !queue.pop(memory, &mut self.message)? {
                break;
            }
            let mut said = [0; MESSAGE + NAME_MAX];
            said[4..6].copy_from_slice(&event.to_le_bytes());
            said[6..8].copy_from_slice(&1_u16.to_le_bytes());
            let name = self.name.as_bytes();
            let mut length = MESSAGE;
            if event == event::PORT_NAME {
                said[MESSAGE..MESSAGE + name.len()].copy_from_slice(name);
                length += name.len();
            }
            let written = self.message.write(memory, &said[..length])?;
            queue.push_used(memory, self.message.head(), written as u32)?;
            self.to_tell &= !(1 << event);
        }
        Ok(())
    }
}

impl Device for Port {
    const ID: u32 = 3;
    const QUEUE_SIZES: &'static [u16] = &[64, 64, 16, 16];

    fn features(&self) -> u64 {
        F_MULTIPORT
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {
        self.bytes.reset();
        self.to_tell = 0;
        self.is_open = false;
    }

    fn own(&self) -> [u64; 2] {
        let is_open = u64::from(self.is_open) << 16;
        [self.bytes.done(), u64::from(self.to_tell) | is_open]
    }

    fn set_own(&mut self, [done, said]: [u64; 2], _: u64) -> bool {
        self.bytes.set_done(done);
        (self.to_tell, self.is_open) = (said as u16 & TOLD, said >> 16 != 0);
        self.own() == [done, said]
    }

    fn put_back(&mut self, queues: &mut [Queue]) {
        self.bytes.put_back(queues);
    }
}

impl Stream for Port {
    fn bytes(&mut self) -> &mut Bytes {
        &mut self.bytes
    }
}

impl Transport<Port> {
    /// Goes on with what driver and device say of the port; whether there may be more.
    pub fn converse(&mut self, memory: &impl GuestMemory) -> bool {
        let listen = |port: &mut Port, queue: &mut Queue| port.listen(queue, memory);
        let more = self.with_queue(memory, CONTROL_TRANSMIT, listen);
        self.with_queue(memory, CONTROL_RECEIVE, |port, queue| {
            port.tell(queue, memory)
        });
        more
    }
}
