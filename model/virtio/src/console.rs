//! The console device (virtio 5.3) with one port.

use crate::stream::{Bytes, Stream};
use crate::{Device, Queue};

/// `VIRTIO_CONSOLE_F_SIZE`.
const F_SIZE: u64 = 1;

/// A console: bytes out, bytes in, and the size of the terminal at the other end.
#[derive(Clone, Debug, Default)]
pub struct Console {
    /// `struct virtio_console_config` (virtio 5.3.4): columns, rows, ports, emergency write.
    config: [u8; 12],
    bytes: Bytes,
}

impl Device for Console {
    const ID: u32 = 3;
    const QUEUE_SIZES: &'static [u16] = &[64, 64];

    fn features(&self) -> u64 {
        F_SIZE
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {
        self.bytes.reset();
    }

    fn own(&self) -> [u64; 2] {
        [self.bytes.done(), 0]
    }

    fn set_own(&mut self, own: [u64; 2], _accepted: u64) -> bool {
        self.bytes.set_done(own[0]);
        own[1] == 0
    }

    fn put_back(&mut self, queues: &mut [Queue]) {
        self.bytes.put_back(queues);
    }
}

impl Stream for Console {
    fn bytes(&mut self) -> &mut Bytes {
        &mut self.bytes
    }
}
