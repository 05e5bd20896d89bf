//! Devices as records, for images of any version (`abi::state`).

use crate::balloon::Balloon;
use crate::console::Console;
use crate::mmio::{Device, MAX_QUEUES, Transport};
use crate::queue::{Queue, QueueFeatures, QueueSetup};
use abi::state::{self, queue};

impl<D: Device> Transport<D> {
    /// The record of its registers and queues. All requests were answered.
    pub fn record(&self) -> state::Transport {
        let registers = self.registers();
        let mut queues = registers.queues;
        for (record, own) in queues.iter_mut().zip(&self.queues) {
            own.note(record);
        }
        state::Transport {
            queues,
            ..registers
        }
    }

    /// As a record has it: a device that was just made. `false` where it is none that such a device could
    /// have come to.
    #[must_use]
    pub fn restore(&mut self, record: &state::Transport) -> bool {
        let sizes = self.device().queue_sizes();
        let mut queues: [Queue; MAX_QUEUES] = Default::default();
        for (n, (queue, record)) in queues.iter_mut().zip(&record.queues).enumerate() {
            let size = sizes.get(n).copied().unwrap_or(0);
            let restored = Queue::of(record, size);
            let Some(restored) = restored else {
                return false;
            };
            *queue = restored;
        }
        self.queues = queues;
        self.set_registers(record)
    }
}

impl Queue {
    fn note(&self, record: &mut state::Queue) {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        record.flags = flag(self.ready, queue::READY)
            | flag(self.features.event_idx, queue::EVENT_IDX)
            | flag(self.features.indirect, queue::INDIRECT)
            | flag(self.muted, queue::MUTED);
        record.next_avail = self.next_avail;
        record.next_used = self.next_used;
        record.signalled = self.signalled;
    }

    /// As a record has it, of at most `max` entries. It looks at its rings anew.
    fn of(record: &state::Queue, max: u16) -> Option<Self> {
        let has = |flag: u32| record.flags & flag != 0;
        if !has(queue::READY) {
            return Some(Self::default());
        }
        let features = QueueFeatures {
            event_idx: has(queue::EVENT_IDX),
            indirect: has(queue::INDIRECT),
        };
        let mut restored = Self::new(&QueueSetup::of(record), max, features).ok()?;
        restored.next_avail = record.next_avail;
        restored.seen_avail = record.next_avail;
        restored.next_used = record.next_used;
        restored.signalled = record.signalled;
        restored.muted = has(queue::MUTED);
        Some(restored)
    }
}

impl QueueSetup {
    pub(crate) const fn of(record: &state::Queue) -> Self {
        Self {
            size: record.size,
            descriptors: record.descriptors,
            driver: record.driver,
            device: record.device,
        }
    }
}

impl Transport<Console> {
    /// Whether what the guest writes is in the middle of a buffer, which no record says.
    pub const fn is_at_a_write(&self) -> bool {
        self.device.is_transmitting()
    }
}

impl Transport<Balloon> {
    /// The record of its registers and queues, and of what is a balloon's own. A request that is not done is
    /// to be taken anew.
    pub fn balloon_record(&self) -> (state::Transport, u64) {
        let mut record = self.record();
        for (queue, is_open) in self.open_queues() {
            let next = &mut record.queues[queue].next_avail;
            *next = next.wrapping_sub(is_open.into());
        }
        (record, self.device.own())
    }

    /// As a record has it: see [`Self::restore`].
    #[must_use]
    pub fn restore_balloon(&mut self, record: &state::Transport, own: u64) -> bool {
        self.device.set_own(own);
        self.restore(record)
    }
}
