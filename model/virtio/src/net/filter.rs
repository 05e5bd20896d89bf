//! Which frames a driver wants (virtio 5.1.6.5.1 and 5.1.6.5.2).

use heapless::Vec;

/// Addresses of single hosts, and of groups, that are told apart; with more, all are wanted.
pub(super) const UNICAST_MAX: usize = 16;
pub(super) const MULTICAST_MAX: usize = 64;

/// A receive filter. The default, until a driver says something, wants all.
#[derive(Clone, Debug)]
pub struct Filter {
    pub(super) promiscuous: bool,
    pub(super) all_multicast: bool,
    /// `None`: too many to be told apart.
    pub(super) unicast: Option<Vec<[u8; 6], UNICAST_MAX>>,
    pub(super) multicast: Option<Vec<[u8; 6], MULTICAST_MAX>>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            promiscuous: true,
            all_multicast: false,
            unicast: Some(Vec::new()),
            multicast: Some(Vec::new()),
        }
    }
}

impl Filter {
    /// Whether a device with the address `own` passes a frame to `destination`.
    pub fn wants(&self, own: [u8; 6], destination: [u8; 6]) -> bool {
        if self.promiscuous || destination == own || destination == [0xff; 6] {
            return true;
        }
        if destination[0] & 1 == 0 {
            let known = self.unicast.as_ref();
            return known.is_none_or(|known| known.contains(&destination));
        }
        let known = self.multicast.as_ref();
        self.all_multicast || known.is_none_or(|known| known.contains(&destination))
    }
}
