//! The cluster that a machine belongs to, in its bundle.

use super::{Bundle, BundleError, kind};
use crate::Text;
use crate::cluster::HOSTS_MAX;
use crate::link::{ETHERNET_BYTES, FRAME_PAGE, FRAME_STANDARD};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The hosts of a cluster, which of them this machine is, and the key of all. A host is known by its place in the lists.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClusterRecord {
    /// Number that tells clusters on one wire apart.
    pub number: u32,
    /// This machine's place.
    pub host: u8,
    /// How many hosts there are, from 2.
    pub hosts: u8,
    /// 1: frames of the link are neither secret nor authentic, as the machine's owner has said. Else 0.
    pub is_open: u8,
    /// 1: the machine seals frames as if its CPUs had no AES. Else 0.
    pub no_aes: u8,
    /// The most bytes that a frame carries on the link's Ethernet: [`MTU_STANDARD`], or [`MTU_PAGE`] and more.
    pub mtu: u16,
    /// Zeroes.
    pub zeroes: [u8; 2],
    /// Key of the cluster: secret.
    pub key: [u8; 32],
    /// Address of each host's card of the link.
    pub macs: [[u8; 6]; HOSTS_MAX],
    /// Name of each host.
    pub names: [Text<24>; HOSTS_MAX],
}
const _: () = assert!(size_of::<ClusterRecord>() == 12 + 32 + 16 * 6 + 16 * 24);

/// MTU of any Ethernet. A page takes three frames.
pub const MTU_STANDARD: u16 = (FRAME_STANDARD - ETHERNET_BYTES) as u16;
/// The least MTU with which a page takes one.
pub const MTU_PAGE: u16 = (FRAME_PAGE - ETHERNET_BYTES) as u16;

impl ClusterRecord {
    /// Returns the bytes of the longest frame of the link.
    pub const fn frame_bytes(&self) -> usize {
        if self.mtu < MTU_PAGE {
            FRAME_STANDARD
        } else {
            FRAME_PAGE
        }
    }

    /// Returns whether the hosts have names and addresses, all different, and there is a key.
    fn is_sound(&self) -> bool {
        let hosts = usize::from(self.hosts);
        let (Some(macs), Some(names)) = (self.macs.get(..hosts), self.names.get(..hosts)) else {
            return false;
        };
        let is_host = |mac: &[u8; 6]| mac[0] & 1 == 0 && *mac != [0; 6];
        let is_said = |name: &Text<24>| name.as_str().is_some_and(|name| !name.is_empty());
        let differs = |n: usize| !macs[..n].contains(&macs[n]) && !names[..n].contains(&names[n]);
        hosts >= 2
            && self.host < self.hosts
            && self.is_open <= 1
            && self.no_aes <= 1
            && self.zeroes == [0; 2]
            && (self.mtu == MTU_STANDARD || self.mtu >= MTU_PAGE)
            && self.key != [0; 32]
            && macs.iter().all(is_host)
            && names.iter().all(is_said)
            && (0..hosts).all(differs)
    }
}

impl Bundle<'_> {
    /// Returns the cluster that the machine belongs to, if there is one.
    ///
    /// # Errors
    /// The entry is no description of a cluster, or there are two.
    pub fn cluster(&self) -> Result<Option<ClusterRecord>, BundleError> {
        let mut entries = self
            .entries()
            .filter(|(_, entry)| entry.kind == kind::CLUSTER);
        let Some((n, entry)) = entries.next() else {
            return Ok(None);
        };
        let record = self.content(&entry);
        let record = record.and_then(|bytes| ClusterRecord::read_from_bytes(bytes).ok());
        let record = record.filter(|record| record.is_sound() && entries.next().is_none());
        record.map(Some).ok_or(BundleError::Cluster(n))
    }
}
