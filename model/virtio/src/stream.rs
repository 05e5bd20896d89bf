//! Bytes of a console or port, both ways (virtio 5.3.6): the first two queues of its device.

use crate::{Chain, DESCRIPTOR_COST, Device, Progress, Queue, QueueError, Transport};
use machine_contract::GuestMemory;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// A device whose first two queues carry bytes. There are no others than this crate's.
pub trait Stream: Device {
    /// What is on its way.
    fn bytes(&mut self) -> &mut Bytes;
}

/// What is on its way, both ways.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    /// What is being transmitted; kept where a budget ended within a buffer.
    outgoing: Chain,
    /// Whether `outgoing` is owed to the driver.
    transmitting: bool,
    /// Bytes of `outgoing` that were handed out, or of the chain that is next, where that was put back.
    done: u64,
    incoming: Chain,
}

impl<D: Stream> Transport<D> {
    /// Hands what the guest has written to `out`, piece by piece, about `budget` bytes of it.
    pub fn transmit(
        &mut self,
        memory: &impl GuestMemory,
        budget: usize,
        out: impl FnMut(&[u8]),
    ) -> Progress {
        self.with_queue(memory, TRANSMIT, |device, queue| {
            device.bytes().drain(queue, memory, budget, out)
        })
    }

    /// Puts `bytes` into the buffers that the guest has ready; how many fitted. A notification of
    /// queue 0 says when to try the rest.
    pub fn receive(&mut self, memory: &impl GuestMemory, bytes: &[u8]) -> usize {
        self.with_queue(memory, RECEIVE, |device, queue| {
            device.bytes().deliver(queue, memory, bytes)
        })
    }
}

impl Bytes {
    /// The driver starts over.
    pub(crate) fn reset(&mut self) {
        (self.transmitting, self.done) = (false, 0);
    }

    /// Bytes of the next buffer that were handed out, after [`Self::put_back`].
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }

    /// Sets that.
    pub(crate) fn set_done(&mut self, done: u64) {
        self.done = done;
    }

    /// The buffer that is being transmitted is the next one again.
    pub(crate) fn put_back(&mut self, queues: &mut [Queue]) {
        if core::mem::take(&mut self.transmitting) {
            queues[TRANSMIT].put_back(1);
        }
    }

    /// Hands what the guest has written to `out`, about `budget` bytes of it and no more.
    pub(crate) fn drain(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        mut budget: usize,
        mut out: impl FnMut(&[u8]),
    ) -> Result<Progress, QueueError> {
        let mut progress = Progress::default();
        let mut buffer = [0; 256];
        while budget > 0 {
            // Where its bytes are not to be had yet, the chain is the next one again.
            if !core::mem::take(&mut self.transmitting) {
                if !queue.pop(memory, &mut self.outgoing)? {
                    return Ok(progress);
                }
                self.outgoing.skip_readable(self.done);
                let cost = DESCRIPTOR_COST * self.outgoing.segment_count();
                budget = budget.saturating_sub(cost);
            }
            let room = buffer.len().min(budget);
            let n = self.outgoing.read(memory, &mut buffer[..room])?;
            self.transmitting = true;
            if n > 0 {
                out(&buffer[..n]);
                progress.bytes += n;
                self.done += n as u64;
                budget -= n;
            }
            if self.outgoing.readable().is_empty() {
                self.reset();
                queue.push_used(memory, self.outgoing.head(), 0)?;
            }
        }
        progress.more = true;
        Ok(progress)
    }

    /// Puts `bytes` into the guest's buffers; how many fitted.
    pub(crate) fn deliver(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        bytes: &[u8],
    ) -> Result<usize, QueueError> {
        let mut accepted = 0;
        // A buffer may have no writable byte: not more of them than the queue holds.
        for n in 0..queue.size() {
            if accepted == bytes.len()
                || !queue.pop_in_time(memory, &mut self.incoming, |_| n > 0)?
            {
                break;
            }
            let written = self.incoming.write(memory, &bytes[accepted..]);
            if written.is_err() && accepted > 0 {
                // The driver has those; what is wrong is found again with the rest.
                queue.put_back(1);
                break;
            }
            let n = written?;
            queue.push_used(memory, self.incoming.head(), n as u32)?;
            accepted += n;
        }
        Ok(accepted)
    }
}
