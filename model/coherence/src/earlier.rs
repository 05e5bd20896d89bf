//! Pages as they were before they were written here, so that other hosts are sent what changed.

use crate::changes::{self, CHANGES_MAX, Words};
use alloc::boxed::Box;
use alloc::vec::Vec;
use zerocopy::IntoBytes;

/// Pages that are remembered, each in the place of its number modulo this: 1 MiB.
pub const PLACES: usize = 256;

/// Which page is in a place, and its version: 0 where none is.
type Name = (u32, u64);

/// Pages that are remembered. Allocates when it is made, and never after.
#[derive(Debug)]
pub struct Earlier {
    places: Vec<(Name, Box<Words>)>,
    /// Where changes are written before the link copies them.
    changes: Box<[u64; CHANGES_MAX]>,
}

impl Earlier {
    /// Makes an empty one; `None` without memory.
    pub fn new() -> Option<Self> {
        let mut places = Vec::new();
        places.try_reserve_exact(PLACES).ok()?;
        for _ in 0..PLACES {
            places.push(((0, 0), words()?));
        }
        let changes = words()?;
        Some(Self { places, changes })
    }

    /// Remembers a page, which `read` reads.
    pub fn remember(&mut self, page: u32, version: u64, read: impl FnOnce(&mut [u8])) {
        let (name, bytes) = &mut self.places[page as usize % PLACES];
        *name = (page, version);
        read(bytes.as_mut_bytes());
    }

    /// Returns what changed in a page since that version; `None` where that is not remembered, or the page is no longer.
    pub fn changes(&mut self, page: u32, since: u64, now: &Words) -> Option<&[u8]> {
        let (name, before) = &self.places[page as usize % PLACES];
        if *name != (page, since) {
            return None;
        }
        let words = changes::write(before, now, &mut self.changes)?;
        Some(self.changes[..words].as_bytes())
    }
}

/// Zeroed words on the heap.
pub fn words<const N: usize>() -> Option<Box<[u64; N]>> {
    let mut words = Vec::new();
    words.try_reserve_exact(N).ok()?;
    words.resize(N, 0);
    words.into_boxed_slice().try_into().ok()
}
