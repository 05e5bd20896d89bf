//! The network device (virtio 5.1): pairs of queues, offloads both ways, mergeable buffers, and the
//! control queue as Linux uses it.
//!
//! ```text
//!  transmit queue ──> next_frame ──> Frame: a head that EL2 keeps, and where the rest is ──> switch
//!  receive queue  <── receive    <── Offload, bytes, a function that fills in pieces     <── switch
//! ```
//!
//! The head of a frame is read once and delivered as it was read, so that what was checked is what
//! arrives; the rest is moved by the owner and never looked at.

mod control;
mod header;
mod receive;
mod transmit;
pub mod wire;

pub use header::{BadHeader, Checksum, Gso, HEAD_MAX, HEADER_BYTES, Offload, Protocol};
pub use receive::Received;
pub use transmit::{Frame, Next, flow};

use crate::{Device, Transport};
use receive::Buffers;

/// The most pairs of queues.
pub const PAIRS_MAX: u16 = 4;

/// What a queue is for. Pairs come first, and behind those that the driver knows of is the control
/// queue (virtio 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Buffers to receive into.
    Receive,
    /// Frames to transmit.
    Transmit,
    /// Commands.
    Control,
}

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: u32 = 14;
/// Bytes of a VLAN tag.
pub const VLAN_BYTES: u32 = 4;
/// The longest frame: an IP packet of 64 KiB, and what goes before it.
pub const FRAME_MAX: u32 = 65_535 + ETHERNET_BYTES + VLAN_BYTES;
/// The least MTU (virtio 5.1.4.1).
pub const MTU_MIN: u16 = 68;

/// `VIRTIO_NET_F_*` (virtio 5.1.3).
pub mod feature {
    /// The device finishes checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes frames whose checksum is not there yet.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The driver can change what it takes while it runs.
    pub const CTRL_GUEST_OFFLOADS: u64 = 1 << 2;
    /// The device says its MTU.
    pub const MTU: u64 = 1 << 3;
    /// The device says its address.
    pub const MAC: u64 = 1 << 5;
    /// The driver takes long TCP frames over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes long TCP frames over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes long TCP frames with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device takes long TCP frames over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device takes long TCP frames over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device takes long TCP frames with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame may be received into several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The device says whether the link is up.
    pub const STATUS: u64 = 1 << 16;
    /// There is a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The device can ask the driver to announce itself.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// There may be several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// The control queue takes an address.
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
    /// The driver takes long UDP frames over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver takes long UDP frames over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device takes long UDP frames.
    pub const HOST_USO: u64 = 1 << 56;

    /// What a driver may take, and may stop taking while it runs.
    pub(super) const GUEST_OFFLOADS: u64 =
        GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
    /// All that spares checksums and segments.
    pub(super) const OFFLOADS: u64 =
        GUEST_OFFLOADS | CTRL_GUEST_OFFLOADS | CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;
    /// What every device has. Not `CTRL_RX`: the switch delivers by address, and a driver that got a
    /// frame for a group that it is not in drops it.
    pub(super) const ALWAYS: u64 =
        MTU | MAC | MRG_RXBUF | STATUS | CTRL_VQ | GUEST_ANNOUNCE | CTRL_MAC_ADDR;
}

/// What a network device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its address.
    pub mac: [u8; 6],
    /// The longest packet that it sends and receives in one frame, from [`MTU_MIN`].
    pub mtu: u16,
    /// Whether it takes and gives frames without checksums, and long ones.
    pub offloads: bool,
    /// Pairs of queues, 1 to [`PAIRS_MAX`].
    pub pairs: u16,
}

const STATUS_LINK_UP: u8 = 1;
const STATUS_ANNOUNCE: u8 = 2;
/// Where the status is in the configuration space.
const CONFIG_STATUS: usize = 6;

/// A network device.
#[derive(Clone, Debug)]
pub struct Net {
    options: Options,
    /// `struct virtio_net_config`: mac, status, max_virtqueue_pairs, mtu.
    config: [u8; 12],
    /// What the driver said it takes of what it could; at first all that was negotiated.
    taken: u64,
    /// Pairs that the driver said it uses.
    used: u16,
    /// The pair that transmits next.
    turn: u16,
    buffers: Buffers,
}

