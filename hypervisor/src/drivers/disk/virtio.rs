//! A lane to a virtio-blk device that EL2 drives.

use crate::drivers::disk::{BUFFER_ORDER, DATA_AT, JOBS, Operation};
use crate::drivers::queue::{BufferQueue, Transport, begin};
use arch::frames::Ram;
use model_disk::{Io, Lane, Place};
use virtio_drivers::{Error, transport::Transport as _};

/// `struct virtio_blk_req` before its data: le32 type, le32 reserved, le64 sector.
const HEADER_BYTES: u32 = 16;
/// Where the header is in a buffer. The status is behind the data.
const HEADER_AT: u64 = DATA_AT - HEADER_BYTES as u64;
const FEATURE_FLUSH: u64 = 1 << 9;

/// The device and its queue.
pub struct Virtio {
    transport: Transport,
    queue: BufferQueue<64, JOBS>,
}

impl Virtio {
    /// Starts the device, and reads how many sectors it has.
    pub fn start(mut transport: Transport) -> Result<(Self, u64), Error> {
        begin(&mut transport, FEATURE_FLUSH);
        let queue = BufferQueue::new(&mut transport, 0, BUFFER_ORDER, HEADER_AT)?;
        transport.finish_init();
        // struct virtio_blk_config begins with the capacity; registers are read by words.
        let [low, high]: [u32; 2] = transport.read_config_space(0)?;
        let sectors = u64::from(high) << 32 | u64::from(low);
        Ok((Self { transport, queue }, sectors))
    }
}

impl Lane for Virtio {
    type Buffer = Ram;

    fn claim(&mut self, kept: usize) -> Option<(usize, Ram)> {
        (self.queue.free() > kept).then(|| self.queue.claim())?
    }

    fn release(&mut self, buffer: usize) {
        self.queue.release(buffer);
    }

    fn ask(&mut self, buffer: usize, place: &Place, io: Io) -> bool {
        let (ram, data) = (self.queue.buffers[buffer], io.bytes as u32);
        ram.write(HEADER_AT, &(io.operation as u32).to_le_bytes());
        ram.write(HEADER_AT + 4, &[0; 4]);
        ram.write(HEADER_AT + 8, &(place.first + io.sector).to_le_bytes());
        let (reads, writes) = match io.operation {
            Operation::Write => (HEADER_BYTES + data, 1),
            Operation::Read | Operation::Flush => (HEADER_BYTES, data + 1),
        };
        let lent = self.queue.lend(&mut self.transport, buffer, reads, writes);
        lent.is_ok()
    }

    fn take_back(&mut self, io_of: &dyn Fn(usize) -> Option<Io>) -> Option<(usize, Ram, bool)> {
        let (buffer, ram, written) = self.queue.take_back()?;
        let mut status = [0xff];
        ram.read(
            DATA_AT + io_of(buffer).map_or(0, |io| io.bytes),
            &mut status,
        );
        Some((buffer, ram, written > 0 && status[0] == 0))
    }

    fn acknowledge(&mut self) {
        self.transport.ack_interrupt();
    }
}
