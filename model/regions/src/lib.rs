//! Which regions of memory VMs share on purpose, and who uses them (after Disco 4.2.5, where
//! applications of several VMs share data by a named segment).
//!
//! A region begins with its first user and ends with its last; what it is made of is the caller's
//! `R`. Its size and its share group are its first user's; whoever comes later must say the same.
#![no_std]
#![forbid(unsafe_code)]

use abi::{Text, bundle::REGION_SIZE_MAX};
use heapless::Vec;

/// The most regions of a machine.
pub const REGIONS_MAX: usize = 16;
/// Sizes are multiples of so many bytes: a block of stage 2.
pub const STEP: u64 = 2 << 20;

/// What names a region.
pub type Name = Text<24>;

/// A region as a VM's description has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: Name,
    /// The share group of the VM.
    pub group: Name,
    /// Its bytes.
    pub size: u64,
}

/// Why a VM does not get a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has another size.
    #[error("region {} has {has} MiB for the VMs that use it, and {} MiB are asked for: say {has} MiB in all VM files",
        .wanted.name, .wanted.size >> 20, has = .has >> 20)]
    Size {
        /// What was asked for.
        wanted: Wanted,
        /// The bytes that it has.
        has: u64,
    },
    /// It is another share group's.
    #[error("region {} is used by share group {owner}, and the VM is of {}", .wanted.name, .wanted.group)]
    Group {
        /// What was asked for.
        wanted: Wanted,
        /// Whose it is.
        owner: Name,
    },
    /// No region has so many bytes.
    #[error("region {} has {} bytes; the size must be a multiple of 2 MiB and at most {REGION_SIZE_MAX}", .0.name, .0.size)]
    Bytes(Wanted),
    /// There are [`REGIONS_MAX`] of them.
    #[error("region {} would be one more than the {REGIONS_MAX} that a machine has at most", .0.name)]
    TooMany(Wanted),
    /// No memory is left for it.
    #[error("region {}: no memory is left for its {} MiB, which are taken in whole runs of 2 MiB", .0.name, .0.size >> 20)]
    NoMemory(Wanted),
}

impl Refused {
    /// The number that the sentence names first.
    pub const fn value(&self) -> u64 {
        match self {
            Self::Size { wanted, .. } | Self::Bytes(wanted) | Self::NoMemory(wanted) => wanted.size,
            Self::Group { .. } => 0,
            Self::TooMany(_) => REGIONS_MAX as u64,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry<R> {
    known: Wanted,
    users: u32,
    region: R,
}

/// The regions that somebody uses.
#[derive(Clone, Debug)]
pub struct Regions<R> {
    entries: Vec<Entry<R>, REGIONS_MAX>,
}

impl<R> Regions<R> {
    /// None.
    pub const fn empty() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// One more VM uses the region: it is given what the region is made of. `make` makes that for the
    /// first.
    ///
    /// # Errors
    /// Any [`Refused`]; nothing has changed then.
    pub fn join(&mut self, wanted: Wanted, make: impl FnOnce() -> Option<R>) -> Result<R, Refused>
    where
        R: Clone,
    {
        check(wanted)?;
        if let Some(entry) = self
            .entries
            .iter_mut()
            .find(|it| it.known.name == wanted.name)
        {
            entry.agrees(wanted)?;
            entry.users += 1;
            return Ok(entry.region.clone());
        }
        if self.entries.is_full() {
            return Err(Refused::TooMany(wanted));
        }
        let region = make().ok_or(Refused::NoMemory(wanted))?;
        let entry = Entry {
            known: wanted,
            users: 1,
            region: region.clone(),
        };
        // There is room, as was seen above.
        let _ = self.entries.push(entry);
        Ok(region)
    }

    /// Adds a region that is there and that nobody has joined yet.
    ///
    /// # Errors
    /// Any [`Refused`].
    pub fn put(&mut self, known: Wanted, region: R) -> Result<(), Refused> {
        check(known)?;
        if self.missing(known) == 0 {
            return Err(Refused::TooMany(known));
        }
        let entry = Entry {
            known,
            users: 0,
            region,
        };
        self.entries
            .push(entry)
            .map_err(|_| Refused::TooMany(known))
    }

    /// A VM uses the region no more: what it is made of, where that was the last.
    pub fn leave(&mut self, name: Name) -> Option<R> {
        let index = self.entries.iter().position(|it| it.known.name == name)?;
        let entry = &mut self.entries[index];
        entry.users -= 1;
        (entry.users == 0).then(|| self.entries.swap_remove(index).region)
    }

    /// Bytes of a region that would have to be made for whoever wants it.
    pub fn missing(&self, wanted: Wanted) -> u64 {
        let is_there = self.entries.iter().any(|it| it.known.name == wanted.name);
        if is_there { 0 } else { wanted.size }
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.known.size).sum()
    }

    /// All regions: what is known of them, how many use them, and what they are made of.
    pub fn iter(&self) -> impl Iterator<Item = (Wanted, u32, &R)> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.known, entry.users, &entry.region))
    }
}

impl<R> Entry<R> {
    /// Whether a VM that wants this may be one more user.
    fn agrees(&self, wanted: Wanted) -> Result<(), Refused> {
        let Wanted { group, size, .. } = self.known;
        // Another group's size is none of the asker's business.
        if group != wanted.group {
            return Err(Refused::Group {
                wanted,
                owner: group,
            });
        }
        if size != wanted.size {
            return Err(Refused::Size { wanted, has: size });
        }
        Ok(())
    }
}

/// Checks what is known without looking at other regions.
///
/// # Errors
/// [`Refused::Bytes`].
pub fn check(wanted: Wanted) -> Result<(), Refused> {
    let size = wanted.size;
    if size == 0 || !size.is_multiple_of(STEP) || size > abi::bundle::REGION_SIZE_MAX {
        return Err(Refused::Bytes(wanted));
    }
    Ok(())
}
