//! Which device a guest-physical address is of: a VM's table of ranges, sorted by address.
//!
//! An exit for a device's registers looks here once. Guests poll one register many times, so a vCPU keeps the [`Row`]
//! that it found last, which [`MmioMap::find`] looks at before it searches.
#![no_std]
#![forbid(unsafe_code)]

use model_addr::{Ipa, IpaRange};

/// A range of addresses and what is there. The default is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row<T> {
    start: u64,
    size: u64,
    to: T,
}

impl<T: Copy> Row<T> {
    /// What is at an address, and at which offset of it the address is; `None` where the address is not in the range.
    #[inline]
    pub fn at(&self, ipa: Ipa) -> Option<(T, u64)> {
        let offset = ipa.0.wrapping_sub(self.start);
        (offset < self.size).then_some((self.to, offset))
    }
}

/// Why a range does not come into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another device has a part of it, or nothing is in it.
    #[error("the range of a device is empty, or overlaps another's")]
    Overlaps,
    /// There are as many as there can be.
    #[error("the table of devices is full")]
    Full,
}

/// Up to `N` ranges.
#[derive(Clone, Debug, Default)]
pub struct MmioMap<T, const N: usize>(heapless::Vec<Row<T>, N>);

impl<T: Copy, const N: usize> MmioMap<T, N> {
    /// Puts a range in.
    pub fn add(&mut self, IpaRange { start, size }: IpaRange, to: T) -> Result<(), Refused> {
        let start = start.0;
        let place = self.0.partition_point(|row| row.start < start);
        let gap_begins = place
            .checked_sub(1)
            .map_or(0, |n| self.0[n].start + self.0[n].size);
        let gap_ends = self.0.get(place).map_or(u64::MAX, |row| row.start);
        let end = start.checked_add(size).filter(|end| *end <= gap_ends);
        if size == 0 || start < gap_begins || end.is_none() {
            return Err(Refused::Overlaps);
        }
        let row = Row { start, size, to };
        self.0.insert(place, row).map_err(|_| Refused::Full)
    }

    /// What is at an address, and at which offset of it the address is. `last` is the row that was found before, and is
    /// now the one that was found.
    #[inline]
    pub fn find(&self, last: &mut Row<T>, ipa: Ipa) -> Option<(T, u64)> {
        last.at(ipa).or_else(|| self.search(last, ipa))
    }

    #[inline(never)]
    fn search(&self, last: &mut Row<T>, ipa: Ipa) -> Option<(T, u64)> {
        let behind = self.0.partition_point(|row| row.start <= ipa.0);
        let row = self.0.get(behind.checked_sub(1)?)?;
        let found = row.at(ipa)?;
        *last = *row;
        Some(found)
    }
}
