//! `struct virtio_net_hdr` (virtio 5.1.6): what a driver says of a frame, checked against the frame.

use super::feature;

/// Bytes of the header before every frame: there is `num_buffers` with `VIRTIO_F_VERSION_1` always.
pub const HEADER_BYTES: usize = 12;
/// The first bytes of a frame, which the device keeps a copy of: all headers that it looks at.
pub const HEAD_MAX: usize = 192;

const FLAG_NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Segments smaller than this are nobody's: Linux keeps its own to 48 bytes and more.
const SEGMENT_MIN: u16 = 48;

/// What the frame is to be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP segments.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A frame longer than what goes over a wire: it stands for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// What it carries.
    pub protocol: Protocol,
    /// Over IPv6, otherwise IPv4.
    pub ipv6: bool,
    /// The driver set `VIRTIO_NET_HDR_GSO_ECN`: it is of a connection that uses ECN.
    pub ecn: bool,
    /// Bytes of payload in each piece but the last; never 0.
    pub size: u16,
    /// Where the IP header begins.
    pub network: u16,
    /// Where the payload begins.
    pub payload: u16,
}

/// A checksum that is not in the frame yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The first byte that it covers; it goes to the end of the frame.
    pub start: u16,
    /// Where its two bytes are: in the head.
    pub at: u16,
}

/// What is still to be done with a frame before it can go over a wire. All places lie in the frame's
/// head, and fit each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum.
    pub checksum: Option<Checksum>,
    /// What it is cut into; only with a checksum.
    pub gso: Option<Gso>,
}

/// The driver's header does not fit its frame, or what was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader;

impl Offload {
    /// What a driver with those features says of a frame of `bytes`, of which `head` are the first.
    pub(crate) fn parse(
        raw: &[u8; HEADER_BYTES],
        head: &[u8],
        bytes: u32,
        features: u64,
    ) -> Result<Self, BadHeader> {
        let word = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let (flags, kind) = (raw[0], raw[1]);
        if flags & FLAG_NEEDS_CSUM == 0 {
            // Pieces without a checksum each cannot be.
            let plain = kind == GSO_NONE;
            return if plain {
                Ok(Self::default())
            } else {
                Err(BadHeader)
            };
        }
        if features & feature::CSUM == 0 {
            return Err(BadHeader);
        }
        let (start, offset) = (word(6), word(8));
        let at = start.checked_add(offset).ok_or(BadHeader)?;
        if usize::from(start) < ETHERNET_BYTES || usize::from(at) + 2 > head.len() {
            return Err(BadHeader);
        }
        let checksum = Some(Checksum { start, at });
        if kind == GSO_NONE {
            return Ok(Self {
                checksum,
                gso: None,
            });
        }
        let gso = gso(kind, word(4), (start, offset), head, features)?;
        let payload = u32::from(gso.payload);
        if payload >= bytes || usize::from(gso.payload) > head.len() {
            return Err(BadHeader);
        }
        Ok(Self {
            checksum,
            gso: Some(gso),
        })
    }

    /// The header for a driver that is given the frame in so many buffers.
    pub(crate) fn encode(self, buffers: u16) -> [u8; HEADER_BYTES] {
        let mut raw = [0; HEADER_BYTES];
        let mut put = |at: usize, word: u16| raw[at..at + 2].copy_from_slice(&word.to_le_bytes());
        put(10, buffers);
        if let Some(Checksum { start, at }) = self.checksum {
            put(6, start);
            put(8, at - start);
        }
        if let Some(gso) = self.gso {
            put(2, gso.payload);
            put(4, gso.size);
        }
        raw[0] = u8::from(self.checksum.is_some());
        raw[1] = self.gso.map_or(GSO_NONE, Gso::kind);
        raw
    }

    /// Whether a driver that takes these offloads of a device can be given the frame as it is.
    pub fn fits(self, features: u64) -> bool {
        let gso = self.gso.map_or(0, Gso::guest_feature);
        let checksum = if self.checksum.is_some() {
            feature::GUEST_CSUM
        } else {
            0
        };
        features & (gso | checksum) == gso | checksum
    }
}

impl Gso {
    fn kind(self) -> u8 {
        let kind = match (self.protocol, self.ipv6) {
            (Protocol::Tcp, false) => GSO_TCPV4,
            (Protocol::Tcp, true) => GSO_TCPV6,
            (Protocol::Udp, _) => GSO_UDP_L4,
        };
        kind | if self.ecn { GSO_ECN } else { 0 }
    }

    fn guest_feature(self) -> u64 {
        let feature = match (self.protocol, self.ipv6) {
            (Protocol::Tcp, false) => feature::GUEST_TSO4,
            (Protocol::Tcp, true) => feature::GUEST_TSO6,
            (Protocol::Udp, false) => feature::GUEST_USO4,
            (Protocol::Udp, true) => feature::GUEST_USO6,
        };
        feature | if self.ecn { feature::GUEST_ECN } else { 0 }
    }
}

/// Checks that the frame's headers are those of the pieces it is said to consist of.
fn gso(
    kind: u8,
    size: u16,
    (start, offset): (u16, u16),
    head: &[u8],
    features: u64,
) -> Result<Gso, BadHeader> {
    let ecn = kind & GSO_ECN != 0;
    let (network, ipv6, protocol) = network(head, usize::from(start)).ok_or(BadHeader)?;
    let (needed, carried, field, least) = match kind & !GSO_ECN {
        GSO_TCPV4 if !ipv6 => (feature::HOST_TSO4, Protocol::Tcp, 16, TCP_BYTES),
        GSO_TCPV6 if ipv6 => (feature::HOST_TSO6, Protocol::Tcp, 16, TCP_BYTES),
        GSO_UDP_L4 if !ecn => (feature::HOST_USO, Protocol::Udp, 6, UDP_BYTES),
        _ => return Err(BadHeader),
    };
    let needed = needed | if ecn { feature::HOST_ECN } else { 0 };
    let (number, header) = match carried {
        // The data offset, in words of four bytes.
        Protocol::Tcp => {
            let offset = *head.get(usize::from(start) + 12).ok_or(BadHeader)?;
            (PROTOCOL_TCP, usize::from(offset >> 4) * 4)
        }
        Protocol::Udp => (PROTOCOL_UDP, least),
    };
    let is_right = features & needed == needed
        && protocol == number
        && offset == field
        && header >= least
        && size >= SEGMENT_MIN;
    if !is_right {
        return Err(BadHeader);
    }
    Ok(Gso {
        protocol: carried,
        ipv6,
        ecn,
        size,
        network: network as u16,
        payload: (usize::from(start) + header) as u16,
    })
}

/// Where the IP header is, whether it is IPv6, and the protocol of what begins at `transport`.
/// IPv6 with extension headers is not understood: drivers do not offload it.
fn network(head: &[u8], transport: usize) -> Option<(usize, bool, u8)> {
    let ethertype = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
    let mut at = ETHERNET_BYTES;
    let mut kind = ethertype(at - 2)?;
    if kind == ETHERTYPE_VLAN {
        at += VLAN_BYTES;
        kind = ethertype(at - 2)?;
    }
    let first = *head.get(at)?;
    match (kind, first >> 4) {
        (ETHERTYPE_IPV4, 4) => {
            let length = usize::from(first & 0xf) * 4;
            let protocol = *head.get(at + 9)?;
            (length >= 20 && at + length == transport).then_some((at, false, protocol))
        }
        (ETHERTYPE_IPV6, 6) => {
            let protocol = *head.get(at + 6)?;
            (at + IPV6_BYTES == transport).then_some((at, true, protocol))
        }
        _ => None,
    }
}
