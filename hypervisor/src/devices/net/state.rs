//! Network devices as records (`abi::state`).

use crate::devices::net::Net;
use abi::state;

impl Net {
    /// Its record: a frame that waits for its receiver is in its queue again.
    pub fn record(&self) -> state::Device {
        let state = &mut **self.state.lock();
        if let Some(sending) = &mut state.sending
            && sending.waits.take().is_some()
        {
            state.transport.unsend(&sending.frame);
        }
        state.transport.record()
    }

    /// As a record has it; `false` where that makes no sense.
    #[must_use]
    pub fn restore(&self, record: &state::Device) -> bool {
        let mut state = self.state.lock();
        let is_restored = state.transport.restore(record);
        // The interrupt controller has it so, too.
        state.line = state.transport.irq_level();
        let link = state.transport.link();
        drop(state);
        self.cable.set_link(link);
        is_restored
    }
}
