//! Keys and tags derived from the cluster's key by keyed BLAKE2s (RFC 7693).

use crate::cipher::KEY_BYTES;
use abi::link::{NONCE_BYTES, TAG_BYTES};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use core::fmt;

/// Random number that its host has never used before.
pub type Nonce = [u8; NONCE_BYTES];

/// Secret that all hosts of a cluster have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClusterKey(pub [u8; 32]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

/// Purpose of a result: each has a label of its own.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Label {
    Hello = 1,
    Session = 2,
    Frames = 3,
}

fn begin(key: &[u8; 32], label: Label) -> Blake2sMac256 {
    let mut mac = Blake2sMac256::new(key.into());
    mac.update(&[label as u8]);
    mac
}

impl ClusterKey {
    fn hello(&self, head: &[u8]) -> Blake2sMac256 {
        let mut mac = begin(&self.0, Label::Hello);
        mac.update(head);
        mac
    }

    /// Returns the tag of a hello that begins with `head`.
    pub(crate) fn tag(&self, head: &[u8]) -> [u8; TAG_BYTES] {
        let whole: [u8; 32] = self.hello(head).finalize().into_bytes().into();
        core::array::from_fn(|n| whole[n])
    }

    /// Returns whether `tag` is right, in constant time.
    pub(crate) fn has_made(&self, tag: &[u8; TAG_BYTES], head: &[u8]) -> bool {
        self.hello(head).verify_truncated_left(tag).is_ok()
    }

    /// Derives a session's secret from the epoch, both hosts and a nonce of each.
    pub(crate) fn session(&self, epoch: u32, hosts: [(u8, &Nonce); 2]) -> Secret {
        let [low, high] = if hosts[0].0 < hosts[1].0 {
            hosts
        } else {
            [hosts[1], hosts[0]]
        };
        let mut mac = begin(&self.0, Label::Session);
        mac.update(&epoch.to_le_bytes());
        mac.update(&[low.0, high.0]);
        mac.update(low.1);
        mac.update(high.1);
        Secret(mac.finalize().into_bytes().into())
    }
}

/// Secret from which a session's keys are derived.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Derives the key of a host's frames in a generation.
    pub(crate) fn key(&self, from: u8, generation: u64) -> [u8; KEY_BYTES] {
        let mut mac = begin(&self.0, Label::Frames);
        mac.update(&[from]);
        mac.update(&generation.to_le_bytes());
        let whole: [u8; 32] = mac.finalize().into_bytes().into();
        core::array::from_fn(|n| whole[n])
    }
}