impl Net {
    /// A device whose link is up.
    pub fn new(options: Options) -> Self {
        let mut config = [0; 12];
        config[..6].copy_from_slice(&options.mac);
        config[CONFIG_STATUS] = STATUS_LINK_UP;
        let pairs = options.pairs.clamp(1, PAIRS_MAX);
        config[8..10].copy_from_slice(&pairs.to_le_bytes());
        config[10..].copy_from_slice(&options.mtu.to_le_bytes());
        Self {
            options: Options { pairs, ..options },
            config,
            taken: u64::MAX,
            used: 1,
            turn: 0,
            buffers: Buffers::default(),
        }
    }

    /// What it is.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Pairs that a driver knows of which accepted these features.
    fn pairs(&self, accepted: u64) -> u16 {
        if accepted & feature::MQ == 0 {
            1
        } else {
            self.options.pairs
        }
    }

    /// The longest frame that stands for itself only.
    fn wire_max(&self) -> u32 {
        u32::from(self.options.mtu) + ETHERNET_BYTES + VLAN_BYTES
    }
}

impl Device for Net {
    const ID: u32 = 1;
    const QUEUE_SIZES: &'static [u16] = &[256; 2 * PAIRS_MAX as usize + 1];

    fn queue_sizes(&self) -> &'static [u16] {
        &Self::QUEUE_SIZES[..=2 * usize::from(self.options.pairs)]
    }

    fn features(&self) -> u64 {
        let offloads = if self.options.offloads {
            feature::OFFLOADS
        } else {
            0
        };
        let several = if self.options.pairs > 1 {
            feature::MQ
        } else {
            0
        };
        feature::ALWAYS | offloads | several
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {
        self.taken = u64::MAX;
        (self.used, self.turn) = (1, 0);
        self.config[CONFIG_STATUS] &= !STATUS_ANNOUNCE;
    }

    fn own(&self) -> [u64; 2] {
        let [status, used] = [self.config[CONFIG_STATUS].into(), u64::from(self.used)];
        [self.taken, status | used << 16]
    }

    fn set_own(&mut self, [taken, rest]: [u64; 2], accepted: u64) -> bool {
        self.taken = taken;
        self.used = (rest >> 16) as u16;
        self.config[CONFIG_STATUS] = rest as u8 & (STATUS_LINK_UP | STATUS_ANNOUNCE);
        self.own() == [taken, rest] && (1..=self.pairs(accepted)).contains(&self.used)
    }
}

impl Transport<Net> {
    /// Which offloads the driver takes now, as [`Offload::fits`] asks.
    pub fn takes(&self) -> u64 {
        self.negotiated() & feature::GUEST_OFFLOADS & self.device.taken
    }

    /// What a queue is for.
    pub fn role(&self, queue: u16) -> Role {
        match queue {
            _ if usize::from(queue) == self.control_queue() => Role::Control,
            _ if queue.is_multiple_of(2) => Role::Receive,
            _ => Role::Transmit,
        }
    }

    /// A driver that does not know of several pairs finds it behind the first.
    fn control_queue(&self) -> usize {
        2 * usize::from(self.pairs())
    }

    /// Pairs that the driver knows of.
    fn pairs(&self) -> u16 {
        self.device.pairs(self.negotiated())
    }

    /// Whether the link is up.
    pub fn link(&self) -> bool {
        self.device.config[CONFIG_STATUS] & STATUS_LINK_UP != 0
    }

    /// Plugs the cable in or pulls it. When it is plugged in the driver is asked to say to the network
    /// where it is.
    pub fn set_link(&mut self, up: bool) {
        if self.link() == up {
            return;
        }
        let announces = up && self.has_negotiated(feature::GUEST_ANNOUNCE);
        let status = if up { STATUS_LINK_UP } else { 0 };
        let announce = if announces { STATUS_ANNOUNCE } else { 0 };
        self.device.config[CONFIG_STATUS] = status | announce;
        self.config_changed();
    }
}
