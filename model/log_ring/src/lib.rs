//! What EL2 has to say while nobody listens: the latest text, in a ring of fixed size.
//!
//! A byte's *position* is the number of bytes said before it, so a reader that comes back knows
//! whether it missed some.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;

/// The latest `N` bytes that were said.
#[derive(Debug)]
pub struct LogRing<const N: usize> {
    bytes: [u8; N],
    said: u64,
}

impl<const N: usize> LogRing<N> {
    /// Nothing was said.
    pub const fn empty() -> Self {
        Self {
            bytes: [0; N],
            said: 0,
        }
    }

    /// How many bytes were said in all.
    pub const fn said(&self) -> u64 {
        self.said
    }

    /// Copies into `into` what was said from position `from` on, or the oldest that is left; gives the
    /// position behind it and the number of bytes. A reader ahead of the ring gets nothing.
    pub fn read(&self, from: u64, into: &mut [u8]) -> (u64, usize) {
        let from = from.max(self.said.saturating_sub(N as u64)).min(self.said);
        let mut count = 0;
        for (position, byte) in (from..self.said).zip(into) {
            *byte = self.bytes[(position % N as u64) as usize];
            count += 1;
        }
        (from + count as u64, count)
    }
}

impl<const N: usize> fmt::Write for LogRing<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.bytes[(self.said % N as u64) as usize] = byte;
            self.said += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::fmt::Write as _;
    use proptest::prelude::*;
    use std::{string::String, vec, vec::Vec};

    proptest! {
        /// Against a text that keeps everything: a reader gets the end of it, in order, nothing twice.
        #[test]
        fn readers_get_what_is_left(
            steps in prop::collection::vec((prop::option::of("[a-z]{0,40}"), 0..50_usize), 0..60),
        ) {
            let mut ring = LogRing::<32>::empty();
            let mut all = String::new();
            let mut at = 0_u64;
            for (text, room) in steps {
                if let Some(text) = text {
                    ring.write_str(&text).unwrap();
                    all.push_str(&text);
                    continue;
                }
                let mut into = vec![0; room];
                let (next, count) = ring.read(at, &mut into);
                let start = at.max((all.len() as u64).saturating_sub(32)) as usize;
                let wanted: Vec<u8> = all.bytes().skip(start).take(room).collect();
                prop_assert_eq!(&into[..count], &wanted[..]);
                prop_assert_eq!(next, (start + count) as u64);
                at = next;
            }
            prop_assert_eq!(ring.said(), all.len() as u64);
            prop_assert_eq!(ring.read(u64::MAX, &mut [0; 4]), (ring.said(), 0));
        }
    }
}
