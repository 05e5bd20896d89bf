//! Network devices as records, for the image that takes this one's place (`abi::state`).

use crate::devices::net::Net;
use abi::state;

impl Net {
    /// Its record, for the image that takes this one's place: registers, and what is its own.
    pub fn record(&self) -> (state::Transport, state::Net) {
        let state = self.state.lock();
        let waiting = state.sending.as_ref().filter(|it| it.waits.is_some());
        state.transport.net_record(waiting.map(|it| &it.frame))
    }

    /// As a record has it; `false` where that makes no sense.
    #[must_use]
    pub fn restore(&self, record: &state::Transport, own: &state::Net) -> bool {
        let mut state = self.state.lock();
        let is_restored = state.transport.restore_net(record, own);
        // The interrupt controller has it so, too.
        state.line = state.transport.irq_level();
        let link = state.transport.link();
        drop(state);
        self.cable.set_link(link);
        is_restored
    }
}
