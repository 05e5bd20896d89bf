//! The entropy device (virtio 5.4).

use crate::{Chain, DESCRIPTOR_COST, Device, Progress, Queue, QueueError, Transport};
use machine_contract::GuestMemory;

/// The queue of buffers to fill.
const REQUESTS: usize = 0;

/// An entropy device. Where the bytes come from is its owner's affair.
#[derive(Clone, Debug, Default)]
pub struct Rng {
    chain: Chain,
}

impl Device for Rng {
    const ID: u32 = 4;
    const QUEUE_SIZES: &'static [u16] = &[64];

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    fn reset(&mut self) {}
}

impl Transport<Rng> {
    /// Fills buffers by `random`, about `budget` bytes of them. A buffer is handed back short
    /// rather than kept for the next call, as virtio 5.4.6.2 allows.
    pub fn fill(
        &mut self,
        memory: &impl GuestMemory,
        budget: usize,
        random: impl FnMut(&mut [u8]),
    ) -> Progress {
        self.with_queue(memory, REQUESTS, |device, queue| {
            fill(queue, &mut device.chain, memory, budget, random)
        })
    }
}

fn fill(
    queue: &mut Queue,
    chain: &mut Chain,
    memory: &impl GuestMemory,
    mut budget: usize,
    mut random: impl FnMut(&mut [u8]),
) -> Result<Progress, QueueError> {
    let mut progress = Progress::default();
    let mut buffer = [0; 64];
    while budget > 0 {
        if !queue.pop(memory, chain)? {
            return Ok(progress);
        }
        let mut written = 0;
        loop {
            let n = buffer
                .len()
                .min(chain.writable_bytes() as usize)
                .min(budget);
            if n == 0 {
                break;
            }
            random(&mut buffer[..n]);
            written += chain.write(memory, &buffer[..n])?;
            budget -= n;
        }
        queue.push_used(memory, chain.head(), written as u32)?;
        progress.bytes += written;
        budget = budget.saturating_sub(DESCRIPTOR_COST * chain.segment_count());
    }
    progress.more = true;
    Ok(progress)
}
