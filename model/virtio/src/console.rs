//! The console device (virtio 5.3) with one port.

use crate::Device;
use crate::stream::{Bytes, Stream};

/// `VIRTIO_CONSOLE_F_SIZE`.
const F_SIZE: u64 = 1;

/// A console: bytes out, bytes in, and the size of the terminal at the other end.
#[derive(Clone, Debug, Default)]
pub struct Console {
    /// `struct virtio_console_config` (virtio 5.3.4): columns, rows, ports, emergency write.
    config: [u8; 12],
    bytes: Bytes,
}

impl Console {
    pub(crate) const fn is_transmitting(&self) -> bool {
        self.bytes.is_transmitting()
    }
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
}

impl Stream for Console {
    fn bytes(&mut self) -> &mut Bytes {
        &mut self.bytes
    }
}
