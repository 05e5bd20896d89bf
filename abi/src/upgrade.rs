//! One image of the hypervisor takes another's place beneath OS-0: what an image says of itself, and
//! what the old one leaves for the new one.
//!
//! Both images can be of any two versions, so nothing here depends on how either is laid out inside. The
//! old one keeps all that is its own until the new one has answered by [`Handover::entry`]; before, the new
//! one can go back with a refusal.

use core::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of [`Handover`], and of what it leads to, that this source writes and reads.
pub const VERSION: u32 = 2;
/// The oldest that it reads.
pub const OLDEST: u32 = 1;
/// How an image begins what it says of itself.
pub const MAGIC: [u8; 8] = *b"UNDERPIN";
/// Where in an image that is: behind the header that boot loaders read.
pub const MARK_AT: usize = 64;
/// X1 of a new image's first instruction, where X0 is a [`Handover`]; boot loaders leave zero there.
pub const TAKE_OVER: u64 = 0x5265_706c_6163_6521;
/// The most CPUs.
pub const CPUS_MAX: usize = 64;
/// Registers of a CPU that are handed over: x0 to x30, the program counter, PSTATE as in an SPSR.
pub const REGISTERS: usize = 33;

/// What an image says of itself. `xtask build` fills it in.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Mark {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The oldest version of [`Handover`] that it reads, and the newest.
    pub oldest: u32,
    /// See `oldest`.
    pub newest: u32,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Bytes that it takes in memory, zeroed data included.
    pub memory_bytes: u64,
    /// [`checksum`] of the file's bytes behind the mark.
    pub checksum: u64,
    /// Zero.
    pub reserved: [u64; 3],
}
const _: () = assert!(size_of::<Mark>() == 64);

/// Why an image cannot take this one's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It is none, or not all of it, or it was changed on its way.
    NoImage,
    /// It does not read what this one writes.
    Version,
    /// It is too large.
    TooLarge,
}

impl Mark {
    /// What a file says of itself, with all of it checked against the file, but not yet whether it fits.
    ///
    /// # Errors
    /// It is no image of Underpin's, or not what it was when it was made.
    pub fn of(file: &[u8]) -> Result<Self, Misfit> {
        let (mark, rest) = file
            .get(MARK_AT..)
            .and_then(|rest| Self::read_from_prefix(rest).ok())
            .ok_or(Misfit::NoImage)?;
        let is_whole = mark.magic == MAGIC
            && mark.file_bytes == file.len() as u64
            && mark.memory_bytes >= mark.file_bytes
            && mark.oldest <= mark.newest
            && mark.checksum == checksum(rest);
        is_whole.then_some(mark).ok_or(Misfit::NoImage)
    }

    /// Whether it can take over what is of `version`, in `room` bytes.
    ///
    /// # Errors
    /// It reads only others, or has no room.
    pub fn fits(&self, version: u32, room: u64) -> Result<(), Misfit> {
        if !(self.oldest..=self.newest).contains(&version) {
            return Err(Misfit::Version);
        }
        if self.memory_bytes >= room {
            return Err(Misfit::TooLarge);
        }
        Ok(())
    }
}

/// Finds what went wrong on the way; no protection against anybody: whoever may replace the hypervisor
/// owns the machine. FNV-1a over words of 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]);
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME)
    })
}

/// A run of memory: its first byte, and how many.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Run(AtomicU64, AtomicU64);

impl Run {
    const fn none() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }

    /// Sets it.
    pub fn set(&self, start: u64, bytes: u64) {
        self.0.store(start, Ordering::Relaxed);
        self.1.store(bytes, Ordering::Relaxed);
    }

    /// Its start and size.
    pub fn get(&self) -> (u64, u64) {
        (
            self.0.load(Ordering::Relaxed),
            self.1.load(Ordering::Relaxed),
        )
    }
}

/// How the old image is come back to, in one line of the cache: read with caches off.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct WayBack {
    /// An instruction of the old image's.
    pub to: AtomicU64,
    /// Its stack pointer there, its translation table, its per-CPU word, its vectors.
    pub state: [AtomicU64; 4],
}

/// What [`Handover::state`] says.
pub mod state {
    /// The new image has not answered.
    pub const WAITING: u64 = 0;
    /// It has taken over: [`super::Handover::entry`] and the CPUs' records are there.
    pub const TAKEN: u64 = 1;
    // All else: refused so (`crate::os0::code`).
}

/// A CPU that is handed over.
#[derive(Debug)]
#[repr(C)]
pub struct HandedCpu {
    /// Its affinity.
    pub affinity: AtomicU64,
    /// Whether it runs OS-0: 1, or 0. The rest is there only then.
    pub is_on: AtomicU64,
    /// X0 for it at [`Handover::entry`]; of the new image.
    pub record: AtomicU64,
    /// OS-0's general registers.
    pub registers: [AtomicU64; REGISTERS],
}

/// What the old image leaves for the new one, in its own memory. Each CPU writes what is its, the first
/// one the rest; the new image writes `entry` and the records, then `state`.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Handover {
    /// The way back.
    pub back: WayBack,
    /// [`VERSION`] of whoever wrote it.
    pub version: AtomicU64,
    /// One of [`state`], or a refusal.
    pub state: AtomicU64,
    /// What OS-0 never sees.
    pub hidden: Run,
    /// The part of it that is the new image's, which begins with it; and the old one's.
    pub slots: [Run; 2],
    /// The machine's device tree as the boot loader left it.
    pub tree: Run,
    /// How many images came before the new one.
    pub upgrades: AtomicU64,
    /// Where the other CPUs enter the new image.
    pub entry: AtomicU64,
    /// A step at which the new image is to fail; zero: none. For tests.
    pub fails_at: AtomicU64,
    /// How many of [`Self::cpu`] there are.
    pub cpus: AtomicU64,
    /// The CPUs, in the order of the device tree.
    pub cpu: [HandedCpu; CPUS_MAX],
    /// The records of VMs that are parked ([`crate::parked`]); empty: there are none. From version 2 on.
    pub parked: Run,
}

impl Handover {
    /// Nothing.
    #[expect(clippy::large_stack_arrays, reason = "it is a static's value")]
    pub const fn empty() -> Self {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Self {
            back: WayBack {
                to: zero(),
                state: [const { zero() }; 4],
            },
            version: zero(),
            state: zero(),
            hidden: Run::none(),
            slots: [const { Run::none() }; 2],
            tree: Run::none(),
            upgrades: zero(),
            entry: zero(),
            fails_at: zero(),
            cpus: zero(),
            cpu: [const {
                HandedCpu {
                    affinity: zero(),
                    is_on: zero(),
                    record: zero(),
                    registers: [const { zero() }; REGISTERS],
                }
            }; CPUS_MAX],
            parked: Run::none(),
        }
    }

    /// Those CPUs that there are.
    pub fn cpus(&self) -> &[HandedCpu] {
        let count = self.cpus.load(Ordering::Relaxed);
        &self.cpu[..CPUS_MAX.min(usize::try_from(count).unwrap_or(CPUS_MAX))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_what_other_versions_expect() {
        assert_eq!(core::mem::offset_of!(Handover, version), 64);
        assert_eq!(core::mem::offset_of!(Handover, cpu), 176);
        assert_eq!(size_of::<HandedCpu>(), 36 * 8);
    }
}
