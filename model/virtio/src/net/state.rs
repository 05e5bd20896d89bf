//! Network devices as records, for images of any version (`abi::state`).

use super::{CONFIG_STATUS, Frame, Net, STATUS_ANNOUNCE, STATUS_LINK_UP};
use crate::Transport;
use abi::state::{self, net};

impl Transport<Net> {
    /// The record of its registers and queues, and of what is its own. The frame that `waits` for a receiver
    /// is to be taken anew.
    pub fn net_record(&self, waits: Option<&Frame>) -> (state::Transport, state::Net) {
        let mut record = self.record();
        if let Some(queue) = waits.and_then(|frame| self.queue_of(frame)) {
            let next = &mut record.queues[queue].next_avail;
            *next = next.wrapping_sub(1);
        }
        (record, self.device.own())
    }

    /// As a record has it: see [`Self::restore`].
    #[must_use]
    pub fn restore_net(&mut self, record: &state::Transport, own: &state::Net) -> bool {
        // How many pairs its driver knows of is in its registers.
        let fits = self.restore(record) && (1..=self.pairs()).contains(&own.pairs);
        if fits {
            self.device.set_own(own);
        }
        fits
    }
}

impl Net {
    fn own(&self) -> state::Net {
        let has = |status: u8| self.config[CONFIG_STATUS] & status != 0;
        let flags = [
            (has(STATUS_LINK_UP), net::LINK_UP),
            (has(STATUS_ANNOUNCE), net::ANNOUNCE),
            (self.taken.is_some(), net::TAKES),
        ];
        state::Net {
            taken: self.taken.unwrap_or(0),
            flags: flags.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum(),
            pairs: self.used,
            reserved: 0,
        }
    }

    fn set_own(&mut self, own: &state::Net) {
        let has = |flag: u32| own.flags & flag != 0;
        let status = |flag: u32, status: u8| if has(flag) { status } else { 0 };
        self.config[CONFIG_STATUS] =
            status(net::LINK_UP, STATUS_LINK_UP) | status(net::ANNOUNCE, STATUS_ANNOUNCE);
        self.taken = has(net::TAKES).then_some(own.taken);
        self.used = own.pairs;
    }
}
