//! Commands on the control queue (virtio 5.1.6.5): a class, a command, data, and an answer of a byte.

use super::{CONFIG_STATUS, Net, STATUS_ANNOUNCE, feature};
use crate::{Chain, QueueError, Transport};
use machine_contract::GuestMemory;

const OK: u8 = 0;
const ERR: u8 = 1;

/// Commands, as class and command.
mod command {
    pub const MAC: [u8; 2] = [1, 1];
    pub const ANNOUNCED: [u8; 2] = [3, 0];
    pub const PAIRS: [u8; 2] = [4, 0];
    pub const GUEST_OFFLOADS: [u8; 2] = [5, 0];
}

/// Why a command could not be done.
enum Unserved {
    /// It is not one of these, too short, or not to be had.
    Refused,
    /// Its memory is not there yet, or the queue is broken.
    Queue(QueueError),
}

impl Transport<Net> {
    /// Does up to `budget` commands, one at least and as far as the owner's time goes; whether there may be more.
    pub fn control(&mut self, memory: &impl GuestMemory, budget: usize) -> bool {
        if !self.is_live() {
            return false;
        }
        let (queue, mut chain) = (self.control_queue(), Chain::default());
        for n in 0..budget {
            let popped = self.queues[queue].pop_in_time(memory, &mut chain, |_| n > 0);
            if self.settle(popped) != Some(true) {
                self.signal(memory, queue);
                return false;
            }
            let answered = self.answer(memory, &mut chain);
            if self.settle_chain(queue, answered).is_none() {
                return false;
            }
        }
        self.signal(memory, queue);
        true
    }

    fn answer(&mut self, memory: &impl GuestMemory, chain: &mut Chain) -> Result<(), QueueError> {
        let at = chain.take_last_writable().ok_or(QueueError::Truncated)?;
        let ack = match self.command(memory, chain) {
            Ok(()) => OK,
            Err(Unserved::Refused) => ERR,
            Err(Unserved::Queue(error)) => return Err(error),
        };
        memory.write(at, &[ack])?;
        let queue = self.control_queue();
        self.queues[queue].push_used(memory, chain.head(), 1)
    }

    fn command(&mut self, memory: &impl GuestMemory, chain: &mut Chain) -> Result<(), Unserved> {
        let negotiated = self.negotiated();
        let needs = |feature: u64| {
            let has = negotiated & feature != 0;
            has.then_some(()).ok_or(Unserved::Refused)
        };
        let device = &mut self.device;
        match take(memory, chain)? {
            // The switch knows it by its address, which is the machine's to give.
            command::MAC => {
                needs(feature::CTRL_MAC_ADDR)?;
                let mac: [u8; 6] = take(memory, chain)?;
                if mac != device.options.mac {
                    return Err(Unserved::Refused);
                }
            }
            command::ANNOUNCED => {
                needs(feature::GUEST_ANNOUNCE)?;
                device.config[CONFIG_STATUS] &= !STATUS_ANNOUNCE;
            }
            command::PAIRS => {
                needs(feature::MQ)?;
                let pairs = u16::from_le_bytes(take(memory, chain)?);
                if !(1..=device.options.pairs).contains(&pairs) {
                    return Err(Unserved::Refused);
                }
                device.used = pairs;
            }
            command::GUEST_OFFLOADS => {
                needs(feature::CTRL_GUEST_OFFLOADS)?;
                device.taken = u64::from_le_bytes(take(memory, chain)?);
            }
            _ => return Err(Unserved::Refused),
        }
        Ok(())
    }
}

/// The next `N` bytes of a command.
fn take<const N: usize>(memory: &impl GuestMemory, chain: &mut Chain) -> Result<[u8; N], Unserved> {
    let mut bytes = [0; N];
    let read = chain.read(memory, &mut bytes);
    let read = read.map_err(|error| Unserved::Queue(error.into()))?;
    (read == N).then_some(bytes).ok_or(Unserved::Refused)
}
