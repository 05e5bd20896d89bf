//! Network devices as records, for images of any version (`abi::parked`).

use super::{CONFIG_STATUS, Filter, Frame, Net, STATUS_ANNOUNCE, STATUS_LINK_UP};
use crate::Transport;
use abi::parked::{self, net};
use heapless::Vec;

/// So many addresses that they are not told apart.
const TOO_MANY: u8 = 255;

impl Transport<Net> {
    /// The record of its registers and queues, and of what is its own. The frame that `waits` for a receiver
    /// is to be taken anew.
    pub fn net_record(&self, waits: Option<&Frame>) -> (parked::Transport, parked::Net) {
        let mut record = self.record();
        if let Some(queue) = waits.and_then(|frame| self.queue_of(frame)) {
            let next = &mut record.queues[queue].next_avail;
            *next = next.wrapping_sub(1);
        }
        (record, self.device.own())
    }

    /// As a record has it: see [`Self::restore`].
    #[must_use]
    pub fn restore_net(&mut self, record: &parked::Transport, own: &parked::Net) -> bool {
        // How many pairs its driver knows of is in its registers.
        self.restore(record)
            && (1..=self.pairs()).contains(&own.pairs)
            && self.device.set_own(own).is_some()
    }
}

impl Net {
    fn own(&self) -> parked::Net {
        let filter = &self.filter;
        let has = |status: u8| self.config[CONFIG_STATUS] & status != 0;
        let flags = [
            (has(STATUS_LINK_UP), net::LINK_UP),
            (has(STATUS_ANNOUNCE), net::ANNOUNCE),
            (self.taken.is_some(), net::TAKES),
            (filter.promiscuous, net::PROMISCUOUS),
            (filter.all_multicast, net::ALL_MULTICAST),
        ];
        let (unicast, hosts) = addresses(filter.unicast.as_ref());
        let (multicast, groups) = addresses(filter.multicast.as_ref());
        parked::Net {
            taken: self.taken.unwrap_or(0),
            flags: flags.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum(),
            pairs: self.used,
            wanted: [hosts, groups],
            unicast,
            multicast,
        }
    }

    fn set_own(&mut self, own: &parked::Net) -> Option<()> {
        let has = |flag: u32| own.flags & flag != 0;
        let status = |flag: u32, status: u8| if has(flag) { status } else { 0 };
        let [hosts, groups] = own.wanted;
        self.filter = Filter {
            promiscuous: has(net::PROMISCUOUS),
            all_multicast: has(net::ALL_MULTICAST),
            unicast: table(hosts, &own.unicast)?,
            multicast: table(groups, &own.multicast)?,
        };
        self.config[CONFIG_STATUS] =
            status(net::LINK_UP, STATUS_LINK_UP) | status(net::ANNOUNCE, STATUS_ANNOUNCE);
        self.taken = has(net::TAKES).then_some(own.taken);
        self.used = own.pairs;
        Some(())
    }
}

fn addresses<const N: usize>(known: Option<&Vec<[u8; 6], N>>) -> ([[u8; 6]; N], u8) {
    let mut all = [[0; 6]; N];
    let places = all.iter_mut().zip(known.into_iter().flatten());
    places.for_each(|(place, address)| *place = *address);
    (all, known.map_or(TOO_MANY, |known| known.len() as u8))
}

/// `None` where there are fewer addresses than that.
#[expect(
    clippy::option_option,
    reason = "too many to be told apart is a filter, too"
)]
fn table<const N: usize>(count: u8, all: &[[u8; 6]; N]) -> Option<Option<Vec<[u8; 6], N>>> {
    if count == TOO_MANY {
        return Some(None);
    }
    Vec::from_slice(all.get(..count.into())?).ok().map(Some)
}
